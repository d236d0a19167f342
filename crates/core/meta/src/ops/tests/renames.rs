//! Renames of all kinds, and the trees they must not make.

use crate::fixture::*;
use tieline_types::ErrorKind::{
    self, Exists, InvalidArgument, IsDirectory, NotDirectory, NotEmpty, NotFound, NotPermitted,
    PermissionDenied,
};
use tieline_types::{FileKind, Mode, RenameMode};
use tieline_wire::meta::*;

fn mode(mode: RenameMode, call: Rename) -> Rename {
    Rename { mode, ..call }
}

#[tokio::test(start_paused = true)]
async fn what_may_replace_what() {
    let house = House::new().await;
    let client = house.client().await;
    for text in ["f", "g"] {
        client.create(ROOT, text).await;
    }
    for text in ["d", "e", "full"] {
        let dir = client.mkdir(ROOT, text).await;
        if text == "full" {
            client.create(dir, "x").await;
        }
    }
    let kind = async |from: &str, to: &str| client.kind_of(rename((ROOT, from), (ROOT, to))).await;
    assert_eq!(kind("none", "f").await, Some(NotFound));
    assert_eq!(kind("f", "d").await, Some(IsDirectory));
    assert_eq!(kind("d", "f").await, Some(NotDirectory));
    assert_eq!(kind("d", "full").await, Some(NotEmpty));
    assert_eq!(kind("d", "e").await, None);
    assert_eq!(kind("f", "g").await, None);
    assert_eq!(kind("g", "g").await, None);
    assert_eq!(client.list(ROOT).await, ["e", "fnal", "full", "g"]);
    assert_eq!(client.stat(ROOT).await.links, 2 + 1 + 2);
}

#[tokio::test(start_paused = true)]
async fn no_directory_comes_below_itself() {
    let house = House::new().await;
    let client = house.client().await;
    let a = client.mkdir(ROOT, "a").await;
    let b = client.mkdir(a, "b").await;
    let c = client.mkdir(b, "c").await;
    for to in [a, b, c] {
        let call = rename((ROOT, "a"), (to, "x"));
        assert_eq!(client.kind_of(call).await, Some(InvalidArgument));
    }
    // The target is above: it cannot be empty.
    assert_eq!(client.kind_of(rename((b, "c"), (ROOT, "a"))).await, Some(NotEmpty));
    let exchange = mode(RenameMode::Exchange, rename((b, "c"), (ROOT, "a")));
    assert_eq!(client.kind_of(exchange).await, Some(InvalidArgument));
    assert_eq!(client.kind_of(rename((b, "c"), (ROOT, "c"))).await, None);
    assert_eq!(client.call(LookupParent { id: c }).await.unwrap().parent, ROOT);
    assert_eq!((client.stat(b).await.links, client.stat(ROOT).await.links), (2, 5));
}

#[tokio::test(start_paused = true)]
async fn two_names_of_one_file_are_left_alone() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    client.call(link(file, ROOT, "g")).await.unwrap();
    let before = client.stat(file).await;
    client.call(rename((ROOT, "f"), (ROOT, "g"))).await.unwrap();
    assert_eq!(client.list(ROOT).await, ["f", "fnal", "g"]);
    assert_eq!(client.stat(file).await, before);
    let careful = mode(RenameMode::NoReplace, rename((ROOT, "f"), (ROOT, "g")));
    assert_eq!(client.kind_of(careful).await, Some(Exists));
}

#[tokio::test(start_paused = true)]
async fn exchange_swaps_a_file_and_a_directory() {
    let house = House::new().await;
    let client = house.client().await;
    let dir = client.mkdir(ROOT, "d").await;
    let file = client.create(ROOT, "f").await;
    let sub = client.mkdir(dir, "sub").await;
    let exchange = |from, to| mode(RenameMode::Exchange, rename(from, to));
    assert_eq!(client.kind_of(exchange((ROOT, "f"), (ROOT, "none"))).await, Some(NotFound));
    client.call(exchange((ROOT, "f"), (dir, "sub"))).await.unwrap();
    assert_eq!(client.id(ROOT, "f").await, Some(sub));
    assert_eq!(client.id(dir, "sub").await, Some(file));
    assert_eq!(client.call(LookupParent { id: sub }).await.unwrap().parent, ROOT);
    assert_eq!((client.stat(dir).await.links, client.stat(ROOT).await.links), (2, 5));
    client.call(unlink(dir, "sub")).await.unwrap();
    client.call(rmdir(ROOT, "d")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_whiteout_stays_where_that_is_wanted() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    // Anybody may have one, as on Linux.
    let client = root.by(&user(7, 7, &[]));
    let dir = client.mkdir(ROOT, "d").await;
    let file = client.create(dir, "f").await;
    let other = client.create(ROOT, "g").await;
    let sub = client.mkdir(dir, "sub").await;
    let leaving = |from, to| mode(RenameMode::ReplaceLeaving, rename(from, to));
    let careful = mode(RenameMode::NoReplaceLeaving, rename((dir, "f"), (ROOT, "g")));
    assert_eq!(client.kind_of(careful).await, Some(Exists));
    client.call(leaving((dir, "f"), (ROOT, "g"))).await.unwrap();
    assert_eq!(client.id(ROOT, "g").await, Some(file));
    assert_ne!(file, other);
    let whiteout = client.id(dir, "f").await.unwrap();
    let seen = client.stat(whiteout).await;
    assert_eq!((seen.kind, seen.device, seen.links), (FileKind::CharDevice, 0, 1));
    assert_eq!((seen.mode.bits(), seen.uid.0), (0, 7));
    // A directory, within its own; link counts and entries go with what is there.
    client.call(leaving((dir, "sub"), (dir, "moved"))).await.unwrap();
    assert_eq!(client.id(dir, "moved").await, Some(sub));
    assert_eq!(client.list(dir).await, ["f", "moved", "sub"]);
    assert_eq!(client.stat(dir).await.links, 3);
    // Over a whiteout, and another one takes its place.
    client.call(leaving((dir, "moved"), (ROOT, "up"))).await.unwrap();
    assert_eq!(client.stat(dir).await.links, 2);
    client.call(rename((ROOT, "g"), (dir, "f"))).await.unwrap();
    for name in ["f", "moved", "sub"] {
        client.call(unlink(dir, name)).await.unwrap();
    }
    client.call(rmdir(ROOT, "d")).await.unwrap();
    let (mode, umask) = (Mode::new(0o600), Mode::new(0));
    let node = |kind, device| MakeNode {
        parent: ROOT,
        name: "w".parse().unwrap(),
        kind,
        mode,
        umask,
        device,
    };
    assert_eq!(client.kind_of(node(FileKind::CharDevice, 5)).await, Some(NotPermitted));
    assert_eq!(client.kind_of(node(FileKind::BlockDevice, 0)).await, Some(NotPermitted));
    assert_eq!(client.kind_of(node(FileKind::CharDevice, 0)).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_file_is_gone_unless_it_is_open() {
    let house = House::new().await;
    let client = house.client().await;
    let old = client.create(ROOT, "old").await;
    client.commit(old, vec![client.chunk(1, 0, 4096)]).await;
    client.create(ROOT, "new").await;
    let keep = Rename { keep: Some(old), ..rename((ROOT, "new"), (ROOT, "old")) };
    client.call(keep).await.unwrap();
    assert_eq!(client.stat(old).await.links, 0);
    assert_eq!(client.extents(old).await.len(), 1);
    client.call(Release { id: old }).await.unwrap();
    assert_eq!(house.count(b'f').await, 1);
    assert_eq!(client.kind_of(GetAttributes { id: old }).await, Some(ErrorKind::Stale));
}

#[tokio::test(start_paused = true)]
async fn a_directory_moves_only_by_who_may_write_it() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let (owner, other) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let open = owner.call(mkdir(ROOT, "open", 0o777)).await.unwrap().attributes.unwrap().id;
    owner.mkdir(open, "d").await;
    // Within its directory the name may change, but not the `..` of what it names.
    assert_eq!(other.kind_of(rename((open, "d"), (open, "e"))).await, None);
    assert_eq!(other.kind_of(rename((open, "e"), (ROOT, "e"))).await, Some(PermissionDenied));
    assert_eq!(owner.kind_of(rename((open, "e"), (ROOT, "e"))).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_move_changes_the_times_of_parents_and_file() {
    let house = House::new().await;
    let client = house.client().await;
    let (a, b) = (client.mkdir(ROOT, "a").await, client.mkdir(ROOT, "b").await);
    let file = client.create(a, "f").await;
    let before = [client.stat(a).await, client.stat(b).await, client.stat(file).await];
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    client.call(rename((a, "f"), (b, "f"))).await.unwrap();
    let after = [client.stat(a).await, client.stat(b).await, client.stat(file).await];
    for at in 0..2 {
        assert!(after[at].mtime > before[at].mtime && after[at].ctime > before[at].ctime);
        assert!(after[at].version > before[at].version);
    }
    assert!(after[2].ctime > before[2].ctime);
    assert_eq!((after[2].mtime, after[2].version), (before[2].mtime, before[2].version));
}
