//! Trees as clients are told of them: rights, bounds, leases.

use crate::fixture::*;
use std::collections::BTreeMap;
use std::time::Duration;
use tieline_types::{ErrorKind, Extent, FileId, XattrMode, XattrName};
use tieline_wire::meta::*;
use tieline_wire::trees::*;

fn tree(roots: &[FileId]) -> ReadTree {
    ReadTree {
        roots: roots.to_vec(),
        depth: 10,
        entries: 1000,
        bytes: 1 << 20,
        contents_max: 64 << 10,
        after: None,
        holder: None,
    }
}

async fn told(client: &Client, message: ReadTree) -> (ReadTreeReply, TreePage) {
    let reply = client.call(message).await.unwrap();
    let page = reply.page.open().unwrap();
    (reply, page)
}

fn names(directory: &TreeDirectory) -> Vec<String> {
    directory.entries.iter().map(|one| one.entry.name.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_tree_comes_whole() {
    let house = House::new().await;
    let client = house.client().await;
    let (a, b) = (client.mkdir(ROOT, "a").await, client.mkdir(ROOT, "b").await);
    let deep = client.mkdir(a, "deep").await;
    let small = client.create(deep, "small").await;
    client.commit(small, vec![inline(0, b"hello")]).await;
    let large = client.create(b, "large").await;
    client.commit(large, vec![client.chunk(1, 0, 30_000)]).await;
    client.call(symlink(b, "link", "../a")).await.unwrap();
    client.call(set_xattr(large, "user.x", b"1")).await.unwrap();

    let other = house.client().await;
    let (reply, page) = told(&other, tree(&[ROOT])).await;
    let ids: Vec<FileId> = page.directories.iter().map(|one| one.attributes.id).collect();
    assert_eq!(ids, [ROOT, a, deep, b], "a directory's own come before its neighbours");
    assert!(page.directories.iter().all(|one| one.is_end));
    assert!(ids.iter().all(|id| reply.lease.units.contains(id)));
    assert_eq!(names(&page.directories[0]), ["a", "b", "fnal"]);
    let file = page.directories[2].entries[0].file.as_ref().unwrap();
    assert_eq!(file.extents.extents, [inline(0, b"hello")]);
    let b = &page.directories[3];
    assert_eq!(names(b), ["large", "link"]);
    assert_eq!(b.entries[0].xattrs.as_ref().unwrap()[0].value, b"1");
    assert_eq!(b.entries[1].entry.target.as_deref(), Some(&b"../a"[..]));
    assert_eq!(b.entries[0].file.as_ref().unwrap().extents.covered, 30_000);
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_seen_is_not_told() {
    let house = House::new().await;
    let root = house.client().await;
    let closed = root.call(mkdir(ROOT, "closed", 0o700)).await.unwrap().attributes.unwrap().id;
    let listed = root.call(mkdir(ROOT, "listed", 0o744)).await.unwrap().attributes.unwrap().id;
    root.create(closed, "secret").await;
    root.create(listed, "hidden").await;
    let kept = root.call(create(ROOT, "kept", 0o600)).await.unwrap().open.attributes.id;
    root.commit(kept, vec![inline(0, b"mine")]).await;
    root.call(set_xattr(kept, "user.x", b"1")).await.unwrap();

    let somebody = house.client().await.by(&user(7, 7, &[]));
    let (_, page) = told(&somebody, tree(&[ROOT])).await;
    assert_eq!(page.directories.len(), 1, "neither may be listed and searched");
    let kept = page.directories[0].entries.iter().find(|one| one.entry.id == kept).unwrap();
    assert!(kept.entry.attributes.is_some() && kept.file.is_none() && kept.xattrs.is_none());
    for root in [closed, listed] {
        assert_eq!(somebody.kind_of(tree(&[root])).await, Some(ErrorKind::PermissionDenied));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_bounded_and_can_be_gone_on_with() {
    let house = House::new().await;
    let client = house.client().await;
    let dir = client.mkdir(ROOT, "many").await;
    for number in 0..50 {
        let id = client.create(dir, &format!("f{number:02}")).await;
        client.commit(id, vec![inline(0, &[7; 1000])]).await;
    }
    let mut seen = vec![];
    let mut after = None;
    let mut pages = 0;
    loop {
        let message = ReadTree { bytes: 2_000, after: after.clone(), ..tree(&[dir]) };
        let (_, page) = told(&client, message).await;
        let [directory] = page.directories.as_slice() else { panic!("one directory") };
        assert!(directory.entries.len() < 15);
        seen.extend(names(directory));
        after = directory.entries.last().map(|one| one.entry.name.clone());
        pages += 1;
        if directory.is_end {
            break;
        }
    }
    let all: Vec<String> = (0..50).map(|number| format!("f{number:02}")).collect();
    assert_eq!((seen, pages > 3), (all, true));
    let (_, page) = told(&client, ReadTree { entries: 7, ..tree(&[dir, ROOT]) }).await;
    assert_eq!((page.directories.len(), page.directories[0].entries.len()), (1, 7));
    assert_eq!(client.kind_of(tree(&[])).await, Some(ErrorKind::InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn what_is_told_is_recalled_before_it_changes() {
    let house = House::new().await;
    let (reader, writer) = (house.client().await, house.client().await);
    let a = writer.mkdir(ROOT, "a").await;
    let f = writer.create(a, "f").await;
    told(&reader, tree(&[ROOT])).await;
    writer.commit(f, vec![inline(0, b"x")]).await;
    assert_eq!(house.clients.recalled(reader.session), [a]);
    writer.mkdir(a, "new").await;
    assert!(house.clients.recalled(reader.session).is_empty(), "it holds that no more");
    writer.mkdir(ROOT, "b").await;
    assert_eq!(house.clients.recalled(reader.session), [ROOT]);
}

#[tokio::test(start_paused = true)]
async fn what_others_hold_alone_is_left_to_them() {
    let house = House::new().await;
    let (reader, writer) = (house.client().await, house.client().await);
    writer.call(Reserve { count: 100 }).await.unwrap();
    let (a, b) = (writer.mkdir(ROOT, "a").await, writer.mkdir(ROOT, "b").await);
    writer.create(a, "f").await;
    let (_, page) = told(&reader, tree(&[ROOT, b])).await;
    let ids: Vec<FileId> = page.directories.iter().map(|one| one.attributes.id).collect();
    assert!(!ids.contains(&a), "it is the writer's alone: {ids:?}");
    house.clients.recalled(writer.session);
    let (_, page) = told(&reader, tree(&[a])).await;
    assert_eq!(names(&page.directories[0]), ["f"]);
    assert_eq!(house.clients.recalled(writer.session), [a], "who asks for it is told");
    // When nothing happens there any more it is only a formality.
    writer.mkdir(b, "new").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    writer.mkdir(b, "newer").await;
    house.clients.recalled(writer.session);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (_, page) = told(&reader, tree(&[ROOT])).await;
    assert!(page.directories.iter().any(|one| one.attributes.id == b));
    let asked = house.clients.recalled(writer.session);
    assert!(asked.len() == 3 && asked.contains(&b), "it, and what it made there: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn the_bytes_of_many_files_come_at_once() {
    let house = House::new().await;
    let client = house.client().await;
    let mut ids = vec![];
    for number in 0..20u8 {
        let id = client.create(ROOT, &format!("f{number}")).await;
        client.commit(id, vec![inline(0, &[number; 100])]).await;
        ids.push(id);
    }
    let closed = client.call(create(ROOT, "closed", 0o600)).await.unwrap().open.attributes.id;
    ids.insert(0, closed);
    ids.insert(1, FileId(99_999));
    let somebody = house.client().await.by(&user(7, 7, &[]));
    let ask = |ids: &[FileId], bytes| ReadFiles {
        ids: ids.to_vec(),
        bytes,
        contents_max: 1 << 20,
        holder: None,
    };
    let reply = somebody.call(ask(&ids, 1 << 20)).await.unwrap();
    let page: FilesPage = reply.page.open().unwrap();
    assert_eq!((page.count, page.files.len()), (22, 20), "neither what is closed nor what is gone");
    assert_eq!(reply.lease.units, [ROOT]);
    let bytes: BTreeMap<FileId, Vec<Extent>> =
        page.files.into_iter().map(|one| (one.attributes.id, one.bytes.extents.extents)).collect();
    assert_eq!(bytes[&ids[2]], [inline(0, &[0; 100])]);
    let page: FilesPage = somebody.call(ask(&ids, 1000)).await.unwrap().page.open().unwrap();
    assert!(page.count < 10 && page.files.len() as u32 <= page.count);
}

#[tokio::test(start_paused = true)]
async fn trails_are_told_to_whoever_comes_after() {
    let house = House::new().await;
    let (first, second) = (house.client().await, house.client().await);
    let (a, b) = (first.mkdir(ROOT, "a").await, first.mkdir(ROOT, "b").await);
    let files = [first.create(a, "f").await, first.create(a, "g").await];
    let report = |files: &[FileId], next| ReportTrails {
        trails: vec![TrailOf { directory: a, trail: Trail { files: files.to_vec(), next } }],
    };
    let message = report(&[files[1], files[0]], Some(b));
    assert_eq!(first.call(message.clone()).await.unwrap().kept, 1);
    assert_eq!(first.call(message).await.unwrap().kept, 0, "no news");
    let trail = async |client: &Client| {
        let (_, page) = told(client, tree(&[a])).await;
        page.directories[0].trail.clone().unwrap()
    };
    let known = Trail { files: vec![files[1], files[0]], next: Some(b) };
    assert_eq!(trail(&second).await, known);
    assert!(house.clients.recalled(second.session).is_empty());
    // Whoever may not walk there has nothing to say.
    first.call(chmod(a, 0o700)).await.unwrap();
    let nobody = second.by(&user(7, 7, &[]));
    assert_eq!(nobody.call(report(&[FileId(9)], None)).await.unwrap().kept, 0);
    assert_eq!(trail(&second).await, known);
    // Who goes through a directory for long tells of it in parts.
    let more = first.create(a, "h").await;
    second.call(report(&[more], None)).await.unwrap();
    assert_eq!(trail(&second).await.files, [files[1], files[0], more]);
    second.call(report(&[more, files[0]], None)).await.unwrap();
    assert_eq!(trail(&second).await.files, [more, files[0], files[1]]);
    let many: Vec<FileId> = (1000..2000).map(FileId).collect();
    second.call(report(&many, None)).await.unwrap();
    let trail = trail(&second).await;
    assert_eq!((trail.files.len(), trail.next), (TRAIL_MAX, Some(b)));
    for one in ["f", "g", "h"] {
        first.call(unlink(a, one)).await.unwrap();
    }
    first.call(rmdir(ROOT, "a")).await.unwrap();
    assert_eq!(house.count(b'r').await, 0);
}

fn set_xattr(id: FileId, name: &str, value: &[u8]) -> SetXattr {
    let (name, mode) = (XattrName::new(name).unwrap(), XattrMode::Either);
    SetXattr { id, name, value: value.to_vec(), mode }
}

#[tokio::test(start_paused = true)]
async fn bytes_of_files_are_read_only_as_far_as_they_are_told() {
    let house = House::new().await;
    let client = house.client().await;
    let dir = client.mkdir(ROOT, "d").await;
    let mut ids = vec![];
    for number in 0..40 {
        let id = client.create(dir, &format!("f{number:02}")).await;
        client.commit(id, vec![inline(0, &[7; 16 << 10])]).await;
        ids.push(id);
    }
    // The next question goes on where there was no room.
    let mut told = vec![];
    while told.len() < ids.len() {
        let rest = ids[told.len()..].to_vec();
        let ask = ReadFiles { ids: rest, bytes: 100 << 10, contents_max: u64::MAX, holder: None };
        let page: FilesPage = client.call(ask).await.unwrap().page.open().unwrap();
        assert!((1..=8).contains(&page.count), "{}", page.count);
        assert_eq!(page.files.len(), page.count as usize);
        told.extend(page.files.iter().map(|file| file.attributes.id));
    }
    assert_eq!(told, ids);
    let wish = ReadTree { bytes: 200 << 10, contents_max: u64::MAX, ..tree(&[dir]) };
    let (_, page) = self::told(&client, wish).await;
    let with_bytes = page.directories[0].entries.iter().filter(|one| one.file.is_some()).count();
    assert!((6..=8).contains(&with_bytes), "{with_bytes}");
    assert_eq!(page.directories[0].entries.len(), 40);
}
