//! What the operator of a server says: one TOML file, ten settings or fewer for a real site.
//!
//! [`Settings`] is the file as it is written; [`Settings::validate`] turns it into a [`Plan`],
//! whose types cannot be wrong, or lists everything that is wrong at once, each with its key and
//! what to write instead.
//!
//! Invariants: units stand in the values; secrets are paths; no secret that others can read is
//! used.

use crate::run::MAP_FILE;
use gather::Gathered;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tieline_auth::capability::LIFE_MAX;
use tieline_auth::{MapSigner, MapVerifier};
use tieline_base::keys::{key_open, secret_open};
use tieline_base::proving::{KerberosPlan, KerberosSettings};
pub use tieline_base::settings::{SettingsError, Wrongs};
use tieline_base::source::PORT_DEFAULT;
use tieline_data::Limits;
use tieline_kv::PostgresServer;
use tieline_ledger::log::LogSettings;
use tieline_machine::private::{self, is_private};
use tieline_machine::users::ROOT;
use tieline_machine::users::user_of_machine;
use tieline_types::{ByteSize, FsName, Gid, MdtIndex, OstIndex, SiteName, Span, Uid};
use tieline_world::Congestion;

/// A server's settings file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The file system, as in `/extenci`.
    pub fs: String,
    /// The site this server stands at.
    pub site: String,
    /// The user that it becomes when root starts it: without, root stays root, with a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Directory for what the server must remember: the federation map, and the MDT's store.
    pub state: PathBuf,
    /// `HOST:PORT` for everybody. The federation map says by which addresses others reach it.
    #[serde(default = "listen_default")]
    pub listen: String,
    /// `HOST:PORT` for `/metrics` and `/health`; port 0 takes a free one.
    #[serde(default = "admin_default")]
    pub admin: String,
    /// `text` or `json`.
    #[serde(default = "log_default")]
    pub log: String,
    /// How connections to far peers send: `auto` (BBR, where the kernel has it) or `system`.
    #[serde(default = "congestion_default", skip_serializing_if = "is_congestion_default")]
    pub congestion: String,
    /// File for a line of JSON about whoever comes, is denied, or administers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<PathBuf>,
    /// The federation's public key: 64 hexadecimal digits, or the path of a file with them.
    pub map_key: String,
    /// File with the federation's secret key: only at the one server that may change the map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map_secret: Option<PathBuf>,
    /// `HOST:PORT`s where the first map is fetched; later the map itself says where the root MDS
    /// is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub root: Vec<String>,
    /// How this server proves itself; without, it can agree to flavor null only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kerberos: Option<KerberosSettings>,
    /// The HSM scripts this server may run; without, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hsm: Option<HsmSettings>,
    /// The MDT this server holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mdt: Option<MdtSettings>,
    /// The OSTs this server holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ost: Vec<OstSettings>,
    /// Repositories that this server serves over HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSettings>,
}

/// The MDT of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MdtSettings {
    /// Its index in the federation map.
    pub index: u16,
    /// `embedded` (one file), `postgres=CONNECTION` (a database, named in libpq's words or as a
    /// URL), or `memory` (nothing survives: for tests).
    #[serde(default = "engine_default")]
    pub engine: String,
    /// The embedded engine's file, by default `mdtNNNN.redb` in the state directory; the
    /// database's schema, by default `FS_mdtNNNN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<PathBuf>,
    /// File with the password for the database, if it asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<PathBuf>,
    /// Space of the embedded store's disk below which changes are refused as on a full disk:
    /// the store itself must never meet its end. `0 B` looks at nothing.
    #[serde(default = "mdt_reserve_default", skip_serializing_if = "is_mdt_reserve_default")]
    pub reserve: String,
    /// How long clients may believe what they were told without asking again.
    #[serde(default = "lease_default")]
    pub lease: String,
    /// How long deleted files can be brought back, and their chunks stay. `0 s` keeps none.
    #[serde(default = "freed_keep_default")]
    pub freed_keep: String,
    /// Directory at a second place where every change is logged: with it a lost store is restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_to: Option<PathBuf>,
    /// Answers wait until the log is durable there. Without, it is so within a second.
    #[serde(default = "log_wait_default", skip_serializing_if = "is_log_wait_default")]
    pub log_wait: bool,
    /// Deletions of files and chunks in the background, per second; 0 for no bound.
    #[serde(default = "collect_rate_default", skip_serializing_if = "is_collect_rate_default")]
    pub collect_rate: u64,
    /// How long an object that nobody committed stays after its writer's session ended.
    #[serde(default = "stray_keep_default", skip_serializing_if = "is_stray_keep_default")]
    pub stray_keep: String,
    /// How long the session of a client that is cut off is kept at most, if its mount waits so
    /// long; 10 minutes are the least.
    #[serde(default = "session_keep_default", skip_serializing_if = "is_session_keep_default")]
    pub session_keep: String,
    /// How long a capability that this MDS signs holds at data servers, 5 minutes at most.
    #[serde(
        default = "capability_life_default",
        skip_serializing_if = "is_capability_life_default"
    )]
    pub capability_life: String,
    /// `UID:GID` that its root directory belongs to, when the MDT is made; root's if nothing is
    /// said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_owner: Option<String>,
}

/// An OST of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OstSettings {
    /// Its index in the federation map.
    pub index: u16,
    /// The directory that holds the objects, unless `store` says otherwise.
    #[serde(default, skip_serializing_if = "is_no_path")]
    pub path: PathBuf,
    /// `directory`, or `s3`: objects are in a bucket, and `path` is left out.
    #[serde(default = "store_default", skip_serializing_if = "is_store_default")]
    pub store: String,
    /// `s3`: the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// `s3`: below which key, by default `FS/ostNNNN`. It is this OST's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// `s3`: `https://HOST[:PORT]` of the store, by default that of AWS for the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// `s3`: by default `us-east-1`, which most stores that are not AWS take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// `s3`: file with the access key, or `credential:NAME` of the unit (LoadCredential). Without,
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<String>,
    /// `s3`: file with certificates that are believed in place of the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorities: Option<PathBuf>,
    /// Space of the underlying file system that is never filled, such as `100 GiB`.
    #[serde(default = "reserve_default")]
    pub reserve: String,
    /// What objects may use in all, such as `10 TiB`. Without, all but the reserve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Takes no chunks, whatever any MDS wishes.
    #[serde(default)]
    pub read_only: bool,
    /// Realms whose clients (machines and users) are served. Without, all that the map lets in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realms: Option<Vec<String>>,
    /// Indices of the MDTs whose chunks are kept, and whose MDSs are obeyed. Without, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mdts: Option<Vec<u16>>,
    /// A directory whose files may be adopted where they are: `tieline import --in-place`. Nothing
    /// is ever written there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopt: Option<PathBuf>,
}

impl OstSettings {
    /// An OST in a directory, with what holds unless it is said otherwise.
    pub fn of(index: u16, path: PathBuf) -> Self {
        Self {
            index,
            path,
            store: store_default(),
            bucket: None,
            prefix: None,
            endpoint: None,
            region: None,
            credentials: None,
            authorities: None,
            reserve: reserve_default(),
            limit: None,
            read_only: false,
            realms: None,
            mdts: None,
            adopt: None,
        }
    }
}

fn store_default() -> String {
    "directory".to_owned()
}

fn is_store_default(store: &str) -> bool {
    store == store_default()
}

fn is_no_path(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

fn listen_default() -> String {
    format!("0.0.0.0:{PORT_DEFAULT}")
}

fn admin_default() -> String {
    "127.0.0.1:0".to_owned()
}

fn congestion_default() -> String {
    "auto".to_owned()
}

fn is_congestion_default(word: &str) -> bool {
    word == congestion_default()
}

fn log_default() -> String {
    "text".to_owned()
}

fn engine_default() -> String {
    "embedded".to_owned()
}

fn lease_default() -> String {
    "20 s".to_owned()
}

fn freed_keep_default() -> String {
    "1 h".to_owned()
}

fn log_wait_default() -> bool {
    true
}

fn is_log_wait_default(waits: &bool) -> bool {
    *waits
}

fn collect_rate_default() -> u64 {
    2000
}

fn is_collect_rate_default(rate: &u64) -> bool {
    *rate == collect_rate_default()
}

fn stray_keep_default() -> String {
    "1 h".to_owned()
}

fn session_keep_default() -> String {
    "1 h".to_owned()
}

fn is_session_keep_default(keep: &str) -> bool {
    keep == session_keep_default()
}

fn capability_life_default() -> String {
    "5 min".to_owned()
}

fn is_capability_life_default(life: &str) -> bool {
    life == capability_life_default()
}

fn is_stray_keep_default(keep: &str) -> bool {
    keep == stray_keep_default()
}

fn mdt_reserve_default() -> String {
    "256 MiB".to_owned()
}

fn is_mdt_reserve_default(reserve: &str) -> bool {
    reserve == mdt_reserve_default()
}

fn reserve_default() -> String {
    "1 GiB".to_owned()
}

/// Settings that hold.
pub struct Plan {
    pub fs: FsName,
    pub site: SiteName,
    pub user: Option<String>,
    pub state: PathBuf,
    pub listen: String,
    pub admin: String,
    pub is_log_json: bool,
    pub congestion: Congestion,
    pub audit: Option<PathBuf>,
    pub verifier: MapVerifier,
    pub signer: Option<MapSigner>,
    pub root: Vec<String>,
    pub mdt: Option<MdtPlan>,
    pub osts: Vec<OstPlan>,
    pub http: Option<HttpPlan>,
    pub kerberos: KerberosPlan,
    pub hsm: HsmPlan,
    /// What is hardly meant so, as complaints are written.
    pub doubts: Vec<String>,
}

pub struct MdtPlan {
    pub index: MdtIndex,
    pub engine: Engine,
    pub reserve: u64,
    pub lease: Duration,
    pub freed_keep: Duration,
    pub log: Option<LogSettings>,
    pub collect_rate: u64,
    pub stray_keep: Duration,
    pub session_keep: Duration,
    pub capability_life: Duration,
    pub root_owner: (Uid, Gid),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Engine {
    Memory,
    Embedded(PathBuf),
    Postgres { server: Box<PostgresServer>, schema: String },
}

pub struct OstPlan {
    pub index: OstIndex,
    pub objects: Objects,
    pub limits: Limits,
    pub adopt: Option<PathBuf>,
}

/// Where an OST's objects are.
pub enum Objects {
    Directory(PathBuf),
    Bucket(Box<tieline_s3::Settings>),
}

impl OstPlan {
    /// `None`: its objects are in no directory.
    pub fn directory(&self) -> Option<&Path> {
        match &self.objects {
            Objects::Directory(path) => Some(path),
            Objects::Bucket(_) => None,
        }
    }
}

/// What was not read has something in its place, which others may not fit.
fn follows(key: &str, wrong: &BTreeSet<String>) -> bool {
    let is_ost_index = |key: &str| key.starts_with("ost[") && key.ends_with("].index");
    let is_site = || wrong.contains("site");
    match key {
        "mdt.store" => wrong.contains("state"),
        "mdt.index" => is_site(),
        _ => is_ost_index(key) && (is_site() || wrong.iter().any(|key| is_ost_index(key))),
    }
}

impl Settings {
    /// Reads a file and checks all of it.
    pub fn load(path: &Path) -> Result<Plan, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SettingsError::Read { path: path.to_owned(), source })?;
        let table: toml::Table = text.parse().map_err(|source| SettingsError::Syntax {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let plan = Self::judge(table, is_private(path).unwrap_or(false));
        plan.map_err(|source| SettingsError::Wrong { path: path.to_owned(), source })
    }

    /// All that is wrong at once: keys that are unknown, missing or of another type, and values
    /// that cannot be.
    fn judge(table: toml::Table, is_private: bool) -> Result<Plan, Wrongs> {
        let mut gathered = Gathered::default();
        let settings = gathered.settings(table)?;
        let (plan, wrongs) = settings.draft(is_private);
        gathered.add(wrongs, follows);
        if gathered.wrongs.is_empty() {
            return Ok(plan);
        }
        // What a start would find next.
        gathered.add(plan.look().wrongs, follows);
        Err(Wrongs(gathered.wrongs))
    }

    /// Settings that hold, or everything that is wrong with them.
    pub fn validate(&self) -> Result<Plan, Wrongs> {
        let (plan, wrongs) = self.draft(true);
        if wrongs.is_empty() { Ok(plan) } else { Err(Wrongs(wrongs)) }
    }

    /// A plan, and everything that is wrong: in the place of that stands something that only must
    /// not cause another complaint. `is_private`: nobody but the file's owner can read it.
    fn draft(&self, is_private: bool) -> (Plan, Vec<String>) {
        let mut check = Check { is_private, ..Check::default() };
        let fs = check.parse("fs", &self.fs, "write a name such as \"extenci\"");
        let site = check.parse("site", &self.site, "write a name such as \"fnal\"");
        let is_there = |user: &&String| *user == ROOT || user_of_machine(user).is_some();
        let known = self.user.as_ref().filter(is_there);
        if let Some(user) = self.user.as_ref().filter(|_| known.is_none()) {
            let fix = format!("`useradd --system {user}`, or name another");
            check.complain("user", format!("there is no user `{user}` here: {fix}"));
        }
        check.holds(self.state.is_absolute(), "state", || {
            format!("`{}` is not an absolute path", self.state.display())
        });
        check.address("listen", &self.listen);
        check.address("admin", &self.admin);
        for address in &self.root {
            check.address("root", address);
        }
        check.holds(matches!(self.log.as_str(), "text" | "json"), "log", || {
            format!("`{}` is neither \"text\" nor \"json\"", self.log)
        });
        let verifier = check.take("map_key", key_open(&self.map_key));
        let signer = self.map_secret.as_deref().map(secret_open);
        let signer = signer.and_then(|signer| check.take("map_secret", signer));
        // Where there is a map, one of both may be of before: the other is judged by that.
        if let (Some(verifier), Some(signer)) = (&verifier, &signer)
            && !self.state.join(MAP_FILE).exists()
        {
            check.holds(signer.verifier() == *verifier, "map_secret", || {
                "does not belong to map_key: use the pair that `tieline map keygen` made".into()
            });
        }
        check.holds(self.mdt.is_some() || !self.ost.is_empty(), "mdt", || {
            "neither [mdt] nor [[ost]] is there: a server needs at least one".into()
        });
        let mdt = self.mdt.as_ref().map(|mdt| mdt.validate(&self.state, &self.fs, &mut check));
        let http = self.http.as_ref().map(|http| http.validate(&mut check));
        let osts = osts_validate(&self.ost, &self.fs, &mut check);
        let user = self.user.as_deref();
        let kerberos = self.kerberos.as_ref().map(|kerberos| kerberos.validate(user));
        let kerberos = kerberos.unwrap_or_else(|| Ok(KerberosPlan::default()));
        let kerberos = kerberos.unwrap_or_else(|wrongs| {
            wrongs.into_iter().for_each(|(key, wrong)| check.complain(&key, wrong));
            KerberosPlan::default()
        });
        let hsm = HsmPlan::of(self.hsm.as_ref(), &self.state, &mut check);
        let congestion: Option<Congestion> = self.congestion.parse().ok();
        check.holds(congestion.is_some(), "congestion", || "`auto` or `system`".into());
        let plan = Plan {
            fs: fs.unwrap_or_else(|| "unread".parse().expect("a name")),
            site: site.unwrap_or_else(|| "unread".parse().expect("a name")),
            user: known.cloned(),
            state: self.state.clone(),
            listen: self.listen.clone(),
            admin: self.admin.clone(),
            is_log_json: self.log == "json",
            congestion: congestion.unwrap_or_default(),
            audit: self.audit.clone(),
            verifier: verifier.unwrap_or_else(|| MapSigner::new([0; 32]).verifier()),
            signer,
            root: self.root.clone(),
            mdt,
            osts,
            http,
            kerberos,
            hsm,
            doubts: check.doubts,
        };
        (plan, check.wrongs)
    }
}

impl MdtSettings {
    /// With what holds unless it is said otherwise.
    pub fn of(index: u16) -> Self {
        Self {
            index,
            engine: engine_default(),
            store: None,
            password: None,
            reserve: mdt_reserve_default(),
            lease: lease_default(),
            freed_keep: freed_keep_default(),
            log_to: None,
            log_wait: log_wait_default(),
            collect_rate: collect_rate_default(),
            stray_keep: stray_keep_default(),
            session_keep: session_keep_default(),
            capability_life: capability_life_default(),
            root_owner: None,
        }
    }

    fn validate(&self, state: &Path, fs: &str, check: &mut Check) -> MdtPlan {
        let label = MdtIndex(self.index).label().to_lowercase();
        let engine = match self.engine.split_once('=').unwrap_or((&self.engine, "")) {
            ("memory", "") => Engine::Memory,
            ("embedded", "") => {
                let store = self.store.clone().unwrap_or(state.join(format!("{label}.redb")));
                check.holds(store.is_absolute(), "mdt.store", || {
                    format!("`{}` is not an absolute path", store.display())
                });
                Engine::Embedded(store)
            }
            ("postgres", server) => self.validate_postgres(server, format!("{fs}_{label}"), check),
            _ => {
                let known = "\"embedded\", \"memory\" nor \"postgres=CONNECTION\"";
                check.complain("mdt.engine", format!("`{}` is neither {known}", self.engine));
                Engine::Memory
            }
        };
        if self.password.is_some() && !matches!(engine, Engine::Postgres { .. }) {
            check.doubt("mdt.password", "only a database asks for one: leave it out");
        }
        let lease = check.span("mdt.lease", &self.lease, "20 s");
        check.holds(lease >= Duration::from_secs(1), "mdt.lease", || {
            "shorter than 1 s: write \"20 s\" unless this is a test".into()
        });
        let reserve = check.parse("mdt.reserve", &self.reserve, "write a size such as \"256 MiB\"");
        let freed_keep = check.span("mdt.freed_keep", &self.freed_keep, "1 h");
        let stray_keep = check.span("mdt.stray_keep", &self.stray_keep, "1 h");
        let session_keep = check.span("mdt.session_keep", &self.session_keep, "1 h");
        let capability_life = check.span("mdt.capability_life", &self.capability_life, "5 min");
        let is_possible = (Duration::from_secs(1)..=LIFE_MAX).contains(&capability_life);
        check.holds(is_possible, "mdt.capability_life", || {
            "shorter than 1 s or longer than 5 min: leave it out unless this is a test".into()
        });
        let owner = self.root_owner.as_deref().unwrap_or("0:0");
        let root_owner = check.owner("mdt.root_owner", owner);
        let log = self.log_to.clone().map(|directory| {
            check.holds(directory.is_absolute(), "mdt.log_to", || {
                let shown = directory.display();
                format!("`{shown}` is not an absolute path: name a directory on another disk")
            });
            check.holds(self.engine != "memory", "mdt.log_to", || {
                "the memory engine keeps no log: leave it out, or take another engine".into()
            });
            LogSettings { directory, waits: self.log_wait }
        });
        MdtPlan {
            index: MdtIndex(self.index),
            engine,
            reserve: reserve.map_or(0, |size: ByteSize| size.0),
            lease,
            freed_keep,
            log,
            collect_rate: self.collect_rate,
            stray_keep,
            session_keep,
            capability_life,
            root_owner,
        }
    }

    fn validate_postgres(&self, words: &str, schema: String, check: &mut Check) -> Engine {
        let schema = self.store.as_ref().map_or(schema, |store| store.display().to_string());
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_name = !schema.is_empty() && schema.bytes().all(|b| is_plain(b) || b == b'_');
        check.holds(is_name && schema.len() <= 63, "mdt.store", || {
            format!("`{schema}` is no schema: write at most 63 of a-z, 0-9 and _")
        });
        let server = check.parse::<PostgresServer>(
            "mdt.engine",
            words,
            "write \"postgres=host=/run/postgresql dbname=tieline user=tieline\"",
        );
        let Some(mut server) = server else { return Engine::Memory };
        let is_safe = check.is_private || !server.has_password();
        check.holds(is_safe, "mdt.engine", || {
            "holds a password, and others can read this file: chmod 600 it, or name a file with \
             the password in mdt.password"
                .into()
        });
        let password = self.password.as_deref().map(password_open);
        if let Some(password) = password.and_then(|p| check.take("mdt.password", p)) {
            server = server.with_password(&password);
        }
        Engine::Postgres { server: Box::new(server), schema }
    }
}

fn osts_validate(osts: &[OstSettings], fs: &str, check: &mut Check) -> Vec<OstPlan> {
    let mut indices = BTreeSet::new();
    let mut places = BTreeSet::new();
    let mut plans = Vec::new();
    for (place, ost) in osts.iter().enumerate() {
        let key = |field: &str| format!("ost[{place}].{field}");
        check.holds(indices.insert(ost.index), &key("index"), || {
            format!("{} is there twice: give each OST its own index", ost.index)
        });
        let is_bucket = ost.store == "s3";
        let mut objects = match ost.store.as_str() {
            "s3" => Objects::Bucket(Box::new(s3::validate(ost, fs, &key, check))),
            "directory" => {
                s3::check_unused(ost, &key, check);
                directory_validate(&ost.path, &key("path"), check)
            }
            other => {
                let known = "neither \"directory\" nor \"s3\"";
                check.complain(&key("store"), format!("`{other}` is {known}"));
                Objects::Directory(ost.path.clone())
            }
        };
        let (place, shown) = match &objects {
            Objects::Directory(path) => ("path", path.display().to_string()),
            Objects::Bucket(bucket) => ("prefix", bucket.describe()),
        };
        check.holds(places.insert(shown.clone()), &key(place), || {
            format!("`{shown}` is there twice: give each OST its own")
        });
        if let Some(adopt) = &ost.adopt {
            check.holds(adopt.is_absolute(), &key("adopt"), || {
                format!("`{}` is not an absolute path", adopt.display())
            });
        }
        let reserve = check.parse(&key("reserve"), &ost.reserve, "write a size such as \"1 GiB\"");
        let limit = ost.limit.as_ref().and_then(|limit| {
            check.parse::<ByteSize>(&key("limit"), limit, "write a size such as \"10 TiB\"")
        });
        if limit == Some(ByteSize(0)) {
            let what = "nothing fits below 0 B: leave it out, or say read_only = true";
            check.doubt(&key("limit"), what);
        }
        for realm in ost.realms.iter().flatten() {
            check.holds(!realm.is_empty() && !realm.contains(['@', '/']), &key("realms"), || {
                format!("`{realm}` is no realm: write such as \"EXTENCI.ORG\"")
            });
        }
        if let Objects::Bucket(bucket) = &mut objects {
            bucket.given = limit.map(|size| size.0);
        }
        let limits = Limits {
            // What a bucket is given, it counts itself; it has no disk to keep room on.
            reserve: reserve.filter(|_| !is_bucket).map_or(0, |size: ByteSize| size.0),
            is_read_only: ost.read_only,
            bytes_max: limit.filter(|_| !is_bucket).map(|size| size.0),
            realms: ost.realms.as_ref().map(|realms| realms.iter().cloned().collect()),
            mdts: ost.mdts.as_ref().map(|mdts| mdts.iter().copied().map(MdtIndex).collect()),
        };
        plans.push(OstPlan {
            index: OstIndex(ost.index),
            objects,
            limits,
            adopt: ost.adopt.clone(),
        });
    }
    plans
}

fn directory_validate(path: &Path, key: &str, check: &mut Check) -> Objects {
    check.holds(path.is_absolute(), key, || match path.as_os_str().is_empty() {
        true => "is missing: add it".to_owned(),
        false => format!("`{}` is not an absolute path", path.display()),
    });
    Objects::Directory(path.to_owned())
}

/// Reads a password, unless others than its owner could.
fn password_open(path: &Path) -> Result<String, String> {
    match private::read(path)? {
        password if password.is_empty() => Err(format!("{} is empty", path.display())),
        password => Ok(password),
    }
}

/// Gathers complaints.
#[derive(Default)]
struct Check {
    wrongs: Vec<String>,
    doubts: Vec<String>,
    /// Nobody but its owner can read the settings file.
    is_private: bool,
}

impl Check {
    fn complain(&mut self, key: &str, wrong: String) {
        self.wrongs.push(format!("{key}: {wrong}"));
    }

    fn doubt(&mut self, key: &str, doubt: &str) {
        self.doubts.push(format!("{key}: {doubt}"));
    }

    fn holds(&mut self, holds: bool, key: &str, wrong: impl FnOnce() -> String) {
        if !holds {
            self.complain(key, wrong());
        }
    }

    fn take<T>(&mut self, key: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|wrong| self.complain(key, wrong)).ok()
    }

    fn parse<T>(&mut self, key: &str, text: &str, fix: &str) -> Option<T>
    where
        T: std::str::FromStr,
        T::Err: std::fmt::Display,
    {
        text.parse().map_err(|e| self.complain(key, format!("{e}: {fix}"))).ok()
    }

    fn span(&mut self, key: &str, text: &str, example: &str) -> Duration {
        let span = self.parse::<Span>(key, text, &format!("such as \"{example}\""));
        // What is returned after a complaint is never used; it only must not cause another.
        span.map_or(Duration::from_secs(3600), |span| span.0)
    }

    fn owner(&mut self, key: &str, text: &str) -> (Uid, Gid) {
        let numbers = text.split_once(':');
        let owner = numbers.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
        self.holds(owner.is_some(), key, || {
            format!("`{text}` is not UID:GID: write two numbers such as \"1000:1000\"")
        });
        owner.map_or((Uid(0), Gid(0)), |(uid, gid)| (Uid(uid), Gid(gid)))
    }

    fn address(&mut self, key: &str, text: &str) {
        let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        self.holds(matches!(port, Some(Ok(_))), key, || {
            format!("`{text}` is not HOST:PORT: write \"host.example.org:{PORT_DEFAULT}\"")
        });
    }
}

mod gather;
mod hsm;
mod http;
mod premises;
mod s3;

pub use hsm::{HsmPlan, HsmSettings};
pub use http::{HttpPlan, HttpSettings};

pub use premises::Found;

#[cfg(test)]
mod tests;
