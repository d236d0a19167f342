//! What comes with each write: whether it appends, is to be durable, and ends setuid.

use super::*;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};

fn opened(on: &Mounted, name: &str, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(flags);
    options.open(on.path(name)).unwrap()
}

/// As `fcntl(F_SETFL)` does, long after the file was opened.
fn set_flags(file: &File, flags: i32) {
    // SAFETY: no memory is passed; the result is checked.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) }, 0);
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

#[test]
fn a_file_that_appends_no_more_is_written_where_it_is_said() {
    let on = Mounted::new();
    let mut file = opened(&on, "log", libc::O_APPEND);
    file.write_all(b"one two").unwrap();
    set_flags(&file, 0);
    file.write_all_at(b"six", 0).unwrap();
    assert_eq!(on.fs.bytes("log"), b"six two");
    set_flags(&file, libc::O_APPEND);
    on.fs.put_elsewhere("log", b"six two elsewhere");
    file.write_all(b" end").unwrap();
    assert_eq!(on.fs.bytes("log"), b"six two elsewhere end");
}

/// Its pages go through the kernel's cache, and so may be somewhere else than their bytes.
#[test]
fn a_file_that_appends_since_loses_nothing_of_others() {
    let on = Mounted::new();
    let mut file = opened(&on, "log", 0);
    file.write_all(b"one\n").unwrap();
    set_flags(&file, libc::O_APPEND);
    on.fs.put_elsewhere("log", b"one\nelsewhere\n");
    file.write_all(b"two\n").unwrap();
    assert_eq!(on.fs.bytes("log"), b"one\nelsewhere\ntwo\n");
    eventually("what is read is what is there", || {
        std::fs::read(on.path("log")).unwrap() == b"one\nelsewhere\ntwo\n"
    });
}

/// Who writes counts, not who opened the file.
#[test]
fn setuid_ends_with_the_write_of_who_may_not_keep_it() {
    let on = Mounted::new();
    let mode = || std::fs::metadata(on.path("tool")).unwrap().mode() & 0o7777;
    for flags in [0, libc::O_APPEND] {
        let mut file = opened(&on, "tool", flags);
        std::fs::set_permissions(on.path("tool"), Permissions::from_mode(0o6755)).unwrap();
        file.write_all(b"root's own\n").unwrap();
        assert_eq!(mode(), 0o6755);
        let mut stranger = std::process::Command::new("setpriv");
        stranger.args(["--reuid=65534", "--regid=65534", "--clear-groups", "echo", "another's"]);
        assert!(stranger.stdout(file.try_clone().unwrap()).status().unwrap().success());
        assert_eq!(mode(), 0o755, "while it is open");
    }
}
