//! The real engine over a disk that knows *written* from *synced*, cut off at every sync and
//! between.
//!
//! A workload runs once; the disk keeps a log of every write, every sync, and when a commit's
//! durability was believed. Then for each cut the log is played to that point: what was synced is
//! there; of what was written since, each sector may have reached the disk or not. The store must
//! open, hold exactly the state of one version, at least the last that was believed durable, and
//! give no version twice.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeMap;
use std::sync::Mutex;

const CACHE: ByteSize = ByteSize(4 << 20);
/// What a disk writes wholly or not at all.
const SECTOR: usize = 512;

type State = BTreeMap<Key, Value>;

#[derive(Clone, Debug)]
enum Event {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    Resize(u64),
    Sync,
    /// The store is open: only now does its file get its name.
    Opened,
    /// Somebody was told that this version is durable.
    Believed(Version),
    /// This version was given to a commit.
    Decided(Version),
}

/// A disk in memory; clones are the same disk.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    bytes: Vec<u8>,
    events: Vec<Event>,
    /// Growing beyond this fails.
    capacity: Option<u64>,
}

impl Disk {
    fn holding(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Inner { bytes, ..Inner::default() })))
    }

    fn note(&self, event: Event) {
        self.0.lock().unwrap().events.push(event);
    }

    fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().events.clone()
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = self.0.lock().unwrap();
        let from = offset as usize;
        let bytes = inner.bytes.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        if inner.capacity.is_some_and(|capacity| length > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        inner.bytes.resize(length as usize, 0);
        inner.events.push(Event::Resize(length));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.note(Event::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        write_at(&mut inner.bytes, offset, data);
        inner.events.push(Event::Write { offset, data: data.to_vec() });
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

/// The disk after a cut at `events.len()`, if it held `bytes` before.
fn after_cut(mut bytes: Vec<u8>, events: &[Event], loss: Loss, dice: &mut TestRng) -> Vec<u8> {
    let synced = events.iter().rposition(|event| matches!(event, Event::Sync)).unwrap_or(0);
    for (index, event) in events.iter().enumerate() {
        let is_kept = |dice: &mut TestRng| match loss {
            _ if index < synced => true,
            Loss::All => false,
            Loss::None => true,
            Loss::Random => dice.random(),
        };
        match event {
            Event::Write { offset, data } => {
                // Sectors of the disk, not of the write.
                let mut at = 0;
                while at < data.len() {
                    let left = SECTOR - (*offset as usize + at) % SECTOR;
                    let end = (at + left).min(data.len());
                    if is_kept(dice) {
                        write_at(&mut bytes, offset + at as u64, &data[at..end]);
                    }
                    at = end;
                }
            }
            Event::Resize(length) if is_kept(dice) => bytes.resize(*length as usize, 0),
            _ => {}
        }
    }
    bytes
}

fn open(disk: &Disk) -> Result<EmbeddedStore, Error> {
    EmbeddedStore::open_backend("crash test".into(), disk.clone(), CACHE)
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
    let store = open(disk).expect("a store that was cut off opens");
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
    let is_sync = |event: &Event| matches!(event, Event::Sync);
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
    let store = open(&disk).unwrap();
    disk.note(Event::Opened);
    let states = work(&disk, &store, 25, State::new()).await;
    drop(store);
    let events = disk.events();
    let mut dice = dice(7);
    for cut in cuts(&events) {
        for loss in [Loss::All, Loss::None, Loss::Random] {
            let bytes = after_cut(Vec::new(), &events[..cut], loss, &mut dice);
            check(&Disk::holding(bytes), &events[..cut], &states).await;
        }
    }
}

#[tokio::test]
async fn a_cut_during_the_recovery_from_a_cut_loses_nothing_either() {
    let disk = Disk::default();
    let store = open(&disk).unwrap();
    disk.note(Event::Opened);
    let states = work(&disk, &store, 6, State::new()).await;
    drop(store);
    let events = disk.events();
    let mut dice = dice(8);
    for cut in cuts(&events).into_iter().step_by(5) {
        let left = after_cut(Vec::new(), &events[..cut], Loss::Random, &mut dice);
        let second = Disk::holding(left.clone());
        let (store, version, found) = survey(&second).await;
        assert!(states.get(&Version(version.0 - VERSIONS_SKIPPED)) == Some(&found));
        let mut states = work(&second, &store, 2, found.clone()).await;
        // Until the opening is durable, the store goes on from where it was.
        states.insert(Version(version.0 - VERSIONS_SKIPPED), found);
        drop(store);
        let events = second.events();
        for cut in cuts(&events) {
            let bytes = after_cut(left.clone(), &events[..cut], Loss::Random, &mut dice);
            check(&Disk::holding(bytes), &events[..cut], &states).await;
        }
    }
}

#[tokio::test]
async fn a_full_disk_is_said_and_loses_nothing() {
    let disk = Disk::default();
    let store = open(&disk).unwrap();
    let mut states = work(&disk, &store, 3, State::new()).await;
    disk.0.lock().unwrap().capacity = Some(disk.bytes().len() as u64);
    let (mut last, mut state) = states.pop_last().unwrap();
    let error = loop {
        let mut transaction = store.begin().await.unwrap();
        let key = last.0.to_be_bytes().to_vec();
        transaction.put(key.clone(), vec![1; 100_000]);
        let committed = transaction.commit().await.unwrap();
        match committed.durable.await {
            Ok(()) => {
                last = committed.version;
                state.insert(key, vec![1; 100_000]);
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error:?}");
    assert!(matches!(store.begin().await.err(), Some(Error::Ended { .. })));
    drop(store);
    // With room again it goes on.
    disk.0.lock().unwrap().capacity = None;
    let (store, version, found) = survey(&disk).await;
    assert!(found == state && version > last);
    work(&disk, &store, 2, found).await;
}
