//! A cache that somebody means, and how it looked.
//!
//! Whether it is still what it was is seen by a look at its file at each use; of caches that are no
//! files a reading says so again, once a second.

use super::names::file_named;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// How long a cache that is no file is believed to be what it was.
const BELIEVED: Duration = Duration::from_secs(1);

/// Whose cache, and which.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Purse {
    pub uid: u32,
    /// As in KRB5CCNAME; `None`: the user's default.
    pub cache: Option<String>,
    /// The tree of files it is in, if that is not ours: a mount namespace.
    pub place: Option<u64>,
}

/// A purse, and who means it.
#[derive(Clone, Debug)]
pub struct Hand {
    pub purse: Purse,
    /// By which the place is found.
    pub process: u32,
    /// What the user's default was, the last time.
    default: Option<String>,
    /// How the cache looked when it was found.
    pub seen: Seen,
    is_gone: bool,
}

/// What a file is known by.
type Stamp = (u64, u64, i64, i64, u64);

/// A cache, as it was when it was used last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    File(Option<Stamp>),
    At(Instant),
}

impl Hand {
    /// May take as long as the cache's user likes. `default` is what his default was, the last
    /// time.
    pub fn of(purse: Purse, process: u32, default: Option<String>) -> Self {
        let default = default.filter(|_| purse.cache.is_none());
        let mut hand = Self { purse, process, default, seen: Seen::File(None), is_gone: false };
        (hand.seen, hand.is_gone) = hand.look();
        hand
    }

    /// How the cache looks now; is it a file that is not there?
    pub(super) fn look(&self) -> (Seen, bool) {
        let named = self.purse.cache.as_deref().or(self.default.as_deref());
        let Some(file) = named.and_then(file_named) else {
            return (Seen::At(Instant::now()), false);
        };
        match std::fs::metadata(self.here(file)) {
            Ok(found) => (Seen::File(Some(stamp(&found))), false),
            Err(error) => (Seen::File(None), error.kind() == std::io::ErrorKind::NotFound),
        }
    }

    /// Was it found as it was then?
    pub fn is_as(&self, then: Seen) -> bool {
        match (then, self.seen) {
            (Seen::File(Some(then)), Seen::File(now)) => now == Some(then),
            (Seen::At(at), Seen::At(_)) => at.elapsed() < BELIEVED,
            _ => false,
        }
    }

    /// The file that KRB5CCNAME names, if it is not there.
    pub fn is_gone(&self) -> Option<&str> {
        self.purse.cache.as_deref().filter(|_| self.is_gone)
    }

    /// Where we find a file of the caller's tree.
    fn here(&self, file: &Path) -> PathBuf {
        let rest = file.strip_prefix("/").unwrap_or(file);
        match self.purse.place {
            Some(_) => Path::new(&format!("/proc/{}/root", self.process)).join(rest),
            None => file.to_owned(),
        }
    }
}

/// Are these looks at one and the same file, or at what is none?
pub(crate) fn is_same_file(before: Seen, after: Seen) -> bool {
    match (before, after) {
        (Seen::File(Some(before)), Seen::File(Some(after))) => {
            (before.0, before.1) == (after.0, after.1)
        }
        (Seen::At(_), Seen::At(_)) => true,
        _ => false,
    }
}

fn stamp(found: &Metadata) -> Stamp {
    (found.dev(), found.ino(), found.mtime(), found.mtime_nsec(), found.size())
}

/// The tree of files that a process sees, if it is not ours.
pub(crate) fn place_of(process: u32) -> Option<u64> {
    let namespace = |process: &str| {
        let found = std::fs::metadata(format!("/proc/{process}/ns/mnt"));
        found.ok().map(|found| found.ino())
    };
    let theirs = namespace(&process.to_string()).filter(|_| process != 0)?;
    (Some(theirs) != namespace("self")).then_some(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_cache_that_changes_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cc");
        let named = format!("FILE:{}", file.display());
        let purse = Purse { uid: 7, cache: Some(named.clone()), place: None };
        let hand = Hand::of(purse, 0, None);
        let look = |hand: &Hand| {
            let (seen, is_gone) = hand.look();
            Hand { seen, is_gone, ..hand.clone() }
        };
        let gone = look(&hand);
        assert!(gone.is_gone().is_some() && !gone.is_as(gone.seen));
        std::fs::write(&file, "one").unwrap();
        let one = look(&hand);
        assert!(look(&hand).is_as(one.seen) && one.is_gone().is_none());
        std::fs::write(&file, "other").unwrap();
        assert!(!look(&hand).is_as(one.seen));
        // A default is looked at as well; whether it still is the default, only a reading says.
        let purse = Purse { cache: None, ..hand.purse.clone() };
        let default = Hand { purse, default: Some(named), ..hand.clone() };
        let seen = look(&default).seen;
        assert!(look(&default).is_as(seen));
        std::fs::remove_file(&file).unwrap();
        assert!(!look(&hand).is_as(seen) && !look(&default).is_as(seen));
        assert!(look(&default).is_gone().is_none());
    }

    #[test]
    fn a_process_that_sees_other_files_is_known() {
        assert_eq!((place_of(0), place_of(std::process::id())), (None, None));
        let mut child = match Command::new("unshare").args(["-m", "sleep", "60"]).spawn() {
            Ok(child) if rustix::process::geteuid().is_root() => child,
            _ => return eprintln!("SKIPPED: no namespaces can be made here"),
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let mut place = None;
        while place.is_none() && std::time::Instant::now() < deadline {
            place = place_of(child.id());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(place.is_some());
    }
}
