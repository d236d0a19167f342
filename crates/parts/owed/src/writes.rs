//! Written bytes, until a server has them.
//!
//! Each write is a record. What was committed, cut off or taken into an operation is *cut* out: a
//! record that is cut wholly goes; where a part of it stays, the cut is a record too. Each write of
//! a file has a number, and a cut concerns what was written up to one, so that what was written
//! over it meanwhile stays.
//!
//! Appended bytes have no place yet. They are counted instead, from the first that this file's
//! state has seen: that is their *space*.
//!
//! Invariant: laying the records in their order and then cutting gives what the overlay held.

use crate::cause::{self, Cause};
use crate::records::{self, LeftWrites, MARK_WRITE, WRITE};
use bytes::Bytes;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tieline_keep::{Keep, Kept};
use tieline_types::{Caller, FileId, Time};

/// What offsets count from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Space {
    /// The file's beginning.
    #[n(0)]
    Placed,
    /// The first appended byte.
    #[n(1)]
    Appended,
}

/// Written bytes that are not needed any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Cut {
    #[n(0)]
    pub file: FileId,
    #[n(1)]
    pub space: Space,
    #[n(2)]
    pub start: u64,
    #[n(3)]
    pub end: u64,
    /// Of writes up to this number.
    #[n(4)]
    pub upto: u64,
}

/// Before a write's bytes.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Head {
    #[n(0)]
    pub space: Space,
    #[n(1)]
    pub start: u64,
    #[n(2)]
    pub number: u64,
    #[n(3)]
    pub caller: Caller,
    #[n(4)]
    pub mtime: Time,
    #[n(5)]
    pub clears_setid: bool,
    #[n(6)]
    pub cause: u64,
}

/// The records of one file's writes.
#[derive(Default)]
pub struct Writes {
    /// By space, start and number.
    writes: BTreeMap<(Space, u64, u64), Written>,
    /// No write is longer.
    longest: u64,
    cuts: Vec<(Cut, Option<Kept>)>,
    /// Cuts are looked through when there are so many.
    cuts_full: usize,
    /// The last write.
    pub last: u64,
    /// Bytes that were appended so far, and those that are at a server.
    pub appended: u64,
    pub append_done: u64,
}

struct Written {
    end: u64,
    file: FileId,
    kept: Option<Kept>,
    cause: Option<Arc<Cause>>,
}

impl Drop for Written {
    fn drop(&mut self) {
        if let Some(cause) = &self.cause {
            cause.leave_mark(MARK_WRITE, self.file);
        }
        drop(self.kept.take());
    }
}

/// Who writes, and when.
pub struct Writer<'a> {
    pub caller: &'a Caller,
    pub mtime: Time,
    pub clears_setid: bool,
}

impl Writes {
    /// Puts a write down; says whether there was room. `place` is that of bytes that have one.
    pub fn add(
        &mut self,
        keep: &Keep,
        file: FileId,
        place: Option<u64>,
        data: &Bytes,
        writer: &Writer<'_>,
    ) -> bool {
        self.last += 1;
        let (space, start) = match place {
            Some(offset) => (Space::Placed, offset),
            None => (Space::Appended, self.appended),
        };
        let end = start.saturating_add(data.len() as u64);
        if space == Space::Appended {
            self.appended = end;
        }
        if !keep.is_on() {
            return true;
        }
        let cause = cause::current();
        let Writer { caller, mtime, clears_setid } = *writer;
        let (number, cause_number) = (self.last, cause.as_ref().map_or(0, |cause| cause.number));
        let caller = caller.clone();
        let head = Head { space, start, number, caller, mtime, clears_setid, cause: cause_number };
        let head = tieline_wire::encode(&head);
        let Ok(head_bytes) = u16::try_from(head.len()) else { return false };
        let kept = keep.put(WRITE, file.0, &[&head_bytes.to_le_bytes(), &head, data]);
        let is_kept = kept.is_some();
        if is_kept {
            self.drop_covered(space, start..end);
        }
        self.put((space, start, number), Written { end, file, kept, cause });
        is_kept
    }

    /// What is written over wholly is of no use to anybody.
    fn drop_covered(&mut self, space: Space, range: Range<u64>) {
        let written = self.writes.range((space, range.start, 0)..(space, range.end, 0));
        let covered = written.filter(|(_, write)| write.end <= range.end).map(|(key, _)| *key);
        let covered: Vec<_> = covered.collect();
        covered.iter().for_each(|key| drop(self.writes.remove(key)));
    }

    fn put(&mut self, key: (Space, u64, u64), write: Written) {
        self.longest = self.longest.max(write.end - key.1);
        self.writes.insert(key, write);
    }

    /// The writes that a cut concerns, and whether it takes all of each.
    fn concerned(&self, cut: &Cut) -> impl Iterator<Item = ((Space, u64, u64), bool)> {
        let from = (cut.space, cut.start.saturating_sub(self.longest), 0);
        let writes = self.writes.range(from..(cut.space, cut.end, 0));
        let cut = *cut;
        writes.filter_map(move |(&(space, start, number), write)| {
            let is_concerned = number <= cut.upto && write.end > cut.start;
            let is_whole = cut.start <= start && write.end <= cut.end;
            is_concerned.then_some(((space, start, number), is_whole))
        })
    }

    /// Those that are cut go.
    pub fn cut(&mut self, keep: &Keep, cuts: &[Cut]) {
        for cut in cuts {
            let concerned: Vec<_> = self.concerned(cut).collect();
            let is_one = matches!(concerned.as_slice(), [] | [(_, true)]);
            let record = if is_one { None } else { records::put_cut(keep, cut) };
            for (key, _) in concerned.iter().filter(|(_, is_whole)| *is_whole) {
                self.writes.remove(key);
            }
            if concerned.iter().any(|(_, is_whole)| !is_whole) {
                self.cuts.push((*cut, record));
            }
        }
        if self.cuts.len() > self.cuts_full {
            let mut cuts = std::mem::take(&mut self.cuts);
            cuts.retain(|(cut, _)| self.concerned(cut).next().is_some());
            (self.cuts_full, self.cuts) = (cuts.len() * 2 + 16, cuts);
        }
    }

    /// Nothing that was written waits any more.
    pub fn clear(&mut self) {
        self.writes.clear();
        self.cuts.clear();
        self.append_done = self.appended;
    }

    /// All that was written so far.
    pub fn all(&self, file: FileId) -> Vec<Cut> {
        let cut = |space| Cut { file, space, start: 0, end: u64::MAX, upto: self.last };
        match self.writes.is_empty() {
            true => Vec::new(),
            false => vec![cut(Space::Placed), cut(Space::Appended)],
        }
    }

    /// Goes on with what an earlier process left.
    pub fn restore(&mut self, file: FileId, left: LeftWrites) -> Vec<Laid> {
        let laid = lay(&left);
        for write in left.writes {
            let LeftWrite { head, bytes, kept } = write;
            let range = head.start..head.start.saturating_add(bytes.len() as u64);
            self.last = self.last.max(head.number);
            if head.space == Space::Appended {
                self.appended = self.appended.max(range.end);
            }
            let (space, number) = (head.space, head.number);
            let (kept, cause) = (Some(kept), None);
            let write = Written { end: range.end, file, kept, cause };
            self.put((space, range.start, number), write);
        }
        self.cuts.extend(left.cuts);
        let first = laid.iter().find(|one| one.space == Space::Appended);
        self.append_done = first.map_or(self.appended, |one| one.start);
        laid
    }
}

/// A write that an earlier process left.
pub struct LeftWrite {
    pub head: Head,
    pub bytes: Bytes,
    pub kept: Kept,
}

impl LeftWrite {
    pub fn read(record: Vec<u8>, kept: Kept) -> Option<Self> {
        let record = Bytes::from(record);
        let (head_bytes, rest) = record.split_first_chunk()?;
        let head_bytes = usize::from(u16::from_le_bytes(*head_bytes));
        let (head, _) = rest.split_at_checked(head_bytes)?;
        let head = records::read(head)?;
        Some(Self { head, bytes: record.slice(2 + head_bytes..), kept })
    }
}

/// Bytes as the overlay held them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Laid {
    pub space: Space,
    pub start: u64,
    pub bytes: Bytes,
}

type Pieces = BTreeMap<(Space, u64), (Bytes, u64)>;

/// What the writes laid over each other leave, without what was cut.
pub fn lay(left: &LeftWrites) -> Vec<Laid> {
    let mut writes: Vec<&LeftWrite> = left.writes.iter().collect();
    writes.sort_by_key(|write| write.head.number);
    let mut pieces = Pieces::new();
    for write in writes {
        let Head { space, start, number, .. } = write.head;
        let end = start.saturating_add(write.bytes.len() as u64);
        remove(&mut pieces, space, start..end, u64::MAX);
        pieces.insert((space, start), (write.bytes.clone(), number));
    }
    for (cut, _) in &left.cuts {
        remove(&mut pieces, cut.space, cut.start..cut.end, cut.upto);
    }
    let laid = |((space, start), (bytes, _))| Laid { space, start, bytes };
    pieces.into_iter().map(laid).filter(|laid| !laid.bytes.is_empty()).collect()
}

fn remove(pieces: &mut Pieces, space: Space, range: Range<u64>, upto: u64) {
    let touched: Vec<(Space, u64)> = pieces
        .range((space, 0)..(space, range.end))
        .filter(|((_, start), (bytes, number))| {
            start.saturating_add(bytes.len() as u64) > range.start && *number <= upto
        })
        .map(|(key, _)| *key)
        .collect();
    for key in touched {
        let Some((bytes, number)) = pieces.remove(&key) else { continue };
        let (start, end) = (key.1, key.1.saturating_add(bytes.len() as u64));
        for part in [start..range.start.min(end), range.end.max(start)..end] {
            if !part.is_empty() {
                let slice = (part.start - start) as usize..(part.end - start) as usize;
                pieces.insert((space, part.start), (bytes.slice(slice), number));
            }
        }
    }
}

#[cfg(test)]
mod tests;
