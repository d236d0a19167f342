//! Files to tape and back, with OSSs whose scripts fail as told.

use crate::chore;
use crate::fixture::*;
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::{Chunk, key};
use tieline_types::{
    Content, Digest, ErrorKind, Extent, FileId, GrantedId, OnTape, PoolName, TapeWish,
};
use tieline_wire::meta::{Commit, LayoutChange, PoolChoice, SetLayout};
use tieline_wire::tape::{AskTape, GetTape, GiveUpBytes, TapeReply};

/// An MDT whose background runs, and whose OSSs answer.
async fn house() -> (House, tokio::task::JoinSet<()>) {
    let house = House::new().await;
    let tasks = tend(&house);
    (house, tasks)
}

fn tend(house: &House) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    let (mdt, parts) = (house.mdt.clone(), house.parts().clone());
    tasks.spawn(async move {
        loop {
            mdt.observe((0..4).map(state).collect());
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    let tape = Box::new(super::Tape::new(&parts));
    tasks.spawn(chore::run(parts.clone(), tape, Arc::new(house.status())));
    let freed = Box::new(house.freed_chunks());
    tasks.spawn(chore::run(parts, freed, Arc::new(house.status())));
    tasks
}

/// A file of the pool that has an HSM, with two chunks whose bytes are at an OST.
async fn file(house: &House, client: &Client, name: &str) -> (FileId, Vec<GrantedId>) {
    let pool: PoolName = "uf".parse().unwrap();
    let pool = Some(PoolChoice::Pool(pool));
    let layout = LayoutChange { pool, inline_limit: Some(0), ..LayoutChange::default() };
    client.call(SetLayout { id: ROOT, layout: Some(layout) }).await.unwrap();
    let file = client.create(ROOT, name).await;
    let base = client.number() * 10;
    let extents: Vec<Extent> = (0..2).map(|n| chunk(house, client, base + n, n * 4096)).collect();
    close(client, file, extents.clone()).await;
    (file, extents.iter().map(id).collect())
}

/// Writes extents, and closes the file.
async fn close(client: &Client, id: FileId, extents: Vec<Extent>) {
    let commit = Commit { closes: Some(true), ..commit(id, extents) };
    client.call(commit).await.unwrap();
}

fn chunk(house: &House, client: &Client, serial: u64, offset: u64) -> Extent {
    let mut extent = client.chunk(serial, offset, 4096);
    let bytes = vec![serial as u8; 4096];
    let own = id(&extent);
    if let Content::Chunk(chunk) = &mut extent.content {
        chunk.digest = Some(Digest::of(&bytes));
        for place in &chunk.places {
            house.remover.put(place.ost().unwrap().0, own, &bytes);
        }
    }
    extent
}

fn id(extent: &Extent) -> GrantedId {
    let Content::Chunk(chunk) = &extent.content else { panic!("no chunk") };
    chunk.chunk.granted().unwrap()
}

async fn state_of(client: &Client, id: FileId) -> TapeReply {
    client.call(GetTape { id }).await.unwrap()
}

/// Wishes it, and waits until it is so, or not to be.
async fn wish(client: &Client, id: FileId, wish: TapeWish) -> TapeReply {
    client.call(AskTape { id, wish }).await.unwrap();
    for _ in 0..10_000 {
        let found = state_of(client, id).await;
        if found.wish.as_ref().is_none_or(|wish| wish.is_over) {
            return found;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("it is wished for ever")
}

async fn release(client: &Client, id: FileId) -> (u64, u64) {
    let reply = client.call(GiveUpBytes { id, offset: 0, limit: 1024 }).await.unwrap();
    assert!(reply.is_done);
    (reply.released, reply.kept)
}

async fn record(house: &House, chunk: GrantedId) -> Chunk {
    let mut transaction = house.parts().store.begin().await.unwrap();
    let value = transaction.read(&[key::chunk(chunk)]).await.unwrap().remove(0).unwrap();
    crate::error::decode(&value, || chunk.to_string()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_file_goes_to_tape_and_comes_back_as_the_same_chunks() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let (file, chunks) = file(&house, &client, "f").await;
    let before = client.extents(file).await;
    assert!(client.call(GiveUpBytes { id: file, offset: 0, limit: 9 }).await.is_err());
    let found = wish(&client, file, TapeWish::Archive).await;
    assert_eq!(found.on_tape, Some(OnTape::Archived));
    let version = client.stat(file).await.content_version();
    assert_eq!(release(&client, file).await, (8192, 0));
    let stat = client.stat(file).await;
    assert_eq!((stat.tape, stat.stored, stat.size), (Some(OnTape::Released), 512, 8192));
    assert_eq!(stat.content_version(), version, "its bytes are the same");
    let nearline = client.extents(file).await;
    let is_nearline =
        |extent: &Extent| matches!(&extent.content, Content::Chunk(c) if c.is_nearline());
    assert!(nearline.iter().all(is_nearline), "{nearline:?}");
    // Readers who believe in the old places have their time; then the objects go.
    tokio::time::sleep(house.parts().settings.freed_keep + Duration::from_secs(60)).await;
    assert!(house.remover.there.lock().unwrap().is_empty());
    let found = wish(&client, file, TapeWish::Restore).await;
    assert_eq!((found.on_tape, found.released), (Some(OnTape::Archived), 0));
    let after = client.extents(file).await;
    let names = |extents: &[Extent]| extents.iter().map(id).collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    for chunk in chunks {
        let record = record(&house, chunk).await;
        assert!(record.tape.is_none() && !record.places[0].is_stale);
        let there = house.remover.there.lock().unwrap();
        assert!(there.contains_key(&(record.places[0].ost, chunk)), "{record:?}");
    }
}

/// Released and restored at once: the collector still has the old objects to delete.
#[tokio::test(start_paused = true)]
async fn what_is_wanted_again_is_not_collected() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let (file, chunks) = file(&house, &client, "f").await;
    wish(&client, file, TapeWish::Archive).await;
    for _ in 0..3 {
        release(&client, file).await;
        wish(&client, file, TapeWish::Restore).await;
    }
    tokio::time::sleep(house.parts().settings.freed_keep * 2).await;
    assert_eq!(house.count(b'f').await, 0);
    for chunk in chunks {
        let record = record(&house, chunk).await;
        let there = house.remover.there.lock().unwrap();
        assert!(there.contains_key(&(record.places[0].ost, chunk)), "{record:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_again_after_pauses_that_double() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let (file, _) = file(&house, &client, "f").await;
    let fail = || (ErrorKind::StorageFault, "no drive".to_owned(), false);
    house.tape.failures.lock().unwrap().extend([fail(), fail(), fail()]);
    let begun = tokio::time::Instant::now();
    client.call(AskTape { id: file, wish: TapeWish::Archive }).await.unwrap();
    tokio::time::sleep(Duration::from_secs(100)).await;
    let wished = state_of(&client, file).await.wish.unwrap();
    assert_eq!((wished.tries, wished.failure.unwrap().detail.as_str()), (2, "no drive"));
    let found = wish(&client, file, TapeWish::Archive).await;
    assert_eq!(found.on_tape, Some(OnTape::Archived));
    let took = begun.elapsed().as_secs();
    assert!((60 + 120 + 240..460).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_given_up_until_somebody_asks_again() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let (file, _) = file(&house, &client, "f").await;
    wish(&client, file, TapeWish::Archive).await;
    release(&client, file).await;
    let damaged = (ErrorKind::Corrupt, "osm://1 is not what was archived".to_owned(), true);
    house.tape.failures.lock().unwrap().push(damaged);
    let found = wish(&client, file, TapeWish::Restore).await;
    let wished = found.wish.unwrap();
    assert!(wished.is_over && found.on_tape == Some(OnTape::Released));
    assert_eq!(wished.failure.unwrap().kind, ErrorKind::Corrupt);
    let found = wish(&client, file, TapeWish::Restore).await;
    assert_eq!((found.on_tape, found.wish), (Some(OnTape::Archived), None));
}

#[tokio::test(start_paused = true)]
async fn an_mds_that_was_started_again_goes_on() {
    let (house, tasks) = house().await;
    let client = house.client().await;
    let (file, _) = file(&house, &client, "f").await;
    *house.tape.is_away.lock().unwrap() = true;
    client.call(AskTape { id: file, wish: TapeWish::Archive }).await.unwrap();
    tokio::time::sleep(Duration::from_secs(200)).await;
    let waits = state_of(&client, file).await.wish.unwrap();
    assert_eq!((waits.tries, waits.failure.unwrap().kind), (0, ErrorKind::Unreachable));
    drop(tasks);
    let there = house.remover.there.lock().unwrap().clone();
    let house = house.restarted().await;
    *house.remover.there.lock().unwrap() = there;
    let _tasks = tend(&house);
    let client = house.client().await;
    let found = wish(&client, file, TapeWish::Archive).await;
    assert_eq!(found.on_tape, Some(OnTape::Archived));
}

#[tokio::test(start_paused = true)]
async fn copies_that_nobody_needs_are_removed_until_they_are() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let (file, _) = file(&house, &client, "f").await;
    wish(&client, file, TapeWish::Archive).await;
    let first = state_of(&client, file).await.copy.unwrap().uris;
    let more = chunk(&house, &client, 901, 8192);
    close(&client, file, vec![more]).await;
    let dirty = state_of(&client, file).await;
    assert_eq!((dirty.on_tape, house.tape.names()), (Some(OnTape::Dirty), first.clone()));
    wish(&client, file, TapeWish::Archive).await;
    let second = state_of(&client, file).await.copy.unwrap().uris;
    assert_ne!(first, second);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(house.tape.names(), second, "the one of before is gone");
    let fail = (ErrorKind::StorageFault, "busy".to_owned(), false);
    house.tape.failures.lock().unwrap().push(fail);
    client.call(unlink(ROOT, "f")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(house.tape.names(), second);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((house.tape.names().len(), house.count(b'v').await), (0, 0));
}

/// A file that was written after its release is whole all the same: its old bytes from tape, its
/// new ones from where they were put.
#[tokio::test(start_paused = true)]
async fn what_is_written_to_a_released_file_stays() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let (file, _) = file(&house, &client, "f").await;
    wish(&client, file, TapeWish::Archive).await;
    release(&client, file).await;
    let more = chunk(&house, &client, 902, 4096);
    close(&client, file, vec![more.clone()]).await;
    assert_eq!(client.stat(file).await.tape, Some(OnTape::DirtyReleased));
    assert!(client.call(GiveUpBytes { id: file, offset: 0, limit: 9 }).await.is_err());
    let found = wish(&client, file, TapeWish::Archive).await;
    assert_eq!(found.on_tape, Some(OnTape::Archived));
    let extents = client.extents(file).await;
    assert_eq!(id(&extents[1]), id(&more));
    let uri = &found.copy.unwrap().uris[0];
    let bytes = house.tape.files.lock().unwrap()[uri].clone();
    assert_eq!((bytes.len(), bytes[4096]), (8192, 902_u64 as u8));
}

/// Chunks that another file has, too, stay where they are.
#[tokio::test(start_paused = true)]
async fn what_is_shared_is_not_given_up() {
    let (house, _tasks) = house().await;
    let client = house.client().await;
    let (file, _) = file(&house, &client, "f").await;
    let other = client.create(ROOT, "g").await;
    close(&client, other, vec![]).await;
    let copy = tieline_wire::ranges::CopyRange {
        from: file,
        from_offset: 0,
        to: other,
        to_offset: 0,
        length: 4096,
        mtime: tieline_types::SetTime::Now,
        clears_setid: false,
    };
    client.call(copy.clone()).await.unwrap();
    wish(&client, file, TapeWish::Archive).await;
    assert_eq!(release(&client, file).await, (4096, 4096));
    let behind = tieline_wire::ranges::CopyRange { from_offset: 4096, ..copy };
    assert_eq!(client.kind_of(behind).await, Some(ErrorKind::WouldBlock));
}
