//! Deleted files, kept and brought back.

use crate::fixture::*;
use std::time::Duration;
use tieline_types::{ErrorKind, FileId};
use tieline_wire::ledger::{DeletedFile, ListDeleted, Undelete};

async fn deleted(client: &Client, directory: FileId) -> Vec<DeletedFile> {
    client
        .call(ListDeleted { directory, after: None, limit: 100, is_lost: None, after_name: None })
        .await
        .unwrap()
        .files
}

async fn lost(client: &Client, directory: FileId) -> Vec<DeletedFile> {
    let (is_lost, mut files) = (Some(true), vec![]);
    let (mut after, mut after_name) = (None, None);
    loop {
        let ask = ListDeleted { directory, after, limit: 1, is_lost, after_name };
        let page = client.call(ask).await.unwrap();
        files.extend(page.files);
        (after, after_name) = (page.next, page.next_name);
        if after.is_none() {
            return files;
        }
    }
}

fn undelete(id: FileId, from: FileId, text: &str) -> Undelete {
    Undelete { id, from, parent: from, name: name(text), lost: None }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_file_comes_back_as_it_was() {
    let house = House::keeping().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let before = client.commit(file, vec![client.chunk(1, 0, 100), inline(100, b"tail")]).await;
    client.call(unlink(ROOT, "f")).await.unwrap();
    assert_eq!(client.id(ROOT, "f").await, None);
    assert_eq!(client.kind_of(get_attributes(file)).await, Some(ErrorKind::Stale));
    let listed = deleted(&client, ROOT).await;
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].id, listed[0].size, listed[0].name.clone()), (file, 104, name("f")));
    // Another has the name now.
    client.create(ROOT, "f").await;
    assert_eq!(client.kind_of(undelete(file, ROOT, "f")).await, Some(ErrorKind::Exists));
    let back = client.call(undelete(file, ROOT, "g")).await.unwrap().attributes.unwrap();
    assert_eq!((back.id, back.size, back.links), (file, before.size, 1));
    assert!(back.version > before.version);
    assert_eq!(client.extents(file).await.len(), 2);
    assert!(deleted(&client, ROOT).await.is_empty());
    assert_eq!(client.kind_of(undelete(file, ROOT, "h")).await, Some(ErrorKind::NotFound));
    assert_eq!(house.count(b'd').await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_rename_replaced_and_what_was_open_come_back_too() {
    let house = House::keeping().await;
    let (client, other) = (house.client().await, house.client().await);
    let old = client.create(ROOT, "f").await;
    client.create(ROOT, "new").await;
    client.call(rename((ROOT, "new"), (ROOT, "f"))).await.unwrap();
    let open = client.create(ROOT, "open").await;
    house.clients.open(other.session, open);
    other
        .call(tieline_wire::meta::Open { id: open, is_read: true, is_write: false, writes: None })
        .await
        .unwrap();
    client.call(unlink(ROOT, "open")).await.unwrap();
    // What is kept for readers who are about to come can be had back at once.
    let ids = async || -> Vec<FileId> {
        deleted(&client, ROOT).await.iter().map(|file| file.id).collect()
    };
    assert_eq!(ids().await, [old, open]);
    client.call(undelete(old, ROOT, "f.at once")).await.unwrap();
    assert_eq!(ids().await, [open]);
    client.call(rename((ROOT, "f.at once"), (ROOT, "f"))).await.unwrap();
    client.create(ROOT, "newer").await;
    client.call(rename((ROOT, "newer"), (ROOT, "f"))).await.unwrap();
    let told = deleted(&client, ROOT).await;
    let at = told.iter().find(|file| file.id == old).map(|file| file.deleted);
    other.call(tieline_wire::meta::Release { id: open }).await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;
    house.remove_nameless().await;
    let told = deleted(&client, ROOT).await;
    let then = told.iter().find(|file| file.id == old).map(|file| file.deleted);
    assert!(at.is_some() && at == then, "that it was kept for readers changes no time");
    assert!(ids().await.contains(&open));
    client.call(undelete(old, ROOT, "f.old")).await.unwrap();
    client.call(undelete(open, ROOT, "open")).await.unwrap();
}

/// Of a client that is not heard from nobody knows what it has open.
#[tokio::test(start_paused = true)]
async fn what_somebody_has_open_comes_back_and_stays_open() {
    let house = House::keeping().await;
    let owner = house.client().await;
    let readers = [house.client().await, house.client().await];
    let open = owner.create(ROOT, "open").await;
    owner.commit(open, vec![inline(0, b"bytes")]).await;
    for reader in &readers {
        house.clients.open(reader.session, open);
        let call =
            tieline_wire::meta::Open { id: open, is_read: true, is_write: false, writes: None };
        reader.call(call).await.unwrap();
    }
    owner.call(unlink(ROOT, "open")).await.unwrap();
    assert_eq!(house.count(b'o').await, 2);
    let told = deleted(&owner, ROOT).await;
    assert_eq!((told.len(), told[0].id, told[0].name.clone()), (1, open, name("open")));
    let back = owner.call(undelete(open, ROOT, "back")).await.unwrap().attributes.unwrap();
    assert_eq!((back.id, back.size, back.links), (open, 5, 1));
    assert!(deleted(&owner, ROOT).await.is_empty() && house.count(b'o').await == 0);
    // They close it, and nothing happens; it goes as any other.
    for reader in &readers {
        assert_eq!(reader.extents(open).await.len(), 1);
        house.clients.close(reader.session, open);
        reader.call(tieline_wire::meta::Release { id: open }).await.unwrap();
    }
    assert_eq!(owner.id(ROOT, "back").await, Some(open));
    owner.call(unlink(ROOT, "back")).await.unwrap();
    assert_eq!(house.count(b'o').await, 0);
    owner.call(undelete(open, ROOT, "again")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_removed_tree_comes_back_from_the_top() {
    let house = House::keeping().await;
    let client = house.client().await;
    let directory = client.mkdir(ROOT, "d").await;
    let file = client.create(directory, "f").await;
    client.call(unlink(directory, "f")).await.unwrap();
    client.call(rmdir(ROOT, "d")).await.unwrap();
    assert_eq!(deleted(&client, directory).await.len(), 1, "found under a directory that is gone");
    let early = client.kind_of(undelete(file, directory, "f")).await;
    assert_eq!(early, Some(ErrorKind::Stale), "the directory first");
    let links = client.stat(ROOT).await.links;
    client.call(undelete(directory, ROOT, "d")).await.unwrap();
    assert_eq!(client.stat(ROOT).await.links, links + 1);
    client.call(undelete(file, directory, "f")).await.unwrap();
    assert_eq!(client.list(directory).await, ["f"]);
    assert_eq!(client.stat(directory).await.links, 2);
}

#[tokio::test(start_paused = true)]
async fn a_name_comes_back_that_a_file_lost_while_it_had_others() {
    let house = House::keeping().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let (owner, stranger) = (root.by(&user(501, 20, &[])), root.by(&user(502, 20, &[])));
    let directory = owner.mkdir(ROOT, "d").await;
    let file = owner.create(directory, "f").await;
    for text in ["g", "h"] {
        let (id, parent, name) = (file, ROOT, name(text));
        let (replaces, keep) = (None, None);
        owner.call(tieline_wire::meta::Link { id, parent, name, replaces, keep }).await.unwrap();
    }
    owner.call(unlink(directory, "f")).await.unwrap();
    owner.call(unlink(ROOT, "g")).await.unwrap();
    let told = lost(&owner, directory).await;
    assert_eq!((told[0].id, told[0].name.clone(), told[0].is_lost), (file, name("f"), Some(true)));
    assert_eq!((told.len(), lost(&owner, ROOT).await.len()), (1, 1));
    assert!(lost(&stranger, ROOT).await.is_empty() && deleted(&owner, ROOT).await.is_empty());
    let again =
        |from, text: &str| Undelete { lost: Some(name(text)), ..undelete(file, from, text) };
    assert_eq!(stranger.kind_of(again(ROOT, "g")).await, Some(ErrorKind::NotPermitted));
    assert_eq!(owner.kind_of(again(ROOT, "f")).await, Some(ErrorKind::NotFound));
    // With its last name it is gone itself: that comes first.
    owner.call(unlink(ROOT, "h")).await.unwrap();
    assert_eq!(owner.kind_of(again(directory, "f")).await, Some(ErrorKind::NotFound));
    owner.call(undelete(file, ROOT, "h")).await.unwrap();
    owner.call(again(directory, "f")).await.unwrap();
    assert_eq!(owner.stat(file).await.links, 2);
    assert_eq!(owner.list(directory).await, ["f"]);
    assert_eq!(owner.kind_of(again(directory, "f")).await, Some(ErrorKind::NotFound));
}

/// What it knew of an empty directory that it removed is not so any more.
#[tokio::test(start_paused = true)]
async fn who_removed_a_directory_hears_that_it_is_back() {
    let house = House::keeping().await;
    let (remover, client) = (house.client().await, house.client().await);
    let directory = remover.mkdir(ROOT, "d").await;
    remover.create(directory, "f").await;
    remover.list(directory).await;
    remover.call(unlink(directory, "f")).await.unwrap();
    remover.list(directory).await;
    remover.call(rmdir(ROOT, "d")).await.unwrap();
    house.clients.recalled(remover.session);
    client.call(undelete(directory, ROOT, "d")).await.unwrap();
    let recalled = house.clients.recalled(remover.session);
    assert!(recalled.contains(&directory), "{recalled:?}");
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_and_root_bring_back() {
    let house = House::keeping().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let (owner, stranger) = (root.by(&user(501, 20, &[])), root.by(&user(502, 20, &[])));
    let file = owner.create(ROOT, "f").await;
    stranger.call(unlink(ROOT, "f")).await.unwrap();
    assert!(deleted(&stranger, ROOT).await.is_empty());
    assert_eq!(deleted(&owner, ROOT).await[0].by.0, 502);
    assert_eq!(deleted(&root, ROOT).await.len(), 1);
    let denied = stranger.kind_of(undelete(file, ROOT, "f")).await;
    assert_eq!(denied, Some(ErrorKind::NotPermitted));
    root.call(chmod(ROOT, 0o755)).await.unwrap();
    let denied = owner.kind_of(undelete(file, ROOT, "f")).await;
    assert_eq!(denied, Some(ErrorKind::PermissionDenied), "the directory's mode counts too");
    root.call(undelete(file, ROOT, "f")).await.unwrap();
    assert_eq!(root.stat(file).await.uid.0, 501);
}

/// Short for the call.
fn get_attributes(id: FileId) -> tieline_wire::meta::GetAttributes {
    tieline_wire::meta::GetAttributes { id }
}
