//! Freed chunks, deleted files and strays of crashed clients: when they go, and when not yet.

use crate::fixture::*;
use std::time::Duration;
use tieline_meta::StoreRoom;
use tieline_types::{Content, GrantedId, MdtIndex, Origin, OstIndex};
use tieline_wire::chores::ChoreState;
use tieline_wire::meta::*;

/// A file with one chunk, removed again.
async fn free_one(client: &Client, serial: u64, ost: u16) {
    let file = client.create(ROOT, "f").await;
    let mut extent = client.chunk(serial, 0, 100);
    if let Content::Chunk(chunk) = &mut extent.content {
        chunk.places[0].origin = Origin::Ost(OstIndex(ost));
    }
    client.commit(file, vec![extent]).await;
    client.call(unlink(ROOT, "f")).await.unwrap();
}

fn removed(house: &House) -> Vec<(u16, u64)> {
    let removed = house.remover.removed.lock().unwrap();
    removed.iter().map(|(ost, chunk)| (ost.0, chunk.serial)).collect()
}

#[tokio::test(start_paused = true)]
async fn freed_chunks_are_deleted_after_their_time() {
    let house = House::new().await;
    let client = house.client().await;
    free_one(&client, 1, 0).await;
    tokio::time::advance(Duration::from_secs(30)).await;
    free_one(&client, 2, 1).await;
    house.round(&mut house.freed_chunks()).await.unwrap();
    assert_eq!(removed(&house), []);
    tokio::time::advance(Duration::from_secs(31)).await;
    house.round(&mut house.freed_chunks()).await.unwrap();
    assert_eq!(removed(&house), [(0, 1)]);
    assert_eq!((house.count(b'f').await, house.count(b'k').await), (1, 1));
    tokio::time::advance(Duration::from_secs(31)).await;
    house.round(&mut house.freed_chunks()).await.unwrap();
    assert_eq!(removed(&house), [(0, 1), (1, 2)]);
    assert_eq!((house.count(b'f').await, house.count(b'k').await), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn chunks_of_an_ost_that_is_down_wait_for_it() {
    let house = House::new().await;
    let client = house.client().await;
    for (serial, ost) in [(1, 0), (2, 1), (3, 0)] {
        free_one(&client, serial, ost).await;
    }
    house.remover.down.lock().unwrap().insert(OstIndex(0));
    tokio::time::advance(Duration::from_secs(61)).await;
    house.round(&mut house.freed_chunks()).await.unwrap();
    assert_eq!(removed(&house), [(1, 2)]);
    assert_eq!(house.count(b'f').await, 2);
    house.remover.down.lock().unwrap().clear();
    house.round(&mut house.freed_chunks()).await.unwrap();
    assert_eq!(house.count(b'f').await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_silent_are_ended_in_the_background() {
    let house = House::new().await;
    let (silent, client) = (house.client().await, house.client().await);
    let file = silent.create(ROOT, "f").await;
    let keep = Unlink { keep: Some(file), ..unlink(ROOT, "f") };
    silent.call(keep).await.unwrap();
    let running = house.run();
    for _ in 0..11 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        house.mdt.heard(client.session);
    }
    running.abort();
    assert_eq!((house.count(b's').await, house.count(b'o').await), (1, 0));
    assert_eq!(house.count(b'i').await, 1);
    client.mkdir(ROOT, "still here").await;
}

#[tokio::test(start_paused = true)]
async fn files_are_counted_again_after_a_start() {
    let house = House::new().await;
    let client = house.client_named(1, None).await;
    for index in 0..20 {
        client.mkdir(ROOT, &format!("d{index}")).await;
    }
    let house = house.restarted().await;
    house.mdt.end_session(client.session).await.unwrap();
    let client = house.client().await;
    client.mkdir(ROOT, "more").await;
    house.round(&mut crate::counts::Files::new(house.parts())).await.unwrap();
    assert_eq!(client.call(Usage {}).await.unwrap().inodes, 22);
}

#[tokio::test(start_paused = true)]
async fn what_dead_sessions_kept_goes_at_the_next_start() {
    let house = House::new().await;
    let client = house.client_named(1, None).await;
    let file = client.create(ROOT, "f").await;
    let keep = Unlink { keep: Some(file), ..unlink(ROOT, "f") };
    client.call(keep).await.unwrap();
    // Ended between its record and its orphans: as if the server had died there.
    let mut transaction = tieline_kv::Store::begin(&house.store).await.unwrap();
    transaction.delete(tieline_format::mdt::key::session(client.session));
    transaction.commit().await.unwrap().durable.await.unwrap();
    let house = house.restarted().await;
    house.nameless().collect(&house.status()).await.unwrap();
    assert_eq!((house.count(b'o').await, house.count(b'i').await), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn who_could_not_be_asked_is_asked_later() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    let (closed, open) = (a.create(ROOT, "closed").await, a.create(ROOT, "open").await);
    for id in [closed, open] {
        b.call(Open { id, is_read: true, is_write: false, writes: None }).await.unwrap();
    }
    house.clients.open(b.session, open);
    house.clients.set(b.session, Manner::IsAway);
    for text in ["closed", "open"] {
        a.call(unlink(ROOT, text)).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(11)).await;
    house.nameless().check_kept(&house.status()).await.unwrap();
    assert_eq!(house.count(b'o').await, 2, "both may be open");
    house.clients.set(b.session, Manner::Answers);
    house.nameless().check_kept(&house.status()).await.unwrap();
    assert_eq!(a.stat(open).await.links, 0);
    assert_eq!((house.count(b'o').await, house.count(b'i').await), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_replaced_file_waits_for_those_who_looked_it_up() {
    let house = House::new().await;
    let (here, there) = (house.client().await, house.client().await);
    let replaced = here.create(ROOT, "current").await;
    here.create(ROOT, "new").await;
    here.call(rename((ROOT, "new"), (ROOT, "current"))).await.unwrap();
    tokio::time::advance(Duration::from_secs(5)).await;
    house.nameless().collect(&house.status()).await.unwrap();
    // Looked up before, opened after.
    let open = Open { id: replaced, is_read: true, is_write: false, writes: None };
    assert_eq!(there.call(open).await.unwrap().attributes.links, 0);
    tokio::time::advance(Duration::from_secs(61)).await;
    house.nameless().collect(&house.status()).await.unwrap();
    assert!(there.kind_of(GetAttributes { id: replaced }).await.is_some());
    assert_eq!((house.count(b'o').await, house.count(b'i').await), (0, 2));
}

/// It was opened when it had no name any more: nobody was asked about it at the rename.
#[tokio::test(start_paused = true)]
async fn a_replaced_file_stays_for_who_opened_it_meanwhile() {
    let house = House::new().await;
    let (here, there) = (house.client().await, house.client().await);
    let replaced = here.create(ROOT, "current").await;
    here.create(ROOT, "new").await;
    here.call(rename((ROOT, "new"), (ROOT, "current"))).await.unwrap();
    there.call(Open { id: replaced, is_read: true, is_write: false, writes: None }).await.unwrap();
    house.clients.open(there.session, replaced);
    tokio::time::advance(Duration::from_secs(61)).await;
    house.nameless().collect(&house.status()).await.unwrap();
    house.nameless().check_kept(&house.status()).await.unwrap();
    assert_eq!(there.stat(replaced).await.links, 0);
    there.call(Release { id: replaced }).await.unwrap();
    assert_eq!((house.count(b'o').await, house.count(b'i').await), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn objects_nobody_committed_go_after_their_session() {
    let house = House::new().await;
    let (crashed, client) = (house.client().await, house.client().await);
    let file = client.create(ROOT, "f").await;
    let committed = crashed.chunk(1, 0, 10);
    crashed.commit(file, vec![committed]).await;
    let id = |client: &Client, serial| GrantedId { mdt: MdtIndex(0), grant: client.grant, serial };
    for serial in [1, 2] {
        house.remover.put(0, id(&crashed, serial), b"0123456789");
    }
    house.remover.put(1, id(&client, 1), b"not committed yet");
    let mut strays = house.strays();
    assert_eq!(strays.scan(&house.status()).await.unwrap(), 0, "its session lives");
    house.mdt.end_session(crashed.session).await.unwrap();
    assert_eq!(strays.scan(&house.status()).await.unwrap(), 0, "it has just ended");
    tokio::time::sleep(house.parts().settings.stray_keep).await;
    assert_eq!(strays.scan(&house.status()).await.unwrap(), 1);
    let left: Vec<_> = house.remover.there.lock().unwrap().keys().copied().collect();
    assert_eq!(left, [(OstIndex(0), id(&crashed, 1)), (OstIndex(1), id(&client, 1))]);
    // A late writer: its session is gone, and another's grant does not name its chunk.
    let late = crashed.call(commit(file, vec![crashed.chunk(2, 0, 10)])).await;
    assert_eq!(late.unwrap_err().kind, tieline_types::ErrorKind::SessionLost);
    let late = client.call(commit(file, vec![crashed.chunk(2, 0, 10)])).await;
    assert_eq!(late.unwrap_err().kind, tieline_types::ErrorKind::Gone);
}

#[tokio::test(start_paused = true)]
async fn what_was_kept_long_enough_goes_with_its_chunks() {
    let house = House::keeping().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    client.commit(file, vec![client.chunk(1, 0, 100)]).await;
    // More than goes at once.
    let large = client.create(ROOT, "large").await;
    for part in 0..2 {
        let extents = (0..200).map(|n| inline((part * 200 + n) * 40_000, b"x")).collect();
        client.commit(large, extents).await;
    }
    client.call(unlink(ROOT, "f")).await.unwrap();
    client.call(unlink(ROOT, "large")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(59)).await;
    house.round(&mut house.deleted_files()).await.unwrap();
    assert_eq!(house.count(b'u').await, 2);
    assert_eq!((house.count(b'k').await, house.count(b't').await), (1, 401));
    tokio::time::sleep(Duration::from_secs(2)).await;
    house.round(&mut house.deleted_files()).await.unwrap();
    house.nameless().collect(&house.status()).await.unwrap();
    house.round(&mut house.freed_chunks()).await.unwrap();
    let left = house.dump().await.into_iter().filter(|(key, _)| b"udtkfo".contains(&key[0]));
    assert_eq!(left.count(), 0, "the chunk counts as freed when the file was deleted");
    assert_eq!(house.remover.removed.lock().unwrap().len(), 1);
    assert_eq!(house.count(b'i').await, 1);
}

#[tokio::test(start_paused = true)]
async fn names_that_files_lost_are_forgotten_when_their_time_is_over() {
    let house = House::keeping().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    client.call(link(file, ROOT, "g")).await.unwrap();
    client.call(unlink(ROOT, "g")).await.unwrap();
    let mut names = house.lost_names();
    house.round(&mut names).await.unwrap();
    assert_eq!(house.count(b'l').await, 1);
    tokio::time::sleep(Duration::from_secs(61)).await;
    house.round(&mut names).await.unwrap();
    assert_eq!(house.count(b'l').await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_is_listed_with_what_is_in_its_way() {
    let house = House::new().await;
    let client = house.client().await;
    let listed = |name: &str| {
        let chores = house.tender.list().chores;
        chores.into_iter().find(|chore| chore.name == name).expect("a chore of that name")
    };
    assert_eq!((listed("freed-chunks").state, listed("check").ended), (ChoreState::Resting, None));
    house.remover.down.lock().unwrap().insert(OstIndex(0));
    free_one(&client, 1, 0).await;
    let running = house.run();
    tokio::time::sleep(Duration::from_secs(70)).await;
    let freed = listed("freed-chunks");
    assert_eq!((freed.state, freed.done, freed.left), (ChoreState::Failed, 0, Some(1)));
    let failure = freed.failure.unwrap();
    assert!(failure.detail.starts_with("chunks at OST0000 stay for now"), "{failure:?}");
    let usage = listed("usage");
    assert_eq!((usage.state, usage.failure), (ChoreState::Resting, None), "others go on");
    assert!(listed("file-count").ended.is_some());
    house.remover.down.lock().unwrap().clear();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let freed = listed("freed-chunks");
    assert_eq!((freed.state, freed.done, freed.left), (ChoreState::Resting, 1, Some(0)));
    assert_eq!(freed.failure, Some(failure), "the last one is remembered");
    house.mdt.set_room(StoreRoom::None("no disk".to_owned())).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let waits = listed("deleted-files").waits_for;
    assert_eq!(waits.as_deref(), Some("room in the metadata store"));
    running.abort();
}
