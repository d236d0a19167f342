//! Files that are put together where they have no name.

use crate::error::{Error, failed_at};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What names begin with that files have where there are none without.
pub const PREFIX: &str = ".tieline-new-";

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A file without a name. Dropped, it is gone.
pub struct Staged {
    pub(crate) file: File,
    /// Where the file system does not know files without names.
    draft: Option<Draft>,
}

struct Draft {
    root: Arc<File>,
    name: String,
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&*self.root, &self.name, AtFlags::empty());
    }
}

impl Staged {
    pub(crate) fn new(root: &Arc<File>, path: &Path) -> Result<Self, Error> {
        let failed = |errno| failed_at("make a file in", path)(errno);
        let (mode, flags) = (Mode::from_raw_mode(0o600), OFlags::RDWR | OFlags::CLOEXEC);
        match rustix::fs::openat(&**root, ".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => return Ok(Self { file: file.into(), draft: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let name = draft_name();
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&**root, &name, flags, mode).map_err(failed)?;
        Ok(Self { file: file.into(), draft: Some(Draft { root: root.clone(), name }) })
    }

    pub fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// All of it is written: it is so long, and survives the machine.
    pub fn finish(&self, size: u64) -> std::io::Result<()> {
        self.file.set_len(size)?;
        self.file.sync_all()
    }

    /// Gives it a name. What has the name is an error.
    pub(crate) fn link(&self, parent: &File, name: &[u8]) -> Result<(), Errno> {
        match &self.draft {
            None => {
                let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                let flags = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(rustix::fs::CWD, own, parent, name, flags)
            }
            Some(draft) => {
                rustix::fs::linkat(&*draft.root, &draft.name, parent, name, AtFlags::empty())
            }
        }
    }
}

pub fn draft_name() -> String {
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    format!("{PREFIX}{process:x}-{count:x}")
}
