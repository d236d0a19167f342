//! The marker `tieline-cache`: what a directory is, so that nothing else is ever filled or emptied.

use crate::Error;
use crate::storage::{LocalStorage, Storage, followed};
use std::fmt;
use std::io;
use std::path::Path;

pub(crate) const MARKER: &str = "tieline-cache";
const VERSION: &str = "1";
/// A marker is a few lines.
const LENGTH_MAX: u64 = 4096;

/// Whose cache a directory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Node,
    Site,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            Self::Site => "site",
        })
    }
}

/// What a directory is, if it is a cache.
pub fn kind(path: &Path) -> Result<Kind, Error> {
    let unfit = |reason: &str| Error::Unfit { path: path.to_owned(), reason: reason.to_owned() };
    let text = match LocalStorage::Private.read(&path.join(MARKER), LENGTH_MAX) {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(unfit(match path.is_dir() {
                true => "it has no marker tieline-cache: no mount has used it yet",
                false => "there is no such directory",
            }));
        }
        Err(source) => {
            return Err(Error::Failed { path: path.to_owned(), doing: "read", source });
        }
    };
    read(&text).map_err(|reason| unfit(&reason))
}

/// Is the marker of any cache there?
pub(crate) fn is_there(storage: &dyn Storage, path: &Path) -> bool {
    storage.read(&path.join(MARKER), LENGTH_MAX).is_ok()
}

/// Makes an empty directory a cache of `kind`; one that is, is left as it is.
pub(crate) fn ensure(storage: &dyn Storage, path: &Path, wanted: Kind) -> Result<(), Error> {
    let failed = |doing, source| Error::Failed { path: path.to_owned(), doing, source };
    let unfit = |reason: String| Error::Unfit { path: path.to_owned(), reason };
    let marker = path.join(MARKER);
    match storage.read(&marker, LENGTH_MAX) {
        // Another node is about to write it.
        Ok(text) if text.is_empty() => return Ok(()),
        Ok(text) => {
            let found = read(&String::from_utf8_lossy(&text)).map_err(unfit)?;
            if found != wanted {
                return Err(unfit(format!(
                    "it is a {found} cache, and shall be a {wanted} cache: name another directory"
                )));
            }
            return Ok(());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(failed("read the marker of", source)),
    }
    let names = storage.list(&followed(path)).map_err(|source| failed("list", source))?;
    // What a file system puts into its own root is nobody's.
    let is_strange = |name: &&String| !name.starts_with('.') && name.as_str() != "lost+found";
    if let Some(strange) = names.iter().find(is_strange).filter(|name| name.as_str() != MARKER) {
        return Err(unfit(format!(
            "it is not empty (there is `{strange}`), and no cache yet: name an empty directory"
        )));
    }
    match storage.create(&marker, text(wanted).as_bytes()) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(failed("write the marker of", source))
        }
        _ => Ok(()),
    }
}

fn text(kind: Kind) -> String {
    format!(
        "# Tieline keeps copies of chunks here. All of it may be deleted at any time.\n\
         version = {VERSION}\nkind = \"{kind}\"\n"
    )
}

pub(crate) fn read(text: &str) -> Result<Kind, String> {
    let field = |wanted: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == wanted).then(|| value.trim().trim_matches('"').to_owned())
        })
    };
    match field("version").as_deref() {
        Some(VERSION) => (),
        Some(other) => {
            return Err(format!(
                "its layout has version {other}, this build knows {VERSION}: empty it, or use a \
                 newer build"
            ));
        }
        None => return Err("its marker tieline-cache says no version: empty it".to_owned()),
    }
    match field("kind").as_deref() {
        Some("node") => Ok(Kind::Node),
        Some("site") => Ok(Kind::Site),
        _ => Err("its marker tieline-cache says neither node nor site: empty it".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_one_kind_of_cache_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(kind(path).is_err());
        ensure(&LocalStorage::Private, path, Kind::Site).unwrap();
        ensure(&LocalStorage::Private, path, Kind::Site).unwrap();
        assert_eq!(kind(path).unwrap(), Kind::Site);
        let wrong = ensure(&LocalStorage::Private, path, Kind::Node).unwrap_err().to_string();
        assert!(wrong.contains("name another directory"), "{wrong}");
        std::fs::write(path.join(MARKER), "version = 9\nkind = \"site\"\n").unwrap();
        assert!(kind(path).unwrap_err().to_string().contains("newer build"));
    }

    #[test]
    fn what_is_somebody_elses_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("thesis.tex"), "all of it").unwrap();
        let refused =
            ensure(&LocalStorage::Private, folder.path(), Kind::Node).unwrap_err().to_string();
        assert!(refused.contains("thesis.tex"), "{refused}");
    }
}
