//! Objects: every chunk is where its record says, whole; and nothing else is there.
//!
//! Records and objects both come in the order of chunk ids, so they are compared in one walk. What
//! seems wrong is asked again before it is told. Which files are hurt, and where in them, is found
//! in a walk over all extents at the end.
//!
//! An object that cannot be opened is told by itself; many in a row are their OST's matter. What is
//! no object at all is told, and stays.

use super::Check;
use crate::Parts;
use crate::collector::{before_first, unknown_chunks};
use crate::error::Result;
use crate::mirrors::Copyist;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use tieline_format::Record;
use tieline_format::mdt::{Chunk, StoredContent, StoredExtent, key};
use tieline_kv::Key;
use tieline_types::background::Repair;
use tieline_types::{
    Algorithm, Encoding, ErrorKind, GrantedId, Hasher, MdtIndex, ObjectName, OstIndex, Patchwork,
    Shown, checksum,
};
use tieline_wire::Failure;
use tieline_wire::data::{ForeignName, ListObjects, ReadObject, StatObject};
use tieline_wire::ledger::Outcome;

/// Objects in one question.
const LISTED: u32 = 1024;
/// Bytes in one read.
const READ: u32 = 4 << 20;
/// Chunks that hurt files are looked for; more are told without their files.
const BAD_MAX: usize = 100_000;
/// Objects that cannot be opened, one after the other, before it is their OST that fails.
const UNREADABLE_MAX: usize = 16;
/// Ranges of bytes that are told of one extent.
const RANGES_TOLD: usize = 8;

/// The objects of an OST, in order.
struct Listing {
    ost: OstIndex,
    after: Option<GrantedId>,
    page: VecDeque<GrantedId>,
    is_end: bool,
    /// What was named and not told yet.
    foreign: Vec<ForeignName>,
}

/// The chunk records with a place at an OST, in order.
struct Records {
    start: Key,
    page: VecDeque<(GrantedId, Chunk)>,
}

/// What is wrong with an object.
#[derive(Clone)]
pub(super) struct Fault {
    pub what: &'static str,
    pub why: String,
    /// Which of the chunk's bytes are damaged; all, if that is not known.
    pub ranges: Vec<Range<u64>>,
}

/// Objects that could not be opened, one after the other, and why.
type Unread = Vec<(GrantedId, String)>;

/// What is wrong with chunks: for the files that they hurt.
pub(super) type Bad = BTreeMap<GrantedId, (Fault, Outcome)>;

impl Check {
    pub(super) async fn objects(&mut self) -> Result<()> {
        let map = self.parts.map.current();
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
        let after = before_first(self.parts.index);
        let mut listing =
            Listing { ost, after, page: VecDeque::new(), is_end: false, foreign: vec![] };
        let mut records = Records { start: key::kind(b'k'), page: VecDeque::new() };
        let mut unread = Unread::new();
        loop {
            let object = match listing.peek(&self.parts).await {
                Ok(object) => object,
                Err(failure) => return Ok(Err(failure)),
            };
            for foreign in std::mem::take(&mut listing.foreign) {
                self.foreign(ost, &foreign).await?;
            }
            let record = records.peek(self, ost).await?;
            let outcome = match (object, record) {
                (None, None) => {
                    self.hurt_unread(ost, unread, bad).await?;
                    return Ok(Ok(()));
                }
                (Some(object), Some((chunk, record))) if object == chunk => {
                    listing.page.pop_front();
                    records.page.pop_front();
                    self.present((ost, chunk), &record, &mut unread, bad).await?
                }
                (Some(object), other)
                    if other.as_ref().is_none_or(|(chunk, _)| object < *chunk) =>
                {
                    listing.page.pop_front();
                    self.unknown(ost, object).await?
                }
                (_, Some((chunk, record))) => {
                    records.page.pop_front();
                    self.present((ost, chunk), &record, &mut unread, bad).await?
                }
                (Some(_), None) => Ok(()),
            };
            if let Err(failure) = outcome {
                if unread.len() < UNREADABLE_MAX {
                    self.hurt_unread(ost, unread, bad).await?;
                }
                return Ok(Err(failure));
            }
        }
    }

    /// A chunk that should be there: is it, and whole?
    async fn present(
        &mut self,
        (ost, chunk): (OstIndex, GrantedId),
        record: &Chunk,
        unread: &mut Unread,
        bad: &mut Bad,
    ) -> Result<Result<(), Failure>> {
        self.job.check_asked()?;
        self.job.state().looked_at += 1;
        let fault = match self.fault(ost, chunk, record).await {
            Ok(fault) => fault,
            // Of this one, or of all?
            Err(failure) if failure.kind == ErrorKind::StorageFault => {
                unread.push((chunk, failure.detail.clone()));
                if unread.len() < UNREADABLE_MAX {
                    return Ok(Ok(()));
                }
                let why = failure.detail;
                let detail = format!("{UNREADABLE_MAX} in a row cannot be opened, the last: {why}");
                return Ok(Err(Failure::new(failure.kind, detail)));
            }
            Err(failure) => return Ok(Err(failure)),
        };
        self.hurt_unread(ost, std::mem::take(unread), bad).await?;
        match fault {
            Some(fault) => self.hurt((ost, chunk), fault, bad).await.map(Ok),
            None => Ok(Ok(())),
        }
    }

    /// The OST goes on: these objects alone cannot be opened.
    async fn hurt_unread(&mut self, ost: OstIndex, unread: Unread, bad: &mut Bad) -> Result<()> {
        for (chunk, why) in unread {
            let fault = Fault { what: "unreadable-chunk", why, ranges: vec![] };
            self.hurt((ost, chunk), fault, bad).await?;
        }
        Ok(())
    }

    /// What lies where only objects should. Whose it is nobody knows: it stays.
    async fn foreign(&mut self, ost: OstIndex, foreign: &ForeignName) -> Result<()> {
        let path = Shown(&foreign.path);
        let kind = format!("{:?}", foreign.kind).to_lowercase();
        let ost = ost.label();
        let detail = format!(
            "{path} below the directory of {ost} is no object ({kind}): look what it is, and move \
             it away"
        );
        self.tell("foreign-object", None, detail, Outcome::Left).await
    }

    /// Notes what is wrong with a chunk at an OST, for the files that it hurts.
    pub(super) async fn hurt(
        &mut self,
        (ost, chunk): (OstIndex, GrantedId),
        fault: Fault,
        bad: &mut Bad,
    ) -> Result<()> {
        let what = fault.what;
        // Freed and deleted meanwhile?
        let now = self.parts.store.begin().await?.read(&[key::chunk(chunk)]).await;
        let now = now.ok().and_then(|values| values.into_iter().next().flatten());
        let now = now.and_then(|value| Chunk::from_bytes(&value).ok());
        let Some(now) = now.filter(|now| now.references > 0) else { return Ok(()) };
        let detail = format!("chunk {chunk} at {}: {}", ost.label(), fault.why);
        let has_other = now.places.iter().any(|place| place.ost != ost && !place.is_stale);
        if has_other {
            let detail = format!("{detail}; other copies are there");
            self.mend(what, None, detail, Repair::Stale(chunk, ost)).await?;
        } else if self.is_scattered(chunk, &now).await {
            let detail = format!("{detail}; each block is good in one copy or the other");
            let outcome = self.mend_scattered(ost, chunk).await?;
            self.tell(what, None, detail, outcome).await?;
        } else if bad.len() < BAD_MAX {
            bad.insert(chunk, (Fault { why: detail, ..fault }, Outcome::Lost));
        } else {
            self.tell(what, None, detail, Outcome::Lost).await?;
        }
        Ok(())
    }

    /// Is no copy whole, but each block good in one of them?
    async fn is_scattered(&mut self, chunk: GrantedId, record: &Chunk) -> bool {
        let places: Vec<_> = record.places.iter().filter(|place| place.is_own(chunk)).collect();
        if places.len() < 2 {
            return false;
        }
        let mut hasher = Hasher::new(Algorithm::Blake3);
        for offset in (0..record.length).step_by(READ as usize) {
            let range = offset..(offset + u64::from(READ)).min(record.length);
            let length = (range.end - range.start) as u32;
            let mut patchwork = Patchwork::new(&range, record.length);
            for place in &places {
                let (ost, object) = (place.ost, place.object.clone());
                let ask =
                    ReadObject { ost, object, offset, length, capability: None, hashed: None };
                // Who cannot be asked has nothing to give.
                if let Ok((reply, bytes)) = self.parts.objects.read(ask).await {
                    patchwork.add(reply.offset, &bytes, &reply.checks);
                }
            }
            let Some((_, bytes)) = patchwork.finish() else { return false };
            hasher.update(&bytes);
        }
        record.digest.is_none_or(|digest| digest == hasher.finish(Encoding::Plain))
    }

    /// Has such a chunk put together, if that was asked for.
    async fn mend_scattered(&mut self, ost: OstIndex, chunk: GrantedId) -> Result<Outcome> {
        if !self.job.is_repair {
            return Ok(Outcome::Left);
        }
        let copyist = Copyist { parts: self.parts.clone() };
        // The other copy is made whole first; then this one is marked, to be made from that.
        Ok(match copyist.check_place(chunk, ost).await? {
            true => Outcome::Repaired,
            false => Outcome::Left,
        })
    }

    /// What is wrong with an object, if something is.
    async fn fault(
        &mut self,
        ost: OstIndex,
        chunk: GrantedId,
        record: &Chunk,
    ) -> Result<Option<Fault>, Failure> {
        let objects = self.parts.objects.clone();
        let wrong = |why: String| Ok(Some(Fault { what: "wrong-chunk", why, ranges: vec![] }));
        let stat = match objects.stat(StatObject { ost, chunk }).await {
            Ok(stat) => stat,
            Err(failure) if failure.kind == ErrorKind::Gone => {
                let (what, why) = ("missing-chunk", "it is not there".to_owned());
                return Ok(Some(Fault { what, why, ranges: vec![] }));
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
        let mut hasher = Hasher::new(Algorithm::Blake3);
        let mut damaged = Ranges::default();
        let mut offset = 0;
        while offset < record.length {
            let length = (record.length - offset).min(READ.into()) as u32;
            let object = ObjectName::Chunk(chunk);
            let ask = ReadObject { ost, object, offset, length, capability: None, hashed: None };
            let (reply, bytes) = match objects.read(ask).await {
                Ok(read) => read,
                Err(failure) if failure.kind == ErrorKind::Corrupt => return wrong(failure.detail),
                Err(failure) => return Err(failure),
            };
            damaged.add(reply.offset, &bytes, &reply.checks);
            if bytes.len() < length as usize {
                return wrong(format!("it ends at byte {}", offset + bytes.len() as u64));
            }
            hasher.update(bytes.get(..length as usize).unwrap_or_default());
            offset += u64::from(length);
        }
        if !damaged.0.is_empty() {
            let (why, ranges) = ("its bytes are damaged".to_owned(), damaged.0);
            return Ok(Some(Fault { what: "wrong-chunk", why, ranges }));
        }
        match &record.digest {
            Some(digest) if *digest != hasher.finish(Encoding::Plain) => {
                wrong("its digest is another".to_owned())
            }
            _ => Ok(None),
        }
    }

    /// An object that no record of the snapshot places there.
    async fn unknown(&mut self, ost: OstIndex, chunk: GrantedId) -> Result<Result<(), Failure>> {
        self.job.check_asked()?;
        self.job.state().looked_at += 1;
        if chunk.mdt != self.parts.index || self.parts.mdt.is_grant(chunk.grant) {
            // Another MDT's, or not committed yet.
            return Ok(Ok(()));
        }
        if unknown_chunks(&self.parts, vec![chunk]).await?.is_empty() {
            return Ok(Ok(()));
        }
        let outcome = if self.job.is_repair {
            match self.parts.objects.remove(ost, vec![chunk]).await {
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
                let StoredContent::Chunk { chunk, skip } = extent.content else { continue };
                let Some((fault, outcome)) = bad.get(&chunk).cloned() else { continue };
                let Some(bytes) = fault.within(at, skip..skip.saturating_add(extent.length)) else {
                    continue;
                };
                told.insert(chunk);
                // Who deleted it is through with it, and its time runs out by itself.
                if deleted.contains(&id) {
                    continue;
                }
                let detail = format!("bytes {bytes}: {}", fault.why);
                self.tell(fault.what, Some(id), detail, outcome).await?;
            }
        }
        bad.retain(|chunk, _| !told.contains(chunk));
        for (fault, outcome) in bad.into_values() {
            self.tell(fault.what, None, fault.why, outcome).await?;
        }
        Ok(())
    }
}

impl Fault {
    /// Which bytes of a file are damaged whose offset `at` is where a piece of the chunk begins;
    /// none, if no damage lies in that piece.
    fn within(&self, at: u64, piece: Range<u64>) -> Option<String> {
        let place = |chunk: u64| at.saturating_add(chunk - piece.start);
        if self.ranges.is_empty() {
            return Some(format!("{at} to {}", place(piece.end)));
        }
        let hit = self.ranges.iter().filter_map(|range| {
            let (from, to) = (range.start.max(piece.start), range.end.min(piece.end));
            (from < to).then(|| format!("{} to {}", place(from), place(to)))
        });
        let hit: Vec<String> = hit.collect();
        let more = hit.len().saturating_sub(RANGES_TOLD);
        let told = hit.get(..hit.len() - more).filter(|told| !told.is_empty())?.join(", ");
        Some(if more > 0 { format!("{told} and {more} ranges more") } else { told })
    }
}

/// Damaged ranges of a chunk, in order.
#[derive(Default)]
struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Compares what was read at `offset` with its checks.
    fn add(&mut self, offset: u64, bytes: &[u8], checks: &[u32]) {
        let blocks = bytes.chunks(checksum::BLOCK);
        let is_unsure = blocks.len() != checks.len();
        let mut start = offset;
        for (number, block) in blocks.enumerate() {
            let end = start + block.len() as u64;
            let is_good = checks.get(number) == Some(&checksum::crc32c(block));
            if is_unsure || !is_good {
                match self.0.last_mut().filter(|last| last.end == start) {
                    Some(last) => last.end = end,
                    None => self.0.push(start..end),
                }
            }
            start = end;
        }
    }
}

/// Does an MDT tell of it? What lies above the directories of all is the first one's to tell.
fn is_of(foreign: &ForeignName, mdt: MdtIndex) -> bool {
    let mut parts = foreign.path.split(|byte| *byte == b'/').skip(1);
    let own = format!("{:04x}", mdt.0);
    match (parts.next(), parts.next()) {
        (Some(top), Some(_)) => top == own.as_bytes(),
        _ => mdt == MdtIndex(0),
    }
}

impl Listing {
    async fn peek(&mut self, parts: &Parts) -> Result<Option<GrantedId>, Failure> {
        let (mdt, objects) = (parts.index, &parts.objects);
        while self.page.is_empty() && !self.is_end {
            let ask = ListObjects { ost: self.ost, after: self.after, limit: LISTED };
            let reply = objects.list(ask).await?;
            self.after = reply.chunks.last().copied().or(self.after);
            self.is_end = reply.is_end || self.after.is_some_and(|last| last.mdt > mdt);
            let foreign = reply.foreign.unwrap_or_default();
            self.foreign.extend(foreign.into_iter().filter(|foreign| is_of(foreign, mdt)));
            self.page = reply.chunks.into_iter().filter(|chunk| chunk.mdt == mdt).collect();
        }
        Ok(self.page.front().copied())
    }
}

impl Records {
    async fn peek(
        &mut self,
        check: &mut Check,
        ost: OstIndex,
    ) -> Result<Option<(GrantedId, Chunk)>> {
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
