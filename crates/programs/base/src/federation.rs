//! The federation map as people write it.
//!
//! ```toml
//! fs = "extenci"
//!
//! [[mdt]]
//! index = 0
//! site = "uf"
//! addresses = ["mds.uf.example:7640"]
//!
//! [[mdt]]
//! index = 1
//! site = "fnal"
//! addresses = ["mds.fnal.example:7640"]
//! junction = "fnal"                 # mounted as /extenci/fnal
//!
//! [[ost]]
//! index = 0
//! site = "uf"
//! addresses = ["oss.uf.example:7640"]
//!
//! [[pool]]
//! name = "uf"
//! osts = [0]
//! ```
//!
//! A federation with Kerberos has a realm, and perhaps rules (see `tieline flavor`):
//!
//! ```toml
//! [security]
//! realm = "EXTENCI.ORG"
//! flavors = ["default=krb5i", "default.cli2mdt=krb5p"]
//! services = { "mds.uf.example:7640" = "host/mds.uf.example@UFL.EDU" }
//! ```
//!
//! `tieline map keygen` makes a key pair, `tieline map sign` turns the text into the signed map
//! that the root MDS starts from. Knows no socket.

use crate::issuers::IssuerText;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::map::{
    Catalog, Exposure, FederationMap, Junction, Machine, Mdt, Ost, Pool, PublicKey, Repository,
    Security, Service,
};
use tieline_types::flavor::FlavorError;
use tieline_types::{
    Allowed, Door, FileId, FlavorRule, FlavorRules, FsName, Issuer, MdtIndex, Name, OstIndex,
    PoolName, RepositoryName, Scope, SiteName, Version, Vouched,
};

/// A federation map as text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapText {
    /// The file system's name.
    pub fs: FsName,
    /// Counts changes: a signed map replaces one of a lower version.
    #[serde(default = "version_default")]
    pub version: u64,
    pub mdt: Vec<MdtText>,
    #[serde(default)]
    pub ost: Vec<OstText>,
    #[serde(default)]
    pub pool: Vec<PoolText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repository: Vec<RepositoryText>,
    /// How connections are proven and protected; without, they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<SecurityText>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecurityText {
    /// The Kerberos realm of the servers.
    pub realm: String,
    /// Rules, such as `default=krb5i` or `10.0.0.0/8.cli2ost=krb5p`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flavors: Vec<String>,
    /// Kerberos names of servers by address, where they are not `tieline_mds/HOST@REALM` or
    /// `tieline_oss/HOST@REALM`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, String>,
    /// How far machines are believed, by their principals: `squash` (as any), `root`, `users` or
    /// `all`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub machines: BTreeMap<String, String>,
    /// What becomes of those whom nobody knows: `deny` (the default) or `squash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strangers: Option<String>,
    /// Who may speak for users that came to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doors: Vec<DoorText>,
    /// Whose tokens are taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issuers: Vec<IssuerText>,
}

/// A door, as `tieline door add` takes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoorText {
    pub principal: String,
    /// Services whose tickets it may hand on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// `user:NAME`, `group:NAME` or `everybody`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vouches_for: Vec<String>,
    /// `read:/PATH`, `create:/PATH` or `modify:/PATH`; without, whatever its users may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Vec<String>>,
    /// The longest life of a delegation; an hour if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MdtText {
    pub index: u16,
    pub site: SiteName,
    pub addresses: Vec<String>,
    /// Name under which it is mounted in its parent's root directory; none for MDT 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub junction: Option<String>,
    /// The MDT in whose root directory the junction is.
    #[serde(default)]
    pub parent: u16,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OstText {
    pub index: u16,
    pub site: SiteName,
    pub addresses: Vec<String>,
    /// Takes new chunks.
    #[serde(default = "active_default")]
    pub active: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolText {
    pub name: PoolName,
    pub osts: Vec<u16>,
    /// Where its files lie, too, as `tieline pool set --expose` said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposed: Option<ExposedText>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExposedText {
    pub directory: String,
    pub ost: u16,
    /// The version of the map that began it.
    pub since: u64,
    /// It ended, and what lies there is taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
}

impl ExposedText {
    fn of(exposure: &Exposure) -> Self {
        Self {
            directory: exposure.directory.clone(),
            ost: exposure.ost.0,
            since: exposure.since.0,
            over: exposure.is_over == Some(true),
        }
    }

    fn record(&self) -> Exposure {
        Exposure {
            directory: self.directory.clone(),
            ost: OstIndex(self.ost),
            since: Version(self.since),
            is_over: self.over.then_some(true),
        }
    }
}

/// A tree that is published as files.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepositoryText {
    pub name: RepositoryName,
    /// What its files' ids carry, as if it were an MDT.
    pub index: u16,
    /// `http://…`, `https://…` or `file:///…`.
    pub sources: Vec<String>,
    /// The digest of its frozen list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// Else the master keys that sign it, in PEM's base64 without its first and last line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// Name under which it is mounted in its parent's root directory.
    pub junction: String,
    /// The MDT in whose root directory the junction is.
    #[serde(default)]
    pub parent: u16,
}

fn version_default() -> u64 {
    1
}

fn active_default() -> bool {
    true
}

/// Why a text is not a federation map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapTextError {
    #[error("{what} {index} is there twice")]
    Twice { what: &'static str, index: u16 },
    #[error("pool {0} is there twice")]
    PoolTwice(PoolName),
    #[error("MDT 0, the root, is missing or has a junction")]
    Root,
    #[error("MDT {0} has no junction: only MDT 0 is the root")]
    NoJunction(u16),
    #[error("{what} {index}: junction `{name}` is not a name")]
    JunctionName { what: &'static str, index: u16, name: String },
    #[error("{what} {index} is mounted in MDT {parent}, which is not there")]
    Parent { what: &'static str, index: u16, parent: u16 },
    #[error("repository {name}: `{text}` is not the digest of a list")]
    List { name: RepositoryName, text: String },
    #[error("repository {0}: a key is not base64")]
    Keys(RepositoryName),
    #[error(
        "repository {0} has neither a list nor keys, or both: one of them says what to believe"
    )]
    ListOrKeys(RepositoryName),
    #[error("{what} {index} has no address")]
    NoAddress { what: &'static str, index: u16 },
    #[error(transparent)]
    Flavor(#[from] FlavorError),
    #[error("{error}")]
    Rule { error: String },
    #[error("pool {pool} names OST {ost}, which is not there")]
    PoolOst { pool: PoolName, ost: u16 },
}

impl MapText {
    /// A map as it would be written; invitations are not.
    pub fn of(map: &FederationMap) -> Self {
        let mdt = map.mdts.iter().map(|mdt| {
            let junction = map.junction_of(mdt.mdt);
            MdtText {
                index: mdt.mdt.0,
                site: mdt.home.clone(),
                addresses: mdt.addresses.clone(),
                junction: junction.map(|junction| junction.name.to_string()),
                parent: junction.map_or(0, |junction| junction.parent.mdt().0),
            }
        });
        let ost = map.osts.iter().map(|ost| OstText {
            index: ost.ost.0,
            site: ost.site.clone(),
            addresses: ost.addresses.clone(),
            active: ost.is_active,
        });
        let pool = map.pools.iter().map(|pool| PoolText {
            name: pool.name.clone(),
            osts: pool.osts.iter().map(|ost| ost.0).collect(),
            exposed: pool.exposure.as_ref().map(ExposedText::of),
        });
        let repository = map.repositories().map(|known| {
            let (list, keys) = match &known.catalog {
                Catalog::Frozen(list) => (Some(list.to_string()), Vec::new()),
                Catalog::Signed(keys) => {
                    (None, keys.iter().map(|key| STANDARD.encode(&*key.0)).collect())
                }
            };
            let junction = map.junction_of(known.mdt);
            RepositoryText {
                name: known.name.clone(),
                index: known.mdt.0,
                sources: known.sources.clone(),
                list,
                keys,
                junction: junction.map_or(String::new(), |junction| junction.name.to_string()),
                parent: junction.map_or(0, |junction| junction.parent.mdt().0),
            }
        });
        Self {
            fs: map.fs.clone(),
            version: map.version.0,
            mdt: mdt.collect(),
            ost: ost.collect(),
            pool: pool.collect(),
            repository: repository.collect(),
            security: map.security.as_ref().map(SecurityText::of),
        }
    }

    /// The map, if the text makes sense.
    pub fn build(&self) -> Result<FederationMap, MapTextError> {
        let mut mdts = self.mdt.clone();
        mdts.sort_by_key(|mdt| mdt.index);
        let mut osts = self.ost.clone();
        osts.sort_by_key(|ost| ost.index);
        let mdt_indices = unique("MDT", mdts.iter().map(|mdt| mdt.index))?;
        let of_repositories = self.repository.iter().map(|known| known.index);
        unique("index", mdt_indices.iter().copied().chain(of_repositories))?;
        let ost_indices = unique("OST", osts.iter().map(|ost| ost.index))?;
        addressed("MDT", mdts.iter().map(|mdt| (mdt.index, &mdt.addresses)))?;
        addressed("OST", osts.iter().map(|ost| (ost.index, &ost.addresses)))?;
        if mdts.first().is_none_or(|root| root.index != 0 || root.junction.is_some()) {
            return Err(MapTextError::Root);
        }
        let of_mdts = mdts.iter().skip(1).map(|mdt| {
            let none = MapTextError::NoJunction(mdt.index);
            let name = mdt.junction.as_ref().ok_or(none)?;
            junction(("MDT", mdt.index), name, mdt.parent, &mdt_indices)
        });
        let junctions = of_mdts.chain(self.repository.iter().map(|known| {
            let which = ("repository", known.index);
            junction(which, &known.junction, known.parent, &mdt_indices)
        }));
        let repositories = self.repository.iter().map(RepositoryText::record);
        let repositories: Vec<Repository> = repositories.collect::<Result<_, _>>()?;
        Ok(FederationMap {
            fs: self.fs.clone(),
            version: Version(self.version),
            junctions: junctions.collect::<Result<_, _>>()?,
            pools: pools(&self.pool, &ost_indices)?,
            mdts: mdts.into_iter().map(MdtText::record).collect(),
            osts: osts.into_iter().map(OstText::record).collect(),
            security: self.security.as_ref().map(|text| text.record(&self.fs)).transpose()?,
            invitations: None,
            repositories: Some(repositories).filter(|all| !all.is_empty()),
        })
    }
}

impl SecurityText {
    pub fn of(security: &Security) -> Self {
        let rule = |rule: &FlavorRule| {
            let subject = rule.subject();
            let network = subject.trim_start_matches("srpc.flavor.");
            format!("{network}={}", rule.flavor.name())
        };
        let services = security.services.iter();
        let services = services.map(|one| (one.address.clone(), one.principal.clone()));
        let machines = security.machines.iter().flatten();
        let machines = machines.map(|one| (one.principal.clone(), one.trust.name().to_owned()));
        Self {
            realm: security.realm.clone(),
            flavors: security.flavors.0.iter().map(rule).collect(),
            services: services.collect(),
            machines: machines.collect(),
            strangers: security.strangers.map(|strangers| strangers.name().to_owned()),
            doors: security.doors.iter().flatten().map(DoorText::of).collect(),
            issuers: security.issuers().iter().map(IssuerText::of).collect(),
        }
    }

    fn record(&self, fs: &FsName) -> Result<Security, MapTextError> {
        let mut flavors = FlavorRules::default();
        for line in &self.flavors {
            let line = format!("{fs}.srpc.flavor.{line}");
            flavors.set(FlavorRule::parse(&line)?.1);
        }
        let services = self.services.iter().map(|(address, principal)| Service {
            address: address.clone(),
            principal: principal.clone(),
        });
        let rule = |error| MapTextError::Rule { error };
        let machines = self.machines.iter().map(|(principal, trust)| {
            Ok(Machine { principal: principal.clone(), trust: trust.parse().map_err(rule)? })
        });
        let machines: Vec<Machine> = machines.collect::<Result<_, MapTextError>>()?;
        let machines = (!machines.is_empty()).then_some(machines);
        let strangers = self.strangers.as_deref().map(|text| text.parse().map_err(rule));
        let strangers = strangers.transpose()?;
        let doors = self.doors.iter().map(|door| door.record().map_err(rule));
        let doors: Vec<Door> = doors.collect::<Result<_, _>>()?;
        let doors = (!doors.is_empty()).then_some(doors);
        let issuers = self.issuers.iter().map(|issuer| issuer.record().map_err(rule));
        let issuers: Vec<Issuer> = issuers.collect::<Result<_, _>>()?;
        let issuers = (!issuers.is_empty()).then_some(issuers);
        Ok(Security {
            realm: self.realm.clone(),
            flavors,
            services: services.collect(),
            machines,
            strangers,
            doors,
            issuers,
        })
    }
}

impl DoorText {
    pub fn of(door: &Door) -> Self {
        let scope = door.scope.as_ref();
        Self {
            principal: door.principal.clone(),
            services: door.services.clone(),
            vouches_for: door.vouches_for.iter().map(Vouched::to_string).collect(),
            scope: scope.map(|scope| scope.allowed().iter().map(Allowed::to_string).collect()),
            seconds: door.seconds_max,
        }
    }

    /// The door, or what is wrong with it.
    pub fn record(&self) -> Result<Door, String> {
        let vouched = self.vouches_for.iter().map(|text| text.parse::<Vouched>());
        let vouches_for = vouched.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        let scope = self.scope.as_ref().map(|texts| {
            let allowed = texts.iter().map(|text| text.parse::<Allowed>());
            let allowed = allowed.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
            Scope::new(allowed).map_err(|error| error.to_string())
        });
        let door = Door {
            principal: self.principal.clone(),
            services: self.services.clone(),
            vouches_for,
            scope: scope.transpose()?,
            seconds_max: self.seconds,
        };
        door.check().map_err(|error| error.to_string())?;
        Ok(door)
    }
}

impl MdtText {
    fn record(self) -> Mdt {
        Mdt { mdt: MdtIndex(self.index), home: self.site, addresses: self.addresses }
    }
}

impl OstText {
    fn record(self) -> Ost {
        Ost {
            ost: OstIndex(self.index),
            site: self.site,
            addresses: self.addresses,
            is_active: self.active,
        }
    }
}

impl RepositoryText {
    fn record(&self) -> Result<Repository, MapTextError> {
        let name = &self.name;
        let catalog = match (&self.list, &self.keys[..]) {
            (Some(list), []) => {
                let wrong = |_| MapTextError::List { name: name.clone(), text: list.clone() };
                Catalog::Frozen(list.parse().map_err(wrong)?)
            }
            (None, [_, ..]) => {
                let key = |text: &String| {
                    let key = STANDARD.decode(text).ok().filter(|key| !key.is_empty());
                    key.map(|key| PublicKey(key.into()))
                };
                let keys = self.keys.iter().map(key).collect::<Option<_>>();
                Catalog::Signed(keys.ok_or_else(|| MapTextError::Keys(name.clone()))?)
            }
            _ => return Err(MapTextError::ListOrKeys(name.clone())),
        };
        Ok(Repository {
            name: self.name.clone(),
            mdt: MdtIndex(self.index),
            sources: self.sources.clone(),
            catalog,
        })
    }
}

fn junction(
    (what, index): (&'static str, u16),
    name: &str,
    parent: u16,
    known: &BTreeSet<u16>,
) -> Result<Junction, MapTextError> {
    if !known.contains(&parent) || parent == index {
        return Err(MapTextError::Parent { what, index, parent });
    }
    let wrong = || MapTextError::JunctionName { what, index, name: name.to_owned() };
    Ok(Junction {
        parent: FileId::root_of(MdtIndex(parent)),
        name: name.parse::<Name>().map_err(|_| wrong())?,
        mdt: MdtIndex(index),
    })
}

fn pools(texts: &[PoolText], osts: &BTreeSet<u16>) -> Result<Vec<Pool>, MapTextError> {
    let mut names = BTreeSet::new();
    let mut pools = Vec::new();
    for text in texts {
        if !names.insert(&text.name) {
            return Err(MapTextError::PoolTwice(text.name.clone()));
        }
        if let Some(&ost) = text.osts.iter().find(|ost| !osts.contains(ost)) {
            return Err(MapTextError::PoolOst { pool: text.name.clone(), ost });
        }
        let osts = text.osts.iter().map(|&ost| OstIndex(ost)).collect();
        let exposure = text.exposed.as_ref().map(ExposedText::record);
        pools.push(Pool { name: text.name.clone(), osts, exposure });
    }
    Ok(pools)
}

fn unique(
    what: &'static str,
    indices: impl Iterator<Item = u16>,
) -> Result<BTreeSet<u16>, MapTextError> {
    let mut seen = BTreeSet::new();
    for index in indices {
        if !seen.insert(index) {
            return Err(MapTextError::Twice { what, index });
        }
    }
    Ok(seen)
}

fn addressed<'a>(
    what: &'static str,
    mut targets: impl Iterator<Item = (u16, &'a Vec<String>)>,
) -> Result<(), MapTextError> {
    match targets.find(|(_, addresses)| addresses.is_empty()) {
        Some((index, _)) => Err(MapTextError::NoAddress { what, index }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        fs = "extenci"
        mdt = [
          { index = 1, site = "fnal", addresses = ["b:1"], junction = "fnal" },
          { index = 0, site = "uf", addresses = ["a:1"] },
        ]
        ost = [
          { index = 0, site = "uf", addresses = ["a:2"] },
          { index = 1, site = "fnal", addresses = ["b:2"], active = false },
        ]
        pool = [{ name = "uf", osts = [0] }]
    "#;

    fn text() -> MapText {
        toml::from_str(TEXT).unwrap()
    }

    #[test]
    fn a_text_becomes_a_map_in_order() {
        let map = text().build().unwrap();
        assert_eq!(map.mdts[0].home.as_str(), "uf");
        assert_eq!(map.junction_of(MdtIndex(1)).unwrap().parent, FileId::root_of(MdtIndex(0)));
        assert!(!map.ost(OstIndex(1)).unwrap().is_active);
        assert_eq!(map.pool(&"uf".parse().unwrap()).unwrap().osts, [OstIndex(0)]);
    }

    #[test]
    fn a_map_is_written_as_text_that_makes_it_again() {
        let mut text = text();
        text.version = 7;
        text.security = toml::from_str(
            "realm = 'EXTENCI.ORG'\nstrangers = 'squash'\n\
             flavors = ['default=krb5i', '10.0.0.0/8.cli2ost=krb5p']\n\
             services = { 'a:1' = 'host/a@UFL.EDU' }\nmachines = { 'host/wn@X' = 'root' }\n\
             doors = [{ principal = 'tieline_door/a@X', services = ['HTTP/a@X'], seconds = 600,\n\
             vouches_for = ['group:cms'], scope = ['read:/data'] }, { principal = 'd/b@X' }]\n",
        )
        .unwrap();
        let map = text.build().unwrap();
        let written = toml::to_string(&MapText::of(&map)).unwrap();
        assert_eq!(toml::from_str::<MapText>(&written).unwrap().build().unwrap(), map, "{written}");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let wrong = |change: fn(&mut MapText)| {
            let mut text = text();
            change(&mut text);
            text.build().unwrap_err()
        };
        assert_eq!(wrong(|t| t.mdt[1].index = 1), MapTextError::Twice { what: "MDT", index: 1 });
        assert_eq!(wrong(|t| t.mdt[0].junction = None), MapTextError::NoJunction(1));
        assert_eq!(wrong(|t| t.mdt[1].junction = Some("x".into())), MapTextError::Root);
        assert_eq!(
            wrong(|t| t.mdt[0].parent = 9),
            MapTextError::Parent { what: "MDT", index: 1, parent: 9 }
        );
        assert_eq!(
            wrong(|t| t.pool[0].osts = vec![7]),
            MapTextError::PoolOst { pool: "uf".parse().unwrap(), ost: 7 }
        );
        assert_eq!(
            wrong(|t| t.ost[0].addresses.clear()),
            MapTextError::NoAddress { what: "OST", index: 0 }
        );
    }
}
