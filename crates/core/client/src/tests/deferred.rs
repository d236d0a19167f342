//! Closes that do not wait: of files with chunks, in directories that are held alone.

use super::fake::{Fake, ROOT};
use crate::*;
use tieline_types::{SetTime, Time};
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

/// As `tar` makes a file: writes, closes, and sets its time and mode.
async fn unpack(volume: &Volume, parent: FileId, text: &str, fill: u8) -> FileId {
    let (root, name) = (Caller::root(), name(text));
    let access = Access { write: true, ..Access::default() };
    let (mode, umask) = (Mode::new(0o600), Mode::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    let (known, opened) = volume.create(&root, At { parent, name: &name }, new).await.unwrap();
    let id = known.attributes.id;
    volume.write(opened.handle, 0, Bytes::from(vec![fill; SIZE])).await.unwrap();
    volume.flush(opened.handle).await.unwrap();
    volume.release(opened.handle).await;
    let mtime = Some(SetTime::At(time(fill)));
    let change = AttributeChange { mode: Some(Mode::new(0o644)), mtime, ..Default::default() };
    let known = volume.set_attributes(&root, id, None, change).await.unwrap();
    assert_eq!((known.attributes.mtime, known.attributes.size), (time(fill), SIZE as u64));
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
        files.push((unpack(&volume, directory, &format!("f{fill}"), fill).await, fill));
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
    let (root, name) = (Caller::root(), name("g"));
    let access = Access { write: true, ..Access::default() };
    let (mode, umask) = (Mode::new(0o600), Mode::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    // The fake gives every directory alone: others look again right after the creation.
    let (known, opened) = volume.create(&root, At { parent, name: &name }, new).await.unwrap();
    volume.shared().cache.lock().units.share(parent, tieline_types::Version(u64::MAX));
    volume.write(opened.handle, 0, Bytes::from(vec![4; SIZE])).await.unwrap();
    volume.flush(opened.handle).await.unwrap();
    volume.release(opened.handle).await;
    known.attributes.id
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
