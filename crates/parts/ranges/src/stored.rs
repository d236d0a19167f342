//! The arithmetic of extents: what a new extent covers is split, trimmed or dropped.
//!
//! Pure: works on the few extents of a file that a change can meet, and says what becomes of the
//! records. Chunks are never changed here, only referred to more or less often.
//!
//! Invariants: extents of a file never overlap; an edit's reference counts are exactly the
//! difference between the extents after and before.

use crate::runs::{self, Stretch};
use std::collections::BTreeMap;
use std::ops::Range;
use tieline_format::mdt::{StoredContent, StoredExtent};
use tieline_types::{GrantedId, Layout};

/// Extents of one file by offset.
pub type Extents = BTreeMap<u64, StoredExtent>;

/// What takes the place of whatever was there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub offset: u64,
    pub length: u64,
    /// `None`: a hole.
    pub content: Option<StoredContent>,
}

/// What a change does to the records of a file's extents.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Edit {
    /// Offsets of records that go.
    pub removed: Vec<u64>,
    /// Records that come or change.
    pub put: Vec<(u64, StoredExtent)>,
    /// By how many extents more or fewer each chunk is referred to; those without change are left
    /// out.
    pub references: BTreeMap<GrantedId, i64>,
    /// By how many bytes more or fewer are covered.
    pub stored: i64,
}

/// Lays `pieces` over `old`. `old` must hold every extent that a piece overlaps or touches.
pub fn replace(old: &Extents, pieces: &[Piece]) -> Edit {
    let mut new = old.clone();
    for piece in pieces {
        cut(&mut new, piece.offset, piece.offset + piece.length);
        if let Some(content) = &piece.content {
            let extent = StoredExtent { length: piece.length, content: content.clone() };
            new.insert(piece.offset, extent);
        }
    }
    for piece in pieces {
        merge(&mut new, piece.offset);
    }
    difference(old, &new)
}

/// Makes `from..to` a hole.
pub fn cut(extents: &mut Extents, from: u64, to: u64) {
    runs::clear(extents, &(from..to));
}

impl Stretch for StoredExtent {
    fn length(&self) -> u64 {
        self.length
    }

    fn part(&self, range: Range<u64>) -> Self {
        let content = match &self.content {
            StoredContent::Inline(bytes) => {
                let slice = bytes.get(range.start as usize..range.end as usize);
                // A damaged record that holds fewer bytes than it says reads as zeroes there.
                let zeroes = || vec![0; (range.end - range.start) as usize];
                StoredContent::Inline(slice.map_or_else(zeroes, <[u8]>::to_vec))
            }
            StoredContent::Chunk { chunk, skip } => {
                StoredContent::Chunk { chunk: *chunk, skip: skip + range.start }
            }
        };
        Self { length: range.end - range.start, content }
    }
}

/// Joins the inline extent at `at` with inline neighbours while they fit into one: a log that is
/// fsynced line by line stays a few extents, a small file stays one.
fn merge(extents: &mut Extents, at: u64) {
    let Some(mut start) = extents.range(..=at).next_back().map(|(at, _)| *at) else { return };
    let before = extents.range(..start).next_back().map(|(at, _)| *at);
    if let Some(before) = before
        && join(extents, before, start)
    {
        start = before;
    }
    while let Some(extent) = extents.get(&start) {
        let next = start + extent.length;
        if !join(extents, start, next) {
            break;
        }
    }
}

/// Joins two extents if both are inline, adjacent, and small enough together.
fn join(extents: &mut Extents, left: u64, right: u64) -> bool {
    let (Some(a), Some(b)) = (extents.get(&left), extents.get(&right)) else { return false };
    let (StoredContent::Inline(head), StoredContent::Inline(tail)) = (&a.content, &b.content)
    else {
        return false;
    };
    let length = a.length + b.length;
    if left + a.length != right || length > u64::from(Layout::INLINE_MAX) {
        return false;
    }
    let content = StoredContent::Inline([head.as_slice(), tail.as_slice()].concat());
    extents.remove(&right);
    extents.insert(left, StoredExtent { length, content });
    true
}

fn difference(old: &Extents, new: &Extents) -> Edit {
    let mut edit = Edit::default();
    for (at, extent) in old {
        if !new.contains_key(at) {
            edit.removed.push(*at);
        }
        count(&mut edit, extent, -1);
    }
    for (at, extent) in new {
        if old.get(at) != Some(extent) {
            edit.put.push((*at, extent.clone()));
        }
        count(&mut edit, extent, 1);
    }
    edit.references.retain(|_, change| *change != 0);
    edit
}

fn count(edit: &mut Edit, extent: &StoredExtent, sign: i64) {
    edit.stored += sign * extent.length as i64;
    if let StoredContent::Chunk { chunk, .. } = extent.content {
        *edit.references.entry(chunk).or_default() += sign;
    }
}

#[cfg(test)]
mod tests;
