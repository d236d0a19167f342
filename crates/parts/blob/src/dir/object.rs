//! One object file: data, then trailer and footer (`tieline_format::object`).

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use tieline_format::object::{ObjectError, ObjectFooter, ObjectTrailer};
use tieline_types::GrantedId;
use tieline_types::tree::Values;

/// An object that is open. Its file never changes any more.
pub(crate) struct Object {
    pub file: Arc<File>,
    /// Bytes of data, without the tail.
    pub length: u64,
    /// Bytes of the file.
    pub total: u64,
    pub trailer: ObjectTrailer,
}

/// Why a file was not opened as an object.
pub(crate) enum OpenError {
    Damaged(String),
    Io(io::Error),
}

/// Trailer and footer of a chunk of 4 MiB take about 13 KiB: one read finds both.
const TAIL_GUESS: u64 = 16 << 10;
/// Smaller data is copied.
const DIRECT_FROM: usize = 1 << 20;
/// What disks and memory are aligned to, at most.
const BLOCK: usize = 4096;
/// Smaller objects may be gone before their sync, and are written in one go there.
const EARLY_FROM: u64 = 256 << 10;

impl Object {
    /// Reads the tail of `file`, which should be `chunk`'s.
    pub fn open(file: File, chunk: GrantedId) -> Result<Self, OpenError> {
        let total = file.metadata()?.len();
        let footer_length = ObjectFooter::LENGTH as u64;
        if total < footer_length {
            return Err(ObjectError::NotSealed.into());
        }
        let mut tail = read_tail(&file, total, TAIL_GUESS.min(total))?;
        let footer = tail.last_chunk().ok_or(ObjectError::NotSealed)?;
        let footer = ObjectFooter::decode(footer, total)?;
        let tail_length = u64::from(footer.trailer_length) + footer_length;
        if tail_length > tail.len() as u64 {
            tail = read_tail(&file, total, tail_length)?;
        }
        let start = tail.len() - tail_length as usize;
        let end = tail.len() - ObjectFooter::LENGTH;
        let trailer = footer.trailer(tail.get(start..end).unwrap_or_default())?;
        if trailer.chunk != chunk {
            let reason = format!("it holds chunk {} instead", trailer.chunk);
            return Err(OpenError::Damaged(reason));
        }
        Ok(Self { file: Arc::new(file), length: footer.data_length, total, trailer })
    }

    /// Fills an empty file. Nobody knows its name yet.
    pub fn write(mut file: File, trailer: ObjectTrailer, data: &[u8]) -> io::Result<Self> {
        let tail = trailer.to_tail(data.len() as u64);
        let direct = write_direct(&mut file, data)?;
        let data_left = data.get(direct..).unwrap_or_default();
        // One system call for both in all but odd cases.
        let written = file.write_vectored(&[IoSlice::new(data_left), IoSlice::new(&tail)])?;
        file.write_all(data_left.get(written..).unwrap_or_default())?;
        file.write_all(tail.get(written.saturating_sub(data_left.len())..).unwrap_or_default())?;
        let (length, total) = (data.len() as u64, (data.len() + tail.len()) as u64);
        Ok(Self { file: Arc::new(file), length, total, trailer })
    }

    /// Lets the kernel begin to write a large object to its disk, so that little is left for the
    /// sync that follows sooner or later. No more than a wish: what fails shows at the sync.
    pub fn write_early(&self) {
        if self.total < EARLY_FROM {
            return;
        }
        let (descriptor, flags) = (self.file.as_raw_fd(), libc::SYNC_FILE_RANGE_WRITE);
        // SAFETY: the descriptor is open for as long as `self` lives; no memory is touched.
        let _ = unsafe { libc::sync_file_range(descriptor, 0, 0, flags) };
    }

    /// Has the file its length and its name still?
    pub fn is_as_opened(&self) -> bool {
        self.file.metadata().is_ok_and(|known| known.len() == self.total && known.nlink() > 0)
    }

    /// Does it hold what `trailer` is about?
    pub fn is_same(&self, trailer: &ObjectTrailer, length: u64) -> bool {
        self.length == length && self.trailer.checks == trailer.checks
    }

    /// Bytes it takes in memory, roughly.
    pub fn weight(&self) -> usize {
        let tree = self.trailer.tree.as_ref().map_or(0, Values::weight);
        let checks = size_of_val(self.trailer.checks.as_slice());
        size_of::<Self>() + self.trailer.path.len() + checks + tree
    }
}

/// Has the disk take the whole blocks of large data from where they are, past the kernel's cache:
/// no copy, and nothing is left for a sync but what leads to them. Returns how many bytes it took;
/// none where the file system or the place in memory does not allow it.
fn write_direct(file: &mut File, data: &[u8]) -> io::Result<usize> {
    let whole = data.len() / BLOCK * BLOCK;
    let is_aligned = data.as_ptr().align_offset(BLOCK) == 0;
    if whole < DIRECT_FROM || !is_aligned {
        return Ok(0);
    }
    let flags = rustix::fs::fcntl_getfl(&*file)?;
    if rustix::fs::fcntl_setfl(&*file, flags | OFlags::DIRECT).is_err() {
        return Ok(0);
    }
    let written = file.write(data.get(..whole).unwrap_or_default());
    rustix::fs::fcntl_setfl(&*file, flags)?;
    match written {
        // A file system may say so only now.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(0),
        other => other,
    }
}

fn read_tail(file: &File, total: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut tail = vec![0; length as usize];
    file.read_exact_at(&mut tail, total - length)?;
    Ok(tail)
}

impl From<ObjectError> for OpenError {
    fn from(error: ObjectError) -> Self {
        Self::Damaged(error.to_string())
    }
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}
