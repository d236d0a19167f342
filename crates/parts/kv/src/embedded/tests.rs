//! The engine on real files.

use super::crash::{Disk, SMALL};
use super::*;
use crate::Journal;
use crate::Range;
use crate::model;
use crate::overlay::Base;
use proptest::prelude::*;
use redb::Database;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use tempfile::TempDir;

const CACHE: ByteSize = ByteSize(16 << 20);

fn path(directory: &TempDir) -> PathBuf {
    directory.path().join("store.redb")
}

fn log_path(directory: &TempDir) -> PathBuf {
    directory.path().join("store.redb-wal")
}

fn open(directory: &TempDir) -> Result<EmbeddedStore, Error> {
    EmbeddedStore::open(&path(directory), CACHE)
}

/// What a machine that stops now leaves of the store.
fn cut_off(directory: &TempDir) -> TempDir {
    let left = tempfile::tempdir().unwrap();
    std::fs::copy(path(directory), path(&left)).unwrap();
    std::fs::copy(log_path(directory), log_path(&left)).unwrap();
    left
}

async fn get(store: &EmbeddedStore, key: &[u8]) -> Option<Value> {
    store.begin().await.unwrap().read(&[key.to_vec()]).await.unwrap().remove(0)
}

/// Why a store is refused.
fn reason(opened: Result<EmbeddedStore, Error>) -> String {
    match opened.err().expect("it is refused") {
        Error::Refused { source, .. } => source.to_string(),
        other => panic!("{other:?}"),
    }
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_while_tables_are_taken_up() {
    // What is written is in both tables and in redb, as it comes.
    let sizes = Sizes { pairs: 2, ..SMALL };
    crate::conformance::run(|| async {
        Arc::new(Disk::default().open_with(sizes).unwrap()) as Arc<dyn Store>
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

#[tokio::test]
async fn what_was_pending_at_a_close_is_written_also_past_the_log() {
    let disk = Disk::default();
    let store = disk.open().unwrap();
    put(&store, b"a").await;
    let mut pending = Vec::new();
    for key in [b"b", b"c", b"d"] {
        let mut transaction = store.begin().await.unwrap();
        transaction.put(key.to_vec(), vec![1; 2 * SMALL.segment_bytes as usize]);
        pending.push(transaction.commit().await.unwrap());
    }
    drop(store);
    for committed in pending {
        committed.durable.await.unwrap();
    }
    let store = disk.open().unwrap();
    assert!(get(&store, b"a").await.is_some() && get(&store, b"d").await.is_some());
}

#[tokio::test]
async fn a_closed_store_is_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).unwrap();
    put(&store, b"a").await;
    assert!(log_path(&directory).exists());
    drop(store);
    assert!(!log_path(&directory).exists());
    assert_eq!(get(&open(&directory).unwrap(), b"a").await.as_deref(), Some(&b"value"[..]));
}

#[tokio::test]
async fn a_store_that_was_cut_off_goes_on_with_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).unwrap();
    let first = put(&store, b"a").await;
    let last = put(&store, b"b").await;
    let left = cut_off(&directory);
    let heard = Heard::default();
    let opening = Opening {
        journal: Some(Box::new(heard.clone()) as Box<dyn Journal>),
        ..Opening::default()
    };
    let again = EmbeddedStore::open_with(&path(&left), opening).unwrap();
    assert!(first < last);
    let version = Version(last.0 + VERSIONS_SKIPPED);
    assert_eq!(heard.0.lock().unwrap()[0], (last, version, 0), "the log counts");
    assert_eq!(get(&again, b"b").await.as_deref(), Some(&b"value"[..]));
    put(&again, b"c").await;
    let left = cut_off(&left);
    assert!(get(&open(&left).unwrap(), b"c").await.is_some(), "the log is filled anew");
}

#[tokio::test]
async fn a_store_without_its_log_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).unwrap();
    put(&store, b"a").await;
    let left = cut_off(&directory);
    let log = std::fs::read(log_path(&left)).unwrap();
    std::fs::remove_file(log_path(&left)).unwrap();
    let said = reason(open(&left));
    assert!(said.contains("is missing") && said.contains("tieline mdt restore"), "{said}");
    let other = tempfile::tempdir().unwrap();
    let other_store = open(&other).unwrap();
    put(&other_store, b"of another").await;
    std::fs::copy(log_path(&other), log_path(&left)).unwrap();
    let said = reason(open(&left));
    assert!(said.contains("not this store's"), "{said}");
    std::fs::write(log_path(&left), b"").unwrap();
    assert!(reason(open(&left)).contains("not this store's"));
    // With its own again it goes on.
    std::fs::write(log_path(&left), log).unwrap();
    assert!(get(&open(&left).unwrap(), b"a").await.is_some());
}

#[tokio::test]
async fn an_older_copy_of_a_store_is_refused_beside_a_newer_log() {
    let directory = tempfile::tempdir().unwrap();
    let backend = |directory: &TempDir| {
        let opened = file::open(&path(directory)).unwrap();
        let backend = FileBackend::new(opened.file).unwrap();
        (backend, file::LogBeside::new(&path(directory)), opened.unfinished)
    };
    let (file, place, unfinished) = backend(&directory);
    let opening = Opening { cache: CACHE, ..Opening::default() };
    let store = EmbeddedStore::start("small".into(), (file, None), place, SMALL, opening).unwrap();
    file::publish(&unfinished.unwrap(), &path(&directory)).unwrap();
    put(&store, b"a").await;
    let left = cut_off(&directory);
    // Until both segments are written anew.
    for number in 0..200_u8 {
        put(&store, &[number]).await;
    }
    std::fs::copy(log_path(&directory), log_path(&left)).unwrap();
    let said = reason(open(&left));
    assert!(said.contains("older copy"), "{said}");
}

#[tokio::test]
async fn the_log_of_a_store_that_was_removed_is_not_taken_up() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).unwrap();
    put(&store, b"a").await;
    let left = cut_off(&directory);
    std::fs::remove_file(path(&left)).unwrap();
    let store = open(&left).unwrap();
    assert_eq!(get(&store, b"a").await, None);
    put(&store, b"b").await;
    let left = cut_off(&left);
    assert_eq!(get(&open(&left).unwrap(), b"a").await, None);
}

#[tokio::test]
async fn who_closes_a_store_leaves_the_log_of_the_one_in_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let removed = open(&directory).unwrap();
    std::fs::remove_file(path(&directory)).unwrap();
    let store = open(&directory).unwrap();
    put(&removed, b"a").await;
    put(&store, b"b").await;
    drop(removed);
    let left = cut_off(&directory);
    let store = open(&left).unwrap();
    assert!(get(&store, b"a").await.is_none() && get(&store, b"b").await.is_some());
}

#[tokio::test]
async fn a_store_of_the_format_before_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::create(path(&directory)).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut pairs = transaction.open_table(PAIRS).unwrap();
        pairs.insert(&b"a"[..], &b"value"[..]).unwrap();
        let mut notes = transaction.open_table(STORE).unwrap();
        notes.insert(FORMAT, 1).unwrap();
        notes.insert(VERSION, 77).unwrap();
    }
    transaction.commit().unwrap();
    drop(database);
    // Nothing that lies there is its log.
    std::fs::write(log_path(&directory), b"of somebody").unwrap();
    let store = open(&directory).unwrap();
    assert_eq!(store.begin().await.unwrap().version(), Version(77 + VERSIONS_SKIPPED));
    assert!(get(&store, b"a").await.is_some());
    drop(store);
    let database = Database::open(path(&directory)).unwrap();
    assert_eq!(note(&database, FORMAT).unwrap(), Some(2));
}

#[tokio::test]
async fn what_is_only_in_the_log_is_judged() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).unwrap();
    put(&store, b"a").await;
    let left = cut_off(&directory);
    let log = std::fs::read(log_path(&left)).unwrap();
    let judge = |verdict: Result<(), &'static str>| {
        let check: Check = Box::new(move |value| {
            assert_eq!(value.as_deref(), Some(&b"value"[..]));
            verdict.map_err(Into::into)
        });
        let check = Some((b"a".to_vec(), check));
        EmbeddedStore::open_with(&path(&left), Opening { check, ..Opening::default() })
    };
    assert_eq!(reason(judge(Err("not this one"))), "not this one");
    assert!(std::fs::read(log_path(&left)).unwrap() == log, "it was touched");
    assert!(get(&judge(Ok(())).unwrap(), b"a").await.is_some());
}

/// A directory of a file system that never has any room.
fn without_room() -> Vec<PathBuf> {
    vec!["/proc".into()]
}

#[tokio::test]
async fn a_store_that_was_cut_off_is_opened_and_closed_without_room_to_spare() {
    let disk = Disk::default();
    let store = disk.open().unwrap();
    put(&store, b"a").await;
    let left = disk.cut_off();
    let store = left.open_short(SMALL, without_room()).unwrap();
    assert!(get(&store, b"a").await.is_some(), "it is read");
    // As a server does that starts: it says so, and then waits for requests.
    put(&store, b"start").await;
    drop(store);
    assert!(!left.has_log(), "closed, it is one file");
    let store = left.open().unwrap();
    assert!(get(&store, b"a").await.is_some() && get(&store, b"start").await.is_some());
}

#[tokio::test]
async fn where_there_is_no_room_changes_are_refused_and_reads_go_on() {
    let store = Disk::default().open_short(SMALL, without_room()).unwrap();
    put(&store, b"start").await;
    let patience = std::time::Duration::from_secs(10);
    let refused = tokio::time::timeout(patience, async {
        let mut transaction = store.begin().await.unwrap();
        transaction.put(b"b".to_vec(), vec![]);
        transaction.commit().await?.durable.await
    });
    let error = refused.await.expect("it waits").unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error:?}");
    assert!(error.to_string().contains("make room"), "{error}");
    let mut transaction = store.begin().await.unwrap();
    let read = transaction.read(&[b"start".to_vec(), b"b".to_vec()]).await.unwrap();
    assert!(read[0].is_some() && read[1].is_none());
    let read = transaction.commit().await.unwrap().durable;
    tokio::time::timeout(patience, read).await.expect("it waits").unwrap();
}

#[tokio::test]
async fn what_is_deleted_is_used_again_before_the_file_grows() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).unwrap();
    let all = || (0..2000_u32).map(|number| number.to_be_bytes().to_vec());
    let mut transaction = store.begin().await.unwrap();
    all().for_each(|key| transaction.put(key, vec![7; 10_000]));
    transaction.commit().await.unwrap().durable.await.unwrap();
    let settled = async || {
        while store.overlay.base().waits_in_log() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    settled().await;
    let on_disk = || std::fs::metadata(path(&directory)).unwrap().blocks() * 512;
    let (before, grown) = (store.reusable(), on_disk());
    let mut transaction = store.begin().await.unwrap();
    all().for_each(|key| transaction.delete(key));
    transaction.commit().await.unwrap().durable.await.unwrap();
    settled().await;
    // Whatever is written next gives back what those before freed.
    put(&store, b"a").await;
    settled().await;
    let late = std::time::Instant::now() + std::time::Duration::from_secs(60);
    // Some the disk may have back.
    while store.reusable() + grown < before + on_disk() + (15 << 20) {
        assert!(std::time::Instant::now() < late, "{} and {before}", store.reusable());
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn a_store_that_was_cut_off_waits_unharmed_for_a_disk_that_is_really_full() {
    let disk = Disk::default();
    let sizes = Sizes { segment_bytes: 4 << 20, pairs: 10_000 };
    let store = disk.open_with(sizes).unwrap();
    for number in 0..20_u8 {
        let mut transaction = store.begin().await.unwrap();
        transaction.put(vec![number], vec![number; 100_000]);
        transaction.commit().await.unwrap().durable.await.unwrap();
    }
    let left = disk.cut_off();
    left.fill(true);
    for _ in 0..2 {
        let error = left.open_short(sizes, without_room()).err().unwrap();
        assert!(matches!(error, Error::Full { .. }), "{error:?}");
    }
    left.fill(false);
    let store = left.open_short(sizes, without_room()).unwrap();
    for number in 0..20_u8 {
        assert_eq!(get(&store, &[number]).await, Some(vec![number; 100_000]));
    }
}

#[tokio::test]
async fn a_table_is_taken_up_sooner_where_room_is_short() {
    let disk = Disk::default();
    let sizes = Sizes { segment_bytes: 4 << 20, pairs: 10_000 };
    let store = disk.open_short(sizes, without_room()).unwrap();
    let group = |number: u64| Batch {
        writes: [(Arc::new(number.to_be_bytes().to_vec()), Some(Arc::default()))].into(),
        version: Version(VERSIONS_SKIPPED + number),
    };
    let base = store.overlay.base();
    base.apply(&group(1)).unwrap();
    assert!(!base.has_sealed(), "an empty table is not");
    base.apply(&group(2)).unwrap();
    assert!(base.has_sealed());
}

#[tokio::test]
async fn what_was_written_is_taken_up_when_nothing_more_comes() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).unwrap();
    put(&store, b"a").await;
    while store.overlay.base().waits_in_log() {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(get(&store, b"a").await.is_some());
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.version(), store.begin().await.unwrap().version());
}

#[tokio::test]
async fn a_full_log_is_taken_up() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).unwrap();
    for group in 0..12_u8 {
        let mut transaction = store.begin().await.unwrap();
        for number in 0..1000_u32 {
            let key = [&number.wrapping_mul(2_654_435_761).to_be_bytes()[..], &[group]].concat();
            transaction.put(key, vec![group; 1000]);
        }
        transaction.commit().await.unwrap().durable.await.unwrap();
    }
    let store = open(&cut_off(&directory)).unwrap();
    let all = Range::new(Vec::new(), vec![0xff; 8]);
    assert_eq!(store.begin().await.unwrap().scan(all, usize::MAX).await.unwrap().len(), 12_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn interleaved_transactions_are_as_if_one_after_the_other(steps in model::steps(80)) {
        let store = Disk::default().open().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(model::run(&store, &steps, || ()));
    }
}
