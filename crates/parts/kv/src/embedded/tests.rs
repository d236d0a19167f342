//! The engine on real files.

use super::*;
use crate::Journal;
use crate::model;
use proptest::prelude::*;
use tempfile::TempDir;

const CACHE: ByteSize = ByteSize(16 << 20);

fn open(directory: &TempDir) -> Result<EmbeddedStore, Error> {
    EmbeddedStore::open(&directory.path().join("store.redb"), CACHE)
}

async fn put(store: &EmbeddedStore, key: &[u8]) -> Version {
    let mut transaction = store.begin().await.unwrap();
    transaction.put(key.to_vec(), b"value".to_vec());
    let committed = transaction.commit().await.unwrap();
    committed.durable.await.unwrap();
    committed.version
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let directory = tempfile::tempdir().unwrap();
    let count = std::sync::atomic::AtomicU32::new(0);
    crate::conformance::run(|| async {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = directory.path().join(format!("{number}.redb"));
        Arc::new(EmbeddedStore::open(&path, CACHE).unwrap()) as Arc<dyn Store>
    })
    .await;
}

#[tokio::test]
async fn goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).unwrap();
    let version = put(&store, b"a").await;
    // Not waited for: closing writes it.
    let mut transaction = store.begin().await.unwrap();
    transaction.put(b"b".to_vec(), b"value".to_vec());
    let last = transaction.commit().await.unwrap();
    drop(store);
    last.durable.await.unwrap();
    let store = open(&directory).unwrap();
    let mut transaction = store.begin().await.unwrap();
    assert!(transaction.version() > last.version && last.version > version);
    let values = transaction.read(&[b"a".to_vec(), b"b".to_vec()]).await.unwrap();
    assert!(values.iter().all(|value| value.as_deref() == Some(b"value")));
}

#[tokio::test]
async fn an_open_store_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let _store = open(&directory).unwrap();
    let error = open(&directory).err().unwrap();
    assert!(matches!(error, Error::InUse { .. }), "{error:?}");
    assert_eq!(error.kind(), tieline_types::ErrorKind::Busy);
}

#[tokio::test]
async fn another_file_is_refused_untouched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    std::fs::write(&path, b"not a store at all, but somebody's notes").unwrap();
    assert!(matches!(open(&directory), Err(Error::Failed { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"not a store at all, but somebody's notes");
}

#[tokio::test]
async fn a_store_half_made_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let unfinished = directory.path().join("store.redb.new");
    std::fs::write(&unfinished, b"as far as it got before the power failed").unwrap();
    let locked = std::fs::File::open(&unfinished).unwrap();
    locked.lock().unwrap();
    assert!(matches!(open(&directory), Err(Error::InUse { .. })), "somebody is at it");
    drop(locked);
    put(&open(&directory).unwrap(), b"a").await;
    assert!(!unfinished.exists());
    assert!(open(&directory).is_ok());
}

#[tokio::test]
async fn another_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(&directory).unwrap());
    let database = Database::open(directory.path().join("store.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(STORE).unwrap().insert(FORMAT, FORMAT_KNOWN + 1).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let bytes = std::fs::read(directory.path().join("store.redb")).unwrap();
    let error = open(&directory).err().unwrap();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let after = std::fs::read(directory.path().join("store.redb")).unwrap();
    assert!(bytes == after, "it was touched");
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("use a newer build"), "{reason}");
}

#[tokio::test]
async fn a_store_is_judged_before_it_is_touched() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    put(&open(&directory).unwrap(), b"a").await;
    let bytes = std::fs::read(&path).unwrap();
    let judge = |verdict: Result<(), &'static str>| {
        let check: Check = Box::new(move |value| {
            assert_eq!(value.as_deref(), Some(&b"value"[..]));
            verdict.map_err(Into::into)
        });
        let check = Some((b"a".to_vec(), check));
        EmbeddedStore::open_with(&path, Opening { cache: CACHE, check, ..Opening::default() })
    };
    assert!(matches!(judge(Err("not this one")), Err(Error::Refused { .. })));
    assert!(std::fs::read(&path).unwrap() == bytes, "it was touched");
    assert!(judge(Ok(())).is_ok());
}

/// What a journal was told, for a test to look at.
#[derive(Clone, Default)]
struct Heard(Arc<std::sync::Mutex<Vec<(Version, Version, usize)>>>, bool);

impl Journal for Heard {
    fn start(&mut self, durable: Version, version: Version) -> io::Result<()> {
        self.0.lock().unwrap().push((durable, version, 0));
        Ok(())
    }

    fn append(&mut self, batch: &Batch) -> io::Result<()> {
        if self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.lock().unwrap().push((batch.version, batch.version, batch.writes.len()));
        Ok(())
    }
}

#[tokio::test]
async fn a_journal_hears_of_everything_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let heard = Heard::default();
    let open = |heard: &Heard| {
        let journal = Some(Box::new(heard.clone()) as Box<dyn Journal>);
        EmbeddedStore::open_with(&path, Opening { journal, ..Opening::default() }).unwrap()
    };
    let store = open(&heard);
    let first = put(&store, b"a").await;
    let second = put(&store, b"b").await;
    drop(store);
    drop(open(&heard));
    let heard = heard.0.lock().unwrap().clone();
    let base = Version(VERSIONS_SKIPPED);
    let again = Version(second.0 + VERSIONS_SKIPPED);
    let expected =
        [(Version(0), base, 0), (first, first, 1), (second, second, 1), (second, again, 0)];
    assert_eq!(heard, expected);
}

#[tokio::test]
async fn a_journal_that_fails_ends_the_store_before_it_is_ahead() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let journal = Some(Box::new(Heard(Arc::default(), true)) as Box<dyn Journal>);
    let opening = Opening { journal, ..Opening::default() };
    let store = EmbeddedStore::open_with(&path, opening).unwrap();
    let mut transaction = store.begin().await.unwrap();
    transaction.put(b"a".to_vec(), b"value".to_vec());
    let durable = transaction.commit().await.unwrap().durable;
    assert!(matches!(durable.await, Err(Error::Failed { .. })));
    assert!(matches!(store.begin().await, Err(Error::Ended { .. })));
    drop(store);
    let store = open(&directory).unwrap();
    let values = store.begin().await.unwrap().read(&[b"a".to_vec()]).await.unwrap();
    assert_eq!(values, [None]);
}

#[tokio::test]
async fn a_store_outlived_by_its_transaction_ends() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).unwrap();
    let mut transaction = store.begin().await.unwrap();
    transaction.put(b"a".to_vec(), Vec::new());
    drop(store);
    assert!(matches!(transaction.commit().await, Err(Error::Ended { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn interleaved_transactions_are_as_if_one_after_the_other(steps in model::steps(80)) {
        let backend = redb::backends::InMemoryBackend::new();
        let store = EmbeddedStore::open_backend("model".into(), backend, CACHE).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(model::run(&store, &steps, || ()));
    }
}
