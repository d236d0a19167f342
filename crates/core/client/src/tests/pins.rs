//! Servers that are away, come for a moment and go again: what is known of them, and what a pin
//! keeps known.

use super::fake::{Fake, ROOT};
use super::near::{Memory, pinned_at, read};
use super::*;
use tieline_types::{Content, Extent};
use tieline_wire::Op;

/// Longer than a lease, and than it takes to find that a server is away.
const LONG: Duration = Duration::from_secs(40);
/// Longer than a pin needs to look again.
const SOON: Duration = Duration::from_secs(8);
/// What is known is told faster than anything that waits.
const AT_ONCE: Duration = Duration::from_secs(2);

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn settings() -> Settings {
    let wait = Duration::from_secs(60);
    Settings { offline: Offline::Stale, wait, ..Settings::default() }
}

fn put(fake: &Fake, file: FileId, text: &str) {
    let content = Content::Inline(text.as_bytes().to_vec());
    let length = text.len() as u64;
    let mut state = fake.lock();
    state.version += 1;
    state.replace(file, &Extent { offset: 0, length, content });
}

/// `t/u` with two small files.
fn tree(fake: &Fake) -> [FileId; 4] {
    let mut state = fake.lock();
    let t = state.add(ROOT, &name("t"), FileKind::Directory);
    let u = state.add(t, &name("u"), FileKind::Directory);
    let [a, b] = ["a", "b"].map(|one| state.add(u, &name(one), FileKind::Regular));
    drop(state);
    put(fake, a, "one");
    put(fake, b, "two");
    [t, u, a, b]
}

async fn pin(volume: &Volume, tree: FileId) -> String {
    let set = XattrName::new(b"user.tieline.pin.set").unwrap();
    volume.xattr(&Caller::root(), tree, &set).await.unwrap();
    pinned_at(volume, tree).await
}

async fn list(volume: &Volume, directory: FileId) -> Result<Vec<String>> {
    let root = Caller::root();
    let handle = volume.open_directory(&root, directory).await?;
    let listed = volume.read_directory(handle, 0, 1000, true).await?;
    for entry in &listed {
        volume.attributes(&root, entry.id).await?;
    }
    Ok(listed.iter().map(|entry| String::from_utf8_lossy(entry.name.as_bytes()).into()).collect())
}

async fn at_once<T>(what: &str, work: impl Future<Output = T>) -> T {
    let told = tokio::time::timeout(AT_ONCE, work).await;
    told.unwrap_or_else(|_| panic!("{what} waits for a server that is away"))
}

/// What a mount tells of `t/u` during a cut.
async fn all_is_told(volume: &Volume, [t, u, a, b]: [FileId; 4], texts: [&str; 2]) {
    at_once("the tree", async {
        assert_eq!(list(volume, t).await.unwrap(), ["u"]);
        assert_eq!(list(volume, u).await.unwrap(), ["a", "b"]);
    })
    .await;
    for (file, text) in [(a, texts[0]), (b, texts[1])] {
        assert_eq!(at_once(text, read(volume, file, 0..3)).await, text.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pin_survives_what_others_change() {
    for node in [None, Some(Arc::new(Memory::default()) as Arc<dyn NodeCache>)] {
        let fake = Fake::new();
        let ids = tree(&fake);
        let volume = fake.mount_near_with(Near { node, ..Near::default() }, settings());
        let state = pin(&volume, ids[0]).await;
        assert!(state.contains("\"failed\":0"), "{state}");
        fake.elsewhere(ids[1], &["a"], &[ids[2]], |_| ()).await;
        put(&fake, ids[2], "new");
        tokio::time::sleep(SOON).await;
        fake.cut();
        tokio::time::sleep(LONG).await;
        all_is_told(&volume, ids, ["new", "two"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_others_write_into_a_pinned_tree_is_brought() {
    let fake = Fake::new();
    let ids = tree(&fake);
    let node: Option<Arc<dyn NodeCache>> = Some(Arc::new(Memory::default()));
    let volume = fake.mount_near_with(Near { node, ..Near::default() }, settings());
    pin(&volume, ids[0]).await;
    const SIZE: usize = 60_000;
    fake.elsewhere(ids[1], &["a"], &[ids[2]], |state| super::trees::put(state, ids[2], SIZE)).await;
    tokio::time::sleep(SOON).await;
    fake.cut();
    fake.lock().silent = [OstIndex(0), OstIndex(1)].into();
    tokio::time::sleep(LONG).await;
    let bytes = at_once("a chunk", read(&volume, ids[2], 0..SIZE)).await;
    assert_eq!(bytes, vec![ids[2].0 as u8; SIZE]);
}

#[tokio::test(start_paused = true)]
async fn what_a_pin_had_no_time_to_ask_again_is_as_it_last_saw_it() {
    let fake = Fake::new();
    let ids = tree(&fake);
    let node: Option<Arc<dyn NodeCache>> = Some(Arc::new(Memory::default()));
    let volume = fake.mount_near_with(Near { node, ..Near::default() }, settings());
    pin(&volume, ids[0]).await;
    fake.elsewhere(ids[1], &["a"], &[ids[2]], |_| ()).await;
    put(&fake, ids[2], "new");
    fake.cut();
    tokio::time::sleep(LONG).await;
    all_is_told(&volume, ids, ["one", "two"]).await;
    fake.heal();
    assert_eq!(read(&volume, ids[2], 0..3).await, b"new", "the first contact ends it");
}

#[tokio::test(start_paused = true)]
async fn the_next_process_knows_a_pin_also_after_a_short_contact() {
    let fake = Fake::new();
    let ids = tree(&fake);
    let node: Option<Arc<dyn NodeCache>> = Some(Arc::new(Memory::default()));
    let near = Near { node, ..Near::default() };
    let first = fake.mount_near_with(near.clone(), settings());
    pin(&first, ids[0]).await;
    fake.cut();
    let second = fake.mount_near_with(near, settings());
    // That a server was never met takes longer to see.
    let known = tokio::time::timeout(LONG, list(&second, ids[0])).await;
    assert_eq!(known.unwrap().unwrap(), ["u"]);
    all_is_told(&second, ids, ["one", "two"]).await;
    fake.heal();
    fake.cut();
    tokio::time::sleep(LONG).await;
    all_is_told(&second, ids, ["one", "two"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pin_survives_leases_that_lapse() {
    let fake = Fake::new();
    let ids = tree(&fake);
    let volume = fake.mount_with(settings());
    pin(&volume, ids[0]).await;
    tokio::time::sleep(LONG).await;
    // The first word after that: whatever was recalled meanwhile was not heard.
    put(&fake, ids[2], "new");
    volume.attributes(&Caller::root(), ROOT).await.unwrap();
    tokio::time::sleep(SOON).await;
    fake.cut();
    tokio::time::sleep(LONG).await;
    all_is_told(&volume, ids, ["new", "two"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pin_is_not_driven_out_by_what_is_read_later() {
    let fake = Fake::new();
    let ids = tree(&fake);
    let others: Vec<FileId> = {
        let mut state = fake.lock();
        let mut add = |number: u32| {
            let other = state.add(ROOT, &name(&format!("o{number}")), FileKind::Directory);
            (0..10).for_each(|file| {
                state.add(other, &name(&format!("f{file}")), FileKind::Regular);
            });
            other
        };
        (0..20).map(&mut add).collect()
    };
    let volume = fake.mount_with(Settings { inodes_max: 64, ..settings() });
    pin(&volume, ids[0]).await;
    for other in others {
        list(&volume, other).await.unwrap();
    }
    fake.cut();
    tokio::time::sleep(LONG).await;
    all_is_told(&volume, ids, ["one", "two"]).await;
}

#[tokio::test(start_paused = true)]
async fn more_than_can_be_remembered_is_no_pin() {
    let fake = Fake::new();
    let ids = tree(&fake);
    for number in 0..100 {
        fake.lock().add(ids[1], &name(&format!("f{number}")), FileKind::Regular);
    }
    let volume = fake.mount_with(Settings { inodes_max: 64, ..settings() });
    let state = pin(&volume, ids[0]).await;
    assert!(state.contains("more files than can be remembered"), "{state}");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_comes_for_a_moment_takes_nothing_away() {
    let fake = Fake::new();
    let ids = tree(&fake);
    let volume = fake.mount_with(settings());
    let root = Caller::root();
    list(&volume, ids[0]).await.unwrap();
    list(&volume, ids[1]).await.unwrap();
    for file in &ids[2..] {
        read(&volume, *file, 0..3).await;
    }
    fake.cut();
    tokio::time::sleep(LONG).await;
    all_is_told(&volume, ids, ["one", "two"]).await;
    for _ in 0..2 {
        fake.heal();
        fake.cut();
        tokio::time::sleep(LONG).await;
        all_is_told(&volume, ids, ["one", "two"]).await;
    }
    // What was asked anew is as it is now, and its neighbours are as they were.
    put(&fake, ids[2], "new");
    fake.heal();
    volume.lookup(&root, ids[1], &name("a")).await.unwrap();
    assert_eq!(read(&volume, ids[2], 0..3).await, b"new");
    fake.cut();
    tokio::time::sleep(LONG).await;
    all_is_told(&volume, ids, ["new", "two"]).await;
}

/// Changes at both levels that end in nobody knows what.
async fn change_in_vain(volume: &Volume, [t, u, a, _]: [FileId; 4]) {
    let (root, attribute) = (Caller::root(), XattrName::new(b"user.a").unwrap());
    let set = volume.set_xattr(&root, a, &attribute, b"b", XattrMode::Either).await;
    assert_eq!(set.unwrap_err().kind(), ErrorKind::Timeout);
    let mode = AttributeChange { mode: Some(Mode::new(0o600)), ..AttributeChange::default() };
    let set = volume.set_attributes(&root, a, None, mode).await;
    assert_eq!(set.unwrap_err().kind(), ErrorKind::Timeout);
    for directory in [t, u] {
        let name = name("new");
        let at = At { parent: directory, name: &name };
        let made = volume.make_directory(&root, at, Mode::new(0o755), Mode::default()).await;
        assert_eq!(made.unwrap_err().kind(), ErrorKind::Timeout);
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_fails_during_a_cut_takes_nothing_away() {
    let fake = Fake::new();
    fake.lock().gives_alone = false;
    let ids = tree(&fake);
    let wait = Duration::from_secs(4);
    let volume = fake.mount_with(Settings { wait, ..settings() });
    list(&volume, ids[0]).await.unwrap();
    list(&volume, ids[1]).await.unwrap();
    for file in &ids[2..] {
        read(&volume, *file, 0..3).await;
    }
    fake.cut();
    change_in_vain(&volume, ids).await;
    all_is_told(&volume, ids, ["one", "two"]).await;
    tokio::time::sleep(LONG).await;
    all_is_told(&volume, ids, ["one", "two"]).await;
    // The next contact is asked, and told in the next cut, however soon that comes.
    put(&fake, ids[2], "new");
    fake.heal();
    change_in_time(&volume, ids[1]).await;
    list(&volume, ids[0]).await.unwrap();
    assert_eq!(list(&volume, ids[1]).await.unwrap(), ["a", "b", "c"]);
    assert_eq!(read(&volume, ids[2], 0..3).await, b"new");
    assert_eq!(read(&volume, ids[3], 0..3).await, b"two");
    fake.cut();
    tokio::time::sleep(AT_ONCE).await;
    at_once("what was asked", async {
        assert_eq!(list(&volume, ids[0]).await.unwrap(), ["u"]);
        assert_eq!(list(&volume, ids[1]).await.unwrap(), ["a", "b", "c"]);
        assert_eq!(read(&volume, ids[2], 0..3).await, b"new");
        assert_eq!(read(&volume, ids[3], 0..3).await, b"two");
    })
    .await;
}

async fn change_in_time(volume: &Volume, directory: FileId) {
    let (root, name) = (Caller::root(), name("c"));
    let at = At { parent: directory, name: &name };
    volume.make_directory(&root, at, Mode::new(0o755), Mode::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_call_waits_once_for_a_server_that_is_away() {
    let fake = Fake::new();
    let [t, u, ..] = tree(&fake);
    let wait = Duration::from_secs(4);
    let volume = fake.mount_with(Settings { wait, journal: true, ..settings() });
    list(&volume, t).await.unwrap();
    let root = Caller::root();
    let make = async |directory, text| {
        let name = name(text);
        let at = At { parent: directory, name: &name };
        volume.make_directory(&root, at, Mode::new(0o755), Mode::default()).await
    };
    make(t, "asked").await.unwrap();
    make(t, "own").await.unwrap();
    assert_eq!(fake.count(Op::MakeDirectory), 1, "the other waits in the journal");
    // Serials must be reserved, what waits must be sent, and then this is asked.
    fake.lose_session();
    fake.cut();
    let begun = tokio::time::Instant::now();
    assert_eq!(make(u, "late").await.unwrap_err().kind(), ErrorKind::Timeout);
    let took = begun.elapsed();
    assert!(took < wait + Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_recalled_during_a_contact_is_not_told() {
    let fake = Fake::new();
    let ids = tree(&fake);
    let volume = fake.mount_with(settings());
    list(&volume, ids[1]).await.unwrap();
    fake.cut();
    tokio::time::sleep(LONG).await;
    fake.heal();
    volume.attributes(&Caller::root(), ids[1]).await.unwrap();
    fake.elsewhere(ids[1], &["a"], &[ids[2]], |state| {
        state.nodes.get_mut(&ids[1]).unwrap().names.remove(&name("a"));
    })
    .await;
    fake.cut();
    tokio::time::sleep(LONG).await;
    let told = tokio::time::timeout(AT_ONCE, list(&volume, ids[1])).await;
    assert!(!matches!(told, Ok(Ok(_))), "{told:?}");
    let (root, name) = (Caller::root(), name("a"));
    let told = tokio::time::timeout(AT_ONCE, volume.lookup(&root, ids[1], &name)).await;
    assert!(!matches!(told, Ok(Ok(_))), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn without_leave_to_tell_nothing_is_told_after_a_contact() {
    let fake = Fake::new();
    let ids = tree(&fake);
    let volume = fake.mount_with(Settings { offline: Offline::Error, ..settings() });
    list(&volume, ids[1]).await.unwrap();
    fake.heal();
    fake.cut();
    tokio::time::sleep(LONG).await;
    let told = tokio::time::timeout(AT_ONCE, list(&volume, ids[1])).await;
    assert!(!matches!(told, Ok(Ok(_))), "{told:?}");
}
