//! Files that are opened under a lease: who waits for the MDS, and when it hears of them.

use super::fake::{Fake, ROOT};
use super::*;
use tieline_types::HandleId;
use tieline_wire::Op;
use tokio::time::sleep;

const SOON: Duration = Duration::from_millis(500);
const LATER: Duration = Duration::from_secs(3);

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// A file whose rights and bytes are known, and that nobody has open.
async fn known() -> (Arc<Fake>, Arc<Volume>, FileId) {
    let fake = Fake::new();
    let file = fake.lock().add(ROOT, &name("a"), FileKind::Regular);
    let volume = fake.mount();
    volume.attributes(&Caller::root(), ROOT).await.unwrap();
    volume.lookup(&Caller::root(), ROOT, &name("a")).await.unwrap();
    let handle = open(&volume, file).await;
    volume.release(handle).await;
    sleep(LATER).await;
    assert_eq!(fake.count(Op::Open), 1);
    (fake, volume, file)
}

async fn open(volume: &Volume, file: FileId) -> HandleId {
    let access = Access { read: true, ..Access::default() };
    volume.open(&Caller::root(), file, access).await.unwrap().handle
}

/// Something else changes in the directory; says what the client says is open.
async fn beside(fake: &Fake, text: &str) -> Vec<FileId> {
    fake.elsewhere(ROOT, &[text], &[], |_| {}).await.open
}

#[tokio::test(start_paused = true)]
async fn who_gives_a_lease_back_says_what_is_open_under_it() {
    let (fake, volume, file) = known().await;
    let handle = open(&volume, file).await;
    assert_eq!(fake.count(Op::Open), 1, "nobody was asked");
    assert_eq!(beside(&fake, "x").await, [file]);
    volume.release(handle).await;
    assert_eq!(beside(&fake, "y").await, []);
    // Whoever asked is known.
    let handle = open(&volume, file).await;
    assert_eq!(fake.count(Op::Open), 2);
    assert_eq!(beside(&fake, "z").await, []);
    volume.release(handle).await;
}

#[tokio::test(start_paused = true)]
async fn what_stays_open_is_told_behind_and_what_does_not_is_not() {
    let (fake, volume, file) = known().await;
    for _ in 0..20 {
        let handle = open(&volume, file).await;
        sleep(SOON).await;
        volume.release(handle).await;
    }
    assert_eq!(fake.count(Op::Open), 1);
    let handle = open(&volume, file).await;
    sleep(LATER).await;
    assert_eq!(fake.count(Op::Open), 2);
    assert_eq!(beside(&fake, "x").await, [], "it is told");
    volume.release(handle).await;
}

/// Of two handles of one file the MDS hears once.
#[tokio::test(start_paused = true)]
async fn a_file_that_is_open_twice_is_told_once() {
    let (fake, volume, file) = known().await;
    let handles = [open(&volume, file).await, open(&volume, file).await];
    volume.release(handles[0]).await;
    assert_eq!(beside(&fake, "x").await, [file]);
    sleep(LATER).await;
    assert_eq!(fake.count(Op::Open), 2);
    let more = open(&volume, file).await;
    sleep(LATER).await;
    assert_eq!(fake.count(Op::Open), 2);
    volume.release(more).await;
    volume.release(handles[1]).await;
}

#[tokio::test(start_paused = true)]
async fn an_mds_that_does_not_answer_is_told_again() {
    let (fake, volume, file) = known().await;
    let handle = open(&volume, file).await;
    let held = fake.hold(Op::Open);
    sleep(Duration::from_secs(15)).await;
    assert_eq!(beside(&fake, "x").await, [file], "it is not known");
    fake.release(Op::Open);
    drop(held);
    sleep(Duration::from_secs(15)).await;
    assert_eq!(beside(&fake, "y").await, []);
    volume.release(handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_new_is_told_of_all_that_is_open() {
    let (fake, volume, file) = known().await;
    let handle = open(&volume, file).await;
    sleep(LATER).await;
    let before = fake.count(Op::Open);
    fake.lose_session();
    sleep(SOON).await;
    assert_eq!(fake.count(Op::Open), before + 1);
    volume.release(handle).await;
}

/// Leases are gone then, and nobody said so.
#[tokio::test(start_paused = true)]
async fn after_a_lost_connection_it_is_told_at_once() {
    let (fake, volume, file) = known().await;
    let handle = open(&volume, file).await;
    fake.restart();
    sleep(SOON).await;
    assert_eq!(fake.count(Op::Open), 2);
    volume.release(handle).await;
}

/// What was made in a directory that was held alone the MDS opened for nobody.
#[tokio::test(start_paused = true)]
async fn what_was_made_alone_is_named_when_the_directory_is_given_back() {
    let fake = Fake::new();
    let volume = fake.mount_with(Settings { journal: true, ..Settings::default() });
    let root = Caller::root();
    let (mode, umask) = (Mode::new(0o755), Mode::default());
    let [d, f] = ["d", "f"].map(name);
    let at = |parent, name| At { parent, name };
    let made = volume.make_directory(&root, at(ROOT, &d), mode, umask).await.unwrap();
    let directory = made.attributes.id;
    let access = Access { read: true, ..Access::default() };
    let new = NewFile { mode, umask, access, is_exclusive: true, layout: None };
    let (known, opened) = volume.create(&root, at(directory, &f), new).await.unwrap();
    assert_eq!(fake.count(Op::Create), 0, "it was made here");
    let answer = fake.elsewhere(directory, &["x"], &[], |_| {}).await;
    assert_eq!(answer.open, [known.attributes.id]);
    volume.release(opened.handle).await;
}
