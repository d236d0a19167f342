//! What administrators do, on record once it is done.
//!
//! Who asked for it may be gone before it is known what became of it, and the task that did it with
//! him: then it is on record, too, as what may have been done.
//!
//! Invariant: each deed is written down once.

use super::Audit;
use crate::identities::Who;
use tieline_wire::Failure;

/// See the module.
pub struct Deed<'a> {
    audit: &'a Audit,
    who: &'a Who,
    /// A line each; none once they are written.
    what: Vec<String>,
}

impl<'a> Deed<'a> {
    pub(super) fn new(audit: &'a Audit, who: &'a Who, what: Vec<String>) -> Self {
        Self { audit, who, what }
    }

    /// It is known what became of it.
    pub fn ended<T>(mut self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        match &outcome {
            Ok(_) => self.write("done"),
            Err(failure) => self.write(&format!("failed: {failure}")),
        }
        outcome
    }

    fn write(&mut self, outcome: &str) {
        for what in std::mem::take(&mut self.what) {
            self.audit.act(self.who, &what, outcome);
        }
    }
}

impl Drop for Deed<'_> {
    fn drop(&mut self) {
        self.write("unknown");
    }
}
