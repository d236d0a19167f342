//! What a site says of its OSTs, whatever any MDS wishes: how much is filled, and for whom.
//!
//! [`Budget`] keeps count of the bytes that objects use, where the site limits them: what lies
//! there is counted once, when the server starts; from then on each put and deletion is.
//!
//! Invariants: the count is never below what lies there; a put that is repeated counts once.

use crate::room::{Ledger, Spent};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use tieline_blob::{ChunkStore, Error};
use tieline_types::{GrantedId, MdtIndex};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Puts and deletions of one chunk take turns; those of different chunks seldom meet.
const TURNS: usize = 64;
/// Objects that are listed at once while they are counted.
const PAGE: usize = 4096;

/// What a site allows, whatever any MDS wishes.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Bytes of the backend that are never filled.
    pub reserve: u64,
    /// Takes no new chunks; deletions still give the site its room back.
    pub is_read_only: bool,
    /// Bytes that objects may use.
    pub bytes_max: Option<u64>,
    /// The realms of clients that are served; `None`: all. Who proves nothing is of none.
    pub realms: Option<BTreeSet<String>>,
    /// The MDTs whose chunks are kept, and whose capabilities are obeyed; `None`: all.
    pub mdts: Option<BTreeSet<MdtIndex>>,
}

impl Limits {
    pub fn allow_realm(&self, realm: Option<&str>) -> bool {
        let is_named =
            |realms: &BTreeSet<String>| realm.is_some_and(|realm| realms.contains(realm));
        self.realms.as_ref().is_none_or(is_named)
    }

    pub fn allow_mdt(&self, mdt: MdtIndex) -> bool {
        self.mdts.as_ref().is_none_or(|mdts| mdts.contains(&mdt))
    }
}

/// The bytes that a site gives an OST, and those that are used.
pub(crate) struct Budget {
    pub bytes_max: u64,
    used: OnceCell<AtomicU64>,
    turns: [Mutex<()>; TURNS],
}

/// An object that is about to be put, and counts already.
pub(crate) struct Charge<'b> {
    used: &'b AtomicU64,
    added: u64,
    removed: u64,
    _turn: MutexGuard<'b, ()>,
}

impl Charge<'_> {
    /// The object is there, or not. What is dropped without a word counts until the next start: it
    /// may be there.
    pub fn settle(self, is_stored: bool) {
        let back = if is_stored { self.removed } else { self.added };
        subtract(self.used, back);
    }
}

impl Budget {
    pub fn new(bytes_max: u64) -> Self {
        let turns = std::array::from_fn(|_| Mutex::default());
        Self { bytes_max, used: OnceCell::new(), turns }
    }

    /// Bytes that may still be used; `None` while what is there is being counted.
    pub fn bytes_free(&self) -> Option<u64> {
        let used = self.used.get()?.load(Ordering::Relaxed);
        Some(self.bytes_max.saturating_sub(used))
    }

    /// Counts what is there, if nobody has.
    pub async fn count(&self, store: &dyn ChunkStore) -> Result<&AtomicU64, Error> {
        self.used.get_or_try_init(|| async { Ok(AtomicU64::new(count(store).await?)) }).await
    }

    /// Counts a chunk of `length` bytes; `None`: there is no room for it beside what is promised.
    pub async fn charge(
        &self,
        store: &dyn ChunkStore,
        (chunk, length): (GrantedId, u64),
        (ledger, spent): (&Ledger, &Spent<'_>),
    ) -> Result<Option<Charge<'_>>, Error> {
        let used = self.count(store).await?;
        let turn = self.turn(chunk).await;
        let there = length_of(store, chunk).await?;
        let (added, removed) = (length.saturating_sub(there), there.saturating_sub(length));
        // What is promised does not change meanwhile.
        let fits = ledger.with_others(spent, |others| {
            let add = |used: u64| {
                let sum = used.saturating_add(added);
                (added == 0 || sum.saturating_add(others) <= self.bytes_max).then_some(sum)
            };
            used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
        });
        Ok(fits.then_some(Charge { used, added, removed, _turn: turn }))
    }

    /// Deletes a chunk; says whether it was there.
    pub async fn delete(&self, store: &dyn ChunkStore, chunk: GrantedId) -> Result<bool, Error> {
        let used = self.count(store).await?;
        let _turn = self.turn(chunk).await;
        let there = length_of(store, chunk).await?;
        let was_there = store.delete(chunk).await?;
        if was_there {
            subtract(used, there);
        }
        Ok(was_there)
    }

    async fn turn(&self, chunk: GrantedId) -> MutexGuard<'_, ()> {
        // Serials of one writer follow each other, and so take different turns.
        let turn = chunk.serial.wrapping_add(chunk.grant.0) as usize % TURNS;
        self.turns[turn].lock().await
    }
}

fn subtract(used: &AtomicU64, bytes: u64) {
    let less = |used: u64| Some(used.saturating_sub(bytes));
    let _ = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// Bytes of an object that is there; one that is damaged is replaced or deleted as if it had none.
async fn length_of(store: &dyn ChunkStore, chunk: GrantedId) -> Result<u64, Error> {
    match store.stat(chunk).await {
        Ok((_, length)) => Ok(length),
        Err(Error::Absent { .. } | Error::Damaged { .. } | Error::Unopened { .. }) => Ok(0),
        Err(error) => Err(error),
    }
}

async fn count(store: &dyn ChunkStore) -> Result<u64, Error> {
    let (mut bytes, mut after) = (0u64, None);
    loop {
        let page = store.list(after, PAGE).await?.chunks;
        for &chunk in &page {
            bytes = bytes.saturating_add(length_of(store, chunk).await?);
        }
        after = page.last().copied();
        if page.len() < PAGE {
            return Ok(bytes);
        }
    }
}
