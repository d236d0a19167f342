//! For whom bytes are brought.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tieline_servers::turns::Reader;
use tieline_types::{Caller, FileId};

/// Whose bytes, for whom.
#[derive(Clone, Debug)]
pub struct Whose {
    pub file: FileId,
    pub caller: Caller,
    /// Where in the file the extent begins.
    pub offset: u64,
    /// Who reads, for taking turns.
    pub reader: Reader,
    /// Is set when somebody waits for these bytes.
    pub is_wanted: Arc<AtomicBool>,
}

impl Whose {
    /// For the client itself, on somebody's behalf.
    pub fn own(file: FileId, caller: &Caller) -> Self {
        let (caller, reader) = (caller.clone(), Reader::Own);
        Self { file, caller, offset: 0, reader, is_wanted: Arc::default() }
    }

    /// The same for the file's readers, whichever handle is closed.
    pub fn whoever_reads(&self) -> Self {
        let reader = match self.reader {
            Reader::Handle(_) => Reader::File(self.file),
            other => other,
        };
        Self { reader, ..self.clone() }
    }
}
