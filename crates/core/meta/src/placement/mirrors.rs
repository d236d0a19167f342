//! Stripes with several mirrors: a column per stripe, in it one OST per mirror.
//!
//! The copies of a column are on different OSTs, always; at different sites, else behind different
//! servers, as far as the pools allow it. First copies go round as those of unmirrored files do;
//! further copies are spread evenly over the OSTs that suit equally well.
//!
//! Invariants: an OST is in a column once, or stands again for a mirror that found none; in each
//! column one OST at least takes chunks, and all that the pools have and the column has room for.

use super::{Inner, Placement, active_osts};
use crate::error::{Error, PoolLabel, Result};
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::map::{FederationMap, Ost};
use tieline_types::{Layout, OstIndex, PoolName, StripeCount};
use tokio::time::Instant;

/// What one mirror of one column is drawn from.
struct Draw<'a> {
    map: &'a FederationMap,
    pool: Option<&'a PoolName>,
    column: &'a [OstIndex],
    /// How often each OST has this part already.
    used: &'a BTreeMap<OstIndex, u32>,
    exclude: &'a [OstIndex],
    /// Chosen among equals.
    wish: Option<OstIndex>,
}

/// How well an OST suits a column: the less the better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// It said that it takes no chunks, or a writer said so.
    is_refusing: bool,
    is_silent: bool,
    shares_site: bool,
    shares_server: bool,
    is_other: bool,
    used: u32,
}

impl Placement {
    /// A stripe of the layout: what is `kept` of an earlier one stays in its place.
    pub(super) fn choose_columns(
        &self,
        map: &FederationMap,
        layout: &Layout,
        (kept, wish): (Vec<Vec<Option<OstIndex>>>, &[OstIndex]),
        exclude: &[OstIndex],
    ) -> Result<Vec<OstIndex>> {
        let active = active_osts(map, layout.pool_of_mirror(0))?;
        let columns = match layout.stripe_count {
            StripeCount::All => active.len(),
            StripeCount::Exactly(count) => usize::from(count).min(active.len()),
        };
        let mut inner = self.lock();
        let mut used = [BTreeMap::new(), BTreeMap::new()];
        let mut stripe = Vec::new();
        for index in 0..columns {
            let own = kept.get(index).map(Vec::as_slice).unwrap_or_default();
            let width = usize::from(layout.mirrors);
            let wish = wish.chunks(width).nth(index).unwrap_or_default();
            let drawn = inner.column(self, (map, layout), (own, wish), exclude, &mut used);
            match drawn {
                Ok(column) => stripe.extend(column),
                // A narrower stripe is better than none.
                Err(_) if index > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(stripe)
    }

    /// OSTs for further copies of a chunk that lies on `there`: up to `count`.
    pub fn choose_more(
        &self,
        map: &FederationMap,
        layout: &Layout,
        there: &[OstIndex],
        count: usize,
    ) -> Result<Vec<OstIndex>> {
        let mut inner = self.lock();
        let mut column = there.to_vec();
        for _ in 0..count {
            let mirror = mirror_without(map, layout, &column);
            let draw = Draw {
                map,
                pool: layout.pool_of_mirror(mirror),
                column: &column,
                used: &BTreeMap::new(),
                exclude: &[],
                wish: None,
            };
            match inner.draw(self, &draw)? {
                Some((ost, true)) => column.push(ost),
                Some((_, false)) | None => break,
            }
        }
        Ok(column.split_off(there.len()))
    }

    /// Did the OST's server answer lately?
    pub fn is_heard(&self, ost: OstIndex, within: std::time::Duration) -> bool {
        let inner = self.lock();
        inner.observed.get(&ost).is_some_and(|observed| observed.at.elapsed() < within)
    }
}

/// The first mirror whose pool has none of `column`; the last one if each has.
fn mirror_without(map: &FederationMap, layout: &Layout, column: &[OstIndex]) -> usize {
    let mut left: Vec<OstIndex> = column.to_vec();
    for mirror in 0..usize::from(layout.mirrors) {
        let members = active_osts(map, layout.pool_of_mirror(mirror)).unwrap_or_default();
        let is_member = |ost: &OstIndex| members.iter().any(|member| member.ost == *ost);
        match left.iter().position(is_member) {
            Some(at) => drop(left.remove(at)),
            None => return mirror,
        }
    }
    usize::from(layout.mirrors).saturating_sub(1)
}

impl Inner {
    fn column(
        &mut self,
        placement: &Placement,
        (map, layout): (&FederationMap, &Layout),
        (kept, wish): (&[Option<OstIndex>], &[OstIndex]),
        exclude: &[OstIndex],
        used: &mut [BTreeMap<OstIndex, u32>; 2],
    ) -> Result<Vec<OstIndex>> {
        let mirrors = usize::from(layout.mirrors);
        // What is kept stays where it stands; an OST stands once.
        let mut slots: Vec<Option<OstIndex>> = vec![None; mirrors];
        for (mirror, ost) in kept.iter().take(mirrors).enumerate() {
            slots[mirror] = ost.filter(|_| !slots.contains(ost));
        }
        let mut taking = slots.iter().flatten().count();
        for mirror in 0..mirrors {
            let part = usize::from(mirror > 0);
            let taken: Vec<OstIndex> = slots.iter().copied().flatten().collect();
            let pool = layout.pool_of_mirror(mirror);
            let wish = wish.get(mirror).copied();
            let draw = Draw { map, pool, column: &taken, used: &used[part], exclude, wish };
            if slots[mirror].is_none() {
                let Some((ost, is_taking)) = self.draw(placement, &draw)? else { continue };
                if part == 0 && used[part].contains_key(&ost) {
                    return Err(self.refusal(&draw));
                }
                taking += usize::from(is_taking);
                slots[mirror] = Some(ost);
            }
            if let Some(ost) = slots[mirror] {
                *used[part].entry(ost).or_default() += 1;
            }
        }
        let mut column: Vec<OstIndex> = slots.into_iter().flatten().collect();
        if taking == 0 {
            let pool = layout.pool_of_mirror(mirrors - 1);
            let used = &BTreeMap::new();
            let draw = Draw { map, pool, column: &[], used, exclude, wish: None };
            return Err(self.refusal(&draw));
        }
        // Mirrors that found no OST of their own.
        while let Some(&first) = column.first().filter(|_| column.len() < mirrors) {
            column.push(first);
        }
        Ok(column)
    }

    /// The best OST for a part of a column, and whether it takes chunks as far as is known.
    fn draw(&mut self, placement: &Placement, draw: &Draw<'_>) -> Result<Option<(OstIndex, bool)>> {
        let active = active_osts(draw.map, draw.pool)?;
        let candidates: Vec<OstIndex> =
            active.iter().map(|ost| ost.ost).filter(|ost| !draw.column.contains(ost)).collect();
        let (usable, _) = self.usable(&candidates, draw.exclude, Instant::now());
        let usable: BTreeMap<OstIndex, Option<u64>> = usable.into_iter().collect();
        let rank = |ost: OstIndex| draw.rank(ost, usable.get(&ost).copied());
        let Some(best) = candidates.iter().map(|&ost| rank(ost)).min() else { return Ok(None) };
        let turn = candidates
            .into_iter()
            .filter(|&ost| rank(ost) == best)
            .map(|ost| (ost, usable.get(&ost).copied().flatten().unwrap_or(1)))
            .collect();
        Ok(self.next_turn(turn, &placement.world).map(|ost| (ost, !best.is_refusing)))
    }

    fn refusal(&self, draw: &Draw<'_>) -> Error {
        let active = active_osts(draw.map, draw.pool).unwrap_or_default();
        let candidates: Vec<OstIndex> = active.iter().map(|ost| ost.ost).collect();
        let (_, reasons) = self.usable(&candidates, draw.exclude, Instant::now());
        Error::PoolFull { pool: PoolLabel(draw.pool.cloned()), reasons: reasons.join(", ") }
    }
}

impl Draw<'_> {
    /// `free`: whether it takes chunks, and its free bytes if it was heard lately.
    fn rank(&self, ost: OstIndex, free: Option<Option<u64>>) -> Rank {
        let own = self.map.ost(ost);
        let others = || self.column.iter().filter_map(|&other| self.map.ost(other));
        let shares = |same: fn(&Ost, &Ost) -> bool| {
            own.is_some_and(|own| others().any(|other| same(own, other)))
        };
        let is_wished = self.wish == Some(ost) && !self.exclude.contains(&ost);
        Rank {
            // Who was granted room knows better.
            is_refusing: free.is_none() && !is_wished,
            is_silent: free.flatten().is_none() && !is_wished,
            shares_site: shares(|a, b| a.site == b.site),
            shares_server: shares(|a, b| a.addresses == b.addresses),
            is_other: !is_wished,
            used: self.used.get(&ost).copied().unwrap_or(0),
        }
    }
}

/// Refuses a layout whose mirrors cannot lie on different OSTs.
pub fn check_mirrors(map: &FederationMap, layout: &Layout) -> Result<()> {
    let mut wanted: BTreeMap<Option<&PoolName>, usize> = BTreeMap::new();
    for mirror in 0..usize::from(layout.mirrors) {
        *wanted.entry(layout.pool_of_mirror(mirror)).or_default() += 1;
    }
    for (pool, mirrors) in wanted {
        let have = active_osts(map, pool)?.len();
        if have < mirrors {
            return Err(Error::PoolSmall { pool: PoolLabel(pool.cloned()), have, mirrors });
        }
    }
    Ok(())
}

/// How many copies a commit waits for unless told otherwise: all within a site, one across sites.
pub fn sync_copies(map: &FederationMap, layout: &Layout) -> Result<u8> {
    let mut sites = BTreeSet::new();
    for mirror in 0..usize::from(layout.mirrors) {
        let osts = active_osts(map, layout.pool_of_mirror(mirror))?;
        sites.extend(osts.into_iter().map(|ost| ost.site.clone()));
    }
    Ok(if sites.len() > 1 { 1 } else { layout.mirrors })
}
