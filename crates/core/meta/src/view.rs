//! One transaction as operations see it: records by type, and a note of what they touch.
//!
//! Operations read first, decide, and write last: an operation that fails has written nothing. What
//! a change touches is collected on the way ([`Touched`]), so that the service can take back leases
//! on it before the commit.
//!
//! Knows nothing of leases and sessions beyond who asks.

use crate::delegation::Delegation;
use crate::error::{Error, Result};
use crate::exposed::Exposure;
use crate::made::MadeTable;
use crate::placement::Placement;
use crate::quotas::{self, Charge, Held, Quotas, Sums};
use crate::serials::Serials;
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tieline_format::Record;
use tieline_format::map::FederationMap;
use tieline_format::mdt::{Entry, Inode, UsageChange, key};
use tieline_kv::{Committed, Key, Range, Transaction, Value};
use tieline_sessions::{WalkTable, WriterTable};
use tieline_types::{
    Attributes, Caller, FileId, FileKind, Grant, LostLock, MdtIndex, Name, SessionId, Time, Version,
};
use tieline_wire::meta::BatchOutcome;

/// Sessions that keep files which lose their last name.
pub type Keepers = BTreeSet<(FileId, SessionId)>;

/// What an operation knows besides the store.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    pub mdt: MdtIndex,
    pub map: &'a FederationMap,
    /// Our own clock: when something is freed, kept or counted.
    pub now: Time,
    /// What files are told to have been changed at: a client may have done it by itself before.
    pub at: Time,
    pub session: SessionId,
    pub grant: Grant,
    pub caller: &'a Caller,
    /// The caller acts for another.
    pub delegation: Option<&'a Delegation>,
    /// Those of a batch's items.
    pub of_items: &'a [Option<Arc<Delegation>>],
    pub made: &'a MadeTable,
    /// Sessions other than the asking one whose programs hold a file open that this operation may
    /// leave nameless.
    pub keepers: &'a Keepers,
    pub serials: &'a Serials,
    pub placement: &'a Placement,
    pub quotas: &'a Arc<Quotas>,
    pub writers: &'a WriterTable,
    /// Files of this MDT: only `usage` asks.
    pub inodes: u64,
    /// Files below this serial were there when the MDT started.
    pub first_serial: u64,
    /// The id of the file that is made, if the client chose it.
    pub chosen: Option<FileId>,
    /// Ids that the client chose were never used before from this serial on.
    pub unused_from: u64,
    /// What a limit does not allow fails; else more room may be had first.
    pub refuses: bool,
    /// Files that lose their last name are kept for undeleting.
    pub keeps_deleted: bool,
    /// How long.
    pub keep_ms: u64,
    /// Locks that the session lost, and its client does not know yet.
    pub lost: &'a [LostLock],
    /// What sessions hold, if this one is told of nothing else.
    pub walks: Option<&'a WalkTable>,
}

/// Seconds that what a client says may lie ahead of our clock, as Kerberos takes it, too. What it
/// says is later was not later.
const AHEAD_MAX: i64 = 300;

impl Scene<'_> {
    /// The latest time that is believed of what a client did.
    pub fn latest(&self) -> Time {
        Time { seconds: self.now.seconds.saturating_add(AHEAD_MAX), ..self.now }
    }

    /// When bytes were written, by what a client says, of a file with this time of modification. A
    /// time that was set may lie anywhere.
    pub fn written(&self, said: Time, mtime: Time) -> Time {
        if said == mtime { said } else { said.min(self.latest()) }
    }

    /// When a file was changed that was last changed `before`. What a client did by itself may
    /// come after what was done later.
    pub fn changed(&self, before: Time) -> Time {
        self.at.max(before)
    }

    /// Refuses files of other MDTs.
    pub fn check_mine(&self, id: FileId) -> Result<()> {
        if id.mdt() == self.mdt { Ok(()) } else { Err(Error::OtherMdt { id }) }
    }

    /// Refuses to write to a file on which the client believes locks that others may hold now.
    pub fn check_locks(&self, file: FileId) -> Result<()> {
        let has_lost = self.lost.iter().any(|lost| lost.id == file);
        if has_lost { Err(Error::LockLost { file }) } else { Ok(()) }
    }

    /// The MDT that is mounted at a name, if one is.
    pub fn junction(&self, parent: FileId, name: &Name) -> Option<MdtIndex> {
        let mut junctions = self.map.junctions_in(parent);
        junctions.find(|junction| junction.name == *name).map(|junction| junction.mdt)
    }
}

/// Files that came and went: those that were there when the MDT started are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    pub old: i64,
    pub new: i64,
}

/// What a change touches, by lease unit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Touched {
    pub units: BTreeMap<FileId, TouchedUnit>,
    /// The file that loses its last name, if one does.
    pub nameless: BTreeSet<FileId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TouchedUnit {
    pub names: BTreeSet<Name>,
    pub files: BTreeSet<FileId>,
    /// Directories among the names, or the unit itself, are elsewhere then.
    pub moves: bool,
}

/// One transaction.
pub struct View<'a> {
    pub scene: Scene<'a>,
    transaction: Box<dyn Transaction>,
    pub touched: Touched,
    /// Units that tell of what was read.
    pub seen: BTreeSet<FileId>,
    /// Files that were read and that others write.
    pub written: BTreeSet<FileId>,
    /// Files that were read and that nobody else wrote.
    pub resting: BTreeSet<FileId>,
    /// What became of the items of a batch so far.
    pub outcomes: Vec<BatchOutcome>,
    /// Directories that a client made by itself.
    pub made: BTreeSet<FileId>,
    /// Directories that are no more.
    pub gone: BTreeSet<FileId>,
    /// Directories as they were written.
    pub directories: BTreeMap<FileId, Inode>,
    /// Directories as they were read.
    read: BTreeMap<FileId, Inode>,
    /// Files that come and go with this change.
    pub counted: Counted,
    /// The change is larger than one transaction should be: commit this part and run the operation
    /// again.
    pub is_partial: bool,
    /// Whoever asks may not read the file: its bytes are not told, nor where they are.
    pub hides_bytes: bool,
    /// Chunks that are freed count as freed since then, if not since now.
    pub freed_at: Option<Time>,
    /// What files cost their payers before and after this change.
    charges: BTreeMap<FileId, Charged>,
    /// What it means where files lie in directories, too.
    pub(crate) exposure: Exposure,
    /// Room for what is added, until the commit.
    held: Vec<Held>,
    is_reading: bool,
    has_written: bool,
}

/// A file's cost, as it was read and as it was written.
struct Charged {
    before: Option<Charge>,
    /// `None`: not written.
    after: Option<Option<Charge>>,
}

impl<'a> View<'a> {
    /// Of a request that changes nothing.
    pub fn reading(scene: Scene<'a>, transaction: Box<dyn Transaction>) -> Self {
        Self { is_reading: true, ..Self::new(scene, transaction) }
    }

    pub fn new(scene: Scene<'a>, transaction: Box<dyn Transaction>) -> Self {
        Self {
            scene,
            transaction,
            touched: Touched::default(),
            seen: BTreeSet::new(),
            written: BTreeSet::new(),
            resting: BTreeSet::new(),
            outcomes: vec![],
            made: BTreeSet::new(),
            gone: BTreeSet::new(),
            directories: BTreeMap::new(),
            read: BTreeMap::new(),
            counted: Counted::default(),
            is_partial: false,
            hides_bytes: false,
            freed_at: None,
            charges: BTreeMap::new(),
            exposure: Exposure::default(),
            held: vec![],
            is_reading: false,
            has_written: false,
        }
    }

    /// The version that is read.
    pub fn version(&self) -> Version {
        self.transaction.version()
    }

    /// Commits, and beside what was changed what that means for who uses how much.
    pub async fn commit(mut self) -> Result<Committed> {
        let (sums, grown) = self.usage_change();
        let Scene { quotas, session, now, .. } = self.scene;
        if !sums.is_empty() {
            let (boot, number) = quotas.change_number();
            let record = UsageChange { changes: quotas::records(&sums) };
            self.put(key::usage_change(boot, number), &record);
        }
        let committed = self.transaction.commit().await?;
        quotas.apply(session, &sums, &grown, now);
        // What was held for this is used now.
        drop(self.held);
        Ok(committed)
    }

    /// By how much each payer's use changes, and by how much files grow.
    fn usage_change(&self) -> (Sums, BTreeMap<FileId, u64>) {
        let (mut sums, mut grown) = (Sums::new(), BTreeMap::new());
        for (&id, Charged { before, after }) in &self.charges {
            let Some(after) = after else { continue };
            if before == after {
                continue;
            }
            quotas::add_change(&mut sums, before.as_ref(), after.as_ref());
            let bytes = |charge: &Option<Charge>| charge.as_ref().map_or(0, |one| one.bytes);
            grown.insert(id, bytes(after).saturating_sub(bytes(before)));
        }
        (sums, grown)
    }

    /// Holds room for what a file that is (or is to be) like `inode` will cost with `bytes` more;
    /// `before` is what it costs now, if it is there. Says whose limit is in the way, if one is.
    pub fn afford(
        &mut self,
        (id, before): (FileId, Option<&Inode>),
        inode: &Inode,
        bytes: i64,
    ) -> Result<()> {
        if !self.scene.quotas.has_limits() {
            return Ok(());
        }
        let before = before.and_then(Charge::of);
        let Some(mut after) = Charge::of(inode) else { return Ok(()) };
        after.bytes = after.bytes.saturating_add_signed(bytes);
        let Scene { quotas, session, now, .. } = self.scene;
        self.held.extend(quotas.hold((session, id), (before.as_ref(), &after), now)?);
        Ok(())
    }

    /// Ends a view whose operation failed: nothing is written, and the answer waits until what it
    /// read is durable.
    pub async fn abandon(self) -> Result<()> {
        assert!(!self.has_written, "an operation wrote before it failed");
        self.transaction.commit().await?.durable.await?;
        Ok(())
    }

    // Records.

    pub async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        Ok(self.transaction.read(keys).await?)
    }

    pub async fn scan(&mut self, range: Range, limit: usize) -> Result<Vec<(Key, Value)>> {
        Ok(self.transaction.scan(range, limit).await?)
    }

    pub async fn record<R: Record>(&mut self, key: Key) -> Result<Option<R>> {
        let id = || key.iter().map(|byte| format!("{byte:02x}")).collect();
        let values = self.transaction.read(std::slice::from_ref(&key)).await?;
        values.into_iter().next().flatten().map(|value| decode(&value, id)).transpose()
    }

    pub fn put<R: Record>(&mut self, key: Key, record: &R) {
        self.has_written = true;
        self.transaction.put(key, record.to_bytes());
    }

    pub fn delete(&mut self, key: Key) {
        self.has_written = true;
        self.transaction.delete(key);
    }

    // Files.

    /// A file of this MDT, if it exists.
    pub async fn find_inode(&mut self, id: FileId) -> Result<Option<Inode>> {
        let found = self.record(key::inode(id)).await?;
        if let Some(inode) = &found {
            self.see(id, inode);
        }
        Ok(found)
    }

    /// A file of this MDT, for what nobody is told of it.
    pub async fn peek(&mut self, id: FileId) -> Result<Option<Inode>> {
        match self.directories.get(&id).or_else(|| self.read.get(&id)) {
            Some(inode) => Ok(Some(inode.clone())),
            None if id.mdt() == self.scene.mdt => self.record(key::inode(id)).await,
            None => Ok(None),
        }
    }

    /// A file of this MDT that must exist.
    pub async fn inode(&mut self, id: FileId) -> Result<Inode> {
        self.scene.check_mine(id)?;
        self.find_inode(id).await?.ok_or(Error::Stale { id })
    }

    pub async fn directory(&mut self, id: FileId) -> Result<Inode> {
        let inode = self.inode(id).await?;
        if inode.kind == FileKind::Directory { Ok(inode) } else { Err(Error::NotDirectory { id }) }
    }

    /// A directory and one of its entries, in one batch.
    pub async fn directory_and_entry(
        &mut self,
        parent: FileId,
        name: &Name,
    ) -> Result<(Inode, Option<Entry>)> {
        self.scene.check_mine(parent)?;
        let values = self.read(&[key::inode(parent), key::entry(parent, name)]).await?;
        let mut values = values.into_iter();
        let inode = values.next().flatten().ok_or(Error::Stale { id: parent })?;
        let inode: Inode = decode(&inode, || parent.to_string())?;
        self.see(parent, &inode);
        if inode.kind != FileKind::Directory {
            return Err(Error::NotDirectory { id: parent });
        }
        let entry = values.next().flatten();
        let entry = entry.map(|value| decode(&value, || format!("{parent}/{name}"))).transpose()?;
        Ok((inode, entry))
    }

    /// The file an entry names. That it is missing is damage.
    pub async fn entry_inode(&mut self, entry: &Entry) -> Result<Inode> {
        let missing = || Error::Missing { what: "inode", id: entry.id.to_string() };
        self.find_inode(entry.id).await?.ok_or_else(missing)
    }

    /// Several files in one batch.
    pub async fn inodes(&mut self, ids: &[FileId]) -> Result<Vec<Option<Inode>>> {
        let keys: Vec<Key> = ids.iter().map(|&id| key::inode(id)).collect();
        let values = self.read(&keys).await?;
        let decoded = ids
            .iter()
            .zip(values)
            .map(|(id, value)| value.map(|value| decode(&value, || id.to_string())).transpose());
        let found: Vec<Option<Inode>> = decoded.collect::<Result<_>>()?;
        for (&id, inode) in ids.iter().zip(&found) {
            if let Some(inode) = inode {
                self.see(id, inode);
            }
        }
        Ok(found)
    }

    pub fn put_inode(&mut self, id: FileId, inode: &Inode) {
        self.put(key::inode(id), inode);
        self.note_exposed(id, Some(inode));
        self.charge(id, Charge::of(inode));
        if inode.kind == FileKind::Directory {
            self.directories.insert(id, inode.clone());
        }
    }

    /// Looks at directories that do not change, so that their lease may be given with the others.
    pub async fn look_at(&mut self, directories: &[FileId]) -> Result<Vec<FileId>> {
        let mut there = Vec::new();
        for &id in directories {
            let inode = self.find_inode(id).await?;
            if let Some(inode) = inode.filter(|inode| inode.kind == FileKind::Directory) {
                self.directories.entry(id).or_insert(inode);
                there.push(id);
            }
        }
        Ok(there)
    }

    /// Deletes a file's record.
    pub fn delete_inode(&mut self, id: FileId) {
        self.delete(key::inode(id));
        self.directories.remove(&id);
        self.read.remove(&id);
        self.note_exposed(id, None);
        self.charge(id, None);
    }

    fn charge(&mut self, id: FileId, after: Option<Charge>) {
        let charged = self.charges.entry(id).or_insert(Charged { before: None, after: None });
        charged.after = Some(after);
    }

    fn see(&mut self, id: FileId, inode: &Inode) {
        if !self.is_reading
            && let Slot::Vacant(slot) = self.charges.entry(id)
        {
            slot.insert(Charged { before: Charge::of(inode), after: None });
            self.exposure.see(self.scene.map, id, inode);
        }
        match inode.kind {
            FileKind::Directory => drop(self.read.insert(id, inode.clone())),
            FileKind::Regular if self.is_written(id, inode) => drop(self.written.insert(id)),
            FileKind::Regular => drop(self.resting.insert(id)),
            _ => {}
        }
        if inode.kind == FileKind::Directory || inode.names.is_empty() {
            self.seen.insert(id);
        } else {
            self.seen.extend(inode.names.iter().map(|name| name.parent));
        }
    }

    /// Counts a file that comes (1) or goes (-1).
    pub fn count(&mut self, id: FileId, change: i64) {
        if id.serial() < self.scene.first_serial {
            self.counted.old += change;
        } else {
            self.counted.new += change;
        }
    }

    /// A file id nobody had.
    pub async fn new_id(&mut self) -> Result<FileId> {
        if let Some(id) = self.scene.chosen {
            return Ok(id);
        }
        Ok(FileId::new(self.scene.mdt, self.scene.serials.next().await?))
    }

    /// The version a file gets by a change of its bytes or names.
    ///
    /// The commit's own number is not known before it is decided. One more than the version read is
    /// not more than that, and with one more than the file's last it grows strictly, also when two
    /// commits to the file read neighbouring versions, or when an engine counts anew after a start.
    pub fn next_version(&self, inode: &Inode) -> Version {
        Version((self.version().0 + 1).max(inode.version.0 + 1))
    }

    /// What `stat` tells. A directory also counts the MDTs that are mounted in it.
    pub fn attributes(&self, id: FileId, inode: &Inode) -> Attributes {
        let is_directory = inode.kind == FileKind::Directory;
        let mounted = if is_directory { self.scene.map.junctions_in(id).count() } else { 0 };
        Attributes {
            id,
            kind: inode.kind,
            mode: inode.mode,
            links: inode.links.saturating_add(mounted as u32),
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            stored: inode.on_disk(),
            device: inode.device,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            version: inode.version,
            has_xattrs: inode.xattrs.map(|count| count > 0),
            acls: inode.acls.clone(),
            project: Some(inode.project).filter(|&project| project != 0),
            is_written: self.is_written(id, inode).then_some(true),
            content: inode.content,
            tape: inode.on_tape(),
        }
    }

    fn is_written(&self, id: FileId, inode: &Inode) -> bool {
        let Scene { writers, session, .. } = self.scene;
        inode.kind == FileKind::Regular && writers.has_others(session, id)
    }

    // What is touched.

    /// A name of a directory changes.
    pub fn touch_name(&mut self, parent: FileId, name: &Name) {
        self.touched.units.entry(parent).or_default().names.insert(name.clone());
    }

    /// A directory moves: it is touched, and so are its names.
    pub fn touch_moved(&mut self, directory: FileId, parents: [FileId; 2]) {
        for unit in parents.into_iter().chain([directory]) {
            self.touched.units.entry(unit).or_default().moves = true;
        }
    }

    /// A file's attributes or bytes change: a lease on any directory that names it told of them.
    pub fn touch_file(&mut self, id: FileId, inode: &Inode) {
        if inode.kind == FileKind::Directory || inode.names.is_empty() {
            return self.touch_itself(id, inode.kind);
        }
        for name in &inode.names {
            self.touched.units.entry(name.parent).or_default().files.insert(id);
        }
    }

    /// What is believed of a file without a name, or of a directory, ends.
    pub fn touch_itself(&mut self, id: FileId, kind: FileKind) {
        let unit = self.touched.units.entry(id).or_default();
        if kind != FileKind::Directory {
            unit.files.insert(id);
        }
    }
}

/// The unit under which a file's attributes may be believed; any one will do, since a change
/// touches all.
pub fn unit_of(id: FileId, inode: &Inode) -> FileId {
    match inode.names.first() {
        Some(name) if inode.kind != FileKind::Directory => name.parent,
        _ => id,
    }
}

/// A record that was read; damage names the record.
pub fn decode<R: Record>(value: &[u8], id: impl FnOnce() -> String) -> Result<R> {
    R::from_bytes(value).map_err(|source| Error::Record { what: R::NAME, id: id(), source })
}
