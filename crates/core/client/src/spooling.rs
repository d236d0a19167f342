//! Bytes that programs were answered for and that cannot be stored: they go into a spool.
//!
//! The program around this room plugs a [`Spool`] in, which knows a place on disk; here is known
//! what is lost, of which file, and why. Whatever finds that bytes will not be stored (a chunk that
//! no OST takes, a commit or an operation that is refused, a lock that was lost, a mount that ends)
//! hands them over first, and has the file forget them after.
//!
//! A [`Claim`] says who may be told still. Bytes of a file that whoever wrote them holds open are
//! not answered for: when an fsync or close has told him, they are dropped. Nobody else's being
//! told takes anything out.
//!
//! What nobody can ask for is not kept: bytes of a file that was removed, unless it is not there
//! because its own creation was refused.
//!
//! Invariant: bytes leave the file, and their records go, after the spool has them or has said why
//! not; the log names what it has not.

use crate::Error;
use crate::file::{File, State};
use crate::shared::{Shared, lock};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tieline_owed::spool::{Base, Claim, Lost, Piece, Place, Spool};
use tieline_ranges::overlay::SealId;
use tieline_types::{Caller, Content, ErrorKind, FileId, Name, Shown, Version};
use tieline_wire::Op;
use tieline_wire::meta::{BatchItem, Commit};

/// Creations that were refused, and are remembered: what was written to those files follows soon.
const REFUSED_MAX: usize = 16_384;
/// Files of which copies are handed over at once.
const AT_ONCE: usize = 256;

/// What of this client is in the spool.
#[derive(Default)]
pub(crate) struct Spooled {
    spool: Option<Arc<dyn Spool>>,
    files: Mutex<BTreeMap<FileId, BTreeSet<Claim>>>,
    /// Files whose creation was refused.
    unmade: Mutex<BTreeSet<FileId>>,
}

impl Spooled {
    pub fn new(spool: Option<Arc<dyn Spool>>) -> Self {
        Self { spool, ..Self::default() }
    }

    /// The spool, if it has bytes of a file, of that claim if one is named.
    fn of(&self, file: FileId, claim: Option<Claim>) -> Option<Arc<dyn Spool>> {
        let files = lock(&self.files);
        let claims = files.get(&file)?;
        let is_meant = claim.is_none_or(|claim| claims.contains(&claim));
        self.spool.clone().filter(|_| is_meant)
    }

    fn note(&self, file: FileId, claim: Claim) {
        lock(&self.files).entry(file).or_default().insert(claim);
    }

    fn take(&self, file: FileId, claim: Claim) -> Option<Arc<dyn Spool>> {
        let mut files = lock(&self.files);
        let claims = files.get_mut(&file)?;
        let was_there = claims.remove(&claim);
        if claims.is_empty() {
            files.remove(&file);
        }
        self.spool.clone().filter(|_| was_there)
    }

    /// A file's creation was refused: what was written to it belongs nowhere.
    fn refuse(&self, file: FileId) {
        let mut unmade = lock(&self.unmade);
        unmade.insert(file);
        while unmade.len() > REFUSED_MAX {
            unmade.pop_first();
        }
    }

    /// Can nobody ask for these bytes?
    fn is_nobodys(&self, file: FileId, kind: ErrorKind) -> bool {
        kind == ErrorKind::Stale && !lock(&self.unmade).contains(&file)
    }
}

impl Shared {
    /// Sealed runs of a file will not be stored: what is left of them goes into the spool, and then
    /// out of the file. That says so in the log, and at fsync and close.
    pub(crate) async fn give_up(&self, file: &File, seals: &[SealId], error: &Error) {
        let seals: BTreeSet<SealId> = seals.iter().copied().collect();
        let lost = self.lost_of(file, error, |state| {
            seals.iter().flat_map(|id| state.overlay.pieces_of(*id)).collect()
        });
        let is_kept = self.keep_in_spool(lost).await;
        file.with(|state| seals.iter().for_each(|id| state.lose(file.id, *id, error, is_kept)));
        self.note_loss(file.id, error);
    }

    /// The same of all that was written to a file before a lock on it was lost.
    pub(crate) async fn spool_forfeited(&self, file: &File, error: &Error) -> bool {
        let lost = self.lost_of(file, error, |state| state.overlay.read(0..u64::MAX));
        self.keep_in_spool(lost).await
    }

    /// What a file holds of these bytes, with all that is known of it.
    fn lost_of(
        &self,
        file: &File,
        error: &Error,
        bytes: impl FnOnce(&State) -> Vec<(u64, Bytes)>,
    ) -> Option<Lost> {
        let (id, kind) = (file.id, error.kind());
        file.with(|state| {
            let is_orphan = state.is_orphan && state.handles == 0;
            if is_orphan || self.spooled.is_nobodys(id, kind) {
                return None;
            }
            let from = state.appended_from().unwrap_or(u64::MAX);
            let place = |at| if at >= from { Place::Appended } else { Place::At(at) };
            let piece = |(at, bytes)| Piece { place: place(at), bytes };
            let pieces: Vec<Piece> = bytes(state).into_iter().map(piece).collect();
            if pieces.is_empty() {
                return None;
            }
            let claim = if state.is_answered { Claim::Answered } else { Claim::Open };
            let (writer, why) = (state.writer.clone(), error.to_string());
            let mut tables = self.cache.lock();
            let known = tables.attributes(id).map(|known| known.attributes);
            let path = tables.path(id);
            drop(tables);
            let base = known.as_ref().map(base_of).or_else(|| base_in(state));
            Some(Lost { file: id, path, pieces, claim, kind, why, writer, base })
        })
    }

    /// Hands bytes over; says whether they are kept.
    pub(crate) async fn keep_in_spool(&self, lost: Option<Lost>) -> bool {
        let Some(lost) = lost else { return false };
        self.all_keep_in_spool(vec![lost]).await == 1
    }

    /// Says how many files' bytes are kept.
    pub(crate) async fn all_keep_in_spool(&self, lost: Vec<Lost>) -> usize {
        let Some(spool) = self.spooled.spool.as_ref().filter(|_| !lost.is_empty()) else {
            return 0;
        };
        let named: Vec<_> = lost
            .iter()
            .map(|one| (one.file, one.path.clone(), one.length(), one.claim, one.why.clone()))
            .collect();
        let outcomes = spool.keep(lost).await;
        let mut count = 0;
        for ((file, path, length, claim, why), outcome) in named.into_iter().zip(outcomes) {
            let path = Shown(&path);
            match outcome {
                Ok(()) => {
                    count += 1;
                    self.spooled.note(file, claim);
                }
                Err(error) => tracing::error!(
                    %file, %path, length, error, why,
                    "bytes that cannot be stored cannot be spooled either"
                ),
            }
        }
        count
    }

    /// A file's close or fsync told whoever wrote it.
    pub(crate) async fn told_writer(&self, file: FileId) {
        if let Some(spool) = self.spooled.take(file, Claim::Open) {
            spool.forget(file, Claim::Open).await;
        }
    }

    /// Is there something in the spool that whoever holds the file was not told of?
    pub(crate) fn is_untold(&self, file: FileId) -> bool {
        self.spooled.of(file, Some(Claim::Open)).is_some()
    }

    /// Nobody holds a file any more who could be told.
    pub(crate) async fn nobody_to_tell(&self, file: FileId) {
        if let Some(spool) = self.spooled.take(file, Claim::Open) {
            self.spooled.note(file, Claim::Answered);
            spool.answered(file).await;
        }
    }

    /// A file of which something may be in the spool was changed from here, and by nobody else.
    pub(crate) fn spool_changed(&self, file: &File, over: Vec<Range<u64>>) {
        let Some(spool) = self.spooled.of(file.id, None) else { return };
        let known = self.cache.lock().attributes(file.id);
        let base = file.with(|state| {
            let is_known = !std::mem::take(&mut state.is_foreign);
            is_known.then(|| known.map(|known| base_of(&known.attributes)))?.or(base_in(state))
        });
        let (Some(base), id) = (base, file.id) else { return };
        tokio::spawn(async move { spool.changed(id, base, over).await });
    }

    /// Operations were refused: those that hold bytes hand them over.
    pub(crate) async fn spool_refused<'a>(
        &self,
        items: impl Iterator<Item = (&'a BatchItem, ErrorKind, &'a str)>,
    ) {
        let mut lost = Vec::new();
        for (item, kind, why) in items {
            if item.op == Op::Create.number() {
                self.spooled.refuse(item.id);
            }
            if !self.spooled.is_nobodys(item.id, kind) {
                lost.extend(self.lost_in(item, (kind, why), Claim::Answered));
            }
        }
        self.all_keep_in_spool(lost).await;
    }

    /// The bytes that an operation of the journal holds.
    fn lost_in(
        &self,
        item: &BatchItem,
        (kind, why): (ErrorKind, &str),
        claim: Claim,
    ) -> Option<Lost> {
        let commit: Commit = (item.op == Op::Commit.number())
            .then(|| tieline_wire::decode(&item.message).ok())
            .flatten()?;
        let pieces: Vec<Piece> = commit
            .extents
            .into_iter()
            .filter_map(|extent| match extent.content {
                Content::Inline(bytes) => {
                    Some(Piece { place: Place::At(extent.offset), bytes: bytes.into() })
                }
                Content::Chunk(_) | Content::Hole => None,
            })
            .collect();
        if pieces.is_empty() {
            return None;
        }
        let (path, base) = {
            let mut tables = self.cache.lock();
            let known = tables.attributes(item.id).map(|known| known.attributes);
            (tables.path(item.id), known.as_ref().map(base_of))
        };
        let (file, writer, why) = (item.id, item.caller.clone(), why.to_owned());
        // What is known here of the file has these bytes.
        let base = base.map(|base| Base { version: None, ..base });
        Some(Lost { file, path, pieces, claim, kind, why, writer, base })
    }

    /// What an earlier process held and nobody can go on with.
    pub(crate) async fn spool_left(
        &self,
        file: FileId,
        pieces: Vec<Piece>,
        (kind, why): (ErrorKind, String),
        writer: Caller,
    ) -> bool {
        if pieces.is_empty() || self.spooled.is_nobodys(file, kind) {
            return false;
        }
        let (claim, path, base) = (Claim::Answered, self.cache.lock().path(file), None);
        let lost = Lost { file, path, pieces, claim, kind, why, writer, base };
        self.keep_in_spool(Some(lost)).await
    }

    /// Puts down all that no server has. Says of how many files.
    pub(crate) async fn spool_unsent(&self, claim: Claim, why: &BTreeMap<FileId, String>) -> usize {
        if self.spooled.spool.is_none() {
            return 0;
        }
        let kind = ErrorKind::Timeout;
        let usual = "its servers did not take it before the mount ended".to_owned();
        let why_of = |id: FileId| why.get(&id).unwrap_or(&usual).clone();
        let dirty: Vec<Arc<File>> = lock(&self.dirty).values().cloned().collect();
        let mut files = BTreeSet::new();
        for some in dirty.chunks(AT_ONCE) {
            let mut all = Vec::new();
            for file in some {
                let error = Error::local(kind, String::new());
                let lost = self.lost_of(file, &error, |state| state.overlay.read(0..u64::MAX));
                all.extend(lost.map(|lost| Lost { claim, why: why_of(file.id), ..lost }));
            }
            files.extend(all.iter().map(|lost| lost.file));
            self.all_keep_in_spool(all).await;
        }
        for queue in self.journal.all() {
            let (mut text, mut changes) = (Vec::new(), 0);
            for some in queue.unsent().chunks(AT_ONCE) {
                let mut all = Vec::new();
                for (item, names) in some {
                    let lost = self.lost_in(item, (kind, &why_of(item.id)), claim);
                    if lost.is_none() {
                        changes += 1;
                        text.extend(self.line_of(item, names).into_bytes());
                    }
                    all.extend(lost);
                }
                files.extend(all.iter().map(|lost| lost.file));
                self.all_keep_in_spool(all).await;
            }
            if changes > 0 {
                // There are no bytes to be put back, and somebody may want to know.
                let file = FileId::root_of(queue.mdt);
                let why = format!("{changes} changes of names and attributes that no server took");
                let pieces = vec![Piece { place: Place::Record, bytes: text.into() }];
                let (path, base, writer) = (Vec::new(), None, Caller::root());
                let lost = Lost { file, path, pieces, claim, kind, why, writer, base };
                files.insert(file);
                self.keep_in_spool(Some(lost)).await;
            }
        }
        files.len()
    }

    /// An operation, for people.
    fn line_of(&self, item: &BatchItem, names: &[(FileId, Name)]) -> String {
        let tables = self.cache.lock();
        let op = Op::from_number(item.op).map_or_else(String::new, |op| format!("{op:?}"));
        let path =
            |(parent, name): &(FileId, Name)| format!(" /{}/{name}", Shown(&tables.path(*parent)));
        let named: String = match names {
            [] => format!(" /{}", Shown(&tables.path(item.id))),
            names => names.iter().map(path).collect(),
        };
        format!("{op}{named} (file {}, uid {})\n", item.id, item.caller.uid.0)
    }

    /// No copy of what may be stored is needed any more.
    pub(crate) async fn forget_copies(&self) {
        let copied: Vec<FileId> = {
            let files = lock(&self.spooled.files);
            let waiting = files.iter().filter(|(_, claims)| claims.contains(&Claim::Waiting));
            waiting.map(|(id, _)| *id).collect()
        };
        for id in copied {
            if let Some(spool) = self.spooled.take(id, Claim::Waiting) {
                spool.forget(id, Claim::Waiting).await;
            }
        }
    }
}

fn base_of(known: &tieline_types::Attributes) -> Base {
    let version = Some(known.version).filter(|version| !is_unsure(*version));
    Base { version, mtime: Some(known.mtime), size: known.size }
}

fn base_in(state: &State) -> Option<Base> {
    let version = Some(state.version).filter(|version| !is_unsure(*version))?;
    Some(Base { version: Some(version), mtime: None, size: state.size })
}

/// Nobody else knows it by that.
fn is_unsure(version: Version) -> bool {
    version == Version(0) || tieline_believed::tables::is_provisional(version)
}
