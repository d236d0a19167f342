//! What the bytes of a file will take, and where: drawn before a close is answered for them.
//!
//! A file without a place gets one wished for: OSTs of its pool where there is room, by turns and
//! by how empty they are, mirrors at different sites if the pools allow it. The MDS does as wished
//! unless its own rules say otherwise.
//!
//! OSTs that failed lately are not counted on where others have room: what they miss is copied
//! later, as if they had failed now.

use super::active_osts;
use crate::file::{File, State};
use crate::shared::Shared;
use crate::writer::{How, Sealing, width};
use std::collections::BTreeMap;
use std::sync::Arc;
use tieline_format::map::FederationMap;
use tieline_granted::Spending;
use tieline_types::{FileId, Layout, OstIndex, StripeCount};
use tieline_wire::data::GrantRoom;

/// Wider wishes are not made: such files are placed before they are closed.
const COLUMNS_MAX: usize = 8;

/// Whether a file's bytes have their room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Covered {
    Yes,
    /// OSTs were asked and have not answered.
    MayBe,
    No,
}

impl Shared {
    /// Draws room for all of a file that was written and is not stored.
    pub(crate) fn cover(self: &Arc<Self>, id: FileId, state: &mut State) -> Covered {
        let layout = state.layout.clone().unwrap_or_default();
        let runs = unsent(state);
        if runs.is_empty() {
            return Covered::Yes;
        }
        let believed = self.servers.map.current();
        let is_placed = !state.stripe.is_empty();
        let columns = match (is_placed, layout.stripe_count) {
            (true, _) => layout.columns(&state.stripe),
            (false, count) => columns_of(&believed.map, &layout, count),
        };
        let mut lengths: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (offset, length) in runs {
            let column = layout.stripe_index(offset, columns);
            lengths.entry(column).or_default().push(length);
        }
        let count = lengths.keys().next_back().map_or(0, |last| last + 1);
        if !is_placed && state.room.wish.is_empty() {
            if !self.servers.heeds_wishes(id.mdt()) || count > COLUMNS_MAX {
                return Covered::No;
            }
            match self.wished_stripe(&believed.map, &layout, &lengths, count) {
                Some(wish) => state.room.wish = wish,
                None => return self.not_covered(&self.room_candidates(Some(&layout))),
            }
        }
        let stripe = if is_placed { &state.stripe } else { &state.room.wish };
        let Some(osts) = self.counted_on(&layout, stripe, lengths.keys().copied()) else {
            return self.not_covered(stripe);
        };
        let mut need: BTreeMap<OstIndex, u64> = BTreeMap::new();
        for (column, ost) in osts {
            let unit = self.rooms.unit(ost);
            let lengths = lengths.get(&column).into_iter().flatten();
            let cost: u64 = lengths.map(|&length| GrantRoom::cost(length, unit)).sum();
            *need.entry(ost).or_default() += cost;
        }
        let is_drawn = state.room.draw(&self.rooms, &need);
        let osts: Vec<OstIndex> = need.into_keys().collect();
        self.refill(&osts);
        if is_drawn {
            return Covered::Yes;
        }
        // The next try may find others.
        state.room.rest();
        self.not_covered(&osts)
    }

    fn not_covered(self: &Arc<Self>, osts: &[OstIndex]) -> Covered {
        self.refill(osts);
        let is_asking = |&ost: &OstIndex| self.rooms.is_asking(ost);
        if osts.iter().any(is_asking) { Covered::MayBe } else { Covered::No }
    }

    /// More is written to a file that is answered for: does that have its room too?
    pub(crate) fn covers_more(&self, state: &mut State, length: u64) -> bool {
        state.deferred.is_none() || state.room.draw_more(length)
    }

    /// Room for a put of a file's chunk.
    pub(crate) fn spend(self: &Arc<Self>, file: &File, ost: OstIndex, length: u64) -> Spending {
        let spending = file.with(|state| state.room.spend(&self.rooms, ost, length));
        self.refill(&[ost]);
        spending
    }

    /// The OSTs of these columns that must have room: those that did not fail lately, one at least.
    fn counted_on(
        &self,
        layout: &Layout,
        stripe: &[OstIndex],
        columns: impl Iterator<Item = usize>,
    ) -> Option<Vec<(usize, OstIndex)>> {
        let width = usize::from(layout.mirrors.max(1)).min(stripe.len());
        let mut counted = Vec::new();
        for column in columns {
            let mut osts = stripe.get(column * width..(column + 1) * width)?.to_vec();
            osts.sort_unstable();
            osts.dedup();
            let well: Vec<_> = osts.into_iter().filter(|&ost| !self.poor.is_poor(ost)).collect();
            if well.is_empty() {
                return None;
            }
            counted.extend(well.into_iter().map(|ost| (column, ost)));
        }
        Some(counted)
    }

    /// The first columns of a stripe in which there is room for what each is to take.
    fn wished_stripe(
        &self,
        map: &FederationMap,
        layout: &Layout,
        lengths: &BTreeMap<usize, Vec<u64>>,
        count: usize,
    ) -> Option<Vec<OstIndex>> {
        let mut wish: Vec<OstIndex> = Vec::new();
        let mut choosing = self.rooms.choosing();
        for column in 0..count {
            let lengths = lengths.get(&column).map(Vec::as_slice).unwrap_or_default();
            let first = wish.len();
            for mirror in 0..usize::from(layout.mirrors.max(1)) {
                let own = wish.get(first..).unwrap_or_default().to_vec();
                let others = wish.get(..first).unwrap_or_default();
                let members = active_osts(map, layout.pool_of_mirror(mirror));
                let well: Vec<OstIndex> = members
                    .into_iter()
                    .filter(|ost| !own.contains(ost) && (mirror > 0 || !others.contains(ost)))
                    .filter(|&ost| !self.poor.is_poor(ost))
                    .collect();
                let best = well.iter().map(|&ost| nearness(map, ost, &own)).min();
                let Some(best) = best else {
                    // As the MDS does it: those that are left suffice.
                    let first = own.first().copied().filter(|_| mirror > 0)?;
                    wish.push(first);
                    continue;
                };
                let mut turn: Vec<OstIndex> =
                    well.into_iter().filter(|&ost| nearness(map, ost, &own) == best).collect();
                turn.retain(|ost| choosing.has_room(*ost, lengths));
                wish.push(choosing.next_turn(&turn, || self.servers.world().random())?);
            }
        }
        Some(wish)
    }
}

/// How much a further copy shares with those before it.
fn nearness(map: &FederationMap, ost: OstIndex, others: &[OstIndex]) -> (bool, bool) {
    let Some(own) = map.ost(ost) else { return (true, true) };
    let mut found = (false, false);
    for other in others.iter().filter_map(|&other| map.ost(other)) {
        found.0 |= own.site == other.site;
        found.1 |= own.addresses == other.addresses;
    }
    found
}

/// How many columns a stripe will have.
fn columns_of(map: &FederationMap, layout: &Layout, count: StripeCount) -> usize {
    let active = active_osts(map, layout.pool_of_mirror(0)).len();
    match count {
        StripeCount::All => active.max(1),
        StripeCount::Exactly(count) => usize::from(count).min(active).max(1),
    }
}

/// Offset and length of the chunks that are to be sent or are on their way.
fn unsent(state: &State) -> Vec<(u64, u64)> {
    let layout = state.layout.clone().unwrap_or_default();
    let width = width(state);
    let mut unsent = state.overlay.sending();
    for run in Sealing::of(state, How::Flush).chunks {
        let mut at = run.start;
        while at < run.end {
            let end = layout.cut_end(at, width).min(run.end);
            unsent.push((at, end - at));
            at = end;
        }
    }
    unsent
}
