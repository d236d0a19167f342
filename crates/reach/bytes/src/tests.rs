//! Bytes come from the nearest source that has them, and only bytes that are right; without an MDS.

mod fake;

use crate::{
    Chunks, Fault, Near, NodeCache, Piece, Proof, Segment, SiteCache, SiteClaim, SiteLook, Source,
    Stack, Wish,
};
use bytes::Bytes;
use fake::{FAR, Fake, NEAR, whose};
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_foresight::ahead::Width;
use tieline_types::{
    Algorithm, ChunkId, ChunkRef, Digest, Encoding, ErrorKind, ObjectName, Origin, Place,
};
use tokio::time::Instant;

const LENGTH: usize = 1 << 20;

/// Ranges that it was given, and what it was offered.
#[derive(Default)]
struct Shelf {
    name: &'static str,
    has: Mutex<Vec<Piece>>,
    asked: Mutex<Vec<Vec<Range<u64>>>>,
    offered: Mutex<Vec<Range<u64>>>,
    fails: bool,
}

#[async_trait::async_trait]
impl Source for Shelf {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn bring(&self, wish: &Wish) -> Result<Vec<Piece>, Fault> {
        self.asked.lock().unwrap().push(wish.ranges.clone());
        if self.fails {
            return Err(Fault { kind: ErrorKind::Timeout, what: self.name.to_owned() });
        }
        Ok(self.has.lock().unwrap().clone())
    }

    fn keep(&self, _: &ChunkRef, piece: &Piece) {
        self.offered.lock().unwrap().push(piece.range());
    }
}

fn shelf(name: &'static str, has: Vec<Piece>) -> Arc<Shelf> {
    Arc::new(Shelf { name, has: Mutex::new(has), ..Shelf::default() })
}

fn stack(shelves: &[&Arc<Shelf>]) -> Stack {
    Stack::new(shelves.iter().map(|&shelf| shelf.clone() as Arc<dyn Source>).collect())
}

// A list of one range, where others have more.
#[allow(clippy::single_range_in_vec_init)]
#[tokio::test]
async fn each_source_is_asked_for_what_those_before_it_have_not() {
    let (chunk, bytes) = Fake::default().chunk(LENGTH);
    let part = |range: Range<u64>| {
        Piece::new(
            range.start,
            bytes.slice(range.start as usize..range.end as usize),
            Proof::Judged,
        )
    };
    let here = |range| Piece { is_news: false, ..part(range) };
    let near = shelf("near", vec![here(100_000..300_000)]);
    let middle = shelf("middle", vec![part(300_000..500_000)]);
    let far = shelf("far", vec![part(0..100_000), part(500_000..900_000)]);
    let last = shelf("last", vec![]);
    let all = stack(&[&near, &middle, &far, &last]);
    let (offset, found) = all.fetch(&chunk, 0..800_000, &whose()).await.unwrap();
    assert_eq!((offset, &found[..]), (0, &bytes[..800_000]));
    assert_eq!(*near.asked.lock().unwrap(), [[0..800_000]]);
    assert_eq!(*middle.asked.lock().unwrap(), [[0..100_000, 300_000..800_000]]);
    assert_eq!(*far.asked.lock().unwrap(), [[0..100_000, 500_000..800_000]]);
    assert!(last.asked.lock().unwrap().is_empty(), "nothing was missing");
    // What came from far goes up, and nothing goes down.
    let offered = |shelf: &Shelf| shelf.offered.lock().unwrap().clone();
    assert_eq!(offered(&near), [300_000..500_000, 0..100_000, 500_000..900_000]);
    assert_eq!(offered(&middle), [0..100_000, 500_000..900_000]);
    assert!(offered(&far).is_empty());
}

#[tokio::test]
async fn a_fault_ends_the_search_and_an_empty_stack_says_so() {
    let (chunk, bytes) = Fake::default().chunk(LENGTH);
    let slow = Arc::new(Shelf { name: "slow", fails: true, ..Shelf::default() });
    let far = shelf("far", vec![Piece::new(0, bytes, Proof::Judged)]);
    let fault = stack(&[&slow, &far]).fetch(&chunk, 0..10, &whose()).await.unwrap_err();
    assert_eq!((fault.kind, fault.what.as_str()), (ErrorKind::Timeout, "slow"));
    assert!(far.asked.lock().unwrap().is_empty(), "it would be waited for twice");
    let none = stack(&[&shelf("none", vec![])]).fetch(&chunk, 0..10, &whose()).await;
    assert_eq!(none.unwrap_err().kind, ErrorKind::Gone);
}

// A list of one range, where others have more.
#[allow(clippy::single_range_in_vec_init)]
#[tokio::test]
async fn what_is_to_be_verified_goes_on_only_if_it_has_the_digest() {
    let (chunk, bytes) = Fake::default().chunk(LENGTH);
    let whole = |bytes: Bytes| Piece::new(0, bytes, Proof::Whole(Encoding::Plain));
    let mut wrong = bytes.to_vec();
    wrong[5] ^= 1;
    let first = shelf("first", vec![]);
    let bad = shelf("bad", vec![whole(wrong.into()), whole(bytes.slice(..LENGTH - 1))]);
    let good = shelf("good", vec![whole(bytes.clone())]);
    let all = stack(&[&first, &bad, &good]);
    assert_eq!(all.fetch(&chunk, 0..10, &whose()).await.unwrap(), (0, bytes.clone()));
    assert_eq!(*first.offered.lock().unwrap(), [0..LENGTH as u64], "the good one alone");
    // Without a digest nobody can tell.
    let chunk = ChunkRef { digest: None, ..chunk };
    assert!(all.fetch(&chunk, 0..10, &whose()).await.is_err());
}

/// Reads through memory, as readers do.
async fn read(chunks: &Arc<Chunks>, chunk: &ChunkRef, range: Range<u64>) -> Result<Vec<u8>, Fault> {
    let mut all = Vec::new();
    for segment in chunks.start(chunk, range, Width::Exact, &whose()) {
        match segment {
            Segment::Here(bytes) => all.extend_from_slice(&bytes),
            Segment::Coming(flight, range) => all.extend_from_slice(&flight.bytes(range).await?),
        }
    }
    Ok(all)
}

#[tokio::test(start_paused = true)]
async fn what_is_in_memory_or_on_its_way_is_not_asked_again() {
    let fake = Arc::new(Fake::default());
    let (chunk, bytes) = fake.chunk(LENGTH);
    let client = fake.client(Near::default());
    let both = tokio::join!(
        read(&client.chunks, &chunk, 4096..100_000),
        read(&client.chunks, &chunk, 8192..90_000)
    );
    assert_eq!(both.0.unwrap(), bytes[4096..100_000]);
    assert_eq!(both.1.unwrap(), bytes[8192..90_000]);
    assert_eq!(read(&client.chunks, &chunk, 5000..99_000).await.unwrap(), bytes[5000..99_000]);
    let wide = |asked: &tieline_wire::data::ReadObject| asked.length > 4096;
    // Beside it the other place may be asked for a little, to know what it costs.
    assert!(fake.lock().asked.iter().filter(|asked| wide(asked)).count() <= 2);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_copy_is_reported_and_the_other_read() {
    let fake = Arc::new(Fake::default());
    let (chunk, bytes) = fake.chunk(LENGTH);
    fake.lock().damaged = [(NEAR, 5000)].into();
    let client = fake.client(Near::default());
    for _ in 0..2 {
        let whole = 0..LENGTH as u64;
        let found = client.chunks.fetch(&chunk, whole, &whose()).await.unwrap();
        assert_eq!(found, (0, bytes.clone()));
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    let reports = fake.lock().reports.clone();
    assert_eq!(reports.iter().map(|one| one.ost).collect::<Vec<_>>(), [NEAR], "once");
    // In different blocks: what is good in either is put together.
    fake.lock().damaged.insert(FAR, 50_000);
    let client = fake.client(Near::default());
    let (offset, found) = client.chunks.fetch(&chunk, 4096..60_000, &whose()).await.unwrap();
    assert_eq!(found[(4096 - offset) as usize..][..50_000], bytes[4096..54_096]);
    // In the same: nothing is handed on.
    fake.lock().damaged.insert(FAR, 5000);
    let fault = client.chunks.fetch(&chunk, 4096..8192, &whose()).await.unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Corrupt);
}

/// Where it proves nothing, or what it proves is of other bytes.
#[tokio::test(start_paused = true)]
async fn a_place_that_lies_is_passed_by_and_reported_and_asked_last() {
    for is_silent in [true, false] {
        let fake = Arc::new(Fake::default());
        let (chunk, bytes) = fake.chunk(LENGTH);
        match is_silent {
            true => drop(fake.lock().proofless.insert(NEAR)),
            false => fake.lie(NEAR),
        }
        let client = fake.client(Near::default());
        let nearest = client.chunks.osts.places_in_order(&chunk, 10);
        assert_eq!(nearest[0].ost, NEAR);
        for range in [5000..5010, 0..LENGTH as u64, 700_000..900_000] {
            let found = client.chunks.fetch(&chunk, range.clone(), &whose()).await.unwrap();
            let from = (range.start - found.0) as usize;
            let length = (range.end - range.start) as usize;
            assert_eq!(found.1[from..][..length], bytes[range.start as usize..range.end as usize]);
        }
        assert_eq!(client.chunks.osts.places_in_order(&chunk, 10)[0].ost, FAR);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let reports = fake.lock().reports.clone();
        assert_eq!(reports.iter().map(|one| one.ost).collect::<Vec<_>>(), [NEAR], "once");
    }
}

/// The way past the site's cache, and the node's, is verified as well.
#[tokio::test(start_paused = true)]
async fn invented_bytes_are_in_no_cache_and_go_to_nobody() {
    let fake = Arc::new(Fake::default());
    let (chunk, _) = fake.chunk(LENGTH);
    [NEAR, FAR].into_iter().for_each(|ost| fake.lie(ost));
    let (node, site) = (Arc::new(Cache::default()), Arc::new(Site::default()));
    let both = Near { node: Some(node.clone()), site: Some(site.clone()), ..Near::default() };
    let alone = Near { node: Some(node.clone()), ..Near::default() };
    for near in [Near::default(), alone, both] {
        let client = fake.client(near);
        for range in [5000..5010, 0..LENGTH as u64] {
            let fault = client.chunks.fetch(&chunk, range, &whose()).await.unwrap_err();
            assert_eq!(fault.kind, ErrorKind::Corrupt);
            let says = tieline_servers::Error::from(fault).to_string();
            let parts = ["of file", "OST000", "tieline fsck", "mirror verify"];
            assert!(parts.iter().all(|part| says.contains(part)), "{says}");
        }
        assert!(client.chunks.store_whole(&chunk, &whose()).await.is_err());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(node.0.lock().unwrap().is_empty() && site.0.lock().unwrap().is_empty());
    // Without a digest nobody can tell: that is what new chunks must have one for.
    let client = fake.client(Near::default());
    let chunk = ChunkRef { digest: None, ..chunk };
    assert!(client.chunks.fetch(&chunk, 0..10, &whose()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_slow_place_gets_company_and_a_silent_one_ends_in_time() {
    let fake = Arc::new(Fake::default());
    let (chunk, bytes) = fake.chunk(LENGTH);
    let client = fake.client(Near::default());
    fake.lock().slow = [(NEAR, Duration::from_secs(50))].into();
    let begun = Instant::now();
    let found = client.chunks.fetch(&chunk, 0..4096, &whose()).await.unwrap();
    assert_eq!(found.1, bytes[..4096]);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    fake.lock().silent = [NEAR, FAR].into();
    let client = fake.client(Near::default());
    let begun = Instant::now();
    let fault = client.chunks.fetch(&chunk, 0..4096, &whose()).await.unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Timeout);
    assert!(begun.elapsed() < Duration::from_secs(62), "{:?}", begun.elapsed());
}

/// A node's cache in memory.
#[derive(Default)]
struct Cache(Mutex<BTreeMap<(ChunkId, u64), Bytes>>);

#[async_trait::async_trait]
impl NodeCache for Cache {
    async fn find(&self, chunk: &ChunkRef, range: Range<u64>) -> Vec<(u64, Bytes)> {
        let kept = self.0.lock().unwrap();
        let runs = kept.iter().filter(|((id, _), _)| *id == chunk.chunk);
        runs.filter_map(|((_, offset), bytes)| {
            let from = range.start.max(*offset);
            let to = range.end.min(offset + bytes.len() as u64);
            (from < to)
                .then(|| (from, bytes.slice((from - offset) as usize..(to - offset) as usize)))
        })
        .collect()
    }

    fn keep(&self, chunk: &ChunkRef, offset: u64, bytes: Bytes) {
        self.0.lock().unwrap().insert((chunk.chunk, offset), bytes);
    }

    async fn store(&self, chunk: &ChunkRef, offset: u64, bytes: Bytes) -> Result<(), String> {
        self.keep(chunk, offset, bytes);
        Ok(())
    }

    async fn holds(&self, chunk: &ChunkRef) -> bool {
        let all = self.find(chunk, 0..chunk.length).await;
        all.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>() >= chunk.length
    }

    async fn pin(&self, _: &str, _: Option<Vec<ChunkId>>) -> Result<(), String> {
        Ok(())
    }

    async fn pinned(&self) -> Vec<String> {
        Vec::new()
    }

    async fn save(&self, _: &str, _: Vec<u8>) -> Result<(), String> {
        Ok(())
    }

    async fn saved(&self, _: &str) -> Option<Vec<u8>> {
        None
    }
}

/// A site's cache in memory, whose directory may be given up.
#[derive(Default)]
struct Site(Arc<Mutex<BTreeMap<Digest, Bytes>>>);

struct Claim(Arc<Mutex<BTreeMap<Digest, Bytes>>>, Digest);

#[async_trait::async_trait]
impl SiteClaim for Claim {
    async fn publish(self: Box<Self>, bytes: Bytes) {
        self.0.lock().unwrap().insert(self.1, bytes);
    }
}

#[async_trait::async_trait]
impl SiteCache for Site {
    async fn look(&self, digest: &Digest, _: u64, _: Instant) -> SiteLook {
        match self.0.lock().unwrap().get(digest) {
            Some(bytes) => SiteLook::Here(bytes.clone()),
            None => SiteLook::Ours(Box::new(Claim(self.0.clone(), *digest))),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_chunk_is_brought_whole_once_for_all_and_kept_by_the_node() {
    let fake = Arc::new(Fake::default());
    let (chunk, bytes) = fake.chunk(LENGTH);
    let (node, site) = (Arc::new(Cache::default()), Arc::new(Site::default()));
    let near = Near { node: Some(node.clone()), site: Some(site.clone()), ..Near::default() };
    let client = fake.client(near.clone());
    let (one, other) = (whose(), whose());
    let both = tokio::join!(
        client.chunks.fetch(&chunk, 10..20, &one),
        client.chunks.fetch(&chunk, 500_000..500_010, &other)
    );
    assert_eq!((both.0.unwrap(), both.1.unwrap()), ((0, bytes.clone()), (0, bytes.clone())));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(site.0.lock().unwrap().len(), 1, "it is there for other nodes");
    assert!(node.holds(&chunk).await);
    let asked = fake.lock().asked.len();
    let bytes_asked: u64 = fake.lock().asked.iter().map(|one| u64::from(one.length)).sum();
    assert!(bytes_asked <= (LENGTH + LENGTH / 4) as u64, "once, and little to measure");
    // Another node has it from the site, and pins it without an OSS.
    let other = Arc::new(Cache::default());
    let client = fake.client(Near { node: Some(other.clone()), ..near });
    client.chunks.store_whole(&chunk, &whose()).await.unwrap();
    assert!(other.holds(&chunk).await);
    assert_eq!(fake.lock().asked.len(), asked);
    // Ruled private, it is asked of OSSs, and kept by the node alone.
    let is_private: Arc<dyn Fn(_) -> bool + Send + Sync> = Arc::new(|_| true);
    let empty = Arc::new(Site::default());
    let near = Near {
        node: None,
        site: Some(empty.clone()),
        is_private: Some(is_private),
        ..Near::default()
    };
    let client = fake.client(near);
    let (_, found) = client.chunks.fetch(&chunk, 0..4096, &whose()).await.unwrap();
    assert_eq!(found, bytes[..4096]);
    assert!(empty.0.lock().unwrap().is_empty());
}

/// A chunk of a repository: named by what lies there, which is packed, and at no OST.
fn published(bytes: &[u8]) -> (ChunkRef, Bytes) {
    let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
    packer.write_all(bytes).unwrap();
    let packed = Bytes::from(packer.finish().unwrap());
    let digest = Digest::compute(Algorithm::Sha1, Encoding::Zlib, &packed);
    let place = Place {
        origin: Origin::Repository("sw.example.org".parse().unwrap()),
        object: ObjectName::Key("data/x".to_owned()),
        offset: 0,
        length: None,
        is_stale: false,
        encoding: Some(Encoding::Zlib),
    };
    let chunk = ChunkRef {
        chunk: ChunkId::Content(digest),
        length: bytes.len() as u64,
        skip: 0,
        places: vec![place],
        digest: None,
        adler32: None,
        checks: None,
    };
    (chunk, packed)
}

#[tokio::test(start_paused = true)]
async fn a_chunk_of_a_repository_is_packed_for_the_site_and_plain_for_the_node() {
    let fake = Arc::new(Fake::default());
    let (_, bytes) = fake.chunk(LENGTH);
    let (chunk, packed) = published(&bytes);
    let brings = |bytes: &Bytes| Piece::new(0, bytes.clone(), Proof::Whole(Encoding::Zlib));
    let far = shelf("far", vec![brings(&packed)]);
    let (node, site) = (Arc::new(Cache::default()), Arc::new(Site::default()));
    let near = Near {
        node: Some(node.clone()),
        site: Some(site.clone()),
        further: vec![far.clone()],
        ..Near::default()
    };
    let client = fake.client(near.clone());
    let (_, found) = client.chunks.fetch(&chunk, 10..20, &whose()).await.unwrap();
    assert_eq!(found, bytes);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(node.holds(&chunk).await);
    assert_eq!(site.0.lock().unwrap().values().collect::<Vec<_>>(), [&packed]);
    // Another node has it from the site alone.
    let far = shelf("far", vec![]);
    let other = Near { node: None, further: vec![far.clone()], ..near.clone() };
    let (_, found) = fake.client(other).chunks.fetch(&chunk, 10..20, &whose()).await.unwrap();
    assert_eq!(found, bytes);
    assert!(far.asked.lock().unwrap().is_empty());
    // What is poisoned there, or comes so from afar, goes nowhere.
    let mut wrong = packed.to_vec();
    wrong[100] ^= 1;
    let wrong = Bytes::from(wrong);
    site.0.lock().unwrap().values_mut().for_each(|bytes| *bytes = wrong.clone());
    let far = shelf("far", vec![brings(&wrong)]);
    let near = Near { node: None, further: vec![far.clone()], ..near };
    let fault = fake.client(near.clone()).chunks.fetch(&chunk, 10..20, &whose()).await.unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Gone);
    *far.has.lock().unwrap() = vec![brings(&packed)];
    let (_, found) = fake.client(near).chunks.fetch(&chunk, 10..20, &whose()).await.unwrap();
    assert_eq!(found, bytes);
    assert!(fake.lock().asked.is_empty(), "no OSS has it");
}

/// Who is taken back before his turn is told so, and asks nobody.
#[tokio::test(start_paused = true)]
async fn what_nobody_wants_any_more_is_not_asked_for() {
    let fake = Arc::new(Fake::default());
    let (chunk, _) = fake.chunk(LENGTH);
    let client = fake.client(Near::default());
    let server = client.servers.oss(NEAR).unwrap();
    let (far, flag) = (client.servers.oss(FAR).unwrap(), Arc::default());
    let reader = tieline_servers::turns::Reader::Own;
    let first = server.turn(reader, server.room(), &flag).await.unwrap();
    let second = far.turn(reader, far.room(), &flag).await.unwrap();
    let (chunks, wanted) = (client.chunks.clone(), whose());
    let fetch = tokio::spawn(async move { chunks.fetch(&chunk, 0..4096, &wanted).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    client.servers.forget(reader);
    assert_eq!(fetch.await.unwrap().unwrap_err().kind, ErrorKind::Cancelled);
    drop((first, second));
}
