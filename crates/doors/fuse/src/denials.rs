//! The last denials of a mount: a program hears EACCES or EPERM, and asks for the reason later.
//!
//! The virtual attribute [`NAME`] of any file tells whoever asks what was denied to his uid, and
//! root what was denied to anybody: a line for each, the newest last. A line is separated by tabs:
//! milliseconds ago, uid, number of the file (of the directory, for names), operation, errno and
//! the reason, with the id that finds it in a server's log where a server was asked.
//!
//! It begins with `system.`, which the kernel lets everybody read, also who may do nothing else.
//!
//! Invariant: at most [`OF_ONE_MAX`] denials of a uid are kept, and [`KEPT_MAX`] of all.

use crate::call::Call;
use crate::errno::Refusal;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_files::Error;
use tieline_types::FileId;
use tokio::time::Instant;

pub const NAME: &str = "system.tieline.denials";
/// All fit into the 64 KiB of an attribute.
const KEPT_MAX: usize = 96;
const OF_ONE_MAX: usize = 32;
const REASON_MAX: usize = 500;

/// See the module.
#[derive(Default)]
pub struct Denials(Mutex<VecDeque<Denial>>);

struct Denial {
    at: Instant,
    uid: u32,
    file: FileId,
    operation: &'static str,
    errno: Errno,
    reason: String,
}

impl Denials {
    /// Remembers why a call was refused, if it is about rights, or about who asks.
    pub fn note(&self, call: &Call, refusal: &Refusal) {
        let Refusal { errno, cause: Some(error) } = refusal else { return };
        if !refusal.is_denial() && !call.is_unknown() {
            return;
        }
        let reason: String = reason_of(error).chars().take(REASON_MAX).collect();
        let (uid, file, operation) = (call.header.uid, call.id(), call.opcode.label());
        tracing::info!(uid, %file, operation, reason, "denied");
        let reason = reason.replace(['\t', '\n'], " ");
        self.keep(Denial { at: Instant::now(), uid, file, operation, errno: *errno, reason });
    }

    fn keep(&self, denial: Denial) {
        let mut kept = self.lock();
        let of_one = kept.iter().filter(|known| known.uid == denial.uid).count();
        if of_one >= OF_ONE_MAX {
            let oldest = kept.iter().position(|known| known.uid == denial.uid);
            oldest.and_then(|oldest| kept.remove(oldest));
        } else if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(denial);
    }

    /// What a uid may know.
    pub fn tell(&self, uid: u32) -> String {
        let mut told = String::new();
        for denial in self.lock().iter().filter(|denial| uid == 0 || denial.uid == uid) {
            let Denial { at, uid, file, operation, errno, reason } = denial;
            let (ago, errno) = (at.elapsed().as_millis(), errno.raw_os_error());
            // Writing to a string does not fail.
            let _ = writeln!(told, "{ago}\t{uid}\t{}\t{operation}\t{errno}\t{reason}", file.0);
        }
        told
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Denial>> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error and what it came from, as one clause.
fn reason_of(error: &Error) -> String {
    let mut reason = error.to_string();
    if let Error::Late { detail, .. } = error {
        let _ = write!(reason, ": {detail}");
    }
    let mut source = std::error::Error::source(error);
    while let Some(deeper) = source {
        let _ = write!(reason, ": {deeper}");
        source = deeper.source();
    }
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(uid: u32, file: u64) -> Denial {
        let (errno, reason) = (Errno::ACCESS, "no (denial 01234567)".to_owned());
        let at = Instant::now();
        Denial { at, uid, file: FileId(file), operation: "open", errno, reason }
    }

    #[test]
    fn everybody_hears_of_his_own_and_root_of_all() {
        let denials = Denials::default();
        denials.keep(denial(5, 1));
        denials.keep(denial(6, 2));
        let own = denials.tell(6);
        let fields: Vec<&str> = own.trim_end().split('\t').collect();
        assert_eq!(fields[1..], ["6", "2", "open", "13", "no (denial 01234567)"]);
        assert_eq!(denials.tell(0).lines().count(), 2);
        assert_eq!(denials.tell(7), "");
    }

    #[test]
    fn the_newest_are_kept_and_nobody_takes_all_the_room() {
        let denials = Denials::default();
        denials.keep(denial(1, 7));
        (0..1000).for_each(|file| denials.keep(denial(2, file)));
        assert_eq!((denials.tell(1).lines().count(), denials.tell(2).lines().count()), (1, 32));
        assert!(denials.tell(2).ends_with("\t999\topen\t13\tno (denial 01234567)\n"));
        (10..1000).for_each(|uid| denials.keep(denial(uid, 1)));
        assert_eq!(denials.tell(0).lines().count(), KEPT_MAX);
    }
}
