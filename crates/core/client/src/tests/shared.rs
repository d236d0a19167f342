//! Files that several clients write, append to and lock.

use super::fake::{Fake, ROOT, State};
use crate::*;
use tieline_types::{Content, ErrorKind, Extent};
use tieline_wire::Op;

const APPEND: Access = Access { read: true, write: true, append: true, truncate: false };
const PLACE: Access = Access { read: true, write: true, append: false, truncate: false };

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
    // A close of who holds nothing asks nobody.
    let before = scene.fake.requests();
    volume.drop_locks(handle, LockKind::Posix, 1).await;
    assert_eq!(scene.fake.requests(), before);
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
    assert!(scene.volume.flush(scene.handle).await.is_err());
    assert!(scene.volume.sync(scene.handle, true).await.is_err());
    scene.volume.sync(scene.handle, true).await.unwrap();
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
