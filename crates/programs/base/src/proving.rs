//! How a process of ours proves itself: what servers, mounts and verbs say of Kerberos.
//!
//! A verb that says nothing has the user's own tickets, and offers them where a server asks for
//! them. Verbs on a mount begin with what the mount says, but for a keytab that they cannot read.
//!
//! Invariant: `KRB5_CONFIG` is set, if at all, before a process has threads.

use crate::report::Usage;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tieline_auth::gss::{Keys, try_answering, usual_principal};
use tieline_auth::{Guard, GuardParts, Kerberos, SERVICE_MDS, SERVICE_OSS, Serves};
use tieline_format::map::FederationMap;
use tieline_identities::machines::MACHINES;
use tieline_machine::private::is_private;
use tieline_types::Flavor;

pub const CONFIG: &str = "KRB5_CONFIG";
/// As what servers go, unless the settings or the map name something else.
const SERVERS: [&str; 3] = [SERVICE_MDS, SERVICE_OSS, "host"];

/// The dialing end.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Proving {
    /// The weakest flavor that is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sec: Option<String>,
    /// Keys of the machine, or of a role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keytab: Option<PathBuf>,
    /// Whose, where the keytab has several: by default the first machine's or role's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Another krb5.conf than the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// What servers go by that no map names yet, such as `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Of a mount, for verbs on it: did all servers have to prove themselves, wherever they are?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_proven: Option<bool>,
}

/// What was said to this process, for whatever it dials.
static SERVICE: OnceLock<String> = OnceLock::new();

/// Servers go by this service until a map names them.
pub fn pin_service(service: String) {
    // A command line says it once.
    let _ = SERVICE.set(service);
}

impl Proving {
    /// What was said to this very process. Before it has threads.
    pub fn prepare(&self) {
        if let Some(config) = &self.config {
            point_at(config);
        }
    }

    /// What a mount was told holds for a verb on it, unless its user's environment says otherwise.
    pub fn prepare_verb(&self) {
        if std::env::var_os(CONFIG).is_none() {
            self.prepare();
        }
    }

    /// What cannot be so, before anything is begun with it.
    pub fn check(&self) -> Result<(), Usage> {
        let named = [("keytab", &self.keytab), ("krb5conf", &self.config)];
        let wrongs = named.into_iter().filter_map(|(option, path)| {
            let path = path.as_ref()?;
            let shown = path.display();
            if !path.is_absolute() {
                return Some(format!("{option}={shown}: not an absolute path"));
            }
            let error = std::fs::File::open(path).err()?;
            Some(format!("{option}={shown}: cannot be read: {error}"))
        });
        let wrongs: Vec<String> = wrongs.collect();
        if wrongs.is_empty() { Ok(()) } else { Err(Usage(wrongs.join("\n"))) }
    }

    /// What we dial with: the keytab, if we can read it, else the user's own tickets.
    pub fn keys(&self) -> Keys {
        let keytab = self.keytab.clone().filter(|path| std::fs::File::open(path).is_ok());
        match keytab {
            Some(keytab) => {
                Keys { principal: self.own_name(), keytab: Some(keytab), cache: Some(own_cache()) }
            }
            None => Keys::default(),
        }
    }

    fn own_name(&self) -> Option<String> {
        let usual = || usual_principal(self.keytab.as_ref()?, &MACHINES);
        self.principal.clone().or_else(usual)
    }

    /// The same for verbs on a mount: by which of the keytab's names it goes (verbs may not be able
    /// to read it), and whether its map wants a proof of all servers.
    pub fn named(&self, map: &FederationMap) -> Self {
        let rules = map.security.as_ref().map(|security| &security.flavors.0);
        let is_proven =
            rules.is_some_and(|rules| rules.iter().all(|rule| rule.flavor > Flavor::Null));
        Self { principal: self.own_name(), is_proven: Some(is_proven), ..self.clone() }
    }

    fn sec(&self) -> Option<Flavor> {
        self.sec.as_deref()?.parse().ok()
    }

    /// The weakest flavor that is taken of the first server, before the map is here. Who names
    /// anything of Kerberos is not content with one that proves nothing. That a machine has a
    /// keytab, or a user tickets, says nothing of this federation.
    fn first(&self) -> Flavor {
        let names = [&self.principal, &self.service].into_iter().any(Option::is_some);
        let is_named = names || self.keytab.is_some() || self.config.is_some();
        let is_wanted = self.is_proven.unwrap_or(is_named) || SERVICE.get().is_some();
        let usual = if is_wanted { Flavor::Krb5n } else { Flavor::Null };
        self.sec().unwrap_or(usual)
    }

    pub fn guard(&self) -> Arc<Guard> {
        let floor = self.sec().unwrap_or(Flavor::Null);
        let dialing = self.keys();
        let is_eager = dialing.keytab.is_some();
        Guard::new(GuardParts {
            prover: Some(Box::new(Kerberos { dialing, answering: Keys::default() })),
            floor,
            first: self.first(),
            serves: Serves::default(),
            is_eager,
            realm: None,
            services: Vec::new(),
            service: self.service.as_ref().or_else(|| SERVICE.get()).cloned(),
        })
    }
}

/// Tickets that a keytab brings stay in our memory.
fn own_cache() -> String {
    "MEMORY:tieline".to_owned()
}

fn point_at(config: &Path) {
    // SAFETY: called before the process has other threads.
    unsafe { std::env::set_var(CONFIG, config) };
}

/// What a server's settings say: `[kerberos]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KerberosSettings {
    /// File with the server's keys, readable by its user only.
    pub keytab: PathBuf,
    /// The name under which this server goes to others; by default the keytab's first of those that
    /// servers have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// What clients may ask for here, such as `tieline_mds` or `host`; by default what the server
    /// holds: `tieline_mds` for an MDT, `tieline_oss` for OSTs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// The weakest flavor that is agreed to here, whatever the federation map says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sec: Option<String>,
    /// Realm of servers before the first map is here; by default the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realm: Option<String>,
    /// Another krb5.conf than the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
}

/// What holds of a server.
#[derive(Clone, Debug, Default)]
pub struct KerberosPlan {
    settings: Option<KerberosSettings>,
    floor: Option<Flavor>,
}

impl KerberosSettings {
    fn own_name(&self) -> Option<String> {
        let usual = || match self.services.as_slice() {
            [] => usual_principal(&self.keytab, &SERVERS),
            services => usual_principal(&self.keytab, services),
        };
        self.principal.clone().or_else(usual)
    }

    /// Everything that is wrong, as key and complaint; `user`: as whom the server runs.
    pub fn validate(&self, user: Option<&str>) -> Result<KerberosPlan, Vec<(String, String)>> {
        let mut wrongs = Vec::new();
        let mut complain =
            |key: &str, wrong: String| wrongs.push((format!("kerberos.{key}"), wrong));
        // Others look at settings too, who need not be let in to the keys.
        let is_root = rustix::process::geteuid().is_root();
        for (key, path) in [("keytab", Some(&self.keytab)), ("config", self.config.as_ref())] {
            let Some(path) = path else { continue };
            if !path.is_absolute() {
                complain(key, format!("`{}` is not an absolute path", path.display()));
            } else if let Err(error) = tieline_machine::users::open_as(user, path)
                && (is_root || error.kind() != ErrorKind::PermissionDenied)
            {
                complain(key, unreadable(path, user, &error));
            }
        }
        if is_private(&self.keytab).is_ok_and(|is_private| !is_private) {
            let shown = self.keytab.display();
            complain("keytab", format!("{shown} can be read by others: chmod 600 it"));
        }
        let floor = match self.sec.as_deref().map(str::parse::<Flavor>) {
            Some(Ok(floor)) => Some(floor),
            Some(Err(error)) => {
                complain("sec", error.to_string());
                None
            }
            None => None,
        };
        if wrongs.is_empty() {
            Ok(KerberosPlan { settings: Some(self.clone()), floor })
        } else {
            Err(wrongs)
        }
    }
}

fn unreadable(path: &Path, user: Option<&str>, error: &io::Error) -> String {
    let shown = path.display();
    match user.filter(|_| error.kind() == ErrorKind::PermissionDenied) {
        Some(user) => format!(
            "`{user}`, as whom the server runs, cannot read {shown} ({error}): chown {user} \
             {shown}, and let that user through the directories above it"
        ),
        None => format!("cannot read {shown}: {error}"),
    }
}

impl KerberosPlan {
    /// What would turn away everybody who comes: a krb5.conf that is not in order, a keytab without
    /// keys. After [`Self::prepare`].
    pub fn check(&self) -> anyhow::Result<()> {
        let Some(settings) = &self.settings else { return Ok(()) };
        let (keytab, principal) = (Some(settings.keytab.clone()), settings.principal.clone());
        try_answering(&Keys { keytab, principal, cache: None })
            .context("kerberos: nobody could come to this server")
    }

    /// Before the process has threads.
    pub fn prepare(&self) {
        if let Some(config) = self.settings.as_ref().and_then(|settings| settings.config.as_ref()) {
            point_at(config);
        }
    }

    /// What a server dials with, and what it is dialed with.
    pub fn keys(&self) -> Option<(Keys, Keys)> {
        let settings = self.settings.as_ref()?;
        let keytab = Some(settings.keytab.clone());
        let answering = Keys { keytab: keytab.clone(), ..Keys::default() };
        let (cache, principal) = (Some(own_cache()), settings.own_name());
        Some((Keys { keytab, cache, principal }, answering))
    }

    /// As what a verb goes that is run for the server.
    pub fn proving(&self) -> Proving {
        let Some(settings) = &self.settings else { return Proving::default() };
        Proving {
            sec: settings.sec.clone(),
            keytab: Some(settings.keytab.clone()),
            principal: settings.own_name(),
            config: settings.config.clone(),
            service: None,
            is_proven: None,
        }
    }

    /// Proves a server, and judges who comes to it.
    pub fn guard(&self, serves: Serves) -> Arc<Guard> {
        let own = [(serves.mdt, SERVICE_MDS), (serves.ost, SERVICE_OSS)];
        let own = own.into_iter().filter(|(is_served, _)| *is_served);
        let mut services: Vec<String> = own.map(|(_, name)| name.to_owned()).collect();
        let (mut prover, mut realm) = (None, None);
        if let (Some(settings), Some((dialing, answering))) = (&self.settings, self.keys()) {
            let kerberos = Kerberos { dialing, answering };
            prover = Some(Box::new(kerberos) as Box<dyn tieline_auth::Prover>);
            realm = settings.realm.clone();
            if !settings.services.is_empty() {
                services = settings.services.clone();
            }
        }
        let is_eager = prover.is_some();
        // The first map is taken of who proves himself, unless the settings say null.
        let usual = if is_eager { Flavor::Krb5n } else { Flavor::Null };
        let (floor, first) = (self.floor.unwrap_or(Flavor::Null), self.floor.unwrap_or(usual));
        let service = None;
        Guard::new(GuardParts { prover, floor, first, serves, is_eager, realm, services, service })
    }
}

/// The first component of a principal, and nothing more of it.
pub fn service_check(name: &str) -> Result<String, Usage> {
    let is_component = !name.is_empty() && !name.contains(['/', '@']);
    let wrong = || Usage(format!("service={name}: the first part of a principal, as service=host"));
    is_component.then(|| name.to_owned()).ok_or_else(wrong)
}

/// Names a flavor that there is.
pub fn flavor_check(name: &str) -> Result<Flavor, Usage> {
    name.parse().map_err(|error| Usage(format!("sec={name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_kerberos_takes_no_first_server_without_a_proof() {
        let none = Proving::default;
        let text = || Some("host".to_owned());
        assert_eq!(none().first(), Flavor::Null);
        let keytab = Some(PathBuf::from("/etc/krb5.keytab"));
        let with_keytab = Proving { keytab, ..none() };
        assert_eq!(with_keytab.first(), Flavor::Krb5n);
        assert_eq!(Proving { service: text(), ..none() }.first(), Flavor::Krb5n);
        assert_eq!(Proving { principal: text(), ..none() }.first(), Flavor::Krb5n);
        let sec = |sec: &str| Proving { sec: Some(sec.to_owned()), ..with_keytab.clone() };
        assert_eq!(sec("null").first(), Flavor::Null);
        assert_eq!(sec("krb5p").first(), Flavor::Krb5p);
        // A mount knows more.
        let mount = |is_proven| Proving { is_proven: Some(is_proven), ..with_keytab.clone() };
        assert_eq!(mount(false).first(), Flavor::Null);
        assert_eq!(Proving { is_proven: Some(true), ..none() }.first(), Flavor::Krb5n);
        let said = Proving { is_proven: Some(true), ..sec("null") };
        assert_eq!(said.first(), Flavor::Null);
    }
}
