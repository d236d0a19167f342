//! Clients that cache all they may, over a store and connections that take their time: what anybody
//! still believes when everything is quiet is true.

use crate::fixture::*;
use crate::{Mdt, Parts, Recaller, Settings};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_kv::{Committed, Error, Key, MemoryStore, Range, Store, Transaction, Value};
use tieline_types::{Attributes, ClientId, FileId, SessionId, Version};
use tieline_wire::NoticeAnswer;
use tieline_wire::meta::*;
use tieline_wire::notice::Recall;
use tieline_world::World;

const NAMES: [&str; 3] = ["a", "b", "c"];
const CLIENTS: u64 = 4;
const STEPS: usize = 25;
const SEEDS: u64 = 150;

/// Waits up to 5 ms.
async fn dawdle(world: &World) {
    tokio::time::sleep(Duration::from_millis(world.random() % 6)).await;
}

/// A store between whose steps other things happen.
struct SlowStore {
    store: MemoryStore,
    world: World,
}

struct SlowTransaction {
    transaction: Box<dyn Transaction>,
    world: World,
}

#[async_trait::async_trait]
impl Store for SlowStore {
    async fn begin(&self) -> Result<Box<dyn Transaction>, Error> {
        dawdle(&self.world).await;
        let transaction = self.store.begin().await?;
        Ok(Box::new(SlowTransaction { transaction, world: self.world.clone() }))
    }

    fn describe(&self) -> String {
        "slow".to_owned()
    }
}

#[async_trait::async_trait]
impl Transaction for SlowTransaction {
    fn version(&self) -> Version {
        self.transaction.version()
    }

    async fn read(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>, Error> {
        dawdle(&self.world).await;
        self.transaction.read(keys).await
    }

    async fn scan(&mut self, range: Range, limit: usize) -> Result<Vec<(Key, Value)>, Error> {
        dawdle(&self.world).await;
        self.transaction.scan(range, limit).await
    }

    fn put(&mut self, key: Key, value: Value) {
        self.transaction.put(key, value);
    }

    fn delete(&mut self, key: Key) {
        self.transaction.delete(key);
    }

    async fn commit(self: Box<Self>) -> Result<Committed, Error> {
        dawdle(&self.world).await;
        let committed = self.transaction.commit().await?;
        dawdle(&self.world).await;
        Ok(committed)
    }
}

/// What one client believes: per unit, names with what they lead to, and as of when.
#[derive(Default)]
struct Cache {
    believed: BTreeMap<(FileId, &'static str), (Version, Option<Attributes>)>,
    /// What is as of this version or older must not be cached any more.
    barriers: BTreeMap<FileId, Version>,
}

impl Cache {
    fn forget(&mut self, unit: FileId, at: Version) {
        let barrier = self.barriers.entry(unit).or_default();
        *barrier = at.max(*barrier);
        self.believed.retain(|(of, _), (as_of, _)| *of != unit || *as_of > at);
    }

    fn learn(&mut self, unit: FileId, name: &'static str, reply: EntryReply) {
        let as_of = reply.lease.as_of;
        let is_late = self.barriers.get(&unit).is_some_and(|barrier| as_of <= *barrier);
        let is_known = self.believed.get(&(unit, name)).is_some_and(|(of, _)| *of > as_of);
        if reply.lease.units.contains(&unit) && !is_late && !is_known {
            self.believed.insert((unit, name), (as_of, reply.attributes));
        }
    }
}

struct Caches {
    world: World,
    caches: Mutex<BTreeMap<SessionId, Cache>>,
}

impl Caches {
    fn with<T>(&self, session: SessionId, act: impl FnOnce(&mut Cache) -> T) -> T {
        act(self.caches.lock().unwrap().entry(session).or_default())
    }

    /// A change was answered: nobody else believes what was before.
    fn check(
        &self,
        by: SessionId,
        version: Version,
        name: (FileId, &'static str),
        file: Option<FileId>,
    ) {
        let caches = self.caches.lock().unwrap();
        for (_, cache) in caches.iter().filter(|(session, _)| **session != by) {
            for (key, (as_of, belief)) in &cache.believed {
                let is_file =
                    file.is_some_and(|file| belief.as_ref().is_some_and(|b| b.id == file));
                let is_touched = is_file || (file.is_none() && *key == name);
                assert!(!is_touched || *as_of >= version, "{key:?} as of {as_of} at {version}");
            }
        }
    }
}

#[async_trait::async_trait]
impl Recaller for Caches {
    async fn recall(&self, to: SessionId, recall: Recall, _: Duration) -> Option<NoticeAnswer> {
        dawdle(&self.world).await;
        self.with(to, |cache| cache.forget(recall.unit, recall.at));
        dawdle(&self.world).await;
        Some(NoticeAnswer::default())
    }

    async fn free_locks(&self, _: SessionId, _: FileId, _: Duration) -> bool {
        true
    }

    fn hang_up(&self, _: SessionId) {}
}

/// One client at its work.
async fn work(client: Client, world: World, caches: Arc<Caches>, dirs: [FileId; 2]) {
    for _ in 0..STEPS {
        let dice = world.random();
        let (dir, other) = if dice & 1 == 0 { (dirs[0], dirs[1]) } else { (dirs[1], dirs[0]) };
        let name = NAMES[(dice >> 8) as usize % NAMES.len()];
        let new = NAMES[(dice >> 16) as usize % NAMES.len()];
        // Failures (taken names, files that went) are as good as successes here.
        let mut file = None;
        let kind = (dice >> 4) % 16;
        let committed = match kind {
            0 => client.call(create(dir, name, 0o644)).await.map(|reply| reply.open.lease),
            1 => client.call(unlink(dir, name)).await.map(|reply| reply.lease),
            2 => client.call(rename((dir, name), (other, new))).await.map(|reply| reply.lease),
            3 | 4 => {
                let found = client.lookup(dir, name).await.attributes;
                let Some(id) = found.map(|found| found.id) else { continue };
                file = Some(id);
                if dice & 2 == 0 {
                    client.call(link(id, other, new)).await.map(|reply| reply.lease)
                } else {
                    let mode = 0o600 | (dice >> 24) as u32 & 0o77;
                    client.call(chmod(id, mode)).await.map(|reply| reply.lease)
                }
            }
            _ => {
                let reply = client.lookup(dir, name).await;
                dawdle(&world).await;
                caches.with(client.session, |cache| cache.learn(dir, name, reply));
                continue;
            }
        };
        // Nobody tells a client what it changed itself.
        if let Ok(lease) = committed {
            // A rename may have found nothing to do.
            if kind != 2 {
                caches.check(client.session, lease.as_of, (dir, name), file);
            }
            for unit in dirs {
                caches.with(client.session, |cache| cache.forget(unit, lease.as_of));
            }
        }
        dawdle(&world).await;
    }
    for name in NAMES {
        let reply = client.lookup(dirs[0], name).await;
        caches.with(client.session, |cache| cache.learn(dirs[0], name, reply));
    }
}

async fn play(seed: u64) -> usize {
    let (world, _) = World::local(seed);
    let caches = Arc::new(Caches { world: world.clone(), caches: Mutex::default() });
    let parts = Parts {
        store: Arc::new(SlowStore { store: MemoryStore::new(), world: world.clone() }),
        world: world.clone(),
        map: map_cell(),
        recaller: caches.clone(),
        copies: Arc::new(Alone),
        exposer: Arc::new(Alone),
        limits: Arc::new(Alone),
        log: None,
    };
    let mdt = Mdt::start(parts, Settings::default()).await.unwrap();
    let first = Client::open(&mdt, (ClientId([0xff; 16]), None), None).await;
    let dirs = [first.mkdir(ROOT, "left").await, first.mkdir(ROOT, "right").await];
    let mut working = tokio::task::JoinSet::new();
    for id in 0..CLIENTS {
        let client = Client::open(&mdt, (ClientId([id as u8; 16]), None), None).await;
        working.spawn(work(client, world.clone(), caches.clone(), dirs));
    }
    while let Some(done) = working.join_next().await {
        done.unwrap();
    }
    let mut truth = BTreeMap::new();
    for unit in dirs {
        for name in NAMES {
            truth.insert((unit, name), first.lookup(unit, name).await.attributes);
        }
    }
    let caches = caches.caches.lock().unwrap();
    let mut believed = 0;
    for (session, cache) in caches.iter() {
        for (key, (_, belief)) in &cache.believed {
            assert_eq!(belief, &truth[key], "seed {seed}, session {session}, {key:?}");
            believed += 1;
        }
    }
    believed
}

#[test]
fn what_is_still_believed_in_the_end_is_true() {
    let mut believed = 0;
    for seed in 0..SEEDS {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        believed += runtime.block_on(play(seed));
    }
    // Else the test would say nothing.
    assert!(believed > SEEDS as usize, "only {believed} beliefs were left to check");
}
