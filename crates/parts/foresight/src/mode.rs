//! How a file is to be read, as somebody asked for it: RFIO's words.

use std::fmt;
use std::str::FromStr;
use tieline_types::ByteSize;

/// How a file is read ahead, in RFIO's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadMode {
    /// As its readers show.
    #[default]
    Auto,
    /// What is asked for, and nothing else.
    Normal,
    /// A buffer of so many bytes at a time.
    ReadBuffer(u64),
    /// A window ahead of wherever is read.
    ReadAhead,
    /// As much as the way takes, from wherever is read.
    Stream,
}

/// The buffer of [`ReadMode::ReadBuffer`] unless told otherwise: RFIO's own was 128 KiB.
pub const READ_BUFFER: u64 = 128 << 10;
const READ_BUFFER_LEAST: u64 = 4 << 10;
const READ_BUFFER_MOST: u64 = 64 << 20;

/// A word that names no mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadReadMode {
    #[error("`auto`, `normal`, `readbuf`, `readbuf:SIZE`, `readahead` or `stream`")]
    Unknown,
    #[error("a buffer of 4 KiB to 64 MiB, as `readbuf:512k`")]
    Buffer,
}

impl ReadMode {
    pub fn buffer(size: &str) -> Result<Self, BadReadMode> {
        let size: ByteSize = size.parse().map_err(|_| BadReadMode::Buffer)?;
        let is_useful = (READ_BUFFER_LEAST..=READ_BUFFER_MOST).contains(&size.0);
        if is_useful { Ok(Self::ReadBuffer(size.0)) } else { Err(BadReadMode::Buffer) }
    }
}

impl FromStr for ReadMode {
    type Err = BadReadMode;

    fn from_str(word: &str) -> Result<Self, BadReadMode> {
        match word.split_once(':') {
            Some(("readbuf", size)) => Self::buffer(size),
            Some(_) => Err(BadReadMode::Unknown),
            None => match word {
                "auto" => Ok(Self::Auto),
                "normal" => Ok(Self::Normal),
                "readbuf" => Ok(Self::ReadBuffer(READ_BUFFER)),
                "readahead" => Ok(Self::ReadAhead),
                "stream" => Ok(Self::Stream),
                _ => Err(BadReadMode::Unknown),
            },
        }
    }
}

impl fmt::Display for ReadMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Normal => f.write_str("normal"),
            Self::ReadBuffer(size) => write!(f, "readbuf:{size}"),
            Self::ReadAhead => f.write_str("readahead"),
            Self::Stream => f.write_str("stream"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_named_as_rfio_named_them() {
        let modes = ["auto", "normal", "readbuf:524288", "readahead", "stream"];
        for word in modes {
            assert_eq!(word.parse::<ReadMode>().unwrap().to_string(), word);
        }
        assert_eq!("readbuf".parse(), Ok(ReadMode::ReadBuffer(READ_BUFFER)));
        assert_eq!("readbuf:512k".parse(), Ok(ReadMode::ReadBuffer(512 << 10)));
        assert_eq!("readbuf:1".parse::<ReadMode>(), Err(BadReadMode::Buffer));
        assert_eq!("readbuf:much".parse::<ReadMode>(), Err(BadReadMode::Buffer));
        assert_eq!("fast".parse::<ReadMode>(), Err(BadReadMode::Unknown));
        assert_eq!("stream:1".parse::<ReadMode>(), Err(BadReadMode::Unknown));
    }
}
