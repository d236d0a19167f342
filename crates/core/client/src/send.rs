//! Sends sealed runs to OSTs, each in a task of its own.
//!
//! The stripe says which OSTs: one per mirror. A run has arrived when as many copies are there as
//! the layout says (`sync`); the others get as long again, and are then recorded as stale with the
//! commit, while their puts go on. When too few are there, those that refuse or are away are named
//! to the MDS, which chooses others; a new attempt has a new chunk id, so that what a lost attempt
//! left behind is nobody's. When it has no others, the copies that could be made suffice: the rest
//! is made in the background, as if `sync` had asked for fewer.
//!
//! Invariant: every sealed run ends as arrived, fresh again (and the file says why), or lost (and
//! the file says so, once).

use crate::file::File;
use crate::shared::Shared;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tieline_net::CallError;
use tieline_ranges::overlay::{Run, Sealed};
use tieline_servers::{PUT_GRAIN, PUT_GRAINS_MAX, PUT_GRAINS_MIN};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{
    Algorithm, Caller, ChunkRef, Content, Digest, Effect, Encoding, ErrorKind, GrantedId, Hasher,
    ObjectName, OstIndex, OstPlace, Place, Retry, checksum,
};
use tieline_wire::data::{ObjectOwner, PutChunk};
use tieline_wire::meta;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// How many OSTs may fail in turn before a run is given up for now.
const OSTS_MAX: usize = 8;
/// Pause before those that failed are asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// The least that a copy gets after those that are waited for have arrived.
const LINGER_MIN: Duration = Duration::from_millis(10);
/// Bytes of chunks whose last copies are on their way after their commit.
pub(crate) const LATE_MAX: usize = 64 << 20;
/// They are counted in units of so many.
pub(crate) const LATE_GRAIN: usize = 1 << 10;
/// Whole blocks that the processor's cache holds.
const SUM_STEP: usize = 256 << 10;
/// How long an OST may be silent before another is asked for.
pub(crate) const OST_PATIENCE: Duration = Duration::from_secs(20);
/// How long a file's first chunk waits for what its label shall say.
const WAY_PATIENCE: Duration = Duration::from_secs(2);

impl Shared {
    /// Sends a run in the background; [`File::moved`] is woken at its end.
    pub(crate) fn send(self: &Arc<Self>, file: &Arc<File>, sealed: Sealed) {
        let (shared, file) = (self.clone(), file.clone());
        tokio::spawn(async move {
            let outcome = shared.put_somewhere(&file, &sealed).await;
            let outcome = outcome.map(|copies| (copies.chunk, copies.late));
            let (mut late, mut lost) = (None, None);
            file.with(|state| match outcome {
                Ok((chunk, puts)) => {
                    late = Some(puts);
                    state.unsynced.arrived(crate::file::copies(&chunk));
                    shared.note_unsynced(&file);
                    state.overlay.arrived(sealed.id, Content::Chunk(chunk));
                }
                Err(error) if state.is_lost_by(&error, shared.settings.wait) => lost = Some(error),
                Err(error) => {
                    state.stuck = Some((error.kind(), error.to_string()));
                    state.overlay.unseal(sealed.id);
                }
            });
            if let Some(error) = lost {
                shared.give_up(&file, &[sealed.id], &error).await;
            }
            file.moved.notify_waiters();
            if let Some(late) = late {
                shared.follow(&file, &sealed, late);
            }
        });
    }

    /// Makes bytes that are in no overlay a chunk.
    pub(crate) async fn put_loose(
        self: &Arc<Self>,
        file: &Arc<File>,
        sealed: &Sealed,
    ) -> Result<ChunkRef> {
        let copies = self.put_somewhere(file, sealed).await?;
        self.follow(file, sealed, copies.late);
        Ok(copies.chunk)
    }

    async fn put_somewhere(self: &Arc<Self>, file: &Arc<File>, sealed: &Sealed) -> Result<Copies> {
        let started = Instant::now();
        if !file.with(|state| std::mem::replace(&mut state.way_was_asked, true)) {
            let _ = timeout(WAY_PATIENCE, self.learn_way(file)).await;
        }
        let whole = Arc::new(Whole::new(&sealed.run));
        let mut exclude: BTreeSet<OstIndex> = BTreeSet::new();
        let mut last: Option<Error> = None;
        let (mut short, mut spares_poor) = (None::<Copies>, true);
        loop {
            let stripe = match (self.stripe(file, &exclude).await, last.take()) {
                (Ok(stripe), _) => stripe,
                (Err(refusal), _) if is_passing(&refusal) => return Err(refusal),
                // Without those that failed for others there is nobody: they are tried.
                (Err(_), None) if std::mem::take(&mut spares_poor) && !exclude.is_empty() => {
                    exclude.clear();
                    continue;
                }
                (Err(refusal), None) => return Err(refusal),
                // Nobody else takes it: those who may come back are asked again, for as long as the
                // operator said.
                (Err(_), Some(error))
                    if is_passing(&error)
                        && Instant::now() < self.servers.until_for_osts(started, &exclude) =>
                {
                    tokio::time::sleep(AGAIN).await;
                    exclude.clear();
                    last = Some(error);
                    continue;
                }
                (Err(_), Some(error)) => return Err(error),
            };
            let column = Column::of(file, sealed, &stripe);
            if let Some(copies) = short.take()
                && column.without(&exclude).is_subset(&copies.here)
            {
                return Ok(self.settled(file, sealed, &column, copies).await);
            }
            let poor = if spares_poor {
                self.poor.spared_in(&column.osts, column.sync)
            } else {
                BTreeSet::new()
            };
            if !poor.is_subset(&exclude) {
                exclude.extend(poor);
                continue;
            }
            let until = self.servers.until_for_osts(started, &stripe);
            let mut copies =
                self.put_copies(file, sealed, &whole, (&column, &exclude), until).await?;
            if copies.here.len() >= column.enough(&exclude) {
                return Ok(self.settled(file, sealed, &column, copies).await);
            }
            for (ost, error) in std::mem::take(&mut copies.failed) {
                let is_over = exclude.len() >= OSTS_MAX || Instant::now() >= until;
                if is_over || !is_the_osts_fault(error.kind()) {
                    return Err(error);
                }
                tracing::warn!(ost = %ost.label(), %error, "chunk goes to another OST");
                exclude.insert(ost);
                last = Some(error);
            }
            short = Some(copies).filter(|copies| !copies.here.is_empty());
        }
    }

    /// Learns where the directories are that a file lies in: the labels of its objects tell. A
    /// daemon that was started again under programs at work may know the file alone.
    async fn learn_way(&self, file: &File) -> Result<()> {
        let caller = file.with(|state| state.writer.clone());
        let unplaced = || self.cache.lock().unplaced(file.id);
        while let Some(top) = unplaced() {
            let told = self.ask(&caller, top, meta::LookupParent { id: top }).await?.reply;
            // A file may have lost its name.
            let Some(name) = told.name else { return Ok(()) };
            self.cache.lock().seen(top, told.parent, name);
        }
        Ok(())
    }

    /// The OSTs that chunks of the file go round, without those that just failed.
    pub(crate) async fn stripe(
        &self,
        file: &File,
        exclude: &BTreeSet<OstIndex>,
    ) -> Result<Vec<OstIndex>> {
        let (stripe, caller) = file.with(|state| (state.stripe.clone(), state.writer.clone()));
        if !stripe.is_empty() && !stripe.iter().any(|ost| exclude.contains(ost)) {
            return Ok(stripe);
        }
        let exclude = exclude.iter().copied().collect();
        // Where there is room for what was answered for.
        let wish = file.with(|state| state.deferred.map(|_| state.room.wish.clone()));
        let message = meta::Place { id: file.id, exclude, wish };
        let stripe = self.ask(&caller, file.id, message).await?.reply.stripe;
        if stripe.is_empty() {
            return Err(Error::local(ErrorKind::NoSpace, "no OST takes chunks"));
        }
        file.with(|state| state.stripe = stripe.clone());
        Ok(stripe)
    }

    /// Puts a run under one id at the OSTs of its column, in parallel. Ends when as many copies are
    /// there as are waited for, and the others had as long again; or when all have ended.
    async fn put_copies(
        self: &Arc<Self>,
        file: &Arc<File>,
        sealed: &Sealed,
        whole: &Arc<Whole>,
        (column, exclude): (&Column, &BTreeSet<OstIndex>),
        deadline: Instant,
    ) -> Result<Copies> {
        let enough = column.enough(exclude);
        let chunk = self.chunk_id(file).await?;
        let owner = self.owner(file, sealed);
        let file_writer = file.with(|state| state.writer.clone());
        let mut puts = JoinSet::new();
        for ost in self.poor.worth_trying(&column.osts, enough) {
            let (shared, whole) = (self.clone(), whole.clone());
            let (file, run) = (file.clone(), sealed.run.clone());
            let what = (file_writer.clone(), owner.clone());
            puts.spawn(async move {
                (ost, shared.put(&file, (ost, chunk), what, run, &whole, deadline).await)
            });
        }
        let started = Instant::now();
        let (id, chunk) = (chunk, whole.chunk(chunk, sealed, vec![]));
        let mut copies = Copies { id, chunk, late: puts, here: BTreeSet::new(), failed: vec![] };
        let mut until = None;
        while let Some(joined) = next_put(&mut copies.late, until).await {
            match joined {
                Ok((ost, Ok(()))) => drop(copies.here.insert(ost)),
                Ok((ost, Err(error))) => {
                    self.chunks.osts.mark_trouble(ost);
                    self.poor.failed(ost, is_refusal(error.kind()));
                    copies.failed.push((ost, error));
                }
                Err(error) => tracing::error!(%error, "put of a chunk ended early"),
            }
            if copies.here.len() >= enough {
                until.get_or_insert_with(|| Instant::now() + started.elapsed().max(LINGER_MIN));
            }
        }
        copies.here.iter().for_each(|&ost| self.poor.worked(ost));
        if copies.here.is_empty() && copies.failed.is_empty() {
            return Err(Error::local(ErrorKind::Internal, "put of a chunk"));
        }
        Ok(copies)
    }

    /// These copies will do. Who refused its copy is no place of the chunk, and the next chunks go
    /// elsewhere if they can; who did not answer may come back, and gets its copy then.
    async fn settled(
        &self,
        file: &File,
        sealed: &Sealed,
        column: &Column,
        mut copies: Copies,
    ) -> Copies {
        let chunk = copies.id;
        for (ost, error) in &copies.failed {
            tracing::info!(ost = %ost.label(), %chunk, %error, "a copy is left for later");
        }
        let is_here = |ost: &OstIndex| copies.here.contains(ost);
        let kept = column.osts.iter().filter(|ost| is_here(ost) || !self.poor.has_refused(ost));
        copies.chunk.places = kept.map(|ost| place(*ost, chunk, sealed, !is_here(ost))).collect();
        let refused = copies.failed.iter().filter(|(_, error)| is_refusal(error.kind()));
        let refused: BTreeSet<OstIndex> = refused.map(|(ost, _)| *ost).collect();
        if !refused.is_empty()
            && let Err(error) = self.stripe(file, &refused).await
        {
            tracing::info!(file = %file.id, %error, "no other OSTs for its next chunks");
        }
        copies
    }

    /// Waits for copies that were not there in time, as long as there is room to hold their bytes;
    /// the MDS has the others made.
    fn follow(self: &Arc<Self>, file: &Arc<File>, sealed: &Sealed, mut late: JoinSet<Put>) {
        let held = (sealed.run.length() * late.len()).div_ceil(LATE_GRAIN);
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        if late.is_empty() {
            return;
        }
        // Dropped, the puts end where they are.
        let Ok(room) = self.late.clone().try_acquire_many_owned(held) else { return };
        let (shared, file, id) = (self.clone(), file.clone(), sealed.id);
        tokio::spawn(async move {
            while let Some(joined) = late.join_next().await {
                match joined {
                    Ok((ost, Ok(()))) => {
                        shared.poor.worked(ost);
                        file.with(|state| state.overlay.copy_arrived(id, ost));
                    }
                    Ok((ost, Err(error))) => {
                        tracing::info!(ost = %ost.label(), %error, "a copy is left for later");
                        shared.poor.failed(ost, is_refusal(error.kind()));
                    }
                    Err(_) => {}
                }
            }
            drop(room);
        });
    }

    async fn put(
        self: &Arc<Self>,
        file: &Arc<File>,
        (ost, chunk): (OstIndex, GrantedId),
        (writer, owner): (Caller, ObjectOwner),
        run: Run,
        whole: &Whole,
        deadline: Instant,
    ) -> Result<()> {
        let server = self.servers.oss(ost)?;
        let closed = |_| Error::local(ErrorKind::Internal, "queue of chunks");
        let length = run.length() as u64;
        // One larger than all the room goes alone.
        let grains = run.length().div_ceil(PUT_GRAIN).clamp(PUT_GRAINS_MIN, PUT_GRAINS_MAX);
        let (mut is_refused, mut has_asked) = (false, false);
        loop {
            // An MDS that is away keeps nobody from the room.
            let capability =
                self.chunks.capabilities.to_write(owner.file, &writer, is_refused).await?;
            let mut room = pin!(server.puts.acquire_many(grains as u32));
            let _turn = loop {
                match timeout(AGAIN, &mut room).await {
                    Ok(turn) => break turn.map_err(closed)?,
                    // Those before it waited in vain: so would this one.
                    Err(_) if self.poor.is_resting(ost) || Instant::now() >= deadline => {
                        return Err(Error::local(ErrorKind::Timeout, "queue of chunks"));
                    }
                    Err(_) => {}
                }
            };
            let may_ask_again = capability.is_some() && !is_refused;
            let (owner, checks) = (owner.clone(), whole.checks.clone());
            let patience = deadline.saturating_duration_since(Instant::now()).min(OST_PATIENCE);
            let spending = self.spend(file, ost, length);
            let (room, missing) = (spending.room(), spending.missing());
            let message = PutChunk { ost, chunk, owner, checks, capability, room };
            let answer = self.servers.ask_oss(ost, message, run.parts().to_vec(), patience).await;
            if answer.as_ref().is_err_and(is_unspent) {
                file.with(|state| state.room.refused(&self.rooms, spending));
            }
            match answer {
                Err(error) if error.kind() == ErrorKind::PermissionDenied && may_ask_again => {
                    is_refused = true;
                }
                // It may keep room for us that we did not know of, as after a start of ours.
                Err(error)
                    if error.kind() == ErrorKind::NoSpace
                        && missing > 0
                        && !std::mem::replace(&mut has_asked, true)
                        && self.ask_room_for(ost, missing).await => {}
                answer => {
                    answer?;
                    METRICS.client_sent_bytes.inc_by(length);
                    return Ok(());
                }
            }
        }
    }

    /// A chunk id under the grant of our session with the file's MDS.
    pub(crate) async fn chunk_id(&self, file: &File) -> Result<GrantedId> {
        let mdt = file.id.mdt();
        if let Some(id) = self.servers.mds(mdt)?.chunk_id(mdt) {
            return Ok(id);
        }
        self.greet(file).await?;
        let none = || Error::local(ErrorKind::Disconnected, "no session to name chunks under");
        self.servers.mds(mdt)?.chunk_id(mdt).ok_or_else(none)
    }

    fn owner(&self, file: &File, sealed: &Sealed) -> ObjectOwner {
        let version = file.with(|state| state.version);
        let path = self.cache.lock().path(file.id);
        let offset = if sealed.is_scattered { ObjectOwner::SCATTERED } else { sealed.offset };
        ObjectOwner { file: file.id, offset, version, path }
    }
}

/// What became of a copy.
type Put = (OstIndex, Result<()>);

/// A run, where it has arrived, and the copies that have not yet.
struct Copies {
    id: GrantedId,
    chunk: ChunkRef,
    late: JoinSet<Put>,
    here: BTreeSet<OstIndex>,
    failed: Vec<(OstIndex, Error)>,
}

/// The OSTs of a run's copies.
pub(crate) struct Column {
    pub osts: Vec<OstIndex>,
    /// As many copies are waited for, if as many OSTs take them.
    pub sync: usize,
}

impl Column {
    fn of(file: &File, sealed: &Sealed, stripe: &[OstIndex]) -> Self {
        let layout = file.with(|state| state.layout.clone()).unwrap_or_default();
        let mut osts: Vec<OstIndex> = Vec::new();
        for &ost in layout.column(sealed.offset, stripe) {
            if !osts.contains(&ost) {
                osts.push(ost);
            }
        }
        Self { osts, sync: layout.sync.into() }
    }

    fn without(&self, exclude: &BTreeSet<OstIndex>) -> BTreeSet<OstIndex> {
        self.osts.iter().copied().filter(|ost| !exclude.contains(ost)).collect()
    }

    /// How many copies are waited for when `exclude` failed and the MDS knew no others for them.
    fn enough(&self, exclude: &BTreeSet<OstIndex>) -> usize {
        self.sync.min(self.without(exclude).len()).max(1)
    }
}

/// Checksums of a run.
struct Whole {
    checks: Vec<u32>,
    digest: Digest,
    adler32: u32,
}

impl Whole {
    /// In one pass: each block is summed while it is in the processor's cache.
    fn new(run: &Run) -> Self {
        let mut checks = Vec::with_capacity(run.length().div_ceil(checksum::BLOCK));
        let mut digest = Hasher::new(Algorithm::Blake3);
        let mut adler = simd_adler32::Adler32::new();
        for step in run.parts().iter().flat_map(|part| part.chunks(SUM_STEP)) {
            checks.extend(step.chunks(checksum::BLOCK).map(checksum::crc32c));
            adler.write(step);
            digest.update(step);
        }
        let digest = digest.finish(Encoding::Plain);
        Self { checks, digest, adler32: adler.finish() }
    }

    fn chunk(&self, chunk: GrantedId, sealed: &Sealed, places: Vec<Place>) -> ChunkRef {
        ChunkRef {
            chunk: chunk.into(),
            length: sealed.run.length() as u64,
            skip: 0,
            places,
            digest: Some(self.digest),
            adler32: Some(self.adler32),
            checks: None,
        }
    }
}

fn place(ost: OstIndex, chunk: GrantedId, sealed: &Sealed, is_stale: bool) -> Place {
    let (object, length) = (ObjectName::Chunk(chunk), sealed.run.length() as u64);
    OstPlace { ost, object, offset: 0, length, is_stale }.into()
}

/// The next put to end; `None` after the last one, or when the time is up.
async fn next_put(
    puts: &mut JoinSet<Put>,
    until: Option<Instant>,
) -> Option<Result<Put, tokio::task::JoinError>> {
    match until {
        None => puts.join_next().await,
        Some(until) => tokio::time::timeout_at(until, puts.join_next()).await.ok().flatten(),
    }
}

/// Has the OST surely used nothing of what it had granted?
fn is_unspent(error: &Error) -> bool {
    let is_refused = matches!(error, Error::Call(CallError::Refused(_)));
    is_refused || error.kind().effect() == Effect::NotApplied
}

/// Did the OST say that it takes no chunks, rather than say nothing?
pub(crate) fn is_refusal(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NoSpace
            | ErrorKind::ReadOnly
            | ErrorKind::NotPermitted
            | ErrorKind::StorageFault
            | ErrorKind::OstInactive
            | ErrorKind::WrongServer
    )
}

/// May the same OST do better later?
fn is_passing(error: &Error) -> bool {
    error.kind().retry() != Retry::Never
}

/// Would another OST do better? One that does not permit it is kept from us by its site.
fn is_the_osts_fault(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NoSpace
            | ErrorKind::ReadOnly
            | ErrorKind::NotPermitted
            | ErrorKind::StorageFault
            | ErrorKind::OstInactive
            | ErrorKind::Unreachable
            | ErrorKind::Disconnected
            | ErrorKind::Timeout
            | ErrorKind::WrongServer
            | ErrorKind::Corrupt
    )
}
