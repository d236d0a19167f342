//! What others may see of files that are written here: the MDS knows of each that bytes are
//! gathered of, and asks before another client looks.
//!
//! A file is declared by its open, if that goes to the MDS, or before the first bytes are laid over
//! it ([`Open`]'s `writes`); what may be mapped always by its open, since stores into mapped pages
//! are not seen here. In a directory that is held alone nothing need be, nor of a file that lost
//! its name there. Whoever looks has
//! what was written committed; if he writes, too, each write is committed before it returns from
//! then on. A close says that it is over, and so does the answer of whoever has not written for a
//! while: the next write declares it anew.
//!
//! Invariants: bytes are gathered only of what is declared or held alone, or if no MDS could be
//! told; a question is answered within [`PATIENCE`], whatever waits to be sent.

use crate::Invalidation;
use crate::file::{File, State};
use crate::handles::FileHandle;
use crate::shared::Shared;
use crate::writer::{How, Waiting};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tieline_types::{Attributes, FileId, ServerNumber, Version};
use tieline_wire::NoticeAnswer;
use tieline_wire::meta::Open;
use tieline_wire::notice::Recall;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// How long whoever looks waits for bytes; an OST that is away must not hold him up.
const PATIENCE: Duration = Duration::from_secs(2);
/// Who has not written for so long is asked no more.
const AT_REST: Duration = Duration::from_secs(5);
/// When an MDS could not be told, it is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// An open that declares a file, on its way: who is asked meanwhile still writes it.
pub(crate) struct Declaring(Arc<File>);

impl Declaring {
    pub fn new(file: Arc<File>) -> Self {
        file.with(|state| state.declaring += 1);
        Self(file)
    }

    pub fn done(self, attributes: &Attributes, as_of: Version) {
        self.0.with(|state| {
            (state.is_declared, state.is_closing) = (true, false);
            if attributes.is_written == Some(true) {
                state.shared_since = state.shared_since.max(Some(as_of));
            }
        });
    }
}

impl Drop for Declaring {
    fn drop(&mut self) {
        self.0.with(|state| state.declaring = state.declaring.saturating_sub(1));
    }
}

impl State {
    /// What the answer to a commit says of others who write.
    pub(crate) fn learn_writers(&mut self, as_of: Version, attributes: &Attributes) {
        if attributes.is_written == Some(true) {
            self.shared_since = self.shared_since.max(Some(as_of));
        } else {
            self.shared_since = self.shared_since.filter(|&since| since >= as_of);
        }
    }

    /// Says with a commit that the file is closed, if a program closes it.
    pub(crate) fn closes(&mut self) -> Option<bool> {
        let closes = std::mem::take(&mut self.is_closing) && self.declaring == 0;
        self.is_declared &= !closes;
        closes.then_some(true)
    }
}

impl Shared {
    /// May bytes wait here? Where nobody else can look, or would be told.
    pub(crate) fn may_gather(&self, id: FileId, state: &State) -> bool {
        let is_untold = || state.undeclared_until.is_some_and(|until| Instant::now() < until);
        state.is_declared
            || state.is_hidden
            || is_untold()
            || self.cache.lock().own_file(id).is_some()
    }

    /// Has the MDS know that the file is written. What comes of the bytes is for their commit to
    /// say, also if this does not succeed.
    pub(crate) async fn declare(self: &Arc<Self>, open: &FileHandle) {
        let file = &open.file;
        let _waiting = Waiting::new(file);
        let told = async {
            // After a commit that says that the file is closed.
            let _gate = file.gate.lock().await;
            // It may be one that the MDS does not know yet.
            self.drain_file(file.id).await?;
            // Rights are the handle's.
            let (is_read, is_write, writes) = (false, false, Some(true));
            self.ask_open(&open.caller, Open { id: file.id, is_read, is_write, writes }).await
        };
        let outcome = timeout(PATIENCE, told).await;
        if !matches!(outcome, Ok(Ok(_))) {
            tracing::info!(file = %file.id, "written without others being told");
            file.with(|state| state.undeclared_until = Some(Instant::now() + PAUSE));
        }
    }

    /// An MDS that was started anew has forgotten.
    pub(crate) fn undeclare_all(&self, server: ServerNumber) {
        for (file, _) in self.handles.written_files() {
            let mds = self.servers.mds(file.id.mdt());
            if mds.is_ok_and(|mds| mds.number == server) {
                file.with(|state| state.is_declared = false);
            }
        }
    }

    /// Commits what was written to files that another client looks at; says which are still
    /// written.
    pub(crate) async fn looked_at(self: &Arc<Self>, recall: &Recall) -> NoticeAnswer {
        let mut held: BTreeMap<FileId, bool> = BTreeMap::new();
        for (file, access) in self.handles.written_files() {
            *held.entry(file.id).or_default() |= access.may_map();
        }
        let may_map = |id: &FileId| held.get(id).is_some_and(|&may_map| may_map);
        let mut tasks = JoinSet::new();
        let mut at_work = BTreeSet::new();
        for file in recall.files.iter().filter_map(|&id| self.file_known(id)) {
            let (written, was_shared) = file.with(|state| {
                let was_shared = state.shared_since.is_some();
                if recall.writes == Some(true) {
                    state.shared_since = state.shared_since.max(Some(recall.at));
                }
                (state.last_written.or(state.last_committed), was_shared)
            });
            if may_map(&file.id) || written.is_some_and(|at| at.elapsed() < AT_REST) {
                at_work.insert(file.id);
            }
            // Where several write, a read of ours may have its pages locked and wait for whoever
            // asks: what they store into mapped pages is seen after msync.
            let (shared, is_mapped) = (self.clone(), may_map(&file.id) && !was_shared);
            tasks.spawn(async move { shared.launder_looked_at(&file, is_mapped).await });
        }
        let laundered = async { while tasks.join_next().await.is_some() {} };
        if timeout(PATIENCE, laundered).await.is_err() {
            tracing::info!(unit = %recall.unit, "written bytes are not sent yet: another looks");
            // They go on by themselves.
            tasks.detach_all();
        }
        let is_written = |&id: &FileId| {
            let Some(file) = self.file_known(id) else { return false };
            let is_at_work = held.contains_key(&id) && at_work.contains(&id);
            file.with(|state| {
                let is_declared = state.is_declared && (state.is_dirty() || is_at_work);
                state.is_declared = is_declared;
                is_declared || state.declaring > 0
            })
        };
        let open = recall.files.iter().copied().filter(is_written).collect();
        NoticeAnswer { open, ..NoticeAnswer::default() }
    }

    /// Which of these do programs hold open to be written here, or do bytes of them wait?
    pub(crate) fn open_to_write(&self, files: &[FileId]) -> Vec<FileId> {
        let is_dirty = |id| self.file_known(id).is_some_and(|file| file.is_dirty());
        let may = |id: &FileId| self.handles.may_be_written(*id) || is_dirty(*id);
        files.iter().copied().filter(may).collect()
    }

    async fn launder_looked_at(self: &Arc<Self>, file: &Arc<File>, is_mapped: bool) {
        if is_mapped && !self.is_writing(file.id) {
            self.take_stored(file.id).await;
        }
        if !file.is_dirty() {
            return;
        }
        if let Err(error) = self.launder(file, How::Flush).await {
            tracing::info!(file = %file.id, %error, "written bytes are not sent yet");
        }
    }

    /// The door hands over what was stored in mapped pages, and forgets them.
    async fn take_stored(&self, id: FileId) {
        let what = Invalidation { data: vec![id], ..Invalidation::default() };
        if let Some(forgotten) = self.tell(what) {
            // An end without a word is an end.
            let _ = forgotten.await;
        }
    }

    /// A time is set: what was stored in mapped pages before comes before it. Pages may be waited
    /// for that a read of a far server has locked; then the time is set all the same.
    pub(crate) async fn settle_stored(&self, id: FileId) {
        if self.file_known(id).is_some()
            && self.handles.may_map(id)
            && timeout(PATIENCE, self.take_stored(id)).await.is_err()
        {
            tracing::debug!(file = %id, "stores into a mapping may move the time that is set");
        }
    }

    /// Files that are open to be written in directories that are held alone no more: the MDS hears
    /// of them by this answer. Of an MDT if its serial is 0.
    pub(crate) fn declare_under(&self, units: &BTreeSet<FileId>) -> Vec<FileId> {
        let written = self.handles.written_files().into_iter().filter(|(file, _)| {
            let unit = self.cache.lock().unit_of(file.id);
            units.contains(&FileId::new(file.id.mdt(), 0))
                || unit.is_some_and(|unit| units.contains(&unit))
        });
        let files: BTreeMap<FileId, Arc<File>> = written.map(|(file, _)| (file.id, file)).collect();
        files.values().for_each(|file| file.with(|state| state.is_declared = true));
        files.into_keys().collect()
    }
}
