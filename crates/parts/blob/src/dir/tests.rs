use super::*;
use crate::conformance::{self, bytes, chunk, trailer};
use tempfile::TempDir;
use tieline_types::OstIndex;
use tieline_world::SystemDice;

fn identity(ost: u16) -> Identity {
    Identity { fs: "extenci".parse().unwrap(), ost: OstIndex(ost) }
}

fn store() -> (TempDir, DirChunks) {
    let directory = tempfile::tempdir().unwrap();
    DirChunks::format(directory.path(), &identity(3), &SystemDice).unwrap();
    let store = DirChunks::open(directory.path(), &identity(3)).unwrap();
    (directory, store)
}

#[tokio::test]
async fn conforms() {
    let (_directory, store) = store();
    conformance::check(&store).await;
}

#[tokio::test]
async fn objects_outlive_the_store_that_wrote_them() {
    let (directory, store) = store();
    let data = bytes(100_000, 1);
    store.put(&trailer(chunk(1), &data), data.clone()).await.unwrap();
    drop(store);
    let store = DirChunks::open(directory.path(), &identity(3)).unwrap();
    assert_eq!(conformance::read(&store, chunk(1), 0, 100_000).await.unwrap(), data);
}
