//! The checksums that are known by name, summed up from bytes as they come; and those that XRootD's
//! servers keep beside a file.
//!
//! Knows no file system.

use crc_fast::CrcAlgorithm;
use md5::{Digest, Md5};
use std::io::{self, Write};

/// A checksum of a whole file, Adler-32 apart: that one the servers know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Md5,
    Crc32c,
    /// That of zlib.
    Zcrc32,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Md5, Self::Crc32c, Self::Zcrc32];

    /// As XRootD calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Crc32c => "crc32c",
            Self::Zcrc32 => "zcrc32",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Bytes of its value.
    fn length(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Crc32c | Self::Zcrc32 => 4,
        }
    }
}

enum State {
    Md5(Md5),
    Crc(Box<crc_fast::Digest>),
}

/// Several checksums of the bytes that are written to it.
pub struct Summing(Vec<(Kind, State)>);

impl Summing {
    pub fn new(kinds: &[Kind]) -> Self {
        let crc = |algorithm| State::Crc(Box::new(crc_fast::Digest::new(algorithm)));
        let state = |kind| match kind {
            Kind::Md5 => State::Md5(Md5::new()),
            Kind::Crc32c => crc(CrcAlgorithm::Crc32Iscsi),
            Kind::Zcrc32 => crc(CrcAlgorithm::Crc32IsoHdlc),
        };
        Self(kinds.iter().map(|&kind| (kind, state(kind))).collect())
    }

    pub fn end(self) -> Vec<(Kind, Vec<u8>)> {
        let end = |(kind, state)| match state {
            State::Md5(md5) => (kind, md5.finalize().to_vec()),
            State::Crc(crc) => (kind, (crc.finalize() as u32).to_be_bytes().to_vec()),
        };
        self.0.into_iter().map(end).collect()
    }
}

impl Write for Summing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for (_, state) in &mut self.0 {
            match state {
                State::Md5(md5) => md5.update(bytes),
                State::Crc(crc) => crc.update(bytes),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The digits that people compare.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What XRootD's servers keep in the attribute `user.XrdCks.KIND`, if it is of the file as it is
/// now.
///
/// A name of 16 bytes, the file's time (8 bytes) and more, the value's length at 31, the value from
/// 32; numbers are big-endian.
pub fn kept_by_xrootd<'v>(kind: &str, value: &'v [u8], mtime_seconds: i64) -> Option<&'v [u8]> {
    let time = i64::from_be_bytes(value.get(16..24)?.try_into().ok()?);
    let name = value.get(..16)?.split(|&byte| byte == 0).next()?;
    let length = usize::from(*value.get(31)?);
    let kept = value.get(32..32 + length)?;
    (name == kind.as_bytes() && time == mtime_seconds).then_some(kept)
}

/// The same, of a checksum whose length is known.
pub fn kept(kind: Kind, value: &[u8], mtime_seconds: i64) -> Option<&[u8]> {
    kept_by_xrootd(kind.name(), value, mtime_seconds).filter(|kept| kept.len() == kind.length())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(bytes: &[u8]) -> Vec<String> {
        let mut summing = Summing::new(&Kind::ALL);
        bytes.chunks(3).for_each(|piece| summing.write_all(piece).unwrap());
        summing.end().into_iter().map(|(_, sum)| hex(&sum)).collect()
    }

    #[test]
    fn the_check_value_of_each() {
        let all = ["25f9e794323b453885f5181f1b624d0b", "e3069283", "cbf43926"];
        assert_eq!(sums(b"123456789"), all);
        assert_eq!(sums(b"")[0], "d41d8cd98f00b204e9800998ecf8427e");
        assert!(Kind::ALL.iter().all(|&kind| Kind::named(kind.name()) == Some(kind)));
    }

    #[test]
    fn what_xrootd_keeps_is_read() {
        let mut value = vec![0; 96];
        value[..6].copy_from_slice(b"crc32c");
        value[16..24].copy_from_slice(&1_700_000_000_i64.to_be_bytes());
        value[31] = 4;
        value[32..36].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(kept(Kind::Crc32c, &value, 1_700_000_000), Some(&[1, 2, 3, 4][..]));
        assert_eq!(kept(Kind::Crc32c, &value, 1_700_000_001), None);
        assert_eq!(kept(Kind::Md5, &value, 1_700_000_000), None);
        assert_eq!(kept(Kind::Crc32c, &value[..20], 1_700_000_000), None);
    }
}
