//! An MDT in memory whose background work runs when a test says so, and the OSTs around it.

use crate::chore::Chore;
use crate::chore::status::Status;
use crate::collector::{DeletedFiles, FreedChunks, LostNames, Nameless, Strays};
use crate::{Mirrors, ObjectMender, Objects, Parts, TapeDriver, Tended, Tender};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_format::map::Pool;
use tieline_format::mdt::{Inode, PayerChange};
use tieline_kv::{MemoryStore, Snapshot};
pub use tieline_meta::fixture::{House as MdtAlone, *};
use tieline_meta::{CopyMender, Mdt, Settings};
use tieline_types::background::Change;
use tieline_types::{
    Digest, ErrorKind, FileId, Grant, GrantedId, Layout, ObjectName, OstIndex, OstPlace, SessionId,
    Version,
};
use tieline_wire::Failure;
use tieline_wire::data::{
    ForeignName, ListObjects, ListObjectsReply, ObjectOwner, ReadObject, ReadObjectReply,
    StatObject, StatObjectReply,
};
use tieline_wire::exposed::{
    ArrangeExposed, ArrangeExposedReply, ListExposed, ListExposedReply, StageFile, StageFileReply,
};
use tieline_wire::meta::ExtentPage;
use tieline_wire::mirrors::{
    FetchChunk, FetchChunkReply, Trouble, VerifyObject, VerifyObjectReply,
};
use tieline_wire::tape::{
    DriveState, DriveTape, DriveTapeReply, TapeContent, TapeDeed, TapePart, TapeWork,
};

/// The objects at all OSTs: what is there, and what was deleted.
#[derive(Default)]
pub struct Remover {
    pub removed: Mutex<Vec<(OstIndex, GrantedId)>>,
    pub down: Mutex<BTreeSet<OstIndex>>,
    pub there: Mutex<BTreeMap<(OstIndex, GrantedId), Vec<u8>>>,
    /// Objects whose byte at this offset is damaged.
    pub damaged: Mutex<BTreeMap<(OstIndex, GrantedId), usize>>,
    pub unreadable: Mutex<BTreeSet<GrantedId>>,
    pub foreign: Mutex<BTreeMap<OstIndex, Vec<ForeignName>>>,
    /// How long a look at an object takes, and how many there were.
    pub pace: Mutex<Duration>,
    pub looks: AtomicUsize,
}

impl Remover {
    pub fn put(&self, ost: u16, chunk: GrantedId, bytes: &[u8]) {
        self.there.lock().unwrap().insert((OstIndex(ost), chunk), bytes.to_vec());
    }

    fn check(&self, ost: OstIndex) -> Result<(), Failure> {
        match self.down.lock().unwrap().contains(&ost) {
            true => Err(Failure::new(ErrorKind::Unreachable, "down")),
            false => Ok(()),
        }
    }

    fn bytes(&self, ost: OstIndex, chunk: GrantedId) -> Result<Vec<u8>, Failure> {
        self.check(ost)?;
        if self.unreadable.lock().unwrap().contains(&chunk) {
            return Err(Failure::new(ErrorKind::StorageFault, "Is a directory"));
        }
        let bytes = self.there.lock().unwrap().get(&(ost, chunk)).cloned();
        bytes.ok_or_else(|| Failure::new(ErrorKind::Gone, "not there"))
    }
}

#[async_trait::async_trait]
impl Objects for Remover {
    async fn remove(&self, ost: OstIndex, chunks: Vec<GrantedId>) -> Result<(), Failure> {
        self.check(ost)?;
        let mut there = self.there.lock().unwrap();
        chunks.iter().for_each(|chunk| drop(there.remove(&(ost, *chunk))));
        self.removed.lock().unwrap().extend(chunks.into_iter().map(|chunk| (ost, chunk)));
        Ok(())
    }

    async fn list(&self, message: ListObjects) -> Result<ListObjectsReply, Failure> {
        self.check(message.ost)?;
        let there = self.there.lock().unwrap();
        let here = there.keys().filter(|(ost, _)| *ost == message.ost).map(|(_, chunk)| *chunk);
        let behind = here.filter(|chunk| message.after.is_none_or(|after| *chunk > after));
        let chunks: Vec<GrantedId> = behind.take(message.limit as usize).collect();
        let is_end = chunks.len() < message.limit as usize;
        let foreign = self.foreign.lock().unwrap().get(&message.ost).cloned();
        let foreign = foreign.filter(|_| message.after.is_none());
        Ok(ListObjectsReply { chunks, is_end, foreign })
    }

    async fn stat(&self, message: StatObject) -> Result<StatObjectReply, Failure> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let pace = *self.pace.lock().unwrap();
        tokio::time::sleep(pace).await;
        let bytes = self.bytes(message.ost, message.chunk)?;
        let (file, offset, version, path) = (FileId(0), 0, Version(0), vec![]);
        let owner = ObjectOwner { file, offset, version, path };
        Ok(StatObjectReply { length: bytes.len() as u64, owner, check: 0 })
    }

    async fn read(&self, message: ReadObject) -> Result<(ReadObjectReply, Bytes), Failure> {
        let ObjectName::Chunk(chunk) = message.object else { panic!("only chunks are read") };
        let mut bytes = self.bytes(message.ost, chunk)?;
        let object_length = bytes.len() as u64;
        let checks = tieline_types::checksum::block_checks(&bytes);
        if let Some(&at) = self.damaged.lock().unwrap().get(&(message.ost, chunk)) {
            bytes[at] ^= 1;
        }
        Ok((ReadObjectReply { offset: 0, checks, object_length, proof: None }, bytes.into()))
    }
}

/// OSTs with copies, some of them bad. An adopted file's bytes are the digest that it has now.
#[derive(Default)]
pub struct Mender {
    pub adopted: Mutex<BTreeMap<String, Digest>>,
    pub held: Mutex<BTreeSet<(OstIndex, GrantedId)>>,
    pub bad: Mutex<BTreeSet<(OstIndex, GrantedId)>>,
    /// Chunks whose bad copies are damaged in different blocks.
    pub scattered: Mutex<BTreeSet<GrantedId>>,
    pub down: Mutex<BTreeSet<OstIndex>>,
    pub fetches: Mutex<Vec<FetchChunk>>,
    /// How many copies were verified.
    pub looks: AtomicUsize,
}

impl Mender {
    fn check_up(&self, ost: OstIndex) -> Result<(), Failure> {
        match self.down.lock().unwrap().contains(&ost) {
            true => Err(Failure::new(ErrorKind::Timeout, "down")),
            false => Ok(()),
        }
    }

    pub fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    fn adopted(&self, path: &str, length: u64) -> Result<VerifyObjectReply, Failure> {
        let found = self.adopted.lock().unwrap().get(path).copied();
        let digest = found.ok_or_else(|| Failure::new(ErrorKind::Corrupt, "was changed"))?;
        Ok(VerifyObjectReply { digest, bad_blocks: 0, first_bad: None, length })
    }

    fn is_good(&self, ost: OstIndex, chunk: GrantedId) -> bool {
        let held = self.held.lock().unwrap().contains(&(ost, chunk));
        held && !self.bad.lock().unwrap().contains(&(ost, chunk))
    }
}

#[async_trait::async_trait]
impl ObjectMender for Mender {
    async fn verify(
        &self,
        message: VerifyObject,
        _patience: Duration,
    ) -> Result<VerifyObjectReply, Failure> {
        self.check_up(message.ost)?;
        self.looks.fetch_add(1, Ordering::Relaxed);
        let chunk = match message.object {
            ObjectName::Chunk(chunk) => chunk,
            ObjectName::External { path, .. } => return self.adopted(&path, message.length),
            ObjectName::Key(key) => panic!("{key} is a repository's"),
        };
        if !self.held.lock().unwrap().contains(&(message.ost, chunk)) {
            return Err(Failure::new(ErrorKind::Gone, "no such object"));
        }
        let bad_blocks = u32::from(!self.is_good(message.ost, chunk));
        let first_bad = (bad_blocks > 0).then_some(0);
        Ok(VerifyObjectReply { digest: DIGEST, bad_blocks, first_bad, length: message.length })
    }

    async fn fetch(
        &self,
        message: FetchChunk,
        _patience: Duration,
    ) -> Result<FetchChunkReply, Failure> {
        self.check_up(message.ost)?;
        self.fetches.lock().unwrap().push(message.clone());
        let (ost, chunk) = (message.ost, message.chunk);
        let is_fetched = !self.is_good(ost, chunk);
        let is_source = |place: &&OstPlace| self.is_good(place.ost, chunk);
        let is_scattered = self.scattered.lock().unwrap().contains(&chunk);
        if is_fetched && !is_scattered && !message.from.iter().any(|place| is_source(&place)) {
            return Err(Failure::new(ErrorKind::Corrupt, "no good source"));
        }
        let bad = message.from.iter().filter(|place| !is_source(place)).map(|place| place.ost);
        let bad = bad.collect();
        self.held.lock().unwrap().insert((ost, chunk));
        self.bad.lock().unwrap().remove(&(ost, chunk));
        Ok(FetchChunkReply { is_fetched, bad })
    }
}

/// OSSs with a tape library behind them.
#[derive(Default)]
pub struct Library {
    pub objects: Arc<Remover>,
    /// What is on tape, by its URI.
    pub files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// How the next deeds fail: the last one first.
    pub failures: Mutex<Vec<(ErrorKind, String, bool)>>,
    pub is_away: Mutex<bool>,
    jobs: Mutex<BTreeMap<u64, TapeWork>>,
}

impl Library {
    pub fn names(&self) -> Vec<String> {
        self.files.lock().unwrap().keys().cloned().collect()
    }

    fn work(&self, work: &TapeWork) -> DriveState {
        if let Some((kind, detail, is_final)) = self.failures.lock().unwrap().pop() {
            return DriveState::Failed { kind, detail, is_final };
        }
        match &work.deed {
            TapeDeed::Put { name, size } => {
                let mut bytes = vec![0; *size as usize];
                for part in &work.parts {
                    let range = part.offset as usize..(part.offset + part.length) as usize;
                    bytes[range].copy_from_slice(&self.bytes(part));
                }
                let uri = format!("osm://osm/?bfid={name}");
                let digest = Digest::of(&bytes);
                self.files.lock().unwrap().insert(uri.clone(), bytes);
                DriveState::Put { uris: vec![uri], digest, adler32: 1 }
            }
            TapeDeed::Get { copy, .. } => {
                let bytes = self.files.lock().unwrap()[&copy.uris[0]].clone();
                assert_eq!(Digest::of(&bytes), copy.digest);
                for part in &work.parts {
                    let TapeContent::To(chunk, ost) = &part.content else { panic!("{part:?}") };
                    let range = part.offset as usize..(part.offset + part.length) as usize;
                    assert!(chunk.digest.unwrap().is_of(&bytes[range.clone()]));
                    self.objects.put(ost.0, chunk.chunk.granted().unwrap(), &bytes[range]);
                }
                DriveState::Done
            }
            TapeDeed::Remove(uris) => {
                let mut files = self.files.lock().unwrap();
                uris.iter().for_each(|uri| drop(files.remove(uri)));
                DriveState::Done
            }
        }
    }

    fn bytes(&self, part: &TapePart) -> Vec<u8> {
        match &part.content {
            TapeContent::Inline(bytes) => bytes.clone(),
            TapeContent::Chunk(chunk) => {
                let there = self.objects.there.lock().unwrap();
                let (id, ost) = (chunk.chunk.granted().unwrap(), chunk.places[0].ost().unwrap());
                let skip = chunk.skip as usize;
                there[&(ost, id)][skip..skip + part.length as usize].to_vec()
            }
            TapeContent::To(..) => panic!("{part:?}"),
        }
    }
}

#[async_trait::async_trait]
impl TapeDriver for Library {
    async fn drive(&self, message: DriveTape, _: Duration) -> Result<DriveTapeReply, Failure> {
        if *self.is_away.lock().unwrap() {
            return Err(Failure::new(ErrorKind::Unreachable, "away"));
        }
        let mut jobs = self.jobs.lock().unwrap();
        if message.ends == Some(true) {
            jobs.remove(&message.job);
            return Ok(DriveTapeReply { state: DriveState::Unknown });
        }
        let state = match (message.work, jobs.get(&message.job)) {
            (Some(work), _) => {
                let total = work.total;
                jobs.insert(message.job, work);
                DriveState::Gathering(total)
            }
            (None, Some(work)) => self.work(work),
            (None, None) => DriveState::Unknown,
        };
        Ok(DriveTapeReply { state })
    }
}

/// Of every chunk.
pub const DIGEST: Digest = Digest::blake3([7; 32]);

/// A running MDT, its background work, and OSTs.
pub struct House {
    mdt: MdtAlone,
    pub remover: Arc<Remover>,
    pub mender: Arc<Mender>,
    pub mirrors: Arc<Mirrors>,
    pub tape: Arc<Library>,
    pub tender: Arc<Tender>,
}

impl Deref for House {
    type Target = MdtAlone;

    fn deref(&self) -> &MdtAlone {
        &self.mdt
    }
}

impl House {
    /// Deleted files go at once: most tests look at what else there is.
    pub async fn new() -> Self {
        Self::with(MemoryStore::new(), false).await
    }

    /// One that keeps deleted files, as MDTs do.
    pub async fn keeping() -> Self {
        Self::with(MemoryStore::new(), true).await
    }

    /// The MDT's clients prove who they are now, and did not before.
    pub async fn proven() -> Self {
        Self::with_map((MemoryStore::new(), map_cell_of(&proven_map())), true).await
    }

    async fn with(store: MemoryStore, keeps_deleted: bool) -> Self {
        Self::with_map((store, map_cell()), keeps_deleted).await
    }

    async fn with_map((store, map): (MemoryStore, MapCell), keeps_deleted: bool) -> Self {
        let settings = Settings { keeps_deleted, ..Settings::default() };
        let own = crate::Settings {
            session_keep: settings.session_keep,
            freed_keep: settings.freed_keep,
            collect_rate: settings.collect_rate,
            stray_keep: settings.stray_keep,
        };
        let (remover, mender) = (Arc::<Remover>::default(), Arc::<Mender>::default());
        let mirrors = Arc::<Mirrors>::default();
        let objects = remover.clone();
        let tape = Arc::new(Library { objects, ..Library::default() });
        let index = settings.mdt;
        let mdt = MdtAlone::with_copies(store, settings, Arc::new(Copies(mirrors.clone()))).await;
        let tender = Tender::new(Parts {
            mdt: Arc::new(TendedMdt(mdt.mdt.clone())),
            index,
            settings: own,
            store: Arc::new(mdt.store.clone()),
            world: mdt.world.clone(),
            map,
            log: None,
            objects: remover.clone(),
            mender: mender.clone(),
            tape: tape.clone(),
            mirrors: mirrors.clone(),
            exposed: Arc::new(Nowhere),
            exposures: Arc::default(),
        });
        Self { mdt, remover, mender, mirrors, tape, tender: Arc::new(tender) }
    }

    /// The server dies and starts again on the same store.
    pub async fn restarted(self) -> Self {
        Self::with(self.mdt.store, false).await
    }

    /// The background work, until it is aborted.
    pub fn run(&self) -> tokio::task::JoinHandle<()> {
        let tender = self.tender.clone();
        tokio::spawn(async move { tender.run().await })
    }

    /// One round of a chore.
    pub async fn round(&self, chore: &mut dyn Chore) -> crate::error::Result<()> {
        chore.round(&self.status()).await
    }

    pub fn status(&self) -> Status {
        Status::new(self.parts().index, "test", "pieces")
    }

    pub fn parts(&self) -> &Arc<Parts> {
        &self.tender.parts
    }

    fn pace(&self) -> Arc<crate::pace::Pace> {
        Arc::new(crate::pace::Pace::new(self.parts().settings.collect_rate))
    }

    pub fn nameless(&self) -> Nameless {
        Nameless::new(self.parts())
    }

    pub fn deleted_files(&self) -> DeletedFiles {
        DeletedFiles::new(self.parts(), &self.pace())
    }

    pub fn lost_names(&self) -> LostNames {
        LostNames::new(self.parts(), &self.pace())
    }

    pub fn freed_chunks(&self) -> FreedChunks {
        FreedChunks::new(self.parts(), &self.pace())
    }

    pub fn strays(&self) -> Strays {
        Strays::new(self.parts(), &self.pace())
    }
}

/// No pool is exposed anywhere.
pub struct Nowhere;

#[async_trait::async_trait]
impl crate::ExposedObjects for Nowhere {
    async fn stage(&self, _: StageFile, _: Duration) -> Result<StageFileReply, Failure> {
        Err(Failure::new(ErrorKind::Unreachable, "no OSS"))
    }

    async fn arrange(&self, _: ArrangeExposed) -> Result<ArrangeExposedReply, Failure> {
        Err(Failure::new(ErrorKind::Unreachable, "no OSS"))
    }

    async fn list_exposed(&self, _: ListExposed) -> Result<ListExposedReply, Failure> {
        Err(Failure::new(ErrorKind::Unreachable, "no OSS"))
    }
}

/// The MDT, as its background work sees it.
pub struct TendedMdt(pub Arc<Mdt>);

/// Whoever has copies made, as the MDT sees it.
pub struct Copies(pub Arc<Mirrors>);

impl CopyMender for Copies {
    fn suspect(&self, chunk: GrantedId, ost: OstIndex) {
        self.0.suspect(chunk, ost);
    }

    fn hurry(&self, chunk: GrantedId, file: FileId) -> Option<Trouble> {
        self.0.hurry(chunk, file)
    }
}

#[async_trait::async_trait]
impl Tended for TendedMdt {
    async fn change(&self, change: Change) -> Result<bool, Failure> {
        self.0.change(&change).await
    }

    fn is_ended(&self) -> bool {
        self.0.trouble().is_some()
    }

    fn has_room(&self) -> bool {
        self.0.has_room()
    }

    fn is_tight(&self) -> bool {
        self.0.is_tight()
    }

    fn is_restored(&self) -> bool {
        self.0.is_restored()
    }

    async fn set_checked(&self) -> Result<(), Failure> {
        self.0.set_checked().await
    }

    fn store_failed(&self, error: &tieline_kv::Error) {
        self.0.store_failed(error);
    }

    fn sessions(&self) -> BTreeSet<SessionId> {
        self.0.sessions()
    }

    fn is_grant(&self, grant: Grant) -> bool {
        self.0.is_grant(grant)
    }

    async fn end_lost_sessions(&self) -> Result<u64, Failure> {
        self.0.end_lost_sessions().await
    }

    fn openers(&self, file: FileId) -> BTreeSet<SessionId> {
        self.0.openers(file)
    }

    async fn ask_open(
        &self,
        session: SessionId,
        files: &[FileId],
    ) -> Result<Option<Vec<FileId>>, Failure> {
        self.0.ask_open(session, files).await
    }

    fn closed(&self, session: SessionId, file: FileId) {
        self.0.closed(session, file);
    }

    fn first_new_file(&self) -> FileId {
        self.0.first_new_file()
    }

    async fn files_counted(&self, count: i64) -> Result<(), Failure> {
        self.0.files_counted(count).await
    }

    async fn add_up_usage(&self) -> Result<(), Failure> {
        self.0.add_up().await
    }

    async fn usage_missing(
        &self,
        snapshot: &mut dyn Snapshot,
    ) -> Result<Vec<PayerChange>, Failure> {
        self.0.usage_missing(snapshot).await
    }

    async fn correct_usage(&self, missing: Vec<PayerChange>) -> Result<(), Failure> {
        self.0.correct_usage(missing).await
    }

    async fn is_written(&self, file: FileId) -> Result<bool, Failure> {
        self.0.is_written(file).await
    }

    fn tape_pool(&self, inode: &Inode) -> Option<Pool> {
        self.0.tape_pool(inode)
    }

    fn is_heard(&self, ost: OstIndex, within: Duration) -> bool {
        self.0.is_heard(ost, within)
    }

    fn more_places(&self, layout: &Layout, there: &[OstIndex], count: usize) -> Vec<OstIndex> {
        self.0.more_places(layout, there, count)
    }

    fn boot(&self) -> u64 {
        self.0.boot()
    }

    async fn extents_of(
        &self,
        file: FileId,
        offset: u64,
        limit: usize,
    ) -> Result<Option<(Inode, ExtentPage)>, Failure> {
        self.0.extents_of(file, offset, limit).await
    }

    async fn still_written(
        &self,
        files: &BTreeMap<FileId, (SessionId, BTreeSet<FileId>)>,
    ) -> Result<BTreeSet<FileId>, Failure> {
        self.0.still_written(files).await
    }

    fn copy_capability(&self, to: OstIndex, file: FileId, from: &[OstPlace]) -> Option<Vec<u8>> {
        self.0.copy_capability(to, file, from)
    }
}
