//! The room of one OST: what is free, what of it is promised to clients, what is on its way.
//!
//! A client that answers for bytes before they are here has room for them granted first
//! ([`Ledger::grant`]): a part of what is free above the site's reserve and within its limit, and
//! promised to nobody else. A put spends what it was granted, and what was not granted fits beside
//! what is promised to all. So whatever is promised finds its room, unless others fill the disk
//! behind our back: then it takes of the reserve.
//!
//! Grants are small beside what is left: no client gets more than an eighth of that, and all
//! together no more than half. They end with the client, some minutes after it was last heard here.
//!
//! Knows no store and no protocol; is told how much is free.
//!
//! Invariants: `promised` is the sum of what the holders have; when something is granted or put
//! without a grant, what is promised and being spent fits into what is free.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::{ClientId, GrantedId};
use tieline_wire::data::GrantRoom;
use tokio::time::Instant;

/// How long an answer about free space serves for putting; what is put meanwhile is counted.
const SPACE_AGE_MAX: Duration = Duration::from_secs(1);
/// What one client may have here: some seconds of 1 Gbit/s over a long way.
const CLIENT_MAX: u64 = 64 << 20;
/// No more than this part of what is left at once.
const CLIENT_PART: u64 = 8;
/// Less is not worth a promise.
const GRANT_MIN: u64 = 64 << 10;
const HOLDERS_MAX: usize = 16_384;
/// Chunks of a client that may be put again: more than it has on their way.
const SPENT_MAX: usize = 1024;
const KEPT: Duration = Duration::from_secs(GrantRoom::KEPT_SECONDS);

/// See the module.
pub(crate) struct Ledger {
    reserve: u64,
    room: Mutex<Room>,
}

/// Free space as it was last seen, less what was taken since; and what is promised of it.
#[derive(Default)]
struct Room {
    bytes_free: u64,
    seen: Option<Instant>,
    /// Bytes of puts that the backend may not have counted yet.
    under_way: u64,
    promised: u64,
    /// Granted room of puts that are under way: of no holder any more, and of nobody else.
    spending: u64,
    holders: BTreeMap<ClientId, Held>,
}

/// What a client has.
struct Held {
    bytes: u64,
    heard: Instant,
    /// Chunks that were paid for of it, wholly: the same again costs nothing.
    spent: VecDeque<GrantedId>,
}

/// Who puts what, and how much of its room it says that it is.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    pub client: ClientId,
    pub chunk: GrantedId,
    pub cost: u64,
    pub room: u64,
}

/// Granted room of one put; its client has it again unless it is [`Spent::stored`].
pub(crate) struct Spent<'l> {
    ledger: &'l Ledger,
    wish: Wish,
    /// Of its cost.
    covered: u64,
    /// Of that, what was taken now.
    taken: u64,
    is_stored: bool,
}

/// Bytes of free space that one put uses while it is under way.
pub(crate) struct Taken<'l> {
    ledger: &'l Ledger,
    cost: u64,
}

/// What bounds grants beside the disk's bytes.
#[derive(Clone, Copy)]
pub(crate) struct Free {
    /// What the site's limit leaves.
    pub limit: Option<u64>,
    /// What the objects take at least that the backend can still make.
    pub objects: u64,
}

impl Ledger {
    pub fn new(reserve: u64) -> Self {
        Self { reserve, room: Mutex::default() }
    }

    /// What all clients have together.
    pub fn promised(&self) -> u64 {
        self.lock().promised
    }

    /// Is what was last seen of the disk too old to put on?
    pub fn is_stale(&self) -> bool {
        self.lock().is_stale()
    }

    /// The disk was seen so.
    pub fn see(&self, bytes_free: u64) {
        let mut room = self.lock();
        room.bytes_free = bytes_free.saturating_sub(room.under_way);
        room.seen = Some(Instant::now());
    }

    /// Takes a put's granted room from its client's.
    pub fn spend(&self, wish: Wish) -> Spent<'_> {
        let mut room = self.lock();
        let (mut covered, mut taken) = (0, 0);
        let held = room.holders.get_mut(&wish.client).filter(|_| wish.room > 0);
        if let Some(held) = held {
            held.heard = Instant::now();
            if held.spent.contains(&wish.chunk) {
                covered = wish.cost;
            } else {
                taken = wish.room.min(wish.cost).min(held.bytes);
                covered = taken;
                held.bytes -= taken;
                if covered == wish.cost {
                    held.remember(wish.chunk);
                }
            }
        }
        room.promised -= taken;
        room.spending += taken;
        Spent { ledger: self, wish, covered, taken, is_stored: false }
    }

    /// Takes a put's bytes of the free space, if they fit above the reserve and beside what is
    /// promised to others. What was granted was found to fit.
    pub fn take(&self, spent: &Spent<'_>, length: u64) -> Option<Taken<'_>> {
        let mut room = self.lock();
        let cost = spent.wish.cost;
        let others = room.others(spent);
        // Where nothing is promised nobody needs an estimate.
        let need = if others == 0 { length } else { cost };
        let is_free = self.reserve == 0 && others == 0;
        let fits = || room.bytes_free >= need.saturating_add(self.reserve).saturating_add(others);
        if !is_free && spent.covered < cost && !fits() {
            room.expire();
            return None;
        }
        room.bytes_free = room.bytes_free.saturating_sub(cost);
        room.under_way += cost;
        Some(Taken { ledger: self, cost })
    }

    /// Need the disk not be looked at, whatever is on it?
    pub fn is_free(&self, spent: &Spent<'_>) -> bool {
        let room = self.lock();
        spent.covered >= spent.wish.cost || (self.reserve == 0 && room.others(spent) == 0)
    }

    /// What may not be used of the site's limit: it is others'.
    pub fn with_others<R>(&self, spent: &Spent<'_>, count: impl FnOnce(u64) -> R) -> R {
        let room = self.lock();
        count(room.others(spent))
    }

    /// Grants a client room, as [`GrantRoom`] says; says how much it has more than it knew.
    pub fn grant(
        &self,
        (client, held, wanted): (ClientId, Option<u64>, u64),
        free: impl FnOnce() -> Free,
    ) -> (u64, u64) {
        let mut room = self.lock();
        room.expire();
        // Under the lock: what is being put is in what it says, or in `spending`.
        let free = free();
        let mut left = room.bytes_free.saturating_sub(self.reserve);
        left = left.min(free.limit.unwrap_or(u64::MAX)).min(free.objects);
        let has = room.holders.get(&client).map_or(0, |held| held.bytes);
        let kept = held.map_or(has, |held| has.min(held));
        room.promised -= has - kept;
        let (promised, all) = (room.promised, room.promised + room.spending);
        // All of it is at most half of what there would be without it.
        let half = (left / 2).saturating_sub(all);
        left = left.saturating_sub(all);
        let most = (left / CLIENT_PART).min(half).min(CLIENT_MAX.saturating_sub(kept));
        let is_new = !room.holders.contains_key(&client);
        let is_crowded = is_new && room.holders.len() >= HOLDERS_MAX;
        let more = if most < GRANT_MIN || is_crowded { 0 } else { wanted.min(most) };
        room.promised = promised + more;
        let bytes = kept + more;
        if bytes == 0 {
            room.holders.remove(&client);
        } else {
            let heard = Instant::now();
            let entry = room.holders.entry(client);
            let entry = entry.or_insert(Held { bytes, heard, spent: VecDeque::new() });
            (entry.bytes, entry.heard) = (bytes, heard);
        }
        (if held.is_none() { bytes } else { more }, left)
    }

    fn lock(&self) -> MutexGuard<'_, Room> {
        // Nothing panics while it is held, and nothing waits.
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    fn is_stale(&self) -> bool {
        self.seen.is_none_or(|seen| seen.elapsed() >= SPACE_AGE_MAX)
    }

    /// What is promised or being spent, but for this put's.
    fn others(&self, spent: &Spent<'_>) -> u64 {
        (self.promised + self.spending).saturating_sub(spent.taken)
    }

    /// Clients that are not heard any more have nothing.
    fn expire(&mut self) {
        let promised = &mut self.promised;
        self.holders.retain(|_, held| {
            let is_here = held.heard.elapsed() < KEPT;
            *promised -= if is_here { 0 } else { held.bytes };
            is_here
        });
    }
}

impl Held {
    fn remember(&mut self, chunk: GrantedId) {
        if self.spent.len() >= SPENT_MAX {
            self.spent.pop_front();
        }
        self.spent.push_back(chunk);
    }
}

impl Spent<'_> {
    /// The chunk is there.
    pub fn stored(mut self) {
        self.is_stored = true;
    }
}

impl Drop for Spent<'_> {
    fn drop(&mut self) {
        let mut room = self.ledger.lock();
        room.spending -= self.taken;
        if self.is_stored || self.taken == 0 {
            return;
        }
        if let Some(held) = room.holders.get_mut(&self.wish.client) {
            held.bytes += self.taken;
            held.spent.retain(|chunk| *chunk != self.wish.chunk);
            room.promised += self.taken;
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.ledger.lock().under_way -= self.cost;
    }
}

#[cfg(test)]
mod tests;
