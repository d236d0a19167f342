//! Names made, looked up, listed, linked and removed.

use crate::fixture::*;
use tieline_types::{ErrorKind, FileId, FileKind, Gid, MdtIndex, Mode, Name};
use tieline_wire::meta::*;

use ErrorKind::{
    Busy, Exists, InvalidArgument, IsDirectory, NameTooLong, NotDirectory, NotEmpty, NotFound,
    NotPermitted, PermissionDenied, Stale, TooManyLinks,
};

#[tokio::test(start_paused = true)]
async fn links_of_directories_count_their_subdirectories_and_what_is_mounted() {
    let house = House::new().await;
    let client = house.client().await;
    assert_eq!(client.stat(ROOT).await.links, 3, "`fnal` is mounted in the root");
    let dir = client.mkdir(ROOT, "d").await;
    assert_eq!(client.stat(dir).await.links, 2);
    client.mkdir(dir, "e").await;
    client.create(dir, "f").await;
    assert_eq!(client.stat(dir).await.links, 3);
    assert_eq!(client.stat(ROOT).await.links, 4);
    client.call(rmdir(dir, "e")).await.unwrap();
    assert_eq!(client.stat(dir).await.links, 2);
}

#[tokio::test(start_paused = true)]
async fn errors_of_names() {
    let house = House::new().await;
    let client = house.client().await;
    let dir = client.mkdir(ROOT, "d").await;
    let file = client.create(dir, "f").await;
    let gone = client.mkdir(ROOT, "gone").await;
    client.call(rmdir(ROOT, "gone")).await.unwrap();

    assert_eq!(client.kind_of(mkdir(dir, "f", 0o755)).await, Some(Exists));
    assert_eq!(client.kind_of(create(dir, "f", 0o644)).await, Some(Exists));
    assert_eq!(client.kind_of(create(file, "x", 0o644)).await, Some(NotDirectory));
    assert_eq!(client.kind_of(create(gone, "x", 0o644)).await, Some(Stale));
    assert_eq!(client.kind_of(unlink(dir, "x")).await, Some(ErrorKind::NotFound));
    assert_eq!(client.kind_of(unlink(ROOT, "d")).await, Some(IsDirectory));
    assert_eq!(client.kind_of(rmdir(dir, "f")).await, Some(NotDirectory));
    assert_eq!(client.kind_of(rmdir(ROOT, "d")).await, Some(NotEmpty));
    assert_eq!(client.kind_of(link(dir, ROOT, "e")).await, Some(NotPermitted));
    assert_eq!(client.kind_of(link(file, dir, "f")).await, Some(Exists));
    assert_eq!(client.kind_of(symlink(dir, "s", "")).await, Some(InvalidArgument));
    let long = "x".repeat(4096);
    assert_eq!(client.kind_of(symlink(dir, "s", &long)).await, Some(NameTooLong));
    assert_eq!(client.kind_of(symlink(dir, "s", &long[1..])).await, None);
    let read = client.call(ReadDirectory { id: file, after: None, limit: 9, is_plus: false }).await;
    assert_eq!(read.unwrap_err().kind, NotDirectory);
}

#[tokio::test(start_paused = true)]
async fn failures_name_the_name_and_the_server() {
    let house = House::new().await;
    let client = house.client().await;
    let failure = client.call(unlink(ROOT, "run7.root")).await.unwrap_err();
    assert_eq!(failure.detail, "no name `run7.root` in directory 0x1 (MDT0000)");
}

#[tokio::test(start_paused = true)]
async fn directories_may_be_searched_read_and_written_apart() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let owner = root.by(&user(10, 10, &[]));
    let other = root.by(&user(11, 11, &[]));
    let dir = owner.mkdir(ROOT, "d").await;
    owner.create(dir, "f").await;

    root.call(chmod(dir, 0o704)).await.unwrap();
    let lookup = || Lookup { parent: dir, name: name("f") };
    let list = || ReadDirectory { id: dir, after: None, limit: 9, is_plus: false };
    assert_eq!(other.kind_of(lookup()).await, Some(PermissionDenied));
    assert_eq!(other.kind_of(list()).await, None);
    root.call(chmod(dir, 0o701)).await.unwrap();
    assert_eq!(other.kind_of(lookup()).await, None);
    assert_eq!(other.kind_of(list()).await, Some(PermissionDenied));
    // The name is found first, then the right to change is missed.
    assert_eq!(other.kind_of(mkdir(dir, "f", 0o755)).await, Some(Exists));
    assert_eq!(other.kind_of(mkdir(dir, "g", 0o755)).await, Some(PermissionDenied));
    assert_eq!(other.kind_of(unlink(dir, "g")).await, Some(ErrorKind::NotFound));
    assert_eq!(other.kind_of(unlink(dir, "f")).await, Some(PermissionDenied));
    root.call(chmod(dir, 0o702)).await.unwrap();
    assert_eq!(other.kind_of(mkdir(dir, "g", 0o755)).await, Some(PermissionDenied));
    root.call(chmod(dir, 0o703)).await.unwrap();
    assert_eq!(other.kind_of(mkdir(dir, "g", 0o755)).await, None);
}

#[tokio::test(start_paused = true)]
async fn sticky_directories_keep_names_from_others() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o1777)).await.unwrap();
    let (owner, other) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    owner.call(create(ROOT, "f", 0o666)).await.unwrap();
    owner.mkdir(ROOT, "d").await;
    assert_eq!(other.kind_of(unlink(ROOT, "f")).await, Some(NotPermitted));
    assert_eq!(other.kind_of(rmdir(ROOT, "d")).await, Some(NotPermitted));
    assert_eq!(other.kind_of(rename((ROOT, "f"), (ROOT, "g"))).await, Some(NotPermitted));
    other.create(ROOT, "mine").await;
    assert_eq!(other.kind_of(rename((ROOT, "mine"), (ROOT, "f"))).await, Some(NotPermitted));
    assert_eq!(owner.kind_of(unlink(ROOT, "f")).await, None);
}

#[tokio::test(start_paused = true)]
async fn new_files_take_mode_and_group_from_umask_and_directory() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let client = root.by(&user(10, 20, &[]));
    let call = Create { umask: Mode::new(0o027), ..create(ROOT, "f", 0o6777) };
    let file = client.call(call).await.unwrap().open.attributes;
    assert_eq!((file.mode, file.gid), (Mode::new(0o6750), Gid(20)));

    let shared = root.mkdir(ROOT, "shared").await;
    let group = SetAttributes { gid: Some(Gid(99)), ..chmod(shared, 0o2777) };
    root.call(group).await.unwrap();
    let file = client.call(create(shared, "f", 0o2775)).await.unwrap().open.attributes;
    // Not a member of the group: no setgid programs for it.
    assert_eq!((file.mode, file.gid), (Mode::new(0o775), Gid(99)));
    let dir = client.call(mkdir(shared, "d", 0o6755)).await.unwrap().attributes.unwrap();
    assert_eq!((dir.mode, dir.gid), (Mode::new(0o2755), Gid(99)));
}

#[tokio::test(start_paused = true)]
async fn nodes_of_every_kind() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let client = root.by(&user(10, 10, &[]));
    let node = |text: &str, kind| MakeNode {
        parent: ROOT,
        name: name(text),
        kind,
        mode: Mode::new(0o644),
        umask: Mode::new(0),
        device: 0x103,
    };
    for (text, kind, device) in [
        ("fifo", FileKind::Fifo, 0),
        ("socket", FileKind::Socket, 0),
        ("file", FileKind::Regular, 0),
    ] {
        let made = client.call(node(text, kind)).await.unwrap().attributes.unwrap();
        assert_eq!((made.kind, made.device, made.links), (kind, device, 1));
    }
    let device = node("null", FileKind::CharDevice);
    assert_eq!(client.kind_of(device.clone()).await, Some(NotPermitted));
    assert_eq!(root.call(device).await.unwrap().attributes.unwrap().device, 0x103);
    let directory = node("d", FileKind::Directory);
    assert_eq!(client.kind_of(directory).await, Some(InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn a_file_has_a_bounded_number_of_names() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "0").await;
    for index in 1..crate::names::NAMES_MAX {
        client.call(link(file, ROOT, &index.to_string())).await.unwrap();
    }
    assert_eq!(client.stat(file).await.links as usize, crate::names::NAMES_MAX);
    assert_eq!(client.kind_of(link(file, ROOT, "more")).await, Some(TooManyLinks));
    client.call(unlink(ROOT, "0")).await.unwrap();
    assert_eq!(client.kind_of(link(file, ROOT, "more")).await, None);
}

#[tokio::test(start_paused = true)]
async fn mounted_names_are_seen_and_cannot_be_changed() {
    let house = House::new().await;
    let client = house.client().await;
    let found = client.lookup(ROOT, "fnal").await;
    assert_eq!((found.junction, found.attributes), (Some(MdtIndex(1)), None));
    client.create(ROOT, "f").await;
    client.mkdir(ROOT, "d").await;
    assert_eq!(client.kind_of(mkdir(ROOT, "fnal", 0o755)).await, Some(Exists));
    let inclusive = Create { is_exclusive: false, ..create(ROOT, "fnal", 0o644) };
    assert_eq!(client.kind_of(inclusive).await, Some(Exists));
    assert_eq!(client.kind_of(unlink(ROOT, "fnal")).await, Some(Busy));
    assert_eq!(client.kind_of(rmdir(ROOT, "fnal")).await, Some(Busy));
    assert_eq!(client.kind_of(rename((ROOT, "fnal"), (ROOT, "x"))).await, Some(Busy));
    assert_eq!(client.kind_of(rename((ROOT, "d"), (ROOT, "fnal"))).await, Some(Busy));
}

#[tokio::test(start_paused = true)]
async fn pages_of_a_directory_come_in_order_with_what_is_mounted() {
    let house = House::new().await;
    let client = house.client().await;
    for text in ["g", "a", "fz", "f", "z"] {
        client.create(ROOT, text).await;
    }
    let (mut after, mut pages): (Option<Name>, Vec<Vec<String>>) = (None, vec![]);
    loop {
        let call = ReadDirectory { id: ROOT, after, limit: 2, is_plus: true };
        let page = client.call(call).await.unwrap();
        pages.push(page.entries.iter().map(|entry| entry.name.to_string()).collect());
        for entry in &page.entries {
            let is_mounted = entry.id == FileId::root_of(MdtIndex(1));
            assert_eq!(entry.attributes.is_none(), is_mounted);
        }
        after = page.entries.last().map(|entry| entry.name.clone());
        if page.is_end {
            break;
        }
    }
    assert_eq!(pages, [vec!["a", "f"], vec!["fnal", "fz"], vec!["g", "z"]]);
}

#[tokio::test(start_paused = true)]
async fn the_parent_of_a_directory() {
    let house = House::new().await;
    let client = house.client().await;
    let dir = client.mkdir(ROOT, "d").await;
    let parent = client.call(LookupParent { id: dir }).await.unwrap();
    assert_eq!((parent.parent, parent.name), (ROOT, Some(name("d"))));
    let root = client.call(LookupParent { id: ROOT }).await.unwrap();
    assert_eq!((root.parent, root.name), (ROOT, None));
}

#[tokio::test(start_paused = true)]
async fn an_open_is_decided_by_mode_and_kind() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let (owner, other) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let file = owner.call(create(ROOT, "f", 0o604)).await.unwrap().open.attributes.id;
    let open = |id, is_read, is_write| Open { id, is_read, is_write, writes: None };
    assert_eq!(other.kind_of(open(file, true, false)).await, None);
    assert_eq!(other.kind_of(open(file, true, true)).await, Some(PermissionDenied));
    assert_eq!(owner.kind_of(open(file, true, true)).await, None);
    let dir = owner.mkdir(ROOT, "d").await;
    assert_eq!(owner.kind_of(open(dir, true, false)).await, Some(IsDirectory));
    let link = owner.call(symlink(ROOT, "s", "f")).await.unwrap().attributes.unwrap();
    assert_eq!(link.size, 1);
    assert_eq!(owner.kind_of(open(link.id, true, false)).await, Some(ErrorKind::SymlinkLoop));
    let target = owner.call(ReadSymlink { id: link.id }).await.unwrap().target;
    assert_eq!(target, b"f");
    assert_eq!(owner.kind_of(ReadSymlink { id: file }).await, Some(InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn create_opens_what_is_there_unless_it_must_not_be() {
    let house = House::new().await;
    let root = house.client().await;
    root.call(chmod(ROOT, 0o777)).await.unwrap();
    let (owner, other) = (root.by(&user(10, 10, &[])), root.by(&user(11, 11, &[])));
    let first = owner.call(create(ROOT, "f", 0o600)).await.unwrap();
    assert!(first.is_new);
    let inclusive = || Create { is_exclusive: false, ..create(ROOT, "f", 0o777) };
    let again = owner.call(inclusive()).await.unwrap();
    assert_eq!((again.is_new, again.open.attributes.id), (false, first.open.attributes.id));
    assert_eq!(again.open.attributes.mode, Mode::new(0o600));
    assert_eq!(other.kind_of(inclusive()).await, Some(PermissionDenied));
}

#[tokio::test(start_paused = true)]
async fn a_file_made_without_a_name_may_get_one() {
    let house = House::new().await;
    let (here, there) = (house.client().await, house.client().await);
    let nameless = || Create { is_nameless: Some(true), ..create(ROOT, "-", 0o644) };
    let before = here.stat(ROOT).await;
    let file = here.call(nameless()).await.unwrap().open.attributes;
    assert_eq!((file.links, here.stat(ROOT).await), (0, before));
    assert_eq!(there.kind_of(link(file.id, ROOT, "f")).await, Some(NotFound), "not theirs");
    let linked = here.call(link(file.id, ROOT, "f")).await.unwrap().attributes.unwrap();
    assert_eq!((linked.id, linked.links, house.count(b'o').await), (file.id, 1, 0));
    // One that had a name does not get another.
    here.call(Unlink { keep: Some(file.id), ..unlink(ROOT, "f") }).await.unwrap();
    assert_eq!(here.kind_of(link(file.id, ROOT, "f")).await, Some(NotFound));
    let other = here.call(nameless()).await.unwrap().open.attributes.id;
    for id in [file.id, other] {
        here.call(Release { id }).await.unwrap();
    }
    assert_eq!((house.count(b'o').await, house.count(b'i').await), (0, 1));
}
