//! A directory of a million names, in the engine that servers have: each operation costs what it
//! costs in a small one.

use crate::fixture::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_format::Record;
use tieline_format::mdt::{Entry, Inode, NameOf, key};
use tieline_kv::{EmbeddedStore, Store};
use tieline_types::{ByteSize, FileId, FileKind, MdtIndex, Name};
use tieline_wire::meta::{DirectoryEntry, ReadDirectory};

const COUNT: u64 = 1_000_000;
/// Pairs of one transaction.
const PAIRS: u64 = 8192;
/// Files made and removed.
const ROUNDS: usize = 200;
/// For a slow machine; a listing that began anew for each page takes longer.
const WITHIN: Duration = Duration::from_secs(120);

fn numbered(number: u64) -> Name {
    name(&format!("f{number:07}"))
}

/// Gives a directory its files as their makers would have left them, without a million requests.
async fn fill(store: &dyn Store, directory: FileId, like: FileId) {
    let mut transaction = store.begin().await.unwrap();
    let keys = [key::inode(like), key::inode(directory)];
    let found = transaction.read(&keys).await.unwrap();
    let [file, above] = [0, 1].map(|at| Inode::from_bytes(found[at].as_ref().unwrap()).unwrap());
    for number in 0..COUNT {
        if number % PAIRS == PAIRS - 1 {
            transaction.commit().await.unwrap().durable.await.unwrap();
            transaction = store.begin().await.unwrap();
        }
        let (id, name) = (FileId::new(MdtIndex(0), (1 << 40) + number), numbered(number));
        let entry = Entry { id, kind: FileKind::Regular };
        transaction.put(key::entry(directory, &name), entry.to_bytes());
        let names = vec![NameOf { parent: directory, name }];
        transaction.put(key::inode(id), Inode { names, ..file.clone() }.to_bytes());
    }
    let above = Inode { entries: above.entries + COUNT, ..above };
    transaction.put(key::inode(directory), above.to_bytes());
    transaction.commit().await.unwrap().durable.await.unwrap();
}

async fn list(client: &Client, id: FileId, after: Option<Name>) -> (Vec<DirectoryEntry>, bool) {
    let call = ReadDirectory { id, after, limit: 4096, is_plus: true };
    let reply = client.call(call).await.unwrap();
    (reply.entries, reply.is_end)
}

/// How long files take to be made among the names that are there, found and removed.
async fn rounds(client: &Client, directory: FileId) -> Duration {
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let text = format!("f{:07}-new", round as u64 * (COUNT / ROUNDS as u64));
        let made = client.create(directory, &text).await;
        assert_eq!(client.id(directory, &text).await, Some(made));
        client.call(unlink(directory, &text)).await.unwrap();
        assert_eq!(client.id(directory, &text).await, None);
    }
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_a_million_names_is_listed_and_changed_as_a_small_one() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("store.redb");
    let store = Arc::new(EmbeddedStore::open(&path, ByteSize(64 << 20)).unwrap());
    let client = Client::of(&start_on(store.clone()).await).await;
    let [large, small] = [client.mkdir(ROOT, "large").await, client.mkdir(ROOT, "small").await];
    let like = client.create(large, "a").await;
    fill(&*store, large, like).await;

    let begun = Instant::now();
    let (mut count, mut after, mut last) = (0, None, None);
    loop {
        let (entries, is_end) = list(&client, large, after).await;
        assert!(entries.iter().all(|entry| entry.attributes.is_some()));
        assert!(entries.is_sorted_by(|one, two| one.name < two.name));
        assert!(last < entries.first().map(|entry| entry.name.clone()));
        count += entries.len() as u64;
        last = entries.last().map(|entry| entry.name.clone());
        after = last.clone();
        if is_end {
            break;
        }
    }
    assert_eq!((count, last), (COUNT + 1, Some(numbered(COUNT - 1))));
    assert!(begun.elapsed() < WITHIN, "listed in {:?}", begun.elapsed());

    let few = rounds(&client, small).await;
    let many = rounds(&client, large).await;
    // On a machine that does other things; looking at all names each time takes many minutes.
    let bound = few * 20 + Duration::from_secs(30);
    assert!(many < bound, "{ROUNDS} files: {many:?}, in an empty directory {few:?}");
    let (entries, _) = list(&client, large, Some(numbered(COUNT - 2))).await;
    assert_eq!(entries.len(), 1);
    let taken = client.call(rmdir(ROOT, "large")).await.unwrap_err();
    assert_eq!(taken.kind, tieline_types::ErrorKind::NotEmpty);
}
