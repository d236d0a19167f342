//! As whom sessions ask: what a session says of itself is judged by what these may.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::{Caller, SessionId};

/// Of a machine with more users those who asked last are known.
const CALLERS_MAX: usize = 64;

#[derive(Default)]
pub struct CallerTable {
    /// Those who asked last come first.
    callers: Mutex<BTreeMap<SessionId, VecDeque<Caller>>>,
}

impl CallerTable {
    pub fn asks(&self, session: SessionId, caller: &Caller) {
        let mut callers = self.lock();
        let callers = callers.entry(session).or_default();
        let at = callers.iter().position(|other| is_same(other, caller));
        if at == Some(0) {
            return;
        }
        match at.and_then(|at| callers.remove(at)) {
            Some(known) => callers.push_front(known),
            None => callers.push_front(Caller { proof: None, ..caller.clone() }),
        }
        callers.truncate(CALLERS_MAX);
    }

    pub fn of(&self, session: SessionId) -> Vec<Caller> {
        self.lock().get(&session).into_iter().flatten().cloned().collect()
    }

    pub fn end(&self, session: SessionId) {
        self.lock().remove(&session);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, VecDeque<Caller>>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whatever proves it.
fn is_same(one: &Caller, other: &Caller) -> bool {
    (one.uid, one.gid, &one.groups) == (other.uid, other.gid, &other.groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Gid, Uid};

    #[test]
    fn those_who_asked_last_are_known() {
        let table = CallerTable::default();
        let caller = |uid| Caller { uid: Uid(uid), gid: Gid(1), groups: vec![], proof: None };
        let uids = |session| -> Vec<u32> {
            table.of(SessionId(session)).iter().map(|caller| caller.uid.0).collect()
        };
        for uid in [1, 2, 1, 1, 3] {
            table.asks(SessionId(7), &Caller { proof: Some(u64::from(uid)), ..caller(uid) });
        }
        assert_eq!(uids(7), [3, 1, 2]);
        (10..10 + CALLERS_MAX as u32).for_each(|uid| table.asks(SessionId(7), &caller(uid)));
        assert!(uids(7).len() == CALLERS_MAX && !uids(7).contains(&3));
        assert_eq!(uids(8), []);
        table.end(SessionId(7));
        assert_eq!(uids(7), []);
    }
}
