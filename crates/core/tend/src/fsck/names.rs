//! Inodes and entries: every name stands in both, and counts are what they count.

use super::Check;
use crate::error::Result;
use tieline_format::Record;
use tieline_format::mdt::{Entry, Inode, key};
use tieline_kv::{Key, Range, Value};
use tieline_types::background::Repair;
use tieline_types::{FileId, FileKind, Name};

/// What a directory's entries amount to.
#[derive(Default)]
struct Counted {
    entries: u64,
    subdirectories: u32,
}

impl Check {
    pub(super) async fn names(&mut self) -> Result<()> {
        self.phase("files");
        let (mut start, end) = (key::kind(b'i'), key::after(&key::kind(b'i')));
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                break;
            }
            for (key, value) in page {
                let Some(id) = key::file_id(&key) else { continue };
                match Inode::from_bytes(&value) {
                    Ok(inode) => self.look_at_inode(id, inode).await?,
                    Err(error) => self.damaged(Some(id), error.to_string()).await?,
                }
            }
        }
        self.phase("names");
        self.entries().await
    }

    pub(super) async fn damaged(&mut self, file: Option<FileId>, detail: String) -> Result<()> {
        self.tell("damaged-record", file, detail, tieline_wire::ledger::Outcome::Lost).await
    }

    async fn look_at_inode(&mut self, id: FileId, inode: Inode) -> Result<()> {
        let keys: Vec<Key> =
            inode.names.iter().map(|name| key::entry(name.parent, &name.name)).collect();
        let entries = self.snapshot.read(&keys).await?;
        for (name, value) in inode.names.iter().zip(entries) {
            let entry = value.and_then(|value| Entry::from_bytes(&value).ok());
            if entry.is_none_or(|entry| entry.id != id) {
                let detail = format!(
                    "file {id} says it is `{}` in {}, which is not so",
                    name.name, name.parent
                );
                self.mend("name-without-entry", Some(id), detail, Repair::Names(id)).await?;
                return Ok(());
            }
        }
        if inode.names.is_empty() && !id.is_root() {
            let orphans = Range::new(key::orphans_of(id), key::after(&key::orphans_of(id)));
            if self.snapshot.scan(orphans, 1).await?.is_empty() {
                let detail = format!("file {id} has no name and nobody holds it");
                self.mend("file-without-name", Some(id), detail, Repair::Names(id)).await?;
            }
        } else if inode.kind != FileKind::Directory && inode.links as usize != inode.names.len() {
            let (links, names) = (inode.links, inode.names.len());
            let detail = format!("file {id} counts {links} links and has {names}");
            self.mend("wrong-links", Some(id), detail, Repair::Names(id)).await?;
        }
        if inode.kind == FileKind::Directory && (inode.entries > 0 || inode.links > 2) {
            let all = Range::new(key::entries(id), key::after(&key::entries(id)));
            if self.snapshot.scan(all, 1).await?.is_empty() {
                self.counted(id, &Counted::default()).await?;
            }
        }
        Ok(())
    }

    async fn entries(&mut self) -> Result<()> {
        let (mut start, end) = (key::kind(b'e'), key::after(&key::kind(b'e')));
        let mut current: Option<(FileId, Counted)> = None;
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                break;
            }
            let ids: Vec<Key> = page.iter().map(|(_, value)| key_of_entry(value)).collect();
            let inodes = self.snapshot.read(&ids).await?;
            for ((key, value), inode) in page.into_iter().zip(inodes) {
                let (Some(directory), Some(name)) = (key::file_id(&key), key::entry_name(&key))
                else {
                    continue;
                };
                if current.as_ref().is_none_or(|(id, _)| *id != directory) {
                    if let Some((id, counted)) = current.take() {
                        self.counted(id, &counted).await?;
                    }
                    current = Some((directory, Counted::default()));
                }
                let inode = inode.and_then(|value| Inode::from_bytes(&value).ok());
                if let Ok(entry) = Entry::from_bytes(&value) {
                    if let Some((_, counted)) = &mut current {
                        counted.entries += 1;
                        counted.subdirectories += u32::from(entry.kind == FileKind::Directory);
                    }
                    self.look_at_entry(directory, name, entry, inode).await?;
                }
            }
        }
        match current {
            Some((id, counted)) => self.counted(id, &counted).await,
            None => Ok(()),
        }
    }

    async fn look_at_entry(
        &mut self,
        directory: FileId,
        name: Name,
        entry: Entry,
        inode: Option<Inode>,
    ) -> Result<()> {
        let id = entry.id;
        let repair = Repair::Entry(directory, name.clone());
        match inode {
            None => {
                let detail = format!("`{name}` names file {id}, which does not exist");
                self.mend("entry-without-file", Some(directory), detail, repair).await
            }
            Some(inode) if inode.kind != entry.kind => {
                let detail = format!("`{name}` is taken for another kind of file than {id} is");
                self.mend("wrong-kind", Some(id), detail, repair).await
            }
            Some(inode)
                if !inode.names.iter().any(|at| at.parent == directory && at.name == name) =>
            {
                let detail = format!("`{name}` names file {id}, which does not know that name");
                self.mend("entry-without-name", Some(id), detail, repair).await
            }
            Some(_) => Ok(()),
        }
    }

    /// The end of a directory: does it count what it has?
    async fn counted(&mut self, id: FileId, counted: &Counted) -> Result<()> {
        let Some(inode) = self.inode(id).await? else {
            let detail =
                format!("{} names stand in directory {id}, which is gone", counted.entries);
            let repair = Repair::Entries(id);
            return self.mend("names-without-directory", None, detail, repair).await;
        };
        let links = 2 + counted.subdirectories;
        if inode.entries == counted.entries && inode.links == links {
            return Ok(());
        }
        let detail = format!(
            "directory {id} counts {} entries and {} links, and has {} and {links}",
            inode.entries, inode.links, counted.entries
        );
        let by = (
            counted.entries as i64 - inode.entries as i64,
            i64::from(links) - i64::from(inode.links),
        );
        self.mend("wrong-count", Some(id), detail, Repair::Counts(id, by.0, by.1)).await
    }

    /// Where other MDTs are mounted in this one.
    pub(super) async fn junctions(&mut self) -> Result<()> {
        self.phase("junctions");
        let map = self.parts.map.current();
        for junction in &map.map.junctions {
            if junction.parent.mdt() != self.parts.index {
                continue;
            }
            let (parent, name) = (junction.parent, &junction.name);
            let mounted = junction.mdt.label();
            let left = tieline_wire::ledger::Outcome::Left;
            let inode = self.inode(parent).await?;
            if inode.is_none_or(|inode| inode.kind != FileKind::Directory) {
                let detail = format!("{mounted} is mounted in {parent}, which is no directory");
                self.tell("wrong-junction", None, detail, left).await?;
            } else if let Some(entry) = self.record::<Entry>(key::entry(parent, name)).await? {
                let is_directory = entry.kind == FileKind::Directory;
                let what = if is_directory { "directory" } else { "file" };
                let detail = format!(
                    "{mounted} is mounted over the {what} `{name}`, which nobody finds: to reach \
                     it, give {mounted} another `junction` in the text of the map (`tieline map \
                     show --toml`, `tieline map sign`; docs/operations.md, \"Another site\"), \
                     rename `{name}`, and change the junction back"
                );
                self.tell("hidden-by-junction", Some(parent), detail, left).await?;
            }
        }
        Ok(())
    }
}

fn key_of_entry(value: &Value) -> Key {
    Entry::from_bytes(value).map_or_else(|_| vec![b'i'], |entry| key::inode(entry.id))
}
