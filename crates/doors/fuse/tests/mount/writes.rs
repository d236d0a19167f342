//! What comes with each write: whether it is to be durable.

use super::*;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

fn opened(on: &Mounted, name: &str, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(flags);
    options.open(on.path(name)).unwrap()
}

fn synced(on: &Mounted) -> Vec<bool> {
    std::mem::take(&mut *on.fs.syncs.lock().unwrap())
}

/// The kernel syncs after a write only what it had in its page cache.
#[test]
fn direct_writes_that_ask_for_it_are_synced() {
    let on = Mounted::new();
    for flag in [libc::O_APPEND, libc::O_DIRECT] {
        opened(&on, "plain", flag).write_all(b"line\n").unwrap();
        assert!(synced(&on).is_empty(), "nobody asked");
        opened(&on, "data", flag | libc::O_DSYNC).write_all(b"line\n").unwrap();
        assert_eq!(synced(&on), [true]);
        opened(&on, "all", flag | libc::O_SYNC).write_all(b"line\n").unwrap();
        assert_eq!(synced(&on), [false]);
    }
    let file = opened(&on, "once", libc::O_DIRECT);
    let piece = libc::iovec { iov_base: c"line".as_ptr().cast_mut().cast(), iov_len: 4 };
    // SAFETY: one piece that lives, and is only read; the result is checked.
    let count = unsafe { libc::pwritev2(file.as_raw_fd(), &piece, 1, 0, libc::RWF_DSYNC) };
    assert_eq!((count, synced(&on)), (4, vec![true]));
}
