//! The connections to one server: how many, which one takes the next request, and how far it is.
//!
//! One stream is limited by its window, its buffers and its losses: several fill a long way better.
//! Near servers get few. A request goes to the connection that has the fewest bytes under way, so
//! that one that lost a packet gets less to do. Connections are made before they are needed, since
//! each must find out the rate of its way by itself.
//!
//! Invariants: there are never more than [`FAR`] connections; each is told to connect once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tieline_net::Channel;

/// To a server nearby: one for long answers beside one for others.
const NEAR: usize = 2;
/// To a far one. Eight streams of CUBIC kept 62 % of 1 Gbit/s over 50 ms where one packet in ten
/// thousand was lost, one stream 16 %. The default buffers of eight hold 32 MiB.
pub(crate) const FAR: usize = 8;
/// From this round trip on a server is far.
pub(crate) const FAR_FROM: Duration = Duration::from_millis(2);

pub(crate) struct Ways {
    ways: Vec<Way>,
    turn: AtomicUsize,
    /// So many were told to connect.
    warmed: AtomicUsize,
}

struct Way {
    channel: Arc<dyn Channel>,
    /// Bytes under way, both directions.
    load: Arc<AtomicU64>,
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
        let way = |channel| Way { channel, load: Arc::default() };
        let ways = channels.into_iter().map(way).collect();
        Self { ways, turn: AtomicUsize::new(0), warmed: AtomicUsize::new(0) }
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

    fn in_use(&self) -> &[Way] {
        let count = if self.is_far() { FAR } else { NEAR };
        self.ways.get(..count).unwrap_or(&self.ways)
    }

    /// The connection for a request that moves about `weight` bytes: of those that stand, one with
    /// the least under way.
    pub fn choose(&self, weight: u64) -> Option<Chosen> {
        let ways = self.in_use();
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % ways.len().max(1);
        let (early, late) = ways.split_at_checked(first)?;
        let cost = |way: &&Way| {
            let stands = way.channel.standing().is_some_and(|standing| standing.is_connected);
            (!stands, way.load.load(Ordering::Relaxed))
        };
        let way = late.iter().chain(early).min_by_key(cost)?;
        way.load.fetch_add(weight, Ordering::Relaxed);
        Some(Chosen { channel: way.channel.clone(), load: way.load.clone(), weight })
    }

    /// Makes the connections that are to be expected: the first, and when that says that the server
    /// is far, all.
    pub fn warm(&self) {
        let wanted = if self.is_far() { self.ways.len() } else { 1 };
        let done = self.warmed.fetch_max(wanted, Ordering::Relaxed);
        for way in self.ways.iter().take(wanted).skip(done) {
            way.channel.warm();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tieline_net::{CallError, Incoming, Outgoing, Standing};
    use tieline_types::{Grant, SessionId};

    #[derive(Default)]
    struct Line {
        round_trip: Mutex<Option<Duration>>,
        stands: Mutex<bool>,
        warmed: AtomicUsize,
    }

    #[async_trait::async_trait]
    impl Channel for Line {
        async fn exchange(&self, _: Outgoing) -> Result<Incoming, CallError> {
            Err(CallError::Closed { server: String::new() })
        }

        fn standing(&self) -> Option<Standing> {
            Some(Standing {
                session: SessionId(1),
                grant: Grant(1),
                boot: 1,
                lease: Duration::ZERO,
                holder: None,
                is_connected: *self.stands.lock().unwrap(),
            })
        }

        fn round_trips(&self) -> u64 {
            0
        }

        fn warm(&self) {
            self.warmed.fetch_add(1, Ordering::Relaxed);
        }

        fn round_trip(&self) -> Option<Duration> {
            *self.round_trip.lock().unwrap()
        }

        async fn close(&self, _: Duration) {}
    }

    fn ways() -> (Vec<Arc<Line>>, Ways) {
        let lines: Vec<Arc<Line>> = (0..FAR).map(|_| Arc::default()).collect();
        let channels = lines.iter().map(|line| line.clone() as Arc<dyn Channel>).collect();
        (lines, Ways::new(channels))
    }

    fn index(lines: &[Arc<Line>], chosen: &Chosen) -> usize {
        let at = Arc::as_ptr(&chosen.channel).cast::<()>();
        lines.iter().position(|line| Arc::as_ptr(line).cast::<()>() == at).unwrap()
    }

    #[test]
    fn far_servers_get_more_connections_made_ahead() {
        let (lines, ways) = ways();
        let told = || lines.iter().map(|line| line.warmed.load(Ordering::Relaxed)).sum::<usize>();
        ways.warm();
        ways.warm();
        assert_eq!(told(), 1);
        *lines[0].round_trip.lock().unwrap() = Some(FAR_FROM);
        ways.warm();
        ways.warm();
        assert_eq!(told(), FAR, "each once");
    }

    #[test]
    fn the_least_loaded_that_stands_is_chosen() {
        let (lines, ways) = ways();
        *lines[0].round_trip.lock().unwrap() = Some(FAR_FROM);
        for line in &lines[1..] {
            *line.stands.lock().unwrap() = true;
        }
        let mut under_way: Vec<Chosen> = (1..FAR).filter_map(|_| ways.choose(100)).collect();
        let mut used: Vec<usize> = under_way.iter().map(|one| index(&lines, one)).collect();
        used.sort_unstable();
        assert_eq!(used, (1..FAR).collect::<Vec<_>>(), "each once, and not the one that is down");
        let free = under_way.swap_remove(3);
        let freed = index(&lines, &free);
        drop(free);
        assert_eq!(index(&lines, &ways.choose(1).unwrap()), freed);
    }
}
