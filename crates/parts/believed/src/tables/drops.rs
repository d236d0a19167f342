//! Letting go of what was learned: when a lease ends, when an own change is in doubt, for want of
//! room.
//!
//! Invariant: whatever a door was told to believe is named when it is dropped.

use super::{Directory, Tables};
use crate::Invalidation;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{FileId, ServerNumber};

impl Tables {
    /// Forgets everything under `unit`; says what a door was told of it.
    pub fn drop_unit(&mut self, unit: FileId) -> Invalidation {
        self.units.release(unit);
        let Some(directory) = self.directories.remove(&unit) else {
            return Invalidation::default();
        };
        Invalidation {
            doubted: directory.told_names.into_iter().map(|name| (unit, name)).collect(),
            attributes: directory.told_files.into_iter().collect(),
            ..Invalidation::default()
        }
    }

    /// An own mutation there may or may not have happened. Until the server is away nothing is
    /// believed.
    pub fn doubt(&mut self, unit: FileId) -> Invalidation {
        self.units.doubt(unit);
        if self.units.tells_last { self.untell(unit) } else { self.drop_unit(unit) }
    }

    /// Says what a door was told of a unit, which stays for when the server is away.
    fn untell(&mut self, unit: FileId) -> Invalidation {
        let Some(directory) = self.directories.get_mut(&unit) else {
            return Invalidation::default();
        };
        let names = std::mem::take(&mut directory.told_names);
        Invalidation {
            doubted: names.into_iter().map(|name| (unit, name)).collect(),
            attributes: std::mem::take(&mut directory.told_files).into_iter().collect(),
            ..Invalidation::default()
        }
    }

    /// The epoch has ended already, so that nothing is believed until the server is away again;
    /// this finds what was told, and frees memory where nothing is told then either.
    pub fn drop_server(&mut self, server: ServerNumber) -> Invalidation {
        let units = self.units.of_server(server);
        if !self.units.tells_last {
            return self.drop_units(&units);
        }
        let mut all = Invalidation::default();
        for unit in units {
            let told = self.untell(unit);
            all.doubted.extend(told.doubted);
            all.attributes.extend(told.attributes);
            if let Some(directory) = self.directories.get_mut(&unit) {
                directory.drop_own_names();
            }
        }
        all
    }

    fn drop_units(&mut self, units: &[FileId]) -> Invalidation {
        let mut all = Invalidation::default();
        for &unit in units {
            all.join(self.drop_unit(unit));
        }
        all
    }

    pub fn is_too_large(&self) -> bool {
        self.inodes.len() > self.shrink_at || self.is_crowded
    }

    /// Lets an eighth of the room become free: directories that take most of it themselves lose
    /// some of their names, then others go whole, the least recently used first.
    pub fn shrink(&mut self) -> Invalidation {
        let mut dropped = Invalidation::default();
        let step = self.inodes_max / 8;
        let target = self.inodes_max - step;
        self.sweep();
        let huge = self.huge();
        for &unit in &huge {
            // As much again is left for what comes ahead of walks elsewhere.
            dropped.join(self.thin(unit, target - step));
        }
        let mut order = self.units.by_use();
        order.retain(|unit| !self.pinned.contains(unit) && !huge.contains(unit));
        for some in order.chunks(order.len().div_ceil(8).max(1)) {
            if self.inodes.len() <= target {
                break;
            }
            dropped.join(self.drop_units(some));
            self.sweep();
        }
        self.bound_marks();
        self.is_crowded = false;
        self.shrink_at = self.inodes_max.max(self.inodes.len() + step);
        METRICS.client_inodes.set(self.inodes.len() as i64);
        dropped
    }

    /// Forgets files that no lease covers, nor did until its server was lost.
    fn sweep(&mut self) {
        let units = &self.units;
        self.inodes.retain(|_, inode| {
            let basis = inode.basis();
            basis.is_some_and(|basis| units.keeps(basis.unit, basis.generation))
        });
    }
}

impl Directory {
    /// What was done here may not have come to the server.
    fn drop_own_names(&mut self) {
        let before = self.names.len();
        self.names.retain(|_, entry| entry.own.is_none());
        if self.names.len() < before {
            self.complete = None;
            self.dropped += 1;
        }
    }
}

impl Invalidation {
    /// Something else that was let go.
    fn join(&mut self, other: Self) {
        self.doubted.extend(other.doubted);
        self.attributes.extend(other.attributes);
    }
}
