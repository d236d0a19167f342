//! Numbers that are given out once: reserved in the superblock in runs, so that most cost nothing
//! and none comes twice.

use crate::error::{Error, Result};
use crate::view::decode;
use std::sync::Arc;
use tieline_format::Record;
use tieline_format::mdt::{Superblock, key};
use tieline_kv::Store;
use tokio::sync::Mutex;

/// Which counter of the superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    File,
    Session,
}

impl Counter {
    /// How many are reserved at once: a start may skip so many.
    fn run(self) -> u64 {
        match self {
            Self::File => 16_384,
            Self::Session => 64,
        }
    }

    fn of(self, superblock: &mut Superblock) -> &mut u64 {
        match self {
            Self::File => &mut superblock.file_serial,
            Self::Session => &mut superblock.session_serial,
        }
    }
}

pub struct Serials {
    store: Arc<dyn Store>,
    counter: Counter,
    run: Mutex<std::ops::Range<u64>>,
}

impl Serials {
    pub fn new(store: Arc<dyn Store>, counter: Counter) -> Self {
        Self { store, counter, run: Mutex::new(0..0) }
    }

    /// Takes a run for somebody else to give out.
    pub async fn take_run(&self, count: u32) -> Result<u64> {
        Ok(self.reserve(count.into()).await?.start)
    }

    pub async fn next(&self) -> Result<u64> {
        let mut run = self.run.lock().await;
        if run.is_empty() {
            *run = self.reserve(self.counter.run()).await?;
        }
        let serial = run.start;
        run.start += 1;
        Ok(serial)
    }

    /// Takes the next run. It is durable before its first number is used.
    async fn reserve(&self, count: u64) -> Result<std::ops::Range<u64>> {
        loop {
            let mut start = 0;
            let changed = change_superblock(&*self.store, |superblock| {
                let counter = self.counter.of(superblock);
                start = *counter;
                *counter += count;
            });
            match changed.await {
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(start..start + count),
            }
        }
    }
}

/// Changes the superblock, durably.
pub async fn change_superblock(
    store: &dyn Store,
    change: impl FnOnce(&mut Superblock) + Send,
) -> Result<()> {
    let mut transaction = store.begin().await?;
    let value = transaction.read(&[key::superblock()]).await?.into_iter().next().flatten();
    let missing = || Error::Missing { what: "superblock", id: store.describe() };
    let mut superblock: Superblock = decode(&value.ok_or_else(missing)?, || store.describe())?;
    change(&mut superblock);
    transaction.put(key::superblock(), superblock.to_bytes());
    transaction.commit().await?.durable.await?;
    Ok(())
}
