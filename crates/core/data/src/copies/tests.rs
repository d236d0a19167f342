//! Copies between two OSTs whose stores fail as told.

use super::ObjectSource;
use crate::Rights;
use crate::{ChunkService, Limits, TargetParts};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use tieline_blob::{Faults, FaultyChunks, MemoryChunks};
use tieline_types::{
    ClientId, Digest, ErrorKind, FileId, Grant, GrantedId, MdtIndex, ObjectName, OstIndex,
    OstPlace, Version, checksum,
};
use tieline_wire::data::{
    ObjectOwner, PutChunk, ReadObject, ReadObjectReply, StatObject, StatObjectReply,
};
use tieline_wire::mirrors::{FetchChunk, VerifyObject};
use tieline_wire::{Failure, decode};

const FROM: OstIndex = OstIndex(1);
const TO: OstIndex = OstIndex(2);
const CLIENT: ClientId = ClientId([1; 16]);
const CHUNK: GrantedId = GrantedId { mdt: MdtIndex(0), grant: Grant(5), serial: 7 };

struct Pair {
    service: Arc<ChunkService>,
    faults: BTreeMap<OstIndex, Faults>,
    bytes: Bytes,
}

struct Source(Arc<ChunkService>);

#[async_trait::async_trait]
impl ObjectSource for Source {
    async fn read(&self, message: ReadObject) -> Result<(ReadObjectReply, Bytes), Failure> {
        let (body, bulk) = self.0.call(CLIENT, message.into(), Bytes::new(), Rights::All).await?;
        Ok((decode(&body).unwrap(), bulk.to_bytes().unwrap()))
    }

    async fn stat(&self, message: StatObject) -> Result<StatObjectReply, Failure> {
        let (body, _) = self.0.call(CLIENT, message.into(), Bytes::new(), Rights::All).await?;
        Ok(decode(&body).unwrap())
    }
}

/// A chunk at [`FROM`].
async fn pair() -> Pair {
    let mut faults = BTreeMap::new();
    let target = |ost: OstIndex| {
        let plan = Faults::default();
        faults.insert(ost, plan.clone());
        let memory = Arc::new(MemoryChunks::new(1 << 20));
        let store = Arc::new(FaultyChunks::new(memory, plan));
        (ost, TargetParts { store, limits: Limits::default(), adopted: None })
    };
    let service = ChunkService::new([FROM, TO].map(target).into_iter().collect(), 1);
    let bytes: Bytes = (0..50_000).map(|at| (at / 5) as u8).collect::<Vec<u8>>().into();
    let pair = Pair { service, faults, bytes };
    pair.put(FROM).await;
    pair
}

impl Pair {
    async fn put(&self, ost: OstIndex) {
        self.put_for(ost, 9, self.bytes.clone()).await;
    }

    async fn put_for(&self, ost: OstIndex, file: u64, bytes: Bytes) {
        let checks = checksum::block_checks(&bytes);
        let message = PutChunk {
            ost,
            chunk: CHUNK,
            owner: owner(file),
            checks,
            capability: None,
            room: None,
        };
        self.service.call(CLIENT, message.into(), bytes, Rights::All).await.unwrap();
    }

    async fn fetch(
        &self,
        digest: impl Into<Option<Digest>>,
    ) -> Result<(bool, Vec<OstIndex>), Failure> {
        let place = OstPlace {
            ost: FROM,
            object: ObjectName::Chunk(CHUNK),
            offset: 0,
            length: self.bytes.len() as u64,
            is_stale: false,
        };
        let capability = None;
        let message = FetchChunk {
            capability,
            ost: TO,
            chunk: CHUNK,
            length: place.length,
            digest: digest.into(),
            from: vec![place],
            owner: owner(0),
        };
        let source = Source(self.service.clone());
        let reply = self.service.fetch(message, &source).await?;
        Ok((reply.is_fetched, reply.bad))
    }

    async fn good(&self) -> Result<(bool, Vec<OstIndex>), Failure> {
        self.fetch(Digest::of(&self.bytes)).await
    }

    async fn is_whole(&self, ost: OstIndex) -> bool {
        let length = self.bytes.len() as u64;
        let object = ObjectName::Chunk(CHUNK);
        let message = VerifyObject { ost, object, offset: 0, length, capability: None };
        let reply = self.service.verify(message).await.unwrap();
        assert_eq!(reply.bad_blocks == 0, reply.first_bad.is_none());
        reply.bad_blocks == 0 && reply.digest == Digest::of(&self.bytes) && reply.length == length
    }
}

fn owner(file: u64) -> ObjectOwner {
    ObjectOwner { file: FileId(file), offset: 0, version: Version(1), path: b"f".to_vec() }
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_fetched_once_and_knows_its_file() {
    let pair = pair().await;
    assert_eq!(pair.good().await.unwrap(), (true, vec![]));
    assert!(pair.is_whole(TO).await);
    let stat = Source(pair.service.clone()).stat(StatObject { ost: TO, chunk: CHUNK }).await;
    assert_eq!(stat.unwrap().owner, owner(9));
    assert_eq!(pair.good().await.unwrap(), (false, vec![]), "it is there already");
}

/// Who has a right to put chunks may put one where a copy is made later.
#[tokio::test(start_paused = true)]
async fn what_was_put_where_a_copy_shall_be_is_compared_with_its_source() {
    for digest in [None, Some(())] {
        let pair = pair().await;
        let digest = digest.map(|()| Digest::of(&pair.bytes));
        pair.put_for(TO, 9, vec![7; pair.bytes.len()].into()).await;
        assert_eq!(pair.fetch(digest).await.unwrap(), (true, vec![]));
        assert!(pair.is_whole(TO).await, "{digest:?}");
    }
    // The right bytes, for a file of somebody else.
    let pair = pair().await;
    pair.put_for(TO, 8, pair.bytes.clone()).await;
    assert_eq!(pair.good().await.unwrap(), (true, vec![]));
    let stat = Source(pair.service.clone()).stat(StatObject { ost: TO, chunk: CHUNK }).await;
    assert_eq!(stat.unwrap().owner, owner(9));
    assert_eq!(pair.good().await.unwrap(), (false, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_damaged_copy_is_found_and_replaced() {
    let pair = pair().await;
    pair.put(TO).await;
    pair.faults[&TO].flip_bit(CHUNK, 0);
    assert!(!pair.is_whole(TO).await);
    assert_eq!(pair.good().await.unwrap(), (true, vec![]));
    assert!(pair.is_whole(TO).await);
}

#[tokio::test(start_paused = true)]
async fn nothing_damaged_or_foreign_is_copied() {
    let pair = pair().await;
    let other = pair.fetch(Digest::blake3([1; 32])).await.unwrap_err();
    assert_eq!(other.kind, ErrorKind::Corrupt);
    pair.faults[&FROM].flip_bit(CHUNK, 0);
    assert_eq!(pair.good().await.unwrap_err().kind, ErrorKind::Corrupt);
    let stat = Source(pair.service.clone()).stat(StatObject { ost: TO, chunk: CHUNK }).await;
    assert_eq!(stat.unwrap_err().kind, ErrorKind::Gone);
}

#[tokio::test(start_paused = true)]
async fn two_damaged_copies_make_one_that_is_whole() {
    let pair = pair().await;
    pair.put(TO).await;
    pair.faults[&TO].flip_bit(CHUNK, 0);
    pair.faults[&FROM].flip_bit(CHUNK, 45_000);
    assert_eq!(pair.good().await.unwrap(), (true, vec![FROM]), "the source is told to be bad");
    assert!(pair.is_whole(TO).await && !pair.is_whole(FROM).await);
    let stat = Source(pair.service.clone()).stat(StatObject { ost: TO, chunk: CHUNK }).await;
    assert_eq!(stat.unwrap().owner, owner(9));
}

#[tokio::test(start_paused = true)]
async fn a_block_that_is_damaged_in_both_copies_is_in_neither() {
    let pair = pair().await;
    pair.put(TO).await;
    pair.faults[&TO].flip_bit(CHUNK, 45_000);
    pair.faults[&FROM].flip_bit(CHUNK, 45_001);
    assert_eq!(pair.good().await.unwrap_err().kind, ErrorKind::Corrupt);
    assert!(!pair.is_whole(TO).await);
}
