//! The engine on real files.

use super::*;
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
    let error = open(&directory).err().unwrap();
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("use a newer build"), "{reason}");
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
