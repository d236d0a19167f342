//! One state of a store in the database: a read-only transaction on a connection of its own.
//!
//! The database keeps old rows for as long as it is open. With its connection the snapshot is gone;
//! whoever reads it is told to begin again.

use super::fault::Trouble;
use super::hosts::Connected;
use super::line::{Database, Values, patiently};
use super::sql::{self, Ask};
use crate::{Error, Key, Range, Snapshot, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use tieline_types::Version;
use tokio_postgres::{Client, Row, Statement};

pub struct PostgresSnapshot {
    client: Client,
    get: Statement,
    scan: Statement,
    scan_reverse: Statement,
    version: Version,
    store: String,
}

impl PostgresSnapshot {
    pub async fn open(database: &Arc<Database>) -> Result<Self, Error> {
        let mut tries = database.tries();
        loop {
            match patiently(Self::try_open(database)).await {
                Ok(snapshot) => return Ok(snapshot),
                Err(trouble) => tries.again(trouble).await?,
            }
        }
    }

    async fn try_open(database: &Arc<Database>) -> Result<Self, Trouble> {
        let schema = &database.schema;
        let Connected { client, .. } = database.connect().await?;
        client.batch_execute(sql::SNAPSHOT).await?;
        let version: i64 = client.query_one(&sql::version(schema), &[]).await?.try_get(0)?;
        Ok(Self {
            get: client.prepare(&Ask::Get.text(schema)).await?,
            scan: client.prepare(&Ask::Scan.text(schema)).await?,
            scan_reverse: client.prepare(&Ask::ScanReverse.text(schema)).await?,
            client,
            version: Version(version as u64),
            store: database.store.clone(),
        })
    }

    async fn pairs(&self, ask: &Statement, values: Values<'_>) -> Result<Pairs, Error> {
        let pair = |row: &Row| Ok::<_, tokio_postgres::Error>((row.try_get(0)?, row.try_get(1)?));
        let asking = async {
            let rows = self.client.query(ask, values).await?;
            Ok(rows.iter().map(pair).collect::<Result<_, _>>()?)
        };
        patiently(asking).await.map_err(|trouble| match trouble {
            trouble if trouble.is_away() => Error::Conflict,
            trouble => trouble.into_error(&self.store),
        })
    }
}

type Pairs = Vec<(Key, Value)>;

#[async_trait::async_trait]
impl Snapshot for PostgresSnapshot {
    fn version(&self) -> Version {
        self.version
    }

    async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error> {
        let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let pairs = self.pairs(&self.get, &[&names]).await?;
        let found: BTreeMap<Key, Value> = pairs.into_iter().collect();
        Ok(keys.iter().map(|key| found.get(key).cloned()).collect())
    }

    async fn scan(&mut self, range: Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        let statement = if range.is_reverse { &self.scan_reverse } else { &self.scan };
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let (start, end) = (range.start.as_slice(), range.end.as_slice());
        self.pairs(statement, &[&start, &end, &limit]).await
    }
}
