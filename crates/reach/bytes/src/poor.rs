//! OSTs that failed puts lately.
//!
//! One that failed rests for some seconds where other copies suffice. Until it has taken a chunk
//! again, or for some minutes, nobody waits for copies there while there are others to wait for.

use crate::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;
use tieline_types::OstIndex;
use tokio::time::Instant;

/// It gets no chunks for so long, if other copies suffice.
const REST: Duration = Duration::from_secs(10);
/// After this long it is waited for as any other.
const REMEMBERED: Duration = Duration::from_secs(300);

#[derive(Default)]
pub struct PoorOsts(Mutex<BTreeMap<OstIndex, Failed>>);

#[derive(Clone, Copy)]
struct Failed {
    since: Instant,
    last: Instant,
    is_refusal: bool,
}

impl PoorOsts {
    /// It did not take a chunk. A refusal says that it takes none, whoever sends it.
    pub fn failed(&self, ost: OstIndex, is_refusal: bool) {
        let last = Instant::now();
        let since = self.about(&ost).map_or(last, |before| before.since);
        lock(&self.0).insert(ost, Failed { since, last, is_refusal });
    }

    pub fn worked(&self, ost: OstIndex) {
        lock(&self.0).remove(&ost);
    }

    fn about(&self, ost: &OstIndex) -> Option<Failed> {
        lock(&self.0).get(ost).copied().filter(|failed| failed.since.elapsed() < REMEMBERED)
    }

    pub fn is_poor(&self, ost: OstIndex) -> bool {
        self.about(&ost).is_some()
    }

    pub fn is_resting(&self, ost: OstIndex) -> bool {
        self.about(&ost).is_some_and(|failed| failed.last.elapsed() < REST)
    }

    /// Did it say that it takes no chunks?
    pub fn has_refused(&self, ost: &OstIndex) -> bool {
        self.about(ost).is_some_and(|failed| failed.is_refusal)
    }

    /// Those of a column for which the MDS is asked for others first: without them too few are left
    /// to wait for (`enough`), but some.
    pub fn spared_in(&self, column: &[OstIndex], enough: usize) -> BTreeSet<OstIndex> {
        let poor = column.iter().copied().filter(|&ost| self.is_poor(ost));
        let poor: BTreeSet<OstIndex> = poor.collect();
        let well = column.len() - poor.len();
        if well == 0 || well >= enough { BTreeSet::new() } else { poor }
    }

    /// Those to send to.
    pub fn worth_trying(&self, column: &[OstIndex], enough: usize) -> Vec<OstIndex> {
        let awake = column.iter().copied().filter(|&ost| !self.is_resting(ost));
        let awake: Vec<OstIndex> = awake.collect();
        if awake.len() >= enough { awake } else { column.to_vec() }
    }
}
