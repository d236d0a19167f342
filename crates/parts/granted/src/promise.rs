//! Bytes that one file may take under quotas, as an MDS promised them.

use tieline_types::{Content, Extent, FileId, Gid, Uid};

/// Who pays for a file, as far as is known here: another owner, or another directory, may mean
/// other limits.
pub type Payers = (Uid, Gid, Option<FileId>);

/// What was promised for one file.
#[derive(Clone, Copy, Debug, Default)]
pub struct FilePromise {
    /// No limit concerned it in this epoch.
    free_in: Option<u64>,
    /// Whose it was when this was asked; `None`: nobody knew.
    payers: Option<Payers>,
    /// At the MDT, and not used by a commit yet.
    granted: u64,
    /// Of that: what written bytes that wait here may take.
    drawn: u64,
    /// By commits so far.
    used: u64,
    /// The MDS holds some, by its last answer. Nobody knows how much of it a commit used that was
    /// carried out before a start of the MDS, and answered after it.
    is_held_there: bool,
}

impl FilePromise {
    /// No limit concerned the file of these payers in this epoch.
    pub fn free(epoch: u64, payers: Option<Payers>) -> Self {
        Self { free_in: Some(epoch), payers, ..Self::default() }
    }

    pub fn is_free_in(&self, epoch: u64) -> bool {
        self.free_in == Some(epoch)
    }

    /// Was it of the same payers that something was asked?
    pub fn is_of(&self, payers: Payers) -> bool {
        self.payers == Some(payers)
    }

    /// What written bytes that wait may take.
    pub fn drawn(&self) -> u64 {
        self.drawn
    }

    /// Nobody counted how much waits of a file that was free: it is so much.
    pub fn count(&mut self, waits: u64) {
        if self.free_in.is_some() {
            self.drawn = waits;
        }
    }

    /// Somebody else changes the file: perhaps who pays for it.
    pub fn doubt_payers(&mut self) {
        self.payers = None;
    }

    pub fn is_some(&self) -> bool {
        self.granted > 0 || self.drawn > 0
    }

    /// Is there anything to be given back?
    pub fn may_be_held(&self) -> bool {
        self.is_some() || self.is_held_there
    }

    /// A commit used of it. If nobody knows how much: all that the extents could.
    pub fn used(&mut self, grown: Option<u64>, extents: &[Extent]) {
        let held = extents.iter().filter(|extent| extent.content != Content::Hole);
        let most = held.map(|extent| extent.length).sum();
        let used = grown.unwrap_or(most).min(most);
        self.granted = self.granted.saturating_sub(used);
        self.drawn = self.drawn.saturating_sub(used);
        self.used += used;
    }

    /// So much is asked for: nothing beyond it may be drawn until it is answered. Says how much had
    /// been used by then.
    pub fn ask(&mut self, wanted: u64) -> u64 {
        self.granted = self.granted.min(wanted);
        self.used
    }

    /// The answer. What was used since the question may be of it already.
    pub fn answered(&mut self, granted: u64, used_before: u64, payers: Option<Payers>) {
        (self.free_in, self.payers) = (None, payers);
        self.granted = granted.saturating_sub(self.used.saturating_sub(used_before));
        self.is_held_there = granted > 0;
    }

    /// Nothing waits any more.
    pub fn rest(&mut self) {
        self.drawn = 0;
    }

    pub fn draw(&mut self, bytes: u64) -> bool {
        let is_enough = self.granted.saturating_sub(self.drawn) >= bytes;
        if is_enough {
            self.drawn += bytes;
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A commit that was answered after a start of the MDS used more here than there.
    #[test]
    fn what_the_mds_may_hold_is_given_back_whatever_is_counted_here() {
        let extent = Extent { offset: 0, length: 100, content: Content::Inline(vec![1; 100]) };
        let mut promise = FilePromise::default();
        assert!(!promise.may_be_held());
        promise.answered(100, 0, None);
        promise.used(None, &[extent]);
        assert!(!promise.is_some() && promise.may_be_held());
        let used = promise.ask(0);
        promise.answered(0, used, None);
        assert!(!promise.may_be_held());
    }
}
