//! What every engine must do, as one suite.
//!
//! An engine's tests call [`run`] with a function that makes an empty store. Each check gets one
//! of its own, states one promise of the seam, and panics where it is broken.

mod concurrent;
mod snapshots;

use crate::{Durable, Error, Key, Range, Store, Transaction, Value};
use std::sync::Arc;
use tieline_types::Version;

/// Runs every check.
pub async fn run<M, F>(make: M)
where
    M: Fn() -> F,
    F: Future<Output = Arc<dyn Store>>,
{
    own_writes_are_seen(&*make().await).await;
    dropped_transactions_do_nothing(&*make().await).await;
    commits_are_seen_at_once_and_in_order(&*make().await).await;
    values_may_be_empty_or_big(&*make().await).await;
    scans_are_ordered_and_bounded(&*make().await).await;
    scans_merge_own_writes(&*make().await).await;
    scans_pass_over_deletions(&*make().await).await;
    empty_ranges_hold_nothing(&*make().await).await;
    changed_keys_conflict(&*make().await).await;
    absent_keys_conflict_when_they_appear(&*make().await).await;
    phantoms_conflict(&*make().await).await;
    what_lies_beyond_a_bounded_scan_does_not_conflict(&*make().await).await;
    blind_writes_do_not_conflict(&*make().await).await;
    write_skew_is_prevented(&*make().await).await;
    readers_see_one_state(&*make().await).await;
    versions_grow(&*make().await).await;
    snapshots::they_stand_still(&*make().await).await;
    snapshots::nobody_conflicts_with_them(&*make().await).await;
    snapshots::versions_can_be_taken_over(&*make().await).await;
    concurrent::no_increment_is_lost(make().await).await;
    concurrent::transfers_keep_the_sum(make().await).await;
}

fn key(text: &str) -> Key {
    text.as_bytes().to_vec()
}

fn range(start: &str, end: &str) -> Range {
    Range::new(key(start), key(end))
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(Key, Value)> {
    expected.iter().map(|(name, value)| (key(name), key(value))).collect()
}

async fn begin(store: &dyn Store) -> Box<dyn Transaction> {
    store.begin().await.expect("begin")
}

async fn get(transaction: &mut dyn Transaction, name: &str) -> Option<Value> {
    transaction.read(&[key(name)]).await.expect("read").remove(0)
}

async fn commit(transaction: Box<dyn Transaction>) -> Version {
    let committed = transaction.commit().await.expect("commit");
    committed.durable.await.expect("durable");
    committed.version
}

/// Puts pairs in one commit, and waits until they are durable.
async fn put(store: &dyn Store, pairs: &[(&str, &str)]) -> Version {
    let mut transaction = begin(store).await;
    for (name, value) in pairs {
        transaction.put(key(name), key(value));
    }
    commit(transaction).await
}

async fn delete(store: &dyn Store, name: &str) {
    let mut transaction = begin(store).await;
    transaction.delete(key(name));
    commit(transaction).await;
}

fn assert_conflict<T>(result: Result<T, Error>, what: &str) {
    match result {
        Err(Error::Conflict) => {}
        Err(other) => panic!("{what}: expected a conflict, got {other}"),
        Ok(_) => panic!("{what}: expected a conflict, got none"),
    }
}

async fn own_writes_are_seen(store: &dyn Store) {
    put(store, &[("a", "1"), ("b", "1")]).await;
    let mut transaction = begin(store).await;
    transaction.put(key("a"), key("2"));
    transaction.delete(key("b"));
    transaction.put(key("c"), key("2"));
    let keys = [key("a"), key("b"), key("c"), key("d"), key("a")];
    let values = transaction.read(&keys).await.expect("read");
    let expected = [Some(key("2")), None, Some(key("2")), None, Some(key("2"))];
    assert_eq!(values, expected, "own writes, in the order of the keys");
    transaction.delete(key("a"));
    assert_eq!(get(&mut *transaction, "a").await, None, "the last write counts");
    commit(transaction).await;
    let mut after = begin(store).await;
    let found = after.scan(range("a", "z"), 10).await.expect("scan");
    assert_eq!(found, pairs(&[("c", "2")]));
}

async fn dropped_transactions_do_nothing(store: &dyn Store) {
    let mut transaction = begin(store).await;
    transaction.put(key("a"), key("1"));
    drop(transaction);
    assert_eq!(get(&mut *begin(store).await, "a").await, None);
}

async fn commits_are_seen_at_once_and_in_order(store: &dyn Store) {
    let mut waiting: Vec<Durable> = Vec::new();
    for round in 0..50 {
        let mut transaction = begin(store).await;
        let before = get(&mut *transaction, "a").await;
        let expected = (round > 0).then(|| (round - 1).to_string().into_bytes());
        assert_eq!(before, expected, "the commit before is seen, durable or not");
        transaction.put(key("a"), round.to_string().into_bytes());
        waiting.push(transaction.commit().await.expect("commit").durable);
    }
    let reader = begin(store).await.commit().await.expect("commit");
    reader.durable.await.expect("durable: what the reader may have seen");
    for durable in waiting {
        durable.await.expect("durable");
    }
}

async fn values_may_be_empty_or_big(store: &dyn Store) {
    let big = vec![7; crate::VALUE_MAX];
    let long = vec![b'k'; crate::KEY_MAX];
    let mut transaction = begin(store).await;
    transaction.put(key("empty"), Vec::new());
    transaction.put(long.clone(), big.clone());
    commit(transaction).await;
    let values = begin(store).await.read(&[key("empty"), long]).await.expect("read");
    assert_eq!(values, [Some(Vec::new()), Some(big)]);
}

async fn scans_are_ordered_and_bounded(store: &dyn Store) {
    put(store, &[("b", "2"), ("d", "4"), ("a", "1"), ("c", "3")]).await;
    let mut reader = begin(store).await;
    let all = pairs(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]);
    let found = reader.scan(range("a", "e"), 10).await.expect("scan");
    assert_eq!(found, all, "ascending");
    let found = reader.scan(range("a", "d"), 2).await.expect("scan");
    assert_eq!(found, all[..2], "the first two");
    let found = reader.scan(range("b", "d"), 10).await.expect("scan");
    assert_eq!(found, all[1..3], "start is in, end is not");
    let found = reader.scan(range("a", "d").reverse(), 2).await.expect("scan");
    assert_eq!(found, pairs(&[("c", "3"), ("b", "2")]), "the last two, descending");
    assert!(reader.scan(range("a", "e"), 0).await.expect("scan").is_empty());
    let binary = Range::new(vec![], vec![0xff; 4]);
    assert_eq!(reader.scan(binary, 10).await.expect("scan"), all, "any bytes bound a range");
}

async fn scans_merge_own_writes(store: &dyn Store) {
    put(store, &[("a", "1"), ("c", "1"), ("e", "1"), ("g", "1")]).await;
    let mut transaction = begin(store).await;
    for (name, value) in [("b", "2"), ("c", "2"), ("h", "2")] {
        transaction.put(key(name), key(value));
    }
    transaction.delete(key("e"));
    transaction.delete(key("absent"));
    let expected = pairs(&[("a", "1"), ("b", "2"), ("c", "2"), ("g", "1"), ("h", "2")]);
    let found = transaction.scan(range("a", "z"), 100).await.expect("scan");
    assert_eq!(found, expected);
    let found = transaction.scan(range("a", "z"), 4).await.expect("scan");
    assert_eq!(found, expected[..4], "a deleted pair takes no room");
    let descending: Vec<_> = expected.iter().rev().take(3).cloned().collect();
    let found = transaction.scan(range("a", "z").reverse(), 3).await.expect("scan");
    assert_eq!(found, descending);
    commit(transaction).await;
    let found = begin(store).await.scan(range("a", "z"), 100).await.expect("scan");
    assert_eq!(found, expected, "the same once committed");
}

/// Long runs of deletions, older and own, lie before what is looked for.
async fn scans_pass_over_deletions(store: &dyn Store) {
    let name = |number: u32| format!("{number:04}").into_bytes();
    let mut transaction = begin(store).await;
    for number in 0..1000 {
        transaction.put(name(number), vec![1]);
    }
    commit(transaction).await;
    let mut transaction = begin(store).await;
    for number in 1..500 {
        transaction.delete(name(number));
    }
    // Not waited for, so that an engine with recent commits in memory has them there.
    let durable = transaction.commit().await.expect("commit").durable;
    let mut transaction = begin(store).await;
    for number in 500..998 {
        transaction.delete(name(number));
    }
    let names = |found: Vec<(Key, Value)>| found.into_iter().map(|(key, _)| key);
    let found = transaction.scan(range("0", "9"), 2).await.expect("scan");
    assert!(names(found).eq([name(0), name(998)]));
    let found = transaction.scan(range("0", "9").reverse(), 3).await.expect("scan");
    assert!(names(found).eq([name(999), name(998), name(0)]));
    durable.await.expect("durable");
}

async fn empty_ranges_hold_nothing(store: &dyn Store) {
    put(store, &[("a", "1"), ("b", "1")]).await;
    let mut transaction = begin(store).await;
    transaction.put(key("c"), key("1"));
    for (start, end) in [("b", "a"), ("a", "a"), ("c", "b"), ("x", "y")] {
        assert!(transaction.scan(range(start, end), 10).await.expect("scan").is_empty());
        let reverse = range(start, end).reverse();
        assert!(transaction.scan(reverse, 10).await.expect("scan").is_empty());
    }
}

async fn changed_keys_conflict(store: &dyn Store) {
    put(store, &[("a", "1")]).await;
    let mut late = begin(store).await;
    let mut early = begin(store).await;
    get(&mut *early, "a").await;
    early.put(key("b"), key("early"));
    put(store, &[("a", "2")]).await;
    assert_conflict(late.read(&[key("a")]).await, "reading what changed since the beginning");
    assert_conflict(early.commit().await, "committing on what changed since it was read");
    assert_eq!(get(&mut *begin(store).await, "b").await, None, "nothing of it was done");
}

async fn absent_keys_conflict_when_they_appear(store: &dyn Store) {
    let mut first = begin(store).await;
    assert_eq!(get(&mut *first, "a").await, None);
    first.put(key("a"), key("first"));
    put(store, &[("a", "second")]).await;
    assert_conflict(first.commit().await, "creating what somebody else created");
    let mut reader = begin(store).await;
    assert_eq!(get(&mut *reader, "a").await, Some(key("second")));
    reader.put(key("b"), key("1"));
    delete(store, "a").await;
    assert_conflict(reader.commit().await, "what was read is deleted");
}

async fn phantoms_conflict(store: &dyn Store) {
    put(store, &[("b", "1")]).await;
    for scanned in [range("a", "m"), range("a", "m").reverse()] {
        delete(store, "c").await;
        let mut late = begin(store).await;
        let mut early = begin(store).await;
        early.scan(scanned.clone(), 10).await.expect("scan");
        early.put(key("z"), key("1"));
        put(store, &[("c", "1")]).await;
        assert_conflict(late.scan(scanned, 10).await, "scanning what changed");
        assert_conflict(early.commit().await, "a pair appeared in a scanned range");
    }
    let mut early = begin(store).await;
    early.scan(range("a", "m"), 10).await.expect("scan");
    early.put(key("z"), key("2"));
    delete(store, "b").await;
    assert_conflict(early.commit().await, "a pair went from a scanned range");
}

async fn what_lies_beyond_a_bounded_scan_does_not_conflict(store: &dyn Store) {
    put(store, &[("a", "1"), ("b", "1"), ("x", "1"), ("y", "1")]).await;
    let mut forward = begin(store).await;
    forward.scan(range("a", "z"), 2).await.expect("scan");
    forward.put(key("f"), key("1"));
    let mut backward = begin(store).await;
    backward.scan(range("a", "z").reverse(), 2).await.expect("scan");
    backward.put(key("g"), key("1"));
    put(store, &[("m", "1")]).await;
    commit(forward).await;
    commit(backward).await;
}

async fn blind_writes_do_not_conflict(store: &dyn Store) {
    let mut first = begin(store).await;
    let mut second = begin(store).await;
    first.put(key("a"), key("first"));
    second.put(key("a"), key("second"));
    // A key that was written before it was read was not read from the store.
    assert_eq!(get(&mut *second, "a").await, Some(key("second")));
    commit(first).await;
    commit(second).await;
    assert_eq!(get(&mut *begin(store).await, "a").await, Some(key("second")), "the later one");
}

async fn write_skew_is_prevented(store: &dyn Store) {
    put(store, &[("a", "on"), ("b", "on")]).await;
    let mut first = begin(store).await;
    let mut second = begin(store).await;
    for transaction in [&mut first, &mut second] {
        let values = transaction.read(&[key("a"), key("b")]).await.expect("read");
        assert!(values.iter().all(|value| value.as_deref() == Some(b"on")));
    }
    first.put(key("a"), key("off"));
    second.put(key("b"), key("off"));
    commit(first).await;
    assert_conflict(second.commit().await, "each relied on what the other changed");
}

async fn readers_see_one_state(store: &dyn Store) {
    put(store, &[("a", "1"), ("b", "1")]).await;
    let mut reader = begin(store).await;
    let version = reader.version();
    assert_eq!(get(&mut *reader, "a").await, Some(key("1")));
    put(store, &[("c", "2")]).await;
    put(store, &[("a", "2")]).await;
    assert_eq!(get(&mut *reader, "b").await, Some(key("1")), "untouched keys stay readable");
    assert_eq!(reader.version(), version);
    assert_eq!(commit(reader).await, version, "what it read was true at its version");
}

async fn versions_grow(store: &dyn Store) {
    let mut last = begin(store).await.version();
    for round in 0..10 {
        let transaction = begin(store).await;
        assert_eq!(transaction.version(), last, "a reader begins at the newest commit");
        assert_eq!(commit(transaction).await, last, "a commit without writes has no number");
        let version = put(store, &[("a", "1")]).await;
        assert!(version > last, "round {round}");
        last = version;
    }
}
