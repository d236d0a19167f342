//! The connections to one server: how many, which one takes the next request, and how far it is.
//!
//! One stream is limited by its window, its buffers and its losses: several fill a long way better.
//! Near servers get one, and more for what is long where several workers can seal and open. A
//! request goes to the connection that has the fewest bytes under way, so that one that lost a
//! packet gets less to do. Connections are made before they are needed, since each must find out
//! the rate of its way by itself: it begins with 14 KB per round trip (RFC 6928) and doubles that
//! with each. So a far one is filled as soon as it stands: it carries a little that nobody waits
//! for, and who reads first does not wait for that.
//!
//! Where each loss slows a stream down, who reads much for long gets more of them; those are not
//! filled.
//!
//! Invariants: there are never more than [`FAR_MOST`] connections; each is told to connect once,
//! and filled once: a server that starts again, with all its clients, is not asked for nothing by
//! each. Where the way is narrow only the first is filled.

use crate::lock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_net::{CallError, Channel};
use tieline_types::Caller;
use tieline_wire::data::Fill;
use tieline_world::Bulk;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// To a server nearby: the second is there for when the first is not.
const NEAR: usize = 2;
/// The same where as many workers seal and open: each has what goes by one connection, which takes
/// longer than what the reader does with it where a processor protects 2 GB/s. Where one worker has
/// all, two connections only share its cache: a write under krb5p took a tenth longer.
const NEAR_MOST: usize = 4;
/// What moves so much is long: connections are made for it.
const LONG_FROM: u64 = 1 << 20;
/// To a far one. The default buffers of eight hold 32 MiB.
const FAR: usize = 8;
/// To a far one whose streams each loss slows down, while much is asked for, for long. Over 50 ms
/// where one packet in ten thousand was lost, one stream of CUBIC kept 16 % of 1 Gbit/s, eight 36
/// to 65 %, 24 of them 78 % and more. Readers of little would find most of them cold.
pub(crate) const FAR_MOST: usize = 24;
/// Asked for within a second it is much.
const MUCH: u64 = 8 << 20;
const SECOND: Duration = Duration::from_secs(1);
/// For so many seconds, one after the other, it is long.
const LONG: u32 = 4;
/// From this round trip on a server is far.
pub const FAR_FROM: Duration = Duration::from_millis(2);

/// What each far connection carries as soon as it stands: five round trips, where the way is wide.
const FILL: u32 = Fill::LENGTH_MAX;
/// A way that takes more round trips for it is narrow: readers need all that it carries.
const FILL_TRIPS: u32 = 8;
/// What a connection carries in its first round trip: ten segments (RFC 6928), and what seals it.
const FILL_FIRST: u32 = 12 << 10;
/// Steps that are taken again because they took longer: other answers came beside them.
const FILL_AGAIN: u32 = 3;
const FILL_PATIENCE: Duration = Duration::from_secs(10);

pub struct Ways {
    ways: Vec<Way>,
    turn: AtomicUsize,
    /// Was the first fill that was answered quick?
    is_wide: OnceCell<bool>,
    /// So many were told to connect.
    warmed: AtomicUsize,
    slows_at_losses: AtomicBool,
    busy: Mutex<Busy>,
}

/// For how long much was asked for.
#[derive(Default)]
struct Busy {
    /// Seconds in which it was, without a pause.
    seconds: u32,
    /// Since when bytes are counted, and how many.
    span: Option<(Instant, u64)>,
}

struct Way {
    channel: Arc<dyn Channel>,
    /// Bytes under way, both directions.
    load: Arc<AtomicU64>,
    /// It was to be filled.
    is_filled: AtomicBool,
}

/// A connection that was chosen for a request, while that is under way.
pub(crate) struct Chosen {
    pub channel: Arc<dyn Channel>,
    load: Arc<AtomicU64>,
    weight: u64,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.load.fetch_sub(self.weight, Ordering::Relaxed);
    }
}

impl Ways {
    pub fn new(channels: Vec<Arc<dyn Channel>>) -> Self {
        let way =
            |channel| Way { channel, load: Arc::default(), is_filled: AtomicBool::new(false) };
        let ways = channels.into_iter().map(way).collect();
        let (turn, is_wide, warmed, slows_at_losses, busy) = Default::default();
        Self { ways, turn, is_wide, warmed, slows_at_losses, busy }
    }

    pub fn channels(&self) -> impl Iterator<Item = &Arc<dyn Channel>> {
        self.ways.iter().map(|way| &way.channel)
    }

    pub fn first(&self) -> Option<&Arc<dyn Channel>> {
        self.ways.first().map(|way| &way.channel)
    }

    /// The shortest round trip of late; `None` before anything was answered.
    pub fn round_trip(&self) -> Option<Duration> {
        self.ways.iter().filter_map(|way| way.channel.round_trip()).min()
    }

    pub fn is_far(&self) -> bool {
        self.round_trip().is_some_and(|round_trip| round_trip >= FAR_FROM)
    }

    /// Its server says whether losses slow down what it sends.
    pub fn told(&self, slows_at_losses: bool) {
        self.slows_at_losses.store(slows_at_losses, Ordering::Relaxed);
    }

    /// Are more connections in use than a far server has else?
    pub fn are_many(&self) -> bool {
        let slows = self.slows_at_losses.load(Ordering::Relaxed) && self.is_far();
        slows && lock(&self.busy).seconds >= LONG
    }

    fn in_use(&self) -> &[Way] {
        let count = match self.is_far() {
            false => near().max(NEAR),
            true if self.are_many() => FAR_MOST,
            true => FAR,
        };
        self.ways.get(..count).unwrap_or(&self.ways)
    }

    /// The connection for a request that moves about `weight` bytes: of those that stand, one with
    /// the least under way.
    pub(crate) fn choose(&self, weight: u64) -> Option<Chosen> {
        if weight >= LONG_FROM && !self.is_far() {
            self.warm_up_to(near());
        }
        // Nobody else asks for how long it lasts.
        if self.slows_at_losses.load(Ordering::Relaxed) {
            lock(&self.busy).asked(weight);
            if self.are_many() {
                self.warm();
            }
        }
        let ways = self.in_use();
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % ways.len().max(1);
        let (early, late) = ways.split_at_checked(first)?;
        let cost = |way: &&Way| {
            let stands = way.channel.standing().is_some_and(|standing| standing.is_connected);
            (!stands, way.load.load(Ordering::Relaxed))
        };
        let way = late.iter().chain(early).min_by_key(cost)?;
        Some(way.chosen(weight))
    }

    /// Has a connection to a far server, which stands now, find out what its way holds. Who reads
    /// much for long does not wait for that.
    pub async fn fill(&self, way: usize) {
        let way = self.ways.get(way).filter(|_| way < FAR && self.is_far());
        let Some(way) = way else { return };
        if way.is_filled.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut is_first = false;
        let first = async {
            is_first = true;
            let begun = Instant::now();
            way.fill(FILL).await?;
            Ok(begun.elapsed() <= self.round_trip().unwrap_or_default() * FILL_TRIPS)
        };
        let is_wide = self.is_wide.get_or_try_init(|| first).await;
        let outcome = match is_wide {
            Ok(true) if !is_first => way.fill(FILL).await,
            other => other.map(drop),
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "connection is not filled");
        }
    }

    /// The same for the one connection to a far MDS: by and by, for answers that somebody waits for
    /// come between. Where the way is narrow it ends soon: steps take longer than their round trip.
    pub async fn fill_by_and_by(&self) {
        let Some(way) = self.ways.first().filter(|_| self.is_far()) else { return };
        if way.is_filled.swap(true, Ordering::Relaxed) {
            return;
        }
        let (mut length, mut again) = (FILL_FIRST, FILL_AGAIN);
        while length <= FILL {
            let begun = Instant::now();
            if let Err(error) = way.fill(length).await {
                tracing::debug!(%error, "connection is not filled");
                return;
            }
            let is_quick = begun.elapsed() <= self.round_trip().unwrap_or_default() * 2;
            match (is_quick, again) {
                (true, _) => length *= 2,
                (false, 0) => return,
                (false, _) => again -= 1,
            }
        }
    }

    /// Makes the connections that are to be expected: the first, and when that says that the server
    /// is far, all.
    pub fn warm(&self) {
        self.warm_up_to(if self.is_far() { self.in_use().len() } else { 1 });
    }

    fn warm_up_to(&self, wanted: usize) {
        let done = self.warmed.fetch_max(wanted, Ordering::Relaxed);
        for way in self.ways.iter().take(wanted).skip(done) {
            way.channel.warm();
        }
    }
}

/// Connections to a near server that what is long is worth.
fn near() -> usize {
    let workers = Handle::try_current().map_or(1, |here| here.metrics().num_workers());
    workers.clamp(1, NEAR_MOST)
}

impl Busy {
    fn asked(&mut self, bytes: u64) {
        let now = Instant::now();
        let (since, count) = self.span.get_or_insert((now, 0));
        let took = now - *since;
        if took >= SECOND {
            let is_long = took < 2 * SECOND && *count >= MUCH;
            self.seconds = if is_long { self.seconds.saturating_add(1) } else { 0 };
            (*since, *count) = (now, 0);
        }
        *count += bytes;
    }
}

impl Way {
    fn chosen(&self, weight: u64) -> Chosen {
        self.load.fetch_add(weight, Ordering::Relaxed);
        Chosen { channel: self.channel.clone(), load: self.load.clone(), weight }
    }

    async fn fill(&self, length: u32) -> Result<(), CallError> {
        let (chosen, root) = (self.chosen(length.into()), Caller::root());
        let message = Fill { length };
        let (channel, patience) = (&*chosen.channel, Some(FILL_PATIENCE));
        tieline_net::call(channel, &root, message, Bulk::Empty, patience).await.map(drop)
    }
}

#[cfg(test)]
mod tests;
