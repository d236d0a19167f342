//! What is decided here, and how the MDS comes to know.

use super::fake::{Fake, ROOT};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tieline_servers::Credentials;
use tieline_types::{ErrorKind, Gid, OstIndex, SessionId, SetTime, Time, Uid, Version};
use tieline_wire::Op;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn mount(fake: &Arc<Fake>) -> Arc<Volume> {
    fake.mount_with(Settings { journal: true, ..Settings::default() })
}

async fn mkdir(volume: &Volume, parent: FileId, text: &str) -> Result<FileId> {
    let at = At { parent, name: &name(text) };
    let (root, mode) = (Caller::root(), Mode::new(0o755));
    let made = volume.make_directory(&root, at, mode, Mode::default()).await?;
    Ok(made.attributes.id)
}

async fn create(volume: &Volume, parent: FileId, text: &str) -> Result<(FileId, HandleId)> {
    let access = Access { read: true, write: true, ..Access::default() };
    let (mode, umask) = (Mode::new(0o644), Mode::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    let at = At { parent, name: &name(text) };
    let (known, opened) = volume.create(&Caller::root(), at, new).await?;
    Ok((known.attributes.id, opened.handle))
}

async fn put(volume: &Volume, parent: FileId, text: &str, bytes: &[u8]) -> Result<FileId> {
    let (id, handle) = create(volume, parent, text).await?;
    volume.write(handle, 0, Bytes::copy_from_slice(bytes)).await?;
    volume.flush(handle).await?;
    volume.release(handle).await;
    Ok(id)
}

async fn find(volume: &Volume, parent: FileId, text: &str) -> Option<Attributes> {
    volume.lookup(&Caller::root(), parent, &name(text)).await.unwrap().attributes
}

#[tokio::test(start_paused = true)]
async fn in_a_directory_of_our_own_nothing_waits_for_the_server() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let directory = mkdir(&volume, ROOT, "d").await.unwrap();
    let before = fake.requests();
    let id = put(&volume, directory, "a", b"abc").await.unwrap();
    let found = find(&volume, directory, "a").await.unwrap();
    assert_eq!((found.id, found.size, found.stored), (id, 3, 3));
    assert!(find(&volume, directory, "b").await.is_none());
    let below = mkdir(&volume, directory, "below").await.unwrap();
    put(&volume, below, "deep", b"").await.unwrap();
    let root = Caller::root();
    let change = AttributeChange { mode: Some(Mode::new(0o600)), ..Default::default() };
    volume.set_attributes(&root, id, None, change).await.unwrap();
    let (from, to) = (name("a"), name("z"));
    let (from, to) = (At { parent: directory, name: &from }, At { parent: below, name: &to });
    volume.rename(&root, from, to, RenameMode::Replace).await.unwrap();
    let deep = name("deep");
    volume.unlink(&root, At { parent: below, name: &deep }).await.unwrap();
    let access = Access { read: true, ..Access::default() };
    let opened = volume.open(&root, id, access).await.unwrap();
    assert_eq!(volume.read(opened.handle, 0, 10).await.unwrap().concat(), b"abc");
    volume.release(opened.handle).await;
    assert_eq!(fake.requests(), before, "decided here");
    assert!(!fake.lock().nodes.contains_key(&id));

    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.bytes(id), b"abc");
    let node = fake.lock().nodes[&id].clone();
    assert_eq!((node.attributes.mode, node.parent), (Mode::new(0o600), below));
    assert_eq!(fake.lock().nodes[&below].names.len(), 1);
    let after = fake.requests();
    assert_eq!(find(&volume, below, "z").await.unwrap().version, node.attributes.version);
    let opened = volume.open(&root, id, access).await.unwrap();
    assert_eq!(volume.read(opened.handle, 0, 10).await.unwrap().concat(), b"abc");
    assert_eq!(fake.requests(), after, "and still believed");
}

/// As git does it for each object, once with bytes that are not committed yet.
#[tokio::test(start_paused = true)]
async fn a_second_name_in_a_directory_of_our_own_waits_for_nothing() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let root = Caller::root();
    let directory = mkdir(&volume, ROOT, "d").await.unwrap();
    let before = fake.requests();
    let [first, second] = [name("tmp_obj"), name("0123")];
    let [first, second] = [&first, &second].map(|name| At { parent: directory, name });
    let mut made = Vec::new();
    for bytes in [b"short".to_vec(), vec![7; 300_000]] {
        let id = put(&volume, directory, "tmp_obj", &bytes).await.unwrap();
        let known = volume.link(&root, id, second).await.unwrap();
        assert_eq!((known.attributes.id, known.attributes.links), (id, 2));
        let links = |found: Option<Attributes>| found.map(|found| (found.id, found.links));
        assert_eq!(links(find(&volume, directory, "tmp_obj").await), Some((id, 2)));
        assert_eq!(links(find(&volume, directory, "0123").await), Some((id, 2)));
        volume.unlink(&root, first).await.unwrap();
        assert!(find(&volume, directory, "tmp_obj").await.is_none());
        assert_eq!(links(find(&volume, directory, "0123").await), Some((id, 1)));
        let done = name(&bytes.len().to_string());
        let done = At { parent: directory, name: &done };
        volume.rename(&root, second, done, RenameMode::Replace).await.unwrap();
        made.push((id, bytes));
    }
    assert_eq!(fake.requests(), before, "decided here");

    tokio::time::sleep(Duration::from_secs(3)).await;
    for (id, bytes) in made {
        assert!(fake.bytes(id) == bytes);
        let node = fake.lock().nodes[&id].clone();
        assert_eq!(node.attributes.links, 1);
        assert!(fake.lock().nodes[&directory].names.contains_key(&name(&bytes.len().to_string())));
    }
    assert_eq!(fake.lock().nodes[&directory].names.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn names_of_a_file_that_has_some_elsewhere_are_the_servers() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let root = Caller::root();
    let [here, there] = ["here", "there"].map(|name| mkdir(&volume, ROOT, name));
    let (here, there) = (here.await.unwrap(), there.await.unwrap());
    let id = put(&volume, here, "a", b"abc").await.unwrap();
    let [a, b, c] = [name("a"), name("b"), name("c")];
    volume.link(&root, id, At { parent: there, name: &b }).await.unwrap();
    assert_eq!(fake.count(Op::Link), 1, "in another directory");
    volume.link(&root, id, At { parent: here, name: &c }).await.unwrap();
    assert_eq!(fake.count(Op::Link), 2, "a third name");
    volume.unlink(&root, At { parent: here, name: &a }).await.unwrap();
    volume.unlink(&root, At { parent: there, name: &b }).await.unwrap();
    assert_eq!(fake.count(Op::Unlink), 2);
    let found = find(&volume, here, "c").await.unwrap();
    assert_eq!((found.id, found.links), (id, 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_done_is_sent_before_a_recall_is_answered() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let directory = mkdir(&volume, ROOT, "d").await.unwrap();
    let id = put(&volume, directory, "a", b"abc").await.unwrap();
    let before = tokio::time::Instant::now();
    fake.elsewhere(directory, &["a"], &[id], |state| {
        assert!(state.nodes[&directory].names.contains_key(&name("a")));
        state.nodes.get_mut(&directory).unwrap().names.remove(&name("a"));
        state.nodes.remove(&id);
    })
    .await;
    assert!(before.elapsed() < Duration::from_millis(100));
    assert!(find(&volume, directory, "a").await.is_none());
    // Not ours alone any more: the next is asked, and gives it back.
    let asked = fake.count(Op::Create);
    put(&volume, directory, "b", b"").await.unwrap();
    assert_eq!(fake.count(Op::Create), asked + 1);
    put(&volume, directory, "c", b"").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn idle_directories_are_given_up_with_the_one_that_another_looks_at() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let [seen, idle, busy] = ["seen", "idle", "busy"].map(|name| mkdir(&volume, ROOT, name));
    let (seen, idle, busy) = (seen.await.unwrap(), idle.await.unwrap(), busy.await.unwrap());
    let held = fake.hold(Op::Batch);
    put(&volume, busy, "a", b"abc").await.unwrap();
    let before = tokio::time::Instant::now();
    let answer = fake.look_around(seen, &[idle, busy]).await;
    assert_eq!(answer.shared, Some(vec![idle]));
    assert!(before.elapsed() < Duration::from_millis(100), "waits for nothing beside");
    let asked = fake.count(Op::Create);
    put(&volume, busy, "b", b"").await.unwrap();
    assert_eq!(fake.count(Op::Create), asked, "decided here");
    drop(held);
    put(&volume, idle, "a", b"").await.unwrap();
    assert_eq!(fake.count(Op::Create), asked + 1);
}

/// Else two clients wait for each other, whose changes ask the other: after an MDS was started anew
/// each that takes a name away asks all who were there before.
#[tokio::test(start_paused = true)]
async fn a_recall_waits_for_nothing_that_was_done_elsewhere() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let [here, there] = ["here", "there"].map(|name| mkdir(&volume, ROOT, name));
    let (here, there) = (here.await.unwrap(), there.await.unwrap());
    let id = put(&volume, there, "a", b"abc").await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let held = fake.hold(Op::Batch);
    put(&volume, here, "b", b"abc").await.unwrap();
    let before = tokio::time::Instant::now();
    fake.elsewhere(there, &[], &[id], |_| ()).await;
    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    drop(held);
    // What was done to a file there, by its attributes alone, is.
    let mode = Some(Mode::new(0o600));
    let change = AttributeChange { mode, ..Default::default() };
    let local = mkdir(&volume, ROOT, "local").await.unwrap();
    let id = put(&volume, local, "c", b"abc").await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    volume.set_attributes(&Caller::root(), id, None, change).await.unwrap();
    fake.elsewhere(local, &[], &[id], |state| {
        assert_eq!(state.nodes[&id].attributes.mode, Mode::new(0o600));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_sync_waits_until_the_server_knows() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let directory = mkdir(&volume, ROOT, "d").await.unwrap();
    let (id, handle) = create(&volume, directory, "a").await.unwrap();
    volume.write(handle, 0, Bytes::from_static(b"abc")).await.unwrap();
    volume.sync(handle, false).await.unwrap();
    assert_eq!(fake.bytes(id), b"abc");
    put(&volume, directory, "b", b"").await.unwrap();
    let listing = volume.open_directory(&Caller::root(), directory).await.unwrap();
    volume.sync_directory(listing).await.unwrap();
    assert_eq!(fake.lock().nodes[&directory].names.len(), 2);
    put(&volume, directory, "c", b"").await.unwrap();
    volume.close(Duration::from_secs(5)).await;
    assert_eq!(fake.lock().nodes[&directory].names.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_refuses_is_told_at_the_next_sync() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let directory = mkdir(&volume, ROOT, "d").await.unwrap();
    fake.lock().refused.insert(Op::Create);
    let (_, handle) = create(&volume, directory, "a").await.unwrap();
    let error = volume.sync(handle, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let listing = volume.open_directory(&Caller::root(), directory).await.unwrap();
    let error = volume.sync_directory(listing).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    volume.sync_directory(listing).await.unwrap();
    assert!(find(&volume, directory, "a").await.is_none());
}

/// Else a program that knows nothing of the file hears of somebody else's loss.
#[tokio::test(start_paused = true)]
async fn a_directory_tells_of_lost_bytes_unless_their_writer_was_told() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let directory = mkdir(&volume, ROOT, "d").await.unwrap();
    let listing = volume.open_directory(&Caller::root(), directory).await.unwrap();
    for ost in [OstIndex(0), OstIndex(1)] {
        fake.lock().put_fault.insert(ost, ErrorKind::NoSpace);
    }
    let (_, handle) = create(&volume, directory, "a").await.unwrap();
    for is_told in [true, false] {
        volume.write(handle, 0, Bytes::from(vec![7; 100_000])).await.unwrap();
        if is_told {
            assert_eq!(volume.sync(handle, false).await.unwrap_err().kind(), ErrorKind::NoSpace);
        }
        // In the background, too.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let synced = volume.sync_directory(listing).await;
        assert_eq!(synced.map_err(|error| error.kind()).is_ok(), is_told);
        volume.sync_directory(listing).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_done_outlives_the_session() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let directory = mkdir(&volume, ROOT, "d").await.unwrap();
    let id = put(&volume, directory, "a", b"abc").await.unwrap();
    fake.lose_session();
    assert_eq!(find(&volume, directory, "a").await.unwrap().id, id);
    assert_eq!(fake.bytes(id), b"abc");
}

/// Shows tickets of all but one user, whose ticket is over until it is not.
struct Tickets(std::sync::atomic::AtomicBool);

#[async_trait::async_trait]
impl Credentials for Tickets {
    async fn token(&self, proof: u64, _: SessionId, _: &[String]) -> Option<Vec<u8>> {
        let is_good = proof != 7 || self.0.load(std::sync::atomic::Ordering::Relaxed);
        is_good.then(Vec::new)
    }

    fn is_silent(&self, proof: u64) -> bool {
        proof == 7
    }
}

#[tokio::test(start_paused = true)]
async fn whose_ticket_cannot_be_looked_for_is_not_denied() {
    let fake = Fake::new();
    let volume = mount(&fake);
    put(&volume, ROOT, "a", b"abc").await.unwrap();
    let tickets = Arc::new(Tickets(false.into()));
    volume.servers().set_credentials(tickets.clone());
    fake.lock().unproven = [7].into();
    let caller = Caller { proof: Some(7), ..Caller::root() };
    let at = At { parent: ROOT, name: &name("b") };
    let made = || volume.make_directory(&caller, at, Mode::new(0o755), Mode::default());
    assert_eq!(made().await.unwrap_err().kind(), ErrorKind::Unreachable);
    tickets.0.store(true, std::sync::atomic::Ordering::Relaxed);
    made().await.unwrap();
}

async fn create_as(volume: &Volume, proof: u64, parent: FileId, text: &str) {
    let caller = Caller { proof: Some(proof), ..Caller::root() };
    let (mode, umask, access) = (Mode::new(0o644), Mode::default(), Access::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    let at = At { parent, name: &name(text) };
    volume.create(&caller, at, new).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_is_over_takes_nobodys_work_away() {
    for comes_back in [true, false] {
        let fake = Fake::new();
        let wait = Duration::from_secs(60);
        let settings = Settings { journal: true, wait, ..Settings::default() };
        let volume = fake.mount_with(settings);
        let tickets = Arc::new(Tickets(false.into()));
        volume.servers().set_credentials(tickets.clone());
        let directory = mkdir(&volume, ROOT, "d").await.unwrap();
        fake.lock().unproven = [7, 8].into();
        for (proof, text) in [(8, "a"), (7, "b"), (8, "c")] {
            create_as(&volume, proof, directory, text).await;
        }
        let there = || fake.lock().nodes[&directory].names.keys().map(Name::to_string).collect();
        tokio::time::sleep(wait / 2).await;
        let names: Vec<String> = there();
        assert_eq!(names, ["a"], "what comes before is sent");
        tickets.0.store(comes_back, std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(wait).await;
        let names: Vec<String> = there();
        let listing = volume.open_directory(&Caller::root(), directory).await.unwrap();
        let synced = volume.sync_directory(listing).await.map_err(|error| error.kind());
        if comes_back {
            assert_eq!((names, synced), (vec!["a".into(), "b".into(), "c".into()], Ok(())));
        } else {
            let refused = Err(ErrorKind::Unauthenticated);
            assert_eq!((names, synced), (vec!["a".into(), "c".into()], refused));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_no_identity_any_more_takes_nobodys_work_away() {
    let fake = Fake::new();
    let volume = fake.mount_with(Settings { journal: true, ..Settings::default() });
    volume.servers().set_credentials(Arc::new(Tickets(true.into())));
    let directory = mkdir(&volume, ROOT, "d").await.unwrap();
    fake.lock().strangers = [7].into();
    for (proof, text) in [(8, "a"), (7, "b"), (8, "c"), (9, "e"), (8, "f")] {
        create_as(&volume, proof, directory, text).await;
    }
    let listing = volume.open_directory(&Caller::root(), directory).await.unwrap();
    let synced = volume.sync_directory(listing).await.map_err(|error| error.kind());
    assert_eq!(synced, Err(ErrorKind::PermissionDenied));
    let names: Vec<String> =
        fake.lock().nodes[&directory].names.keys().map(Name::to_string).collect();
    assert_eq!(names, ["a", "c", "e", "f"]);
    let sent = fake.count(Op::Batch);
    assert!(sent <= 8, "{sent}");
}

/// As `tar` does it for each file.
#[tokio::test(start_paused = true)]
async fn what_is_set_of_a_file_in_a_row_is_told_at_once() {
    let fake = Fake::new();
    let volume = mount(&fake);
    let root = Caller::root();
    let directory = mkdir(&volume, ROOT, "d").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let waiting = || volume.shared().journal.of(ROOT.mdt()).unwrap().waiting();
    let (given, moded) = (
        AttributeChange { uid: Some(Uid(0)), gid: Some(Gid(0)), ..Default::default() },
        AttributeChange { mode: Some(Mode::new(0o640)), ..Default::default() },
    );
    let time = |seconds| Time { seconds, nanos: 7 };
    let timed = |at| AttributeChange { mtime: Some(SetTime::At(time(at))), ..Default::default() };
    let id = put(&volume, directory, "a", b"abc").await.unwrap();
    assert_eq!(waiting(), 2, "made, and its bytes");
    for change in [timed(5), given, moded, timed(6)] {
        volume.set_attributes(&root, id, None, change).await.unwrap();
        assert_eq!(waiting(), 3);
    }
    let other = put(&volume, directory, "b", b"").await.unwrap();
    volume.set_attributes(&root, id, None, timed(7)).await.unwrap();
    assert_eq!(waiting(), 5, "what lies between stays between");
    volume.set_attributes(&root, other, None, timed(8)).await.unwrap();
    assert_eq!(waiting(), 6, "of another file");

    // Nothing is put into what is on its way.
    fake.lock().delay = Duration::from_millis(500);
    tokio::time::sleep(Duration::from_millis(400)).await;
    volume.set_attributes(&root, other, None, timed(9)).await.unwrap();
    assert_eq!(waiting(), 7);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(waiting(), 0);
    let found = |id| fake.lock().nodes[&id].attributes.clone();
    assert_eq!((found(id).mode, found(id).mtime), (Mode::new(0o640), time(7)));
    assert_eq!(found(other).mtime, time(9));
    assert_eq!(find(&volume, directory, "b").await.unwrap().mtime, time(9));
}

#[tokio::test(start_paused = true)]
async fn without_a_journal_nobody_is_asked_for_ids() {
    let fake = Fake::new();
    let volume = fake.mount();
    let directory = mkdir(&volume, ROOT, "d").await.unwrap();
    put(&volume, directory, "a", b"abc").await.unwrap();
    assert_eq!((fake.count(Op::Reserve), fake.count(Op::Batch)), (0, 0));
    assert_eq!(fake.lock().nodes[&directory].names.len(), 1);
}

/// Steps in a tree of three directories.
#[derive(Clone, Debug)]
enum Step {
    Put { directory: usize, name: usize, length: usize },
    Remove { directory: usize, name: usize },
    Move { from: (usize, usize), to: (usize, usize) },
    Chmod { directory: usize, name: usize, mode: u32 },
    Cut { directory: usize, name: usize, size: u64 },
    List { directory: usize },
    Wait,
    Sync,
    Recall { directory: usize },
    Elsewhere { directory: usize, name: usize },
    LoseSession,
}

fn step() -> impl Strategy<Value = Step> {
    let (directory, name) = (0..3usize, 0..4usize);
    let place = (directory.clone(), name.clone());
    prop_oneof![
        6 => (place.clone(), 0..20_000usize)
            .prop_map(|((directory, name), length)| Step::Put { directory, name, length }),
        3 => place.clone().prop_map(|(directory, name)| Step::Remove { directory, name }),
        3 => (place.clone(), place.clone()).prop_map(|(from, to)| Step::Move { from, to }),
        2 => (place.clone(), 0..0o777u32)
            .prop_map(|((directory, name), mode)| Step::Chmod { directory, name, mode }),
        2 => (place.clone(), 0..20_000u64)
            .prop_map(|((directory, name), size)| Step::Cut { directory, name, size }),
        2 => directory.clone().prop_map(|directory| Step::List { directory }),
        1 => Just(Step::Wait),
        1 => Just(Step::Sync),
        1 => directory.prop_map(|directory| Step::Recall { directory }),
        1 => place.prop_map(|(directory, name)| Step::Elsewhere { directory, name }),
        1 => Just(Step::LoseSession),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Plain {
    mode: u32,
    bytes: Vec<u8>,
}

struct Run {
    fake: Arc<Fake>,
    volume: Arc<Volume>,
    directories: Vec<FileId>,
    model: BTreeMap<(usize, usize), Plain>,
    fill: u8,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl Run {
    async fn new() -> Self {
        let fake = Fake::new();
        let volume = mount(&fake);
        let one = mkdir(&volume, ROOT, "one").await.unwrap();
        let two = mkdir(&volume, one, "two").await.unwrap();
        let directories = vec![ROOT, one, two];
        Self { fake, volume, directories, model: BTreeMap::new(), fill: 0 }
    }

    async fn take(&mut self, step: Step) {
        let (volume, root) = (self.volume.clone(), Caller::root());
        let directory_of = |at: usize| self.directories[at];
        match step {
            Step::Put { directory, name, length } => {
                self.fill = self.fill.wrapping_add(1);
                let bytes = vec![self.fill; length];
                let put = put(&volume, directory_of(directory), NAMES[name], &bytes).await;
                let is_there = self.model.contains_key(&(directory, name));
                assert_eq!(put.is_err(), is_there);
                let plain = Plain { mode: 0o644, bytes };
                self.model.entry((directory, name)).or_insert(plain);
            }
            Step::Remove { directory, name: at } => {
                let name = name(NAMES[at]);
                let at_name = At { parent: directory_of(directory), name: &name };
                let removed = volume.unlink(&root, at_name).await;
                assert_eq!(removed.is_ok(), self.model.remove(&(directory, at)).is_some());
            }
            Step::Move { from, to } => {
                let (old, new) = (name(NAMES[from.1]), name(NAMES[to.1]));
                let source = At { parent: directory_of(from.0), name: &old };
                let goal = At { parent: directory_of(to.0), name: &new };
                if from == to {
                    return;
                }
                let moved = volume.rename(&root, source, goal, RenameMode::Replace).await;
                let known = self.model.remove(&from);
                assert_eq!(moved.is_ok(), known.is_some());
                known.map(|plain| self.model.insert(to, plain));
            }
            Step::Chmod { directory, name, mode } => {
                let known = self.model.get_mut(&(directory, name));
                let found = find(&volume, self.directories[directory], NAMES[name]).await;
                let (Some(plain), Some(found)) = (known, found) else { return };
                let change = AttributeChange { mode: Some(Mode::new(mode)), ..Default::default() };
                volume.set_attributes(&root, found.id, None, change).await.unwrap();
                plain.mode = mode;
            }
            Step::Cut { directory, name, size } => {
                let known = self.model.get_mut(&(directory, name));
                let found = find(&volume, self.directories[directory], NAMES[name]).await;
                let (Some(plain), Some(found)) = (known, found) else { return };
                let change = AttributeChange { size: Some(size), ..Default::default() };
                volume.set_attributes(&root, found.id, None, change).await.unwrap();
                plain.bytes.resize(size as usize, 0);
            }
            Step::List { directory } => {
                let handle = volume.open_directory(&root, directory_of(directory)).await.unwrap();
                let (mut listed, mut at) = (0, 0);
                loop {
                    let page = volume.read_directory(handle, at, 100, true).await.unwrap();
                    let Some(last) = page.last() else { break };
                    (listed, at) = (listed + page.len(), last.next);
                }
                let of = |at: &&(usize, usize)| at.0 == directory;
                let below = usize::from(directory < 2);
                assert_eq!(listed, self.model.keys().filter(of).count() + below);
                volume.release_directory(handle).await;
            }
            Step::Wait => tokio::time::sleep(Duration::from_secs(2)).await,
            Step::Sync => {
                let handle = volume.open_directory(&root, ROOT).await.unwrap();
                volume.sync_directory(handle).await.unwrap();
                self.check_server();
            }
            Step::Recall { directory } => {
                drop(self.fake.elsewhere(directory_of(directory), &[], &[], |_| {}).await);
            }
            Step::Elsewhere { directory, name: at } => {
                // Another client removes it.
                let (parent, name) = (directory_of(directory), NAMES[at]);
                let known = self.model.remove(&(directory, at));
                let files: Vec<FileId> = match find(&volume, parent, name).await {
                    Some(found) => vec![found.id],
                    None => vec![],
                };
                assert_eq!(files.len(), usize::from(known.is_some()));
                self.fake
                    .elsewhere(parent, &[name], &files, |state| {
                        let node = state.nodes.get_mut(&parent).unwrap();
                        if let Some(id) = node.names.remove(&name.parse::<Name>().unwrap()) {
                            state.nodes.remove(&id);
                        }
                    })
                    .await;
            }
            Step::LoseSession => self.fake.lose_session(),
        }
        self.check().await;
    }

    /// The client shows what the model says.
    async fn check(&self) {
        for (at, &parent) in self.directories.iter().enumerate() {
            for (number, text) in NAMES.iter().enumerate() {
                let found = find(&self.volume, parent, text).await;
                let plain = self.model.get(&(at, number));
                assert_eq!(found.is_some(), plain.is_some(), "{at}/{text}");
                let (Some(found), Some(plain)) = (found, plain) else { continue };
                assert_eq!(found.mode, Mode::new(plain.mode));
                assert_eq!(found.size, plain.bytes.len() as u64);
                let access = Access { read: true, ..Access::default() };
                let root = Caller::root();
                let opened = self.volume.open(&root, found.id, access).await.unwrap();
                let read = self.volume.read(opened.handle, 0, 1 << 16).await.unwrap().concat();
                assert!(read == plain.bytes, "{at}/{text}");
                self.volume.release(opened.handle).await;
            }
        }
    }

    /// The server has what the model says.
    fn check_server(&self) {
        for (at, parent) in self.directories.iter().enumerate() {
            for (number, text) in NAMES.iter().enumerate() {
                let id = self.fake.lock().nodes[parent].names.get(&name(text)).copied();
                let plain = self.model.get(&(at, number));
                assert_eq!(id.is_some(), plain.is_some(), "{at}/{text}");
                let (Some(id), Some(plain)) = (id, plain) else { continue };
                assert!(self.fake.bytes(id) == plain.bytes, "{at}/{text}");
                let version = self.fake.lock().nodes[&id].attributes.version;
                assert!(version > Version(0));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_is_what_was_done_to_it(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut run = Run::new().await;
            for step in steps {
                run.take(step).await;
            }
            run.take(Step::Sync).await;
            assert!(run.fake.count(Op::Reserve) > 0);
        });
    }
}
