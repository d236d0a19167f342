//! Nodes that share a directory, on storages that can less and less.

use super::*;
use crate::storage::make_fifo;
use crate::{Awkward, AwkwardStorage, LocalStorage, pins};
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use tieline_world::SeededDice;

const LIFE: Duration = Duration::from_millis(300);

struct Lab {
    folder: tempfile::TempDir,
    awkward: Awkward,
    nodes: AtomicUsize,
    life: Duration,
}

impl Lab {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (awkward, nodes) = (Awkward::default(), AtomicUsize::default());
        Self { folder, awkward, nodes, life: LIFE }
    }

    fn node(&self, marks: Option<(u64, u64)>) -> SiteCache {
        let number = self.nodes.fetch_add(1, Ordering::Relaxed);
        let settings = SiteSettings {
            path: self.folder.path().to_owned(),
            marks,
            owner: format!("node {number}"),
            life: self.life,
        };
        let storage = AwkwardStorage::new(Arc::new(LocalStorage::Private), self.awkward.clone());
        let dice = Arc::new(SeededDice::new(number as u64));
        SiteCache::open(settings, Arc::new(storage), dice).unwrap()
    }

    fn place(&self, bytes: &[u8]) -> PathBuf {
        chunk_path(self.folder.path(), &digest(bytes).to_string())
    }
}

fn digest(bytes: &[u8]) -> Digest {
    Digest::of(bytes)
}

fn bytes(seed: u8, length: usize) -> Bytes {
    (0..length).map(|at| (at as u8).wrapping_mul(31) ^ seed).collect::<Vec<_>>().into()
}

fn in_a_minute() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Gets a chunk as a client does; counts fetches from afar.
async fn get(node: &SiteCache, wanted: &Bytes, fetches: &AtomicUsize) -> Bytes {
    match node.look(&digest(wanted), wanted.len() as u64, in_a_minute()).await {
        Looked::Here(bytes) => bytes,
        looked => {
            fetches.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(50)).await;
            if let Looked::Ours(claim) = looked {
                claim.publish(wanted.clone()).await;
            }
            wanted.clone()
        }
    }
}

async fn all_get(lab: &Lab, count: usize, wanted: &Bytes) -> usize {
    let fetches = Arc::new(AtomicUsize::default());
    let nodes: Vec<SiteCache> = (0..count).map(|_| lab.node(None)).collect();
    let asking = nodes.into_iter().map(|node| {
        let (wanted, fetches) = (wanted.clone(), fetches.clone());
        tokio::spawn(async move { assert_eq!(get(&node, &wanted, &fetches).await, wanted) })
    });
    for asking in asking.collect::<Vec<_>>() {
        asking.await.unwrap();
    }
    fetches.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_fetches() {
    let lab = Lab::new();
    assert_eq!(all_get(&lab, 16, &bytes(1, 100_000)).await, 1);
    assert_eq!(all_get(&lab, 4, &bytes(1, 100_000)).await, 0, "it is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_fetches_on_awkward_storage() {
    let lab = Lab::new();
    lab.awkward.set_write_once(true);
    assert_eq!(all_get(&lab, 8, &bytes(1, 50_000)).await, 1, "without overwriting");
    lab.awkward.stale_reads(3);
    assert_eq!(all_get(&lab, 8, &bytes(2, 50_000)).await, 1, "with stale handles");
    lab.awkward.set_closing(Duration::from_millis(100));
    assert_eq!(all_get(&lab, 8, &bytes(4, 50_000)).await, 1, "with bytes that are late");
    let notes = std::fs::read_dir(lab.folder.path().join("poisoned")).unwrap();
    assert_eq!(notes.count(), 0, "what is not whole yet is not bad");
    lab.awkward.set_closing(Duration::ZERO);
    // With times that are late, two may fetch; the bytes are right all the same.
    lab.awkward.keep_attributes(Duration::from_secs(60));
    lab.awkward.delay(Duration::from_millis(5));
    assert!(all_get(&lab, 8, &bytes(3, 50_000)).await <= 2);
    lab.awkward.stale_reads(1000);
    assert!(all_get(&lab, 8, &bytes(3, 50_000)).await >= 1, "stale for good: no cache");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_that_come_late_are_waited_for() {
    let lab = Lab::new();
    let (node, wanted) = (lab.node(None), bytes(1, 10_000));
    lab.awkward.half_made(2);
    get(&node, &wanted, &AtomicUsize::default()).await;
    assert!(lab.place(&wanted).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_dies_while_fetching_is_followed() {
    let lab = Lab::new();
    let wanted = bytes(4, 10_000);
    // A claim of a process that is gone: nobody gives it back, and it gives no sign of life.
    let dead = lab.node(None);
    assert!(matches!(
        dead.inner.claims.take(&digest(&wanted).to_string(), None),
        Ok(Taken::Ours(0))
    ));
    let begun = Instant::now();
    assert_eq!(all_get(&lab, 6, &wanted).await, 1);
    assert!(begun.elapsed() >= LIFE && begun.elapsed() < LIFE * 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_may_not_fetch_lets_others_try() {
    let lab = Lab { life: Duration::from_secs(60), ..Lab::new() };
    let wanted = bytes(5, 10_000);
    let node = lab.node(None);
    let looked = node.look(&digest(&wanted), 10_000, in_a_minute()).await;
    let Looked::Ours(claim) = looked else { panic!() };
    let soon = Instant::now() + Duration::from_millis(100);
    let looked = lab.node(None).look(&digest(&wanted), 10_000, soon).await;
    assert!(matches!(looked, Looked::Late), "nobody waits longer than he said");
    let begun = Instant::now();
    drop(claim);
    assert_eq!(all_get(&lab, 3, &wanted).await, 1);
    assert!(begun.elapsed() < lab.life, "given back, not waited for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poisoned_chunk_is_never_served() {
    let lab = Lab::new();
    let wanted = bytes(6, 10_000);
    assert_eq!(all_get(&lab, 1, &wanted).await, 1);
    for poison in [bytes(7, 10_000), wanted.slice(..5000), bytes(6, 20_000), Bytes::new()] {
        let path = lab.place(&wanted);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, &poison).unwrap();
        assert_eq!(all_get(&lab, 4, &wanted).await, 1, "fetched again, once");
        assert_eq!(std::fs::read(&path).unwrap(), wanted);
    }
    let note = lab.folder.path().join("poisoned").join(digest(&wanted).to_string());
    assert!(std::fs::read_to_string(note).unwrap().contains("found by node"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_regular_file_is_poison_and_holds_nobody_up() {
    let lab = Lab::new();
    let wanted = bytes(6, 10_000);
    assert_eq!(all_get(&lab, 1, &wanted).await, 1);
    let (path, begun) = (lab.place(&wanted), Instant::now());
    let good = path.with_file_name("good");
    std::fs::copy(&path, &good).unwrap();
    let strange: [&dyn Fn(); 3] =
        [&|| make_fifo(&path), &|| std::fs::create_dir(&path).unwrap(), &|| {
            std::os::unix::fs::symlink(&good, &path).unwrap()
        }];
    for place in strange {
        std::fs::remove_file(&path).unwrap();
        place();
        assert_eq!(all_get(&lab, 4, &wanted).await, 1, "fetched again, once");
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
    }
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    let note = lab.folder.path().join("poisoned").join(digest(&wanted).to_string());
    assert!(std::fs::read_to_string(note).unwrap().contains("no regular file"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_fails_or_goes_costs_no_reader() {
    let lab = Lab::new();
    let (fetches, node) = (AtomicUsize::default(), lab.node(None));
    let wanted = bytes(8, 10_000);
    get(&node, &wanted, &fetches).await;
    // All of it is deleted under us.
    for name in ["chunks", "claims", "tmp", "poisoned", "tieline-cache"] {
        let path = lab.folder.path().join(name);
        std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path)).unwrap();
    }
    assert_eq!(get(&node, &wanted, &fetches).await, wanted);
    lab.awkward.set_full(true);
    assert_eq!(get(&lab.node(None), &bytes(9, 10_000), &fetches).await, bytes(9, 10_000));
    lab.awkward.set_full(false);
    lab.awkward.set_failing(true);
    assert_eq!(get(&node, &bytes(9, 10_000), &fetches).await, bytes(9, 10_000));
    let before = fetches.load(Ordering::Relaxed);
    lab.awkward.set_failing(false);
    let other = lab.node(None);
    get(&other, &bytes(9, 10_000), &fetches).await;
    assert_eq!(get(&other, &bytes(9, 10_000), &fetches).await, bytes(9, 10_000));
    assert_eq!(fetches.load(Ordering::Relaxed), before + 1, "it works again");
}

/// What is there is served, also where nothing more can be written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_storage_serves_what_it_has() {
    let lab = Lab::new();
    let (fetches, node) = (AtomicUsize::default(), lab.node(None));
    let (old, new) = (bytes(1, 10_000), bytes(2, 10_000));
    get(&node, &old, &fetches).await;
    let looked = node.look(&digest(&new), 10_000, in_a_minute()).await;
    let Looked::Ours(claim) = looked else { panic!() };
    lab.awkward.set_full(true);
    // A chunk that finds no room when it is published, and one that cannot be claimed.
    claim.publish(new.clone()).await;
    let looked = node.look(&digest(&bytes(3, 10_000)), 10_000, in_a_minute()).await;
    assert!(matches!(looked, Looked::Aside));
    let before = fetches.load(Ordering::Relaxed);
    assert_eq!(get(&node, &old, &fetches).await, old);
    assert_eq!(fetches.load(Ordering::Relaxed), before, "it is there");
    // Who can neither read is let alone.
    lab.awkward.set_failing(true);
    get(&node, &old, &fetches).await;
    lab.awkward.set_failing(false);
    assert!(matches!(node.look(&digest(&old), 10_000, in_a_minute()).await, Looked::Aside));
}

/// A storage that is full is cleaned at once, whatever its marks say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_storage_is_cleaned() {
    let lab = Lab::new();
    let fetches = AtomicUsize::default();
    let node = lab.node(Some((1 << 30, 1 << 29)));
    let chunks: Vec<Bytes> = (0..10).map(|seed| bytes(seed, 10_000)).collect();
    for chunk in &chunks {
        get(&node, chunk, &fetches).await;
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    let looked = node.look(&digest(&bytes(99, 10_000)), 10_000, in_a_minute()).await;
    let Looked::Ours(claim) = looked else { panic!() };
    lab.awkward.set_full(true);
    claim.publish(bytes(99, 10_000)).await;
    lab.awkward.set_full(false);
    until("the oldest goes", || !lab.place(&chunks[0]).exists()).await;
    assert!(lab.place(&chunks[9]).exists());
}

/// Who fetches for long and lives is waited for, as long as the reader waits; and others may look
/// again.
#[tokio::test(start_paused = true)]
async fn whoever_lives_is_waited_for_as_long_as_the_reader_waits() {
    let lab = Lab { life: Duration::from_secs(60), ..Lab::new() };
    let wanted = bytes(5, 10_000);
    let node = lab.node(None);
    let looked = node.look(&digest(&wanted), 10_000, in_a_minute()).await;
    let Looked::Ours(claim) = looked else { panic!() };
    let other = lab.node(None);
    let waiting = tokio::spawn({
        let (other, wanted) = (other.clone(), wanted.clone());
        async move {
            let until = Instant::now() + Duration::from_secs(300);
            let begun = Instant::now();
            let looked = other.look(&digest(&wanted), 10_000, until).await;
            (matches!(looked, Looked::Here(_)), begun.elapsed())
        }
    });
    tokio::time::sleep(Duration::from_secs(150)).await;
    assert!(!waiting.is_finished(), "a living claim is waited for");
    claim.publish(wanted.clone()).await;
    let (is_here, waited) = waiting.await.unwrap();
    assert!(is_here && waited > Duration::from_secs(100), "{waited:?}");
}

/// A directory over which the storage is not mounted any more is not filled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_that_is_not_mounted_any_more_is_not_filled_in_its_place() {
    let lab = Lab::new();
    let (node, wanted) = (lab.node(None), bytes(1, 10_000));
    get(&node, &wanted, &AtomicUsize::default()).await;
    let names = ["chunks", "claims", "tmp", "poisoned", "tieline-cache"];
    for name in names {
        let path = lab.folder.path().join(name);
        std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path)).unwrap();
    }
    lab.awkward.set_device(7);
    let looked = node.look(&digest(&wanted), 10_000, in_a_minute()).await;
    assert!(matches!(looked, Looked::Aside));
    assert!(names.iter().all(|name| !lab.folder.path().join(name).exists()), "nothing is made");
}

/// What dead nodes left goes also where no size is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_dead_nodes_left_goes_without_marks() {
    let lab = Lab::new();
    let _node = lab.node(None);
    let [draft, claim] = ["tmp/0123", "claims/abcd.0"].map(|name| lab.folder.path().join(name));
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    for left in [&draft, &claim] {
        std::fs::write(left, "left").unwrap();
        let file = std::fs::File::options().write(true).open(left).unwrap();
        file.set_times(std::fs::FileTimes::new().set_modified(long_ago)).unwrap();
    }
    until("what was left goes", || !draft.exists() && !claim.exists()).await;
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_cleaner_keeps_the_marks_and_pins() {
    let lab = Lab::new();
    let fetches = AtomicUsize::default();
    let marks = Some((50_000, 30_000));
    let nodes = [lab.node(marks), lab.node(marks)];
    let chunks: Vec<Bytes> = (0..10).map(|seed| bytes(seed, 10_000)).collect();
    let first = BTreeSet::from([digest(&chunks[0]).to_string()]);
    pins::pin(&LocalStorage::Private, lab.folder.path(), "/extenci/first", &first).unwrap();
    for chunk in &chunks {
        get(&nodes[0], chunk, &fetches).await;
        // Used in this order.
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    let bytes_now = || -> u64 {
        let found = cleaner::chunks(&LocalStorage::Private, lab.folder.path()).unwrap();
        found.iter().map(|found| found.stat.length).sum()
    };
    let end = Instant::now() + Duration::from_secs(20);
    while bytes_now() > 50_000 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(bytes_now() <= 50_000, "below the high mark");
    assert!(lab.place(&chunks[0]).exists(), "pinned, and the oldest");
    assert!(lab.place(&chunks[9]).exists() && lab.place(&chunks[8]).exists());
    let claims = std::fs::read_dir(lab.folder.path().join("claims")).unwrap().count();
    assert_eq!(claims, 1, "one cleaner, and no claim was left");
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn with_storage(lab: &Lab, storage: LocalStorage) -> Result<SiteCache, Error> {
    let settings = SiteSettings {
        path: lab.folder.path().to_owned(),
        marks: None,
        owner: "node".to_owned(),
        life: LIFE,
    };
    SiteCache::open(settings, Arc::new(storage), Arc::new(SeededDice::new(1)))
}

/// Also in a cache that an earlier build made for everybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_is_for_the_user_of_the_mount_alone() {
    let lab = Lab::new();
    std::fs::set_permissions(lab.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let shared = with_storage(&lab, LocalStorage::Shared).unwrap();
    get(&shared, &bytes(1, 10_000), &AtomicUsize::default()).await;
    let chunks = lab.folder.path().join("chunks");
    assert_eq!((mode(&chunks), mode(&lab.place(&bytes(1, 10_000)))), (0o755, 0o644));
    assert!(exposure(lab.folder.path()).unwrap().contains("chmod 700"));
    drop(shared);
    let node = with_storage(&lab, LocalStorage::Private).unwrap();
    assert_eq!(exposure(lab.folder.path()), None);
    let wanted = bytes(2, 10_000);
    get(&node, &wanted, &AtomicUsize::default()).await;
    for name in ["chunks", "claims", "tmp", "poisoned"] {
        assert_eq!(mode(&lab.folder.path().join(name)), 0o700, "{name}");
    }
    let place = lab.place(&wanted);
    assert_eq!((mode(place.parent().unwrap()), mode(&place)), (0o700, 0o600));
}

/// Whoever planted a directory could read all that is put there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_somebody_else_is_not_filled() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let lab = Lab::new();
    let chunks = lab.folder.path().join("chunks");
    marker::ensure(&LocalStorage::Private, lab.folder.path(), Kind::Site).unwrap();
    std::fs::create_dir(&chunks).unwrap();
    std::os::unix::fs::chown(&chunks, Some(65534), Some(65534)).unwrap();
    let refused = with_storage(&lab, LocalStorage::Private).map(drop).unwrap_err().to_string();
    assert!(refused.contains("at-rest=trusted"), "{refused}");
    with_storage(&lab, LocalStorage::Shared).unwrap();
}
