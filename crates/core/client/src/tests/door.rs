//! What programs see through a door that has a cache of its own, when others change the file: a
//! kernel too simple to be wrong, a file in two pages, and messages that take any time.
//!
//! The rule: who was told of a version, by attributes or by bytes, finds its bytes or newer ones in
//! all that he reads from then on.

use super::fake::{Dice, Fake, ROOT};
use super::*;
use crate::shared::lock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use tieline_types::{Content, Extent, Version};
use tokio::sync::watch;

const PAGE: u64 = 4096;
const PAGES: u64 = 3;
/// Changes of the file in one run.
const CHANGES: u64 = 12;
/// Schedules that are tried.
const SEEDS: u64 = 25;

/// A kernel's cache of one file.
struct Kernel {
    pages: Mutex<BTreeMap<u64, Page>>,
    /// Woken when a page is not locked any more.
    unlocked: watch::Sender<()>,
    dice: Mutex<Dice>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Page {
    /// A read of it is on its way.
    Locked,
    /// As the change of that number left it.
    Filled(u64),
}

impl Kernel {
    fn new(seed: u64) -> Arc<Self> {
        let (pages, unlocked) = (Mutex::default(), watch::channel(()).0);
        Arc::new(Self { pages, unlocked, dice: Mutex::new(Dice(seed)) })
    }

    fn pause(&self) -> Duration {
        lock(&self.dice).pause()
    }

    async fn until_unlocked(&self, page: u64) {
        let mut unlocked = self.unlocked.subscribe();
        while lock(&self.pages).get(&page) == Some(&Page::Locked) {
            unlocked.changed().await.unwrap();
        }
    }

    /// What a read(2) of one page gives, through the cache.
    async fn read(&self, volume: &Volume, handle: HandleId, page: u64, ahead: u64) -> u64 {
        self.until_unlocked(page).await;
        if let Some(Page::Filled(change)) = lock(&self.pages).get(&page).copied() {
            return change;
        }
        let window = {
            let mut pages = lock(&self.pages);
            let is_free = |at: &u64| !pages.contains_key(at);
            let all = page..PAGES.min(page + 1 + ahead);
            let window: Vec<u64> = all.take_while(is_free).collect();
            for at in &window {
                pages.insert(*at, Page::Locked);
            }
            window
        };
        tokio::time::sleep(self.pause() / 8).await;
        let length = window.len() as u64 * PAGE;
        let read = volume.read(handle, page * PAGE, length as u32).await.unwrap().concat();
        let change = |at: u64| {
            let from = ((at - page) * PAGE) as usize;
            u64::from_le_bytes(read[from..from + 8].try_into().unwrap())
        };
        let filled = window.into_iter().map(|at| (at, Page::Filled(change(at))));
        lock(&self.pages).extend(filled);
        self.unlocked.send_replace(());
        change(page)
    }

    fn drop_page(&self, page: u64) {
        let mut pages = lock(&self.pages);
        if pages.get(&page) != Some(&Page::Locked) {
            pages.remove(&page);
        }
    }

    /// As `invalidate_inode_pages2_range`: page by page, and waits for each that is locked.
    async fn forget(&self, parts: Vec<Range<u64>>) {
        for part in parts {
            for page in part.start / PAGE..PAGES.min(part.end.div_ceil(PAGE)) {
                self.until_unlocked(page).await;
                self.drop_page(page);
                tokio::time::sleep(self.pause() / 16).await;
            }
        }
    }
}

/// The kernel, as the client sees it.
struct Listener(Arc<Kernel>);

impl CacheListener for Listener {
    fn invalidate(&self, what: Invalidation, done: Box<dyn FnOnce() + Send>) {
        let kernel = self.0.clone();
        let whole = what.data.iter().map(|_| 0..u64::MAX);
        let parts = whole.chain(what.parts.into_iter().map(|(_, part)| part)).collect();
        tokio::spawn(async move {
            kernel.forget(parts).await;
            done();
        });
    }
}

fn put(state: &mut super::fake::State, id: FileId, change: u64) {
    for page in 0..PAGES {
        let mut bytes = vec![0; PAGE as usize];
        bytes[..8].copy_from_slice(&change.to_le_bytes());
        let (offset, length) = (page * PAGE, PAGE);
        state.replace(id, &Extent { offset, length, content: Content::Inline(bytes) });
    }
}

/// Which change made which version, and the newest that a program heard of.
#[derive(Default)]
struct History {
    changes: BTreeMap<Version, u64>,
    heard: u64,
}

/// One program looks and reads, over and over.
async fn reader(
    (volume, kernel): (Arc<Volume>, Arc<Kernel>),
    (id, handle): (FileId, HandleId),
    history: Arc<Mutex<History>>,
    mut dice: Dice,
) {
    let root = Caller::root();
    for _ in 0..80 {
        tokio::time::sleep(dice.pause()).await;
        let least = lock(&history).heard;
        if dice.below(3) == 0 {
            let version = volume.attributes(&root, id).await.unwrap().attributes.version;
            let mut history = lock(&history);
            let change = history.changes[&version];
            assert!(change >= least, "attributes of change {change} after {least}");
            history.heard = history.heard.max(change);
        } else {
            let (page, ahead) = (dice.below(PAGES), dice.below(PAGES));
            let change = kernel.read(&volume, handle, page, ahead).await;
            assert!(change >= least, "bytes of change {change} in page {page} after {least}");
            let mut history = lock(&history);
            history.heard = history.heard.max(change);
        }
    }
}

/// The file's name is gone: it is a unit of its own, and something else in its directory is known.
async fn schedule(seed: u64, is_nameless: bool, is_written: bool) {
    let (fake, root) = (Fake::new(), Caller::root());
    let name: Name = "a".parse().unwrap();
    let id = fake.lock().add(ROOT, &name, FileKind::Regular);
    put(&mut fake.lock(), id, 0);
    let volume = fake.mount();
    let kernel = Kernel::new(seed ^ 0x5555);
    volume.listen(Arc::new(Listener(kernel.clone())));
    volume.lookup(&root, ROOT, &name).await.unwrap();
    let access = Access { read: true, ..Access::default() };
    let handle = volume.open(&root, id, access).await.unwrap().handle;
    let unit = if is_nameless { id } else { ROOT };
    if is_nameless {
        let gone = |state: &mut super::fake::State| {
            state.nodes.get_mut(&ROOT).unwrap().names.remove(&name);
            state.nodes.get_mut(&id).unwrap().attributes.links = 0;
        };
        fake.elsewhere(ROOT, &["a"], &[id], gone).await;
        // Others are looked at there still.
        volume.attributes(&root, ROOT).await.unwrap();
    }
    let history = Arc::new(Mutex::new(History::default()));
    {
        let mut state = fake.lock();
        let node = state.nodes.get_mut(&id).unwrap();
        node.attributes.is_written = is_written.then_some(true);
        lock(&history).changes.insert(node.attributes.version, 0);
        state.dice = Some(Dice(seed));
    }
    let readers: Vec<_> = (0..3)
        .map(|one| {
            let dice = Dice(seed * 31 + one);
            let both = (volume.clone(), kernel.clone());
            tokio::spawn(reader(both, (id, handle), history.clone(), dice))
        })
        .collect();
    let mut dice = Dice(seed * 77);
    for change in 1..=CHANGES {
        tokio::time::sleep(dice.pause() * 3).await;
        let window = dice.pause() * 2;
        let written = fake.elsewhere_slowly((unit, id), window, |state| {
            put(state, id, change);
            lock(&history).changes.insert(Version(state.version), change);
        });
        written.await;
        // The writer is answered, and says so to everybody.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut history = lock(&history);
        history.heard = history.heard.max(change);
    }
    for reader in readers {
        reader.await.unwrap_or_else(|error| {
            panic!("seed {seed}, nameless: {is_nameless}, written: {is_written}: {error}")
        });
    }
    for page in 0..PAGES {
        let change = kernel.read(&volume, handle, page, 0).await;
        assert_eq!(change, CHANGES, "page {page}: seed {seed}, nameless: {is_nameless}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_was_told_of_a_version_reads_its_bytes_or_newer_ones() {
    for seed in 1..=SEEDS {
        for is_nameless in [false, true] {
            for is_written in [false, true] {
                schedule(seed, is_nameless, is_written).await;
            }
        }
    }
}
