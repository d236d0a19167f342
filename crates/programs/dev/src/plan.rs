//! What a development federation consists of, before anything is started: map, settings, processes.
//!
//! Site `i` has MDT `i` and one OSS with OSTs `2i` and `2i+1`, which are the pool of the site's
//! name. The root is at the first site; every further site appears under its name in it.

use crate::doors::DoorPlan;
use crate::kdc;
use rustix::process::{getegid, geteuid};
use std::path::{Path, PathBuf};
use tieline_base::federation::{MapText, MdtText, OstText, PoolText, SecurityText};
use tieline_base::proving::KerberosSettings;
use tieline_serve::settings::{HsmSettings, MdtSettings, OstSettings, Settings};
use tieline_types::{FsName, MachineTrust, MdtIndex, PoolName, SiteName, Span};

/// The file system's name.
pub const FS: &str = "extenci";
const OSTS_PER_SITE: usize = 2;

/// Where a site's servers listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SitePlan {
    pub site: SiteName,
    pub mds: Ports,
    pub oss: Ports,
}

/// `HOST:PORT`s of one server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ports {
    pub address: String,
    /// Further addresses that it announces.
    pub more: Vec<String>,
    /// Where it listens, if not at its address alone.
    pub listen: Option<String>,
    pub admin: String,
}

impl Ports {
    pub fn announced(&self) -> Vec<String> {
        std::iter::once(&self.address).chain(&self.more).cloned().collect()
    }
}

/// Everything that settings files are written from.
pub struct Plan {
    pub dir: PathBuf,
    pub sites: Vec<SitePlan>,
    pub engine: String,
    /// What the names of this federation's schemas in a database begin with.
    pub schemas: Option<String>,
    /// The tree whose files the first OST may adopt.
    pub adopt: Option<PathBuf>,
    pub lease: Span,
    /// Each MDT keeps a change log beside its site's state.
    pub has_log: bool,
    /// As whom the servers run, if root starts them.
    pub user: Option<String>,
    /// The federation's public key, as digits.
    pub key: String,
    pub secret: PathBuf,
    /// Folder of the federation's own KDC, if it has one, and the rules of its map.
    pub kerberos: Option<KerberosPlan>,
    pub door: Option<DoorPlan>,
}

/// How a federation with Kerberos is made.
pub struct KerberosPlan {
    pub dir: PathBuf,
    pub config: PathBuf,
    pub services: kdc::Services,
    pub flavors: Vec<String>,
    /// What is believed of the machine whose mounts these are.
    pub machine: MachineTrust,
}

/// A server to be started.
pub struct ServerPlan {
    /// `mds-uf`.
    pub name: String,
    pub settings: Settings,
    pub ports: Ports,
    pub site: SiteName,
}

/// Names that cannot be sites here.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("site `{0}` is there twice")]
    Twice(SiteName),
    #[error("site `{0}` names a pool too: at most 15 characters")]
    LongName(SiteName),
}

/// Checks the sites' names: each also names a pool.
pub fn check_sites(sites: &[SiteName]) -> Result<(), PlanError> {
    for (place, site) in sites.iter().enumerate() {
        if sites.iter().take(place).any(|other| other == site) {
            return Err(PlanError::Twice(site.clone()));
        }
        if site.as_str().parse::<PoolName>().is_err() {
            return Err(PlanError::LongName(site.clone()));
        }
    }
    Ok(())
}

impl Plan {
    pub fn map(&self) -> MapText {
        let mut map = MapText {
            fs: fs_name(),
            version: 1,
            mdt: Vec::new(),
            ost: Vec::new(),
            pool: Vec::new(),
            repository: Vec::new(),
            security: self.kerberos.as_ref().map(|kerberos| self.security(kerberos)),
        };
        for (place, site) in self.sites.iter().enumerate() {
            map.mdt.push(MdtText {
                index: place as u16,
                site: site.site.clone(),
                addresses: site.mds.announced(),
                junction: (place > 0).then(|| site.site.to_string()),
                parent: 0,
            });
            let osts: Vec<u16> = osts_of(place).collect();
            map.ost.extend(osts.iter().map(|&index| OstText {
                index,
                site: site.site.clone(),
                addresses: site.oss.announced(),
                active: true,
            }));
            // Checked by `check_sites`.
            if let Ok(name) = site.site.as_str().parse() {
                map.pool.push(PoolText { name, osts, exposed: None, hsm: None });
            }
        }
        map
    }

    fn security(&self, kerberos: &KerberosPlan) -> SecurityText {
        let services = self.sites.iter().flat_map(|site| {
            let servers = [&site.mds, &site.oss].into_iter().zip(kerberos.services);
            servers.flat_map(move |(ports, name)| {
                let announced = ports.announced().into_iter();
                announced.map(move |address| (address, kdc::service(name, site)))
            })
        });
        SecurityText {
            realm: kdc::REALM.to_owned(),
            flavors: kerberos.flavors.clone(),
            services: services.collect(),
            machines: [(kdc::client(), kerberos.machine.name().to_owned())].into(),
            strangers: None,
            doors: self.door.iter().map(DoorPlan::text).collect(),
            issuers: self.door.iter().map(DoorPlan::issuer).collect(),
        }
    }

    /// The keys of a site's server.
    fn kerberos(&self, site: &SiteName, role: &str) -> Option<KerberosSettings> {
        let kerberos = self.kerberos.as_ref()?;
        let site = self.sites.iter().find(|plan| plan.site == *site)?;
        let [mds, oss] = kerberos.services;
        let service = if role == "mds" { mds } else { oss };
        let is_usual = kerberos.services == kdc::SERVICES;
        Some(KerberosSettings {
            keytab: kerberos.dir.join(kdc::keytab_name(role, site)),
            principal: Some(kdc::service(service, site)),
            services: if is_usual { Vec::new() } else { vec![service.to_owned()] },
            sec: None,
            realm: Some(kdc::REALM.to_owned()),
            config: Some(kerberos.config.clone()),
        })
    }

    /// Schemas that this federation makes in a database.
    pub fn all_schemas(&self) -> Vec<String> {
        (0..self.sites.len()).filter_map(|place| self.schema(place)).collect()
    }

    /// The servers, the root MDS first.
    pub fn servers(&self) -> Vec<ServerPlan> {
        let sites = self.sites.iter().enumerate();
        sites.flat_map(|(place, site)| [self.mds(place, site), self.oss(place, site)]).collect()
    }

    fn mds(&self, place: usize, site: &SitePlan) -> ServerPlan {
        let mut settings = self.settings(&site.site, "mds", &site.mds);
        settings.map_secret = (place == 0).then(|| self.secret.clone());
        settings.mdt = Some(MdtSettings {
            index: place as u16,
            engine: self.engine.clone(),
            store: self.schema(place).map(PathBuf::from),
            password: None,
            reserve: "64 MiB".to_owned(),
            lease: self.lease.to_string(),
            freed_keep: MdtSettings::of(0).freed_keep,
            log_to: self
                .has_log
                .then(|| self.dir.join("logs").join(format!("changes-{}", site.site))),
            log_wait: true,
            collect_rate: 2000,
            stray_keep: "1 h".to_owned(),
            session_keep: "1 h".to_owned(),
            capability_life: "5 min".to_owned(),
            root_owner: owner(),
        });
        ServerPlan {
            name: format!("mds-{}", site.site),
            settings,
            ports: site.mds.clone(),
            site: site.site.clone(),
        }
    }

    /// The schema of a site's MDT, if it is in a database.
    fn schema(&self, place: usize) -> Option<String> {
        let label = MdtIndex(place as u16).label().to_lowercase();
        self.schemas.as_ref().map(|schemas| format!("{schemas}_{label}"))
    }

    fn oss(&self, place: usize, site: &SitePlan) -> ServerPlan {
        let mut settings = self.settings(&site.site, "oss", &site.oss);
        let scripts = self.site_dir(&site.site).join("hsm");
        settings.hsm = Some(HsmSettings { scripts, spool: None });
        settings.ost = osts_of(place)
            .map(|index| {
                let path = self.site_dir(&site.site).join(format!("ost{index:04x}"));
                OstSettings {
                    reserve: "64 MiB".to_owned(),
                    adopt: self.adopt.clone().filter(|_| index == 0),
                    ..OstSettings::of(index, path)
                }
            })
            .collect();
        ServerPlan {
            name: format!("oss-{}", site.site),
            settings,
            ports: site.oss.clone(),
            site: site.site.clone(),
        }
    }

    fn settings(&self, site: &SiteName, role: &str, ports: &Ports) -> Settings {
        Settings {
            fs: FS.to_owned(),
            site: site.to_string(),
            user: self.user.clone(),
            state: self.site_dir(site).join(role),
            listen: ports.listen.as_ref().unwrap_or(&ports.address).clone(),
            admin: ports.admin.clone(),
            log: "text".to_owned(),
            congestion: "auto".to_owned(),
            audit: self
                .kerberos
                .is_some()
                .then(|| self.dir.join("logs").join(format!("audit-{role}-{site}.jsonl"))),
            map_key: self.key.clone(),
            map_secret: None,
            root: self.sites.first().map(|root| root.mds.address.clone()).into_iter().collect(),
            hsm: None,
            mdt: None,
            ost: Vec::new(),
            http: None,
            kerberos: self.kerberos(site, role),
        }
    }

    fn site_dir(&self, site: &SiteName) -> PathBuf {
        site_dir(&self.dir, site)
    }
}

/// Where a site's state and data are.
pub fn site_dir(dir: &Path, site: &SiteName) -> PathBuf {
    dir.join("sites").join(site.as_str())
}

pub fn fs_name() -> FsName {
    FS.parse().expect("the constant is a name")
}

fn osts_of(place: usize) -> impl Iterator<Item = u16> {
    (place * OSTS_PER_SITE..(place + 1) * OSTS_PER_SITE).map(|index| index as u16)
}

/// Whose the root directories are: of who is not root and makes them, so that he may use them.
fn owner() -> Option<String> {
    let (user, group) = (geteuid(), getegid());
    (!user.is_root()).then(|| format!("{}:{}", user.as_raw(), group.as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::OstIndex;

    fn ports(port: u16) -> Ports {
        Ports {
            address: format!("127.0.0.1:{port}"),
            more: Vec::new(),
            listen: None,
            admin: format!("127.0.0.1:{}", port + 1),
        }
    }

    fn plan() -> Plan {
        let site = |name: &str, port| SitePlan {
            site: name.parse().unwrap(),
            mds: ports(port),
            oss: ports(port + 2),
        };
        Plan {
            dir: "/d".into(),
            sites: vec![site("uf", 1000), site("fnal", 2000), site("cern", 3000)],
            engine: "memory".to_owned(),
            schemas: None,
            adopt: None,
            lease: "20 s".parse().unwrap(),
            has_log: false,
            user: None,
            key: "00".repeat(32),
            secret: "/d/keys/extenci.secret".into(),
            kerberos: None,
            door: None,
        }
    }

    #[test]
    fn every_site_has_an_mdt_two_osts_and_a_pool() {
        let map = plan().map().build().unwrap();
        assert_eq!(map.mdts.len(), 3);
        assert!(map.junction_of(MdtIndex(0)).is_none());
        assert_eq!(map.junction_of(MdtIndex(2)).unwrap().name.to_string(), "cern");
        let fnal = map.pool(&"fnal".parse().unwrap()).unwrap();
        assert_eq!(fnal.osts, [OstIndex(2), OstIndex(3)]);
        assert_eq!(map.ost(OstIndex(5)).unwrap().addresses, ["127.0.0.1:3002"]);
    }

    #[test]
    fn only_the_root_mds_has_the_secret() {
        let servers = plan().servers();
        let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["mds-uf", "oss-uf", "mds-fnal", "oss-fnal", "mds-cern", "oss-cern"]);
        let with_secret: Vec<&str> = servers
            .iter()
            .filter(|server| server.settings.map_secret.is_some())
            .map(|server| server.name.as_str())
            .collect();
        assert_eq!(with_secret, ["mds-uf"]);
        let text = toml::to_string(&servers[3].settings).unwrap();
        let read: Settings = toml::from_str(&text).unwrap();
        assert_eq!(read.ost[1].index, 3);
        assert_eq!(read.ost[1].path, Path::new("/d/sites/fnal/ost0003"));
    }

    #[test]
    fn sites_that_cannot_be_pools_are_refused() {
        let names = |list: &[&str]| list.iter().map(|s| s.parse().unwrap()).collect::<Vec<_>>();
        assert!(check_sites(&names(&["uf", "fnal"])).is_ok());
        assert!(check_sites(&names(&["uf", "uf"])).is_err());
        assert!(check_sites(&names(&["a-very-long-site-name"])).is_err());
    }
}
