//! Mode bits, groups and the sticky bit.

use super::*;
use tieline_types::{FileKind, Mode};
use tieline_types::{Gid, Time, Uid, Version};

fn inode(kind: FileKind, mode: u32, uid: u32, gid: u32) -> Inode {
    Inode {
        kind,
        mode: Mode::new(mode),
        uid: Uid(uid),
        gid: Gid(gid),
        links: 1,
        size: 0,
        stored: 0,
        device: 0,
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
        btime: Time::default(),
        version: Version(1),
        names: vec![],
        layout: None,
        stripe: vec![],
        target: None,
        entries: 0,
        project: 0,
        xattrs: Some(0),
        acls: None,
        is_uncounted: None,
        content: None,
        tape: None,
    }
}

fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
    Caller {
        uid: Uid(uid),
        gid: Gid(gid),
        groups: groups.iter().map(|&g| Gid(g)).collect(),
        proof: None,
    }
}

#[test]
fn the_first_class_that_fits_decides() {
    // The owner's class holds even where others may more.
    let file = inode(FileKind::Regular, 0o077, 10, 20);
    assert!(!is_allowed(&file, &caller(10, 20, &[]), READ));
    assert!(is_allowed(&file, &caller(11, 20, &[]), READ | WRITE));
    let file = inode(FileKind::Regular, 0o604, 10, 20);
    assert!(!is_allowed(&file, &caller(11, 99, &[20]), READ));
    assert!(is_allowed(&file, &caller(11, 99, &[21]), READ));
    assert!(!is_allowed(&file, &caller(11, 99, &[21]), READ | WRITE));
}

#[test]
fn root_may_all_but_execute_what_nobody_may() {
    let root = Caller::root();
    assert!(is_allowed(&inode(FileKind::Regular, 0, 10, 20), &root, READ | WRITE));
    assert!(!is_allowed(&inode(FileKind::Regular, 0o666, 10, 20), &root, SEARCH));
    assert!(is_allowed(&inode(FileKind::Regular, 0o010, 10, 20), &root, SEARCH));
    assert!(is_allowed(&inode(FileKind::Directory, 0, 10, 20), &root, SEARCH));
}

#[test]
fn a_sticky_directory_protects_names_from_others() {
    let sticky = inode(FileKind::Directory, 0o1777, 1, 1);
    let file = inode(FileKind::Regular, 0o666, 10, 10);
    let removal = |caller| check_removal((FileId(1), &sticky), (FileId(2), &file), &caller);
    assert!(removal(caller(10, 10, &[])).is_ok());
    assert!(removal(caller(1, 1, &[])).is_ok());
    assert!(removal(Caller::root()).is_ok());
    assert!(matches!(removal(caller(11, 10, &[])), Err(Error::NotOwner { .. })));
}
