//! A node's cache: what is kept, what is found again, and what happens when the disk does not
//! behave.

// Lists of one range, where others have more.
#![allow(clippy::single_range_in_vec_init)]

use super::*;
use tieline_types::{Digest, Grant, GrantedId, MdtIndex};
use tieline_world::TimerClock;

const LENGTH: u64 = 100_000;

fn bytes(serial: u64) -> Bytes {
    (0..LENGTH).map(|at| (at.wrapping_mul(serial + 7) >> 3) as u8).collect::<Vec<_>>().into()
}

fn known(serial: u64) -> Known {
    let chunk = GrantedId { mdt: MdtIndex(1), grant: Grant(2), serial }.into();
    let digest = Some(Digest::of(&bytes(serial)));
    Known { chunk, length: LENGTH, digest }
}

fn open(path: &Path, bytes_max: u64) -> Result<NodeCache, Error> {
    let settings = NodeSettings { path: path.to_owned(), bytes_max, scope: "extenci-1".into() };
    NodeCache::open(settings, Arc::new(TimerClock::default()))
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}");
}

/// Keeps a range and waits until it is there.
async fn keep(cache: &NodeCache, serial: u64, range: Range<u64>) {
    let part = bytes(serial).slice(range.start as usize..range.end as usize);
    cache.keep(&known(serial), range.start, part);
    let all = QUEUE_MAX / GRAIN;
    until("the queue drains", || cache.inner.queue.available_permits() == all).await;
}

async fn find(cache: &NodeCache, serial: u64, range: Range<u64>) -> Vec<Range<u64>> {
    let runs = cache.find(&known(serial), range).await;
    let right = bytes(serial);
    for (offset, bytes) in &runs {
        let from = *offset as usize;
        assert_eq!(bytes, &right.slice(from..from + bytes.len()));
    }
    runs.iter().map(|(offset, bytes)| *offset..*offset + bytes.len() as u64).collect()
}

fn entry_path(folder: &Path, serial: u64) -> PathBuf {
    chunk_path(&folder.join("extenci-1"), known(serial).chunk)
}

#[tokio::test]
async fn blocks_are_kept_as_they_come() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path(), 10 << 20).unwrap();
    assert_eq!(find(&cache, 1, 0..LENGTH).await, []);
    // Whole blocks only: 4096..12288.
    keep(&cache, 1, 100..13_000).await;
    assert_eq!(find(&cache, 1, 0..20_000).await, [4096..12_288]);
    assert_eq!(find(&cache, 1, 5000..6000).await, [5000..6000]);
    keep(&cache, 1, 90_112..LENGTH).await;
    assert_eq!(find(&cache, 1, 0..LENGTH).await, [4096..12_288, 90_112..LENGTH]);
    keep(&cache, 1, 0..LENGTH).await;
    assert_eq!(find(&cache, 1, 1..LENGTH).await, [1..LENGTH]);
    assert_eq!(find(&cache, 2, 0..LENGTH).await, []);
}

/// Pieces of a chunk come at the same time, and the first makes its file.
#[tokio::test]
async fn pieces_that_come_together_are_all_kept() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path(), 100 << 20).unwrap();
    for serial in 1..=200 {
        let (known, whole) = (known(serial), bytes(serial));
        for start in (0..whole.len()).step_by(GRAIN) {
            let end = (start + GRAIN).min(whole.len());
            cache.keep(&known, start as u64, whole.slice(start..end));
        }
    }
    let all = QUEUE_MAX / GRAIN;
    until("the queue drains", || cache.inner.queue.available_permits() == all).await;
    for serial in 1..=200 {
        assert_eq!(find(&cache, serial, 0..LENGTH).await, [0..LENGTH], "{serial}");
    }
}

#[tokio::test]
async fn a_restart_finds_it_and_two_at_once_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path(), 10 << 20).unwrap();
    keep(&cache, 1, 0..50_000).await;
    let refused = open(folder.path(), 10 << 20).err().unwrap().to_string();
    assert!(refused.contains("directory of its own"), "{refused}");
    drop(cache);
    let cache = open(folder.path(), 10 << 20).unwrap();
    assert_eq!(find(&cache, 1, 0..LENGTH).await, [0..49_152]);
    keep(&cache, 1, 49_152..LENGTH).await;
    assert_eq!(find(&cache, 1, 0..LENGTH).await, [0..LENGTH]);
}

#[tokio::test]
async fn what_was_not_used_for_longest_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path(), 500_000).unwrap();
    let pinned = [known(2).chunk.to_string()].into();
    pins::pin(&LocalStorage::Private, &folder.path().join("extenci-1"), "/extenci/two", &pinned)
        .unwrap();
    for serial in 1..=9 {
        keep(&cache, serial, 0..LENGTH).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        find(&cache, 1, 0..10).await;
    }
    assert!(lock(&cache.inner.index).bytes() <= 500_000);
    let stays = |serial| entry_path(folder.path(), serial).exists();
    assert!(stays(1) && stays(2) && stays(9), "in use, pinned, and new");
    assert!(!stays(3) && !stays(4));
    let space: u64 = files(&folder.path().join("extenci-1")).iter().map(|file| file.space).sum();
    assert!(space <= 550_000, "{space} bytes on disk");
}

#[tokio::test]
async fn a_cache_full_of_pins_keeps_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path(), 300_000).unwrap();
    let pinned = (1..=2).map(|serial| known(serial).chunk.to_string()).collect();
    pins::pin(&LocalStorage::Private, &folder.path().join("extenci-1"), "/extenci", &pinned)
        .unwrap();
    for serial in 1..=9 {
        keep(&cache, serial, 0..LENGTH).await;
        assert!(lock(&cache.inner.index).bytes() <= 300_000 + LENGTH + 8192);
    }
    assert_eq!(find(&cache, 1, 0..LENGTH).await, [0..LENGTH]);
    assert_eq!(find(&cache, 2, 0..LENGTH).await, [0..LENGTH]);
}

/// Of a cache that is far below its limit, since others fill the disk.
#[tokio::test]
async fn a_full_disk_costs_a_share_of_what_is_here() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path(), 1 << 30).unwrap();
    for serial in 1..=30 {
        keep(&cache, serial, 0..LENGTH).await;
    }
    let before = lock(&cache.inner.index).bytes();
    cache.inner.make_room(1);
    let after = lock(&cache.inner.index).bytes();
    assert!(after < before && after >= before * 9 / 10, "{after} of {before}");
    assert_eq!(find(&cache, 30, 0..LENGTH).await, [0..LENGTH]);
}

#[tokio::test]
async fn damage_is_dropped_and_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path(), 10 << 20).unwrap();
    for (at, damaged) in [(4096 + 4096 + 50_000, "data"), (4096 + 8, "table"), (10, "header")] {
        keep(&cache, 1, 0..LENGTH).await;
        lock(&cache.inner.index).forget(known(1).chunk);
        let path = entry_path(folder.path(), 1);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, at).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[byte[0] ^ 8], at).unwrap();
        lock(&cache.inner.index).learn(known(1).chunk, 0, 0);
        let found = find(&cache, 1, 0..LENGTH).await;
        assert!(!found.contains(&(0..LENGTH)), "{damaged}");
        let _ = std::fs::remove_file(&path);
        lock(&cache.inner.index).forget(known(1).chunk);
    }
    // Blocks that match their checks, and not the chunk's digest.
    let wrong = Known { digest: Some(Digest::blake3([7; 32])), ..known(3) };
    cache.keep(&wrong, 0, bytes(3));
    until("it is dropped", || !entry_path(folder.path(), 3).exists()).await;
}

#[tokio::test]
async fn all_of_it_may_go_at_any_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let cache = open(&path, 10 << 20).unwrap();
    keep(&cache, 1, 0..LENGTH).await;
    std::fs::remove_dir_all(&path).unwrap();
    find(&cache, 1, 0..LENGTH).await;
    keep(&cache, 1, 0..LENGTH).await;
    keep(&cache, 2, 0..LENGTH).await;
    assert_eq!(find(&cache, 1, 0..LENGTH).await, [0..LENGTH]);
    assert!(entry_path(&path, 2).exists(), "it is used again");
}

/// What is there is served, also where nothing more can be written.
#[tokio::test]
async fn a_disk_that_cannot_be_written_serves_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path(), 10 << 20).unwrap();
    keep(&cache, 1, 0..LENGTH).await;
    // A directory where the file should be.
    std::fs::create_dir_all(entry_path(folder.path(), 2)).unwrap();
    keep(&cache, 2, 0..LENGTH).await;
    assert_eq!(find(&cache, 1, 0..LENGTH).await, [0..LENGTH]);
}

#[tokio::test]
async fn a_disk_that_fails_costs_no_reader() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path(), 10 << 20).unwrap();
    // A directory where the file should be.
    std::fs::create_dir_all(entry_path(folder.path(), 1)).unwrap();
    keep(&cache, 1, 0..LENGTH).await;
    assert!(cache.inner.writing.is_now() && !cache.inner.trouble.is_now());
    assert_eq!(find(&cache, 1, 0..LENGTH).await, []);
}
