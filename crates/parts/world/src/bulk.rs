//! Bytes that travel beside a message.

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes to send: in memory, or still in a file from where the kernel can send them.
#[derive(Clone, Default)]
pub enum Bulk {
    #[default]
    Empty,
    Bytes(Bytes),
    /// In several places of memory, sent one after the other.
    Pieces(Arc<[Bytes]>),
    File(FileRange),
}

/// `length` bytes at `offset` of an open file. The file is never changed while the range exists.
#[derive(Clone)]
pub struct FileRange {
    pub file: Arc<File>,
    pub offset: u64,
    pub length: u32,
    /// Set if the file could not be read when it was sent. The frame could not be completed then,
    /// and the peer does not know why: whoever made the range reads before it answers from then on.
    pub has_failed: Arc<AtomicBool>,
}

impl FileRange {
    pub fn new(file: Arc<File>, offset: u64, length: u32) -> Self {
        Self { file, offset, length, has_failed: Arc::default() }
    }

    /// A part of it, `from` bytes on.
    pub fn part(&self, from: u32, length: u32) -> Self {
        Self { offset: self.offset + u64::from(from), length, ..self.clone() }
    }

    /// Fills `buffer` from `from` bytes on, if that is in the kernel's cache and waits for no disk.
    pub fn read_at_once(&self, from: u32, buffer: &mut [u8]) -> bool {
        let (length, offset) = (buffer.len(), self.offset + u64::from(from));
        let mut one = [io::IoSliceMut::new(buffer)];
        let read = preadv2(&self.file, &mut one, offset, ReadWriteFlags::NOWAIT);
        matches!(read, Ok(read) if read == length)
    }

    /// Takes note of why sending it ended, if that was the file's fault.
    pub fn judge(&self, error: &io::Error) {
        let is_the_files = matches!(
            Errno::from_io_error(error),
            Some(Errno::IO | Errno::NXIO | Errno::STALE | Errno::UCLEAN | Errno::BADMSG)
        );
        if is_the_files {
            self.has_failed.store(true, Ordering::Relaxed);
        }
    }
}

impl Bulk {
    pub fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Pieces(pieces) => pieces.iter().map(Bytes::len).sum(),
            Self::File(range) => range.length as usize,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes themselves, read (blocking) if they are still in a file.
    pub fn to_bytes(&self) -> io::Result<Bytes> {
        match self {
            Self::Empty => Ok(Bytes::new()),
            Self::Bytes(bytes) => Ok(bytes.clone()),
            Self::Pieces(pieces) => Ok(pieces.concat().into()),
            Self::File(range) => {
                let mut bytes = vec![0; range.length as usize];
                range.file.read_exact_at(&mut bytes, range.offset)?;
                Ok(bytes.into())
            }
        }
    }
}

impl From<Bytes> for Bulk {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::Empty } else { Self::Bytes(bytes) }
    }
}

impl From<Vec<Bytes>> for Bulk {
    fn from(mut pieces: Vec<Bytes>) -> Self {
        pieces.retain(|piece| !piece.is_empty());
        match pieces.len() {
            0 | 1 => pieces.pop().map_or(Self::Empty, Self::Bytes),
            _ => Self::Pieces(pieces.into()),
        }
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self {
            Self::Empty => "empty",
            Self::Bytes(_) | Self::Pieces(_) => "memory",
            Self::File(_) => "file",
        };
        write!(f, "Bulk({} bytes, {place})", self.len())
    }
}
