//! Coherence with a door that caches, too: the kernel's cache behind a mount.

use crate::{Belief, Files, Invalidation};
use std::sync::Arc;
use std::time::Duration;
use tieline_types::{Caller, FileId, HandleId};

/// Files for a door that remembers what it was told.
pub trait CoherentCache: Files {
    /// Tells the door what to forget from now on.
    fn listen(&self, listener: Arc<dyn CacheListener>);
    /// Calls `write` with how long the belief may be cached now (zero if it was overtaken), while
    /// no recall can pass: what `write` sends is ordered with what the listener is told.
    fn settle(&self, belief: &Belief, write: &mut dyn FnMut(Duration));
    /// That anybody may look names up in a directory, whoever it is, as far as is known here and
    /// now; resting on nothing if that is not so.
    fn searched_by_all(&self, directory: FileId) -> Belief;
    /// Who opened a file, by each of its handles or by this one. Rights belong to handles.
    fn openers(&self, id: FileId, handle: Option<HandleId>) -> Vec<Caller>;
}

/// A door's own cache: the kernel's, for the mount.
pub trait CacheListener: Send + Sync {
    /// Forget; call `done` when it is forgotten. Returns at once: the work is done by threads of
    /// the listener's own.
    fn invalidate(&self, what: Invalidation, done: Box<dyn FnOnce() + Send>);
}
