//! What is known of a pinned tree, put down beside its chunks for the next process.
//!
//! That process takes it for the last word of servers that it has not met and cannot reach: as
//! after a restart while the line is cut. So does this one, for what was recalled from it and could
//! not be asked again before the line was cut. It is put into the cache in the moment in which the
//! server is found to be away ([`crate::away`]), and counts while it is.
//!
//! Invariants: it takes the place of nothing that is known here; nothing is opened for writing on
//! it.

use super::{Pin, Pins};
use crate::shared::{Shared, lock};
use crate::{Listed, Result};
use minicbor::{Decode, Encode};
use tieline_believed::Tables;
use tieline_types::{Attributes, FileId, FileKind, ServerNumber, Version};
use tieline_wire::meta::{DirectoryEntry, ExtentPage, LeaseGrant, OpenReply};

/// Of this form.
const FORM: u32 = 1;
/// Older than all that a server says.
const LAST: Version = Version(1);

/// A tree.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub(crate) struct Seen {
    #[n(0)]
    form: u32,
    #[n(1)]
    directories: Vec<DirectorySeen>,
    #[n(2)]
    files: Vec<OpenReply>,
}

#[derive(Clone, Debug, Encode, Decode)]
struct DirectorySeen {
    #[n(0)]
    attributes: Attributes,
    #[n(1)]
    entries: Vec<DirectoryEntry>,
    /// These are all.
    #[n(2)]
    is_complete: bool,
}

impl Seen {
    pub fn to_bytes(&self) -> Vec<u8> {
        tieline_wire::encode(self)
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        tieline_wire::decode(bytes).ok().filter(|seen: &Self| seen.form == FORM)
    }
}

impl Pins {
    /// What an earlier process put down.
    pub(super) fn recall(&self, seen: Seen) {
        let mut recalled = lock(&self.recalled);
        recalled.directories.extend(seen.directories);
        recalled.files.extend(seen.files);
    }
}

impl Shared {
    /// What is known of a tree whose directories were just listed.
    pub(super) fn see(&self, top: FileId, listed: &[(FileId, Vec<Listed>)]) -> Seen {
        let mut seen = Seen { form: FORM, ..Seen::default() };
        for entry in listed.iter().flat_map(|(_, entries)| entries) {
            seen.files.extend(self.see_file(entry));
        }
        let mut tables = self.cache.lock();
        for (id, entries) in listed {
            let Some(known) = tables.attributes(*id) else { continue };
            let entries = entries.iter().map(|entry| see_entry(&mut tables, entry)).collect();
            let attributes = known.attributes;
            seen.directories.push(DirectorySeen { attributes, entries, is_complete: true });
        }
        drop(tables);
        seen.directories.extend(self.see_above(top));
        seen
    }

    /// What an open told of a file's bytes.
    fn see_file(&self, entry: &Listed) -> Option<OpenReply> {
        let file = self.file_known(entry.id)?;
        let (version, layout, stripe, extents) = file.with(|state| {
            let all = state.extents.whole(state.size, usize::MAX)?;
            let extents = ExtentPage { extents: all, covered: state.size };
            Some((state.version, state.layout.clone()?, state.stripe.clone(), extents))
        })?;
        let known = self.cache.lock().attributes(entry.id)?;
        let is_same = known.attributes.version == version;
        is_same.then(|| OpenReply {
            attributes: known.attributes,
            layout,
            stripe,
            extents,
            lease: last_word(Vec::new()),
            capability: None,
            has_limits: None,
        })
    }

    /// The way from the root to a tree.
    fn see_above(&self, top: FileId) -> Vec<DirectorySeen> {
        let believed = self.servers.map.current();
        let mut tables = self.cache.lock();
        let (mut above, mut at) = (Vec::new(), top);
        while at != self.root {
            let junction = believed.map.junction_of(at.mdt()).filter(|_| at.is_root());
            let place = match junction {
                Some(junction) => Some((junction.parent, junction.name.clone())),
                None => tables.place_of(at),
            };
            let Some((parent, name)) = place else { break };
            let Some(known) = tables.attributes(parent) else { break };
            let kind = FileKind::Directory;
            let entry = DirectoryEntry { name, id: at, kind, attributes: None, target: None };
            let (attributes, entries) = (known.attributes, vec![entry]);
            above.push(DirectorySeen { attributes, entries, is_complete: false });
            at = parent;
        }
        above
    }

    /// What an earlier process knew of what a server holds, which nobody needs a second time.
    pub(crate) fn take_recalled(&self, server: ServerNumber) -> Seen {
        let mut recalled = lock(&self.pins.recalled);
        self.part_of(&mut recalled, server)
    }

    fn part_of(&self, seen: &mut Seen, server: ServerNumber) -> Seen {
        if seen.directories.is_empty() && seen.files.is_empty() {
            return Seen::default();
        }
        let is_its =
            |id: FileId| self.servers.mds(id.mdt()).is_ok_and(|holder| holder.number == server);
        let directories = seen.directories.extract_if(.., |one| is_its(one.attributes.id));
        let directories = directories.collect();
        let files = seen.files.extract_if(.., |one| is_its(one.attributes.id)).collect();
        Seen { form: FORM, directories, files }
    }

    /// What an earlier process knew of what a server holds: to be called before it is said that the
    /// server is away, and what comes back in that moment.
    pub(crate) fn recalled_of(
        &self,
        server: ServerNumber,
    ) -> impl FnOnce(&mut Tables) + Send + use<> {
        self.put_last(server, self.take_recalled(server))
    }

    /// The same of a server that was met: what was put down, if anything of it is not known here
    /// any more.
    pub(crate) async fn seen_of(
        &self,
        server: ServerNumber,
    ) -> impl FnOnce(&mut Tables) + Send + use<> {
        let mut seen = self.take_recalled(server);
        let lacks = |tables: &Tables, id: FileId| {
            self.servers.mds(id.mdt()).is_ok_and(|holder| holder.number == server)
                && !tables.keeps_complete(id)
        };
        let is_lacking = {
            let tables = self.cache.lock();
            !self.pins.are_whole() || tables.pinned.iter().any(|&id| lacks(&tables, id))
        };
        for words in self.pins.words().into_iter().filter(|_| is_lacking) {
            if let Some(mut one) = self.saved_seen(&words).await {
                let one = self.part_of(&mut one, server);
                seen.directories.extend(one.directories);
                seen.files.extend(one.files);
            }
        }
        self.put_last(server, seen)
    }

    fn put_last(
        &self,
        server: ServerNumber,
        seen: Seen,
    ) -> impl FnOnce(&mut Tables) + Send + use<> {
        let Seen { directories, files, .. } = seen;
        for open in &files {
            self.learn_open(open, None);
            self.files.pin(open.attributes.id);
        }
        move |tables: &mut Tables| {
            for directory in directories {
                let DirectorySeen { attributes, entries, is_complete } = directory;
                tables.put_last(server, attributes, (entries, is_complete));
            }
        }
    }
}

/// Directories are told of by themselves.
fn see_entry(tables: &mut Tables, entry: &Listed) -> DirectoryEntry {
    let known = tables.attributes(entry.id).filter(|_| entry.kind != FileKind::Directory);
    DirectoryEntry {
        name: entry.name.clone(),
        id: entry.id,
        kind: entry.kind,
        attributes: known.map(|known| known.attributes),
        target: tables.target(entry.id),
    }
}

fn last_word(units: Vec<FileId>) -> LeaseGrant {
    LeaseGrant { as_of: LAST, units, exclusive: None }
}

/// Writes and reads what was put down.
impl Shared {
    pub(super) async fn save_seen(&self, pin: &Pin, seen: Seen) -> Result<(), String> {
        let Some(node) = &self.near.node else { return Ok(()) };
        let bytes = seen.to_bytes();
        let digest = blake3::hash(&bytes);
        if *lock(&pin.saved) == Some(digest) {
            return Ok(());
        }
        node.save(&pin.words, bytes).await?;
        *lock(&pin.saved) = Some(digest);
        Ok(())
    }

    pub(super) async fn load_seen(&self, words: &str) {
        if let Some(seen) = self.saved_seen(words).await {
            self.pins.recall(seen);
        }
    }

    async fn saved_seen(&self, words: &str) -> Option<Seen> {
        let bytes = self.near.node.as_ref()?.saved(words).await?;
        Seen::from_bytes(&bytes)
    }
}
