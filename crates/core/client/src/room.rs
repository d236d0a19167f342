//! Room that OSTs have granted: closes are answered before their bytes are stored only against it.
//!
//! Each OST keeps some room for this client ([`ask`]), asked for in the background when it begins
//! to make or write files, and again when half of it is used. A file whose close is left to the
//! background draws what its bytes will take at each OST that they go to ([`cover`]); its puts
//! spend that. Where nothing is granted closes wait for the OSTs, and say what these say.
//!
//! Of a server that was started anew, and of one that has not answered for some minutes, nothing is
//! believed to be granted; what files have drawn is then asked for anew.
//!
//! Knows nothing of messages. Lock order: last of all.
//!
//! Invariants: what is drawn, spent and free is together no more than what the OST has for us,
//! as long as it remembers; what is drawn of a file that has nothing to send any more is free.

use crate::volume::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_types::{OstIndex, ServerNumber};
use tieline_wire::data::{GrantRoom, GrantRoomReply};
use tokio::sync::Notify;
use tokio::time::Instant;

mod ask;
mod cover;

pub(crate) use ask::keep;
pub(crate) use cover::Covered;

/// What is held of each OST at first; doubled while it is used up quickly.
const TARGET_FIRST: u64 = 8 << 20;
const TARGET_MAX: u64 = 64 << 20;
/// Used up sooner than this, more is held.
const QUICK: Duration = Duration::from_secs(10);
/// After an OST had nothing to give it is not asked for so long.
const SHORT: Duration = Duration::from_secs(1);
/// Belief ends well before the OST forgets.
const BELIEVED: Duration = Duration::from_secs(GrantRoom::KEPT_SECONDS * 2 / 3);
/// Units of disks as they mostly are, before the OST says its own.
const UNIT: u64 = 4096;

/// What is known of all OSTs.
#[derive(Default)]
pub(crate) struct Rooms {
    inner: Mutex<Inner>,
    /// A question was answered, or failed.
    pub answered: Notify,
    /// There is something to be kept.
    stirred: Notify,
}

#[derive(Default)]
struct Inner {
    osts: BTreeMap<OstIndex, Room>,
    boots: BTreeMap<ServerNumber, u64>,
    /// When files were last made or written, as a layout's pool says.
    active: Option<Instant>,
}

/// What is known of one OST.
struct Room {
    /// What it has for us: drawn, being spent, or free.
    granted: u64,
    drawn: u64,
    spending: u64,
    unit: u64,
    /// As it said last.
    bytes_free: u64,
    /// How much its turn is due.
    due: Option<i64>,
    target: u64,
    /// Whether what it has for us is known.
    is_known: bool,
    is_asking: bool,
    /// When the last question was sent that was answered.
    heard: Option<Instant>,
    /// When more was asked for.
    refilled: Option<Instant>,
    short_until: Option<Instant>,
    used: Option<Instant>,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            granted: 0,
            drawn: 0,
            spending: 0,
            unit: UNIT,
            bytes_free: 0,
            due: None,
            target: TARGET_FIRST,
            is_known: false,
            is_asking: false,
            heard: None,
            refilled: None,
            short_until: None,
            used: None,
        }
    }
}

impl Room {
    fn free(&self) -> u64 {
        let is_believed = self.heard.is_some_and(|heard| heard.elapsed() < BELIEVED);
        if is_believed { self.granted.saturating_sub(self.drawn + self.spending) } else { 0 }
    }

    /// Is more to be asked for?
    fn is_low(&self) -> bool {
        !self.is_asking && !self.is_short() && self.free() < self.target / 2
    }

    /// Did it just give less than was wanted?
    fn is_short(&self) -> bool {
        self.short_until.is_some_and(|until| Instant::now() < until)
    }

    /// The next question: what we have, and what is wanted beyond it.
    fn question(&mut self, least: u64) -> (Option<u64>, u64) {
        if self.heard.is_none_or(|heard| heard.elapsed() >= BELIEVED) {
            self.forget();
        }
        let now = Instant::now();
        if self.refilled.is_some_and(|last| last.elapsed() < QUICK) {
            self.target = (self.target * 2).min(TARGET_MAX);
        }
        (self.refilled, self.is_asking) = (Some(now), true);
        let owed = (self.drawn + self.spending).saturating_sub(self.granted);
        let wanted = self.target.saturating_sub(self.free()).max(least) + owed;
        (self.is_known.then_some(self.granted), wanted)
    }

    fn forget(&mut self) {
        (self.granted, self.is_known, self.heard) = (0, false, None);
    }
}

impl Rooms {
    fn with<R>(&self, ost: OstIndex, look: impl FnOnce(&mut Room) -> R) -> R {
        look(lock(&self.inner).osts.entry(ost).or_default())
    }

    /// Takes what each OST is to hold for a file, beyond what it has drawn; all or nothing.
    fn draw(&self, need: &BTreeMap<OstIndex, u64>, drawn: &mut BTreeMap<OstIndex, u64>) -> bool {
        let mut inner = lock(&self.inner);
        let more = |(&ost, &need): (&OstIndex, &u64)| {
            (ost, need.saturating_sub(drawn.get(&ost).copied().unwrap_or_default()))
        };
        let more: Vec<(OstIndex, u64)> = need.iter().map(more).collect();
        let free = |ost: &OstIndex| inner.osts.get(ost).map_or(0, Room::free);
        if !more.iter().all(|(ost, more)| *more <= free(ost)) {
            return false;
        }
        for (ost, more) in more {
            let room = inner.osts.entry(ost).or_default();
            room.drawn += more;
            room.used = Some(Instant::now());
            *drawn.entry(ost).or_default() += more;
        }
        true
    }

    fn give_back(&self, drawn: &mut BTreeMap<OstIndex, u64>) {
        let mut inner = lock(&self.inner);
        for (ost, bytes) in std::mem::take(drawn) {
            if let Some(room) = inner.osts.get_mut(&ost) {
                room.drawn -= bytes;
            }
        }
    }

    /// For a put of so many bytes: what its file has drawn, and else what is free.
    fn spend(
        self: &Arc<Self>,
        ost: OstIndex,
        length: u64,
        drawn: &mut BTreeMap<OstIndex, u64>,
    ) -> Spending {
        self.with(ost, |room| {
            let cost = GrantRoom::cost(length, room.unit);
            let of_file = drawn.get(&ost).copied().unwrap_or_default().min(cost);
            let of_free = room.free().min(cost - of_file);
            if of_file > 0 {
                drawn.entry(ost).and_modify(|left| *left -= of_file);
            }
            room.drawn -= of_file;
            room.spending += of_file + of_free;
            room.used = Some(Instant::now());
            Spending { rooms: self.clone(), ost, bytes: of_file + of_free, cost }
        })
    }

    /// Whoever waits for what happens sees that there is no more.
    pub fn end(&self) {
        self.stirred.notify_one();
    }

    /// Another boot of a server has forgotten what its OSTs had granted.
    pub fn welcomed(&self, server: ServerNumber, boot: u64, osts: &[OstIndex]) {
        let mut inner = lock(&self.inner);
        let before = inner.boots.insert(server, boot);
        if before.is_none_or(|before| before == boot) {
            return;
        }
        for ost in osts {
            if let Some(room) = inner.osts.get_mut(ost) {
                room.forget();
            }
        }
    }

    fn answered(&self, ost: OstIndex, sent: Instant, reply: Option<&GrantRoomReply>, wanted: u64) {
        self.with(ost, |room| {
            room.is_asking = false;
            let short = Instant::now() + SHORT;
            let Some(reply) = reply else {
                room.short_until = Some(short);
                return;
            };
            room.granted += reply.granted;
            room.unit = reply.unit.max(1);
            room.bytes_free = reply.bytes_free;
            (room.is_known, room.heard) = (true, Some(sent));
            room.short_until = Some(short).filter(|_| reply.granted < wanted);
        });
        self.answered.notify_waiters();
        self.stirred.notify_one();
    }
}

/// Room that one put has with it. Dropped, nobody knows whether it was used: then it was.
pub(crate) struct Spending {
    rooms: Arc<Rooms>,
    ost: OstIndex,
    bytes: u64,
    cost: u64,
}

impl Spending {
    /// As the put says it.
    pub fn room(&self) -> Option<u64> {
        Some(self.bytes).filter(|&bytes| bytes > 0)
    }

    /// What it has too little.
    pub fn missing(&self) -> u64 {
        self.cost - self.bytes
    }

    /// It was refused: all is as before.
    pub fn refused(mut self, drawn: &mut BTreeMap<OstIndex, u64>) {
        let bytes = std::mem::take(&mut self.bytes);
        self.rooms.with(self.ost, |room| {
            room.spending -= bytes;
            room.drawn += bytes;
            *drawn.entry(self.ost).or_default() += bytes;
        });
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.rooms.with(self.ost, |room| {
            room.spending -= bytes;
            room.granted = room.granted.saturating_sub(bytes);
        });
    }
}

/// What a file has drawn for bytes that were answered for; free again when it is dropped.
#[derive(Default)]
pub(crate) struct FileRoom {
    rooms: Option<Arc<Rooms>>,
    drawn: BTreeMap<OstIndex, u64>,
    /// Where it would lie, if the MDS agrees: it has no place yet.
    pub wish: Vec<OstIndex>,
}

impl FileRoom {
    /// Nothing of the file waits any more.
    pub fn rest(&mut self) {
        if let Some(rooms) = &self.rooms {
            rooms.give_back(&mut self.drawn);
        }
        self.wish.clear();
    }
}

impl Drop for FileRoom {
    fn drop(&mut self) {
        self.rest();
    }
}

#[cfg(test)]
mod tests;
