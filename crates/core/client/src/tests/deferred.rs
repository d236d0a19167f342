//! Closes that do not wait: of files with chunks, in directories that are held alone.

use super::fake::{Fake, LEASE, ROOT};
use super::*;
use std::collections::BTreeSet;
use tieline_types::acl::{ACCESS_NAME, DEFAULT_NAME};
use tieline_types::{ErrorKind, OstIndex, SetTime, Time, XattrMode, XattrName};
use tieline_wire::Op;
use tokio::time::Instant;

const FAR: Duration = Duration::from_millis(50);
const SIZE: usize = 30_000;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn far() -> (Arc<Fake>, Arc<Volume>) {
    let fake = Fake::new();
    fake.lock().delay = FAR;
    let volume = fake.mount_with(Settings { journal: true, ..Settings::default() });
    (fake, volume)
}

async fn mkdir(volume: &Volume, text: &str) -> FileId {
    let at = At { parent: ROOT, name: &name(text) };
    let (root, mode) = (Caller::root(), Mode::new(0o755));
    volume.make_directory(&root, at, mode, Mode::default()).await.unwrap().attributes.id
}

/// A file that is open for writing.
async fn create(volume: &Volume, parent: FileId, file: &str) -> (FileId, HandleId) {
    let access = Access { write: true, ..Access::default() };
    let (mode, umask) = (Mode::new(0o600), Mode::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    let at = At { parent, name: &name(file) };
    let (known, opened) = volume.create(&Caller::root(), at, new).await.unwrap();
    (known.attributes.id, opened.handle)
}

/// When a program sets time and mode of what it has written.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Sets {
    AfterClose,
    BeforeClose,
    /// The mode as an access list that names nobody, as `cp -p` does.
    BeforeCloseAsAList,
}

/// `u::rw-,g::r--,o::r--`
const LIST_0644: [u8; 28] = [
    2, 0, 0, 0, // version
    1, 0, 6, 0, 255, 255, 255, 255, //
    4, 0, 4, 0, 255, 255, 255, 255, //
    32, 0, 4, 0, 255, 255, 255, 255,
];

/// As `rsync` makes a file: writes, closes, and sets its time and mode.
async fn unpack(volume: &Volume, parent: FileId, text: &str, fill: u8) -> FileId {
    unpack_as(volume, parent, text, (fill, Sets::AfterClose)).await
}

async fn unpack_as(
    volume: &Volume,
    parent: FileId,
    text: &str,
    (fill, sets): (u8, Sets),
) -> FileId {
    let root = Caller::root();
    let (id, handle) = create(volume, parent, text).await;
    volume.write(handle, 0, Bytes::from(vec![fill; SIZE])).await.unwrap();
    if sets == Sets::AfterClose {
        volume.flush(handle).await.unwrap();
        volume.release(handle).await;
    }
    let mtime = Some(SetTime::At(time(fill)));
    let mode = (sets != Sets::BeforeCloseAsAList).then_some(Mode::new(0o644));
    let change = AttributeChange { mode, mtime, ..Default::default() };
    let by = (sets != Sets::AfterClose).then_some(handle);
    let known = volume.set_attributes(&root, id, by, change).await.unwrap();
    assert_eq!((known.attributes.mtime, known.attributes.size), (time(fill), SIZE as u64));
    if mode.is_none() {
        let [access, default] = [ACCESS_NAME, DEFAULT_NAME].map(|n| XattrName::new(n).unwrap());
        volume.set_xattr(&root, id, &access, &LIST_0644, XattrMode::Either).await.unwrap();
        volume.remove_xattr(&root, id, &default).await.unwrap();
    }
    if sets != Sets::AfterClose {
        volume.flush(handle).await.unwrap();
        volume.release(handle).await;
    }
    id
}

fn time(fill: u8) -> Time {
    Time { seconds: 1_000_000 + i64::from(fill), nanos: 7 }
}

#[tokio::test(start_paused = true)]
async fn many_files_with_chunks_are_unpacked_without_waiting() {
    let (fake, volume) = far();
    let directory = mkdir(&volume, "d").await;
    let begun = Instant::now();
    let mut files = vec![];
    for fill in 1..=100u8 {
        // `tar` sets them before.
        let ways = [Sets::AfterClose, Sets::BeforeClose, Sets::BeforeCloseAsAList];
        let sets = ways[usize::from(fill) % ways.len()];
        let made = unpack_as(&volume, directory, &format!("f{fill}"), (fill, sets)).await;
        files.push((made, fill));
    }
    assert!(begun.elapsed() < FAR * 2, "{:?} for a hundred files", begun.elapsed());
    // They are read here before anybody else has them.
    let access = Access { read: true, ..Access::default() };
    let opened = volume.open(&Caller::root(), files[9].0, access).await.unwrap();
    let read = volume.read(opened.handle, 0, SIZE as u32).await.unwrap().concat();
    assert_eq!(read, vec![10; SIZE]);
    volume.release(opened.handle).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for (id, fill) in files {
        assert_eq!(fake.bytes(id), vec![fill; SIZE]);
        let attributes = fake.lock().nodes[&id].attributes.clone();
        assert_eq!((attributes.mtime, attributes.mode), (time(fill), Mode::new(0o644)));
    }
    assert!(volume.shared().dirty.lock().unwrap().is_empty());
}

/// Its first chunks are on their way, to a place that is asked for just now.
#[tokio::test(start_paused = true)]
async fn what_is_set_of_a_long_file_waits_for_none_of_its_chunks() {
    let (fake, volume) = far();
    let root = Caller::root();
    let directory = mkdir(&volume, "d").await;
    let (id, handle) = create(&volume, directory, "long").await;
    let begun = Instant::now();
    for part in 0..12u8 {
        let bytes = Bytes::from(vec![part; 1 << 20]);
        volume.write(handle, u64::from(part) << 20, bytes).await.unwrap();
    }
    assert!(begun.elapsed() < FAR, "there is room for them");
    // In the middle of each of the ways there and back.
    for way in 0..6u8 {
        tokio::time::sleep(FAR / 2).await;
        let begun = Instant::now();
        let mtime = Some(SetTime::At(time(way)));
        let change = AttributeChange { mtime, ..Default::default() };
        volume.set_attributes(&root, id, Some(handle), change).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO, "{way}");
    }
    volume.flush(handle).await.unwrap();
    volume.release(handle).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(fake.count(Op::SetAttributes), 0, "all of it was decided here");
    assert_eq!(fake.lock().nodes[&id].attributes.mtime, time(5));
    assert_eq!(fake.bytes(id).len(), 12 << 20);
}

/// `cp -r` within the mount.
#[tokio::test(start_paused = true)]
async fn small_files_are_copied_without_waiting() {
    const SHORT: usize = 12_000;
    let (fake, volume) = far();
    let (from, to) = (mkdir(&volume, "from").await, mkdir(&volume, "to").await);
    let mut sources = vec![];
    for fill in 1..=50u8 {
        sources.push(unpack(&volume, from, &format!("f{fill}"), fill).await);
    }
    let (root, begun, mut copies) = (Caller::root(), Instant::now(), vec![]);
    for (source, fill) in sources.into_iter().zip(1u8..) {
        let read = Access { read: true, ..Access::default() };
        let source = volume.open(&root, source, read).await.unwrap().handle;
        let access = Access { write: true, ..Access::default() };
        let (mode, umask) = (Mode::new(0o644), Mode::default());
        let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
        let name = name(&format!("f{fill}"));
        let made = volume.create(&root, At { parent: to, name: &name }, new).await.unwrap();
        let end = |handle| CopyEnd { handle, offset: 0 };
        let copied = volume.copy_range(end(source), end(made.1.handle), SHORT as u64).await;
        assert_eq!(copied.unwrap(), SHORT as u64);
        for handle in [source, made.1.handle] {
            volume.flush(handle).await.unwrap();
            volume.release(handle).await;
        }
        copies.push((made.0.attributes.id, fill));
    }
    assert!(begun.elapsed() < FAR * 2, "{:?} for 50 files", begun.elapsed());
    tokio::time::sleep(Duration::from_secs(2)).await;
    for (id, fill) in copies {
        assert_eq!(fake.bytes(id), vec![fill; SHORT]);
    }
}

/// A program that goes on writing after it set the time changes it again.
#[tokio::test(start_paused = true)]
async fn what_is_written_later_has_its_own_time() {
    let (fake, volume) = far();
    let directory = mkdir(&volume, "d").await;
    let root = Caller::root();
    let (id, handle) = create(&volume, directory, "f").await;
    volume.write(handle, 0, Bytes::from(vec![1; SIZE])).await.unwrap();
    let mtime = Some(SetTime::At(time(1)));
    let change = AttributeChange { mtime, ..Default::default() };
    volume.set_attributes(&root, id, Some(handle), change).await.unwrap();
    volume.write(handle, SIZE as u64, Bytes::from(vec![2; SIZE])).await.unwrap();
    volume.flush(handle).await.unwrap();
    let told = volume.attributes(&root, id).await.unwrap().attributes.mtime;
    assert_ne!(told, time(1));
    tokio::time::sleep(Duration::from_secs(2)).await;
    // It stays what programs were told.
    let stored = fake.lock().nodes[&id].attributes.clone();
    assert_eq!((stored.mtime, stored.size), (told, 2 * SIZE as u64));
}

/// Bytes of somebody who may write only until then go first.
#[tokio::test(start_paused = true)]
async fn rights_that_go_wait_for_what_was_written_by_them() {
    let (fake, volume) = far();
    let directory = mkdir(&volume, "d").await;
    let (root, name) = (Caller::root(), name("f"));
    let access = Access { write: true, ..Access::default() };
    let (mode, umask) = (Mode::new(0o666), Mode::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    let at = At { parent: directory, name: &name };
    let (known, opened) = volume.create(&root, at, new).await.unwrap();
    let id = known.attributes.id;
    volume.flush(opened.handle).await.unwrap();
    let user = Caller { uid: tieline_types::Uid(1000), ..Caller::default() };
    let other = volume.open(&user, id, access).await.unwrap();
    volume.write(other.handle, 0, Bytes::from(vec![1; SIZE])).await.unwrap();
    assert_eq!(fake.count(Op::Commit), 0);
    let change = AttributeChange { mode: Some(Mode::new(0o600)), ..Default::default() };
    volume.set_attributes(&root, id, None, change).await.unwrap();
    assert_eq!((fake.count(Op::Commit), fake.bytes(id)), (1, vec![1; SIZE]));
}

#[tokio::test(start_paused = true)]
async fn whoever_looks_has_it_sent_first() {
    let (fake, volume) = far();
    let directory = mkdir(&volume, "d").await;
    let id = unpack(&volume, directory, "f", 3).await;
    assert_eq!(fake.count(Op::Commit), 0);
    fake.elsewhere(directory, &[], &[], |_| {}).await;
    assert_eq!(fake.bytes(id), vec![3; SIZE]);
    // It is nobody's alone now: closes wait as ever.
    let other = unpack_shared(&volume, directory).await;
    assert_eq!(fake.bytes(other), vec![4; SIZE]);
}

/// Makes a file where others may look, and closes it.
async fn unpack_shared(volume: &Volume, parent: FileId) -> FileId {
    // The fake gives every directory alone: others look again right after the creation.
    let (id, handle) = create(volume, parent, "g").await;
    volume.shared().cache.lock().units.share(parent, tieline_types::Version(u64::MAX));
    volume.write(handle, 0, Bytes::from(vec![4; SIZE])).await.unwrap();
    volume.flush(handle).await.unwrap();
    volume.release(handle).await;
    id
}

#[tokio::test(start_paused = true)]
async fn fsync_of_the_directory_waits_for_it() {
    let (fake, volume) = far();
    let directory = mkdir(&volume, "d").await;
    let id = unpack(&volume, directory, "f", 3).await;
    let handle = volume.open_directory(&Caller::root(), directory).await.unwrap();
    volume.sync_directory(handle).await.unwrap();
    assert_eq!(fake.bytes(id), vec![3; SIZE]);
}

#[tokio::test(start_paused = true)]
async fn a_recall_is_answered_within_the_lease_whatever_waits() {
    let (fake, volume) = far();
    let directory = mkdir(&volume, "d").await;
    fake.lock().silent = BTreeSet::from([OstIndex(0), OstIndex(1)]);
    let id = unpack(&volume, directory, "f", 3).await;
    let begun = Instant::now();
    fake.elsewhere(directory, &[], &[], |_| {}).await;
    assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
    // What waited goes on.
    fake.lock().silent.clear();
    tokio::time::sleep(LEASE * 6).await;
    assert_eq!(fake.bytes(id), vec![3; SIZE]);
}

#[tokio::test(start_paused = true)]
async fn a_file_is_replaced_only_when_the_bytes_of_the_new_one_are_there() {
    let (fake, volume) = far();
    let directory = mkdir(&volume, "d").await;
    // A new name replaces nothing, and waits for nothing.
    unpack(&volume, directory, "g.new", 3).await;
    let requests = fake.requests();
    let (from, to) = (name("g.new"), name("g"));
    let (from, to) = (At { parent: directory, name: &from }, At { parent: directory, name: &to });
    volume.rename(&Caller::root(), from, to, RenameMode::Replace).await.unwrap();
    assert_eq!(fake.requests(), requests);
    let old = unpack(&volume, directory, "f", 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let new = unpack(&volume, directory, "f.new", 2).await;
    let (from, to) = (name("f.new"), name("f"));
    let (from, to) = (At { parent: directory, name: &from }, At { parent: directory, name: &to });
    fake.lock().silent = BTreeSet::from([OstIndex(0), OstIndex(1)]);
    let renaming = {
        let volume = volume.clone();
        let (from, to) = (from.name.clone(), to.name.clone());
        tokio::spawn(async move {
            let from = At { parent: directory, name: &from };
            let to = At { parent: directory, name: &to };
            volume.rename(&Caller::root(), from, to, RenameMode::Replace).await
        })
    };
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fake.lock().nodes[&directory].names[to.name], old);
    fake.lock().silent.clear();
    renaming.await.unwrap().unwrap();
    assert_eq!(fake.lock().nodes[&directory].names[to.name], new);
    assert_eq!(fake.bytes(new), vec![2; SIZE]);
}

#[tokio::test(start_paused = true)]
async fn fsync_of_a_directory_makes_durable_what_was_committed_in_the_background() {
    for is_root in [false, true] {
        let (fake, volume) = far();
        let directory = mkdir(&volume, "d").await;
        let id = unpack(&volume, directory, "f", 3).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!((fake.bytes(id), fake.count(Op::SyncFile)), (vec![3; SIZE], 0));
        let synced = if is_root { ROOT } else { directory };
        let handle = volume.open_directory(&Caller::root(), synced).await.unwrap();
        volume.sync_directory(handle).await.unwrap();
        assert!(!fake.lock().synced.is_empty());
        let count = fake.count(Op::SyncFile);
        volume.sync_directory(handle).await.unwrap();
        assert_eq!(fake.count(Op::SyncFile), count, "once is enough");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_after_a_close_is_told_by_fsync_of_the_directory_and_of_all() {
    for is_root in [false, true] {
        let (fake, volume) = far();
        let directory = mkdir(&volume, "d").await;
        fake.lock().put_fault =
            [OstIndex(0), OstIndex(1)].map(|ost| (ost, ErrorKind::NoSpace)).into();
        unpack(&volume, directory, "f", 3).await;
        if is_root {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        let synced = if is_root { ROOT } else { directory };
        let handle = volume.open_directory(&Caller::root(), synced).await.unwrap();
        let error = volume.sync_directory(handle).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        volume.sync_directory(handle).await.unwrap();
    }
}

/// `cp`, and `setcap` at once; `cp --preserve=xattr`, which sets it before it closes.
#[tokio::test(start_paused = true)]
async fn a_capability_that_is_set_after_bytes_outlives_their_commit() {
    let (root, capability) = (Caller::root(), XattrName::new("security.capability").unwrap());
    let access = Access { write: true, ..Access::default() };
    for (journal, sets, size) in [true, false].into_iter().flat_map(|journal| {
        let ways = [Sets::AfterClose, Sets::BeforeClose].into_iter();
        ways.flat_map(move |sets| [3, SIZE].map(|size| (journal, sets, size)))
    }) {
        let what = (journal, sets, size);
        let fake = Fake::new();
        let volume = fake.mount_with(Settings { journal, ..Settings::default() });
        let directory = mkdir(&volume, "d").await;
        let (mode, umask) = (Mode::new(0o755), Mode::default());
        let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
        let at = At { parent: directory, name: &name("f") };
        let (known, opened) = volume.create(&root, at, new).await.unwrap();
        let (id, handle) = (known.attributes.id, opened.handle);
        volume.write(handle, 0, Bytes::from(vec![7; size])).await.unwrap();
        if sets == Sets::AfterClose {
            volume.flush(handle).await.unwrap();
        }
        volume.set_xattr(&root, id, &capability, b"1", XattrMode::Create).await.unwrap();
        assert_eq!(volume.xattr(&root, id, &capability).await.unwrap(), b"1", "{what:?}");
        volume.flush(handle).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(fake.lock().nodes[&id].xattrs.contains_key(&capability), "{what:?}");
        // The next write takes it.
        volume.write(handle, 0, Bytes::from(vec![8; size])).await.unwrap();
        let taken = volume.xattr(&root, id, &capability).await.unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::NoAttribute, "{what:?}");
        volume.flush(handle).await.unwrap();
        volume.release(handle).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(fake.lock().nodes[&id].xattrs.is_empty(), "{what:?}");
    }
}

/// A write marks both times at once, and what is set after it and before its commit keeps its own.
#[tokio::test(start_paused = true)]
async fn a_file_changed_when_it_was_written() {
    let (root, second) = (Caller::root(), Duration::from_secs(1));
    for (size, sets) in [(3, false), (SIZE, false), (3, true), (SIZE, true)] {
        let (_fake, volume) = far();
        let directory = mkdir(&volume, "d").await;
        let (id, handle) = create(&volume, directory, "f").await;
        let made = volume.attributes(&root, id).await.unwrap().attributes;
        tokio::time::sleep(second).await;
        volume.write(handle, 0, Bytes::from(vec![7; size])).await.unwrap();
        let times = async || {
            let known = volume.attributes(&root, id).await.unwrap().attributes;
            (known.mtime, known.ctime)
        };
        let (written, changed) = times().await;
        assert!(written == changed && written > made.mtime);
        tokio::time::sleep(second / 10).await;
        let mut expected = written;
        if sets {
            let change = AttributeChange { mode: Some(Mode::new(0o644)), ..Default::default() };
            volume.set_attributes(&root, id, Some(handle), change).await.unwrap();
            expected = times().await.1;
            assert!(expected > written);
            tokio::time::sleep(second / 10).await;
        }
        volume.flush(handle).await.unwrap();
        assert_eq!(times().await, (written, expected), "{size} {sets}");
        volume.release(handle).await;
        tokio::time::sleep(3 * second).await;
        assert_eq!(times().await, (written, expected), "{size} {sets}, committed");
    }
}
