//! Locks that belong to an open file (`F_OFD_SETLK`): they end with its last close, of which no
//! owner tells. Locks that a server took while we were silent.

use super::fake::{Fake, ROOT};
use super::kept;
use crate::*;
use tieline_types::{ErrorKind, LostLock};

const ACCESS: Access =
    Access { read: true, write: true, append: false, truncate: false, unnoted: false, runs: false };

fn wish(owner: u64, start: u64) -> LockWish {
    let (range, mode) = (LockRange { start, end: start + 10 }, LockMode::Exclusive);
    LockWish { kind: LockKind::Posix, owner, range, mode, process: 7 }
}

/// Whose locks the server has, and where they begin.
fn at_server(fake: &Fake, id: FileId) -> Vec<(u64, u64)> {
    let state = fake.lock();
    let held = state.locks.get(&(id, LockKind::Posix)).into_iter();
    held.flat_map(|set| set.iter()).map(|one| (one.owner.1, one.range.start)).collect()
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
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
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
