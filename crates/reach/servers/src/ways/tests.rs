//! How many connections there are, which is chosen, and which are filled.

use super::*;
use bytes::Bytes;
use std::collections::BTreeSet;
use tieline_net::{Incoming, Outgoing, Standing};
use tieline_types::{Grant, SessionId};
use tieline_wire::Op;
use tieline_wire::data::FillReply;
use tokio::task::JoinSet;

#[derive(Default)]
struct Line {
    round_trip: Mutex<Option<Duration>>,
    stands: Mutex<bool>,
    warmed: AtomicUsize,
    filled: AtomicUsize,
    /// A fill takes so long; without, it ends with an error.
    fills_in: Mutex<Option<Duration>>,
}

#[async_trait::async_trait]
impl Channel for Line {
    async fn exchange(&self, _: Outgoing) -> Result<Incoming, CallError> {
        self.filled.fetch_add(1, Ordering::Relaxed);
        let closed = || CallError::Closed { server: String::new() };
        let time = self.fills_in.lock().unwrap().ok_or_else(closed)?;
        tokio::time::sleep(time).await;
        let (body, bulk) = (tieline_wire::encode(&FillReply {}).into(), Bytes::new());
        Ok(Incoming { op: Op::Fill, body, bulk, held: None })
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
    let lines: Vec<Arc<Line>> = (0..FAR_MOST).map(|_| Arc::default()).collect();
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

/// How many connections to a near server were made, and by how many four long answers come.
fn by_how_many_comes_what_is_long() -> (usize, usize) {
    let (lines, ways) = ways();
    let told = || lines.iter().filter(|line| line.warmed.load(Ordering::Relaxed) > 0);
    let stand = || told().for_each(|line| *line.stands.lock().unwrap() = true);
    ways.warm();
    stand();
    drop(ways.choose(LONG_FROM - 1));
    assert_eq!(told().count(), 1, "nothing long was asked for");
    drop(ways.choose(LONG_FROM));
    stand();
    let long: Vec<Chosen> = (0..4).filter_map(|_| ways.choose(LONG_FROM)).collect();
    let used: BTreeSet<usize> = long.iter().map(|chosen| index(&lines, chosen)).collect();
    (told().count(), used.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn what_is_long_comes_by_as_many_connections_as_there_are_workers() {
    assert_eq!(by_how_many_comes_what_is_long(), (3, 3));
}

#[tokio::test]
async fn one_worker_has_one_connection() {
    assert_eq!(by_how_many_comes_what_is_long(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn where_losses_slow_what_lasts_gets_many_connections() {
    let (lines, ways) = ways();
    *lines[0].round_trip.lock().unwrap() = Some(FAR_FROM);
    let warmed = || lines.iter().filter(|line| line.warmed.load(Ordering::Relaxed) > 0).count();
    let read = async |seconds, weight| {
        for _ in 0..seconds * 4 {
            drop(ways.choose(weight));
            tokio::time::advance(SECOND / 4).await;
        }
        ways.are_many()
    };
    ways.warm();
    assert!(!read(LONG * 2, MUCH / 4).await);
    tokio::time::advance(2 * SECOND).await;
    ways.told(true);
    assert!(!read(LONG * 2, MUCH / 5).await, "it is little");
    assert!(!read(LONG - 1, MUCH / 4).await);
    tokio::time::advance(2 * SECOND).await;
    assert!(!read(LONG, MUCH / 4).await, "there was a pause");
    assert_eq!(warmed(), FAR);
    assert!(read(1, MUCH / 4).await);
    assert_eq!(warmed(), FAR_MOST);
    tokio::time::advance(2 * SECOND).await;
    assert!(!read(1, MUCH / 4).await);
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

/// How many of a far server's connections were filled.
async fn filled(fills_in: Option<Duration>) -> usize {
    let (lines, ways) = ways();
    *lines[0].round_trip.lock().unwrap() = Some(FAR_FROM);
    lines.iter().for_each(|line| *line.fills_in.lock().unwrap() = fills_in);
    let ways = Arc::new(ways);
    let fill = |way| {
        let ways = ways.clone();
        async move { ways.fill(way).await }
    };
    (0..FAR_MOST + 1).map(fill).collect::<JoinSet<_>>().join_all().await;
    // It stands again.
    ways.fill(0).await;
    lines.iter().map(|line| line.filled.load(Ordering::Relaxed)).sum()
}

#[tokio::test(start_paused = true)]
async fn connections_are_filled_where_that_is_quick() {
    assert_eq!(filled(Some(FAR_FROM * 4)).await, FAR);
    assert_eq!(filled(Some(FAR_FROM * 30)).await, 1, "the way is narrow");
    assert_eq!(filled(None).await, FAR, "each is tried, once");
    let (lines, ways) = ways();
    *lines[0].round_trip.lock().unwrap() = Some(FAR_FROM / 2);
    ways.fill(0).await;
    assert_eq!(lines[0].filled.load(Ordering::Relaxed), 0, "it is near");
}

#[tokio::test(start_paused = true)]
async fn the_one_connection_of_an_mds_is_filled_by_and_by() {
    let filled = async |round_trip, fills_in| {
        let (lines, ways) = ways();
        *lines[0].round_trip.lock().unwrap() = Some(round_trip);
        *lines[0].fills_in.lock().unwrap() = fills_in;
        ways.fill_by_and_by().await;
        // It stands again.
        ways.fill_by_and_by().await;
        assert!(lines[1..].iter().all(|line| line.filled.load(Ordering::Relaxed) == 0));
        lines[0].filled.load(Ordering::Relaxed)
    };
    assert_eq!(filled(FAR_FROM, Some(FAR_FROM)).await, 5, "12, 24, … 192 KiB");
    let steps = 1 + FILL_AGAIN as usize;
    assert_eq!(filled(FAR_FROM, Some(FAR_FROM * 3)).await, steps, "the way is narrow");
    assert_eq!(filled(FAR_FROM, None).await, 1, "it does not know how");
    assert_eq!(filled(FAR_FROM / 2, Some(FAR_FROM)).await, 0, "it is near");
}
