//! What `stat` tells of a file.

use crate::{Acls, ContentVersion, FileId, Gid, OnTape, Uid, Version};
use minicbor::{Decode, Encode};
use std::fmt;

/// What a file is. The numbers are on disk and on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum FileKind {
    #[n(1)]
    Regular,
    #[n(2)]
    Directory,
    #[n(3)]
    Symlink,
    #[n(4)]
    Fifo,
    #[n(5)]
    Socket,
    #[n(6)]
    CharDevice,
    #[n(7)]
    BlockDevice,
}

impl FileKind {
    /// The `S_IFMT` bits of Linux.
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    pub fn from_mode_bits(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 | 0 => Self::Regular,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }
}

/// Permission bits, setuid, setgid and sticky: the low 12 bits of `st_mode`, without the kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Encode, Decode)]
#[cbor(transparent)]
pub struct Mode(#[n(0)] u32);

impl Mode {
    pub const SETUID: u32 = 0o4000;
    pub const SETGID: u32 = 0o2000;
    pub const STICKY: u32 = 0o1000;

    /// Keeps the low 12 bits.
    pub fn new(bits: u32) -> Self {
        Self(bits & 0o7777)
    }

    pub fn bits(self) -> u32 {
        self.0 & 0o7777
    }

    pub fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }

    pub fn without(self, bits: u32) -> Self {
        Self::new(self.0 & !bits)
    }

    /// After somebody without special rights wrote the file, or it changed hands: no setuid, and no
    /// setgid, unless the group may not execute and whoever did it may set it.
    pub fn without_setid(self, may_setgid: bool) -> Self {
        const GROUP_EXECUTES: u32 = 0o010;
        let kept = self.without(Self::SETUID);
        let keeps_setgid = may_setgid && !kept.has(GROUP_EXECUTES);
        if keeps_setgid { kept } else { kept.without(Self::SETGID) }
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mode({:#o})", self.0)
    }
}

/// A point in time: seconds since 1970 (may be negative) and nanoseconds within the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Encode, Decode)]
pub struct Time {
    #[n(0)]
    pub seconds: i64,
    /// 0 to 999,999,999.
    #[n(1)]
    pub nanos: u32,
}

impl Time {
    /// What a clock says that counts from 1970.
    pub fn of_clock(wall: std::time::Duration) -> Self {
        Self { seconds: wall.as_secs() as i64, nanos: wall.subsec_nanos() }
    }

    /// Milliseconds since 1970; none before it.
    pub fn millis(self) -> u64 {
        (self.seconds.max(0) as u64) * 1000 + u64::from(self.nanos / 1_000_000)
    }

    /// Is an access at `now` to be noted, as `relatime` means it: the first after a change, and one
    /// a day?
    pub fn is_access_due(atime: Self, changed: Self, now: Self) -> bool {
        const DAY_SECONDS: i64 = 24 * 60 * 60;
        atime <= changed || now.seconds.saturating_sub(atime.seconds) >= DAY_SECONDS
    }

    /// When a file was modified and changed, once bytes that were written at `written` are in it.
    ///
    /// The time that it has already was set for these bytes, or is theirs. One beyond its change
    /// was set ahead, and ends with what is written. Else neither goes back: of two who write, the
    /// later counts.
    pub fn after_write((mtime, ctime): (Self, Self), written: Self) -> (Self, Self) {
        if written == mtime {
            return (mtime, ctime);
        }
        let was_set_ahead = mtime > ctime;
        (if was_set_ahead { written } else { mtime.max(written) }, ctime.max(written))
    }
}

/// A time to set: one that was given, or the server's own now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum SetTime {
    #[n(1)]
    Now,
    #[n(2)]
    At(#[n(0)] Time),
}

/// What `stat` tells of a file.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Attributes {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub kind: FileKind,
    #[n(2)]
    pub mode: Mode,
    #[n(3)]
    pub links: u32,
    #[n(4)]
    pub uid: Uid,
    #[n(5)]
    pub gid: Gid,
    /// Bytes, as `st_size`.
    #[n(6)]
    pub size: u64,
    /// Bytes that extents cover, holes left out: `st_blocks` is this in units of 512, rounded up.
    #[n(7)]
    pub stored: u64,
    /// Device number of special files, in Linux's 32-bit encoding.
    #[n(8)]
    pub device: u32,
    #[n(9)]
    pub atime: Time,
    #[n(10)]
    pub mtime: Time,
    #[n(11)]
    pub ctime: Time,
    #[n(12)]
    pub btime: Time,
    /// Number of the commit that last changed the data or names below: equal means nothing changed.
    #[n(13)]
    pub version: Version,
    /// Are there extended attributes? `None`: not known.
    #[n(14)]
    pub has_xattrs: Option<bool>,
    /// Access lists, if it has any.
    #[n(15)]
    pub acls: Option<Box<Acls>>,
    /// Project for quotas, if it is of one.
    #[n(16)]
    pub project: Option<u32>,
    /// Does another client write it? Then size and times are as of this answer and no longer.
    #[n(17)]
    pub is_written: Option<bool>,
    /// Number of the commit that last changed the bytes, if `version` is of a later one that did
    /// not.
    #[n(18)]
    pub content: Option<Version>,
    /// How it stands to its copy on tape, if it has one.
    #[n(19)]
    pub tape: Option<OnTape>,
}

impl Attributes {
    /// Of what was made at `at`: root's, with nothing in it and nothing else known of it.
    pub fn new(id: FileId, kind: FileKind, mode: Mode, at: Time) -> Self {
        Self {
            id,
            kind,
            mode,
            links: if kind == FileKind::Directory { 2 } else { 1 },
            uid: Uid(0),
            gid: Gid(0),
            size: 0,
            stored: 0,
            device: 0,
            atime: at,
            mtime: at,
            ctime: at,
            btime: at,
            version: Version(0),
            has_xattrs: None,
            acls: None,
            project: None,
            is_written: None,
            content: None,
            tape: None,
        }
    }

    /// Must something of it be fetched from tape before all of it can be read?
    pub fn is_nearline(&self) -> bool {
        self.tape.is_some_and(OnTape::is_nearline)
    }

    /// Which bytes it has.
    pub fn content_version(&self) -> ContentVersion {
        ContentVersion { file: self.id, commit: self.content.unwrap_or(self.version) }
    }

    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_takes_privileges_away() {
        assert_eq!(Mode::new(0o6755).without_setid(true), Mode::new(0o755));
        // Setgid without group execution marked mandatory locks.
        assert_eq!(Mode::new(0o6745).without_setid(true), Mode::new(0o2745));
        assert_eq!(Mode::new(0o6745).without_setid(false), Mode::new(0o745));
    }

    #[test]
    fn what_is_written_moves_times_forwards_but_for_those_that_were_set() {
        let time = |seconds| Time { seconds, nanos: 0 };
        let after = |(mtime, ctime), written| {
            let (mtime, ctime) = Time::after_write((time(mtime), time(ctime)), time(written));
            (mtime.seconds, ctime.seconds)
        };
        assert_eq!(after((10, 10), 20), (20, 20));
        assert_eq!(after((30, 30), 20), (30, 30), "another wrote later");
        assert_eq!(after((10, 25), 20), (20, 25), "another changed its mode later");
        assert_eq!(after((5, 30), 5), (5, 30), "it was set after the bytes were written");
        assert_eq!(after((900, 30), 900), (900, 30), "ahead, too");
        assert_eq!(after((900, 30), 40), (40, 40), "and was set before them");
    }
}
