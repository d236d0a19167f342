//! What servers make of this machine's word: whether its users are who it says, and whom they take
//! somebody for who shows nothing.
//!
//! An answer is asked for again when it is old, and when the federation map changed. The first that
//! finds it old waits a moment for the new one; else, and while no server answers, the last one
//! counts. With it only what is known here is told: all else goes to a server, which judges anew.
//! The question stays under way meanwhile, so that the first contact brings its answer.
//!
//! Invariants: one question about one caller is under way, but for the first; at most
//! [`KNOWN_MAX`] answers are remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_client::{FileSystem, Volume};
use tieline_fuse::Unknown;
use tieline_types::{Caller, ErrorKind, Gid, Uid, Version};
use tieline_wire::identity::ProveReply;
use tokio::time::{Instant, timeout};

const KNOWN_MAX: usize = 4096;
/// How long a new answer is waited for where there is an old one.
const PATIENCE: Duration = Duration::from_millis(500);

/// An answer: whom servers take somebody for, or that they refuse him.
pub type Told = Result<ProveReply, Unknown>;

/// What somebody says who shows nothing.
type Stated = (Uid, Gid, Vec<Gid>, Option<u64>);

fn said_by(caller: &Caller) -> Stated {
    (caller.uid, caller.gid, caller.groups.clone(), caller.proof)
}

/// See the module.
pub struct Word {
    volume: Arc<Volume>,
    map: MapCell,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    answers: BTreeMap<Stated, Answer>,
    asking: BTreeSet<Stated>,
}

#[derive(Clone)]
struct Answer {
    told: Told,
    at: Instant,
    /// Of the map that was known then.
    version: Version,
}

impl Word {
    pub fn new(volume: Arc<Volume>, map: MapCell) -> Arc<Self> {
        Arc::new(Self { volume, map, state: Mutex::default() })
    }

    /// An earlier process heard that this machine is believed. That counts until servers say it
    /// again, or otherwise.
    pub fn was_believed(&self) {
        let root = Caller::root();
        let key = said_by(&root);
        let how = "an earlier process".to_owned();
        let (principal, seconds, is_believed) = (None, None, true);
        let (caller, scope, answer) = (root, None, None);
        let told = ProveReply { caller, principal, how, seconds, is_believed, scope, answer };
        let told = Ok(told);
        let answer = Answer { told, at: Instant::now(), version: Version(0) };
        self.lock().answers.insert(key, answer);
    }

    /// Whom servers take a caller for who shows nothing, as they said at most `good_for` ago if
    /// they can be asked.
    pub async fn told(self: &Arc<Self>, stated: &Caller, good_for: Duration) -> Told {
        let key = said_by(stated);
        let version = self.map.current().map.version;
        let Some(last) = self.lock().answers.get(&key).cloned() else {
            return self.ask(&key).await;
        };
        if last.version == version && last.at.elapsed() < good_for {
            return last.told;
        }
        if !self.lock().asking.insert(key.clone()) {
            return last.told;
        }
        let word = self.clone();
        let asking = tokio::spawn(async move {
            let told = word.ask(&key).await;
            word.lock().asking.remove(&key);
            told
        });
        if self.volume.is_away(self.volume.root().mdt()) && last.version == version {
            return last.told;
        }
        match timeout(PATIENCE, asking).await {
            Ok(Ok(told)) if is_answer(&told) => told,
            _ => last.told,
        }
    }

    async fn ask(&self, stated: &Stated) -> Told {
        let (uid, gid, groups, proof) = stated.clone();
        let version = self.map.current().map.version;
        let caller = Caller { uid, gid, groups, proof };
        let told = self.volume.taken_anywhere(self.volume.root().mdt(), &caller).await;
        let told = told.map_err(|error| {
            tracing::info!(uid = uid.0, %error, "whom servers take a user for is not known");
            Unknown::from(error)
        });
        if is_answer(&told) {
            let mut state = self.lock();
            if state.answers.len() >= KNOWN_MAX {
                state.answers.clear();
            }
            let answer = Answer { told: told.clone(), at: Instant::now(), version };
            state.answers.insert(stated.clone(), answer);
        }
        told
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Others say that nobody answered.
fn is_answer(told: &Told) -> bool {
    told.as_ref().map_or_else(|unknown| unknown.kind == ErrorKind::PermissionDenied, |_| true)
}
