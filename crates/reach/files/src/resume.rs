//! Going on where an earlier process was killed, and what is owed when one ends: for a door whose
//! requests outlive its process.

use crate::Files;
use crate::nouns::Access;
use std::sync::Arc;
use tieline_owed::cause::Cause;
use tieline_types::{Caller, FileId, HandleId};

/// Files for a door whose programs keep them open while its process changes.
pub trait Resume: Files {
    /// What a request of the door does is remembered under its number until it is answered; what
    /// an earlier process did for it is found again.
    fn cause(&self, number: u64, is_resent: bool) -> Option<Arc<Cause>>;
    /// Files that programs have open, as an earlier process opened them.
    fn open_files(&self) -> Vec<OpenFile>;

    /// What programs were promised and no server has yet.
    fn unsent(&self) -> Unsent;
}

/// A file that is open.
#[derive(Clone, Debug)]
pub struct OpenFile {
    pub handle: HandleId,
    pub id: FileId,
    pub caller: Caller,
    pub access: Access,
}

/// What programs were promised and no server has yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unsent {
    /// Files with bytes that are not committed.
    pub files: u64,
    pub bytes: u64,
    /// Operations of the journal.
    pub changes: u64,
    /// Targets that it is for and whose servers are not connected.
    pub away: Vec<String>,
}

impl Unsent {
    pub fn is_empty(&self) -> bool {
        self.files == 0 && self.changes == 0
    }
}
