//! Metadata in bulk: how often a walk waits for a server, and that it is never told what is not so.

use super::fake::{Fake, ROOT};
use super::*;
use std::collections::BTreeSet;
use tieline_types::{ChunkRef, Content, Extent, MdtIndex, ObjectName, OstPlace};
use tieline_wire::Op;
use tokio::time::Instant;

const FAR: Duration = Duration::from_millis(50);

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A fake that is far away and tells in bulk, with `count` packages of `below` directories each
/// that hold `files` files of `size` bytes.
fn far(count: usize, below: usize, files: usize, size: usize) -> Arc<Fake> {
    far_with((count, below, files), |_| size)
}

/// The same, with a size for each file of a directory.
fn far_with(
    (count, below, files): (usize, usize, usize),
    size: impl Fn(usize) -> usize,
) -> Arc<Fake> {
    let fake = Fake::new();
    let mut state = fake.lock();
    (state.tells_in_bulk, state.delay) = (true, FAR);
    for package in 0..count {
        let package = state.add(ROOT, &name(&format!("p{package:03}")), FileKind::Directory);
        for directory in 0..below {
            let directory = format!("d{directory:02}");
            let directory = state.add(package, &name(&directory), FileKind::Directory);
            for number in 0..files {
                let name = name(&format!("f{number:02}"));
                let file = state.add(directory, &name, FileKind::Regular);
                if size(number) > 0 {
                    put(&mut state, file, size(number));
                }
            }
        }
    }
    drop(state);
    fake
}

/// Gives a file bytes: small ones in the metadata, others in a chunk.
pub fn put(state: &mut super::fake::State, file: FileId, size: usize) {
    let bytes = vec![file.0 as u8; size];
    let length = size as u64;
    let content = if size <= 16 << 10 {
        Content::Inline(bytes)
    } else {
        let (mdt, grant) = (MdtIndex(0), tieline_types::Grant(3));
        let chunk = tieline_types::GrantedId { mdt, grant, serial: file.0 };
        let (ost, object) = (OstIndex(0), ObjectName::Chunk(chunk));
        state.chunks.insert((ost, chunk), bytes.into());
        let places = vec![OstPlace { ost, object, offset: 0, length, is_stale: false }.into()];
        let chunk = chunk.into();
        let (digest, adler32, checks) = (None, None, None);
        Content::Chunk(ChunkRef { chunk, length, skip: 0, places, digest, adler32, checks })
    };
    state.replace(file, &Extent { offset: 0, length, content });
}

/// How many round trips long something takes.
async fn trips<T>(work: impl Future<Output = T>) -> (f64, T) {
    let begun = Instant::now();
    let done = work.await;
    (begun.elapsed().as_secs_f64() / FAR.as_secs_f64(), done)
}

async fn find(volume: &Volume, path: &str) -> FileId {
    let mut at = ROOT;
    for part in path.split('/') {
        let found = volume.lookup(&Caller::root(), at, &name(part)).await.unwrap();
        at = found.attributes.unwrap().id;
    }
    at
}

/// The same, without asking.
fn find_in(fake: &Fake, path: &str) -> FileId {
    let state = fake.lock();
    path.split('/').fold(ROOT, |at, part| state.nodes[&at].names[&name(part)])
}

/// Every name of the tree, one after the other; opens and reads some files if `reads`.
async fn walk(volume: &Volume, shape: (usize, usize, usize), reads: bool) -> usize {
    let mut seen = 0;
    for package in 0..shape.0 {
        for directory in 0..shape.1 {
            for file in 0..shape.2 {
                let path = format!("p{package:03}/d{directory:02}/f{file:02}");
                let id = find(volume, &path).await;
                volume.attributes(&Caller::root(), id).await.unwrap();
                seen += 1;
                if reads {
                    read(volume, id).await;
                }
            }
        }
    }
    seen
}

async fn read(volume: &Volume, id: FileId) -> usize {
    let access = Access { read: true, ..Access::default() };
    let opened = volume.open(&Caller::root(), id, access).await.unwrap();
    let mut bytes = 0;
    loop {
        let parts = volume.read(opened.handle, bytes as u64, 128 << 10).await.unwrap();
        assert!(parts.iter().flatten().all(|&byte| byte == id.0 as u8));
        let count: usize = parts.iter().map(bytes::Bytes::len).sum();
        bytes += count;
        if count == 0 {
            break;
        }
    }
    volume.release(opened.handle).await;
    assert_eq!(bytes as u64, opened.attributes.size);
    bytes
}

#[tokio::test(start_paused = true)]
async fn a_walk_over_a_thousand_directories_waits_a_few_times() {
    let fake = far(100, 10, 9, 0);
    let volume = fake.mount();
    volume.attributes(&Caller::root(), ROOT).await.unwrap();
    let (trips, seen) = trips(walk(&volume, (100, 10, 9), false)).await;
    assert_eq!(seen, 9000);
    assert!(trips < 16.0, "{trips} round trips");
    assert!(fake.requests() < 70, "{} requests", fake.requests());
}

#[tokio::test(start_paused = true)]
async fn what_was_walked_is_walked_again_without_a_server() {
    let fake = far(10, 5, 9, 100);
    let volume = fake.mount();
    volume.attributes(&Caller::root(), ROOT).await.unwrap();
    walk(&volume, (10, 5, 9), true).await;
    // What is on its way lands.
    tokio::time::sleep(FAR * 4).await;
    let before = fake.requests();
    let (trips, _) = trips(walk(&volume, (10, 5, 9), true)).await;
    assert_eq!((trips, fake.requests() - before), (0.0, 0));
    // Names that are not there, and listings, too.
    let dir = find(&volume, "p003/d02").await;
    let found = volume.lookup(&Caller::root(), dir, &name("absent")).await.unwrap();
    assert!(found.attributes.is_none() && !found.entry.units.is_empty());
    let handle = volume.open_directory(&Caller::root(), dir).await.unwrap();
    let listed = volume.read_directory(handle, 0, 100, true).await.unwrap();
    assert!(listed.len() == 9 && listed.iter().all(|one| one.known.is_some()));
    assert_eq!(fake.requests(), before);
}

#[tokio::test(start_paused = true)]
async fn small_files_that_are_read_come_ahead_in_the_metadata_or_beside_it() {
    for size in [1000, 30_000] {
        let fake = far(20, 5, 9, size);
        let volume = fake.mount();
        volume.attributes(&Caller::root(), ROOT).await.unwrap();
        let (trips, _) = trips(walk(&volume, (20, 5, 9), true)).await;
        assert!(trips < 80.0, "{trips} round trips for 900 files of {size} bytes");
    }
}

/// Each tree of Python has them, and each was asked for alone.
#[tokio::test(start_paused = true)]
async fn empty_files_come_ahead_with_those_beside_them() {
    for size in [2000, 20_000] {
        let fake = far_with((20, 5, 9), |number| if number % 2 == 0 { size } else { 0 });
        let volume = fake.mount();
        volume.attributes(&Caller::root(), ROOT).await.unwrap();
        let (trips, _) = trips(walk(&volume, (20, 5, 9), true)).await;
        assert!(trips < 80.0, "{trips} round trips for 900 files of {size} bytes and none");
    }
}

/// What a kernel keeps of many small files goes in time, and so does what is kept here.
#[tokio::test(start_paused = true)]
async fn bytes_of_small_files_that_went_come_again_together() {
    let fake = far(20, 5, 9, 30_000);
    let volume = fake.mount();
    volume.attributes(&Caller::root(), ROOT).await.unwrap();
    let first = walk(&volume, (20, 5, 9), true).await;
    for _ in 0..2 {
        // Shorter than leases, which nobody renews here.
        tokio::time::sleep(Duration::from_secs(6)).await;
        let opens = fake.count(Op::Open);
        let (trips, again) = trips(walk(&volume, (20, 5, 9), true)).await;
        assert_eq!(again, first);
        assert!(trips < 80.0, "{trips} round trips for 900 files that are known");
        assert!(fake.count(Op::Open) <= opens + 10);
    }
}

/// The same of what was written here.
#[tokio::test(start_paused = true)]
async fn what_was_unpacked_here_is_read_together() {
    let fake = Fake::new();
    (fake.lock().tells_in_bulk, fake.lock().delay) = (true, FAR);
    let volume = fake.mount_with(Settings { journal: true, ..Settings::default() });
    let (root, mode, umask) = (Caller::root(), Mode::new(0o755), Mode::default());
    let mut files = vec![];
    for directory in 0..40 {
        let at = At { parent: ROOT, name: &name(&format!("d{directory:02}")) };
        let made = volume.make_directory(&root, at, mode, umask).await.unwrap();
        for file in 0..10 {
            let at = At { parent: made.attributes.id, name: &name(&format!("f{file}")) };
            let access = Access { write: true, ..Access::default() };
            let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
            let (known, opened) = volume.create(&root, at, new).await.unwrap();
            let id = known.attributes.id;
            let bytes = Bytes::from(vec![id.0 as u8; 30_000]);
            volume.write(opened.handle, 0, bytes).await.unwrap();
            volume.flush(opened.handle).await.unwrap();
            volume.release(opened.handle).await;
            files.push(id);
        }
    }
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(8)).await;
        let all = async {
            for &id in &files {
                read(&volume, id).await;
            }
        };
        let (trips, ()) = trips(all).await;
        assert!(trips < 40.0, "{trips} round trips for 400 files that were written here");
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_client_opened_comes_ahead_for_the_next() {
    // Some files here and there, in an order of their own.
    let fake = far(20, 5, 20, 30_000);
    let some: Vec<String> = (0..120)
        .map(|number| {
            let number = number * 37 % 2000;
            format!("p{:03}/d{:02}/f{:02}", number / 100, number / 20 % 5, number % 20)
        })
        .collect();
    let replay = async |volume: &Volume| {
        for path in &some {
            let id = find(volume, path).await;
            read(volume, id).await;
        }
    };
    let first = fake.mount();
    first.attributes(&Caller::root(), ROOT).await.unwrap();
    let (unknown, ()) = trips(replay(&first)).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fake.count(Op::ReportBundle), 1);
    let second = fake.mount();
    second.attributes(&Caller::root(), ROOT).await.unwrap();
    let (known, ()) = trips(replay(&second)).await;
    assert!(known < 12.0, "{known} round trips for 120 files, and {unknown} before");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let reports = fake.count(Op::ReportBundle);
    replay(&second).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(fake.count(Op::ReportBundle), reports, "nothing of it is news");
    // Who is unmounted before a program has been quiet for long says at once what it opened.
    let third = fake.mount();
    let others: Vec<String> = (0..20).map(|number| format!("p{number:03}/d04/f19")).collect();
    for path in &others {
        read(&third, find(&third, path).await).await;
    }
    third.close(Duration::from_secs(5)).await;
    assert_eq!(fake.count(Op::ReportBundle), reports + 1);
}

/// Who knows where bytes are that are not here waits for them as any other.
#[tokio::test(start_paused = true)]
async fn files_that_came_without_their_bytes_are_read_together() {
    let fake = far(20, 1, 9, 30_000);
    let volume = fake.mount();
    let mut known = vec![];
    for package in 0..20 {
        for file in 0..9 {
            known.push(find(&volume, &format!("p{package:03}/d00/f{file:02}")).await);
        }
    }
    tokio::time::sleep(FAR * 4).await;
    let opens = fake.count(Op::Open);
    let all = async {
        for at in 0..known.len() {
            read(&volume, known[at * 7 % known.len()]).await;
        }
    };
    let (trips, ()) = trips(all).await;
    assert!(trips < 60.0, "{trips} round trips for 180 files that are known");
    assert!(fake.count(Op::Open) <= opens + 20);
}

/// `site-packages` lies five levels down.
#[tokio::test(start_paused = true)]
async fn levels_of_a_path_come_together() {
    let fake = far(1, 1, 1, 100);
    let (mut at, mut path) = (ROOT, String::new());
    for level in 0..9 {
        at = fake.lock().add(at, &name(&format!("l{level}")), FileKind::Directory);
        path = format!("{path}l{level}/");
    }
    let file = fake.lock().add(at, &name("f"), FileKind::Regular);
    let volume = fake.mount();
    volume.attributes(&Caller::root(), ROOT).await.unwrap();
    let (trips, found) = trips(find(&volume, &format!("{path}f"))).await;
    assert_eq!(found, file);
    assert!(trips < 6.0, "{trips} round trips for ten names");
}

/// Where they are comes with the names, and the bytes in one round trip.
#[tokio::test(start_paused = true)]
async fn a_library_is_loaded_in_one_round_trip() {
    let fake = far(8, 3, 2, 100);
    let mut libraries = vec![];
    for package in 4..8 {
        let directory = find_in(&fake, &format!("p{package:03}/d02"));
        let mut state = fake.lock();
        let library = state.add(directory, &name("m.so"), FileKind::Regular);
        put(&mut state, library, 6 << 20);
        libraries.push(library);
    }
    let volume = fake.mount();
    volume.attributes(&Caller::root(), ROOT).await.unwrap();
    walk(&volume, (4, 3, 2), false).await;
    tokio::time::sleep(FAR * 4).await;
    for (package, id) in (4..8).zip(libraries) {
        let found = find(&volume, &format!("p{package:03}/d02/m.so")).await;
        assert_eq!(found, id);
        let access = Access { read: true, ..Access::default() };
        let (trips, _) = trips(async {
            let opened = volume.open(&Caller::root(), id, access).await.unwrap();
            volume.read(opened.handle, 0, 4096).await.unwrap()
        })
        .await;
        assert!(trips < 1.5, "{trips} round trips to load a library");
    }
}

#[tokio::test(start_paused = true)]
async fn one_look_does_not_bring_a_tree() {
    let fake = far(50, 20, 20, 1000);
    let volume = fake.mount();
    volume.attributes(&Caller::root(), ROOT).await.unwrap();
    let (trips, id) = trips(find(&volume, "p007/d03/f04")).await;
    assert!((1.9..2.1).contains(&trips), "{trips} round trips");
    read(&volume, id).await;
    tokio::time::sleep(FAR * 10).await;
    assert!(volume.shared().cache.lock().is_complete(ROOT));
    // The root, a package, and what is in them.
    assert_eq!((fake.count(Op::ReadTree), fake.count(Op::Lookup)), (2, 2));
    assert!(fake.count(Op::ReadFiles) <= 1, "{}", fake.count(Op::ReadFiles));
}

#[tokio::test(start_paused = true)]
async fn what_changes_elsewhere_after_a_bulk_answer_is_seen() {
    let fake = far(4, 3, 3, 100);
    let volume = fake.mount();
    walk(&volume, (4, 3, 3), true).await;
    tokio::time::sleep(FAR * 4).await;
    let dir = find(&volume, "p002/d01").await;
    let file = find(&volume, "p002/d01/f00").await;
    fake.elsewhere(dir, &["f00", "new"], &[file], |state| {
        let new = state.add(dir, &name("new"), FileKind::Regular);
        put(state, new, 10);
        put(state, file, 200);
    })
    .await;
    assert_eq!(read(&volume, find(&volume, "p002/d01/new").await).await, 10);
    assert_eq!(read(&volume, file).await, 200);
    // Nothing else was lost with it.
    let before = fake.requests();
    find(&volume, "p002/d02/f02").await;
    assert_eq!(fake.requests(), before);
}

#[tokio::test(start_paused = true)]
async fn what_is_closed_stays_closed_and_stops_no_walk() {
    let fake = far(30, 2, 2, 0);
    let shut: Vec<FileId> = {
        let mut state = fake.lock();
        let some: Vec<FileId> = state.nodes[&ROOT].names.values().copied().step_by(3).collect();
        state.closed = some.iter().copied().collect::<BTreeSet<_>>();
        for id in &some {
            state.nodes.get_mut(id).unwrap().attributes.mode = Mode::new(0o700);
        }
        some
    };
    let volume = fake.mount();
    let user = Caller { uid: Uid(7), gid: Gid(7), groups: vec![], proof: None };
    volume.attributes(&user, ROOT).await.unwrap();
    let names: Vec<Name> = fake.lock().nodes[&ROOT].names.keys().cloned().collect();
    for one in &names {
        let found = volume.lookup(&user, ROOT, one).await.unwrap().attributes.unwrap();
        let below = volume.lookup(&user, found.id, &name("d01")).await;
        assert!(below.is_ok(), "the fake lets everybody look");
    }
    for id in shut {
        assert!(!volume.shared().cache.lock().is_complete(id), "nobody was told of {id}");
    }
    assert!(fake.count(Op::ReadTree) < 30, "{} questions", fake.count(Op::ReadTree));
}

/// Names that are looked for in directories that another client made just now, and goes on with
/// in some: those that are told by name only are asked for when they are come to, or in time.
#[tokio::test(start_paused = true)]
async fn names_that_are_nowhere_are_known_with_directories_that_others_made_just_now() {
    const COUNT: usize = 500;
    let fake = far(0, 0, 0, 0);
    {
        let mut state = fake.lock();
        for number in 0..COUNT {
            let made = state.add(ROOT, &name(&format!("d{number:03}")), FileKind::Directory);
            state.add(made, &name("here"), FileKind::Regular);
            // One in ten is worked in for as long again.
            let more = if number % 10 == 0 { 4 } else { 0 };
            state.at_work.insert(made, Instant::now() + Duration::from_secs(more));
        }
    }
    let volume = fake.mount();
    volume.attributes(&Caller::root(), ROOT).await.unwrap();
    let look = async || {
        for turn in 0..COUNT {
            // In no order.
            let at = find(&volume, &format!("d{:03}", turn * 61 % COUNT)).await;
            for absent in ["stdio.h", "numpy"] {
                let found = volume.lookup(&Caller::root(), at, &name(absent)).await.unwrap();
                assert!(found.attributes.is_none());
            }
        }
    };
    let (trips, ()) = trips(look()).await;
    // Until nobody is at work any more each comes by itself: seven seconds at most, for a tenth.
    assert!(trips < 250.0, "{trips} round trips, {} requests", fake.requests());
    assert!(fake.requests() < 700, "{} requests", fake.requests());
    let before = fake.requests();
    look().await;
    assert_eq!(fake.requests(), before, "it is known");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_tell_in_bulk_is_not_asked() {
    let fake = far(3, 2, 2, 10);
    fake.lock().tells_in_bulk = false;
    let volume = fake.mount();
    walk(&volume, (3, 2, 2), true).await;
    assert_eq!(fake.count(Op::ReadTree) + fake.count(Op::ReadFiles), 0);
}

#[tokio::test(start_paused = true)]
async fn a_directory_larger_than_a_page_is_asked_for_once() {
    let fake = far(4, 1, 1, 0);
    large(&fake, "p001x", 5000);
    let volume = fake.mount();
    walk(&volume, (4, 1, 1), false).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(fake.count(Op::ReadTree) < 20, "{} questions", fake.count(Op::ReadTree));
}

/// A directory in the root with files `f00000` and so on.
fn large(fake: &Fake, at: &str, files: usize) {
    let mut state = fake.lock();
    let large = state.add(ROOT, &name(at), FileKind::Directory);
    for file in 0..files {
        state.add(large, &name(&format!("f{file:05}")), FileKind::Regular);
    }
}

#[tokio::test(start_paused = true)]
async fn names_of_a_large_directory_come_in_pages() {
    for packages in [0, 20] {
        let fake = far(packages, 2, 2, 0);
        large(&fake, "p010x", 10_000);
        let volume = fake.mount();
        // With others around it, it is part of a walk.
        walk(&volume, (packages / 2, 2, 2), false).await;
        let (trips, ()) = trips(async {
            for file in 0..10_000 {
                find(&volume, &format!("p010x/f{file:05}")).await;
            }
        })
        .await;
        assert!(trips < 12.0, "{trips} round trips beside {packages}");
        let directory = find(&volume, "p010x").await;
        assert!(volume.shared().cache.lock().is_complete(directory));
        let nothing = volume.lookup(&Caller::root(), directory, &name("none")).await.unwrap();
        assert!(nothing.attributes.is_none());
        assert_eq!(fake.count(Op::ReadDirectory), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_made_elsewhere_between_two_pages_is_seen() {
    let fake = far(0, 0, 0, 0);
    large(&fake, "large", 3000);
    let volume = fake.mount();
    find(&volume, "large/f00000").await;
    tokio::time::sleep(FAR * 4).await;
    let directory = find(&volume, "large").await;
    fake.elsewhere(directory, &["a"], &[], |state| {
        state.add(directory, &name("a"), FileKind::Regular);
    })
    .await;
    for file in 0..3000 {
        find(&volume, &format!("large/f{file:05}")).await;
    }
    find(&volume, "large/a").await;
    assert!(volume.shared().cache.lock().is_complete(directory));
}

/// A tree like those that programs are built from: files of all sizes, and some directories deep.
fn source_tree(packages: usize) -> Arc<Fake> {
    let fake = far(0, 0, 0, 0);
    let mut state = fake.lock();
    for package in 0..packages {
        let above = state.add(ROOT, &name(&format!("p{package:03}")), FileKind::Directory);
        let mut at = above;
        for number in 0..14 {
            let directory = name(&format!("d{number:02}"));
            at = state.add(
                if number % 3 == 0 { above } else { at },
                &directory,
                FileKind::Directory,
            );
            for file in 0..20 {
                let file_id = state.add(at, &name(&format!("f{file:02}")), FileKind::Regular);
                let size = [700, 3000, 9000, 20_000, 60_000][(package + number * 7 + file * 3) % 5];
                put(&mut state, file_id, size);
            }
        }
    }
    drop(state);
    fake
}

/// All files of a fake, by path.
fn paths(fake: &Fake) -> Vec<String> {
    fn below(state: &super::fake::State, at: FileId, path: &str, found: &mut Vec<String>) {
        for (name, id) in &state.nodes[&at].names {
            let path = format!("{path}{name}");
            match state.nodes[id].attributes.kind {
                FileKind::Directory => below(state, *id, &format!("{path}/"), found),
                _ => found.push(path),
            }
        }
    }
    let mut found = vec![];
    below(&fake.lock(), ROOT, "", &mut found);
    found.sort();
    found
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_is_read_once_comes_once() {
    let fake = source_tree(30);
    let paths = paths(&fake);
    let volume = fake.mount();
    volume.attributes(&Caller::root(), ROOT).await.unwrap();
    let (trips, ()) = trips(async {
        for path in &paths {
            read(&volume, find(&volume, path).await).await;
        }
    })
    .await;
    let (brought, used) = volume.shared().bulk.with(MdtIndex(0), |walk| walk.bytes());
    assert!(used > 100 << 20, "{used} of what came ahead was used");
    assert!(brought < used + used / 8, "{brought} came for {used}");
    assert!(trips < 80.0, "{trips} round trips for {} files", paths.len());
}
