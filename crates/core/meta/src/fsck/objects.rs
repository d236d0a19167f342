//! Objects: every chunk is where its record says, whole; and nothing else is there.
//!
//! Records and objects both come in the order of chunk ids, so they are compared in one walk. What
//! seems wrong is asked again before it is told. Which files are hurt is found in a walk over all
//! extents at the end.

use super::Check;
use super::repair::Repair;
use crate::collector::strays::before_first;
use crate::error::Result;
use crate::mdt::Mdt;
use std::collections::{BTreeMap, VecDeque};
use tieline_format::Record;
use tieline_format::mdt::{Chunk, StoredContent, StoredExtent, key};
use tieline_kv::Key;
use tieline_types::{ChunkId, ErrorKind, ObjectName, OstIndex, Patchwork, checksum};
use tieline_wire::Failure;
use tieline_wire::data::{ListObjects, ReadObject, StatObject};
use tieline_wire::ledger::Outcome;

/// Objects in one question.
const LISTED: u32 = 1024;
/// Bytes in one read.
const READ: u32 = 4 << 20;
/// Chunks that hurt files are looked for; more are told without their files.
const BAD_MAX: usize = 100_000;

/// The objects of an OST, in order.
struct Listing {
    ost: OstIndex,
    after: Option<ChunkId>,
    page: VecDeque<ChunkId>,
    is_end: bool,
}

/// The chunk records with a place at an OST, in order.
struct Records {
    start: Key,
    page: VecDeque<(ChunkId, Chunk)>,
}

/// What is wrong with chunks: for the files that they hurt.
pub(super) type Bad = BTreeMap<ChunkId, (&'static str, String, Outcome)>;

impl Check {
    pub(super) async fn objects(&mut self) -> Result<()> {
        let map = self.mdt.parts.map.current();
        let mut bad = Bad::new();
        for ost in &map.map.osts {
            self.phase(format!("objects of {}", ost.ost.label()));
            let mut looked = self.objects_of(ost.ost, &mut bad).await?;
            if looked.is_ok() {
                self.phase(format!("adopted files of {}", ost.ost.label()));
                looked = self.adopted_of(ost.ost, &mut bad).await?;
            }
            if let Err(failure) = looked {
                let detail = format!("objects of {} are not checked: {failure}", ost.ost.label());
                self.tell("ost-unreachable", None, detail, Outcome::Left).await?;
            }
        }
        self.phase("hurt files");
        self.hurt_files(bad).await
    }

    /// Compares records and objects. What the OST fails with ends it.
    async fn objects_of(&mut self, ost: OstIndex, bad: &mut Bad) -> Result<Result<(), Failure>> {
        let after = before_first(self.mdt.settings.mdt);
        let mut listing = Listing { ost, after, page: VecDeque::new(), is_end: false };
        let mut records = Records { start: key::kind(b'k'), page: VecDeque::new() };
        loop {
            let object = match listing.peek(&self.mdt).await {
                Ok(object) => object,
                Err(failure) => return Ok(Err(failure)),
            };
            let record = records.peek(self, ost).await?;
            let outcome = match (object, record) {
                (None, None) => return Ok(Ok(())),
                (Some(object), Some((chunk, record))) if object == chunk => {
                    listing.page.pop_front();
                    records.page.pop_front();
                    self.present(ost, chunk, &record, bad).await?
                }
                (Some(object), other)
                    if other.as_ref().is_none_or(|(chunk, _)| object < *chunk) =>
                {
                    listing.page.pop_front();
                    self.unknown(ost, object).await?
                }
                (_, Some((chunk, record))) => {
                    records.page.pop_front();
                    self.present(ost, chunk, &record, bad).await?
                }
                (Some(_), None) => Ok(()),
            };
            if let Err(failure) = outcome {
                return Ok(Err(failure));
            }
        }
    }

    /// A chunk that should be there: is it, and whole?
    async fn present(
        &mut self,
        ost: OstIndex,
        chunk: ChunkId,
        record: &Chunk,
        bad: &mut Bad,
    ) -> Result<Result<(), Failure>> {
        self.job.check_asked()?;
        self.job.state().looked_at += 1;
        let fault = match self.fault(ost, chunk, record).await {
            Ok(None) => return Ok(Ok(())),
            Ok(Some(fault)) => fault,
            Err(failure) => return Ok(Err(failure)),
        };
        self.hurt((ost, chunk), fault, bad).await.map(Ok)
    }

    /// Notes what is wrong with a chunk at an OST, for the files that it hurts.
    pub(super) async fn hurt(
        &mut self,
        (ost, chunk): (OstIndex, ChunkId),
        (what, why): (&'static str, String),
        bad: &mut Bad,
    ) -> Result<()> {
        // Freed and deleted meanwhile?
        let now = self.mdt.parts.store.begin().await?.read(&[key::chunk(chunk)]).await;
        let now = now.ok().and_then(|values| values.into_iter().next().flatten());
        let now = now.and_then(|value| Chunk::from_bytes(&value).ok());
        let Some(now) = now.filter(|now| now.references > 0) else { return Ok(()) };
        let detail = format!("chunk {chunk} at {}: {why}", ost.label());
        let has_other = now.places.iter().any(|place| place.ost != ost && !place.is_stale);
        if has_other {
            let detail = format!("{detail}; other copies are there");
            self.mend(what, None, detail, Repair::Stale(chunk, ost)).await?;
        } else if self.is_scattered(chunk, &now).await {
            let detail = format!("{detail}; each block is good in one copy or the other");
            let outcome = self.mend_scattered(ost, chunk).await?;
            self.tell(what, None, detail, outcome).await?;
        } else if bad.len() < BAD_MAX {
            bad.insert(chunk, (what, detail, Outcome::Lost));
        } else {
            self.tell(what, None, detail, Outcome::Lost).await?;
        }
        Ok(())
    }

    /// Is no copy whole, but each block good in one of them?
    async fn is_scattered(&mut self, chunk: ChunkId, record: &Chunk) -> bool {
        let places: Vec<_> = record.places.iter().filter(|place| place.is_own(chunk)).collect();
        if places.len() < 2 {
            return false;
        }
        let mut hasher = blake3::Hasher::new();
        for offset in (0..record.length).step_by(READ as usize) {
            let range = offset..(offset + u64::from(READ)).min(record.length);
            let length = (range.end - range.start) as u32;
            let mut patchwork = Patchwork::new(&range, record.length);
            for place in &places {
                let (ost, object) = (place.ost, place.object.clone());
                let ask = ReadObject { ost, object, offset, length, capability: None };
                // Who cannot be asked has nothing to give.
                if let Ok((reply, bytes)) = self.mdt.parts.objects.read(ask).await {
                    patchwork.add(reply.offset, &bytes, &reply.checks);
                }
            }
            let Some((_, bytes)) = patchwork.finish() else { return false };
            hasher.update(&bytes);
        }
        record.digest.is_none_or(|digest| digest.0 == *hasher.finalize().as_bytes())
    }

    /// Has such a chunk put together, if that was asked for.
    async fn mend_scattered(&mut self, ost: OstIndex, chunk: ChunkId) -> Result<Outcome> {
        if !self.job.is_repair {
            return Ok(Outcome::Left);
        }
        // The other copy is made whole first; then this one is marked, to be made from that.
        Ok(match self.mdt.check_place(chunk, ost).await? {
            true => Outcome::Repaired,
            false => Outcome::Left,
        })
    }

    /// What is wrong with an object, if something is.
    async fn fault(
        &mut self,
        ost: OstIndex,
        chunk: ChunkId,
        record: &Chunk,
    ) -> Result<Option<(&'static str, String)>, Failure> {
        let objects = self.mdt.parts.objects.clone();
        let wrong = |why: String| Ok(Some(("wrong-chunk", why)));
        let stat = match objects.stat(StatObject { ost, chunk }).await {
            Ok(stat) => stat,
            Err(failure) if failure.kind == ErrorKind::Gone => {
                return Ok(Some(("missing-chunk", "it is not there".to_owned())));
            }
            Err(failure) if failure.kind == ErrorKind::Corrupt => return wrong(failure.detail),
            Err(failure) => return Err(failure),
        };
        if stat.length != record.length {
            return wrong(format!("it has {} bytes, not {}", stat.length, record.length));
        }
        if let Some(checks) = &record.checks {
            let bytes: Vec<u8> = checks.iter().flat_map(|check| check.to_le_bytes()).collect();
            if checksum::crc32c(&bytes) != stat.check {
                return wrong("its checksums are others".to_owned());
            }
        }
        if !self.job.reads_bytes {
            return Ok(None);
        }
        let mut hasher = blake3::Hasher::new();
        let mut offset = 0;
        while offset < record.length {
            let length = (record.length - offset).min(READ.into()) as u32;
            let object = ObjectName::Chunk(chunk);
            let ask = ReadObject { ost, object, offset, length, capability: None };
            let (reply, bytes) = match objects.read(ask).await {
                Ok(read) => read,
                Err(failure) if failure.kind == ErrorKind::Corrupt => return wrong(failure.detail),
                Err(failure) => return Err(failure),
            };
            if let Some(block) = checksum::first_mismatch(&bytes, &reply.checks) {
                let at = reply.offset + (block * checksum::BLOCK) as u64;
                return wrong(format!("its bytes are damaged from {at} on"));
            }
            if bytes.len() < length as usize {
                return wrong(format!("it ends at byte {}", offset + bytes.len() as u64));
            }
            hasher.update(bytes.get(..length as usize).unwrap_or_default());
            offset += u64::from(length);
        }
        match &record.digest {
            Some(digest) if digest.0 != *hasher.finalize().as_bytes() => {
                wrong("its digest is another".to_owned())
            }
            _ => Ok(None),
        }
    }

    /// An object that no record of the snapshot places there.
    async fn unknown(&mut self, ost: OstIndex, chunk: ChunkId) -> Result<Result<(), Failure>> {
        self.job.check_asked()?;
        self.job.state().looked_at += 1;
        if chunk.mdt != self.mdt.settings.mdt || self.mdt.sessions.is_grant(chunk.grant) {
            // Another MDT's, or not committed yet.
            return Ok(Ok(()));
        }
        if self.mdt.unknown_chunks(vec![chunk]).await?.is_empty() {
            return Ok(Ok(()));
        }
        let outcome = if self.job.is_repair {
            match self.mdt.parts.objects.remove(ost, vec![chunk]).await {
                Ok(()) => Outcome::Repaired,
                Err(failure) => return Ok(Err(failure)),
            }
        } else {
            Outcome::Left
        };
        let detail = format!("object {chunk} at {} belongs to nothing", ost.label());
        self.tell("orphan-object", None, detail, outcome).await?;
        Ok(Ok(()))
    }

    /// Tells of every file that has bytes in a bad chunk, and is not deleted.
    async fn hurt_files(&mut self, mut bad: Bad) -> Result<()> {
        if bad.is_empty() {
            return Ok(());
        }
        let deleted = self.ids_of(b'd').await?;
        let mut told = std::collections::BTreeSet::new();
        let (mut start, end) = (key::kind(b't'), key::after(&key::kind(b't')));
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                break;
            }
            for (key, value) in page {
                let (Some(id), Some(at)) = (key::file_id(&key), key::extent_offset(&key)) else {
                    continue;
                };
                let Ok(extent) = StoredExtent::from_bytes(&value) else { continue };
                let StoredContent::Chunk { chunk, .. } = extent.content else { continue };
                let Some((what, detail, outcome)) = bad.get(&chunk).cloned() else { continue };
                told.insert(chunk);
                // Who deleted it is through with it, and its time runs out by itself.
                if deleted.contains(&id) {
                    continue;
                }
                let detail = format!("bytes {at} to {}: {detail}", at + extent.length);
                self.tell(what, Some(id), detail, outcome).await?;
            }
        }
        bad.retain(|chunk, _| !told.contains(chunk));
        for (what, detail, outcome) in bad.into_values() {
            self.tell(what, None, detail, outcome).await?;
        }
        Ok(())
    }
}

impl Listing {
    async fn peek(&mut self, mdt: &Mdt) -> Result<Option<ChunkId>, Failure> {
        let (mdt, objects) = (mdt.settings.mdt, &mdt.parts.objects);
        while self.page.is_empty() && !self.is_end {
            let ask = ListObjects { ost: self.ost, after: self.after, limit: LISTED };
            let reply = objects.list(ask).await?;
            self.after = reply.chunks.last().copied().or(self.after);
            self.is_end = reply.is_end || self.after.is_some_and(|last| last.mdt > mdt);
            self.page = reply.chunks.into_iter().filter(|chunk| chunk.mdt == mdt).collect();
        }
        Ok(self.page.front().copied())
    }
}

impl Records {
    async fn peek(&mut self, check: &mut Check, ost: OstIndex) -> Result<Option<(ChunkId, Chunk)>> {
        let end = key::after(&key::kind(b'k'));
        while self.page.is_empty() {
            let page = check.page(&mut self.start, &end).await?;
            if page.is_empty() {
                return Ok(None);
            }
            for (key, value) in page {
                let (Some(id), Ok(chunk)) = (key::chunk_id(&key), Chunk::from_bytes(&value)) else {
                    continue;
                };
                let is_here = chunk.places.iter().any(|place| {
                    place.ost == ost && place.object == ObjectName::Chunk(id) && !place.is_stale
                });
                if is_here && chunk.references > 0 {
                    self.page.push_back((id, chunk));
                }
            }
        }
        Ok(self.page.front().cloned())
    }
}
