//! The door forgets older bytes of a file before it is told of newer ones. [`Door`] says what it
//! has and was told.
//!
//! Bytes for which no lease has us told of changes are good once: the door forgets them right after
//! it got them.
//!
//! Invariant: a door that does not forget within [`LISTENER_PATIENCE`] is answered all the same.
//!
//! [`Door`]: tieline_believed::door::Door

use crate::asking::Asking;
use crate::file::{File, State};
use crate::shared::{Shared, lock};
use crate::{Invalidation, Known};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tieline_believed::door::{Edition, Give, ReadNumber};
use tieline_types::{Attributes, Extent, FileKind};
use tokio::time::{Instant, timeout};

/// How long the answer to a recall waits for the door: shorter than an MDS waits for the answer.
pub(crate) const LISTENER_PATIENCE: Duration = Duration::from_secs(3);

/// How long the door may take to forget what lies around the reads under way, before those that
/// began since are left out, too.
const LOCKED: Duration = Duration::from_millis(20);

/// A read of the door, until its bytes are given or it comes to nothing.
pub(crate) struct Giving<'a> {
    file: &'a File,
    pub range: Range<u64>,
    number: ReadNumber,
}

impl<'a> Giving<'a> {
    pub fn new(file: &'a File, range: Range<u64>) -> Self {
        let number = file.with(|state| state.door.begin_read(range.clone()));
        Self { file, range, number }
    }
}

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        self.file.with(|state| state.door.end_read(self.number));
    }
}

impl Shared {
    pub(crate) fn has_door(&self) -> bool {
        lock(&self.listener).is_some()
    }

    /// The door is about to be told a file's attributes, or that it is open, or locked: it forgets
    /// older bytes first.
    pub(crate) async fn about_to_tell(&self, attributes: &Attributes) {
        if attributes.kind != FileKind::Regular || !self.has_door() {
            return;
        }
        let Some(file) = self.file_known(attributes.id) else { return };
        let edition = file.with(|state| {
            state.door.follow(state.version);
            let edition = state.door.tell(attributes.version);
            edition.filter(|_| state.handles > 0)
        });
        if let Some(edition) = edition {
            self.clean(&file, edition).await;
        }
    }

    pub(crate) async fn told(&self, known: Known) -> Known {
        self.about_to_tell(&known.attributes).await;
        known
    }

    /// Bytes of an edition are ready for a read of the door: may they go there? They must not if it
    /// has been told of newer ones meanwhile.
    pub(crate) async fn give(
        &self,
        giving: &Giving<'_>,
        (edition, is_sure): (Edition, bool),
        is_last_try: bool,
    ) -> bool {
        if !self.has_door() {
            return true;
        }
        let file = giving.file;
        loop {
            match file.with(|state| state.door.give(giving.number, edition, is_last_try)) {
                Give::Given => break,
                Give::Old => return false,
                Give::Unclean => {
                    // A recall does not wait for these pages.
                    let _asking = Asking::new(file, giving.range.clone());
                    self.clean(file, edition).await;
                }
            }
        }
        if !is_sure {
            self.forget_once(file, giving.range.clone());
        }
        true
    }

    /// The door forgets what it is about to get: nobody would tell us if that changed.
    pub(crate) fn forget_once(&self, file: &File, range: Range<u64>) {
        let parts = vec![(file.id, range)];
        self.tell(Invalidation { parts, ..Invalidation::default() });
    }

    /// Has the door forget what is older than an edition that it is about to be told of.
    pub(crate) async fn clean(&self, file: &File, edition: Edition) {
        let until = Instant::now() + LISTENER_PATIENCE;
        let mut patience = LOCKED;
        while !file.with(|state| state.door.is_clean(edition)) {
            let parts = file.with(|state| state.door.around_reads());
            let all = 0..Extent::FILE_SIZE_MAX;
            let is_whole = matches!(&parts[..], [one] if *one == all);
            let mut what = Invalidation::default();
            if is_whole {
                what.data = vec![file.id];
            } else {
                what.parts = parts.into_iter().map(|part| (file.id, part)).collect();
            }
            let is_done = match self.tell(what) {
                Some(forgotten) => timeout(patience, forgotten).await.is_ok(),
                None => true,
            };
            if !is_done && Instant::now() < until {
                patience *= 2;
                continue;
            }
            if !is_done {
                tracing::warn!(file = %file.id, "door is slow to forget bytes that others changed");
            }
            file.with(|state| state.door.cleaned(edition));
            return;
        }
    }

    /// Looks whether what the door has of an open file is still right, until that is sure.
    pub(crate) fn look_at_door(self: &Arc<Self>, caller: &tieline_types::Caller, file: &Arc<File>) {
        let begins = file.with(|state| state.handles > 0 && state.door.begin_look());
        if begins {
            let (shared, caller, file) = (Arc::downgrade(self), caller.clone(), file.clone());
            tokio::spawn(async move { crate::recall::look(shared, caller, file).await });
        }
    }
}

impl State {
    /// Somebody has looked. What is to be clean now?
    pub(crate) fn was_looked_at(&mut self) -> Option<Edition> {
        self.door.end_look();
        self.door.tell(self.version)
    }
}
