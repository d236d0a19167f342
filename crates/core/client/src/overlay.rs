//! What programs wrote and the MDS does not know yet, laid over the committed extents.
//!
//! A *piece* is a run of bytes. Fresh pieces are still being gathered; a *seal* makes a run of them
//! one chunk or inline extent, on its way to an OST or there already. A later write cuts pieces,
//! sealed or not: what is left of a seal refers to a part of its chunk. Bytes stay here until their
//! commit is answered, so that they can be read, and sent again if the session was lost.
//!
//! Invariants: pieces never overlap; a piece of a seal lies within it, and holds the same bytes as
//! the chunk there.

use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::ops::Range;
use tieline_types::{Content, Extent, Grant, OstIndex};

/// Small writes that follow each other grow one piece up to this size; larger ones are kept as they
/// came.
const PIECE_GROWN_MAX: usize = 1 << 20;
const WRITE_SMALL_MAX: usize = 32 << 10;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SealId(u64);

#[derive(Clone, Debug)]
struct Piece {
    bytes: Bytes,
    /// `None`: fresh.
    seal: Option<SealId>,
}

#[derive(Debug)]
struct Seal {
    offset: u64,
    bytes: Bytes,
    /// `None`: on its way.
    content: Option<Content>,
}

#[derive(Default, Debug)]
pub(crate) struct Overlay {
    pieces: BTreeMap<u64, Piece>,
    seals: BTreeMap<SealId, Seal>,
    bytes: usize,
    last: u64,
}

/// A sealed run that is to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    pub id: SealId,
    pub offset: u64,
    pub bytes: Bytes,
}

impl Overlay {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Where the last piece ends; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.pieces.last_key_value().map_or(0, |(offset, piece)| offset + piece.bytes.len() as u64)
    }

    pub fn write(&mut self, offset: u64, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.cut(offset..offset + bytes.len() as u64);
        self.bytes += bytes.len();
        if let Some(bytes) = self.grow(offset, bytes) {
            self.pieces.insert(offset, Piece { bytes, seal: None });
        }
    }

    /// Appends to the piece that ends at `offset`, if that is fresh and both are small; else gives
    /// the bytes back.
    fn grow(&mut self, offset: u64, bytes: Bytes) -> Option<Bytes> {
        let Some((start, piece)) = self.pieces.range_mut(..offset).next_back() else {
            return Some(bytes);
        };
        let length = piece.bytes.len();
        let is_next = start + length as u64 == offset && piece.seal.is_none();
        if !is_next || length + bytes.len() > PIECE_GROWN_MAX || bytes.len() > WRITE_SMALL_MAX {
            return Some(bytes);
        }
        let mut grown = match std::mem::take(&mut piece.bytes).try_into_mut() {
            Ok(own) => own,
            Err(shared) => BytesMut::from(&shared[..]),
        };
        grown.extend_from_slice(&bytes);
        piece.bytes = grown.freeze();
        None
    }

    /// Forgets what was written in `range`.
    pub fn cut(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let before = self.pieces.range(..range.start).next_back().map(|(&offset, _)| offset);
        let inside = self.pieces.range(range.clone()).map(|(&offset, _)| offset);
        let touched: Vec<u64> = before.into_iter().chain(inside).collect();
        let mut has_sealed = false;
        for offset in touched {
            let Some(piece) = self.pieces.remove(&offset) else { continue };
            has_sealed |= piece.seal.is_some();
            self.bytes -= piece.bytes.len();
            let end = offset + piece.bytes.len() as u64;
            for part in [offset..range.start.min(end), range.end.max(offset)..end] {
                if part.is_empty() {
                    continue;
                }
                let slice = (part.start - offset) as usize..(part.end - offset) as usize;
                let bytes = piece.bytes.slice(slice);
                self.bytes += bytes.len();
                self.pieces.insert(part.start, Piece { bytes, seal: piece.seal });
            }
        }
        if has_sealed {
            self.tidy();
        }
    }

    /// The parts of `range` that were written: offset and bytes, in order.
    pub fn read(&self, range: Range<u64>) -> Vec<(u64, Bytes)> {
        let before = self.pieces.range(..range.start).next_back();
        let inside = self.pieces.range(range.clone());
        let mut parts = Vec::new();
        for (&offset, piece) in before.into_iter().chain(inside) {
            let end = offset + piece.bytes.len() as u64;
            let (from, to) = (offset.max(range.start), end.min(range.end));
            if from < to {
                let slice = (from - offset) as usize..(to - offset) as usize;
                parts.push((from, piece.bytes.slice(slice)));
            }
        }
        parts
    }

    /// Runs of fresh bytes without a gap, in order.
    pub fn fresh(&self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (&offset, piece) in self.pieces.iter().filter(|(_, piece)| piece.seal.is_none()) {
            let end = offset + piece.bytes.len() as u64;
            match runs.last_mut() {
                Some(run) if run.end == offset => run.end = end,
                _ => runs.push(offset..end),
            }
        }
        runs
    }

    /// Is the byte at `offset` fresh?
    pub fn is_fresh(&self, offset: u64) -> bool {
        let piece = self.pieces.range(..=offset).next_back();
        piece.is_some_and(|(start, piece)| {
            piece.seal.is_none() && start + piece.bytes.len() as u64 > offset
        })
    }

    /// The run of fresh bytes around `offset`.
    pub fn fresh_around(&self, offset: u64) -> Option<Range<u64>> {
        let is_fresh = |piece: &Piece| piece.seal.is_none();
        let (&first, piece) = self.pieces.range(..=offset).next_back()?;
        let mut run = first..first + piece.bytes.len() as u64;
        if !is_fresh(piece) || run.end <= offset {
            return None;
        }
        for (&next, piece) in self.pieces.range(run.end..) {
            if next != run.end || !is_fresh(piece) {
                break;
            }
            run.end = next + piece.bytes.len() as u64;
        }
        for (&start, piece) in self.pieces.range(..run.start).rev() {
            if start + piece.bytes.len() as u64 != run.start || !is_fresh(piece) {
                break;
            }
            run.start = start;
        }
        Some(run)
    }

    /// Makes the fresh bytes of `range`, which has no gap, one sealed run.
    pub fn seal(&mut self, range: Range<u64>) -> Sealed {
        let parts = self.read(range.clone());
        let bytes = match parts.as_slice() {
            [(_, only)] => only.clone(),
            many => {
                let mut joined = BytesMut::with_capacity((range.end - range.start) as usize);
                many.iter().for_each(|(_, part)| joined.extend_from_slice(part));
                joined.freeze()
            }
        };
        debug_assert_eq!(bytes.len() as u64, range.end - range.start, "a run without a gap");
        self.cut(range.clone());
        self.last += 1;
        let id = SealId(self.last);
        self.bytes += bytes.len();
        self.pieces.insert(range.start, Piece { bytes: bytes.clone(), seal: Some(id) });
        let seal = Seal { offset: range.start, bytes: bytes.clone(), content: None };
        self.seals.insert(id, seal);
        Sealed { id, offset: range.start, bytes }
    }

    /// A sealed run has arrived. Nothing happens if nothing is left of it.
    pub fn arrived(&mut self, id: SealId, content: Content) {
        if let Some(seal) = self.seals.get_mut(&id) {
            seal.content = Some(content);
        }
        self.tidy();
    }

    /// A further copy of a chunk has arrived before its commit.
    pub fn copy_arrived(&mut self, id: SealId, ost: OstIndex) {
        let content = self.seals.get_mut(&id).and_then(|seal| seal.content.as_mut());
        if let Some(Content::Chunk(chunk)) = content {
            let own = chunk.places.iter_mut().filter(|place| place.ost == ost);
            own.for_each(|place| place.is_stale = false);
        }
    }

    /// A sealed run could not be sent now: its bytes are fresh again.
    pub fn unseal(&mut self, id: SealId) {
        self.seals.remove(&id);
        let pieces = self.pieces.values_mut().filter(|piece| piece.seal == Some(id));
        pieces.for_each(|piece| piece.seal = None);
    }

    /// Forgets what is left of a sealed run in `range`: it was committed.
    pub fn committed(&mut self, id: SealId, range: Range<u64>) {
        let own = self.pieces.range(range).filter(|(_, piece)| piece.seal == Some(id));
        let offsets: Vec<u64> = own.map(|(&offset, _)| offset).collect();
        for piece in offsets.iter().filter_map(|offset| self.pieces.remove(offset)) {
            self.bytes -= piece.bytes.len();
        }
        self.tidy();
    }

    /// Forgets a sealed run: it is lost.
    pub fn remove(&mut self, id: SealId) {
        let Some(seal) = self.seals.get(&id) else { return };
        let range = seal.offset..seal.offset + seal.bytes.len() as u64;
        self.committed(id, range);
        self.seals.remove(&id);
    }

    /// Are sealed runs up to `last` still on their way?
    pub fn is_sending(&self, last: SealId) -> bool {
        self.seals.range(..=last).any(|(_, seal)| seal.content.is_none())
    }

    /// Is anything left of sealed runs up to `last`?
    pub fn has_sealed(&self, last: SealId) -> bool {
        self.seals.range(..=last).next().is_some()
    }

    /// Is any sealed run a chunk, here or on its way?
    pub fn has_chunks(&self) -> bool {
        self.seals.values().any(|seal| !matches!(seal.content, Some(Content::Inline(_))))
    }

    pub fn last_seal(&self) -> SealId {
        SealId(self.last)
    }

    /// Bytes of runs that have arrived and wait for their commit.
    pub fn arrived_bytes(&self) -> usize {
        let arrived = self.seals.values().filter(|seal| seal.content.is_some());
        arrived.map(|seal| seal.bytes.len()).sum()
    }

    /// Takes chunks back that were named under another grant: the MDS may have deleted them. They
    /// are to be sent again.
    pub fn disown(&mut self, grant: Option<Grant>) -> Vec<Sealed> {
        let mut again = Vec::new();
        for (&id, seal) in &mut self.seals {
            if let Some(Content::Chunk(chunk)) = &seal.content
                && Some(chunk.chunk.grant) != grant
            {
                seal.content = None;
                again.push(Sealed { id, offset: seal.offset, bytes: seal.bytes.clone() });
            }
        }
        again
    }

    /// What can be committed now: at most `limit` extents in order, each with the run it is of.
    pub fn arrivals(&self, limit: usize) -> Vec<(SealId, Extent)> {
        let extent = |(&offset, piece): (&u64, &Piece)| {
            let id = piece.seal?;
            let seal = self.seals.get(&id)?;
            let content = seal.content.as_ref()?;
            Some((id, piece_extent(offset, &piece.bytes, offset - seal.offset, content)))
        };
        self.pieces.iter().filter_map(extent).take(limit).collect()
    }

    /// The bytes of a run, for those who keep what was just written.
    pub fn sealed_bytes(&self, id: SealId) -> Option<Bytes> {
        self.seals.get(&id).map(|seal| seal.bytes.clone())
    }

    /// Drops runs of which nothing is left, unless they are on their way.
    fn tidy(&mut self) {
        if self.seals.values().all(|seal| seal.content.is_none()) {
            return;
        }
        let used: std::collections::BTreeSet<SealId> =
            self.pieces.values().filter_map(|piece| piece.seal).collect();
        self.seals.retain(|id, seal| seal.content.is_none() || used.contains(id));
    }
}

fn piece_extent(offset: u64, bytes: &Bytes, skip: u64, content: &Content) -> Extent {
    let content = match content {
        Content::Chunk(chunk) => {
            let mut chunk = chunk.clone();
            chunk.skip += skip;
            Content::Chunk(chunk)
        }
        Content::Inline(_) | Content::Hole => Content::Inline(bytes.to_vec()),
    };
    Extent { offset, length: bytes.len() as u64, content }
}

#[cfg(test)]
mod tests;
