//! What programs do with files and directories.

use super::*;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

#[test]
fn files_are_made_written_read_renamed_and_removed() {
    let on = Mounted::new();
    let (path, other) = (on.path("a"), on.path("b"));
    fs::write(&path, b"hello").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((stat.len(), stat.blocks(), stat.blksize()), (5, 1, 1 << 20));
    fs::rename(&path, &other).unwrap();
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(on.fs.bytes("b"), b"hello");
    assert_eq!(fs::read_dir(on.root()).unwrap().count(), 1);
    fs::remove_file(&other).unwrap();
    assert_eq!(fs::read_dir(on.root()).unwrap().count(), 0);
}
