//! A process that goes to paths in the mount, so that the kernel finds directories where they are.
//!
//! The kernel moves what it has of a directory to its new name when somebody goes there, and no
//! notification makes it do so. No thread of this process may go: a caller that dies while its
//! request is served waits for the answer, and so this process's death would wait for itself.
//!
//! Bytes: paths below the mount, each ended by a zero; one byte back for each, which is one if it
//! got there, and else zero. It ends when no more can come.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
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

    /// Says whether it was there.
    pub fn go(&mut self, path: &[u8]) -> io::Result<bool> {
        self.to.write_all(&[path, &[0]].concat())?;
        let mut was_there = [0];
        self.from.read_exact(&mut was_there)?;
        Ok(was_there == [1])
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
        let is_it = device(mountpoint) == Ok(mount);
        let was_there = is_it && go(mountpoint, OsStr::from_bytes(&path)).is_ok();
        to.write_all(&[u8::from(was_there)])?;
        to.flush()?;
    }
}

/// Through no link and no other mount. The kernel may not have had the time to move what it has:
/// then it says so.
fn go(mountpoint: &Path, path: &OsStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(mountpoint, flags, Mode::empty())?;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(top, path, flags, Mode::empty(), beneath).map(drop)
}
