//! Locks that belong to an open file (`F_OFD_SETLK`): they end with its last close, of which no
//! owner tells.

use super::fake::{Fake, ROOT};
use super::kept;
use crate::*;

const ACCESS: Access = Access { read: true, write: true, append: false, truncate: false };

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
