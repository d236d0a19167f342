//! Sends sealed runs to OSTs, each in a task of its own.
//!
//! The stripe says which OST; mirrors go to those that follow it. An OST that refuses or is away is
//! named to the MDS, which chooses others; a new attempt has a new chunk id, so that what a lost
//! attempt left behind is nobody's.
//!
//! Invariant: every sealed run ends as arrived, fresh again (and the file says why), or lost (and
//! the file says so, once).

use crate::file::File;
use crate::overlay::Sealed;
use crate::volume::Shared;
use crate::{Error, Result};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{
    ChunkId, ChunkRef, Content, Digest, ErrorKind, ObjectName, OstIndex, Place, Retry, checksum,
};
use tieline_wire::data::{ObjectOwner, PutChunk};
use tieline_wire::meta;
use tokio::time::Instant;

/// How many OSTs may fail in turn before a run is given up for now.
const OSTS_MAX: usize = 8;
/// Pause before those that failed are asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long an OST may be silent before another is asked for.
const OST_PATIENCE: Duration = Duration::from_secs(20);

impl Shared {
    /// Sends a run in the background; [`File::moved`] is woken at its end.
    pub(crate) fn send(self: &Arc<Self>, file: &Arc<File>, sealed: Sealed) {
        let (shared, file) = (self.clone(), file.clone());
        tokio::spawn(async move {
            let outcome = shared.put_somewhere(&file, &sealed).await;
            file.with(|state| match outcome {
                Ok(chunk) => {
                    state.unsynced.extend(chunk.places.iter().map(|place| place.ost));
                    state.overlay.arrived(sealed.id, Content::Chunk(chunk));
                }
                Err(error) if error.kind().retry() == Retry::Never => {
                    state.lose(file.id, sealed.id, &error);
                }
                Err(error) => {
                    state.stuck = Some((error.kind(), error.to_string()));
                    state.overlay.unseal(sealed.id);
                }
            });
            file.moved.notify_waiters();
        });
    }

    async fn put_somewhere(&self, file: &File, sealed: &Sealed) -> Result<ChunkRef> {
        let deadline = Instant::now() + self.settings.wait;
        let whole = Whole::new(&sealed.bytes);
        let mut exclude: BTreeSet<OstIndex> = BTreeSet::new();
        let mut last: Option<Error> = None;
        loop {
            let stripe = match (self.stripe(file, &exclude).await, last.take()) {
                (Ok(stripe), _) => stripe,
                (Err(refusal), None) => return Err(refusal),
                (Err(refusal), Some(_)) if is_passing(&refusal) => return Err(refusal),
                // Nobody else takes it: those who may come back are asked again, for as long as the
                // operator said.
                (Err(_), Some(error)) if is_passing(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(AGAIN).await;
                    exclude.clear();
                    last = Some(error);
                    continue;
                }
                (Err(_), Some(error)) => return Err(error),
            };
            match self.put_mirrors(file, sealed, &whole, &stripe, deadline).await {
                Ok(chunk) => return Ok(chunk),
                Err((ost, error)) => {
                    let is_over = exclude.len() >= OSTS_MAX || Instant::now() >= deadline;
                    if is_over || !is_the_osts_fault(error.kind()) {
                        return Err(error);
                    }
                    let ost_name = ost.label();
                    tracing::warn!(ost = %ost_name, %error, "chunk goes to another OST");
                    self.mark_trouble(ost);
                    exclude.insert(ost);
                    last = Some(error);
                }
            }
        }
    }

    /// The OSTs that chunks of the file go round, without those that just failed.
    async fn stripe(&self, file: &File, exclude: &BTreeSet<OstIndex>) -> Result<Vec<OstIndex>> {
        let (stripe, caller) = file.with(|state| (state.stripe.clone(), state.writer.clone()));
        if !stripe.is_empty() && !stripe.iter().any(|ost| exclude.contains(ost)) {
            return Ok(stripe);
        }
        let exclude = exclude.iter().copied().collect();
        let message = meta::Place { id: file.id, exclude };
        let stripe = self.servers.ask(&caller, file.id, message).await?.reply.stripe;
        if stripe.is_empty() {
            return Err(Error::local(ErrorKind::NoSpace, "no OST takes chunks"));
        }
        file.with(|state| state.stripe = stripe.clone());
        Ok(stripe)
    }

    /// Puts a run under one id at as many OSTs as the layout wants mirrors. Too few copies name the
    /// OST that failed.
    async fn put_mirrors(
        &self,
        file: &File,
        sealed: &Sealed,
        whole: &Whole,
        stripe: &[OstIndex],
        deadline: Instant,
    ) -> Result<ChunkRef, (OstIndex, Error)> {
        let layout = file.with(|state| state.layout.clone()).unwrap_or_default();
        let first = layout.stripe_index(sealed.offset, stripe.len());
        let copies = usize::from(layout.mirrors).clamp(1, stripe.len());
        let osts: Vec<OstIndex> = stripe.iter().cycle().skip(first).take(copies).copied().collect();
        let nowhere = osts.first().copied().unwrap_or(OstIndex(0));
        let chunk = self.chunk_id(file).await.map_err(|error| (nowhere, error))?;
        let owner = self.owner(file, sealed);
        let puts = osts
            .iter()
            .map(|&ost| self.put(ost, chunk, owner.clone(), sealed.bytes.clone(), whole, deadline));
        let mut places = Vec::new();
        let mut failure = None;
        // Started one after the other, waited for together.
        for (ost, outcome) in osts.iter().zip(join_all(puts).await) {
            match outcome {
                Ok(()) => places.push(place(*ost, chunk, sealed)),
                Err(error) => failure = Some((*ost, error)),
            }
        }
        let enough = usize::from(layout.sync).clamp(1, copies);
        match failure {
            Some(failure) if places.len() < enough => Err(failure),
            _ => Ok(whole.chunk(chunk, sealed, places)),
        }
    }

    async fn put(
        &self,
        ost: OstIndex,
        chunk: ChunkId,
        owner: ObjectOwner,
        bytes: Bytes,
        whole: &Whole,
        deadline: Instant,
    ) -> Result<()> {
        let server = self.servers.oss(ost)?;
        let closed = |_| Error::local(ErrorKind::Internal, "queue of chunks");
        let _turn = server.puts.acquire().await.map_err(closed)?;
        let patience = deadline.saturating_duration_since(Instant::now()).min(OST_PATIENCE);
        let length = bytes.len() as u64;
        let checks = whole.checks.clone();
        let message = PutChunk { ost, chunk, owner, checks, capability: None };
        self.servers.ask_oss(ost, message, bytes, patience).await?;
        METRICS.client_sent_bytes.inc_by(length);
        Ok(())
    }

    /// A chunk id under the grant of our session with the file's MDS.
    async fn chunk_id(&self, file: &File) -> Result<ChunkId> {
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
        ObjectOwner { file: file.id, offset: sealed.offset, version, path }
    }
}

/// Checksums of a run.
struct Whole {
    checks: Vec<u32>,
    digest: Digest,
    adler32: u32,
}

impl Whole {
    fn new(bytes: &Bytes) -> Self {
        Self {
            checks: checksum::block_checks(bytes),
            digest: Digest(*blake3::hash(bytes).as_bytes()),
            adler32: simd_adler32::adler32(&bytes.as_ref()),
        }
    }

    fn chunk(&self, chunk: ChunkId, sealed: &Sealed, places: Vec<Place>) -> ChunkRef {
        ChunkRef {
            chunk,
            length: sealed.bytes.len() as u64,
            skip: 0,
            places,
            digest: Some(self.digest),
            adler32: Some(self.adler32),
            checks: None,
        }
    }
}

fn place(ost: OstIndex, chunk: ChunkId, sealed: &Sealed) -> Place {
    let object = ObjectName::Chunk(chunk);
    Place { ost, object, offset: 0, length: sealed.bytes.len() as u64, is_stale: false }
}

/// May the same OST do better later?
fn is_passing(error: &Error) -> bool {
    error.kind().retry() != Retry::Never
}

/// Would another OST do better?
fn is_the_osts_fault(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NoSpace
            | ErrorKind::ReadOnly
            | ErrorKind::StorageFault
            | ErrorKind::OstInactive
            | ErrorKind::Unreachable
            | ErrorKind::Disconnected
            | ErrorKind::Timeout
            | ErrorKind::WrongServer
            | ErrorKind::Corrupt
    )
}

/// Runs a few futures at once; outcomes in their order.
pub(crate) async fn join_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut is_ready = true;
        for (future, outcome) in &mut waiting {
            if outcome.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *outcome = Some(value),
                    std::task::Poll::Pending => is_ready = false,
                }
            }
        }
        if is_ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    waiting.into_iter().filter_map(|(_, outcome)| outcome).collect()
}
