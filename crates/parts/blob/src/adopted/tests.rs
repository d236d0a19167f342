//! A real tree, and what may happen to it.

use super::*;
use std::os::unix::fs::symlink;

fn tree() -> (tempfile::TempDir, AdoptedTree) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("tree");
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::write(root.join("a/file"), vec![7; 10_000]).unwrap();
    std::fs::write(folder.path().join("secret"), "secret").unwrap();
    let tree = AdoptedTree::new(root);
    (folder, tree)
}

fn adopt(tree: &AdoptedTree, directory: &str, name: &str) -> AdoptedFile {
    let page = tree.list(directory.as_bytes(), None, 100).unwrap();
    let found = page.entries.iter().find(|entry| entry.name == name.as_bytes()).unwrap();
    AdoptedFile {
        path: object_path(&[directory.as_bytes(), b"/", name.as_bytes()].concat()),
        size: found.size,
        mtime_ns: nanoseconds(found.mtime),
    }
}

#[test]
fn files_are_read_in_whole_blocks() {
    let (_folder, tree) = tree();
    let file = adopt(&tree, "a", "file");
    let (offset, bytes) = tree.read(&file, 5000, 10).unwrap();
    assert_eq!((offset, bytes.len()), (4096, 4096));
    let (offset, bytes) = tree.read(&file, 9000, 5000).unwrap();
    assert_eq!((offset, bytes.len()), (8192, 10_000 - 8192));
    assert!(tree.read(&file, 20_000, 1).unwrap().1.is_empty());
}

#[test]
fn a_file_changed_behind_us_is_not_read() {
    let (_folder, tree) = tree();
    let file = adopt(&tree, "a", "file");
    let path = tree.root().join("a/file");
    std::fs::write(&path, vec![8; 10_000]).unwrap();
    let error = tree.read(&file, 0, 10).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("a/file was changed behind Tieline: it had 10000 bytes"), "{text}");
    assert!(text.contains("re-import"), "{text}");
    assert_eq!(error.kind(), ErrorKind::StorageFault);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(tree.read(&file, 0, 10), Err(AdoptedError::Changed { .. })));
    symlink("/etc/passwd", &path).unwrap();
    assert!(matches!(tree.read(&file, 0, 10), Err(AdoptedError::Changed { .. })));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(tree.read(&file, 0, 10), Err(AdoptedError::Changed { .. })));
}

#[test]
fn nobody_leaves_the_tree() {
    let (folder, tree) = tree();
    symlink(folder.path(), tree.root().join("out")).unwrap();
    symlink("../../secret", tree.root().join("a/link")).unwrap();
    for path in ["../secret", "a/../../secret", "out/secret", "a/link", "/etc/passwd"] {
        let file = AdoptedFile { path: path.into(), size: 6, mtime_ns: 0 };
        assert!(tree.read(&file, 0, 1).is_err(), "{path}");
    }
    for path in ["..", "out", "/etc", "a/../.."] {
        assert!(tree.list(path.as_bytes(), None, 10).is_err(), "{path}");
    }
}

#[test]
fn directories_are_listed_in_pages_by_relative_or_absolute_path() {
    let (_folder, tree) = tree();
    symlink("file", tree.root().join("a/link")).unwrap();
    let absolute = tree.root().join("a");
    let page = tree.list(absolute.as_os_str().as_bytes(), None, 2).unwrap();
    let names = |page: &AdoptedPage| -> Vec<String> {
        let name = |entry: &AdoptedFound| String::from_utf8(entry.name.clone()).unwrap();
        page.entries.iter().map(name).collect()
    };
    assert_eq!((names(&page), page.is_end), (vec!["b".into(), "file".into()], false));
    assert_eq!((page.directory.as_slice(), page.own.kind), (&b"a"[..], FileKind::Directory));
    let rest = tree.list(b"a/", Some(b"file"), 2).unwrap();
    assert_eq!((names(&rest), rest.is_end), (vec!["link".to_owned()], true));
    assert_eq!(rest.entries[0].target.as_deref(), Some(&b"file"[..]));
    assert!(matches!(tree.list(b"absent", None, 1), Err(AdoptedError::Absent { .. })));
}

#[test]
fn any_name_survives_being_an_object() {
    for name in
        [&b"plain/path"[..], b"100%", b"%25", b"\xff\xfe/x", "\u{e4}%\u{f6}".as_bytes(), b"a%zz"]
    {
        assert_eq!(file_path(&object_path(name)), name, "{name:?}");
    }
    assert_eq!(object_path(b"a/\xff%"), "a/%FF%25");
}

#[test]
fn access_lists_are_told_also_of_what_is_not_for_everybody() {
    let (_folder, tree) = tree();
    let path = tree.root().join("a");
    // Owner, a named user, group, mask and others, as Linux keeps them.
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, !0), (2, 6, 1001), (4, 0, !0), (0x10, 6, !0), (0x20, 0, !0)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    let set = |name: &str, key: &[u8]| {
        rustix::fs::setxattr(path.join(name), key, &list, rustix::fs::XattrFlags::empty())
    };
    if set("file", ACCESS_NAME) == Err(Errno::OPNOTSUPP) {
        eprintln!("SKIPPED: the file system keeps no access lists");
        return;
    }
    set("b", DEFAULT_NAME).unwrap();
    let page = tree.list(b"a", None, 100).unwrap();
    let of = |name: &[u8]| page.entries.iter().find(|entry| entry.name == name).unwrap();
    assert_eq!(of(b"file").xattrs, [(ACCESS_NAME.to_vec(), list.clone())]);
    assert_eq!(of(b"b").xattrs, [(DEFAULT_NAME.to_vec(), list)]);
    assert_eq!(page.own.xattrs, []);
}
