//! Programs that lock, and a server that asks for idle locks, in any order: what programs hold the
//! server has, and once it has asked, nothing that none holds.

use super::fake::{Fake, ROOT};
use super::*;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};
use tieline_types::ErrorKind;
use tieline_types::locks::{LockSet, Surplus};
use tieline_wire::Op;
use tieline_world::World;

const SPACE: u64 = 8;
const STEPS: usize = 300;
const PROGRAMS: u64 = 3;

#[derive(Default)]
struct Truth {
    /// What programs hold.
    held: LockSet<u64>,
    /// Programs that wait for an answer: what the server has of theirs may be more.
    busy: BTreeSet<u64>,
}

struct Scene {
    fake: Arc<Fake>,
    volume: Arc<Volume>,
    id: FileId,
    world: World,
    truth: Mutex<Truth>,
}

impl Scene {
    fn dice(&self, sides: u64) -> u64 {
        self.world.random() % sides
    }

    async fn pause(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(self.dice(millis))).await;
    }

    fn at_server(&self) -> LockSet<u64> {
        let state = self.fake.lock();
        let held = state.locks.get(&(self.id, LockKind::Posix)).into_iter();
        let mut set = LockSet::default();
        for one in held.flat_map(LockSet::iter) {
            set.set(one.owner.1, one.range, Some(one.mode));
        }
        set
    }

    fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap()
    }

    /// The server has all that programs hold.
    fn check(&self) {
        assert_eq!(self.truth().held.beyond(&self.at_server()), []);
    }

    async fn program(self: Arc<Self>, owner: u64) {
        let access = Access { read: true, write: true, ..Access::default() };
        let handle = self.volume.open(&Caller::root(), self.id, access).await.unwrap().handle;
        for _ in 0..STEPS {
            self.pause(30).await;
            // Requests overtake each other.
            self.fake.lock().delay = Duration::from_millis(self.dice(20));
            let start = self.dice(SPACE);
            let range = LockRange { start, end: start + 1 + self.dice(SPACE - start) };
            let mode = if self.dice(2) == 0 { LockMode::Shared } else { LockMode::Exclusive };
            let wish = LockWish { kind: LockKind::Posix, owner, range, mode, process: 1 };
            self.truth().busy.insert(owner);
            match self.dice(8) {
                0..4 => self.lock(handle, wish).await,
                4..7 => {
                    self.truth().held.set(owner, range, None);
                    self.volume.unlock(handle, wish).await.unwrap();
                }
                _ => {
                    self.truth().held.set(owner, LockRange::WHOLE, None);
                    self.volume.drop_locks(handle, LockKind::Posix, owner).await;
                }
            }
            self.truth().busy.remove(&owner);
            self.check();
        }
        self.truth().held.set(owner, LockRange::WHOLE, None);
        self.volume.drop_locks(handle, LockKind::Posix, owner).await;
    }

    async fn lock(&self, handle: HandleId, wish: LockWish) {
        let LockWish { owner, range, mode, .. } = wish;
        let before = self.truth().held.of(owner, range);
        for one in before.iter().filter(|_| mode == LockMode::Shared) {
            // What was exclusive is not from when this is asked.
            self.truth().held.set(owner, one.range.within(range), Some(mode));
        }
        let outcome = match self.dice(2) {
            0 => self.volume.lock(handle, wish, false).await,
            _ => {
                // Programs that wait for each other give up.
                let patience = Duration::from_millis(self.dice(500));
                let locking = self.volume.lock(handle, wish, true);
                let outcome = tokio::time::timeout(patience, locking).await;
                if outcome.is_err() {
                    // Until what it left behind is settled.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                outcome.unwrap_or_else(|_| Err(Error::local(ErrorKind::WouldBlock, "test")))
            }
        };
        let mut truth = self.truth();
        match outcome {
            Ok(()) => truth.held.set(owner, range, Some(mode)),
            Err(_) => {
                for one in before {
                    truth.held.set(owner, one.range.within(range), Some(one.mode));
                }
            }
        }
    }

    /// Another client is kept out now and then, until the programs have ended.
    async fn server(self: Arc<Self>) {
        loop {
            self.pause(25_000).await;
            self.fake.wants_locks(self.id).await;
            self.check();
            let truth = self.truth();
            let idle = self.at_server().beyond(&truth.held);
            let is_busy = |one: &Surplus<u64>| truth.busy.contains(&one.held.owner);
            assert!(idle.iter().all(is_busy), "{idle:?}");
        }
    }
}

/// How often a server was asked for locks.
async fn play(seed: u64) -> usize {
    let fake = Fake::new();
    let volume = fake.mount();
    let id = fake.lock().add(ROOT, &"f".parse().unwrap(), FileKind::Regular);
    let (world, _) = World::local(seed);
    let scene = Arc::new(Scene { fake, volume, id, world, truth: Mutex::default() });
    let server = tokio::spawn(scene.clone().server());
    let mut programs = tokio::task::JoinSet::new();
    for owner in 1..=PROGRAMS {
        programs.spawn(scene.clone().program(owner));
    }
    while let Some(joined) = programs.join_next().await {
        joined.unwrap();
    }
    assert!(!server.is_finished(), "seed {seed}");
    server.abort();
    assert_eq!(scene.at_server(), LockSet::default(), "seed {seed}");
    scene.fake.count(Op::Lock)
}

#[tokio::test(start_paused = true)]
async fn the_server_has_what_programs_hold_and_frees_what_none_does() {
    for seed in 0..20 {
        let requests = play(seed).await;
        assert!(requests < STEPS * PROGRAMS as usize, "{requests} requests, seed {seed}");
    }
}
