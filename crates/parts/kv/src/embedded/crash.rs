//! The real engine over a disk that knows *written* from *synced*, cut off at every sync and
//! between.
//!
//! A workload runs once; the disk notes every write to the store's file and to its log, every sync
//! of one of them, and when a commit's durability was believed. Then for each cut all is played to
//! that point: what was synced is there; of what was written since, each sector may have reached
//! the disk or not. The store must open, hold exactly the state of one version, at least the last
//! that was believed durable, and give no version twice.
//!
//! Segments are so small that redb takes up tables all the time, while others are filled.

use super::*;
use crate::Range;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

const CACHE: ByteSize = ByteSize(4 << 20);
/// What a disk writes wholly or not at all.
const SECTOR: usize = 512;

/// Some groups of the workload fill a segment, some are larger than one.
pub(super) const SMALL: Sizes = Sizes { segment_bytes: 24 << 10, pairs: 30 };

type State = BTreeMap<Key, Value>;

/// One of the two files.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Name {
    Store,
    Log,
}

#[derive(Clone, Debug)]
enum Event {
    Write {
        name: Name,
        offset: u64,
        data: Vec<u8>,
    },
    Resize(Name, u64),
    Sync(Name),
    /// A log was made, durably, and begins with this.
    Made(Vec<u8>),
    Removed,
    /// The store is open: only now does its file get its name.
    Opened,
    /// Somebody was told that this version is durable.
    Believed(Version),
    /// This version was given to a commit.
    Decided(Version),
}

/// What lies on a disk.
#[derive(Clone, Debug, Default)]
struct Files {
    store: Vec<u8>,
    log: Option<Vec<u8>>,
}

impl Files {
    fn get(&mut self, name: Name) -> &mut Vec<u8> {
        match name {
            Name::Store => &mut self.store,
            Name::Log => self.log.get_or_insert_default(),
        }
    }
}

/// A disk in memory; clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    files: Files,
    events: Vec<Event>,
    /// The store's file cannot grow beyond this.
    capacity: Option<u64>,
}

impl Disk {
    fn holding(files: Files) -> Self {
        Self(Arc::new(Mutex::new(Inner { files, ..Inner::default() })))
    }

    pub fn open(&self) -> Result<EmbeddedStore, Error> {
        self.open_with(SMALL)
    }

    pub fn open_with(&self, sizes: Sizes) -> Result<EmbeddedStore, Error> {
        self.open_short(sizes, Vec::new())
    }

    /// The same beside `disks`, which may have no room.
    pub fn open_short(&self, sizes: Sizes, disks: Vec<PathBuf>) -> Result<EmbeddedStore, Error> {
        let backend = DiskFile { disk: self.clone(), name: Name::Store };
        let opening = Opening { cache: CACHE, disks, ..Opening::default() };
        EmbeddedStore::start("crash test".into(), (backend, None), self.clone(), sizes, opening)
    }

    /// What a machine that stops now leaves.
    pub fn cut_off(&self) -> Self {
        Self::holding(self.0.lock().unwrap().files.clone())
    }

    /// The store's file is not to grow any more, or is again.
    pub fn fill(&self, is_full: bool) {
        let mut inner = self.0.lock().unwrap();
        inner.capacity = is_full.then(|| inner.files.store.len() as u64);
    }

    pub fn has_log(&self) -> bool {
        self.0.lock().unwrap().files.log.is_some()
    }

    fn note(&self, event: Event) {
        self.0.lock().unwrap().events.push(event);
    }

    fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().events.clone()
    }

    fn log(&self) -> Box<dyn StorageBackend> {
        Box::new(DiskFile { disk: self.clone(), name: Name::Log })
    }
}

impl Place for Disk {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        let is_there = self.0.lock().unwrap().files.log.is_some();
        if is_there { Ok(self.log()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn make(&self, header: &[u8]) -> io::Result<Box<dyn StorageBackend>> {
        let mut inner = self.0.lock().unwrap();
        inner.files.log = Some(header.to_vec());
        inner.events.push(Event::Made(header.to_vec()));
        Ok(self.log())
    }

    fn remove(&self) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        inner.files.log = None;
        inner.events.push(Event::Removed);
        Ok(())
    }
}

#[derive(Debug)]
struct DiskFile {
    disk: Disk,
    name: Name,
}

impl StorageBackend for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.0.lock().unwrap().files.get(self.name).len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut inner = self.disk.0.lock().unwrap();
        let from = offset as usize;
        let bytes = inner.files.get(self.name).get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut inner = self.disk.0.lock().unwrap();
        if inner.capacity.is_some_and(|capacity| length > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        inner.files.get(self.name).resize(length as usize, 0);
        inner.events.push(Event::Resize(self.name, length));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.note(Event::Sync(self.name));
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.disk.0.lock().unwrap();
        write_at(inner.files.get(self.name), offset, data);
        inner.events.push(Event::Write { name: self.name, offset, data: data.to_vec() });
        Ok(())
    }
}

fn write_at(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let from = offset as usize;
    if bytes.len() < from + data.len() {
        bytes.resize(from + data.len(), 0);
    }
    bytes[from..from + data.len()].copy_from_slice(data);
}

/// What happens to what was written and not synced.
#[derive(Clone, Copy, Debug)]
enum Loss {
    All,
    None,
    /// Each sector by itself.
    Random,
}

/// The disk after a cut at `events.len()`, if it held `files` before.
fn after_cut(mut files: Files, events: &[Event], loss: Loss, dice: &mut TestRng) -> Files {
    let synced = |name| {
        let is_it = |event: &Event| matches!(event, Event::Sync(synced) if *synced == name);
        events.iter().rposition(is_it).unwrap_or(0)
    };
    let (store_synced, log_synced) = (synced(Name::Store), synced(Name::Log));
    for (index, event) in events.iter().enumerate() {
        let is_kept = |dice: &mut TestRng, synced: usize| match loss {
            _ if index < synced => true,
            Loss::All => false,
            Loss::None => true,
            Loss::Random => dice.random(),
        };
        let synced = |name: &Name| if *name == Name::Store { store_synced } else { log_synced };
        match event {
            Event::Write { name, offset, data } => {
                // Sectors of the disk, not of the write.
                let mut at = 0;
                while at < data.len() {
                    let left = SECTOR - (*offset as usize + at) % SECTOR;
                    let end = (at + left).min(data.len());
                    if is_kept(dice, synced(name)) {
                        write_at(files.get(*name), offset + at as u64, &data[at..end]);
                    }
                    at = end;
                }
            }
            Event::Resize(name, length) if is_kept(dice, synced(name)) => {
                files.get(*name).resize(*length as usize, 0);
            }
            Event::Made(header) => files.log = Some(header.clone()),
            // Nobody waits until that is durable.
            Event::Removed if is_kept(dice, 0) => files.log = None,
            _ => {}
        }
    }
    files
}

fn dice(seed: u8) -> TestRng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

/// Rounds of some commits that wait together; returns the state at each version.
async fn work(
    disk: &Disk,
    store: &EmbeddedStore,
    rounds: usize,
    mut state: State,
) -> BTreeMap<Version, State> {
    let mut dice = dice(rounds as u8);
    let mut states = BTreeMap::new();
    states.insert(store.begin().await.unwrap().version(), state.clone());
    for round in 0..rounds {
        let mut waiting = Vec::new();
        for _ in 0..dice.random_range(1..5) {
            let mut transaction = store.begin().await.unwrap();
            for _ in 0..dice.random_range(1..6) {
                let key = vec![b'k', dice.random_range(0..40)];
                if dice.random_range(0..4) == 0 {
                    state.remove(&key);
                    transaction.delete(key);
                } else {
                    let value = vec![round as u8; dice.random_range(0..3000)];
                    state.insert(key.clone(), value.clone());
                    transaction.put(key, value);
                }
            }
            let committed = transaction.commit().await.unwrap();
            disk.note(Event::Decided(committed.version));
            states.insert(committed.version, state.clone());
            waiting.push(committed);
        }
        for committed in waiting {
            committed.durable.await.unwrap();
            disk.note(Event::Believed(committed.version));
        }
    }
    states
}

/// Opens what is left of a disk; says which version it went on from, and what it holds.
async fn survey(disk: &Disk) -> (EmbeddedStore, Version, State) {
    let store = disk.open().expect("a store that was cut off opens");
    let mut reader = store.begin().await.unwrap();
    let version = reader.version();
    let pairs = reader.scan(Range::new(Vec::new(), vec![0xff]), usize::MAX).await.unwrap();
    drop(reader);
    (store, version, pairs.into_iter().collect())
}

/// Checks the disk that is left after `events`.
async fn check(disk: &Disk, events: &[Event], states: &BTreeMap<Version, State>) {
    let believed = events.iter().rev().find_map(|event| match event {
        Event::Believed(version) => Some(*version),
        _ => None,
    });
    let decided = events.iter().filter_map(|event| match event {
        Event::Decided(version) => Some(*version),
        _ => None,
    });
    let (_store, version, found) = survey(disk).await;
    assert!(decided.max().is_none_or(|decided| version > decided), "a version is given twice");
    let held = Version(version.0 - VERSIONS_SKIPPED);
    assert!(believed.is_none_or(|believed| held >= believed), "lost what was believed durable");
    assert!(states.get(&held) == Some(&found), "the store holds no state that ever was");
}

/// Where to cut: before and after every sync, and between; not before the store was first open.
fn cuts(events: &[Event]) -> Vec<usize> {
    let is_opened = |event: &Event| matches!(event, Event::Opened);
    let first = events.iter().position(is_opened).map_or(0, |index| index + 1);
    let is_sync = |event: &Event| matches!(event, Event::Sync(_));
    let at_syncs = events.iter().enumerate().filter(|(_, event)| is_sync(event));
    let mut cuts: Vec<usize> = at_syncs.flat_map(|(index, _)| [index, index + 1]).collect();
    cuts.extend((0..events.len()).step_by(7));
    cuts.push(events.len());
    cuts.retain(|&cut| cut >= first);
    cuts
}

#[tokio::test]
async fn every_cut_leaves_a_state_that_was() {
    let disk = Disk::default();
    let store = disk.open().unwrap();
    disk.note(Event::Opened);
    let states = work(&disk, &store, 25, State::new()).await;
    drop(store);
    let events = disk.events();
    let mut dice = dice(7);
    for cut in cuts(&events) {
        for loss in [Loss::All, Loss::None, Loss::Random] {
            let files = after_cut(Files::default(), &events[..cut], loss, &mut dice);
            check(&Disk::holding(files), &events[..cut], &states).await;
        }
    }
}

#[tokio::test]
async fn a_cut_during_the_recovery_from_a_cut_loses_nothing_either() {
    let disk = Disk::default();
    let store = disk.open().unwrap();
    disk.note(Event::Opened);
    let states = work(&disk, &store, 6, State::new()).await;
    drop(store);
    let events = disk.events();
    let mut dice = dice(8);
    for cut in cuts(&events).into_iter().step_by(5) {
        let left = after_cut(Files::default(), &events[..cut], Loss::Random, &mut dice);
        let second = Disk::holding(left.clone());
        let (store, version, found) = survey(&second).await;
        assert!(states.get(&Version(version.0 - VERSIONS_SKIPPED)) == Some(&found));
        let mut states = work(&second, &store, 2, found.clone()).await;
        // Until the opening is durable, the store goes on from where it was.
        states.insert(Version(version.0 - VERSIONS_SKIPPED), found);
        drop(store);
        let events = second.events();
        for cut in cuts(&events) {
            let files = after_cut(left.clone(), &events[..cut], Loss::Random, &mut dice);
            check(&Disk::holding(files), &events[..cut], &states).await;
        }
    }
}

/// Commits values of `length` until the disk is full; what was told must be there afterwards.
async fn fill_disk(length: usize) {
    let disk = Disk::default();
    let store = disk.open().unwrap();
    let mut states = work(&disk, &store, 3, State::new()).await;
    disk.fill(true);
    let (mut last, mut state) = states.pop_last().unwrap();
    let error = loop {
        let mut transaction = store.begin().await.unwrap();
        let key = last.0.to_be_bytes().to_vec();
        transaction.put(key.clone(), vec![1; length]);
        let committed = transaction.commit().await.unwrap();
        match committed.durable.await {
            Ok(()) => {
                last = committed.version;
                state.insert(key, vec![1; length]);
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error:?}");
    assert!(matches!(store.begin().await.err(), Some(Error::Ended { .. })));
    drop(store);
    // With room again it goes on.
    disk.fill(false);
    let (store, version, found) = survey(&disk).await;
    assert!(found == state && version > last);
    work(&disk, &store, 2, found).await;
}

#[tokio::test]
async fn a_full_disk_is_said_and_loses_nothing() {
    // Past the log.
    fill_disk(100_000).await;
    // While redb takes up what is in the log.
    fill_disk(5_000).await;
}
