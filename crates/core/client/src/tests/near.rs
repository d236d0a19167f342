//! Caches that are plugged in: what they have is not fetched, what they spoil is not served.

use super::fake::{Fake, ROOT};
use super::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tieline_bytes::Whose;
use tieline_foresight::ahead::PIECE;
use tieline_servers::turns::Reader;
use tieline_types::{ChunkId, ChunkRef, Content, Digest, ErrorKind, OstPlace};
use tieline_wire::Op;

const CHUNK: usize = 64 << 10;

/// Everything that was ever kept, in pieces as they came.
#[derive(Default)]
pub struct Memory(
    Mutex<BTreeMap<(ChunkId, u64), Bytes>>,
    Mutex<BTreeMap<String, Vec<ChunkId>>>,
    Mutex<Option<Vec<u8>>>,
);

#[async_trait::async_trait]
impl NodeCache for Memory {
    async fn find(&self, chunk: &ChunkRef, range: Range<u64>) -> Vec<(u64, Bytes)> {
        let pieces = self.0.lock().unwrap();
        let mut found = Vec::new();
        let mut at = range.start;
        for ((_, offset), bytes) in pieces.iter().filter(|((id, _), _)| *id == chunk.chunk) {
            let (from, to) = ((*offset).max(at), (offset + bytes.len() as u64).min(range.end));
            if from < to {
                found.push((from, bytes.slice((from - offset) as usize..(to - offset) as usize)));
                at = to;
            }
        }
        found
    }

    fn keep(&self, chunk: &ChunkRef, offset: u64, bytes: Bytes) {
        self.0.lock().unwrap().insert((chunk.chunk, offset), bytes);
    }

    async fn store(&self, chunk: &ChunkRef, offset: u64, bytes: Bytes) -> Result<(), String> {
        self.keep(chunk, offset, bytes);
        Ok(())
    }

    async fn holds(&self, chunk: &ChunkRef) -> bool {
        let found = self.find(chunk, 0..chunk.length).await;
        found.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>() == chunk.length
    }

    async fn pin(&self, words: &str, chunks: Option<Vec<ChunkId>>) -> Result<(), String> {
        let mut pins = self.1.lock().unwrap();
        match chunks {
            Some(chunks) => drop(pins.insert(words.to_owned(), chunks)),
            None => drop(pins.remove(words)),
        }
        Ok(())
    }

    async fn pinned(&self) -> Vec<String> {
        self.1.lock().unwrap().keys().cloned().collect()
    }

    async fn save(&self, _words: &str, bytes: Vec<u8>) -> Result<(), String> {
        *self.2.lock().unwrap() = Some(bytes);
        Ok(())
    }

    async fn saved(&self, _words: &str) -> Option<Vec<u8>> {
        self.2.lock().unwrap().clone()
    }
}

/// A site's cache of one node.
#[derive(Default)]
struct Shelf {
    chunks: Arc<Mutex<BTreeMap<Digest, Bytes>>>,
    looks: AtomicUsize,
    is_aside: AtomicBool,
}

struct ShelfClaim(Arc<Mutex<BTreeMap<Digest, Bytes>>>, Digest);

#[async_trait::async_trait]
impl SiteCache for Shelf {
    async fn look(&self, digest: &Digest, _length: u64, _until: tokio::time::Instant) -> SiteLook {
        self.looks.fetch_add(1, Ordering::Relaxed);
        if self.is_aside.load(Ordering::Relaxed) {
            return SiteLook::Aside;
        }
        match self.chunks.lock().unwrap().get(digest) {
            Some(bytes) => SiteLook::Here(bytes.clone()),
            None => SiteLook::Ours(Box::new(ShelfClaim(self.chunks.clone(), *digest))),
        }
    }
}

#[async_trait::async_trait]
impl SiteClaim for ShelfClaim {
    async fn publish(self: Box<Self>, bytes: Bytes) {
        self.0.lock().unwrap().insert(self.1, bytes);
    }
}

/// Storage that gives what it is told.
struct Mounted(Option<Bytes>);

#[async_trait::async_trait]
impl DirectAccess for Mounted {
    fn has(&self, _: OstIndex) -> bool {
        true
    }

    async fn read(&self, _: &ChunkRef, _: &OstPlace) -> Option<Bytes> {
        self.0.clone()
    }
}

fn noise(length: usize) -> Bytes {
    (0..length).map(|index| (index * 31 + index / 257) as u8).collect::<Vec<u8>>().into()
}

/// A file of three chunks, written by another client.
async fn file(fake: &Arc<Fake>) -> (FileId, Bytes) {
    file_of(fake, 3 * CHUNK).await
}

async fn file_of(fake: &Arc<Fake>, length: usize) -> (FileId, Bytes) {
    let volume = fake.mount();
    let name: Name = "a".parse().unwrap();
    let access = Access { write: true, ..Access::default() };
    let (mode, umask) = (Mode::new(0o644), Mode::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    let at = At { parent: ROOT, name: &name };
    let (known, opened) = volume.create(&Caller::root(), at, new).await.unwrap();
    let bytes = noise(length);
    volume.write(opened.handle, 0, bytes.clone()).await.unwrap();
    volume.flush(opened.handle).await.unwrap();
    volume.release(opened.handle).await;
    (known.attributes.id, bytes)
}

pub async fn read(volume: &Volume, id: FileId, range: Range<usize>) -> Vec<u8> {
    let access = Access { read: true, ..Access::default() };
    let opened = volume.open(&Caller::root(), id, access).await.unwrap();
    let length = (range.end - range.start) as u32;
    volume.read(opened.handle, range.start as u64, length).await.unwrap().concat()
}

#[tokio::test(start_paused = true)]
async fn what_a_node_has_is_not_fetched_again() {
    let fake = Fake::new();
    let (id, bytes) = file(&fake).await;
    let near = Near { node: Some(Arc::new(Memory::default())), ..Near::default() };
    let first = fake.mount_near(near.clone());
    assert_eq!(read(&first, id, 8192..20_000).await, bytes[8192..20_000]);
    let exact = fake.count(Op::ReadObject);
    assert_eq!(exact, 1);
    // Another start of the same mount.
    let second = fake.mount_near(near.clone());
    assert_eq!(read(&second, id, 9000..15_000).await, bytes[9000..15_000]);
    assert_eq!(fake.count(Op::ReadObject), exact, "it was there");
    assert_eq!(read(&second, id, 0..3 * CHUNK).await, bytes);
    let all = fake.count(Op::ReadObject);
    let third = fake.mount_near(near);
    assert_eq!(read(&third, id, 0..3 * CHUNK).await, bytes);
    assert_eq!(fake.count(Op::ReadObject), all, "all of it was there");
}

#[tokio::test(start_paused = true)]
async fn a_site_fetches_a_chunk_once() {
    let fake = Fake::new();
    let (id, bytes) = file(&fake).await;
    let shelf = Arc::new(Shelf::default());
    let near = Near { site: Some(shelf.clone()), ..Near::default() };
    let mounts: Vec<_> = (0..3).map(|_| fake.mount_near(near.clone())).collect();
    for mount in &mounts {
        assert_eq!(read(mount, id, 100..200).await, bytes[100..200]);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(read(mount, id, 0..3 * CHUNK).await, bytes);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(fake.count(Op::ReadObject), 3, "three chunks, whole");
    // A cache that does not help costs nothing but the fetch.
    shelf.is_aside.store(true, Ordering::Relaxed);
    assert_eq!(read(&fake.mount_near(near.clone()), id, 0..3 * CHUNK).await, bytes);
    assert!(fake.count(Op::ReadObject) >= 6);
    // Ruled private, it is not even asked.
    let looks = shelf.looks.load(Ordering::Relaxed);
    let is_private: Arc<dyn Fn(OstIndex) -> bool + Send + Sync> = Arc::new(|_| true);
    let private = fake.mount_near(Near { is_private: Some(is_private), ..near });
    assert_eq!(read(&private, id, 0..3 * CHUNK).await, bytes);
    assert_eq!(shelf.looks.load(Ordering::Relaxed), looks);
}

/// Who closes the file takes a chunk back that is not begun, and no piece of one that is.
#[tokio::test(start_paused = true)]
async fn a_chunk_that_is_begun_for_a_site_is_finished() {
    let fake = Fake::new();
    let large = 4 << 20;
    (fake.lock().layout.chunk_size, fake.lock().layout.stripe_size) = (large, large);
    let (id, bytes) = file_of(&fake, large as usize).await;
    let content = fake.lock().page(id, 0).extents[0].content.clone();
    let Content::Chunk(chunk) = content else { panic!("{content:?}") };
    let shelf = Arc::new(Shelf::default());
    let volume = fake.mount_near(Near { site: Some(shelf.clone()), ..Near::default() });
    read(&volume, id, 0..0).await;
    let servers = &volume.shared.servers;
    let server = servers.oss(chunk.places[0].ost().unwrap()).unwrap();
    let (first, second) = (Reader::Handle(HandleId(7)), Reader::Handle(HandleId(8)));
    let fetch = |reader| {
        let (volume, chunk, caller) = (volume.clone(), chunk.clone(), Caller::root());
        let whose = Whose { file: id, caller, offset: 0, reader, is_wanted: Arc::default() };
        tokio::spawn(async move { volume.shared.chunks.fetch(&chunk, 0..100, &whose).await })
    };
    let settle = || tokio::time::sleep(Duration::from_millis(10));
    // Somebody else has all that there is room for under way.
    let other = server.turn(Reader::Own, server.room(), &Arc::default()).await.unwrap();
    let (fetched, waits) = (fetch(first), fetch(second));
    settle().await;
    servers.forget(first);
    assert_eq!(fetched.await.unwrap().unwrap_err().kind, ErrorKind::Cancelled);
    settle().await;
    assert!(!waits.is_finished(), "it wants the chunk still");
    servers.forget(second);
    assert_eq!(waits.await.unwrap().unwrap_err().kind, ErrorKind::Cancelled);
    drop(other);
    assert_eq!(fake.count(Op::ReadObject), 0);
    // There is room for one piece of it.
    let weight = server.room() - PIECE;
    let other = server.turn(Reader::Own, weight, &Arc::default()).await.unwrap();
    let held = fake.hold(Op::ReadObject);
    let (fetched, waits) = (fetch(first), fetch(second));
    settle().await;
    assert_eq!(fake.count(Op::ReadObject), 1);
    servers.forget(first);
    servers.forget(second);
    drop((other, held));
    for fetched in [fetched, waits] {
        assert_eq!(fetched.await.unwrap().unwrap().1, bytes);
    }
    settle().await;
    assert_eq!(shelf.chunks.lock().unwrap().len(), 1);
    assert_eq!(fake.count(Op::ReadObject) as u64, u64::from(large) / PIECE, "each once");
}

/// Neither who fetches for the site nor who waits for that waits twice.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_gone_is_waited_for_once() {
    let fake = Fake::new();
    let (id, _) = file(&fake).await;
    fake.lock().silent = [OstIndex(0), OstIndex(1)].into();
    let near = Near { site: Some(Arc::new(Shelf::default())), ..Near::default() };
    let volume = fake.mount_near(near);
    let access = Access { read: true, ..Access::default() };
    let begun = tokio::time::Instant::now();
    let mut reading = tokio::task::JoinSet::new();
    for at in [0, 100_000] {
        let opened = volume.open(&Caller::root(), id, access).await.unwrap();
        let volume = volume.clone();
        reading.spawn(async move { volume.read(opened.handle, at, 100).await.map(drop) });
    }
    while let Some(read) = reading.join_next().await {
        assert_eq!(read.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    }
    let wait = Settings::default().wait;
    assert!(begun.elapsed() < wait + Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn storage_that_is_mounted_is_read_past_its_server_if_it_is_right() {
    let fake = Fake::new();
    let (id, bytes) = file(&fake).await;
    let direct = |bytes| Near { direct: Some(Arc::new(Mounted(bytes))), ..Near::default() };
    let before = fake.count(Op::ReadObject);
    let right = fake.mount_near(direct(Some(bytes.slice(..CHUNK))));
    assert_eq!(read(&right, id, 10..5000).await, bytes[10..5000]);
    assert_eq!(fake.count(Op::ReadObject), before);
    let mut wrong = bytes[..CHUNK].to_vec();
    wrong[7] ^= 1;
    for (given, number) in [(Some(wrong.into()), 1), (None, 2)] {
        let mount = fake.mount_near(direct(given));
        assert_eq!(read(&mount, id, 10..5000).await, bytes[10..5000]);
        assert_eq!(fake.count(Op::ReadObject), before + number, "from its server");
    }
}

/// How far the pin of the root is.
async fn pinned(volume: &Volume) -> String {
    pinned_at(volume, ROOT).await
}

/// How far the pin of a tree is, once it was walked.
pub async fn pinned_at(volume: &Volume, tree: FileId) -> String {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let name = XattrName::new(b"user.tieline.pin").unwrap();
        let Ok(state) = volume.xattr(&Caller::root(), tree, &name).await else { continue };
        let state = String::from_utf8(state).unwrap();
        if state.contains("\"is_done\":true") {
            return state;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pinned_tree_is_brought_whole_and_taken_up_by_the_next_process() {
    let fake = Fake::new();
    let (id, bytes) = file(&fake).await;
    let (set, let_go) = ("user.tieline.pin.set", "user.tieline.pin.drop");
    let [set, let_go] = [set, let_go].map(|name| XattrName::new(name.as_bytes()).unwrap());
    let memory = Arc::new(Memory::default());
    let near = Near { node: Some(memory.clone()), ..Near::default() };
    let first = fake.mount_near(near.clone());
    first.xattr(&Caller::root(), ROOT, &set).await.unwrap();
    let state = pinned(&first).await;
    assert!(state.contains("\"files\":1,\"bytes\":196608,\"failed\":0"), "{state}");
    let pins = memory.1.lock().unwrap().values().cloned().collect::<Vec<_>>();
    assert_eq!(pins.len(), 1);
    assert_eq!(pins[0].len(), 3, "three chunks stay");
    let asked = fake.count(Op::ReadObject);
    assert_eq!(read(&first, id, 0..3 * CHUNK).await, bytes);
    assert_eq!(fake.count(Op::ReadObject), asked, "all of it was there");

    let second = fake.mount_near(near);
    pinned(&second).await;
    let stranger = Caller { uid: Uid(7), ..Caller::root() };
    let refused = second.xattr(&stranger, ROOT, &let_go).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotPermitted);
    second.xattr(&Caller::root(), ROOT, &let_go).await.unwrap();
    assert!(memory.1.lock().unwrap().is_empty());

    let without = fake.mount();
    without.xattr(&Caller::root(), ROOT, &set).await.unwrap();
    let state = pinned(&without).await;
    assert!(state.contains("\"is_refused\":true") && state.contains("without a cache"), "{state}");
}
