//! Locks that belong to an open file (`F_OFD_SETLK`): they end with its last close, of which no
//! owner tells. Locks of `flock`, which are an open file's too. Requests of one owner that cross.
//! Locks that a server took while we were silent.

use super::fake::{Fake, ROOT};
use super::kept;
use super::*;
use std::sync::Arc;
use std::time::Duration;
use tieline_owed::records::{KeptLock, put_locks};
use tieline_types::{ErrorKind, LostLock};
use tieline_wire::Op;
use tokio::task::JoinHandle;

const ACCESS: Access =
    Access { read: true, write: true, append: false, truncate: false, unnoted: false, runs: false };

fn wish(owner: u64, start: u64) -> LockWish {
    let (range, mode) = (LockRange { start, end: start + 10 }, LockMode::Exclusive);
    LockWish { kind: LockKind::Posix, owner, range, mode, process: 7 }
}

fn flock(owner: u64, mode: LockMode) -> LockWish {
    LockWish { kind: LockKind::Flock, owner, range: LockRange::WHOLE, mode, process: 7 }
}

/// Whose locks the server has, and where they begin.
fn at_server(fake: &Fake, id: FileId) -> Vec<(u64, u64)> {
    let state = fake.lock();
    let held = state.locks.get(&(id, LockKind::Posix)).into_iter();
    held.flat_map(|set| set.iter()).map(|one| (one.owner.1, one.range.start)).collect()
}

/// How the server has the file locked by `flock`.
fn flocks(fake: &Fake, id: FileId) -> Vec<LockMode> {
    let state = fake.lock();
    let held = state.locks.get(&(id, LockKind::Flock)).into_iter();
    held.flat_map(|set| set.iter()).map(|one| one.mode).collect()
}

async fn settle() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

fn locking(volume: &Arc<Volume>, handle: HandleId, wish: LockWish) -> JoinHandle<Result<()>> {
    let volume = volume.clone();
    tokio::spawn(async move { volume.lock(handle, wish, false).await })
}

/// The last close of an open file, by whoever locked it under that number.
fn closing(volume: &Arc<Volume>, handle: HandleId, kind: LockKind, owner: u64) -> JoinHandle<()> {
    let volume = volume.clone();
    tokio::spawn(async move {
        volume.drop_locks(handle, kind, owner).await;
        volume.release(handle).await;
    })
}

async fn open(volume: &Volume, id: FileId) -> HandleId {
    volume.open(&Caller::root(), id, ACCESS).await.unwrap().handle
}

#[tokio::test(start_paused = true)]
async fn locks_of_an_open_file_end_with_it() {
    let fake = Fake::new();
    let volume = fake.mount();
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    let (one, other) = (open(&volume, id).await, open(&volume, id).await);
    // What is idle, too.
    volume.lock(one, wish(1, 0), false).await.unwrap();
    volume.lock(one, wish(1, 20), false).await.unwrap();
    volume.unlock(one, wish(1, 20)).await.unwrap();
    volume.lock(other, wish(2, 40), false).await.unwrap();
    volume.release(one).await;
    assert_eq!(at_server(&fake, id), [(2, 40)]);
    volume.release(other).await;
    assert_eq!(at_server(&fake, id), []);
}

/// A process that closes one file and locks again through another keeps what it has, however late
/// the first is released.
#[tokio::test(start_paused = true)]
async fn locks_of_a_process_stay_with_it() {
    let fake = Fake::new();
    let volume = fake.mount();
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    let (one, other) = (open(&volume, id).await, open(&volume, id).await);
    volume.lock(one, wish(1, 0), false).await.unwrap();
    volume.drop_locks(one, LockKind::Posix, 1).await;
    volume.lock(other, wish(1, 20), false).await.unwrap();
    volume.release(one).await;
    assert_eq!(at_server(&fake, id), [(1, 20)]);
}

#[tokio::test(start_paused = true)]
async fn the_next_process_knows_which_open_file_a_lock_is_of() {
    let fake = Fake::new();
    // Its sessions are resumed.
    fake.lock().boot = 2;
    let (volume, keep) = kept::first(&fake);
    let (id, handle) = kept::make(&volume, "f", false).await.unwrap();
    volume.sync(handle, false).await.unwrap();
    let other = open(&volume, id).await;
    volume.lock(handle, wish(1, 0), false).await.unwrap();
    volume.lock(other, wish(2, 20), false).await.unwrap();
    let (_volume, keep) = kept::next(&fake, &keep).await;
    // And who follows that one.
    let (volume, _keep) = kept::next(&fake, &keep).await;
    volume.release(handle).await;
    assert_eq!(at_server(&fake, id), [(2, 20)]);
    volume.release(other).await;
    assert_eq!(at_server(&fake, id), []);
}

/// A kernel tells late of a last close, and has given the open file's number to the next by then.
#[tokio::test(start_paused = true)]
async fn a_late_close_frees_no_flock_but_its_own() {
    let (fake, owner) = (Fake::new(), 5);
    let volume = fake.mount();
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    let (one, next, other) =
        (open(&volume, id).await, open(&volume, id).await, open(&volume, id).await);
    volume.lock(one, flock(owner, LockMode::Shared), false).await.unwrap();
    // It is not the next one's.
    let refused = volume.lock(next, flock(owner, LockMode::Exclusive), false).await;
    assert_eq!(kind(refused), Some(ErrorKind::WouldBlock));
    volume.lock(next, flock(owner, LockMode::Shared), false).await.unwrap();
    closing(&volume, one, LockKind::Flock, owner).await.unwrap();
    assert_eq!(flocks(&fake, id), [LockMode::Shared]);
    volume.lock(next, flock(owner, LockMode::Exclusive), false).await.unwrap();
    let refused = volume.lock(other, flock(6, LockMode::Shared), false).await;
    assert_eq!(kind(refused), Some(ErrorKind::WouldBlock));
    closing(&volume, next, LockKind::Flock, owner).await.unwrap();
    assert_eq!(flocks(&fake, id), []);
}

/// Who asks while the one before is being closed waits for that.
#[tokio::test(start_paused = true)]
async fn a_flock_that_is_being_freed_is_nobodys() {
    let (fake, owner) = (Fake::new(), 5);
    let volume = fake.mount();
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    let (one, next) = (open(&volume, id).await, open(&volume, id).await);
    volume.lock(one, flock(owner, LockMode::Exclusive), false).await.unwrap();
    let held = fake.hold(Op::Lock);
    let closed = closing(&volume, one, LockKind::Flock, owner);
    settle().await;
    let taken = locking(&volume, next, flock(owner, LockMode::Exclusive));
    settle().await;
    assert!(!closed.is_finished() && !taken.is_finished());
    fake.release(Op::Lock);
    drop(held);
    closed.await.unwrap();
    taken.await.unwrap().unwrap();
    assert_eq!(flocks(&fake, id), [LockMode::Exclusive]);
}

/// Whoever is killed while he asks closes before the answer is here.
#[tokio::test(start_paused = true)]
async fn a_close_frees_what_is_still_being_asked_for() {
    let (fake, owner) = (Fake::new(), 5);
    let volume = fake.mount();
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    for wish in [flock(owner, LockMode::Exclusive), wish(owner, 0)] {
        let handle = open(&volume, id).await;
        let held = fake.hold(Op::Lock);
        let asking = locking(&volume, handle, wish);
        settle().await;
        asking.abort();
        let closed = closing(&volume, handle, wish.kind, owner);
        settle().await;
        fake.release(Op::Lock);
        drop(held);
        closed.await.unwrap();
        settle().await;
        assert_eq!((flocks(&fake, id), at_server(&fake, id)), (vec![], vec![]), "{wish:?}");
    }
}

/// The answer to a free may come after a program was told that it has the lock again.
#[tokio::test(start_paused = true)]
async fn a_lock_waits_for_its_owners_free() {
    let (fake, owner) = (Fake::new(), 5);
    let volume = fake.mount();
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    let handle = open(&volume, id).await;
    volume.shared().locks.stop_idling(id);
    for (at, wish) in [flock(owner, LockMode::Exclusive), wish(owner, 0)].into_iter().enumerate() {
        volume.lock(handle, wish, false).await.unwrap();
        let held = fake.hold(Op::Lock);
        let freeing = {
            let volume = volume.clone();
            tokio::spawn(async move { volume.unlock(handle, wish).await })
        };
        settle().await;
        freeing.abort();
        let taken = locking(&volume, handle, wish);
        settle().await;
        assert!(!taken.is_finished(), "{wish:?}");
        fake.release(Op::Lock);
        drop(held);
        taken.await.unwrap().unwrap();
        settle().await;
        assert_eq!(flocks(&fake, id).len() + at_server(&fake, id).len(), at + 1, "{wish:?}");
    }
}

/// A wait that was given up is given what its owner had before; not if that was closed meanwhile.
#[tokio::test(start_paused = true)]
async fn a_close_frees_what_a_given_up_wait_gives_back() {
    let (fake, owner) = (Fake::new(), 5);
    let volume = fake.mount();
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    let (handle, wish) = (open(&volume, id).await, wish(owner, 0));
    volume.lock(handle, LockWish { mode: LockMode::Shared, ..wish }, false).await.unwrap();
    let (key, of_another) = ((id, LockKind::Posix), (99, 1));
    let other = |mode| {
        fake.lock().locks.get_mut(&key).unwrap().set(of_another, wish.range, mode);
    };
    other(Some(LockMode::Shared));
    let waiting = {
        let volume = volume.clone();
        tokio::spawn(async move { volume.lock(handle, wish, true).await })
    };
    settle().await;
    let held = fake.hold(Op::Lock);
    tokio::time::sleep(Duration::from_secs(1)).await;
    waiting.abort();
    settle().await;
    let closed = closing(&volume, handle, wish.kind, owner);
    settle().await;
    fake.release(Op::Lock);
    drop(held);
    closed.await.unwrap();
    settle().await;
    other(None);
    assert_eq!(at_server(&fake, id), []);
}

#[tokio::test(start_paused = true)]
async fn the_next_process_knows_whose_a_flock_is() {
    let (fake, owner) = (Fake::new(), 5);
    fake.lock().boot = 2;
    let (volume, keep) = kept::first(&fake);
    let (id, handle) = kept::make(&volume, "f", false).await.unwrap();
    volume.sync(handle, false).await.unwrap();
    volume.lock(handle, flock(owner, LockMode::Exclusive), false).await.unwrap();
    let (volume, _keep) = kept::next(&fake, &keep).await;
    let next = open(&volume, id).await;
    let refused = volume.lock(next, flock(owner, LockMode::Exclusive), false).await;
    assert_eq!(kind(refused), Some(ErrorKind::WouldBlock));
    closing(&volume, handle, LockKind::Flock, owner).await.unwrap();
    assert_eq!(flocks(&fake, id), []);
    volume.lock(next, flock(owner, LockMode::Exclusive), false).await.unwrap();
}

/// Earlier builds kept them by the kernel's numbers.
#[tokio::test(start_paused = true)]
async fn a_flock_of_an_earlier_build_ends_with_its_open_file() {
    let (fake, owner) = (Fake::new(), 5 << 50);
    fake.lock().boot = 2;
    let (volume, keep) = kept::first(&fake);
    let (id, handle) = kept::make(&volume, "f", false).await.unwrap();
    volume.sync(handle, false).await.unwrap();
    // The server knows it by that number, and so does the record.
    let exclusive = flock(owner, LockMode::Exclusive);
    volume.lock(handle, exclusive, false).await.unwrap();
    let session = {
        let mut state = fake.lock();
        let set = state.locks.get_mut(&(id, LockKind::Flock)).unwrap();
        let session = set.iter().next().unwrap().owner.0;
        set.drop_owners(|_| true);
        set.set((session, owner), LockRange::WHOLE, Some(LockMode::Exclusive));
        session
    };
    std::mem::forget(put_locks(&keep, id, &vec![KeptLock::of(&exclusive)]));
    let (_volume, keep) = kept::next(&fake, &keep).await;
    let (volume, _keep) = kept::next(&fake, &keep).await;
    let next = open(&volume, id).await;
    // A new open file may have the old one's number.
    let refused = volume.lock(next, exclusive, false).await;
    assert_eq!(kind(refused), Some(ErrorKind::WouldBlock));
    volume.lock(handle, exclusive, false).await.unwrap();
    let owners = |fake: &Fake| {
        let state = fake.lock();
        state.locks[&(id, LockKind::Flock)].iter().map(|one| one.owner).collect::<Vec<_>>()
    };
    assert_eq!(owners(&fake), [(session, owner)]);
    closing(&volume, handle, LockKind::Flock, owner).await.unwrap();
    assert_eq!(flocks(&fake, id), []);
}

fn lost(id: FileId, number: u64) -> LostLock {
    LostLock { number, id, kind: LockKind::Posix, owner: 1, by: "another".into() }
}

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

/// Nothing goes through this handle any more.
async fn check_lost(volume: &Volume, handle: HandleId) {
    let lock_lost = Some(ErrorKind::LockLost);
    assert_eq!(kind(volume.write(handle, 0, vec![9].into()).await), lock_lost);
    assert_eq!(kind(volume.read(handle, 0, 1).await), lock_lost);
    assert_eq!(kind(volume.lock(handle, wish(1, 0), false).await), lock_lost);
    assert_eq!(kind(volume.sync(handle, false).await), lock_lost);
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_on_under_a_lock_that_was_taken() {
    let fake = Fake::new();
    fake.lock().boot = 2;
    let volume = fake.mount();
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    let (one, beside) = (open(&volume, id).await, open(&volume, id).await);
    volume.lock(one, wish(1, 0), false).await.unwrap();
    volume.write(one, 0, b"old".to_vec().into()).await.unwrap();
    fake.takes(lost(id, 1));
    // What was written is lost, and told.
    assert_eq!(kind(volume.flush(one).await), Some(ErrorKind::LockLost));
    check_lost(&volume, one).await;
    check_lost(&volume, beside).await;
    volume.unlock(one, wish(1, 0)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(fake.bytes(id).is_empty());
    assert!(fake.lock().lost_locks.is_empty(), "the server knows that it is known");
    // Who opens it now begins anew.
    volume.release(one).await;
    let anew = open(&volume, id).await;
    volume.lock(anew, wish(1, 0), false).await.unwrap();
    volume.write(anew, 0, b"new".to_vec().into()).await.unwrap();
    // Told again, in case the server did not hear that it is known.
    fake.takes(lost(id, 1));
    volume.write(anew, 3, b"er".to_vec().into()).await.unwrap();
    let _told = volume.sync(anew, false).await;
    volume.sync(anew, false).await.unwrap();
    assert_eq!(fake.bytes(id), b"newer");
    check_lost(&volume, beside).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_lock_that_was_taken_is_nobodys_loss() {
    let fake = Fake::new();
    fake.lock().boot = 2;
    let volume = fake.mount();
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    let handle = open(&volume, id).await;
    volume.lock(handle, wish(1, 0), false).await.unwrap();
    volume.unlock(handle, wish(1, 0)).await.unwrap();
    assert_eq!(at_server(&fake, id), [(1, 0)]);
    volume.write(handle, 0, b"own".to_vec().into()).await.unwrap();
    fake.takes(lost(id, 1));
    volume.sync(handle, false).await.unwrap();
    assert_eq!(fake.bytes(id), b"own");
    // It is not taken here without asking.
    volume.lock(handle, wish(1, 0), false).await.unwrap();
    assert_eq!(at_server(&fake, id), [(1, 0)]);
    assert!(fake.lock().lost_locks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_next_process_knows_which_open_files_are_lost() {
    let fake = Fake::new();
    fake.lock().boot = 2;
    let (volume, keep) = kept::first(&fake);
    let (id, handle) = kept::make(&volume, "f", false).await.unwrap();
    volume.sync(handle, false).await.unwrap();
    volume.lock(handle, wish(1, 0), false).await.unwrap();
    fake.takes(lost(id, 1));
    check_lost(&volume, handle).await;
    let (_volume, keep) = kept::next(&fake, &keep).await;
    let (volume, _keep) = kept::next(&fake, &keep).await;
    check_lost(&volume, handle).await;
    let anew = open(&volume, id).await;
    volume.write(anew, 0, b"new".to_vec().into()).await.unwrap();
    volume.sync(anew, false).await.unwrap();
}
