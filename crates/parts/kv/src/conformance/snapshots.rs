//! States of a store that are read while it changes.

use super::{begin, commit, delete, key, pairs, put, range};
use crate::Store;
use tieline_types::Version;

pub async fn they_stand_still(store: &dyn Store) {
    put(store, &[("a", "1"), ("b", "1")]).await;
    let version = put(store, &[("c", "1")]).await;
    let mut snapshot = store.snapshot().await.expect("snapshot");
    assert_eq!(snapshot.version(), version, "it holds what is durable");
    put(store, &[("a", "2"), ("d", "2")]).await;
    delete(store, "b").await;
    let before = pairs(&[("a", "1"), ("b", "1"), ("c", "1")]);
    assert_eq!(snapshot.scan(range("a", "z"), 10).await.expect("scan"), before);
    assert_eq!(snapshot.scan(range("b", "z").reverse(), 1).await.expect("scan"), before[2..]);
    assert!(snapshot.scan(range("z", "a"), 1).await.expect("scan").is_empty());
    let values = snapshot.read(&[key("b"), key("d")]).await.expect("read");
    assert_eq!(values, [Some(key("1")), None]);
    let mut newer = store.snapshot().await.expect("snapshot");
    assert!(newer.version() > version);
    let after = pairs(&[("a", "2"), ("c", "1"), ("d", "2")]);
    assert_eq!(newer.scan(range("a", "z"), 10).await.expect("scan"), after);
}

pub async fn nobody_conflicts_with_them(store: &dyn Store) {
    put(store, &[("a", "1")]).await;
    let mut snapshot = store.snapshot().await.expect("snapshot");
    let mut writer = begin(store).await;
    writer.read(&[key("a")]).await.expect("read");
    snapshot.scan(range("a", "z"), 10).await.expect("scan");
    writer.put(key("a"), key("2"));
    commit(writer).await;
    snapshot.scan(range("a", "z"), 10).await.expect("a snapshot never conflicts");
}

pub async fn versions_can_be_taken_over(store: &dyn Store) {
    let first = put(store, &[("a", "1")]).await;
    store.advance(Version(first.0 + 5000)).await.expect("advance");
    let second = put(store, &[("b", "1")]).await;
    assert!(second.0 > first.0 + 5000, "{second} follows");
    store.advance(first).await.expect("never backwards");
    assert!(put(store, &[("b", "2")]).await > second);
    let snapshot = store.snapshot().await.expect("snapshot");
    assert!(snapshot.version() > second);
}
