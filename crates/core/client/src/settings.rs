//! What a client is told, and what it is plugged into.

use crate::near::Near;
use crate::spool::Spool;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::{MapCell, Rule};
use tieline_net::Dialer;
use tieline_types::{ByteSize, FileId};
use tieline_world::World;

/// What an operator says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Longest wait for a server that does not answer; past it an errno.
    pub wait: Duration,
    /// Bytes taken from programs and not yet at an OSS; writers wait beyond.
    pub dirty_bytes_max: usize,
    /// Bytes read ahead and kept for readers.
    pub read_bytes_max: usize,
    /// Of these, what was read already. Little, where readers have the kernel's cache.
    pub spent_bytes_max: usize,
    /// The same of small chunks from afar.
    pub lingering_bytes_max: usize,
    /// The most that is fetched ahead of one sequential reader.
    pub window_max: u64,
    /// Connect to data servers before anything is asked of them: for clients that stay.
    pub warms: bool,
    /// How files are read that say nothing else themselves.
    pub read_mode: ReadMode,
    /// Files remembered, beyond those that are open or known to the kernel.
    pub inodes_max: usize,
    /// What is answered of what is known, while a server is out of reach for longer than a lease.
    pub offline: Offline,
    /// Decide names, attributes and small writes here where a directory is held alone, and send
    /// them within a second.
    pub journal: bool,
    /// Positions in listings have 31 bits, for programs that have no more.
    pub short_positions: bool,
    /// What reading does to a file's time of access.
    pub access_times: AccessTimes,
    /// For servers' logs: `mount /extenci on wn17`.
    pub description: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(15 * 60),
            dirty_bytes_max: 128 << 20,
            read_bytes_max: 256 << 20,
            spent_bytes_max: 16 << 20,
            lingering_bytes_max: 32 << 20,
            window_max: 64 << 20,
            warms: false,
            read_mode: ReadMode::Auto,
            inodes_max: 300_000,
            offline: Offline::Error,
            journal: false,
            short_positions: false,
            access_times: AccessTimes::Never,
            description: String::new(),
        }
    }
}

/// What counts while a server is out of reach and its leases have run out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offline {
    /// Nothing: calls wait, and end with an error.
    Error,
    /// What was known last, for reading; changes wait.
    Stale,
}

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

/// Which reads are noted in files' times of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessTimes {
    /// None: reading costs no change.
    Never,
    /// The first after a change, and one a day: as `relatime` means.
    Relative,
}

/// What a client is plugged into.
pub struct Parts {
    pub world: World,
    pub dialer: Arc<dyn Dialer>,
    pub map: MapCell,
    /// The directory that is the root here: an MDT's root, or one below it.
    pub root: FileId,
    pub rule: Rule,
    /// Caches and storage that are nearer than OSSs.
    pub near: Near,
    /// Where bytes go that were answered for and cannot be stored.
    pub spool: Option<Arc<dyn Spool>>,
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
