//! Digests of bodies, and the headers that ask for and carry them: `Want-Digest` and `Digest` (RFC
//! 3230, as the grid spells them), `Want-Repr-Digest`, `Repr-Digest` and `Content-Digest` (RFC
//! 9530).
//!
//! The old headers write Adler-32 and CRC32C in hexadecimal digits, MD5 and SHA-256 in base64; the
//! new ones write base64 of the bytes, and call Adler-32 `adler`.
//!
//! Invariants: what is unknown is passed over; a value that cannot be read is no digest.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::Digest as _;
use std::fmt::Write as _;

/// Values in one header that are looked at.
const VALUES_MAX: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Algorithm {
    Adler32,
    Crc32c,
    Md5,
    Sha256,
}

impl Algorithm {
    pub const ALL: [Self; 4] = [Self::Adler32, Self::Crc32c, Self::Md5, Self::Sha256];

    /// In `Digest`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adler32 => "adler32",
            Self::Crc32c => "crc32c",
            Self::Md5 => "md5",
            Self::Sha256 => "sha-256",
        }
    }

    /// In `Repr-Digest`.
    pub fn new_name(self) -> &'static str {
        if self == Self::Adler32 { "adler" } else { self.name() }
    }

    /// By either name, in letters of any case.
    pub fn from_name(name: &str) -> Option<Self> {
        let is_named = |one: &Self| {
            [one.name(), one.new_name()].iter().any(|known| known.eq_ignore_ascii_case(name))
        };
        Self::ALL.into_iter().find(is_named)
    }

    /// Bytes of a value.
    pub fn length(self) -> usize {
        match self {
            Self::Adler32 | Self::Crc32c => 4,
            Self::Md5 => 16,
            Self::Sha256 => 32,
        }
    }

    fn is_in_digits(self) -> bool {
        matches!(self, Self::Adler32 | Self::Crc32c)
    }
}

/// A digest's value. Has as many bytes as its algorithm gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Digest {
    algorithm: Algorithm,
    bytes: Vec<u8>,
}

impl Digest {
    /// `None` if an algorithm's values are of another length.
    pub fn new(algorithm: Algorithm, bytes: impl Into<Vec<u8>>) -> Option<Self> {
        let bytes = bytes.into();
        (bytes.len() == algorithm.length()).then_some(Self { algorithm, bytes })
    }

    pub fn adler32(value: u32) -> Self {
        Self { algorithm: Algorithm::Adler32, bytes: value.to_be_bytes().to_vec() }
    }

    pub fn crc32c(value: u32) -> Self {
        Self { algorithm: Algorithm::Crc32c, bytes: value.to_be_bytes().to_vec() }
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As it stands in `Digest`.
    pub fn to_digest(&self) -> String {
        let name = self.algorithm.name();
        if !self.algorithm.is_in_digits() {
            return format!("{name}={}", STANDARD.encode(&self.bytes));
        }
        let mut text = format!("{name}=");
        for byte in &self.bytes {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// As it stands in `Repr-Digest` and `Content-Digest`.
    pub fn to_repr_digest(&self) -> String {
        format!("{}=:{}:", self.algorithm.new_name(), STANDARD.encode(&self.bytes))
    }

    /// What a `Digest` header has of what is known here. CRC32C was in base64 once.
    pub fn parse_digest(value: &str) -> Vec<Self> {
        let parse = |(name, value): (&str, &str)| {
            let algorithm = Algorithm::from_name(name)?;
            let digits = || if algorithm.is_in_digits() { from_digits(value) } else { None };
            Self::new(algorithm, digits().or_else(|| STANDARD.decode(value).ok())?)
        };
        pairs(value, '=').filter_map(parse).collect()
    }

    /// What a `Repr-Digest` or `Content-Digest` header has of what is known here.
    pub fn parse_repr_digest(value: &str) -> Vec<Self> {
        let parse = |(name, value): (&str, &str)| {
            let value = value.split(';').next().unwrap_or_default().trim();
            let base64 = value.strip_prefix(':')?.strip_suffix(':')?;
            Self::new(Algorithm::from_name(name)?, STANDARD.decode(base64).ok()?)
        };
        pairs(value, '=').filter_map(parse).collect()
    }
}

/// The known ones that `Want-Digest` asks for, the most wanted first: `adler32;q=1, md5;q=0.5`.
pub fn parse_want_digest(value: &str) -> Vec<Algorithm> {
    let wanted = value.split(',').take(VALUES_MAX).filter_map(|part| {
        let (name, parameters) = part.split_once(';').unwrap_or((part, ""));
        let weight =
            parameters.split(';').find_map(|parameter| parameter.trim().strip_prefix("q="));
        let weight = weight.map_or(Some(1.0), |weight| weight.trim().parse::<f32>().ok())?;
        Some((Algorithm::from_name(name.trim())?, (weight.clamp(0.0, 1.0) * 1000.0) as u32))
    });
    by_weight(wanted)
}

/// The known ones that `Want-Repr-Digest` asks for, the most wanted first: `sha-256=10, adler=3`.
pub fn parse_want_repr_digest(value: &str) -> Vec<Algorithm> {
    let wanted = pairs(value, '=').filter_map(|(name, weight)| {
        let weight = weight.split(';').next().unwrap_or_default().trim();
        Some((Algorithm::from_name(name)?, weight.parse().ok()?))
    });
    by_weight(wanted)
}

fn by_weight(wanted: impl Iterator<Item = (Algorithm, u32)>) -> Vec<Algorithm> {
    let mut wanted: Vec<_> = wanted.filter(|(_, weight)| *weight > 0).collect();
    wanted.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    let mut algorithms: Vec<Algorithm> = Vec::new();
    for (algorithm, _) in wanted {
        if !algorithms.contains(&algorithm) {
            algorithms.push(algorithm);
        }
    }
    algorithms
}

fn pairs(value: &str, between: char) -> impl Iterator<Item = (&str, &str)> {
    let parts = value.split(',').take(VALUES_MAX);
    parts.filter_map(move |part| {
        let (name, value) = part.split_once(between)?;
        Some((name.trim(), value.trim()))
    })
}

/// 1 to 8 hexadecimal digits: some servers leave leading zeros away.
fn from_digits(text: &str) -> Option<Vec<u8>> {
    let is_number = matches!(text.len(), 1..=8) && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_number.then(|| u32::from_str_radix(text, 16).ok())?.map(|value| value.to_be_bytes().to_vec())
}

/// Computes digests of bytes that pass.
pub struct Hashing {
    hashes: Vec<Hash>,
    length: u64,
}

enum Hash {
    Adler32(simd_adler32::Adler32),
    Crc32c(Box<crc_fast::Digest>),
    Md5(Box<md5::Md5>),
    Sha256(Box<sha2::Sha256>),
}

impl Hashing {
    pub fn new(algorithms: &[Algorithm]) -> Self {
        let hash = |algorithm: &Algorithm| match algorithm {
            Algorithm::Adler32 => Hash::Adler32(simd_adler32::Adler32::new()),
            Algorithm::Crc32c => {
                let digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
                Hash::Crc32c(Box::new(digest))
            }
            Algorithm::Md5 => Hash::Md5(Box::default()),
            Algorithm::Sha256 => Hash::Sha256(Box::default()),
        };
        Self { hashes: algorithms.iter().map(hash).collect(), length: 0 }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        for hash in &mut self.hashes {
            match hash {
                Hash::Adler32(hash) => hash.write(bytes),
                Hash::Crc32c(hash) => hash.update(bytes),
                Hash::Md5(hash) => hash.update(bytes),
                Hash::Sha256(hash) => hash.update(bytes),
            }
        }
    }

    /// Bytes so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// In the order in which the algorithms were given.
    pub fn finish(self) -> Vec<Digest> {
        let digest = |hash| match hash {
            Hash::Adler32(hash) => Digest::adler32(hash.finish()),
            // The 32-bit algorithms of the library return their value in the low half.
            Hash::Crc32c(hash) => Digest::crc32c(hash.finalize() as u32),
            Hash::Md5(hash) => {
                Digest { algorithm: Algorithm::Md5, bytes: hash.finalize().to_vec() }
            }
            Hash::Sha256(hash) => {
                Digest { algorithm: Algorithm::Sha256, bytes: hash.finalize().to_vec() }
            }
        };
        self.hashes.into_iter().map(digest).collect()
    }
}

#[cfg(test)]
mod tests;
