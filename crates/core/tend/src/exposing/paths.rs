//! Where directories are in an exposed directory: as records say, and as they are to be.

use super::plan::{Halt, Plan, Planned};
use crate::error::{Error, decode};
use tieline_format::mdt::{Exposed, ExposedEntry, Inode, NameOf, key};
use tieline_kv::Range;
use tieline_types::{FileId, FileKind, Name, Version};
use tieline_wire::exposed::{Dress, Path, Step};

/// What is in the way of another is moved here until its own turn: no directory has this id.
pub const PARKED: FileId = FileId(0);
/// What its name begins with then.
pub const PARKED_PREFIX: &str = ".tieline-moved-";
/// Which directory waits under such a name for its turn.
pub fn parked(name: &Name) -> Option<FileId> {
    let id = name.as_bytes().strip_prefix(PARKED_PREFIX.as_bytes())?.strip_prefix(b"0x")?;
    u64::from_str_radix(str::from_utf8(id).ok()?, 16).ok().map(FileId)
}

/// Directories above each other.
const DEPTH_MAX: usize = 2048;

/// Owner and mode of a file there. Who is let in by a list of its own cannot be said by a mode: it
/// is the owner's alone.
pub fn dress(inode: &Inode) -> Dress {
    let is_listed = inode.acls.as_ref().is_some_and(|acls| acls.access.is_some());
    let mode = if is_listed { inode.mode.without(0o077) } else { inode.mode };
    Dress {
        uid: inode.uid,
        gid: inode.gid,
        mode,
        mtime: inode.mtime,
        is_directory: inode.kind == FileKind::Directory,
    }
}

/// What is recorded of something that is dressed so.
pub fn record(content: Version, names: Vec<NameOf>, dress: &Dress, size: u64) -> Exposed {
    Exposed {
        content,
        names,
        uid: dress.uid,
        gid: dress.gid,
        mode: dress.mode,
        mtime: dress.mtime,
        size,
        is_directory: dress.is_directory,
        is_doubtful: false,
    }
}

/// The mode that matters there.
pub fn is_dressed(record: &Exposed, dress: &Dress) -> bool {
    let same = (record.uid, record.gid, record.mode) == (dress.uid, dress.gid, dress.mode);
    same && (dress.is_directory || record.mtime == dress.mtime)
}

impl Plan<'_> {
    /// Where a directory is there now.
    pub async fn directory_path(&mut self, directory: FileId) -> Result<Path, Halt> {
        let mut names: Path = vec![];
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == self.root {
                names.extend(self.prefix.iter().rev().cloned());
                names.reverse();
                return Ok(names);
            }
            if at == PARKED {
                names.reverse();
                return Ok(names);
            }
            let record = self.exposed(at).await?;
            let name = record.and_then(|record| record.names.into_iter().next());
            let name = name.ok_or(Halt::Lost)?;
            names.push(name.name);
            at = name.parent;
        }
        Err(Halt::Lost)
    }

    /// Where a name is there now.
    pub async fn path(&mut self, name: &NameOf) -> Result<Path, Halt> {
        let mut path = self.directory_path(name.parent).await?;
        path.push(name.name.clone());
        Ok(path)
    }

    /// Has a directory lie there as it is in the file system, with all above it.
    pub async fn settle_directory(&mut self, directory: FileId) -> Result<Path, Halt> {
        let mut chain: Vec<(FileId, Inode)> = vec![];
        let mut at = directory;
        while at != self.root {
            let inode = self.inode(at).await?.ok_or(Halt::Lost)?;
            let above = inode.names.first().ok_or(Halt::Lost)?.parent;
            chain.push((at, inode));
            if chain.len() > DEPTH_MAX {
                return Err(Halt::Lost);
            }
            at = above;
        }
        self.settle_root().await?;
        while let Some((id, inode)) = chain.pop() {
            self.settle_one(id, &inode).await?;
        }
        self.directory_path(directory).await
    }

    /// The directories above the root of an MDT that is mounted in another.
    async fn settle_root(&mut self) -> Result<(), Halt> {
        let root = self.root;
        if self.prefix.is_empty() || self.exposed(root).await?.is_some() {
            return Ok(());
        }
        let Some(inode) = self.inode(root).await? else { return Err(Halt::Lost) };
        let dress = dress(&inode);
        let above = (1..=self.prefix.len()).filter_map(|count| self.prefix.get(..count));
        let steps: Vec<Step> =
            above.map(|path| Step::MakeDirectory { path: path.to_vec(), dress }).collect();
        self.add(Planned { steps, undone: vec![self.deletes(root)], ..Planned::default() })?;
        self.put_exposed(root, &record(Version(0), vec![], &dress, 0));
        Ok(())
    }

    async fn settle_one(&mut self, id: FileId, inode: &Inode) -> Result<(), Halt> {
        let wanted = inode.names.first().cloned().ok_or(Halt::Lost)?;
        let dress = dress(inode);
        let Some(old) = self.exposed(id).await? else {
            self.make_way(&wanted, id).await?;
            let path = self.path(&wanted).await?;
            let undone = vec![self.deletes(id), self.deletes_entry(&wanted)];
            let steps = vec![Step::MakeDirectory { path, dress }];
            self.add(Planned { steps, undone, ..Planned::default() })?;
            self.put_entry(&wanted, id);
            self.put_exposed(id, &record(Version(0), vec![wanted], &dress, 0));
            return Ok(());
        };
        let there = old.names.first().cloned().ok_or(Halt::Lost)?;
        let mut own = old.clone();
        if self.remakes && there == wanted && self.remade.insert(id) {
            let path = self.path(&wanted).await?;
            let steps = vec![Step::MakeDirectory { path, dress }];
            self.add(Planned { steps, ..Planned::default() })?;
        }
        if there != wanted {
            self.make_way(&wanted, id).await?;
            let (from, path) = (self.path(&there).await?, self.path(&wanted).await?);
            let undone = vec![
                self.writes_exposed(id, &old),
                self.deletes_entry(&wanted),
                self.writes_entry(&there, id),
            ];
            let steps = vec![Step::Move { from, path }];
            self.add(Planned { steps, undone, ..Planned::default() })?;
            self.delete_entry(&there);
            self.put_entry(&wanted, id);
            own.names = vec![wanted.clone()];
            self.put_exposed(id, &own);
        }
        if !is_dressed(&own, &dress) {
            let path = self.path(&wanted).await?;
            let undone = vec![self.writes_exposed(id, &own)];
            let steps = vec![Step::Dress { path, dress }];
            self.add(Planned { steps, undone, ..Planned::default() })?;
            self.put_exposed(id, &record(Version(0), vec![wanted], &dress, 0));
        }
        Ok(())
    }

    /// Whatever else has a name there goes: it moved, or is no more, and its turn comes.
    pub async fn make_way(&mut self, name: &NameOf, id: FileId) -> Result<(), Halt> {
        let Some(other) = self.entry(name).await?.filter(|other| *other != id) else {
            return Ok(());
        };
        self.note(other);
        let Some(old) = self.exposed(other).await? else {
            self.delete_entry(name);
            return Ok(());
        };
        if !old.is_directory {
            self.take_away(other, &old).await?;
            return Err(Halt::Full);
        }
        let parked = Name::new(format!("{PARKED_PREFIX}{other}")).map_err(|_| Halt::Lost)?;
        let parked = NameOf { parent: PARKED, name: parked };
        let (from, path) = (self.path(name).await?, self.path(&parked).await?);
        let undone = vec![self.writes_exposed(other, &old), self.writes_entry(name, other)];
        let steps = vec![Step::Move { from, path }];
        self.add(Planned { steps, undone, ..Planned::default() })?;
        self.delete_entry(name);
        self.put_entry(&parked, other);
        self.put_exposed(other, &Exposed { names: vec![parked], ..old });
        Err(Halt::Full)
    }

    async fn entry(&mut self, name: &NameOf) -> Result<Option<FileId>, Halt> {
        let key = key::exposed_entry(self.pool, name.parent, &name.name);
        let entry: Option<ExposedEntry> = self.read(key).await?;
        Ok(entry.map(|entry| entry.id))
    }

    /// Does anything lie in a directory there?
    pub async fn has_entries(&mut self, directory: FileId) -> Result<bool, Halt> {
        let prefix = key::exposed_entries_of(self.pool, directory);
        let range = Range::new(prefix.clone(), key::after(&prefix));
        Ok(!self.transaction.scan(range, 1).await.map_err(Error::from)?.is_empty())
    }

    pub async fn inode(&mut self, id: FileId) -> Result<Option<Inode>, Halt> {
        self.read(key::inode(id)).await
    }

    pub async fn exposed(&mut self, id: FileId) -> Result<Option<Exposed>, Halt> {
        self.read(key::exposed(self.pool, id)).await
    }

    async fn read<R: tieline_format::Record>(&mut self, key: Vec<u8>) -> Result<Option<R>, Halt> {
        let values = self.transaction.read(std::slice::from_ref(&key)).await;
        let value = values.map_err(Error::from)?.into_iter().next().flatten();
        let shown = || key.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(value.map(|value| decode(&value, shown)).transpose()?)
    }
}
