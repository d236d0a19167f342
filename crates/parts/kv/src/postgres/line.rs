//! Connections to the database: made when they are needed, made again when they were lost.
//!
//! Invariants: a question has a deadline, and so has the wait for a database that is away; that it
//! went and came back is said once each, however many wait for it.

use super::PostgresSettings;
use super::fault::Trouble;
use super::hosts::{Connected, Hosts};
use super::sql::{self, Ask};
use crate::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

/// A database that says nothing for this long is asked again over a new connection: every question
/// may be asked twice. A frozen host costs this once.
const SILENCE_FIRST: Duration = Duration::from_secs(8);
/// The wait doubles up to this, so that an answer that takes long comes in the end.
pub const SILENCE_LAST: Duration = Duration::from_secs(30);
/// A store that closes waits this long for a database that is away.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_LAST: Duration = Duration::from_secs(1);

pub type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// What all connections of a store share.
pub struct Database {
    hosts: Arc<Hosts>,
    pub schema: String,
    /// For messages.
    pub store: String,
    pub runtime: Handle,
    patience: Duration,
    is_away: AtomicBool,
    closing: watch::Sender<bool>,
}

impl Database {
    pub fn new(settings: &PostgresSettings, store: String, runtime: Handle) -> Arc<Self> {
        let mut config = settings.server.0.clone();
        config.application_name(format!("tieline {}", settings.holder));
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE_LAST);
        }
        Arc::new(Self {
            hosts: Arc::new(Hosts::new(config)),
            schema: settings.schema.clone(),
            store,
            runtime,
            patience: settings.patience,
            is_away: AtomicBool::new(false),
            closing: watch::Sender::new(false),
        })
    }

    /// Nobody waits for long from now on.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// A connection that nothing was prepared on.
    pub async fn connect(&self) -> Result<Connected, Trouble> {
        let hosts = self.hosts.clone();
        // On our own runtime, which outlives the task that asks. Each host has its time.
        let connecting = self.runtime.spawn(async move { hosts.connect().await });
        // The runtime goes only with the store.
        connecting.await.unwrap_or(Err(Trouble::Silent(Duration::ZERO)))
    }

    /// May another host take over from the one that answers?
    pub fn has_several_hosts(&self) -> bool {
        self.hosts.are_several()
    }

    fn came_back(&self) {
        if self.is_away.swap(false, Ordering::Relaxed) {
            tracing::info!(store = %self.store, "the database is back");
        }
    }

    fn went_away(&self, trouble: &Trouble) {
        if !self.is_away.swap(true, Ordering::Relaxed) {
            let patience = self.patience.as_secs();
            let cause = trouble.cause();
            tracing::warn!(
                store = %self.store, patience, cause, "waiting for the database: {trouble}"
            );
        }
    }

    pub fn patience(&self) -> Duration {
        self.patience
    }

    pub fn tries(self: &Arc<Self>) -> Tries {
        self.tries_for(self.patience)
    }

    pub fn tries_for(self: &Arc<Self>, patience: Duration) -> Tries {
        let (until, pause) = (Instant::now() + patience, PAUSE_FIRST);
        Tries { database: self.clone(), until, pause, silence: SILENCE_FIRST }
    }
}

/// The database's version.
pub async fn look(database: &Arc<Database>) -> Result<String, Error> {
    let looked = patiently(async {
        let Connected { client, .. } = database.connect().await?;
        let row = client.query_one("SELECT current_setting('server_version')", &[]).await?;
        Ok(row.try_get(0)?)
    });
    looked.await.map_err(|trouble| trouble.into_error(&database.store))
}

/// Removes a schema.
pub async fn remove(database: &Arc<Database>) -> Result<(), Error> {
    let removed = patiently(async {
        let Connected { client, .. } = database.connect().await?;
        Ok(client.batch_execute(&sql::remove(&database.schema)).await?)
    });
    removed.await.map_err(|trouble| trouble.into_error(&database.store))
}

/// What is asked without a [`Line`] ends as well.
pub async fn patiently<T>(asking: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    timeout(SILENCE_LAST, asking).await.unwrap_or(Err(Trouble::Silent(SILENCE_LAST)))
}

/// Asking again, with pauses, until it makes no sense any more.
pub struct Tries {
    database: Arc<Database>,
    until: Instant,
    pause: Duration,
    silence: Duration,
}

impl Tries {
    /// How long the next answer may take.
    pub fn silence(&self) -> Duration {
        self.silence
    }

    /// Waits before the next try, or says why there is none.
    pub async fn again(&mut self, trouble: Trouble) -> Result<(), Error> {
        let mut closing = self.database.closing.subscribe();
        if *closing.borrow_and_update() {
            self.until = self.until.min(Instant::now() + CLOSE_PATIENCE);
        }
        if !trouble.is_away() || Instant::now() >= self.until {
            return Err(trouble.into_error(&self.database.store));
        }
        self.database.went_away(&trouble);
        if matches!(trouble, Trouble::Silent(_)) {
            self.silence = (self.silence * 2).min(SILENCE_LAST);
        }
        tokio::select! {
            biased;
            _ = sleep(self.pause) => {}
            _ = closing.changed() => {}
        }
        self.pause = (self.pause * 2).min(PAUSE_LAST);
        Ok(())
    }
}

/// One connection at a time.
pub struct Line {
    database: Arc<Database>,
    link: Mutex<Option<Arc<Link>>>,
}

/// A connection with its statements.
struct Link {
    client: Client,
    warnings: Arc<AtomicU64>,
    statements: Vec<(Ask, Statement)>,
}

impl Line {
    pub fn new(database: Arc<Database>) -> Self {
        Self { database, link: Mutex::default() }
    }

    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Asks once. After trouble it is not known whether a write was done.
    pub async fn ask_once(
        &self,
        ask: Ask,
        values: Values<'_>,
        silence: Duration,
    ) -> Result<Vec<Row>, Trouble> {
        let link = self.link().await?;
        let statement = link.statements.iter().find(|(known, _)| *known == ask);
        let (_, statement) = statement.expect("all statements are prepared");
        let warnings = link.warnings.load(Ordering::Acquire);
        let answer = timeout(silence, link.client.query(statement, values)).await;
        let trouble = match answer {
            // Said before the answer's end.
            Ok(Ok(_)) if ask.is_write() && link.warnings.load(Ordering::Acquire) != warnings => {
                return Err(Trouble::Unreplicated);
            }
            Ok(Ok(rows)) => {
                self.database.came_back();
                return Ok(rows);
            }
            Ok(Err(error)) => Trouble::from(error),
            Err(_) => Trouble::Silent(silence),
        };
        if trouble.is_away() {
            self.forget(&link).await;
        }
        Err(trouble)
    }

    /// Asks what may be asked twice, until there is an answer.
    pub async fn ask(&self, ask: Ask, values: Values<'_>) -> Result<Vec<Row>, Error> {
        let mut tries = self.database.tries();
        loop {
            match self.ask_once(ask, values, tries.silence()).await {
                Ok(rows) => return Ok(rows),
                Err(trouble) => tries.again(trouble).await?,
            }
        }
    }

    /// The connection, or a new one.
    async fn link(&self) -> Result<Arc<Link>, Trouble> {
        let mut slot = self.link.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| !link.client.is_closed()) {
            return Ok(link.clone());
        }
        *slot = None;
        let Connected { client, warnings } = self.database.connect().await?;
        let mut statements = Vec::new();
        for ask in Ask::ALL {
            let text = ask.text(&self.database.schema);
            let prepared = timeout(SILENCE_FIRST, client.prepare(&text)).await;
            let prepared = prepared.map_err(|_| Trouble::Silent(SILENCE_FIRST))?;
            statements.push((ask, prepared?));
        }
        let link = Arc::new(Link { client, warnings, statements });
        *slot = Some(link.clone());
        Ok(link)
    }

    /// The next question makes a new connection, unless somebody did already.
    async fn forget(&self, link: &Arc<Link>) {
        let mut slot = self.link.lock().await;
        if slot.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            *slot = None;
        }
    }
}
