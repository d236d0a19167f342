//! What a client says of itself and its files, and who looks at it. docs/security.md has the table.

use crate::Coming;
use crate::fixture::*;
use crate::sessions::SessionTable;
use std::sync::Arc;
use tieline_format::Record;
use tieline_format::mdt::{Session, key};
use tieline_kv::{MemoryStore, Store};
use tieline_types::ErrorKind::*;
use tieline_types::quota::{Payer, PayerKind};
use tieline_types::{
    Caller, ChunkRef, ClientId, Content, Digest, Extent, FileId, Mode, SetTime, Time, XattrMode,
    XattrName,
};
use tieline_wire::Request;
use tieline_wire::capability::{Capability, GetCapability, Holder, Scope, SignedCapability};
use tieline_wire::meta::*;
use tieline_wire::quotas::{Promise, SetQuota};
use tieline_wire::ranges::{Compact, CopyRange, SeenContent, SeenExtent};

fn ann() -> Caller {
    user(5001, 5001, &[])
}

fn bob() -> Caller {
    user(5002, 5002, &[])
}

/// A program of ann's that anybody may write, with her rights.
async fn program(client: &Client, text: &str) -> FileId {
    let id = client.call(create(ROOT, text, 0o777)).await.unwrap().open.attributes.id;
    client.commit(id, vec![inline(0, b"program")]).await;
    let given = SetAttributes { uid: Some(ann().uid), gid: Some(ann().gid), ..setattr(id) };
    client.call(given).await.unwrap();
    client.call(chmod(id, 0o6777)).await.unwrap();
    id
}

/// Bob's bytes, to go over a program.
async fn copy_over(client: &Client, file: FileId) -> CopyRange {
    let own = client.call(create(ROOT, "own", 0o666)).await.unwrap().open.attributes.id;
    client.by(&bob()).commit(own, vec![inline(0, b"another")]).await;
    CopyRange {
        from: own,
        from_offset: 0,
        to: file,
        to_offset: 0,
        length: 7,
        mtime: SetTime::Now,
        clears_setid: false,
    }
}

#[tokio::test(start_paused = true)]
async fn setuid_goes_with_the_bytes_whatever_the_client_says() {
    let house = House::proven().await;
    let client = house.client().await;
    let bob = client.by(&bob());
    for caller in [bob.clone(), client.by(&ann())] {
        let file = program(&client, &format!("commit-{}", caller.caller.uid)).await;
        assert!(!commit(file, vec![]).clears_setid);
        let after = caller.commit(file, vec![inline(0, b"another")]).await;
        assert_eq!(after.mode, Mode::new(0o777));
    }
    let file = program(&client, "copy").await;
    let copy = copy_over(&client, file).await;
    assert_eq!(bob.call(copy).await.unwrap().attributes.mode, Mode::new(0o777));
    // Root may keep it, where his kernel says so.
    let file = program(&client, "root").await;
    assert_eq!(client.commit(file, vec![inline(0, b"r")]).await.mode, Mode::new(0o6777));
    let clears = Commit { clears_setid: true, ..commit(file, vec![inline(0, b"r")]) };
    assert_eq!(client.call(clears).await.unwrap().attributes.mode, Mode::new(0o777));
}

#[tokio::test(start_paused = true)]
async fn compaction_is_not_believed_where_it_would_keep_rights() {
    let house = House::proven().await;
    let client = house.client().await;
    let content = SeenContent::Inline(Digest::of(b"program"));
    let was = vec![SeenExtent { offset: 0, length: 7, content }];
    let call = |id| Compact { id, was: was.clone(), extents: vec![inline(0, b"another")] };
    let file = program(&client, "f").await;
    assert_eq!(client.by(&bob()).kind_of(call(file)).await, Some(PermissionDenied));
    // Ann could give it these rights herself.
    assert_eq!(client.by(&ann()).kind_of(call(file)).await, None);
    let file = program(&client, "g").await;
    client.call(chmod(file, 0o777)).await.unwrap();
    let name = XattrName::new("security.capability").unwrap();
    let (value, mode) = (vec![1], XattrMode::Either);
    client.call(SetXattr { id: file, name, value, mode }).await.unwrap();
    assert_eq!(client.by(&ann()).kind_of(call(file)).await, Some(PermissionDenied));
    assert_eq!(client.kind_of(call(file)).await, None);
}

#[tokio::test(start_paused = true)]
async fn no_batch_moves_a_change_back() {
    let house = House::proven().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let (before, of_root) = (client.stat(file).await.ctime, client.stat(ROOT).await.ctime);
    let early = Time { seconds: 1, nanos: 0 };
    let item = |id, request: Request| BatchItem {
        caller: Caller::root(),
        at: early,
        id,
        op: request.op().number(),
        message: request.encode_message(),
    };
    let items = vec![
        item(file, chmod(file, 0o600).into()),
        item(file, rename((ROOT, "f"), (ROOT, "g")).into()),
    ];
    let reply = client.call(Batch { items }).await.unwrap();
    assert!(reply.outcomes.iter().all(|one| one.failure.is_none()), "{reply:?}");
    assert!(client.stat(file).await.ctime >= before);
    assert!(client.stat(ROOT).await.ctime >= of_root);
}

#[tokio::test(start_paused = true)]
async fn times_that_come_with_bytes_go_as_far_as_writing_does() {
    let house = House::proven().await;
    let client = house.client().await;
    let bob = client.by(&bob());
    let file = program(&client, "f").await;
    let copy = copy_over(&client, file).await;
    for seconds in [5, 1 << 40] {
        let mtime = SetTime::At(Time { seconds, nanos: 0 });
        let copy = CopyRange { mtime, ..copy.clone() };
        let write = Commit { mtime, ..commit(file, vec![inline(0, b"another")]) };
        for request in [Request::from(write), Request::from(copy)] {
            let before = client.stat(file).await;
            match request {
                Request::Commit(write) => drop(bob.call(write).await.unwrap()),
                Request::CopyRange(copy) => drop(bob.call(copy).await.unwrap()),
                other => panic!("{other:?}"),
            }
            let after = client.stat(file).await;
            assert!(after.mtime >= before.mtime && after.ctime >= before.ctime, "{after:?}");
            let latest = house.world.clock.wall().as_secs() as i64 + 300;
            assert!(after.mtime.seconds <= latest && after.ctime.seconds <= latest, "{after:?}");
        }
    }
    // What its owner set ahead of the last change ends with whatever the next writer says.
    let ahead = Some(SetTime::At(Time { seconds: 1 << 40, nanos: 0 }));
    client.by(&ann()).call(SetAttributes { mtime: ahead, ..setattr(file) }).await.unwrap();
    let old = Time { seconds: 5, nanos: 0 };
    let write = Commit { mtime: SetTime::At(old), ..commit(file, vec![inline(0, b"f")]) };
    assert_eq!(bob.call(write).await.unwrap().attributes.mtime, old);
}

/// What nobody asked for is nobody's to keep from others.
#[tokio::test(start_paused = true)]
async fn beyond_what_is_needed_a_quarter_of_what_is_left_is_promised() {
    let house = House::proven().await;
    let client = house.client().await;
    let bob = client.by(&bob());
    client.call(chmod(ROOT, 0o777)).await.unwrap();
    let file = bob.call(create(ROOT, "f", 0o644)).await.unwrap().open.attributes.id;
    let payer = Payer { kind: PayerKind::User, id: 5002, pool: None };
    let limits = SetQuota {
        payer,
        bytes_soft: None,
        bytes_hard: Some(100 << 10),
        inodes_soft: None,
        inodes_hard: None,
        bytes_grace: None,
        inodes_grace: None,
        is_default: None,
    };
    client.call(limits).await.unwrap();
    let ask = |needed| Promise { id: file, wanted: 1 << 40, needed, payers: None };
    assert_eq!(bob.call(ask(0)).await.unwrap().promised, Some(25 << 10));
    assert_eq!(bob.call(ask(60 << 10)).await.unwrap().promised, Some(60 << 10));
}

/// Chunks that are named by their content are no MDT's.
#[tokio::test(start_paused = true)]
async fn no_chunk_is_named_by_its_content() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let Content::Chunk(granted) = client.chunk(1, 0, 100).content else { panic!("a chunk") };
    let place = granted.places[0].clone();
    let content = Content::Chunk(ChunkRef::of_content(Digest::of(b"bytes"), 100, place));
    let extent = Extent { offset: 0, length: 100, content };
    assert_eq!(client.kind_of(commit(file, vec![extent])).await, Some(InvalidArgument));
}

/// It may be for a data server that copies; it says no more for that.
#[tokio::test(start_paused = true)]
async fn for_another_holder_a_capability_says_what_its_asker_may() {
    let house = House::proven().await;
    let client = house.client().await;
    let file = client.call(create(ROOT, "f", 0o644)).await.unwrap().open.attributes.id;
    let ask = |is_write: bool| GetCapability {
        id: Some(file),
        is_read: !is_write,
        is_write,
        offset: None,
        holder: Some(Holder([7; 16])),
    };
    let bob = client.by(&bob());
    assert_eq!(bob.kind_of(ask(true)).await, Some(PermissionDenied));
    let signed = bob.call(ask(false)).await.unwrap().grant.unwrap().signed;
    let signed: SignedCapability = tieline_wire::decode(&signed).unwrap();
    let capability: Capability = tieline_wire::decode(&signed.capability).unwrap();
    assert_eq!(capability.holder, Holder([7; 16]));
    let Scope::File { file: of, is_read, is_write, .. } = capability.scope else {
        panic!("of a file")
    };
    assert_eq!((of, is_read, is_write), (file, true, false));
}

#[tokio::test(start_paused = true)]
async fn proofs_of_a_session_leave_a_bounded_number_of_notes() {
    let house = House::proven().await;
    let client = house.client().await;
    for number in 0..1100_u64 {
        let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        house.mdt.note_shown((client.session, number), "ann@EXTENCI.ORG", None).await.unwrap();
    }
    assert_eq!(house.count(b'h').await, 1024);
}

#[tokio::test(start_paused = true)]
async fn sums_are_roots_to_record() {
    let house = House::proven().await;
    let client = house.client().await;
    let file = program(&client, "f").await;
    let call = RecordSums { id: file, sums: vec![] };
    assert_eq!(client.by(&ann()).kind_of(call.clone()).await, Some(NotPermitted));
    assert_eq!(client.kind_of(call).await, None);
}

#[tokio::test(start_paused = true)]
async fn what_a_session_calls_itself_is_kept_in_part() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mdt = start_on(store.clone()).await;
    let sessions = SessionTable::load(store.clone()).await.unwrap();
    let (text, now) = ("x".repeat(1000), Time::default());
    let coming = Coming { description: &text, host: "a", party: "a", wait: None };
    let (id, _) = sessions.open(ClientId([7; 16]), coming, now).await.unwrap();
    let mut transaction = store.begin().await.unwrap();
    let record = transaction.read(&[key::session(id)]).await.unwrap().remove(0).unwrap();
    assert_eq!(Session::from_bytes(&record).unwrap().description.len(), 256);
    drop(mdt);
}
