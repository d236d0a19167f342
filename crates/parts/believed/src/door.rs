//! What a door's own cache has of a file's bytes, and of what it was told: a door that was told of
//! something new has nothing older left to show.
//!
//! Each change that is not our own alone makes another *edition* of the bytes here, as soon as
//! anything tells of it. Whatever is answered (attributes, an open, a lock, bytes) is of an
//! edition, and is answered only when the door has forgotten all bytes of earlier ones. Bytes that
//! are on their way to the door while it is told of a newer edition do not go there: they are read
//! again ([`Door::give`]). So nobody waits for a read that waits for him: what is forgotten lies
//! around the reads that are not answered yet.
//!
//! Knows nothing of leases, extents and pages.
//!
//! Invariants: what the door was told never becomes less; what it holds by this account is not
//! later than the oldest bytes that it has.

use crate::tables::is_provisional;
use std::ops::Range;
use tieline_types::{Extent, Version};

/// Counts what others changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Edition(u64);

/// A read that is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadNumber(u64);

/// What comes of bytes that are ready for the door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Give {
    Given,
    /// The door has been told of newer ones.
    Old,
    /// First it must forget older ones.
    Unclean,
}

pub struct Door {
    /// The newest version that anything told of.
    version: Version,
    edition: Edition,
    told: Edition,
    /// The oldest edition that the door may have bytes of; `None`: it has none.
    held: Option<Edition>,
    /// Counts what it was given.
    given: u64,
    /// It forgets by an open, of whose end nothing was seen yet.
    is_opening: bool,
    reads: Vec<(ReadNumber, Range<u64>)>,
    read_last: u64,
    /// Somebody looks whether what it has is right.
    is_looked_at: bool,
}

impl Default for Door {
    /// It may have anything: an earlier process gave it.
    fn default() -> Self {
        Self {
            version: Version(0),
            edition: Edition(1),
            told: Edition(0),
            held: Some(Edition(0)),
            given: 0,
            is_opening: false,
            reads: Vec::new(),
            read_last: 0,
            is_looked_at: false,
        }
    }
}

impl Door {
    /// Of a file that was not in use: `has` is the version whose bytes the door has.
    pub fn of(version: Version, has: Option<Version>) -> Self {
        let mut door = Self { version, ..Self::default() };
        if has == Some(version) {
            door.held = Some(door.edition);
        }
        door
    }

    /// The version of all bytes that the door has.
    pub fn has(&self) -> Option<Version> {
        self.is_clean(self.edition).then_some(self.version)
    }

    pub fn edition(&self) -> Edition {
        self.edition
    }

    /// Is that version older than what anything told of?
    pub fn is_behind(&self, version: Version) -> bool {
        !is_provisional(self.version) && !is_provisional(version) && version < self.version
    }

    /// Something tells of a version that others may have made.
    pub fn hear(&mut self, version: Version) {
        if is_provisional(version) || is_provisional(self.version) || version <= self.version {
            return;
        }
        if self.version != Version(0) {
            self.edition.0 += 1;
        }
        self.version = version;
    }

    /// An own change made one version of another, and nobody else changed anything meanwhile.
    pub fn changed_here(&mut self, before: Version, after: Version) {
        if self.version == before {
            self.version = after;
        } else {
            self.hear(after);
        }
    }

    /// The file's own version here, which may have been ours alone until now.
    pub fn follow(&mut self, version: Version) {
        if is_provisional(self.version) && !is_provisional(version) {
            self.version = version;
        }
    }

    /// What the door has is not to be shown any more, whatever its version.
    pub fn spoil(&mut self) {
        self.edition.0 += 1;
    }

    /// The door is about to be told of a version. Says which edition must be clean before.
    pub fn tell(&mut self, version: Version) -> Option<Edition> {
        self.hear(version);
        if self.is_behind(version) {
            return None;
        }
        self.told = self.told.max(self.edition);
        (!self.is_clean(self.edition)).then_some(self.edition)
    }

    /// Has it bytes of no earlier edition?
    pub fn is_clean(&self, edition: Edition) -> bool {
        self.held.is_none_or(|held| held >= edition)
    }

    /// It has forgotten whatever it had when it was told of this edition.
    pub fn cleaned(&mut self, edition: Edition) {
        if edition <= self.told && !self.is_clean(edition) {
            self.held = None;
        }
    }

    /// Counts what was given by now.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// It has forgotten all that it had been given by then.
    pub fn forgot(&mut self, given: u64) {
        if self.given == given {
            self.held = None;
        }
    }

    /// It opens the file. Says whether it may keep what it has; else it forgets that with the open.
    pub fn open(&mut self, version: Version, is_first: bool) -> bool {
        self.hear(version);
        self.told = self.told.max(self.edition);
        let keeps = self.is_clean(self.edition) && !self.is_opening;
        if !keeps && is_first && self.reads.is_empty() {
            // Nobody can read what it has but through this open, or a later one.
            (self.held, self.is_opening) = (None, true);
        }
        keeps
    }

    pub fn begin_read(&mut self, range: Range<u64>) -> ReadNumber {
        // Whoever reads has opened.
        self.is_opening = false;
        self.read_last += 1;
        let number = ReadNumber(self.read_last);
        self.reads.push((number, range));
        number
    }

    pub fn end_read(&mut self, number: ReadNumber) {
        self.reads.retain(|(read, _)| *read != number);
    }

    /// Bytes of a read are ready. `is_forced`: they go whatever the door was told.
    pub fn give(&mut self, number: ReadNumber, edition: Edition, is_forced: bool) -> Give {
        if edition < self.told && !is_forced {
            return Give::Old;
        }
        self.told = self.told.max(edition);
        if !self.is_clean(edition) && !is_forced {
            return Give::Unclean;
        }
        self.end_read(number);
        self.has_got(edition);
        Give::Given
    }

    /// A program wrote, and the door has that.
    pub fn wrote(&mut self) {
        self.is_opening = false;
        self.has_got(self.edition);
    }

    /// A handle is closed: it was open, so the door has seen that through.
    pub fn closed(&mut self) {
        self.is_opening = false;
    }

    fn has_got(&mut self, edition: Edition) {
        self.held = Some(self.held.map_or(edition, |held| held.min(edition)));
        self.given += 1;
    }

    /// Somebody is to look whether what it has is right; `false`: nothing is there, or somebody
    /// looks.
    pub fn begin_look(&mut self) -> bool {
        let begins = self.held.is_some() && !self.is_looked_at;
        self.is_looked_at |= begins;
        begins
    }

    pub fn end_look(&mut self) {
        self.is_looked_at = false;
    }

    /// All of the file but what reads under way will bring.
    pub fn around_reads(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<_> = self.reads.iter().map(|(_, range)| range.clone()).collect();
        ranges.sort_by_key(|range| range.start);
        let (mut parts, mut end) = (Vec::new(), 0);
        for range in ranges {
            parts.push(end..range.start);
            end = end.max(range.end);
        }
        parts.push(end..Extent::FILE_SIZE_MAX);
        parts.retain(|part| part.start < part.end);
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door() -> Door {
        Door::of(Version(7), Some(Version(7)))
    }

    #[test]
    fn bytes_that_were_overtaken_on_their_way_do_not_reach_the_door() {
        let mut door = door();
        let (read, old) = (door.begin_read(0..10), door.edition());
        let new = door.tell(Version(8)).expect("it has bytes of before");
        assert_eq!(door.give(read, old, false), Give::Old);
        assert_eq!(door.give(read, new, false), Give::Unclean, "there may be others");
        let around = door.around_reads();
        assert!(around.len() == 1 && around[0] == (10..Extent::FILE_SIZE_MAX), "{around:?}");
        door.cleaned(new);
        assert_eq!(door.give(read, new, false), Give::Given);
        assert_eq!((door.has(), door.tell(Version(8))), (Some(Version(8)), None));
        assert_eq!(door.tell(Version(7)), None, "what is older is no news");
    }

    #[test]
    fn own_changes_leave_what_the_door_has() {
        let mut door = door();
        let own = crate::tables::provisional(3);
        door.changed_here(Version(7), own);
        assert!(door.has() == Some(own) && door.tell(Version(7)).is_none());
        door.changed_here(own, Version(9));
        assert_eq!((door.has(), door.tell(Version(9))), (Some(Version(9)), None));
        door.hear(Version(10));
        assert_eq!(door.has(), None);
    }

    #[test]
    fn what_was_given_while_the_door_forgot_is_there_still() {
        let mut door = door();
        let given = door.given();
        let read = door.begin_read(0..10);
        assert_eq!(door.give(read, door.edition(), false), Give::Given);
        door.forgot(given);
        assert!(door.tell(Version(8)).is_some());
        door.forgot(door.given());
        assert!(door.tell(Version(8)).is_none());
    }

    #[test]
    fn an_open_that_drops_what_was_there_does_so_before_another_keeps_it() {
        let mut door = Door::default();
        assert!(!door.open(Version(7), true), "an earlier process may have given it anything");
        assert!(!door.open(Version(7), false), "the first may not be there yet");
        let read = door.begin_read(0..10);
        assert!(door.open(Version(7), false), "who reads has opened");
        door.end_read(read);
    }
}
