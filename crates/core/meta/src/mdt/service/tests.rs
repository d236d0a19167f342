//! The service as clients call it: sessions, repeated requests, recalls.

mod alone;
mod coherence;
mod cut;
mod lost;
mod parties;
mod registrations;

use crate::fixture::*;
use std::time::Duration;
use tieline_types::ErrorKind;
use tieline_wire::meta::*;
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(20);

#[tokio::test(start_paused = true)]
async fn a_file_lives_and_dies() {
    let house = House::new().await;
    let client = house.client().await;
    let dir = client.mkdir(ROOT, "data").await;
    let file = client.create(dir, "run7").await;
    assert_eq!(client.list(ROOT).await, ["data", "fnal"]);
    assert_eq!(client.id(dir, "run7").await, Some(file));
    let attributes = client.commit(file, vec![inline(0, b"hello")]).await;
    assert_eq!((attributes.size, attributes.stored), (5, 5));
    assert_eq!(client.extents(file).await, [inline(0, b"hello")]);
    let opened =
        client.call(Open { id: file, is_read: true, is_write: false, writes: None }).await.unwrap();
    assert_eq!(opened.extents.extents, [inline(0, b"hello")]);
    client.call(rename((dir, "run7"), (ROOT, "run8"))).await.unwrap();
    assert_eq!(client.id(ROOT, "run8").await, Some(file));
    client.call(unlink(ROOT, "run8")).await.unwrap();
    assert_eq!(client.kind_of(GetAttributes { id: file }).await, Some(ErrorKind::Stale));
    client.call(rmdir(ROOT, "data")).await.unwrap();
    assert_eq!(client.list(ROOT).await, ["fnal"]);
    assert_eq!((house.count(b'i').await, house.count(b't').await), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_takes_effect_once_and_is_answered_alike() {
    let house = House::new().await;
    let client = house.client_named(5, None).await;
    let call = || mkdir(ROOT, "once", 0o755);
    let first = client.call_numbered(9, call()).await.unwrap();
    let second = client.call_numbered(9, call()).await.unwrap();
    assert_eq!(first.attributes, second.attributes);
    assert!(second.lease.units.is_empty(), "a repeated answer grants nothing");
    // Another number is another request.
    let third = client.call_numbered(10, call()).await.unwrap_err();
    assert_eq!(third.kind, ErrorKind::Exists);

    let house = house.restarted().await;
    let client = house.client_named(5, Some(client.session)).await;
    assert!(client.is_resumed);
    let again = client.call_numbered(9, call()).await.unwrap();
    assert_eq!(first.attributes, again.attributes);
    assert_eq!(client.stat(ROOT).await.links, 4);
}

#[tokio::test(start_paused = true)]
async fn the_same_request_twice_at_once_takes_effect_once() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let call = || client.call_numbered(50, link(file, ROOT, "g"));
    let (a, b, c) = tokio::join!(call(), call(), call());
    assert_eq!(a.unwrap().attributes, b.unwrap().attributes);
    assert_eq!(c.unwrap().attributes.unwrap().links, 2);
}

#[tokio::test(start_paused = true)]
async fn a_number_is_not_reused_for_another_call() {
    let house = House::new().await;
    let client = house.client().await;
    client.call_numbered(7, mkdir(ROOT, "d", 0o755)).await.unwrap();
    let wrong = client.call_numbered(7, rmdir(ROOT, "d")).await.unwrap_err();
    assert_eq!(wrong.kind, ErrorKind::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn answers_are_deleted_once_the_client_has_seen_them() {
    let house = House::new().await;
    let client = house.client().await;
    for index in 0..10 {
        client.mkdir(ROOT, &format!("d{index}")).await;
    }
    assert_eq!(house.count(b'a').await, 10);
    let client = client.confirming(client.number());
    client.mkdir(ROOT, "last").await;
    assert_eq!(house.count(b'a').await, 1);
}

#[tokio::test(start_paused = true)]
async fn unknown_sessions_are_refused() {
    let house = House::new().await;
    let client = house.client().await;
    house.mdt.end_session(client.session).await.unwrap();
    let read = client.kind_of(GetAttributes { id: ROOT }).await;
    assert_eq!(read, Some(ErrorKind::SessionLost));
    let change = client.kind_of(mkdir(ROOT, "d", 0o755)).await;
    assert_eq!(change, Some(ErrorKind::SessionLost));
    // Its id is never given again, also not after a start.
    let other = house.client().await;
    assert!(other.session > client.session && other.grant > client.grant);
    let (old, house) = (other, house.restarted().await);
    let other = house.client().await;
    assert!(other.session > old.session && other.grant > old.grant);
}

#[tokio::test(start_paused = true)]
async fn a_holder_is_asked_before_the_change_and_who_asks_is_not() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    let dir = a.mkdir(ROOT, "d").await;
    assert_eq!(a.call(Lookup { parent: dir, name: name("x") }).await.unwrap().lease.units, [dir]);
    assert_eq!(b.call(Lookup { parent: dir, name: name("x") }).await.unwrap().lease.units, [dir]);
    house.clients.recalled(b.session);
    a.create(dir, "x").await;
    assert_eq!(house.clients.recalled(b.session), [dir]);
    assert_eq!(house.clients.recalled(a.session), []);
    // It forgot: it is not asked again until it asked again.
    a.create(dir, "y").await;
    assert_eq!(house.clients.recalled(b.session), []);
}

#[tokio::test(start_paused = true)]
async fn a_recall_names_what_changes_and_covers_what_was_read() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    let dir = a.mkdir(ROOT, "d").await;
    let file = a.create(dir, "f").await;
    let seen = b.call(Lookup { parent: dir, name: name("f") }).await.unwrap();
    a.call(unlink(dir, "f")).await.unwrap();
    let recalls = house.clients.recalls.lock().unwrap();
    let (_, recall) = recalls.iter().find(|(to, _)| *to == b.session).unwrap();
    assert_eq!((recall.unit, &recall.files[..]), (dir, &[file][..]));
    assert_eq!(recall.names, [name("f")]);
    assert!(recall.at >= seen.lease.as_of);
}

#[tokio::test(start_paused = true)]
async fn every_directory_that_names_a_file_is_asked_about() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    let (left, right) = (a.mkdir(ROOT, "left").await, a.mkdir(ROOT, "right").await);
    let file = a.create(left, "f").await;
    a.call(link(file, right, "g")).await.unwrap();
    b.lookup(right, "g").await;
    house.clients.recalled(b.session);
    a.call(chmod(file, 0o600)).await.unwrap();
    assert_eq!(house.clients.recalled(b.session), [right]);
}

#[tokio::test(start_paused = true)]
async fn a_frozen_holder_delays_a_change_by_its_lease_and_no_more() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    b.lookup(ROOT, "x").await;
    house.clients.set(b.session, Manner::Ignores);
    let before = Instant::now();
    a.mkdir(ROOT, "x").await;
    assert_eq!(before.elapsed(), LEASE);
    // Its lease is gone, so it is in nobody's way any more.
    a.mkdir(ROOT, "y").await;
    assert_eq!(before.elapsed(), LEASE);
}

#[tokio::test(start_paused = true)]
async fn a_holder_without_connection_is_waited_for_until_it_is_back() {
    let house = House::new().await;
    let a = house.client().await;
    let b = house.client_named(77, None).await;
    b.lookup(ROOT, "x").await;
    house.clients.set(b.session, Manner::IsAway);
    let before = Instant::now();
    let change = tokio::spawn(async move { a.mkdir(ROOT, "x").await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!change.is_finished());
    let back = house.client_named(77, Some(b.session)).await;
    assert!(back.is_resumed);
    change.await.unwrap();
    assert_eq!(before.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_heard_and_does_not_answer_loses_its_session() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    b.lookup(ROOT, "x").await;
    house.clients.set(b.session, Manner::Ignores);
    let before = Instant::now();
    let (mdt, session) = (house.mdt.clone(), b.session);
    let beating = tokio::spawn(async move {
        loop {
            mdt.heard(session);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    a.mkdir(ROOT, "x").await;
    beating.abort();
    assert!(before.elapsed() <= 3 * LEASE, "{:?}", before.elapsed());
    let refused = b.kind_of(GetAttributes { id: ROOT }).await;
    assert_eq!(refused, Some(ErrorKind::SessionLost));
}

#[tokio::test(start_paused = true)]
async fn after_a_start_changes_wait_for_those_who_may_still_believe() {
    let house = House::new().await;
    let (a, b) = (house.client_named(1, None).await, house.client_named(2, None).await);
    b.lookup(ROOT, "x").await;
    let house = house.restarted().await;
    let before = Instant::now();
    let a = house.client_named(1, Some(a.session)).await;
    // Reading does not wait.
    assert_eq!(a.id(ROOT, "x").await, None);
    assert_eq!(before.elapsed(), Duration::ZERO);
    a.mkdir(ROOT, "x").await;
    assert_eq!(before.elapsed(), LEASE);

    let house = house.restarted().await;
    let before = Instant::now();
    let a = house.client_named(1, Some(a.session)).await;
    house.client_named(2, Some(b.session)).await;
    a.mkdir(ROOT, "y").await;
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn many_clients_change_one_directory() {
    let house = House::new().await;
    let mut working = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let client = house.client().await;
        working.spawn(async move {
            for index in 0..20 {
                let name = format!("w{worker}-{index}");
                client.lookup(ROOT, &name).await;
                client.create(ROOT, &name).await;
                if index % 3 == 0 {
                    client.call(unlink(ROOT, &name)).await.unwrap();
                }
            }
        });
    }
    while let Some(done) = working.join_next().await {
        done.unwrap();
    }
    let client = house.client().await;
    // 13 of 20 are left to each, and the junction.
    assert_eq!(client.list(ROOT).await.len(), 8 * 13 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_open_elsewhere_outlives_its_last_name() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    let file = a.create(ROOT, "f").await;
    b.call(Open { id: file, is_read: true, is_write: true, writes: None }).await.unwrap();
    house.clients.open(b.session, file);
    // B's lease goes with this, but not what it has open.
    a.create(ROOT, "other").await;
    a.call(unlink(ROOT, "f")).await.unwrap();
    assert_eq!(b.stat(file).await.links, 0);
    b.commit(file, vec![inline(0, b"late")]).await;
    assert_eq!(b.kind_of(link(file, ROOT, "again")).await, Some(ErrorKind::NotFound));
    b.call(Release { id: file }).await.unwrap();
    assert_eq!(b.kind_of(GetAttributes { id: file }).await, Some(ErrorKind::Stale));
    assert_eq!((house.count(b'o').await, house.count(b't').await), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_file_is_kept_for_the_client_that_removes_it() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let call = Unlink { keep: Some(file), ..unlink(ROOT, "f") };
    let left = client.call(call).await.unwrap().attributes.unwrap();
    assert_eq!((left.id, left.links), (file, 0));
    client.call(Release { id: file }).await.unwrap();
    client.call(Release { id: file }).await.unwrap();
    assert_eq!(house.count(b'i').await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_session_kept_goes_with_it() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    let file = a.create(ROOT, "f").await;
    let keep = Unlink { keep: Some(file), ..unlink(ROOT, "f") };
    a.call(keep).await.unwrap();
    house.mdt.end_session(a.session).await.unwrap();
    assert_eq!(b.kind_of(GetAttributes { id: file }).await, Some(ErrorKind::Stale));
    for kind in [b'o', b'a'] {
        assert_eq!(house.count(kind).await, 0);
    }
    assert_eq!(house.count(b's').await, 1);
}

#[tokio::test(start_paused = true)]
async fn files_of_other_rooms_and_servers_are_refused() {
    let house = House::new().await;
    let client = house.client().await;
    let foreign = tieline_types::FileId::root_of(tieline_types::MdtIndex(1));
    assert_eq!(client.kind_of(GetAttributes { id: foreign }).await, Some(ErrorKind::WrongServer));
    assert_eq!(
        client.kind_of(tieline_wire::data::OstStatus {}).await,
        Some(ErrorKind::NotSupported)
    );
    let file = client.create(ROOT, "f").await;
    let far = client.kind_of(link(file, foreign, "g")).await;
    assert_eq!(far, Some(ErrorKind::CrossDevice));
    let far = client.kind_of(rename((ROOT, "f"), (foreign, "g"))).await;
    assert_eq!(far, Some(ErrorKind::CrossDevice));
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_many_is_taken_back_from_all_at_once() {
    const FAR: Duration = Duration::from_millis(50);
    let house = House::new().await;
    let writer = house.client().await;
    let directory = writer.mkdir(ROOT, "d").await;
    let mut readers = vec![];
    for _ in 0..100 {
        let reader = house.client().await;
        reader.list(directory).await;
        house.clients.set(reader.session, Manner::Takes(FAR));
        readers.push(reader);
    }
    let begun = Instant::now();
    writer.create(directory, "f").await;
    let elapsed = begun.elapsed();
    assert!(elapsed >= FAR && elapsed < FAR * 2, "{elapsed:?} for a hundred readers");
    for reader in readers {
        assert_eq!(house.clients.recalled(reader.session), [directory]);
    }
}
