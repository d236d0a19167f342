//! A process that is killed, and the one that goes on.

use super::fake::{Fake, ROOT};
use super::spool::FakeSpool;
use super::*;
use rustix::fs::MemfdFlags;
use std::os::fd::AsFd;
use tieline_keep::{Keep, Record};
use tieline_owed::spool::Place;
use tieline_types::{SetTime, Time};
use tieline_wire::Op;

const SIZE: usize = 16 << 20;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn settings() -> Settings {
    Settings { journal: true, ..Settings::default() }
}

/// What a process that is killed now leaves.
fn killed(keep: &Keep) -> (Keep, Vec<Record>) {
    let from = keep.file().unwrap();
    let copy = rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC).unwrap();
    let length = rustix::fs::fstat(from).unwrap().st_size as usize;
    let mut bytes = vec![0; length];
    let read = rustix::io::pread(from, &mut bytes, 0).unwrap();
    assert_eq!(read, length);
    assert_eq!(rustix::io::pwrite(copy.as_fd(), &bytes, 0).unwrap(), length);
    Keep::open(copy).unwrap()
}

/// The next process, after it did what was owed.
pub async fn next(fake: &Arc<Fake>, keep: &Keep) -> (Arc<Volume>, Keep) {
    let (keep, records) = killed(keep);
    let volume = fake.mount_kept(settings(), keep.clone(), records);
    volume.recover().await;
    (volume, keep)
}

pub fn first(fake: &Arc<Fake>) -> (Arc<Volume>, Keep) {
    let (keep, records) = killed(&Keep::create(SIZE).unwrap());
    (fake.mount_kept(settings(), keep.clone(), records), keep)
}

pub async fn make(volume: &Volume, text: &str, append: bool) -> Result<(FileId, HandleId)> {
    let access =
        Access { read: true, write: true, append, truncate: false, unnoted: false, runs: false };
    let (mode, umask) = (Mode::new(0o644), Mode::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    let at = At { parent: ROOT, name: &name(text) };
    let (known, opened) = volume.create(&Caller::root(), at, new).await?;
    Ok((known.attributes.id, opened.handle))
}

async fn write(volume: &Volume, handle: HandleId, offset: u64, bytes: &'static [u8]) {
    volume.write(handle, offset, Bytes::from_static(bytes)).await.unwrap();
}

/// A record on which whoever follows crashes is set aside, and its file's next fsync says so.
#[tokio::test(start_paused = true)]
async fn what_crashes_whoever_follows_is_set_aside() {
    let fake = Fake::new();
    let (volume, keep) = first(&fake);
    let (id, handle) = make(&volume, "f", false).await.unwrap();
    let (_, other) = make(&volume, "other", false).await.unwrap();
    write(&volume, handle, 0, b"poison").await;
    write(&volume, other, 0, b"fine").await;
    let mut before = keep;
    for crash in 1..=3 {
        before.set_crashed(crash > 1);
        let (keep, records) = killed(&before);
        assert!(records.iter().all(|record| !record.is_aside));
        let poison = records.iter().find(|record| record.bytes().ends_with(b"poison")).unwrap();
        std::mem::forget(poison.kept.in_hand());
        std::mem::forget(records);
        before = keep;
    }
    // One that was killed from outside is no record's fault.
    before.set_crashed(false);
    let (keep, records) = killed(&before);
    assert!(records.iter().all(|record| !record.is_aside));
    let poison = records.iter().find(|record| record.bytes().ends_with(b"poison")).unwrap();
    std::mem::forget(poison.kept.in_hand());
    std::mem::forget(records);
    keep.set_crashed(true);
    let (keep, records) = killed(&keep);
    let spool = Arc::new(FakeSpool::default());
    let parts = Parts { spool: Some(spool.clone()), ..fake.parts() };
    let volume = Volume::new_kept(parts, settings(), keep, records);
    volume.recover().await;
    // As it was, for whoever looks into the fault.
    let spooled = spool.all();
    assert_eq!((spooled.len(), spooled[0].file), (1, id));
    assert_eq!(spooled[0].pieces[0].place, Place::Record);
    assert!(spooled[0].pieces[0].bytes.ends_with(b"poison"));
    assert_eq!(volume.read(other, 0, 10).await.unwrap().to_vec().concat(), b"fine");
    assert!(volume.read(handle, 0, 10).await.unwrap().is_empty());
    let error = volume.sync(handle, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error} of {id}");
    volume.sync(other, false).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn open_files_and_what_was_written_go_on() {
    let fake = Fake::new();
    let (volume, keep) = first(&fake);
    let (id, handle) = make(&volume, "f", false).await.unwrap();
    let (log_id, log) = make(&volume, "log", true).await.unwrap();
    write(&volume, handle, 0, b"one two").await;
    volume.flush(handle).await.unwrap();
    write(&volume, handle, 4, b"six").await;
    write(&volume, log, 0, b"first ").await;
    volume.flush(log).await.unwrap();
    write(&volume, log, 0, b"second ").await;

    let (volume, keep) = next(&fake, &keep).await;
    let open: Vec<_> = volume.open_files().into_iter().map(|one| one.handle).collect();
    assert_eq!(open, [handle, log]);
    assert_eq!(volume.read(handle, 0, 100).await.unwrap().concat(), b"one six");
    write(&volume, log, 0, b"third").await;
    // Again, before anything of it was committed.
    let (volume, keep) = next(&fake, &keep).await;
    volume.sync(handle, false).await.unwrap();
    volume.sync(log, false).await.unwrap();
    assert_eq!(fake.bytes(id), b"one six");
    assert_eq!(fake.bytes(log_id), b"first second third");
    // And after.
    let (volume, _) = next(&fake, &keep).await;
    volume.sync(log, false).await.unwrap();
    assert_eq!(fake.bytes(log_id), b"first second third");
}

#[tokio::test(start_paused = true)]
async fn operations_that_were_decided_here_are_sent() {
    let fake = Fake::new();
    let (volume, keep) = first(&fake);
    let root = Caller::root();
    let directory = At { parent: ROOT, name: &name("d") };
    let made = volume.make_directory(&root, directory, Mode::new(0o755), Mode::default());
    let directory = made.await.unwrap().attributes.id;
    let before = fake.count(Op::Batch);
    let at = At { parent: directory, name: &name("below") };
    let number = 6;
    let cause = volume.cause(number, false);
    let making = volume.make_directory(&root, at, Mode::new(0o755), Mode::default());
    let made = cause::within(cause.clone(), making).await.unwrap().attributes.id;
    assert_eq!(fake.count(Op::Batch), before, "decided here");

    // The request was not answered: the next process is given it again.
    let (volume, _) = next(&fake, &keep).await;
    assert!(fake.lock().nodes.contains_key(&made));
    let again = volume.cause(number, true);
    let making = volume.make_directory(&root, at, Mode::new(0o755), Mode::default());
    assert_eq!(cause::within(again, making).await.unwrap().attributes.id, made);
    let making = volume.make_directory(&root, at, Mode::new(0o755), Mode::default());
    assert!(making.await.is_err(), "another request");
    drop(cause);
}

#[tokio::test(start_paused = true)]
async fn a_time_that_was_set_before_the_bytes_were_sent_stays() {
    let fake = Fake::new();
    let (volume, keep) = first(&fake);
    let directory = At { parent: ROOT, name: &name("d") };
    let (root, mode) = (Caller::root(), Mode::new(0o755));
    let made = volume.make_directory(&root, directory, mode, Mode::default()).await.unwrap();
    let parent = made.attributes.id;
    let mut files = [FileId::new(parent.mdt(), 0); 2];
    let set = Time { seconds: 1_000_000, nanos: 7 };
    for (file, sets_time) in files.iter_mut().zip([true, false]) {
        let access = Access { write: true, ..Access::default() };
        let umask = Mode::default();
        let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
        let at = At { parent, name: &name(if sets_time { "set" } else { "left" }) };
        let (known, opened) = volume.create(&root, at, new).await.unwrap();
        let id = known.attributes.id;
        volume.write(opened.handle, 0, Bytes::from(vec![1; 30_000])).await.unwrap();
        let mtime = sets_time.then_some(SetTime::At(set));
        let change = AttributeChange { mode: Some(Mode::new(0o600)), mtime, ..Default::default() };
        volume.set_attributes(&root, id, Some(opened.handle), change).await.unwrap();
        *file = id;
    }
    assert_eq!(fake.count(Op::Commit), 0);

    let (volume, _keep) = next(&fake, &keep).await;
    let handle = volume.open_directory(&root, parent).await.unwrap();
    volume.sync_directory(handle).await.unwrap();
    let attributes = files.map(|id| fake.lock().nodes[&id].attributes.clone());
    assert_eq!(attributes.each_ref().map(|one| one.size), [30_000; 2]);
    assert_eq!(attributes[0].mtime, set);
    assert!(attributes[1].mtime > set, "that of its bytes");
}

/// Labels of objects tell where a file lies: whoever knows the file alone asks, once, and no
/// further than a label goes.
#[tokio::test(start_paused = true)]
async fn who_knows_a_file_alone_learns_where_it_lies() {
    const DEEPER_THAN_LABELS: usize = 70;
    let fake = Fake::new();
    let (volume, keep) = first(&fake);
    let (root, mode) = (Caller::root(), Mode::new(0o755));
    let mut parent = ROOT;
    for _ in 0..DEEPER_THAN_LABELS {
        let at = At { parent, name: &name("d") };
        let made = volume.make_directory(&root, at, mode, Mode::default()).await.unwrap();
        parent = made.attributes.id;
    }
    let access = Access { write: true, ..Access::default() };
    let new = NewFile { mode, umask: Mode::default(), is_exclusive: true, access, layout: None };
    let at = At { parent, name: &name("f") };
    let (_, opened) = volume.create(&root, at, new).await.unwrap();
    volume.sync(opened.handle, false).await.unwrap();

    let (volume, _keep) = next(&fake, &keep).await;
    for piece in 0..2 {
        volume.write(opened.handle, piece << 20, Bytes::from(vec![1; 30_000])).await.unwrap();
        volume.sync(opened.handle, false).await.unwrap();
        assert_eq!(fake.count(Op::LookupParent), 64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_not_answered_is_not_appended_twice() {
    let fake = Fake::new();
    let (volume, keep) = first(&fake);
    let (id, log) = make(&volume, "log", true).await.unwrap();
    let number = 8;
    let bytes = Bytes::from_static(b"line\n");
    let cause = volume.cause(number, false);
    cause::within(cause.clone(), volume.write(log, 0, bytes.clone())).await.unwrap();

    let (volume_next, keep_next) = next(&fake, &keep).await;
    let again = volume_next.cause(number, true);
    cause::within(again.clone(), volume_next.write(log, 0, bytes.clone())).await.unwrap();
    volume_next.sync(log, false).await.unwrap();
    assert_eq!(fake.bytes(id), b"line\n");
    // It is committed and still not answered: that is known to a third process too.
    let (volume_last, _keep) = next(&fake, &keep_next).await;
    let once_more = volume_last.cause(number, true);
    cause::within(once_more, volume_last.write(log, 0, bytes)).await.unwrap();
    volume_last.sync(log, false).await.unwrap();
    assert_eq!(fake.bytes(id), b"line\n");
    drop((cause, again));
}

/// What was idle is freed before the door serves anybody: whether it was being freed is not known.
#[tokio::test(start_paused = true)]
async fn held_locks_go_on_and_idle_ones_are_freed() {
    let fake = Fake::new();
    // Its sessions are resumed.
    fake.lock().boot = 2;
    let (volume, keep) = first(&fake);
    let (id, handle) = make(&volume, "f", false).await.unwrap();
    volume.sync(handle, false).await.unwrap();
    let wish = |start, mode| {
        let range = LockRange { start, end: start + 10 };
        LockWish { kind: LockKind::Posix, owner: 1, range, mode, process: 7 }
    };
    for start in [0, 20, 40] {
        volume.lock(handle, wish(start, LockMode::Exclusive), false).await.unwrap();
    }
    volume.unlock(handle, wish(0, LockMode::Shared)).await.unwrap();
    volume.lock(handle, wish(20, LockMode::Shared), false).await.unwrap();
    let at_server = || {
        let state = fake.lock();
        let held = state.locks[&(id, LockKind::Posix)].iter();
        held.map(|one| (one.range.start, one.mode)).collect::<Vec<_>>()
    };
    assert_eq!(at_server().len(), 3);

    let (volume, keep) = next(&fake, &keep).await;
    assert_eq!(at_server(), [(20, LockMode::Shared), (40, LockMode::Exclusive)]);
    let other = LockWish { owner: 2, ..wish(20, LockMode::Exclusive) };
    let found = volume.test_lock(handle, other).await.unwrap().unwrap();
    assert_eq!((found.mode, found.process), (LockMode::Shared, 7));
    // Again: nothing is idle now.
    let before = fake.count(Op::Lock);
    let (volume, _) = next(&fake, &keep).await;
    assert_eq!(fake.count(Op::Lock), before);
    volume.drop_locks(handle, LockKind::Posix, 1).await;
    assert_eq!(at_server(), []);
}
