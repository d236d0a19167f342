//! Signed texts: lines, `--`, the digest of the lines, and the signature of that digest's spelling.

use crate::hash;
use tieline_types::Digest;

/// The largest that is looked at: a manifest has some lines, a whitelist one for each certificate.
pub const BYTES_MAX: u64 = 1 << 20;
const SEPARATOR: &[u8] = b"\n--\n";

/// The parts of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sealed<'b> {
    /// With its last line's end.
    pub text: &'b str,
    /// As it is spelt: what is signed.
    pub hash: &'b str,
    pub signature: &'b [u8],
}

/// Bytes that are no signed text, or not the one that was signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("it has more than a mebibyte")]
    Large,
    #[error("it is no signed text")]
    Shape,
    #[error("its text is not the one whose digest was signed")]
    Digest,
}

/// The parts of a text, whose digest is right. The signature is not looked at.
pub fn open(bytes: &[u8]) -> Result<Sealed<'_>, SealError> {
    if bytes.len() as u64 > BYTES_MAX {
        return Err(SealError::Large);
    }
    let parts = || {
        let at = bytes.windows(SEPARATOR.len()).position(|window| window == SEPARATOR)?;
        let (text, rest) = (bytes.get(..=at)?, bytes.get(at + SEPARATOR.len()..)?);
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let (hash, signature) = (rest.get(..end)?, rest.get(end + 1..)?);
        let text = std::str::from_utf8(text).ok()?;
        Some(Sealed { text, hash: std::str::from_utf8(hash).ok()?, signature })
    };
    let sealed = parts().ok_or(SealError::Shape)?;
    let digest = hash::parse(sealed.hash).ok_or(SealError::Shape)?;
    digest.is_of(sealed.text.as_bytes()).then_some(sealed).ok_or(SealError::Digest)
}

/// A text with its seal; `sign` is given what is to be signed.
pub fn close<E>(
    text: &str,
    algorithm: tieline_types::Algorithm,
    sign: impl FnOnce(&str) -> Result<Vec<u8>, E>,
) -> Result<Vec<u8>, E> {
    let digest: Digest = hash::of_text(algorithm, text.as_bytes());
    let hash = hash::text(&digest);
    let signature = sign(&hash)?;
    Ok([text.as_bytes(), b"--\n", hash.as_bytes(), b"\n", &signature].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::Algorithm;

    #[test]
    fn what_is_closed_is_opened_and_no_bit_may_flip_before_the_signature() {
        let sign = |_: &str| Ok::<_, ()>(b"\n--\nsigned".to_vec());
        let closed = close("Cabc\nD240\n", Algorithm::Shake128, sign).unwrap();
        let opened = open(&closed).unwrap();
        assert_eq!((opened.text, opened.signature), ("Cabc\nD240\n", &b"\n--\nsigned"[..]));
        for at in 0..closed.len() - opened.signature.len() {
            for bit in 0..8 {
                let mut bad = closed.clone();
                bad[at] ^= 1 << bit;
                let other = open(&bad).map(|sealed| (sealed.text, sealed.hash));
                assert!(other.is_err(), "{at} {bit}: {other:?}");
            }
        }
        assert_eq!(open(b"no seal"), Err(SealError::Shape));
    }
}
