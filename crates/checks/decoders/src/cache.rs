//! What lies in a cache's directory, where others may write: a kind (1 byte), then a marker, a pin,
//! or the file of a chunk in a node's cache.

use std::cell::RefCell;
use tieline_cache::found;

thread_local! {
    static FOLDER: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

pub fn feed(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 3 {
        0 => drop(found::marker(&String::from_utf8_lossy(rest))),
        1 => {
            if let Some((pin, names)) = found::pin(rest) {
                assert_eq!(pin.chunks, names.len());
            }
        }
        _ => entry(rest),
    }
}

/// Bytes of a chunk.
const LENGTH_MAX: u64 = 64 << 10;

/// As found, and with what makes a file of it.
fn entry(bytes: &[u8]) {
    let _ = look(bytes);
    let Some(file) = found::entry_of(bytes, LENGTH_MAX) else { return };
    if let Ok(read) = look(&file) {
        assert!(read <= LENGTH_MAX, "{read} bytes of a chunk of {LENGTH_MAX} at most");
    }
}

fn look(bytes: &[u8]) -> std::io::Result<u64> {
    FOLDER.with_borrow_mut(|folder| {
        let folder = match folder {
            Some(folder) => folder,
            None => folder.insert(tempfile::tempdir_in("/dev/shm")?),
        };
        let path = folder.path().join("entry");
        std::fs::write(&path, bytes)?;
        found::entry(&path)
    })
}
