//! Limits hold over several MDTs whatever is lost, delayed or forgotten between them.

use super::*;
use crate::fixture::*;
use crate::quotas::{Bound, Sum};
use crate::{LimitsKeeper, Mdt, Settings};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tieline_kv::MemoryStore;
use tieline_types::ErrorKind::{self, QuotaExceeded};
use tieline_types::quota::{Limits, PayerKind};
use tieline_types::{Caller, FileId};
use tieline_wire::Failure;
use tieline_wire::quotas::{
    GetQuota, Promise, Quota, QuotaNews, QuotaNewsReply, QuotaShares, QuotaSharesReply,
    ReclaimShares, SetProject, SetQuota,
};

const NOW: Time = Time { seconds: 1_000, nanos: 0 };
const HARD: u64 = 1 << 20;
const KIB: u64 = 1024;

fn ann() -> Payer {
    Payer { kind: PayerKind::User, id: 10, pool: None }
}

fn limited(is_home: bool) -> Table {
    let limits = Limits { bytes_hard: HARD, inodes_hard: 100, ..Limits::default() };
    let bounds = BTreeMap::from([(ann(), Bound { limits, ..Bound::default() })]);
    Table { is_home, bounds, ..Table::default() }
}

/// One MDT, and what its store would say after a restart.
struct Place {
    table: Table,
    /// Of a follower.
    share: Amount,
    /// Where limits are kept.
    others: BTreeMap<MdtIndex, There>,
}

impl Place {
    fn new(is_home: bool) -> Self {
        Self { table: limited(is_home), share: Amount::default(), others: BTreeMap::new() }
    }

    fn note(&mut self) {
        self.share = self.table.bounds[&ann()].share;
        self.others = self.table.others.get(&ann()).cloned().unwrap_or_default();
    }

    fn restart(&mut self) {
        let (used, is_home) = (self.table.used.clone(), self.table.is_home);
        self.table = Table { used, ..limited(is_home) };
        if let Some(bound) = self.table.bounds.get_mut(&ann()) {
            bound.share = self.share;
        }
        self.table.others.insert(ann(), self.others.clone());
    }

    /// Uses more or less, as far as it may.
    fn use_more(&mut self, bytes: i64, inodes: i64) {
        let sum = Sum { bytes, inodes };
        if self.table.check(&ann(), sum, 0, NOW).is_ok() {
            let used = self.table.used.entry(ann()).or_default();
            used.add(sum);
            (used.bytes, used.inodes) = (used.bytes.max(0), used.inodes.max(0));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Use(usize, i64, i64),
    /// A question after shares; how far it gets; whether the home is short.
    Ask(usize, u64, Way, bool),
    Restart(usize),
    /// Questions that were given up arrive after all.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Whole,
    LostBefore,
    LostAfter,
    /// The home dies when it has answered in memory, and before that is in the store.
    DiesThere,
    /// The follower dies with the answer in its hands.
    DiesHere,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let way = prop_oneof![
        4 => Just(Way::Whole),
        1 => Just(Way::LostBefore),
        1 => Just(Way::LostAfter),
        1 => Just(Way::DiesThere),
        1 => Just(Way::DiesHere),
    ];
    let more = -(HARD as i64) / 4..(HARD as i64) / 3;
    let step = prop_oneof![
        6 => (0..3usize, more, -20..30i64)
            .prop_map(|(at, bytes, inodes)| Step::Use(at, bytes, inodes)),
        6 => (1..3usize, 0..HARD, way, any::<bool>())
            .prop_map(|(at, needed, way, is_short)| Step::Ask(at, needed, way, is_short)),
        1 => (0..3usize).prop_map(Step::Restart),
        1 => Just(Step::Late),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn nothing_on_the_way_lets_more_in(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut places: Vec<Place> = (0..3).map(|at| Place::new(at == 0)).collect();
            // Of each MDT the newest question counts.
            let mut newest = [0u64; 3];
            let mut late: Vec<(usize, u64, ShareHeld)> = vec![];
            for step in steps {
                match step {
                    Step::Use(at, bytes, inodes) => places[at].use_more(bytes, inodes),
                    Step::Restart(at) => places[at].restart(),
                    Step::Late => {
                        for (at, number, held) in late.drain(..) {
                            if number >= newest[at] {
                                places[0].table.give(MdtIndex(at as u16), &held, 0, NOW);
                                places[0].note();
                            }
                        }
                    }
                    Step::Ask(at, needed, way, is_short) => {
                        let mdt = MdtIndex(at as u16);
                        let table = &mut places[at].table;
                        let bound = table.bounds.get_mut(&ann()).unwrap();
                        bound.short = is_short.then(tokio::time::Instant::now);
                        let needed = Amount { bytes: needed, inodes: needed / (HARD / 100) };
                        let held = table.weigh(&ann(), (0, needed), true, NOW).unwrap();
                        places[at].note();
                        newest[at] += 1;
                        if way == Way::LostBefore {
                            late.push((at, newest[at], held));
                            // It gives up, and asks anew some time.
                            newest[at] += 1;
                            continue;
                        }
                        let share = places[0].table.give(mdt, &held, 0, NOW);
                        if way == Way::DiesThere {
                            places[0].restart();
                            continue;
                        }
                        places[0].note();
                        if way == Way::LostAfter {
                            continue;
                        }
                        places[at].table.bounds.get_mut(&ann()).unwrap().share = share;
                        match way {
                            Way::DiesHere => places[at].restart(),
                            _ => places[at].note(),
                        }
                    }
                }
                let used = |resource: fn(&Sum) -> i64| -> i64 {
                    let used = places.iter().filter_map(|place| place.table.used.get(&ann()));
                    used.map(resource).sum()
                };
                assert!(used(|sum| sum.bytes) <= HARD as i64);
                assert!(used(|sum| sum.inodes) <= 100);
                for (place, at) in places.iter().zip(0u16..).skip(1) {
                    let has = place.table.bounds[&ann()].share;
                    let noted = places[0].table.there(MdtIndex(at), &ann()).unwrap_or_default();
                    assert!(has.bytes <= noted.share.bytes && has.inodes <= noted.share.inodes);
                }
            }
        });
    }
}

#[test]
fn what_is_left_is_shared_out() {
    // An eighth beyond what is in use, while there is room for all.
    assert_eq!(weigh_one(Some(800), (0, 10, 20), (true, 1 << 40), true), (0, 20, 110));
    assert_eq!(weigh_one(Some(800), (400, 10, 0), (true, 1 << 40), true), (110, 0, 0));
    assert_eq!(weigh_one(Some(800), (30, 10, 0), (true, 1 << 40), true), (30, 0, 110));
    assert_eq!(weigh_one(Some(800), (30, 10, 0), (true, 1 << 40), false), (30, 0, 0));
    assert_eq!(weigh_one(Some(800), (30, 10, 0), (false, 1 << 40), true), (10, 0, 0));
    assert_eq!(weigh_one(None, (30, 10, 50), (true, 1 << 40), true), (0, 0, 0));
    // What is needed is given as far as it goes, the rest within a quarter of what is left.
    assert_eq!(give_one(Some((800, 400)), (0, 0), (20, 300)), 100);
    assert_eq!(give_one(Some((800, 400)), (0, 0), (200, 300)), 200);
    assert_eq!(give_one(Some((800, 790)), (0, 0), (20, 300)), 10);
    assert_eq!(give_one(Some((800, 790)), (5, 50), (60, 60)), 50);
    assert_eq!(give_one(Some((800, 900)), (5, 5), (60, 60)), 5);
    assert_eq!(give_one(None, (5, 50), (60, 60)), 5);
}

/// The way to the MDT that keeps the limits.
#[derive(Default)]
struct Line {
    home: OnceLock<Arc<Mdt>>,
    is_cut: AtomicBool,
}

impl Line {
    async fn home(&self) -> Result<&Arc<Mdt>, Failure> {
        match self.home.get() {
            Some(home) if !self.is_cut.load(Ordering::Relaxed) => Ok(home),
            _ => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err(Failure::new(ErrorKind::Unreachable, "cut"))
            }
        }
    }
}

#[async_trait::async_trait]
impl LimitsKeeper for Line {
    async fn shares(&self, it: QuotaShares, _: Duration) -> Result<QuotaSharesReply, Failure> {
        self.home().await?.quota_shares(&it).await
    }

    async fn news(&self, it: QuotaNews, _: Duration) -> Result<QuotaNewsReply, Failure> {
        self.home().await?.quota_news(&it).await
    }
}

/// Two MDTs of one federation, at work.
struct Two {
    home: House,
    other: House,
    line: Arc<Line>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

fn settings(mdt: u16) -> Settings {
    Settings { mdt: MdtIndex(mdt), keeps_deleted: false, ..Settings::default() }
}

impl Two {
    async fn new() -> Self {
        Self::on(MemoryStore::new(), MemoryStore::new(), true).await
    }

    async fn on(home: MemoryStore, other: MemoryStore, is_connected: bool) -> Self {
        let home = House::with_settings(home, settings(0)).await;
        let line = Arc::<Line>::default();
        assert!(line.home.set(home.mdt.clone()).is_ok());
        line.is_cut.store(!is_connected, Ordering::Relaxed);
        let other = House::with_keeper(other, settings(1), line.clone()).await;
        let mdts = [&home.mdt, &other.mdt];
        let tasks = mdts.map(|mdt| tokio::spawn(mdt.clone().run_quotas())).into();
        Self { home, other, line, tasks }
    }

    async fn restarted(self, is_connected: bool) -> Self {
        self.tasks.iter().for_each(|task| task.abort());
        Self::on(self.home.store, self.other.store, is_connected).await
    }

    /// The user's clients at both, and the roots' directories open to him.
    async fn clients(&self) -> [Writer; 2] {
        let mut writers = vec![];
        for house in [&self.home, &self.other] {
            let (root, id) = (house.client().await, FileId::root_of(house.mdt.index()));
            root.call(chmod(id, 0o777)).await.unwrap();
            let client = root.by(&user(10, 20, &[]));
            writers.push(Writer { file: client.create(id, "f").await, client, at: 0, root: id });
        }
        writers.try_into().ok().unwrap()
    }

    async fn set(&self, limits: SetQuota) {
        let root = self.home.client().await.by(&Caller::root());
        assert_eq!(root.call(limits).await.unwrap().absent, None);
    }

    async fn quota(&self) -> Quota {
        self.home.client().await.call(GetQuota { payer: ann(), is_default: None }).await.unwrap()
    }

    fn used(&self) -> i64 {
        let used = |house: &House| house.mdt.quotas.table().used(&ann()).bytes;
        used(&self.home) + used(&self.other)
    }
}

/// A client that writes one file to its end.
struct Writer {
    client: Client,
    file: FileId,
    at: u64,
    root: FileId,
}

impl Writer {
    /// Under a promise, as mounts do, or without. Says why not.
    async fn write(&mut self, kib: u64, is_promised: bool) -> Option<ErrorKind> {
        let length = kib * KIB;
        if is_promised {
            let (id, wanted, needed) = (self.file, length * 4, length);
            let asked = Promise { id, wanted, needed, payers: None };
            let told = self.client.call(asked).await.unwrap();
            if told.promised.is_some_and(|promised| promised < length) {
                return Some(QuotaExceeded);
            }
        }
        let part = |at: u64| inline(self.at + at, &vec![7; (length - at).min(8 * KIB) as usize]);
        let parts = (0..length).step_by(8 << 10).map(part).collect();
        let failed = self.client.kind_of(commit(self.file, parts)).await;
        self.at += if failed.is_none() { length } else { 0 };
        failed
    }

    async fn fill(&mut self, kib: u64, is_promised: bool) {
        while self.write(kib, is_promised).await.is_none() {}
        // Nothing is kept for who closes.
        let back = Promise { id: self.file, wanted: 0, needed: 0, payers: None };
        self.client.call(back).await.unwrap();
    }
}

fn hard(bytes: u64) -> SetQuota {
    SetQuota {
        payer: ann(),
        bytes_soft: None,
        bytes_hard: Some(bytes),
        inodes_soft: None,
        inodes_hard: None,
        bytes_grace: None,
        inodes_grace: None,
        is_default: None,
    }
}

#[tokio::test(start_paused = true)]
async fn two_mdts_let_in_what_one_would() {
    for is_promised in [false, true] {
        let two = Two::new().await;
        let [mut one, mut other] = two.clients().await;
        one.write(8, false).await;
        other.write(8, false).await;
        two.set(hard(256 * KIB)).await;
        let told = two.quota().await;
        let elsewhere = told.elsewhere.unwrap();
        assert_eq!((told.used.bytes, elsewhere[0].used.bytes), (8 * KIB, 8 * KIB));
        tokio::join!(one.fill(4, is_promised), other.fill(4, is_promised));
        assert!(two.used() <= 256 * KIB as i64, "{}", two.used());
        // What is there is used up, wherever it is asked for.
        tokio::time::sleep(Duration::from_secs(3)).await;
        one.fill(4, is_promised).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        other.fill(4, is_promised).await;
        assert_eq!(two.used(), 256 * KIB as i64);
        // What goes at one place makes room at the other.
        one.client.call(truncate(one.file, 0)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(other.write(12, is_promised).await, None);
        assert!(two.used() <= 256 * KIB as i64);
    }
}

/// Whoever replaces his own checkpoint at the second site: he asked for too much in between, as
/// mounts do while a commit is on its way, and was given his share anew by what is left.
#[tokio::test(start_paused = true)]
async fn who_freed_room_is_not_refused_for_what_he_asked_before() {
    for (frees_after, is_promised) in [(1, true), (1, false), (100, true), (250, true)] {
        let two = Two::new().await;
        let [_, mut other] = two.clients().await;
        two.set(hard(256 * KIB)).await;
        assert_eq!(other.write(224, is_promised).await, None);
        assert_eq!(other.write(40, is_promised).await, Some(QuotaExceeded));
        tokio::time::sleep(Duration::from_millis(frees_after)).await;
        other.client.call(truncate(other.file, 0)).await.unwrap();
        other.at = 0;
        let mut told = vec![];
        for _ in 0..28 {
            told.push(other.write(8, is_promised).await);
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        let refused = told.iter().filter(|told| told.is_some()).count();
        assert_eq!(refused, 0, "{frees_after} ms, promised: {is_promised}: {told:?}");
    }
}

/// While room is short nobody keeps a share that he does not use: not the one that he asked for
/// first, either, while he asks for the next.
#[tokio::test(start_paused = true)]
async fn several_limits_that_are_short_are_extended_together() {
    for is_promised in [true, false] {
        let two = Two::new().await;
        let [mut one, mut other] = two.clients().await;
        let payers = [PayerKind::User, PayerKind::Group, PayerKind::Project];
        let root = two.other.client().await;
        root.call(SetProject { ids: vec![other.file], project: 7 }).await.unwrap();
        for (kind, id) in payers.into_iter().zip([10, 20, 7]) {
            two.set(SetQuota { payer: Payer { kind, id, pool: None }, ..hard(256 * KIB) }).await;
        }
        assert_eq!(other.write(8, is_promised).await, None);
        tokio::time::sleep(Duration::from_secs(3)).await;
        // Somebody at the other MDT is short, and has all told so.
        assert_eq!(one.write(236, is_promised).await, None);
        assert_eq!(other.write(8, is_promised).await, None, "promised: {is_promised}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_cut_off_keeps_his_share() {
    let two = Two::new().await;
    let [mut one, mut other] = two.clients().await;
    two.set(hard(256 * KIB)).await;
    assert_eq!(other.write(8, false).await, None);
    two.line.is_cut.store(true, Ordering::Relaxed);
    // What is on its way still comes: the home would have the slack back.
    tokio::time::sleep(Duration::from_secs(15)).await;
    one.fill(4, false).await;
    let two = two.restarted(false).await;
    other.client = two.other.client().await.by(&user(10, 20, &[]));
    other.fill(4, false).await;
    // An eighth of the limit beyond what was in use when it was heard last.
    assert!(other.at >= 32 * KIB && other.at <= 80 * KIB, "{}", other.at);
    assert!(two.used() <= 256 * KIB as i64);
    let root = two.home.client().await;
    assert_eq!(root.call(hard(300 * KIB)).await.unwrap().absent, Some(vec![MdtIndex(1)]));
    two.line.is_cut.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(5)).await;
    other.fill(4, false).await;
    assert_eq!(two.used(), 300 * KIB as i64);
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_mdt_held_is_taken_back() {
    let two = Two::new().await;
    let [mut one, mut other] = two.clients().await;
    two.set(hard(256 * KIB)).await;
    assert_eq!(other.write(60, false).await, None);
    let reclaim = |mdt| ReclaimShares { mdt: MdtIndex(mdt) };
    let root = two.home.client().await.by(&Caller::root());
    assert_eq!(root.kind_of(reclaim(1)).await, Some(ErrorKind::InvalidArgument), "it is there");
    two.line.is_cut.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(15)).await;
    one.fill(4, false).await;
    assert!(one.at < 220 * KIB, "{}", one.at);
    assert_eq!(one.client.kind_of(reclaim(1)).await, Some(ErrorKind::NotPermitted));
    assert_eq!(root.kind_of(reclaim(0)).await, Some(ErrorKind::InvalidArgument), "it keeps them");
    assert_eq!(root.call(reclaim(1)).await.unwrap().payers, 1);
    assert_eq!(root.call(reclaim(1)).await.unwrap().payers, 0);
    one.fill(4, false).await;
    assert_eq!(one.at, 256 * KIB);
    // It stays so; and should the MDT not be lost, it lets nothing more in.
    let two = two.restarted(true).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    other.client = two.other.client().await.by(&user(10, 20, &[]));
    let before = other.at;
    other.fill(4, false).await;
    assert_eq!(other.at, before);
}

#[tokio::test(start_paused = true)]
async fn limits_come_and_go_everywhere() {
    let two = Two::new().await;
    let [mut one, mut other] = two.clients().await;
    let inodes = SetQuota { bytes_hard: None, inodes_hard: Some(4), ..hard(0) };
    two.set(inodes.clone()).await;
    let refused = Some(QuotaExceeded);
    assert_eq!(other.client.kind_of(create(other.root, "a", 0o644)).await, None);
    assert_eq!(one.client.kind_of(create(one.root, "b", 0o644)).await, None);
    assert_eq!(other.client.kind_of(create(other.root, "c", 0o644)).await, refused);
    assert_eq!(one.client.kind_of(create(one.root, "c", 0o644)).await, refused);
    // Where limits are not kept they cannot be set.
    let elsewhere = two.other.client().await;
    assert_eq!(elsewhere.kind_of(inodes.clone()).await, Some(ErrorKind::InvalidArgument));
    two.set(SetQuota { inodes_hard: Some(0), ..inodes }).await;
    assert!(!two.other.mdt.quotas.has_limits());
    assert_eq!(other.client.kind_of(create(other.root, "c", 0o644)).await, None);
    assert_eq!(other.write(64, true).await, None);
    assert_eq!(one.write(64, true).await, None);
}

#[tokio::test(start_paused = true)]
async fn soft_limits_are_of_all_together() {
    let two = Two::new().await;
    let [mut one, mut other] = two.clients().await;
    let soft = SetQuota { bytes_soft: Some(64 * KIB), bytes_hard: None, ..hard(0) };
    two.set(soft.clone()).await;
    assert_eq!(one.write(40, false).await, None);
    assert_eq!(other.write(40, false).await, None);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(two.quota().await.bytes_over.is_some());
    assert_eq!(other.write(8, false).await, None);
    // A grace of nothing is over at once.
    two.set(SetQuota { bytes_soft: None, bytes_grace: Some(0), ..soft }).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(one.write(4, false).await, Some(QuotaExceeded));
    assert_eq!(other.write(4, false).await, Some(QuotaExceeded));
    one.client.call(truncate(one.file, 0)).await.unwrap();
    one.at = 0;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(other.write(4, false).await, None);
    assert_eq!(one.write(4, false).await, None);
}

#[tokio::test(start_paused = true)]
async fn default_limits_are_of_all_mdts_together() {
    for is_promised in [false, true] {
        let two = Two::new().await;
        let [mut one, mut other] = two.clients().await;
        other.write(8, false).await;
        let default =
            SetQuota { payer: Payer { id: 0, ..ann() }, is_default: Some(true), ..hard(512 * KIB) };
        two.set(default.clone()).await;
        one.fill(16, is_promised).await;
        other.fill(16, is_promised).await;
        one.fill(16, is_promised).await;
        let used = two.used() as u64;
        assert!((400 * KIB..=512 * KIB).contains(&used), "{used}");
        // Who never was there before is under it at both.
        let told = two.quota().await;
        assert_eq!((told.limits.bytes_hard, told.is_default), (512 * KIB, Some(true)));
        // No limits of their own, by word: known elsewhere too.
        two.set(hard(0)).await;
        assert_eq!(other.write(64, is_promised).await, None);
        assert_eq!(one.write(64, is_promised).await, None);
        two.set(SetQuota { is_default: Some(true), ..hard(0) }).await;
        assert_eq!(other.write(16, is_promised).await, Some(QuotaExceeded));
        let two = two.restarted(true).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let root = FileId::root_of(two.other.mdt.index());
        let fresh = two.other.client().await.by(&user(30, 30, &[]));
        let file = fresh.create(root, "g").await;
        let asked = Promise { id: file, wanted: 1 << 20, needed: 1 << 20, payers: None };
        let told = fresh.call(asked).await.unwrap();
        assert!(told.reason.is_some_and(|reason| reason.contains("default hard limit")));
        two.set(SetQuota { bytes_hard: Some(0), ..default }).await;
        assert!(!two.other.mdt.quotas.has_limits());
    }
}
