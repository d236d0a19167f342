//! Files that were there before us: listed for the import, read for everybody.
//!
//! Their checks are computed as they are read, so that the way to the reader is checked like that
//! of any chunk; what they should be, the MDS keeps once somebody has asked for them here.
//!
//! Invariant: a file that is not what was adopted is not served, and the log says why.

use bytes::Bytes;
use std::sync::Arc;
use tieline_blob::{AdoptedError, AdoptedFile, AdoptedFound, AdoptedTree};
use tieline_types::tree::Tree;
use tieline_types::{Digest, ErrorKind, Gid, Mode, ObjectName, Uid, XattrName, checksum};
use tieline_wire::Failure;
use tieline_wire::data::{
    AdoptedEntry, ChecksumAdopted, ChecksumAdoptedReply, Hashed, ListAdopted, ListAdoptedReply,
    ReadObjectReply,
};
use tieline_wire::meta::Xattr;
use tieline_wire::mirrors::{VerifyObject, VerifyObjectReply};

/// As the messages say.
const ENTRIES_MAX: usize = 4096;
const CHECKSUM_MAX: u32 = 64 << 20;

/// The adopted tree of one OST, if it has one.
pub(crate) struct Adopted {
    pub label: String,
    pub tree: Option<Arc<AdoptedTree>>,
}

impl Adopted {
    pub async fn list(&self, message: ListAdopted) -> Result<ListAdoptedReply, Failure> {
        let limit = message.limit as usize;
        if limit == 0 || limit > ENTRIES_MAX {
            return Err(self.refuse(format!("listing of {limit} files, 1 to {ENTRIES_MAX} fit")));
        }
        let root = self.tree()?.root().as_os_str().as_encoded_bytes().to_vec();
        let page = self
            .blocking(move |tree| tree.list(&message.directory, message.after.as_deref(), limit))
            .await?;
        let entries = page.entries.into_iter().map(entry).collect();
        let own = entry(page.own);
        Ok(ListAdoptedReply { root, directory: page.directory, own, entries, is_end: page.is_end })
    }

    pub async fn read(
        &self,
        object: ObjectName,
        offset: u64,
        length: u32,
    ) -> Result<(ReadObjectReply, Bytes), Failure> {
        let file = self.file(object)?;
        let object_length = file.size;
        let (offset, bytes, checks) = self
            .blocking(move |tree| {
                let (offset, bytes) = tree.read(&file, offset, length)?;
                let checks = checksum::block_checks(&bytes);
                Ok((offset, bytes, checks))
            })
            .await?;
        Ok((ReadObjectReply { offset, checks, object_length, proof: None }, bytes))
    }

    pub async fn checksum(
        &self,
        message: ChecksumAdopted,
    ) -> Result<ChecksumAdoptedReply, Failure> {
        let (offset, length) = (message.offset, message.length);
        if !offset.is_multiple_of(checksum::BLOCK as u64) || length > CHECKSUM_MAX {
            return Err(self.refuse(format!("checksums of {length} bytes at {offset}")));
        }
        let file = self.file(message.object)?;
        self.blocking(move |tree| {
            let (_, bytes) = tree.read(&file, offset, length)?;
            // Whole blocks were read; the range may end within the last.
            let bytes = bytes.slice(..bytes.len().min(length as usize));
            Ok(ChecksumAdoptedReply {
                checks: checksum::block_checks(&bytes),
                adler32: simd_adler32::adler32(&bytes.as_ref()),
                digest: Digest::of(&bytes),
            })
        })
        .await
    }

    /// The tree of a range.
    pub async fn tree_of(&self, object: ObjectName, hashed: Hashed) -> Result<Tree, Failure> {
        let file = self.file(object)?;
        self.blocking(move |tree| {
            let (_, bytes) = tree.read(&file, hashed.offset, hashed.length as u32)?;
            Ok(Tree::of(&bytes.slice(..bytes.len().min(hashed.length as usize))))
        })
        .await
    }

    /// Reads a range where it lies. What it should be, the asker knows; a file that is not what was
    /// adopted is Corrupt, as an object whose bytes are not those that were written. Of no bytes,
    /// only the file's size and time are looked at.
    pub async fn verify(&self, message: VerifyObject) -> Result<VerifyObjectReply, Failure> {
        let (offset, length) = (message.offset, message.length);
        if !offset.is_multiple_of(checksum::BLOCK as u64) || length > CHECKSUM_MAX.into() {
            return Err(self.refuse(format!("verification of {length} bytes at {offset}")));
        }
        let file = self.file(message.object)?;
        let looked = self.blocking(move |tree| {
            let (_, bytes) = match tree.read(&file, offset, length as u32) {
                Err(error @ AdoptedError::Changed { .. }) => return Ok(Err(error.to_string())),
                read => read?,
            };
            // Whole blocks were read; the range may end within the last.
            let bytes = bytes.slice(..bytes.len().min(length as usize));
            Ok(Ok(VerifyObjectReply {
                digest: Digest::of(&bytes),
                bad_blocks: 0,
                first_bad: None,
                length: bytes.len() as u64,
            }))
        });
        let changed = |why| Failure::new(ErrorKind::Corrupt, format!("{}: {why}", self.label));
        looked.await?.map_err(changed)
    }

    fn file(&self, object: ObjectName) -> Result<AdoptedFile, Failure> {
        match object {
            ObjectName::External { path, size, mtime_ns } => {
                Ok(AdoptedFile { path, size, mtime_ns })
            }
            ObjectName::Chunk(chunk) => Err(self.refuse(format!("chunk {chunk} was not adopted"))),
            ObjectName::Key(key) => Err(self.refuse(format!("`{key}` is a repository's"))),
        }
    }

    fn tree(&self) -> Result<&Arc<AdoptedTree>, Failure> {
        self.tree.as_ref().ok_or_else(|| {
            let detail = format!(
                "{}: adopts no files here: set `adopt` in its server's settings",
                self.label
            );
            Failure::new(ErrorKind::NotSupported, detail)
        })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        job: impl FnOnce(&AdoptedTree) -> Result<T, AdoptedError> + Send + 'static,
    ) -> Result<T, Failure> {
        let tree = self.tree()?.clone();
        let outcome = tokio::task::spawn_blocking(move || job(&tree)).await;
        let stopped = |error: tokio::task::JoinError| {
            Failure::new(ErrorKind::Internal, format!("{}: {error}", self.label))
        };
        outcome.map_err(stopped)?.map_err(|error| {
            let mut detail = format!("{}: {error}", self.label);
            if let Some(source) = std::error::Error::source(&error) {
                detail += &format!(": {source}");
            }
            if error.kind() == ErrorKind::StorageFault {
                tracing::warn!("{detail}");
            }
            Failure::new(error.kind(), detail)
        })
    }

    fn refuse(&self, reason: String) -> Failure {
        Failure::new(ErrorKind::InvalidArgument, format!("{}: {reason}", self.label))
    }
}

fn entry(found: AdoptedFound) -> AdoptedEntry {
    let xattrs = found.xattrs.into_iter();
    let xattr = |(name, value)| Some(Xattr { name: XattrName::new(name).ok()?, value });
    AdoptedEntry {
        name: found.name,
        kind: found.kind,
        mode: Mode::new(found.mode),
        uid: Uid(found.uid),
        gid: Gid(found.gid),
        size: found.size,
        mtime: found.mtime,
        target: found.target,
        xattrs: xattrs.filter_map(xattr).collect(),
    }
}
