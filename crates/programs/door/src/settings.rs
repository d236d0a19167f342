//! What the operator of a door says: one TOML file.
//!
//! [`Settings`] is the file as it is written; [`Settings::validate`] turns it into a [`Plan`], or
//! lists everything that is wrong, each with its key and what to write instead.
//!
//! Invariants: units stand in the values; secrets are paths; no key that others can read is used.

use crate::https::{HttpsPlan, HttpsText};
use crate::xrootd::{XrootdPlan, XrootdText};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tieline_auth::MapVerifier;
use tieline_auth::gss::usual_principal;
use tieline_base::keys::key_open;
use tieline_base::proving::{Proving, flavor_check};
use tieline_base::settings::{SettingsError, Wrongs};
use tieline_machine::becoming::check_port;
use tieline_machine::private::is_private;
use tieline_machine::users::{ROOT, changes_to, open_as, user_of_machine};
use tieline_mount::caches::NearOptions;
use tieline_types::{ByteSize, FsName, Span};

/// As what doors go in keytabs, unless the settings name something else.
const PRINCIPALS: [&str; 1] = ["tieline_door"];
/// A client waits about so long for a server before it tries another way.
const WAIT_DEFAULT: &str = "1 min";
const MEMORY_DEFAULT: &str = "256 MiB";
const MEMORY_LEAST: u64 = 32 << 20;

/// A door's settings file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The file system, as in `/extenci`.
    pub fs: String,
    /// `HOST:PORT`s of servers where the federation map is fetched: any of them will do.
    pub root: Vec<String>,
    /// The federation's public key: 64 hexadecimal digits, or the path of a file with them.
    pub map_key: String,
    /// The user that it becomes when root starts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// `HOST:PORT` for `/metrics` and `/health`; port 0 takes a free one.
    #[serde(default = "admin_default")]
    pub admin: String,
    /// `text` or `json`.
    #[serde(default = "log_default")]
    pub log: String,
    /// How long clients are kept waiting for a server that does not answer.
    #[serde(default = "wait_default")]
    pub wait: String,
    /// For bytes that were read and may be read again, all clients together.
    #[serde(default = "memory_default")]
    pub memory: String,
    /// How the door proves itself to the servers.
    pub kerberos: KerberosText,
    /// Chunks kept on this machine's disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheText>,
    /// root://
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xrootd: Option<XrootdText>,
    /// https://
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https: Option<HttpsText>,
}

/// The door's own key. Of the services that users come to it has none.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KerberosText {
    /// File with the key of `tieline_door/HOST`, readable by the door's user only.
    pub keytab: PathBuf,
    /// As which it connects; by default the keytab's first `tieline_door`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The weakest flavor that is agreed to with servers, whatever the federation map says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sec: Option<String>,
    /// Another krb5.conf than the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
}

/// As the mount's `-o cache=`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheText {
    pub path: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
}

fn admin_default() -> String {
    "127.0.0.1:0".to_owned()
}

fn log_default() -> String {
    "text".to_owned()
}

fn wait_default() -> String {
    WAIT_DEFAULT.to_owned()
}

fn memory_default() -> String {
    MEMORY_DEFAULT.to_owned()
}

/// Settings that hold.
pub struct Plan {
    pub fs: FsName,
    pub root: Vec<String>,
    pub verifier: MapVerifier,
    pub user: Option<String>,
    pub admin: String,
    pub is_log_json: bool,
    pub wait: Duration,
    pub memory: u64,
    pub proving: Proving,
    /// As which it connects.
    pub principal: String,
    pub near: NearOptions,
    pub xrootd: Option<XrootdPlan>,
    pub https: Option<HttpsPlan>,
    /// What is hardly meant so.
    pub doubts: Vec<String>,
}

impl Settings {
    /// Reads a file and checks all of it.
    pub fn load(path: &Path) -> Result<Plan, SettingsError> {
        let named = || path.to_owned();
        let text = std::fs::read_to_string(path)
            .map_err(|source| SettingsError::Read { path: named(), source })?;
        let settings: Self = toml::from_str(&text)
            .map_err(|source| SettingsError::Syntax { path: named(), source: Box::new(source) })?;
        settings.validate().map_err(|source| SettingsError::Wrong { path: named(), source })
    }

    /// Settings that hold, or everything that is wrong with them.
    pub fn validate(&self) -> Result<Plan, Wrongs> {
        let mut check = Check::default();
        let fs = check.parse::<FsName>("fs", &self.fs, "write a name such as \"extenci\"");
        check.holds(!self.root.is_empty(), "root", || {
            "names no server: write such as [\"mds.uf.example:7640\"]".to_owned()
        });
        self.root.iter().for_each(|address| check.address("root", address));
        let verifier = check.take("map_key", key_open(&self.map_key));
        let user = self.user.as_deref();
        if let Some(name) = user.filter(|name| *name != ROOT && user_of_machine(name).is_none()) {
            let fix = format!("`useradd --system {name}`, or name another");
            check.complain("user", &format!("there is no user `{name}` here: {fix}"));
        }
        check.address("admin", &self.admin);
        check.holds(matches!(self.log.as_str(), "text" | "json"), "log", || {
            format!("`{}` is neither \"text\" nor \"json\"", self.log)
        });
        let wait = check.parse::<Span>("wait", &self.wait, "such as \"1 min\"");
        check.holds(wait.is_none_or(|wait| wait.0 >= Duration::from_secs(1)), "wait", || {
            "shorter than 1 s: write such as \"1 min\"".to_owned()
        });
        let memory = check.parse::<ByteSize>("memory", &self.memory, "such as \"256 MiB\"");
        check.holds(memory.is_none_or(|size| size.0 >= MEMORY_LEAST), "memory", || {
            format!("less than {}: nothing read ahead would stay", ByteSize(MEMORY_LEAST))
        });
        let (proving, principal) = self.kerberos.validate(user, &mut check);
        let near = self.cache.as_ref().map(|cache| cache.validate(&mut check));
        let xrootd = self.xrootd.as_ref().map(|text| text.validate(user, &mut check));
        let https = self.https.as_ref().map(|text| text.validate(user, &mut check));
        check.holds(self.xrootd.is_some() || self.https.is_some(), "xrootd", || {
            "no protocol is named: write [xrootd] for root://, [https] for https://".to_owned()
        });
        if !check.wrongs.is_empty() {
            return Err(Wrongs(check.wrongs));
        }
        // What is missing was complained of.
        let missing = || Wrongs(vec!["settings could not be read".to_owned()]);
        Ok(Plan {
            fs: fs.ok_or_else(missing)?,
            root: self.root.clone(),
            verifier: verifier.ok_or_else(missing)?,
            user: self.user.clone(),
            admin: self.admin.clone(),
            is_log_json: self.log == "json",
            wait: wait.ok_or_else(missing)?.0,
            memory: memory.ok_or_else(missing)?.0,
            proving,
            principal: principal.ok_or_else(missing)?,
            near: near.unwrap_or_default(),
            xrootd: xrootd.flatten(),
            https,
            doubts: check.doubts,
        })
    }
}

impl KerberosText {
    /// How it proves itself, and as whom.
    fn validate(&self, user: Option<&str>, check: &mut Check) -> (Proving, Option<String>) {
        let keytab = self.keytab.display();
        for (key, path) in [("keytab", Some(&self.keytab)), ("config", self.config.as_ref())] {
            let (Some(path), key) = (path, format!("kerberos.{key}")) else { continue };
            check.holds(path.is_absolute(), &key, || {
                format!("`{}` is not an absolute path", path.display())
            });
            if let Err(error) = open_as(user, path) {
                let whom = changes_to(user).map(|user| format!(" by user `{user}`"));
                let whom = whom.unwrap_or_default();
                check.complain(&key, &format!("{} cannot be read{whom}: {error}", path.display()));
            }
        }
        if is_private(&self.keytab).is_ok_and(|is_private| !is_private) {
            check.complain(
                "kerberos.keytab",
                &format!("{keytab} can be read by others: chmod 600 it"),
            );
        }
        if let Some(sec) = &self.sec {
            check.take("kerberos.sec", flavor_check(sec).map_err(|usage| usage.0));
        }
        let usual = || usual_principal(&self.keytab, &PRINCIPALS);
        let principal = self.principal.clone().or_else(usual);
        check.holds(principal.is_some(), "kerberos.keytab", || {
            format!("{keytab} holds no key: `ktadd -k {keytab} tieline_door/HOST` makes one")
        });
        let proving = Proving {
            sec: self.sec.clone(),
            keytab: Some(self.keytab.clone()),
            principal: principal.clone(),
            config: self.config.clone(),
            ..Proving::default()
        };
        (proving, principal)
    }
}

impl CacheText {
    fn validate(&self, check: &mut Check) -> NearOptions {
        let mut near = NearOptions::default();
        let path = self.path.to_string_lossy();
        let words = [("cache", "path", Some(&*path)), ("cache-size", "size", self.size.as_deref())];
        for (option, key, value) in words {
            if let Some(value) = value {
                let set = near.set(&format!("{option}={value}"), option, Some(value));
                check.take(&format!("cache.{key}"), set.map_err(|usage| usage.0));
            }
        }
        near
    }
}

/// Gathers complaints.
#[derive(Default)]
pub(crate) struct Check {
    pub wrongs: Vec<String>,
    pub doubts: Vec<String>,
}

impl Check {
    pub fn complain(&mut self, key: &str, wrong: &str) {
        self.wrongs.push(format!("{key}: {wrong}"));
    }

    pub fn holds(&mut self, holds: bool, key: &str, wrong: impl FnOnce() -> String) {
        if !holds {
            self.complain(key, &wrong());
        }
    }

    pub fn take<T>(&mut self, key: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|wrong| self.complain(key, &wrong)).ok()
    }

    pub fn parse<T>(&mut self, key: &str, text: &str, fix: &str) -> Option<T>
    where
        T: std::str::FromStr,
        T::Err: std::fmt::Display,
    {
        text.parse().map_err(|error| self.complain(key, &format!("{error}: {fix}"))).ok()
    }

    pub fn address(&mut self, key: &str, text: &str) {
        let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        self.holds(matches!(port, Some(Ok(_))), key, || {
            format!("`{text}` is not HOST:PORT: write such as \"[::]:1094\"")
        });
    }

    /// Where a protocol listens: the user that the door becomes must be let to.
    pub fn listen(&mut self, key: &str, text: &str, user: Option<&str>) {
        self.address(key, text);
        if changes_to(user).is_some()
            && let Err(error) = check_port(text)
        {
            self.complain(key, &error.to_string());
        }
    }
}

#[cfg(test)]
mod tests;
