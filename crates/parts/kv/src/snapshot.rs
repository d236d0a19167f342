//! Snapshots and versions of engines that have nothing better than their transactions.
//!
//! A transaction already reads one state. It becomes a snapshot when what it reads is durable.

use crate::{Error, Key, Range, Snapshot, Store, Transaction, Value};
use tieline_types::Version;

struct Frozen(Box<dyn Transaction>);

#[async_trait::async_trait]
impl Snapshot for Frozen {
    fn version(&self) -> Version {
        self.0.version()
    }

    async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error> {
        self.0.read(keys).await
    }

    async fn scan(&mut self, range: Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        self.0.scan(range, limit).await
    }
}

pub async fn of_transaction<S: Store + ?Sized>(store: &S) -> Result<Box<dyn Snapshot>, Error> {
    let transaction = store.begin().await?;
    // Not older than the first: when this one is durable, the first is too.
    store.begin().await?.commit().await?.durable.await?;
    Ok(Box::new(Frozen(transaction)))
}

pub async fn check_advanced<S: Store + ?Sized>(store: &S, version: Version) -> Result<(), Error> {
    if store.begin().await?.version() >= version {
        return Ok(());
    }
    let source = format!("this engine cannot go on after version {version}").into();
    Err(Error::Refused { store: store.describe(), source })
}
