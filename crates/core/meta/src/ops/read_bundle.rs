//! ReadBundle: what a program opened in a tree; and the signs by which it is recognised.
//!
//! Each file is told to whoever may read it, and may list and search its directory, each directory
//! to whoever may list and search it: what is told he could find by himself. Whoever holds a
//! directory alone is not asked for it.

use crate::error::{Error, Result};
use crate::permission::{self, READ, SEARCH};
use crate::view::{View, decode};
use crate::walked;
use std::collections::BTreeMap;
use tieline_format::mdt::{Bundle, Bundles, Inode, key};
use tieline_types::{FileId, FileKind};
use tieline_wire::trees::{
    BundleList, BundleSigns, Packed, ReadBundle, ReadBundleReply, SizedFile,
};

/// Files that are read at once.
const STEP: usize = 256;

pub async fn run(view: &mut View<'_>, request: &ReadBundle) -> Result<ReadBundleReply> {
    let ReadBundle { root, number } = *request;
    view.scene.check_mine(root)?;
    let mut judge = Judge::default();
    let mut list = BundleList::default();
    if judge.may_be_told(view, root).await? {
        let known: Option<Bundle> = view.record(key::bundle(root, number)).await?;
        let Bundle { directories, files } = known.unwrap_or_default();
        let directories: Vec<FileId> = directories.iter().map(|member| member.id).collect();
        let files: Vec<FileId> = files.iter().map(|member| member.id).collect();
        list.directories = judge.directories(view, &directories).await?;
        list.files = judge.files(view, &files).await?;
    }
    Ok(ReadBundleReply { list: Packed::new(&list) })
}

/// The signs of a directory's bundles, as far as the caller may be told of them.
pub async fn signs(view: &mut View<'_>, root: FileId) -> Result<Option<Vec<BundleSigns>>> {
    let Some(known): Option<Bundles> = view.record(key::bundles(root)).await? else {
        return Ok(None);
    };
    let mut judge = Judge::default();
    let mut told = vec![];
    for head in known.heads {
        let signs = judge.files(view, &head.signs).await?.into_iter().map(|file| file.id);
        let signs: Vec<FileId> = signs.collect();
        if !signs.is_empty() {
            told.push(BundleSigns { number: head.number, signs });
        }
    }
    Ok(Some(told))
}

/// What a caller may be told of; each directory is looked at once.
#[derive(Default)]
pub struct Judge {
    directories: BTreeMap<FileId, bool>,
}

impl Judge {
    /// Of directories those that the caller may list, search and get to.
    pub async fn directories(
        &mut self,
        view: &mut View<'_>,
        ids: &[FileId],
    ) -> Result<Vec<FileId>> {
        let mut told = vec![];
        for &id in ids {
            if self.may_be_told(view, id).await? {
                told.push(id);
            }
        }
        Ok(told)
    }

    /// Of files those that the caller may read and find, with their sizes.
    pub async fn files(&mut self, view: &mut View<'_>, ids: &[FileId]) -> Result<Vec<SizedFile>> {
        let mut told = vec![];
        for ids in ids.chunks(STEP) {
            let keys: Vec<_> = ids.iter().map(|&id| key::inode(id)).collect();
            let values = view.read(&keys).await?;
            for (&id, value) in ids.iter().zip(values) {
                let Some(value) = value.filter(|_| id.mdt() == view.scene.mdt) else { continue };
                let inode: Inode = decode(&value, || id.to_string())?;
                if self.is_found(view, &inode).await? {
                    told.push(SizedFile { id, size: inode.size });
                }
            }
        }
        Ok(told)
    }

    async fn is_found(&mut self, view: &mut View<'_>, inode: &Inode) -> Result<bool> {
        let may_read = permission::is_allowed(inode, view.scene.caller, READ);
        if inode.kind != FileKind::Regular || !may_read {
            return Ok(false);
        }
        for name in &inode.names {
            if self.may_be_told(view, name.parent).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub async fn may_be_told(&mut self, view: &mut View<'_>, id: FileId) -> Result<bool> {
        if let Some(&may) = self.directories.get(&id) {
            return Ok(may);
        }
        let may = may_be_told(view, id).await?;
        self.directories.insert(id, may);
        Ok(may)
    }
}

async fn may_be_told(view: &mut View<'_>, id: FileId) -> Result<bool> {
    let found: Option<Inode> = view.peek(id).await?;
    let caller = view.scene.caller;
    let is_open = |inode: &Inode| {
        inode.kind == FileKind::Directory
            && permission::is_allowed(inode, caller, READ)
            && permission::is_allowed(inode, caller, SEARCH)
    };
    if !found.as_ref().is_some_and(is_open) {
        return Ok(false);
    }
    match walked::reach(view, id).await {
        Ok(()) => Ok(true),
        Err(Error::Denied { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
