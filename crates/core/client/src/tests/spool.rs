//! Bytes that were answered for and cannot be stored: for each reason they arrive in the spool.

use super::fake::{Fake, ROOT};
use super::*;
use crate::shared::lock;
use std::ops::Range;
use std::sync::Mutex;
use tieline_owed::spool::{Base, Claim, Lost, Place, Spool};
use tieline_types::{ErrorKind, FileKind, LockKind, LockMode, LockRange, LostLock, OstIndex};
use tieline_wire::Op;

const SIZE: usize = 100_000;
const WAIT: Duration = Duration::from_secs(60);

/// Keeps what it is given, in its order.
#[derive(Default)]
pub struct FakeSpool {
    kept: Mutex<Vec<Lost>>,
    is_full: Mutex<bool>,
    changed: Mutex<Vec<Changed>>,
}

/// A file, what it is now, and what was written over.
type Changed = (FileId, Base, Vec<Range<u64>>);

#[async_trait::async_trait]
impl Spool for FakeSpool {
    async fn keep(&self, lost: Vec<Lost>) -> Vec<std::result::Result<(), String>> {
        if *lock(&self.is_full) {
            return lost.iter().map(|_| Err("full".to_owned())).collect();
        }
        let outcomes = lost.iter().map(|_| Ok(())).collect();
        lock(&self.kept).extend(lost);
        outcomes
    }

    async fn forget(&self, file: FileId, claim: Claim) {
        lock(&self.kept).retain(|lost| lost.file != file || lost.claim != claim);
    }

    async fn answered(&self, file: FileId) {
        let mut kept = lock(&self.kept);
        let own = kept.iter_mut().filter(|lost| lost.file == file && lost.claim == Claim::Open);
        own.for_each(|lost| lost.claim = Claim::Answered);
    }

    async fn changed(&self, file: FileId, base: Base, over: Vec<Range<u64>>) {
        lock(&self.changed).push((file, base, over));
    }
}

impl FakeSpool {
    pub fn all(&self) -> Vec<Lost> {
        lock(&self.kept).clone()
    }

    /// The bytes of a file, laid over one another.
    fn bytes(&self, id: FileId) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in self.all().iter().filter(|lost| lost.file == id).flat_map(|lost| &lost.pieces)
        {
            let at = match piece.place {
                Place::At(at) => at as usize,
                Place::Appended | Place::Record => bytes.len(),
            };
            let end = at + piece.bytes.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[at..end].copy_from_slice(&piece.bytes);
        }
        bytes
    }
}

fn noise(length: usize) -> Bytes {
    (0..length).map(|index| (index * 31 + index / 257) as u8).collect::<Vec<u8>>().into()
}

fn mount(fake: &Arc<Fake>) -> (Arc<Volume>, Arc<FakeSpool>) {
    mount_with(fake, Settings { journal: true, wait: WAIT, ..Settings::default() })
}

fn mount_with(fake: &Arc<Fake>, settings: Settings) -> (Arc<Volume>, Arc<FakeSpool>) {
    let spool = Arc::new(FakeSpool::default());
    let parts = Parts { spool: Some(spool.clone()), ..fake.parts() };
    (Volume::new(parts, settings), spool)
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn mkdir(volume: &Volume) -> FileId {
    let at = At { parent: ROOT, name: &name("d") };
    let (root, mode) = (Caller::root(), Mode::new(0o755));
    volume.make_directory(&root, at, mode, Mode::default()).await.unwrap().attributes.id
}

async fn create(volume: &Volume, parent: FileId, caller: &Caller) -> (FileId, HandleId) {
    let access = Access { read: true, write: true, ..Access::default() };
    let (mode, umask) = (Mode::new(0o644), Mode::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    let at = At { parent, name: &name("f") };
    let (known, opened) = volume.create(caller, at, new).await.unwrap();
    (known.attributes.id, opened.handle)
}

fn fill(fake: &Fake, kind: ErrorKind) {
    fake.lock().put_fault = [OstIndex(0), OstIndex(1)].map(|ost| (ost, kind)).into();
}

/// A file that was written and closed; `length` says how.
async fn closed(volume: &Volume, length: usize) -> FileId {
    let directory = mkdir(volume).await;
    let (id, handle) = create(volume, directory, &Caller::root()).await;
    volume.write(handle, 0, noise(length)).await.unwrap();
    volume.flush(handle).await.unwrap();
    volume.release(handle).await;
    id
}

/// Whatever an OST or the MDT has against them.
#[tokio::test(start_paused = true)]
async fn bytes_that_are_refused_after_their_close_are_spooled() {
    let by_osts = [
        ErrorKind::NoSpace,
        ErrorKind::ReadOnly,
        ErrorKind::OstInactive,
        ErrorKind::StorageFault,
        ErrorKind::NotPermitted,
        ErrorKind::PermissionDenied,
    ];
    let by_mdt = [
        ErrorKind::QuotaExceeded,
        ErrorKind::PermissionDenied,
        ErrorKind::ReadOnly,
        ErrorKind::NoSpace,
        ErrorKind::NotFound,
        ErrorKind::Internal,
        ErrorKind::LockLost,
    ];
    let by_osts = by_osts.map(|kind| (kind, true));
    for (kind, is_osts) in by_osts.into_iter().chain(by_mdt.map(|kind| (kind, false))) {
        let fake = Fake::new();
        let (volume, spool) = mount(&fake);
        let id = closed(&volume, SIZE).await;
        assert!(spool.all().is_empty());
        match is_osts {
            true => fill(&fake, kind),
            false => fake.lock().commit_fault = Some(kind),
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let all = spool.all();
        assert!(!all.is_empty(), "{kind:?}");
        for lost in &all {
            assert_eq!((lost.kind, lost.claim), (all[0].kind, Claim::Answered), "{kind:?}");
            assert_eq!(lost.path, b"d/f", "{kind:?}");
            assert_eq!(lost.base.unwrap().size, 0, "{kind:?}");
        }
        assert!(spool.bytes(id) == noise(SIZE), "{kind:?}");
        assert!(volume.unsent().is_empty(), "{kind:?}");
        // Nothing is left to do, and nothing is kept twice.
        volume.close(Duration::from_secs(5)).await;
        assert_eq!(spool.all().len(), all.len(), "{kind:?}");
    }
}

/// Whoever wrote the bytes was not answered for them, and knows.
#[tokio::test(start_paused = true)]
async fn bytes_whose_writer_is_told_are_not_kept() {
    for syncs in [false, true] {
        let fake = Fake::new();
        let (volume, spool) = mount_with(&fake, Settings::default());
        let (_, handle) = create(&volume, ROOT, &Caller::root()).await;
        fill(&fake, ErrorKind::NoSpace);
        volume.write(handle, 0, noise(SIZE)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(spool.all()[0].claim, Claim::Open);
        let told =
            if syncs { volume.sync(handle, false).await } else { volume.flush(handle).await };
        assert_eq!(told.unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(spool.all().is_empty());
    }
}

/// As pages of a mapping are, of a file that was closed before.
#[tokio::test(start_paused = true)]
async fn bytes_of_a_file_that_nobody_closes_any_more_are_kept() {
    let fake = Fake::new();
    let (volume, spool) = mount_with(&fake, Settings::default());
    let (id, handle) = create(&volume, ROOT, &Caller::root()).await;
    fill(&fake, ErrorKind::NoSpace);
    volume.write(handle, 0, noise(SIZE)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // A reader's being told takes nothing from anybody.
    let access = Access { read: true, ..Access::default() };
    let reader = volume.open(&Caller::root(), id, access).await.unwrap().handle;
    assert!(volume.flush(reader).await.is_err());
    volume.release(reader).await;
    volume.release(handle).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(spool.all().iter().all(|lost| lost.claim == Claim::Answered));
    assert!(spool.bytes(id) == noise(SIZE));
}

/// A small file's bytes are in the journal when it is closed.
#[tokio::test(start_paused = true)]
async fn bytes_in_operations_that_are_refused_are_spooled() {
    for refused in [Op::Commit, Op::Create, Op::MakeDirectory] {
        let fake = Fake::new();
        let (volume, spool) = mount(&fake);
        fake.lock().refused.insert(refused);
        if refused == Op::MakeDirectory {
            // Else the server is asked at once.
            fake.lock().refused.insert(Op::Create);
        }
        let id = closed(&volume, 1000).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(spool.bytes(id) == noise(1000), "{refused:?}");
        let all = spool.all();
        assert_eq!((all.len(), all[0].claim), (1, Claim::Answered), "{refused:?}");
        assert_eq!(all[0].path, b"d/f");
    }
}

/// Larger ones follow their creation, which was refused.
#[tokio::test(start_paused = true)]
async fn bytes_of_a_file_that_was_never_made_are_spooled() {
    let fake = Fake::new();
    let (volume, spool) = mount(&fake);
    fake.lock().refused.insert(Op::Create);
    let id = closed(&volume, SIZE).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(spool.bytes(id) == noise(SIZE));
}

#[tokio::test(start_paused = true)]
async fn bytes_of_a_file_that_was_removed_are_nobodys() {
    let fake = Fake::new();
    let (volume, spool) = mount(&fake);
    let id = closed(&volume, SIZE).await;
    fake.lock().nodes.remove(&id);
    tokio::time::sleep(Duration::from_secs(5)).await;
    volume.close(Duration::from_secs(5)).await;
    assert!(spool.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn bytes_of_a_user_whose_ticket_is_over_for_good_are_spooled() {
    for length in [1000, SIZE] {
        let fake = Fake::new();
        let (volume, spool) = mount(&fake);
        let directory = mkdir(&volume).await;
        let user = Caller { proof: Some(7), ..Caller::root() };
        let (id, handle) = create(&volume, directory, &user).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        fake.lock().unproven.insert(7);
        volume.write(handle, 0, noise(length)).await.unwrap();
        volume.flush(handle).await.unwrap();
        volume.release(handle).await;
        tokio::time::sleep(WAIT / 2).await;
        assert!(spool.all().is_empty(), "another may come: {length}");
        tokio::time::sleep(2 * WAIT).await;
        assert!(spool.bytes(id) == noise(length), "{length}");
        assert_eq!(spool.all()[0].kind, ErrorKind::Unauthenticated, "{length}");
    }
}

/// The end of a mount does not wait longer than that, and loses nothing.
#[tokio::test(start_paused = true)]
async fn what_no_server_took_when_a_mount_ends_is_spooled() {
    for (length, silent) in [(SIZE, OstIndex(9)), (SIZE, OstIndex(0)), (1000, OstIndex(9))] {
        let fake = Fake::new();
        let (volume, spool) = mount(&fake);
        let directory = mkdir(&volume).await;
        let (id, handle) = create(&volume, directory, &Caller::root()).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let _held = match silent {
            OstIndex(9) => Some((fake.hold(Op::Commit), fake.hold(Op::Batch))),
            _ => {
                fake.lock().silent = [OstIndex(0), OstIndex(1)].into();
                None
            }
        };
        volume.write(handle, 0, noise(length)).await.unwrap();
        volume.flush(handle).await.unwrap();
        volume.release(handle).await;
        let (begun, ending) = (tokio::time::Instant::now(), volume.clone());
        let ended = tokio::spawn(async move { ending.close(Duration::from_secs(10)).await });
        tokio::time::sleep(Duration::from_secs(4)).await;
        // Whoever kills it now loses nothing either.
        assert!(spool.bytes(id) == noise(length), "{length} {silent:?}");
        assert!(spool.all().iter().all(|lost| lost.claim == Claim::Waiting));
        ended.await.unwrap();
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(14), "{length} {silent:?}: {took:?}");
        assert!(spool.bytes(id) == noise(length), "{length} {silent:?}");
        assert!(spool.all().iter().all(|lost| lost.claim == Claim::Answered));
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_server_takes_in_time_leaves_no_copy() {
    let fake = Fake::new();
    let (volume, spool) = mount(&fake);
    let id = closed(&volume, SIZE).await;
    let held = fake.hold(Op::PutChunk);
    let ending = volume.clone();
    let ended = tokio::spawn(async move { ending.close(WAIT).await });
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(spool.all()[0].claim, Claim::Waiting);
    fake.release(Op::PutChunk);
    drop(held);
    ended.await.unwrap();
    assert!(spool.all().is_empty());
    assert!(fake.bytes(id) == noise(SIZE));
}

#[tokio::test(start_paused = true)]
async fn what_is_written_again_is_not_in_the_spool_any_more() {
    let fake = Fake::new();
    let (volume, spool) = mount(&fake);
    let id = closed(&volume, SIZE).await;
    fill(&fake, ErrorKind::NoSpace);
    tokio::time::sleep(Duration::from_secs(3)).await;
    fake.lock().put_fault.clear();
    let access = Access { write: true, ..Access::default() };
    let handle = volume.open(&Caller::root(), id, access).await.unwrap().handle;
    volume.write(handle, 7, noise(SIZE)).await.unwrap();
    // Told of what was lost before.
    assert!(volume.sync(handle, false).await.is_err());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let changed = lock(&spool.changed).clone();
    let over: Vec<_> = changed.iter().flat_map(|(_, _, over)| over.clone()).collect();
    assert_eq!(over.first().map(|range| range.start), Some(7));
    assert_eq!(over.last().map(|range| range.end), Some(7 + SIZE as u64));
    assert_eq!(changed.last().unwrap().1.size, 7 + SIZE as u64);
    assert!(!spool.all().is_empty(), "who wrote that cannot be told");
}

#[tokio::test(start_paused = true)]
async fn appended_bytes_are_spooled_in_their_order() {
    let fake = Fake::new();
    let (volume, spool) = mount_with(&fake, Settings::default());
    let access = Access { write: true, append: true, ..Access::default() };
    let (mode, umask) = (Mode::new(0o644), Mode::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    let at = At { parent: ROOT, name: &name("log") };
    let (known, opened) = volume.create(&Caller::root(), at, new).await.unwrap();
    fake.lock().commit_fault = Some(ErrorKind::PermissionDenied);
    for line in [&b"one\n"[..], b"two\n", b"three\n"] {
        volume.write(opened.handle, 0, Bytes::from_static(line)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert_eq!(spool.bytes(known.attributes.id), b"one\ntwo\nthree\n");
    let places = spool.all().into_iter().flat_map(|lost| lost.pieces);
    assert!(places.into_iter().all(|piece| piece.place == Place::Appended));
}

/// The bytes leave memory all the same, and the file says so.
#[tokio::test(start_paused = true)]
async fn a_spool_that_takes_nothing_keeps_nobody_waiting() {
    let fake = Fake::new();
    let (volume, spool) = mount(&fake);
    *lock(&spool.is_full) = true;
    let id = closed(&volume, SIZE).await;
    fill(&fake, ErrorKind::NoSpace);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(volume.unsent().is_empty());
    let access = Access { write: true, ..Access::default() };
    let handle = volume.open(&Caller::root(), id, access).await.unwrap().handle;
    assert_eq!(volume.sync(handle, false).await.unwrap_err().kind(), ErrorKind::NoSpace);
}

/// Others hold the lock now: nothing is laid over what they wrote.
#[tokio::test(start_paused = true)]
async fn bytes_that_were_written_under_a_lost_lock_are_spooled() {
    let fake = Fake::new();
    fake.lock().boot = 2;
    let (volume, spool) = mount_with(&fake, Settings::default());
    let id = fake.lock().add(ROOT, &name("f"), FileKind::Regular);
    let access = Access { read: true, write: true, ..Access::default() };
    let handle = volume.open(&Caller::root(), id, access).await.unwrap().handle;
    let (kind, range) = (LockKind::Posix, LockRange::WHOLE);
    let wish = LockWish { kind, owner: 1, range, mode: LockMode::Exclusive, process: 1 };
    volume.lock(handle, wish, false).await.unwrap();
    volume.write(handle, 0, noise(1000)).await.unwrap();
    fake.takes(LostLock { number: 1, id, kind, owner: 1, by: "another".into() });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(spool.bytes(id) == noise(1000));
    let lost = &spool.all()[0];
    assert_eq!((lost.kind, lost.claim), (ErrorKind::LockLost, Claim::Open));
    // Who closes it is told.
    assert_eq!(volume.flush(handle).await.unwrap_err().kind(), ErrorKind::LockLost);
    assert!(spool.all().is_empty() && fake.bytes(id).is_empty());
}
