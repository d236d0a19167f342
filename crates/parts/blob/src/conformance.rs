//! What every chunk store must do, as one suite: `check` panics at the first thing that is not so.
//!
//! Runs in the tests of each backend, on a store that is empty and has room for some MiB.

use crate::{ChunkStore, Error};
use bytes::Bytes;
use tieline_format::object::ObjectTrailer;
use tieline_types::checksum::{self, BLOCK};
use tieline_types::{FileId, Grant, GrantedId, MdtIndex, Version};

/// Runs the whole suite.
pub async fn check(store: &dyn ChunkStore) {
    check_put_and_read(store).await;
    check_ranges(store).await;
    check_repeated_puts(store).await;
    check_replacement(store).await;
    check_absence(store).await;
    check_deletion(store).await;
    check_listing(store).await;
    check_sync(store).await;
    check_space(store).await;
}

/// Chunk `serial` of the suite's own grant.
pub fn chunk(serial: u64) -> GrantedId {
    GrantedId { mdt: MdtIndex(1), grant: Grant(7), serial }
}

/// A trailer that fits `data`.
pub fn trailer(chunk: GrantedId, data: &[u8]) -> ObjectTrailer {
    ObjectTrailer {
        chunk,
        file: FileId::new(MdtIndex(1), chunk.serial % 1000 + 100),
        offset: 4096,
        version: Version(3),
        path: b"data/run7.root".to_vec(),
        checks: checksum::block_checks(data),
        tree: None,
    }
}

/// Bytes that differ from block to block.
pub fn bytes(length: usize, seed: u8) -> Bytes {
    (0..length).map(|at| (at / 7 + at / BLOCK) as u8 ^ seed).collect::<Vec<u8>>().into()
}

async fn put(store: &dyn ChunkStore, chunk: GrantedId, data: &Bytes) {
    store.put(&trailer(chunk, data), data.clone()).await.expect("put");
}

/// Reads and verifies; gives what was asked for without what it was widened by.
pub async fn read(
    store: &dyn ChunkStore,
    chunk: GrantedId,
    offset: u64,
    length: u32,
) -> Result<Bytes, Error> {
    let slice = store.read(chunk, offset, length).await?;
    let got = slice.bulk.to_bytes().expect("bulk of a slice can be read");
    assert_eq!(slice.offset % BLOCK as u64, 0, "a slice starts on a block");
    assert_eq!(checksum::first_mismatch(&got, &slice.checks), None, "checks match the bytes");
    let end = slice.offset + got.len() as u64;
    assert!(end.is_multiple_of(BLOCK as u64) || end == slice.object_length, "ends on a block");
    if got.is_empty() {
        return Ok(got);
    }
    let skip = (offset - slice.offset) as usize;
    Ok(got.slice(skip..got.len().min(skip + length as usize)))
}

async fn check_put_and_read(store: &dyn ChunkStore) {
    for (serial, length) in [(1, 0), (2, 1), (3, BLOCK), (4, BLOCK + 1), (5, 300_000)] {
        let data = bytes(length, serial as u8);
        put(store, chunk(serial), &data).await;
        assert_eq!(read(store, chunk(serial), 0, u32::MAX).await.expect("read"), data);
        let (found, found_length) = store.stat(chunk(serial)).await.expect("stat");
        assert_eq!((found, found_length), (trailer(chunk(serial), &data), length as u64));
    }
}

async fn check_ranges(store: &dyn ChunkStore) {
    let data = bytes(20_000, 9);
    put(store, chunk(10), &data).await;
    for (offset, length) in
        [(0, 1), (4095, 2), (4096, 4096), (8191, 9000), (19_999, 1), (19_000, 5000), (7, 0)]
    {
        let got = read(store, chunk(10), offset as u64, length as u32).await.expect("read");
        let end = data.len().min(offset + length);
        assert_eq!(got, data.slice(offset..end), "{length} bytes at {offset}");
    }
    for beyond in [20_000, 20_001, 20_480, u64::MAX] {
        let slice = store.read(chunk(10), beyond, 100).await.expect("read beyond the end");
        assert!(slice.bulk.is_empty() && slice.checks.is_empty(), "nothing at {beyond}");
        assert_eq!(slice.object_length, 20_000);
    }
}

async fn check_repeated_puts(store: &dyn ChunkStore) {
    let (data, other) = (bytes(9000, 1), bytes(9000, 2));
    put(store, chunk(20), &data).await;
    put(store, chunk(20), &data).await;
    let refusal = store.put(&trailer(chunk(20), &other), other.clone()).await;
    assert!(matches!(refusal, Err(Error::Different { .. })), "other bytes are refused");
    let shorter = data.slice(..8192);
    let refusal = store.put(&trailer(chunk(20), &shorter), shorter).await;
    assert!(matches!(refusal, Err(Error::Different { .. })), "another length is refused");
    assert_eq!(read(store, chunk(20), 0, 9000).await.expect("read"), data);
}

async fn check_replacement(store: &dyn ChunkStore) {
    let (old, new) = (bytes(9000, 1), bytes(9000, 2));
    put(store, chunk(25), &old).await;
    let kept = store.read(chunk(25), 0, 9000).await.expect("read");
    store.replace(&trailer(chunk(25), &new), new.clone()).await.expect("replace");
    assert_eq!(read(store, chunk(25), 0, 9000).await.expect("read"), new);
    assert_eq!(kept.bulk.to_bytes().expect("readers of the old one read on"), old);
    store.replace(&trailer(chunk(26), &new), new.clone()).await.expect("over nothing");
    store.sync(&[chunk(25), chunk(26)]).await.expect("sync");
    assert_eq!(read(store, chunk(26), 0, 9000).await.expect("read"), new);
}

async fn check_absence(store: &dyn ChunkStore) {
    let absent = chunk(30);
    assert!(matches!(store.read(absent, 0, 1).await, Err(Error::Absent { .. })));
    assert!(matches!(store.stat(absent).await, Err(Error::Absent { .. })));
    assert!(matches!(store.sync(&[absent]).await, Err(Error::Absent { .. })));
    assert!(!store.delete(absent).await.expect("delete"));
}

async fn check_deletion(store: &dyn ChunkStore) {
    let (old, new) = (bytes(5000, 1), bytes(6000, 2));
    put(store, chunk(40), &old).await;
    let kept = store.read(chunk(40), 0, 5000).await.expect("read");
    assert!(store.delete(chunk(40)).await.expect("delete"));
    assert!(matches!(store.read(chunk(40), 0, 1).await, Err(Error::Absent { .. })));
    assert_eq!(kept.bulk.to_bytes().expect("a slice outlives its object"), old);
    // An MDS never does this; but what was deleted must not shine through.
    put(store, chunk(40), &new).await;
    assert_eq!(read(store, chunk(40), 0, 9000).await.expect("read"), new);
}

async fn check_listing(store: &dyn ChunkStore) {
    let mut wanted = Vec::new();
    for grant in [0x50, 0x51, 0xfff, 0x1000, 0xfff_ffff_ffff] {
        for serial in [0, 1, 0xfff, 0x1000, 0xffff_ffff, 0x1_0000_0000, u64::MAX] {
            wanted.push(GrantedId { mdt: MdtIndex(2), grant: Grant(grant), serial });
        }
    }
    for &chunk in wanted.iter().rev() {
        put(store, chunk, &bytes(10, 0)).await;
    }
    let last_of_mdt_1 = GrantedId { mdt: MdtIndex(1), grant: Grant(u64::MAX), serial: u64::MAX };
    let mut found = Vec::new();
    loop {
        let after = found.last().copied().unwrap_or(last_of_mdt_1);
        let page = store.list(Some(after), 4).await.expect("list").chunks;
        assert!(page.len() <= 4);
        if page.is_empty() {
            break;
        }
        found.extend(page);
    }
    assert_eq!(found, wanted, "pages in order, each object once");
    let all = store.list(None, 10_000).await.expect("list").chunks;
    assert!(all.is_sorted() && all.ends_with(&wanted));
    assert!(store.list(None, 0).await.expect("list").chunks.is_empty());
    for chunk in wanted {
        assert!(store.delete(chunk).await.expect("delete"));
    }
}

async fn check_sync(store: &dyn ChunkStore) {
    let chunks: Vec<GrantedId> = (60..80).map(chunk).collect();
    for &chunk in &chunks {
        put(store, chunk, &bytes(5000, 3)).await;
    }
    store.sync(&chunks).await.expect("sync");
    store.sync(&[]).await.expect("sync of nothing");
    assert!(store.delete(chunk(65)).await.expect("delete"));
    assert!(matches!(store.sync(&chunks).await, Err(Error::Absent { chunk, .. })
        if chunk == self::chunk(65)));
}

async fn check_space(store: &dyn ChunkStore) {
    let space = store.space().await.expect("space");
    assert!(0 < space.bytes_free && space.bytes_free <= space.bytes_total);
    assert!(0 < space.objects_free && space.objects_free <= space.objects_total);
}
