//! Advisory locks on ranges of a file: who holds what, and who is in whose way.
//!
//! The arithmetic of `fcntl` locks: one owner's locks never overlap, a new one replaces what it
//! covers of the owner's own, neighbours of one mode become one. `flock` is the same with the whole
//! file as the range. An MDS keeps a set per file, a client one of its own locks.
//!
//! Invariants: ranges of one owner do not overlap and, with one mode, do not touch; none is empty.

use crate::FileId;
use minicbor::{Decode, Encode};
use std::collections::BTreeMap;

/// Which call took it: the two kinds do not see each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum LockKind {
    /// `fcntl`: a range, owned by a process.
    #[n(1)]
    Posix,
    /// `flock`: the whole file, owned by an open file.
    #[n(2)]
    Flock,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum LockMode {
    #[n(1)]
    Shared,
    #[n(2)]
    Exclusive,
}

/// Bytes from `start` up to and without `end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub struct LockRange {
    #[n(0)]
    pub start: u64,
    #[n(1)]
    pub end: u64,
}

impl LockRange {
    /// Every byte a file can have.
    pub const WHOLE: Self = Self { start: 0, end: 1 << 63 };

    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// The part that lies in `other` too.
    pub fn within(self, other: Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }
}

/// A lock that a program wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockWish {
    pub kind: LockKind,
    /// A process or an open file, as the door numbers them. With `flock` it is the handle, and this
    /// only says whose are the locks of before a build that knew so.
    pub owner: u64,
    pub range: LockRange,
    pub mode: LockMode,
    /// What `F_GETLK` tells others here of the owner.
    pub process: u32,
}

/// A lock that its holder lost because he was silent and somebody else wanted it: with it went all
/// of that kind that the owner had on the file.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LostLock {
    /// Counts what a session lost.
    #[n(0)]
    pub number: u64,
    #[n(1)]
    pub id: FileId,
    #[n(2)]
    pub kind: LockKind,
    #[n(3)]
    pub owner: u64,
    /// Who wanted it, for people: `mount /extenci on wn17 (pid 4711)`.
    #[n(4)]
    pub by: String,
}

/// A lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held<O> {
    pub owner: O,
    pub range: LockRange,
    pub mode: LockMode,
}

/// What one set has of an owner's and another has not, or only weaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Surplus<O> {
    pub held: Held<O>,
    /// What the other has there.
    pub rest: Option<LockMode>,
}

/// Locks of one kind on one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockSet<O> {
    /// By owner and start: the end, and how.
    held: BTreeMap<(O, u64), (u64, LockMode)>,
}

impl<O> Default for LockSet<O> {
    fn default() -> Self {
        Self { held: BTreeMap::new() }
    }
}

impl<O: Ord + Copy> LockSet<O> {
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = Held<O>> + '_ {
        self.held.iter().map(|(&(owner, start), &(end, mode))| Held {
            owner,
            range: LockRange { start, end },
            mode,
        })
    }

    /// Locks of others that are in the way.
    pub fn conflicts(
        &self,
        owner: O,
        range: LockRange,
        mode: LockMode,
    ) -> impl Iterator<Item = Held<O>> + '_ {
        self.iter().filter(move |held| {
            held.owner != owner && held.range.overlaps(range) && modes_conflict(held.mode, mode)
        })
    }

    /// What an owner holds in `range`, in order.
    pub fn of(&self, owner: O, range: LockRange) -> Vec<Held<O>> {
        let own = self.held.range((owner, 0)..(owner, range.end));
        own.filter(|&(_, &(end, _))| end > range.start)
            .map(|(&(owner, start), &(end, mode))| Held {
                owner,
                range: LockRange { start, end },
                mode,
            })
            .collect()
    }

    /// Does the owner hold any?
    pub fn has(&self, owner: O) -> bool {
        self.held.range((owner, 0)..=(owner, u64::MAX)).next().is_some()
    }

    /// Does the owner hold all of `range` in that mode already?
    pub fn covers(&self, owner: O, range: LockRange, mode: LockMode) -> bool {
        // Neighbours of one mode are one.
        let own = self.of(owner, range);
        matches!(own.as_slice(), [one] if one.mode == mode
            && one.range.start <= range.start && range.end <= one.range.end)
    }

    /// Does the owner hold all of `range`, in that mode or a stronger one?
    pub fn suffices(&self, owner: O, range: LockRange, mode: LockMode) -> bool {
        let mut at = range.start;
        for one in self.of(owner, range) {
            if one.range.start > at || one.mode < mode {
                return false;
            }
            at = one.range.end;
        }
        at >= range.end
    }

    /// What is held here beyond what `other` holds.
    pub fn beyond(&self, other: &Self) -> Vec<Surplus<O>> {
        let mut found = Vec::new();
        for one in self.iter() {
            let mut put = |start, end, rest: Option<LockMode>| {
                let held = Held { range: LockRange { start, end }, ..one };
                if !held.range.is_empty() && rest.is_none_or(|rest| rest < one.mode) {
                    found.push(Surplus { held, rest });
                }
            };
            let mut at = one.range.start;
            for part in other.of(one.owner, one.range) {
                let range = part.range.within(one.range);
                put(at, range.start, None);
                put(range.start, range.end, Some(part.mode));
                at = range.end;
            }
            put(at, one.range.end, None);
        }
        found
    }

    /// Gives `range` to the owner in that mode, or frees it.
    pub fn set(&mut self, owner: O, range: LockRange, mode: Option<LockMode>) {
        if range.is_empty() {
            return;
        }
        for old in self.of(owner, range) {
            self.held.remove(&(owner, old.range.start));
            let before = LockRange { start: old.range.start, end: range.start };
            let after = LockRange { start: range.end, end: old.range.end };
            for part in [before, after].into_iter().filter(|part| !part.is_empty()) {
                self.held.insert((owner, part.start), (part.end, old.mode));
            }
        }
        if let Some(mode) = mode {
            self.insert(owner, range, mode);
        }
    }

    /// The range is free of the owner's locks.
    fn insert(&mut self, owner: O, mut range: LockRange, mode: LockMode) {
        let before = self.held.range((owner, 0)..(owner, range.start)).next_back();
        if let Some((&(_, start), &(end, other))) = before
            && end == range.start
            && other == mode
        {
            range.start = start;
        }
        if let Some(&(end, other)) = self.held.get(&(owner, range.end))
            && other == mode
        {
            self.held.remove(&(owner, range.end));
            range.end = end;
        }
        self.held.insert((owner, range.start), (range.end, mode));
    }

    /// Frees the locks of some owners. Says whether there were any.
    pub fn drop_owners(&mut self, is_gone: impl Fn(O) -> bool) -> bool {
        let before = self.held.len();
        self.held.retain(|&(owner, _), _| !is_gone(owner));
        self.held.len() < before
    }
}

pub fn modes_conflict(one: LockMode, other: LockMode) -> bool {
    one == LockMode::Exclusive || other == LockMode::Exclusive
}

#[cfg(test)]
mod tests;
