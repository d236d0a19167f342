//! Files that are made without a name and put in the place of others; and which bytes a file has.

use crate::fixture::*;
use std::time::Duration;
use tieline_types::ErrorKind::{
    Exists, IsDirectory, NotFound, NotPermitted, PermissionDenied, Stale,
};
use tieline_types::{Attributes, ContentVersion, FileId, Mode};
use tieline_wire::ledger::Undelete;
use tieline_wire::meta::*;

async fn nameless(client: &Client, parent: FileId) -> FileId {
    let call = Create { is_nameless: Some(true), ..create(parent, "-", 0o644) };
    client.call(call).await.unwrap().open.attributes.id
}

fn replacing(id: FileId, parent: FileId, text: &str) -> Link {
    Link { replaces: Some(true), ..link(id, parent, text) }
}

#[tokio::test(start_paused = true)]
async fn a_new_file_takes_the_place_of_an_old_one() {
    let house = House::new().await;
    let (here, there) = (house.client().await, house.client().await);
    let old = there.create(ROOT, "f").await;
    there.commit(old, vec![there.chunk(1, 0, 100)]).await;
    let new = nameless(&here, ROOT).await;
    here.commit(new, vec![here.chunk(1, 0, 50)]).await;
    assert_eq!(here.kind_of(link(new, ROOT, "f")).await, Some(Exists));
    there.list(ROOT).await;
    there.lookup(ROOT, "f").await;
    house.clients.recalled(there.session);
    let before = here.stat(ROOT).await;
    let placed = here.call(replacing(new, ROOT, "f")).await.unwrap().attributes.unwrap();
    assert_eq!((placed.id, placed.links, placed.size), (new, 1, 50));
    assert_eq!(there.id(ROOT, "f").await, Some(new));
    let recalled = house.clients.recalled(there.session);
    assert!(recalled.contains(&ROOT), "who knew the name was told before");
    let after = here.stat(ROOT).await;
    assert!(after.version > before.version && after.mtime >= before.mtime);
    // What was replaced lingers for those who have looked its name up, as after a rename.
    assert_eq!(house.count(b'f').await, 0);
    house.remove_nameless().await;
    assert_eq!(there.kind_of(GetAttributes { id: old }).await, Some(Stale));
    assert_eq!((house.count(b'f').await, house.count(b'i').await), (1, 2));
    // Where nothing has the name it is a link like others.
    let other = nameless(&here, ROOT).await;
    here.call(replacing(other, ROOT, "g")).await.unwrap();
    assert_eq!(here.id(ROOT, "g").await, Some(other));
    assert_eq!(here.call(Usage {}).await.unwrap().inodes, 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_replaced_is_kept_for_who_has_it_open() {
    let house = House::new().await;
    let (here, there) = (house.client().await, house.client().await);
    let old = here.create(ROOT, "f").await;
    here.call(link(old, ROOT, "also")).await.unwrap();
    let new = nameless(&here, ROOT).await;
    here.call(replacing(new, ROOT, "f")).await.unwrap();
    assert_eq!(here.stat(old).await.links, 1, "it has another name");
    house.clients.open(there.session, old);
    there.call(Open { id: old, is_read: true, is_write: false, writes: None }).await.unwrap();
    there.lookup(ROOT, "also").await;
    let other = nameless(&here, ROOT).await;
    let keep = Link { keep: Some(old), ..replacing(other, ROOT, "also") };
    here.call(keep).await.unwrap();
    assert_eq!(house.count(b'o').await, 2, "for both");
    for client in [&here, &there] {
        assert_eq!(there.stat(old).await.links, 0);
        client.call(Release { id: old }).await.unwrap();
    }
    assert_eq!(there.kind_of(GetAttributes { id: old }).await, Some(Stale));
    // A second name of the same file is left alone.
    here.call(link(new, ROOT, "twice")).await.unwrap();
    let before = here.stat(new).await;
    here.call(replacing(new, ROOT, "twice")).await.unwrap();
    assert_eq!(here.stat(new).await, before);
    assert_eq!(here.list(ROOT).await, ["also", "f", "fnal", "twice"]);
}

#[tokio::test(start_paused = true)]
async fn only_who_may_take_a_name_away_replaces_it() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o1777)).await.unwrap();
    let (owner, other) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let theirs = owner.create(ROOT, "f").await;
    let directory = owner.mkdir(ROOT, "d").await;
    root.mkdir(ROOT, "e").await;
    let mine = nameless(&other, ROOT).await;
    let kind =
        async |client: &Client, parent, text| client.kind_of(replacing(mine, parent, text)).await;
    assert_eq!(kind(&other, ROOT, "f").await, Some(NotPermitted), "the directory is sticky");
    assert_eq!(kind(&other, ROOT, "d").await, Some(NotPermitted));
    assert_eq!(kind(&root, ROOT, "e").await, Some(IsDirectory));
    assert_eq!(kind(&other, directory, "new").await, Some(PermissionDenied));
    assert!(kind(&other, ROOT, "fnal").await.is_some(), "another MDT is mounted there");
    // Who knows the id of what others upload gets no name for it.
    let stranger = house.client().await;
    assert_eq!(kind(&stranger, ROOT, "f").await, Some(NotFound));
    assert_eq!(other.id(ROOT, "f").await, Some(theirs));
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    assert_eq!(kind(&other, ROOT, "f").await, None);
}

/// A door that dies in the middle of an upload.
#[tokio::test(start_paused = true)]
async fn what_was_not_put_in_place_goes_with_the_session() {
    let house = House::new().await;
    let client = house.client().await;
    let before = house.count(b'i').await;
    let file = nameless(&client, ROOT).await;
    client.commit(file, vec![client.chunk(1, 0, 100), client.chunk(2, 100, 100)]).await;
    assert_eq!(house.count(b'i').await, before + 1);
    house.mdt.end_session(client.session).await.unwrap();
    tokio::time::advance(Duration::from_secs(61)).await;
    house.remove_nameless().await;
    assert_eq!((house.count(b'i').await, house.count(b'o').await), (before, 0));
    assert_eq!((house.count(b't').await, house.count(b'f').await), (0, 2), "its chunks are free");
    assert_eq!(house.client().await.call(Usage {}).await.unwrap().inodes as usize, before);
}

/// Another word for other bytes, and for nothing else.
#[tokio::test(start_paused = true)]
async fn the_content_version_is_of_bytes_alone() {
    let house = House::keeping().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let mut seen: Vec<ContentVersion> = vec![];
    let changed = |attributes: Attributes, seen: &mut Vec<ContentVersion>| {
        let version = attributes.content_version();
        assert!(!seen.contains(&version), "{version}");
        seen.push(version);
    };
    changed(client.stat(file).await, &mut seen);
    changed(client.commit(file, vec![client.chunk(1, 0, 100)]).await, &mut seen);
    changed(client.commit(file, vec![client.chunk(2, 0, 100)]).await, &mut seen);
    changed(client.call(truncate(file, 10)).await.unwrap().attributes, &mut seen);
    changed(client.call(truncate(file, 100)).await.unwrap().attributes, &mut seen);
    let bytes = *seen.last().unwrap();
    client.call(chmod(file, 0o600)).await.unwrap();
    client.call(rename((ROOT, "f"), (ROOT, "g"))).await.unwrap();
    client.call(link(file, ROOT, "h")).await.unwrap();
    client.call(unlink(ROOT, "h")).await.unwrap();
    let touch = SetAttributes { mtime: Some(tieline_types::SetTime::Now), ..setattr(file) };
    client.call(touch).await.unwrap();
    assert_eq!(client.stat(file).await.content_version(), bytes);
    // These do change what its holders believe of it.
    let before = client.stat(file).await.version;
    let (moves, stripe_size) = (Some(true), Some(1 << 20));
    let change = LayoutChange { moves, stripe_size, ..LayoutChange::default() };
    client.call(SetLayout { id: file, layout: Some(change) }).await.unwrap();
    let moved = client.stat(file).await;
    assert!(moved.version > before);
    assert_eq!(moved.content_version(), bytes);
    client.call(unlink(ROOT, "g")).await.unwrap();
    let again = Undelete { id: file, from: ROOT, parent: ROOT, name: name("i"), lost: None };
    let again = client.call(again).await.unwrap().attributes.unwrap();
    assert_eq!(again.content_version(), bytes);
    changed(client.commit(file, vec![client.chunk(3, 0, 10)]).await, &mut seen);
    assert_eq!(client.stat(file).await.mode, Mode::new(0o600));
}
