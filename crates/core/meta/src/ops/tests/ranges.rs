//! Extents that move without their bytes: appended, copied, compacted.

use super::trust::sealed;
use crate::fixture::*;
use tieline_types::{Content, Digest, ErrorKind, Extent, SetTime};
use tieline_wire::capability::{Capability, Scope, SignedCapability};
use tieline_wire::meta::*;
use tieline_wire::ranges::*;

fn copy(from: (tieline_types::FileId, u64), to: (tieline_types::FileId, u64)) -> CopyRange {
    CopyRange {
        from: from.0,
        from_offset: from.1,
        to: to.0,
        to_offset: to.1,
        length: 1 << 40,
        mtime: SetTime::Now,
        clears_setid: false,
    }
}

fn seen(extent: &Extent) -> SeenExtent {
    let content = match &extent.content {
        Content::Chunk(chunk) => SeenContent::Chunk { chunk: chunk.chunk, skip: chunk.skip },
        Content::Inline(bytes) => SeenContent::Inline(Digest::of(bytes)),
        Content::Hole => panic!("a hole is no extent"),
    };
    SeenExtent { offset: extent.offset, length: extent.length, content }
}

#[tokio::test(start_paused = true)]
async fn appended_extents_go_to_the_end_as_it_is() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    let file = a.create(ROOT, "log").await;
    let append = |extents, from| Commit { append_from: Some(from), ..commit(file, extents) };
    // Both believe it to be empty.
    let one = a.call(append(vec![inline(0, b"one ")], 0)).await.unwrap().attributes;
    let two = b.call(append(vec![inline(0, b"two ")], 0)).await.unwrap().attributes;
    assert_eq!((one.size, two.size), (4, 8));
    assert_eq!(a.extents(file).await, [inline(0, b"one two ")]);
    // It was cut elsewhere; what was written at a place stays there.
    a.call(truncate(file, 2)).await.unwrap();
    let call = append(vec![inline(1, b"N"), inline(8, b"three "), b.chunk(1, 14, 100)], 8);
    assert_eq!(b.call(call).await.unwrap().attributes.size, 108);
    let extents = a.extents(file).await;
    assert_eq!(extents[0], inline(0, b"oNthree "));
    assert_eq!((extents[1].offset, extents[1].length), (8, 100));
    let half = append(vec![inline(100, b"xxxxxxxxxxxx")], 108);
    assert_eq!(a.kind_of(half).await, Some(ErrorKind::InvalidArgument));
    // Nor does it come to lie beyond the end of the largest file.
    a.call(truncate(file, Extent::FILE_SIZE_MAX - 1)).await.unwrap();
    let beyond = append(vec![inline(0, b"two")], 0);
    assert_eq!(a.kind_of(beyond).await, Some(ErrorKind::FileTooLarge));
}

/// Else its reader is refused first at every OSS, and asks the MDS once more.
#[tokio::test(start_paused = true)]
async fn the_capability_of_a_copy_names_what_it_shares() {
    let house = House::proven().await;
    let client = house.client().await;
    let (from, to) = (client.create(ROOT, "from").await, client.create(ROOT, "to").await);
    client.call(Place { id: from, exclude: vec![], wish: None }).await.unwrap();
    let extent = sealed(client.chunk(1, 0, 1000));
    client.commit(from, vec![extent.clone()]).await;
    client.call(copy((from, 0), (to, 0))).await.unwrap();
    let Content::Chunk(chunk) = &extent.content else { panic!("a chunk") };
    for (id, named) in [(from, vec![]), (to, vec![chunk.places[0].object.clone()])] {
        let open =
            client.call(Open { id, is_read: true, is_write: false, writes: None }).await.unwrap();
        let signed = open.capability.unwrap().signed;
        let signed: SignedCapability = tieline_wire::decode(&signed).unwrap();
        let capability: Capability = tieline_wire::decode(&signed.capability).unwrap();
        let Scope::File { objects, .. } = capability.scope else { panic!("of a file") };
        assert_eq!(objects, named);
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_shares_chunks() {
    let house = House::new().await;
    let client = house.client().await;
    let (from, to) = (client.create(ROOT, "from").await, client.create(ROOT, "to").await);
    let chunk = client.chunk(1, 100, 1000);
    client.commit(from, vec![inline(0, b"head"), chunk.clone(), inline(2000, b"tail")]).await;
    client.commit(to, vec![client.chunk(2, 0, 5000)]).await;
    let copied = client.call(CopyRange { length: 1903, ..copy((from, 100), (to, 50)) }).await;
    let copied = copied.unwrap();
    assert_eq!((copied.copied, copied.attributes.size), (1903, 5000));
    let extents = client.extents(to).await;
    let shapes: Vec<_> = extents.iter().map(|one| (one.offset, one.length)).collect();
    assert_eq!(shapes, [(0, 50), (50, 1000), (1950, 3), (1953, 3047)]);
    assert_eq!(copied.attributes.stored, 50 + 1000 + 3 + 3047);
    assert_eq!(Extent { offset: 100, ..extents[1].clone() }, chunk);
    // The source goes, the chunk stays.
    client.call(unlink(ROOT, "from")).await.unwrap();
    assert_eq!(house.count(b'f').await, 0);
    client.call(truncate(to, 60)).await.unwrap();
    assert_eq!(house.count(b'f').await, 0);
    client.call(truncate(to, 0)).await.unwrap();
    assert_eq!(house.count(b'f').await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_copy_ends_with_its_source_and_does_not_overlap() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    client.commit(file, vec![inline(0, b"abcdef")]).await;
    let overlapping = CopyRange { length: 3, ..copy((file, 0), (file, 2)) };
    assert_eq!(client.kind_of(overlapping).await, Some(ErrorKind::InvalidArgument));
    let beyond = client.call(CopyRange { length: 10, ..copy((file, 6), (file, 100)) }).await;
    assert_eq!(beyond.unwrap().copied, 0);
    let own = client.call(CopyRange { length: 3, ..copy((file, 3), (file, 10)) }).await.unwrap();
    assert_eq!((own.copied, own.attributes.size), (3, 13));
    assert_eq!(client.extents(file).await, [inline(0, b"abcdef"), inline(10, b"def")]);
    // Files of thousands of extents are copied in several calls.
    let (many, target) = (client.create(ROOT, "many").await, client.create(ROOT, "to").await);
    let extents = (0..1000).map(|index| client.chunk(index, index * 20, 10)).collect();
    client.commit(many, extents).await;
    let (mut at, mut calls) = (0, 0);
    while at < 19_990 {
        let call = CopyRange { length: 19_990 - at, ..copy((many, at), (target, at)) };
        at += client.call(call).await.unwrap().copied;
        calls += 1;
    }
    assert!((2..5).contains(&calls), "{calls}");
    assert_eq!(client.extents(target).await, client.extents(many).await);
}

#[tokio::test(start_paused = true)]
async fn compaction_changes_nothing_that_anybody_sees() {
    let house = House::new().await;
    let (writer, reader) = (house.client().await, house.client().await);
    let file = writer.create(ROOT, "f").await;
    for index in 0..8u64 {
        writer.commit(file, vec![inline(index * 16_384, &[index as u8; 16_384])]).await;
    }
    let before = reader.stat(file).await;
    let was: Vec<_> = writer.extents(file).await.iter().map(seen).collect();
    let call = Compact { id: file, was, extents: vec![writer.chunk(9, 0, 8 * 16_384)] };
    assert!(writer.call(call.clone()).await.unwrap().is_done);
    assert_eq!(writer.extents(file).await.len(), 1);
    assert_eq!(reader.stat(file).await, before);
    assert!(house.clients.recalled(reader.session).is_empty(), "nobody is asked");
    // What was seen is not there any more.
    assert!(!writer.call(call.clone()).await.unwrap().is_done);
    writer.commit(file, vec![inline(5, b"new")]).await;
    let was: Vec<_> = writer.extents(file).await.iter().map(seen).collect();
    writer.commit(file, vec![inline(5, b"NEW")]).await;
    let late = Compact { id: file, was, extents: vec![writer.chunk(10, 0, 8 * 16_384)] };
    assert!(!writer.call(late).await.unwrap().is_done);
    let other = Compact { extents: vec![writer.chunk(11, 0, 16_384)], ..call };
    assert_eq!(writer.kind_of(other).await, Some(ErrorKind::InvalidArgument));
}
