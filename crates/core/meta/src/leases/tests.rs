//! Who may believe what, who is asked to let go, and what happens to the silent.

use super::*;
use tokio::time::advance;

const LEASE: Duration = Duration::from_secs(20);
const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
const DIR: FileId = FileId(100);
const OTHER: FileId = FileId(101);

fn inside(units: &[FileId]) -> Vec<Entitled> {
    units.iter().map(|&unit| (unit, Standing::Inside)).collect()
}

impl LeaseTable {
    fn grant_inside(&self, session: SessionId, units: &[FileId], as_of: Version) -> Vec<FileId> {
        self.grant(session, &inside(units), as_of)
    }
}

impl Change {
    fn grant_inside(&self, units: &[FileId], version: Version) -> Vec<FileId> {
        self.grant(&inside(units), version)
    }
}

fn table() -> Arc<LeaseTable> {
    let table = LeaseTable::new(LEASE, BTreeSet::new(), BTreeSet::new());
    table.open(A);
    table.open(B);
    table
}

fn holder(session: SessionId) -> Holder {
    Holder { session, unit: DIR }
}

#[tokio::test(start_paused = true)]
async fn a_change_names_the_holders_and_leaves_out_who_changes() {
    let table = table();
    assert_eq!(table.grant_inside(A, &[DIR, OTHER], Version(1)), [DIR, OTHER]);
    assert_eq!(table.grant_inside(B, &[DIR], Version(1)), [DIR]);
    assert_eq!(table.change(A).cover([DIR]), [holder(B)]);
    assert_eq!(table.change(B).cover([OTHER]), [Holder { session: A, unit: OTHER }]);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_granted_what_is_under_a_change() {
    let table = table();
    let mut change = table.change(A);
    change.cover([DIR]);
    assert_eq!(table.grant_inside(B, &[DIR, OTHER], Version(9)), [OTHER]);
    assert_eq!(table.grant_inside(A, &[DIR], Version(9)), []);
    drop(change);
    assert_eq!(table.grant_inside(B, &[DIR], Version(9)), [DIR]);
}

#[tokio::test(start_paused = true)]
async fn who_read_before_the_commit_is_granted_nothing_after_it() {
    let table = table();
    let mut change = table.change(A);
    change.cover([DIR]);
    change.committed(Version(10));
    assert_eq!(change.grant_inside(&[DIR], Version(10)), [DIR]);
    drop(change);
    assert_eq!(table.grant_inside(B, &[DIR], Version(9)), []);
    assert_eq!(table.grant_inside(B, &[DIR], Version(10)), [DIR]);
}

#[tokio::test(start_paused = true)]
async fn two_changes_at_once_grant_neither_its_own_reply() {
    let table = table();
    let (mut a, mut b) = (table.change(A), table.change(B));
    a.cover([DIR]);
    b.cover([DIR]);
    a.committed(Version(5));
    assert_eq!(a.grant_inside(&[DIR], Version(5)), []);
    b.committed(Version(6));
    drop(a);
    assert_eq!(b.grant_inside(&[DIR], Version(6)), [DIR]);
}

#[tokio::test(start_paused = true)]
async fn forgotten_changes_count_as_the_latest_of_them() {
    let table = table();
    for unit in 0..CHANGED_MAX as u64 + 10 {
        let mut change = table.change(A);
        change.cover([FileId(1000 + unit)]);
        change.committed(Version(100 + unit));
    }
    // Forgotten: only a reading later than all that was forgotten is believed.
    assert_eq!(table.grant_inside(B, &[FileId(1000)], Version(108)), []);
    assert_eq!(table.grant_inside(B, &[FileId(1000)], Version(109)), [FileId(1000)]);
    let last = 1000 + CHANGED_MAX as u64 + 9;
    assert_eq!(table.grant_inside(B, &[FileId(last)], Version(109)), []);
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_with_the_lease_time_after_the_last_frame() {
    let table = table();
    table.grant_inside(A, &[DIR], Version(1));
    advance(LEASE / 2).await;
    table.heard(A);
    let before = Instant::now();
    assert!(table.ended(holder(A)).await);
    assert_eq!(before.elapsed(), LEASE);
    // It was in nobody's way until now: it is still there to be taken back.
    assert!(table.holds(A, DIR));
    table.taken_back(holder(A));
    assert!(!table.holds(A, DIR));
}

#[tokio::test(start_paused = true)]
async fn who_begins_anew_holds_nothing() {
    let table = table();
    table.grant_inside(A, &[DIR], Version(1));
    let waiting = tokio::spawn({
        let table = table.clone();
        async move { (table.ended(holder(A)).await, Instant::now()) }
    });
    advance(Duration::from_secs(1)).await;
    let back = Instant::now();
    table.open(A);
    assert_eq!(waiting.await.unwrap(), (false, back));
}

#[tokio::test(start_paused = true)]
async fn the_barred_are_heard_no_more() {
    let table = table();
    table.grant_inside(A, &[DIR], Version(1));
    table.bar(A);
    let before = Instant::now();
    advance(LEASE / 2).await;
    table.heard(A);
    assert!(table.ended(holder(A)).await);
    assert_eq!(before.elapsed(), LEASE);
    assert_eq!(table.grant_inside(A, &[OTHER], Version(1)), []);
    assert_eq!(table.lost(|_| LEASE * 10), [A]);
}

#[tokio::test(start_paused = true)]
async fn grace_ends_when_all_are_back_or_the_lease_time_is_over() {
    let table = LeaseTable::new(LEASE, BTreeSet::from([A, B]), BTreeSet::new());
    let before = Instant::now();
    table.grace_over().await;
    assert_eq!(before.elapsed(), LEASE);

    let table = LeaseTable::new(LEASE, BTreeSet::from([A, B]), BTreeSet::new());
    let before = Instant::now();
    let waiting = tokio::spawn({
        let table = table.clone();
        async move { table.grace_over().await }
    });
    table.found(A);
    advance(Duration::from_secs(3)).await;
    assert!(!waiting.is_finished());
    table.found(B);
    waiting.await.unwrap();
    assert_eq!(before.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn the_table_is_bounded_per_session() {
    let table = table();
    let units: Vec<FileId> = (0..UNITS_PER_SESSION_MAX as u64 + 5).map(FileId).collect();
    assert_eq!(table.grant_inside(A, &units, Version(1)).len(), UNITS_PER_SESSION_MAX);
    assert_eq!(table.grant_inside(A, &units[..1], Version(1)), units[..1]);
    table.close(A);
    assert_eq!(table.lock().total, 0);
    assert!(table.lock().holders.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_opener_waits_for_what_becomes_of_the_file() {
    let table = table();
    let mut change = table.change(A);
    change.lose(DIR);
    let waiting = tokio::spawn({
        let table = table.clone();
        async move { table.not_losing(DIR).await }
    });
    advance(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    drop(change);
    waiting.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_is_told_that_it_is_alone_after_it_was_asked_is_asked_again() {
    let table = table();
    let units = BTreeSet::from([DIR]);
    let tell = |version: u64| {
        let change = table.change(A);
        change.grant_inside(&[DIR], Version(version));
        change.grant_alone(&[DIR], Version(version))
    };
    assert_eq!(tell(5), [DIR]);
    let asked = Version(6);
    assert_eq!(table.alone(B, &units, false), [holder(A)]);
    // Somebody wants to look: a reply that leaves now says nothing of it any more.
    assert_eq!(tell(7), []);
    // Where the answer takes long, one may.
    advance(WANTED_KEPT).await;
    assert_eq!(tell(8), [DIR]);
    table.share(holder(A), asked);
    assert_eq!(table.alone(B, &units, false), [holder(A)]);
    table.share(holder(A), Version(8));
    assert_eq!(table.alone(B, &units, false), []);
}

/// Who goes through directories of another is given more with each; who did nothing in them, less.
#[tokio::test(start_paused = true)]
async fn who_did_nothing_in_what_he_was_given_is_given_less() {
    let table = table();
    let all: Vec<FileId> = (100..400).map(FileId).collect();
    for session in [A, B] {
        assert_eq!(table.grant_inside(session, &all, Version(1)).len(), all.len());
    }
    let mut version = 1;
    // A changes something in a unit. Which others is it given to hold alone?
    let mut changes = |unit: u64| {
        version += 1;
        let mut change = table.change(A);
        if let [first, ..] = change.cover([FileId(unit)])[..] {
            change.sweep(first.unit);
        }
        let given = [change.swept(), &[FileId(unit)]].concat();
        for &unit in &given {
            table.taken_back(Holder { session: B, unit });
        }
        change.committed(Version(version));
        change.grant_inside(&given, Version(version));
        change.grant_alone(&given, Version(version));
        given.len() - 1
    };
    let is_held = |unit: u64| table.held_alone(A, FileId(unit));
    // From the middle: the nearest are on both sides.
    assert_eq!([changes(200), changes(210), changes(220)], [0, 0, 4]);
    for near in [218, 219, 221, 222] {
        assert!(is_held(near));
        changes(near);
    }
    assert_eq!(changes(230), 8);
    // It does nothing there.
    assert_eq!([250, 270, 290].map(&mut changes), [16, 4, 0]);
}
