//! Which OSTs a file's chunks go round.
//!
//! OSTs take turns by free space (smooth weighted round-robin): while they are about equally free
//! each is chosen as often as the others, an emptier one more often in proportion. OSTs that
//! answered within a minute come before silent ones; one that reported trouble or is full is not
//! chosen.
//!
//! With several mirrors a stripe has, for each column, one OST per mirror ([`mirrors`]).
//!
//! The state is in memory: after a start the first turn is drawn by lot.

use crate::error::{Error, PoolLabel, Result};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tieline_format::map::{FederationMap, Ost};
use tieline_types::{Layout, OstIndex, PoolName, StripeCount, Time};
use tieline_wire::data::OstState;
use tieline_wire::meta::OstUsage;
use tieline_world::World;
use tokio::time::Instant;

mod mirrors;
pub use mirrors::{check_mirrors, sync_copies};

/// How long an observation counts.
const FRESH: Duration = Duration::from_secs(60);
/// Less room than this is none: one chunk of the usual size.
const ROOM_MIN: u64 = Layout::CHUNK_SIZE_DEFAULT as u64;
/// The shares of an OST's weight: free space is compared in 1/64 of the emptiest, so that small
/// differences are none.
const SHARES: u64 = 64;
/// OSTs within a fifth of the emptiest count as equal, about where Lustre starts to weigh.
const BALANCED: u64 = SHARES * 4 / 5;

pub struct Placement {
    world: World,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    observed: BTreeMap<OstIndex, Observed>,
    /// How much each OST's turn is due, in shares.
    due: BTreeMap<OstIndex, i64>,
}

struct Observed {
    state: OstState,
    at: Instant,
    wall: Time,
}

impl Observed {
    fn is_fresh(&self, now: Instant) -> bool {
        now.duration_since(self.at) < FRESH
    }

    /// Why it takes no chunks.
    fn refusal(&self) -> Option<String> {
        match &self.state.trouble {
            Some(trouble) => Some(trouble.clone()),
            None if self.state.bytes_free < ROOM_MIN => Some("full".to_owned()),
            None if self.state.objects_free == 0 => Some("out of objects".to_owned()),
            None => None,
        }
    }
}

impl Placement {
    pub fn new(world: World) -> Self {
        Self { world, inner: Mutex::default() }
    }

    pub fn observe(&self, states: Vec<OstState>) {
        let (at, wall) = (Instant::now(), wall_time(&self.world));
        let mut inner = self.lock();
        for state in states {
            inner.observed.insert(state.ost, Observed { state, at, wall });
        }
    }

    /// As many distinct OSTs as the layout asks for, or as there are: those of the stripe `kept`
    /// that still take chunks, then those that are wished for, then others except `exclude`.
    pub fn choose(
        &self,
        map: &FederationMap,
        layout: &Layout,
        (kept, wish): (&[OstIndex], &[OstIndex]),
        exclude: &[OstIndex],
    ) -> Result<Vec<OstIndex>> {
        // It was there when the layout was set: no file or directory is missing here.
        self.choose_among(map, layout, (kept, wish), exclude).map_err(|error| match error {
            Error::NoPool { pool } => Error::PoolGone { pool },
            other => other,
        })
    }

    fn choose_among(
        &self,
        map: &FederationMap,
        layout: &Layout,
        (kept, wish): (&[OstIndex], &[OstIndex]),
        exclude: &[OstIndex],
    ) -> Result<Vec<OstIndex>> {
        let is_good = |ost: &OstIndex| {
            !exclude.contains(ost) && map.ost(*ost).is_some_and(|ost| ost.is_active)
        };
        if layout.mirrors > 1 {
            let width = usize::from(layout.mirrors);
            let good = |column: &[OstIndex]| {
                column.iter().map(|ost| is_good(ost).then_some(*ost)).collect()
            };
            let kept = kept.chunks(width).map(good).collect();
            return self.choose_columns(map, layout, (kept, wish), exclude);
        }
        let kept: Vec<OstIndex> = kept.iter().copied().filter(is_good).collect();
        let active = check_pool(map, layout)?;
        let wanted = match layout.stripe_count {
            StripeCount::All => active.len(),
            StripeCount::Exactly(count) => usize::from(count).min(active.len()),
        };
        let mut chosen: Vec<OstIndex> = kept;
        // A wish may be anything that a client says.
        let is_member = |ost: &OstIndex| active.iter().any(|member| member.ost == *ost);
        for &ost in wish.iter().filter(|ost| is_good(ost) && is_member(ost)) {
            if !chosen.contains(&ost) {
                chosen.push(ost);
            }
        }
        chosen.truncate(wanted);
        let candidates: Vec<OstIndex> =
            active.iter().map(|ost| ost.ost).filter(|ost| !chosen.contains(ost)).collect();
        let mut inner = self.lock();
        let (usable, reasons) = inner.usable(&candidates, exclude, Instant::now());
        while chosen.len() < wanted {
            let rest: Vec<_> = usable.iter().filter(|(ost, _)| !chosen.contains(ost)).collect();
            // Silent ones only when nobody else is left.
            let has_fresh = rest.iter().any(|(_, weight)| weight.is_some());
            let turn = rest
                .into_iter()
                .filter(|(_, weight)| !has_fresh || weight.is_some())
                .map(|(ost, weight)| (*ost, weight.unwrap_or(1)))
                .collect();
            match inner.next_turn(turn, &self.world) {
                Some(ost) => chosen.push(ost),
                None => break,
            }
        }
        if chosen.is_empty() {
            let pool = PoolLabel(layout.pool.clone());
            return Err(Error::PoolFull { pool, reasons: reasons.join(", ") });
        }
        Ok(chosen)
    }

    /// What is known of every OST of the map.
    pub fn usage(&self, map: &FederationMap) -> Vec<OstUsage> {
        let now = Instant::now();
        let inner = self.lock();
        let usage = |ost: &Ost| {
            let observed = inner.observed.get(&ost.ost);
            let fresh = observed.filter(|observed| observed.is_fresh(now));
            OstUsage {
                ost: ost.ost,
                site: ost.site.clone(),
                is_active: ost.is_active,
                state: fresh.map(|observed| observed.state.clone()),
                heard: observed.map(|observed| observed.wall),
            }
        };
        map.osts.iter().map(usage).collect()
    }

    /// Is an OST full, as far as is known?
    pub fn is_tight(&self) -> bool {
        let now = Instant::now();
        let inner = self.lock();
        let is_full = |state: &OstState| {
            let may_be = state.bytes_total > 0 && state.is_read_only != Some(true);
            may_be && (state.bytes_free < ROOM_MIN || state.objects_free == 0)
        };
        inner.observed.values().any(|seen| seen.is_fresh(now) && is_full(&seen.state))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Those that take chunks, with their free bytes if they are known; and why the others do not.
    #[allow(clippy::type_complexity)]
    fn usable(
        &self,
        candidates: &[OstIndex],
        exclude: &[OstIndex],
        now: Instant,
    ) -> (Vec<(OstIndex, Option<u64>)>, Vec<String>) {
        let (mut usable, mut reasons) = (vec![], vec![]);
        for &ost in candidates {
            let fresh = self.observed.get(&ost).filter(|observed| observed.is_fresh(now));
            let refusal = match fresh {
                _ if exclude.contains(&ost) => Some("refused the writer".to_owned()),
                Some(observed) => observed.refusal(),
                None => None,
            };
            match refusal {
                Some(reason) => reasons.push(format!("{} {reason}", ost.label())),
                None => usable.push((ost, fresh.map(|observed| observed.state.bytes_free))),
            }
        }
        (usable, reasons)
    }

    /// Whose turn it is among OSTs with their free bytes.
    fn next_turn(&mut self, turn: Vec<(OstIndex, u64)>, world: &World) -> Option<OstIndex> {
        let emptiest = turn.iter().map(|(_, free)| *free).max()?.max(1);
        let mut total = 0;
        for (ost, free) in &turn {
            let share = (u128::from(*free) * u128::from(SHARES) / u128::from(emptiest)) as u64;
            let share = if share >= BALANCED { SHARES } else { share.max(1) } as i64;
            let lot = || (world.random() % SHARES) as i64;
            *self.due.entry(*ost).or_insert_with(lot) += share;
            total += share;
        }
        let (ost, _) = turn
            .into_iter()
            .max_by_key(|(ost, _)| (self.due.get(ost).copied(), std::cmp::Reverse(*ost)))?;
        *self.due.entry(ost).or_default() -= total;
        Some(ost)
    }
}

/// The active OSTs of a layout's pool; an error that says what is wrong with it if there is none.
pub fn check_pool<'m>(map: &'m FederationMap, layout: &Layout) -> Result<Vec<&'m Ost>> {
    active_osts(map, layout.pool.as_ref())
}

/// The active OSTs of a pool, or of all.
pub fn active_osts<'m>(map: &'m FederationMap, pool: Option<&PoolName>) -> Result<Vec<&'m Ost>> {
    let label = || PoolLabel(pool.cloned());
    let members: Vec<&Ost> = match pool {
        None => map.osts.iter().collect(),
        Some(name) => {
            let pool = map.pool(name).ok_or_else(|| Error::NoPool { pool: name.clone() })?;
            pool.osts.iter().filter_map(|ost| map.ost(*ost)).collect()
        }
    };
    if members.is_empty() {
        return Err(Error::PoolEmpty { pool: label() });
    }
    let active: Vec<&Ost> = members.into_iter().filter(|ost| ost.is_active).collect();
    if active.is_empty() { Err(Error::PoolInactive { pool: label() }) } else { Ok(active) }
}

pub fn wall_time(world: &World) -> Time {
    Time::of_clock(world.clock.wall())
}

#[cfg(test)]
mod tests;
