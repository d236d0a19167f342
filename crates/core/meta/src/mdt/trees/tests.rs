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

/// Files `first` and so on in a directory, of 10 bytes each.
async fn files(client: &Client, directory: FileId, first: usize, count: usize) -> Vec<FileId> {
    let mut made = vec![];
    for number in first..first + count {
        let id = client.create(directory, &format!("f{number:04}")).await;
        client.commit(id, vec![inline(0, b"0123456789")]).await;
        made.push(id);
    }
    made
}

fn report(root: FileId, directories: &[FileId], files: &[FileId]) -> ReportBundle {
    ReportBundle { root, directories: directories.to_vec(), files: files.to_vec() }
}

async fn kept_as(client: &Client, message: ReportBundle) -> Option<u32> {
    client.call(message).await.unwrap().number
}

async fn bundle(client: &Client, root: FileId, number: u32) -> BundleList {
    client.call(ReadBundle { root, number }).await.unwrap().list.open().unwrap()
}

async fn signs(client: &Client, root: FileId) -> Vec<BundleSigns> {
    let (_, page) = told(client, ReadTree { depth: 0, ..tree(&[root]) }).await;
    page.directories[0].bundles.clone().unwrap_or_default()
}

fn ids(list: &BundleList) -> Vec<FileId> {
    list.files.iter().map(|file| file.id).collect()
}

/// Promise 200: What a program opened in a tree is told to whoever runs it after, in that order,
/// also when others used the tree between, or the MDS was started anew.
#[tokio::test(start_paused = true)]
async fn what_a_program_opened_is_told_to_whoever_comes_after() {
    let house = House::new().await;
    let (first, second) = (house.client().await, house.client().await);
    let top = first.mkdir(ROOT, "top").await;
    let (a, b) = (first.mkdir(top, "a").await, first.mkdir(top, "b").await);
    let mut opened = files(&first, a, 0, 20).await;
    opened.reverse();
    let ran = report(top, &[top, a, b], &opened);
    let number = kept_as(&first, ran.clone()).await.unwrap();
    let known = signs(&second, top).await;
    assert_eq!((known.len(), known[0].number), (1, number));
    assert_eq!(known[0].signs[..3], opened[..3]);
    let list = bundle(&second, top, number).await;
    assert_eq!((ids(&list), &list.directories[..]), (opened.clone(), &[top, a, b][..]));
    assert!(list.files.iter().all(|file| file.size == 10));
    assert!(house.clients.recalled(second.session).is_empty(), "no lease was touched");
    // It ran once more, and opened others; what it did not open is behind.
    let more = files(&first, b, 0, 2).await;
    let again: Vec<FileId> = more.iter().chain(&opened[2..]).copied().collect();
    assert_eq!(kept_as(&second, report(top, &[top], &again)).await, Some(number));
    let all: Vec<FileId> = again.iter().chain(&opened[..2]).copied().collect();
    assert_eq!(ids(&bundle(&first, top, number).await), all);
    // What is gone is not told.
    first.call(unlink(b, "f0000")).await.unwrap();
    assert_eq!(ids(&bundle(&first, top, number).await), all[1..]);
    // Two files are no program.
    assert_eq!(kept_as(&first, report(b, &[b], &opened[..2])).await, None);
    assert!(signs(&second, b).await.is_empty());
}

/// Promise 201: Of what programs opened nobody is told more than he may find himself: files that
/// he may read, in directories that he may get to, list and search.
#[tokio::test(start_paused = true)]
async fn of_what_a_program_opened_nobody_is_told_more_than_he_may_find() {
    let house = House::proven().await;
    let root = house.client().await;
    let top = root.mkdir(ROOT, "top").await;
    let open = root.mkdir(top, "open").await;
    let shut = root.mkdir(top, "shut").await;
    let below = root.mkdir(shut, "below").await;
    let dark = root.mkdir(top, "dark").await;
    let seen = files(&root, open, 0, 6).await;
    let kept = root.call(create(open, "kept", 0o600)).await.unwrap().open.attributes.id;
    let hidden = files(&root, shut, 0, 6).await;
    let deep = files(&root, below, 0, 6).await;
    let unlisted = files(&root, dark, 0, 6).await;
    let all = [&seen[..], &[kept], &hidden, &deep, &unlisted].concat();
    let directories = [top, open, shut, below, dark];
    let number = kept_as(&root, report(top, &directories, &all)).await.unwrap();
    root.call(chmod(shut, 0o700)).await.unwrap();
    root.call(chmod(dark, 0o711)).await.unwrap();
    let somebody = house.client().await.by(&user(7, 7, &[]));
    let list = bundle(&somebody, top, number).await;
    assert_eq!((&list.directories[..], ids(&list)), (&[top, open][..], seen.clone()));
    let told = signs(&somebody, top).await;
    assert!(told.iter().flat_map(|one| &one.signs).all(|id| ids(&list).contains(id)), "{told:?}");
    assert_eq!(ids(&bundle(&root, top, number).await), all);
    // Nor does he train what he may not see.
    let mut strange = files(&root, shut, 100, 6).await;
    strange.extend(&seen);
    let by_him = kept_as(&somebody, report(top, &directories, &strange)).await.unwrap();
    assert!(by_him != number && ids(&bundle(&root, top, by_him).await) == seen);
    assert_eq!(kept_as(&somebody, report(shut, &[shut], &seen)).await, None);
    assert!(signs(&root, shut).await.is_empty());
    // Of a tree that he may not see he is told nothing.
    root.call(chmod(top, 0o700)).await.unwrap();
    assert_eq!(bundle(&somebody, top, number).await, BundleList::default());
}

/// Promise 202: A tree keeps what sixteen programs opened, and who tells of many takes no more
/// than a quarter of those places from others.
#[tokio::test(start_paused = true)]
async fn a_tree_keeps_few_bundles_and_those_that_are_used() {
    let house = House::new().await;
    let client = house.client().await;
    let top = client.mkdir(ROOT, "top").await;
    let made = files(&client, top, 0, 30 * FILES_OF_ONE).await;
    let run = |number: usize| {
        report(top, &[top], &made[number * FILES_OF_ONE..(number + 1) * FILES_OF_ONE])
    };
    for number in 0..16 {
        assert!(kept_as(&client, run(number)).await.is_some());
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let first = kept_as(&client, run(0)).await.unwrap();
    kept_as(&client, run(16)).await.unwrap();
    let known = signs(&client, top).await;
    assert_eq!((known.len(), house.count(b'b').await), (16, 17));
    assert!(known.iter().any(|one| one.number == first), "it was used lately");
    let kept = |known: &[BundleSigns]| {
        let has = |number: usize| {
            known.iter().any(|one| one.signs.contains(&made[number * FILES_OF_ONE]))
        };
        (0..30).filter(|number| has(*number)).collect::<Vec<_>>()
    };
    assert_eq!(kept(&known), [&[0][..], &(2..17).collect::<Vec<_>>()].concat());
    let other = house.client().await.by(&user(7, 7, &[]));
    for number in 20..30 {
        kept_as(&other, run(number)).await.unwrap();
    }
    let known = kept(&signs(&client, top).await);
    assert_eq!(known.iter().filter(|number| **number < 20).count(), 12, "{known:?}");
    assert_eq!(known[12..], [26, 27, 28, 29]);
    // The same again is no news, and writes nothing.
    let before = of_bundles(&house).await;
    kept_as(&other, run(29)).await.unwrap();
    assert_eq!(of_bundles(&house).await, before);
    // Nor is it lost when the MDS starts anew.
    let house = house.restarted().await;
    assert_eq!(of_bundles(&house).await, before);
    let client = house.client().await;
    assert_eq!(kept(&signs(&client, top).await), known);
    for number in 0..made.len() {
        client.call(unlink(top, &format!("f{number:04}"))).await.unwrap();
    }
    client.call(rmdir(ROOT, "top")).await.unwrap();
    assert_eq!(house.count(b'b').await, 0);
}

const FILES_OF_ONE: usize = 5;

async fn of_bundles(house: &House) -> Vec<(Vec<u8>, Vec<u8>)> {
    house.dump().await.into_iter().filter(|(key, _)| key[0] == b'b').collect()
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
