//! Which lease units are held, since when, and for how long.
//!
//! What was learned in an earlier epoch is no answer while its server is heard. While the server is
//! away it is, until the unit was taken away or let go: of what was not asked again in a later
//! epoch nothing newer is known ([`Units::believes`]).
//!
//! A unit that an own mutation of unknown outcome left in *doubt* is closed for a while: what is
//! answered about it is put down for when its server is away, and told nobody while that is heard.
//!
//! Invariants: a generation is never used twice; a unit is held only under the epoch of its server
//! in which it was granted; a bar never goes down while anything older could still arrive; nothing
//! of before a unit was taken away is told after it.

use crate::Belief;
use std::collections::BTreeMap;
use std::time::Duration;
use tieline_types::{FileId, Layout, MdtIndex, ServerNumber, Version};
use tieline_wire::Welcome;
use tieline_wire::meta::LeaseGrant;
use tokio::time::Instant;

/// Leases are used to this part of their time, so that two clocks that run differently do no harm.
const LEASE_USED: f64 = 0.9;
/// After an own mutation whose outcome is unknown nothing is leased there for so long: it may still
/// happen.
const DOUBT: Duration = Duration::from_secs(60);
/// Bars of units that are not held are remembered one by one up to this many; then one bar stands
/// for all.
const UNITS_IDLE_MAX: usize = 16_384;

/// When a request left: the epoch of its server's leases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    pub server: ServerNumber,
    epoch: u64,
}

impl Stamp {
    /// Of before all epochs that count: nothing that it grants is held.
    pub fn past(server: ServerNumber) -> Self {
        Self { server, epoch: u64::MAX }
    }
}

/// What one server promises.
#[derive(Default)]
struct Tenure {
    /// Counts how often all leases were lost.
    epoch: u64,
    lease: Duration,
    ends: Option<Instant>,
    /// Counts lost connections, so that one that was made again meanwhile is known.
    lost: u64,
    /// Nobody can reach it: what it told last counts beyond the lease, until it is heard again.
    is_away: bool,
}

#[derive(Default)]
struct Unit {
    generation: u64,
    /// The first generation that counts while its server is away.
    since: u64,
    /// When it was granted; `None`: it was taken away, or let go.
    held: Option<Stamp>,
    /// As of which version it was granted: of what was read before, nobody tells what became.
    granted: Version,
    /// What was read as of this version or before is not cached.
    bar: Version,
    closed_until: Option<Instant>,
    /// Nobody else holds it: what new files in it inherit.
    alone: Option<Layout>,
    /// It is not held alone by what was read as of this version or before.
    alone_bar: Version,
    mutations: u32,
    is_contended: bool,
    /// The clock of uses, for eviction.
    used: u64,
}

impl Unit {
    fn is_closed(&self) -> bool {
        self.closed_until.is_some_and(|until| Instant::now() < until)
    }
}

#[derive(Default)]
pub struct Units {
    generation: u64,
    clock: u64,
    tenures: BTreeMap<ServerNumber, Tenure>,
    units: BTreeMap<FileId, Unit>,
    /// What a server that is away told last counts.
    pub tells_last: bool,
    /// The bar of all units that are not in the table: versions are counted by each MDT.
    bars: BTreeMap<MdtIndex, Version>,
    /// The next sweep of idle units is due at this many.
    sweep_at: usize,
    slept_at: Option<Instant>,
}

impl Units {
    pub fn stamp(&self, server: ServerNumber) -> Stamp {
        let epoch = self.tenures.get(&server).map_or(0, |tenure| tenure.epoch);
        Stamp { server, epoch }
    }

    /// Leases of before are gone.
    pub fn welcomed(&mut self, server: ServerNumber, welcome: &Welcome) {
        let tenure = self.tenures.entry(server).or_default();
        tenure.lease = Duration::from_millis(welcome.lease_ms.into());
        tenure.ends = None;
        tenure.epoch += 1;
        tenure.lost += 1;
        tenure.is_away = false;
    }

    /// How long its leases last, if it has welcomed us.
    pub fn lease(&self, server: ServerNumber) -> Option<Duration> {
        let tenure = self.tenures.get(&server)?;
        Some(tenure.lease).filter(|lease| !lease.is_zero())
    }

    /// The connection is gone; returns which loss it is.
    pub fn lost(&mut self, server: ServerNumber) -> u64 {
        let tenure = self.tenures.entry(server).or_default();
        tenure.lost += 1;
        tenure.lost
    }

    /// Nothing was heard since loss number `lost`: the server is away. Says whether that is so.
    pub fn away(&mut self, server: ServerNumber, lost: u64) -> bool {
        let tenure = self.tenures.entry(server).or_default();
        tenure.is_away |= tenure.lost == lost;
        tenure.is_away
    }

    /// How often its connection was lost or made.
    pub fn losses(&self, server: ServerNumber) -> u64 {
        self.tenures.get(&server).map_or(0, |tenure| tenure.lost)
    }

    pub fn is_away(&self, server: ServerNumber) -> bool {
        self.tenures.get(&server).is_some_and(|tenure| tenure.is_away)
    }

    /// Was it never heard?
    pub fn is_unmet(&self, server: ServerNumber) -> bool {
        self.tenures.get(&server).is_none_or(|tenure| tenure.epoch == 0)
    }

    /// Intervals were not counted for a while: no lease can be relied on.
    pub fn slept(&mut self) {
        let now = Instant::now();
        self.slept_at = Some(now);
        for tenure in self.tenures.values_mut() {
            // Just past: the next word of the server finds it lapsed.
            let past = now.checked_sub(Duration::from_millis(1)).unwrap_or(now);
            tenure.ends = tenure.ends.map(|ends| ends.min(past));
        }
    }

    pub fn has_lapsed(&self, server: ServerNumber) -> bool {
        let ends = self.tenures.get(&server).and_then(|tenure| tenure.ends);
        ends.is_some_and(|ends| ends < Instant::now())
    }

    /// A lease that had lapsed may have been taken away unheard: then the epoch ends.
    pub fn renewed(&mut self, server: ServerNumber, sent: Instant) {
        let has_lapsed = self.has_lapsed(server);
        let tenure = self.tenures.entry(server).or_default();
        tenure.is_away = false;
        if self.slept_at.is_some_and(|slept| sent < slept) {
            // How long ago that was, nobody counted.
            return;
        }
        let ends = sent + tenure.lease.mul_f64(LEASE_USED);
        if has_lapsed {
            tenure.epoch += 1;
            tenure.ends = Some(ends);
        } else {
            tenure.ends = tenure.ends.max(Some(ends));
        }
    }

    /// Is an answer from that time still of this epoch?
    fn is_current(&self, stamp: Stamp) -> bool {
        let epoch = self.tenures.get(&stamp.server).map_or(0, |tenure| tenure.epoch);
        // The first request of all leaves before the welcome that starts the first epoch.
        stamp.epoch == epoch || (stamp.epoch == 0 && epoch == 1)
    }

    /// A reply read as of `as_of` grants a lease on `unit`. Says whether it is held now.
    pub fn grant(&mut self, unit: FileId, stamp: Stamp, as_of: Version) -> bool {
        if !self.is_current(stamp) {
            return false;
        }
        let stamp = self.stamp(stamp.server);
        let entry = self.entry(unit);
        if as_of <= entry.bar {
            return entry.held == Some(stamp);
        }
        if entry.is_closed() {
            if self.tells_last {
                self.hold_last(unit, stamp.server);
            }
            return false;
        }
        let granted = if entry.held == Some(stamp) { entry.granted.min(as_of) } else { as_of };
        if entry.held != Some(stamp) {
            self.hold(unit, stamp);
        }
        self.entry(unit).granted = granted;
        true
    }

    /// The first of two new generations is for what was put down before ([`Units::hold_last`]).
    fn hold(&mut self, unit: FileId, stamp: Stamp) {
        self.generation += 2;
        let generation = self.generation;
        let entry = self.entry(unit);
        if entry.held.is_none() {
            entry.since = generation - 1;
        }
        (entry.held, entry.generation, entry.alone) = (Some(stamp), generation, None);
        entry.granted = Version(0);
    }

    /// Something was put down about a unit by whoever knew it once. Gives the generation under
    /// which that counts while its server is away, and where nothing newer is known; and what it is
    /// as of.
    pub fn hold_last(&mut self, unit: FileId, server: ServerNumber) -> (u64, Version) {
        if self.entry(unit).held.is_none() {
            self.hold(unit, Stamp::past(server));
        }
        let entry = self.entry(unit);
        (entry.since, entry.bar)
    }

    /// A reply read as of `as_of` says that nobody else holds `unit`.
    pub fn grant_alone(&mut self, unit: FileId, stamp: Stamp, as_of: Version, layout: Layout) {
        if self.admits(unit, stamp, as_of) {
            let entry = self.entry(unit);
            entry.alone = (as_of > entry.alone_bar).then_some(layout);
        }
    }

    /// A directory was made here in one that is held alone: so is it.
    pub fn made_alone(&mut self, unit: FileId, parent: FileId, layout: Layout) {
        let Some(held) = self.units.get(&parent).and_then(|entry| entry.held) else { return };
        self.release(unit);
        self.hold(unit, held);
        self.entry(unit).alone = Some(layout);
    }

    /// What new files in `unit` inherit, if it is surely held alone.
    pub fn alone(&self, unit: FileId) -> Option<&Layout> {
        let entry = self.units.get(&unit).filter(|entry| self.is_leased(entry))?;
        entry.alone.as_ref()
    }

    /// Others hold it too from now on, whatever was said as of `at` or before.
    pub fn share(&mut self, unit: FileId, at: Version) {
        let entry = self.entry(unit);
        entry.alone = None;
        entry.alone_bar = entry.alone_bar.max(at);
        self.tidy();
    }

    /// The same for all units of an MDT.
    pub fn share_all(&mut self, mdt: MdtIndex, at: Version) {
        for (_, entry) in self.units.iter_mut().filter(|(unit, _)| unit.mdt() == mdt) {
            entry.alone = None;
            entry.alone_bar = entry.alone_bar.max(at);
        }
    }

    /// May what was read as of `as_of` be remembered under `unit`?
    pub fn admits(&self, unit: FileId, stamp: Stamp, as_of: Version) -> bool {
        let Some(entry) = self.units.get(&unit) else { return false };
        let is_held = self.is_held(entry) || self.is_in_doubt(unit);
        // Whoever held it not between what was read and what it was granted as of, was not told of
        // changes meanwhile.
        self.is_current(stamp) && is_held && as_of > entry.bar && as_of >= entry.granted
    }

    /// A unit that a reply granted, and its generation, under which what it tells is good.
    pub fn covering(&self, stamp: Stamp, lease: &LeaseGrant) -> Option<(FileId, u64)> {
        let mut units = lease.units.iter().copied();
        let unit = units.find(|&unit| self.admits(unit, stamp, lease.as_of))?;
        Some((unit, self.generation(unit)?))
    }

    /// The generation that what is admitted now gets. `None`: remember nothing.
    pub fn generation_next(&self, unit: FileId) -> Option<u64> {
        if self.is_in_doubt(unit) {
            return self.units.get(&unit).map(|entry| entry.generation);
        }
        self.generation(unit)
    }

    /// How far what was just learned under a generation may be believed.
    pub fn belief_in(&self, unit: FileId, generation: u64) -> Belief {
        let is_told = !self.is_in_doubt(unit);
        Belief { units: is_told.then_some((unit, generation)).into_iter().collect() }
    }

    /// In doubt: what is answered about it is for when its server is away.
    pub fn is_in_doubt(&self, unit: FileId) -> bool {
        let is_it = |entry: &Unit| entry.is_closed() && entry.held.is_some();
        self.tells_last && self.units.get(&unit).is_some_and(is_it)
    }

    /// The generation of a unit that is held; `None`: believe nothing under it.
    pub fn generation(&self, unit: FileId) -> Option<u64> {
        let entry = self.units.get(&unit)?;
        let is_good = self.is_leased(entry) || self.is_left_alone(entry);
        is_good.then_some(entry.generation)
    }

    /// May what was learned under a generation of a unit be told?
    pub fn believes(&self, unit: FileId, generation: u64) -> bool {
        let Some(entry) = self.units.get(&unit) else { return false };
        if self.is_told_last(entry) {
            return (entry.since..=entry.generation).contains(&generation);
        }
        self.is_leased(entry) && entry.generation == generation
    }

    /// Is what was known of it last all there is?
    pub fn tells_last_of(&self, unit: FileId) -> bool {
        self.units.get(&unit).is_some_and(|entry| self.is_told_last(entry))
    }

    fn is_told_last(&self, entry: &Unit) -> bool {
        // What is decided here rests on what is known for certain.
        let is_decided = self.is_leased(entry) && entry.alone.is_some();
        !is_decided && self.is_left_alone(entry)
    }

    /// May it be told now, or while its server is away?
    pub fn keeps(&self, unit: FileId, generation: u64) -> bool {
        self.units.get(&unit).is_some_and(|entry| {
            entry.held.is_some() && (entry.since..=entry.generation).contains(&generation)
        })
    }

    /// Held, and not run out.
    fn is_leased(&self, entry: &Unit) -> bool {
        self.is_held(entry) && self.remaining(entry) > Duration::ZERO
    }

    /// Its server is away: what it told last is all there is.
    fn is_left_alone(&self, entry: &Unit) -> bool {
        self.tells_last && entry.held.is_some_and(|held| self.is_away(held.server))
    }

    pub fn belief(&self, unit: FileId) -> Belief {
        Belief { units: self.generation(unit).map(|one| (unit, one)).into_iter().collect() }
    }

    /// Marks a use, for eviction.
    pub fn touch(&mut self, unit: FileId) {
        self.clock += 1;
        if let Some(entry) = self.units.get_mut(&unit) {
            entry.used = self.clock;
        }
    }

    fn is_held(&self, entry: &Unit) -> bool {
        entry.held.is_some_and(|held| held == self.stamp(held.server))
    }

    fn remaining(&self, entry: &Unit) -> Duration {
        let tenure = entry.held.and_then(|held| self.tenures.get(&held.server));
        let ends = tenure.and_then(|tenure| tenure.ends);
        ends.map_or(Duration::ZERO, |ends| ends.saturating_duration_since(Instant::now()))
    }

    /// Is it of the epochs that count now?
    pub fn are_current(&self, belief: &Belief) -> bool {
        let is_current = |&(unit, generation): &(FileId, u64)| {
            let entry = self.units.get(&unit).filter(|entry| entry.generation == generation);
            entry.is_some_and(|entry| self.is_held(entry))
        };
        belief.units.iter().all(is_current)
    }

    /// How long a belief is good for.
    pub fn lasts(&self, belief: &Belief) -> Duration {
        let each = |&(unit, generation): &(FileId, u64)| match self.units.get(&unit) {
            Some(entry)
                if entry.generation == generation && self.is_held(entry) && !entry.is_contended =>
            {
                self.remaining(entry)
            }
            _ => Duration::ZERO,
        };
        belief.units.iter().map(each).min().unwrap_or_default()
    }

    /// A unit is given back. Says whether an own mutation is under way there.
    pub fn recall(&mut self, unit: FileId, at: Version) -> bool {
        let entry = self.entry(unit);
        (entry.held, entry.alone) = (None, None);
        entry.bar = entry.bar.max(at);
        entry.is_contended = entry.mutations > 0;
        let is_contended = entry.is_contended;
        self.tidy();
        is_contended
    }

    /// An own mutation committed as `version`: what was read before it is out of date.
    pub fn mutated(&mut self, unit: FileId, version: Version) {
        let entry = self.entry(unit);
        entry.bar = entry.bar.max(Version(version.0.saturating_sub(1)));
        self.tidy();
    }

    /// An own mutation may or may not have happened, or may happen yet. What was known before stays
    /// for when the server is away.
    pub fn doubt(&mut self, unit: FileId) {
        let held = self.entry(unit).held;
        if let Some(held) = held {
            // Of a generation of its own: what is learned from now on is not mixed with it.
            self.hold(unit, Stamp::past(held.server));
        }
        self.entry(unit).closed_until = Some(Instant::now() + DOUBT);
    }

    pub fn begin_mutation(&mut self, unit: FileId) {
        let entry = self.entry(unit);
        entry.mutations += 1;
    }

    pub fn end_mutation(&mut self, unit: FileId) {
        if let Some(entry) = self.units.get_mut(&unit) {
            entry.mutations = entry.mutations.saturating_sub(1);
            entry.is_contended &= entry.mutations > 0;
        }
    }

    /// Lets a unit go without being asked.
    pub fn release(&mut self, unit: FileId) {
        if let Some(entry) = self.units.get_mut(&unit) {
            (entry.held, entry.alone) = (None, None);
        }
    }

    /// Units that were granted by `server` in whatever epoch.
    pub fn of_server(&self, server: ServerNumber) -> Vec<FileId> {
        let is_of = |entry: &Unit| entry.held.is_some_and(|held| held.server == server);
        self.units.iter().filter(|(_, entry)| is_of(entry)).map(|(&unit, _)| unit).collect()
    }

    /// Held units, the least recently used first.
    pub fn by_use(&self) -> Vec<FileId> {
        let held = self.units.iter().filter(|(_, entry)| entry.held.is_some());
        let mut order: Vec<_> = held.map(|(&unit, entry)| (entry.used, unit)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, unit)| unit).collect()
    }

    fn entry(&mut self, unit: FileId) -> &mut Unit {
        let bar = self.bars.get(&unit.mdt()).copied().unwrap_or_default();
        self.units.entry(unit).or_insert_with(|| Unit { bar, alone_bar: bar, ..Unit::default() })
    }

    /// Folds the bars of idle units into the common ones when there are many.
    fn tidy(&mut self) {
        if self.units.len() <= self.sweep_at.max(UNITS_IDLE_MAX) {
            return;
        }
        let now = Instant::now();
        let is_idle = |entry: &Unit| {
            entry.held.is_none()
                && entry.mutations == 0
                && entry.closed_until.is_none_or(|until| until < now)
        };
        let idle: Vec<_> =
            self.units.iter().filter(|(_, entry)| is_idle(entry)).map(|(&unit, _)| unit).collect();
        for unit in idle {
            if let Some(entry) = self.units.remove(&unit) {
                let bar = self.bars.entry(unit.mdt()).or_default();
                *bar = (*bar).max(entry.bar).max(entry.alone_bar);
            }
        }
        // A sweep walks the whole table: the next comes when it has doubled.
        self.sweep_at = self.units.len() * 2;
    }
}
