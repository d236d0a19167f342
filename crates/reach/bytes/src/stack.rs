//! Sources one above the other.
//!
//! Each is asked for what those before it have not; what comes from far is offered to all above.
//! What they bring is judged before it goes on.
//!
//! Invariant: nothing goes on, or up, that does not agree with the metadata.

use crate::Whose;
use crate::judge::judged;
use crate::source::{Fault, Outcome, Piece, Source, Wish};
use bytes::{Bytes, BytesMut};
use std::ops::Range;
use std::sync::Arc;
use tieline_types::{ChunkRef, ErrorKind};

/// A gap smaller than this is not worth a request of its own beside another.
const GAP_MIN: u64 = 64 << 10;

/// From the nearest to the farthest.
pub struct Stack(Vec<Arc<dyn Source>>);

impl Stack {
    pub fn new(sources: Vec<Arc<dyn Source>>) -> Self {
        Self(sources)
    }

    /// A range of a chunk, as wide as it came.
    pub async fn fetch(&self, chunk: &ChunkRef, range: Range<u64>, whose: &Whose) -> Outcome {
        let (chunk, whose) = (chunk.clone(), whose.clone());
        let wish = Wish { chunk, ranges: vec![range.clone()], whose, until: None };
        let pieces = self.bring(&wish).await?;
        let nowhere = || {
            let what = format!("chunk {}, which no source has", wish.chunk.chunk);
            Fault { kind: ErrorKind::Gone, what }
        };
        if missing(&range, &pieces).is_empty() { Ok(join(range, pieces)) } else { Err(nowhere()) }
    }
}

#[async_trait::async_trait]
impl Source for Stack {
    fn name(&self) -> &'static str {
        "stack"
    }

    async fn bring(&self, wish: &Wish) -> Result<Vec<Piece>, Fault> {
        let (mut wish, wanted) = (wish.clone(), wish.ranges.clone());
        let mut had: Vec<Piece> = Vec::new();
        for (above, source) in self.0.iter().enumerate() {
            for piece in source.bring(&wish).await? {
                let Some(piece) = judged(&wish.chunk, piece, source.name()).await else {
                    continue;
                };
                if piece.is_news {
                    self.0[..above].iter().for_each(|upper| upper.keep(&wish.chunk, &piece));
                }
                had.push(piece);
            }
            wish.ranges = wanted.iter().flat_map(|range| missing(range, &had)).collect();
            if wish.ranges.is_empty() {
                break;
            }
        }
        Ok(had)
    }

    fn keep(&self, chunk: &ChunkRef, piece: &Piece) {
        self.0.iter().for_each(|source| source.keep(chunk, piece));
    }
}

/// What of a range is in none of the pieces, with small gaps between such ranges fetched again.
pub(crate) fn missing(range: &Range<u64>, pieces: &[Piece]) -> Vec<Range<u64>> {
    let mut had: Vec<Range<u64>> = pieces.iter().map(Piece::range).collect();
    had.sort_by_key(|range| range.start);
    let mut missing: Vec<Range<u64>> = Vec::new();
    let mut at = range.start;
    for had in had.into_iter().chain(std::iter::once(range.end..range.end)) {
        let from = had.start.min(range.end);
        if from > at {
            match missing.last_mut() {
                Some(last) if at - last.end < GAP_MIN => last.end = from,
                _ => missing.push(at..from),
            }
        }
        at = at.max(had.end);
    }
    missing
}

/// The bytes of a range, all of which are in the pieces.
pub(crate) fn join(range: Range<u64>, mut pieces: Vec<Piece>) -> (u64, Bytes) {
    let covers = |piece: &&Piece| {
        let found = piece.range();
        found.start <= range.start && found.end >= range.end
    };
    if let Some(piece) = pieces.iter().filter(covers).max_by_key(|piece| piece.bytes.len()) {
        return (piece.offset, piece.bytes.clone());
    }
    pieces.sort_by_key(|piece| piece.offset);
    let mut joined = BytesMut::with_capacity((range.end - range.start) as usize);
    let mut at = range.start;
    for piece in pieces {
        let (offset, end) = (piece.offset, piece.range().end.min(range.end));
        if end > at && offset <= at {
            joined.extend_from_slice(&piece.bytes[(at - offset) as usize..(end - offset) as usize]);
            at = end;
        }
    }
    (range.start, joined.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Proof;

    // A list of one range, where others have more.
    #[allow(clippy::single_range_in_vec_init)]
    #[test]
    fn what_is_missing_is_fetched_and_little_else() {
        let run = |range: Range<u64>| {
            Piece::new(range.start, vec![1; range.count()].into(), Proof::Judged)
        };
        let of = |runs: &[Piece]| missing(&(100..1_000_000), runs);
        assert_eq!(of(&[]), [100..1_000_000]);
        assert_eq!(of(&[run(100..1_000_000)]), []);
        assert_eq!(of(&[run(0..2_000_000)]), []);
        assert_eq!(of(&[run(100..200_000)]), [200_000..1_000_000]);
        assert_eq!(of(&[run(300_000..400_000)]), [100..300_000, 400_000..1_000_000]);
        assert_eq!(of(&[run(300_000..300_100)]), [100..1_000_000], "too little to spare a request");
        assert_eq!(of(&[run(300_000..999_999), run(100..300_000)]), [999_999..1_000_000]);
    }

    #[test]
    fn runs_are_joined_where_they_meet_or_overlap() {
        let bytes = Bytes::from((0..100).collect::<Vec<u8>>());
        let run =
            |range: Range<usize>| Piece::new(range.start as u64, bytes.slice(range), Proof::Judged);
        let (offset, joined) = join(5..90, vec![run(50..100), run(0..20), run(15..50)]);
        assert_eq!((offset, &joined[..]), (5, &bytes[5..90]));
        assert_eq!(join(5..90, vec![run(0..100)]), (0, bytes.clone()));
        assert_eq!(join(5..90, vec![run(5..20), run(0..100)]), (0, bytes.clone()), "not copied");
    }
}
