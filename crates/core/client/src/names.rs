//! Names: looking them up, and changing them.
//!
//! A change runs in a task of its own, asks the MDS, and writes what the reply says into the cache,
//! so that the names that this client makes need not be fetched again. Whether a change is allowed
//! is always the MDS's to decide.
//!
//! Invariants: of what a change of unknown outcome could have changed nothing is told while the MDS
//! is heard; a file that is open here keeps its bytes when its last name goes.

use crate::shared::Shared;
use crate::told::Told;
use crate::{At, Belief, Error, Found, Known, NewFile, NewNode, Opened, Result};
use std::sync::Arc;
use tieline_believed::tables::XattrsKnown;
use tieline_believed::{Stamp, Tables, Under};
use tieline_owed::cause;
use tieline_types::{Attributes, Caller, Effect, ErrorKind, FileId, FileKind, Mode, Name};
use tieline_wire::meta::{
    Create, CreateReply, EntryReply, LeaseGrant, Link, Lookup, LookupParent, MakeDirectory,
    MakeNode, MakeSymlink, ReadDirectory, ReadSymlink,
};
use tieline_wire::{Call, Op};

mod removal;

/// A name that a change is about, owned by the task that carries it out.
#[derive(Clone)]
struct Spot {
    parent: FileId,
    name: Name,
}

impl From<At<'_>> for Spot {
    fn from(at: At<'_>) -> Self {
        Self { parent: at.parent, name: at.name.clone() }
    }
}

/// More levels than any path has.
const WAY_MAX: usize = 4096;
/// Entries that are asked for with one that is looked up.
const LOOKED_UP_PAGE: u32 = 1000;

impl Shared {
    pub(crate) async fn lookup(
        self: &Arc<Self>,
        caller: &Caller,
        parent: FileId,
        name: &Name,
    ) -> Result<Found> {
        match self.lookup_cached(caller, parent, name) {
            Some(Cached::Found(found)) => {
                self.walked(caller, parent);
                if found.attributes.is_none() {
                    // Names that are not there are remembered as told.
                    self.shrink();
                }
                return Ok(found);
            }
            Some(Cached::Junction(id, entry)) => return self.lookup_root(caller, id, entry).await,
            None => {}
        }
        if let Some(root) = self.made_up_junction(parent, name) {
            return self.lookup_root(caller, root, Belief::default()).await;
        }
        if !self.cache.lock().is_complete(parent)
            && self.come_to(caller, parent, Some(name)).await
            && let Some(Cached::Found(found)) = self.lookup_cached(caller, parent, name)
        {
            return Ok(found);
        }
        if let Some(found) = self.lookup_with_others(caller, parent, name).await {
            return Ok(found);
        }
        let message = Lookup { parent, name: name.clone() };
        let told = self.ask(caller, parent, message).await?;
        let reply = told.reply;
        if let Some(mdt) = reply.junction {
            let root = FileId::root_of(mdt);
            let entry = {
                let mut tables = self.cache.lock();
                let known = tables.admit(told.stamp, &reply.lease);
                tables.learn_name(known, parent, name, Some(root))
            };
            return self.lookup_root(caller, root, entry).await;
        }
        let found = {
            let mut tables = self.cache.lock();
            let known = tables.admit(told.stamp, &reply.lease);
            let id = reply.attributes.as_ref().map(|attributes| attributes.id);
            let entry = tables.learn_name(known, parent, name, id);
            let file = reply.attributes.map(|attributes| {
                if let Some(target) = reply.target {
                    tables.learn_target(attributes.id, target);
                }
                let under = Under::Parent(parent);
                tables.learn_attributes(known, &reply.lease, under, attributes)
            });
            let belief = file.as_ref().map(|known| known.belief.clone()).unwrap_or_default();
            Found { attributes: file.map(|known| known.attributes), entry, belief }
        };
        self.shrink();
        Ok(self.found_here(found))
    }

    /// Who listed a directory and now asks for one name after the other is answered in bulk; and
    /// who goes through names that went for want of room.
    async fn lookup_with_others(
        self: &Arc<Self>,
        caller: &Caller,
        parent: FileId,
        name: &Name,
    ) -> Option<Found> {
        let after = self.cache.lock().page_before(parent, name)?;
        let message = ReadDirectory { id: parent, after, limit: LOOKED_UP_PAGE, is_plus: true };
        // Who may not list the directory asks for the name alone.
        self.page_asked(caller, message).await.ok()?;
        match self.lookup_cached(caller, parent, name)? {
            Cached::Found(found) => Some(found),
            Cached::Junction(..) => None,
        }
    }

    fn lookup_cached(&self, caller: &Caller, parent: FileId, name: &Name) -> Option<Cached> {
        let mut tables = self.cache.lock();
        if !tables.may_search(caller, parent) {
            return None;
        }
        let (id, entry) = tables.name(parent, name)?;
        let Some(id) = id else {
            let belief = Belief::default();
            return Some(Cached::Found(Found { attributes: None, entry, belief }));
        };
        match tables.attributes(id) {
            Some(Known { attributes, belief }) => {
                drop(tables);
                let found = Found { attributes: Some(attributes), entry, belief };
                Some(Cached::Found(self.found_here(found)))
            }
            None if id.mdt() != parent.mdt() => Some(Cached::Junction(id, entry)),
            None => None,
        }
    }

    /// Another MDT is mounted there: its root is asked for at its MDS.
    async fn lookup_root(
        self: &Arc<Self>,
        caller: &Caller,
        root: FileId,
        entry: Belief,
    ) -> Result<Found> {
        let Known { attributes, belief } = self.junction_as_known(caller, root).await?;
        Ok(Found { attributes: Some(attributes), entry, belief })
    }

    fn found_here(&self, mut found: Found) -> Found {
        if found.attributes.as_mut().is_some_and(|attributes| self.patch(attributes)) {
            found.belief = Belief::default();
        }
        found
    }

    pub(crate) async fn parent(&self, caller: &Caller, directory: FileId) -> Result<FileId> {
        if directory == self.root {
            return Ok(directory);
        }
        if directory.is_root() {
            let believed = self.servers.map.current();
            let junction = believed.map.junction_of(directory.mdt());
            return Ok(junction.map_or(directory, |junction| junction.parent));
        }
        // Every listing asks for it.
        if let Some(parent) = self.cache.lock().parent(directory) {
            return Ok(parent);
        }
        let told = self.ask(caller, directory, LookupParent { id: directory }).await?;
        Ok(told.reply.parent)
    }

    /// The names from the mounted root to a directory: as believed, else as its MDT tells them.
    pub(crate) async fn way_to(&self, caller: &Caller, directory: FileId) -> Result<Vec<Name>> {
        let (mut way, mut at) = (Vec::new(), directory);
        while at != self.root {
            if way.len() >= WAY_MAX {
                return Err(Error::local(ErrorKind::NotFound, "too deep, or not below the mount"));
            }
            let (parent, name) = self.place_of(caller, at).await?;
            way.push(name);
            at = parent;
        }
        way.reverse();
        Ok(way)
    }

    async fn place_of(&self, caller: &Caller, directory: FileId) -> Result<(FileId, Name)> {
        if directory.is_root() {
            let believed = self.servers.map.current();
            let junction = believed.map.junction_of(directory.mdt());
            let place = junction.map(|junction| (junction.parent, junction.name.clone()));
            return place.ok_or_else(|| Error::local(ErrorKind::NotFound, "not below the mount"));
        }
        if let Some(place) = self.cache.lock().place_of(directory) {
            return Ok(place);
        }
        let told = self.ask(caller, directory, LookupParent { id: directory }).await?;
        let name = told.reply.name.ok_or_else(|| Error::local(ErrorKind::NotFound, "no name"))?;
        Ok((told.reply.parent, name))
    }

    /// Creates a name and learns it.
    pub(crate) async fn make<C>(
        self: &Arc<Self>,
        caller: &Caller,
        at: At<'_>,
        message: C,
    ) -> Result<Known>
    where
        C: Call<Reply = EntryReply> + Clone + 'static,
    {
        let (shared, caller, spot) = (self.clone(), caller.clone(), Spot::from(at));
        self.detached(async move {
            let told = shared.change(&caller, &[spot.parent], message).await?;
            let (stamp, reply) = (told.stamp, told.reply);
            let missing = || Error::local(ErrorKind::Protocol, "creation without attributes");
            let attributes = reply.attributes.ok_or_else(missing)?;
            let mut tables = shared.cache.lock();
            if attributes.kind != FileKind::Directory {
                // It may have had no name, and was believed under itself: of a file that has one,
                // only leases of directories are recalled.
                tables.units.recall(attributes.id, reply.lease.as_of);
            }
            if let Some(target) = reply.target {
                tables.learn_target(attributes.id, target);
            }
            Ok(learn_made(&mut tables, stamp, &reply.lease, &spot, attributes))
        })
        .await
    }

    pub(crate) async fn make_directory(
        self: &Arc<Self>,
        caller: &Caller,
        at: At<'_>,
        mode: Mode,
        umask: Mode,
    ) -> Result<Known> {
        if let Some(id) = self.was_done(Op::MakeDirectory) {
            return self.attributes(caller, id).await;
        }
        self.own_room(at.parent).await;
        if !cause::has_answer(Op::MakeDirectory)
            && let Some(made) = self.make_directory_own(caller, at, (mode, umask))
        {
            return Ok(made);
        }
        let message = MakeDirectory { parent: at.parent, name: at.name.clone(), mode, umask };
        self.make(caller, at, message).await
    }

    pub(crate) async fn make_symlink(
        self: &Arc<Self>,
        caller: &Caller,
        at: At<'_>,
        target: &[u8],
    ) -> Result<Known> {
        if let Some(id) = self.was_done(Op::MakeSymlink) {
            return self.attributes(caller, id).await;
        }
        self.own_room(at.parent).await;
        if !cause::has_answer(Op::MakeSymlink)
            && let Some(made) = self.make_symlink_own(caller, at, target)
        {
            return Ok(made);
        }
        let target = target.to_vec();
        let message = MakeSymlink { parent: at.parent, name: at.name.clone(), target };
        self.make(caller, at, message).await
    }

    pub(crate) async fn make_node(
        self: &Arc<Self>,
        caller: &Caller,
        at: At<'_>,
        node: NewNode,
    ) -> Result<Known> {
        if let Some(id) = self.was_done(Op::MakeNode) {
            return self.attributes(caller, id).await;
        }
        self.own_room(at.parent).await;
        if !cause::has_answer(Op::MakeNode)
            && let Some(made) = self.make_node_own(caller, at, &node)
        {
            return Ok(made);
        }
        let message = MakeNode {
            parent: at.parent,
            name: at.name.clone(),
            kind: node.kind,
            mode: node.mode,
            umask: node.umask,
            device: node.device,
        };
        self.make(caller, at, message).await
    }

    pub(crate) async fn link(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        at: At<'_>,
    ) -> Result<Known> {
        if id.mdt() != at.parent.mdt() {
            return Err(Error::local(ErrorKind::CrossDevice, format!("link to {}", at.name)));
        }
        if let Some(id) = self.was_done(Op::Link) {
            return self.attributes(caller, id).await;
        }
        self.own_room(at.parent).await;
        if !cause::has_answer(Op::Link)
            && let Some(mut known) = self.link_own(caller, id, at)
        {
            self.patch_known(&mut known);
            return Ok(known);
        }
        self.launder_one(id).await;
        let (replaces, keep) = (None, None);
        let message = Link { id, parent: at.parent, name: at.name.clone(), replaces, keep };
        let mut known = self.make(caller, at, message).await?;
        self.named(id);
        self.patch_known(&mut known);
        Ok(known)
    }

    /// The MDS decides, in one transaction, and answers when it is durable: never from here.
    pub(crate) async fn put_in_place(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        at: At<'_>,
        replaces: bool,
    ) -> Result<Known> {
        let (parent, name) = (at.parent, at.name.clone());
        if id.mdt() != parent.mdt() {
            return Err(Error::local(ErrorKind::CrossDevice, format!("link to {name}")));
        }
        self.launder_written(id).await?;
        let mut message = Link { id, parent, name, replaces: None, keep: None };
        if replaces {
            self.launder_names(&[at]).await;
            message.replaces = Some(true);
            message.keep = self.kept_open(caller, at).await?;
        }
        let keep = message.keep;
        let replaced = self.cache.lock().name(at.parent, at.name).and_then(|(id, _)| id);
        let mut known = self.make(caller, at, message).await?;
        if let Some(replaced) = replaced.filter(|&replaced| replaced != id) {
            // Its other names may be anywhere.
            self.cache.lock().forget(replaced);
        }
        self.orphaned(keep, None, false);
        self.named(id);
        self.patch_known(&mut known);
        Ok(known)
    }

    /// A file has a name now.
    fn named(&self, id: FileId) {
        if let Some(file) = self.file_known(id) {
            file.with(|state| {
                (state.is_orphan, state.is_hidden, state.orphan_kept) = (false, false, None);
            });
        }
    }

    pub(crate) async fn create(
        self: &Arc<Self>,
        caller: &Caller,
        at: At<'_>,
        new: NewFile,
    ) -> Result<(Known, Opened)> {
        if let Some(id) = self.was_done(Op::Create) {
            return self.open_made(caller, id, new.access).await;
        }
        self.own_room(at.parent).await;
        if !cause::has_answer(Op::Create)
            && let Some(made) = self.create_own(caller, at, &new)
        {
            return Ok(made);
        }
        let access = new.access;
        let message = creation(at.parent, at.name.clone(), new);
        let (shared, owner, spot) = (self.clone(), caller.clone(), Spot::from(at));
        let made = self.detached(async move {
            let told = shared.change(&owner, &[spot.parent], message).await?;
            let Told { reply: CreateReply { is_new, open }, stamp, busy: _busy } = told;
            let known = {
                let mut tables = shared.cache.lock();
                let attributes = open.attributes.clone();
                let known = learn_made(&mut tables, stamp, &open.lease, &spot, attributes);
                if is_new {
                    let reply = tables.admit(stamp, &open.lease);
                    let xattrs = XattrsKnown { list: Vec::new(), has_trusted: true };
                    tables.learn_xattrs(reply, open.attributes.id, xattrs);
                }
                known
            };
            shared.learn_open(&open, None);
            shared.shrink();
            Ok((is_new, known))
        });
        let (is_new, known) = made.await?;
        let id = known.attributes.id;
        if is_new {
            let opened = self.add_handle(caller, known.attributes.clone(), access);
            // The MDS takes whoever makes a file for one who writes it.
            self.file(id).with(|state| state.is_declared = true);
            return Ok((known, opened));
        }
        let opened = self.open(caller, id, access).await?;
        let belief = if access.truncate { Belief::default() } else { known.belief };
        Ok((Known { attributes: opened.attributes.clone(), belief }, opened))
    }

    /// A file that was made for this request by an earlier process.
    async fn open_made(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
        access: crate::Access,
    ) -> Result<(Known, Opened)> {
        // Its maker may do what its mode forbids.
        let attributes = self.open_at_server(caller, id, crate::Access::default()).await?;
        let opened = self.add_handle(caller, attributes.clone(), access);
        Ok((Known { attributes, belief: Belief::default() }, opened))
    }

    pub(crate) async fn create_nameless(
        self: &Arc<Self>,
        caller: &Caller,
        parent: FileId,
        new: NewFile,
    ) -> Result<(Known, Opened)> {
        let access = new.access;
        let message = Create { is_nameless: Some(true), ..creation(parent, no_name()?, new) };
        let (shared, owner) = (self.clone(), caller.clone());
        self.detached(async move {
            let told = shared.ask(&owner, parent, message).await?;
            let Told { reply: CreateReply { open, .. }, stamp, .. } = told;
            let known = {
                let mut tables = shared.cache.lock();
                let reply = tables.admit(stamp, &open.lease);
                let attributes = open.attributes.clone();
                tables.learn_attributes(reply, &open.lease, Under::Granted, attributes)
            };
            shared.learn_open(&open, None);
            let opened = shared.add_handle(&owner, known.attributes.clone(), access);
            shared.orphan(&shared.file(known.attributes.id), true);
            Ok((known, opened))
        })
        .await
    }

    pub(crate) async fn read_symlink(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
    ) -> Result<Vec<u8>> {
        self.accessed(caller, id, false);
        let known = self.cache.lock().target(id);
        if let Some(target) = known {
            return Ok(target);
        }
        let target = self.ask(caller, id, ReadSymlink { id }).await?.reply.target;
        self.cache.lock().learn_target(id, target.clone());
        Ok(target)
    }

    /// Asks the MDS for a change of names in `directories`. Must run to its end.
    async fn change<C: Call + Clone>(
        &self,
        caller: &Caller,
        directories: &[FileId],
        message: C,
    ) -> Result<Told<C::Reply>> {
        let _mutating = self.cache.mutating(directories);
        let parent = directories.first().copied().unwrap_or(self.root);
        let result = self.ask(caller, parent, message).await;
        if let Err(error) = &result
            && error.kind().effect() != Effect::NotApplied
        {
            self.doubt(directories);
        }
        result
    }
}

enum Cached {
    Found(Found),
    Junction(FileId, Belief),
}

fn creation(parent: FileId, name: Name, new: NewFile) -> Create {
    Create {
        parent,
        name,
        mode: new.mode,
        umask: new.umask,
        is_exclusive: new.is_exclusive,
        layout: new.layout,
        is_nameless: None,
    }
}

impl Shared {
    /// An earlier process carried this call out itself for the request that is being served: the
    /// file it was about.
    pub(crate) fn was_done(&self, op: Op) -> Option<FileId> {
        cause::current()?.done(op.number())
    }
}

/// Where a message must have a name that means nothing.
fn no_name() -> Result<Name> {
    Name::new("-").map_err(|error| Error::local(ErrorKind::Internal, error.to_string()))
}

/// A name was made: it, and what it leads to.
fn learn_made(
    tables: &mut Tables,
    stamp: Stamp,
    lease: &LeaseGrant,
    spot: &Spot,
    attributes: Attributes,
) -> Known {
    let known = tables.admit_mutation(stamp, lease, &[spot.parent]);
    tables.learn_name(known, spot.parent, &spot.name, Some(attributes.id));
    tables.learn_attributes(known, lease, Under::Parent(spot.parent), attributes)
}
