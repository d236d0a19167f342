//! A lane on a real MDT, and an OSS whose exposed directory is a map in memory: it fails, forgets
//! and is cut off as dice say.

use super::lane::Lane;
use super::*;
use crate::Mirrors;
use crate::fixture::*;
use std::collections::BTreeMap;
use tieline_auth::MapCell;
use tieline_format::map::{Exposure, FederationMap};
use tieline_kv::{MemoryStore, Store};
use tieline_meta::Exposer;
use tieline_types::{FileKind, MdtIndex, Name, OstIndex, RenameMode, Version};
use tieline_wire::exposed::{ExposedName, Path, Step, StepOutcome};
use tieline_wire::meta::{LayoutChange, PoolChoice, SetLayout};

/// What lies in the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
enum There {
    Directory,
    File(FileId, Version),
}

#[derive(Default)]
struct Shelf(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    there: BTreeMap<Path, There>,
    staged: BTreeMap<FileId, Version>,
    /// Calls fail by these dice.
    seed: u64,
    /// In so many of 100 calls.
    trouble: u64,
    boot: u64,
}

impl Inner {
    fn dice(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.seed >> 33
    }

    fn fails(&mut self) -> bool {
        self.dice() % 100 < self.trouble
    }

    fn has_parent(&self, path: &[Name]) -> bool {
        match path.split_last() {
            Some((_, [])) => true,
            Some((_, above)) => self.there.get(above) == Some(&There::Directory),
            None => true,
        }
    }

    fn below(&self, path: &[Name]) -> Vec<Path> {
        let below = self.there.keys().filter(|other| other.len() > path.len());
        below.filter(|other| other.starts_with(path)).cloned().collect()
    }

    fn step(&mut self, step: &Step) -> StepOutcome {
        let failed = |what: &str| StepOutcome::Failed(what.to_owned());
        match step {
            Step::MakeDirectory { path, .. } => {
                if !self.has_parent(path) {
                    return StepOutcome::Missing;
                }
                if self.there.get(path) != Some(&There::Directory) {
                    self.there.insert(path.clone(), There::Directory);
                }
                StepOutcome::Done
            }
            Step::Place { path, file, content, .. } => {
                let is_staged = self.staged.remove(file) == Some(*content);
                if !is_staged || !self.has_parent(path) {
                    return StepOutcome::Missing;
                }
                if self.there.get(path) == Some(&There::Directory) {
                    return failed("a directory is in the way");
                }
                self.there.insert(path.clone(), There::File(*file, *content));
                StepOutcome::Done
            }
            Step::Link { from, path } => match self.there.get(from).cloned() {
                Some(file @ There::File(..)) if self.has_parent(path) => {
                    self.there.insert(path.clone(), file);
                    StepOutcome::Done
                }
                _ => StepOutcome::Missing,
            },
            Step::Move { from, path } => {
                let Some(own) = self.there.get(from).cloned() else {
                    let has = self.there.contains_key(path);
                    return if has { StepOutcome::Done } else { StepOutcome::Missing };
                };
                if !self.has_parent(path) {
                    return StepOutcome::Missing;
                }
                if !self.below(path).is_empty() {
                    return failed("a directory is in the way");
                }
                self.there.remove(from);
                self.there.insert(path.clone(), own);
                for old in self.below(from) {
                    let own = self.there.remove(&old).unwrap();
                    let new = [&path[..], &old[from.len()..]].concat();
                    self.there.insert(new, own);
                }
                StepOutcome::Done
            }
            Step::Dress { path, .. } => {
                let has = self.there.contains_key(path);
                if has { StepOutcome::Done } else { StepOutcome::Missing }
            }
            Step::Remove { path } => {
                assert_ne!(self.there.get(path), Some(&There::Directory), "{path:?}");
                self.there.remove(path);
                StepOutcome::Done
            }
            Step::RemoveDirectory { path } => {
                if !self.below(path).is_empty() {
                    return failed("not empty");
                }
                self.there.remove(path);
                StepOutcome::Done
            }
            Step::Check { path, .. } => match self.there.get(path) {
                Some(There::File(..)) => StepOutcome::Done,
                _ => StepOutcome::Missing,
            },
        }
    }
}

fn away() -> Failure {
    Failure::new(ErrorKind::Unreachable, "away")
}

#[async_trait::async_trait]
impl ExposedObjects for Shelf {
    async fn stage(&self, message: StageFile, _: Duration) -> Result<StageFileReply, Failure> {
        let mut inner = self.0.lock().unwrap();
        if inner.fails() {
            return Err(away());
        }
        inner.staged.insert(message.file, message.content);
        Ok(StageFileReply {})
    }

    async fn arrange(&self, message: ArrangeExposed) -> Result<ArrangeExposedReply, Failure> {
        tokio::task::yield_now().await;
        let mut inner = self.0.lock().unwrap();
        if inner.fails() {
            // It may have been done in part, or whole.
            let count = inner.dice() as usize % (message.steps.len() + 1);
            message.steps.iter().take(count).for_each(|step| drop(inner.step(step)));
            if inner.fails() {
                inner.staged.clear();
                inner.boot += 1;
            }
            return Err(away());
        }
        let mut outcomes = vec![];
        for step in &message.steps {
            let is_odd = inner.fails() && !matches!(step, Step::Check { .. });
            let outcome =
                if is_odd { StepOutcome::Failed("the disk".to_owned()) } else { inner.step(step) };
            outcomes.push(outcome);
        }
        Ok(ArrangeExposedReply { outcomes, boot: inner.boot, is_marked: true })
    }

    async fn list_exposed(&self, message: ListExposed) -> Result<ListExposedReply, Failure> {
        let mut inner = self.0.lock().unwrap();
        if inner.fails() {
            return Err(away());
        }
        let at = &message.directory;
        if !at.is_empty() && inner.there.get(at) != Some(&There::Directory) {
            return Err(Failure::new(ErrorKind::NotFound, "no such directory"));
        }
        let names = inner
            .there
            .iter()
            .filter(|(path, _)| path.len() == at.len() + 1 && path.starts_with(at));
        let names = names.map(|(path, there)| ExposedName {
            name: path.last().unwrap().clone(),
            is_directory: *there == There::Directory,
        });
        let names =
            names.filter(|one| message.after.as_ref().is_none_or(|after| one.name > *after));
        Ok(ListExposedReply { names: names.take(message.limit as usize).collect() })
    }
}

struct Told(Arc<Exposures>);

#[async_trait::async_trait]
impl Exposer for Told {
    fn noted(&self, pool: &PoolName) {
        self.0.noted(pool);
    }

    async fn take_away(&self, pool: &PoolName, files: Vec<FileId>) -> Result<(), Failure> {
        self.0.take_away(pool, files).await
    }
}

fn pool() -> PoolName {
    "uf".parse().unwrap()
}

fn exposed_map(is_over: bool) -> FederationMap {
    let mut map = map();
    for pool in map.pools.iter_mut().filter(|one| one.name == pool()) {
        pool.exposure = Some(Exposure {
            directory: "/srv/exposed".to_owned(),
            ost: OstIndex(0),
            since: Version(1),
            is_over: is_over.then_some(true),
        });
    }
    map
}

/// An MDT, and its lane.
struct Bench {
    house: MdtAlone,
    exposures: Arc<Exposures>,
    shelf: Arc<Shelf>,
    lane: tokio::task::JoinHandle<PoolName>,
}

impl Bench {
    async fn on(store: MemoryStore, shelf: Arc<Shelf>, map: &FederationMap) -> Self {
        let exposures = Arc::<Exposures>::default();
        let told = Arc::new(Told(exposures.clone()));
        let house = MdtAlone::with_exposer(store, map, told).await;
        let lane = tokio::spawn(lane(&house, &exposures, &shelf, map_cell_of(map)).run());
        Self { house, exposures, shelf, lane }
    }

    /// The MDS is killed where it stands.
    async fn restarted(self, map: &FederationMap) -> Self {
        self.lane.abort();
        let _ = self.lane.await;
        Self::on(self.house.store, self.shelf, map).await
    }
}

fn lane(house: &MdtAlone, exposures: &Arc<Exposures>, shelf: &Arc<Shelf>, map: MapCell) -> Lane {
    let (remover, mender) = (Arc::<Remover>::default(), Arc::<Mender>::default());
    let settings = crate::Settings {
        session_keep: Duration::from_secs(60),
        freed_keep: Duration::from_secs(60),
        collect_rate: 0,
        stray_keep: Duration::from_secs(60),
    };
    let parts = Parts {
        mdt: Arc::new(TendedMdt(house.mdt.clone())),
        index: MdtIndex(0),
        settings,
        store: Arc::new(house.store.clone()),
        world: house.world.clone(),
        map,
        log: None,
        objects: remover,
        mender,
        mirrors: Arc::<Mirrors>::default(),
        tape: Arc::<Library>::default(),
        exposed: shelf.clone(),
        exposures: exposures.clone(),
    };
    Lane::new(&Arc::new(parts), pool(), Arc::default())
}

/// New files are of the pool.
async fn set_pool(client: &Client) {
    let change = LayoutChange { pool: Some(PoolChoice::Pool(pool())), ..LayoutChange::default() };
    client.call(SetLayout { id: ROOT, layout: Some(change) }).await.unwrap();
}

/// The tree as it is to lie there: files of the pool by their paths, with their bytes' version.
async fn wanted(client: &Client, at: FileId, path: &[Name], all: &mut BTreeMap<Path, There>) {
    for text in client.list(at).await {
        let name: Name = text.parse().unwrap();
        let path = [path, &[name]].concat();
        let Some(id) = client.id(at, &text).await else { continue };
        let file = client.stat(id).await;
        if file.kind == FileKind::Directory {
            Box::pin(wanted(client, id, &path, all)).await;
        } else {
            let content = file.content_version().commit;
            all.insert(path, There::File(id, content));
        }
    }
}

fn files(shelf: &Shelf) -> BTreeMap<Path, There> {
    let there = shelf.0.lock().unwrap().there.clone();
    there.into_iter().filter(|(_, one)| *one != There::Directory).collect()
}

/// No name has bytes of a file that has others now. (A file that is gone, or moved, may lie there
/// for a moment.)
async fn check_truth(client: &Client, shelf: &Shelf) {
    for (path, there) in files(shelf) {
        let There::File(id, content) = there else { continue };
        let asked = tieline_wire::meta::GetAttributes { id };
        let Ok(reply) = client.call(asked).await else { continue };
        let now = reply.attributes.content_version().commit;
        // It was taken away in between, perhaps.
        let still = files(shelf).get(&path) == Some(&There::File(id, content));
        assert!(now == content || !still, "{path:?} has {content} of {id}, which is {now}");
    }
}

/// Random changes, random failures, and starts anew: it comes to what is to be, and never lies.
async fn play(seed: u64) {
    let map = exposed_map(false);
    let shelf = Arc::new(Shelf::default());
    (shelf.0.lock().unwrap().seed, shelf.0.lock().unwrap().trouble) = (seed, 8);
    let mut bench = Bench::on(MemoryStore::new(), shelf.clone(), &map).await;
    let mut client = bench.house.client().await;
    set_pool(&client).await;
    let mut dice = seed | 1;
    let mut throw = |sides: u64| {
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1);
        (dice >> 33) % sides
    };
    let names = ["a", "b", "c"];
    for turn in 0..120u64 {
        // A directory at the top, or one in it.
        let mut at = ROOT;
        if throw(2) == 0
            && let Some(id) = client.id(ROOT, names[throw(3) as usize]).await
            && client.stat(id).await.kind == FileKind::Directory
        {
            at = id;
        }
        let (one, two) = (names[throw(3) as usize], names[throw(3) as usize]);
        match throw(10) {
            0 | 1 => drop(client.call(mkdir(at, one, 0o755)).await),
            2 | 3 => {
                let made = client.call(create(at, one, 0o644)).await;
                if let Ok(made) = made {
                    let bytes = inline(0, turn.to_string().as_bytes());
                    let id = made.open.attributes.id;
                    let closed = tieline_wire::meta::Commit {
                        closes: Some(true),
                        ..commit(id, vec![bytes])
                    };
                    drop(client.call(closed).await);
                }
            }
            4 => {
                if let Some(id) = client.id(at, one).await {
                    let bytes = inline(0, format!("again {turn}").as_bytes());
                    drop(client.call(commit(id, vec![bytes])).await);
                }
            }
            5 => drop(client.call(unlink(at, one)).await),
            6 => drop(client.call(rmdir(at, one)).await),
            7 => drop(client.call(rename((at, one), (ROOT, two))).await),
            8 => {
                let swapped = tieline_wire::meta::Rename {
                    mode: RenameMode::Exchange,
                    ..rename((ROOT, one), (at, two))
                };
                drop(client.call(swapped).await);
            }
            _ => {
                if let Some(id) = client.id(at, one).await {
                    drop(client.call(link(id, ROOT, two)).await);
                }
            }
        }
        check_truth(&client, &shelf).await;
        if throw(4) == 0 {
            tokio::time::sleep(Duration::from_millis(50 + 100 * throw(8))).await;
            check_truth(&client, &shelf).await;
        }
        if throw(25) == 0 {
            drop(client);
            bench = bench.restarted(&map).await;
            client = bench.house.client().await;
        }
    }
    shelf.0.lock().unwrap().trouble = 0;
    let mut all = BTreeMap::new();
    wanted(&client, ROOT, &[], &mut all).await;
    for _ in 0..600 {
        if files(&shelf) == all {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(files(&shelf), all, "seed {seed}");
    // And when it ends, nothing is left, here or there.
    let over = exposed_map(true);
    bench.lane.abort();
    let (store, exposures) = (&bench.house.store, &bench.exposures);
    let end = lane(&bench.house, exposures, &shelf, map_cell_of(&over)).run();
    assert_eq!(tokio::time::timeout(Duration::from_secs(60), end).await, Ok(pool()));
    assert!(shelf.0.lock().unwrap().there.is_empty(), "seed {seed}");
    let kept = Range::new(key::kind(b'y'), key::after(&key::kind(b'y')));
    let kept = store.begin().await.unwrap().scan(kept, 1).await.unwrap();
    assert!(kept.is_empty(), "seed {seed}: {kept:?}");
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_nothing_lies_and_all_comes_to_be_there() {
    for seed in 1..=12 {
        play(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_waits_for_an_oss_that_is_away_and_says_for_whom() {
    let map = exposed_map(false);
    let shelf = Arc::new(Shelf::default());
    let bench = Bench::on(MemoryStore::new(), shelf.clone(), &map).await;
    let client = bench.house.client().await;
    set_pool(&client).await;
    let id = client.create(ROOT, "file").await;
    client.commit(id, vec![inline(0, b"old")]).await;
    let is_there = || !files(&shelf).is_empty();
    while !is_there() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    shelf.0.lock().unwrap().trouble = 100;
    let refused = client.call(commit(id, vec![inline(0, b"new")])).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Overloaded);
    assert!(refused.detail.contains("pool uf is exposed"), "{refused}");
    // What only moves or goes does not wait.
    client.call(rename((ROOT, "file"), (ROOT, "moved"))).await.unwrap();
    shelf.0.lock().unwrap().trouble = 0;
    tokio::time::sleep(Duration::from_secs(1)).await;
    client.commit(id, vec![inline(0, b"new")]).await;
    check_truth(&client, &shelf).await;
}
