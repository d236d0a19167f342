//! Commits of extents: appended, inline, shared and exchanged.

use crate::chunks::{AT_ONCE, STEP};
use crate::fixture::*;
use tieline_types::ErrorKind::{FileTooLarge, Gone, InvalidArgument, IsDirectory};
use tieline_types::{Content, Extent, Grant, GrantedId, MdtIndex, Origin, OstIndex};
use tieline_wire::meta::*;

/// Offset, length and skip of extents in chunks.
fn shapes(extents: &[Extent]) -> Vec<(u64, u64, u64)> {
    let shape = |extent: &Extent| match &extent.content {
        Content::Chunk(chunk) => (extent.offset, extent.length, chunk.skip),
        _ => (extent.offset, extent.length, 0),
    };
    extents.iter().map(shape).collect()
}

#[tokio::test(start_paused = true)]
async fn chunks_live_while_extents_refer_to_them() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    client.commit(file, vec![client.chunk(1, 0, 100)]).await;
    client.commit(file, vec![client.chunk(2, 40, 20)]).await;
    let extents = client.extents(file).await;
    assert_eq!(shapes(&extents), [(0, 40, 0), (40, 20, 0), (60, 40, 60)]);
    assert_eq!(house.count(b'f').await, 0);
    let cut = client.call(truncate(file, 50)).await.unwrap().attributes;
    assert_eq!((cut.size, cut.stored), (50, 50));
    assert_eq!(shapes(&client.extents(file).await), [(0, 40, 0), (40, 10, 0)]);
    client.call(truncate(file, 40)).await.unwrap();
    assert_eq!(house.count(b'f').await, 1, "the second chunk is free, the first is not");
    let punched = client.commit(file, vec![hole(0, 100)]).await;
    assert_eq!((punched.size, punched.stored), (40, 0), "a hole makes no file longer");
    assert_eq!(house.count(b'f').await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_freed_chunk_never_comes_back() {
    let house = House::new().await;
    let client = house.client().await;
    let (file, copy) = (client.create(ROOT, "f").await, client.create(ROOT, "copy").await);
    let chunk = client.chunk(1, 0, 100);
    client.commit(file, vec![chunk.clone()]).await;
    // Another session shares it while it is there.
    let other = house.client().await;
    let share = tieline_wire::ranges::CopyRange {
        from: file,
        from_offset: 0,
        to: copy,
        to_offset: 0,
        length: 100,
        mtime: tieline_types::SetTime::Now,
        clears_setid: false,
    };
    assert_eq!(other.call(share).await.unwrap().copied, 100);
    client.call(unlink(ROOT, "f")).await.unwrap();
    assert_eq!(house.count(b'f').await, 0);
    other.call(truncate(copy, 0)).await.unwrap();
    assert_eq!(house.count(b'f').await, 1);
    assert_eq!(client.kind_of(commit(copy, vec![chunk])).await, Some(Gone));
    // One that this session did not write and the MDT does not know.
    let unknown = client.chunk(77, 0, 100);
    assert_eq!(other.kind_of(commit(copy, vec![unknown])).await, Some(Gone));
}

#[tokio::test(start_paused = true)]
async fn impossible_commits_are_refused() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let kind = async |extents| client.kind_of(commit(file, extents)).await;
    assert_eq!(kind(vec![inline(10, b"x"), inline(0, b"y")]).await, Some(InvalidArgument));
    assert_eq!(kind(vec![inline(0, &[0; 20_000])]).await, Some(InvalidArgument));
    let mut foreign = client.chunk(1, 0, 10);
    if let Content::Chunk(chunk) = &mut foreign.content {
        chunk.chunk = GrantedId { mdt: MdtIndex(1), grant: Grant(9), serial: 1 }.into();
    }
    assert_eq!(kind(vec![foreign]).await, Some(InvalidArgument));
    let mut lost = client.chunk(1, 0, 10);
    if let Content::Chunk(chunk) = &mut lost.content {
        chunk.places[0].origin = Origin::Ost(OstIndex(44));
    }
    assert_eq!(kind(vec![lost]).await, Some(InvalidArgument));
    let call = Commit { size_min: u64::MAX, ..commit(file, vec![]) };
    assert_eq!(client.kind_of(call).await, Some(FileTooLarge));
    let dir = client.mkdir(ROOT, "d").await;
    assert_eq!(client.kind_of(commit(dir, vec![])).await, Some(IsDirectory));
    assert_eq!(house.count(b't').await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_commit_may_only_make_a_file_longer() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let call = Commit { size_min: 1000, ..commit(file, vec![inline(0, b"abc")]) };
    assert_eq!(client.call(call).await.unwrap().attributes.size, 1000);
    assert_eq!(client.commit(file, vec![inline(3, b"def")]).await.size, 1000);
    assert_eq!(client.extents(file).await, [inline(0, b"abcdef")]);
}

#[tokio::test(start_paused = true)]
async fn pages_of_extents_begin_and_end_where_they_say() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    // Ten chunks of 100 with holes of 100 between them.
    let extents = (0..10).map(|index| client.chunk(index, index * 200, 100)).collect();
    client.commit(file, extents).await;
    let page = async |offset, limit| {
        client.call(GetExtents { id: file, offset, limit }).await.unwrap().page
    };
    let first = page(0, 3).await;
    assert_eq!(shapes(&first.extents), [(0, 100, 0), (200, 100, 0), (400, 100, 0)]);
    assert_eq!(first.covered, 500);
    let inside = page(250, 1).await;
    assert_eq!((shapes(&inside.extents), inside.covered), (vec![(200, 100, 0)], 300));
    let after = page(300, 1).await;
    assert_eq!(shapes(&after.extents), [(400, 100, 0)]);
    let last = page(1700, 9).await;
    assert_eq!((last.extents.len(), last.covered), (1, 1900));
    assert_eq!(page(5000, 9).await.extents.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn large_changes_are_done_in_parts() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let count = 2 * STEP as u64 + 100;
    for start in (0..count).step_by(1024) {
        let end = (start + 1024).min(count);
        let extents = (start..end).map(|index| client.chunk(index, index * 10, 10)).collect();
        client.commit(file, extents).await;
    }
    assert_eq!(house.count(b't').await as u64, count);
    // One new chunk over all but the ends.
    let whole = client.chunk(count, 5, (count - 1) * 10);
    let written = client.commit(file, vec![whole]).await;
    assert_eq!((written.size, written.stored), (count * 10, count * 10));
    assert_eq!(client.extents(file).await.len(), 3);
    assert_eq!(house.count(b'f').await as u64, count - 2);
    assert_eq!(client.call(truncate(file, 0)).await.unwrap().attributes.stored, 0);
    assert_eq!(house.count(b'f').await as u64, count + 1);
}

#[tokio::test(start_paused = true)]
async fn a_large_file_is_cut_in_parts_and_removed_in_the_background() {
    let house = House::new().await;
    let client = house.client().await;
    let (file, other) = (client.create(ROOT, "f").await, client.create(ROOT, "g").await);
    let count = STEP as u64 + 100;
    for start in (0..count).step_by(1024) {
        let end = (start + 1024).min(count);
        let extents: Vec<Extent> =
            (start..end).map(|index| client.chunk(index, index * 10, 10)).collect();
        client.commit(file, extents.clone()).await;
        client.commit(other, extents).await;
    }
    let cut = client.call(truncate(file, 15)).await.unwrap().attributes;
    assert_eq!((cut.size, cut.stored), (15, 15));
    assert_eq!(house.count(b'f').await, 0, "the other file refers to them");
    client.call(unlink(ROOT, "g")).await.unwrap();
    assert_eq!(house.count(b't').await as u64, count - AT_ONCE as u64 + 2);
    house.remove_nameless().await;
    assert_eq!((house.count(b't').await, house.count(b'o').await), (2, 0));
    assert_eq!(house.count(b'i').await, 2);
    assert_eq!(client.call(Usage {}).await.unwrap().inodes, 2);
}
