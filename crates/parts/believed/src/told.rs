//! What is told of what is believed: how far to believe it, and what not to believe any more.

use std::collections::BTreeSet;
use std::ops::Range;
use tieline_types::{Attributes, FileId, Name};

/// What rests on leases: good while none of them was recalled since.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Belief {
    /// Lease units and the generation each had when it was read. Empty: good once.
    pub units: Vec<(FileId, u64)>,
}

impl Belief {
    /// What rests on both: good while each of them is, and on nothing if one does.
    pub fn and(self, other: Self) -> Self {
        if self.units.is_empty() || other.units.is_empty() {
            return Self::default();
        }
        let units: BTreeSet<_> = self.units.into_iter().chain(other.units).collect();
        Self { units: units.into_iter().collect() }
    }
}

/// Attributes, and how far to believe them.
#[derive(Clone, Debug)]
pub struct Known {
    pub attributes: Attributes,
    pub belief: Belief,
}

/// What a door must forget.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Invalidation {
    /// Names that change.
    pub entries: Vec<(FileId, Name)>,
    /// Names that may only not be believed any more: to be asked for again at their next use.
    pub doubted: Vec<(FileId, Name)>,
    /// Files whose attributes may not be believed any more.
    pub attributes: Vec<FileId>,
    /// Files whose bytes change.
    pub data: Vec<FileId>,
    /// Parts of files whose bytes change, without those that are on their way to the door.
    pub parts: Vec<(FileId, Range<u64>)>,
    /// A mutation of this client is under way in that directory, which holds its lock in the
    /// kernel: do not wait for it.
    pub is_contended: bool,
    /// Directories are elsewhere from now on (a door asks for their way): those among `entries`, or
    /// this one if there are none. Who stands in one is to see its new path.
    pub moved: Option<FileId>,
}
