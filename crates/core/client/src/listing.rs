//! Directories as they are listed: page by page in the order of the names, from the cache where all
//! names are known under a lease, else from the MDS.
//!
//! A handle holds one page whole. Which position each name has all handles of a directory know
//! together ([`tieline_believed::places`]).
//!
//! When every page came from the MDS under one lease, the cache learns that it knows all names.
//!
//! Whoever goes on after the first page will want all: while one page is read the next is on its
//! way, so that MDS, client and reader work at the same time.
//!
//! Invariants: a position means the same name on every handle; a name that was there all the time
//! is listed once, whatever comes and goes around it, also from a position whose own name is gone;
//! from a position that is not known any more all names are listed: rather twice than not at all.

use crate::shared::{Shared, lock};
use crate::{Belief, Error, HandleId, Known, Listed, Result};
use std::sync::Arc;
use tieline_believed::Under;
use tieline_believed::access;
use tieline_foresight::walks::ListingMark;
use tieline_types::{Caller, ErrorKind, FileId, FileKind, Name};
use tieline_wire::meta::{DirectoryEntry, ReadDirectory};
use tokio::task::JoinHandle;

/// Entries of the first page: what most directories have, or programs look at.
const PAGE_FIRST: u32 = 1000;
/// Entries of further pages: what an MDS gives at most.
const PAGE: u32 = 4096;

/// An open directory.
pub(crate) struct Listing {
    id: FileId,
    caller: Caller,
    cursor: tokio::sync::Mutex<Cursor>,
}

impl Listing {
    pub fn new(id: FileId, caller: Caller) -> Self {
        Self { id, caller, cursor: Default::default() }
    }

    pub fn id(&self) -> FileId {
        self.id
    }

    pub fn caller(&self) -> &Caller {
        &self.caller
    }
}

/// Where a handle is in its directory.
#[derive(Default)]
struct Cursor {
    /// What is at hand. `None`: nothing was read since the beginning.
    page: Option<Which>,
    entries: Vec<Entry>,
    /// Where in them the last read began: whoever goes on behind that has not turned back.
    shown: usize,
    /// The name that they follow.
    after: Option<Name>,
    /// The page at hand is the last.
    is_end: bool,
    is_plus: bool,
    /// What all pages so far came under; `None`: there was no such lease, or not all came from the
    /// MDS.
    mark: Option<ListingMark>,
    /// The page that will be wanted next.
    ahead: Option<Ahead>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Other,
}

/// A page that is on its way.
struct Ahead {
    after: Option<Name>,
    is_plus: bool,
    page: JoinHandle<Result<Asked>>,
}

#[derive(Clone)]
struct Entry {
    name: Name,
    id: FileId,
    kind: FileKind,
    entry: Belief,
    known: Option<Known>,
    /// After it.
    position: u64,
}

/// Entries in order, and whether they are the last.
pub(crate) struct Page {
    entries: Vec<Entry>,
    is_end: bool,
}

/// A page as the MDS gave it.
pub(crate) struct Asked {
    page: Page,
    /// The lease that it came under.
    mark: Option<ListingMark>,
}

impl Shared {
    pub(crate) async fn open_directory(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
    ) -> Result<HandleId> {
        self.pins.note(caller);
        let known = self.attributes(caller, id).await?;
        if !known.attributes.is_directory() {
            return Err(Error::local(ErrorKind::NotDirectory, format!("file {id}")));
        }
        let listing = Listing::new(id, caller.clone());
        let is_gone = known.attributes.links == 0;
        let is_allowed = || self.cache.lock().allows(caller, id, access::READ);
        let is_seen = || self.made_up(id).or_else(|| self.root_seen(id)).is_some();
        if !is_gone && !is_allowed() && !is_seen() {
            // The MDS decides, and its answer is the first page.
            let mut cursor = listing.cursor.lock().await;
            self.turn(&listing, &mut cursor, false).await?;
        }
        Ok(self.handles.add_directory(listing))
    }

    pub(crate) async fn read_directory(
        self: &Arc<Self>,
        handle: HandleId,
        from: u64,
        limit: usize,
        is_plus: bool,
    ) -> Result<Vec<Listed>> {
        let listing = self.handles.directory(handle)?;
        let page = self.read_listing(&listing, from, limit, is_plus).await;
        let is_stale = page.as_ref().is_err_and(|error| error.kind() == ErrorKind::Stale);
        // Removed while somebody is in it.
        if is_stale && self.cache.lock().remains(listing.id).is_some() {
            return Ok(Vec::new());
        }
        page
    }

    async fn read_listing(
        self: &Arc<Self>,
        listing: &Listing,
        from: u64,
        limit: usize,
        is_plus: bool,
    ) -> Result<Vec<Listed>> {
        let mut cursor = listing.cursor.lock().await;
        let cursor = &mut *cursor;
        if from == 0 {
            self.accessed(&listing.caller, listing.id, true);
        }
        if from == 0 && self.is_overtaken(listing, cursor, is_plus) {
            *cursor = Cursor::default();
        }
        let mut index = self.locate(listing, cursor, from, is_plus).await?;
        while index == cursor.entries.len() && !cursor.is_end {
            self.turn(listing, cursor, is_plus).await?;
            index = 0;
        }
        cursor.shown = index;
        let shown = cursor.entries.iter().skip(index).take(limit);
        Ok(shown.map(|entry| self.listed(listing.id, entry, is_plus)).collect())
    }

    /// Reading from 0 lists anew, except right after the open, which may have fetched the first
    /// page.
    fn is_overtaken(&self, listing: &Listing, cursor: &Cursor, is_plus: bool) -> bool {
        let (mark, belief) = {
            let tables = self.cache.lock();
            (tables.listing_mark(listing.id), tables.units.belief(listing.id))
        };
        let is_believed = !belief.units.is_empty();
        let is_good = is_believed && cursor.mark.is_some() && cursor.mark == mark;
        !is_good || cursor.is_plus != is_plus || cursor.is_end || cursor.page != Some(Which::First)
    }

    /// Brings the page that follows position `from` to hand; says where in it to go on.
    async fn locate(
        self: &Arc<Self>,
        listing: &Listing,
        cursor: &mut Cursor,
        from: u64,
        is_plus: bool,
    ) -> Result<usize> {
        if from == 0 {
            if cursor.page != Some(Which::First) {
                self.turn(listing, cursor, is_plus).await?;
            }
            return Ok(0);
        }
        if let Some(index) = cursor.after(from).filter(|&index| index > cursor.shown) {
            return Ok(index);
        }
        let name = lock(&self.places).name(listing.id, from);
        if let Some(name) = name {
            *cursor = Cursor { page: Some(Which::Other), after: Some(name), ..Cursor::default() };
            self.turn(listing, cursor, is_plus).await?;
            return Ok(0);
        }
        // Forgotten, or of a process before this one: names are counted anew.
        *cursor = Cursor::default();
        while !cursor.is_end {
            self.turn(listing, cursor, is_plus).await?;
            if let Some(index) = cursor.after(from) {
                return Ok(index);
            }
        }
        *cursor = Cursor::default();
        self.turn(listing, cursor, is_plus).await?;
        Ok(0)
    }

    /// Turns to the next page.
    async fn turn(
        self: &Arc<Self>,
        listing: &Listing,
        cursor: &mut Cursor,
        is_plus: bool,
    ) -> Result<()> {
        let after = cursor.last().cloned();
        let Page { mut entries, is_end } =
            self.page(listing, cursor, after.as_ref(), is_plus).await?;
        self.place(listing.id, &mut entries);
        let is_first = cursor.page.is_none();
        cursor.page = Some(if is_first { Which::First } else { Which::Other });
        (cursor.entries, cursor.shown) = (entries, 0);
        (cursor.after, cursor.is_end) = (after, is_end);
        if !is_first && !is_end && cursor.mark.is_some() {
            self.turn_ahead(listing, cursor, is_plus);
        }
        Ok(())
    }

    fn place(&self, directory: FileId, entries: &mut [Entry]) {
        let names: Vec<&Name> = entries.iter().map(|entry| &entry.name).collect();
        let positions = lock(&self.places).number(directory, &names);
        for (entry, position) in entries.iter_mut().zip(positions) {
            entry.position = position;
        }
    }

    fn turn_ahead(self: &Arc<Self>, listing: &Listing, cursor: &mut Cursor, is_plus: bool) {
        let after = cursor.last().cloned();
        let message = ReadDirectory { id: listing.id, after: after.clone(), limit: PAGE, is_plus };
        let (shared, caller) = (self.clone(), listing.caller.clone());
        let page = tokio::spawn(async move { shared.page_asked(&caller, message).await });
        cursor.ahead = Some(Ahead { after, is_plus, page });
    }

    /// Entries after a name: from the cache if it knows all of them.
    async fn page(
        self: &Arc<Self>,
        listing: &Listing,
        cursor: &mut Cursor,
        after: Option<&Name>,
        is_plus: bool,
    ) -> Result<Page> {
        if after.is_none() {
            cursor.is_plus = is_plus;
        }
        let ahead = cursor.ahead.take();
        if let Some(ahead) =
            ahead.filter(|one| (one.after.as_ref(), one.is_plus) == (after, is_plus))
        {
            let stopped = |_| Error::local(ErrorKind::Internal, "task of the client");
            return Ok(self.take_page(listing, cursor, after, ahead.page.await.map_err(stopped)??));
        }
        let limit = if after.is_none() { PAGE_FIRST } else { PAGE };
        let mut cached = self.page_cached(listing, after, limit as usize);
        if cached.is_some() {
            self.walked(&listing.caller, listing.id);
        } else if after.is_none() && self.come_to(&listing.caller, listing.id, None).await {
            cached = self.page_cached(listing, after, limit as usize);
        }
        if let Some(page) = cached {
            cursor.mark = None;
            return Ok(page);
        }
        if let Some(names) = self.made_up_names(listing.id) {
            cursor.mark = None;
            return Ok(page_made_up(names, after));
        }
        let message = ReadDirectory { id: listing.id, after: after.cloned(), limit, is_plus };
        let asked = self.page_asked(&listing.caller, message).await?;
        Ok(self.take_page(listing, cursor, after, asked))
    }

    /// A page that the MDS gave is the next of a listing.
    fn take_page(
        &self,
        listing: &Listing,
        cursor: &mut Cursor,
        after: Option<&Name>,
        asked: Asked,
    ) -> Page {
        let Asked { page, mark } = asked;
        if after.is_none() {
            cursor.mark = mark;
        } else if cursor.mark != mark {
            cursor.mark = None;
        }
        if let Some(mark) = cursor.mark.filter(|_| page.is_end) {
            self.cache.lock().learn_complete(listing.id, mark);
        }
        page
    }

    fn page_cached(&self, listing: &Listing, after: Option<&Name>, limit: usize) -> Option<Page> {
        let mut tables = self.cache.lock();
        if !tables.allows(&listing.caller, listing.id, access::READ) {
            return None;
        }
        // One more tells whether this is the end.
        let mut names = tables.listing(listing.id, after, limit + 1)?;
        let is_end = names.len() <= limit;
        names.truncate(limit);
        let entry = tables.units.belief(listing.id);
        let mut entries = Vec::with_capacity(names.len());
        for (name, id) in names {
            // Kinds are known with the attributes, or with the names' own record.
            let kind = tables.kind(id)?;
            entries.push(Entry { name, id, kind, entry: entry.clone(), known: None, position: 0 });
        }
        Some(Page { entries, is_end })
    }

    pub(crate) async fn page_asked(
        self: &Arc<Self>,
        caller: &Caller,
        message: ReadDirectory,
    ) -> Result<Asked> {
        let id = message.id;
        let told = self.ask(caller, id, message).await?;
        let page = told.reply;
        let mut entries = Vec::with_capacity(page.entries.len());
        let mark = {
            let mut tables = self.cache.lock();
            let reply = tables.admit(told.stamp, &page.lease);
            let is_admitted = tables.units.admits(id, reply.stamp, reply.as_of);
            for DirectoryEntry { name, id: child, kind, attributes, target } in page.entries {
                let entry = tables.learn_name(reply, id, &name, Some(child));
                tables.learn_kind(child, kind);
                if let Some(target) = target {
                    tables.learn_target(child, target);
                }
                let known = attributes.map(|attributes| {
                    tables.learn_attributes(reply, &page.lease, Under::Parent(id), attributes)
                });
                entries.push(Entry { name, id: child, kind, entry, known, position: 0 });
            }
            tables.listing_mark(id).filter(|_| is_admitted)
        };
        self.shrink();
        Ok(Asked { page: Page { entries, is_end: page.is_end }, mark })
    }

    fn listed(&self, directory: FileId, entry: &Entry, is_plus: bool) -> Listed {
        let known = if is_plus { self.listed_known(directory, entry) } else { None };
        let known = known.map(|mut known| {
            self.patch_known(&mut known);
            known
        });
        Listed {
            name: entry.name.clone(),
            id: entry.id,
            kind: entry.kind,
            known,
            entry: entry.entry.clone(),
            next: entry.position,
        }
    }

    /// What was learned since is better than what the page said: of a name that leads elsewhere by
    /// now, or nowhere, nothing is told.
    fn listed_known(&self, directory: FileId, entry: &Entry) -> Option<Known> {
        let mut tables = self.cache.lock();
        let now = tables.name(directory, &entry.name);
        if now.is_some_and(|(id, _)| id != Some(entry.id)) {
            return None;
        }
        tables.attributes(entry.id).or_else(|| entry.known.clone())
    }
}

impl Cursor {
    /// Index of the entry after position `from`, if that one's own is at hand. Positions follow one
    /// another mostly, so the guess is mostly right.
    fn after(&self, from: u64) -> Option<usize> {
        let is_it = |entry: &Entry| entry.position == from;
        let first = self.entries.first()?;
        let guess = from.saturating_sub(first.position) as usize;
        if self.entries.get(guess).is_some_and(is_it) {
            return Some(guess + 1);
        }
        self.entries.iter().position(is_it).map(|index| index + 1)
    }

    /// The name that the next page follows.
    fn last(&self) -> Option<&Name> {
        self.entries.last().map(|entry| &entry.name).or(self.after.as_ref())
    }
}

/// Roots of other MDTs, in a directory of which nothing else is known.
fn page_made_up(names: Vec<(Name, FileId)>, after: Option<&Name>) -> Page {
    let is_wanted = |name: &Name| after.is_none_or(|after| name > after);
    let entry = |(name, id)| {
        let (kind, entry) = (FileKind::Directory, Belief::default());
        Entry { name, id, kind, entry, known: None, position: 0 }
    };
    let entries = names.into_iter().filter(|(name, _)| is_wanted(name)).map(entry).collect();
    Page { entries, is_end: true }
}
