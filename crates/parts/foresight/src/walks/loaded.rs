//! Libraries and programs: what is loaded, and in what parts.
//!
//! A loader reads the first page of one, and touches others all over it, mostly where its symbols
//! and relocations are: at the beginning and at the end. Each would cost a round trip.

use std::ops::Range;
use tieline_types::{Mode, Name};

const FIRST: u64 = 4 << 20;
const LAST: u64 = 512 << 10;
/// One in more pieces is not brought so.
pub const LOADED_EXTENTS: usize = 256;

/// Is it a library (`x.so`, `x.so.1.2`), or by its mode a program, whose name has no end?
pub fn is_loaded(name: &Name, mode: Mode) -> bool {
    let is_number = |end: &&[u8]| end.iter().all(u8::is_ascii_digit);
    let mut ends = name.as_bytes().rsplit(|byte| *byte == b'.').skip_while(is_number);
    let end = ends.next();
    match ends.next() {
        Some(_) => end == Some(b"so"),
        None => mode.bits() & 0o111 != 0,
    }
}

/// What of a file of that size comes when it is opened.
pub fn loaded(size: u64) -> [Range<u64>; 2] {
    [0..size.min(FIRST), size.saturating_sub(LAST).max(FIRST)..size]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_is_known_by_name_or_mode() {
        let (plain, runs) = (Mode::new(0o644), Mode::new(0o755));
        let is_loaded = |name: &str, mode| is_loaded(&Name::new(name.as_bytes()).unwrap(), mode);
        for name in ["x.so", "libz.so.1.2.13", "a.cpython-311-x86_64-linux-gnu.so"] {
            assert!(is_loaded(name, plain), "{name}");
        }
        assert!(is_loaded("python3", runs) && !is_loaded("Makefile", plain));
        for name in ["run.root", "run.sh", "a.soup", "so.txt"] {
            assert!(!is_loaded(name, runs), "{name}");
        }
        assert_eq!(loaded(1000)[0], 0..1000);
        assert!(loaded(1000)[1].is_empty() && loaded(FIRST)[1].is_empty());
        assert_eq!(loaded(10 << 20)[1], (10 << 20) - LAST..10 << 20);
    }
}
