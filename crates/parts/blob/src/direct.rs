//! An OST's objects, read by a client that has the OST's storage mounted: no server between.
//!
//! Only reads. The server goes on serving meanwhile; objects are published whole and never changed,
//! so that nobody needs to be asked. The directory is opened anew for each object: its file system
//! may be unmounted at any time.
//!
//! Invariant: bytes are handed on only if they match the object's own checks.

use crate::Identity;
use crate::dir::{OpenError, open_read_only};
use crate::range::BlockRange;
use crate::{DirChunks, Error};
use bytes::{Bytes, BytesMut};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tieline_types::checksum::first_mismatch;
use tieline_types::{GrantedId, OstPlace};

/// The directory of an OST, as a client sees it.
#[derive(Clone, Debug)]
pub struct DirectReader {
    path: PathBuf,
    identity: Identity,
}

impl DirectReader {
    pub fn new(path: &Path, identity: Identity) -> Self {
        Self { path: path.to_owned(), identity }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Is the directory the OST's? Blocks.
    pub fn verify(&self) -> Result<(), Error> {
        DirChunks::verify(&self.path, &self.identity)
    }

    /// The bytes of a place in the object of `chunk`. Blocks.
    pub fn read(&self, chunk: GrantedId, place: &OstPlace) -> Result<Bytes, Error> {
        let store = || format!("directory {}", self.path.display());
        let damaged =
            |reason: &str| Error::Damaged { chunk, store: store(), reason: reason.to_owned() };
        let failed = |source| Error::Failed { store: store(), doing: "read directly", source };
        let root = File::open(&self.path).map_err(failed)?;
        let object = open_read_only(&root, chunk).map_err(|error| match error {
            OpenError::Damaged(reason) => damaged(&reason),
            OpenError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Error::Absent { chunk, store: store() }
            }
            OpenError::Io(source) => failed(source),
        })?;
        let length = u32::try_from(place.length).map_err(|_| damaged("a place is too long"))?;
        let range = BlockRange::widen(place.offset, length, object.length);
        let mut bytes = BytesMut::zeroed(range.length as usize);
        object.file.read_exact_at(&mut bytes, range.offset).map_err(failed)?;
        if first_mismatch(&bytes, &range.checks(&object.trailer.checks)).is_some() {
            return Err(damaged("a block does not match its check"));
        }
        let from = (place.offset - range.offset) as usize;
        let bytes = bytes.freeze();
        let to = from + length as usize;
        if to > bytes.len() {
            return Err(damaged("it is shorter than its place"));
        }
        Ok(bytes.slice(from..to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChunkStore;
    use crate::conformance::{bytes, chunk, trailer};
    use tieline_types::{ErrorKind, ObjectName, OstIndex};
    use tieline_world::SeededDice;

    #[tokio::test]
    async fn objects_are_read_beside_their_server() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity { fs: "extenci".parse().unwrap(), ost: OstIndex(3) };
        DirChunks::format(folder.path(), &identity, &SeededDice::new(1)).unwrap();
        let store = DirChunks::open(folder.path(), &identity).unwrap();
        let data = bytes(100_000, 5);
        store.put(&trailer(chunk(1), &data), data.clone()).await.unwrap();
        let reader = DirectReader::new(folder.path(), identity);
        reader.verify().unwrap();
        let place = |chunk, offset, length| {
            let object = ObjectName::Chunk(chunk);
            OstPlace { ost: OstIndex(3), object, offset, length, is_stale: false }
        };
        let whole = place(chunk(1), 0, 100_000);
        assert_eq!(reader.read(chunk(1), &whole).unwrap(), data);
        let part = place(chunk(1), 5000, 50_000);
        assert_eq!(reader.read(chunk(1), &part).unwrap(), data.slice(5000..55_000));
        let beyond = place(chunk(1), 90_000, 50_000);
        assert_eq!(reader.read(chunk(1), &beyond).unwrap_err().kind(), ErrorKind::Corrupt);
        let absent = reader.read(chunk(2), &place(chunk(2), 0, 10)).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::Gone);
        let other = Identity { fs: "extenci".parse().unwrap(), ost: OstIndex(4) };
        assert!(DirectReader::new(folder.path(), other).verify().is_err());
        let object = crate::dir::object_path(folder.path(), chunk(1));
        let file = File::options().write(true).open(object).unwrap();
        file.write_all_at(&[0xff], 70_000).unwrap();
        assert_eq!(reader.read(chunk(1), &whole).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
