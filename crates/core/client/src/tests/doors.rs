//! What doors without a cache ask: many ranges at once, ranges from end to end, uploads that show
//! when they are whole, which bytes a file has and where they are.

use super::fake::{Fake, ROOT};
use super::*;
use std::ops::Range;
use tieline_files::{LastLink, NewUpload, Paths, Stream, Upload, Who};
use tieline_foresight::ahead::PIECE;
use tieline_types::{Content, ContentVersion, Residency};
use tieline_wire::Op;

const READ: Access = Access {
    read: true,
    write: false,
    append: false,
    truncate: false,
    unnoted: false,
    runs: false,
};
const WRITE: Access = Access {
    read: false,
    write: true,
    append: false,
    truncate: false,
    unnoted: false,
    runs: false,
};
const CHUNK: u64 = 64 << 10;

fn noise(length: u64) -> Bytes {
    (0..length).map(|index| (index * 31 + index / 257) as u8).collect::<Vec<u8>>().into()
}

/// A file with many chunks, written by another client.
async fn stored(fake: &Arc<Fake>, length: u64) -> (FileId, Bytes) {
    let volume = fake.mount();
    let at = At { parent: ROOT, name: &"stored".parse().unwrap() };
    let new = NewFile {
        mode: Mode::new(0o644),
        umask: Mode::default(),
        is_exclusive: true,
        access: WRITE,
        layout: None,
    };
    let (known, opened) = volume.create(&Caller::root(), at, new).await.unwrap();
    let bytes = noise(length);
    for (index, piece) in bytes.chunks(1 << 20).enumerate() {
        let piece = bytes.slice_ref(piece);
        volume.write(opened.handle, (index as u64) << 20, piece).await.unwrap();
    }
    volume.sync(opened.handle, false).await.unwrap();
    volume.release(opened.handle).await;
    volume.close(Duration::from_secs(1)).await;
    (known.attributes.id, bytes)
}

async fn opened(volume: &Volume, id: FileId) -> HandleId {
    volume.open(&Caller::root(), id, READ).await.unwrap().handle
}

async fn soon() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test(start_paused = true)]
async fn many_ranges_cost_one_round_trip() {
    let fake = Fake::new();
    let (id, bytes) = stored(&fake, 40 * CHUNK).await;
    let volume = fake.mount();
    let handle = opened(&volume, id).await;
    // In every other chunk, or so: no two ranges can be one request.
    let start = |index: u64| 2 * index * CHUNK + index * index * 100;
    let ranges: Vec<Range<u64>> =
        (0..20).rev().map(|index| start(index)..start(index) + 300 + index).collect();
    let (pages, held) = (fake.hold(Op::GetExtents), fake.hold(Op::ReadObject));
    let reading = tokio::spawn({
        let (volume, ranges) = (volume.clone(), ranges.clone());
        async move { volume.read_ranges(handle, &ranges).await }
    });
    soon().await;
    // How far a page of extents reaches (here: four of them) was learned with the open; all those
    // that are missing are asked for at once.
    assert_eq!(fake.count(Op::GetExtents), 9);
    drop(pages);
    soon().await;
    assert_eq!(fake.count(Op::ReadObject), 20, "all are asked for before any is answered");
    drop(held);
    let read = reading.await.unwrap().unwrap();
    assert_eq!(read.len(), ranges.len());
    let before = fake.requests();
    for (range, got) in ranges.iter().zip(read) {
        assert_eq!(got.concat(), bytes[range.start as usize..range.end as usize]);
    }
    volume.read_ranges(handle, &ranges).await.unwrap();
    assert_eq!(fake.requests(), before, "all of it is here");
}

#[tokio::test(start_paused = true)]
async fn ranges_beside_each_other_are_one_request() {
    let fake = Fake::new();
    let (id, bytes) = stored(&fake, 4 * CHUNK).await;
    let volume = fake.mount();
    let handle = opened(&volume, id).await;
    let ranges = [5000..6000, 100..200, 150..4096, 7000..7000, 4 * CHUNK - 10..4 * CHUNK + 90];
    let read = volume.read_ranges(handle, &ranges).await.unwrap();
    assert_eq!(fake.count(Op::ReadObject), 2);
    let got = |index: usize| read[index].concat();
    assert_eq!(got(0), bytes[5000..6000]);
    assert_eq!(got(1), bytes[100..200]);
    assert_eq!(got(2), bytes[150..4096]);
    assert!(got(3).is_empty());
    assert_eq!(got(4), bytes[(4 * CHUNK - 10) as usize..], "as far as the file goes");
    assert!(volume.read_ranges(handle, &[]).await.unwrap().is_empty());
    let many = vec![0..1; 1025];
    let error = volume.read_ranges(handle, &many).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// What was written here is read here, also between ranges of what is committed.
#[tokio::test(start_paused = true)]
async fn ranges_have_what_was_written_here() {
    let fake = Fake::new();
    let (id, bytes) = stored(&fake, 4 * CHUNK).await;
    let volume = fake.mount();
    let both = Access { write: true, ..READ };
    let handle = volume.open(&Caller::root(), id, both).await.unwrap().handle;
    volume.write(handle, 10, Bytes::from_static(b"new")).await.unwrap();
    let read = volume.read_ranges(handle, &[2 * CHUNK..2 * CHUNK + 5, 8..15]).await.unwrap();
    let expected = [&bytes[8..10], b"new", &bytes[13..15]].concat();
    assert_eq!(read[1].concat(), expected);
    assert_eq!(read[0].concat(), bytes[(2 * CHUNK) as usize..(2 * CHUNK + 5) as usize]);
}

/// Jumps in one call say nothing of whether the handle is read on.
#[tokio::test(start_paused = true)]
async fn ranges_do_not_break_a_sequential_reader() {
    let fake = Fake::new();
    let (id, bytes) = stored(&fake, 40 * CHUNK).await;
    let volume = fake.mount();
    let handle = opened(&volume, id).await;
    let mut at = 0;
    let mut step = async |volume: &Volume| {
        let got = volume.read(handle, at, 4096).await.unwrap().concat();
        assert_eq!(got, bytes[at as usize..at as usize + 4096]);
        at += 4096;
    };
    for _ in 0..4 {
        step(&volume).await;
    }
    soon().await;
    let ranges: Vec<Range<u64>> = (0..10).map(|n| 3 * n * CHUNK + 7..3 * n * CHUNK + 9).collect();
    volume.read_ranges(handle, &ranges).await.unwrap();
    let before = fake.count(Op::ReadObject);
    for _ in 0..60 {
        step(&volume).await;
    }
    assert_eq!(fake.count(Op::ReadObject), before, "everything was ahead");
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_fetched_ahead_to_its_end_and_no_further() {
    let fake = Fake::new();
    let (id, bytes) = stored(&fake, 80 * CHUNK).await;
    let volume = fake.mount();
    let handle = opened(&volume, id).await;
    let range = 3 * CHUNK..60 * CHUNK;
    let mut stream = Stream::of(volume.clone(), handle, range.clone());
    let mut got = stream.next().await.unwrap().unwrap().to_vec();
    // Nobody asks for more, and all of it is here.
    soon().await;
    let (held, before) = (fake.hold(Op::ReadObject), fake.count(Op::ReadObject));
    while let Some(piece) = stream.next().await {
        got.extend_from_slice(&piece.unwrap());
    }
    drop(held);
    assert!(got == bytes[range.start as usize..range.end as usize]);
    assert_eq!(fake.count(Op::ReadObject), before);
    let read = volume.read(handle, 61 * CHUNK, 10);
    let held = fake.hold(Op::ReadObject);
    assert!(tokio::time::timeout(Duration::from_millis(10), read).await.is_err(), "not fetched");
    drop(held);
}

/// A reader that takes nothing has no more than a window on its way.
#[tokio::test(start_paused = true)]
async fn a_stream_waits_for_its_reader() {
    let fake = Fake::new();
    let (id, _) = stored(&fake, 40 << 20).await;
    let window_max = 4 << 20;
    let volume = fake.mount_with(Settings { window_max, ..Settings::default() });
    let handle = opened(&volume, id).await;
    let mut stream = Stream::of(volume.clone(), handle, 0..40 << 20);
    stream.next().await.unwrap().unwrap();
    soon().await;
    let most = (window_max + PIECE) / CHUNK;
    assert!(fake.count(Op::ReadObject) as u64 <= most, "{}", fake.count(Op::ReadObject));
}

fn new(replaces: bool) -> NewUpload {
    NewUpload { mode: Mode::new(0o640), umask: Mode::default(), layout: None, replaces }
}

async fn upload(volume: &Arc<Volume>, name: &str, replaces: bool) -> Upload {
    let (who, name) = (Who::himself(Caller::root()), name.parse::<Name>().unwrap());
    let root = Paths::new(volume.clone()).find(&who, b"/", LastLink::Followed).await.unwrap();
    Upload::begin(volume.clone(), &who, (&root, &name), new(replaces)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_upload_shows_when_it_is_whole_and_durable() {
    let fake = Fake::new();
    let (old, before) = stored(&fake, 1000).await;
    let volume = fake.mount();
    let reader = opened(&volume, old).await;
    let mut upload = upload(&volume, "stored", true).await;
    let bytes = noise(3 * CHUNK + 5);
    for piece in bytes.chunks(50_000) {
        upload.write(bytes.slice_ref(piece)).await.unwrap();
    }
    let name = "stored".parse().unwrap();
    let seen = async || volume.lookup(&Caller::root(), ROOT, &name).await.unwrap();
    assert_eq!(seen().await.attributes.unwrap().id, old);
    let file = upload.id();
    upload.finish().await.unwrap();
    assert_eq!(seen().await.attributes.unwrap().id, file);
    assert_eq!(fake.bytes(file), bytes);
    assert!(!fake.lock().synced.is_empty());
    // Who reads the old one reads on.
    let read = volume.read(reader, 0, 100).await.unwrap().concat();
    assert_eq!(read, before[..100]);
    // The new one is a file like others.
    let known = volume.attributes(&Caller::root(), file).await.unwrap().attributes;
    assert_eq!((known.links, known.size), (1, bytes.len() as u64));
    let handle = opened(&volume, file).await;
    assert!(volume.read(handle, 0, 1 << 20).await.unwrap().concat() == bytes);
    volume.release(handle).await;
    soon().await;
    assert_eq!(fake.count(Op::Release), 0, "it has a name");
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_is_dropped_is_given_back() {
    let fake = Fake::new();
    let volume = fake.mount();
    let mut one = upload(&volume, "new", false).await;
    one.write(noise(2 * CHUNK)).await.unwrap();
    let file = one.id();
    drop(one);
    soon().await;
    assert!(!fake.lock().nodes.contains_key(&file));
    let name = "new".parse().unwrap();
    let found = volume.lookup(&Caller::root(), ROOT, &name).await.unwrap();
    assert!(found.attributes.is_none());
    volume.close(Duration::from_secs(5)).await;
}

/// What cannot be stored is said before the file gets its name.
#[tokio::test(start_paused = true)]
async fn an_upload_that_cannot_be_stored_does_not_show() {
    let fake = Fake::new();
    let volume = fake.mount();
    let mut one = upload(&volume, "new", false).await;
    for ost in [OstIndex(0), OstIndex(1)] {
        fake.lock().put_fault.insert(ost, ErrorKind::NoSpace);
    }
    let written = one.write(noise(2 * CHUNK)).await;
    let error = match written {
        Ok(()) => one.finish().await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(fake.count(Op::Link), 0);
}

#[tokio::test(start_paused = true)]
async fn the_content_version_is_told_once_all_is_committed() {
    let fake = Fake::new();
    let volume = fake.mount();
    let root = Caller::root();
    let at = At { parent: ROOT, name: &"a".parse().unwrap() };
    let access = Access { write: true, ..READ };
    let (is_exclusive, layout) = (true, None);
    let (mode, umask) = (Mode::new(0o644), Mode::default());
    let new = NewFile { mode, umask, is_exclusive, access, layout };
    let (known, opened) = volume.create(&root, at, new).await.unwrap();
    let (id, handle) = (known.attributes.id, opened.handle);
    let mut seen: Vec<ContentVersion> = Vec::new();
    for text in ["one", "two", "six"] {
        volume.write(handle, 0, Bytes::from_static(text.as_bytes())).await.unwrap();
        let version = volume.content_version(&root, id).await.unwrap();
        assert_eq!(fake.bytes(id), text.as_bytes());
        assert!(!seen.contains(&version));
        assert_eq!(volume.content_version(&root, id).await.unwrap(), version);
        seen.push(version);
    }
    let change = AttributeChange { mode: Some(Mode::new(0o600)), ..AttributeChange::default() };
    volume.set_attributes(&root, id, None, change).await.unwrap();
    assert_eq!(volume.content_version(&root, id).await.unwrap(), seen[2]);
}

#[tokio::test(start_paused = true)]
async fn residency_is_that_of_the_worst_chunk() {
    let fake = Fake::new();
    let (id, _) = stored(&fake, 4 * CHUNK).await;
    let volume = fake.mount();
    let root = Caller::root();
    assert_eq!(volume.residency(&root, id).await.unwrap(), Residency::Online);
    // A chunk whose only copy lags behind one that is no more.
    for extent in fake.lock().nodes.get_mut(&id).unwrap().extents.iter_mut().skip(2).take(1) {
        if let Content::Chunk(chunk) = &mut extent.content {
            chunk.places[0].is_stale = true;
        }
    }
    assert_eq!(volume.residency(&root, id).await.unwrap(), Residency::Lost);
}

/// Who has the only copies does not answer: it is said soon, and not that they are lost.
#[tokio::test(start_paused = true)]
async fn what_is_out_of_reach_is_not_lost() {
    let fake = Fake::new();
    let (id, _) = stored(&fake, 4 * CHUNK).await;
    for index in 0..2 {
        fake.lock().absent.insert(format!("oss{index}:1"));
    }
    let volume = fake.mount();
    let begun = tokio::time::Instant::now();
    assert_eq!(volume.residency(&Caller::root(), id).await.unwrap(), Residency::Unavailable);
    assert!(begun.elapsed() < Duration::from_secs(3));
}
