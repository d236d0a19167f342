//! Directories as they are listed: a snapshot per handle, fetched page by page, or taken whole from
//! the cache.
//!
//! Positions are counted from 1 by entry: reading from position 0 lists anew. When every page came
//! under one lease, the cache learns that it knows all names.
//!
//! Invariant: an entry's position never changes while the handle is open and not begun anew.

use crate::cache::Under;
use crate::volume::Shared;
use crate::{Belief, Error, HandleId, Known, Listed, Result, access};
use std::sync::Arc;
use tieline_types::{Caller, ErrorKind, FileId, FileKind, Name};
use tieline_wire::meta::{DirectoryEntry, ReadDirectory};

/// Entries that one page is asked for.
const PAGE: u32 = 1000;

/// An open directory.
pub(crate) struct Listing {
    id: FileId,
    caller: Caller,
    snapshot: tokio::sync::Mutex<Snapshot>,
}

#[derive(Default)]
struct Snapshot {
    entries: Vec<Entry>,
    is_end: bool,
    is_plus: bool,
    /// Generation of the lease that all pages so far came under; `None`: there was no such lease.
    generation: Option<u64>,
}

#[derive(Clone)]
struct Entry {
    name: Name,
    id: FileId,
    kind: FileKind,
    entry: Belief,
    known: Option<Known>,
}

impl Shared {
    pub(crate) async fn open_directory(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
    ) -> Result<HandleId> {
        let known = self.attributes(caller, id).await?;
        if !known.attributes.is_directory() {
            return Err(Error::local(ErrorKind::NotDirectory, format!("file {id}")));
        }
        let listing = Listing { id, caller: caller.clone(), snapshot: Default::default() };
        if !self.cache.lock().allows(caller, id, access::READ) {
            // The MDS decides, and its answer is the first page.
            let mut snapshot = listing.snapshot.lock().await;
            self.page(&listing, &mut snapshot, false).await?;
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
        let mut snapshot = listing.snapshot.lock().await;
        let is_first_look = snapshot.entries.is_empty() && !snapshot.is_end;
        if from == 0 && (is_first_look || self.is_overtaken(&listing, &snapshot, is_plus)) {
            *snapshot = Snapshot::default();
            self.take_cached(&listing, &mut snapshot, is_plus);
        }
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        while snapshot.entries.len() < from.saturating_add(limit) && !snapshot.is_end {
            self.page(&listing, &mut snapshot, is_plus).await?;
        }
        let shown = snapshot.entries.iter().enumerate().skip(from).take(limit);
        Ok(shown.map(|(index, entry)| self.listed(entry, index as u64 + 1, is_plus)).collect())
    }

    /// Reading from 0 lists anew, except right after the open, which may have fetched the first
    /// page.
    fn is_overtaken(&self, listing: &Listing, snapshot: &Snapshot, is_plus: bool) -> bool {
        let generation = self.cache.lock().units.generation(listing.id);
        let is_good = snapshot.generation.is_some() && snapshot.generation == generation;
        !is_good || snapshot.is_plus != is_plus || snapshot.is_end
    }

    /// Takes the listing from the cache if all of it is there.
    fn take_cached(&self, listing: &Listing, snapshot: &mut Snapshot, is_plus: bool) {
        let mut tables = self.cache.lock();
        if !tables.allows(&listing.caller, listing.id, access::READ) {
            return;
        }
        let Some(names) = tables.listing(listing.id) else { return };
        let entry = tables.units.belief(listing.id);
        let mut entries = Vec::with_capacity(names.len());
        for (name, id) in names {
            // Kinds are known with the attributes, or with the names' own record.
            let Some(kind) = tables.kind(id) else { return };
            entries.push(Entry { name, id, kind, entry: entry.clone(), known: None });
        }
        *snapshot = Snapshot { entries, is_end: true, is_plus, generation: None };
    }

    /// Fetches the next page.
    async fn page(
        self: &Arc<Self>,
        listing: &Listing,
        snapshot: &mut Snapshot,
        is_plus: bool,
    ) -> Result<()> {
        let id = listing.id;
        let after = snapshot.entries.last().map(|entry| entry.name.clone());
        let is_first = after.is_none();
        let message = ReadDirectory { id, after, limit: PAGE, is_plus };
        let told = self.servers.ask(&listing.caller, id, message).await?;
        let page = told.reply;
        {
            let mut tables = self.cache.lock();
            let reply = tables.admit(told.stamp, &page.lease);
            let generation = tables.units.generation(id);
            let is_admitted = tables.units.admits(id, reply.stamp, reply.as_of);
            let generation = generation.filter(|_| is_admitted);
            if is_first {
                snapshot.generation = generation;
                snapshot.is_plus = is_plus;
            } else if snapshot.generation != generation {
                snapshot.generation = None;
            }
            for DirectoryEntry { name, id: child, kind, attributes, target } in page.entries {
                let entry = tables.learn_name(reply, id, &name, Some(child));
                tables.learn_kind(child, kind);
                if let Some(target) = target {
                    tables.learn_target(child, target);
                }
                let known = attributes.map(|attributes| {
                    tables.learn_attributes(reply, &page.lease, Under::Parent(id), attributes)
                });
                snapshot.entries.push(Entry { name, id: child, kind, entry, known });
            }
            snapshot.is_end = page.is_end;
            if let Some(generation) = snapshot.generation.filter(|_| page.is_end) {
                tables.learn_complete(id, generation);
            }
        }
        self.shrink();
        Ok(())
    }

    fn listed(&self, entry: &Entry, next: u64, is_plus: bool) -> Listed {
        let known = if is_plus {
            // What was learned since is better than what the page said.
            let learned = self.cache.lock().attributes(entry.id);
            learned.or_else(|| entry.known.clone())
        } else {
            None
        };
        let known = known.map(|mut known| {
            self.patch(&mut known.attributes);
            known
        });
        Listed {
            name: entry.name.clone(),
            id: entry.id,
            kind: entry.kind,
            known,
            entry: entry.entry.clone(),
            next,
        }
    }
}
