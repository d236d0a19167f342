//! Digests: by which algorithm, and of which bytes.
//!
//! The same chunk may lie compressed at one place and plain at another, and was hashed in one of
//! the two: so a digest says which. Of a file system's own chunks it is the BLAKE3 of their plain
//! bytes; repositories in CVMFS's format hash what lies at the server.
//!
//! Invariants: a digest has one spelling, which is also its name in caches; what is written of a
//! BLAKE3 of plain bytes is what was written when there was no other.

use minicbor::bytes::ByteSlice;
use minicbor::{Decode, Decoder, Encode, Encoder, data, decode, encode};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use shake::digest::{ExtendableOutput, Update};
use std::fmt;
use std::str::FromStr;

/// How bytes were hashed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Algorithm {
    #[n(1)]
    Blake3,
    #[n(2)]
    Sha256,
    /// The three of repositories in CVMFS's format, 160 bits each. SHA-1 is what most have: it
    /// finds damage, and forgery only as far as nobody made two files of one digest beforehand.
    #[n(3)]
    Sha1,
    #[n(4)]
    Ripemd160,
    /// The first 160 bits of it.
    #[n(5)]
    Shake128,
}

impl Algorithm {
    const ALL: [Self; 5] =
        [Self::Blake3, Self::Sha256, Self::Sha1, Self::Ripemd160, Self::Shake128];

    /// Its number on disk and on the wire.
    pub fn number(self) -> u8 {
        match self {
            Self::Blake3 => 1,
            Self::Sha256 => 2,
            Self::Sha1 => 3,
            Self::Ripemd160 => 4,
            Self::Shake128 => 5,
        }
    }

    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.number() == number)
    }

    /// Bytes of its digests.
    pub const fn length(self) -> usize {
        match self {
            Self::Blake3 | Self::Sha256 => 32,
            Self::Sha1 | Self::Ripemd160 | Self::Shake128 => 20,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Sha256 => "sha256",
            Self::Sha1 => "sha1",
            Self::Ripemd160 => "rmd160",
            Self::Shake128 => "shake128",
        }
    }
}

/// How the bytes of a chunk lie somewhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum Encoding {
    /// As programs read them.
    #[default]
    #[n(1)]
    Plain,
    /// One stream of zlib's format (RFC 1950).
    #[n(2)]
    Zlib,
}

impl Encoding {
    const ALL: [Self; 2] = [Self::Plain, Self::Zlib];

    /// Its number on disk and on the wire.
    pub fn number(self) -> u8 {
        match self {
            Self::Plain => 1,
            Self::Zlib => 2,
        }
    }

    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.number() == number)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Zlib => "zlib",
        }
    }

    /// The most bytes that `length` plain ones take: what zlib adds to bytes that it cannot make
    /// smaller, as its own bound for a compressor with any settings has it.
    pub fn stored_max(self, length: u64) -> u64 {
        match self {
            Self::Plain => length,
            Self::Zlib => length + (length >> 3) + (length >> 6) + 64,
        }
    }
}

/// The digest of a whole chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    covers: Encoding,
    /// Zeroes behind what the algorithm has.
    bytes: [u8; 32],
}

impl Digest {
    /// `None`: no digest of that algorithm has so many bytes.
    pub fn new(algorithm: Algorithm, covers: Encoding, value: &[u8]) -> Option<Self> {
        let mut bytes = [0; 32];
        bytes.get_mut(..algorithm.length()).filter(|own| own.len() == value.len())?;
        bytes[..value.len()].copy_from_slice(value);
        Some(Self { algorithm, covers, bytes })
    }

    /// A BLAKE3 of plain bytes.
    pub const fn blake3(bytes: [u8; 32]) -> Self {
        Self { algorithm: Algorithm::Blake3, covers: Encoding::Plain, bytes }
    }

    /// The BLAKE3 of these plain bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self::blake3(*blake3::hash(bytes).as_bytes())
    }

    /// Of bytes that are encoded so.
    pub fn compute(algorithm: Algorithm, covers: Encoding, bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish(covers)
    }

    /// Do these bytes, which are encoded as it covers, have it?
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        self.is_of_parts([bytes])
    }

    pub fn is_of_parts<'p>(&self, parts: impl IntoIterator<Item = &'p [u8]>) -> bool {
        let mut hasher = Hasher::new(self.algorithm);
        parts.into_iter().for_each(|part| hasher.update(part));
        hasher.finish(self.covers) == *self
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// In which encoding the bytes were hashed.
    pub fn covers(&self) -> Encoding {
        self.covers
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.length()]
    }

    /// A BLAKE3 of plain bytes, as file systems keep it of their own chunks.
    pub fn as_blake3(&self) -> Option<&[u8; 32]> {
        let is_usual = self.algorithm == Algorithm::Blake3 && self.covers == Encoding::Plain;
        is_usual.then_some(&self.bytes)
    }
}

/// `0123…` for a BLAKE3 of plain bytes, else `0123…-sha1` or `0123…-sha1-zlib`.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        if self.as_blake3().is_some() {
            return Ok(());
        }
        write!(f, "-{}", self.algorithm.name())?;
        match self.covers {
            Encoding::Plain => Ok(()),
            encoding => write!(f, "-{}", encoding.name()),
        }
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Text that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a digest (expected hexadecimal, or such as `HEX-sha1` or `HEX-sha1-zlib`)")]
pub struct DigestError(String);

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split('-');
            let value = unhex(parts.next()?)?;
            let algorithm = match parts.next() {
                None => Algorithm::Blake3,
                Some(name) => Algorithm::ALL.into_iter().find(|known| known.name() == name)?,
            };
            let covers = match parts.next() {
                None => Encoding::Plain,
                Some(name) => Encoding::ALL.into_iter().find(|known| known.name() == name)?,
            };
            Self::new(algorithm, covers, &value)
        };
        // Only the spelling that `Display` writes: one chunk, one name.
        parse().filter(|digest| digest.to_string() == text).ok_or(DigestError(text.to_owned()))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// A BLAKE3 of plain bytes is its 32 bytes; others are a list of algorithm, encoding and bytes.
impl<C> Encode<C> for Digest {
    fn encode<W: encode::Write>(
        &self,
        e: &mut Encoder<W>,
        ctx: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        if let Some(bytes) = self.as_blake3() {
            return e.bytes(bytes)?.ok();
        }
        e.array(3)?.encode_with(self.algorithm, ctx)?.encode_with(self.covers, ctx)?;
        e.bytes(self.as_bytes())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Digest {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, decode::Error> {
        let wrong = || decode::Error::message("a digest of another length");
        if matches!(d.datatype()?, data::Type::Bytes) {
            return d.bytes()?.try_into().map(Self::blake3).map_err(|_| wrong());
        }
        if d.array()? != Some(3) {
            return Err(decode::Error::message("not a digest"));
        }
        let (algorithm, covers) = (d.decode_with(ctx)?, d.decode_with(ctx)?);
        let value: &ByteSlice = d.decode_with(ctx)?;
        Self::new(algorithm, covers, value).ok_or_else(wrong)
    }
}

/// Hashes bytes as they come.
pub struct Hasher(Inner);

enum Inner {
    Blake3(Box<blake3::Hasher>),
    Sha256(Sha256),
    Sha1(Sha1),
    Ripemd160(ripemd::Ripemd160),
    Shake128(shake::Shake128),
}

impl Hasher {
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Blake3 => Inner::Blake3(Box::default()),
            Algorithm::Sha256 => Inner::Sha256(Sha256::default()),
            Algorithm::Sha1 => Inner::Sha1(Sha1::default()),
            Algorithm::Ripemd160 => Inner::Ripemd160(ripemd::Ripemd160::default()),
            Algorithm::Shake128 => Inner::Shake128(shake::Shake128::default()),
        })
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Inner::Blake3(hasher) => drop(hasher.update(bytes)),
            Inner::Sha256(hasher) => Update::update(hasher, bytes),
            Inner::Sha1(hasher) => Update::update(hasher, bytes),
            Inner::Ripemd160(hasher) => Update::update(hasher, bytes),
            Inner::Shake128(hasher) => hasher.update(bytes),
        }
    }

    /// The digest of all of them, which are encoded so.
    pub fn finish(self, covers: Encoding) -> Digest {
        let of = |algorithm, value: &[u8]| {
            let mut bytes = [0; 32];
            bytes[..value.len()].copy_from_slice(value);
            Digest { algorithm, covers, bytes }
        };
        match self.0 {
            Inner::Blake3(hasher) => of(Algorithm::Blake3, hasher.finalize().as_bytes()),
            Inner::Sha256(hasher) => of(Algorithm::Sha256, &hasher.finalize()),
            Inner::Sha1(hasher) => of(Algorithm::Sha1, &hasher.finalize()),
            Inner::Ripemd160(hasher) => of(Algorithm::Ripemd160, &hasher.finalize()),
            Inner::Shake128(hasher) => {
                let mut value = [0; Algorithm::Shake128.length()];
                hasher.finalize_xof_into(&mut value);
                of(Algorithm::Shake128, &value)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `b2sum`'s relatives and OpenSSL print them of `abc`.
    #[test]
    fn each_algorithm_is_what_others_mean_by_it() {
        for (algorithm, known) in [
            (Algorithm::Blake3, "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
            (
                Algorithm::Sha256,
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad-sha256",
            ),
            (Algorithm::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d-sha1"),
            (Algorithm::Ripemd160, "8eb208f7e05d987a9b044a8e98c6b087f15a0bfc-rmd160"),
            (Algorithm::Shake128, "5881092dd818bf5cf8a3ddb793fbcba74097d5c5-shake128"),
        ] {
            let digest = Digest::compute(algorithm, Encoding::Plain, b"abc");
            assert_eq!(digest.to_string(), known);
            assert!(digest.is_of_parts([&b"a"[..], b"bc"]) && !digest.is_of(b"abd"));
        }
    }

    #[test]
    fn a_digest_has_one_spelling() {
        let zlib = Digest::compute(Algorithm::Sha1, Encoding::Zlib, b"abc");
        assert_eq!(zlib.to_string(), "a9993e364706816aba3e25717850c26c9cd0d89d-sha1-zlib");
        for digest in [zlib, Digest::of(b"x")] {
            assert_eq!(digest.to_string().parse(), Ok(digest));
        }
        for wrong in [
            "",
            "00",
            "A9993E364706816ABA3E25717850C26C9CD0D89D-sha1",
            "a9993e364706816aba3e25717850c26c9cd0d89d",
            "a9993e364706816aba3e25717850c26c9cd0d89d-sha1-plain",
            "a9993e364706816aba3e25717850c26c9cd0d89d-sha1-zlib-x",
            "a9993e364706816aba3e25717850c26c9cd0d8-sha1",
            "+9993e364706816aba3e25717850c26c9cd0d89d-sha1",
        ] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_usual_digest_is_written_as_before_there_were_others() {
        let usual = Digest::of(b"abc");
        let bytes = minicbor::to_vec(usual).expect("memory takes it");
        assert_eq!((&bytes[..2], &bytes[2..]), (&[0x58, 32][..], &usual.bytes[..]));
        let other = Digest::compute(Algorithm::Sha1, Encoding::Zlib, b"abc");
        for digest in [usual, other] {
            let bytes = minicbor::to_vec(digest).expect("memory takes it");
            assert_eq!(minicbor::decode::<Digest>(&bytes).ok(), Some(digest));
        }
        assert!(minicbor::decode::<Digest>(&[0x41, 7]).is_err(), "one byte is none");
    }
}
