//! Locks that are taken from silent clients: what goes with them, and what goes on.

use crate::fixture::*;
use std::time::Duration;
use tieline_types::{
    Content, ErrorKind, FileId, LockKind, LockMode, LockRange, LostLock, SetTime, Time,
};
use tieline_wire::Request;
use tieline_wire::locks::{AssertLocks, AssertedLock, Lock, LockOutcome, LockWait};
use tieline_wire::meta::*;
use tieline_wire::ranges::CopyRange;

const SILENCE: Duration = Duration::from_secs(21);

fn flock(id: FileId, owner: u64, waits: bool) -> Lock {
    let wait = waits.then_some(LockWait { ticket: 1, patience_ms: 10_000 });
    let (kind, range, mode) = (LockKind::Flock, LockRange::WHOLE, Some(LockMode::Exclusive));
    Lock { id, kind, owner, range, mode, wait, idles: None }
}

fn heard(upto: u64) -> AssertLocks {
    AssertLocks { locks: vec![], is_last: false, heard: Some(upto) }
}

fn truncate(id: FileId) -> SetAttributes {
    SetAttributes { size: Some(0), ..chmod(id, 0o600) }
}

/// A client that holds a lock on a file of its own, and falls silent while another takes it.
async fn taken(house: &House) -> (Client, Client, FileId) {
    let (silent, other) = (house.client_named(1, None).await, house.client_named(2, None).await);
    let file = silent.create(ROOT, "f").await;
    silent.call(flock(file, 7, false)).await.unwrap();
    tokio::time::sleep(SILENCE).await;
    house.mdt.heard(other.session);
    let reply = other.call(flock(file, 9, false)).await.unwrap();
    assert_eq!(reply.outcome, LockOutcome::Granted);
    (silent, other, file)
}

fn batch(client: &Client, file: FileId, text: &[u8]) -> Batch {
    let written = Request::from(commit(file, vec![inline(0, text)]));
    let (op, message) = (written.op().number(), written.encode_message());
    let at = Time { seconds: 1000, nanos: 5 };
    Batch { items: vec![BatchItem { caller: client.caller.clone(), at, id: file, op, message }] }
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_loses_the_lock_and_is_told() {
    let house = House::new().await;
    let (silent, _, file) = taken(&house).await;
    // Over a connection that is not ended yet it hears nothing else.
    assert!(house.clients.hung_up.lock().unwrap().contains(&silent.session));
    let untold = silent.kind_of(GetAttributes { id: file }).await;
    assert_eq!(untold, Some(ErrorKind::Overloaded));
    let back = house.client_named(1, Some(silent.session)).await;
    assert!(back.is_resumed);
    let (kind, by) = (LockKind::Flock, "test".to_owned());
    let lost = LostLock { number: 1, id: file, kind, owner: 7, by };
    assert_eq!(back.lost_locks, std::slice::from_ref(&lost));
    // Until it says that it has heard.
    let again = house.client_named(1, Some(silent.session)).await;
    assert_eq!(again.lost_locks, [lost]);
    again.call(heard(1)).await.unwrap();
    assert!(house.client_named(1, Some(silent.session)).await.lost_locks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_under_a_lock_that_was_taken() {
    let house = House::new().await;
    let (silent, other, file) = taken(&house).await;
    other.commit(file, vec![inline(0, b"new")]).await;
    assert!(house.client_named(1, Some(silent.session)).await.is_resumed);
    let beside = silent.create(ROOT, "beside").await;
    let lost = Some(ErrorKind::LockLost);
    assert_eq!(silent.kind_of(commit(file, vec![inline(0, b"old")])).await, lost);
    assert_eq!(silent.kind_of(truncate(file)).await, lost);
    let (from, to, mtime, clears_setid) = (beside, file, SetTime::Now, false);
    let (from_offset, to_offset, length) = (0, 0, 3);
    let copy = CopyRange { from, from_offset, to, to_offset, length, mtime, clears_setid };
    silent.commit(beside, vec![inline(0, b"old")]).await;
    assert_eq!(silent.kind_of(copy).await, lost);
    let done = silent.call(batch(&silent, file, b"old")).await.unwrap();
    assert_eq!(done.outcomes[0].failure.as_ref().map(|failure| failure.kind), lost);
    let extents = other.extents(file).await;
    assert_eq!(extents[0].content, Content::Inline(b"new".to_vec()));
    // What is no change of its bytes is none of the lock's.
    silent.call(chmod(file, 0o640)).await.unwrap();
    silent.call(heard(1)).await.unwrap();
    silent.commit(file, vec![inline(0, b"own")]).await;
}

/// What was answered before the lock was taken is answered so again.
#[tokio::test(start_paused = true)]
async fn what_was_done_under_the_lock_is_done_once() {
    let house = House::new().await;
    let (silent, other) = (house.client_named(1, None).await, house.client_named(2, None).await);
    let file = silent.create(ROOT, "f").await;
    silent.call(flock(file, 7, false)).await.unwrap();
    let number = silent.number();
    let write = || commit(file, vec![inline(0, b"old")]);
    let first = silent.call_numbered(number, write()).await.unwrap();
    tokio::time::sleep(SILENCE).await;
    house.mdt.heard(other.session);
    other.call(flock(file, 9, false)).await.unwrap();
    other.commit(file, vec![inline(0, b"new")]).await;
    assert!(house.client_named(1, Some(silent.session)).await.is_resumed);
    let again = silent.call_numbered(number, write()).await.unwrap();
    assert_eq!(again.attributes, first.attributes);
    assert_eq!(other.extents(file).await[0].content, Content::Inline(b"new".to_vec()));
}

#[tokio::test(start_paused = true)]
async fn a_start_forgets_no_loss() {
    let house = House::new().await;
    let (silent, other, file) = taken(&house).await;
    let house = house.restarted().await;
    let other = house.client_named(2, Some(other.session)).await;
    other.call(AssertLocks { locks: vec![], is_last: true, heard: None }).await.unwrap();
    // It did not look into its welcome, and the lock is free by now.
    let silent = house.client_named(1, Some(silent.session)).await;
    assert_eq!(silent.lost_locks.len(), 1);
    let (kind, range, mode) = (LockKind::Flock, LockRange::WHOLE, LockMode::Exclusive);
    let own = AssertedLock { id: file, kind, owner: 7, range, mode };
    let asserted = AssertLocks { locks: vec![own], is_last: true, heard: None };
    assert_eq!(silent.call(asserted).await.unwrap().lost, [0]);
    let write = commit(file, vec![inline(0, b"old")]);
    assert_eq!(silent.kind_of(write).await, Some(ErrorKind::LockLost));
    // The next loss has another number, also after all were heard of.
    silent.call(heard(1)).await.unwrap();
    let house = house.restarted().await;
    let silent = house.client_named(1, Some(silent.session)).await;
    let other = house.client_named(2, Some(other.session)).await;
    for client in [&silent, &other] {
        client.call(AssertLocks { locks: vec![], is_last: true, heard: None }).await.unwrap();
    }
    silent.call(flock(file, 7, false)).await.unwrap();
    tokio::time::sleep(SILENCE).await;
    house.mdt.heard(other.session);
    other.call(flock(file, 9, true)).await.unwrap();
    let silent = house.client_named(1, Some(silent.session)).await;
    assert_eq!(silent.lost_locks[0].number, 2);
}

/// One owner's lock is not another's: of the same client only who was in the way loses it.
#[tokio::test(start_paused = true)]
async fn other_locks_of_a_silent_client_stay() {
    let house = House::new().await;
    let (silent, other) = (house.client_named(1, None).await, house.client_named(2, None).await);
    let file = silent.create(ROOT, "f").await;
    let posix = |owner, start| {
        let (range, kind) = (LockRange { start, end: start + 10 }, LockKind::Posix);
        Lock { kind, range, ..flock(file, owner, false) }
    };
    for lock in [posix(1, 0), posix(1, 20), posix(2, 40), flock(file, 3, false)] {
        silent.call(lock).await.unwrap();
    }
    tokio::time::sleep(SILENCE).await;
    house.mdt.heard(other.session);
    assert_eq!(other.call(posix(5, 0)).await.unwrap().outcome, LockOutcome::Granted);
    let back = house.client_named(1, Some(silent.session)).await;
    let lost: Vec<_> = back.lost_locks.iter().map(|lost| (lost.kind, lost.owner)).collect();
    assert_eq!(lost, [(LockKind::Posix, 1)]);
    assert_eq!(other.call(posix(5, 20)).await.unwrap().outcome, LockOutcome::Granted);
    for lock in [posix(5, 40), flock(file, 5, false)] {
        assert_eq!(other.call(lock).await.unwrap().outcome, LockOutcome::Refused);
    }
}

/// Whoever loses too much unheard loses his session, as one that was away for too long.
#[tokio::test(start_paused = true)]
async fn losses_are_bounded() {
    let house = House::new().await;
    let (silent, other) = (house.client_named(1, None).await, house.client_named(2, None).await);
    let file = silent.create(ROOT, "f").await;
    let posix = |owner| {
        let (range, kind) = (LockRange { start: owner, end: owner + 1 }, LockKind::Posix);
        Lock { kind, range, ..flock(file, owner, false) }
    };
    for owner in 0..129 {
        silent.call(posix(owner)).await.unwrap();
    }
    tokio::time::sleep(SILENCE).await;
    house.mdt.heard(other.session);
    let whole = Lock { kind: LockKind::Posix, ..flock(file, 1, false) };
    assert_eq!(other.call(whole).await.unwrap().outcome, LockOutcome::Granted);
    assert!(!house.client_named(1, Some(silent.session)).await.is_resumed);
}
