//! Ranges of objects and of adopted files, with proofs that lead to the digest of all of it.

use super::*;
use crate::{Limits, Rights, TargetParts};
use tieline_blob::{AdoptedTree, ChunkStore, DirChunks, Identity, MemoryChunks};
use tieline_types::tree::is_proven;
use tieline_types::{ClientId, Digest, FileId, Grant, MdtIndex, OstIndex, Version};
use tieline_wire::decode;
use tieline_world::SeededDice;

const OST: OstIndex = OstIndex(3);

struct Bench {
    service: Arc<ChunkService>,
    store: Arc<dyn ChunkStore>,
}

fn bench(store: Arc<dyn ChunkStore>, adopted: Option<Arc<AdoptedTree>>) -> Bench {
    let parts = TargetParts { store: store.clone(), limits: Limits::default(), adopted };
    Bench { service: ChunkService::new(BTreeMap::from([(OST, parts)]), 1), store }
}

impl Bench {
    async fn read(&self, read: ReadObject) -> Result<(ReadObjectReply, Bytes), Failure> {
        let answer = self.service.call(ClientId([1; 16]), read.into(), Bytes::new(), Rights::All);
        let (body, bulk) = answer.await?;
        Ok((decode(&body).unwrap(), bulk.to_bytes().unwrap()))
    }

    async fn put(&self, chunk: GrantedId, data: &Bytes) {
        let target = self.service.target(OST).unwrap();
        let trailer = target.with_tree(trailer(chunk, data), data).await;
        assert!(trailer.tree.is_some());
        self.store.put(&trailer, data.clone()).await.unwrap();
    }
}

fn trailer(chunk: GrantedId, data: &[u8]) -> ObjectTrailer {
    let (file, version, checks) = (FileId(1), Version(1), checksum::block_checks(data));
    ObjectTrailer { chunk, file, offset: 0, version, path: vec![], checks, tree: None }
}

fn chunk(serial: u64) -> GrantedId {
    GrantedId { mdt: MdtIndex(0), grant: Grant(5), serial }
}

fn data(length: usize) -> Bytes {
    (0..length).map(|at| (at * 7 / 3) as u8).collect::<Vec<u8>>().into()
}

fn of_all(object: ObjectName, data: &[u8], offset: u64, length: u32) -> ReadObject {
    let hashed = Some(Hashed { offset: 0, length: data.len() as u64 });
    ReadObject { ost: OST, object, offset, length, capability: None, hashed }
}

/// Some ranges come proven and no wider than without a proof, and false ones are not.
async fn check(bench: &Bench, object: ObjectName, data: &Bytes) {
    let digest = Digest::of(data);
    let (root, length) = (digest.as_blake3().unwrap(), data.len() as u64);
    for (offset, wanted) in [(0, 1), (0, 100_000), (5000, 10), (20_480, 4096), (70_000, 20_000)] {
        let ask = of_all(object.clone(), data, offset, wanted);
        let (plain, bytes) = bench.read(ReadObject { hashed: None, ..ask.clone() }).await.unwrap();
        assert_eq!(plain.proof, None);
        let (reply, proven) = bench.read(ask).await.unwrap();
        let proof = reply.proof.unwrap();
        assert_eq!((reply.offset, &reply.checks), (plain.offset, &plain.checks));
        assert_eq!(reply.object_length, plain.object_length);
        assert_eq!(proven, bytes);
        assert!(is_proven(root, length, (reply.offset, &proven), &proof), "{offset} {wanted}");
        let mut other = proven.to_vec();
        other[0] ^= 1;
        assert!(!is_proven(root, length, (reply.offset, &other), &proof));
    }
}

#[tokio::test]
async fn ranges_of_objects_are_proven_whether_they_have_values_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let identity = Identity { fs: "extenci".parse().unwrap(), ost: OST };
    DirChunks::format(folder.path(), &identity, &SeededDice::new(1)).unwrap();
    let stores: [Arc<dyn ChunkStore>; 2] = [
        Arc::new(MemoryChunks::new(10 << 20)),
        Arc::new(DirChunks::open(folder.path(), &identity).unwrap()),
    ];
    for store in stores {
        let (bench, data) = (bench(store, None), data(100_001));
        bench.put(chunk(1), &data).await;
        check(&bench, ObjectName::Chunk(chunk(1)), &data).await;
        // Of before there were proofs.
        bench.store.put(&trailer(chunk(2), &data), data.clone()).await.unwrap();
        check(&bench, ObjectName::Chunk(chunk(2)), &data).await;
    }
}

#[tokio::test]
async fn an_object_that_is_another_has_no_proof() {
    let (bench, data) = (bench(Arc::new(MemoryChunks::new(10 << 20)), None), data(100_001));
    bench.put(chunk(1), &data).await;
    let ask = of_all(ObjectName::Chunk(chunk(1)), &data, 0, 4096);
    for (offset, length) in [(0, 100_000), (4096, 95_905), (0, 100_002)] {
        let hashed = Some(Hashed { offset, length });
        let read = ReadObject { hashed, offset: 8192, ..ask.clone() };
        let refusal = bench.read(read).await.unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::Corrupt, "{refusal:?}");
    }
    for (offset, length) in [(100_001, 1), (0, 0)] {
        let refusal = bench.read(ReadObject { offset, length, ..ask.clone() }).await.unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::InvalidArgument, "{refusal:?}");
    }
    let far = Some(Hashed { offset: 0, length: u64::MAX });
    let refusal = bench.read(ReadObject { hashed: far, ..ask.clone() }).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::InvalidArgument, "{refusal:?}");
    // It is replaced by a copy: what was known of it is forgotten.
    bench.read(ask).await.unwrap();
    let other = Bytes::from(vec![3; 100_001]);
    let target = bench.service.target(OST).unwrap();
    target.replace(trailer(chunk(1), &other), other.clone()).await.unwrap();
    check(&bench, ObjectName::Chunk(chunk(1)), &other).await;
}

#[tokio::test]
async fn ranges_of_adopted_files_are_proven() {
    let folder = tempfile::tempdir().unwrap();
    let data = data(100_001);
    std::fs::write(folder.path().join("f"), &data).unwrap();
    let tree = Arc::new(AdoptedTree::new(folder.path().to_owned()));
    let bench = bench(Arc::new(MemoryChunks::new(1 << 20)), Some(tree));
    let metadata = std::fs::metadata(folder.path().join("f")).unwrap();
    let modified = metadata.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mtime_ns = modified.as_nanos() as i64;
    let object = ObjectName::External { path: "f".to_owned(), size: 100_001, mtime_ns };
    check(&bench, object.clone(), &data).await;
    let ask = of_all(object, &data, 8192, 4096);
    let part = Some(Hashed { offset: 4096, length: 90_000 });
    let refusal = bench.read(ReadObject { hashed: part, ..ask }).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::InvalidArgument, "{refusal:?}");
}

#[test]
fn trees_in_memory_are_bounded() {
    let trees = Trees::default();
    let data = data(4 << 20);
    let tree = Tree::of(&data);
    let fit = (BYTES_MAX / tree.weight()) as u64;
    for serial in 0..fit + 10 {
        trees.keep((ObjectName::Chunk(chunk(serial)), 0), tree.clone());
    }
    assert!(lock(&trees.known).bytes <= BYTES_MAX);
    assert!(trees.get(&(ObjectName::Chunk(chunk(0)), 0)).is_none());
    assert!(trees.get(&(ObjectName::Chunk(chunk(fit + 9)), 0)).is_some());
    trees.forget(chunk(fit + 9));
    assert!(trees.get(&(ObjectName::Chunk(chunk(fit + 9)), 0)).is_none());
    let known = lock(&trees.known);
    assert_eq!(known.trees.len(), known.ages.len());
}
