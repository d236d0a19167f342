//! Who may believe what for how long.
//!
//! A lease unit is a directory: its own attributes, its names, and the attributes and extents of
//! what is in it and no directory; a file without names is a unit of its own. A session's leases
//! are good from one frame of it to the next within the lease time. A lease that ran out is taken
//! away only when a change is in its way.
//!
//! A change ([`Change`]) covers its units before it commits: from then on nobody gets a lease on
//! them, and whoever held one before is known and must be asked. A reader gets a lease only if what
//! it read is what is true: no change is under way on the unit and none was committed since
//! ([`LeaseTable::grant`]).
//!
//! Who may see a directory and not what is in it holds it from *outside*: he is told of changes,
//! and hardly waited for. Who did not answer holds nothing for a while ([`suspended`]).
//!
//! Knows no store and no rights, and sends nothing: who may hold what is said by who asks
//! (`mdt/entitled`), holders are named, the service asks them. Time is tokio's.
//!
//! Invariants: at no time does a session other than the changing one hold a unit under a change,
//! except those that are being asked; the table is bounded, and a lease that finds no room is
//! simply not granted.

mod suspended;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_sessions::{Grace, Suspended, Sweep};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{FileId, SessionId, Version};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Units one session may hold.
const UNITS_PER_SESSION_MAX: usize = 100_000;
/// Units held in all: about 100 bytes each.
const UNITS_MAX: usize = 2_000_000;
/// Units whose last change is remembered exactly; for others the latest forgotten change counts.
const CHANGED_MAX: usize = 16_384;

/// How long after somebody wanted to see a unit that another held alone nobody is given it so
/// again: those who take turns there would wait for each other at every turn.
const WANTED_KEPT: Duration = Duration::from_secs(5);
/// Such units that are remembered.
const WANTED_MAX: usize = 4096;
/// So long a session is remembered to have held a unit alone, and so many units of it.
const LATELY: Duration = Duration::from_secs(60);
const LATELY_MAX: usize = 4096;
/// Who changed something so lately in a unit that he holds alone is at work there.
const AT_WORK: Duration = Duration::from_secs(3);
/// Who changed nothing for so long in a unit that he holds alone gives it up with another.
const IDLE: Duration = Duration::from_secs(1);
/// Directories that a session gives up with one at which another looks.
const IDLE_MAX: usize = 1024;
/// Stands for all units: held alone by sessions of before the start that may have changed anything.
pub const EVERYTHING: FileId = FileId(0);

pub struct LeaseTable {
    lease: Duration,
    inner: Mutex<Inner>,
    /// Wakes those who wait for a lease to end.
    ended: Notify,
    grace: Grace,
    suspended: Mutex<Suspended>,
    /// Those who did not answer as holders from outside: they hold nothing so for a while.
    suspended_outside: Mutex<Suspended>,
}

#[derive(Default)]
struct Inner {
    sessions: BTreeMap<SessionId, Held>,
    holders: BTreeMap<FileId, BTreeSet<SessionId>>,
    /// Units under a change, by the sessions that change them.
    changing: BTreeMap<FileId, BTreeMap<SessionId, u32>>,
    /// Files that are about to lose their last name.
    losing: BTreeMap<FileId, u32>,
    changed: BTreeMap<FileId, Version>,
    changed_order: BTreeSet<(Version, FileId)>,
    /// The latest change that was forgotten.
    changed_floor: Version,
    total: usize,
    /// Units that somebody lately held alone and another wanted to see.
    wanted: BTreeMap<FileId, Instant>,
    /// Counts the units that ceased to be held alone.
    shared: u64,
}

struct Held {
    units: BTreeSet<FileId>,
    /// Those of them that it holds from outside.
    outside: BTreeSet<FileId>,
    /// Those that it holds alone, and what it may have done under them is not known here.
    exclusive: BTreeMap<FileId, Alone>,
    /// Those that it held so lately: what it says of them may still be on its way.
    lately: BTreeMap<FileId, Instant>,
    heard: Instant,
    /// Did not answer a recall in time: what it says later counts no more.
    is_barred: bool,
    /// How it goes through units of others.
    swept: Sweep,
}

/// A unit that a session holds alone.
#[derive(Clone, Copy)]
struct Alone {
    /// The version as of which it was last told so.
    told: Version,
    /// When it was given, or was last heard to change something there.
    changed: Instant,
    /// It was heard to change something there since it was given.
    is_touched: bool,
}

/// What somebody may hold of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// All that it tells.
    Inside,
    /// The directory's own attributes.
    Outside,
}

/// A unit that somebody may hold.
pub type Entitled = (FileId, Standing);

/// Who must be asked before a unit changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Holder {
    pub session: SessionId,
    pub unit: FileId,
}

impl LeaseTable {
    /// After a start, sessions of before it may still believe things: they are `missing` until they
    /// come back. Those among `exclusive` may have done anything anywhere, until they say that they
    /// have sent it all.
    pub fn new(
        lease: Duration,
        missing: BTreeSet<SessionId>,
        exclusive: BTreeSet<SessionId>,
    ) -> Arc<Self> {
        let sessions = missing.iter().map(|&session| (session, Held::new())).collect();
        let mut inner = Inner { sessions, ..Inner::default() };
        for session in exclusive {
            inner.hold_alone(session, EVERYTHING, Version(0));
        }
        let grace = Grace::new(lease, missing);
        let suspended = || Mutex::new(Suspended::new(lease));
        Arc::new(Self {
            lease,
            inner: Mutex::new(inner),
            ended: Notify::new(),
            grace,
            suspended: suspended(),
            suspended_outside: suspended(),
        })
    }

    /// A session begins, or begins anew after a lost connection: it holds nothing. But what it held
    /// alone it may have changed: there it is asked still, before others look.
    pub fn open(&self, session: SessionId) {
        let mut inner = self.lock();
        let kept = inner.sessions.get(&session).map(|held| held.exclusive.clone());
        inner.drop_session(session);
        inner.sessions.insert(session, Held::new());
        for (unit, alone) in kept.into_iter().flatten() {
            inner.hold_alone(session, unit, alone.told);
        }
        drop(inner);
        self.ended.notify_waiters();
    }

    pub fn close(&self, session: SessionId) {
        self.lock().drop_session(session);
        self.end_suspension(session);
        self.ended.notify_waiters();
    }

    /// A frame came: the session's leases are good for as long again.
    pub fn heard(&self, session: SessionId) {
        if let Some(held) = self.lock().sessions.get_mut(&session)
            && !held.is_barred
        {
            held.heard = Instant::now();
        }
    }

    /// It did not answer: its requests are refused from now on, and its leases run out.
    pub fn bar(&self, session: SessionId) {
        if let Some(held) = self.lock().sessions.get_mut(&session) {
            held.is_barred = true;
        }
    }

    /// The same for one that was silent for the lease time.
    pub fn bar_silent(&self, session: SessionId) {
        if let Some(held) = self.lock().sessions.get_mut(&session)
            && held.heard.elapsed() >= self.lease
        {
            held.is_barred = true;
        }
    }

    pub fn is_barred(&self, session: SessionId) -> bool {
        self.lock().sessions.get(&session).is_some_and(|held| held.is_barred)
    }

    /// Grants a reader those of `units` that are as they were at `as_of`.
    pub fn grant(&self, session: SessionId, units: &[Entitled], as_of: Version) -> Vec<FileId> {
        let units = self.unsuspended(session, units);
        let mut inner = self.lock();
        let is_current =
            |inner: &Inner, unit| inner.is_quiet(unit, None) && inner.changed_at(unit) <= as_of;
        inner.grant(session, &units, is_current)
    }

    /// Which of `units` does the session hold, and not from outside?
    pub fn inside(&self, session: SessionId, units: &[FileId]) -> BTreeSet<FileId> {
        let inner = self.lock();
        let held = inner.sessions.get(&session);
        let is_inside = |held: &Held, unit| held.units.contains(unit) && !held.is_outside(*unit);
        let units = units.iter().filter(|unit| held.is_some_and(|held| is_inside(held, unit)));
        units.copied().collect()
    }

    pub fn is_outside(&self, holder: Holder) -> bool {
        let inner = self.lock();
        inner.sessions.get(&holder.session).is_some_and(|held| held.is_outside(holder.unit))
    }

    /// Sessions other than `asking` that hold any of `units` alone. Nobody is told so any more.
    ///
    /// `sends`: `asking` tells what it did. If it may have done anything before the start, so may
    /// others, but not where it held what it changed alone: two would wait for each other.
    pub fn alone(&self, asking: SessionId, units: &BTreeSet<FileId>, sends: bool) -> Vec<Holder> {
        let mut inner = self.lock();
        let is_alone = |held: &Held, unit: FileId| held.exclusive.contains_key(&unit);
        let of_before = inner.sessions.get(&asking).is_some_and(|held| is_alone(held, EVERYTHING));
        let held = |unit: FileId| {
            let holders = inner.holders.get(&unit).into_iter().flatten();
            let alone = holders.filter(|session| {
                let held = inner.sessions.get(session);
                **session != asking && held.is_some_and(|held| is_alone(held, unit))
            });
            alone.map(|&session| Holder { session, unit }).collect::<Vec<_>>()
        };
        let everything = (!(sends && of_before)).then_some(EVERYTHING);
        let units = everything.into_iter().chain(units.iter().copied());
        let holders: Vec<_> = units.flat_map(held).collect();
        holders.iter().for_each(|holder| inner.note_wanted(holder.unit));
        holders
    }

    /// Sessions that hold any of these units alone: what they have open there is not known here.
    pub fn alone_in(&self, units: &BTreeSet<FileId>) -> BTreeSet<SessionId> {
        let inner = self.lock();
        let units = units.iter().copied().chain([EVERYTHING]);
        let mut alone = BTreeSet::new();
        for unit in units {
            let holders = inner.holders.get(&unit).into_iter().flatten();
            alone.extend(holders.filter(|session| {
                let held = inner.sessions.get(session);
                held.is_some_and(|held| held.exclusive.contains_key(&unit))
            }));
        }
        alone
    }

    /// Does the session hold the unit alone, or all that there is, or did it lately?
    pub fn held_alone(&self, session: SessionId, unit: FileId) -> bool {
        let inner = self.lock();
        let Some(held) = inner.sessions.get(&session) else { return false };
        let was_lately =
            |unit: &FileId| held.lately.get(unit).is_some_and(|at| at.elapsed() < LATELY);
        let is_alone = |unit: &FileId| held.exclusive.contains_key(unit) || was_lately(unit);
        [unit, EVERYTHING].iter().any(is_alone)
    }

    /// Does a session other than `asking` work in the unit alone?
    pub fn is_at_work(&self, asking: SessionId, unit: FileId) -> bool {
        let inner = self.lock();
        let mut others = inner.holders.get(&unit).into_iter().flatten();
        others.any(|other| {
            let held = inner.sessions.get(other).filter(|_| *other != asking);
            let alone = held.and_then(|held| held.exclusive.get(&unit));
            alone.is_some_and(|alone| alone.changed.elapsed() < AT_WORK)
        })
    }

    /// How often units have ceased to be held alone: whoever read meanwhile may have read too
    /// little.
    pub fn shared(&self) -> u64 {
        self.lock().shared
    }

    /// A session makes a directory under an exclusive lease: it holds that alone from the first.
    pub fn made_alone(&self, session: SessionId, unit: FileId) {
        self.lock().hold_alone(session, unit, Version(0));
    }

    /// The holder sent what it had done under a unit that it held alone. It may believe what it
    /// believed. What it was told after `asked`, as of which it was asked, it holds still: that may
    /// have reached it after its answer.
    pub fn share(&self, holder: Holder, asked: Version) {
        let mut inner = self.lock();
        inner.note_wanted(holder.unit);
        if inner.share(holder.session, holder.unit, asked) && holder.unit == EVERYTHING {
            inner.release(holder.session, holder.unit);
        }
        drop(inner);
        self.ended.notify_waiters();
    }

    /// What the holder of a unit holds alone near it, and has not worked in lately: whoever looks
    /// at the one comes to the others next.
    pub fn idle_beside(&self, holder: Holder) -> Vec<FileId> {
        let inner = self.lock();
        let held = inner.sessions.get(&holder.session).filter(|_| holder.unit != EVERYTHING);
        let Some(held) = held else { return vec![] };
        let (before, after) = (..holder.unit, (Excluded(holder.unit), Unbounded));
        let before = held.exclusive.range(before).rev().take(IDLE_MAX);
        let near = before.chain(held.exclusive.range(after).take(IDLE_MAX));
        let is_idle = |(unit, alone): &(&FileId, &Alone)| {
            **unit != EVERYTHING && alone.changed.elapsed() >= IDLE
        };
        let mut idle: Vec<_> = near.filter(is_idle).map(|(&unit, _)| unit).collect();
        idle.sort_by_key(|unit| unit.0.abs_diff(holder.unit.0));
        idle.truncate(IDLE_MAX);
        idle
    }

    /// The holder of a unit holds these no longer alone either: nobody wanted to see them yet.
    pub fn share_idle(&self, holder: Holder, units: impl Iterator<Item = FileId>, asked: Version) {
        let mut inner = self.lock();
        for unit in units {
            inner.share(holder.session, unit, asked);
        }
        drop(inner);
        self.ended.notify_waiters();
    }

    /// Directories that are no more: nobody needs a lease on them.
    pub fn gone(&self, units: &BTreeSet<FileId>) {
        let mut inner = self.lock();
        for &unit in units {
            let holders = inner.holders.get(&unit).cloned().unwrap_or_default();
            holders.into_iter().for_each(|session| inner.release(session, unit));
        }
    }

    /// Does the holder hold the unit, in whatever way?
    pub fn is_held(&self, holder: Holder) -> bool {
        let inner = self.lock();
        inner.sessions.get(&holder.session).is_some_and(|held| held.units.contains(&holder.unit))
    }

    /// Does the holder hold the unit, and is it not silent for the lease time?
    pub fn is_good(&self, holder: Holder) -> bool {
        let inner = self.lock();
        inner.sessions.get(&holder.session).is_some_and(|held| {
            held.units.contains(&holder.unit) && held.heard.elapsed() < self.lease
        })
    }

    /// Was the unit changed after `as_of`?
    pub fn is_overtaken(&self, unit: FileId, as_of: Version) -> bool {
        self.lock().changed_at(unit) > as_of
    }

    /// Is a change under way that takes the file's last name?
    pub fn is_losing(&self, file: FileId) -> bool {
        self.lock().losing.contains_key(&file)
    }

    /// Waits while a change is under way that takes the file's last name.
    pub async fn not_losing(&self, file: FileId) {
        loop {
            let notified = self.ended.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if !self.is_losing(file) {
                return;
            }
            notified.await;
        }
    }

    /// Waits until nothing was heard of the session for the lease time.
    pub async fn silent(&self, session: SessionId) {
        loop {
            let heard = self.lock().sessions.get(&session).map(|held| held.heard);
            let Some(deadline) = heard.map(|heard| heard + self.lease) else { return };
            if Instant::now() >= deadline {
                return;
            }
            tokio::time::sleep_until(deadline).await;
        }
    }

    /// When the session will have been silent for the lease time; `None` if it is not known.
    pub fn silent_at(&self, session: SessionId) -> Option<Instant> {
        self.lock().sessions.get(&session).map(|held| held.heard + self.lease)
    }

    /// Sessions that did not answer a recall, and those silent for longer than each is kept.
    pub fn lost(&self, keep: impl Fn(SessionId) -> Duration) -> Vec<SessionId> {
        let inner = self.lock();
        let is_lost = |id: SessionId, held: &Held| {
            let silence = held.heard.elapsed();
            silence > keep(id) || (held.is_barred && silence >= self.lease)
        };
        let sessions = inner.sessions.iter();
        sessions.filter(|(id, held)| is_lost(**id, held)).map(|(id, _)| *id).collect()
    }

    #[cfg(test)]
    pub fn holds(&self, session: SessionId, unit: FileId) -> bool {
        self.lock().sessions.get(&session).is_some_and(|held| held.units.contains(&unit))
    }

    /// The holder answered: it forgot what it believed.
    pub fn taken_back(&self, holder: Holder) {
        let mut inner = self.lock();
        let held = inner.sessions.get(&holder.session);
        if held.is_some_and(|held| held.exclusive.contains_key(&holder.unit)) {
            inner.note_wanted(holder.unit);
        }
        inner.release(holder.session, holder.unit);
        drop(inner);
        self.ended.notify_waiters();
    }

    /// Begins a change by a session.
    pub fn change(self: &Arc<Self>, session: SessionId) -> Change {
        let (units, losing) = Default::default();
        Change { table: self.clone(), session, units, losing, swept: None }
    }

    /// Waits until the holder's lease has run out or was given back. True if it ran out.
    pub async fn ended(&self, holder: Holder) -> bool {
        loop {
            let notified = self.ended.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let deadline = match self.lock().sessions.get(&holder.session) {
                Some(held) if held.units.contains(&holder.unit) => held.heard + self.lease,
                _ => return false,
            };
            if Instant::now() >= deadline {
                return true;
            }
            tokio::select! {
                biased;
                () = notified => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// A session of before the start is back, or was ended.
    pub fn found(&self, session: SessionId) {
        self.grace.found(session);
    }

    /// Waits until nobody can believe anything from before the start.
    pub async fn grace_over(&self) {
        self.grace.over().await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn new() -> Self {
        let (units, outside, exclusive, lately) = Default::default();
        let (heard, is_barred, swept) = (Instant::now(), false, Sweep::default());
        Self { units, outside, exclusive, lately, heard, is_barred, swept }
    }

    fn is_outside(&self, unit: FileId) -> bool {
        self.outside.contains(&unit)
    }
}

impl Inner {
    fn hold_alone(&mut self, session: SessionId, unit: FileId, told: Version) {
        let Some(held) = self.sessions.get_mut(&session) else { return };
        let new = Alone { told, changed: Instant::now(), is_touched: false };
        let alone = held.exclusive.entry(unit).or_insert(new);
        (alone.told, alone.changed) = (alone.told.max(told), new.changed);
        held.outside.remove(&unit);
        if held.units.insert(unit) {
            self.total += 1;
            self.holders.entry(unit).or_default().insert(session);
            METRICS.leases.inc();
        }
    }

    /// The session does not hold the unit alone any more, unless it was told so after `asked`.
    fn share(&mut self, session: SessionId, unit: FileId, asked: Version) -> bool {
        let is_told = |alone: &Alone| alone.told > asked;
        let Some(held) = self.sessions.get_mut(&session) else { return true };
        match held.exclusive.get(&unit) {
            Some(alone) if is_told(alone) => return false,
            Some(_) => held.exclusive.remove(&unit),
            None => return true,
        };
        held.lately.insert(unit, Instant::now());
        if held.lately.len() > LATELY_MAX {
            held.lately.retain(|_, at| at.elapsed() < LATELY);
        }
        if held.lately.len() > LATELY_MAX {
            held.lately.pop_first();
        }
        self.shared += 1;
        true
    }

    /// Another session wanted to see what the unit's holder held alone.
    fn note_wanted(&mut self, unit: FileId) {
        let now = Instant::now();
        self.wanted.insert(unit, now);
        if self.wanted.len() > WANTED_MAX {
            self.wanted.retain(|_, at| now.duration_since(*at) < WANTED_KEPT);
        }
        if self.wanted.len() > WANTED_MAX {
            self.wanted.pop_first();
        }
    }

    /// May the session be given the unit to hold alone?
    fn may_hold_alone(&self, session: SessionId, unit: FileId) -> bool {
        let is_wanted = self.wanted.get(&unit).is_some_and(|at| at.elapsed() < WANTED_KEPT);
        let is_only = self.holders.get(&unit).is_some_and(|by| by.iter().eq([&session]));
        let is_outside = self.sessions.get(&session).is_some_and(|held| held.is_outside(unit));
        is_only && !is_outside && !is_wanted && self.is_quiet(unit, Some(session))
    }

    /// Does another session hold the unit alone?
    fn is_alone_elsewhere(&self, session: SessionId, unit: FileId) -> bool {
        let holders = self.holders.get(&unit).into_iter().flatten();
        let mut others = holders.filter(|other| **other != session);
        others.any(|other| {
            self.sessions.get(other).is_some_and(|held| held.exclusive.contains_key(&unit))
        })
    }

    /// No other session than `except` changes the unit.
    fn is_quiet(&self, unit: FileId, except: Option<SessionId>) -> bool {
        let changers = self.changing.get(&unit);
        changers.is_none_or(|by| by.keys().all(|session| Some(*session) == except))
    }

    fn changed_at(&self, unit: FileId) -> Version {
        self.changed.get(&unit).copied().unwrap_or(self.changed_floor)
    }

    fn grant(
        &mut self,
        session: SessionId,
        units: &[Entitled],
        is_current: impl Fn(&Self, FileId) -> bool,
    ) -> Vec<FileId> {
        let mut granted = vec![];
        for &(unit, standing) in units {
            let current = is_current(self, unit) && !self.is_alone_elsewhere(session, unit);
            let Some(held) = self.sessions.get_mut(&session) else { break };
            let has_room = held.units.len() < UNITS_PER_SESSION_MAX && self.total < UNITS_MAX;
            let holds = held.units.contains(&unit);
            if held.is_barred || !current || !(has_room || holds) {
                continue;
            }
            if standing == Standing::Inside {
                held.outside.remove(&unit);
            }
            if held.units.insert(unit) {
                if standing == Standing::Outside {
                    held.outside.insert(unit);
                }
                self.total += 1;
                self.holders.entry(unit).or_default().insert(session);
                METRICS.leases.inc();
            }
            granted.push(unit);
        }
        granted
    }

    fn release(&mut self, session: SessionId, unit: FileId) {
        self.share(session, unit, Version(u64::MAX));
        let held = self.sessions.get_mut(&session);
        if !held.is_some_and(|held| held.outside.remove(&unit) | held.units.remove(&unit)) {
            return;
        }
        self.total -= 1;
        METRICS.leases.dec();
        if let Some(holders) = self.holders.get_mut(&unit) {
            holders.remove(&session);
            if holders.is_empty() {
                self.holders.remove(&unit);
            }
        }
    }

    fn drop_session(&mut self, session: SessionId) {
        let units = self.sessions.get(&session).map(|held| held.units.clone());
        for unit in units.into_iter().flatten() {
            self.release(session, unit);
        }
        self.sessions.remove(&session);
    }

    fn note_change(&mut self, unit: FileId, version: Version) {
        let version = version.max(self.changed_at(unit));
        if let Some(before) = self.changed.insert(unit, version) {
            self.changed_order.remove(&(before, unit));
        }
        self.changed_order.insert((version, unit));
        while self.changed.len() > CHANGED_MAX {
            let Some((version, unit)) = self.changed_order.pop_first() else { break };
            self.changed.remove(&unit);
            self.changed_floor = self.changed_floor.max(version);
        }
    }
}

/// A change under way. Dropped, it is over (and came to nothing unless [`Change::committed`] was
/// said).
pub struct Change {
    table: Arc<LeaseTable>,
    session: SessionId,
    units: BTreeSet<FileId>,
    losing: BTreeSet<FileId>,
    /// Directories that the session will change next, it seems: taken back with the others.
    swept: Option<Vec<FileId>>,
}

impl Change {
    /// The change takes a file's last name: those who open it now wait for what becomes of it.
    pub fn lose(&mut self, file: FileId) {
        if self.losing.insert(file) {
            *self.table.lock().losing.entry(file).or_default() += 1;
        }
    }

    /// Covers more units, and names the sessions that still hold them, the changing one left out.
    pub fn cover(&mut self, units: impl IntoIterator<Item = FileId>) -> Vec<Holder> {
        let mut inner = self.table.lock();
        let mut holders = vec![];
        for unit in units {
            if self.units.insert(unit) {
                *inner.changing.entry(unit).or_default().entry(self.session).or_default() += 1;
            }
            let held_by = inner.holders.get(&unit).into_iter().flatten();
            let others = held_by.filter(|session| **session != self.session);
            holders.extend(others.map(|&session| Holder { session, unit }));
        }
        holders
    }

    /// Others hold a unit that is covered: covers those that the session will come to, once, and
    /// names who holds them.
    pub fn sweep(&mut self, unit: FileId) -> Vec<Holder> {
        if self.swept.is_some() {
            return vec![];
        }
        let swept = self.table.lock().sweep(self.session, unit);
        let holders = self.cover(swept.iter().copied());
        self.swept = Some(swept);
        holders
    }

    pub fn swept(&self) -> &[FileId] {
        self.swept.as_deref().unwrap_or_default()
    }

    /// It was committed: what was read before is no ground for a lease.
    pub fn committed(&self, version: Version) {
        let mut inner = self.table.lock();
        for &unit in &self.units {
            inner.note_change(unit, version);
            let held = inner.sessions.get_mut(&self.session);
            if let Some(alone) = held.and_then(|held| held.exclusive.get_mut(&unit)) {
                (alone.changed, alone.is_touched) = (Instant::now(), true);
            }
        }
    }

    /// Grants the changing session what its own reply tells of its own commit, unless others change
    /// it at the same time.
    pub fn grant(&self, units: &[Entitled], version: Version) -> Vec<FileId> {
        let session = self.session;
        let units = self.table.unsuspended(session, units);
        let mut inner = self.table.lock();
        inner.grant(session, &units, |inner, unit| {
            inner.is_quiet(unit, Some(session)) && inner.changed_at(unit) <= version
        })
    }
}

impl Change {
    /// Those of `units`, which were just granted to the changing session as of `version`, that it
    /// holds alone from now on.
    pub fn grant_alone(&self, units: &[FileId], version: Version) -> Vec<FileId> {
        let session = self.session;
        let mut inner = self.table.lock();
        let may = |inner: &Inner, unit| inner.may_hold_alone(session, unit);
        let alone: Vec<_> = units.iter().copied().filter(|&unit| may(&inner, unit)).collect();
        alone.iter().for_each(|&unit| inner.hold_alone(session, unit, version));
        alone
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let mut inner = self.table.lock();
        for file in &self.losing {
            if let Some(count) = inner.losing.get_mut(file) {
                *count -= 1;
                if *count == 0 {
                    inner.losing.remove(file);
                }
            }
        }
        for unit in &self.units {
            let Some(changers) = inner.changing.get_mut(unit) else { continue };
            if let Some(count) = changers.get_mut(&self.session) {
                *count -= 1;
                if *count == 0 {
                    changers.remove(&self.session);
                }
            }
            if changers.is_empty() {
                inner.changing.remove(unit);
            }
        }
        drop(inner);
        if !self.losing.is_empty() {
            self.table.ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
