//! Who acts for another, and what of the tree he may touch.
//!
//! A door's requests come with a [`Delegation`]. Before one runs, [`check`] looks at what it
//! touches, in the transaction that the request itself runs in: where that lies cannot change
//! between. A file lies where its names are, each way followed up to the root of the MDT, and from
//! there by the junctions of the map. Links are nobody's way: whoever follows one asks for what is
//! there.
//!
//! A file that has several names is within a scope if all of them are: with one, somebody else
//! could bring any file into it by a link. For the same reason nothing is moved or linked to where
//! more may be done with it. What a delegation made itself it may go on with though its scope lets
//! it make files only ([`made`]).
//!
//! Rights are looked at as ever: a scope takes away and gives nothing.
//!
//! Knows nothing of evidence, and of doors only their name.
//!
//! Invariants: what is not said here to touch something is refused to who acts for another; whoever
//! may not look at a place is not told of its name.
//!
//! [`made`]: crate::made

use crate::error::{Error, Result};
use crate::made::Maker;
use crate::view::View;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tieline_format::map::FederationMap;
use tieline_format::mdt::{Entry, Inode, key};
use tieline_types::{Doing, FileId, MdtIndex, Name, RenameMode, Scope};
use tieline_wire::Request;
use tieline_wire::meta::{Create, Link, Open, Rename};
use tokio::time::Instant;

use tieline_wire::touch::{Touch, touched};

/// Directories above each other: nobody means more.
const DEPTH_MAX: usize = 1024;

/// For whom, through whom, what and until when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delegation {
    /// The door's principal.
    pub door: Arc<str>,
    /// As the door numbered it.
    pub proof: u64,
    /// `None`: whatever the user may.
    pub scope: Option<Scope>,
    /// `None`: no user's, but a door that asks for itself.
    pub until: Option<Instant>,
}

impl Delegation {
    /// A door that asks for itself: it keeps its session, and touches nothing.
    pub fn of_itself(door: Arc<str>) -> Self {
        Self { door, proof: 0, scope: Some(Scope::default()), until: None }
    }

    /// How long it holds yet.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// May all that is anywhere be read?
    fn reads_all(&self) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.allows(&[], Doing::Read))
    }
}

/// May who acts for another ask this?
pub async fn check(view: &mut View<'_>, request: &Request) -> Result<()> {
    view.hides_bytes = false;
    let Some(delegation) = view.scene.delegation else { return Ok(()) };
    let not_his = || Error::NotDelegated { op: request.op().name() };
    let touched = touched(request, delegation.reads_all()).ok_or_else(not_his)?;
    let Some(scope) = &delegation.scope else { return Ok(()) };
    let mut judge = Judge { scope, view, ways: BTreeMap::new() };
    for touch in touched {
        judge.check(touch).await?;
    }
    Ok(())
}

/// One request under a scope.
struct Judge<'j, 'v> {
    scope: &'j Scope,
    view: &'j mut View<'v>,
    /// Of directories.
    ways: BTreeMap<FileId, Vec<Name>>,
}

type Way = Vec<Name>;

impl Judge<'_, '_> {
    async fn check(&mut self, touch: Touch<'_>) -> Result<()> {
        match touch {
            // Whoever may do anything everywhere may look everywhere.
            Touch::Seen(_) | Touch::SeenName(..) | Touch::Used(_) if self.scope.allows_any(&[]) => {
                Ok(())
            }
            Touch::Seen(id) => {
                let ways = self.ways_of(id).await?;
                let is_seen = ways.iter().all(|way| self.scope.leads_on(way));
                self.held(is_seen && !ways.is_empty(), "looking at", id, &ways)
            }
            Touch::SeenName(parent, name) => {
                let way = self.way_to(parent, name).await?;
                let is_seen = self.scope.leads_on(&way);
                self.held_name(is_seen, "looking at", (parent, name), &way)
            }
            Touch::Used(id) => {
                let ways = self.ways_of(id).await?;
                let is_used = ways.iter().all(|way| self.scope.allows_any(way));
                self.held(is_used && !ways.is_empty() || self.is_made(id), "using", id, &ways)
            }
            Touch::Read(id) => {
                let (may, ways) = self.may(id, Doing::Read).await?;
                self.held(may, "reading", id, &ways)
            }
            Touch::ReadOwn(id) => {
                let (may, ways) = self.may_read(id).await?;
                self.held(may, "reading", id, &ways)
            }
            Touch::Changed(id) => {
                let (may, ways) = self.may_change(id).await?;
                self.held(may, "changing", id, &ways)
            }
            Touch::New(parent, name) => self.check_new(parent, name).await,
            Touch::Taken(parent, name) => {
                let way = self.way_to(parent, name).await?;
                let may = self.may_take(parent, name, &way).await?;
                self.held_name(may, "changing", (parent, name), &way)
            }
            Touch::Opened(open) => self.check_open(open).await,
            Touch::Created(create) => self.check_create(create).await,
            Touch::Linked(link) => self.check_link(link).await,
            Touch::Moved(rename) => self.check_rename(rename).await,
        }
    }

    async fn check_new(&mut self, parent: FileId, name: &Name) -> Result<()> {
        let way = self.way_to(parent, name).await?;
        let may = self.scope.allows(&way, Doing::Create);
        self.held_name(may, "creating", (parent, name), &way)
    }

    async fn check_open(&mut self, open: &Open) -> Result<()> {
        let id = open.id;
        let (reads, ways) = self.may_read(id).await?;
        if open.wants_bytes() {
            self.held(reads, "reading", id, &ways)?;
        }
        if open.is_write || open.writes == Some(true) {
            let (may, ways) = self.may_change(id).await?;
            self.held(may, "changing", id, &ways)?;
        }
        self.view.hides_bytes = !reads;
        Ok(())
    }

    /// One that is there is opened, for what is seen later: its answer may bring bytes.
    async fn check_create(&mut self, create: &Create) -> Result<()> {
        let Create { parent, ref name, .. } = *create;
        if create.is_nameless == Some(true) {
            let (may, ways) = self.may(parent, Doing::Create).await?;
            return self.held(may, "creating files in", parent, &ways);
        }
        let there = match create.is_exclusive {
            true => None,
            false => self.entry(parent, name).await?,
        };
        let Some(there) = there else { return self.check_new(parent, name).await };
        let (reads, ways) = self.may_read(there.id).await?;
        let (changes, _) = self.may_change(there.id).await?;
        self.view.hides_bytes = !reads;
        self.held(reads || changes, "opening", there.id, &ways)
    }

    async fn check_link(&mut self, link: &Link) -> Result<()> {
        let Link { id, parent, ref name, replaces, .. } = *link;
        let (may, _) = self.may_change(id).await?;
        let ways = self.ways_of(id).await?;
        self.held(may, "linking", id, &ways)?;
        let to = self.way_to(parent, name).await?;
        if replaces == Some(true) && self.entry(parent, name).await?.is_some() {
            let may = self.may_take(parent, name, &to).await?;
            self.held_name(may, "changing", (parent, name), &to)?;
        }
        let may = self.scope.allows(&to, Doing::Create);
        self.held_name(may, "creating", (parent, name), &to)?;
        let gains = ways.iter().any(|way| self.scope.gains(way, &to));
        self.held_name(!gains || self.is_made(id), "doing more with it at", (parent, name), &to)
    }

    async fn check_rename(&mut self, rename: &Rename) -> Result<()> {
        let Rename { from_parent, ref from_name, to_parent, ref to_name, mode, .. } = *rename;
        let from = self.way_to(from_parent, from_name).await?;
        let to = self.way_to(to_parent, to_name).await?;
        let may = self.may_take(from_parent, from_name, &from).await?;
        self.held_name(may, "changing", (from_parent, from_name), &from)?;
        let there = self.entry(to_parent, to_name).await?;
        if there.is_some() {
            let may = self.may_take(to_parent, to_name, &to).await?;
            self.held_name(may, "changing", (to_parent, to_name), &to)?;
        }
        let may = self.scope.allows(&to, Doing::Create);
        self.held_name(may, "creating", (to_parent, to_name), &to)?;
        let moved = self.entry(from_parent, from_name).await?;
        let gains = |judge: &Self, entry: &Option<Entry>, from: &[Name], to: &[Name]| {
            let is_made = entry.as_ref().is_some_and(|entry| judge.is_made(entry.id));
            !is_made && judge.scope.gains(from, to)
        };
        let more = "doing more with it at";
        self.held_name(!gains(self, &moved, &from, &to), more, (to_parent, to_name), &to)?;
        let is_back = mode == RenameMode::Exchange && gains(self, &there, &to, &from);
        self.held_name(!is_back, more, (from_parent, from_name), &from)
    }

    /// May this be done with a file, wherever it has names? Says where that is.
    async fn may(&mut self, id: FileId, doing: Doing) -> Result<(bool, Vec<Way>)> {
        if self.scope.allows(&[], doing) {
            return Ok((true, vec![]));
        }
        let ways = self.ways_of(id).await?;
        let may = !ways.is_empty() && ways.iter().all(|way| self.scope.allows(way, doing));
        Ok((may, ways))
    }

    async fn may_read(&mut self, id: FileId) -> Result<(bool, Vec<Way>)> {
        let (may, ways) = self.may(id, Doing::Read).await?;
        Ok((may || self.is_made_within(id, &ways), ways))
    }

    /// A file that this delegation made is its to fill, where it may make files.
    async fn may_change(&mut self, id: FileId) -> Result<(bool, Vec<Way>)> {
        let (may, ways) = self.may(id, Doing::Modify).await?;
        Ok((may || self.is_made_within(id, &ways), ways))
    }

    async fn may_take(&mut self, parent: FileId, name: &Name, way: &[Name]) -> Result<bool> {
        if self.scope.allows(way, Doing::Modify) {
            return Ok(true);
        }
        let entry = self.entry(parent, name).await?;
        let is_made = entry.is_some_and(|entry| self.is_made(entry.id));
        Ok(is_made && self.scope.allows(way, Doing::Create))
    }

    fn is_made_within(&self, id: FileId, ways: &[Way]) -> bool {
        self.is_made(id) && ways.iter().all(|way| self.scope.allows(way, Doing::Create))
    }

    fn is_made(&self, id: FileId) -> bool {
        let scene = &self.view.scene;
        Maker::of(scene).is_some_and(|maker| scene.made.is_by(id, maker))
    }

    async fn entry(&mut self, parent: FileId, name: &Name) -> Result<Option<Entry>> {
        self.view.record(key::entry(parent, name)).await
    }

    async fn way_to(&mut self, parent: FileId, name: &Name) -> Result<Way> {
        let mut way = self.way_of_directory(parent).await?;
        way.push(name.clone());
        Ok(way)
    }

    /// Where a file or a directory is; nowhere if it has no name.
    async fn ways_of(&mut self, id: FileId) -> Result<Vec<Way>> {
        if id.is_root() {
            return Ok(vec![self.way_of_directory(id).await?]);
        }
        let inode = self.inode(id).await?;
        let mut ways = Vec::with_capacity(inode.names.len());
        for name in &inode.names {
            ways.push(self.way_to(name.parent, &name.name).await?);
        }
        Ok(ways)
    }

    async fn way_of_directory(&mut self, id: FileId) -> Result<Way> {
        if let Some(way) = self.ways.get(&id) {
            return Ok(way.clone());
        }
        let (mut below, mut at) = (Vec::new(), id);
        while !at.is_root() {
            let inode = self.inode(at).await?;
            let name = inode.names.into_iter().next().ok_or(Error::Nameless { id: at })?;
            below.push(name.name);
            at = name.parent;
            if below.len() > DEPTH_MAX {
                return Err(Error::Invalid { what: "a directory lies deeper than anybody means" });
            }
        }
        self.view.scene.check_mine(at)?;
        let mut way = way_of_root(self.view.scene.map, at.mdt())?;
        way.extend(below.into_iter().rev());
        self.ways.insert(id, way.clone());
        Ok(way)
    }

    /// Without telling anybody that it was looked at: only its names are.
    async fn inode(&mut self, id: FileId) -> Result<Inode> {
        self.view.scene.check_mine(id)?;
        self.view.record(key::inode(id)).await?.ok_or(Error::Stale { id })
    }

    fn held(&self, may: bool, what: &str, id: FileId, ways: &[Way]) -> Result<()> {
        if may {
            return Ok(());
        }
        // Its names are told to who may look there.
        let is_told = !ways.is_empty() && ways.iter().all(|way| self.scope.leads_on(way));
        let place = match ways.first().filter(|_| is_told) {
            Some(way) => path(way),
            None if ways.len() > 1 => format!("file {id} by each of its names"),
            None => format!("file {id}"),
        };
        Err(self.out_of_scope(format!("{what} {place}")))
    }

    fn held_name(
        &self,
        may: bool,
        what: &str,
        (parent, name): (FileId, &Name),
        way: &[Name],
    ) -> Result<()> {
        if may {
            return Ok(());
        }
        let above = way.split_last().map_or(way, |(_, above)| above);
        let place = match self.scope.leads_on(above) {
            true => path(way),
            false => format!("`{name}` in directory {parent}"),
        };
        Err(self.out_of_scope(format!("{what} {place}")))
    }

    fn out_of_scope(&self, what: String) -> Error {
        Error::OutOfScope { scope: self.scope.to_string(), what }
    }
}

/// Where the tree of an MDT is mounted.
fn way_of_root(map: &FederationMap, mdt: MdtIndex) -> Result<Way> {
    let (mut below, mut at) = (Vec::new(), mdt);
    while at != MdtIndex(0) {
        let junction = map.junction_of(at).ok_or(Error::Unmounted { mdt })?;
        // What lies between, another MDT knows; and it may move without our hearing of it.
        if !junction.parent.is_root() || below.len() > map.junctions.len() {
            return Err(Error::Unmounted { mdt });
        }
        below.push(junction.name.clone());
        at = junction.parent.mdt();
    }
    below.reverse();
    Ok(below)
}

fn path(way: &[Name]) -> String {
    match way {
        [] => "/".to_owned(),
        way => way.iter().map(|name| format!("/{name}")).collect(),
    }
}

#[cfg(test)]
mod tests;
