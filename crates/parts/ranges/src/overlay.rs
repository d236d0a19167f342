//! What programs wrote and the MDS does not know yet, laid over the committed extents.
//!
//! A *piece* is a run of bytes. Fresh pieces are still being gathered; a *seal* makes a run of them
//! one chunk or inline extent, on its way to an OST or there already. A later write cuts pieces,
//! sealed or not: what is left of a seal refers to a part of its chunk. Bytes stay here until their
//! commit is answered, so that they can be read, and sent again if the session was lost.
//!
//! Invariants: pieces never overlap; a piece of a seal lies within it, and holds the same bytes as
//! the chunk there; nothing that is done for one write looks at all pieces or seals.
//!
//! What is being committed is committed as it was when that began ([`Overlay::settle`]): else bytes
//! that are written over and over, as a head that tells of what is behind it, would never be.

use crate::runs::{self, Cut};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use tieline_types::checksum::BLOCK;
use tieline_types::{Content, Extent, Grant, OstIndex};

/// Small writes that follow each other grow one piece up to this size; larger ones are kept as they
/// came.
const PIECE_GROWN_MAX: usize = 1 << 20;
const WRITE_SMALL_MAX: usize = 32 << 10;
/// Near the beginning of a file pieces of so many bytes are not grown either: a small file has few
/// of them, and they are joined once, when they are sealed.
const SMALL_FILE: u64 = 64 << 10;
const WRITE_TINY_MAX: usize = 512;
/// Bytes in one commit: well below what a frame may hold.
const INLINE_PER_COMMIT: usize = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SealId(u64);

#[derive(Clone, Debug)]
struct Piece {
    bytes: Bytes,
    /// `None`: fresh.
    seal: Option<SealId>,
}

#[derive(Debug)]
struct Seal {
    offset: u64,
    run: Run,
    /// `None`: on its way.
    content: Option<Content>,
    /// How many pieces are left of it, covered ones among them.
    pieces: usize,
    /// The last write that may be in it.
    written: u64,
}

#[derive(Default, Debug)]
pub struct Overlay {
    pieces: BTreeMap<u64, Piece>,
    /// Seals up to here are being committed.
    settling: Option<SealId>,
    /// Pieces of those that were written over since: only their commit sees them.
    covered: BTreeMap<u64, Piece>,
    seals: BTreeMap<SealId, Seal>,
    /// Seals on their way.
    sending: BTreeSet<SealId>,
    /// Seals that hold inline bytes.
    inline: usize,
    /// Bytes of seals that have arrived.
    arrived: usize,
    bytes: usize,
    last: u64,
    /// The number of the last write.
    pub written: u64,
}

/// What is left of a sealed run in one place.
struct Row<'o> {
    id: SealId,
    offset: u64,
    length: u64,
    parts: Vec<&'o Bytes>,
}

/// A sealed run that is to be sent.
#[derive(Clone, Debug)]
pub struct Sealed {
    pub id: SealId,
    pub offset: u64,
    /// Its bytes do not lie behind one another in the file.
    pub is_scattered: bool,
    pub run: Run,
}

/// Bytes in a row, as they came: large writes are not copied into one place. Of what is to be a
/// chunk each part but the last is whole blocks, so that their checks are those of the run.
#[derive(Clone, Debug)]
pub struct Run(Arc<[Bytes]>);

impl Run {
    pub fn of(mut parts: Vec<Bytes>) -> Self {
        let inner = parts.split_last().map_or(&[][..], |(_, inner)| inner);
        if inner.iter().any(|part| part.len() % BLOCK != 0) {
            let length = parts.iter().map(Bytes::len).sum();
            let mut joined = BytesMut::with_capacity(length);
            parts.iter().for_each(|part| joined.extend_from_slice(part));
            parts = vec![joined.freeze()];
        }
        Self(parts.into())
    }

    pub fn length(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    pub fn parts(&self) -> &[Bytes] {
        &self.0
    }
}

impl runs::Stretch for Piece {
    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn part(&self, range: Range<u64>) -> Self {
        let bytes = self.bytes.slice(range.start as usize..range.end as usize);
        Self { bytes, seal: self.seal }
    }
}

impl Sealed {
    /// Bytes that are to be a chunk, and of no overlay.
    pub fn loose(offset: u64, bytes: Bytes, is_scattered: bool) -> Self {
        Self { id: SealId(0), offset, is_scattered, run: Run::of(vec![bytes]) }
    }
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

    /// Where the last piece before `offset` ends; 0 if there is none.
    pub fn end_before(&self, offset: u64) -> u64 {
        let before = self.pieces.range(..offset).next_back();
        before.map_or(0, |(start, piece)| start + piece.bytes.len() as u64)
    }

    /// Where the first piece from `offset` on begins.
    pub fn next_from(&self, offset: u64) -> Option<u64> {
        self.pieces.range(offset..).next().map(|(&start, _)| start)
    }

    /// Where the piece ends that holds `offset`.
    pub fn end_around(&self, offset: u64) -> Option<u64> {
        let (start, piece) = self.pieces.range(..=offset).next_back()?;
        let end = start + piece.bytes.len() as u64;
        (end > offset).then_some(end)
    }

    pub fn write(&mut self, offset: u64, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.clear(offset..offset + bytes.len() as u64, true);
        let length = bytes.len();
        match self.grow(offset, bytes) {
            Some(bytes) => self.put(offset, Piece { bytes, seal: None }),
            None => self.bytes += length,
        }
    }

    fn put(&mut self, offset: u64, piece: Piece) {
        self.count_piece(&piece);
        self.pieces.insert(offset, piece);
    }

    fn put_covered(&mut self, offset: u64, piece: Piece) {
        self.count_piece(&piece);
        self.covered.insert(offset, piece);
    }

    fn count_piece(&mut self, piece: &Piece) {
        self.bytes += piece.bytes.len();
        if let Some(seal) = piece.seal.and_then(|id| self.seals.get_mut(&id)) {
            seal.pieces += 1;
        }
    }

    /// Takes a piece out. The caller drops its seal if nothing is left of that.
    fn take(&mut self, offset: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&offset)?;
        self.count_piece_out(&piece);
        Some(piece)
    }

    fn take_covered(&mut self, offset: u64) -> Option<Piece> {
        let piece = self.covered.remove(&offset)?;
        self.count_piece_out(&piece);
        Some(piece)
    }

    fn count_piece_out(&mut self, piece: &Piece) {
        self.bytes -= piece.bytes.len();
        if let Some(seal) = piece.seal.and_then(|id| self.seals.get_mut(&id)) {
            seal.pieces -= 1;
        }
    }

    /// Drops a seal of which nothing is left, unless it is on its way.
    fn tidy(&mut self, id: SealId) {
        let is_over = |seal: &Seal| seal.pieces == 0 && seal.content.is_some();
        if self.seals.get(&id).is_some_and(is_over) {
            self.drop_seal(id);
        }
    }

    fn drop_seal(&mut self, id: SealId) {
        let Some(seal) = self.seals.remove(&id) else { return };
        self.sending.remove(&id);
        self.count_out(&seal);
    }

    fn count_out(&mut self, seal: &Seal) {
        self.inline -= usize::from(matches!(seal.content, Some(Content::Inline(_))));
        self.arrived -= if seal.content.is_some() { seal.run.length() } else { 0 };
    }

    /// Appends to the piece that ends at `offset`, if that is fresh and both are small; else gives
    /// the bytes back.
    fn grow(&mut self, offset: u64, bytes: Bytes) -> Option<Bytes> {
        if offset < SMALL_FILE && bytes.len() > WRITE_TINY_MAX {
            return Some(bytes);
        }
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
        self.clear(range.clone(), false);
        let mut cut = BTreeSet::new();
        for Cut { whole, around, .. } in runs::take(&mut self.covered, &range) {
            self.count_piece_out(&whole);
            cut.extend(whole.seal);
            around.into_iter().for_each(|(offset, piece)| self.put_covered(offset, piece));
        }
        cut.into_iter().for_each(|id| self.tidy(id));
    }

    /// Takes what was written in `range` out of the way. `covers`: what is being committed still
    /// is.
    fn clear(&mut self, range: Range<u64>, covers: bool) {
        let mut cut = BTreeSet::new();
        for met in runs::take(&mut self.pieces, &range) {
            let seal = met.whole.seal;
            self.count_piece_out(&met.whole);
            cut.extend(seal);
            let is_settling = seal.is_some() && seal <= self.settling;
            let within = (covers && is_settling).then(|| met.within(&range)).flatten();
            met.around.into_iter().for_each(|(offset, piece)| self.put(offset, piece));
            if let Some((offset, piece)) = within {
                self.put_covered(offset, piece);
            }
        }
        cut.into_iter().for_each(|id| self.tidy(id));
    }

    /// What is left of runs up to one is committed as it is now, also where it is written over
    /// meanwhile. `None`: that is over, and what was written over is forgotten.
    pub fn settle(&mut self, upto: Option<SealId>) {
        self.settling = upto;
        let offsets: Vec<u64> = self.covered.keys().copied().collect();
        for offset in offsets {
            if let Some(id) = self.take_covered(offset).and_then(|piece| piece.seal) {
                self.tidy(id);
            }
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

    /// Makes the fresh bytes of `range`, which has no gap, one sealed run that is to be a chunk.
    pub fn seal(&mut self, range: Range<u64>) -> Sealed {
        self.seal_as(range, Run::of)
    }

    /// The same for inline bytes: they need no OST, and have arrived when they are sealed.
    pub fn seal_inline(&mut self, range: Range<u64>) {
        let sealed = self.seal_as(range, |parts| Run(parts.into()));
        self.arrived(sealed.id, Content::Inline(Vec::new()));
    }

    fn seal_as(&mut self, range: Range<u64>, run: impl FnOnce(Vec<Bytes>) -> Run) -> Sealed {
        let parts = self.read(range.clone());
        let run = run(parts.into_iter().map(|(_, part)| part).collect());
        debug_assert_eq!(run.length() as u64, range.end - range.start, "a run without a gap");
        self.clear(range.clone(), false);
        self.last += 1;
        let id = SealId(self.last);
        let (offset, content, written) = (range.start, None, self.written);
        self.seals.insert(id, Seal { offset, run: run.clone(), content, pieces: 0, written });
        self.sending.insert(id);
        let mut at = offset;
        for bytes in run.parts() {
            self.put(at, Piece { bytes: bytes.clone(), seal: Some(id) });
            at += bytes.len() as u64;
        }
        Sealed { id, offset, is_scattered: false, run }
    }

    /// A sealed run has arrived. Nothing happens if nothing is left of it.
    pub fn arrived(&mut self, id: SealId, content: Content) {
        if let Some(seal) = self.seals.get_mut(&id) {
            self.sending.remove(&id);
            self.inline += usize::from(matches!(content, Content::Inline(_)));
            self.arrived += seal.run.length();
            seal.content = Some(content);
        }
        self.tidy(id);
    }

    /// A further copy of a chunk has arrived before its commit.
    pub fn copy_arrived(&mut self, id: SealId, ost: OstIndex) {
        let content = self.seals.get_mut(&id).and_then(|seal| seal.content.as_mut());
        if let Some(Content::Chunk(chunk)) = content {
            let own = chunk.places.iter_mut().filter(|place| place.is_at(ost));
            own.for_each(|place| place.is_stale = false);
        }
    }

    /// A sealed run could not be sent now: its bytes are fresh again.
    pub fn unseal(&mut self, id: SealId) {
        let Some(seal) = self.seals.get(&id) else { return };
        let range = seal.offset..seal.offset + seal.run.length() as u64;
        let pieces = self.pieces.range_mut(range.clone()).map(|(_, piece)| piece);
        pieces.filter(|piece| piece.seal == Some(id)).for_each(|piece| piece.seal = None);
        self.uncover(id, range);
        self.drop_seal(id);
    }

    /// Forgets what is left of a sealed run in `range`: it was committed.
    pub fn committed(&mut self, id: SealId, range: Range<u64>) {
        let own = self.pieces.range(range.clone()).filter(|(_, piece)| piece.seal == Some(id));
        let offsets: Vec<u64> = own.map(|(&offset, _)| offset).collect();
        for offset in offsets {
            self.take(offset);
        }
        self.uncover(id, range);
        self.tidy(id);
    }

    /// Forgets what was written over of a sealed run.
    fn uncover(&mut self, id: SealId, range: Range<u64>) {
        let own = self.covered.range(range).filter(|(_, piece)| piece.seal == Some(id));
        let offsets: Vec<u64> = own.map(|(&offset, _)| offset).collect();
        for offset in offsets {
            self.take_covered(offset);
        }
    }

    /// Forgets a sealed run: it is lost. Says where it was.
    pub fn remove(&mut self, id: SealId) -> Option<Range<u64>> {
        let seal = self.seals.get(&id)?;
        let range = seal.offset..seal.offset + seal.run.length() as u64;
        self.committed(id, range.clone());
        self.drop_seal(id);
        Some(range)
    }

    /// Moves everything from `from` on, so that what was there is at `to`: what was appended has
    /// another place than was believed.
    pub fn shift(&mut self, from: u64, to: u64) {
        if from == to {
            return;
        }
        let place = |offset: u64| (offset - from).saturating_add(to);
        let moved = self.pieces.split_off(&from);
        if to < from {
            // Nothing of what stays may be in the way.
            self.cut(to..u64::MAX);
        }
        self.pieces.extend(moved.into_iter().map(|(offset, piece)| (place(offset), piece)));
        let seals = self.seals.values_mut().filter(|seal| seal.offset >= from);
        seals.for_each(|seal| seal.offset = place(seal.offset));
    }

    /// Are sealed runs up to `last` still on their way?
    pub fn is_sending(&self, last: SealId) -> bool {
        self.sending.first().is_some_and(|&first| first <= last)
    }

    /// Offset and length of the runs that are on their way.
    pub fn sending(&self) -> Vec<(u64, u64)> {
        let seals = self.sending.iter().filter_map(|id| self.seals.get(id));
        seals.map(|seal| (seal.offset, seal.run.length() as u64)).collect()
    }

    /// Is anything left of sealed runs up to `last`?
    pub fn has_sealed(&self, last: SealId) -> bool {
        self.seals.first_key_value().is_some_and(|(&first, _)| first <= last)
    }

    /// Is any sealed run a chunk, here or on its way?
    pub fn has_chunks(&self) -> bool {
        self.seals.len() > self.inline
    }

    pub fn last_seal(&self) -> SealId {
        SealId(self.last)
    }

    /// The last sealed run before which all have arrived.
    pub fn last_arrived(&self) -> SealId {
        self.sending.first().map_or(self.last_seal(), |first| SealId(first.0 - 1))
    }

    /// Does all that is fresh lie behind what is sealed, as where a program writes on and on?
    pub fn is_in_order(&self) -> bool {
        let fresh = self.pieces.iter().find(|(_, piece)| piece.seal.is_none());
        let sealed = self.pieces.iter().rev().find(|(_, piece)| piece.seal.is_some());
        let is_behind = |(fresh, _): (&u64, _)| sealed.is_none_or(|(sealed, _)| sealed < fresh);
        fresh.is_none_or(is_behind)
    }

    /// Bytes of runs that have arrived and wait for their commit.
    pub fn arrived_bytes(&self) -> usize {
        self.arrived
    }

    /// Takes chunks back that were named under another grant: the MDS may have deleted them. They
    /// are to be sent again.
    pub fn disown(&mut self, grant: Option<Grant>) -> Vec<Sealed> {
        let mut again = Vec::new();
        for (&id, seal) in &mut self.seals {
            if let Some(Content::Chunk(chunk)) = &seal.content
                && chunk.chunk.granted().map(|id| id.grant) != grant
            {
                seal.content = None;
                self.arrived -= seal.run.length();
                self.sending.insert(id);
                let (offset, run) = (seal.offset, seal.run.clone());
                again.push(Sealed { id, offset, is_scattered: false, run });
            }
        }
        again
    }

    /// What can be committed now of the runs up to one: at most `limit` extents in order, and not
    /// too many bytes, each with the run it is of.
    pub fn arrivals(&self, limit: usize, upto: SealId) -> Vec<(SealId, Extent)> {
        let mut room = INLINE_PER_COMMIT;
        let fits = |(_, extent): &(SealId, Extent)| match &extent.content {
            Content::Inline(bytes) => {
                let fits = room > 0;
                room = room.saturating_sub(bytes.len());
                fits
            }
            Content::Chunk(_) | Content::Hole => true,
        };
        self.sealed_rows()
            .filter(|row| row.id <= upto)
            .filter_map(|row| self.row_extent(&row))
            .take_while(fits)
            .take(limit)
            .collect()
    }

    /// Pieces of one seal without a gap between them, in order.
    fn sealed_rows(&self) -> impl Iterator<Item = Row<'_>> {
        let mut seen = self.pieces.iter().filter(|(_, piece)| piece.seal.is_some()).peekable();
        let mut covered = self.covered.iter().peekable();
        let in_order = std::iter::from_fn(move || match (seen.peek(), covered.peek()) {
            (Some((seen_at, _)), Some((covered_at, _))) if covered_at <= seen_at => covered.next(),
            (None, Some(_)) => covered.next(),
            _ => seen.next(),
        });
        let mut pieces = in_order
            .filter_map(|(&offset, piece)| Some((offset, piece.seal?, &piece.bytes)))
            .peekable();
        std::iter::from_fn(move || {
            let (offset, id, bytes) = pieces.next()?;
            let mut row = Row { id, offset, length: bytes.len() as u64, parts: vec![bytes] };
            let is_next = |row: &Row<'_>, &(offset, id, _): &(u64, SealId, &Bytes)| {
                id == row.id && offset == row.offset + row.length
            };
            while let Some((_, _, bytes)) = pieces.next_if(|next| is_next(&row, next)) {
                row.length += bytes.len() as u64;
                row.parts.push(bytes);
            }
            Some(row)
        })
    }

    /// `None`: it has not arrived.
    fn row_extent(&self, row: &Row<'_>) -> Option<(SealId, Extent)> {
        let seal = self.seals.get(&row.id)?;
        let content = match seal.content.as_ref()? {
            Content::Chunk(chunk) => {
                let mut chunk = chunk.clone();
                chunk.skip += row.offset - seal.offset;
                Content::Chunk(chunk)
            }
            Content::Inline(_) | Content::Hole => {
                let mut bytes = Vec::with_capacity(row.length as usize);
                row.parts.iter().for_each(|part| bytes.extend_from_slice(part));
                Content::Inline(bytes)
            }
        };
        Some((row.id, Extent { offset: row.offset, length: row.length, content }))
    }

    /// The number of the last write that may be in a run.
    pub fn sealed_upto(&self, id: SealId) -> u64 {
        self.seals.get(&id).map_or(self.written, |seal| seal.written)
    }

    /// What is left of a sealed run: offsets and bytes, in order.
    pub fn pieces_of(&self, id: SealId) -> Vec<(u64, Bytes)> {
        let Some(seal) = self.seals.get(&id) else { return Vec::new() };
        let range = seal.offset..seal.offset + seal.run.length() as u64;
        let own = self.pieces.range(range).filter(|(_, piece)| piece.seal == Some(id));
        own.map(|(&offset, piece)| (offset, piece.bytes.clone())).collect()
    }

    /// The bytes of a run.
    pub fn sealed_run(&self, id: SealId) -> Option<&Run> {
        self.seals.get(&id).map(|seal| &seal.run)
    }
}

#[cfg(test)]
mod tests;
