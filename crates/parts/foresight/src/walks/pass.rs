//! One pass of programs over files: what was opened in it needs not be brought again.
//!
//! A pass ends when a file that was opened in it is read once more and its bytes are not here: what
//! came has gone by then, and others will be read once more, too.
//!
//! Invariant: bounded; who forgets brings something twice.

use super::NOTED_MAX;
use std::collections::BTreeMap;
use tieline_types::FileId;

#[derive(Default)]
pub(super) struct Pass {
    /// Were they opened more than once?
    files: BTreeMap<FileId, bool>,
}

impl Pass {
    pub fn opened(&mut self, file: FileId) {
        if self.files.len() >= NOTED_MAX {
            *self = Self::default();
        }
        self.files.entry(file).and_modify(|is_again| *is_again = true).or_default();
    }

    /// The bytes of a file that is read are not here.
    pub fn lost(&mut self, file: FileId) {
        if self.files.get(&file).is_some_and(|&is_again| is_again) {
            *self = Self::default();
            self.opened(file);
        }
    }

    pub fn has(&self, file: FileId) -> bool {
        self.files.contains_key(&file)
    }
}
