//! A process that goes to paths in the mount, so that the kernel finds directories where they are.
//!
//! The kernel moves what it has of a directory to its new name when somebody goes there, and no
//! notification makes it do so. No thread of this process may go: a caller that dies while its
//! request is served waits for the answer, and so this process's death would wait for itself.
//!
//! Bytes: paths below the mount, each ended by a zero; one byte back for each, which says nothing.
//! It ends when no more can come.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use std::ffi::OsStr;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// How a process is started that calls [`serve`] on its standard streams, for this mount point.
pub type Start = fn(&Path) -> io::Result<Command>;

pub struct Scout {
    process: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Scout {
    pub fn start(start: Start, mountpoint: &Path) -> io::Result<Self> {
        let mut command = start(mountpoint)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let (to, from) = (process.stdin.take(), process.stdout.take());
        let none = || io::Error::other("a process without its streams");
        Ok(Self { to: to.ok_or_else(none)?, from: from.ok_or_else(none)?, process })
    }

    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Comes back when it was there, or could not get there.
    pub fn go(&mut self, path: &[u8]) -> io::Result<()> {
        self.to.write_all(&[path, &[0]].concat())?;
        self.from.read_exact(&mut [0])
    }

    pub fn end(self) {
        let Self { mut process, to, from } = self;
        drop((to, from));
        if let Err(error) = process.wait() {
            tracing::debug!(%error, "a process was not waited for");
        }
    }
}

/// The life of such a process.
pub fn serve(mountpoint: &Path, from: impl Read, mut to: impl Write) -> io::Result<()> {
    let device = |path: &Path| {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        rustix::fs::statx(CWD, path, flags, StatxFlags::empty())
            .map(|stat| (stat.stx_dev_major, stat.stx_dev_minor))
    };
    let mount = device(mountpoint)?;
    let mut from = io::BufReader::new(from);
    loop {
        let mut path = Vec::new();
        if from.read_until(0, &mut path)? == 0 {
            return Ok(());
        }
        path.pop();
        // Another mount may be there by now.
        if device(mountpoint) == Ok(mount) {
            go(mountpoint, OsStr::from_bytes(&path));
        }
        to.write_all(&[0])?;
        to.flush()?;
    }
}

/// Through no link and no other mount. What is wrong there is not for this process to say.
fn go(mountpoint: &Path, path: &OsStr) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(top) = rustix::fs::open(mountpoint, flags, Mode::empty()) else { return };
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let _ = rustix::fs::openat2(top, path, flags, Mode::empty(), beneath);
}
