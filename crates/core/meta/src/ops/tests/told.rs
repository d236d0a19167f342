//! Who is told what, where everybody proves who he is.

use crate::fixture::*;
use tieline_types::ErrorKind::*;
use tieline_types::{Caller, FileId};
use tieline_wire::meta::*;
use tieline_wire::ranges::{Compact, SeenContent, SeenExtent};

fn ann() -> Caller {
    user(5001, 5001, &[])
}

fn bob() -> Caller {
    user(5002, 5002, &[])
}

/// A file of ann's with a few bytes in the metadata.
async fn hers(client: &Client, text: &str, mode: u32) -> FileId {
    let id = client.call(create(ROOT, text, mode)).await.unwrap().open.attributes.id;
    let given = SetAttributes { uid: Some(ann().uid), gid: Some(ann().gid), ..setattr(id) };
    client.call(given).await.unwrap();
    client.commit(id, vec![inline(0, b"private")]).await;
    id
}

fn open(id: FileId, is_read: bool, is_write: bool) -> Open {
    Open { id, is_read, is_write, writes: is_write.then_some(true) }
}

#[tokio::test(start_paused = true)]
async fn who_may_write_alone_is_not_told_bytes() {
    let house = House::proven().await;
    let client = house.client().await;
    let (ann, bob) = (client.by(&ann()), client.by(&bob()));
    let file = hers(&client, "in-tray", 0o622).await;
    let opened = bob.call(open(file, false, true)).await.unwrap();
    assert_eq!(opened.extents, ExtentPage::default());
    assert_eq!(opened.attributes.size, 7, "its size is told");
    let page = GetExtents { id: file, offset: 0, limit: 10 };
    assert_eq!(bob.kind_of(page.clone()).await, Some(PermissionDenied));
    let there = Create { is_exclusive: false, ..create(ROOT, "in-tray", 0o644) };
    let created = bob.call(there).await.unwrap();
    assert_eq!((created.is_new, created.open.extents), (false, ExtentPage::default()));
    // Nor may he try what they could be.
    let content = SeenContent::Inline(tieline_types::Digest::of(b"private"));
    let was = vec![SeenExtent { offset: 0, length: 7, content }];
    let guess = Compact { id: file, was, extents: vec![inline(0, b"private")] };
    assert_eq!(bob.kind_of(guess).await, Some(PermissionDenied));
    // He writes all the same, and she reads both.
    bob.commit(file, vec![inline(7, b" news")]).await;
    let both = vec![inline(0, b"private news")];
    assert_eq!(ann.call(page).await.unwrap().page.extents, both);
    assert_eq!(ann.call(open(file, true, false)).await.unwrap().extents.extents, both);
}

#[tokio::test(start_paused = true)]
async fn who_may_run_a_program_has_its_bytes() {
    let house = House::proven().await;
    let client = house.client().await;
    let file = hers(&client, "program", 0o711).await;
    let opened = client.by(&bob()).call(open(file, false, false)).await.unwrap();
    assert_eq!(opened.extents.extents.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_may_list_and_not_search_is_told_names_alone() {
    let house = House::proven().await;
    let client = house.client().await;
    let directory = client.mkdir(ROOT, "d").await;
    client.call(symlink(directory, "link", "secret")).await.unwrap();
    client.call(chmod(directory, 0o744)).await.unwrap();
    let list = ReadDirectory { id: directory, after: None, limit: 10, is_plus: true };
    let told = client.by(&bob()).call(list.clone()).await.unwrap();
    assert_eq!(told.entries.len(), 1);
    assert_eq!((&told.entries[0].attributes, &told.entries[0].target), (&None, &None));
    let told = client.call(list).await.unwrap();
    assert!(told.entries[0].attributes.is_some() && told.entries[0].target.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_page_with_long_targets_fits_into_a_frame() {
    let house = House::new().await;
    let client = house.client().await;
    let directory = client.mkdir(ROOT, "d").await;
    let target = "x".repeat(4000);
    for number in 0..1200 {
        client.call(symlink(directory, &format!("{number:04}"), &target)).await.unwrap();
    }
    let (mut after, mut seen, mut pages) = (None, 0, 0);
    loop {
        let list = ReadDirectory { id: directory, after, limit: 4096, is_plus: true };
        let page = client.call(list).await.unwrap();
        let weight: usize =
            page.entries.iter().filter_map(|one| one.target.as_ref()).map(Vec::len).sum();
        assert!(weight <= (2 << 20) + 4096, "{weight}");
        assert!(page.entries.iter().all(|entry| entry.attributes.is_some()));
        (seen, pages) = (seen + page.entries.len(), pages + 1);
        if page.is_end {
            break;
        }
        after = page.entries.last().map(|entry| entry.name.clone());
    }
    assert_eq!((seen, pages), (1200, 3));
}
