//! Files that are opened anew for each piece that is read of them.
//!
//! A kernel knows nothing of what was read through other handles: it takes the end of each piece
//! for the beginning of a stream, and asks for half as much again as is read. Past its cache it
//! asks for what the program reads, if only 1 MiB after the other ([`FULL`]). How long pieces are
//! is learned there, so that the rest of one is on its way with its first request.
//!
//! Knows no place in a file but what it is told.

use super::PAGE;
use super::walk::Walk;
use std::ops::Range;

/// So many times opened.
const OPENED_FROM: u32 = 6;
/// Pieces that lie apart.
const RUNS_FROM: usize = 4;
/// Longer runs are more than a piece: readers divide those.
pub const PIECE_MAX: u64 = 16 << 20;
/// A kernel divides what is read past its cache into requests of 1 MiB; a buffer that does not
/// begin with a page costs it one.
const FULL: u64 = (1 << 20) - PAGE;
/// What is foretold may begin two pages before and after the piece, and with a page.
const ASIDE: u64 = 5 * PAGE;

/// Is that how it was read, only a part of it, and mostly in pieces that are worth it? What a
/// kernel adds to small ones comes true as often as not, and is one request.
pub(super) fn is_anew(walk: &Walk) -> bool {
    let runs = walk.runs();
    let span = runs.iter().map(|run| run.end).max().unwrap_or(0);
    let lengths = || runs.iter().map(|run| run.end - run.start);
    let large: u64 = lengths().filter(|&length| length >= FULL).sum();
    walk.opened() >= OPENED_FROM
        && runs.len() >= RUNS_FROM
        && runs.len() <= 2 * walk.opened() as usize
        && lengths().all(|length| length <= PIECE_MAX)
        && 2 * large >= walk.bytes()
        && 2 * walk.bytes() <= span
}

/// Of what is foretold for a reader past the kernel's cache, what he will ask for: others may have
/// read through the cache. `piece` is what he read on end, with the `request` that came; `longest`
/// the longest piece before it, 0 if there is none.
pub(super) fn as_read(
    foretold: Vec<Range<u64>>,
    (piece, request): (&Range<u64>, &Range<u64>),
    longest: u64,
) -> Vec<Range<u64>> {
    let most = ASIDE + if longest > 0 { longest } else { FULL };
    let clip = |run: Range<u64>| run.start..run.end.min(run.start + most);
    let (rest, others): (Vec<_>, Vec<_>) =
        foretold.into_iter().partition(|run| run.start == request.end);
    let told = rest.first().map(|rest| rest.end);
    let rest =
        rest_of(piece, request, longest).map(|end| request.end..told.unwrap_or(end).min(end));
    rest.into_iter().chain(others.into_iter().map(clip)).collect()
}

/// Where the piece ends, if there is more of it.
fn rest_of(piece: &Range<u64>, request: &Range<u64>, longest: u64) -> Option<u64> {
    let length = piece.end - piece.start;
    if request.end - request.start < FULL || length == longest {
        return None;
    }
    Some(if length < longest { piece.start + longest } else { piece.end + length })
}

#[cfg(test)]
mod tests;
