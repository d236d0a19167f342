//! Real directories: what is made, moved, taken away and refused there.

use super::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use tieline_types::{ErrorKind, Name};

const OWNER: &str = "extenci.uf";
const DRESS: Dress = Dress { owner: None, mode: 0o440, mtime: Time { seconds: 1_000, nanos: 5 } };
const DIRECTORY: Dress = Dress { mode: 0o755, ..DRESS };

fn path(text: &str) -> Vec<Name> {
    text.split('/').filter(|name| !name.is_empty()).map(|name| name.parse().unwrap()).collect()
}

fn place(tree: &ExposedTree, name: &str, bytes: &[u8]) -> Result<(), Error> {
    let staged = tree.stage(bytes.len() as u64)?;
    staged.write_at(bytes, 0).unwrap();
    staged.finish(bytes.len() as u64).unwrap();
    tree.place(&path(name), &staged, &DRESS)
}

fn new(directory: &Path) -> ExposedTree {
    ExposedTree::open(directory, OWNER, false).unwrap()
}

#[test]
fn a_file_is_there_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("out");
    let tree = new(&root);
    tree.make_directory(&path("data"), &DIRECTORY).unwrap();
    let staged = tree.stage(3).unwrap();
    staged.write_at(b"new", 0).unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1, "only the directory has a name");
    staged.finish(5).unwrap();
    tree.place(&path("data/run7"), &staged, &DRESS).unwrap();
    assert_eq!(fs::read(root.join("data/run7")).unwrap(), b"new\0\0");
    let about = fs::metadata(root.join("data/run7")).unwrap();
    assert_eq!((about.mode() & 0o7777, about.mtime()), (0o440, 1_000));
    assert!(tree.is_as_left(&path("data/run7"), 5, DRESS.mtime));
    assert!(!tree.is_as_left(&path("data/run7"), 4, DRESS.mtime));
    // Another one takes its name in one step.
    place(&tree, "data/run7", b"other").unwrap();
    assert_eq!(fs::read(root.join("data/run7")).unwrap(), b"other");
    assert_eq!(fs::read_dir(root.join("data")).unwrap().count(), 1);
}

#[test]
fn names_move_and_go_and_that_may_be_said_twice() {
    let folder = tempfile::tempdir().unwrap();
    let tree = new(folder.path());
    for name in ["a", "a/b"] {
        tree.make_directory(&path(name), &DIRECTORY).unwrap();
        tree.make_directory(&path(name), &DIRECTORY).unwrap();
    }
    place(&tree, "a/b/one", b"1").unwrap();
    for _ in 0..2 {
        tree.link(&path("a/b/one"), &path("two")).unwrap();
        tree.rename(&path("a"), &path("c")).unwrap();
        tree.rename(&path("c/b/one"), &path("c/three")).unwrap();
        // Done again it finds the first step's work.
        fs::rename(folder.path().join("c"), folder.path().join("a")).unwrap();
        fs::rename(folder.path().join("a/three"), folder.path().join("a/b/one")).unwrap();
    }
    tree.rename(&path("a"), &path("c")).unwrap();
    tree.rename(&path("a"), &path("c")).unwrap();
    assert!(matches!(tree.rename(&path("x"), &path("y")), Err(Error::Missing(_))));
    assert!(matches!(tree.remove_directory(&path("c/b")), Err(Error::InTheWay(_))));
    tree.remove(&path("c/b/one")).unwrap();
    tree.remove(&path("c/b/one")).unwrap();
    tree.remove_directory(&path("c/b")).unwrap();
    tree.remove_directory(&path("c/b")).unwrap();
    tree.remove(&path("gone/file")).unwrap();
    let found = tree.list(&[], None, 10).unwrap();
    let names: Vec<(String, bool)> =
        found.into_iter().map(|found| (found.name.to_string(), found.is_directory)).collect();
    assert_eq!(names, [("c".to_owned(), true), ("two".to_owned(), false)]);
    let after = tree.list(&[], Some(&"c".parse().unwrap()), 10).unwrap();
    assert_eq!(after.len(), 1);
    tree.sync(&BTreeSet::from([path(""), path("c"), path("gone")])).unwrap();
}

/// Promise 143: Nobody who can write into an exposed directory leads the server out of it.
#[test]
fn planted_links_lead_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), b"kept").unwrap();
    let root = folder.path().join("out");
    let tree = new(&root);
    symlink(&outside, root.join("data")).unwrap();
    assert!(matches!(place(&tree, "data/kept", b"taken"), Err(Error::Missing(_))));
    tree.remove(&path("data/kept")).unwrap();
    assert!(tree.rename(&path("data/kept"), &path("mine")).is_err());
    assert!(tree.link(&path("data/kept"), &path("mine")).is_err());
    assert!(tree.list(&path("data"), None, 10).is_err());
    // A link in the place of a directory goes, and the directory is made.
    tree.make_directory(&path("data"), &DIRECTORY).unwrap();
    symlink(outside.join("kept"), root.join("data/kept")).unwrap();
    assert!(tree.dress(&path("data/kept"), &DRESS).is_err());
    assert!(!tree.is_as_left(&path("data/kept"), 4, Time::default()));
    place(&tree, "data/kept", b"whole").unwrap();
    assert_eq!(fs::read(root.join("data/kept")).unwrap(), b"whole");
    assert!(!root.join("data/kept").is_symlink());
    assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
}

#[test]
fn a_directory_is_taken_only_if_it_is_free_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("out");
    let open = |owner, was_marked| ExposedTree::open(&root, owner, was_marked).map(drop);
    assert!(matches!(open(OWNER, true), Err(Error::Absent(_))), "its disk may not be mounted");
    fs::create_dir(&root).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(open(OWNER, false), Err(Error::Loose { .. })));
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(open(OWNER, true), Err(Error::Unmarked(_))));
    fs::write(root.join("mine"), b"").unwrap();
    assert!(matches!(open(OWNER, false), Err(Error::NotEmpty(_))));
    fs::remove_file(root.join("mine")).unwrap();
    look(&root, OWNER).unwrap();
    open(OWNER, false).unwrap();
    assert!(matches!(look(&root, "extenci.fnal"), Err(Error::Foreign { .. })));
    fs::write(root.join("left"), b"").unwrap();
    look(&root, OWNER).unwrap();
    open(OWNER, false).unwrap();
    open(OWNER, true).unwrap();
    assert!(matches!(open("extenci.fnal", false), Err(Error::Foreign { .. })));
    for system in ["/etc/exposed-for-a-test", "/usr", "/"] {
        let tried = ExposedTree::open(Path::new(system), OWNER, false).map(drop);
        assert!(matches!(tried, Err(Error::System(_))), "{system}: {tried:?}");
    }
    assert!(!Path::new("/etc/exposed-for-a-test").exists());
    let tree = new(&root);
    assert!(tree.is_in_place());
    fs::rename(&root, folder.path().join("away")).unwrap();
    assert!(!tree.is_in_place());
}

#[test]
fn what_finds_no_room_says_how_much_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let error = new(folder.path()).stage(u64::MAX / 2).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(error.to_string().contains("free, and the file needs"), "{error}");
}
