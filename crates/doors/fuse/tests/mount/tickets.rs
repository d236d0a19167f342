//! What an open file gives, also when whoever has it shows no ticket any more.

use super::*;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use tieline_people::{Asking, People, Unknown};
use tieline_types::{Caller, Gid, Uid};

/// Everybody has a ticket, or nobody any more.
#[derive(Default)]
struct Tickets {
    are_gone: AtomicBool,
    /// No KDC says whether anybody has one.
    is_silent: AtomicBool,
}

#[async_trait::async_trait]
impl People for Tickets {
    async fn caller(&self, asking: Asking) -> Result<Caller, Unknown> {
        if self.are_gone.load(Ordering::Relaxed) {
            let why = "run `kinit`".to_owned();
            return Err(Unknown { kind: tieline_types::ErrorKind::PermissionDenied, why });
        }
        if self.is_silent.load(Ordering::Relaxed) {
            let why = "does a KDC answer?".to_owned();
            return Err(Unknown { kind: tieline_types::ErrorKind::Unreachable, why });
        }
        Ok(asking.stated)
    }

    async fn described(&self, asking: Asking) -> Result<String, Unknown> {
        self.caller(asking).await.map(|caller| format!("number {}", caller.uid))
    }

    fn shown(&self, uid: Uid, gid: Gid) -> (Uid, Gid) {
        (uid, gid)
    }

    fn stored_uid(&self, uid: Uid) -> Option<Uid> {
        Some(uid)
    }

    fn stored_gid(&self, gid: Gid) -> Option<Gid> {
        Some(gid)
    }

    async fn learn(&self) {}

    fn are_personal(&self) -> bool {
        true
    }
}

#[test]
fn an_open_file_keeps_its_rights() {
    let people = Arc::new(Tickets::default());
    let on = Mounted::with(Memory::new(1), |options| options.people = Some(people.clone()));
    let (path, mut options) = (on.path("f"), OpenOptions::new());
    let mut file = options.read(true).write(true).create(true).open(&path).unwrap();
    file.write_all(b"hello").unwrap();
    people.are_gone.store(true, Ordering::Relaxed);
    on.fs.put_elsewhere("f", b"hello, world");
    let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    assert!(fs::metadata(&path).is_err_and(denied), "a name");
    assert_eq!(file.metadata().unwrap().len(), 12, "fstat");
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello, world", "to the end");
    file.set_len(4).unwrap();
    assert_eq!(on.fs.bytes("f"), b"hell");
    drop(file);
    eventually("the file is closed", || on.fs.handles() == 0);
    assert!(fs::metadata(&path).is_err_and(denied));
}

#[test]
fn who_may_have_a_ticket_is_no_stranger() {
    let people = Arc::new(Tickets::default());
    let on = Mounted::with(Memory::new(1), |options| options.people = Some(people.clone()));
    people.is_silent.store(true, Ordering::Relaxed);
    let unreachable = |error: std::io::Error| error.kind() == ErrorKind::HostUnreachable;
    assert!(fs::metadata(on.root()).is_err_and(unreachable), "attributes");
    assert!(fs::metadata(on.path("f")).is_err_and(unreachable), "a name");
    assert!(fs::read_dir(on.root()).is_err_and(unreachable), "a directory");
    people.is_silent.store(false, Ordering::Relaxed);
    fs::metadata(on.root()).unwrap();
}

#[test]
fn a_program_hears_as_whom_it_is_served() {
    let people = Arc::new(Tickets::default());
    let on = Mounted::with(Memory::new(1), |options| options.people = Some(people.clone()));
    let mut room = [0; 64];
    let length = rustix::fs::getxattr(on.root(), tieline_fuse::WHO, &mut room[..]).unwrap();
    assert_eq!(&room[..length], b"number 0");
    people.are_gone.store(true, Ordering::Relaxed);
    let denied = rustix::fs::getxattr(on.root(), tieline_fuse::WHO, &mut room[..]);
    assert_eq!(denied, Err(rustix::io::Errno::ACCESS));
}

/// Of a directory that all may search the kernel knows names that were looked up, whoever asks; but
/// whether he who asks is anybody here is asked at the first step of his path.
#[test]
fn names_that_anybody_may_look_up_are_believed_for_a_moment() {
    let people = Arc::new(Tickets::default());
    let on = Mounted::with(Memory::new(1), |options| options.people = Some(people.clone()));
    let close = |name, mode| fs::set_permissions(on.path(name), Permissions::from_mode(mode));
    for (name, mode) in [("open", 0o755), ("closed", 0o750), ("odd", 0o705)] {
        fs::create_dir(on.path(name)).unwrap();
        close(name, mode).unwrap();
        fs::write(on.path(name).join("f"), "bytes").unwrap();
    }
    let lookups = |path: &str| {
        let before = on.fs.lookups.load(Ordering::Relaxed);
        for _ in 0..20 {
            let _ = fs::metadata(on.path(path));
        }
        on.fs.lookups.load(Ordering::Relaxed) - before
    };
    // A second may end in between.
    for path in ["open/f", "open/none"] {
        assert!((20..25).contains(&lookups(path)), "{path}");
    }
    for path in ["closed/f", "odd/f", "closed/none"] {
        assert_eq!(lookups(path), 40, "{path}");
    }
    // Nobody comes in without a ticket, and who stands there sees little and not for long.
    let inside = fs::File::open(on.path("open")).unwrap();
    let there = |name| rustix::fs::statat(&inside, name, rustix::fs::AtFlags::empty());
    fs::metadata(on.path("open/f")).unwrap();
    people.are_gone.store(true, Ordering::Relaxed);
    let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    assert!(fs::metadata(on.path("open/f")).is_err_and(denied));
    let read = rustix::fs::openat(&inside, "f", OFlags::RDONLY, Mode::empty());
    assert_eq!(read.err(), Some(rustix::io::Errno::ACCESS));
    eventually("it is asked for again", || there("f").is_err());
    people.are_gone.store(false, Ordering::Relaxed);
    close("open", 0o700).unwrap();
    eventually("it is believed no more", || lookups("open/f") == 40);
}
