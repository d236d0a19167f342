//! Many ranges in one read, and how many those may be.

use crate::{Error, Result};
use std::ops::Range;
use tieline_types::{ByteSize, ErrorKind, Extent};

/// As root://'s readv has it.
pub const RANGES_MAX: usize = 1024;
/// Bytes in one call, all ranges together: they are in memory at once.
pub const RANGES_BYTES_MAX: u64 = 256 << 20;

/// Refuses what nobody answers in one call; says what to do instead.
pub fn check_ranges(ranges: &[Range<u64>]) -> Result<()> {
    let refused = |what: String| Err(Error::local(ErrorKind::InvalidArgument, what));
    if ranges.len() > RANGES_MAX {
        let count = ranges.len();
        return refused(format!("{count} ranges in one read: ask for {RANGES_MAX} at a time"));
    }
    let is_possible =
        |range: &Range<u64>| range.start <= range.end && range.end <= Extent::FILE_SIZE_MAX;
    if let Some(range) = ranges.iter().find(|range| !is_possible(range)) {
        return refused(format!("no file has bytes from {} to {}", range.start, range.end));
    }
    let lengths = ranges.iter().map(|range| range.end - range.start);
    let bytes = lengths.fold(0, u64::saturating_add);
    if bytes > RANGES_BYTES_MAX {
        let most = ByteSize(RANGES_BYTES_MAX);
        return refused(format!("{bytes} bytes in one read: ask for {most} at a time"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_refused() {
        assert!(check_ranges(&vec![0..1; RANGES_MAX]).is_ok());
        assert!(check_ranges(&[0..RANGES_BYTES_MAX, 5..5]).is_ok());
        let backwards = Range { start: 7, end: 3 };
        let wrong = [
            vec![0..1; RANGES_MAX + 1],
            vec![0..RANGES_BYTES_MAX, 0..1],
            vec![backwards],
            vec![0..u64::MAX, 0..u64::MAX],
        ];
        for ranges in wrong {
            let error = check_ranges(&ranges).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }
}
