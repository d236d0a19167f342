//! Names and listings.

use super::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt, symlink};

#[test]
fn five_thousand_entries_are_listed_once_each() {
    let on = Mounted::new();
    let names: BTreeSet<String> = (0..5000).map(|n| format!("event-{n:05}.root")).collect();
    for name in &names {
        on.fs.put_elsewhere(name, b"x");
    }
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(on.root()).unwrap() {
        let entry = entry.unwrap();
        assert!(seen.insert(entry.file_name().into_string().unwrap()), "twice");
        assert_eq!(entry.ino(), entry.metadata().unwrap().ino());
    }
    assert_eq!(seen, names);
}

#[test]
fn a_listing_brings_the_attributes_along() {
    let on = Mounted::new();
    for n in 0..300 {
        on.fs.put_elsewhere(&format!("f{n}"), b"x");
    }
    let size = |entry: fs::DirEntry| entry.metadata().unwrap().len();
    let total: u64 = fs::read_dir(on.root()).unwrap().map(|entry| size(entry.unwrap())).sum();
    assert_eq!(total, 300);
    let lookups = on.fs.lookups.load(std::sync::atomic::Ordering::Relaxed);
    assert!(lookups < 100, "{lookups} names were asked for one by one");
}

/// Also in the tree of another MDT, whose ids are longer; and the mounted directory's own.
#[test]
fn short_numbers_are_shown_and_are_not_those_of_requests() {
    let root = (3 << 48) | 1;
    let on = Mounted::with(Memory::new(root), |options| options.has_short_numbers = true);
    fs::create_dir(on.path("d")).unwrap();
    for n in 0..50 {
        on.fs.put_elsewhere(&format!("f{n}"), b"x");
    }
    fs::write(on.path("d/made"), b"x").unwrap();
    fs::rename(on.path("d/made"), on.path("moved")).unwrap();
    let mut numbers = BTreeSet::from([fs::metadata(on.root()).unwrap().ino()]);
    for entry in fs::read_dir(on.root()).unwrap() {
        let entry = entry.unwrap();
        let open = fs::File::open(entry.path()).unwrap();
        let number = entry.ino();
        assert_eq!(
            (number, number),
            (entry.metadata().unwrap().ino(), open.metadata().unwrap().ino())
        );
        assert!(number > 0 && number <= u32::MAX.into() && numbers.insert(number), "{number:#x}");
    }
    assert_eq!(numbers.len(), 53);
    assert_eq!(fs::read(on.path("moved")).unwrap(), b"x");
}

#[test]
fn links_of_both_kinds() {
    let on = Mounted::new();
    fs::create_dir(on.path("d")).unwrap();
    fs::write(on.path("d/a"), b"x").unwrap();
    fs::hard_link(on.path("d/a"), on.path("b")).unwrap();
    let (one, two) = (fs::metadata(on.path("d/a")).unwrap(), fs::metadata(on.path("b")).unwrap());
    assert_eq!((one.ino(), one.nlink(), two.nlink()), (two.ino(), 2, 2));
    symlink("d/a", on.path("s")).unwrap();
    assert_eq!(fs::read_link(on.path("s")).unwrap().to_str(), Some("d/a"));
    assert_eq!(fs::read(on.path("s")).unwrap(), b"x");
    assert!(fs::symlink_metadata(on.path("s")).unwrap().is_symlink());
}

#[test]
fn directories_and_special_files() {
    let on = Mounted::new();
    fs::create_dir_all(on.path("a/b/c")).unwrap();
    assert_eq!(fs::metadata(on.path("a")).unwrap().nlink(), 3);
    let error = fs::remove_dir(on.path("a")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    fs::rename(on.path("a/b"), on.path("b")).unwrap();
    assert!(on.path("b/c").is_dir());
    let up = fs::metadata(on.path("b/c/../..")).unwrap();
    assert_eq!(up.ino(), fs::metadata(on.root()).unwrap().ino());
    fs::remove_dir(on.path("a")).unwrap();
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, on.path("pipe"), FileType::Fifo, Mode::from(0o600), 0).unwrap();
    assert!(fs::metadata(on.path("pipe")).unwrap().file_type().is_fifo());
    let device = rustix::fs::makedev(300, 70_000);
    let kind = FileType::CharacterDevice;
    mknodat(CWD, on.path("dev"), kind, Mode::from(0o600), device).unwrap();
    assert_eq!(fs::metadata(on.path("dev")).unwrap().rdev(), device);
}

#[test]
fn renames_may_refuse_to_replace_or_exchange() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let on = Mounted::new();
    fs::write(on.path("a"), b"a").unwrap();
    fs::write(on.path("b"), b"b").unwrap();
    let rename = |flags| renameat_with(CWD, on.path("a"), CWD, on.path("b"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!((on.fs.bytes("a"), on.fs.bytes("b")), (b"b".to_vec(), b"a".to_vec()));
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(on.fs.bytes("b"), b"b");
}

#[test]
fn a_rename_may_leave_a_whiteout() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let on = Mounted::new();
    fs::write(on.path("a"), b"a").unwrap();
    fs::write(on.path("b"), b"b").unwrap();
    let rename = |from: &str, to: &str, flags| {
        renameat_with(CWD, on.path(from), CWD, on.path(to), RenameFlags::WHITEOUT | flags)
    };
    let is_whiteout = |name: &str| {
        let found = fs::symlink_metadata(on.path(name)).unwrap();
        found.file_type().is_char_device() && found.rdev() == 0
    };
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    assert_eq!(rename("a", "b", RenameFlags::EXCHANGE), Err(rustix::io::Errno::INVAL));
    rename("a", "b", RenameFlags::empty()).unwrap();
    assert!(is_whiteout("a") && on.fs.bytes("b") == b"a");
    rename("b", "c", RenameFlags::NOREPLACE).unwrap();
    assert!(is_whiteout("b") && fs::read(on.path("c")).unwrap() == b"a");
}

#[test]
fn long_names_fit_and_longer_ones_do_not() {
    let on = Mounted::new();
    let name = "n".repeat(255);
    fs::write(on.path(&name), b"x").unwrap();
    let listed = fs::read_dir(on.root()).unwrap().next().unwrap().unwrap();
    assert_eq!(listed.file_name().to_str(), Some(name.as_str()));
    let error = fs::write(on.path(&"n".repeat(256)), b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
}

#[test]
fn space_is_told() {
    let on = Mounted::new();
    let space = rustix::fs::statvfs(on.root()).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 1 << 40);
    assert_eq!((space.f_bavail * space.f_frsize, space.f_ffree), (1 << 39, 900));
    assert_eq!(space.f_namemax, 255);
}
