//! Claims: names in a shared directory by which one node says that it does something.
//!
//! ```text
//! claims/NAME.0   made by one node, for making a name that exists fails everywhere
//! claims/NAME.1   made by the next, when the first gave no sign of life
//! ```
//!
//! A sign of life is a later time of the file; where times cannot be set, it is the next name, made
//! by the same node. Lives are counted by each node's own clock, from when it last saw a sign, so
//! that clocks need not agree. No locks, nothing is overwritten, nothing is renamed.
//!
//! Invariant: a claim only saves work. Two nodes that both believe they have one (attributes may be
//! told late) do the same work twice, and nothing worse.

use crate::storage::Storage;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Deaths in a row, and signs of life without times; beyond, whoever waits goes on without a claim.
const GENERATIONS_MAX: u32 = 4096;
/// A claim that is kept for ever is given back after so many, so that names do not pile up.
const GENERATIONS_LONG: u32 = 200;
/// Signs of life per life.
const BEATS: u32 = 4;

/// The claims of a directory, as one node makes them.
pub(crate) struct Claims {
    pub storage: Arc<dyn Storage>,
    pub folder: PathBuf,
    /// For people: which process of which node.
    pub owner: String,
    /// A claim without a sign of life for so long may be taken over.
    pub life: Duration,
}

/// What a node has seen of another's claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    generation: u32,
    modified_ms: u64,
    since: Instant,
}

/// Taken now, or not.
pub(crate) enum Taken {
    Ours(u32),
    Theirs(Watch),
}

impl Claims {
    fn path(&self, name: &str, generation: u32) -> PathBuf {
        self.folder.join(format!("{name}.{generation}"))
    }

    /// Makes a claim if nobody has it, or whoever has it is dead. Blocks for the storage only.
    pub fn take(&self, name: &str, watch: Option<Watch>) -> io::Result<Taken> {
        let Some(watch) = watch else { return self.take_first(name) };
        let path = self.path(name, watch.generation);
        match self.storage.stat(&path) {
            // Given back.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.take_first(name),
            Err(error) => Err(error),
            Ok(stat) if stat.modified_ms != watch.modified_ms => {
                let since = Instant::now();
                Ok(Taken::Theirs(Watch { modified_ms: stat.modified_ms, since, ..watch }))
            }
            // Signs of life come more often than that.
            Ok(_) if watch.since.elapsed() < self.life / BEATS => Ok(Taken::Theirs(watch)),
            Ok(_) => self.take_silent(name, watch),
        }
    }

    /// The same, of a claim whose time stands still: where times cannot be set, whoever has it is
    /// some names further on.
    fn take_silent(&self, name: &str, watch: Watch) -> io::Result<Taken> {
        let last = self.last(name, watch.generation);
        if last > watch.generation {
            return Ok(Taken::Theirs(self.watch(name, last)));
        }
        if watch.since.elapsed() < self.life {
            return Ok(Taken::Theirs(watch));
        }
        self.take_at(name, watch.generation + 1)
    }

    fn take_first(&self, name: &str) -> io::Result<Taken> {
        match self.make(name, 0)? {
            true => Ok(Taken::Ours(0)),
            false => Ok(Taken::Theirs(self.watch(name, self.last(name, 0)))),
        }
    }

    /// The last name of a series that has this one.
    fn last(&self, name: &str, from: u32) -> u32 {
        let is_made = |next: &u32| self.storage.stat(&self.path(name, *next)).is_ok();
        (from + 1..=GENERATIONS_MAX).take_while(is_made).last().unwrap_or(from)
    }

    fn take_at(&self, name: &str, generation: u32) -> io::Result<Taken> {
        if generation > GENERATIONS_MAX {
            return Err(io::Error::other(
                "too many claims on one chunk: delete the cache's claims",
            ));
        }
        match self.make(name, generation)? {
            true => Ok(Taken::Ours(generation)),
            false => Ok(Taken::Theirs(self.watch(name, generation))),
        }
    }

    fn make(&self, name: &str, generation: u32) -> io::Result<bool> {
        match self.storage.create(&self.path(name, generation), self.owner.as_bytes()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn watch(&self, name: &str, generation: u32) -> Watch {
        let stat = self.storage.stat(&self.path(name, generation)).unwrap_or_default();
        Watch { generation, modified_ms: stat.modified_ms, since: Instant::now() }
    }

    /// A sign of life; the generation from now on.
    fn beat(&self, name: &str, generation: u32) -> u32 {
        if self.storage.touch(&self.path(name, generation)).is_ok() {
            return generation;
        }
        match self.make(name, generation + 1) {
            Ok(true) => generation + 1,
            _ => generation,
        }
    }

    /// Gives a claim back, with what it was taken over from.
    fn release(&self, name: &str, generation: u32) {
        for generation in 0..=generation.min(GENERATIONS_MAX) {
            let _ = self.storage.remove(&self.path(name, generation));
        }
    }

    /// Keeps a claim that was taken until it is dropped.
    pub fn hold(self: &Arc<Self>, name: &str, generation: u32) -> Held {
        let generation = Arc::new(AtomicU32::new(generation));
        let (claims, owned, shared) = (self.clone(), name.to_owned(), generation.clone());
        let beating = tokio::spawn(async move {
            loop {
                tokio::time::sleep(claims.life / BEATS).await;
                let (claims, name, shared) = (claims.clone(), owned.clone(), shared.clone());
                let beat = tokio::task::spawn_blocking(move || {
                    let next = claims.beat(&name, shared.load(Ordering::Relaxed));
                    shared.store(next, Ordering::Relaxed);
                });
                let _ = beat.await;
            }
        });
        Held { claims: self.clone(), name: name.to_owned(), generation, beating }
    }

    /// Does something under a claim that was taken, and gives it back: [`Claims::hold`] for who
    /// has no runtime.
    pub fn during<T>(&self, name: &str, generation: u32, work: impl FnOnce() -> T) -> T {
        let (working, done) = mpsc::channel::<()>();
        let beat = move || {
            let mut generation = generation;
            while let Err(RecvTimeoutError::Timeout) = done.recv_timeout(self.life / BEATS) {
                generation = self.beat(name, generation);
            }
            self.release(name, generation);
        };
        std::thread::scope(|scope| {
            scope.spawn(beat);
            // Dropped in any case: whoever beats would go on.
            let _working = working;
            work()
        })
    }

    /// Who has a claim, if anybody: for people.
    pub fn owner_of(storage: &dyn Storage, folder: &std::path::Path, name: &str) -> Option<String> {
        let prefix = format!("{name}.");
        let names = storage.list(folder).ok()?;
        let generations = names.iter().filter_map(|name| name.strip_prefix(&prefix)?.parse().ok());
        let last: u32 = generations.max()?;
        let text = storage.read(&folder.join(format!("{prefix}{last}")), 1024).ok()?;
        Some(String::from_utf8_lossy(&text).trim().to_owned())
    }
}

/// A claim of this node. Given back when it is dropped.
pub(crate) struct Held {
    claims: Arc<Claims>,
    name: String,
    generation: Arc<AtomicU32>,
    beating: JoinHandle<()>,
}

impl Held {
    /// Is it time to let another have it?
    pub fn is_long(&self) -> bool {
        self.generation.load(Ordering::Relaxed) >= GENERATIONS_LONG
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.beating.abort();
        let (claims, name) = (self.claims.clone(), std::mem::take(&mut self.name));
        let generation = self.generation.load(Ordering::Relaxed);
        let release = move || claims.release(&name, generation);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(release);
        } else {
            release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Awkward, AwkwardStorage, LocalStorage};

    const LIFE: Duration = Duration::from_millis(200);

    fn claims(folder: &std::path::Path, owner: &str, awkward: &Awkward) -> Arc<Claims> {
        let storage = AwkwardStorage::new(Arc::new(LocalStorage::Private), awkward.clone());
        let (storage, folder, owner) = (Arc::new(storage), folder.to_owned(), owner.to_owned());
        Arc::new(Claims { storage, folder, owner, life: LIFE })
    }

    /// Waits for a claim as others do.
    async fn wait(claims: &Claims, patience: Duration) -> Option<u32> {
        let (mut watch, end) = (None, Instant::now() + patience);
        while Instant::now() < end {
            match claims.take("c", watch).unwrap() {
                Taken::Ours(generation) => return Some(generation),
                Taken::Theirs(seen) => watch = Some(seen),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        None
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_living_keep_a_claim_and_the_dead_lose_it() {
        for is_write_once in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let awkward = Awkward::default();
            awkward.set_write_once(is_write_once);
            let (one, other) =
                (claims(folder.path(), "one", &awkward), claims(folder.path(), "other", &awkward));
            let Taken::Ours(generation) = one.take("c", None).unwrap() else { panic!() };
            let held = one.hold("c", generation);
            assert_eq!(wait(&other, LIFE * 5).await, None, "it lives: {is_write_once}");
            let storage = LocalStorage::Private;
            let owner = Claims::owner_of(&storage, folder.path(), "c");
            assert_eq!(owner.as_deref(), Some("one"));
            drop(held);
            assert_eq!(wait(&other, LIFE * 5).await, Some(0), "it was given back");
            // The other dies with it: no beats.
            let taken = wait(&one, LIFE * 10).await;
            assert_eq!(taken, Some(1), "one alone takes it over");
            drop(one.hold("c", 1));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whoever_lived_long_without_times_is_followed_as_soon() {
        let folder = tempfile::tempdir().unwrap();
        let awkward = Awkward::default();
        awkward.set_write_once(true);
        let (one, other) =
            (claims(folder.path(), "one", &awkward), claims(folder.path(), "other", &awkward));
        let Taken::Ours(generation) = one.take("c", None).unwrap() else { panic!() };
        let held = one.hold("c", generation);
        let waiting = tokio::spawn(async move { wait(&other, LIFE * 20).await });
        tokio::time::sleep(LIFE * 6).await;
        held.beating.abort();
        let died = Instant::now();
        std::mem::forget(held);
        assert!(waiting.await.unwrap().is_some_and(|generation| generation > 10));
        assert!(died.elapsed() < LIFE * 3, "{:?}", died.elapsed());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_many_one_takes_over() {
        let folder = tempfile::tempdir().unwrap();
        let awkward = Awkward::default();
        let first = claims(folder.path(), "first", &awkward);
        assert!(matches!(first.take("c", None).unwrap(), Taken::Ours(0)));
        let waiting = (0..8).map(|number| {
            let claims = claims(folder.path(), &number.to_string(), &awkward);
            tokio::spawn(async move {
                let generation = wait(&claims, LIFE * 4).await;
                let held = generation.map(|generation| claims.hold("c", generation));
                tokio::time::sleep(LIFE * 4).await;
                held.is_some()
            })
        });
        let mut taken = 0;
        for waiting in waiting.collect::<Vec<_>>() {
            taken += usize::from(waiting.await.unwrap());
        }
        assert_eq!(taken, 1);
    }
}
