//! The overlay by itself, over a base that is flushed when the test says so and does what the test
//! wants meanwhile.

use super::*;
use crate::Store;
use crate::model;
use proptest::prelude::*;
use std::task::{Context, Poll, Waker};

/// What a base does beside what it should.
#[derive(Default)]
enum Trouble {
    #[default]
    None,
    Full,
    Fails,
    Panics,
}

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct TestBase {
    pairs: Mutex<BTreeMap<Key, Value>>,
    trouble: Mutex<Trouble>,
    /// Runs before the next look at the pairs.
    before_look: Mutex<Option<Hook>>,
}

impl TestBase {
    fn look(&self) -> MutexGuard<'_, BTreeMap<Key, Value>> {
        let hook = self.before_look.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.pairs.lock().unwrap()
    }
}

impl Base for TestBase {
    const IS_IMMEDIATE: bool = false;

    async fn get(&self, keys: &[&Key]) -> Result<Vec<Option<Value>>, Error> {
        let pairs = self.look();
        Ok(keys.iter().map(|key| pairs.get(*key).cloned()).collect())
    }

    async fn scan(&self, range: &Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        let pairs = self.look();
        let found = pairs
            .range(range.start.clone()..range.end.clone())
            .map(|(key, value)| (key.clone(), value.clone()));
        Ok(if range.is_reverse {
            found.rev().take(limit).collect()
        } else {
            found.take(limit).collect()
        })
    }

    fn apply(&self, batch: &Batch) -> Result<(), Error> {
        let store = "test".to_owned();
        match *self.trouble.lock().unwrap() {
            Trouble::None => {}
            Trouble::Full => return Err(Error::Full { store }),
            Trouble::Fails => return Err(Error::Failed { store, source: "the disk died".into() }),
            Trouble::Panics => panic!("expected by the test"),
        }
        let mut pairs = self.pairs.lock().unwrap();
        for (key, value) in &batch.writes {
            match value {
                Some(value) => pairs.insert(key.to_vec(), value.to_vec()),
                None => pairs.remove(key.as_ref()),
            };
        }
        Ok(())
    }

    async fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        Err(Error::Failed { store: "test".to_owned(), source: "no test asks for it".into() })
    }
}

type TestOverlay = Arc<Overlay<TestBase>>;

fn overlay_with(limits: Limits) -> TestOverlay {
    Overlay::new(TestBase::default(), "test".into(), Version(100), limits)
}

fn overlay() -> TestOverlay {
    overlay_with(Limits::default())
}

struct TestStore(TestOverlay);

#[async_trait::async_trait]
impl Store for TestStore {
    async fn begin(&self) -> Result<Box<dyn Transaction>, Error> {
        self.0.begin()
    }

    fn describe(&self) -> String {
        self.0.store().to_owned()
    }
}

/// Polls a future that is expected to be decided without anybody else.
fn now<T>(future: impl Future<Output = T>) -> T {
    match poll(&mut Box::pin(future)) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("not ready"),
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn read(transaction: &mut dyn Transaction, key: &str) -> Result<Option<Value>, Error> {
    now(transaction.read(&[key.into()])).map(|mut values| values.remove(0))
}

fn scan(transaction: &mut dyn Transaction) -> Result<Vec<(Key, Value)>, Error> {
    now(transaction.scan(Range::new(b"a".to_vec(), b"z".to_vec()), 10))
}

fn put(overlay: &TestOverlay, key: &str, value: &str) -> Committed {
    let mut transaction = overlay.begin().unwrap();
    transaction.put(key.into(), value.into());
    now(transaction.commit()).unwrap()
}

#[test]
fn commits_are_seen_before_they_are_durable() {
    let overlay = overlay();
    let mut first = put(&overlay, "a", "1");
    let mut reader = overlay.begin().unwrap();
    assert_eq!(read(&mut *reader, "a").unwrap(), Some(b"1".to_vec()));
    let mut reader = now(reader.commit()).unwrap();
    assert!(poll(&mut first.durable).is_pending());
    assert!(poll(&mut reader.durable).is_pending(), "it read what is not durable");
    let mut second = put(&overlay, "b", "1");
    assert!(overlay.flush());
    for durable in [&mut first.durable, &mut reader.durable, &mut second.durable] {
        assert!(matches!(poll(durable), Poll::Ready(Ok(()))));
    }
    let mut late = now(overlay.begin().unwrap().commit()).unwrap();
    assert!(matches!(poll(&mut late.durable), Poll::Ready(Ok(()))), "nothing to wait for");
}

#[test]
fn flushed_commits_retire_when_nobody_is_older() {
    let overlay = overlay();
    let reader = overlay.begin().unwrap();
    put(&overlay, "a", "1");
    put(&overlay, "a", "2");
    put(&overlay, "b", "1");
    assert_eq!(overlay.lock().recent_len(), 2);
    assert!(overlay.flush());
    assert_eq!(overlay.lock().recent_len(), 2, "the reader is older");
    let second = overlay.begin().unwrap();
    drop(reader);
    assert_eq!(overlay.lock().recent_len(), 0, "the second reader is not");
    put(&overlay, "a", "3");
    drop(second);
    assert_eq!(overlay.lock().recent_len(), 1, "not flushed");
    assert!(overlay.flush());
    assert_eq!(overlay.lock().recent_len(), 0);
}

#[test]
fn what_was_flushed_since_is_not_taken_for_the_snapshot() {
    let overlay = overlay();
    put(&overlay, "a", "1");
    let mut reader = overlay.begin().unwrap();
    put(&overlay, "a", "2");
    assert!(overlay.flush());
    assert!(matches!(read(&mut *reader, "a"), Err(Error::Conflict)));
    assert!(matches!(scan(&mut *reader), Err(Error::Conflict)));
}

/// Puts and flushes between a transaction's first look at the recent commits and its look at the
/// base.
fn put_behind(overlay: &TestOverlay, key: &'static str, value: &'static str) {
    let writer = overlay.clone();
    let hook = move || {
        put(&writer, key, value);
        assert!(writer.flush());
    };
    *overlay.base.before_look.lock().unwrap() = Some(Box::new(hook));
}

#[test]
fn what_reaches_the_base_during_a_read_is_a_conflict() {
    let overlay = overlay();
    put(&overlay, "a", "1");
    assert!(overlay.flush());
    let mut reader = overlay.begin().unwrap();
    put_behind(&overlay, "a", "2");
    assert!(matches!(read(&mut *reader, "a"), Err(Error::Conflict)));
    let mut reader = overlay.begin().unwrap();
    put_behind(&overlay, "b", "2");
    assert!(matches!(scan(&mut *reader), Err(Error::Conflict)));
    let mut reader = overlay.begin().unwrap();
    put_behind(&overlay, "zz", "2");
    assert_eq!(scan(&mut *reader).unwrap().len(), 2, "elsewhere does not matter");
}

#[test]
fn what_retires_during_a_read_is_still_read() {
    let overlay = overlay();
    put(&overlay, "a", "1");
    let mut reader = overlay.begin().unwrap();
    put_behind(&overlay, "zz", "1");
    let keys = [b"a".to_vec(), b"b".to_vec()];
    assert_eq!(now(reader.read(&keys)).unwrap(), [Some(b"1".to_vec()), None]);
    put(&overlay, "b", "1");
    let mut reader = overlay.begin().unwrap();
    put_behind(&overlay, "zz", "2");
    assert_eq!(scan(&mut *reader).unwrap().len(), 2);
}

#[test]
fn a_failed_flush_ends_the_store() {
    let fail_with = |trouble| {
        let overlay = overlay();
        let mut old = overlay.begin().unwrap();
        old.put(b"b".to_vec(), Vec::new());
        let waiting = put(&overlay, "a", "1");
        let reader = now(overlay.begin().unwrap().commit()).unwrap();
        *overlay.base.trouble.lock().unwrap() = trouble;
        assert!(!overlay.flush());
        assert!(!overlay.flush());
        assert!(matches!(read(&mut *old, "a"), Err(Error::Ended { .. })));
        assert!(matches!(scan(&mut *old), Err(Error::Ended { .. })));
        assert!(matches!(now(old.commit()), Err(Error::Ended { .. })));
        assert!(matches!(overlay.begin().err(), Some(Error::Ended { .. })));
        now(reader.durable).unwrap_err();
        now(waiting.durable).unwrap_err()
    };
    assert!(matches!(fail_with(Trouble::Full), Error::Full { .. }));
    let error = fail_with(Trouble::Fails);
    assert_eq!(chain(&error), "store test failed: the disk died");
    assert!(matches!(fail_with(Trouble::Panics), Error::Failed { .. }));
}

#[test]
fn commits_wait_for_room() {
    let pending_bytes = 3 * Limits::COMMIT_COST as u32;
    let overlay = overlay_with(Limits { pending_bytes, ..Limits::default() });
    for key in ["a", "b"] {
        put(&overlay, key, "1");
    }
    let mut transaction = overlay.begin().unwrap();
    transaction.put(b"c".to_vec(), b"1".to_vec());
    let mut waiting = transaction.commit();
    assert!(poll(&mut waiting).is_pending());
    assert!(overlay.flush());
    let Poll::Ready(committed) = poll(&mut waiting) else { panic!("there is room") };
    assert_eq!(committed.unwrap().version, Version(103));
    // One that is larger than the bound waits until it is alone, and no longer.
    let mut transaction = overlay.begin().unwrap();
    transaction.put(b"d".to_vec(), vec![1; 10_000]);
    let mut waiting = transaction.commit();
    assert!(poll(&mut waiting).is_pending());
    assert!(overlay.flush());
    assert!(poll(&mut waiting).is_ready());
    // A conflict gives its room back.
    assert!(overlay.flush());
    for _ in 0..10 {
        let mut loser = overlay.begin().unwrap();
        read(&mut *loser, "a").unwrap();
        loser.put(b"e".to_vec(), vec![1; 100]);
        put(&overlay, "a", "2");
        assert!(overlay.flush());
        assert!(matches!(now(loser.commit()), Err(Error::Conflict)));
    }
}

#[test]
fn room_is_given_up_when_the_store_ends() {
    let pending_bytes = Limits::COMMIT_COST as u32;
    let overlay = overlay_with(Limits { pending_bytes, ..Limits::default() });
    put(&overlay, "", "");
    let mut transaction = overlay.begin().unwrap();
    transaction.put(b"a".to_vec(), Vec::new());
    let mut waiting = transaction.commit();
    assert!(poll(&mut waiting).is_pending());
    *overlay.base.trouble.lock().unwrap() = Trouble::Fails;
    assert!(!overlay.flush());
    assert!(matches!(poll(&mut waiting), Poll::Ready(Err(Error::Ended { .. }))));
}

#[test]
fn a_transaction_that_holds_up_too_much_is_given_up() {
    let overlay = overlay_with(Limits { recent_bytes: 1000, ..Limits::default() });
    let mut old = overlay.begin().unwrap();
    assert_eq!(read(&mut *old, "a").unwrap(), None);
    for _ in 0..100 {
        put(&overlay, "b", &"x".repeat(100));
        assert!(overlay.flush());
    }
    let young = overlay.begin().unwrap();
    assert!(overlay.lock().recent_len() <= 1);
    assert!(matches!(read(&mut *old, "a"), Err(Error::Conflict)));
    assert!(matches!(scan(&mut *old), Err(Error::Conflict)));
    assert!(now(young.commit()).is_ok());
    assert!(now(old.commit()).is_ok(), "what it read was true once");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn interleaved_transactions_are_as_if_one_after_the_other(steps in model::steps(120)) {
        let overlay = overlay();
        let store = TestStore(overlay.clone());
        now(model::run(&store, &steps, || assert!(overlay.flush())));
    }
}
