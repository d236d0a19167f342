//! What servers have granted: room at OSTs, against which closes are answered before their bytes
//! are stored, and bytes under quotas ([`FilePromise`]).
//!
//! Each OST keeps some room for a client ([`Rooms`]), which asks for it when it begins to make or
//! write files, and again when half of it is used. A file whose close is left to the background
//! draws what its bytes will take at each OST that they go to ([`FileRoom`]); its puts spend that
//! ([`Spending`]). A file that has no place yet may wish for one where there is room
//! ([`Choosing`]).
//!
//! Of a server that was started anew, and of one that has not answered for some minutes, nothing is
//! believed to be granted; what files have drawn is then asked for anew.
//!
//! Asks nobody itself. Lock order: its own lock is the last of all.
//!
//! Invariants: what is drawn, spent and free is together no more than what the OST has for us,
//! as long as it remembers; what is drawn of a file that has nothing to send any more is free.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::{OstIndex, ServerNumber};
use tieline_wire::data::{GrantRoom, GrantRoomReply};
use tokio::sync::Notify;
use tokio::time::Instant;

mod choosing;
mod file;
mod promise;

pub use choosing::Choosing;
pub use file::{FileRoom, Spending};
pub use promise::{FilePromise, Payers};

/// What is held of each OST at first; doubled while it is used up quickly.
const TARGET_FIRST: u64 = 8 << 20;
const TARGET_MAX: u64 = 64 << 20;
/// Used up sooner than this, more is held.
const QUICK: Duration = Duration::from_secs(10);
/// After an OST had nothing to give it is not asked for so long.
const SHORT: Duration = Duration::from_secs(1);
/// Belief ends well before the OST forgets.
const BELIEVED: Duration = Duration::from_secs(GrantRoom::KEPT_SECONDS * 2 / 3);
/// Who makes files is looked after at most so often.
const STIR_EVERY: Duration = Duration::from_millis(250);
/// Unused for so long, most of it is given back; and after a while all.
const IDLE: Duration = Duration::from_secs(10);
const IDLE_KEPT: u64 = 1 << 20;
const GONE: Duration = Duration::from_secs(15 * 60);
/// An OST is told that we are there.
const RENEW: Duration = Duration::from_secs(60);
/// Units of disks as they mostly are, before the OST says its own.
const UNIT: u64 = 4096;

/// What is known of all OSTs.
#[derive(Default)]
pub struct Rooms {
    inner: Mutex<Inner>,
    /// A question was answered, or failed.
    pub heard: Notify,
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

    /// How much of it is worth keeping.
    fn kept(&self) -> u64 {
        let rests = |time| self.used.or(self.refilled).is_none_or(|used| used.elapsed() >= time);
        let is_unused = self.drawn + self.spending == 0;
        match is_unused {
            true if rests(GONE) => 0,
            true if rests(IDLE) => IDLE_KEPT.min(self.granted),
            _ => self.granted,
        }
    }

    fn forget(&mut self) {
        (self.granted, self.is_known, self.heard) = (0, false, None);
    }
}

/// What an OST is to be asked: how much it has for us, if we know that, and how much is wanted
/// beyond it.
pub type Question = (Option<u64>, u64);

impl Rooms {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, ost: OstIndex, look: impl FnOnce(&mut Room) -> R) -> R {
        look(self.lock().osts.entry(ost).or_default())
    }

    /// Files are about to be made or written. Says whether OSTs are to be looked at for that.
    pub fn stir(&self) -> bool {
        let mut inner = self.lock();
        let is_soon = inner.active.is_some_and(|last| last.elapsed() < STIR_EVERY);
        if !is_soon {
            inner.active = Some(Instant::now());
        }
        !is_soon
    }

    /// Is more to be asked for?
    pub fn is_low(&self, ost: OstIndex) -> bool {
        self.with(ost, |room| room.is_low())
    }

    pub fn is_asking(&self, ost: OstIndex) -> bool {
        self.with(ost, |room| room.is_asking)
    }

    /// Has it just said that it has less than was wanted?
    pub fn has_said_little(&self, ost: OstIndex) -> bool {
        self.with(ost, |room| room.is_known && room.is_short())
    }

    pub fn free(&self, ost: OstIndex) -> u64 {
        self.with(ost, |room| room.free())
    }

    /// The units in which it counts.
    pub fn unit(&self, ost: OstIndex) -> u64 {
        self.lock().osts.get(&ost).map_or(UNIT, |room| room.unit)
    }

    /// What to ask for, at least so much; `None`: it is asked already. Whoever is told so asks, and
    /// says what came of it ([`Rooms::answered`]).
    pub fn question(&self, ost: OstIndex, least: u64) -> Option<Question> {
        self.with(ost, |room| (!room.is_asking).then(|| room.question(least)))
    }

    /// Takes what each OST is to hold for a file, beyond what it has drawn; all or nothing.
    fn draw(&self, need: &BTreeMap<OstIndex, u64>, drawn: &mut BTreeMap<OstIndex, u64>) -> bool {
        let mut inner = self.lock();
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
        let mut inner = self.lock();
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

    /// Returns when there may be something to be kept.
    pub async fn stirred(&self) {
        self.stirred.notified().await;
    }

    /// Whoever waits for what happens sees that there is no more.
    pub fn end(&self) {
        self.stirred.notify_one();
    }

    /// A server has welcomed us. Another boot of it has forgotten what its OSTs had granted. Says
    /// which of them are of use now.
    pub fn welcomed(&self, server: ServerNumber, boot: u64, osts: &[OstIndex]) -> Vec<OstIndex> {
        let mut inner = self.lock();
        let before = inner.boots.insert(server, boot);
        if before.is_some_and(|before| before != boot) {
            for ost in osts {
                if let Some(room) = inner.osts.get_mut(ost) {
                    room.forget();
                }
            }
        }
        let is_active = inner.active.is_some_and(|last| last.elapsed() < IDLE);
        let is_owed = |ost: &OstIndex| inner.osts.get(ost).is_some_and(|room| room.drawn > 0);
        osts.iter().copied().filter(|ost| is_active || is_owed(ost)).collect()
    }

    /// What is to be said to OSTs, as to how much is kept: of what is not used most is given back,
    /// and the others hear that we are there. And whether anything is held.
    pub fn due(&self) -> (Vec<(OstIndex, u64)>, bool) {
        let mut due = Vec::new();
        let mut inner = self.lock();
        for (&ost, room) in &mut inner.osts {
            if room.granted == 0 || room.is_asking {
                continue;
            }
            let kept = room.kept();
            let is_old = room.heard.is_none_or(|heard| heard.elapsed() >= RENEW);
            if kept < room.granted || is_old {
                if kept < room.granted {
                    room.target = TARGET_FIRST;
                }
                (room.granted, room.is_asking) = (kept, true);
                due.push((ost, kept));
            }
        }
        (due, inner.osts.values().any(|room| room.granted > 0))
    }

    /// Everything is given back: the OSTs that are to hear so.
    pub fn leave(&self) -> Vec<OstIndex> {
        let mut inner = self.lock();
        let held = inner.osts.iter_mut().filter(|(_, room)| room.granted > 0);
        held.map(|(&ost, room)| {
            (room.granted, room.is_asking) = (0, true);
            ost
        })
        .collect()
    }

    /// A question that was sent then was answered, or not.
    pub fn answered(
        &self,
        ost: OstIndex,
        sent: Instant,
        reply: Option<&GrantRoomReply>,
        wanted: u64,
    ) {
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
        self.heard.notify_waiters();
        self.stirred.notify_one();
    }
}

#[cfg(test)]
mod tests;
