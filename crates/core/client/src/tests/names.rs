//! Names, listings, attributes: what is asked, and what is known.

use super::fake::{Fake, ROOT};
use super::*;
use tieline_types::{ErrorKind, SetTime};
use tieline_wire::Op;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn at(name: &Name) -> At<'_> {
    At { parent: ROOT, name }
}

fn new_file(access: Access) -> NewFile {
    NewFile {
        mode: Mode::new(0o644),
        umask: Mode::new(0o022),
        is_exclusive: true,
        access,
        layout: None,
    }
}

const READ_WRITE: Access =
    Access { read: true, write: true, append: false, truncate: false, unnoted: false, runs: false };

#[tokio::test(start_paused = true)]
async fn names_made_here_are_known_here() {
    let (fake, root) = (Fake::new(), Caller::root());
    let volume = fake.mount();
    // The rights of the directory decide who may look names up.
    volume.attributes(&root, ROOT).await.unwrap();
    for index in 0..100 {
        let name = name(&format!("file{index}"));
        let (_, opened) = volume.create(&root, at(&name), new_file(READ_WRITE)).await.unwrap();
        volume.release(opened.handle).await;
    }
    let before = fake.requests();
    for index in 0..100 {
        let found = volume.lookup(&root, ROOT, &name(&format!("file{index}"))).await.unwrap();
        let id = found.attributes.unwrap().id;
        volume.attributes(&root, id).await.unwrap();
        let opened = volume.open(&root, id, READ_WRITE).await.unwrap();
        volume.release(opened.handle).await;
    }
    assert_eq!(fake.requests(), before, "nothing was asked");
    volume.unlink(&root, at(&name("file7"))).await.unwrap();
    let before = fake.requests();
    let gone = volume.lookup(&root, ROOT, &name("file7")).await.unwrap();
    assert!(gone.attributes.is_none() && !gone.entry.units.is_empty());
    assert_eq!(fake.requests(), before);
}

#[tokio::test(start_paused = true)]
async fn cached_calls_do_not_wait() {
    let (fake, root) = (Fake::new(), Caller::root());
    let volume = fake.mount();
    volume.attributes(&root, ROOT).await.unwrap();
    let name = name("a");
    let (known, opened) = volume.create(&root, at(&name), new_file(READ_WRITE)).await.unwrap();
    let id = known.attributes.id;
    volume.write(opened.handle, 0, Bytes::from(vec![7; 200_000])).await.unwrap();
    volume.flush(opened.handle).await.unwrap();

    let now = |future: std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>| {
        let mut future = future;
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        assert!(future.as_mut().poll(&mut context).is_ready(), "it waits");
    };
    now(Box::pin(async { drop(volume.lookup(&root, ROOT, &name).await.unwrap()) }));
    now(Box::pin(async { drop(volume.attributes(&root, id).await.unwrap()) }));
    now(Box::pin(async {
        let read = Access { write: false, ..READ_WRITE };
        let opened = volume.open(&root, id, read).await.unwrap();
        let bytes = volume.read(opened.handle, 0, 200_000).await.unwrap();
        assert_eq!(bytes.concat(), vec![7; 200_000]);
        volume.flush(opened.handle).await.unwrap();
        volume.release(opened.handle).await;
    }));
}

#[tokio::test(start_paused = true)]
async fn a_directory_is_listed_once() {
    let (fake, root) = (Fake::new(), Caller::root());
    {
        let mut state = fake.lock();
        for index in 0..10 {
            state.add(ROOT, &name(&format!("n{index}")), FileKind::Regular);
        }
    }
    let volume = fake.mount();
    let list = async || {
        let handle = volume.open_directory(&root, ROOT).await.unwrap();
        let (mut names, mut from) = (Vec::new(), 0);
        loop {
            let some = volume.read_directory(handle, from, 4, true).await.unwrap();
            let Some(last) = some.last() else { break };
            from = last.next;
            assert!(some.iter().all(|entry| entry.known.is_some()));
            names.extend(some.into_iter().map(|entry| entry.name.to_string()));
        }
        volume.release_directory(handle).await;
        names
    };
    let first = list().await;
    assert_eq!(first.len(), 10);
    volume
        .make_directory(&root, at(&name("dir")), Mode::new(0o755), Mode::default())
        .await
        .unwrap();
    volume.unlink(&root, at(&name("n3"))).await.unwrap();
    volume.attributes(&root, ROOT).await.unwrap();
    let before = fake.requests();
    let second = list().await;
    assert_eq!(fake.requests(), before, "served from the cache");
    assert!(second.contains(&"dir".to_owned()) && !second.contains(&"n3".to_owned()));
    // All names are known, so what is not there is known too.
    assert!(volume.lookup(&root, ROOT, &name("nothing")).await.unwrap().attributes.is_none());
    assert_eq!(fake.requests(), before);
}

#[tokio::test(start_paused = true)]
async fn a_rename_moves_what_is_known() {
    let (fake, root) = (Fake::new(), Caller::root());
    let volume = fake.mount();
    volume.attributes(&root, ROOT).await.unwrap();
    let (a, b) = (name("a"), name("b"));
    let (known, opened) = volume.create(&root, at(&a), new_file(READ_WRITE)).await.unwrap();
    volume.release(opened.handle).await;
    volume.rename(&root, at(&a), at(&b), RenameMode::Replace).await.unwrap();
    let before = fake.requests();
    assert!(volume.lookup(&root, ROOT, &a).await.unwrap().attributes.is_none());
    let found = volume.lookup(&root, ROOT, &b).await.unwrap();
    assert_eq!(found.attributes.unwrap().id, known.attributes.id);
    assert_eq!(fake.requests(), before);
}

#[tokio::test(start_paused = true)]
async fn an_open_file_outlives_its_name() {
    let (fake, root) = (Fake::new(), Caller::root());
    let volume = fake.mount();
    let a = name("a");
    let (known, opened) = volume.create(&root, at(&a), new_file(READ_WRITE)).await.unwrap();
    let id = known.attributes.id;
    volume.write(opened.handle, 0, Bytes::from_static(b"kept")).await.unwrap();
    volume.unlink(&root, at(&a)).await.unwrap();
    volume.flush(opened.handle).await.unwrap();
    assert_eq!(volume.read(opened.handle, 0, 10).await.unwrap().concat(), b"kept");
    assert_eq!(fake.count(Op::Release), 0);
    volume.release(opened.handle).await;
    while fake.count(Op::Release) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!fake.lock().nodes.contains_key(&id));
}

#[tokio::test(start_paused = true)]
async fn a_given_up_change_is_learned_all_the_same() {
    let (fake, root) = (Fake::new(), Caller::root());
    let volume = fake.mount();
    volume.attributes(&root, ROOT).await.unwrap();
    let a = name("a");
    assert!(volume.lookup(&root, ROOT, &a).await.unwrap().attributes.is_none());
    let held = fake.hold(Op::MakeDirectory);
    let call = volume.make_directory(&root, at(&a), Mode::new(0o755), Mode::default());
    assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
    drop(held);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(volume.lookup(&root, ROOT, &a).await.unwrap().attributes.is_some());
}

#[tokio::test(start_paused = true)]
async fn times_that_are_set_survive_what_was_written_before() {
    let (fake, root) = (Fake::new(), Caller::root());
    let volume = fake.mount();
    let a = name("a");
    let (known, opened) = volume.create(&root, at(&a), new_file(READ_WRITE)).await.unwrap();
    volume.write(opened.handle, 0, Bytes::from_static(b"cp -p")).await.unwrap();
    let time = tieline_types::Time { seconds: 5, nanos: 6 };
    let change = AttributeChange { mtime: Some(SetTime::At(time)), ..Default::default() };
    let id = known.attributes.id;
    volume.set_attributes(&root, id, Some(opened.handle), change).await.unwrap();
    volume.flush(opened.handle).await.unwrap();
    volume.release(opened.handle).await;
    let known = volume.attributes(&root, id).await.unwrap();
    assert_eq!((known.attributes.mtime, known.attributes.size), (time, 5));
}

#[tokio::test(start_paused = true)]
async fn absent_attributes_cost_nothing() {
    let (fake, root) = (Fake::new(), Caller::root());
    let volume = fake.mount();
    let (a, capability) = (name("a"), XattrName::new(*b"security.capability").unwrap());
    let (known, _) = volume.create(&root, at(&a), new_file(READ_WRITE)).await.unwrap();
    let id = known.attributes.id;
    let absent = volume.xattr(&root, id, &capability).await.unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NoAttribute);
    assert_eq!(fake.count(Op::ListXattrs), 0);
    let mine = XattrName::new(*b"user.mine").unwrap();
    volume.set_xattr(&root, id, &mine, b"1", XattrMode::Either).await.unwrap();
    for _ in 0..3 {
        assert_eq!(volume.xattr(&root, id, &mine).await.unwrap(), b"1");
        assert!(volume.xattr(&root, id, &capability).await.is_err());
    }
    assert_eq!(fake.count(Op::ListXattrs), 1);
    assert_eq!(volume.xattrs(&root, id).await.unwrap(), [mine]);
}

#[tokio::test(start_paused = true)]
async fn checksums_and_layouts_are_attributes() {
    let (fake, root) = (Fake::new(), Caller::root());
    let volume = fake.mount();
    let a = name("a");
    let (known, opened) = volume.create(&root, at(&a), new_file(READ_WRITE)).await.unwrap();
    let id = known.attributes.id;
    let bytes: Vec<u8> = (0..300_000u32).map(|index| (index * 7) as u8).collect();
    volume.write(opened.handle, 100_000, Bytes::from(bytes.clone())).await.unwrap();
    volume.flush(opened.handle).await.unwrap();
    let whole = [vec![0; 100_000], bytes].concat();
    let sum = simd_adler32::adler32(&whole.as_slice());
    let value =
        async |name: &str| volume.xattr(&root, id, &XattrName::new(name).unwrap()).await.unwrap();
    assert_eq!(value("user.tieline.adler32").await, format!("{sum:08x}").into_bytes());
    let record = value("user.XrdCks.adler32").await;
    assert_eq!(record.len(), 96);
    assert_eq!((&record[..8], record[31]), (&b"adler32\0"[..], 4));
    assert_eq!(record[32..36], sum.to_be_bytes());
    assert!(value("user.tieline.layout").await.starts_with(b"{\"stripe_count\":1,"));
    // Whole chunks were not read for it.
    assert_eq!(fake.count(Op::ReadObject), 0);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_came_ahead_tells_nothing_of_what_was_removed_since() {
    let (fake, root) = (Fake::new(), Caller::root());
    for index in 10..30 {
        fake.lock().add(ROOT, &name(&format!("n{index}")), FileKind::Regular);
    }
    let volume = fake.mount();
    volume.attributes(&root, ROOT).await.unwrap();
    let handle = volume.open_directory(&root, ROOT).await.unwrap();
    let (mut from, mut known) = (0, Vec::new());
    loop {
        let some = volume.read_directory(handle, from, 1, true).await.unwrap();
        let Some(entry) = some.first() else { break };
        from = entry.next;
        known.push((entry.name.to_string(), entry.known.is_some()));
        if known.len() == 5 {
            // Of the page at hand, and of the one that is on its way.
            for text in ["n15", "n17"] {
                volume.unlink(&root, at(&name(text))).await.unwrap();
            }
        }
    }
    let told: Vec<_> = known.iter().filter(|(_, is_known)| *is_known).collect();
    assert!(told.len() >= 17, "{known:?}");
    let is_gone = |text: &str| !told.iter().any(|(name, _)| name == text);
    assert!(is_gone("n15") && is_gone("n17"), "{known:?}");
}

#[tokio::test(start_paused = true)]
async fn names_that_were_listed_are_looked_up_together() {
    let (fake, root) = (Fake::new(), Caller::root());
    for index in 10..40 {
        fake.lock().add(ROOT, &name(&format!("n{index}")), FileKind::Regular);
    }
    let volume = fake.mount();
    volume.attributes(&root, ROOT).await.unwrap();
    let handle = volume.open_directory(&root, ROOT).await.unwrap();
    let listed = names_from(&volume, handle, 0).await;
    let pages = fake.count(Op::ReadDirectory);
    for (text, _) in listed.iter().filter(|(text, _)| text.starts_with('n')) {
        let found = volume.lookup(&root, ROOT, &name(text)).await.unwrap();
        let found = found.attributes.unwrap();
        assert_eq!(volume.attributes(&root, found.id).await.unwrap().attributes.id, found.id);
    }
    assert_eq!((fake.count(Op::Lookup), fake.count(Op::GetAttributes)), (2, 1));
    // The fake answers pages of three.
    assert!(fake.count(Op::ReadDirectory) - pages <= 30_usize.div_ceil(3));
}

/// All names from a position on, one at a time.
async fn names_from(volume: &Volume, handle: HandleId, mut from: u64) -> Vec<(String, u64)> {
    let mut names = Vec::new();
    loop {
        let some = volume.read_directory(handle, from, 1, false).await.unwrap();
        let Some(entry) = some.first() else { return names };
        names.push((entry.name.to_string(), entry.next));
        from = entry.next;
    }
}

#[tokio::test(start_paused = true)]
async fn positions_stay_while_names_come_and_go() {
    let (fake, root) = (Fake::new(), Caller::root());
    // The fake answers pages of three.
    let all: Vec<_> = (10..30).map(|index| format!("n{index}")).collect();
    for text in &all {
        fake.lock().add(ROOT, &name(text), FileKind::Regular);
    }
    let volume = fake.mount();
    let handle = volume.open_directory(&root, ROOT).await.unwrap();
    let listed = names_from(&volume, handle, 0).await;
    assert_eq!(listed.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), all);
    // Under our feet: every third goes, some come between and behind.
    fake.elsewhere(ROOT, &[], &[], |state| {
        for text in all.iter().step_by(3) {
            state.nodes.get_mut(&ROOT).unwrap().names.remove(&name(text)).unwrap();
        }
        for text in ["n10a", "n15a", "n15b", "n15c", "n15d", "n29a", "a"] {
            state.add(ROOT, &name(text), FileKind::Regular);
        }
    })
    .await;
    let is_left = |index: &usize| !index.is_multiple_of(3);
    for (begin, (_, next)) in listed.iter().enumerate().rev().step_by(2) {
        let seen = names_from(&volume, handle, *next).await;
        let left = (begin + 1..all.len()).filter(is_left).map(|index| all[index].clone());
        let old: Vec<_> = seen.iter().map(|(name, _)| name.clone()).collect();
        let old: Vec<_> = old.into_iter().filter(|name| all.contains(name)).collect();
        assert_eq!(old, left.collect::<Vec<_>>(), "after {begin}");
        for (name, next) in seen {
            if let Some((_, before)) = listed.iter().find(|(other, _)| *other == name) {
                assert_eq!(next, *before, "position of {name}");
            }
        }
    }
    let anew = names_from(&volume, handle, 0).await;
    assert_eq!(anew.first().map(|(name, _)| name.as_str()), Some("a"));
    assert_eq!(anew.len(), fake.lock().nodes[&ROOT].names.len());
}

#[tokio::test(start_paused = true)]
async fn positions_are_good_for_every_handle_and_after_a_new_beginning() {
    let (fake, root) = (Fake::new(), Caller::root());
    let all: Vec<_> = (10..30).map(|index| format!("n{index}")).collect();
    for text in &all {
        fake.lock().add(ROOT, &name(text), FileKind::Regular);
    }
    let volume = fake.mount();
    let handle = volume.open_directory(&root, ROOT).await.unwrap();
    let listed = names_from(&volume, handle, 0).await;
    fake.elsewhere(ROOT, &[], &[], |state| {
        for text in all.iter().step_by(3) {
            state.nodes.get_mut(&ROOT).unwrap().names.remove(&name(text)).unwrap();
        }
        for text in ["a", "n15a", "n29a"] {
            state.add(ROOT, &name(text), FileKind::Regular);
        }
    })
    .await;
    volume.read_directory(handle, 0, 1, false).await.unwrap();
    let is_left = |index: &usize| !index.is_multiple_of(3);
    for (begin, (_, next)) in listed.iter().enumerate() {
        let new = volume.open_directory(&root, ROOT).await.unwrap();
        for handle in [new, handle] {
            let seen = names_from(&volume, handle, *next).await;
            let old = seen.iter().filter(|(name, _)| all.contains(name));
            let old: Vec<_> = old.map(|(name, _)| name.clone()).collect();
            let left = (begin + 1..all.len()).filter(is_left).map(|index| all[index].clone());
            assert_eq!(old, left.collect::<Vec<_>>(), "after {begin}");
        }
        volume.release_directory(new).await;
    }
}

#[tokio::test(start_paused = true)]
async fn from_a_position_that_is_not_known_all_is_listed() {
    let (fake, root) = (Fake::new(), Caller::root());
    for index in 10..30 {
        fake.lock().add(ROOT, &name(&format!("n{index}")), FileKind::Regular);
    }
    let volume = fake.mount();
    let handle = volume.open_directory(&root, ROOT).await.unwrap();
    assert_eq!(names_from(&volume, handle, 1 << 40).await.len(), 20);
    // As of a process before this one: names are counted anew.
    let volume = fake.mount();
    let handle = volume.open_directory(&root, ROOT).await.unwrap();
    assert_eq!(names_from(&volume, handle, 15).await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_junction_whose_site_does_not_answer_keeps_nobody() {
    let (fake, root, junction) = (Fake::new(), Caller::root(), name("psc"));
    let there = FileId::root_of(tieline_types::MdtIndex(1));
    let mut directory = super::fake::node(there, FileKind::Directory, ROOT, 1);
    directory.attributes.mode = Mode::new(0o750);
    {
        let mut state = fake.lock();
        state.nodes.get_mut(&ROOT).unwrap().names.insert(junction.clone(), there);
        state.nodes.insert(there, directory);
        state.absent.insert("mds:9".to_owned());
    }
    let volume = fake.mount_two(Settings { offline: Offline::Stale, ..Settings::default() });
    for patience in [3, 1] {
        let look = volume.lookup(&root, ROOT, &junction);
        let found = tokio::time::timeout(Duration::from_secs(patience), look).await;
        let found = found.unwrap_or_else(|_| panic!("waited {patience} s for the site")).unwrap();
        let attributes = found.attributes.unwrap();
        assert!(attributes.is_directory() && found.belief.units.is_empty());
        // The kernel keeps nobody from trying: the MDS is to decide, when it is there.
        assert_eq!((attributes.id, attributes.mode), (there, Mode::new(0o777)));
    }
    assert_eq!(volume.xattrs(&root, there).await.unwrap(), []);
    // Into it one waits.
    let listing = volume.open_directory(&root, there).await.unwrap();
    let listed = volume.read_directory(listing, 0, 10, false);
    assert!(tokio::time::timeout(Duration::from_secs(60), listed).await.is_err());
    fake.lock().absent.remove("mds:9");
    let found = volume.lookup(&root, ROOT, &junction).await.unwrap();
    // What is made up is told until the site is heard.
    assert_eq!(found.attributes.unwrap().mode, Mode::new(0o777));
    volume.read_directory(listing, 0, 10, false).await.unwrap();
    let found = volume.lookup(&root, ROOT, &junction).await.unwrap();
    assert_eq!(found.attributes.unwrap().mode, Mode::new(0o750));
}
