//! Closes are answered before their bytes are stored only where OSTs have granted room.

use super::fake::{Fake, ROOT};
use super::*;
use tieline_types::{ErrorKind, OstIndex};
use tieline_wire::Op;
use tokio::time::Instant;

const FAR: Duration = Duration::from_millis(50);
const SIZE: usize = 30_000;
const BOTH: [OstIndex; 2] = [OstIndex(0), OstIndex(1)];

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn far() -> (Arc<Fake>, Arc<Volume>) {
    let fake = Fake::new();
    fake.lock().delay = FAR;
    let volume = fake.mount_with(Settings { journal: true, ..Settings::default() });
    (fake, volume)
}

fn fill(fake: &Fake, osts: &[OstIndex]) {
    let mut state = fake.lock();
    state.rooms = osts.iter().map(|&ost| (ost, 0)).collect();
    state.put_fault = osts.iter().map(|&ost| (ost, ErrorKind::NoSpace)).collect();
}

/// A directory that is held alone.
async fn mkdir(volume: &Volume) -> FileId {
    let (root, mode) = (Caller::root(), Mode::new(0o755));
    let at = At { parent: ROOT, name: &name("d") };
    volume.make_directory(&root, at, mode, Mode::default()).await.unwrap().attributes.id
}

/// Writes a new file; says how its close ended, and how long that took.
async fn cp(volume: &Volume, parent: FileId, file: &str) -> (FileId, Result<()>, Duration) {
    let access = Access { write: true, ..Access::default() };
    let (mode, umask) = (Mode::new(0o600), Mode::default());
    let new = NewFile { mode, umask, is_exclusive: true, access, layout: None };
    let at = At { parent, name: &name(file) };
    let (known, opened) = volume.create(&Caller::root(), at, new).await.unwrap();
    volume.write(opened.handle, 0, Bytes::from(vec![7; SIZE])).await.unwrap();
    let begun = Instant::now();
    let closed = volume.flush(opened.handle).await;
    let took = begun.elapsed();
    volume.release(opened.handle).await;
    (known.attributes.id, closed, took)
}

#[tokio::test(start_paused = true)]
async fn in_a_full_pool_each_close_says_so() {
    let (fake, volume) = far();
    fill(&fake, &BOTH);
    let directory = mkdir(&volume).await;
    for file in ["a", "b"] {
        let (_, closed, _) = cp(&volume, directory, file).await;
        assert_eq!(closed.unwrap_err().kind(), ErrorKind::NoSpace, "{file}");
    }
    // With room again the next works at once, the one after it waits for no more than a grant, and
    // then all is as it was.
    fill(&fake, &[]);
    let (id, closed, _) = cp(&volume, directory, "c").await;
    closed.unwrap();
    assert_eq!(fake.bytes(id), vec![7; SIZE]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    for (file, most) in [("d", FAR), ("e", Duration::ZERO)] {
        let (id, closed, took) = cp(&volume, directory, file).await;
        closed.unwrap();
        assert!(took <= most, "{file}: {took:?}");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(fake.bytes(id), vec![7; SIZE]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_granted_is_enough_for_what_is_answered_for() {
    let (fake, volume) = far();
    let directory = mkdir(&volume).await;
    tokio::time::sleep(FAR * 2).await;
    fake.lock().rooms = BOTH.map(|ost| (ost, 0)).into();
    let (mut quick, mut files) = (0, vec![]);
    for number in 0..500 {
        let (id, closed, took) = cp(&volume, directory, &format!("f{number}")).await;
        closed.unwrap();
        quick += usize::from(took < FAR);
        files.push(id);
    }
    let granted =
        fake.lock().granted_rooms.iter().map(|(_, _, wanted)| *wanted).take(2).sum::<u64>();
    let cost = tieline_wire::data::GrantRoom::cost(SIZE as u64, 4096);
    assert!(quick as u64 <= granted / cost, "{quick} of {granted} bytes");
    assert!(quick as u64 >= granted / cost - 2, "{quick} of {granted} bytes");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(files.iter().all(|&id| fake.bytes(id) == vec![7; SIZE]));
    let spent = fake.lock().rooms_spent.values().sum::<u64>();
    assert!(spent >= quick as u64 * cost && spent <= granted, "{spent}");
}

/// A copy where there is room suffices, as when the other OST was away.
#[tokio::test(start_paused = true)]
async fn with_one_of_two_osts_full_a_mirrored_file_is_stored_before_its_close() {
    let (fake, volume) = far();
    (fake.lock().layout.mirrors, fake.lock().layout.sync) = (2, 2);
    fill(&fake, &[OstIndex(1)]);
    let directory = mkdir(&volume).await;
    for file in ["a", "b"] {
        let (id, closed, _) = cp(&volume, directory, file).await;
        closed.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(fake.bytes(id), vec![7; SIZE], "{file}");
    }
    fill(&fake, &BOTH);
    tokio::time::sleep(Duration::from_secs(400)).await;
    let (_, closed, _) = cp(&volume, directory, "c").await;
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::NoSpace);
}

/// What was answered for keeps its room whatever is written beside it.
#[tokio::test(start_paused = true)]
async fn more_of_a_file_that_is_answered_for_waits_where_there_is_no_room_for_it() {
    let (fake, volume) = far();
    let cost = tieline_wire::data::GrantRoom::cost(SIZE as u64, 4096);
    fake.lock().rooms = BOTH.map(|ost| (ost, cost)).into();
    let directory = mkdir(&volume).await;
    tokio::time::sleep(FAR * 2).await;
    fake.lock().rooms = BOTH.map(|ost| (ost, 0)).into();
    let (id, closed, took) = cp(&volume, directory, "a").await;
    closed.unwrap();
    assert!(took < FAR, "{took:?}");
    let access = Access { write: true, ..Access::default() };
    let opened = volume.open(&Caller::root(), id, access).await.unwrap();
    volume.write(opened.handle, SIZE as u64, Bytes::from(vec![8; SIZE])).await.unwrap();
    assert_eq!(fake.bytes(id), vec![7; SIZE], "sent with the room that it had");
    fake.lock().put_fault = BOTH.map(|ost| (ost, ErrorKind::NoSpace)).into();
    let error = volume.flush(opened.handle).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(fake.bytes(id), vec![7; SIZE]);
}

/// One that knows of no room is served as ever, and closes wait for it.
#[tokio::test(start_paused = true)]
async fn with_servers_of_before_closes_wait() {
    let fake = Fake::new();
    fake.lock().delay = FAR;
    fake.lock().keeps_room = false;
    let volume = fake.mount_with(Settings { journal: true, ..Settings::default() });
    let directory = mkdir(&volume).await;
    for file in ["a", "b"] {
        let (id, closed, took) = cp(&volume, directory, file).await;
        closed.unwrap();
        assert!(took >= FAR * 2, "{took:?}");
        assert_eq!(fake.bytes(id), vec![7; SIZE]);
    }
    assert_eq!(fake.count(Op::GrantRoom), 0);
}

#[tokio::test(start_paused = true)]
async fn who_rests_keeps_a_little_and_who_leaves_nothing() {
    let (fake, volume) = far();
    let directory = mkdir(&volume).await;
    cp(&volume, directory, "a").await.1.unwrap();
    // Nobody pings here: it is less than a lease.
    tokio::time::sleep(Duration::from_secs(17)).await;
    let (id, closed, took) = cp(&volume, directory, "b").await;
    closed.unwrap();
    assert!(took < FAR, "{took:?}");
    let kept = fake
        .lock()
        .granted_rooms
        .iter()
        .any(|(_, held, wanted)| (held.unwrap_or(0), *wanted) == (1 << 20, 0));
    assert!(kept, "{:?}", fake.lock().granted_rooms);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fake.bytes(id), vec![7; SIZE]);
    volume.close(Duration::from_secs(10)).await;
    for ost in BOTH {
        let last = fake.lock().granted_rooms.iter().rev().find(|one| one.0 == ost).copied();
        assert_eq!(last, Some((ost, Some(0), 0)));
    }
}
