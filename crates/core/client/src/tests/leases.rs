//! Leases as a door sees them: recalls, races with answers, listeners.

use super::fake::{Fake, LEASE, ROOT};
use super::*;
use crate::shared::lock;
use std::sync::Mutex;
use tieline_types::{Extent, Version};
use tieline_wire::Op;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

#[derive(Default)]
struct Recorder {
    told: Mutex<Vec<Invalidation>>,
    is_slow: bool,
    /// Some pages of all files are locked.
    is_reading: bool,
    kept: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl CacheListener for Recorder {
    fn invalidate(&self, what: Invalidation, done: Box<dyn FnOnce() + Send>) {
        let waits = self.is_slow || self.is_reading && !what.data.is_empty();
        lock(&self.told).push(what);
        if waits {
            lock(&self.kept).push(done);
        } else {
            done();
        }
    }
}

fn settled(volume: &Volume, belief: &Belief) -> Duration {
    let mut lasts = None;
    volume.settle(belief, &mut |duration| lasts = Some(duration));
    lasts.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_recall_reaches_the_door_before_its_answer() {
    let (fake, root) = (Fake::new(), Caller::root());
    let a = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    let volume = fake.mount();
    let listener = Arc::new(Recorder::default());
    volume.listen(listener.clone());
    let found = volume.lookup(&root, ROOT, &name("a")).await.unwrap();
    let lasts = settled(&volume, &found.entry);
    assert!(lasts > LEASE / 2 && lasts <= LEASE.mul_f64(0.9));

    let access = Access { read: true, ..Access::default() };
    let opened = volume.open(&root, a, access).await.unwrap();
    let answer = fake
        .elsewhere(ROOT, &["a"], &[a], |state| {
            state.nodes.get_mut(&a).unwrap().attributes.mode = Mode::new(0o600);
        })
        .await;
    assert_eq!((answer.is_contended, answer.open), (false, vec![a]));
    let told = std::mem::take(&mut *lock(&listener.told));
    let [bytes, names] = &told[..] else { panic!("{told:?}") };
    assert_eq!(names.entries, [(ROOT, name("a"))]);
    assert_eq!((&names.attributes, &bytes.data), (&vec![a], &vec![a]));
    assert_eq!(settled(&volume, &found.entry), Duration::ZERO);
    let known = volume.attributes(&root, a).await.unwrap();
    assert_eq!(known.attributes.mode, Mode::new(0o600));
    volume.release(opened.handle).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_overtaken_by_a_recall_is_not_believed() {
    let (fake, root) = (Fake::new(), Caller::root());
    let a = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    let volume = fake.mount();
    volume.attributes(&root, ROOT).await.unwrap();
    let held = fake.hold(Op::Lookup);
    let looking = tokio::spawn({
        let volume = volume.clone();
        async move { volume.lookup(&Caller::root(), ROOT, &name("a")).await.unwrap() }
    });
    while fake.count(Op::Lookup) == 0 {
        tokio::task::yield_now().await;
    }
    fake.elsewhere(ROOT, &["a"], &[a], |state| {
        state.nodes.get_mut(&ROOT).unwrap().names.remove(&name("a"));
    })
    .await;
    drop(held);
    fake.release(Op::Lookup);
    let old = looking.await.unwrap();
    assert!(old.attributes.is_some(), "read before the change");
    assert_eq!(settled(&volume, &old.entry), Duration::ZERO);
    assert!(volume.lookup(&root, ROOT, &name("a")).await.unwrap().attributes.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_slow_door_does_not_stop_others_for_long() {
    let (fake, root) = (Fake::new(), Caller::root());
    fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    let volume = fake.mount();
    volume.listen(Arc::new(Recorder { is_slow: true, ..Recorder::default() }));
    volume.lookup(&root, ROOT, &name("a")).await.unwrap();
    let before = tokio::time::Instant::now();
    fake.elsewhere(ROOT, &["a"], &[], |_| {}).await;
    let took = before.elapsed();
    assert!(took >= Duration::from_secs(1) && took <= Duration::from_secs(5));
}

/// The door waits for the read, the read for whoever makes the change, and he for this answer.
#[tokio::test(start_paused = true)]
async fn a_recall_of_a_file_that_is_being_read_waits_for_no_read() {
    let (fake, root) = (Fake::new(), Caller::root());
    let a = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    fake.lock().nodes.get_mut(&a).unwrap().attributes.size = 10;
    let volume = fake.mount();
    let access = Access { read: true, ..Access::default() };
    let handle = volume.open(&root, a, access).await.unwrap().handle;
    let listener = Arc::new(Recorder { is_reading: true, ..Recorder::default() });
    volume.listen(listener.clone());
    fake.elsewhere(ROOT, &[], &[a], |_| {}).await;
    volume.attributes(&root, ROOT).await.unwrap();
    let held = fake.hold(Op::GetExtents);
    let before = fake.count(Op::GetExtents);
    let reading = tokio::spawn({
        let volume = volume.clone();
        async move { volume.read(handle, 0, 10).await.unwrap().concat() }
    });
    while fake.count(Op::GetExtents) == before {
        tokio::task::yield_now().await;
    }
    let before = tokio::time::Instant::now();
    fake.elsewhere(ROOT, &[], &[a], |_| {}).await;
    let took = before.elapsed();
    assert!(took > Duration::ZERO && took < Duration::from_millis(100), "{took:?}");
    let parts = lock(&listener.told).pop().unwrap().parts;
    assert_eq!(parts, [(a, 10..Extent::FILE_SIZE_MAX)], "what is read stays");
    drop(held);
    fake.release(Op::GetExtents);
    assert_eq!(reading.await.unwrap(), [0; 10]);
}

#[tokio::test(start_paused = true)]
async fn a_recall_during_an_own_change_is_contended_and_waits_for_nobody() {
    let (fake, root) = (Fake::new(), Caller::root());
    let volume = fake.mount();
    volume.listen(Arc::new(Recorder { is_slow: true, ..Recorder::default() }));
    volume.lookup(&root, ROOT, &name("b")).await.unwrap();
    let held = fake.hold(Op::MakeDirectory);
    let making = tokio::spawn({
        let volume = volume.clone();
        async move {
            let name = name("b");
            let at = At { parent: ROOT, name: &name };
            let root = Caller::root();
            let made = volume.make_directory(&root, at, Mode::new(0o755), Mode::default());
            made.await.unwrap()
        }
    });
    while fake.count(Op::MakeDirectory) == 0 {
        tokio::task::yield_now().await;
    }
    let before = tokio::time::Instant::now();
    let answer = fake.elsewhere(ROOT, &["c"], &[], |_| {}).await;
    assert!(answer.is_contended);
    assert_eq!(before.elapsed(), Duration::ZERO);
    drop(held);
    making.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_leases_everything_is_asked() {
    let (fake, root) = (Fake::new(), Caller::root());
    let a = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    fake.lock().grants = false;
    let volume = fake.mount();
    for round in 1..4 {
        let known = volume.attributes(&root, a).await.unwrap();
        assert_eq!(settled(&volume, &known.belief), Duration::ZERO);
        assert_eq!(fake.count(Op::GetAttributes), round);
    }
    // Reads see what others committed, each time.
    let access = Access { read: true, ..Access::default() };
    let opened = volume.open(&root, a, access).await.unwrap();
    for text in [&b"one"[..], b"three"] {
        {
            let mut state = fake.lock();
            state.version += 1;
            let content = tieline_types::Content::Inline(text.to_vec());
            let length = text.len() as u64;
            state.replace(a, &tieline_types::Extent { offset: 0, length, content });
        }
        assert_eq!(volume.read(opened.handle, 0, 10).await.unwrap().concat(), text);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_takes_all_leases_with_it() {
    let (fake, root) = (Fake::new(), Caller::root());
    let a = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    let volume = fake.mount();
    let listener = Arc::new(Recorder::default());
    volume.listen(listener.clone());
    let known = volume.attributes(&root, a).await.unwrap();
    assert!(settled(&volume, &known.belief) > Duration::ZERO);
    fake.lose_session();
    assert_eq!(settled(&volume, &known.belief), Duration::ZERO);
    assert_eq!(lock(&listener.told)[0].attributes, [a]);
    volume.attributes(&root, a).await.unwrap();
    assert_eq!(fake.count(Op::GetAttributes), 2);
}

#[tokio::test(start_paused = true)]
async fn the_doors_pages_are_kept_only_while_nobody_else_writes() {
    let (fake, root) = (Fake::new(), Caller::root());
    let a = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    let volume = fake.mount();
    let access = Access { read: true, write: true, ..Access::default() };
    let open = async || {
        let opened = volume.open(&root, a, access).await.unwrap();
        (opened.handle, opened.keeps_cache)
    };
    let (handle, keeps) = open().await;
    assert!(!keeps);
    volume.write(handle, 0, Bytes::from_static(b"mine")).await.unwrap();
    volume.flush(handle).await.unwrap();
    volume.release(handle).await;
    let (handle, keeps) = open().await;
    assert!(keeps, "only own writes");
    volume.release(handle).await;
    fake.elsewhere(ROOT, &[], &[a], |state| {
        let content = tieline_types::Content::Inline(b"else".to_vec());
        state.replace(a, &tieline_types::Extent { offset: 0, length: 4, content });
    })
    .await;
    let (handle, keeps) = open().await;
    assert!(!keeps);
    assert_eq!(volume.read(handle, 0, 10).await.unwrap().concat(), b"else");
}

#[tokio::test(start_paused = true)]
async fn an_mdt_that_moved_is_found_by_the_newer_map() {
    let (fake, root) = (Fake::new(), Caller::root());
    let a = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    let volume = fake.mount();
    volume.attributes(&root, ROOT).await.unwrap();
    fake.lock().has_moved = true;
    volume.attributes(&root, a).await.unwrap();
    assert_eq!(volume.map().version, Version(2));
    let name = name("b");
    let at = At { parent: ROOT, name: &name };
    volume.make_directory(&root, at, Mode::new(0o755), Mode::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_notice_of_a_newer_map_brings_it() {
    let (fake, root) = (Fake::new(), Caller::root());
    let volume = fake.mount();
    volume.attributes(&root, ROOT).await.unwrap();
    fake.lock().has_moved = true;
    fake.announce_map(Version(2)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(volume.map().version, Version(2));
}

#[tokio::test(start_paused = true)]
async fn after_a_reconnect_the_doors_pages_of_open_files_are_looked_at() {
    let (fake, root) = (Fake::new(), Caller::root());
    let a = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    let volume = fake.mount();
    let listener = Arc::new(Recorder::default());
    volume.listen(listener.clone());
    let access = Access { read: true, ..Access::default() };
    let opened = volume.open(&root, a, access).await.unwrap();
    volume.read(opened.handle, 0, 10).await.unwrap();
    let data =
        || lock(&listener.told).iter().flat_map(|told| told.data.clone()).collect::<Vec<_>>();
    fake.restart();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(data(), [], "nobody changed it");
    // The recall of this one is lost with the connection.
    {
        let mut state = fake.lock();
        state.version += 1;
        let content = tieline_types::Content::Inline(b"else".to_vec());
        state.replace(a, &tieline_types::Extent { offset: 0, length: 4, content });
    }
    fake.restart();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(data(), [a]);
}

#[tokio::test(start_paused = true)]
async fn own_extents_are_not_taken_for_part_of_what_others_made_since() {
    let (fake, root) = (Fake::new(), Caller::root());
    let a = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    let volume = fake.mount();
    let access = Access { read: true, write: true, ..Access::default() };
    let handle = volume.open(&root, a, access).await.unwrap().handle;
    volume.write(handle, 0, Bytes::from_static(b"mine")).await.unwrap();
    let held = fake.hold(Op::Commit);
    let flushing = {
        let volume = volume.clone();
        tokio::spawn(async move { volume.flush(handle).await })
    };
    while fake.count(Op::Commit) == 0 {
        tokio::task::yield_now().await;
    }
    fake.elsewhere(ROOT, &[], &[a], |state| {
        let content = tieline_types::Content::Inline(b"else".to_vec());
        state.replace(a, &tieline_types::Extent { offset: 0, length: 4, content });
    })
    .await;
    // The newer state is known before the older answer comes.
    volume.attributes(&root, a).await.unwrap();
    drop(held);
    flushing.await.unwrap().unwrap();
    assert_eq!(volume.read(handle, 0, 10).await.unwrap().concat(), b"else");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_keeps_no_locks_from_being_asserted_at_others() {
    let (fake, root) = (Fake::new(), Caller::root());
    let here = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    let there = FileId::new(tieline_types::MdtIndex(1), 500);
    let other = super::fake::node(there, FileKind::Regular, ROOT, 1);
    fake.lock().nodes.insert(there, other);
    let volume = fake.mount_two(Settings::default());
    let access = Access { read: true, write: true, ..Access::default() };
    let (range, mode) = (tieline_types::LockRange::WHOLE, tieline_types::LockMode::Exclusive);
    let kind = tieline_types::LockKind::Posix;
    let wish = LockWish { kind, owner: 1, range, mode, process: 1 };
    for id in [there, here] {
        let handle = volume.open(&root, id, access).await.unwrap().handle;
        volume.lock(handle, wish, false).await.unwrap();
    }
    fake.lock().absent.insert("mds:9".to_owned());
    fake.restart();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asserted: Vec<FileId> = fake.lock().locks.keys().map(|(id, _)| *id).collect();
    assert_eq!(asserted, [here]);
}
