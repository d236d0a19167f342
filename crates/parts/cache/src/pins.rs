//! Pins: lists of chunks that no cleaner evicts. One file per pin, named after what was pinned.
//!
//! The first line is what an operator typed, the others are names of chunks as the cache has them.
//! Whoever pins may put something down beside a pin ([`save`]): its BLAKE3 digest, and its bytes.

use crate::Error;
use crate::storage::Storage;
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const FOLDER: &str = "pins";
const BESIDE: &str = "beside-pins";
const DIGEST: usize = 32;
/// A pin of five million chunks is 20 TB in chunks of 4 MiB.
const LENGTH_MAX: u64 = 512 << 20;

/// One pin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pin {
    pub what: String,
    pub chunks: usize,
}

/// Pins chunks of a cache, in place of what was pinned under the same words.
pub fn pin(
    storage: &dyn Storage,
    root: &Path,
    what: &str,
    names: &BTreeSet<String>,
) -> Result<(), Error> {
    let failed =
        |source| Error::Failed { path: root.to_owned(), doing: "write a pin into", source };
    storage.make_directory(&root.join(FOLDER)).map_err(failed)?;
    let path = path(root, what);
    let mut text = format!("{}\n", what.replace('\n', " "));
    for name in names {
        text.push_str(name);
        text.push('\n');
    }
    remove(storage, &path).map_err(failed)?;
    storage.create(&path, text.as_bytes()).map_err(failed)
}

/// Gives a pin that root made to whoever has the chunks, whose mounts have to read it.
pub(crate) fn give(root: &Path, what: &str) {
    let Ok(chunks) = std::fs::metadata(root.join("chunks")) else { return };
    for made in [root.join(FOLDER), path(root, what)] {
        // Others cannot, and need not: what they made is their own already.
        let _ = std::os::unix::fs::lchown(made, Some(chunks.uid()), Some(chunks.gid()));
    }
}

/// Says whether there was such a pin.
pub fn unpin(storage: &dyn Storage, root: &Path, what: &str) -> Result<bool, Error> {
    let failed =
        |source| Error::Failed { path: root.to_owned(), doing: "remove a pin from", source };
    remove(storage, &path_in(root, BESIDE, what)).map_err(failed)?;
    remove(storage, &path(root, what)).map_err(failed)
}

/// Puts something down beside a pin, in place of what was there.
pub fn save(storage: &dyn Storage, root: &Path, what: &str, bytes: &[u8]) -> Result<(), Error> {
    let failed =
        |source| Error::Failed { path: root.to_owned(), doing: "write beside a pin into", source };
    storage.make_directory(&root.join(BESIDE)).map_err(failed)?;
    let path = path_in(root, BESIDE, what);
    remove(storage, &path).map_err(failed)?;
    let digest = blake3::hash(bytes);
    storage.create(&path, &[digest.as_bytes(), bytes].concat()).map_err(failed)
}

/// What was put down, if it is as it was.
pub fn saved(storage: &dyn Storage, root: &Path, what: &str) -> Option<Vec<u8>> {
    let bytes = storage.read(&path_in(root, BESIDE, what), LENGTH_MAX).ok()?;
    let (digest, bytes) = bytes.split_at_checked(DIGEST)?;
    (blake3::hash(bytes).as_bytes() == digest).then(|| bytes.to_vec())
}

/// All pins.
pub fn list(storage: &dyn Storage, root: &Path) -> Vec<Pin> {
    let texts = texts(storage, root);
    texts.iter().filter_map(|text| read(text)).map(|(pin, _)| pin).collect()
}

/// A pin as it lies there, and the names of its chunks.
pub(crate) fn read(text: &str) -> Option<(Pin, Vec<&str>)> {
    let mut lines = text.lines();
    let what = lines.next()?.to_owned();
    let names: Vec<&str> = lines.collect();
    Some((Pin { what, chunks: names.len() }, names))
}

/// The names of all chunks that are pinned.
pub(crate) fn names(storage: &dyn Storage, root: &Path) -> BTreeSet<String> {
    let texts = texts(storage, root);
    texts
        .iter()
        .filter_map(|text| read(text))
        .flat_map(|(_, names)| names)
        .map(str::to_owned)
        .collect()
}

fn texts(storage: &dyn Storage, root: &Path) -> Vec<String> {
    let folder = root.join(FOLDER);
    let mut files = storage.list(&folder).unwrap_or_default();
    files.sort();
    let read = |name: &String| storage.read(&folder.join(name), LENGTH_MAX).ok();
    files.iter().filter_map(read).filter_map(|bytes| String::from_utf8(bytes).ok()).collect()
}

fn path(root: &Path, what: &str) -> PathBuf {
    path_in(root, FOLDER, what)
}

fn path_in(root: &Path, folder: &str, what: &str) -> PathBuf {
    let name = blake3::hash(what.as_bytes()).to_hex();
    root.join(folder).join(name.get(..32).unwrap_or_default())
}

fn remove(storage: &dyn Storage, path: &Path) -> io::Result<bool> {
    match storage.remove(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalStorage;

    #[test]
    fn pins_are_replaced_listed_and_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let names_of = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
        pin(&LocalStorage::Private, root, "/extenci/a", &names_of(&["1", "2"])).unwrap();
        pin(&LocalStorage::Private, root, "/extenci/a", &names_of(&["2", "3"])).unwrap();
        pin(&LocalStorage::Private, root, "/extenci/b", &names_of(&["9"])).unwrap();
        assert_eq!(names(&LocalStorage::Private, root), names_of(&["2", "3", "9"]));
        let pins = list(&LocalStorage::Private, root);
        assert!(pins.contains(&Pin { what: "/extenci/a".into(), chunks: 2 }), "{pins:?}");
        assert!(unpin(&LocalStorage::Private, root, "/extenci/a").unwrap());
        assert!(!unpin(&LocalStorage::Private, root, "/extenci/a").unwrap());
        save(&LocalStorage::Private, root, "/extenci/b", b"more").unwrap();
        save(&LocalStorage::Private, root, "/extenci/b", b"other").unwrap();
        assert_eq!(saved(&LocalStorage::Private, root, "/extenci/b").unwrap(), b"other");
        std::fs::write(path_in(root, BESIDE, "/extenci/b"), [7; 40]).unwrap();
        assert_eq!(saved(&LocalStorage::Private, root, "/extenci/b"), None, "damaged");
        assert_eq!(names(&LocalStorage::Private, root), names_of(&["9"]));
    }
}
