//! One OST: its store, its site's limits, and what in it is not durable yet.
//!
//! Every failure that leaves here begins with the OST's label and names the chunk. Faults of the
//! storage and damaged bytes are logged here, since this is where they are turned into answers.
//!
//! Invariants: nothing is stored that its checks do not match; a put is answered after its chunk is
//! noted as volatile; at most [`VOLATILE_MAX`] chunks are volatile for long, at most [`LOST_MAX`]
//! are remembered as lost.

use crate::adopted::Adopted;
use crate::proofs::Trees;
use crate::room::{Free, Ledger, Spent, Taken, Wish};
use crate::site::{Budget, Charge};
use crate::volatile::{Note, Volatile};
use crate::{Limits, TargetParts};
use bytes::Bytes;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_blob::{ChunkStore, Error, Listed, Slice, Space};
use tieline_format::object::ObjectTrailer;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{
    ByteSize, ClientId, ErrorKind, FileId, GrantedId, Layout, MdtIndex, OstIndex, checksum,
};
use tieline_wire::Failure;
use tieline_wire::data::{
    GrantRoom, GrantRoomReply, ObjectOwner, OstState, PutChunk, StatObjectReply,
};
use tokio::time::Instant;

/// 16 GiB of usual chunks: more than four seconds of any network. Beyond it whoever puts syncs the
/// oldest.
const VOLATILE_MAX: usize = 4096;
const SYNC_BATCH: usize = 256;
/// So much is synced without being asked: a disk's work of a tenth of a second or more.
const EARLY_BYTES: u64 = 64 << 20;
/// Beyond this the disk is broken and takes no more.
const LOST_MAX: usize = 65_536;
/// Objects of common disks are rounded up to so many bytes.
const UNIT: u64 = 4096;
/// An OST that could not keep what it had taken takes nothing more for so long: writers go
/// elsewhere.
const FAILED_KEPT: Duration = Duration::from_secs(60);
/// Who asks how an OST is waits so long for the first count.
const COUNT_PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Target {
    ost: OstIndex,
    label: String,
    store: Arc<dyn ChunkStore>,
    limits: Limits,
    budget: Option<Budget>,
    volatile: Mutex<Volatile>,
    /// Bytes that were put since a sync was begun early, and whether one is under way.
    unsynced: AtomicU64,
    is_syncing: AtomicBool,
    room: Ledger,
    /// What its objects are rounded up to, as far as is known.
    unit: AtomicU64,
    /// When its disk last failed to keep what it had taken.
    failed: Mutex<Option<Instant>>,
    pub adopted: Adopted,
    pub trees: Trees,
}

impl Target {
    pub fn new(ost: OstIndex, parts: TargetParts) -> Arc<Self> {
        Arc::new(Self {
            ost,
            label: ost.label(),
            store: parts.store,
            budget: parts.limits.bytes_max.map(Budget::new),
            room: Ledger::new(parts.limits.reserve),
            unit: AtomicU64::new(UNIT),
            limits: parts.limits,
            volatile: Mutex::default(),
            unsynced: AtomicU64::default(),
            is_syncing: AtomicBool::default(),
            failed: Mutex::default(),
            adopted: Adopted { label: ost.label(), tree: parts.adopted },
            trees: Trees::default(),
        })
    }

    pub async fn put(
        self: &Arc<Self>,
        client: ClientId,
        message: PutChunk,
        data: Bytes,
    ) -> Result<(), Failure> {
        let PutChunk { chunk, owner, checks, room, .. } = message;
        let length = data.len() as u64;
        self.put_check_bytes(chunk, &data, &checks)?;
        let wish = Wish { client, chunk, cost: self.cost(length), room: room.unwrap_or(0) };
        let spent = self.room.spend(wish);
        let _taken = self.put_check_limits(&spent, chunk, length).await?;
        let charge = self.charge(&spent, chunk, length).await?;
        let ObjectOwner { file, offset, version, path } = owner;
        let trailer = ObjectTrailer { chunk, file, offset, version, path, checks, tree: None };
        let trailer = self.with_tree(trailer, &data).await;
        let stored = self.store.put(&trailer, data).await;
        settle(charge, stored.is_ok());
        stored.map_err(|error| self.failure(format_args!("put of chunk {chunk}"), &error))?;
        spent.stored();
        let count = {
            let mut volatile = lock(&self.volatile);
            volatile.note(file, chunk);
            volatile.len()
        };
        if count > VOLATILE_MAX {
            let oldest = lock(&self.volatile).oldest(SYNC_BATCH);
            // A failure concerns other files: they hear of it when they are synced.
            let _ = self.sync_notes(oldest).await;
        }
        self.sync_early(length);
        Ok(())
    }

    /// Begins to make durable what is there, once it is much: whoever syncs then waits for the rest
    /// only.
    fn sync_early(self: &Arc<Self>, length: u64) {
        let waiting = self.unsynced.fetch_add(length, Ordering::Relaxed) + length;
        if waiting < EARLY_BYTES || self.is_syncing.swap(true, Ordering::Relaxed) {
            return;
        }
        self.unsynced.store(0, Ordering::Relaxed);
        let target = self.clone();
        tokio::spawn(async move {
            let oldest = lock(&target.volatile).oldest(SYNC_BATCH);
            // A failure is logged, and remembered for who syncs the file.
            let _ = target.sync_notes(oldest).await;
            target.is_syncing.store(false, Ordering::Relaxed);
        });
    }

    fn put_check_bytes(
        &self,
        chunk: GrantedId,
        data: &[u8],
        checks: &[u32],
    ) -> Result<(), Failure> {
        if data.len() > Layout::CHUNK_SIZE_MAX as usize {
            let (length, limit) = (data.len(), ByteSize(Layout::CHUNK_SIZE_MAX.into()));
            return Err(self.refuse(format!("chunk {chunk} has {length} bytes, over {limit}")));
        }
        let Some(block) = checksum::first_mismatch(data, checks) else { return Ok(()) };
        METRICS.corrupt_blocks.with_label_values(&["oss"]).inc();
        let label = &self.label;
        let detail = format!("{label}: block {block} of chunk {chunk} arrived damaged: send again");
        tracing::warn!(%chunk, block, ost = %label, "chunk arrived damaged");
        Err(Failure::new(ErrorKind::Corrupt, detail))
    }

    /// The site's own limits come first. What is given back is held until the put is done.
    async fn put_check_limits<'t>(
        &'t self,
        spent: &Spent<'t>,
        chunk: GrantedId,
        length: u64,
    ) -> Result<Option<Taken<'t>>, Failure> {
        let put = format!("put of chunk {chunk}");
        let label = &self.label;
        if let Some((kind, why)) = self.refusal() {
            return Err(Failure::new(kind, format!("{label}: {put}: {why}")));
        }
        let taken = self.take_room(spent, length).await;
        let taken = taken.map_err(|error| self.failure(&put, &error))?;
        // A put that is repeated takes no room; the store tells whether it is the same.
        if taken.is_some() || self.store.stat(chunk).await.is_ok() {
            return Ok(taken);
        }
        let promised = match self.room.promised() {
            0 => String::new(),
            promised => format!(", and {} that are promised to others", ByteSize(promised)),
        };
        let reserve = ByteSize(self.limits.reserve);
        let detail =
            format!("{label}: {put}: full but for the {reserve} its site reserves{promised}");
        Err(Failure::new(ErrorKind::NoSpace, detail))
    }

    /// Why no chunk is taken now, however much room there is.
    fn refusal(&self) -> Option<(ErrorKind, &'static str)> {
        if self.limits.is_read_only {
            return Some((ErrorKind::ReadOnly, "its site made it read-only"));
        }
        if lock(&self.volatile).lost_count() >= LOST_MAX {
            let why = "too many chunks could not be made durable";
            return Some((ErrorKind::StorageFault, why));
        }
        if lock(&self.failed).is_some_and(|at| at.elapsed() < FAILED_KEPT) {
            let why = "its disk has just failed to keep other chunks";
            return Some((ErrorKind::StorageFault, why));
        }
        None
    }

    /// Takes a put's bytes of the free space, if they fit.
    async fn take_room<'t>(
        &'t self,
        spent: &Spent<'t>,
        length: u64,
    ) -> Result<Option<Taken<'t>>, Error> {
        if (self.room.is_free(spent) || !self.room.is_stale())
            && let Some(taken) = self.room.take(spent, length)
        {
            return Ok(Some(taken));
        }
        self.see_room().await?;
        Ok(self.room.take(spent, length))
    }

    async fn see_room(&self) -> Result<Space, Error> {
        let space = self.store.space().await?;
        self.room.see(space.bytes_free);
        Ok(space)
    }

    /// What a chunk of `length` bytes takes of room.
    fn cost(&self, length: u64) -> u64 {
        GrantRoom::cost(length, self.unit.load(Ordering::Relaxed))
    }

    /// Keeps room for a client's chunks that will come.
    pub async fn grant(
        &self,
        client: ClientId,
        message: GrantRoom,
    ) -> Result<GrantRoomReply, Failure> {
        let failure = |error: Error| self.failure("grant of room", &error);
        let GrantRoom { held, wanted, .. } = message;
        let wanted = if self.refusal().is_some() { 0 } else { wanted };
        let space = self.see_room().await.map_err(failure)?;
        if let Some(budget) = &self.budget {
            budget.count(&*self.store).await.map_err(failure)?;
        }
        self.unit.store(space.unit.max(UNIT), Ordering::Relaxed);
        let free = || Free {
            limit: self.budget.as_ref().map(|budget| budget.bytes_free().unwrap_or(0)),
            objects: space.objects_free.saturating_mul(self.cost(0)),
        };
        let (granted, bytes_free) = self.room.grant((client, held, wanted), free);
        Ok(GrantRoomReply { granted, unit: self.unit.load(Ordering::Relaxed), bytes_free })
    }

    /// Counts a chunk that is about to be put against the bytes that the site gives.
    async fn charge(
        &self,
        spent: &Spent<'_>,
        chunk: GrantedId,
        length: u64,
    ) -> Result<Option<Charge<'_>>, Failure> {
        let Some(budget) = &self.budget else { return Ok(None) };
        let put = format!("put of chunk {chunk}");
        let others = (&self.room, spent);
        let charged = budget.charge(&*self.store, (chunk, length), others).await;
        let charge = charged.map_err(|error| self.failure(&put, &error))?;
        if charge.is_some() {
            return Ok(charge);
        }
        let (label, given) = (&self.label, ByteSize(budget.bytes_max));
        let detail = format!("{label}: {put}: the {given} that its site gives are used");
        Err(Failure::new(ErrorKind::NoSpace, detail))
    }

    /// Counts what is there, if the site limits it and nobody has counted.
    pub async fn count(&self) {
        let Some(budget) = &self.budget else { return };
        if let Err(error) = budget.count(&*self.store).await {
            tracing::warn!(ost = %self.label, reason = %chain(&error), "objects cannot be counted");
        }
    }

    /// Does the site let the OST be used so?
    pub fn check_site(&self, mdts: &[MdtIndex], realm: Realm<'_>) -> Result<(), Failure> {
        let label = &self.label;
        let refused = |why: String| {
            Err(Failure::new(ErrorKind::NotPermitted, format!("{label}: its site {why}")))
        };
        if let Some(mdt) = mdts.iter().find(|mdt| !self.limits.allow_mdt(**mdt)) {
            return refused(format!("does not let it be used for {}", mdt.label()));
        }
        match realm {
            Realm::Client(realm) if !self.limits.allow_realm(realm) => {
                let whose = realm.map_or("who proves nothing".to_owned(), |realm| realm.to_owned());
                refused(format!("does not serve clients of {whose}"))
            }
            Realm::Client(_) | Realm::Server => Ok(()),
        }
    }

    /// Does it take chunks of one of these MDTs?
    pub fn takes_of(&self, mdts: &[MdtIndex]) -> bool {
        mdts.iter().any(|mdt| self.limits.allow_mdt(*mdt))
    }

    /// Has the next reader look at the disk.
    pub fn forget(&self, chunk: GrantedId) {
        self.trees.forget(chunk);
        self.store.forget(chunk);
    }

    pub async fn read(&self, chunk: GrantedId, offset: u64, length: u32) -> Result<Slice, Failure> {
        let slice = self.store.read(chunk, offset, length).await;
        slice.map_err(|error| self.failure(format_args!("read of chunk {chunk}"), &error))
    }

    /// Stores a verified copy over whatever is there.
    pub async fn replace(&self, trailer: ObjectTrailer, data: Bytes) -> Result<(), Failure> {
        let (chunk, file, length) = (trailer.chunk, trailer.file, data.len() as u64);
        let wish = Wish { client: ClientId([0; 16]), chunk, cost: self.cost(length), room: 0 };
        let spent = self.room.spend(wish);
        let _taken = self.put_check_limits(&spent, chunk, length).await?;
        let charge = self.charge(&spent, chunk, length).await?;
        let trailer = self.with_tree(trailer, &data).await;
        let stored = self.store.replace(&trailer, data).await;
        self.trees.forget(chunk);
        settle(charge, stored.is_ok());
        stored.map_err(|error| self.failure(format_args!("copy of chunk {chunk}"), &error))?;
        let mut volatile = lock(&self.volatile);
        // If it was lost before, it is not any more.
        volatile.forget(chunk);
        volatile.note(file, chunk);
        Ok(())
    }

    /// Could it not be made durable once? Then syncing it again would find nothing to do.
    pub fn is_lost(&self, chunk: GrantedId) -> bool {
        lock(&self.volatile).is_lost(chunk)
    }

    /// Makes one chunk durable.
    pub async fn sync_chunk(&self, chunk: GrantedId) -> Result<(), Failure> {
        let synced = self.store.sync(&[chunk]).await;
        synced.map_err(|error| self.failure(format_args!("sync of chunk {chunk}"), &error))
    }

    pub async fn stat(&self, chunk: GrantedId) -> Result<StatObjectReply, Failure> {
        let stat = self.store.stat(chunk).await;
        let (trailer, length) =
            stat.map_err(|error| self.failure(format_args!("stat of chunk {chunk}"), &error))?;
        let ObjectTrailer { file, offset, version, path, checks, .. } = trailer;
        let checks: Vec<u8> = checks.into_iter().flat_map(u32::to_le_bytes).collect();
        let owner = ObjectOwner { file, offset, version, path };
        Ok(StatObjectReply { length, owner, check: checksum::crc32c(&checks) })
    }

    /// Deletes what is there of `chunks`; says how many that were.
    pub async fn delete(&self, chunks: &[GrantedId]) -> Result<u32, Failure> {
        let mut deleted = 0;
        for &chunk in chunks {
            // First, so that a sync that meets the gap knows why.
            lock(&self.volatile).forget(chunk);
            self.trees.forget(chunk);
            let was_there = match &self.budget {
                Some(budget) => budget.delete(&*self.store, chunk).await,
                None => self.store.delete(chunk).await,
            };
            let was_there = was_there
                .map_err(|error| self.failure(format_args!("deletion of chunk {chunk}"), &error))?;
            deleted += u32::from(was_there);
        }
        Ok(deleted)
    }

    pub async fn list(&self, after: Option<GrantedId>, limit: usize) -> Result<Listed, Failure> {
        let listed = self.store.list(after, limit).await;
        listed.map_err(|error| self.failure("listing of objects", &error))
    }

    /// Makes a file's chunks durable; says how many were not.
    pub async fn sync_file(&self, file: FileId) -> Result<u32, Failure> {
        let notes = lock(&self.volatile).of_file(file);
        let count = notes.len() as u32;
        let synced = self.sync_notes(notes).await;
        // Lost just now, or in the background before.
        let lost = lock(&self.volatile).lost_of_file(file);
        if let Some(chunk) = lost {
            let label = &self.label;
            let detail =
                format!("{label}: sync of file {file}: chunk {chunk} could not be made durable");
            return Err(Failure::new(ErrorKind::StorageFault, detail));
        }
        synced.map_err(|error| self.failure(format_args!("sync of file {file}"), &error))?;
        Ok(count)
    }

    /// Makes everything durable that was noted until now.
    pub async fn sync_all(&self) {
        let notes = lock(&self.volatile).oldest(usize::MAX);
        for batch in notes.chunks(SYNC_BATCH) {
            // Logged and remembered; the next batch may fare better.
            let _ = self.sync_notes(batch.to_vec()).await;
        }
    }

    /// Syncs chunks and settles them. Those that are lost are remembered.
    async fn sync_notes(&self, mut notes: Vec<Note>) -> Result<(), Error> {
        while !notes.is_empty() {
            let chunks: Vec<GrantedId> = notes.iter().map(|note| note.chunk).collect();
            let outcome = self.store.sync(&chunks).await;
            match outcome {
                Ok(()) => {
                    lock(&self.volatile).settle(&notes);
                    return Ok(());
                }
                Err(Error::Absent { chunk, .. }) if chunks.contains(&chunk) => {
                    // Deleted meanwhile, unless nobody asked for that.
                    if lock(&self.volatile).lose(&[chunk]) > 0 {
                        tracing::error!(ost = %self.label, %chunk, "chunk vanished from its store");
                    }
                    notes.retain(|note| note.chunk != chunk);
                }
                Err(error) => {
                    *lock(&self.failed) = Some(Instant::now());
                    if let Error::NotDurable { chunks, .. } = &error {
                        lock(&self.volatile).lose(chunks);
                    }
                    tracing::error!(ost = %self.label, reason = %chain(&error), "sync failed");
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// How it is now, for the MDSs and for `/metrics`.
    pub async fn state(&self) -> OstState {
        let (mut space, mut trouble) = match self.store.space().await {
            Ok(space) => (space, None),
            Err(error) => (Space::default(), Some(chain(&error))),
        };
        // For as long as nobody waits in vain.
        let _ = tokio::time::timeout(COUNT_PATIENCE, self.count()).await;
        if let Some(budget) = &self.budget {
            space.bytes_total = space.bytes_total.min(budget.bytes_max);
        }
        let lost = lock(&self.volatile).lost_count();
        if self.limits.is_read_only {
            trouble = Some("its site made it read-only".to_owned());
        } else if lost > 0 {
            trouble.get_or_insert(format!("{lost} chunks could not be made durable"));
        }
        let mut bytes_free = space.bytes_free.saturating_sub(self.limits.reserve);
        if bytes_free == 0 {
            trouble.get_or_insert_with(|| match ByteSize(self.limits.reserve) {
                ByteSize(0) => "full".to_owned(),
                reserve => format!("full but for the {reserve} its site reserves"),
            });
        }
        if let Some(budget) = &self.budget {
            bytes_free = bytes_free.min(budget.bytes_free().unwrap_or(0));
            let given = ByteSize(budget.bytes_max);
            match budget.bytes_free() {
                Some(1..) => {}
                Some(0) => {
                    trouble.get_or_insert(format!("the {given} that its site gives are used"));
                }
                None => {
                    trouble.get_or_insert("counts what is there".to_owned());
                }
            }
        }
        if self.limits.is_read_only {
            bytes_free = 0;
        }
        let gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let label = [self.label.as_str()];
        METRICS.ost_free_bytes.with_label_values(&label).set(gauge(bytes_free));
        METRICS.ost_total_bytes.with_label_values(&label).set(gauge(space.bytes_total));
        OstState {
            ost: self.ost,
            bytes_total: space.bytes_total,
            bytes_free,
            objects_total: space.objects_total,
            objects_free: space.objects_free,
            trouble,
            is_read_only: self.limits.is_read_only.then_some(true),
            realms: self.limits.realms.as_ref().map(|all| all.iter().cloned().collect()),
        }
    }

    /// Something is wrong with a chunk, for the storage's sake.
    pub fn fault(&self, chunk: GrantedId, kind: ErrorKind, reason: &str) -> Failure {
        let detail = format!("{}: read of chunk {chunk}: {reason}", self.label);
        tracing::warn!("{detail}");
        Failure::new(kind, detail)
    }

    /// A request that no version of us would serve.
    pub fn refuse(&self, reason: String) -> Failure {
        Failure::new(ErrorKind::InvalidArgument, format!("{}: {reason}", self.label))
    }

    fn failure(&self, doing: impl Display, error: &Error) -> Failure {
        let (kind, detail) = (error.kind(), format!("{}: {doing}: {}", self.label, chain(error)));
        if matches!(kind, ErrorKind::StorageFault | ErrorKind::Corrupt) {
            tracing::warn!("{detail}");
        }
        Failure::new(kind, detail)
    }
}

/// Who asks, as a site tells them apart.
#[derive(Clone, Copy)]
pub enum Realm<'a> {
    Server,
    /// The realm of who proved to be there, if anybody did.
    Client(Option<&'a str>),
}

fn settle(charge: Option<Charge<'_>>, is_stored: bool) {
    if let Some(charge) = charge {
        charge.settle(is_stored);
    }
}

/// An error and what it came from, as one clause.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        // Writing to a string does not fail.
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while these are held, and nothing waits.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
