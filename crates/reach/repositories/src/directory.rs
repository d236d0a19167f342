//! Files in a directory that is mounted here.
//!
//! Others write to it: no link below it is followed, and nothing is waited for that is no regular
//! file.

use crate::{Shelf, Trouble, Want};
use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tieline_types::ErrorKind;

pub struct Directory {
    root: PathBuf,
}

impl Directory {
    pub fn new(root: impl AsRef<Path>) -> Self {
        Self { root: root.as_ref().to_owned() }
    }
}

#[async_trait::async_trait]
impl Shelf for Directory {
    async fn get(&self, want: Want<'_>) -> Result<Bytes, Trouble> {
        let (root, key) = (self.root.clone(), want.key.to_owned());
        let what = format!("{key} in {}", root.display());
        let job = move || read(&root, Want { key: &key, ..want });
        let read = tokio::task::spawn_blocking(job).await;
        let stopped = |_| Trouble::new(ErrorKind::Internal, "a read of a repository's file");
        read.map_err(stopped)?.map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => ErrorKind::Corrupt,
                _ => ErrorKind::StorageFault,
            };
            Trouble::new(kind, format!("{what} ({error})"))
        })
    }
}

fn read(root: &Path, want: Want<'_>) -> io::Result<Bytes> {
    let root = File::open(root)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = File::from(openat2(&root, want.key, flags, Mode::empty(), within)?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(invalid("it is no regular file"));
    }
    let there = metadata.len().saturating_sub(want.offset);
    let length = want.length.unwrap_or(there);
    if length > want.most {
        return Err(invalid("it is larger than it may be"));
    }
    let length = usize::try_from(length).map_err(|_| invalid("it is too large"))?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, want.offset)?;
    Ok(bytes.into())
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(key: &str) -> Want<'_> {
        Want { key, offset: 0, length: None, most: 100 }
    }

    #[tokio::test]
    async fn files_are_read_and_nothing_beside_them() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("shelf");
        std::fs::create_dir_all(root.join("data")).unwrap();
        std::fs::write(root.join("data/one"), b"0123456789").unwrap();
        std::fs::write(folder.path().join("secret"), b"secret").unwrap();
        std::os::unix::fs::symlink("../../secret", root.join("data/link")).unwrap();
        let shelf = Directory::new(&root);
        assert_eq!(shelf.get(want("data/one")).await.unwrap(), "0123456789");
        let part = Want { offset: 2, length: Some(3), ..want("data/one") };
        assert_eq!(shelf.get(part).await.unwrap(), "234");
        for (wrong, kind) in [
            (want("data/two"), ErrorKind::NotFound),
            (want("../secret"), ErrorKind::StorageFault),
            (want("data/link"), ErrorKind::StorageFault),
            (want("data"), ErrorKind::Corrupt),
            (Want { most: 9, ..want("data/one") }, ErrorKind::Corrupt),
            (Want { offset: 8, length: Some(3), ..want("data/one") }, ErrorKind::Corrupt),
        ] {
            assert_eq!(shelf.get(wrong).await.unwrap_err().kind, kind, "{wrong:?}");
        }
    }
}
