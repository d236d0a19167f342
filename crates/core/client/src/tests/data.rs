//! Bytes: chunks on their way, failures of OSTs, sync, reads that are checked.

use super::fake::{Fake, ROOT};
use super::*;
use crate::handles::{access_of, bits_of};
use crate::shared::lock;
use tieline_types::{Content, ErrorKind, Grant};
use tieline_wire::Op;

const READ_WRITE: Access =
    Access { read: true, write: true, append: false, truncate: false, unnoted: false, runs: false };
const CHUNK: usize = 64 << 10;

async fn create(volume: &Volume, name: &str, access: Access) -> (FileId, HandleId) {
    let name: Name = name.parse().unwrap();
    let new = NewFile {
        mode: Mode::new(0o644),
        umask: Mode::default(),
        is_exclusive: true,
        access,
        layout: None,
    };
    let at = At { parent: ROOT, name: &name };
    let (known, opened) = volume.create(&Caller::root(), at, new).await.unwrap();
    (known.attributes.id, opened.handle)
}

fn noise(length: usize) -> Bytes {
    (0..length).map(|index| (index * 31 + index / 257) as u8).collect::<Vec<u8>>().into()
}

async fn until(mut is_true: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if is_true() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not happen");
}

#[tokio::test(start_paused = true)]
async fn whole_chunks_leave_while_the_program_writes_on() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    let bytes = noise(3 * CHUNK + 100);
    for (index, piece) in bytes.chunks(10_000).enumerate() {
        let piece = Bytes::copy_from_slice(piece);
        volume.write(handle, index as u64 * 10_000, piece).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!((fake.count(Op::PutChunk), fake.count(Op::Commit)), (3, 0));
    // Own bytes and size are seen before they are anywhere else.
    assert_eq!(volume.read(handle, 0, 1 << 20).await.unwrap().concat(), bytes);
    let known = volume.attributes(&Caller::root(), id).await.unwrap();
    assert_eq!(known.attributes.size, bytes.len() as u64);
    volume.flush(handle).await.unwrap();
    assert_eq!((fake.count(Op::PutChunk), fake.count(Op::Commit)), (4, 1));
    assert_eq!(fake.bytes(id), bytes);
}

#[tokio::test(start_paused = true)]
async fn small_files_need_no_ost() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, noise(16 << 10)).await.unwrap();
    volume.sync(handle, false).await.unwrap();
    assert_eq!((fake.count(Op::PutChunk), fake.count(Op::SyncFile)), (0, 0));
    assert_eq!(fake.bytes(id), noise(16 << 10));
}

#[tokio::test(start_paused = true)]
async fn synced_bytes_are_durable_at_their_osts() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    volume.flush(handle).await.unwrap();
    assert!(fake.lock().synced.is_empty());
    volume.sync(handle, false).await.unwrap();
    assert!(fake.lock().synced.contains(&OstIndex(0)));
    // A small piece of a large file goes with the commit.
    volume.write(handle, 100, Bytes::from_static(b"page")).await.unwrap();
    volume.sync(handle, true).await.unwrap();
    assert_eq!(fake.count(Op::PutChunk), 1);
    assert_eq!(&fake.bytes(id)[100..104], b"page");
}

#[tokio::test(start_paused = true)]
async fn idle_bytes_are_committed_after_a_second() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "log", READ_WRITE).await;
    volume.write(handle, 0, Bytes::from_static(b"line\n")).await.unwrap();
    assert_eq!(fake.bytes(id), b"");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fake.bytes(id), b"line\n");
    let before = fake.requests();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(fake.requests(), before, "clean files are left alone");
}

#[tokio::test(start_paused = true)]
async fn a_failing_ost_is_replaced() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    fake.lock().put_fault.insert(OstIndex(0), ErrorKind::NoSpace);
    volume.write(handle, 0, noise(2 * CHUNK)).await.unwrap();
    volume.flush(handle).await.unwrap();
    assert_eq!(fake.bytes(id), noise(2 * CHUNK));
    assert!(fake.lock().chunks.keys().all(|(ost, _)| *ost == OstIndex(1)));
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_told_at_closes_until_a_sync_told_it() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    for ost in [OstIndex(0), OstIndex(1)] {
        fake.lock().put_fault.insert(ost, ErrorKind::NoSpace);
    }
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    let error = volume.flush(handle).await.unwrap_err();
    assert!(matches!(error, Error::Late { kind: ErrorKind::NoSpace, .. }));
    let error = volume.sync(handle, false).await.unwrap_err();
    assert!(matches!(error, Error::Late { kind: ErrorKind::NoSpace, .. }));
    volume.sync(handle, false).await.unwrap();
    volume.flush(handle).await.unwrap();
    // There is room again: writing goes on.
    fake.lock().put_fault.clear();
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    volume.flush(handle).await.unwrap();
    assert_eq!(fake.bytes(id), noise(CHUNK));
}

#[tokio::test(start_paused = true)]
async fn a_refused_commit_is_late_and_a_server_that_is_away_is_not() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    fake.lock().commit_fault = Some(ErrorKind::Unreachable);
    volume.write(handle, 0, Bytes::from_static(b"wait")).await.unwrap();
    let error = volume.flush(handle).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert_eq!(volume.read(handle, 0, 10).await.unwrap().concat(), b"wait");
    fake.lock().commit_fault = None;
    until(|| fake.bytes(id) == b"wait").await;

    fake.lock().commit_fault = Some(ErrorKind::QuotaExceeded);
    volume.write(handle, 0, Bytes::from_static(b"lost")).await.unwrap();
    let error = volume.sync(handle, false).await.unwrap_err();
    assert!(matches!(error, Error::Late { kind: ErrorKind::QuotaExceeded, .. }));
    fake.lock().commit_fault = None;
    volume.sync(handle, false).await.unwrap();
    assert_eq!(volume.read(handle, 0, 10).await.unwrap().concat(), b"wait");
}

#[tokio::test(start_paused = true)]
async fn chunks_of_a_lost_session_are_sent_again() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, noise(2 * CHUNK)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(fake.count(Op::PutChunk), 2);
    fake.lose_session();
    volume.flush(handle).await.unwrap();
    assert_eq!(fake.count(Op::PutChunk), 4);
    assert_eq!(fake.bytes(id), noise(2 * CHUNK));
    let grant = fake.lock().grant;
    assert_ne!(grant, Grant(7));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_lost_at_the_commit_costs_nothing() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, noise(2 * CHUNK)).await.unwrap();
    fake.lock().loses_session = true;
    volume.flush(handle).await.unwrap();
    assert_eq!(fake.bytes(id), noise(2 * CHUNK));
}

#[tokio::test(start_paused = true)]
async fn osts_that_are_away_are_waited_for() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    for ost in [OstIndex(0), OstIndex(1)] {
        fake.lock().put_fault.insert(ost, ErrorKind::Unreachable);
    }
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    let flushing = tokio::spawn({
        let volume = volume.clone();
        async move { volume.flush(handle).await }
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!flushing.is_finished());
    fake.lock().put_fault.clear();
    flushing.await.unwrap().unwrap();
    assert_eq!(fake.bytes(id), noise(CHUNK));
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_the_operator_said_and_nothing_is_dropped() {
    let fake = Fake::new();
    let settings = Settings { wait: Duration::from_secs(30), ..Settings::default() };
    let volume = fake.mount_with(settings);
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    for ost in [OstIndex(0), OstIndex(1)] {
        fake.lock().put_fault.insert(ost, ErrorKind::Unreachable);
    }
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    let before = tokio::time::Instant::now();
    let error = volume.flush(handle).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(before.elapsed() < Duration::from_secs(60));
    fake.lock().put_fault.clear();
    until(|| fake.bytes(id) == noise(CHUNK)).await;
}

#[tokio::test(start_paused = true)]
async fn writers_wait_when_memory_is_short() {
    let fake = Fake::new();
    let settings = Settings { dirty_bytes_max: 4 * CHUNK, ..Settings::default() };
    let volume = fake.mount_with(settings);
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    let held = fake.hold(Op::PutChunk);
    let bytes = noise(16 * CHUNK);
    let writing = tokio::spawn({
        let (volume, bytes) = (volume.clone(), bytes.clone());
        async move {
            for index in 0..16 {
                let piece = bytes.slice(index * CHUNK..(index + 1) * CHUNK);
                volume.write(handle, (index * CHUNK) as u64, piece).await.unwrap();
            }
        }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!writing.is_finished());
    assert!(fake.count(Op::PutChunk) <= 4);
    fake.release(Op::PutChunk);
    drop(held);
    writing.await.unwrap();
    volume.flush(handle).await.unwrap();
    assert_eq!(fake.bytes(id), bytes);
}

#[tokio::test(start_paused = true)]
async fn appends_go_to_the_end() {
    let fake = Fake::new();
    let volume = fake.mount();
    let append = Access { append: true, ..READ_WRITE };
    let (id, one) = create(&volume, "log", append).await;
    let two = volume.open(&Caller::root(), id, append).await.unwrap().handle;
    for _ in 0..50 {
        let (a, b) = tokio::join!(
            volume.write(one, 0, Bytes::from_static(b"one\n")),
            volume.write(two, 0, Bytes::from_static(b"two\n")),
        );
        a.and(b).unwrap();
    }
    volume.flush(one).await.unwrap();
    let text = String::from_utf8(fake.bytes(id)).unwrap();
    assert_eq!(text.lines().count(), 100);
    assert_eq!(text.lines().filter(|line| *line == "two").count(), 50);
}

/// A file of three chunks with two mirrors each, that nothing is cached of.
async fn mirrored(fake: &Arc<Fake>) -> (FileId, Bytes) {
    stored(fake, 2).await
}

async fn stored(fake: &Arc<Fake>, mirrors: u8) -> (FileId, Bytes) {
    fake.lock().layout.mirrors = mirrors;
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    let bytes = noise(3 * CHUNK);
    volume.write(handle, 0, bytes.clone()).await.unwrap();
    volume.flush(handle).await.unwrap();
    volume.release(handle).await;
    assert_eq!(fake.lock().chunks.len(), 3 * usize::from(mirrors));
    (id, bytes)
}

#[tokio::test(start_paused = true)]
async fn a_bad_mirror_is_never_served() {
    let fake = Fake::new();
    let (id, bytes) = mirrored(&fake).await;
    let volume = fake.mount();
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    fake.lock().flips.insert(OstIndex(0));
    assert_eq!(volume.read(handle, 0, 1 << 20).await.unwrap().concat(), bytes);
    fake.lock().flips.insert(OstIndex(1));
    let cold = fake.mount();
    let handle = cold.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    let error = cold.read(handle, 0, 4096).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn mirrors_that_are_damaged_in_different_blocks_are_read_and_both_reported() {
    let fake = Fake::new();
    let (id, bytes) = mirrored(&fake).await;
    fake.lock().damage = [(OstIndex(0), 5000), (OstIndex(1), 20_000)].into();
    let volume = fake.mount();
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    assert_eq!(volume.read(handle, 0, 1 << 20).await.unwrap().concat(), bytes);
    let both = [OstIndex(0), OstIndex(1)].into();
    let reported = || {
        let reports = fake.lock().reports.clone();
        reports.iter().map(|report| report.ost).collect::<std::collections::BTreeSet<_>>()
    };
    until(|| reported() == both).await;
    // One of them may be known to be bad by then.
    mark_stale(&fake, id, 0);
    let cold = fake.mount();
    let handle = cold.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    assert_eq!(cold.read(handle, 0, 1 << 20).await.unwrap().concat(), bytes);
    // The same block in both.
    fake.lock().damage = [(OstIndex(0), 5000), (OstIndex(1), 5001)].into();
    let cold = fake.mount();
    let handle = cold.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    let error = cold.read(handle, 0, 1 << 20).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

/// Has the MDS know that the copies on an OST are bad.
fn mark_stale(fake: &Fake, id: FileId, ost: u16) {
    let mut state = fake.lock();
    for extent in &mut state.nodes.get_mut(&id).unwrap().extents {
        let Content::Chunk(chunk) = &mut extent.content else { continue };
        let places = chunk.places.iter_mut().filter(|place| place.is_at(OstIndex(ost)));
        places.for_each(|place| place.is_stale = true);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_mirror_is_reported_once() {
    let fake = Fake::new();
    let (id, bytes) = mirrored(&fake).await;
    fake.lock().flips.insert(OstIndex(0));
    let volume = fake.mount();
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    for _ in 0..2 {
        assert_eq!(volume.read(handle, 0, 1 << 20).await.unwrap().concat(), bytes);
    }
    until(|| !fake.lock().reports.is_empty()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let reports = fake.lock().reports.clone();
    assert!(reports.iter().all(|report| report.ost == OstIndex(0)), "{reports:?}");
    let chunks: std::collections::BTreeSet<_> = reports.iter().map(|report| report.chunk).collect();
    assert_eq!(chunks.len(), reports.len());
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_does_not_answer_holds_nobody_up() {
    let fake = Fake::new();
    let (id, bytes) = mirrored(&fake).await;
    for ost in [OstIndex(0), OstIndex(1)] {
        fake.lock().silent = [ost].into();
        let volume = fake.mount();
        let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
        let before = tokio::time::Instant::now();
        assert_eq!(volume.read(handle, 0, 1 << 20).await.unwrap().concat(), bytes);
        assert!(before.elapsed() < Duration::from_secs(3), "{:?}", before.elapsed());
        assert!(fake.lock().reports.is_empty(), "who is away is not bad");
    }
}

/// Whoever waits for his turn at a server that dies meanwhile asks another.
#[tokio::test(start_paused = true)]
async fn who_waited_for_a_server_that_died_asks_another_at_once() {
    let fake = Fake::new();
    let (id, bytes) = mirrored(&fake).await;
    let volume = fake.mount();
    let shared = volume.shared();
    let chunk = fake.lock().nodes[&id].extents.iter().find_map(|one| match &one.content {
        Content::Chunk(chunk) => Some(chunk.clone()),
        _ => None,
    });
    let ost = shared.chunks.osts.places_in_order(&chunk.unwrap(), 4096)[0].ost;
    let server = shared.servers.oss(ost).unwrap();
    let turn = server.turn(Default::default(), 1 << 30, &Arc::default()).await.unwrap();
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    let reading = tokio::spawn({
        let volume = volume.clone();
        async move { volume.read(handle, 0, 4096).await.unwrap().concat() }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!reading.is_finished(), "it waits for its turn");
    fake.lock().silent = [ost].into();
    shared.chunks.osts.mark_trouble(ost);
    let before = tokio::time::Instant::now();
    drop(turn);
    assert_eq!(reading.await.unwrap(), bytes[..4096]);
    assert!(before.elapsed() < Duration::from_millis(50), "{:?}", before.elapsed());
}

/// (OST, is it stale) of each place of each chunk.
fn places(fake: &Fake, id: FileId) -> Vec<Vec<(u16, bool)>> {
    let state = fake.lock();
    let of = |extent: &tieline_types::Extent| match &extent.content {
        Content::Chunk(chunk) => {
            chunk.places.iter().map(|place| (place.ost().unwrap().0, place.is_stale)).collect()
        }
        _ => vec![],
    };
    state.nodes[&id].extents.iter().map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_is_not_waited_for_is_recorded_as_stale() {
    let fake = Fake::new();
    fake.lock().layout.mirrors = 2;
    fake.lock().silent.insert(OstIndex(1));
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, noise(2 * CHUNK)).await.unwrap();
    let before = tokio::time::Instant::now();
    volume.sync(handle, false).await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    assert_eq!(places(&fake, id), vec![vec![(0, false), (1, true)]; 2]);
    assert!(fake.lock().synced.contains(&OstIndex(0)));
    // It is back: copies are made at once again.
    fake.lock().silent.clear();
    tokio::time::sleep(Duration::from_secs(60)).await;
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    volume.sync(handle, false).await.unwrap();
    assert_eq!(places(&fake, id)[0], [(0, false), (1, false)]);
    assert_eq!(fake.bytes(id), noise(2 * CHUNK));
}

#[tokio::test(start_paused = true)]
async fn as_many_copies_are_waited_for_as_the_layout_says() {
    let fake = Fake::new();
    fake.lock().layout.mirrors = 2;
    fake.lock().layout.sync = 2;
    fake.lock().silent.insert(OstIndex(1));
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    let syncing = tokio::spawn({
        let volume = volume.clone();
        async move { volume.sync(handle, false).await }
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!syncing.is_finished());
    fake.lock().silent.clear();
    syncing.await.unwrap().unwrap();
    assert_eq!(places(&fake, id), [[(0, false), (1, false)]]);
    assert_eq!(fake.lock().synced.len(), 2);
}

/// Writes a chunk with two copies to wait for, and syncs; how long that took.
async fn both_wanted(fake: &Arc<Fake>, volume: &Arc<Volume>, name: &str) -> (FileId, Duration) {
    let (id, handle) = create(volume, name, READ_WRITE).await;
    let before = tokio::time::Instant::now();
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    volume.sync(handle, false).await.unwrap();
    volume.release(handle).await;
    assert_eq!(fake.bytes(id), noise(CHUNK));
    (id, before.elapsed())
}

#[tokio::test(start_paused = true)]
async fn the_copies_that_can_be_made_suffice() {
    let fake = Fake::new();
    fake.lock().layout.mirrors = 2;
    fake.lock().layout.sync = 2;
    for fault in [ErrorKind::NoSpace, ErrorKind::ReadOnly, ErrorKind::StorageFault] {
        let volume = fake.mount();
        fake.lock().put_fault.insert(OstIndex(1), fault);
        for name in ["a", "b"] {
            let (id, took) = both_wanted(&fake, &volume, &format!("{name}{fault:?}")).await;
            assert!(took < Duration::from_secs(1), "{fault:?}: {took:?}");
            assert_eq!(places(&fake, id), [[(0, false)]], "{fault:?}");
        }
        // It takes chunks again: within seconds it gets them, and is waited for.
        fake.lock().put_fault.clear();
        tokio::time::sleep(Duration::from_secs(11)).await;
        both_wanted(&fake, &volume, &format!("c{fault:?}")).await;
        let (id, _) = both_wanted(&fake, &volume, &format!("d{fault:?}")).await;
        assert_eq!(places(&fake, id), [[(0, false), (1, false)]], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_away_is_waited_for_once() {
    let fake = Fake::new();
    fake.lock().layout.mirrors = 2;
    fake.lock().layout.sync = 2;
    let volume = fake.mount();
    fake.lock().silent.insert(OstIndex(1));
    let (id, took) = both_wanted(&fake, &volume, "a").await;
    assert!(took > Duration::from_secs(15) && took < Duration::from_secs(30), "{took:?}");
    assert_eq!(places(&fake, id).concat()[0], (0, false));
    for index in 0..20 {
        let (id, took) = both_wanted(&fake, &volume, &format!("b{index}")).await;
        assert!(took < Duration::from_secs(3), "{index}: {took:?}");
        assert_eq!(places(&fake, id).concat()[0], (0, false));
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_ost_that_refuses_is_no_place() {
    let fake = Fake::new();
    fake.lock().layout.mirrors = 2;
    fake.lock().put_fault.insert(OstIndex(1), ErrorKind::NoSpace);
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    volume.flush(handle).await.unwrap();
    assert_eq!(places(&fake, id), [[(0, false)]]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_mirror_is_passed_over() {
    let fake = Fake::new();
    let (id, bytes) = mirrored(&fake).await;
    fake.lock().chunks.retain(|(ost, _), _| *ost == OstIndex(1));
    let volume = fake.mount();
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    assert_eq!(volume.read(handle, 0, 1 << 20).await.unwrap().concat(), bytes);
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_is_gone_makes_the_extents_be_asked_again() {
    let fake = Fake::new();
    let (id, _) = mirrored(&fake).await;
    let volume = fake.mount();
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    {
        // Compaction: other extents of the same version.
        let mut state = fake.lock();
        state.chunks.clear();
        let node = state.nodes.get_mut(&id).unwrap();
        node.extents.truncate(1);
        let extent = &mut node.extents[0];
        extent.length = 4;
        extent.content = Content::Inline(b"same".to_vec());
        node.attributes.size = 4;
    }
    assert_eq!(volume.read(handle, 0, 100).await.unwrap().concat(), b"same");
}

#[tokio::test(start_paused = true)]
async fn another_place_is_measured_beside_the_reader_once() {
    let fake = Fake::new();
    let (id, bytes) = mirrored(&fake).await;
    let volume = fake.mount();
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    volume.read(handle, 0, 4096).await.unwrap();
    until(|| fake.count(Op::ReadObject) == 2).await;
    let read = volume.read(handle, 70_000, 4096).await.unwrap().concat();
    assert_eq!(read, bytes[70_000..74_096]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.count(Op::ReadObject), 3);
}

#[tokio::test(start_paused = true)]
async fn two_readers_share_one_fetch() {
    let fake = Fake::new();
    let (id, bytes) = stored(&fake, 1).await;
    let volume = fake.mount();
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    let (one, two) =
        tokio::join!(volume.read(handle, 70_000, 4096), volume.read(handle, 70_000, 4096),);
    assert_eq!(one.unwrap().concat(), bytes[70_000..74_096]);
    assert_eq!(two.unwrap().concat(), bytes[70_000..74_096]);
    assert_eq!(fake.count(Op::ReadObject), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_goes_away_takes_nothing_from_the_other() {
    let fake = Fake::new();
    let (id, bytes) = stored(&fake, 1).await;
    let volume = fake.mount();
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    let held = fake.hold(Op::ReadObject);
    let gone = tokio::time::timeout(Duration::from_millis(100), volume.read(handle, 0, 4096));
    let (gone, _) = tokio::join!(gone, async {});
    assert!(gone.is_err());
    let reading = tokio::spawn({
        let volume = volume.clone();
        async move { volume.read(handle, 0, 4096).await.unwrap().concat() }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(held);
    assert_eq!(reading.await.unwrap(), bytes[..4096]);
    assert_eq!(fake.count(Op::ReadObject), 1);
}

#[tokio::test(start_paused = true)]
async fn a_sequential_reader_finds_its_bytes_there() {
    let fake = Fake::new();
    let (id, bytes) = mirrored(&fake).await;
    let volume = fake.mount();
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    for index in 0..3usize {
        let piece = volume.read(handle, index as u64 * 4096, 4096).await.unwrap().concat();
        assert_eq!(piece, bytes[index * 4096..(index + 1) * 4096]);
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let before = fake.count(Op::ReadObject);
    for index in 3..48usize {
        let piece = volume.read(handle, index as u64 * 4096, 4096).await.unwrap().concat();
        assert_eq!(piece, bytes[index * 4096..(index + 1) * 4096]);
    }
    assert_eq!(fake.count(Op::ReadObject), before, "everything was ahead");
}

/// Who read much is told early where the next bytes are, also those beyond his window: a cache here
/// gives more than that while a page of extents is on its way.
#[tokio::test(start_paused = true)]
async fn a_reader_who_reads_on_is_told_of_extents_beyond_his_window() {
    const READ: usize = 16;
    // A page has four extents here.
    let pages = |chunks: usize| chunks / 4;
    let fake = Fake::new();
    let writer = fake.mount();
    let (id, handle) = create(&writer, "a", READ_WRITE).await;
    writer.write(handle, 0, noise(64 * CHUNK)).await.unwrap();
    writer.flush(handle).await.unwrap();
    let volume = fake.mount_with(Settings { window_max: 4 * CHUNK as u64, ..Settings::default() });
    let handle = volume.open(&Caller::root(), id, READ_WRITE).await.unwrap().handle;
    let before = fake.count(Op::GetExtents);
    for offset in (0..READ * CHUNK).step_by(CHUNK / 4) {
        volume.read(handle, offset as u64, CHUNK as u32 / 4).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let told = fake.count(Op::GetExtents) - before;
    assert!(told >= pages(2 * READ) - 1, "{told} pages");
    assert!(told <= pages(2 * READ + 8), "{told} pages: of no more than he read");
}

#[tokio::test(start_paused = true)]
async fn holes_are_found_and_cut() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    volume.write(handle, 3 * CHUNK as u64, noise(CHUNK)).await.unwrap();
    volume.flush(handle).await.unwrap();
    let seek = async |offset: usize, target| volume.seek(handle, offset as u64, target).await;
    assert_eq!(seek(0, SeekTarget::Hole).await.unwrap(), CHUNK as u64);
    assert_eq!(seek(CHUNK, SeekTarget::Data).await.unwrap(), 3 * CHUNK as u64);
    assert_eq!(seek(3 * CHUNK, SeekTarget::Hole).await.unwrap(), 4 * CHUNK as u64);
    assert_eq!(seek(4 * CHUNK, SeekTarget::Data).await.unwrap_err().kind(), ErrorKind::NoDevice);

    let punch = Allocation { offset: 100, length: 1000, mode: AllocationMode::Punch };
    volume.allocate(handle, punch).await.unwrap();
    assert_eq!(volume.read(handle, 0, 1200).await.unwrap().concat()[100..1100], [0; 1000]);
    assert_eq!(fake.bytes(id)[100..1100], [0; 1000]);
    let extend = Allocation { offset: 0, length: 5 * CHUNK as u64, mode: AllocationMode::Extend };
    volume.allocate(handle, extend).await.unwrap();
    assert_eq!(fake.bytes(id).len(), 5 * CHUNK);
}

/// What `fallocate` finds done already is a write all the same.
#[tokio::test(start_paused = true)]
async fn setting_room_aside_moves_times() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, noise(10_000)).await.unwrap();
    volume.flush(handle).await.unwrap();
    for mode in [AllocationMode::Extend, AllocationMode::KeepSize, AllocationMode::Punch] {
        let (offset, length) = if mode == AllocationMode::Punch { (20_000, 9) } else { (0, 9) };
        let (before, commits) =
            (volume.attributes(&Caller::root(), id).await, fake.count(Op::Commit));
        volume.allocate(handle, Allocation { offset, length, mode }).await.unwrap();
        let (before, after) =
            (before.unwrap(), volume.attributes(&Caller::root(), id).await.unwrap());
        assert_eq!(fake.count(Op::Commit), commits + 1, "{mode:?}");
        assert_eq!(after.attributes.size, 10_000);
        // The fake's clock is behind the client's: it is the commit that moves times.
        assert!(after.attributes.mtime >= before.attributes.mtime, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ranges_are_copied() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (_, from) = create(&volume, "a", READ_WRITE).await;
    let (id, to) = create(&volume, "b", READ_WRITE).await;
    volume.write(from, 0, noise(100_000)).await.unwrap();
    let (from, to) = (CopyEnd { handle: from, offset: 10 }, CopyEnd { handle: to, offset: 5 });
    assert_eq!(volume.copy_range(from, to, 1 << 30).await.unwrap(), 99_990);
    volume.flush(to.handle).await.unwrap();
    assert_eq!(fake.bytes(id)[5..], noise(100_000)[10..]);
}

#[tokio::test(start_paused = true)]
async fn closing_commits_everything() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (id, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, Bytes::from_static(b"last words")).await.unwrap();
    volume.close(Duration::from_secs(10)).await;
    assert_eq!(fake.bytes(id), b"last words");
}

#[tokio::test(start_paused = true)]
async fn a_chunk_that_arrives_during_a_sync_is_synced_by_the_next() {
    let fake = Fake::new();
    let volume = fake.mount();
    let (_, handle) = create(&volume, "a", READ_WRITE).await;
    volume.write(handle, 0, noise(CHUNK)).await.unwrap();
    until(|| fake.count(Op::PutChunk) == 1).await;
    let held = fake.hold(Op::SyncFile);
    let syncing = {
        let volume = volume.clone();
        tokio::spawn(async move { volume.sync(handle, false).await })
    };
    until(|| fake.count(Op::SyncFile) > 0).await;
    // To the same OST.
    volume.write(handle, CHUNK as u64, noise(CHUNK)).await.unwrap();
    until(|| fake.count(Op::PutChunk) == 2).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(fake.lock().synced.is_empty());
    drop(held);
    syncing.await.unwrap().unwrap();
    volume.sync(handle, false).await.unwrap();
    assert!(!fake.lock().synced.is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_cannot_prove_himself_for_now_loses_nothing() {
    let fake = Fake::new();
    let wait = Duration::from_secs(60);
    let volume = fake.mount_with(Settings { wait, ..Settings::default() });
    let caller = Caller { proof: Some(7), ..Caller::root() };
    let (id, _) = create(&volume, "a", READ_WRITE).await;
    let opened = volume.open(&caller, id, READ_WRITE).await.unwrap();
    for size in [100, 2 * CHUNK] {
        let bytes = noise(size);
        fake.lock().unproven.insert(7);
        volume.write(opened.handle, 0, bytes.clone()).await.unwrap();
        let error = volume.sync(opened.handle, false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        tokio::time::sleep(wait / 2).await;
        fake.lock().unproven.clear();
        volume.sync(opened.handle, false).await.unwrap();
        assert!(fake.bytes(id) == bytes);
    }
    // As long as for a server that is away, not for ever.
    fake.lock().unproven.insert(7);
    volume.write(opened.handle, 0, noise(100)).await.unwrap();
    tokio::time::sleep(wait * 2).await;
    assert!(volume.sync(opened.handle, false).await.is_err());
    fake.lock().unproven.clear();
    assert!(lock(&volume.shared().dirty).is_empty());
}

/// `O_NOATIME`, under `relatime`; the next process knows it too. And a mount that is read-only.
#[tokio::test(start_paused = true)]
async fn reading_is_noted_unless_it_was_opened_not_to_be() {
    let fake = Fake::new();
    let settings = Settings { access_times: AccessTimes::Relative, ..Settings::default() };
    let volume = fake.mount_with(settings);
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    let noted = Access { read: true, ..Access::default() };
    let unnoted = Access { unnoted: true, ..noted };
    assert_eq!(access_of(bits_of(unnoted)), unnoted);
    for (access, is_read_only, count) in [(unnoted, false, 0), (noted, true, 0), (noted, false, 1)]
    {
        volume.set_read_only(is_read_only);
        let handle = volume.open(&Caller::root(), id, access).await.unwrap().handle;
        volume.read(handle, 0, 1).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(fake.count(Op::SetAttributes), count);
    }
}
