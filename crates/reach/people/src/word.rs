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

use crate::judges::Judges;
use crate::{Unknown, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tieline_auth::MapCell;
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
    judges: Arc<dyn Judges>,
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
    pub fn new(judges: Arc<dyn Judges>, map: MapCell) -> Arc<Self> {
        Arc::new(Self { judges, map, state: Mutex::default() })
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
        if self.judges.is_away() && last.version == version {
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
        let told = self.judges.taken(&caller).await.inspect_err(|unknown| {
            let error = &unknown.why;
            tracing::info!(uid = uid.0, %error, "whom servers take a user for is not known");
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
        lock(&self.state)
    }
}

/// Others say that nobody answered.
fn is_answer(told: &Told) -> bool {
    told.as_ref().map_or_else(|unknown| unknown.kind == ErrorKind::PermissionDenied, |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, map, said, taken};

    const GOOD_FOR: Duration = Duration::from_secs(5);
    const OLD: Duration = Duration::from_secs(6);

    fn of(fake: &Arc<Fake>) -> (Arc<Word>, MapCell) {
        let cell = fake.cell();
        (Word::new(fake.clone(), cell.clone()), cell)
    }

    async fn uid(word: &Arc<Word>) -> Result<u32, ErrorKind> {
        let told = word.told(&said(1501), GOOD_FOR).await;
        told.map(|told| told.caller.uid.0).map_err(|unknown| unknown.kind)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_until_it_is_old_or_the_map_another() {
        let fake = Fake::new();
        fake.take(1501, taken(65534));
        let (word, cell) = of(&fake);
        assert_eq!((uid(&word).await, uid(&word).await), (Ok(65534), Ok(65534)));
        assert_eq!(fake.asked(), 1);
        fake.take(1501, taken(7));
        assert_eq!(uid(&word).await, Ok(65534));
        tokio::time::advance(OLD).await;
        assert_eq!((uid(&word).await, fake.asked()), (Ok(7), 2));
        fake.take(1501, taken(8));
        assert!(cell.offer(fake.sign(&map(2))).unwrap());
        assert_eq!((uid(&word).await, fake.asked()), (Ok(8), 3));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_hears_of_a_silence_who_was_answered_before() {
        let fake = Fake::new();
        let silent = || Unknown { kind: ErrorKind::Unreachable, why: "all MDSs".to_owned() };
        fake.take(1501, Err(silent()));
        let (word, _) = of(&fake);
        assert_eq!(uid(&word).await, Err(ErrorKind::Unreachable));
        fake.take(1501, taken(65534));
        assert_eq!(uid(&word).await, Ok(65534), "a silence is no answer to be kept");
        tokio::time::advance(OLD).await;
        fake.take(1501, Err(silent()));
        assert_eq!(uid(&word).await, Ok(65534));
        // A refusal is an answer.
        let denied = Unknown { kind: ErrorKind::PermissionDenied, why: "a stranger".to_owned() };
        fake.take(1501, Err(denied));
        assert_eq!(uid(&word).await, Err(ErrorKind::PermissionDenied));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_away_or_slow_is_asked_beside_the_last_answer() {
        let fake = Fake::new();
        fake.take(1501, taken(65534));
        let (word, _) = of(&fake);
        assert_eq!(uid(&word).await, Ok(65534));
        tokio::time::advance(OLD).await;
        fake.take(1501, taken(7));
        fake.set_slow(Duration::from_secs(60));
        let begun = Instant::now();
        assert_eq!(uid(&word).await, Ok(65534));
        assert_eq!(begun.elapsed(), PATIENCE);
        assert_eq!((uid(&word).await, fake.asked()), (Ok(65534), 2), "it is under way");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(uid(&word).await, Ok(7));
        tokio::time::advance(OLD).await;
        fake.set_away();
        let begun = Instant::now();
        assert_eq!(uid(&word).await, Ok(7));
        assert!(begun.elapsed().is_zero(), "of whom it is known that he is away");
    }
}
