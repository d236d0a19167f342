//! The rules that keep late and lapsed answers out.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tieline_types::{
    Attributes, Caller, FileKind, Grant, Layout, MdtIndex, Mode, Name, ServerNumber, SessionId,
    Time, Version,
};
use tieline_wire::Flavor;
use tieline_wire::meta::{BatchOutcome, ExclusiveUnit, LeaseGrant};

const SERVER: ServerNumber = ServerNumber(1);
const LEASE: Duration = Duration::from_secs(20);

fn id(serial: u64) -> FileId {
    FileId::new(MdtIndex(0), serial)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn attributes(id: FileId, kind: FileKind, version: u64) -> Attributes {
    Attributes {
        version: Version(version),
        ..Attributes::new(id, kind, Mode::new(0o755), Time::default())
    }
}

fn welcome(session: u64, boot: u64) -> Welcome {
    Welcome {
        version: 1,
        session: SessionId(session),
        is_resumed: false,
        grant: Grant(1),
        boot,
        lease_ms: LEASE.as_millis() as u32,
        flavor: Flavor::Null,
        features: 0,
        server: String::new(),
        map: Version(1),
        holder: None,
        lost_locks: None,
    }
}

fn granted(as_of: u64, units: &[FileId]) -> LeaseGrant {
    LeaseGrant { as_of: Version(as_of), units: units.to_vec(), exclusive: None }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(tieline_world::TimerClock::default())
}

/// Counts on while tokio's clock stands still.
struct Sleeper(Instant, std::sync::Mutex<Duration>);

impl Clock for Sleeper {
    fn wall(&self) -> Duration {
        self.0.elapsed() + *self.1.lock().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_believed_after_a_sleep_until_the_server_is_heard() {
    let sleeper = Arc::new(Sleeper(Instant::now(), std::sync::Mutex::default()));
    let cache = Arc::new(Cache::new(64, sleeper.clone()));
    cache.welcomed(SERVER, &welcome(1, 1));
    cache.renewed(SERVER, Instant::now());
    let parent = id(1);
    learn(&cache, cache.stamp(SERVER), 10, parent, "a", 50);
    *sleeper.1.lock().unwrap() += Duration::from_millis(50);
    assert!(knows(&cache, parent, "a").is_some(), "a moment is nothing");
    let asked = Instant::now();
    tokio::time::advance(Duration::from_millis(1)).await;
    *sleeper.1.lock().unwrap() += Duration::from_secs(3600);
    assert_eq!(knows(&cache, parent, "a"), None);
    // What was asked before it and is heard now was answered an hour ago.
    cache.renewed(SERVER, asked);
    learn(&cache, cache.stamp(SERVER), 11, parent, "a", 50);
    assert_eq!(knows(&cache, parent, "a"), None);
    tokio::time::advance(Duration::from_millis(1)).await;
    cache.renewed(SERVER, Instant::now());
    learn(&cache, cache.stamp(SERVER), 12, parent, "a", 50);
    assert!(knows(&cache, parent, "a").is_some());
}

fn connected() -> Arc<Cache> {
    let cache = Arc::new(Cache::new(1000, clock()));
    cache.welcomed(SERVER, &welcome(1, 1));
    cache.renewed(SERVER, Instant::now());
    cache
}

/// A lookup of `text` in `parent` that was answered as of `as_of`, with a lease.
fn learn(cache: &Cache, stamp: Stamp, as_of: u64, parent: FileId, text: &str, file: u64) -> Belief {
    let lease = granted(as_of, &[parent]);
    let mut tables = cache.lock();
    let reply = tables.admit(stamp, &lease);
    let file = attributes(id(file), FileKind::Regular, as_of);
    tables.learn_name(reply, parent, &name(text), Some(file.id));
    tables.learn_attributes(reply, &lease, Under::Parent(parent), file).belief
}

fn knows(cache: &Cache, parent: FileId, text: &str) -> Option<Option<FileId>> {
    cache.lock().name(parent, &name(text)).map(|(id, _)| id)
}

fn lasts(cache: &Cache, belief: &Belief) -> Duration {
    let mut seen = None;
    cache.settle(belief, &mut |lasts| seen = Some(lasts));
    seen.unwrap()
}

fn recall(unit: FileId, at: u64) -> Recall {
    Recall::of(unit, Version(at))
}

/// A lookup that was answered without a lease is not believed under one that came by another
/// answer, as of later: of what changed in between nobody was told.
#[tokio::test(start_paused = true)]
async fn what_was_read_before_a_lease_was_granted_is_not_believed_under_it() {
    let cache = connected();
    let (parent, stamp) = (id(1), cache.stamp(SERVER));
    learn(&cache, stamp, 10, parent, "a", 50);
    cache.recalled(&recall(parent, 10));
    learn(&cache, stamp, 13, parent, "b", 51);
    let late = |as_of: u64, units: &[FileId]| {
        let lease = granted(as_of, units);
        let mut tables = cache.lock();
        let reply = tables.admit(stamp, &lease);
        tables.learn_name(reply, parent, &name("c"), Some(id(52)));
        let file = attributes(id(52), FileKind::Regular, as_of);
        tables.learn_attributes(reply, &lease, Under::Parent(parent), file).belief
    };
    assert!(late(12, &[]).units.is_empty());
    assert_eq!(knows(&cache, parent, "c"), None);
    // Who was granted it as of before holds it since then.
    assert!(!late(12, &[parent]).units.is_empty());
    assert_eq!(knows(&cache, parent, "c"), Some(Some(id(52))));
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_the_recalled_change_is_not_cached() {
    let cache = connected();
    let parent = id(1);
    let stamp = cache.stamp(SERVER);
    learn(&cache, stamp, 10, parent, "a", 50);
    assert_eq!(knows(&cache, parent, "a"), Some(Some(id(50))));

    cache.recalled(&recall(parent, 12));
    assert_eq!(knows(&cache, parent, "a"), None);
    // A late answer, read before the change.
    learn(&cache, stamp, 12, parent, "a", 50);
    assert_eq!(knows(&cache, parent, "a"), None);
    // And one that was read after it.
    learn(&cache, stamp, 13, parent, "a", 51);
    assert_eq!(knows(&cache, parent, "a"), Some(Some(id(51))));
}

#[tokio::test(start_paused = true)]
async fn a_recall_ends_beliefs_and_tells_what_was_told() {
    let cache = connected();
    let parent = id(1);
    let belief = learn(&cache, cache.stamp(SERVER), 10, parent, "a", 50);
    assert!(lasts(&cache, &belief) > Duration::ZERO);
    let told = cache.recalled(&Recall {
        names: vec![name("new")],
        files: vec![id(50)],
        ..recall(parent, 12)
    });
    assert_eq!(told.entries, [(parent, name("new"))]);
    assert_eq!(told.doubted, [(parent, name("a"))]);
    assert_eq!((told.attributes, told.data), (vec![id(50)], vec![id(50)]));
    assert_eq!(lasts(&cache, &belief), Duration::ZERO);
    // The lease that comes next does not revive it.
    let next = learn(&cache, cache.stamp(SERVER), 13, parent, "a", 50);
    assert_eq!(lasts(&cache, &belief), Duration::ZERO);
    assert!(lasts(&cache, &next) > Duration::ZERO);
    // What was told is told once.
    assert!(cache.recalled(&recall(parent, 13)).data.is_empty());
}

#[tokio::test(start_paused = true)]
async fn leases_run_out_and_do_not_come_back() {
    let cache = connected();
    let parent = id(1);
    let belief = learn(&cache, cache.stamp(SERVER), 10, parent, "a", 50);
    tokio::time::advance(Duration::from_secs(17)).await;
    assert_eq!(lasts(&cache, &belief), Duration::from_secs(1));
    cache.renewed(SERVER, Instant::now());
    assert_eq!(lasts(&cache, &belief), Duration::from_secs(18));
    tokio::time::advance(Duration::from_secs(19)).await;
    assert_eq!(knows(&cache, parent, "a"), None);
    // The server may have given it to somebody else meanwhile, without our hearing of it.
    let told = cache.renewed(SERVER, Instant::now()).unwrap();
    assert_eq!(told.attributes, [id(50)]);
    assert_eq!(knows(&cache, parent, "a"), None);
    assert_eq!(lasts(&cache, &belief), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_us_ends_everything() {
    let cache = connected();
    let parent = id(1);
    let before = cache.stamp(SERVER);
    let belief = learn(&cache, before, 10, parent, "a", 50);
    // Also when the session goes on: recalls may have been lost with the old connection.
    let told = cache.welcomed(SERVER, &welcome(1, 1));
    assert_eq!(told.attributes, [id(50)]);
    cache.renewed(SERVER, Instant::now());
    assert_eq!(lasts(&cache, &belief), Duration::ZERO);
    // What was asked before is not cached, whenever it comes.
    learn(&cache, before, 99, parent, "a", 50);
    assert_eq!(knows(&cache, parent, "a"), None);
}

#[tokio::test(start_paused = true)]
async fn of_two_answers_the_newer_stays() {
    let cache = connected();
    let parent = id(1);
    let stamp = cache.stamp(SERVER);
    learn(&cache, stamp, 10, parent, "other", 49);
    {
        // An own unlink, committed as 12.
        let mut tables = cache.lock();
        let reply = tables.admit_mutation(stamp, &granted(12, &[parent]), &[parent]);
        tables.learn_name(reply, parent, &name("a"), None);
    }
    // A lookup that was read before it.
    learn(&cache, stamp, 11, parent, "a", 50);
    assert_eq!(knows(&cache, parent, "a"), Some(None));
    assert_eq!(knows(&cache, parent, "other"), Some(Some(id(49))));
    // One that was read after somebody made it again... at our own version counts.
    learn(&cache, stamp, 12, parent, "b", 51);
    assert_eq!(knows(&cache, parent, "b"), Some(Some(id(51))));
}

#[tokio::test(start_paused = true)]
async fn an_own_mutation_makes_a_recall_contended() {
    let cache = connected();
    let parent = id(1);
    learn(&cache, cache.stamp(SERVER), 10, parent, "a", 50);
    let mutating = cache.mutating(&[parent]);
    assert!(cache.recalled(&recall(parent, 12)).is_contended);
    // Granted again at once, but not to be cached by the door until it is quiet.
    let belief = learn(&cache, cache.stamp(SERVER), 13, parent, "a", 50);
    assert_eq!(lasts(&cache, &belief), Duration::ZERO);
    drop(mutating);
    assert!(lasts(&cache, &belief) > Duration::ZERO);
    assert!(!cache.recalled(&recall(parent, 14)).is_contended);
}

#[tokio::test(start_paused = true)]
async fn doubt_closes_a_directory_for_a_while() {
    let cache = connected();
    let parent = id(1);
    learn(&cache, cache.stamp(SERVER), 10, parent, "a", 50);
    assert_eq!(cache.lock().doubt(parent).attributes, [id(50)]);
    learn(&cache, cache.stamp(SERVER), 11, parent, "a", 50);
    assert_eq!(knows(&cache, parent, "a"), None);
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(10)).await;
        cache.renewed(SERVER, Instant::now());
    }
    learn(&cache, cache.stamp(SERVER), 12, parent, "a", 50);
    assert_eq!(knows(&cache, parent, "a"), Some(Some(id(50))));
}

/// Nothing was heard of the server since its connection went.
fn goes_away(cache: &Cache) {
    let lost = cache.lock().units.lost(SERVER);
    cache.away(SERVER, lost, |_| ());
}

fn telling_last() -> Arc<Cache> {
    let cache = connected();
    cache.lock().units.tells_last = true;
    cache
}

#[tokio::test(start_paused = true)]
async fn what_is_in_doubt_is_told_as_of_before_while_the_server_is_away() {
    let cache = telling_last();
    let parent = id(1);
    for (text, file) in [("a", 50), ("b", 51)] {
        learn(&cache, cache.stamp(SERVER), 10, parent, text, file);
    }
    let mark = cache.lock().listing_mark(parent).unwrap();
    cache.lock().learn_complete(parent, mark);
    let told = cache.lock().doubt(parent);
    assert_eq!(told.attributes, [id(50), id(51)], "the door must ask again");
    assert_eq!(knows(&cache, parent, "a"), None, "the server is still heard");
    goes_away(&cache);
    assert_eq!(knows(&cache, parent, "a"), Some(Some(id(50))));
    assert!(cache.lock().attributes(id(50)).is_some());
    assert_eq!(cache.lock().listing(parent, None, 9).unwrap().len(), 2);
    assert!(cache.lock().alone(parent).is_none(), "nothing is decided on it");
    // The first contact ends that; what is asked then is told at its next absence, and nothing is
    // leased: the change may happen yet.
    cache.renewed(SERVER, Instant::now());
    assert_eq!(knows(&cache, parent, "a"), None);
    let belief = learn(&cache, cache.stamp(SERVER), 12, parent, "a", 60);
    assert_eq!((lasts(&cache, &belief), belief), (Duration::ZERO, Belief::default()));
    let mark = cache.lock().listing_mark(parent).unwrap();
    cache.lock().learn_complete(parent, mark);
    assert_eq!(knows(&cache, parent, "a"), None);
    assert!(cache.lock().attributes(id(60)).is_none());
    goes_away(&cache);
    assert_eq!(knows(&cache, parent, "a"), Some(Some(id(60))));
    assert_eq!(cache.lock().listing(parent, None, 9).unwrap(), [(name("a"), id(60))]);
    // What somebody else changes is not.
    cache.recalled(&recall(parent, 13));
    assert_eq!(knows(&cache, parent, "a"), None);
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_while_a_change_was_in_doubt_is_not_leased_later() {
    let cache = telling_last();
    let parent = id(1);
    cache.lock().doubt(parent);
    learn(&cache, cache.stamp(SERVER), 11, parent, "a", 50);
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(10)).await;
        cache.renewed(SERVER, Instant::now());
    }
    learn(&cache, cache.stamp(SERVER), 12, parent, "b", 51);
    assert_eq!(knows(&cache, parent, "a"), None, "the change may have happened since");
    assert_eq!(knows(&cache, parent, "b"), Some(Some(id(51))));
    goes_away(&cache);
    assert_eq!(knows(&cache, parent, "a"), Some(Some(id(50))));
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_was_changed_here_is_told_as_it_was_known_while_its_server_is_away() {
    let cache = telling_last();
    let (parent, lease) = (id(7), granted(10, &[id(7)]));
    {
        let (stamp, mut tables) = (cache.stamp(SERVER), cache.lock());
        let reply = tables.admit(stamp, &lease);
        let directory = attributes(parent, FileKind::Directory, 10);
        tables.learn_attributes(reply, &lease, Under::Granted, directory);
        tables.admit_mutation(stamp, &granted(11, &[]), &[parent]);
        assert!(tables.attributes(parent).is_none());
    }
    goes_away(&cache);
    assert!(cache.lock().attributes(parent).is_some());
}

#[tokio::test(start_paused = true)]
async fn own_mutations_blur_the_directory_but_not_its_rights() {
    let cache = connected();
    let parent = id(7);
    let stamp = cache.stamp(SERVER);
    let lease = granted(10, &[parent]);
    let mut tables = cache.lock();
    let reply = tables.admit(stamp, &lease);
    let directory = attributes(parent, FileKind::Directory, 10);
    tables.learn_attributes(reply, &lease, Under::Granted, directory);
    assert!(tables.attributes(parent).is_some());
    tables.admit_mutation(stamp, &granted(11, &[]), &[parent]);
    assert!(tables.attributes(parent).is_none());
    assert!(tables.may_search(&Caller::root(), parent));
}

#[tokio::test(start_paused = true)]
async fn a_complete_listing_knows_what_is_not_there() {
    let cache = connected();
    let parent = id(1);
    learn(&cache, cache.stamp(SERVER), 10, parent, "a", 50);
    assert_eq!(knows(&cache, parent, "b"), None);
    let mark = cache.lock().listing_mark(parent).unwrap();
    cache.lock().learn_complete(parent, mark);
    assert_eq!(knows(&cache, parent, "b"), Some(None));
    assert_eq!(cache.lock().listing(parent, None, 9).unwrap(), [(name("a"), id(50))]);
    cache.recalled(&recall(parent, 10));
    assert!(cache.lock().listing(parent, None, 9).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_listing_under_which_a_name_was_dropped_is_not_complete() {
    let cache = connected();
    let parent = id(1);
    learn(&cache, cache.stamp(SERVER), 10, parent, "a", 50);
    let mark = cache.lock().listing_mark(parent).unwrap();
    cache.lock().forget_name(parent, &name("a"));
    cache.lock().learn_complete(parent, mark);
    assert_eq!(knows(&cache, parent, "a"), None);
}

#[tokio::test(start_paused = true)]
async fn there_is_a_limit_and_the_door_is_told() {
    let cache = Arc::new(Cache::new(64, clock()));
    cache.welcomed(SERVER, &welcome(1, 1));
    cache.renewed(SERVER, Instant::now());
    for directory in 0..100 {
        let parent = id(1000 + directory);
        learn(&cache, cache.stamp(SERVER), 10, parent, "a", 2000 + directory);
        if let Some(told) = cache.shrink() {
            assert!(!told.attributes.is_empty());
        }
        assert!(!cache.lock().is_too_large());
    }
    // The last used are still there.
    assert_eq!(knows(&cache, id(1099), "a"), Some(Some(id(2099))));
    assert_eq!(knows(&cache, id(1000), "a"), None);
}

#[tokio::test(start_paused = true)]
async fn what_no_lease_covers_does_not_pile_up() {
    let cache = Arc::new(Cache::new(64, clock()));
    for file in 0..1000 {
        learn(&cache, cache.stamp(SERVER), 10, id(1), "a", 2000 + file);
        cache.shrink();
        assert!(!cache.lock().is_too_large());
    }
}

#[tokio::test(start_paused = true)]
async fn directories_follow_each_other_in_the_order_of_their_paths() {
    let cache = connected();
    // a, a/x, a/x/deep, a/y, b; a file between them; what lies on another MDT is not of this walk.
    let all = [(1, "a", 9), (9, "x", 7), (7, "deep", 8), (9, "y", 3), (1, "b", 2)];
    {
        let (lease, stamp) = (granted(1, &[1, 9, 7].map(id)), cache.stamp(SERVER));
        let mut tables = cache.lock();
        let reply = tables.admit(stamp, &lease);
        for (parent, text, directory) in all {
            tables.learn_name(reply, id(parent), &name(text), Some(id(directory)));
            tables.learn_kind(id(directory), FileKind::Directory);
        }
        let elsewhere = FileId::new(MdtIndex(1), 5);
        for (text, other, kind) in
            [("aa", id(60), FileKind::Regular), ("c", elsewhere, FileKind::Directory)]
        {
            tables.learn_name(reply, id(1), &name(text), Some(other));
            tables.learn_kind(other, kind);
        }
    }
    let tables = cache.lock();
    let walk = std::iter::successors(Some(id(1)), |&at| tables.directory_behind(at, 64));
    assert_eq!(walk.map(FileId::serial).collect::<Vec<_>>(), [1, 9, 7, 8, 3, 2]);
    let walk = std::iter::successors(Some(id(1)), |&at| tables.directory_behind(at, 2));
    assert_eq!(walk.map(FileId::serial).collect::<Vec<_>>(), [1, 9, 2], "not too deep");
}

const ROOM: usize = 64;

/// A directory that is held alone, and empty, in a cache with little room.
fn alone(parent: FileId) -> Arc<Cache> {
    let cache = Arc::new(Cache::new(ROOM, clock()));
    cache.welcomed(SERVER, &welcome(1, 1));
    cache.renewed(SERVER, Instant::now());
    let unit = ExclusiveUnit {
        attributes: attributes(parent, FileKind::Directory, 1),
        layout: Layout::default(),
        is_empty: true,
        has_limits: Some(false),
    };
    let lease = LeaseGrant { exclusive: Some(vec![unit]), ..granted(1, &[parent]) };
    let stamp = cache.stamp(SERVER);
    cache.lock().admit(stamp, &lease);
    assert!(cache.lock().is_alone(parent));
    cache
}

fn numbered(number: u64) -> Name {
    name(&format!("f{number:06}"))
}

/// Makes a file as operation `number`, which the MDS hears of at once. Says what the door is to
/// forget for it.
fn make(cache: &Cache, parent: FileId, number: u64) -> Option<Invalidation> {
    {
        let (id, name) = (id(1000 + number), numbered(number));
        let mut tables = cache.lock();
        assert_eq!(tables.name(parent, &name).map(|(id, _)| id), Some(None), "{number}");
        tables.put_name(number, parent, &name, Some(id));
        tables.put_attributes(number, parent, attributes(id, FileKind::Regular, number));
        let outcome = BatchOutcome::default();
        let settled = (&[id][..], &[(parent, name)][..]);
        tables.settle((number, Version(number)), settled, (Version(number), &outcome));
    }
    cache.shrink()
}

#[tokio::test(start_paused = true)]
async fn making_files_costs_the_same_in_a_directory_beyond_all_room() {
    let parent = id(1);
    let cache = alone(parent);
    let count = 8 * ROOM as u64;
    let (mut shrinks, mut told) = (0, 0);
    for number in 1..=count {
        if let Some(what) = make(&cache, parent, number) {
            shrinks += 1;
            told += what.doubted.len();
            assert!(what.doubted.len() <= ROOM / 2, "not all at once");
        }
        assert!(!cache.lock().is_too_large());
        let listed =
            (1..=number).filter(|one| knows(&cache, parent, &numbered(*one).to_string()).is_some());
        assert!(listed.count() <= ROOM);
    }
    // Each walks through no more than there is room for, and makes an eighth of it.
    assert!(shrinks <= 8 * count as usize / ROOM + 1, "{shrinks}");
    assert!(told <= count as usize);
    let mut tables = cache.lock();
    assert!(tables.is_alone(parent) && !tables.is_empty(parent) && !tables.is_complete(parent));
    // What went may be there; what was never made is not.
    assert_eq!(tables.name(parent, &numbered(1)).map(|(id, _)| id), None);
    assert_eq!(
        tables.name(parent, &numbered(count)).map(|(id, _)| id),
        Some(Some(id(1000 + count)))
    );
    assert_eq!(tables.name(parent, &name("never")).map(|(id, _)| id), Some(None));
}

#[tokio::test(start_paused = true)]
async fn a_listing_beyond_all_room_still_tells_what_is_not_there() {
    let cache = Arc::new(Cache::new(ROOM, clock()));
    cache.welcomed(SERVER, &welcome(1, 1));
    cache.renewed(SERVER, Instant::now());
    let (parent, count) = (id(1), 8 * ROOM as u64);
    let text = |number| numbered(number).to_string();
    learn(&cache, cache.stamp(SERVER), 10, parent, &text(0), 1000);
    let mark = cache.lock().listing_mark(parent).unwrap();
    for number in 1..count {
        learn(&cache, cache.stamp(SERVER), 10, parent, &text(number), 1000 + number);
        cache.shrink();
        assert_eq!(cache.lock().listing_mark(parent), Some(mark), "it goes on");
    }
    cache.lock().learn_complete(parent, mark);
    assert_eq!(knows(&cache, parent, "never"), Some(None));
    assert_eq!(knows(&cache, parent, &text(0)), None);
    assert!(cache.lock().listing(parent, None, 9).is_none(), "not all names are here");
    // What is taken away is told as far as it was told and not taken back.
    let told = cache.recalled(&recall(parent, 12));
    assert!(told.doubted.len() <= ROOM + 2 && told.attributes.len() <= ROOM);
    assert_eq!(knows(&cache, parent, "never"), None);
}

#[tokio::test(start_paused = true)]
async fn an_answer_older_than_what_went_does_not_take_its_place() {
    let parent = id(1);
    let cache = alone(parent);
    let before = cache.stamp(SERVER);
    let count = 4 * ROOM as u64;
    (1..=count).for_each(|number| drop(make(&cache, parent, number)));
    // It was read when the file was not what it is now, and before some that went were made.
    let belief = learn(&cache, before, 2, parent, &numbered(1).to_string(), 7);
    assert!(belief.units.is_empty());
    assert_eq!(knows(&cache, parent, &numbered(1).to_string()), None);
    learn(&cache, before, 2, parent, "elsewhere", 8);
    assert_eq!(knows(&cache, parent, "elsewhere"), None, "it may be there");
    learn(&cache, before, count, parent, &numbered(1).to_string(), 1001);
    assert_eq!(knows(&cache, parent, &numbered(1).to_string()), Some(Some(id(1001))));
}

#[tokio::test(start_paused = true)]
async fn a_directory_of_which_all_that_went_is_gone_is_empty() {
    let parent = id(1);
    let cache = alone(parent);
    let count = 4 * ROOM as u64;
    (1..=count).for_each(|number| drop(make(&cache, parent, number)));
    for number in 1..=count {
        let mut tables = cache.lock();
        let (own, name) = (count + number, numbered(number));
        tables.put_name(own, parent, &name, None);
        let settled = (&[][..], &[(parent, name)][..]);
        tables.settle((own, Version(own)), settled, (Version(own), &BatchOutcome::default()));
        drop(tables);
        cache.shrink();
        assert!(!cache.lock().is_too_large());
        assert_eq!(cache.lock().is_empty(parent), number == count);
    }
    assert!(cache.lock().is_complete(parent));
}

/// Directories of one server, whose names others change; answers may come late, in any order.
struct World {
    cache: Arc<Cache>,
    version: u64,
    /// The file that each name leads to.
    truth: BTreeMap<(FileId, &'static str), u64>,
    answers: Vec<(Stamp, u64, FileId, &'static str, u64)>,
    session: u64,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl World {
    fn new() -> Self {
        let names = (1..4).flat_map(|serial| NAMES.map(|name| ((id(serial), name), 50)));
        let (truth, answers) = (names.collect(), Vec::new());
        Self { cache: connected(), version: 10, truth, answers, session: 1 }
    }

    fn step(&mut self, (what, directory, name, which): (u8, u64, usize, usize)) {
        let (parent, name) = (id(1 + directory), NAMES[name]);
        match what {
            // The server answers now; the answer comes later.
            0..4 => {
                let file = self.truth[&(parent, name)];
                let stamp = self.cache.stamp(SERVER);
                self.answers.push((stamp, self.version, parent, name, file));
            }
            4..7 if !self.answers.is_empty() => {
                let at = which % self.answers.len();
                let (stamp, as_of, parent, name, file) = self.answers.swap_remove(at);
                learn(&self.cache, stamp, as_of, parent, name, file);
            }
            // Somebody changes a name: we are told before he is answered.
            7..9 => {
                self.version += 1;
                self.cache.recalled(&recall(parent, self.version));
                self.truth.insert((parent, name), 50 + self.version);
            }
            // The server forgot us, and changed something without telling.
            9 => {
                self.session += 1;
                self.cache.welcomed(SERVER, &welcome(self.session, 1));
                self.version += 1;
                self.truth.insert((parent, name), 50 + self.version);
                self.cache.renewed(SERVER, Instant::now());
            }
            _ => {}
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (&(parent, name), &file) in &self.truth {
            if let Some(known) = knows(&self.cache, parent, name) {
                prop_assert_eq!(known, Some(id(file)), "{} in {}", name, parent);
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn what_is_told_is_so_whenever_answers_come(
        steps in prop::collection::vec((0u8..10, 0u64..3, 0usize..3, any::<usize>()), 1..120)
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check()?;
        }
    }
}
