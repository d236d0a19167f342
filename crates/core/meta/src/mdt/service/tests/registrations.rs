//! Nobody is waited for who had no right: what sessions are registered as comes after judgement.

use crate::fixture::*;
use std::time::Duration;
use tieline_types::{ErrorKind, FileId, LockKind, LockMode, LockRange, Mode, SetTime, Time};
use tieline_wire::locks::{AssertLocks, AssertedLock, Lock, LockOutcome, LockWait, TestLock};
use tieline_wire::meta::*;
use tieline_wire::trees::{ReadFiles, ReadTree};
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(20);

/// Somebody without rights.
async fn stranger(house: &House) -> Client {
    house.client().await.by(&user(1, 1, &[]))
}

fn open(id: FileId, is_read: bool, is_write: bool) -> Open {
    Open { id, is_read, is_write, writes: is_write.then_some(true) }
}

#[tokio::test(start_paused = true)]
async fn who_was_refused_has_nothing_open_and_is_not_waited_for() {
    let house = House::proven().await;
    let (owner, stranger) = (house.client().await, stranger(&house).await);
    let dir = owner.mkdir(ROOT, "d").await;
    let file = owner.call(create(dir, "f", 0o600)).await.unwrap().open.attributes.id;
    owner.commit(file, vec![inline(0, b"secret")]).await;
    house.clients.set(stranger.session, Manner::Ignores);
    house.clients.open(stranger.session, file);
    for (is_read, is_write) in [(true, false), (false, true), (true, true), (false, false)] {
        let refused = stranger.kind_of(open(file, is_read, is_write)).await;
        assert_eq!(refused, Some(ErrorKind::PermissionDenied));
    }
    let before = Instant::now();
    owner.stat(file).await;
    owner.call(unlink(dir, "f")).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert!(house.clients.recalled(stranger.session).is_empty());
    assert!(house.mdt.openers(file).contains(&owner.session));
    assert!(!house.mdt.openers(file).contains(&stranger.session));
    assert_eq!(house.count(b'o').await, 0);
}

#[tokio::test(start_paused = true)]
async fn writers_are_not_asked_for_who_is_refused() {
    let house = House::proven().await;
    let (writer, stranger) = (house.client().await, stranger(&house).await);
    let file = writer.call(create(ROOT, "f", 0o600)).await.unwrap().open.attributes.id;
    house.clients.set(writer.session, Manner::Ignores);
    house.clients.recalled(writer.session);
    let before = Instant::now();
    let refused = stranger.kind_of(open(file, true, true)).await;
    assert_eq!(refused, Some(ErrorKind::PermissionDenied));
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert!(house.clients.recalled(writer.session).is_empty());
}

/// Two who begin to write at once hear of each other.
#[tokio::test(start_paused = true)]
async fn of_two_who_open_to_write_at_once_each_is_told() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    let file = a.create(ROOT, "f").await;
    a.call(Commit { closes: Some(true), ..commit(file, vec![]) }).await.unwrap();
    for client in [&a, &b] {
        house.clients.open(client.session, file);
    }
    let (first, second) =
        tokio::join!(a.call(open(file, true, true)), b.call(open(file, true, true)));
    let told = [first, second].map(|open| open.unwrap().attributes.is_written);
    assert!(told.contains(&Some(true)), "{told:?}");
    let asked = [&a, &b].map(|client| house.clients.recalled(client.session).len());
    assert!(asked.iter().sum::<usize>() > 0);
}

/// A directory of mode 700, one of mode 755 below it, and a file that all may read and write there.
async fn private(owner: &Client) -> [FileId; 3] {
    let private = owner.call(mkdir(ROOT, "private", 0o700)).await.unwrap().attributes.unwrap().id;
    let below = owner.mkdir(private, "below").await;
    let file = owner.call(create(below, "f", 0o666)).await.unwrap().open.attributes.id;
    owner.commit(file, vec![inline(0, b"bytes")]).await;
    owner.call(Commit { closes: Some(true), ..commit(file, vec![]) }).await.unwrap();
    [private, below, file]
}

#[tokio::test(start_paused = true)]
async fn by_an_id_that_was_guessed_nothing_is_held() {
    let house = House::proven().await;
    let (owner, stranger) = (house.client().await, stranger(&house).await);
    let [private, below, file] = private(&owner).await;
    house.clients.set(stranger.session, Manner::Ignores);
    let mut units = vec![];
    units.extend(stranger.call(ListXattrs { id: private }).await.unwrap().lease.units);
    let denied = Some(ErrorKind::PermissionDenied);
    for id in [below, file] {
        assert_eq!(stranger.kind_of(GetAttributes { id }).await, denied);
        assert_eq!(stranger.kind_of(ListXattrs { id }).await, denied);
    }
    assert_eq!(stranger.kind_of(Lookup { parent: below, name: name("f") }).await, denied);
    let list = |is_plus| ReadDirectory { id: below, after: None, limit: 9, is_plus };
    assert_eq!(stranger.kind_of(list(false)).await, denied);
    assert_eq!(stranger.kind_of(list(true)).await, denied);
    let tree = ReadTree {
        roots: vec![below],
        after: None,
        depth: 3,
        entries: 99,
        bytes: 1 << 20,
        contents_max: 1 << 20,
        holder: None,
    };
    assert_eq!(stranger.kind_of(tree).await, denied);
    let files = ReadFiles { ids: vec![file], bytes: 1 << 20, contents_max: 1 << 20, holder: None };
    units.extend(stranger.call(files).await.unwrap().lease.units);
    assert_eq!(stranger.kind_of(open(file, true, true)).await, denied);
    let extents = GetExtents { id: file, offset: 0, limit: 9 };
    assert_eq!(stranger.kind_of(extents).await, denied);
    units.extend(stranger.call(commit(file, vec![])).await.unwrap().lease.units);
    let now = SetAttributes { mtime: Some(SetTime::Now), ..setattr(file) };
    units.extend(stranger.call(now).await.unwrap().lease.units);
    let late = Some(SetTime::At(Time { seconds: 1 << 33, nanos: 0 }));
    let access = SetAttributes { atime: late, is_access: Some(true), ..setattr(file) };
    assert_eq!(stranger.kind_of(access).await, denied);
    assert_eq!(units, []);
    house.clients.recalled(stranger.session);
    let before = Instant::now();
    owner.create(private, "new").await;
    owner.mkdir(below, "new").await;
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert!(house.clients.recalled(stranger.session).is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_sees_a_directory_from_outside_is_told_and_hardly_waited_for() {
    let house = House::proven().await;
    let (owner, stranger) = (house.client().await, stranger(&house).await);
    let [private, ..] = private(&owner).await;
    let seen = stranger.lookup(ROOT, "private").await;
    assert_eq!(seen.lease.units, [ROOT, private]);
    house.clients.recalled(stranger.session);
    // Whoever answers is waited for, as all are.
    owner.create(private, "a").await;
    assert_eq!(house.clients.recalled(stranger.session), [private]);
    house.clients.set(stranger.session, Manner::Ignores);
    stranger.lookup(ROOT, "private").await;
    let before = Instant::now();
    owner.create(private, "b").await;
    assert_eq!(before.elapsed(), Duration::from_secs(1));
    // It goes on, and holds nothing there.
    assert!(stranger.kind_of(GetAttributes { id: ROOT }).await.is_none());
    house.clients.recalled(stranger.session);
    owner.create(private, "c").await;
    assert!(house.clients.recalled(stranger.session).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_of_many_users_holds_what_the_most_entitled_may() {
    let house = House::proven().await;
    let owner = house.client().await;
    let [private, below, file] = private(&owner).await;
    let machine = house.client().await;
    let (ann, bob) = (machine.by(&user(0, 0, &[])), machine.by(&user(1, 1, &[])));
    assert_eq!(bob.lookup(ROOT, "private").await.lease.units, [ROOT, private]);
    let holder = |unit| crate::leases::Holder { session: machine.session, unit };
    assert!(house.mdt.leases.is_outside(holder(private)));
    // The first of them to be let in makes it whole, for all of them.
    ann.lookup(private, "below").await;
    assert!(!house.mdt.leases.is_outside(holder(private)));
    assert_eq!(bob.call(GetAttributes { id: file }).await.unwrap().lease.units, [below]);
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_connection_who_may_come_there_holds_it_again() {
    let house = House::proven().await;
    let owner = house.client().await;
    let all = owner.mkdir(ROOT, "all").await;
    let (deep, file) = {
        let deep = owner.mkdir(all, "deep").await;
        (deep, owner.create(deep, "f").await)
    };
    let reader = house.client_named(5, None).await.by(&user(1, 1, &[]));
    // By id alone, as one asks who stands there.
    assert_eq!(reader.call(GetAttributes { id: file }).await.unwrap().lease.units, [deep]);
    owner.call(chmod(all, 0o700)).await.unwrap();
    // What it holds it goes on holding; what it lost it is not given again.
    assert_eq!(reader.call(GetAttributes { id: file }).await.unwrap().lease.units, [deep]);
    let again = house.client_named(5, Some(reader.session)).await.by(&user(1, 1, &[]));
    assert_eq!(again.call(GetAttributes { id: file }).await.unwrap().lease.units, []);
    assert_eq!(again.stat(file).await.mode, Mode::new(0o644));
}

#[tokio::test(start_paused = true)]
async fn a_file_without_a_name_is_its_keepers() {
    let house = House::proven().await;
    let (owner, stranger) = (house.client().await, stranger(&house).await);
    let nameless = Create { is_nameless: Some(true), ..create(ROOT, "x", 0o666) };
    let made = owner.call(nameless).await.unwrap().open;
    let file = made.attributes.id;
    assert_eq!(made.lease.units, [file]);
    assert_eq!(
        stranger.kind_of(GetAttributes { id: file }).await,
        Some(ErrorKind::PermissionDenied)
    );
    let before = Instant::now();
    owner.commit(file, vec![inline(0, b"a")]).await;
    assert!(before.elapsed() < LEASE);
}

#[tokio::test(start_paused = true)]
async fn who_holds_a_directory_from_outside_holds_nothing_alone() {
    let house = House::new().await;
    let client = house.client().await;
    client.call(Reserve { count: 100 }).await.unwrap();
    let owner = client.by(&user(1, 1, &[]));
    client.call(chmod(ROOT, 0o777)).await.unwrap();
    let own = owner.call(mkdir(ROOT, "own", 0o000)).await.unwrap();
    let id = own.attributes.unwrap().id;
    let alone = own.lease.exclusive.unwrap_or_default();
    assert!(alone.iter().all(|unit| unit.attributes.id != id), "{alone:?}");
    assert_eq!(house.mdt.leases.inside(client.session, &[id]).len(), 0);
}

fn lock(id: FileId, kind: LockKind, mode: LockMode) -> Lock {
    let range = LockRange::WHOLE;
    Lock { id, kind, owner: 1, range, mode: Some(mode), wait: None, idles: None }
}

fn asserted(locks: &[Lock], is_last: bool) -> AssertLocks {
    let locks = locks.iter().map(|lock| AssertedLock {
        id: lock.id,
        kind: lock.kind,
        owner: lock.owner,
        range: lock.range,
        mode: lock.mode.unwrap(),
    });
    AssertLocks { locks: locks.collect(), is_last, heard: None }
}

#[tokio::test(start_paused = true)]
async fn who_came_after_the_start_asserts_no_locks() {
    let house = House::new().await;
    let (owner, liar) = (house.client().await, house.client().await);
    let file = owner.create(ROOT, "f").await;
    let locks =
        [LockKind::Posix, LockKind::Flock].map(|kind| lock(file, kind, LockMode::Exclusive));
    assert_eq!(liar.call(asserted(&locks, true)).await.unwrap().lost, [0, 1]);
    for lock in locks {
        assert_eq!(owner.call(lock).await.unwrap().outcome, LockOutcome::Granted);
    }
}

#[tokio::test(start_paused = true)]
async fn locks_are_asserted_once_and_by_who_may_have_them() {
    let house = House::proven().await;
    let owner = house.client_named(1, None).await;
    let before = house.client_named(2, None).await;
    let hidden = owner.call(create(ROOT, "hidden", 0o600)).await.unwrap().open.attributes.id;
    let shown = owner.call(create(ROOT, "shown", 0o644)).await.unwrap().open.attributes.id;
    let house = House::proven_on(house.store).await;
    let back = house.client_named(2, Some(before.session)).await.by(&user(1, 1, &[]));
    assert!(back.is_resumed);
    let locks = [
        lock(hidden, LockKind::Flock, LockMode::Shared),
        lock(shown, LockKind::Posix, LockMode::Exclusive),
        lock(shown, LockKind::Posix, LockMode::Shared),
        lock(FileId(9999), LockKind::Flock, LockMode::Shared),
    ];
    assert_eq!(back.call(asserted(&locks, false)).await.unwrap().lost, [0, 1, 3]);
    // The second part is the last.
    let flock = [lock(shown, LockKind::Flock, LockMode::Exclusive)];
    assert!(back.call(asserted(&flock, true)).await.unwrap().lost.is_empty());
    let more = [lock(shown, LockKind::Flock, LockMode::Shared)];
    assert_eq!(back.call(asserted(&more, true)).await.unwrap().lost, [0]);
}

/// A laptop that slept over the start gets what nobody wanted meanwhile.
#[tokio::test(start_paused = true)]
async fn who_asserts_late_overtakes_nobody() {
    let house = House::new().await;
    let owner = house.client_named(1, None).await;
    let late = house.client_named(2, None).await;
    let [free, held, wanted] = [
        owner.create(ROOT, "free").await,
        owner.create(ROOT, "held").await,
        owner.create(ROOT, "wanted").await,
    ];
    let house = house.restarted().await;
    let owner = house.client_named(1, Some(owner.session)).await;
    let exclusive = |id| lock(id, LockKind::Flock, LockMode::Exclusive);
    let shared = |id| lock(id, LockKind::Flock, LockMode::Shared);
    assert_eq!(owner.call(exclusive(held)).await.unwrap().outcome, LockOutcome::Granted);
    house.mdt.heard(owner.session);
    owner.call(shared(wanted)).await.unwrap();
    let wait = Some(LockWait { ticket: 1, patience_ms: 10 });
    let waiting = Lock { owner: 2, wait, ..exclusive(wanted) };
    assert_eq!(owner.call(waiting).await.unwrap().outcome, LockOutcome::Queued);
    let late = house.client_named(2, Some(late.session)).await;
    // Whoever holds something may overtake: this owner holds nothing.
    let locks = [exclusive(free), exclusive(held), Lock { owner: 7, ..shared(wanted) }];
    assert_eq!(late.call(asserted(&locks, true)).await.unwrap().lost, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn fcntl_locks_are_for_who_may_do_what_they_are_for() {
    let house = House::proven().await;
    let (owner, stranger) = (house.client().await, stranger(&house).await);
    let made = |mode| owner.call(create(ROOT, &format!("f{mode:o}"), mode));
    let read = made(0o644).await.unwrap().open.attributes.id;
    let written = made(0o622).await.unwrap().open.attributes.id;
    let hidden = made(0o600).await.unwrap().open.attributes.id;
    let outcome = |id, kind, mode| {
        let stranger = stranger.clone();
        async move { stranger.call(lock(id, kind, mode)).await.map(|reply| reply.outcome).ok() }
    };
    let (granted, posix, flock) = (Some(LockOutcome::Granted), LockKind::Posix, LockKind::Flock);
    assert_eq!(outcome(read, posix, LockMode::Exclusive).await, None);
    assert_eq!(outcome(read, posix, LockMode::Shared).await, granted);
    assert_eq!(outcome(written, posix, LockMode::Shared).await, None);
    assert_eq!(outcome(written, posix, LockMode::Exclusive).await, granted);
    // What it has it may make weaker.
    assert_eq!(outcome(written, posix, LockMode::Shared).await, granted);
    for id in [read, written] {
        assert_eq!(outcome(id, flock, LockMode::Exclusive).await, granted);
    }
    for kind in [posix, flock] {
        assert_eq!(outcome(hidden, kind, LockMode::Shared).await, None);
        let (owner, range, mode) = (1, LockRange::WHOLE, LockMode::Shared);
        let test = TestLock { id: hidden, kind, owner, range, mode };
        assert_eq!(stranger.kind_of(test).await, Some(ErrorKind::PermissionDenied));
    }
}

/// Who held a directory alone says what he writes there, and nothing of other files.
#[tokio::test(start_paused = true)]
async fn who_is_alone_no_more_is_believed_of_what_was_there() {
    let house = House::new().await;
    let (other, liar) = (house.client().await, house.client().await);
    let others = other.mkdir(ROOT, "others").await;
    let elsewhere = other.create(others, "elsewhere").await;
    other.call(Commit { closes: Some(true), ..commit(elsewhere, vec![]) }).await.unwrap();
    liar.call(Reserve { count: 100 }).await.unwrap();
    let dir = liar.mkdir(ROOT, "d").await;
    let file = liar.create(dir, "f").await;
    liar.call(Commit { closes: Some(true), ..commit(file, vec![]) }).await.unwrap();
    let claims = vec![elsewhere, file, dir, FileId(9999)];
    house.clients.set(liar.session, Manner::Claims(claims));
    assert!(house.mdt.leases.is_at_work(other.session, dir), "it holds it alone");
    other.stat(dir).await;
    let written = |file| house.mdt.writers.has_others(other.session, file);
    assert_eq!([elsewhere, file, dir, FileId(9999)].map(written), [false, true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn who_lets_a_recall_run_out_is_given_nothing_for_a_while() {
    let house = House::new().await;
    let owner = house.client().await;
    let liar = house.client_named(5, None).await;
    let units = async |liar: &Client| liar.lookup(ROOT, "x").await.lease.units;
    let mut names = 0..;
    // It says nothing in between.
    for span in [20, 40, 80] {
        house.mdt.heard(liar.session);
        assert_eq!(units(&liar).await, [ROOT]);
        house.clients.set(liar.session, Manner::Ignores);
        let before = Instant::now();
        owner.mkdir(ROOT, &format!("d{}", names.next().unwrap())).await;
        assert_eq!(before.elapsed(), LEASE);
        let back = house.client_named(5, Some(liar.session)).await;
        assert!(back.is_resumed);
        house.mdt.heard(owner.session);
        assert_eq!(units(&owner).await, [ROOT], "others go on");
        tokio::time::sleep(Duration::from_secs(span - 1)).await;
        assert_eq!(units(&back).await, []);
        // Whoever is given nothing is not waited for.
        let before = Instant::now();
        owner.mkdir(ROOT, &format!("d{}", names.next().unwrap())).await;
        assert_eq!(before.elapsed(), Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    house.mdt.heard(liar.session);
    assert_eq!(units(&liar).await, [ROOT]);
}

/// A new session of the same machine is no way around it, and one of another machine is not held to
/// it.
#[tokio::test(start_paused = true)]
async fn who_comes_again_from_there_waits_as_well() {
    let house = House::new().await;
    let (owner, liar) = (house.client().await, house.client().await);
    liar.lookup(ROOT, "x").await;
    house.clients.set(liar.session, Manner::Ignores);
    tokio::time::sleep(Duration::from_millis(1)).await;
    owner.mkdir(ROOT, "d").await;
    house.mdt.end_session(liar.session).await.unwrap();
    let again = house.client().await;
    assert!(again.lookup(ROOT, "x").await.lease.units.is_empty());
    let other = house.client_from("elsewhere").await;
    assert_eq!(other.lookup(ROOT, "x").await.lease.units, [ROOT]);
    tokio::time::sleep(LEASE).await;
    assert_eq!(again.lookup(ROOT, "x").await.lease.units, [ROOT]);
}

/// Who may read a file may have it open, and says nothing when it goes: once.
#[tokio::test(start_paused = true)]
async fn who_does_not_say_what_is_open_is_hardly_asked_again() {
    let house = House::new().await;
    let (owner, liar) = (house.client().await, house.client().await);
    for text in ["a", "b", "c"] {
        let file = owner.create(ROOT, text).await;
        liar.call(open(file, true, false)).await.unwrap();
    }
    // It holds nothing any more, and is heard.
    owner.mkdir(ROOT, "d").await;
    house.clients.set(liar.session, Manner::Ignores);
    let took = async |text: &str| {
        house.mdt.heard(liar.session);
        let before = Instant::now();
        owner.call(unlink(ROOT, text)).await.unwrap();
        before.elapsed()
    };
    assert_eq!(took("a").await, LEASE);
    assert_eq!(took("b").await, Duration::from_secs(1));
    assert_eq!(took("c").await, Duration::from_secs(1));
    assert_eq!(house.count(b'o').await, 3, "it may have them open");
}

/// Who is asked twice for the same answers both in one: the second question ends with the first.
#[tokio::test(start_paused = true)]
async fn who_answers_is_given_more_however_many_asked() {
    let house = House::new().await;
    let (owner, other, honest) = (house.client().await, house.client().await, house.client().await);
    let units = async || honest.lookup(ROOT, "x").await.lease.units;
    assert_eq!(units().await, [ROOT]);
    house.clients.set(honest.session, Manner::Takes(Duration::from_secs(2)));
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        other.mkdir(ROOT, "b").await
    };
    tokio::join!(owner.mkdir(ROOT, "a"), late);
    assert_eq!(house.clients.recalled(honest.session), [ROOT, ROOT]);
    assert_eq!(units().await, [ROOT]);
}

/// Nobody waits for who is away, so that is nothing to be held to.
#[tokio::test(start_paused = true)]
async fn who_is_away_when_its_file_goes_is_given_leases_when_it_is_back() {
    let house = House::new().await;
    let (owner, honest) = (house.client().await, house.client().await);
    let file = owner.create(ROOT, "f").await;
    honest.call(open(file, true, false)).await.unwrap();
    owner.mkdir(ROOT, "d").await;
    house.clients.set(honest.session, Manner::IsAway);
    let before = Instant::now();
    owner.call(unlink(ROOT, "f")).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(house.count(b'o').await, 1, "it may have it open");
    house.mdt.heard(honest.session);
    assert_eq!(honest.lookup(ROOT, "x").await.lease.units, [ROOT]);
}

/// Whoever gives a directory back says what he has open there, and is asked before that goes.
#[tokio::test(start_paused = true)]
async fn what_is_open_beside_a_change_is_kept_when_it_loses_its_name() {
    let house = House::proven().await;
    let (owner, reader) = (house.client().await, house.client().await.by(&user(1, 1, &[])));
    let dir = owner.mkdir(ROOT, "d").await;
    let [file, other] = [owner.create(dir, "f").await, owner.create(dir, "g").await];
    let hidden = owner.call(create(dir, "h", 0o600)).await.unwrap().open.attributes.id;
    let elsewhere = owner.create(ROOT, "elsewhere").await;
    assert_eq!(reader.lookup(dir, "f").await.lease.units, [dir]);
    let claims = vec![file, hidden, elsewhere, dir, FileId(9999)];
    house.clients.set(reader.session, Manner::Claims(claims));
    owner.create(dir, "new").await;
    let is_asked = |file| house.mdt.openers(file).contains(&reader.session);
    assert!(is_asked(file), "he may read it");
    assert!(![other, hidden, elsewhere, dir, FileId(9999)].into_iter().any(is_asked));
    house.clients.recalled(reader.session);
    // He holds nothing any more.
    house.clients.set(reader.session, Manner::Answers);
    house.clients.open(reader.session, file);
    owner.call(unlink(dir, "g")).await.unwrap();
    assert!(house.clients.recalled(reader.session).is_empty());
    owner.call(unlink(dir, "f")).await.unwrap();
    assert_eq!(house.clients.recalled(reader.session), [dir]);
    assert_eq!(house.count(b'o').await, 1, "it is kept for him");
}

/// What is said to be open is taken for that when the lease goes, not a moment later.
#[tokio::test(start_paused = true)]
async fn what_is_open_beside_a_change_is_known_before_the_next_change() {
    let house = House::new().await;
    let (owner, other, reader) = (house.client().await, house.client().await, house.client().await);
    let dir = owner.mkdir(ROOT, "d").await;
    let file = owner.create(dir, "f").await;
    reader.lookup(dir, "f").await;
    house.clients.set(reader.session, Manner::Claims(vec![file]));
    tokio::join!(owner.create(dir, "new"), async { other.call(unlink(dir, "f")).await.unwrap() });
    assert_eq!(house.count(b'o').await, 1, "it is kept for him");
}

/// What a request of it that still runs notes would stay until the next start.
#[tokio::test(start_paused = true)]
async fn a_session_that_ends_while_it_asks_leaves_nothing() {
    let house = House::new().await;
    let (writer, other) = (house.client().await, house.client().await);
    let file = writer.create(ROOT, "f").await;
    house.clients.set(writer.session, Manner::Ignores);
    let ending = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        house.mdt.end_session(other.session).await.unwrap();
    };
    let (opened, ()) = tokio::join!(other.call(open(file, true, true)), ending);
    assert!(opened.is_ok(), "it was under way: {opened:?}");
    assert!(!house.mdt.openers(file).contains(&other.session));
    assert!(!house.mdt.writers.has_others(writer.session, file));
    assert!(!house.mdt.walks.holds(other.session, file));
    // One that it asks afterwards is refused before.
    assert_eq!(other.kind_of(open(file, true, true)).await, Some(ErrorKind::SessionLost));
    assert!(house.mdt.callers.of(other.session).is_empty());
}

/// The same where the client gives up the request.
#[tokio::test(start_paused = true)]
async fn a_session_that_ends_while_its_request_is_dropped_leaves_nothing() {
    let house = House::new().await;
    let (writer, other) = (house.client().await, house.client().await);
    let file = writer.create(ROOT, "f").await;
    house.clients.set(writer.session, Manner::Ignores);
    let mut opening = Box::pin(other.call(open(file, true, true)));
    let wait = Duration::from_millis(10);
    assert!(tokio::time::timeout(wait, &mut opening).await.is_err());
    house.mdt.end_session(other.session).await.unwrap();
    // As far as what it waits for next.
    let step = Duration::from_secs(60);
    let _ = tokio::time::timeout(step, &mut opening).await;
    drop(opening);
    assert!(!house.mdt.openers(file).contains(&other.session));
    assert!(!house.mdt.writers.has_others(writer.session, file));
}
