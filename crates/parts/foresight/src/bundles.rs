//! Bundles as an MDS keeps them: which are of one program, and how a new run joins what was known.
//!
//! Invariants: a tree has at most [`KEPT_MAX`] of them, and one principal takes no others' places
//! beyond a quarter; what a program opens no more is forgotten after [`MISSED_MAX`] other runs.

use std::collections::BTreeSet;
use tieline_format::mdt::{Bundle, BundleHead, BundleMember};
use tieline_types::{FileId, Uid};
use tieline_wire::trees::{BUNDLE_MAX, SIGNS_MAX};

/// Programs of one tree.
pub const KEPT_MAX: usize = 16;
/// Fewer files are not worth it.
pub const FILES_MIN: usize = 4;
/// Runs that did without a file until it is forgotten.
const MISSED_MAX: u8 = 4;
/// So many places are left to each who has programs of his own there.
const PLACES_OF_ONE: usize = KEPT_MAX / 4;

/// What one run opened.
pub fn of_run(directories: &[FileId], files: &[FileId]) -> Bundle {
    let members = |ids: &[FileId]| {
        let mut seen = BTreeSet::new();
        let first = ids.iter().copied().filter(|id| seen.insert(*id)).take(BUNDLE_MAX);
        first.map(|id| BundleMember { id, missed: 0 }).collect()
    };
    Bundle { directories: members(directories), files: members(files) }
}

/// Are both runs of one program? Three quarters of what the longer one opened are in both.
pub fn are_same(one: &Bundle, other: &Bundle) -> bool {
    let known: BTreeSet<FileId> = one.files.iter().map(|member| member.id).collect();
    let shared = other.files.iter().filter(|member| known.contains(&member.id)).count();
    4 * shared >= 3 * one.files.len().max(other.files.len())
}

/// What is known of a program when it ran once more: as it went now, and behind that what it
/// opened before and not now.
pub fn joined(old: &Bundle, new: &Bundle) -> Bundle {
    let members = |old: &[BundleMember], new: &[BundleMember]| {
        let known: BTreeSet<FileId> = new.iter().map(|member| member.id).collect();
        let missed = old.iter().filter(|member| !known.contains(&member.id));
        let missed = missed.map(|one| BundleMember { missed: one.missed + 1, ..one.clone() });
        let kept = missed.filter(|member| member.missed < MISSED_MAX);
        new.iter().cloned().chain(kept).take(BUNDLE_MAX).collect()
    };
    Bundle {
        directories: members(&old.directories, &new.directories),
        files: members(&old.files, &new.files),
    }
}

/// Files by which a bundle is recognised: its first ones, and some from everywhere.
pub fn signs(bundle: &Bundle) -> Vec<FileId> {
    let ids = || bundle.files.iter().map(|member| member.id);
    let step = bundle.files.len().div_ceil(SIGNS_MAX / 2).max(1);
    let mut seen = BTreeSet::new();
    let both = ids().take(SIGNS_MAX / 2).chain(ids().step_by(step));
    both.filter(|id| seen.insert(*id)).collect()
}

/// Which of these, the one used last first, makes room for another of somebody's? `None`: there is
/// room.
pub fn to_replace(heads: &[BundleHead], by: Uid) -> Option<usize> {
    if heads.len() < KEPT_MAX {
        return None;
    }
    let count = |uid: Uid| heads.iter().filter(|head| head.by == uid).count();
    let most = heads.iter().map(|head| count(head.by)).max().unwrap_or(0);
    let gives = |head: &BundleHead| {
        if count(by) >= PLACES_OF_ONE { head.by == by } else { count(head.by) == most }
    };
    heads.iter().rposition(gives)
}

#[cfg(test)]
mod tests;
