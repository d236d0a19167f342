//! The engine for when one machine is outgrown: a schema of a PostgreSQL database.
//!
//! One MDS at a time owns an MDT ([`tenure`]), so transactions meet in that MDS's memory, in the
//! overlay that all engines share; the database sees batched reads and one statement per group of
//! commits ([`sql`]).
//!
//! ```text
//!   overlay ──reads──▶ hot pairs ──miss──▶ reader connections ─┐
//!      │                  ▲                                     ├─▶ pairs, store (one row)
//!      └──group──▶ committer: one statement, one round trip ────┘
//!                     tenure: renews the lease every few seconds
//! ```
//!
//! * A group is written only where the epoch and the version are those its writer knows: a stale
//!   owner's write changes nothing, and neither does a repeated one. So a group whose fate a lost
//!   connection left unknown is simply sent again; if it finds nothing to do, the row tells whether
//!   it was there already.
//! * While the database is away, readers and committers wait for it ([`line`]); the clients of the
//!   MDS see nothing but a delay. Past [`PostgresSettings::patience`] the store fails.
//! * A database may have several hosts, of which one is the primary ([`hosts`]). A group counts as
//!   durable when a commit was acknowledged as the database's settings have it, its synchronous
//!   standby included: the group's own, or a later one that found the group there.
//! * All connections live on a small runtime of the store's own, so that the committer, which is a
//!   plain thread, never depends on the threads that wait for it.
//!
//! Invariants: one owner at a time writes, and none answers from the store beyond its lease; a
//! version is never used again; no password is ever shown.

mod base;
mod fault;
mod hosts;
mod hot;
mod line;
#[cfg(test)]
mod patroni;
pub mod scratch;
mod snapshot;
mod sql;
mod tenure;
#[cfg(test)]
mod tests;

use crate::overlay::{Limits, Overlay};
use crate::{Error, Opening, Snapshot, Store, Transaction};
use base::PostgresBase;
use line::{Database, Line};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tenure::Tenure;
use tieline_types::Version;
use tokio::runtime::{Builder, Runtime};

/// How far the version moves on at each opening: more than can be decided and not yet durable.
const VERSIONS_SKIPPED: u64 = 1 << 20;
/// Longest wait for a database that is not there when the store is opened: a machine that boots
/// starts both at once.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);

/// Where a store is, and who opens it.
#[derive(Clone, Debug)]
pub struct PostgresSettings {
    pub server: PostgresServer,
    /// The schema; made if it is not there.
    pub schema: String,
    /// Who owns the store: the same at each start of the same server. Two that run at once never
    /// have the same.
    pub owner: String,
    /// The owner, for people.
    pub holder: String,
    /// How long an owner that is not heard from keeps others out.
    pub lease: Duration,
    /// How long a database that went away is waited for.
    pub patience: Duration,
}

impl PostgresSettings {
    /// A lease that outlasts a short fault, and a patience as long as that of a mount.
    pub fn new(server: PostgresServer, schema: String, owner: String, holder: String) -> Self {
        Self {
            server,
            schema,
            owner,
            holder,
            lease: Duration::from_secs(15),
            patience: Duration::from_secs(15 * 60),
        }
    }
}

/// A database, in libpq's words. Its password is never shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PostgresServer(tokio_postgres::Config);

/// Words that name no database.
#[derive(Debug, thiserror::Error)]
#[error("not a PostgreSQL connection (`host=/run/postgresql dbname=tieline`): {0}")]
pub struct PostgresServerError(String);

impl PostgresServer {
    pub fn has_password(&self) -> bool {
        self.0.get_password().is_some()
    }

    pub fn with_password(mut self, password: &str) -> Self {
        self.0.password(password);
        self
    }
}

impl std::str::FromStr for PostgresServer {
    type Err = PostgresServerError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let config: tokio_postgres::Config = text.parse().map_err(|error| {
            // The error's cause says which word is wrong, and never the password.
            let error: &dyn std::error::Error = &error;
            let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            PostgresServerError(cause)
        })?;
        let hosts = config.get_hosts().len();
        if hosts == 0 {
            return Err(PostgresServerError("`host` is missing".into()));
        }
        let (ports, addresses) = (config.get_ports().len(), config.get_hostaddrs().len());
        for (word, count, for_all) in [("port", ports, 1), ("hostaddr", addresses, 0)] {
            if count > for_all && count != hosts {
                return Err(PostgresServerError(format!(
                    "`{word}` has {count} values, and `host` has {hosts}"
                )));
            }
        }
        Ok(Self(config))
    }
}

/// `HOST:PORT/DATABASE`.
impl std::fmt::Display for PostgresServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use tokio_postgres::config::Host;
        for (place, host) in self.0.get_hosts().iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            match host {
                Host::Tcp(host) => write!(f, "{comma}{host}")?,
                Host::Unix(path) => write!(f, "{comma}{}", path.display())?,
            }
            let ports = self.0.get_ports();
            if let Some(port) = ports.get(place).or(ports.first()) {
                write!(f, ":{port}")?;
            }
        }
        let database = self.0.get_dbname().or(self.0.get_user()).unwrap_or_default();
        write!(f, "/{database}")
    }
}

/// A store in a schema of a database.
pub struct PostgresStore {
    overlay: Arc<Overlay<PostgresBase>>,
    committer: Option<JoinHandle<()>>,
    _runtime: OwnRuntime,
}

impl PostgresStore {
    /// Opens the store, or makes a new one in a schema that is not there. Refused while another
    /// owner's lease is alive.
    pub async fn open(settings: PostgresSettings, opening: Opening) -> Result<Self, Error> {
        let store = format!("postgres {}, schema {}", settings.server, settings.schema);
        let failed = |source| Error::Failed { store: store.clone(), source };
        let runtime = OwnRuntime::start().map_err(|error| failed(Box::new(error)))?;
        let database = Database::new(&settings, store.clone(), runtime.handle());
        let check = opening.check.as_ref();
        let taken = tenure::take(&database, &settings, check, OPEN_PATIENCE).await?;
        let version = Version(taken.version as u64);
        let mut journal = opening.journal;
        if let Some(journal) = &mut journal {
            let durable = Version(version.0 - VERSIONS_SKIPPED);
            let failed = |source| Error::Journal { store: store.clone(), source };
            journal.start(durable, version).map_err(failed)?;
        }
        let limits = Limits::default();
        assert!(limits.pending_commits() < VERSIONS_SKIPPED, "a version could be used again");
        let tenure = Tenure::new(&taken, &settings, Line::new(database.clone()));
        runtime.handle().spawn(tenure.clone().keep());
        let base = PostgresBase::new(database, tenure, taken.version, opening.cache);
        let overlay = Overlay::with_journal(base, store.clone(), version, limits, journal);
        let committer = std::thread::Builder::new()
            .name("kv-committer".into())
            .spawn({
                let overlay = overlay.clone();
                move || {
                    while overlay.wait_for_work() && overlay.flush() {}
                    overlay.base().release();
                }
            })
            .map_err(|error| failed(Box::new(error)))?;
        Ok(Self { overlay, committer: Some(committer), _runtime: runtime })
    }

    /// Can the database be talked to? Its version.
    pub async fn look(server: &PostgresServer) -> Result<String, Error> {
        let nobody = String::new;
        let settings = PostgresSettings::new(server.clone(), nobody(), nobody(), nobody());
        let store = format!("postgres {server}");
        let runtime = OwnRuntime::start()
            .map_err(|error| Error::Failed { store: store.clone(), source: Box::new(error) })?;
        line::look(&Database::new(&settings, store, runtime.handle())).await
    }

    /// Removes a schema and all that is in it. For federations that were made for a test.
    pub async fn remove(server: &PostgresServer, schema: &str) -> Result<(), Error> {
        let settings =
            PostgresSettings::new(server.clone(), schema.to_owned(), String::new(), String::new());
        let store = format!("postgres {server}, schema {schema}");
        let runtime = OwnRuntime::start()
            .map_err(|error| Error::Failed { store: store.clone(), source: Box::new(error) })?;
        line::remove(&Database::new(&settings, store, runtime.handle())).await
    }
}

impl Drop for PostgresStore {
    /// Writes what is still pending, and gives the store free for others.
    fn drop(&mut self) {
        self.overlay.close();
        self.overlay.base().close();
        if let Some(committer) = self.committer.take()
            && committer.join().is_err()
        {
            tracing::error!(store = self.overlay.store(), "the committer panicked");
        }
    }
}

#[async_trait::async_trait]
impl Store for PostgresStore {
    async fn begin(&self) -> Result<Box<dyn Transaction>, Error> {
        // What is in memory is true only for as long as nobody else can have written.
        self.overlay.base().hold().await?;
        self.overlay.begin()
    }

    async fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        self.overlay.base().hold().await?;
        self.overlay.snapshot().await
    }

    async fn advance(&self, version: Version) -> Result<(), Error> {
        self.overlay.advance(version)
    }

    fn describe(&self) -> String {
        self.overlay.store().to_owned()
    }
}

/// A runtime that may be dropped anywhere.
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn start() -> std::io::Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("kv-postgres").enable_all();
        builder.build().map(|runtime| Self(Some(runtime)))
    }

    fn handle(&self) -> tokio::runtime::Handle {
        self.0.as_ref().expect("there until it is dropped").handle().clone()
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
