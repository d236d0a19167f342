//! Access lists: who sets them, whom they let in, and what directories hand down.

use crate::fixture::*;
use tieline_types::ErrorKind::{
    InvalidArgument, NoAttribute, NotPermitted, NotSupported, PermissionDenied,
};
use tieline_types::{FileId, XattrMode, XattrName};
use tieline_wire::meta::*;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NO_ID: u32 = u32::MAX;

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// `u::rwx,u:11:UID,g::r-x,m::MASK,o::---`
fn lets_11(rights: u16, mask: u16) -> Vec<u8> {
    list(&[(1, 7, NO_ID), (2, rights, 11), (4, 5, NO_ID), (16, mask, NO_ID), (32, 0, NO_ID)])
}

fn name_of(text: &str) -> XattrName {
    XattrName::new(text).unwrap()
}

fn set(id: FileId, text: &str, value: Vec<u8>) -> SetXattr {
    SetXattr { id, name: name_of(text), value, mode: XattrMode::Either }
}

fn get(id: FileId, text: &str) -> GetXattr {
    GetXattr { id, name: name_of(text) }
}

fn reads(id: FileId) -> Open {
    Open { id, is_read: true, is_write: false, writes: None }
}

#[tokio::test(start_paused = true)]
async fn a_list_lets_somebody_in_and_chmod_moves_its_mask() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let (owner, named) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let file = owner.call(create(ROOT, "f", 0o600)).await.unwrap().open.attributes.id;
    assert_eq!(named.kind_of(reads(file)).await, Some(PermissionDenied));
    assert_eq!(named.kind_of(set(file, ACCESS, lets_11(7, 7))).await, Some(NotPermitted));
    let told = owner.call(set(file, ACCESS, lets_11(4, 6))).await.unwrap().attributes;
    assert_eq!(told.mode.bits(), 0o760, "the mask stands where the group's bits do");
    named.call(reads(file)).await.unwrap();
    assert_eq!(named.call(get(file, ACCESS)).await.unwrap().value, lets_11(4, 6));
    // chmod's group bits are the mask.
    owner.call(chmod(file, 0o710)).await.unwrap();
    assert_eq!(named.kind_of(reads(file)).await, Some(PermissionDenied));
    assert_eq!(owner.call(get(file, ACCESS)).await.unwrap().value, lets_11(4, 1));
    // Taken away, the mode stays.
    owner.call(RemoveXattr { id: file, name: name_of(ACCESS) }).await.unwrap();
    assert_eq!(owner.stat(file).await.mode.bits(), 0o710);
    assert_eq!(owner.kind_of(get(file, ACCESS)).await, Some(NoAttribute));
    assert_eq!(owner.stat(file).await.has_xattrs, Some(false));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_refused() {
    let house = House::new().await;
    let root = house.client().await;
    let file = root.create(ROOT, "f").await;
    let link = root.call(symlink(ROOT, "s", "f")).await.unwrap().attributes.unwrap().id;
    let bad = list(&[(1, 7, NO_ID), (32, 0, NO_ID)]);
    assert_eq!(root.kind_of(set(file, ACCESS, bad)).await, Some(InvalidArgument));
    assert_eq!(root.kind_of(set(file, ACCESS, vec![9; 12])).await, Some(NotSupported));
    let default = set(file, DEFAULT, lets_11(7, 7));
    assert_eq!(root.kind_of(default).await, Some(PermissionDenied));
    assert_eq!(root.kind_of(set(link, ACCESS, lets_11(7, 7))).await, Some(NotSupported));
    // Taking away what is not there is no error, as in Linux.
    root.call(RemoveXattr { id: file, name: name_of(DEFAULT) }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn defaults_take_the_place_of_the_umask() {
    let house = House::new().await;
    let root = house.client().await;
    let directory = root.mkdir(ROOT, "d").await;
    root.call(set(directory, DEFAULT, lets_11(7, 7))).await.unwrap();
    let masked = Create { umask: tieline_types::Mode::new(0o077), ..create(directory, "f", 0o666) };
    let file = root.call(masked).await.unwrap().open.attributes;
    assert_eq!(file.mode.bits(), 0o660);
    let expected =
        list(&[(1, 6, NO_ID), (2, 7, 11), (4, 5, NO_ID), (16, 6, NO_ID), (32, 0, NO_ID)]);
    assert_eq!(root.call(get(file.id, ACCESS)).await.unwrap().value, expected);
    assert_eq!(root.kind_of(get(file.id, DEFAULT)).await, Some(NoAttribute));
    // A directory hands it on; a symbolic link has none.
    let below = root.mkdir(directory, "e").await;
    assert_eq!(root.call(get(below, DEFAULT)).await.unwrap().value, lets_11(7, 7));
    let link = root.call(symlink(directory, "s", "f")).await.unwrap().attributes.unwrap();
    assert_eq!((link.mode.bits(), link.acls), (0o777, None));
}

#[tokio::test(start_paused = true)]
async fn a_list_outlives_deletion_and_restart() {
    let house = House::keeping().await;
    let root = house.client().await;
    let file = root.create(ROOT, "f").await;
    root.call(set(file, ACCESS, lets_11(4, 6))).await.unwrap();
    root.call(unlink(ROOT, "f")).await.unwrap();
    let (from, parent, name) = (ROOT, ROOT, name("again"));
    root.call(tieline_wire::ledger::Undelete { id: file, from, parent, name, lost: None })
        .await
        .unwrap();
    let house = house.restarted().await;
    let root = house.client().await;
    assert_eq!(root.call(get(file, ACCESS)).await.unwrap().value, lets_11(4, 6));
}
