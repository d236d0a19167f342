//! Layouts, inherited and set, and the OSTs that follow from them.

use crate::fixture::*;
use tieline_types::ErrorKind::{
    self, Exists, InvalidArgument, NotFound, NotPermitted, OstInactive,
};
use tieline_types::{FileId, Layout, OstIndex, StripeCount};
use tieline_wire::meta::*;

fn pool(text: &str) -> Option<PoolChoice> {
    Some(PoolChoice::Pool(text.parse().unwrap()))
}

fn set(id: FileId, change: LayoutChange) -> SetLayout {
    SetLayout { id, layout: Some(change) }
}

async fn layout(client: &Client, id: FileId) -> GetLayoutReply {
    client.call(GetLayout { id }).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn layouts_come_from_the_directory() {
    let house = House::new().await;
    let client = house.client().await;
    let before = client.mkdir(ROOT, "before").await;
    let change = LayoutChange {
        stripe_count: Some(StripeCount::Exactly(2)),
        pool: pool("uf"),
        ..LayoutChange::default()
    };
    client.call(set(ROOT, change)).await.unwrap();
    let dir = client.mkdir(ROOT, "d").await;
    let file = client.create(dir, "f").await;
    let told = layout(&client, file).await.layout;
    assert_eq!(told.pool, Some("uf".parse().unwrap()));
    assert_eq!(told.stripe_count, StripeCount::Exactly(2));
    assert_eq!(told.stripe_size, Layout::default().stripe_size);
    // Directories that were there keep what they had.
    assert_eq!(layout(&client, before).await.layout, Layout::default());
    // What is not told comes from the parent, not from what was set before.
    let change = LayoutChange { stripe_size: Some(1 << 20), ..LayoutChange::default() };
    client.call(set(dir, change)).await.unwrap();
    let change = LayoutChange { stripe_count: Some(StripeCount::All), ..LayoutChange::default() };
    client.call(set(dir, change)).await.unwrap();
    let told = layout(&client, dir).await.layout;
    assert_eq!((told.stripe_size, told.stripe_count), (4 << 20, StripeCount::All));
    client.call(SetLayout { id: dir, layout: None }).await.unwrap();
    assert_eq!(layout(&client, dir).await.layout.stripe_count, StripeCount::Exactly(2));
    client.call(SetLayout { id: ROOT, layout: None }).await.unwrap();
    assert!(!layout(&client, ROOT).await.is_own);
    // The file keeps the layout it was made with.
    assert_eq!(layout(&client, file).await.layout.stripe_count, StripeCount::Exactly(2));
}

#[tokio::test(start_paused = true)]
async fn a_file_begins_where_its_maker_says() {
    let house = House::new().await;
    let root = house.client().await;
    let file = root.create(ROOT, "f").await;
    let osts = |list: &[u16]| Some(list.iter().map(|&index| OstIndex(index)).collect::<Vec<_>>());
    let change = |count, list| LayoutChange {
        stripe_count: Some(StripeCount::Exactly(count)),
        osts: osts(list),
        ..LayoutChange::default()
    };
    root.call(set(file, change(2, &[1, 0]))).await.unwrap();
    assert_eq!(layout(&root, file).await.stripe, [OstIndex(1), OstIndex(0)]);
    let placed = root.call(Place { id: file, exclude: vec![], wish: None }).await.unwrap();
    assert_eq!(placed.stripe, [OstIndex(1), OstIndex(0)]);
    root.call(set(file, change(2, &[1]))).await.unwrap();
    let begun = layout(&root, file).await.stripe;
    assert_eq!((begun.len(), begun[0]), (2, OstIndex(1)));
    for wrong in [change(1, &[1, 0]), change(2, &[1, 1]), change(1, &[77])] {
        assert_eq!(root.kind_of(set(file, wrong)).await, Some(InvalidArgument));
    }
    let dir = root.mkdir(ROOT, "d").await;
    assert_eq!(root.kind_of(set(dir, change(1, &[1]))).await, Some(InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn impossible_layouts_are_refused() {
    let house = House::new().await;
    let root = house.client().await;
    let file = root.create(ROOT, "f").await;
    let kind = async |change| root.kind_of(set(file, change)).await;
    let change = LayoutChange { pool: pool("nowhere"), ..LayoutChange::default() };
    assert_eq!(kind(change).await, Some(NotFound));
    let change = LayoutChange { pool: pool("empty"), ..LayoutChange::default() };
    assert_eq!(kind(change).await, Some(OstInactive));
    let change = LayoutChange { stripe_size: Some(1000), ..LayoutChange::default() };
    assert_eq!(kind(change).await, Some(InvalidArgument));
    let other = root.by(&user(5, 5, &[]));
    let call = set(file, LayoutChange::default());
    assert_eq!(other.kind_of(call.clone()).await, Some(NotPermitted));
    root.commit(file, vec![inline(0, b"x")]).await;
    assert_eq!(root.kind_of(call).await, Some(Exists));
    let wrong = Layout { chunk_size: 1, ..Layout::default() };
    let create = Create { layout: Some(wrong), ..create(ROOT, "g", 0o644) };
    assert_eq!(root.kind_of(create).await, Some(InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn a_file_with_bytes_gets_a_layout_when_they_are_to_move() {
    let house = House::new().await;
    let root = house.client().await;
    let two = Layout { mirrors: 2, inline_limit: 0, ..Layout::default() };
    let create = Create { layout: Some(two), ..create(ROOT, "f", 0o644) };
    let file = root.call(create).await.unwrap().open.attributes.id;
    let before = root.commit(file, vec![inline(0, b"x")]).await;
    let moves = |change| set(file, LayoutChange { moves: Some(true), ..change });
    let wide = LayoutChange { stripe_count: Some(StripeCount::Exactly(2)), ..Default::default() };
    let after = root.call(moves(wide.clone())).await.unwrap().attributes;
    let told = layout(&root, file).await.layout;
    assert_eq!((told.stripe_count, told.mirrors), (StripeCount::Exactly(2), 2));
    assert_eq!(told.inline_limit, 0, "what is not told stays");
    assert!(after.version > before.version, "the next open asks");
    assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
    // Asked again it goes round the same OSTs; elsewhere round others.
    let placed = root.call(Place { id: file, exclude: vec![], wish: None }).await.unwrap().stripe;
    root.call(moves(wide.clone())).await.unwrap();
    assert_eq!(layout(&root, file).await.stripe, placed);
    let elsewhere = LayoutChange { pool: pool("uf"), ..LayoutChange::default() };
    root.call(moves(elsewhere)).await.unwrap();
    assert!(layout(&root, file).await.stripe.is_empty());
    let other = root.by(&user(5, 5, &[]));
    assert_eq!(other.kind_of(moves(wide.clone())).await, Some(NotPermitted));
    let dir = root.mkdir(ROOT, "d").await;
    let of_directory = set(dir, LayoutChange { moves: Some(true), ..wide });
    assert_eq!(root.kind_of(of_directory).await, Some(InvalidArgument));
}

#[tokio::test(start_paused = true)]
async fn a_file_is_placed_once_and_again_when_an_ost_failed() {
    let house = House::new().await;
    let client = house.client().await;
    let layout = Layout { stripe_count: StripeCount::Exactly(2), ..Layout::default() };
    let create = Create { layout: Some(layout), ..create(ROOT, "f", 0o644) };
    let file = client.call(create).await.unwrap().open;
    assert!(file.stripe.is_empty());
    let file = file.attributes.id;
    let place = async |exclude: &[OstIndex]| {
        client.call(Place { id: file, exclude: exclude.to_vec(), wish: None }).await.unwrap().stripe
    };
    let first = place(&[]).await;
    assert_eq!(first.len(), 2);
    assert_eq!(place(&[]).await, first);
    let open =
        client.call(Open { id: file, is_read: true, is_write: true, writes: None }).await.unwrap();
    assert_eq!(open.stripe, first);
    let second = place(&first[..1]).await;
    assert_eq!(second[0], first[1]);
    assert!(!second.contains(&first[0]) && second.len() == 2);
    let all: Vec<OstIndex> = (0..4).map(OstIndex).collect();
    let none = client.call(Place { id: file, exclude: all, wish: None }).await.unwrap_err();
    assert_eq!(none.kind, ErrorKind::NoSpace);
    assert!(none.detail.contains("OST0003 refused the writer"), "{none}");
}

#[tokio::test(start_paused = true)]
async fn usage_names_every_ost() {
    let house = House::new().await;
    let client = house.client().await;
    client.mkdir(ROOT, "d").await;
    let usage = client.call(Usage {}).await.unwrap();
    assert_eq!((usage.osts.len(), usage.inodes), (4, 2));
    assert!(usage.osts.iter().all(|ost| ost.is_active && ost.state.is_none()));
}
