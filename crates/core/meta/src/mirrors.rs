//! Copies of chunks: which are bad or missing, and having them made again.
//!
//! A place is *stale* if it does not hold its chunk, or holds damage: nobody reads from it. A
//! commit records as stale what has not arrived yet; a report of damage is looked into by the OSS
//! itself ([`mend`]) and then recorded in the same way. What is recorded is noted under the chunk
//! ([`Lacking`]), so that it survives a restart, and a worker ([`worker`]) has the OSS fetch the
//! chunk from a good place, and clears the mark. A file that was given more mirrors is noted as a
//! whole and its chunks are looked through.
//!
//! Clients are told nothing: whoever believes an older list of places finds out at the place.
//!
//! Invariants: the last good place is never marked; a mark is cleared only after the OSS has
//! verified the whole chunk and made it durable; queues in memory are bounded, and what they lose
//! is noted in the store or will be reported again.

mod mend;
mod worker;

use crate::Asker;
use crate::chunks;
use crate::error::{Error, Result};
use crate::mdt::Mdt;
use crate::ops::open_kind;
use crate::permission;
use crate::recall::Keepers;
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_format::map::FederationMap;
use tieline_format::mdt::{Inode, Lacking, key};
use tieline_types::{ChunkId, Content, Extent, FileId, Grant, OstIndex, Place};
use tieline_wire::mirrors::{
    LackingChunk, ReportPlace, ReportPlaceReply, ResyncFile, ResyncFileReply, Trouble,
};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Reports and wishes that wait; more are refused or asked again.
const QUEUE_MAX: usize = 4096;
/// Failures that are remembered.
const TROUBLES_MAX: usize = 4096;
/// A chunk that could not be mended rests for so long.
const REST: Duration = Duration::from_secs(15);
/// The same after it was found that nobody can mend it: every report would find the same.
const REST_HOPELESS: Duration = Duration::from_secs(600);
/// An OST that did not answer rests for so long.
const REST_AWAY: Duration = Duration::from_secs(5);

/// What is to be done, and what went wrong: in memory.
#[derive(Default)]
pub(crate) struct Mirrors {
    state: Mutex<State>,
    woken: Notify,
}

#[derive(Default)]
struct State {
    /// Places that somebody complained of.
    suspects: BTreeSet<(ChunkId, OstIndex)>,
    /// Chunks that somebody waits for, with a file that they are of.
    urgent: BTreeMap<ChunkId, FileId>,
    troubles: BTreeMap<ChunkId, Rest>,
    away: BTreeMap<OstIndex, Instant>,
}

struct Rest {
    until: Instant,
    trouble: Trouble,
}

impl Mirrors {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn suspect(&self, chunk: ChunkId, ost: OstIndex) {
        let mut state = self.lock();
        let rests = state.troubles.get(&chunk).is_some_and(|rest| rest.until > Instant::now());
        if !rests && state.suspects.len() < QUEUE_MAX {
            state.suspects.insert((chunk, ost));
            drop(state);
            self.woken.notify_one();
        }
    }

    fn trouble(&self, chunk: ChunkId, ost: OstIndex, reason: String, rest: Duration) {
        let mut state = self.lock();
        while state.troubles.len() >= TROUBLES_MAX {
            state.troubles.pop_first();
        }
        let until = Instant::now() + rest;
        state.troubles.insert(chunk, Rest { until, trouble: Trouble { ost, reason } });
    }

    /// Nobody can mend it: whoever complains of any of its places is not heard for long.
    fn hopeless(&self, chunk: ChunkId, ost: OstIndex, reason: String) {
        self.trouble(chunk, ost, reason, REST_HOPELESS);
        self.lock().suspects.retain(|(suspect, _)| *suspect != chunk);
    }

    fn is_resting(&self, chunk: ChunkId) -> bool {
        self.lock().troubles.get(&chunk).is_some_and(|rest| rest.until > Instant::now())
    }

    fn is_away(&self, ost: OstIndex) -> bool {
        self.lock().away.get(&ost).is_some_and(|until| *until > Instant::now())
    }

    fn set_away(&self, ost: OstIndex) {
        self.lock().away.insert(ost, Instant::now() + REST_AWAY);
    }

    fn mended(&self, chunk: ChunkId) {
        self.lock().troubles.remove(&chunk);
    }
}

impl Mdt {
    /// Somebody found a place bad: the worker has its OSS look.
    pub(crate) fn report_place(&self, report: &ReportPlace) -> Result<ReportPlaceReply> {
        if report.chunk.mdt != self.settings.mdt {
            return Err(Error::Invalid { what: "the chunk belongs to another MDT" });
        }
        let (chunk, ost) = (report.chunk, report.ost.label());
        tracing::info!(%chunk, ost, what = report.what, "a copy is reported as bad");
        self.mirrors.suspect(report.chunk, report.ost);
        Ok(ReportPlaceReply {})
    }

    /// Has what a page of a file lacks made before others, and tells what that is.
    pub(crate) async fn resync_file(
        &self,
        asker: &Asker,
        request: &ResyncFile,
    ) -> Result<ResyncFileReply> {
        let map = self.parts.map.current();
        let nobody = Keepers::new();
        let scene = self.scene(asker.session, Grant(0), &asker.caller, &map.map, &nobody);
        let mut view = View::new(scene, self.parts.store.begin().await?);
        let id = request.id;
        let inode = view.inode(id).await?;
        open_kind(id, &inode)?;
        permission::check_owner(id, &inode, &asker.caller, "have its mirrors made")?;
        let limit = (request.limit as usize).clamp(1, crate::ops::EXTENTS_MAX);
        let page = chunks::page(&mut view, id, &inode, request.offset, limit).await?;
        view.commit().await?.durable.await?;
        let mut reply = ResyncFileReply { covered: page.covered, chunks: 0, lacking: vec![] };
        for extent in &page.extents {
            let Content::Chunk(chunk) = &extent.content else { continue };
            reply.chunks += 1;
            let copies = lacks(&map.map, chunk.chunk, &chunk.places, copies_of(&inode));
            if copies > 0 {
                reply.lacking.push(LackingChunk {
                    offset: extent.offset,
                    chunk: chunk.chunk,
                    length: chunk.length,
                    copies: copies as u32,
                    trouble: self.hurry(chunk.chunk, id),
                });
            }
        }
        self.mirrors.woken.notify_one();
        Ok(reply)
    }

    /// Puts a chunk before others, unless it was just tried; tells why that failed.
    fn hurry(&self, chunk: ChunkId, file: FileId) -> Option<Trouble> {
        let mut state = self.mirrors.lock();
        if state.urgent.len() < QUEUE_MAX {
            state.urgent.insert(chunk, file);
        }
        state.troubles.get(&chunk).map(|rest| rest.trouble.clone())
    }
}

/// Notes those chunks of a commit that have not all their copies yet.
pub fn note(view: &mut View<'_>, id: FileId, inode: &Inode, extents: &[Extent]) {
    let mirrors = copies_of(inode);
    for extent in extents {
        let Content::Chunk(chunk) = &extent.content else { continue };
        let is_stale = chunk.places.iter().any(|place| place.is_stale);
        if is_stale || osts(&chunk.places).len() < mirrors {
            let lacking = Lacking { since: view.scene.now, file: id, next: 0 };
            view.put(key::lacking_chunk(chunk.chunk), &lacking);
        }
    }
}

fn copies_of(inode: &Inode) -> usize {
    inode.layout.as_ref().map_or(1, |layout| layout.mirrors.into())
}

fn osts(places: &[Place]) -> BTreeSet<OstIndex> {
    places.iter().map(|place| place.ost).collect()
}

/// How many copies are to be made: those that the layout wants and nobody has, or those that are
/// marked where they can be made.
fn lacks(map: &FederationMap, chunk: ChunkId, places: &[Place], mirrors: usize) -> usize {
    let good = places.iter().filter(|place| !place.is_stale).map(|place| place.ost);
    let good: BTreeSet<OstIndex> = good.collect();
    let marked = places.iter().filter(|place| can_be_filled(map, chunk, place)).count();
    mirrors.saturating_sub(good.len()).max(marked)
}

/// Is it a place that can be filled again? Adopted files are not ours to write, and an OST that is
/// not active takes nothing new.
fn can_be_filled(map: &FederationMap, chunk: ChunkId, place: &Place) -> bool {
    place.is_stale && place.is_own(chunk) && map.ost(place.ost).is_some_and(|ost| ost.is_active)
}

#[cfg(test)]
mod tests;
