//! Files from end to end, and with the checks of their pages.

use crate::memory::Memory;
use crate::*;
use bytes::Bytes;
use std::sync::Arc;
use tieline_types::checksum::crc32c;
use tieline_types::{Allowed, Caller, Doing, ErrorKind, FileId, HandleId, Scope};

async fn opened(memory: &Arc<Memory>, bytes: &[u8]) -> (FileId, HandleId) {
    let id = memory.put_elsewhere("file", bytes);
    let access = Access { read: true, ..Access::default() };
    (id, memory.open(&Caller::root(), id, access).await.unwrap().handle)
}

fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 % 253) as u8).collect()
}

async fn all(stream: &mut Stream) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

#[tokio::test]
async fn a_stream_gives_its_range_and_nothing_else() {
    let memory = Arc::new(Memory::new(1));
    let bytes = noise(3_000_000);
    let (_, handle) = opened(&memory, &bytes).await;
    for range in [0..3_000_000, 5..5, 17..2_500_001] {
        let mut stream = Stream::of(memory.clone(), handle, range.clone());
        let expected = &bytes[range.start as usize..range.end as usize];
        assert!(all(&mut stream).await.unwrap() == expected);
        assert!(stream.next().await.is_none());
        assert_eq!(memory.announced.lock().unwrap().pop(), Some(range));
    }
}

#[tokio::test]
async fn who_was_promised_more_hears_of_it_once() {
    let memory = Arc::new(Memory::new(1));
    let (_, handle) = opened(&memory, &noise(100)).await;
    let mut stream = Stream::of(memory.clone(), handle, 0..200);
    assert_eq!(stream.next().await.unwrap().unwrap().len(), 100);
    assert_eq!(stream.next().await.unwrap().unwrap_err().kind(), ErrorKind::Stale);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn what_is_held_is_open_until_it_is_dropped_and_within_the_scope() {
    let memory = Arc::new(Memory::new(1));
    let bytes = noise(10);
    memory.put_elsewhere("file", &bytes);
    let allowed = vec![Allowed { path: Vec::new(), doing: Doing::Read }];
    let who = Who::within(Caller::root(), Scope::new(allowed).unwrap());
    let paths = Paths::new(memory.clone());
    let entry = paths.find(&who, b"/file", LastLink::Followed).await.unwrap();
    let access = Access { read: true, ..Access::default() };
    let held = Held::open(memory.clone(), &who, &entry, access).await.unwrap();
    assert_eq!(memory.read(held.handle, 0, 10).await.unwrap().concat(), bytes);
    drop(held);
    while memory.handles() > 0 {
        tokio::task::yield_now().await;
    }
    for access in [Access { write: true, ..access }, Access { truncate: true, ..access }] {
        let refused = Held::open(memory.clone(), &who, &entry, access).await;
        assert_eq!(refused.map(|_| ()).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(memory.bytes("file"), bytes);
}

#[tokio::test]
async fn pages_are_checked_where_they_lie_in_the_file() {
    let memory = Arc::new(Memory::new(1));
    let bytes = noise(400_000);
    let (_, handle) = opened(&memory, &bytes).await;
    let pages = memory.read_pages(handle, 1000, 399_500).await.unwrap();
    assert!(pages.pieces.len() > 1, "a page lies in two pieces");
    assert_eq!(pages.pieces.iter().map(Bytes::len).sum::<usize>(), 399_000);
    let mut expected = vec![crc32c(&bytes[1000..4096])];
    expected.extend(bytes[4096..].chunks(4096).map(crc32c));
    assert_eq!(pages.checks, expected);
    let beyond = memory.read_pages(handle, 500_000, 10).await.unwrap();
    assert!(beyond.pieces.is_empty() && beyond.checks.is_empty());
}
