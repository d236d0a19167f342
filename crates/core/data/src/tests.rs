//! The chunk service over a memory store that fails as told.

use super::*;
use bytes::Bytes;
use std::collections::BTreeMap;
use tieline_blob::{Faults, FaultyChunks, MemoryChunks};
use tieline_types::{
    ClientId, ErrorKind, FileId, Grant, GrantedId, MdtIndex, ObjectName, OstIndex, Version,
    checksum,
};
use tieline_wire::data::*;
use tieline_wire::mirrors::VerifyObject;
use tieline_wire::{Call, Failure, decode};

const OST: OstIndex = OstIndex(3);
const CLIENT: ClientId = ClientId([1; 16]);

struct Bench {
    service: Arc<ChunkService>,
    memory: Arc<MemoryChunks>,
    faults: Faults,
}

fn bench(limits: Limits) -> Bench {
    let memory = Arc::new(MemoryChunks::new(1 << 20));
    let faults = Faults::default();
    let store = Arc::new(FaultyChunks::new(memory.clone(), faults.clone()));
    let service =
        ChunkService::new(BTreeMap::from([(OST, TargetParts { store, limits, adopted: None })]), 1);
    Bench { service, memory, faults }
}

impl Bench {
    async fn call<C: Call>(&self, message: C, bulk: Bytes) -> Result<(C::Reply, Bytes), Failure> {
        let (body, bulk) = self.service.call(CLIENT, message.into(), bulk, Rights::All).await?;
        Ok((decode(&body).unwrap(), bulk.to_bytes().unwrap()))
    }

    async fn ask<C: Call>(&self, message: C) -> Result<C::Reply, Failure> {
        Ok(self.call(message, Bytes::new()).await?.0)
    }

    async fn put(&self, file: u64, serial: u64, length: usize) -> Result<(), Failure> {
        let data = data(length);
        self.call(put(file, serial, &data), data).await.map(drop)
    }

    async fn sync(&self, file: u64) -> Result<u32, Failure> {
        Ok(self.ask(SyncFile { ost: OST, file: FileId(file), capability: None }).await?.synced)
    }

    async fn objects(&self) -> Vec<GrantedId> {
        self.ask(ListObjects { ost: OST, after: None, limit: 100 }).await.unwrap().chunks
    }
}

fn chunk(serial: u64) -> GrantedId {
    GrantedId { mdt: MdtIndex(0), grant: Grant(5), serial }
}

fn data(length: usize) -> Bytes {
    (0..length).map(|at| (at / 3) as u8).collect::<Vec<u8>>().into()
}

fn put(file: u64, serial: u64, data: &[u8]) -> PutChunk {
    PutChunk {
        ost: OST,
        chunk: chunk(serial),
        owner: owner(file),
        checks: checksum::block_checks(data),
        capability: None,
        room: None,
    }
}

fn owner(file: u64) -> ObjectOwner {
    ObjectOwner { file: FileId(file), offset: 0, version: Version(1), path: b"a/b".to_vec() }
}

fn read(serial: u64, offset: u64, length: u32) -> ReadObject {
    let object = ObjectName::Chunk(chunk(serial));
    ReadObject { ost: OST, object, offset, length, capability: None, hashed: None }
}

#[tokio::test]
async fn what_is_put_is_read_back_with_its_checks() {
    let bench = bench(Limits::default());
    bench.put(1, 1, 10_000).await.unwrap();
    let (reply, bulk) = bench.call(read(1, 5000, 10), Bytes::new()).await.unwrap();
    assert_eq!((reply.offset, reply.object_length), (4096, 10_000));
    assert_eq!(bulk, data(10_000).slice(4096..8192));
    assert_eq!(checksum::first_mismatch(&bulk, &reply.checks), None);
    let stat = bench.ask(StatObject { ost: OST, chunk: chunk(1) }).await.unwrap();
    assert_eq!((stat.length, stat.owner), (10_000, owner(1)));
}

#[tokio::test]
async fn a_connection_is_filled_with_what_is_asked_and_no_more() {
    let bench = bench(Limits::default());
    let fill = |length| bench.call(Fill { length }, Bytes::new());
    for length in [0, 1, Fill::LENGTH_MAX] {
        assert_eq!(fill(length).await.unwrap().1.len(), length as usize);
    }
    let refusal = fill(Fill::LENGTH_MAX + 1).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::InvalidArgument);
    assert!(refusal.detail.contains("262144 at most"), "{}", refusal.detail);
}

#[tokio::test]
async fn damage_on_the_way_is_refused_and_names_the_block() {
    let bench = bench(Limits::default());
    let good = data(10_000);
    let mut damaged = good.to_vec();
    damaged[5000] ^= 1;
    let refusal = bench.call(put(1, 1, &good), damaged.into()).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Corrupt);
    assert!(refusal.detail.contains(&format!("OST0003: block 1 of chunk {}", chunk(1))));
    let refusal = bench.call(put(1, 1, &good), good.slice(..4096)).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Corrupt);
    assert!(bench.objects().await.is_empty());
}

#[tokio::test]
async fn other_servers_and_other_calls_are_told_apart() {
    let bench = bench(Limits::default());
    let elsewhere = SyncFile { ost: OstIndex(4), file: FileId(1), capability: None };
    let refusal = bench.ask(elsewhere).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::WrongServer);
    assert!(refusal.detail.contains("OST0004") && refusal.detail.contains("OST0003"));
    let refusal = bench.ask(tieline_wire::meta::GetAttributes { id: FileId(1) }).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Protocol);
    let object = ObjectName::External { path: "x".to_owned(), size: 1, mtime_ns: 0 };
    let refusal = bench.ask(ReadObject { object, ..read(1, 0, 1) }).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NotSupported);
    let refusal = bench.ask(read(1, 0, u32::MAX)).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::InvalidArgument);
    let refusal = bench.ask(read(77, 0, 1)).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Gone);
    assert!(refusal.detail.contains("OST0003") && refusal.detail.contains(&chunk(77).to_string()));
}

#[tokio::test]
async fn a_site_keeps_its_reserve_whatever_is_wished() {
    let reserve = (1 << 20) - 10_000;
    let bench = bench(Limits { reserve, ..Limits::default() });
    bench.put(1, 1, 6000).await.unwrap();
    let refusal = bench.put(1, 2, 6000).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NoSpace);
    assert!(refusal.detail.contains("reserves"), "{}", refusal.detail);
    bench.put(1, 1, 6000).await.expect("a repeated put takes no room");
    let state = bench.service.states().await.remove(0);
    assert_eq!((state.bytes_free, state.trouble), (4000, None));
    bench.ask(DeleteChunks { ost: OST, chunks: vec![chunk(1), chunk(9)] }).await.unwrap();
    bench.put(1, 2, 6000).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn puts_that_are_under_way_count_against_the_reserve() {
    let bench = bench(Limits { reserve: (1 << 20) - 10_000, ..Limits::default() });
    bench.faults.delay(std::time::Duration::from_secs(3));
    // The second learns of the store's space while the first has not written yet.
    let later = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        bench.put(1, 2, 6000).await
    };
    let (first, second) = tokio::join!(bench.put(1, 1, 6000), later);
    first.unwrap();
    assert_eq!(second.unwrap_err().kind, ErrorKind::NoSpace);
    bench.put(1, 3, 4000).await.expect("what was written counts once");
}

#[tokio::test]
async fn a_read_only_site_takes_nothing_but_deletions() {
    let bench = bench(Limits { is_read_only: true, ..Limits::default() });
    let refusal = bench.put(1, 1, 10).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::ReadOnly);
    let deletion = DeleteChunks { ost: OST, chunks: vec![chunk(1)] };
    assert_eq!(bench.ask(deletion).await.unwrap().deleted, 0);
    let state = bench.service.states().await.remove(0);
    assert!(state.bytes_free == 0 && state.trouble.unwrap().contains("read-only"));
}

#[tokio::test]
async fn objects_use_no_more_than_their_site_gives() {
    let bench = bench(Limits { bytes_max: Some(10_000), ..Limits::default() });
    let room = async || bench.service.states().await.remove(0);
    assert_eq!((room().await.bytes_total, room().await.bytes_free), (10_000, 10_000));
    bench.put(1, 1, 6000).await.unwrap();
    bench.put(1, 1, 6000).await.expect("a repeated put takes no room");
    let refusal = bench.put(1, 2, 4001).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NoSpace);
    assert!(refusal.detail.contains("gives"), "{}", refusal.detail);
    assert_eq!((room().await.bytes_free, room().await.trouble), (4000, None));
    bench.faults.fill_puts(1);
    bench.put(1, 3, 4000).await.unwrap_err();
    bench.put(1, 3, 4000).await.expect("what was not stored does not count");
    assert!(room().await.bytes_free == 0 && room().await.trouble.unwrap().contains("gives"));
    bench.ask(DeleteChunks { ost: OST, chunks: vec![chunk(1), chunk(1)] }).await.unwrap();
    assert_eq!(room().await.bytes_free, 6000);
}

#[tokio::test]
async fn what_was_there_before_a_start_counts() {
    let first = bench(Limits::default());
    first.put(1, 1, 6000).await.unwrap();
    let store = first.memory.clone();
    let limits = Limits { bytes_max: Some(10_000), ..Limits::default() };
    let parts = TargetParts { store, limits, adopted: None };
    let again = Bench { service: ChunkService::new(BTreeMap::from([(OST, parts)]), 1), ..first };
    assert_eq!(again.put(1, 2, 6000).await.unwrap_err().kind, ErrorKind::NoSpace);
    again.put(1, 2, 4000).await.unwrap();
}

#[tokio::test]
async fn an_mdt_that_a_site_does_not_name_is_not_obeyed() {
    let mdts = Some([MdtIndex(1)].into());
    let bench = bench(Limits { mdts, ..Limits::default() });
    let (theirs, ours) = (chunk(1), GrantedId { mdt: MdtIndex(1), ..chunk(1) });
    let refusal = bench.put(1, 1, 10).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::NotPermitted);
    assert!(refusal.detail.contains("MDT0000"), "{}", refusal.detail);
    let put_ours = PutChunk { chunk: ours, ..put(1, 1, &data(10)) };
    bench.call(put_ours, data(10)).await.expect_err("a file of MDT0000");
    let put_ours = PutChunk {
        chunk: ours,
        owner: ObjectOwner { file: FileId::root_of(MdtIndex(1)), ..owner(1) },
        ..put(1, 1, &data(10))
    };
    bench.call(put_ours, data(10)).await.unwrap();
    for chunks in [vec![theirs], vec![ours, theirs]] {
        let refusal = bench.ask(DeleteChunks { ost: OST, chunks }).await.unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::NotPermitted);
    }
    let told = bench.service.states_for(&[MdtIndex(0)]).await.remove(0);
    assert!(told.bytes_free == 0 && told.trouble.unwrap().contains("MDT0000"));
    assert_eq!(bench.service.states_for(&[MdtIndex(1)]).await.remove(0).trouble, None);
    bench.ask(DeleteChunks { ost: OST, chunks: vec![ours] }).await.unwrap();
}

#[tokio::test]
async fn clients_of_realms_that_a_site_does_not_name_are_not_served() {
    let realms = Some(["UFL.EDU".to_owned()].into());
    let bench = bench(Limits { realms, ..Limits::default() });
    bench.put(1, 1, 10).await.expect("servers are no clients");
    let checker = tieline_auth::capability::Checker::default();
    let asked = async |realm: Option<&str>| {
        let holder = tieline_wire::capability::Holder([0; 16]);
        let rights = match realm {
            Some(realm) => {
                Rights::Shown { checker: &checker, holder, realm: Some(realm), is_root: true }
            }
            None => Rights::Unproven,
        };
        let look = VerifyObject {
            ost: OST,
            object: ObjectName::Chunk(chunk(1)),
            offset: 0,
            length: 10,
            capability: None,
        };
        bench.service.call(CLIENT, look.into(), Bytes::new(), rights).await.map(drop)
    };
    asked(Some("UFL.EDU")).await.unwrap();
    for stranger in [Some("PSC.EDU"), Some(""), None] {
        let refusal = asked(stranger).await.unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::NotPermitted, "{stranger:?}: {}", refusal.detail);
    }
}

#[tokio::test]
async fn a_synced_file_survives_the_machine_and_others_need_not() {
    let bench = bench(Limits::default());
    for (file, serial) in [(1, 1), (2, 2), (1, 3)] {
        bench.put(file, serial, 100).await.unwrap();
    }
    assert_eq!(bench.sync(1).await.unwrap(), 2);
    assert_eq!(bench.sync(1).await.unwrap(), 0);
    bench.memory.lose_power();
    assert_eq!(bench.objects().await, [chunk(1), chunk(3)]);
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_volatile_for_long() {
    let bench = bench(Limits::default());
    bench.put(1, 1, 100).await.unwrap();
    let service = bench.service.clone();
    let run = tokio::spawn(async move { service.run().await });
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    run.abort();
    bench.memory.lose_power();
    assert_eq!(bench.objects().await, [chunk(1)]);
    assert_eq!(bench.sync(1).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_sync_is_never_forgotten() {
    let bench = bench(Limits::default());
    bench.put(1, 1, 100).await.unwrap();
    bench.put(2, 2, 100).await.unwrap();
    bench.faults.fail_syncs(1);
    bench.service.sync_all().await;
    for _ in 0..2 {
        let refusal = bench.sync(1).await.unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::StorageFault);
        assert!(refusal.detail.contains(&chunk(1).to_string()), "{}", refusal.detail);
    }
    assert!(bench.service.states().await[0].trouble.as_ref().unwrap().contains("2 chunks"));
    // Others' chunks are better off elsewhere, for a while.
    let refusal = bench.put(3, 3, 100).await.unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::StorageFault);
    tokio::time::sleep(std::time::Duration::from_secs(61)).await;
    bench.put(3, 3, 100).await.unwrap();
    let deletion = DeleteChunks { ost: OST, chunks: vec![chunk(1), chunk(2)] };
    assert_eq!(bench.ask(deletion).await.unwrap().deleted, 2);
    assert_eq!(bench.sync(1).await.unwrap(), 0);
    assert_eq!(bench.service.states().await[0].trouble, None);
}

#[tokio::test]
async fn a_chunk_that_vanishes_before_its_sync_is_lost_but_a_deleted_one_is_not() {
    let bench = bench(Limits::default());
    for serial in [1, 2, 3] {
        bench.put(1, serial, 100).await.unwrap();
    }
    bench.ask(DeleteChunks { ost: OST, chunks: vec![chunk(2)] }).await.unwrap();
    assert_eq!(bench.sync(1).await.unwrap(), 2);
    bench.put(1, 4, 100).await.unwrap();
    bench.put(1, 5, 100).await.unwrap();
    tieline_blob::ChunkStore::delete(&*bench.memory, chunk(4)).await.unwrap();
    assert_eq!(bench.sync(1).await.unwrap_err().kind, ErrorKind::StorageFault);
    bench.memory.lose_power();
    assert_eq!(bench.objects().await, [chunk(1), chunk(3), chunk(5)]);
}

#[tokio::test]
async fn a_store_that_is_gone_is_trouble_not_space() {
    let bench = bench(Limits { reserve: 1, ..Limits::default() });
    bench.faults.set_wrong_store(Some("its marker is gone"));
    let state = bench.service.states().await.remove(0);
    assert!(state.bytes_free == 0 && state.trouble.unwrap().contains("its marker is gone"));
    assert_eq!(bench.put(1, 1, 10).await.unwrap_err().kind, ErrorKind::StorageFault);
    bench.faults.set_wrong_store(None);
    bench.faults.fill_puts(1);
    assert_eq!(bench.put(1, 1, 10).await.unwrap_err().kind, ErrorKind::NoSpace);
    bench.put(1, 1, 10).await.unwrap();
}

#[tokio::test]
async fn listings_come_in_pages() {
    let bench = bench(Limits::default());
    for serial in 0..5 {
        bench.put(1, serial, 10).await.unwrap();
    }
    let page = |after, limit| bench.ask(ListObjects { ost: OST, after, limit });
    let first = page(None, 3).await.unwrap();
    assert_eq!((first.chunks.len(), first.is_end), (3, false));
    let second = page(first.chunks.last().copied(), 3).await.unwrap();
    assert_eq!((second.chunks, second.is_end), (vec![chunk(3), chunk(4)], true));
    assert_eq!(page(None, 5000).await.unwrap_err().kind, ErrorKind::InvalidArgument);
}

fn room(held: Option<u64>, wanted: u64) -> GrantRoom {
    GrantRoom { ost: OST, held, wanted }
}

/// Room that is promised is kept from others, on the disk and within the site's limit.
#[tokio::test(start_paused = true)]
async fn what_is_promised_is_kept_from_others() {
    for limits in [
        Limits { reserve: 1 << 18, ..Limits::default() },
        Limits { bytes_max: Some(3 << 18), ..Limits::default() },
    ] {
        let bench = bench(limits);
        let granted = bench.ask(room(Some(0), 1 << 30)).await.unwrap();
        assert_eq!(granted.granted, 3 << 15, "an eighth");
        let other = async |serial, length| {
            let (bytes, client) = (data(length), ClientId([2; 16]));
            let message = put(1, serial, &bytes).into();
            bench.service.call(client, message, bytes, Rights::All).await.map(drop)
        };
        // It takes what is not promised, and no more.
        for serial in 0..20 {
            let _ = other(serial, 50_000).await;
        }
        let refused = other(99, 50_000).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NoSpace, "{}", refused.detail);
        let cost = GrantRoom::cost(50_000, 4096);
        let bytes = data(50_000);
        let own = PutChunk { room: Some(cost), ..put(2, 100, &bytes) };
        bench.call(own, bytes).await.expect("it was granted");
        assert_eq!(bench.ask(room(None, 0)).await.unwrap().granted, (3 << 15) - cost);
        bench.ask(room(Some(0), 0)).await.unwrap();
        other(98, 30_000).await.expect("it was given back");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ost_that_takes_nothing_promises_nothing() {
    let bench = bench(Limits { is_read_only: true, ..Limits::default() });
    assert_eq!(bench.ask(room(Some(0), 1 << 20)).await.unwrap().granted, 0);
}
