//! What others see of files that are open to be written here.

use super::fake::{Fake, ROOT};
use super::*;
use tieline_wire::Op;

const BOTH: Access =
    Access { read: true, write: true, append: false, truncate: false, unnoted: false, runs: false };
const WRITE: Access = Access { read: false, ..BOTH };

fn file(fake: &Fake) -> FileId {
    fake.lock().add(ROOT, &"log".parse().unwrap(), FileKind::Regular)
}

#[tokio::test(start_paused = true)]
async fn who_looks_sees_what_was_written() {
    let fake = Fake::new();
    let (volume, id) = (fake.mount(), file(&fake));
    let handle = volume.open(&Caller::root(), id, WRITE).await.unwrap().handle;
    volume.write(handle, 0, "one".into()).await.unwrap();
    assert_eq!(fake.bytes(id), b"");
    assert_eq!(fake.look(id, false).await.open, [id]);
    assert_eq!(fake.bytes(id), b"one");
    // It writes on as before.
    volume.write(handle, 3, "two".into()).await.unwrap();
    assert_eq!(fake.bytes(id), b"one");
    assert_eq!(fake.look(id, false).await.open, [id]);
    assert_eq!(fake.bytes(id), b"onetwo");
    // Until it rests, or is closed: then the next write says so anew.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(fake.look(id, false).await.open.is_empty());
    let asked = fake.count(Op::Open);
    volume.write(handle, 6, "three".into()).await.unwrap();
    assert_eq!(fake.count(Op::Open), asked + 1);
    volume.flush(handle).await.unwrap();
    assert!(fake.look(id, false).await.open.is_empty());
    volume.write(handle, 0, "O".into()).await.unwrap();
    assert_eq!(fake.count(Op::Open), asked + 2);
    assert_eq!(fake.look(id, false).await.open, [id]);
    assert_eq!(fake.bytes(id), b"Onetwothree");
}

#[tokio::test(start_paused = true)]
async fn two_who_write_commit_each_write() {
    let fake = Fake::new();
    let (volume, id) = (fake.mount(), file(&fake));
    let handle = volume.open(&Caller::root(), id, WRITE).await.unwrap().handle;
    volume.write(handle, 0, "one".into()).await.unwrap();
    fake.lock().nodes.get_mut(&id).unwrap().attributes.is_written = Some(true);
    assert_eq!(fake.look(id, true).await.open, [id]);
    for (offset, text, all) in [(3, "two", "onetwo"), (0, "ONE", "ONEtwo")] {
        volume.write(handle, offset, text.into()).await.unwrap();
        assert_eq!(fake.bytes(id), all.as_bytes());
    }
    // The answer to a commit says that the other is gone.
    fake.lock().nodes.get_mut(&id).unwrap().attributes.is_written = None;
    volume.write(handle, 3, "TWO".into()).await.unwrap();
    volume.write(handle, 0, "1".into()).await.unwrap();
    assert_eq!(fake.bytes(id), b"ONETWO");
}

#[tokio::test(start_paused = true)]
async fn what_others_write_is_told_once() {
    let fake = Fake::new();
    let (volume, id) = (fake.mount(), file(&fake));
    fake.lock().nodes.get_mut(&id).unwrap().attributes.is_written = Some(true);
    for _ in 0..2 {
        let asked = fake.count(Op::GetAttributes);
        let known = volume.attributes(&Caller::root(), id).await.unwrap();
        assert!(known.belief.units.is_empty());
        assert_eq!(fake.count(Op::GetAttributes), asked + 1);
    }
    fake.lock().nodes.get_mut(&id).unwrap().attributes.is_written = None;
    let known = volume.attributes(&Caller::root(), id).await.unwrap();
    assert!(!known.belief.units.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_may_be_mapped_is_declared_by_its_open() {
    let fake = Fake::new();
    let (volume, id) = (fake.mount(), file(&fake));
    let caller = Caller::root();
    for access in [WRITE, BOTH] {
        let opened = volume.open(&caller, id, access).await.unwrap();
        volume.release(opened.handle).await;
        assert!(fake.look(id, false).await.open.is_empty());
    }
    let asked = fake.count(Op::Open);
    volume.open(&caller, id, WRITE).await.unwrap();
    assert_eq!(fake.count(Op::Open), asked);
    volume.open(&caller, id, BOTH).await.unwrap();
    assert_eq!(fake.count(Op::Open), asked + 1);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(fake.look(id, false).await.open, [id]);
}

/// A file that grows, and whose head says how far: the head is written over before it has arrived.
#[tokio::test(start_paused = true)]
async fn what_is_written_over_all_the_time_is_committed_all_the_same() {
    const BLOCK: usize = 20_000;
    let fake = Fake::new();
    let (volume, id) = (fake.mount(), file(&fake));
    let handle = volume.open(&Caller::root(), id, WRITE).await.unwrap().handle;
    fake.lock().delay = Duration::from_millis(50);
    for turn in 0..300_u64 {
        let (at, count) = (8 + turn * BLOCK as u64, (turn + 1).to_le_bytes().to_vec());
        volume.write(handle, at, vec![turn as u8; BLOCK].into()).await.unwrap();
        volume.write(handle, 0, count.into()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let seen = fake.bytes(id);
        let head = seen.first_chunk().map_or(0, |head| u64::from_le_bytes(*head));
        assert!(turn < head + 150, "{head} are told of {turn}");
        assert!(seen.len() as u64 >= head * BLOCK as u64, "{head} blocks in {} bytes", seen.len());
    }
}
