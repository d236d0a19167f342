//! What the metadata says of bytes that somebody brought.
//!
//! Whoever answers "which chunks?" has the last word: bytes go on only if they agree with the
//! digest, or the checks, that the metadata has of their chunk. What a data server says of its own
//! bytes finds damage on the way, and no more; ranges from there come with the hashes that lead to
//! the digest, and are judged as they come ([`crate::proven`]).
//!
//! Invariants: what is encoded is judged in the encoding that its digest covers, and handed on
//! plain; nothing is unpacked beyond the chunk's length.

use crate::source::{Piece, Proof};
use bytes::Bytes;
use std::io::Read;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ChunkRef, Digest, Encoding};

/// The piece, plain, if it is what the metadata says.
pub(crate) async fn judged(chunk: &ChunkRef, piece: Piece, source: &str) -> Option<Piece> {
    let encoding = match piece.proof {
        Proof::Judged | Proof::Checks => return Some(piece),
        Proof::Whole(encoding) => encoding,
    };
    let Piece { offset, is_news, .. } = piece;
    let digest = chunk.digest()?;
    if offset == 0
        && let Some(bytes) = whole(chunk.length, piece.bytes, (digest, encoding)).await
    {
        METRICS.cache_served_bytes.with_label_values(&[source]).inc_by(chunk.length);
        return Some(Piece { offset, bytes, proof: Proof::Judged, is_news });
    }
    METRICS.cache_poisoned.with_label_values(&[source]).inc();
    let chunk = chunk.chunk;
    tracing::warn!(%chunk, source, "a chunk does not have the digest of its metadata");
    None
}

/// The plain bytes of a chunk of that length, if what is encoded so has the digest.
///
/// Takes milliseconds for a large chunk: not where others wait for their turn.
pub(crate) async fn whole(
    length: u64,
    bytes: Bytes,
    (digest, encoding): (Digest, Encoding),
) -> Option<Bytes> {
    let judge = move || {
        let covers = digest.covers();
        if covers == encoding {
            return digest.is_of(&bytes).then(|| plain(length, bytes, encoding)).flatten();
        }
        // Packed again it would be other bytes than those that were hashed.
        let plain = plain(length, bytes, encoding).filter(|_| covers == Encoding::Plain)?;
        digest.is_of(&plain).then_some(plain)
    };
    tokio::task::spawn_blocking(judge).await.ok().flatten()
}

/// What is encoded so, if that are so many bytes.
fn plain(length: u64, bytes: Bytes, encoding: Encoding) -> Option<Bytes> {
    let plain = match encoding {
        Encoding::Plain => bytes,
        Encoding::Zlib => {
            let mut unpacked =
                Vec::with_capacity(usize::try_from(length).ok()?.min(UNPACKED_AT_ONCE));
            let stream = flate2::read::ZlibDecoder::new(&bytes[..]);
            stream.take(length + 1).read_to_end(&mut unpacked).ok()?;
            unpacked.into()
        }
    };
    (plain.len() as u64 == length).then_some(plain)
}

/// Room that is made before anything was unpacked: the largest chunk of ours.
const UNPACKED_AT_ONCE: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use tieline_types::Algorithm;

    fn packed(bytes: &[u8]) -> Bytes {
        let mut stream = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
        stream.write_all(bytes).unwrap();
        stream.finish().unwrap().into()
    }

    #[tokio::test]
    async fn bytes_are_judged_as_they_were_hashed_and_handed_on_plain() {
        let bytes = Bytes::from(vec![7; 100_000]);
        let zlib = packed(&bytes);
        let of = |covers, what: &[u8]| Digest::compute(Algorithm::Sha1, covers, what);
        let (of_plain, of_zlib) = (of(Encoding::Plain, &bytes), of(Encoding::Zlib, &zlib));
        for (given, told) in [
            (&bytes, (of_plain, Encoding::Plain)),
            (&zlib, (of_plain, Encoding::Zlib)),
            (&zlib, (of_zlib, Encoding::Zlib)),
        ] {
            assert_eq!(whole(100_000, given.clone(), told).await, Some(bytes.clone()));
            assert_eq!(whole(99_999, given.clone(), told).await, None, "of another length");
            let mut wrong = given.to_vec();
            *wrong.last_mut().unwrap() ^= 1;
            assert_eq!(whole(100_000, wrong.into(), told).await, None);
        }
        assert_eq!(whole(100_000, bytes, (of_zlib, Encoding::Plain)).await, None);
    }

    #[tokio::test]
    async fn what_unpacks_without_end_is_left() {
        let bomb = packed(&vec![0; 4 << 20]);
        let digest = Digest::compute(Algorithm::Sha1, Encoding::Zlib, &bomb);
        assert_eq!(whole(1000, bomb, (digest, Encoding::Zlib)).await, None);
    }
}
