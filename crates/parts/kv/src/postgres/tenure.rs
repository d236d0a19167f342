//! Who owns a store: one server at a time, for an epoch, by a lease in the database.
//!
//! The database's clock decides when a lease ends; we count ours from *sending* the renewal and use
//! it to 0.9. Whoever takes a store over begins a new epoch, and everything the owner before still
//! sends is refused. The same server, started again, takes its own store over at once.
//!
//! A lease that ran out while the database was away is no loss: as long as the epoch is ours, it is
//! simply renewed.
//!
//! Invariants: nothing is answered from memory or from the database beyond the lease; a lost tenure
//! never comes back.

use super::fault::Trouble;
use super::hosts::Connected;
use super::line::{Database, Line, Values, patiently};
use super::sql::{self, Ask};
use super::{PostgresSettings, VERSIONS_SKIPPED};
use crate::{Check, Error, Key};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::{Client, Transaction};

/// What was found and taken.
pub struct Taken {
    pub epoch: i64,
    pub version: i64,
    /// When the lease was asked for.
    pub sent: Instant,
}

/// What a look at the store came to.
enum Outcome {
    Taken(Taken),
    Held { holder: String, seconds: f64 },
    Refused(Box<dyn std::error::Error + Send + Sync>),
}

/// Takes a store over, or makes a new one.
pub async fn take(
    database: &Arc<Database>,
    settings: &PostgresSettings,
    check: Option<&(Key, Check)>,
    patience: Duration,
) -> Result<Taken, Error> {
    let mut tries = database.tries_for(patience);
    let outcome = loop {
        match patiently(try_take(database, settings, check)).await {
            Ok(outcome) => break outcome,
            Err(trouble) => tries.again(trouble).await?,
        }
    };
    let store = &database.store;
    match outcome {
        Outcome::Taken(taken) => Ok(taken),
        Outcome::Held { holder, seconds } => {
            let seconds = seconds.max(0.0).ceil();
            let store = format!("{store} (its owner is {holder}, for {seconds} s at least)");
            Err(Error::InUse { store })
        }
        Outcome::Refused(source) => Err(Error::Refused { store: store.clone(), source }),
    }
}

async fn try_take(
    database: &Arc<Database>,
    settings: &PostgresSettings,
    check: Option<&(Key, Check)>,
) -> Result<Outcome, Trouble> {
    let sent = Instant::now();
    let Connected { mut client, .. } = database.connect().await?;
    warn_of_lies(&client, database).await?;
    let schema = &database.schema;
    let transaction = client.transaction().await?;
    transaction.execute(sql::OPEN_LOCK, &[schema]).await?;
    let made = transaction.query_one(&sql::is_made(schema), &[]).await?;
    let is_made = made.try_get(1)?;
    // Judged before anything is written: a newer build's store stays as it is.
    if let Err(source) = judge(&transaction, schema, is_made, check).await? {
        return Ok(Outcome::Refused(source));
    }
    if !is_made {
        if !made.try_get::<_, bool>(0)? {
            transaction.batch_execute(&sql::make_schema(schema)).await?;
        }
        transaction.batch_execute(&sql::make(schema)).await?;
    }
    let lease = settings.lease.as_secs_f64();
    let skipped = VERSIONS_SKIPPED as i64;
    let taken = transaction
        .query_opt(&sql::take(schema), &[&settings.owner, &settings.holder, &lease, &skipped])
        .await?;
    let Some(row) = taken else {
        let row = transaction.query_one(&sql::holder(schema), &[]).await?;
        return Ok(Outcome::Held { holder: row.try_get(0)?, seconds: row.try_get(1)? });
    };
    let (epoch, version) = (row.try_get(0)?, row.try_get(1)?);
    transaction.commit().await?;
    Ok(Outcome::Taken(Taken { epoch, version, sent }))
}

type Verdict = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Is it a store to be opened? Writes nothing.
async fn judge(
    transaction: &Transaction<'_>,
    schema: &str,
    is_made: bool,
    check: Option<&(Key, Check)>,
) -> Result<Verdict, Trouble> {
    if is_made {
        let known = sql::FORMAT_KNOWN;
        let format: i32 = transaction.query_one(&sql::format(schema), &[]).await?.try_get(0)?;
        if format != known {
            let text = format!("format {format} is not known, {known} is: use a newer build");
            return Ok(Err(text.into()));
        }
    }
    let Some((key, check)) = check else { return Ok(Ok(())) };
    let value = match is_made {
        true => transaction.query_opt(&sql::value(schema), &[key]).await?,
        false => None,
    };
    let value = value.map(|row| row.try_get(0)).transpose()?;
    Ok(check(value))
}

/// Settings of a database under which "durable" is not true.
async fn warn_of_lies(client: &Client, database: &Database) -> Result<(), Trouble> {
    let store = &database.store;
    for setting in ["fsync", "full_page_writes"] {
        let row = client.query_one("SELECT current_setting($1)", &[&setting]).await?;
        if row.try_get::<_, &str>(0)? != "on" {
            tracing::warn!(store, "{setting} is off in the database: a power failure loses data");
        }
    }
    let row = client.query_one("SELECT current_setting('synchronous_standby_names')", &[]).await?;
    if database.has_several_hosts() && row.try_get::<_, &str>(0)?.is_empty() {
        tracing::warn!(
            store,
            "several hosts are named, and the database has no synchronous standby \
             (synchronous_standby_names is empty): when another host takes over, the last commits \
             may be lost"
        );
    }
    Ok(())
}

/// How the tenure is.
#[derive(Clone, Debug)]
enum State {
    Until(Instant),
    /// Why it is over.
    Lost(String),
}

/// Our time as the owner.
pub struct Tenure {
    pub epoch: i64,
    lease: Duration,
    line: Line,
    state: watch::Sender<State>,
}

impl Tenure {
    pub fn new(taken: &Taken, settings: &PostgresSettings, line: Line) -> Arc<Self> {
        let until = State::Until(taken.sent + used(settings.lease));
        Arc::new(Self {
            epoch: taken.epoch,
            lease: settings.lease,
            line,
            state: watch::Sender::new(until),
        })
    }

    /// Seconds, as the database is told.
    pub fn lease(&self) -> f64 {
        self.lease.as_secs_f64()
    }

    /// Waits until the store is surely ours.
    pub async fn hold(&self) -> Result<(), Error> {
        let mut state = self.state.subscribe();
        let deadline = Instant::now() + self.line.database().patience();
        loop {
            match &*state.borrow_and_update() {
                State::Until(until) if Instant::now() < *until => return Ok(()),
                State::Until(_) => {}
                State::Lost(why) => return Err(self.over(why.clone())),
            }
            // The renewal is under way, or waits for the database.
            if timeout_at(deadline, state.changed()).await.is_err() {
                let source = "its lease could not be renewed";
                return Err(Error::Failed { store: self.store(), source: source.into() });
            }
        }
    }

    /// The database confirmed our epoch when asked at `sent`.
    pub fn confirmed(&self, sent: Instant) {
        let until = sent + used(self.lease);
        self.state.send_if_modified(|state| match state {
            State::Until(present) if *present < until => {
                *present = until;
                true
            }
            _ => false,
        });
    }

    /// Somebody else took the store over.
    async fn lost(&self) -> Result<Error, Error> {
        let rows = self.line.ask(Ask::Look, &[]).await?;
        let holder: Option<String> = rows.first().and_then(|row| row.try_get(2).ok());
        let holder = holder.unwrap_or_else(|| "nobody".to_owned());
        Ok(self.end(format!("{holder} took it over")))
    }

    /// The database has not what it acknowledged.
    pub fn fell_behind(&self, acknowledged: i64, present: i64) -> Error {
        self.end(format!(
            "the database has lost commits: it is at version {present}, and was at {acknowledged}. \
             Did a standby take over that was not synchronous?"
        ))
    }

    fn end(&self, why: String) -> Error {
        self.state.send_replace(State::Lost(why.clone()));
        self.over(why)
    }

    /// Renews the lease for as long as the store is open.
    pub async fn keep(self: Arc<Self>) {
        loop {
            sleep(self.lease / 3).await;
            if let Err(error) = self.renew().await {
                tracing::error!(%error, cause = ?std::error::Error::source(&error), "not renewed");
                return;
            }
        }
    }

    async fn renew(&self) -> Result<(), Error> {
        self.version().await.map(drop)
    }

    /// The version of the newest group in the database: it, and what we ask this by, are durable
    /// there, and we are the owner.
    pub async fn version(&self) -> Result<i64, Error> {
        let mut tries = self.line.database().tries();
        loop {
            let sent = Instant::now();
            let values: Values<'_> = &[&self.epoch, &self.lease()];
            match self.line.ask_once(Ask::Renew, values, tries.silence()).await {
                Ok(rows) if is_one(&rows) => {
                    self.confirmed(sent);
                    let version = rows[0].try_get(1).map_err(Trouble::from);
                    return version.map_err(|trouble| trouble.into_error(&self.store()));
                }
                Ok(_) => return Err(self.lost().await?),
                Err(trouble) => tries.again(trouble).await?,
            }
        }
    }

    fn over(&self, source: String) -> Error {
        Error::Failed { store: self.store(), source: source.into() }
    }

    fn store(&self) -> String {
        self.line.database().store.clone()
    }
}

/// Did a statement that counts owners find one?
pub fn is_one(rows: &[tokio_postgres::Row]) -> bool {
    rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()) == Some(1)
}

/// How much of a lease its holder uses.
fn used(lease: Duration) -> Duration {
    lease * 9 / 10
}
