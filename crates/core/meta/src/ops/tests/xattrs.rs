//! Extended attributes: their name spaces, limits and errors.

use crate::fixture::*;
use tieline_types::ErrorKind::{
    Exists, NoAttribute, NoSpace, NotPermitted, NotSupported, PermissionDenied,
};
use tieline_types::{FileId, SetTime, XattrMode, XattrName};
use tieline_wire::meta::*;
use tieline_wire::ranges::CopyRange;

fn xattr(text: &str) -> XattrName {
    XattrName::new(text).unwrap()
}

fn set(id: FileId, text: &str, value: &[u8], mode: XattrMode) -> SetXattr {
    SetXattr { id, name: xattr(text), value: value.to_vec(), mode }
}

#[tokio::test(start_paused = true)]
async fn attributes_come_and_go() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let get = || GetXattr { id: file, name: xattr("user.a") };
    assert_eq!(client.kind_of(get()).await, Some(NoAttribute));
    let replace = set(file, "user.a", b"1", XattrMode::Replace);
    assert_eq!(client.kind_of(replace).await, Some(NoAttribute));
    client.call(set(file, "user.a", b"1", XattrMode::Create)).await.unwrap();
    let create = set(file, "user.a", b"2", XattrMode::Create);
    assert_eq!(client.kind_of(create).await, Some(Exists));
    client.call(set(file, "user.a", b"2", XattrMode::Either)).await.unwrap();
    client.call(set(file, "user.b", b"", XattrMode::Either)).await.unwrap();
    assert_eq!(client.call(get()).await.unwrap().value, b"2");
    let listed = client.call(ListXattrs { id: file }).await.unwrap().xattrs;
    let listed: Vec<_> = listed.iter().map(|xattr| xattr.name.to_string()).collect();
    assert_eq!(listed, ["user.a", "user.b"]);
    client.call(RemoveXattr { id: file, name: xattr("user.a") }).await.unwrap();
    let again = RemoveXattr { id: file, name: xattr("user.a") };
    assert_eq!(client.kind_of(again).await, Some(NoAttribute));
    client.call(unlink(ROOT, "f")).await.unwrap();
    assert_eq!(house.count(b'x').await, 0);
}

#[tokio::test(start_paused = true)]
async fn namespaces_have_their_own_rights() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o1777)).await.unwrap();
    let (owner, other) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let file = owner.call(create(ROOT, "f", 0o600)).await.unwrap().open.attributes.id;
    let either = XattrMode::Either;
    owner.call(set(file, "user.a", b"1", either)).await.unwrap();
    assert_eq!(other.kind_of(set(file, "user.a", b"2", either)).await, Some(PermissionDenied));
    let get = |text| GetXattr { id: file, name: xattr(text) };
    assert_eq!(other.kind_of(get("user.a")).await, Some(PermissionDenied));
    assert_eq!(owner.kind_of(set(file, "trusted.a", b"1", either)).await, Some(NotPermitted));
    root.call(set(file, "trusted.a", b"1", either)).await.unwrap();
    assert_eq!(owner.kind_of(get("trusted.a")).await, Some(NoAttribute));
    assert_eq!(root.kind_of(get("trusted.a")).await, None);
    assert_eq!(owner.call(ListXattrs { id: file }).await.unwrap().xattrs.len(), 1);
    root.call(set(file, "security.a", b"1", either)).await.unwrap();
    assert_eq!(other.kind_of(get("security.a")).await, None);
    for text in ["system.other", "user.", "lustre.lov"] {
        let kind = root.kind_of(set(file, text, b"", either)).await;
        assert_eq!(kind, Some(NotSupported), "{text}");
    }
    // A sticky directory's attributes are its owner's; special files and symlinks have none.
    assert_eq!(other.kind_of(set(ROOT, "user.a", b"", either)).await, Some(NotPermitted));
    let link = root.call(symlink(ROOT, "s", "f")).await.unwrap().attributes.unwrap().id;
    assert_eq!(root.kind_of(set(link, "user.a", b"", either)).await, Some(NotPermitted));
}

#[tokio::test(start_paused = true)]
async fn attributes_have_limited_room() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let either = XattrMode::Either;
    let largest = vec![7; 64 << 10];
    let larger = set(file, "user.a", &[&largest[..], &[1]].concat(), either);
    assert_eq!(client.kind_of(larger).await, Some(NoSpace));
    for text in ["user.a", "user.b", "user.c"] {
        client.call(set(file, text, &largest, either)).await.unwrap();
    }
    assert_eq!(client.kind_of(set(file, "user.d", &largest, either)).await, Some(NoSpace));
    client.call(set(file, "user.c", b"", either)).await.unwrap();
    client.call(set(file, "user.d", &largest, either)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_changed_program_loses_its_capability() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let has = async || client.stat(file).await.has_xattrs;
    assert_eq!(has().await, Some(false));
    let give = || set(file, "security.capability", b"1", XattrMode::Either);
    let other = client.create(ROOT, "other").await;
    client.commit(other, vec![inline(0, b"y")]).await;
    let calls: [tieline_wire::Request; 5] = [
        commit(file, vec![inline(0, b"x")]).into(),
        truncate(file, 0).into(),
        Commit { size_min: 9, ..commit(file, vec![]) }.into(),
        copy(other, file).into(),
        SetAttributes { gid: Some(tieline_types::Gid(7)), ..setattr(file) }.into(),
    ];
    for call in calls {
        client.call(give()).await.unwrap();
        client.call(chmod(file, 0o700)).await.unwrap();
        assert_eq!(has().await, Some(true));
        client.request(call).await.unwrap();
        assert_eq!(has().await, Some(false));
        assert_eq!(house.count(b'x').await, 0);
    }
}

fn copy(from: FileId, to: FileId) -> CopyRange {
    let (from_offset, to_offset, length) = (0, 0, 1);
    let (mtime, clears_setid) = (SetTime::Now, false);
    CopyRange { from, from_offset, to, to_offset, length, mtime, clears_setid }
}

/// The kernel takes it in the name of who writes, or gives the file away.
#[tokio::test(start_paused = true)]
async fn a_capability_is_taken_by_who_may_write() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o1777)).await.unwrap();
    let (owner, other) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let file = owner.call(create(ROOT, "f", 0o464)).await.unwrap().open.attributes.id;
    let (writer, name) = (root.by(&user(12, 10, &[])), xattr("security.capability"));
    let give = set(file, "security.capability", b"1", XattrMode::Either);
    let take = RemoveXattr { id: file, name };
    for (who, outcome) in [(&owner, None), (&writer, None), (&other, Some(PermissionDenied))] {
        assert_eq!(who.kind_of(give.clone()).await, Some(NotPermitted));
        root.call(give.clone()).await.unwrap();
        assert_eq!(who.kind_of(take.clone()).await, outcome);
    }
    root.call(set(file, "security.a", b"1", XattrMode::Either)).await.unwrap();
    let another = RemoveXattr { id: file, name: xattr("security.a") };
    assert_eq!(owner.kind_of(another).await, Some(NotPermitted));
}

#[tokio::test(start_paused = true)]
async fn names_of_attributes_fit_into_one_list() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let long = |index: usize| format!("user.{index:0250}");
    for index in 0..256 {
        client.call(set(file, &long(index), b"", XattrMode::Either)).await.unwrap();
    }
    assert_eq!(client.kind_of(set(file, "user.a", b"", XattrMode::Either)).await, Some(NoSpace));
    client.call(set(file, &long(3), b"again", XattrMode::Either)).await.unwrap();
}
