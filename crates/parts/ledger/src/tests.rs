//! Stores that are lost and come back.

use crate::log::{Log, LogSettings};
use crate::restore::{Asked, Restored, restore};
use crate::stream::Frames;
use crate::{Error, Identity, dump};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tieline_format::Record;
use tieline_format::mdt::{Superblock, key};
use tieline_kv::{EmbeddedStore, MemoryStore, Opening, Range, Store};
use tieline_types::{ByteSize, MdtIndex, Time, Version};

mod again;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn identity() -> Identity {
    Identity { fs: "extenci".parse().unwrap(), mdt: MdtIndex(0) }
}

fn superblock() -> Vec<u8> {
    let (fs, mdt) = (identity().fs, MdtIndex(0));
    Superblock {
        fs,
        mdt,
        file_serial: 5,
        session_serial: 6,
        features: 0,
        boot: 1,
        version_serial: 0,
        inodes: 1,
        restored: None,
    }
    .to_bytes()
}

/// A store with a log, in a directory.
struct Place {
    directory: tempfile::TempDir,
    waits: bool,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), waits: true }
    }

    fn logs(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn open(&self) -> (EmbeddedStore, Arc<Log>) {
        self.try_open().unwrap()
    }

    fn try_open(&self) -> Result<(EmbeddedStore, Arc<Log>), tieline_kv::Error> {
        let settings = LogSettings { directory: self.logs(), waits: self.waits };
        let log = Log::open(identity(), settings, Box::new(Time::default)).unwrap();
        let journal = Some(log.writer());
        let opening = Opening { cache: ByteSize(1 << 20), journal, ..Opening::default() };
        let store = EmbeddedStore::open_with(&self.path(), opening)?;
        Ok((store, log))
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("store.redb")
    }
}

async fn put(store: &dyn Store, pairs: &[(&str, &str)]) -> Version {
    let mut transaction = store.begin().await.unwrap();
    for (name, value) in pairs {
        transaction.put(name.as_bytes().to_vec(), value.as_bytes().to_vec());
    }
    transaction.put(key::superblock(), superblock());
    let committed = transaction.commit().await.unwrap();
    committed.durable.await.unwrap();
    committed.version
}

async fn all(store: &dyn Store) -> Pairs {
    let everything = Range::new(vec![], vec![0xff]);
    let mut pairs: Pairs = store
        .begin()
        .await
        .unwrap()
        .scan(everything, usize::MAX)
        .await
        .unwrap()
        .into_iter()
        .collect();
    // The restored one differs, as it should.
    pairs.remove(&key::superblock());
    pairs
}

fn asked(paths: &[PathBuf]) -> Asked<'_> {
    Asked { paths, up_to_hole: false, log: None, now: Time::default() }
}

async fn restored(paths: &[PathBuf]) -> Result<(MemoryStore, Restored), Error> {
    let store = MemoryStore::new();
    let outcome = restore(&store, &identity(), asked(paths)).await?;
    Ok((store, outcome))
}

async fn up_to_hole(
    store: &dyn Store,
    identity: &Identity,
    paths: &[PathBuf],
) -> Result<Restored, Error> {
    restore(store, identity, Asked { up_to_hole: true, ..asked(paths) }).await
}

#[tokio::test]
async fn a_log_from_the_beginning_is_the_store() {
    let place = Place::new();
    let (store, log) = place.open();
    assert!(!log.wants_dump(), "a new store is logged from its first commit");
    put(&store, &[("a", "1"), ("b", "1")]).await;
    let mut transaction = store.begin().await.unwrap();
    transaction.delete(b"b".to_vec());
    transaction.commit().await.unwrap().durable.await.unwrap();
    drop((store, log));
    let (store, log) = place.open();
    assert!(!log.wants_dump(), "it goes on where it was");
    let last = put(&store, &[("c", "2")]).await;
    let before = all(&store).await;
    let (again, outcome) = restored(&[place.logs()]).await.unwrap();
    assert_eq!(all(&again).await, before);
    assert_eq!((outcome.version, outcome.groups, outcome.dump), (last, 3, None));
    assert!(again.begin().await.unwrap().version() > last);
    let value = again.begin().await.unwrap().read(&[key::superblock()]).await.unwrap().remove(0);
    let superblock = Superblock::from_bytes(&value.unwrap()).unwrap();
    assert!(superblock.restored.is_some() && superblock.file_serial > 5);
}

#[tokio::test]
async fn an_empty_store_does_not_go_on_with_anothers_log() {
    let place = Place::new();
    let (store, log) = place.open();
    put(&store, &[("a", "1"), ("b", "1")]).await;
    let before = all(&store).await;
    drop((store, log));
    std::fs::remove_file(place.path()).unwrap();
    let refused = place.try_open().err().expect("it is not this store's log");
    let why = chain_of(&refused).join(": ");
    assert!(why.contains("tieline mdt restore"), "{why}");
    // The log is as it was, and brings all back.
    let (again, _) = restored(&[place.logs()]).await.unwrap();
    assert_eq!(all(&again).await, before);
    // Nor does an older copy of the store, from before what was acknowledged since.
    let older = Place::new();
    let (store, log) = older.open();
    put(&store, &[("a", "1")]).await;
    drop((store, log));
    let copy = std::fs::read(older.path()).unwrap();
    let (store, log) = older.open();
    put(&store, &[("b", "1")]).await;
    put(&store, &[("c", "1")]).await;
    drop((store, log));
    std::fs::write(older.path(), copy).unwrap();
    assert!(older.try_open().is_err());
    // Logs of two stores in one directory are not put together.
    let other = Place::new();
    let segment =
        |place: &Place, number| crate::directory::segment(&place.logs(), identity().mdt, number);
    std::fs::create_dir(other.logs()).unwrap();
    std::fs::write(segment(&other, 1), "so that it begins with the second").unwrap();
    let (store, log) = other.open();
    put(&store, &[("c", "2")]).await;
    drop((store, log));
    std::fs::copy(segment(&other, 2), segment(&place, 2)).unwrap();
    let refused = restored(&[place.logs()]).await.err();
    assert!(matches!(refused, Some(Error::TwoStores { .. })), "{refused:?}");
    let (again, _) = restored(&[segment(&place, 1)]).await.unwrap();
    assert_eq!(all(&again).await, before);
}

/// Why, and why that.
fn chain_of(error: &dyn std::error::Error) -> Vec<String> {
    let mut chain = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        chain.push(error.to_string());
        next = error.source();
    }
    chain
}

#[tokio::test]
async fn a_store_that_got_a_log_later_begins_with_a_dump() {
    let place = Place::new();
    {
        let store = EmbeddedStore::open(&place.path(), ByteSize(1 << 20)).unwrap();
        put(&store, &[("old", "1")]).await;
    }
    let (store, log) = place.open();
    assert!(log.wants_dump());
    put(&store, &[("new", "1")]).await;
    assert!(matches!(restored(&[place.logs()]).await, Err(Error::NoDump { .. })));
    drop((store, log));
    let (store, log) = place.open();
    assert!(log.wants_dump(), "also after a restart");
    dump::beside_log(&store, &log, true).await.unwrap();
    assert!(!log.wants_dump());
    put(&store, &[("newer", "1")]).await;
    let before = all(&store).await;
    let (again, outcome) = restored(&[place.logs()]).await.unwrap();
    assert_eq!(all(&again).await, before);
    assert!(outcome.dump.is_some());
    assert_eq!(outcome.groups, 1, "what lies before the dump was deleted");
    drop((store, log));
    let (store, log) = place.open();
    assert!(!log.wants_dump(), "the hole is closed");
    // A second dump makes the first superfluous.
    dump::beside_log(&store, &log, true).await.unwrap();
    let dumps = files(&place.logs(), "dump");
    assert_eq!(dumps.len(), 1);
    assert_eq!(all(&restored(&[place.logs()]).await.unwrap().0).await, before);
}

fn files(directory: &Path, end: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|other| other == end));
    files.sort();
    files
}

#[tokio::test]
async fn a_torn_end_is_cut_off_and_damage_elsewhere_is_said() {
    let place = Place::new();
    let (store, log) = place.open();
    put(&store, &[("a", "1")]).await;
    let before = all(&store).await;
    let segment = files(&place.logs(), "log").remove(0);
    let whole = std::fs::read(&segment).unwrap();
    put(&store, &[("b", "1")]).await;
    drop((store, log));
    let longer = std::fs::read(&segment).unwrap();
    for cut in [whole.len() + 1, whole.len() + 8, longer.len() - 1] {
        std::fs::write(&segment, &longer[..cut]).unwrap();
        let (again, outcome) = restored(&[place.logs()]).await.unwrap();
        assert_eq!(all(&again).await, before, "cut at {cut}");
        assert_eq!(outcome.notes.len(), 1);
    }
    let mut damaged = longer.clone();
    damaged[whole.len() - 3] ^= 1;
    std::fs::write(&segment, &damaged).unwrap();
    assert!(matches!(restored(&[place.logs()]).await, Err(Error::Damaged { .. })));
}

#[tokio::test]
async fn what_the_store_never_had_is_not_restored() {
    let place = Place::new();
    let (store, log) = place.open();
    put(&store, &[("a", "1")]).await;
    // An embedded store that is open is two files.
    let files = [place.path(), place.path().with_extension("redb-wal")];
    let before = files.each_ref().map(|file| std::fs::read(file).unwrap());
    put(&store, &[("lost", "1")]).await;
    drop((store, log));
    // The machine lost the store's last commits, not the log's.
    for (file, before) in files.iter().zip(before) {
        std::fs::write(file, before).unwrap();
    }
    let (store, log) = place.open();
    assert!(!log.wants_dump());
    put(&store, &[("b", "1")]).await;
    let now = all(&store).await;
    assert!(!now.contains_key(&b"lost"[..]));
    assert_eq!(all(&restored(&[place.logs()]).await.unwrap().0).await, now);
}

#[tokio::test]
async fn a_hole_is_an_error() {
    let place = Place::new();
    for round in 0..3 {
        let (store, _log) = place.open();
        put(&store, &[("a", &round.to_string())]).await;
    }
    std::fs::remove_file(&files(&place.logs(), "log")[1]).unwrap();
    assert!(matches!(restored(&[place.logs()]).await, Err(Error::Hole { .. })));
    let store = MemoryStore::new();
    let outcome = up_to_hole(&store, &identity(), &[place.logs()]).await;
    assert_eq!(outcome.unwrap().groups, 1);
    assert_eq!(all(&store).await[&b"a"[..]], b"0");
    let used = up_to_hole(&store, &identity(), &[place.logs()]).await;
    assert!(matches!(used, Err(Error::NotEmpty { .. })));
    let other = Identity { mdt: MdtIndex(0), fs: "other".parse().unwrap() };
    let empty = MemoryStore::new();
    let foreign = up_to_hole(&empty, &other, &[place.logs()]).await;
    assert!(matches!(foreign, Err(Error::Foreign { .. })));
}
