//! A directory of a live file system, as a tree that is published.

use crate::list::listed;
use crate::shell::Shell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;
use tieline_base::report::chain;
use tieline_files::Access;
use tieline_publish::tree::{Item, Tree};
use tieline_publish::xattrs::Xattrs;
use tieline_types::{Attributes, FileId, FileKind, HandleId, Name, Shown};
use tokio::runtime::Handle;

/// Bytes asked for at once: the window ahead does the rest.
const PIECE: u32 = 4 << 20;

/// Asks the file system from a thread that may wait.
pub struct Live {
    shell: Arc<Shell>,
    root: Attributes,
    runtime: Handle,
    /// Ids of what is in the directory that was listed last: files are opened right after.
    last: (Vec<u8>, BTreeMap<Vec<u8>, FileId>),
}

impl Live {
    /// To be used outside the runtime's own threads, or where they may block.
    pub fn new(shell: Arc<Shell>, root: Attributes) -> Self {
        Self { shell, root, runtime: Handle::current(), last: Default::default() }
    }

    /// The file at a path from the root.
    async fn find(&self, path: &[u8]) -> anyhow::Result<FileId> {
        let slash = path.iter().rposition(|&byte| byte == b'/').unwrap_or_default();
        let (folder, name) = path.split_at(slash);
        let is_last = self.last.0 == folder;
        let known = self.last.1.get(name.get(1..).unwrap_or_default()).filter(|_| is_last);
        if let Some(id) = known {
            return Ok(*id);
        }
        let mut id = self.root.id;
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            let found = self.shell.files.lookup(&self.shell.caller, id, &Name::new(name)?).await?;
            let gone = || anyhow::anyhow!("it is not there any more");
            id = found.attributes.ok_or_else(gone)?.id;
        }
        Ok(id)
    }

    async fn item(&self, name: &[u8], of: &Attributes) -> anyhow::Result<Item> {
        let (files, caller) = (&self.shell.files, &self.shell.caller);
        let target = match of.kind {
            FileKind::Symlink => Some(files.read_symlink(caller, of.id).await?),
            _ => None,
        };
        let mut xattrs = Xattrs::new();
        if of.has_xattrs != Some(false) && of.kind != FileKind::Symlink {
            for name in files.xattrs(caller, of.id).await? {
                if name.as_bytes().starts_with(b"user.") {
                    let value = files.xattr(caller, of.id, &name).await?;
                    xattrs.push((name.as_bytes().to_vec(), value));
                }
            }
        }
        Ok(Item {
            name: name.to_vec(),
            kind: of.kind,
            mode: of.mode.bits(),
            uid: of.uid.0,
            gid: of.gid.0,
            size: of.size,
            device: of.device,
            mtime: of.mtime,
            file: of.id.0,
            links: of.links,
            target,
            xattrs,
        })
    }

    async fn items(&self, path: &[u8]) -> anyhow::Result<Vec<(FileId, Item)>> {
        let (mut items, folder) = (Vec::new(), self.find(path).await?);
        for entry in listed(&self.shell, folder).await? {
            let of = match entry.known {
                Some(known) => known.attributes,
                None => self.shell.files.attributes(&self.shell.caller, entry.id).await?.attributes,
            };
            items.push((entry.id, self.item(entry.name.as_bytes(), &of).await?));
        }
        Ok(items)
    }
}

/// Names which path it was.
fn at(path: &[u8]) -> impl Fn(anyhow::Error) -> io::Error + '_ {
    move |error| io::Error::other(format!("{}: {}", Shown(path), chain(error.as_ref())))
}

impl Tree for Live {
    fn root(&mut self) -> io::Result<Item> {
        self.runtime.block_on(self.item(b"", &self.root)).map_err(at(b"/"))
    }

    fn list(&mut self, path: &[u8]) -> io::Result<Vec<Item>> {
        let items = self.runtime.block_on(self.items(path)).map_err(at(path))?;
        let ids = items.iter().map(|(id, item)| (item.name.clone(), *id)).collect();
        self.last = (path.to_vec(), ids);
        Ok(items.into_iter().map(|(_, item)| item).collect())
    }

    fn open(&mut self, path: &[u8]) -> io::Result<Box<dyn Read + '_>> {
        let opened = self.runtime.block_on(async {
            let id = self.find(path).await?;
            let access = Access { read: true, ..Access::default() };
            anyhow::Ok(self.shell.files.open(&self.shell.caller, id, access).await?.handle)
        });
        let handle = opened.map_err(at(path))?;
        Ok(Box::new(Stream { live: self, handle, offset: 0, ready: Vec::new() }))
    }
}

/// One file from its begin to its end.
struct Stream<'l> {
    live: &'l Live,
    handle: HandleId,
    offset: u64,
    /// What came and was not read yet.
    ready: Vec<bytes::Bytes>,
}

impl Read for Stream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.ready.is_empty() {
            let files = &self.live.shell.files;
            let read = self.live.runtime.block_on(files.read(self.handle, self.offset, PIECE));
            let mut pieces = read.map_err(|error| io::Error::other(chain(&error)))?;
            pieces.retain(|piece| !piece.is_empty());
            self.offset += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
            pieces.reverse();
            self.ready = pieces;
        }
        let Some(piece) = self.ready.last_mut() else { return Ok(0) };
        let length = piece.len().min(into.len());
        let taken = piece.split_to(length);
        if piece.is_empty() {
            self.ready.pop();
        }
        into[..length].copy_from_slice(&taken);
        Ok(length)
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.live.runtime.block_on(self.live.shell.files.release(self.handle));
    }
}
