use crate::fixture::*;
use tieline_types::ErrorKind;
use tieline_wire::meta::*;

#[tokio::test(start_paused = true)]
async fn a_file_lives_and_dies() {
    let house = House::new().await;
    let client = house.client().await;
    let dir = client.mkdir(ROOT, "data").await;
    let file = client.create(dir, "run7").await;
    assert_eq!(client.list(ROOT).await, ["data", "fnal"]);
    assert_eq!(client.id(dir, "run7").await, Some(file));
    let attributes = client.commit(file, vec![inline(0, b"hello")]).await;
    assert_eq!((attributes.size, attributes.stored), (5, 5));
    assert_eq!(client.extents(file).await, [inline(0, b"hello")]);
    let opened = client.call(Open { id: file, is_read: true, is_write: false }).await.unwrap();
    assert_eq!(opened.extents.extents, [inline(0, b"hello")]);
    client.call(rename((dir, "run7"), (ROOT, "run8"))).await.unwrap();
    assert_eq!(client.id(ROOT, "run8").await, Some(file));
    client.call(unlink(ROOT, "run8")).await.unwrap();
    assert_eq!(client.kind_of(GetAttributes { id: file }).await, Some(ErrorKind::Stale));
    client.call(rmdir(ROOT, "data")).await.unwrap();
    assert_eq!(client.list(ROOT).await, ["fnal"]);
    assert_eq!((house.count(b'i').await, house.count(b't').await), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_takes_effect_once_and_is_answered_alike() {
    let house = House::new().await;
    let client = house.client_named(5, None).await;
    let call = || mkdir(ROOT, "once", 0o755);
    let first = client.call_numbered(9, call()).await.unwrap();
    let second = client.call_numbered(9, call()).await.unwrap();
    assert_eq!(first.attributes, second.attributes);
    assert!(second.lease.units.is_empty(), "a repeated answer grants nothing");
    // Another number is another request.
    let third = client.call_numbered(10, call()).await.unwrap_err();
    assert_eq!(third.kind, ErrorKind::Exists);

    let house = house.restarted().await;
    let client = house.client_named(5, Some(client.session)).await;
    assert!(client.is_resumed);
    let again = client.call_numbered(9, call()).await.unwrap();
    assert_eq!(first.attributes, again.attributes);
    assert_eq!(client.stat(ROOT).await.links, 4);
}
