//! SplitMirror: a file shall have one copy less, as `lfs mirror split --destroy` makes it.
//!
//! A page of extents at a time: of each chunk the place goes that belongs to the mirror, and is
//! freed as chunks are: who believes in it may read it for a while ([`crate::collector`]). The last
//! page changes the layout. Whoever stops in between leaves a file that lacks copies: a resync
//! makes them again, and asking again splits the rest.
//!
//! Invariants: every chunk keeps a place that is not known to be bad; a chunk that others refer to
//! keeps all of its places, for their layouts are not known here.

use super::{EXTENTS_MAX, lease, open};
use crate::chunks;
use crate::error::{Error, Result};
use crate::permission;
use crate::view::{View, unit_of};
use std::collections::{BTreeMap, BTreeSet};
use tieline_format::mdt::{Chunk, Freed, Inode, StoredContent, key};
use tieline_types::{
    ChunkRef, Content, Extent, FileId, GrantedId, Layout, OstIndex, OstPlace, Place,
};
use tieline_wire::mirrors::{GoneCopy, SplitMirror, SplitMirrorReply};

pub async fn run(view: &mut View<'_>, request: &SplitMirror) -> Result<SplitMirrorReply> {
    let id = request.id;
    let mut inode = view.inode(id).await?;
    open::check_kind(id, &inode)?;
    permission::check_owner(id, &inode, view.scene.caller, "take mirrors from it")?;
    let old = inode.layout.clone().unwrap_or_default();
    if old.mirrors <= 1 {
        return Err(Error::OneCopy { id });
    }
    if old.mirrors != request.mirrors || request.mirror >= old.mirrors {
        return Err(Error::Invalid { what: "the file has another number of mirrors: look again" });
    }
    let limit = (request.limit as usize).clamp(1, EXTENTS_MAX);
    let page = chunks::page(view, id, &inode, request.offset, limit).await?;
    let is_done = page.covered >= inode.size || page.covered <= request.offset;
    let mut split = Split { request, layout: old, stripe: inode.stripe.clone(), shared: 0 };
    let found = split.copies(view, &page.extents).await?;
    let mut gone = vec![];
    for (offset, chunk, record, ost) in found {
        let told = give_up(view, id, (offset, chunk, record), ost, request.is_look)?;
        gone.push(told);
    }
    if is_done && !request.is_look {
        inode.stripe = split.narrowed();
        inode.layout = Some(split.reduced());
        inode.ctime = view.scene.changed(inode.ctime);
        // Whoever has it open knows where new chunks went: the next open is to ask.
        inode.bytes_stay(view.next_version(&inode));
        view.put_inode(id, &inode);
        view.touch_file(id, &inode);
    }
    Ok(reply(view, (id, &inode), (page.covered, is_done), gone, split.shared))
}

fn reply(
    view: &View<'_>,
    (id, inode): (FileId, &Inode),
    (covered, is_done): (u64, bool),
    gone: Vec<GoneCopy>,
    shared: u32,
) -> SplitMirrorReply {
    let attributes = view.attributes(id, inode);
    let lease = lease(view, [unit_of(id, inode)]);
    SplitMirrorReply { covered, is_done, gone, shared, attributes, lease }
}

/// Takes the places on `ost` from a chunk, if it is not only looked at.
fn give_up(
    view: &mut View<'_>,
    file: FileId,
    (offset, id, mut record): (u64, GrantedId, Chunk),
    ost: OstIndex,
    is_look: bool,
) -> Result<GoneCopy> {
    let (gone, stays): (Vec<OstPlace>, Vec<OstPlace>) =
        record.places.into_iter().partition(|place| place.ost == ost);
    if stays.iter().all(|place| place.is_stale) {
        return Err(Error::NotWhole { offset, ost });
    }
    let told = ChunkRef {
        chunk: id.into(),
        length: record.length,
        skip: 0,
        places: stays.iter().cloned().map(Place::from).collect(),
        digest: record.digest,
        adler32: record.adler32,
        checks: None,
    };
    if !is_look {
        record.places = stays;
        let length = record.length;
        let freed = Freed { length, places: gone, file, is_split: Some(true) };
        view.put(key::freed(view.scene.now.millis(), id), &freed);
        view.put(key::chunk(id), &record);
    }
    Ok(GoneCopy { offset, chunk: told, ost })
}

/// A file that loses a mirror, as it was before.
struct Split<'r> {
    request: &'r SplitMirror,
    layout: Layout,
    stripe: Vec<OstIndex>,
    shared: u32,
}

impl Split<'_> {
    /// The chunks of a page that give a copy up, and which.
    async fn copies(
        &mut self,
        view: &mut View<'_>,
        extents: &[Extent],
    ) -> Result<Vec<(u64, GrantedId, Chunk, OstIndex)>> {
        let mut first: BTreeMap<GrantedId, (&Extent, u64)> = BTreeMap::new();
        for extent in extents {
            let Content::Chunk(chunk) = &extent.content else { continue };
            let Some(id) = chunk.chunk.granted() else { continue };
            first.entry(id).or_insert((extent, chunk.skip));
        }
        let records = chunks::read_chunks(view, first.keys().copied().collect()).await?;
        let mut found = vec![];
        for (id, record) in records {
            let Some(&(extent, skip)) = first.get(&id) else { continue };
            let Some(ost) = self.victim(extent.offset, &record.places) else { continue };
            let start = extent.offset.saturating_sub(skip);
            if self.is_shared(view, id, &record, start).await? {
                self.shared += 1;
                continue;
            }
            found.push((extent.offset, id, record, ost));
        }
        Ok(found)
    }

    /// Do others refer to the chunk, or the same file elsewhere than where it was written?
    async fn is_shared(
        &self,
        view: &mut View<'_>,
        id: GrantedId,
        record: &Chunk,
        start: u64,
    ) -> Result<bool> {
        if record.references <= 1 {
            return Ok(false);
        }
        let range = (start, start.saturating_add(record.length));
        let Some(own) = chunks::between(view, self.request.id, range, EXTENTS_MAX).await? else {
            return Ok(true);
        };
        let is_own = |content: &StoredContent| match content {
            StoredContent::Chunk { chunk, .. } => *chunk == id,
            StoredContent::Inline(_) => false,
        };
        let own = own.values().filter(|extent| is_own(&extent.content)).count();
        Ok(u64::from(record.references) > own as u64)
    }

    fn is_within(&self, ost: OstIndex) -> bool {
        self.request.within.as_ref().is_none_or(|within| within.contains(&ost))
    }

    /// Which of a chunk's copies belongs to the mirror that goes.
    fn victim(&self, offset: u64, places: &[OstPlace]) -> Option<OstIndex> {
        let mut there: Vec<OstIndex> = vec![];
        // Of several that would do, a bad one goes.
        let (good, bad): (Vec<&OstPlace>, _) = places.iter().partition(|place| !place.is_stale);
        for place in good.into_iter().chain(bad) {
            if !there.contains(&place.ost) {
                there.push(place.ost);
            }
        }
        let column = self.layout.column(offset, &self.stripe);
        let own = column.get(usize::from(self.request.mirror)).copied();
        if let Some(own) = own.filter(|ost| there.contains(ost) && self.is_within(*ost)) {
            return Some(own);
        }
        let is_full = there.len() >= usize::from(self.layout.mirrors);
        let fits: Vec<OstIndex> = there.into_iter().filter(|&ost| self.is_within(ost)).collect();
        let stray = fits.iter().rev().find(|ost| !column.contains(ost)).copied();
        let last = fits.last().filter(|_| self.request.within.is_some()).copied();
        stray.or(last).filter(|_| is_full)
    }

    /// The columns of new chunks, without the mirror.
    fn narrowed(&self) -> Vec<OstIndex> {
        let mirrors = usize::from(self.layout.mirrors);
        let mut stripe = vec![];
        for column in self.stripe.chunks(mirrors) {
            let mut column = column.to_vec();
            let own = usize::from(self.request.mirror);
            let fits = |at: &usize| column.get(*at).is_some_and(|&ost| self.is_within(ost));
            let at = Some(own).filter(fits).or_else(|| (0..column.len()).rev().find(fits));
            if column.len() == mirrors {
                column.remove(at.unwrap_or(own));
            }
            stripe.extend(column);
        }
        stripe
    }

    fn reduced(&self) -> Layout {
        let mut layout = self.layout.clone();
        layout.mirrors -= 1;
        layout.sync = layout.sync.min(layout.mirrors);
        if let Some(mut pools) = layout.mirror_pools.take() {
            pools.remove(usize::from(self.request.mirror).min(pools.len().saturating_sub(1)));
            let others: BTreeSet<_> = pools.iter().collect();
            if others.len() == 1 {
                layout.pool = pools.pop().flatten();
            } else {
                layout.mirror_pools = Some(pools);
            }
        }
        layout
    }
}
