//! Extents, attributes and chunk records: each belongs to something, and counts are what they
//! count.
//!
//! References are counted for a share of the chunks at a time, so that memory stays bounded.

use super::Check;
use crate::error::Result;
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::Record;
use tieline_format::mdt::{Archived, Chunk, Inode, StoredContent, StoredExtent, key};
use tieline_types::background::Repair;
use tieline_types::{FileId, GrantedId};
use tieline_wire::ledger::Outcome;

/// Chunks whose references are counted at once: some 100 MB.
const SHARE: u64 = 1 << 20;

/// The file whose extents are looked at.
struct OfFile {
    id: FileId,
    inode: Option<Inode>,
    end: u64,
    stored: u64,
}

impl Check {
    pub(super) async fn bytes(&mut self) -> Result<()> {
        let deleted = self.ids_of(b'd').await?;
        self.phase("attributes");
        self.attributes(&deleted).await?;
        self.phase("extents");
        let chunks = self.extents(&deleted).await?;
        let freed = self.freed().await?;
        let shares = chunks.div_ceil(SHARE).max(1);
        for share in 0..shares {
            self.phase("references");
            self.references(&freed, (share, shares)).await?;
        }
        Ok(())
    }

    /// Files that are kept for undeleting: theirs is what they had.
    pub(super) async fn ids_of(&mut self, kind: u8) -> Result<BTreeSet<FileId>> {
        let (mut start, end) = (key::kind(kind), key::after(&key::kind(kind)));
        let mut ids = BTreeSet::new();
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                return Ok(ids);
            }
            ids.extend(
                page.iter().filter_map(|(key, _)| key::deletion_parts(key)).map(|(_, id)| id),
            );
        }
    }

    async fn freed(&mut self) -> Result<BTreeSet<GrantedId>> {
        let (mut start, end) = (key::kind(b'f'), key::after(&key::kind(b'f')));
        let mut freed = BTreeSet::new();
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                return Ok(freed);
            }
            freed
                .extend(page.iter().filter_map(|(key, _)| key::freed_parts(key)).map(|(_, id)| id));
        }
    }

    async fn attributes(&mut self, deleted: &BTreeSet<FileId>) -> Result<()> {
        let (mut start, end) = (key::kind(b'x'), key::after(&key::kind(b'x')));
        let mut last = None;
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                return Ok(());
            }
            for (key, _) in page {
                let Some(id) = key::file_id(&key).filter(|id| last != Some(*id)) else { continue };
                last = Some(id);
                if !deleted.contains(&id) && self.inode(id).await?.is_none() {
                    let detail = format!("attributes of file {id}, which does not exist");
                    self.clear("attributes-without-file", detail, id).await?;
                }
            }
        }
    }

    /// Looks at all extents; says how many chunks there are.
    async fn extents(&mut self, deleted: &BTreeSet<FileId>) -> Result<u64> {
        let (mut start, end) = (key::kind(b't'), key::after(&key::kind(b't')));
        let mut file: Option<OfFile> = None;
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                break;
            }
            for (key, value) in page {
                let (Some(id), Some(at)) = (key::file_id(&key), key::extent_offset(&key)) else {
                    continue;
                };
                if file.as_ref().is_none_or(|file| file.id != id) {
                    self.end_of(file.take()).await?;
                    let inode = self.inode(id).await?;
                    if inode.is_none() && !deleted.contains(&id) {
                        let detail = format!("extents of file {id}, which does not exist");
                        self.clear("extents-without-file", detail, id).await?;
                    }
                    file = Some(OfFile { id, inode, end: 0, stored: 0 });
                }
                match (StoredExtent::from_bytes(&value), &mut file) {
                    (Ok(extent), Some(file)) => self.look_at_extent(file, at, &extent).await?,
                    (Err(error), _) => self.damaged(Some(id), error.to_string()).await?,
                    _ => {}
                }
            }
        }
        self.end_of(file).await?;
        let (mut start, end) = (key::kind(b'k'), key::after(&key::kind(b'k')));
        let mut chunks = 0;
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                return Ok(chunks);
            }
            chunks += page.len() as u64;
        }
    }

    async fn look_at_extent(
        &mut self,
        file: &mut OfFile,
        at: u64,
        extent: &StoredExtent,
    ) -> Result<()> {
        let id = file.id;
        let end = at.saturating_add(extent.length);
        if at < file.end {
            let detail = format!("extents overlap at byte {at}");
            self.tell("overlapping-extents", Some(id), detail, Outcome::Lost).await?;
        }
        file.end = file.end.max(end);
        file.stored += extent.length;
        let StoredContent::Chunk { chunk, skip } = extent.content else { return Ok(()) };
        match self.record::<Chunk>(key::chunk(chunk)).await? {
            None => {
                let detail = format!("bytes {at} to {end}: nothing is known of chunk {chunk}");
                self.tell("chunk-without-record", Some(id), detail, Outcome::Lost).await
            }
            Some(record) if skip.saturating_add(extent.length) > record.length => {
                let detail = format!("bytes {at} to {end}: chunk {chunk} is shorter than that");
                self.tell("extent-beyond-chunk", Some(id), detail, Outcome::Lost).await
            }
            Some(record) if record.places.iter().all(|place| place.is_stale) => {
                self.look_at_tape(id, (at, end), record.tape.is_some()).await
            }
            Some(record) => self.look_at_digest(id, (at, end), (chunk, &record)).await,
        }
    }

    /// Can readers tell whether a data server gives what was written? Adopted files have digests
    /// once their checksums were asked for; where nobody proves who he is, nobody is kept out.
    async fn look_at_digest(
        &mut self,
        id: FileId,
        (at, end): (u64, u64),
        (chunk, record): (GrantedId, &Chunk),
    ) -> Result<()> {
        let is_proven = self.parts.map.current().map.security.is_some();
        let is_own = record.places.iter().any(|place| place.is_own(chunk));
        if record.digest.is_some() || !is_proven || !is_own {
            return Ok(());
        }
        let detail = format!(
            "bytes {at} to {end}: chunk {chunk} has no digest, so readers believe its data \
             server; write the file anew (`cp`) to give it one"
        );
        self.tell("unverified-chunk", Some(id), detail, Outcome::Left).await
    }

    /// Of a range that no OST has: does tape, as far as is known?
    async fn look_at_tape(
        &mut self,
        id: FileId,
        (at, end): (u64, u64),
        is_on_tape: bool,
    ) -> Result<()> {
        let copy = self.record::<Archived>(key::tape_copy(id)).await?;
        if is_on_tape && copy.is_some() {
            return Ok(());
        }
        let detail = format!("bytes {at} to {end} are neither at an OST nor on tape");
        self.tell("chunk-nowhere", Some(id), detail, Outcome::Lost).await
    }

    async fn end_of(&mut self, file: Option<OfFile>) -> Result<()> {
        let Some(OfFile { id, inode: Some(inode), end, stored }) = file else { return Ok(()) };
        if end > inode.size {
            let detail = format!("size is {} and extents end at {end}", inode.size);
            self.mend("extent-beyond-end", Some(id), detail, Repair::Size(id, end)).await?;
        }
        if stored != inode.stored {
            let detail = format!("{stored} bytes are stored, and {} are counted", inode.stored);
            let by = stored as i64 - inode.stored as i64;
            self.mend("wrong-stored", Some(id), detail, Repair::Stored(id, by)).await?;
        }
        Ok(())
    }

    /// Counts the references to a share of the chunks.
    async fn references(
        &mut self,
        freed: &BTreeSet<GrantedId>,
        (share, shares): (u64, u64),
    ) -> Result<()> {
        let is_mine = |chunk: &GrantedId| chunk.serial % shares == share;
        let mut counted: BTreeMap<GrantedId, u32> = BTreeMap::new();
        let (mut start, end) = (key::kind(b't'), key::after(&key::kind(b't')));
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                break;
            }
            for (_, value) in page {
                if let Ok(extent) = StoredExtent::from_bytes(&value)
                    && let StoredContent::Chunk { chunk, .. } = extent.content
                    && is_mine(&chunk)
                {
                    *counted.entry(chunk).or_default() += 1;
                }
            }
        }
        let (mut start, end) = (key::kind(b'k'), key::after(&key::kind(b'k')));
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                return Ok(());
            }
            for (key, value) in page {
                let Some(id) = key::chunk_id(&key).filter(is_mine) else { continue };
                let Ok(chunk) = Chunk::from_bytes(&value) else {
                    self.damaged(None, format!("record of chunk {id}")).await?;
                    continue;
                };
                let found = counted.get(&id).copied().unwrap_or(0);
                let by = i64::from(found) - i64::from(chunk.references);
                if by != 0 || (found == 0 && !freed.contains(&id)) {
                    let detail = format!(
                        "chunk {id} counts {} references and has {found}",
                        chunk.references
                    );
                    let repair = Repair::References(id, by);
                    self.mend("wrong-references", None, detail, repair).await?;
                }
            }
        }
    }
}
