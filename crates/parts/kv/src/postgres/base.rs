//! The pairs below the overlay: reads over a few connections, groups over one.

use super::fault::Trouble;
use super::hot::Hot;
use super::line::{Database, Line, Values};
use super::snapshot::PostgresSnapshot;
use super::sql::Ask;
use super::tenure::{Tenure, is_one};
use crate::overlay::{Base, Batch};
use crate::{Error, Key, Range, Snapshot, Value};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::ByteSize;
use tokio::time::{Instant, timeout};
use tokio_postgres::Row;

/// A connection answers its questions one after the other, so that a long scan holds up what comes
/// behind it: a few of them.
const READERS: usize = 4;
/// Longest wait for the database when the store is given free: it runs out by itself.
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);

pub struct PostgresBase {
    database: Arc<Database>,
    readers: Vec<Line>,
    next_reader: AtomicUsize,
    writer: Line,
    tenure: Arc<Tenure>,
    /// The version of the newest group in the database.
    version: AtomicI64,
    hot: Mutex<Hot>,
}

impl PostgresBase {
    pub fn new(
        database: Arc<Database>,
        tenure: Arc<Tenure>,
        version: i64,
        cache: ByteSize,
    ) -> Self {
        let line = || Line::new(database.clone());
        Self {
            readers: (0..READERS).map(|_| line()).collect(),
            next_reader: AtomicUsize::new(0),
            writer: line(),
            tenure,
            version: AtomicI64::new(version),
            hot: Mutex::new(Hot::new(usize::try_from(cache.0).unwrap_or(usize::MAX))),
            database,
        }
    }

    /// Waits until the store is surely ours.
    pub async fn hold(&self) -> Result<(), Error> {
        self.tenure.hold().await
    }

    /// Nobody waits for long from now on.
    pub fn close(&self) {
        self.database.close();
    }

    /// Gives the store free for others (blocking).
    pub fn release(&self) {
        let released = async {
            let epoch: Values<'_> = &[&self.tenure.epoch];
            self.writer.ask_once(Ask::Release, epoch, RELEASE_PATIENCE).await
        };
        let released = async { timeout(RELEASE_PATIENCE, released).await };
        if !matches!(self.database.runtime.block_on(released), Ok(Ok(_))) {
            tracing::info!(store = %self.database.store, "not given free: its lease runs out");
        }
    }

    fn reader(&self) -> &Line {
        let turn = self.next_reader.fetch_add(1, Ordering::Relaxed);
        &self.readers[turn % READERS]
    }

    fn hot(&self) -> MutexGuard<'_, Hot> {
        self.hot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn get_cold(&self, keys: &[&Key]) -> Result<BTreeMap<Key, Arc<Value>>, Error> {
        let asked = self.hot().asked();
        let names: Vec<&[u8]> = keys.iter().map(|key| key.as_slice()).collect();
        let rows = self.reader().ask(Ask::Get, &[&names]).await?;
        let pairs = rows.iter().map(|row| self.pair(row));
        let found: BTreeMap<Key, Arc<Value>> = pairs
            .map(|pair| pair.map(|(key, value)| (key, Arc::new(value))))
            .collect::<Result<_, Error>>()?;
        let mut hot = self.hot();
        for key in keys {
            hot.fill(asked, key, found.get(*key).cloned());
        }
        Ok(found)
    }

    fn pair(&self, row: &Row) -> Result<(Key, Value), Error> {
        let pair = || Ok((row.try_get(0)?, row.try_get(1)?));
        pair().map_err(|error: tokio_postgres::Error| Error::Failed {
            store: self.database.store.clone(),
            source: Box::new(error),
        })
    }

    /// Writes a group, however often it has to be sent.
    async fn write(&self, batch: &Batch) -> Result<(), Error> {
        let (before, version) = (self.version.load(Ordering::Acquire), batch.version.0 as i64);
        let put = batch.writes.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let (keys, values): (Vec<&[u8]>, Vec<&[u8]>) =
            put.map(|(key, value)| (key.as_slice(), value.as_slice())).unzip();
        let gone = batch.writes.iter().filter(|(_, value)| value.is_none());
        let gone: Vec<&[u8]> = gone.map(|(key, _)| key.as_slice()).collect();
        let (epoch, lease) = (self.tenure.epoch, self.tenure.lease());
        let group: Values<'_> = &[&epoch, &before, &version, &keys, &values, &gone, &lease];
        let mut tries = self.database.tries();
        loop {
            let sent = Instant::now();
            match self.writer.ask_once(Ask::Apply, group, tries.silence()).await {
                Ok(rows) if is_one(&rows) => {
                    self.tenure.confirmed(sent);
                    break;
                }
                // Nothing was done: it was done before, or we are not the owner any more. Or it was
                // done where nobody else heard of it, and another took over: then once more.
                Ok(_) => match self.tenure.version().await? {
                    present if present == version => break,
                    present if present == before => tries.again(Trouble::Unreplicated).await?,
                    present => return Err(self.tenure.fell_behind(before, present)),
                },
                Err(trouble) => tries.again(trouble).await?,
            }
        }
        self.version.store(version, Ordering::Release);
        self.hot().written(&batch.writes);
        Ok(())
    }
}

impl Base for PostgresBase {
    const IS_IMMEDIATE: bool = false;

    async fn get(&self, keys: &[&Key]) -> Result<Vec<Option<Value>>, Error> {
        let known: Vec<_> = {
            let mut hot = self.hot();
            keys.iter().map(|key| hot.get(key)).collect()
        };
        let missing = keys.iter().zip(&known).filter(|(_, known)| known.is_none());
        let missing: Vec<&Key> = missing.map(|(key, _)| *key).collect();
        let found = match missing.is_empty() {
            true => BTreeMap::new(),
            false => self.get_cold(&missing).await?,
        };
        self.hold().await?;
        let value = |(key, known): (&&Key, Option<Option<Arc<Value>>>)| {
            let value = known.unwrap_or_else(|| found.get(*key).cloned());
            value.map(Arc::unwrap_or_clone)
        };
        Ok(keys.iter().zip(known).map(value).collect())
    }

    async fn scan(&self, range: &Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        let ask = if range.is_reverse { Ask::ScanReverse } else { Ask::Scan };
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let (start, end) = (range.start.as_slice(), range.end.as_slice());
        let rows = self.reader().ask(ask, &[&start, &end, &limit]).await?;
        self.hold().await?;
        rows.iter().map(|row| self.pair(row)).collect()
    }

    async fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        Ok(Box::new(PostgresSnapshot::open(&self.database).await?))
    }

    fn apply(&self, batch: &Batch) -> Result<(), Error> {
        self.database.runtime.block_on(self.write(batch))
    }
}
