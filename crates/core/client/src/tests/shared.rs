//! Files that several clients write, append to and lock.

use super::fake::{Fake, ROOT, State};
use super::*;
use std::collections::BTreeSet;
use std::pin::pin;
use std::task::{Context, Waker};
use tieline_types::{Content, ErrorKind, Extent};
use tieline_wire::Op;
use tieline_wire::data::ObjectOwner;

const APPEND: Access =
    Access { read: true, write: true, append: true, truncate: false, unnoted: false, runs: false };
const PLACE: Access =
    Access { read: true, write: true, append: false, truncate: false, unnoted: false, runs: false };

struct Scene {
    fake: Arc<Fake>,
    volume: Arc<Volume>,
    id: FileId,
    handle: HandleId,
}

impl Scene {
    async fn new(access: Access) -> Self {
        let fake = Fake::new();
        let volume = fake.mount();
        let id = fake.lock().add(ROOT, &"log".parse().unwrap(), FileKind::Regular);
        let handle = volume.open(&Caller::root(), id, access).await.unwrap().handle;
        Self { fake, volume, id, handle }
    }

    async fn write(&self, offset: u64, text: &'static str) {
        self.volume.write(self.handle, offset, text.into()).await.unwrap();
    }

    /// Another client changes the file.
    async fn elsewhere(&self, change: impl FnOnce(&mut State)) {
        self.fake.elsewhere(ROOT, &[], &[self.id], change).await;
    }

    fn text(&self) -> String {
        String::from_utf8(self.fake.bytes(self.id)).unwrap()
    }

    /// Locks that the server has: whose, where, how.
    fn at_server(&self) -> Vec<(u64, (u64, u64), LockMode)> {
        let state = self.fake.lock();
        let held = state.locks.get(&(self.id, LockKind::Posix));
        let held = held.into_iter().flat_map(|set| set.iter());
        held.map(|one| (one.owner.1, (one.range.start, one.range.end), one.mode)).collect()
    }

    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn append(state: &mut State, id: FileId, text: &str) {
    let offset = state.nodes[&id].attributes.size;
    let content = Content::Inline(text.as_bytes().to_vec());
    state.replace(id, &Extent { offset, length: text.len() as u64, content });
}

#[tokio::test(start_paused = true)]
async fn appended_lines_go_behind_those_of_others() {
    let scene = Scene::new(APPEND).await;
    scene.write(0, "one\n").await;
    // The recall makes it leave, but the other's commit was first.
    let id = scene.id;
    scene.elsewhere(|state| append(state, id, "ONE\n")).await;
    scene.settle().await;
    assert_eq!(scene.text(), "ONE\none\n");
    // The file is shared now: each line is there before its write returns.
    scene.write(0, "two\n").await;
    assert_eq!(scene.text(), "ONE\none\ntwo\n");
    let read = scene.volume.read(scene.handle, 0, 100).await.unwrap().concat();
    assert_eq!(read, scene.fake.bytes(id));
    // And is not any more when nobody else has written for a while.
    tokio::time::sleep(Duration::from_secs(20)).await;
    scene.write(0, "three\n").await;
    assert_eq!(scene.text(), "ONE\none\ntwo\n");
    let known = scene.volume.attributes(&Caller::root(), id).await.unwrap();
    assert_eq!(known.attributes.size, 18);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(scene.text(), "ONE\none\ntwo\nthree\n");
}

#[tokio::test(start_paused = true)]
async fn lines_appended_while_a_commit_is_under_way_follow_it() {
    let scene = Scene::new(APPEND).await;
    scene.write(0, "one\n").await;
    let held = scene.fake.hold(Op::Commit);
    let (volume, handle) = (scene.volume.clone(), scene.handle);
    let id = scene.id;
    // Unheard of here.
    append(&mut scene.fake.lock(), id, "ONE\n");
    let flushing = tokio::spawn(async move { volume.flush(handle).await });
    scene.settle().await;
    scene.write(0, "two\n").await;
    scene.fake.release(Op::Commit);
    drop(held);
    flushing.await.unwrap().unwrap();
    scene.volume.flush(handle).await.unwrap();
    assert_eq!(scene.text(), "ONE\none\ntwo\n");
}

#[tokio::test(start_paused = true)]
async fn appends_and_writes_at_a_place_do_not_mix() {
    let scene = Scene::new(APPEND).await;
    let opened = scene.volume.open(&Caller::root(), scene.id, PLACE).await.unwrap();
    scene.write(0, "line\n").await;
    let place = |offset, text: &'static str| {
        let (volume, handle) = (scene.volume.clone(), opened.handle);
        async move { volume.write(handle, offset, text.into()).await.unwrap() }
    };
    // Into the appended bytes: they get their place first.
    place(2, "NE").await;
    assert_eq!(scene.text(), "line\n");
    // Beyond the end, and then an append behind that.
    place(8, "far").await;
    scene.write(0, "end").await;
    scene.volume.flush(scene.handle).await.unwrap();
    assert_eq!(scene.text(), "liNE\n\0\0\0farend");
    // Before the end of what is committed both may wait together.
    scene.write(0, "more").await;
    place(0, "LI").await;
    assert_eq!(scene.fake.count(Op::Commit), 3);
    scene.volume.flush(scene.handle).await.unwrap();
    assert_eq!(scene.text(), "LiNE\n\0\0\0farendmore".replace("Li", "LI"));
    assert_eq!(scene.fake.count(Op::Commit), 4);
    // A new size cuts what was appended, too.
    scene.write(0, "gone").await;
    let change = AttributeChange { size: Some(2), ..Default::default() };
    let handle = Some(scene.handle);
    scene.volume.set_attributes(&Caller::root(), scene.id, handle, change).await.unwrap();
    scene.write(0, "!").await;
    scene.volume.flush(scene.handle).await.unwrap();
    assert_eq!(scene.text(), "LI!");
}

#[tokio::test(start_paused = true)]
async fn a_file_cut_elsewhere_is_appended_to_at_its_end() {
    let scene = Scene::new(APPEND).await;
    scene.write(0, "old old old\n").await;
    scene.volume.flush(scene.handle).await.unwrap();
    scene.write(0, "one\n").await;
    scene.fake.lock().nodes.get_mut(&scene.id).unwrap().extents.clear();
    scene.fake.lock().nodes.get_mut(&scene.id).unwrap().attributes.size = 0;
    scene.volume.flush(scene.handle).await.unwrap();
    assert_eq!(scene.text(), "one\n");
}

fn wish(owner: u64, mode: LockMode) -> LockWish {
    let range = LockRange { start: 0, end: 10 };
    LockWish { kind: LockKind::Posix, owner, range, mode, process: owner as u32 }
}

#[tokio::test(start_paused = true)]
async fn locks_are_asked_once_and_freed_after_the_bytes() {
    let scene = Scene::new(PLACE).await;
    let (volume, handle) = (&scene.volume, scene.handle);
    volume.lock(handle, wish(1, LockMode::Exclusive), false).await.unwrap();
    volume.lock(handle, wish(1, LockMode::Exclusive), false).await.unwrap();
    assert_eq!(scene.fake.count(Op::Lock), 1);
    // Others here are refused without a server, and told by whom.
    let refused = volume.lock(handle, wish(2, LockMode::Shared), false).await.unwrap_err();
    assert_eq!((refused.kind(), scene.fake.count(Op::Lock)), (ErrorKind::WouldBlock, 1));
    let found = volume.test_lock(handle, wish(2, LockMode::Shared)).await.unwrap().unwrap();
    assert_eq!((found.process, found.mode), (1, LockMode::Exclusive));
    scene.write(0, "bytes").await;
    assert_eq!(scene.text(), "");
    volume.unlock(handle, wish(1, LockMode::Shared)).await.unwrap();
    assert_eq!(scene.text(), "bytes");
    // A close frees what stayed at the server; one of who has nothing there asks nobody.
    volume.drop_locks(handle, LockKind::Posix, 1).await;
    assert_eq!(scene.at_server(), []);
    let before = scene.fake.requests();
    volume.drop_locks(handle, LockKind::Posix, 1).await;
    assert_eq!(scene.fake.requests(), before);
}

/// A door that has a cache.
#[derive(Default)]
struct Forgets(std::sync::Mutex<Vec<FileId>>);

impl CacheListener for Forgets {
    fn invalidate(&self, what: Invalidation, done: Box<dyn FnOnce() + Send>) {
        self.0.lock().unwrap().extend(what.data);
        done();
    }
}

#[tokio::test(start_paused = true)]
async fn idle_locks_are_taken_again_without_a_request() {
    let scene = Scene::new(PLACE).await;
    scene.volume.listen(Arc::new(Forgets::default()));
    let (volume, handle) = (&scene.volume, scene.handle);
    volume.lock(handle, wish(1, LockMode::Exclusive), false).await.unwrap();
    volume.unlock(handle, wish(1, LockMode::Shared)).await.unwrap();
    let before = scene.fake.requests();
    for waits in [false, true] {
        for mode in [LockMode::Exclusive, LockMode::Shared, LockMode::Exclusive] {
            volume.lock(handle, wish(1, mode), waits).await.unwrap();
            let refused = volume.lock(handle, wish(2, LockMode::Exclusive), false).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::WouldBlock);
            volume.unlock(handle, wish(1, LockMode::Shared)).await.unwrap();
            assert_eq!(scene.fake.requests(), before);
        }
    }
    assert_eq!(scene.at_server(), [(1, (0, 10), LockMode::Exclusive)]);
    // They keep nobody out here.
    volume.lock(handle, wish(2, LockMode::Exclusive), false).await.unwrap();
    assert_eq!(scene.at_server(), [(2, (0, 10), LockMode::Exclusive)]);
    volume.unlock(handle, wish(2, LockMode::Shared)).await.unwrap();
    // What does not suffice goes before more is asked for.
    let more = LockWish { range: LockRange { start: 5, end: 20 }, ..wish(2, LockMode::Shared) };
    volume.lock(handle, more, false).await.unwrap();
    assert_eq!(scene.at_server(), [(2, (5, 20), LockMode::Shared)]);
    // A session that may have ended unheard has nothing idle.
    volume.unlock(handle, more).await.unwrap();
    volume.shared().cache.lock().units.slept();
    let before = scene.fake.count(Op::Lock);
    tokio::time::sleep(Duration::from_millis(2)).await;
    volume.lock(handle, more, false).await.unwrap();
    assert!(scene.fake.count(Op::Lock) > before);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_nothing_is_done_where_it_is_called() {
    let scene = Scene::new(PLACE).await;
    scene.volume.listen(Arc::new(Forgets::default()));
    let (volume, handle) = (&scene.volume, scene.handle);
    volume.lock(handle, wish(1, LockMode::Exclusive), false).await.unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (before, mut nobody) = (tasks(), Context::from_waker(Waker::noop()));
    let mut freeing = pin!(volume.unlock(handle, wish(1, LockMode::Shared)));
    assert!(freeing.as_mut().poll(&mut nobody).is_ready());
    let mut taking = pin!(volume.lock(handle, wish(1, LockMode::Exclusive), false));
    assert!(taking.as_mut().poll(&mut nobody).is_ready());
    assert_eq!(tasks(), before);
    // What waits is carried out, also if nobody waits for it.
    scene.write(0, "bytes").await;
    {
        let mut freeing = pin!(volume.unlock(handle, wish(1, LockMode::Shared)));
        assert!(freeing.as_mut().poll(&mut nobody).is_pending());
    }
    assert!(tasks() > before);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(scene.text(), "bytes");
}

#[tokio::test(start_paused = true)]
async fn idle_locks_go_when_they_are_asked_for() {
    let scene = Scene::new(PLACE).await;
    let (volume, handle) = (&scene.volume, scene.handle);
    let at = |start, mode| {
        let range = LockRange { start, end: start + 10 };
        LockWish { range, ..wish(1, mode) }
    };
    for start in [0, 20, 40] {
        volume.lock(handle, at(start, LockMode::Exclusive), false).await.unwrap();
    }
    volume.unlock(handle, at(0, LockMode::Shared)).await.unwrap();
    volume.lock(handle, at(20, LockMode::Shared), false).await.unwrap();
    assert_eq!(scene.at_server().len(), 3);
    assert!(scene.at_server().iter().all(|(.., mode)| *mode == LockMode::Exclusive));
    scene.fake.wants_locks(scene.id).await;
    let left = [(1, (20, 30), LockMode::Shared), (1, (40, 50), LockMode::Exclusive)];
    assert_eq!(scene.at_server(), left);
    // For a while nothing is left idle.
    volume.lock(handle, at(0, LockMode::Exclusive), false).await.unwrap();
    volume.unlock(handle, at(0, LockMode::Shared)).await.unwrap();
    assert_eq!(scene.at_server(), left);
    volume.unlock(handle, at(40, LockMode::Shared)).await.unwrap();
    assert_eq!(scene.at_server(), left[..1]);
    tokio::time::sleep(Duration::from_secs(11)).await;
    volume.lock(handle, at(0, LockMode::Exclusive), false).await.unwrap();
    volume.unlock(handle, at(0, LockMode::Shared)).await.unwrap();
    assert_eq!(scene.at_server().len(), 2);
    volume.drop_locks(handle, LockKind::Posix, 1).await;
    assert_eq!(scene.at_server(), []);
}

#[tokio::test(start_paused = true)]
async fn a_lock_waits_while_idle_ones_are_freed() {
    let scene = Scene::new(PLACE).await;
    let (volume, handle) = (scene.volume.clone(), scene.handle);
    volume.lock(handle, wish(1, LockMode::Exclusive), false).await.unwrap();
    volume.unlock(handle, wish(1, LockMode::Shared)).await.unwrap();
    let held = scene.fake.hold(Op::Lock);
    let (fake, id) = (scene.fake.clone(), scene.id);
    let asked = tokio::spawn(async move { fake.wants_locks(id).await });
    scene.settle().await;
    let locking =
        tokio::spawn(async move { volume.lock(handle, wish(1, LockMode::Exclusive), false).await });
    scene.settle().await;
    assert!(!asked.is_finished() && !locking.is_finished());
    assert_eq!(scene.fake.count(Op::Lock), 2, "what is being freed is not idle");
    scene.fake.release(Op::Lock);
    drop(held);
    asked.await.unwrap();
    locking.await.unwrap().unwrap();
    assert_eq!(scene.at_server(), [(1, (0, 10), LockMode::Exclusive)]);
}

/// A grant from before the server asked leaves nothing idle, however late its answer comes.
#[tokio::test(start_paused = true)]
async fn a_late_grant_leaves_nothing_idle() {
    let scene = Scene::new(PLACE).await;
    let (volume, handle) = (scene.volume.clone(), scene.handle);
    let held = scene.fake.hold(Op::Lock);
    let locking =
        tokio::spawn(async move { volume.lock(handle, wish(1, LockMode::Exclusive), false).await });
    scene.settle().await;
    scene.fake.wants_locks(scene.id).await;
    scene.fake.release(Op::Lock);
    drop(held);
    locking.await.unwrap().unwrap();
    assert_eq!(scene.at_server().len(), 1);
    scene.volume.unlock(handle, wish(1, LockMode::Shared)).await.unwrap();
    assert_eq!(scene.at_server(), []);
}

#[tokio::test(start_paused = true)]
async fn idle_locks_end_with_a_start_of_the_server_and_with_the_session() {
    let scene = Scene::new(PLACE).await;
    let (volume, handle) = (&scene.volume, scene.handle);
    let lock = async || {
        volume.lock(handle, wish(1, LockMode::Exclusive), false).await.unwrap();
        volume.unlock(handle, wish(1, LockMode::Shared)).await.unwrap();
    };
    lock().await;
    scene.fake.restart();
    scene.settle().await;
    assert_eq!(scene.at_server(), []);
    lock().await;
    assert_eq!(scene.at_server(), [], "not so soon again");
    tokio::time::sleep(Duration::from_secs(11)).await;
    lock().await;
    assert_eq!(scene.at_server().len(), 1);
    // Nobody has lost anything.
    scene.fake.lock().boot = 1;
    scene.fake.lock().locks.clear();
    scene.fake.lose_session();
    scene.volume.sync(scene.handle, true).await.unwrap();
    let before = scene.fake.count(Op::Lock);
    volume.lock(handle, wish(1, LockMode::Exclusive), false).await.unwrap();
    assert_eq!(scene.fake.count(Op::Lock), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_given_up_leaves_no_lock() {
    let scene = Scene::new(PLACE).await;
    let key = (scene.id, LockKind::Posix);
    let range = LockRange { start: 0, end: 10 };
    let other = (99, 1);
    scene.fake.lock().locks.entry(key).or_default().set(other, range, Some(LockMode::Exclusive));
    let waiting = |owner| {
        let (volume, handle) = (scene.volume.clone(), scene.handle);
        tokio::spawn(
            async move { volume.lock(handle, wish(owner, LockMode::Exclusive), true).await },
        )
    };
    let first = waiting(1);
    scene.settle().await;
    assert!(!first.is_finished());
    // The grant crosses the cancellation.
    let held = scene.fake.hold(Op::Lock);
    scene.fake.lock().locks.get_mut(&key).unwrap().set(other, range, None);
    tokio::time::sleep(Duration::from_secs(1)).await;
    first.abort();
    scene.settle().await;
    let second = waiting(2);
    scene.settle().await;
    assert!(!second.is_finished(), "it waits until the first is settled");
    scene.fake.release(Op::Lock);
    drop(held);
    second.await.unwrap().unwrap();
    let owners: Vec<_> = scene.fake.lock().locks[&key].iter().map(|held| held.owner.1).collect();
    assert_eq!(owners, [2]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_started_anew_is_told_of_locks() {
    let scene = Scene::new(PLACE).await;
    scene.volume.lock(scene.handle, wish(1, LockMode::Shared), false).await.unwrap();
    scene.fake.restart();
    assert!(scene.fake.lock().locks.is_empty());
    scene.settle().await;
    let key = (scene.id, LockKind::Posix);
    assert_eq!(scene.fake.lock().locks[&key].len(), 1);
    scene.volume.unlock(scene.handle, wish(1, LockMode::Shared)).await.unwrap();
    // A session that was lost has lost its locks: that is told.
    scene.volume.lock(scene.handle, wish(1, LockMode::Shared), false).await.unwrap();
    scene.fake.lock().boot = 1;
    scene.fake.lose_session();
    assert!(scene.volume.sync(scene.handle, true).await.is_err());
    assert!(scene.volume.write(scene.handle, 0, vec![1].into()).await.is_err());
    scene.volume.flush(scene.handle).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worn_file_is_compacted_when_it_rests() {
    let scene = Scene::new(PLACE).await;
    let page = vec![7u8; 4096];
    for index in 0..256u64 {
        let offset = (index * 97 % 256) * 4096;
        scene.volume.write(scene.handle, offset, page.clone().into()).await.unwrap();
        scene.volume.sync(scene.handle, true).await.unwrap();
    }
    assert_eq!(scene.fake.count(Op::Commit), 256);
    // No object and no round trip to an OST for any of them.
    assert_eq!((scene.fake.count(Op::PutChunk), scene.fake.count(Op::SyncFile)), (0, 0));
    let long = scene.fake.lock().nodes[&scene.id].extents.len();
    assert_eq!(long, 256);
    let version = scene.fake.lock().nodes[&scene.id].attributes.version;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (short, now) = {
        let state = scene.fake.lock();
        let node = &state.nodes[&scene.id];
        (node.extents.len(), node.attributes.version)
    };
    assert_eq!((short, now), (16, version));
    assert!(scene.fake.bytes(scene.id).iter().all(|&byte| byte == 7));
    let read = scene.volume.read(scene.handle, 0, 1 << 20).await.unwrap().concat();
    assert!(read.len() == 1 << 20 && read.iter().all(|&byte| byte == 7));
    let before = scene.fake.requests();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(scene.fake.requests(), before, "it is left alone then");
}

/// `O_APPEND` comes and goes while a file is open.
#[tokio::test(start_paused = true)]
async fn each_write_says_whether_it_appends() {
    let scene = Scene::new(APPEND).await;
    let write = async |handle, offset, appends, text: &'static str| {
        let how = Writing { appends: Some(appends), ..Writing::default() };
        scene.volume.write_as(handle, offset, how, text.into()).await.unwrap();
    };
    write(scene.handle, 0, true, "one two").await;
    write(scene.handle, 0, false, "six").await;
    scene.volume.flush(scene.handle).await.unwrap();
    assert_eq!(scene.text(), "six two");
    // What the door has of it may lie elsewhere.
    let told = Arc::new(Forgets::default());
    scene.volume.listen(told.clone());
    let placed = scene.volume.open(&Caller::root(), scene.id, PLACE).await.unwrap().handle;
    scene.elsewhere(|state| append(state, scene.id, " ELSEWHERE")).await;
    told.0.lock().unwrap().clear();
    write(placed, 7, true, " end").await;
    assert_eq!(scene.text(), "six two ELSEWHERE end", "committed when it returns");
    assert_eq!(*told.0.lock().unwrap(), [scene.id]);
}

/// The object alone does not say what of it lies where: whoever rebuilds an MDT must know.
#[tokio::test(start_paused = true)]
async fn a_chunk_that_was_compacted_over_gaps_says_so() {
    let labels = async |step: usize| {
        let scene = Scene::new(PLACE).await;
        for index in (0..256u64).step_by(step) {
            let page = vec![7u8; 4096];
            scene.volume.write(scene.handle, index * 4096, page.into()).await.unwrap();
            scene.volume.sync(scene.handle, true).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        scene.fake.lock().labels.values().copied().collect::<BTreeSet<u64>>()
    };
    assert_eq!(labels(2).await, BTreeSet::from([ObjectOwner::SCATTERED]));
    assert_eq!(labels(1).await, (0..16).map(|window| window * (64 << 10)).collect());
}

/// The MDS keeps the session of a client that is cut off for as long as it waits.
#[tokio::test(start_paused = true)]
async fn servers_are_told_how_long_they_are_waited_for() {
    let scene = Scene::new(PLACE).await;
    let wait = Some(Settings::default().wait.as_millis() as u64);
    assert_eq!(scene.fake.lock().waits_said.first(), Some(&wait));
}
