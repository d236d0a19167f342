//! Directories that a session holds alone: who is given them, who must be asked, and what comes in
//! batches.

use crate::fixture::*;
use tieline_kv::MemoryStore;
use tieline_types::{Caller, ErrorKind, FileId, MdtIndex, SetTime, Time};
use tieline_wire::Request;
use tieline_wire::meta::*;

fn id(serial: u64) -> FileId {
    FileId::new(MdtIndex(0), serial)
}

fn item(id: FileId, request: impl Into<Request>) -> BatchItem {
    let request = request.into();
    BatchItem {
        caller: Caller::root(),
        at: Time { seconds: 1000, nanos: 5 },
        id,
        op: request.op().number(),
        message: request.encode_message(),
    }
}

/// A session with serials, and the first of them.
async fn journalling(house: &House) -> (Client, u64) {
    let client = house.client().await;
    let first = client.call(Reserve { count: 100 }).await.unwrap().first;
    (client, first)
}

/// A directory that the client holds alone.
async fn alone(client: &Client, text: &str) -> FileId {
    let made = client.call(mkdir(ROOT, text, 0o755)).await.unwrap();
    let directory = made.attributes.unwrap().id;
    let units = made.lease.exclusive.unwrap();
    let unit = units.iter().find(|unit| unit.attributes.id == directory).unwrap();
    assert!(unit.is_empty);
    directory
}

fn kinds(reply: &BatchReply) -> Vec<Option<ErrorKind>> {
    reply.outcomes.iter().map(|one| one.failure.as_ref().map(|failure| failure.kind)).collect()
}

#[tokio::test(start_paused = true)]
async fn only_who_has_serials_is_given_a_directory_alone() {
    let house = House::new().await;
    let plain = house.client().await;
    assert_eq!(plain.call(mkdir(ROOT, "a", 0o755)).await.unwrap().lease.exclusive, None);
    let (client, _) = journalling(&house).await;
    let directory = alone(&client, "b").await;
    // Whoever else looks there makes the holder send what it did, once.
    assert_eq!(plain.id(directory, "x").await, None);
    let recalls = std::mem::take(&mut *house.clients.recalls.lock().unwrap());
    let shared: Vec<_> = recalls.iter().filter(|(to, _)| *to == client.session).collect();
    assert_eq!((shared.len(), shared[0].1.unit), (1, directory));
    assert_eq!(shared[0].1.is_shared, Some(true));
    assert_eq!(plain.id(directory, "x").await, None);
    assert_eq!(house.clients.recalled(client.session), []);
    // What others want to see is not given away at once.
    let created = client.call(create(directory, "x", 0o644)).await.unwrap();
    assert_eq!(created.open.lease.exclusive, None);
}

/// Promise 216: Who reads a tree that another client made and holds alone waits for that client
/// once for a thousand directories, where it rests and has sent all.
#[tokio::test(start_paused = true)]
async fn who_is_looked_at_gives_up_other_directories_where_he_rests() {
    let house = House::new().await;
    let ((client, _), other) = (journalling(&house).await, house.client().await);
    let mut made = vec![];
    for at in 0..6 {
        made.push(alone(&client, &format!("d{at}")).await);
    }
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    client.call(create(made[5], "at work", 0o644)).await.unwrap();
    house.clients.recalled(client.session);
    // He keeps one of them, for something waits there.
    house.clients.set(client.session, Manner::Keeps(made[4]));
    other.id(made[0], "x").await;
    let recalls = std::mem::take(&mut *house.clients.recalls.lock().unwrap());
    let [(_, recall)] = &recalls[..] else { panic!("{recalls:?}") };
    let beside = [&made[1..5], &[ROOT]].concat();
    assert_eq!((recall.unit, &recall.beside), (made[0], &Some(beside)));
    for &directory in &made[1..4] {
        other.id(directory, "x").await;
    }
    assert_eq!(house.clients.recalled(client.session), []);
    for &directory in &made[4..] {
        other.id(directory, "x").await;
        assert_eq!(house.clients.recalled(client.session), [directory]);
    }
    // Nobody wanted to see what was given up beside: it may be held alone again.
    let created = client.call(create(made[1], "y", 0o644)).await.unwrap();
    assert!(created.open.lease.exclusive.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_others_read_is_not_held_alone() {
    let house = House::new().await;
    let ((client, _), other) = (journalling(&house).await, house.client().await);
    let directory = client.mkdir(ROOT, "a").await;
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    other.id(directory, "x").await;
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    let created = client.call(create(directory, "x", 0o644)).await.unwrap();
    let units = created.open.lease.exclusive.unwrap();
    assert_eq!(units[0].attributes.id, directory);
    assert!(!units[0].is_empty);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_carried_out_in_its_order() {
    let house = House::new().await;
    let ((client, first), other) = (journalling(&house).await, house.client().await);
    let directory = alone(&client, "a").await;
    let below = id(first + 1);
    let times = SetAttributes { mtime: Some(SetTime::Now), ..setattr(id(first)) };
    let items = vec![
        item(id(first), create(directory, "x", 0o644)),
        item(id(first), commit(id(first), vec![inline(0, b"abc")])),
        item(below, mkdir(directory, "d", 0o755)),
        item(id(first + 2), create(below, "y", 0o600)),
        item(id(first + 3), create(directory, "x", 0o644)),
        item(id(first), rename((directory, "x"), (directory, "z"))),
        item(id(first), times),
    ];
    let mut batch = Batch { items };
    let reply = client.call(batch.clone()).await.unwrap();
    let mut wanted = vec![None; 7];
    wanted[4] = Some(ErrorKind::Exists);
    assert_eq!(kinds(&reply), wanted);
    assert_eq!(client.list(directory).await, ["d", "z"]);
    assert_eq!(client.list(below).await, ["y"]);
    let file = client.stat(id(first)).await;
    assert_eq!((file.size, file.mtime.seconds, file.btime.nanos), (3, 1000, 5));
    assert_eq!(reply.outcomes[6].version, Some(file.version));

    // Again, as after a lost session: nothing changes.
    let before = house.dump().await.into_iter().filter(|(key, _)| key[0] == b'e');
    let before: Vec<_> = before.collect();
    batch.items.remove(4);
    assert_eq!(kinds(&client.call(batch).await.unwrap()), [None; 6]);
    let after = house.dump().await.into_iter().filter(|(key, _)| key[0] == b'e');
    assert_eq!(before, after.collect::<Vec<_>>());

    // The directory that was made is held alone, too.
    other.id(below, "y").await;
    assert_eq!(house.clients.recalled(client.session), [below]);
}

#[tokio::test(start_paused = true)]
async fn a_second_name_may_come_in_a_batch_and_come_again() {
    let house = House::new().await;
    let (client, first) = journalling(&house).await;
    let directory = alone(&client, "a").await;
    let file = id(first);
    let items = vec![
        item(file, create(directory, "tmp", 0o644)),
        item(file, link(file, directory, "object")),
        item(file, unlink(directory, "tmp")),
    ];
    for _ in 0..2 {
        let reply = client.call(Batch { items: items.clone() }).await.unwrap();
        assert!(kinds(&reply).iter().all(Option::is_none), "{reply:?}");
        assert_eq!(client.list(directory).await, ["object"]);
        let known = client.stat(file).await;
        assert_eq!((known.links, known.ctime.seconds), (1, 1000));
        assert_eq!(reply.outcomes.last().unwrap().version, Some(known.version));
    }
}

/// As `rm -r` does it to a tree that another client has looked at, over distance.
#[tokio::test(start_paused = true)]
async fn whoever_changes_one_directory_of_others_after_the_other_gets_more_each_time() {
    let house = House::new().await;
    let ((client, _), other) = (journalling(&house).await, house.client().await);
    let mut directories = Vec::new();
    for index in 0..40 {
        let directory = client.mkdir(ROOT, &format!("d{index}")).await;
        client.call(create(directory, "x", 0o644)).await.unwrap();
        directories.push(directory);
    }
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    for &directory in &directories {
        other.id(directory, "x").await;
    }
    // Whoever holds one of them, and none of the others, may be away: he is not asked before.
    let third = house.client().await;
    third.id(directories[20], "x").await;
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    for &directory in &directories {
        client.id(directory, "x").await;
    }
    house.clients.recalled(other.session);
    let mut alone = std::collections::BTreeSet::new();
    let mut asked = 0;
    for (index, &directory) in directories.iter().enumerate() {
        asked += usize::from(!alone.contains(&directory));
        assert!(index > 20 || house.clients.recalled(third.session).is_empty());
        let told = client.call(unlink(directory, "x")).await.unwrap();
        let given = told.lease.exclusive.unwrap_or_default();
        assert!(given.iter().all(|unit| directories.contains(&unit.attributes.id)));
        alone.extend(given.iter().map(|unit| unit.attributes.id));
    }
    assert_eq!(alone.len(), 40);
    assert!(asked <= 8, "{asked} times for 40 directories");
    assert_eq!(house.clients.recalled(other.session).len(), 40, "each once");
    // One change now and then takes nothing more.
    for &directory in &directories {
        other.id(directory, "x").await;
    }
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    house.clients.recalled(other.session);
    // Nor do two who fight over one directory.
    for name in ["a", "b", "c", "d", "e"] {
        client.call(create(directories[7], name, 0o644)).await.unwrap();
        assert_eq!(house.clients.recalled(other.session), [directories[7]]);
        other.id(directories[7], name).await;
        house.clients.recalled(other.session);
    }
}

#[tokio::test(start_paused = true)]
async fn ids_of_others_are_refused() {
    let house = House::new().await;
    let ((client, _), (_, theirs)) = (journalling(&house).await, journalling(&house).await);
    let batch = |serial| Batch { items: vec![item(id(serial), create(ROOT, "x", 0o644))] };
    for serial in [theirs, 1, 1 << 30] {
        assert_eq!(client.kind_of(batch(serial)).await, Some(ErrorKind::InvalidArgument));
    }
}

/// The client whose recall came too late sends what it had not sent under its next session, while
/// the barred one is not ended yet.
#[tokio::test(start_paused = true)]
async fn ids_of_a_barred_session_are_given_by_the_next_of_its_client() {
    let house = House::new().await;
    let barred = house.client_named(77, None).await;
    let first = barred.call(Reserve { count: 10 }).await.unwrap().first;
    let batch = || Batch { items: vec![item(id(first), create(ROOT, "x", 0o644))] };
    house.mdt.leases.bar(barred.session);
    assert_eq!(barred.kind_of(batch()).await, Some(ErrorKind::SessionLost));
    let other = house.client_named(78, None).await;
    assert_eq!(other.kind_of(batch()).await, Some(ErrorKind::InvalidArgument));
    let next = house.client_named(77, Some(barred.session)).await;
    assert!(!next.is_resumed);
    assert_eq!(kinds(&next.call(batch()).await.unwrap()), [None]);
}

#[tokio::test(start_paused = true)]
async fn after_a_start_whoever_may_have_done_something_is_asked_first() {
    let store = MemoryStore::new();
    let house = House::with(store.clone()).await;
    let (holder, first) = journalling(&house).await;
    let name = 77;
    let holder_id = house.client_named(name, None).await;
    let serials = holder_id.call(Reserve { count: 10 }).await.unwrap().first;
    drop(holder);
    let house = house.restarted().await;
    let resumed = house.client_named(name, Some(holder_id.session)).await;
    assert!(resumed.is_resumed && first != serials);
    resumed.next.store(1000, std::sync::atomic::Ordering::Relaxed);
    let other = house.client().await;
    let before = tokio::time::Instant::now();
    other.id(ROOT, "x").await;
    let recalls = house.clients.recalls.lock().unwrap().clone();
    let asked: Vec<_> = recalls.iter().filter(|(to, _)| *to == resumed.session).collect();
    assert_eq!((asked.len(), asked[0].1.unit), (1, FileId(0)));
    // The other session of before never comes back: its lease runs out. (It answers here.)
    assert!(before.elapsed().as_secs() <= 20);
    let reply = resumed.call(Batch { items: vec![item(id(serials), create(ROOT, "x", 0o644))] });
    assert_eq!(kinds(&reply.await.unwrap()), [None]);
}

/// Each has to send what it did before the other may look: none is kept from that by the other.
#[tokio::test(start_paused = true)]
async fn after_a_start_two_who_send_what_they_did_do_not_wait_for_each_other() {
    let house = House::with(MemoryStore::new()).await;
    let mut holders = vec![];
    for name in [77, 78] {
        let holder = house.client_named(name, None).await;
        let first = holder.call(Reserve { count: 10 }).await.unwrap().first;
        holders.push((name, holder.session, first));
    }
    let house = house.restarted().await;
    for (name, session, first) in holders {
        let resumed = house.client_named(name, Some(session)).await;
        resumed.next.store(1000, std::sync::atomic::Ordering::Relaxed);
        let made = create(ROOT, &format!("by-{name}"), 0o644);
        let reply = resumed.call(Batch { items: vec![item(id(first), made)] }).await;
        assert_eq!(kinds(&reply.unwrap()), [None]);
    }
    assert!(house.clients.recalls.lock().unwrap().iter().all(|(_, recall)| recall.unit == ROOT));
    house.client().await.id(ROOT, "x").await;
    let recalls = house.clients.recalls.lock().unwrap().clone();
    let everything = recalls.iter().filter(|(_, recall)| recall.unit == FileId(0));
    assert_eq!(everything.count(), 2, "whoever looks asks both");
}

#[tokio::test(start_paused = true)]
async fn who_is_away_keeps_what_it_held_alone_until_its_lease_ends() {
    let house = House::new().await;
    let ((client, _), other) = (journalling(&house).await, house.client().await);
    let directory = alone(&client, "a").await;
    house.clients.set(client.session, Manner::IsAway);
    let before = tokio::time::Instant::now();
    assert_eq!(other.id(directory, "x").await, None);
    assert_eq!(before.elapsed().as_secs(), 20);
    // Nobody is asked any more.
    assert_eq!(other.id(directory, "x").await, None);
    assert_eq!(before.elapsed().as_secs(), 20);
}
