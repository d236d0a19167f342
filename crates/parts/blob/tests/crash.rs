//! A process that is killed while it puts. A binary of its own: the lock on a directory would be
//! inherited, for a moment, by a child that another test starts.

use std::path::Path;
use tieline_blob::conformance::{bytes, chunk, read, trailer};
use tieline_blob::{ChunkStore, DirChunks, Identity};
use tieline_types::{OstIndex, checksum};
use tieline_world::SystemDice;

const TEST: &str = "a_killed_process_leaves_whole_objects_only";
const DIRECTORY: &str = "TIELINE_CRASH_TEST_DIRECTORY";
const LENGTH: usize = 200_000;

fn open(path: &Path) -> DirChunks {
    let identity = Identity { fs: "extenci".parse().unwrap(), ost: OstIndex(3) };
    DirChunks::format(path, &identity, &SystemDice).unwrap();
    DirChunks::open(path, &identity).unwrap()
}

/// Runs itself as another process that puts until it is killed.
#[tokio::test]
async fn a_killed_process_leaves_whole_objects_only() {
    if let Ok(path) = std::env::var(DIRECTORY) {
        return child(Path::new(&path)).await;
    }
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    let putting = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST])
        .env(DIRECTORY, directory.path())
        .stdout(std::process::Stdio::null())
        .spawn();
    let mut putting = putting.unwrap();
    // Some objects in, so that it is killed in the middle of others.
    let objects = directory.path().join("objects/0001/000000/000/007/0000000000000");
    while std::fs::read_dir(&objects).map_or(0, Iterator::count) < 40 {
        assert!(putting.try_wait().unwrap().is_none(), "the child ended early");
        tokio::task::yield_now().await;
    }
    putting.kill().unwrap();
    putting.wait().unwrap();
    let store = open(directory.path());
    let chunks = store.list(None, 10_000).await.unwrap().chunks;
    assert!(chunks.len() >= 40);
    for chunk in chunks {
        let got = read(&store, chunk, 0, u32::MAX).await.unwrap();
        assert_eq!(got, bytes(LENGTH, chunk.serial as u8));
        assert_eq!(store.stat(chunk).await.unwrap().0.checks, checksum::block_checks(&got));
    }
    assert_eq!(std::fs::read_dir(directory.path().join("tmp")).unwrap().count(), 0);
}

async fn child(path: &Path) {
    let store = open(path);
    // Bounded, should the parent die first.
    for serial in 0..5000 {
        let data = bytes(LENGTH, serial as u8);
        store.put(&trailer(chunk(serial), &data), data).await.unwrap();
    }
}
