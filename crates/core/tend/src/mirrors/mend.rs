//! Looking into a place, and filling one: what the worker does with a chunk.

use super::{REST, osts};
use crate::Parts;
use crate::error::{Result, decode};
use std::sync::Arc;
use std::time::Duration;
use tieline_format::Record;
use tieline_format::mdt::{Chunk, Inode, Lacking, key};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{
    ErrorKind, FileId, GrantedId, Layout, ObjectName, OstIndex, OstPlace, Retry, Version,
};
use tieline_wire::Failure;
use tieline_wire::data::ObjectOwner;
use tieline_wire::mirrors::{FetchChunk, FetchChunkReply, VerifyObject, VerifyObjectReply};

/// Reading a chunk of the largest size from a slow disk.
const VERIFY_PATIENCE: Duration = Duration::from_secs(60);
/// A fetch may take so long, and for each byte as long as over 2 Mbit/s.
const FETCH_PATIENCE: Duration = Duration::from_secs(30);
const FETCH_BYTES_PER_SECOND: u64 = 256 << 10;
/// An OSS that was silent for longer is not asked: each question would hold a worker up.
const HEARD_WITHIN: Duration = Duration::from_secs(15);

/// A chunk as it is, and what its file wants.
struct Seen {
    chunk: Chunk,
    file: FileId,
    layout: Layout,
    lacks: usize,
}

/// Looks at the copies of chunks, and makes them again.
pub struct Copyist {
    pub parts: Arc<Parts>,
}

impl Copyist {
    /// Has an OSS look at a place that somebody complained of; marks it if they were right. Says
    /// whether there may be something to mend: not where the last copy is bad.
    pub async fn check_place(&self, id: GrantedId, ost: OstIndex) -> Result<bool> {
        let Some(seen) = self.change_chunk(id, None, |_| ()).await? else { return Ok(false) };
        let named = |place: &&OstPlace| place.ost == ost && !place.is_stale;
        let Some(place) = seen.chunk.places.iter().find(named).cloned() else { return Ok(true) };
        let (object, offset, length) = (place.object.clone(), place.offset, place.length);
        let message = VerifyObject { ost, object, offset, length, capability: None };
        let patience = VERIFY_PATIENCE;
        let damage = match self.parts.mender.verify(message, patience).await {
            Ok(reply) => damage(&seen.chunk, &place, &reply),
            Err(failure) => match failure.kind {
                ErrorKind::Gone | ErrorKind::Corrupt => Some(failure.detail),
                _ => {
                    let label = ost.label();
                    tracing::info!(chunk = %id, ost = label, %failure, "copy is not verified");
                    None
                }
            },
        };
        let Some(damage) = damage else { return Ok(true) };
        METRICS.copies_bad.with_label_values(&[&ost.label()]).inc();
        let mut is_marked = self.mark(id, ost).await?;
        if !is_marked {
            // What is damaged here may be good where other blocks are: that makes another whole.
            self.mend(id, None).await?;
            is_marked = self.mark(id, ost).await?;
        }
        let (label, site) = (ost.label(), self.site(ost));
        if !is_marked && let ObjectName::External { path, .. } = &place.object {
            self.parts.mirrors.hopeless(id, ost, damage.clone());
            tracing::error!(
                chunk = %id, ost = label, site, path, damage,
                "an adopted file does not match its checksum: restore it where it lies, or, if it \
                 is to be as it is now, `tieline import --in-place --compare`"
            );
        } else if !is_marked {
            self.parts.mirrors.hopeless(id, ost, damage.clone());
            tracing::error!(
                chunk = %id, ost = label, site, damage,
                "the last copy of a chunk does not match its checksum: restore the file"
            );
        } else {
            tracing::warn!(
                chunk = %id, ost = label, site, damage,
                "a copy does not match its checksum: read from its mirrors, to be made again"
            );
        }
        Ok(is_marked)
    }

    /// Marks a place as bad, unless it is the last that is not.
    async fn mark(&self, id: GrantedId, ost: OstIndex) -> Result<bool> {
        let mut is_marked = false;
        let marked = self.change_chunk(id, None, |chunk| {
            is_marked = chunk.places.iter().any(|place| place.ost != ost && !place.is_stale);
            let bad = chunk.places.iter_mut().filter(|place| place.ost == ost && is_marked);
            bad.for_each(|place| place.is_stale = true);
        });
        marked.await?;
        Ok(is_marked)
    }

    /// Gives a chunk the copies that it lacks. Says how many bytes were fetched.
    pub(super) async fn mend(&self, id: GrantedId, file: Option<FileId>) -> Result<u64> {
        let Some(seen) = self.change_chunk(id, file, |_| ()).await? else { return Ok(0) };
        if seen.lacks == 0 {
            self.parts.mirrors.mended(id);
            return Ok(0);
        }
        let seen = self.add_places(id, seen).await?;
        let map = self.parts.map.current();
        let mut bytes = 0;
        let wanted = seen.chunk.places.iter().filter(|place| map.map.can_be_filled(id, place));
        for place in wanted.cloned() {
            let (ost, mirrors) = (place.ost, &self.parts.mirrors);
            let from = seen.sources(ost);
            if mirrors.is_away(ost) || !self.parts.mdt.is_heard(ost, HEARD_WITHIN) {
                let reason = format!("the OSS of {} does not answer", self.at_site(ost));
                mirrors.trouble(id, ost, reason, REST);
                continue;
            }
            match self.fill(id, &seen, &place, from.clone()).await {
                Ok(reply) => {
                    bytes += if reply.is_fetched { seen.chunk.length } else { 0 };
                    self.filled(id, &seen, &place, &reply).await?;
                }
                Err(failure) => self.not_filled(id, ost, &from, failure),
            }
        }
        Ok(bytes)
    }

    /// Chooses places for copies that are nowhere yet.
    async fn add_places(&self, id: GrantedId, seen: Seen) -> Result<Seen> {
        let map = self.parts.map.current();
        let there = osts(&seen.chunk.places);
        let counted = |place: &&OstPlace| !place.is_stale || map.map.can_be_filled(id, place);
        let counted: Vec<OstPlace> = seen.chunk.places.iter().filter(counted).cloned().collect();
        let count = usize::from(seen.layout.mirrors).saturating_sub(osts(&counted).len());
        if count == 0 {
            return Ok(seen);
        }
        let there: Vec<OstIndex> = there.into_iter().collect();
        let more = self.parts.mdt.more_places(&seen.layout, &there, count);
        if more.len() < count {
            let ost = there.first().copied().unwrap_or_default();
            let reason = format!("no OST takes another copy beside {}", self.at_site(ost));
            self.parts.mirrors.trouble(id, ost, reason, REST);
        }
        if more.is_empty() {
            return Ok(seen);
        }
        let changed = self.change_chunk(id, Some(seen.file), |chunk| {
            for &ost in &more {
                if !osts(&chunk.places).contains(&ost) {
                    let (object, length) = (ObjectName::Chunk(id), chunk.length);
                    chunk.places.push(OstPlace { ost, object, offset: 0, length, is_stale: true });
                }
            }
        });
        Ok(changed.await?.unwrap_or(seen))
    }

    async fn fill(
        &self,
        id: GrantedId,
        seen: &Seen,
        place: &OstPlace,
        from: Vec<OstPlace>,
    ) -> Result<FetchChunkReply, Failure> {
        let length = seen.chunk.length;
        let owner =
            ObjectOwner { file: seen.file, offset: 0, version: Version(0), path: Vec::new() };
        let digest = seen.chunk.digest;
        let ost = place.ost;
        let capability = self.parts.mdt.copy_capability(ost, seen.file, &from);
        let message = FetchChunk { ost, chunk: id, length, digest, from, owner, capability };
        let patience = FETCH_PATIENCE + Duration::from_secs(length / FETCH_BYTES_PER_SECOND);
        self.parts.mender.fetch(message, patience).await
    }

    async fn filled(
        &self,
        id: GrantedId,
        seen: &Seen,
        place: &OstPlace,
        reply: &FetchChunkReply,
    ) -> Result<()> {
        self.change_chunk(id, Some(seen.file), |chunk| {
            let own = chunk.places.iter_mut().filter(|own| own.ost == place.ost);
            own.for_each(|place| place.is_stale = false);
        })
        .await?;
        let label = place.ost.label();
        METRICS.copies_made.with_label_values(&[&label]).inc();
        self.parts.mirrors.made();
        self.parts.mirrors.mended(id);
        for &bad in &reply.bad {
            self.parts.mirrors.suspect(id, bad);
        }
        let how = if reply.is_fetched { "fetched" } else { "found there" };
        tracing::info!(chunk = %id, ost = label, how, "a copy is whole again");
        Ok(())
    }

    fn not_filled(&self, id: GrantedId, ost: OstIndex, from: &[OstPlace], failure: Failure) {
        let (mirrors, label) = (&self.parts.mirrors, ost.label());
        tracing::info!(chunk = %id, ost = label, %failure, "a copy is not made yet");
        match failure.kind {
            // None of the sources was good: each is looked at.
            ErrorKind::Corrupt | ErrorKind::Gone => {
                from.iter().for_each(|place| mirrors.suspect(id, place.ost));
            }
            kind if kind.retry() == Retry::AfterReconnect || kind == ErrorKind::Timeout => {
                mirrors.set_away(ost);
            }
            _ => {}
        }
        let reason = format!("{}: {}", self.at_site(ost), failure.detail);
        mirrors.trouble(id, ost, reason, REST);
    }

    /// Changes a chunk's record, and keeps the note of what it lacks in step. `None`: there is no
    /// such chunk any more.
    async fn change_chunk(
        &self,
        id: GrantedId,
        file: Option<FileId>,
        mut change: impl FnMut(&mut Chunk),
    ) -> Result<Option<Seen>> {
        loop {
            let mut transaction = self.parts.store.begin().await?;
            let keys = [key::chunk(id), key::lacking_chunk(id)];
            let mut values = transaction.read(&keys).await?.into_iter();
            let old = values.next().flatten();
            let old: Option<Chunk> =
                old.map(|value| decode(&value, || id.to_string())).transpose()?;
            let noted = values.next().flatten();
            let noted: Option<Lacking> =
                noted.map(|value| decode(&value, || id.to_string())).transpose()?;
            let file = file.or(noted.as_ref().map(|noted| noted.file)).unwrap_or_default();
            let layout =
                match transaction.read(&[key::inode(file)]).await?.into_iter().next().flatten() {
                    Some(value) => decode::<Inode>(&value, || file.to_string())?.layout,
                    None => None,
                };
            let layout = layout.unwrap_or_default();
            let seen = old.filter(|old| old.references > 0).map(|old| {
                let mut chunk = old.clone();
                change(&mut chunk);
                if chunk != old {
                    transaction.put(key::chunk(id), chunk.to_bytes());
                }
                let map = self.parts.map.current();
                let mirrors = layout.mirrors.into();
                // What tape alone has is brought from there.
                let is_here = chunk.tape.is_none();
                let lacks = map.map.copies_lacking(id, &chunk.places, mirrors);
                let lacks = if is_here { lacks } else { 0 };
                Seen { chunk, file, layout, lacks }
            });
            let is_lacking = seen.as_ref().is_some_and(|seen| seen.lacks > 0);
            match (is_lacking, noted.is_some()) {
                (true, false) => {
                    let since = self.parts.now();
                    let lacking = Lacking { since, file, next: 0 };
                    transaction.put(key::lacking_chunk(id), lacking.to_bytes());
                }
                (false, true) => transaction.delete(key::lacking_chunk(id)),
                _ => {}
            }
            match transaction.commit().await {
                Ok(committed) => {
                    committed.durable.await?;
                    return Ok(seen);
                }
                Err(tieline_kv::Error::Conflict) => METRICS.conflicts.inc(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn site(&self, ost: OstIndex) -> String {
        let map = self.parts.map.current();
        map.map.ost(ost).map_or_else(String::new, |ost| ost.site.to_string())
    }

    fn at_site(&self, ost: OstIndex) -> String {
        format!("{} at {}", ost.label(), self.site(ost))
    }
}

impl Seen {
    /// Where an OST may fetch from: good places first, and those that may have some good blocks.
    fn sources(&self, ost: OstIndex) -> Vec<OstPlace> {
        let others = self.chunk.places.iter().filter(|place| place.ost != ost);
        let mut sources: Vec<OstPlace> = others.cloned().collect();
        sources.sort_by_key(|place| place.is_stale);
        sources
    }
}

/// What is wrong with a place, if something is.
fn damage(chunk: &Chunk, place: &OstPlace, reply: &VerifyObjectReply) -> Option<String> {
    if reply.length != place.length {
        return Some(format!("{} of {} bytes are there", reply.length, place.length));
    }
    if reply.bad_blocks > 0 {
        let first = reply.first_bad.unwrap_or_default();
        let count = reply.bad_blocks;
        return Some(format!("{count} damaged blocks of 4 KiB, the first at {first}"));
    }
    let is_other = chunk.digest.is_some_and(|digest| digest != reply.digest);
    // A digest is of the whole chunk; every place holds it whole.
    is_other.then(|| "the chunk's digest is another".to_owned())
}
