//! Random transactions, interleaved, against a model that keeps every version of everything.
//!
//! The model is a list of whole states, one per version. What a transaction reads must be its
//! snapshot's state under its own writes; when a transaction that wrote commits, all it read must
//! be the same in the state just before its version, so that one after the other gives the same. A
//! conflict must have a reason.

use crate::{Durable, Error, Key, Range, Store, Transaction, Value};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tieline_types::Version;

/// Transactions that are open at once.
const SLOTS: usize = 4;

/// One thing that happens, to the transaction in a slot.
#[derive(Clone, Debug)]
pub enum Step {
    Read(usize, Vec<Key>),
    Scan(usize, Range, usize),
    Put(usize, Key, Value),
    Delete(usize, Key),
    Commit(usize),
    Drop(usize),
    /// What is pending becomes durable, where the test decides that.
    Flush,
}

/// Up to `count` steps over few keys, so that transactions meet.
pub fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    // Keys that are prefixes of each other, and the extreme bytes.
    let key = || vec(prop::sample::select(vec![0u8, b'a', b'b', 0xff]), 0..3);
    let value = vec(any::<u8>(), 0..3);
    let slot = || 0..SLOTS;
    let range = (key(), key(), any::<bool>());
    let range = range.prop_map(|(start, end, is_reverse)| Range { start, end, is_reverse });
    let step = prop_oneof![
        3 => (slot(), vec(key(), 1..4)).prop_map(|(slot, keys)| Step::Read(slot, keys)),
        3 => (slot(), range, 0..6usize).prop_map(|(slot, range, n)| Step::Scan(slot, range, n)),
        5 => (slot(), key(), value).prop_map(|(slot, key, value)| Step::Put(slot, key, value)),
        2 => (slot(), key()).prop_map(|(slot, key)| Step::Delete(slot, key)),
        4 => slot().prop_map(Step::Commit),
        1 => slot().prop_map(Step::Drop),
        2 => Just(Step::Flush),
    ];
    vec(step, 1..count)
}

type State = BTreeMap<Key, Value>;

/// A read and what it answered.
#[derive(Clone)]
enum Seen {
    Keys(Vec<Key>, Vec<Option<Value>>),
    Scan(Range, usize, Vec<(Key, Value)>),
}

/// A transaction and all it did.
struct Open {
    transaction: Box<dyn Transaction>,
    /// In order; a write is a pair.
    done: Vec<Done>,
}

#[derive(Clone)]
enum Done {
    Saw(Seen),
    Wrote(Key, Option<Value>),
}

struct Model<'s> {
    store: &'s dyn Store,
    first: Version,
    /// The state after each version from `first`, and what that commit wrote.
    history: Vec<(State, Vec<Key>)>,
    slots: [Option<Open>; SLOTS],
    durable: Vec<Durable>,
}

/// Runs the steps, then compares the whole store.
pub async fn run(store: &dyn Store, steps: &[Step], flush: impl Fn()) {
    let first = store.begin().await.unwrap().version();
    let history = vec![(State::new(), Vec::new())];
    let mut model =
        Model { store, first, history, slots: [const { None }; SLOTS], durable: Vec::new() };
    for step in steps {
        match step.clone() {
            Step::Read(slot, keys) => model.read(slot, keys).await,
            Step::Scan(slot, range, limit) => model.scan(slot, range, limit).await,
            Step::Put(slot, key, value) => model.write(slot, key, Some(value)).await,
            Step::Delete(slot, key) => model.write(slot, key, None).await,
            Step::Commit(slot) => model.commit(slot).await,
            Step::Drop(slot) => model.slots[slot] = None,
            Step::Flush => flush(),
        }
    }
    flush();
    for durable in model.durable.drain(..) {
        durable.await.unwrap();
    }
    let mut reader = store.begin().await.unwrap();
    let everything = Range::new(Vec::new(), vec![0xff; 9]);
    let found = reader.scan(everything, usize::MAX).await.unwrap();
    assert_eq!(found.into_iter().collect::<State>(), model.history.last().unwrap().0);
}

impl Model<'_> {
    /// The transaction of a slot, begun if there is none.
    async fn open(&mut self, slot: usize) -> Open {
        match self.slots[slot].take() {
            Some(open) => open,
            None => Open { transaction: self.store.begin().await.unwrap(), done: Vec::new() },
        }
    }

    async fn read(&mut self, slot: usize, keys: Vec<Key>) {
        let mut open = self.open(slot).await;
        match open.transaction.read(&keys).await {
            Ok(values) => self.saw(slot, open, Seen::Keys(keys, values)),
            Err(Error::Conflict) => {
                let is_read = |key: &Key| keys.contains(key);
                assert!(self.is_changed_since(open.transaction.version(), is_read));
            }
            Err(error) => panic!("read: {error}"),
        }
    }

    async fn scan(&mut self, slot: usize, range: Range, limit: usize) {
        let mut open = self.open(slot).await;
        match open.transaction.scan(range.clone(), limit).await {
            Ok(pairs) => self.saw(slot, open, Seen::Scan(range, limit, pairs)),
            Err(Error::Conflict) => {
                let is_read = |key: &Key| (&range.start..&range.end).contains(&key);
                assert!(self.is_changed_since(open.transaction.version(), is_read));
            }
            Err(error) => panic!("scan: {error}"),
        }
    }

    async fn write(&mut self, slot: usize, key: Key, value: Option<Value>) {
        let mut open = self.open(slot).await;
        match value.clone() {
            Some(value) => open.transaction.put(key.clone(), value),
            None => open.transaction.delete(key.clone()),
        }
        open.done.push(Done::Wrote(key, value));
        self.slots[slot] = Some(open);
    }

    async fn commit(&mut self, slot: usize) {
        let Some(open) = self.slots[slot].take() else { return };
        let snapshot = open.transaction.version();
        match open.transaction.commit().await {
            Ok(committed) => {
                self.durable.push(committed.durable);
                let wrote = open.done.iter().any(|done| matches!(done, Done::Wrote(..)));
                if !wrote {
                    assert_eq!(committed.version, snapshot);
                    return;
                }
                let next = Version(self.first.0 + self.history.len() as u64);
                assert_eq!(committed.version, next, "versions have no gaps while running");
                let before = self.history.last().unwrap().0.clone();
                let (after, keys) = replay(before, &open.done);
                self.history.push((after, keys));
            }
            Err(Error::Conflict) => {
                let is_read = |key: &Key| {
                    open.done.iter().any(|done| match done {
                        Done::Saw(Seen::Keys(keys, _)) => keys.contains(key),
                        Done::Saw(Seen::Scan(range, ..)) => {
                            (&range.start..&range.end).contains(&key)
                        }
                        Done::Wrote(..) => false,
                    })
                };
                assert!(self.is_changed_since(snapshot, is_read));
            }
            Err(error) => panic!("commit: {error}"),
        }
    }

    /// A read must be right at once, in the transaction's own state.
    fn saw(&mut self, slot: usize, mut open: Open, seen: Seen) {
        open.done.push(Done::Saw(seen));
        let index = (open.transaction.version().0 - self.first.0) as usize;
        replay(self.history[index].0.clone(), &open.done);
        self.slots[slot] = Some(open);
    }

    fn is_changed_since(&self, snapshot: Version, is_read: impl Fn(&Key) -> bool) -> bool {
        let index = (snapshot.0 - self.first.0) as usize;
        self.history[index + 1..].iter().any(|(_, keys)| keys.iter().any(&is_read))
    }
}

/// Does it all again on `state`, alone: every read must answer the same.
fn replay(mut state: State, done: &[Done]) -> (State, Vec<Key>) {
    let mut written = Vec::new();
    for done in done {
        match done.clone() {
            Done::Saw(Seen::Keys(keys, values)) => {
                let again: Vec<_> = keys.iter().map(|key| state.get(key).cloned()).collect();
                assert_eq!(again, values);
            }
            Done::Saw(Seen::Scan(range, limit, pairs)) => {
                assert_eq!(scan(&state, &range, limit), pairs);
            }
            Done::Wrote(key, value) => {
                written.push(key.clone());
                match value {
                    Some(value) => state.insert(key, value),
                    None => state.remove(&key),
                };
            }
        }
    }
    (state, written)
}

fn scan(state: &State, range: &Range, limit: usize) -> Vec<(Key, Value)> {
    let mut pairs: Vec<_> = state
        .iter()
        .filter(|(key, _)| (&range.start..&range.end).contains(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if range.is_reverse {
        pairs.reverse();
    }
    pairs.truncate(limit);
    pairs
}
