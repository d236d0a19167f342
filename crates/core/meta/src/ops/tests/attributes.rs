//! Owners, modes, sizes and times, as `chmod`, `chown`, `truncate` and `utimensat` want them.

use crate::fixture::*;
use std::time::Duration;
use tieline_types::ErrorKind::{
    self, FileTooLarge, InvalidArgument, IsDirectory, NotPermitted, PermissionDenied,
};
use tieline_types::{Attributes, Extent, Gid, Mode, SetTime, Time, Uid};
use tieline_wire::meta::*;

async fn shared_root(house: &House) -> Client {
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    root
}

fn chown(id: tieline_types::FileId, uid: Option<u32>, gid: Option<u32>) -> SetAttributes {
    SetAttributes { uid: uid.map(Uid), gid: gid.map(Gid), ..setattr(id) }
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_changes_the_mode() {
    let house = House::new().await;
    let root = shared_root(&house).await;
    let (owner, other) = (root.by(&user(10, 20, &[])), root.by(&user(11, 20, &[])));
    let file = owner.call(create(ROOT, "f", 0o666)).await.unwrap().open.attributes.id;
    assert_eq!(other.kind_of(chmod(file, 0o777)).await, Some(NotPermitted));
    let mode = owner.call(chmod(file, 0o6755)).await.unwrap().attributes.mode;
    assert_eq!(mode, Mode::new(0o6755));
    // Root gives it to a group the owner is not in: then no setgid from the owner.
    root.call(chown(file, None, Some(99))).await.unwrap();
    let mode = owner.call(chmod(file, 0o2755)).await.unwrap().attributes.mode;
    assert_eq!(mode, Mode::new(0o755));
}

#[tokio::test(start_paused = true)]
async fn files_change_hands_by_root_and_groups_by_members() {
    let house = House::new().await;
    let root = shared_root(&house).await;
    let owner = root.by(&user(10, 20, &[21]));
    let other = root.by(&user(11, 20, &[21]));
    let file = owner.call(create(ROOT, "f", 0o755)).await.unwrap().open.attributes.id;
    assert_eq!(owner.kind_of(chown(file, Some(11), None)).await, Some(NotPermitted));
    assert_eq!(owner.kind_of(chown(file, Some(10), None)).await, None);
    assert_eq!(owner.kind_of(chown(file, None, Some(21))).await, None);
    assert_eq!(owner.kind_of(chown(file, None, Some(22))).await, Some(NotPermitted));
    assert_eq!(other.kind_of(chown(file, None, Some(21))).await, Some(NotPermitted));
    assert_eq!(root.kind_of(chown(file, Some(11), Some(22))).await, None);
}

#[tokio::test(start_paused = true)]
async fn what_changes_hands_loses_setuid() {
    let house = House::new().await;
    let root = shared_root(&house).await;
    let owner = root.by(&user(10, 20, &[21]));
    let file = owner.call(create(ROOT, "f", 0o755)).await.unwrap().open.attributes.id;
    owner.call(chmod(file, 0o6755)).await.unwrap();
    let changed = owner.call(chown(file, None, Some(21))).await.unwrap().attributes;
    assert_eq!(changed.mode, Mode::new(0o755));
    owner.call(chmod(file, 0o2745)).await.unwrap();
    let changed = root.call(chown(file, Some(11), None)).await.unwrap().attributes;
    assert_eq!(changed.mode, Mode::new(0o2745), "setgid without group execution is a lock mark");
    let dir = owner.call(mkdir(ROOT, "d", 0o755)).await.unwrap().attributes.unwrap().id;
    owner.call(chmod(dir, 0o2755)).await.unwrap();
    let changed = owner.call(chown(dir, None, Some(21))).await.unwrap().attributes;
    assert_eq!(changed.mode, Mode::new(0o2755));
}

#[tokio::test(start_paused = true)]
async fn given_times_are_the_owners_and_now_is_any_writers() {
    let house = House::new().await;
    let root = shared_root(&house).await;
    let (owner, other) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let file = owner.call(create(ROOT, "f", 0o646)).await.unwrap().open.attributes.id;
    let times = |time| SetAttributes { atime: Some(time), mtime: Some(time), ..setattr(file) };
    let given = SetTime::At(Time { seconds: -5, nanos: 7 });
    assert_eq!(other.kind_of(times(given)).await, Some(NotPermitted));
    assert_eq!(other.kind_of(times(SetTime::Now)).await, None);
    let set = owner.call(times(given)).await.unwrap().attributes;
    assert_eq!((set.atime, set.mtime.nanos), (Time { seconds: -5, nanos: 7 }, 7));
    owner.call(chmod(file, 0o644)).await.unwrap();
    assert_eq!(other.kind_of(times(SetTime::Now)).await, Some(PermissionDenied));
    let wrong = SetTime::At(Time { seconds: 0, nanos: 1_000_000_000 });
    assert_eq!(owner.kind_of(times(wrong)).await, Some(InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn the_size_is_set_by_who_may_write() {
    let house = House::new().await;
    let root = shared_root(&house).await;
    let (owner, other) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let file = owner.call(create(ROOT, "f", 0o755)).await.unwrap().open.attributes.id;
    assert_eq!(other.kind_of(truncate(file, 1)).await, Some(PermissionDenied));
    let handle = SetAttributes { is_handle: true, ..truncate(file, 1) };
    assert_eq!(other.kind_of(handle).await, None);
    let dir = owner.mkdir(ROOT, "d").await;
    assert_eq!(owner.kind_of(truncate(dir, 0)).await, Some(IsDirectory));
    let largest = Extent::FILE_SIZE_MAX;
    assert_eq!(owner.kind_of(truncate(file, largest + 1)).await, Some(FileTooLarge));
    assert_eq!(owner.call(truncate(file, largest)).await.unwrap().attributes.size, largest);
    let fifo = MakeNode {
        parent: ROOT,
        name: name("fifo"),
        kind: tieline_types::FileKind::Fifo,
        mode: Mode::new(0o666),
        umask: Mode::new(0),
        device: 0,
    };
    let fifo = owner.call(fifo).await.unwrap().attributes.unwrap().id;
    assert_eq!(owner.kind_of(truncate(fifo, 0)).await, Some(InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn writing_takes_setuid_away() {
    let house = House::new().await;
    let root = shared_root(&house).await;
    let owner = root.by(&user(10, 10, &[]));
    let file = owner.call(create(ROOT, "f", 0o755)).await.unwrap().open.attributes.id;
    owner.call(chmod(file, 0o6755)).await.unwrap();
    assert_eq!(root.commit(file, vec![inline(0, b"x")]).await.mode, Mode::new(0o6755));
    let call = Commit { clears_setid: true, ..commit(file, vec![inline(0, b"y")]) };
    assert_eq!(owner.call(call).await.unwrap().attributes.mode, Mode::new(0o755));
    owner.call(chmod(file, 0o6755)).await.unwrap();
    let cut = owner.call(truncate(file, 0)).await.unwrap().attributes;
    assert_eq!(cut.mode, Mode::new(0o755));
}

/// Where the group may not execute, setgid is left to who is in it.
#[tokio::test(start_paused = true)]
async fn setgid_ends_with_who_is_not_in_the_group() {
    let house = House::new().await;
    let root = shared_root(&house).await;
    let (member, stranger) = (root.by(&user(10, 10, &[20])), root.by(&user(10, 10, &[])));
    let file = member.call(create(ROOT, "f", 0o766)).await.unwrap().open.attributes.id;
    let own = SetAttributes { gid: Some(Gid(20)), ..setattr(file) };
    root.call(own.clone()).await.unwrap();
    for (who, expected) in [(&root, 0o2766), (&member, 0o2766), (&stranger, 0o766)] {
        let written = Commit { clears_setid: true, ..commit(file, vec![inline(0, b"y")]) };
        let calls: [tieline_wire::Request; 3] =
            [written.into(), truncate(file, 1).into(), own.clone().into()];
        for call in calls {
            root.call(chmod(file, 0o2766)).await.unwrap();
            who.request(call).await.unwrap();
            assert_eq!(root.stat(file).await.mode, Mode::new(expected));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_change_moves_the_times_it_should() {
    let house = House::new().await;
    let client = house.client().await;
    let dir = client.mkdir(ROOT, "d").await;
    let file = client.create(dir, "f").await;
    // What changes: the directory's times, the file's mtime, its ctime, its version.
    let mut steps: Vec<(&str, [bool; 4])> = vec![];
    let calls: Vec<(&str, tieline_wire::Request, [bool; 4])> = vec![
        ("chmod", chmod(file, 0o600).into(), [false, false, true, false]),
        ("nothing", setattr(file).into(), [false; 4]),
        ("commit", commit(file, vec![inline(0, b"x")]).into(), [false, true, true, true]),
        ("truncate", truncate(file, 1).into(), [false, true, true, true]),
        ("link", link(file, ROOT, "g").into(), [false, false, true, false]),
        ("link here", link(file, dir, "h").into(), [true, false, true, false]),
        ("unlink", unlink(dir, "h").into(), [true, false, true, false]),
        ("create", create(dir, "other", 0o644).into(), [true, false, false, false]),
    ];
    for (what, call, expected) in calls {
        let before = (client.stat(dir).await, client.stat(file).await);
        tokio::time::advance(Duration::from_secs(1)).await;
        client.request(call).await.unwrap();
        let after = (client.stat(dir).await, client.stat(file).await);
        assert_eq!(before.0.mtime < after.0.mtime, before.0.version < after.0.version);
        assert_eq!(before.0.mtime < after.0.mtime, before.0.ctime < after.0.ctime);
        let changes = [
            before.0.mtime < after.0.mtime,
            before.1.mtime < after.1.mtime,
            before.1.ctime < after.1.ctime,
            before.1.version < after.1.version,
        ];
        assert_eq!(changes, expected, "{what}");
        assert_eq!(before.1.atime, after.1.atime);
        steps.push((what, changes));
    }
    assert_eq!(steps.len(), 8);
}

/// Bytes come later than they were written.
#[tokio::test(start_paused = true)]
async fn a_commit_changes_the_file_when_its_bytes_were_written() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let made = client.stat(file).await.ctime;
    let later = |seconds| Time { seconds: made.seconds + seconds, ..made };
    let written = async |seconds| {
        let mtime = SetTime::At(later(seconds));
        let call = Commit { mtime, ..commit(file, vec![inline(0, b"x")]) };
        let left = client.call(call).await.unwrap().attributes;
        (left.mtime, left.ctime)
    };
    let set = async |seconds| {
        let mtime = Some(SetTime::At(later(seconds)));
        client.call(SetAttributes { mtime, ..setattr(file) }).await.unwrap().attributes.ctime
    };
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(written(3).await, (later(3), later(3)));
    assert_eq!(written(2).await, (later(3), later(3)), "another wrote later, and was faster");
    client.call(chmod(file, 0o600)).await.unwrap();
    let changed = client.stat(file).await.ctime;
    assert!(changed >= later(10));
    assert_eq!(written(5).await, (later(5), changed), "the mode was set after the bytes");
    let changed = set(2).await;
    assert_eq!(written(2).await, (later(2), changed), "it was set for these bytes");
    let changed = set(1_000_000).await;
    assert_eq!(written(1_000_000).await, (later(1_000_000), changed), "as far ahead as it was set");
    tokio::time::advance(Duration::from_secs(10)).await;
    let now = client.commit(file, vec![inline(0, b"x")]).await;
    assert!(now.mtime == now.ctime && now.mtime < later(60), "what is written then ends it");
}

/// Promise 90: Times of files go by one clock for all clients, that of the file's metadata server,
/// whatever their own clocks say.
#[tokio::test(start_paused = true)]
async fn no_client_stamps_what_it_writes_far_ahead() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let made = client.stat(file).await.ctime;
    let later = |seconds| Time { seconds: made.seconds + seconds, ..made };
    let mtime = SetTime::At(later(7200));
    let call = Commit { mtime, ..commit(file, vec![inline(0, b"x")]) };
    let left = client.call(call).await.unwrap().attributes;
    assert!(left.mtime == left.ctime && left.mtime < later(301), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_stale() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    client.call(unlink(ROOT, "f")).await.unwrap();
    for call in [
        tieline_wire::Request::from(GetAttributes { id: file }),
        chmod(file, 0o600).into(),
        commit(file, vec![]).into(),
        Open { id: file, is_read: true, is_write: false, writes: None }.into(),
        GetExtents { id: file, offset: 0, limit: 1 }.into(),
        link(file, ROOT, "g").into(),
        Place { id: file, exclude: vec![], wish: None }.into(),
        GetLayout { id: file }.into(),
        ListXattrs { id: file }.into(),
    ] {
        let name = call.op().name();
        assert_eq!(client.request(call).await.unwrap_err().kind, ErrorKind::Stale, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn reading_is_noted_once_and_is_no_change() {
    let house = House::new().await;
    let root = shared_root(&house).await;
    let (owner, other) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let file = owner.call(create(ROOT, "f", 0o644)).await.unwrap().open.attributes.id;
    let access = |time| SetAttributes {
        atime: Some(SetTime::At(time)),
        is_access: Some(true),
        ..setattr(file)
    };
    let made = owner.stat(file).await;
    let later = |seconds| Time { seconds: made.ctime.seconds + seconds, nanos: 0 };
    let read = other.call(access(later(5))).await.unwrap().attributes;
    assert_eq!(read, Attributes { atime: later(5), ..made.clone() });
    assert_eq!(other.call(access(later(9))).await.unwrap().attributes.atime, later(5), "once");
    let day = 24 * 60 * 60;
    assert_eq!(other.call(access(later(day + 5))).await.unwrap().attributes.atime, later(day + 5));
    assert_eq!(other.call(access(later(7))).await.unwrap().attributes.atime, later(day + 5));
    owner.call(chmod(file, 0o600)).await.unwrap();
    assert_eq!(other.kind_of(access(later(9 * day))).await, Some(PermissionDenied));
}
