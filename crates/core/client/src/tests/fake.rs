//! One MDT and two OSTs in memory, behind a dialer.
//!
//! Serves one client; what "others" do goes through [`Fake::elsewhere`], which recalls first.
//! Replies can be held back ([`Fake::hold`]), OSTs can fail or flip bits.

mod batch;
mod channel;
mod dice;
mod locks;
mod map;
mod names;
mod objects;
mod trees;

use self::channel::{FakeDialer, done};
pub use self::dice::Dice;
use crate::{Parts, Settings, Volume};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tieline_auth::{MapCell, MapSigner, Rule};
use tieline_bytes::Near;
use tieline_format::Record;
use tieline_format::map::{FederationMap, Junction, Mdt, Ost};
use tieline_keep::Keep;
use tieline_net::{CallError, Channel, Dialer, Incoming, NoticeSink, Outgoing, Standing};
use tieline_ranges::known::slice;
use tieline_types::locks::LockSet;
use tieline_types::*;
use tieline_wire::data::*;
use tieline_wire::federation::{GetMap, MapReply};
use tieline_wire::identity::{Prove, ProveReply};
use tieline_wire::meta::{self, *};
use tieline_wire::mirrors::{ReportPlace, ReportPlaceReply};
use tieline_wire::notice::Recall;
use tieline_wire::ranges::*;
use tieline_wire::{Call, Failure, Flavor, Hello, Notice, NoticeAnswer, Op, Request, Welcome};
use tieline_world::World;
use tokio::sync::watch;
use tokio::time::Instant;

pub const ROOT: FileId = FileId(1);
pub const LEASE: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub struct Node {
    pub attributes: Attributes,
    pub names: BTreeMap<Name, FileId>,
    pub extents: Vec<Extent>,
    pub target: Option<Vec<u8>>,
    pub xattrs: BTreeMap<XattrName, Vec<u8>>,
    pub parent: FileId,
    pub stripe: Vec<OstIndex>,
}

pub struct State {
    pub version: u64,
    next: u64,
    pub nodes: BTreeMap<FileId, Node>,
    pub chunks: BTreeMap<(OstIndex, GrantedId), Bytes>,
    /// How long clients said that they wait.
    pub waits_said: Vec<Option<u64>>,
    /// Where in their files chunks say that they lie.
    pub labels: BTreeMap<GrantedId, u64>,
    /// Every request, in order.
    pub log: Vec<Op>,
    pub synced: BTreeSet<OstIndex>,
    pub layout: Layout,
    pub put_fault: BTreeMap<OstIndex, ErrorKind>,
    pub commit_fault: Option<ErrorKind>,
    /// The MDT is served elsewhere now: at `mds:2`, as the newer map says.
    pub has_moved: bool,
    /// The session is lost when the next commit comes.
    pub loses_session: bool,
    pub flips: BTreeSet<OstIndex>,
    /// OSTs whose objects are damaged in the byte at this offset.
    pub damage: BTreeMap<OstIndex, u64>,
    /// What OSTs have to grant each time; unless said so as much as is wanted.
    pub rooms: BTreeMap<OstIndex, u64>,
    /// What puts said that they have of it.
    pub rooms_spent: BTreeMap<OstIndex, u64>,
    /// Its welcome says that it grants room.
    pub keeps_room: bool,
    /// Questions for it: what was held, and what was wanted.
    pub granted_rooms: Vec<(OstIndex, Option<u64>, u64)>,
    /// OSTs that do not answer.
    pub silent: BTreeSet<OstIndex>,
    /// Addresses at which nobody answers.
    pub absent: BTreeSet<String>,
    /// Proofs that are not known here, until they are shown.
    pub unproven: BTreeSet<u64>,
    /// Proofs for whom nothing is done, and no request that has one.
    pub strangers: BTreeSet<u64>,
    /// Bad places that clients told of.
    pub reports: Vec<ReportPlace>,
    pub grants: bool,
    /// Replies to changes of names give the directories to the client alone.
    pub gives_alone: bool,
    /// Serials were reserved, up to here.
    reserved: u64,
    is_naming: bool,
    /// Of the item of a batch that is carried out.
    chosen: Option<(FileId, Time)>,
    /// Items that are refused when they come in a batch.
    pub refused: BTreeSet<Op>,
    pub grant: Grant,
    pub session: u64,
    /// By session and owner: with another session's number, of another client.
    pub locks: BTreeMap<(FileId, LockKind), LockSet<(u64, u64)>>,
    /// Locks that were taken from the client, and it has not said that it knows.
    pub lost_locks: Vec<LostLock>,
    cancelled: BTreeSet<u64>,
    pub boot: u64,
    /// Its welcome says that it tells metadata in bulk.
    pub tells_in_bulk: bool,
    /// As clients reported them.
    pub bundles: BTreeMap<FileId, Vec<tieline_format::mdt::Bundle>>,
    /// How long each round trip takes.
    pub delay: Duration,
    /// Messages take any time up to a few milliseconds, by this seed.
    pub dice: Option<Dice>,
    /// Directories that are not told in bulk.
    pub closed: BTreeSet<FileId>,
    /// Directories that another client holds alone, and when it last changed something there: ahead
    /// of whoever comes to one it is told by its name.
    pub at_work: BTreeMap<FileId, Instant>,
    held: BTreeMap<u16, watch::Receiver<bool>>,
    sinks: Vec<(bool, Arc<dyn NoticeSink>)>,
}

pub struct Fake {
    state: Mutex<State>,
}

type Answer = Result<(Vec<u8>, Bytes), Failure>;

/// Lets held replies go when it is dropped.
pub struct Held(watch::Sender<bool>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

impl Fake {
    pub fn new() -> Arc<Self> {
        let mut nodes = BTreeMap::new();
        nodes.insert(ROOT, node(ROOT, FileKind::Directory, ROOT, 1));
        let layout = Layout { chunk_size: 64 << 10, stripe_size: 64 << 10, ..Layout::default() };
        let state = State {
            version: 10,
            next: 100,
            nodes,
            chunks: BTreeMap::new(),
            waits_said: Vec::new(),
            labels: BTreeMap::new(),
            log: Vec::new(),
            synced: BTreeSet::new(),
            layout,
            put_fault: BTreeMap::new(),
            commit_fault: None,
            has_moved: false,
            loses_session: false,
            flips: BTreeSet::new(),
            damage: BTreeMap::new(),
            rooms: BTreeMap::new(),
            rooms_spent: BTreeMap::new(),
            keeps_room: true,
            granted_rooms: Vec::new(),
            silent: BTreeSet::new(),
            absent: BTreeSet::new(),
            unproven: BTreeSet::new(),
            strangers: BTreeSet::new(),
            reports: Vec::new(),
            grants: true,
            gives_alone: true,
            reserved: 0,
            is_naming: false,
            chosen: None,
            refused: BTreeSet::new(),
            grant: Grant(7),
            session: 1,
            locks: BTreeMap::new(),
            lost_locks: Vec::new(),
            cancelled: BTreeSet::new(),
            boot: 1,
            tells_in_bulk: false,
            bundles: BTreeMap::new(),
            delay: Duration::ZERO,
            dice: None,
            closed: BTreeSet::new(),
            at_work: BTreeMap::new(),
            held: BTreeMap::new(),
            sinks: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn mount(self: &Arc<Self>) -> Arc<Volume> {
        self.mount_with(Settings::default())
    }

    pub fn mount_with(self: &Arc<Self>, settings: Settings) -> Arc<Volume> {
        self.mount_kept(settings, Keep::none(), Vec::new())
    }

    pub fn mount_kept(
        self: &Arc<Self>,
        settings: Settings,
        keep: Keep,
        records: Vec<tieline_keep::Record>,
    ) -> Arc<Volume> {
        Volume::new_kept(self.parts(), settings, keep, records)
    }

    /// How many requests of that kind came.
    pub fn count(&self, op: Op) -> usize {
        self.lock().log.iter().filter(|&&one| one == op).count()
    }

    /// Those that are about files: not those that keep room.
    pub fn requests(&self) -> usize {
        self.lock().log.iter().filter(|&&op| op != Op::GrantRoom).count()
    }

    /// Replies to `op` are computed, and held back until the guard is dropped.
    pub fn hold(&self, op: Op) -> Held {
        let (sender, receiver) = watch::channel(false);
        self.lock().held.insert(op.number(), receiver);
        Held(sender)
    }

    pub fn release(&self, op: Op) {
        self.lock().held.remove(&op.number());
    }

    /// The MDS's way to the client, and its version.
    fn mds_sink(&self) -> (Arc<dyn NoticeSink>, Version) {
        let state = self.lock();
        let mds = state.sinks.iter().rev().find(|(is_mds, _)| *is_mds);
        (mds.unwrap().1.clone(), Version(state.version))
    }

    /// Another client changes something under `unit`.
    pub async fn elsewhere(
        &self,
        unit: FileId,
        names: &[&str],
        files: &[FileId],
        change: impl FnOnce(&mut State),
    ) -> NoticeAnswer {
        let (sink, at) = self.mds_sink();
        let names = names.iter().map(|name| name.parse().unwrap()).collect();
        let recall = Recall { names, files: files.to_vec(), ..Recall::of(unit, at) };
        let answer = sink.notice(Notice::Recall(recall)).await;
        let mut state = self.lock();
        state.version += 1;
        change(&mut state);
        answer
    }

    /// Another client looks at a file that is written here; `writes`: to write it.
    pub async fn look(&self, id: FileId, writes: bool) -> NoticeAnswer {
        let (sink, at) = self.mds_sink();
        let writes = writes.then_some(true);
        let recall = Recall { files: vec![id], writes, ..Recall::look(id, at) };
        sink.notice(Notice::Recall(recall)).await
    }

    /// Another client looks at a directory that is held alone here, and comes to others next.
    pub async fn look_around(&self, unit: FileId, beside: &[FileId]) -> NoticeAnswer {
        let (sink, at) = self.mds_sink();
        let recall = Recall { beside: Some(beside.to_vec()), ..Recall::look(unit, at) };
        sink.notice(Notice::Recall(recall)).await
    }

    pub async fn announce_map(&self, version: Version) {
        let sink = self.lock().sinks[0].1.clone();
        sink.notice(Notice::MapChanged(version)).await;
    }

    /// The client's session is gone: another one, with another grant.
    pub fn lose_session(&self) {
        {
            let mut state = self.lock();
            state.session += 1;
            state.grant = Grant(state.grant.0 + 1);
        }
        let welcome = self.welcome();
        for sink in self.mds_sinks() {
            sink.connected(&welcome);
            sink.renewed(Instant::now());
        }
    }

    /// The server was started anew: the session goes on, locks are forgotten.
    pub fn restart(&self) {
        {
            let mut state = self.lock();
            state.boot += 1;
            state.locks.clear();
        }
        let welcome = self.welcome();
        let sinks: Vec<_> = self.lock().sinks.iter().map(|(_, sink)| sink.clone()).collect();
        sinks.iter().for_each(|sink| sink.connected(&welcome));
    }

    /// The whole file as the servers have it.
    pub fn bytes(&self, id: FileId) -> Vec<u8> {
        let state = self.lock();
        let node = &state.nodes[&id];
        let mut bytes = vec![0; node.attributes.size as usize];
        for extent in &node.extents {
            let range = extent.offset as usize..extent.end() as usize;
            match &extent.content {
                Content::Inline(inline) => bytes[range].copy_from_slice(inline),
                Content::Chunk(chunk) => {
                    let whole = &state.chunks
                        [&(chunk.places[0].ost().unwrap(), chunk.chunk.granted().unwrap())];
                    let from = chunk.skip as usize;
                    bytes[range].copy_from_slice(&whole[from..from + extent.length as usize]);
                }
                Content::Hole => {}
            }
        }
        bytes
    }

    fn welcome(&self) -> Welcome {
        let state = self.lock();
        Welcome {
            version: 1,
            session: SessionId(state.session),
            is_resumed: state.boot > 1,
            grant: state.grant,
            boot: state.boot,
            lease_ms: LEASE.as_millis() as u32,
            flavor: Flavor::Null,
            features: [(Welcome::TREES, state.tells_in_bulk), (Welcome::ROOM, state.keeps_room)]
                .into_iter()
                .fold(0, |all, (one, can)| if can { all | one } else { all }),
            server: String::new(),
            map: Version(1),
            holder: None,
            lost_locks: Some(state.lost_locks.clone()).filter(|lost| !lost.is_empty()),
        }
    }
}

pub fn node(id: FileId, kind: FileKind, parent: FileId, version: u64) -> Node {
    let time = Time { seconds: 1000, nanos: 0 };
    let attributes = Attributes {
        links: 1,
        version: Version(version),
        ..Attributes::new(id, kind, Mode::new(0o755), time)
    };
    Node {
        attributes,
        names: BTreeMap::new(),
        extents: Vec::new(),
        target: None,
        xattrs: BTreeMap::new(),
        parent,
        stripe: Vec::new(),
    }
}

impl State {
    fn find(&self, id: FileId) -> Result<&Node, Failure> {
        self.nodes.get(&id).ok_or_else(|| Failure::new(ErrorKind::Stale, "no such file"))
    }

    fn lease(&self, units: &[FileId]) -> LeaseGrant {
        let units = if self.grants { units.to_vec() } else { Vec::new() };
        let is_alone = self.gives_alone && self.is_naming && self.reserved > 0;
        let unit = |id: &FileId| {
            let node = self.nodes.get(id).filter(|node| node.attributes.is_directory())?;
            Some(ExclusiveUnit {
                has_limits: None,
                attributes: node.attributes.clone(),
                layout: self.layout.clone(),
                is_empty: node.names.is_empty(),
            })
        };
        let exclusive = is_alone.then(|| units.iter().filter_map(unit).collect());
        LeaseGrant { as_of: Version(self.version), units, exclusive }
    }

    fn unit(&self, id: FileId) -> FileId {
        let node = &self.nodes[&id];
        let is_own = node.attributes.kind == FileKind::Directory || node.attributes.links == 0;
        if is_own { id } else { node.parent }
    }

    fn entry(&self, parent: FileId, id: FileId) -> EntryReply {
        if id.mdt() != parent.mdt() {
            let (junction, lease) = (Some(id.mdt()), self.lease(&[parent]));
            return EntryReply { attributes: None, junction, lease, target: None };
        }
        let node = &self.nodes[&id];
        let units = if node.attributes.is_directory() { vec![parent, id] } else { vec![parent] };
        EntryReply {
            attributes: Some(node.attributes.clone()),
            junction: None,
            lease: self.lease(&units),
            target: node.target.clone(),
        }
    }

    fn attributes(&self, id: FileId) -> AttributesReply {
        let attributes = self.nodes[&id].attributes.clone();
        AttributesReply { attributes, lease: self.lease(&[self.unit(id)]) }
    }

    pub fn page(&self, id: FileId, offset: u64) -> ExtentPage {
        let node = &self.nodes[&id];
        let after: Vec<_> = node.extents.iter().filter(|one| one.end() > offset).cloned().collect();
        // Small pages, so that there are several.
        let (page, rest) = after.split_at(after.len().min(4));
        let covered = if rest.is_empty() { u64::MAX } else { page.last().unwrap().end() };
        ExtentPage { extents: page.to_vec(), covered }
    }

    fn open(&self, id: FileId) -> OpenReply {
        let node = &self.nodes[&id];
        OpenReply {
            has_limits: None,
            attributes: node.attributes.clone(),
            layout: self.layout.clone(),
            stripe: node.stripe.clone(),
            extents: self.page(id, 0),
            lease: self.lease(&[self.unit(id)]),
            capability: None,
        }
    }

    pub fn add(&mut self, parent: FileId, name: &Name, kind: FileKind) -> FileId {
        self.next += 1;
        let id = self.chosen.map_or(FileId(self.next), |(id, _)| id);
        assert!(!self.nodes.contains_key(&id), "an id that was never used");
        self.nodes.insert(id, node(id, kind, parent, self.version));
        self.nodes.get_mut(&parent).unwrap().names.insert(name.clone(), id);
        id
    }

    pub fn replace(&mut self, id: FileId, extent: &Extent) {
        let version = Version(self.version);
        let node = self.nodes.get_mut(&id).unwrap();
        let (start, end) = (extent.offset, extent.end());
        let mut kept = Vec::new();
        for old in &node.extents {
            kept.extend(slice(old, 0..start));
            kept.extend(slice(old, end..u64::MAX));
        }
        if extent.content != Content::Hole {
            kept.push(extent.clone());
            node.attributes.size = node.attributes.size.max(end);
        }
        kept.sort_by_key(|extent| extent.offset);
        node.extents = kept;
        node.attributes.version = version;
    }

    fn grow(&mut self, id: FileId, size: u64) {
        let version = Version(self.version);
        let node = self.nodes.get_mut(&id).unwrap();
        if node.attributes.size < size {
            node.attributes.size = size;
            node.attributes.version = version;
        }
    }

    fn truncate(&mut self, id: FileId, size: u64) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.extents = node.extents.iter().filter_map(|old| slice(old, 0..size)).collect();
        node.attributes.size = size;
        node.attributes.version = Version(self.version);
    }

    fn answer(&mut self, request: Request, bulk: Bytes) -> Answer {
        if request.op().is_mutation() {
            self.version += 1;
        }
        self.is_naming = matches!(
            request.op(),
            Op::Create
                | Op::MakeDirectory
                | Op::MakeSymlink
                | Op::Link
                | Op::Unlink
                | Op::RemoveDirectory
                | Op::Rename
        );
        let fail = |kind| Err(Failure::new(kind, "fake"));
        match request {
            Request::Lookup(Lookup { parent, name }) => match self.find(parent)?.names.get(&name) {
                Some(&id) => done::<Lookup>(&self.entry(parent, id)),
                None => done::<Lookup>(&EntryReply {
                    attributes: None,
                    junction: None,
                    lease: self.lease(&[parent]),
                    target: None,
                }),
            },
            Request::LookupParent(LookupParent { id }) => {
                let parent = self.find(id)?.parent;
                let mut names = self.find(parent)?.names.iter();
                let name = names.find(|(_, one)| **one == id).map(|(name, _)| name.clone());
                done::<LookupParent>(&LookupParentReply { parent, name, others: None })
            }
            Request::GetAttributes(GetAttributes { id }) => {
                self.find(id)?;
                done::<GetAttributes>(&self.attributes(id))
            }
            Request::SetAttributes(change) => {
                self.find(change.id)?;
                if let Some(size) = change.size {
                    self.truncate(change.id, size);
                }
                let node = self.nodes.get_mut(&change.id).unwrap();
                node.attributes.mode = change.mode.unwrap_or(node.attributes.mode);
                if let Some(SetTime::At(time)) = change.mtime {
                    node.attributes.mtime = time;
                }
                done::<SetAttributes>(&self.attributes(change.id))
            }
            Request::ReadDirectory(page) => {
                let node = self.find(page.id)?;
                let after = |name: &Name| page.after.as_ref().is_none_or(|after| name > after);
                let rest: Vec<_> = node.names.iter().filter(|(name, _)| after(name)).collect();
                let entries = rest.iter().take(3).map(|(name, id)| {
                    let child = &self.nodes[id];
                    DirectoryEntry {
                        name: (*name).clone(),
                        id: **id,
                        kind: child.attributes.kind,
                        attributes: page.is_plus.then(|| child.attributes.clone()),
                        target: None,
                    }
                });
                done::<ReadDirectory>(&ReadDirectoryReply {
                    entries: entries.collect(),
                    is_end: rest.len() <= 3,
                    lease: self.lease(&[page.id]),
                })
            }
            Request::ReadTree(tree) => self.read_tree(&tree),
            Request::ReadFiles(files) => self.read_files(&files),
            Request::ReportBundle(report) => self.report_bundle(&report),
            Request::ReadBundle(which) => self.read_bundle(&which),
            Request::Create(new) => self.create(&new),
            Request::MakeDirectory(new) => {
                if self.find(new.parent)?.names.contains_key(&new.name) {
                    return fail(ErrorKind::Exists);
                }
                let id = self.add(new.parent, &new.name, FileKind::Directory);
                done::<MakeDirectory>(&self.entry(new.parent, id))
            }
            Request::MakeSymlink(new) => {
                let id = self.add(new.parent, &new.name, FileKind::Symlink);
                self.nodes.get_mut(&id).unwrap().target = Some(new.target);
                done::<MakeSymlink>(&self.entry(new.parent, id))
            }
            Request::Link(new) => self.link(new),
            Request::Unlink(Unlink { parent, name, keep }) => {
                let Some(id) = self.nodes.get_mut(&parent).unwrap().names.remove(&name) else {
                    return fail(ErrorKind::NotFound);
                };
                let node = self.nodes.get_mut(&id).unwrap();
                node.attributes.links -= 1;
                if node.attributes.links > 0 {
                    let attributes = Some(node.attributes.clone());
                    return done::<Unlink>(&ChangeReply {
                        attributes,
                        lease: self.lease(&[parent]),
                    });
                }
                let kept = keep == Some(id);
                node.parent = id;
                let attributes = kept.then(|| node.attributes.clone());
                if !kept {
                    self.nodes.remove(&id);
                }
                done::<Unlink>(&ChangeReply { attributes, lease: self.lease(&[parent]) })
            }
            Request::Rename(rename) => {
                let from = self.nodes.get_mut(&rename.from_parent).unwrap();
                let Some(id) = from.names.remove(&rename.from_name) else {
                    return fail(ErrorKind::NotFound);
                };
                let to = self.nodes.get_mut(&rename.to_parent).unwrap();
                let old = to.names.insert(rename.to_name, id);
                if let Some(old) = old.filter(|&old| rename.keep != Some(old)) {
                    self.nodes.remove(&old);
                }
                self.nodes.get_mut(&id).unwrap().parent = rename.to_parent;
                let attributes = Some(self.nodes[&id].attributes.clone());
                let lease = self.lease(&[rename.from_parent, rename.to_parent]);
                done::<Rename>(&ChangeReply { attributes, lease })
            }
            Request::ReadSymlink(ReadSymlink { id }) => done::<ReadSymlink>(&ReadSymlinkReply {
                target: self.find(id)?.target.clone().unwrap(),
            }),
            Request::Open(Open { id, .. }) => {
                self.find(id)?;
                done::<Open>(&self.open(id))
            }
            Request::GetExtents(GetExtents { id, offset, .. }) => {
                let attributes = self.find(id)?.attributes.clone();
                let (page, lease) = (self.page(id, offset), self.lease(&[self.unit(id)]));
                done::<GetExtents>(&GetExtentsReply { page, attributes, lease })
            }
            Request::Commit(commit) => {
                if let Some(kind) = self.commit_fault {
                    return fail(kind);
                }
                self.find(commit.id)?;
                let size = self.nodes[&commit.id].attributes.size;
                let mut end = 0;
                for extent in &commit.extents {
                    extent.validate().unwrap();
                    assert!(extent.offset >= end, "extents in order");
                    end = extent.end();
                    if let Content::Chunk(chunk) = &extent.content {
                        let (id, places) = chunk.granted().unwrap();
                        if id.grant != self.grant {
                            return fail(ErrorKind::InvalidArgument);
                        }
                        for place in places.iter().filter(|place| !place.is_stale) {
                            assert!(self.chunks.contains_key(&(place.ost, id)));
                        }
                    }
                    let appended = commit.append_from.filter(|&from| extent.offset >= from);
                    let shift = appended.map_or(0, |from| size as i64 - from as i64);
                    let offset = extent.offset.checked_add_signed(shift).unwrap();
                    self.replace(commit.id, &Extent { offset, ..extent.clone() });
                }
                if commit.append_from.is_none() {
                    self.grow(commit.id, commit.size_min);
                }
                // By the clock of the client's world, and some seconds later with each change.
                let now = Time { seconds: 1_767_225_600 + self.version as i64, nanos: 0 };
                let mtime = if let SetTime::At(time) = commit.mtime { time } else { now };
                let node = self.nodes.get_mut(&commit.id).unwrap();
                let before = (node.attributes.mtime, node.attributes.ctime);
                let after = Time::after_write(before, mtime);
                (node.attributes.mtime, node.attributes.ctime) = after;
                node.xattrs.retain(|name, _| name.as_bytes() != b"security.capability");
                done::<Commit>(&self.attributes(commit.id))
            }
            Request::CopyRange(copy) => {
                let source = self.find(copy.from)?;
                let end = (copy.from_offset + copy.length).min(source.attributes.size);
                let copied = end.saturating_sub(copy.from_offset);
                let parts = source.extents.iter();
                let parts: Vec<_> =
                    parts.filter_map(|one| slice(one, copy.from_offset..end)).collect();
                if copied > 0 {
                    let (offset, content) = (copy.to_offset, Content::Hole);
                    self.replace(copy.to, &Extent { offset, length: copied, content });
                }
                for part in parts {
                    let offset = part.offset - copy.from_offset + copy.to_offset;
                    self.replace(copy.to, &Extent { offset, ..part });
                }
                if copied > 0 {
                    self.grow(copy.to, copy.to_offset + copied);
                }
                let AttributesReply { attributes, lease } = self.attributes(copy.to);
                done::<CopyRange>(&CopyRangeReply { copied, attributes, lease })
            }
            Request::Compact(compact) => {
                let version = self.nodes[&compact.id].attributes.version;
                for extent in &compact.extents {
                    self.replace(compact.id, extent);
                }
                self.nodes.get_mut(&compact.id).unwrap().attributes.version = version;
                done::<Compact>(&CompactReply { is_done: true })
            }
            Request::Lock(call) => self.take_lock(&call),
            Request::TestLock(call) => self.test_lock(&call),
            Request::CancelLock(call) => self.cancel_lock(&call),
            Request::AssertLocks(call) => self.assert_locks(call),
            Request::GrantRoom(grant) => self.grant_room(grant),
            Request::Place(meta::Place { id, exclude, wish }) => {
                self.find(id)?;
                let mut all = vec![OstIndex(0), OstIndex(1)];
                let wish = wish.unwrap_or_default();
                all.sort_by_key(|ost| wish.iter().position(|one| one == ost).unwrap_or(9));
                let (refusing, mut stripe): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|ost| exclude.contains(ost));
                if stripe.is_empty() {
                    return fail(ErrorKind::NoSpace);
                }
                // Those have their places for later.
                stripe.extend(refusing);
                stripe.truncate(self.layout.mirrors.into());
                self.nodes.get_mut(&id).unwrap().stripe = stripe.clone();
                done::<meta::Place>(&PlaceReply { stripe })
            }
            Request::Release(Release { id }) => {
                self.nodes.remove(&id);
                done::<Release>(&ChangeReply { attributes: None, lease: LeaseGrant::default() })
            }
            Request::ListXattrs(ListXattrs { id }) => {
                let all = self.find(id)?.xattrs.clone().into_iter();
                let xattrs = all.map(|(name, value)| Xattr { name, value }).collect();
                done::<ListXattrs>(&ListXattrsReply { xattrs, lease: self.lease(&[self.unit(id)]) })
            }
            Request::SetXattr(set) => {
                let node = self.nodes.get_mut(&set.id).unwrap();
                node.xattrs.insert(set.name, set.value);
                done::<SetXattr>(&self.attributes(set.id))
            }
            Request::RemoveDirectory(RemoveDirectory { parent, name }) => {
                let Some(&id) = self.nodes[&parent].names.get(&name) else {
                    return fail(ErrorKind::NotFound);
                };
                if !self.nodes[&id].names.is_empty() {
                    return fail(ErrorKind::NotEmpty);
                }
                self.nodes.remove(&id);
                self.nodes.get_mut(&parent).unwrap().names.remove(&name);
                let lease = self.lease(&[parent]);
                done::<RemoveDirectory>(&ChangeReply { attributes: None, lease })
            }
            Request::Reserve(Reserve { count }) => {
                let first = 1_000_000 + self.reserved;
                self.reserved += u64::from(count);
                done::<Reserve>(&ReserveReply { first, count })
            }
            Request::Batch(batch) => self.batch(batch),
            Request::GetLayout(_) => done::<GetLayout>(&GetLayoutReply {
                layout: self.layout.clone(),
                is_own: false,
                stripe: vec![OstIndex(0)],
            }),
            Request::PutChunk(put) => {
                if let Some(&kind) = self.put_fault.get(&put.ost) {
                    return fail(kind);
                }
                assert_eq!(checksum::first_mismatch(&bulk, &put.checks), None);
                *self.rooms_spent.entry(put.ost).or_default() += put.room.unwrap_or(0);
                self.labels.insert(put.chunk, put.owner.offset);
                self.chunks.insert((put.ost, put.chunk), bulk);
                self.synced.remove(&put.ost);
                done::<PutChunk>(&PutChunkReply {})
            }
            Request::ReadObject(read) => self.read(read),
            Request::SyncFile(SyncFile { ost, .. }) => {
                self.synced.insert(ost);
                done::<SyncFile>(&SyncFileReply { synced: 1 })
            }
            Request::ReportPlace(report) => {
                self.reports.push(report);
                done::<ReportPlace>(&ReportPlaceReply {})
            }
            Request::Prove(shown) => {
                self.unproven.remove(&shown.proof);
                let (caller, how) = (Caller::root(), String::new());
                done::<Prove>(&ProveReply {
                    caller,
                    principal: None,
                    how,
                    seconds: None,
                    is_believed: false,
                    scope: None,
                    answer: None,
                })
            }
            Request::GetMap(_) if self.has_moved => {
                let signed = MapSigner::new([7; 32]).sign(&map::map(2, "mds:2"));
                let (version, signed) = (Version(2), signed.to_bytes());
                done::<GetMap>(&MapReply { version, signed, key: None, now_ms: None })
            }
            Request::GetMap(_) | Request::Usage(_) => fail(ErrorKind::NotSupported),
            other => panic!("the fake does not serve {:?}", other.op()),
        }
    }
}
