//! What clients say and are not believed: whose chunks, whose ids, what time it is, and, where
//! everybody proves who he is, what their handles are for.

use crate::fixture::*;
use tieline_types::ErrorKind::*;
use tieline_types::{
    Algorithm, Caller, Content, Digest, Encoding, Extent, FileId, LockKind, LockMode, LockRange,
    MdtIndex, ObjectName, OstIndex, SetTime, Time, XattrMode, XattrName,
};
use tieline_wire::Request;
use tieline_wire::ledger::{ListDeleted, Undelete};
use tieline_wire::locks::{Lock, LockOutcome};
use tieline_wire::meta::*;
use tieline_wire::quotas::Promise;
use tieline_wire::ranges::*;

fn ann() -> Caller {
    user(5001, 5001, &[])
}

fn bob() -> Caller {
    user(5002, 5002, &[])
}

/// A file of ann's that others may not, or may only, read.
async fn hers(client: &Client, text: &str, mode: u32) -> FileId {
    let id = client.call(create(ROOT, text, mode)).await.unwrap().open.attributes.id;
    let given = SetAttributes { uid: Some(ann().uid), gid: Some(ann().gid), ..setattr(id) };
    client.call(given).await.unwrap();
    id
}

/// The same chunk with a digest, as clients make them.
pub(super) fn sealed(mut extent: Extent) -> Extent {
    chunk_of(&mut extent).digest = Some(Digest::of(b"its bytes"));
    extent
}

fn chunk_of(extent: &mut Extent) -> &mut tieline_types::ChunkRef {
    let Content::Chunk(chunk) = &mut extent.content else { panic!("a chunk") };
    chunk
}

fn item(caller: &Caller, id: FileId, at: Time, request: impl Into<Request>) -> BatchItem {
    let request = request.into();
    let (op, message) = (request.op().number(), request.encode_message());
    BatchItem { caller: caller.clone(), at, id, op, message }
}

#[tokio::test(start_paused = true)]
async fn chunks_of_others_are_not_made_ones_own() {
    let house = House::new().await;
    let (victim, thief) = (house.client().await, house.client().await);
    let (secret, own) = (victim.create(ROOT, "secret").await, thief.create(ROOT, "own").await);
    let theirs = victim.chunk(1, 0, 100);
    victim.commit(secret, vec![theirs.clone()]).await;
    // One that is there and in use, where the file has none of it.
    assert_eq!(thief.kind_of(commit(own, vec![theirs.clone()])).await, Some(Gone));
    // A new one that lies in their object, or within another.
    let mut posing = thief.chunk(1, 0, 100);
    let id = chunk_of(&mut theirs.clone()).chunk.granted().unwrap();
    chunk_of(&mut posing).places[0].object = ObjectName::Chunk(id);
    assert_eq!(thief.kind_of(commit(own, vec![posing.clone()])).await, Some(InvalidArgument));
    let mut within = thief.chunk(1, 0, 100);
    chunk_of(&mut within).places[0].offset = 4096;
    assert_eq!(thief.kind_of(commit(own, vec![within])).await, Some(InvalidArgument));
    // Nor by rewriting what one has.
    thief.commit(own, vec![thief.chunk(2, 0, 100)]).await;
    let was = vec![SeenExtent {
        offset: 0,
        length: 100,
        content: SeenContent::Chunk { chunk: chunk_of(&mut thief.chunk(2, 0, 100)).chunk, skip: 0 },
    }];
    for (extent, kind) in [(theirs, Gone), (posing, InvalidArgument)] {
        let call = Compact { id: own, was: was.clone(), extents: vec![extent] };
        assert_eq!(thief.kind_of(call).await, Some(kind));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_committed_under_a_lost_session_is_committed_again() {
    let house = House::new().await;
    let (before, after) = (house.client().await, house.client().await);
    let file = before.create(ROOT, "f").await;
    let extent = before.chunk(1, 0, 100);
    before.commit(file, vec![extent.clone()]).await;
    house.mdt.end_session(before.session).await.unwrap();
    after.commit(file, vec![extent.clone()]).await;
    assert_eq!(after.extents(file).await, [extent]);
}

#[tokio::test(start_paused = true)]
async fn new_chunks_are_what_chunks_can_be() {
    let house = House::new().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let refused = async |change: &dyn Fn(&mut tieline_types::ChunkRef)| {
        let mut extent = client.chunk(1, 0, 5000);
        change(chunk_of(&mut extent));
        assert_eq!(client.kind_of(commit(file, vec![extent])).await, Some(InvalidArgument));
    };
    refused(&|chunk| chunk.checks = Some(vec![7; 3])).await;
    refused(&|chunk| chunk.places = vec![chunk.places[0].clone(); 17]).await;
    refused(&|chunk| {
        chunk.length = (64 << 20) + 1;
        chunk.places[0].length = Some(chunk.length);
    })
    .await;
    let mut good = client.chunk(1, 0, 5000);
    chunk_of(&mut good).checks = Some(vec![7; 2]);
    client.commit(file, vec![good]).await;
}

#[tokio::test(start_paused = true)]
async fn new_chunks_have_a_digest_where_clients_prove_who_they_are() {
    for (house, is_proven) in [(House::proven().await, true), (House::new().await, false)] {
        let client = house.client().await;
        let file = client.create(ROOT, "f").await;
        let mut other = client.chunk(1, 0, 100);
        chunk_of(&mut other).digest =
            Some(Digest::compute(Algorithm::Sha256, Encoding::Plain, b"x"));
        assert_eq!(client.kind_of(commit(file, vec![other])).await, Some(InvalidArgument));
        let without = client.kind_of(commit(file, vec![client.chunk(2, 0, 100)])).await;
        assert_eq!(without, is_proven.then_some(InvalidArgument));
        client.commit(file, vec![sealed(client.chunk(3, 0, 100))]).await;
        // Its bytes were there before us, and its digest comes with its checksums.
        let mut adopted = client.chunk(4, 0, 100);
        let path = "x".to_owned();
        chunk_of(&mut adopted).places[0].object =
            ObjectName::External { path, size: 100, mtime_ns: 0 };
        client.commit(file, vec![adopted]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn compaction_is_for_those_who_may_write() {
    let house = House::proven().await;
    let client = house.client().await;
    let file = hers(&client, "f", 0o644).await;
    let (ann, bob) = (client.by(&ann()), client.by(&bob()));
    ann.commit(file, vec![sealed(client.chunk(1, 0, 100))]).await;
    let chunk = chunk_of(&mut client.chunk(1, 0, 100)).chunk;
    let was =
        vec![SeenExtent { offset: 0, length: 100, content: SeenContent::Chunk { chunk, skip: 0 } }];
    let call = |serial| Compact {
        id: file,
        was: was.clone(),
        extents: vec![sealed(client.chunk(serial, 0, 100))],
    };
    assert_eq!(bob.kind_of(call(2)).await, Some(PermissionDenied));
    assert!(ann.call(call(3)).await.unwrap().is_done);
}

#[tokio::test(start_paused = true)]
async fn calls_about_handles_are_judged_by_the_file() {
    let house = House::proven().await;
    let client = house.client().await;
    let (secret, shown) =
        (hers(&client, "secret", 0o600).await, hers(&client, "shown", 0o644).await);
    let (ann, bob) = (client.by(&ann()), client.by(&bob()));
    let promise = |id, wanted| Promise { id, wanted, needed: wanted, payers: None };
    assert_eq!(bob.kind_of(promise(shown, 1 << 30)).await, Some(PermissionDenied));
    assert_eq!(bob.kind_of(promise(shown, 0)).await, None, "giving back is not asked for");
    assert_eq!(ann.kind_of(promise(shown, 1 << 20)).await, None);
    let there = FileId::new(MdtIndex(1), shown.serial());
    assert_eq!(ann.kind_of(promise(there, 1)).await, Some(WrongServer));
    let place = |id| Place { id, exclude: vec![OstIndex(0)], wish: None };
    assert_eq!(bob.kind_of(place(shown)).await, Some(PermissionDenied));
    assert_eq!(ann.kind_of(place(shown)).await, None);
    let times = |is_access: bool| SetAttributes {
        atime: Some(SetTime::At(Time { seconds: 5, nanos: 0 })),
        mtime: (!is_access).then_some(SetTime::At(Time { seconds: 5, nanos: 0 })),
        is_handle: true,
        is_access: is_access.then_some(true),
        ..setattr(secret)
    };
    for is_access in [true, false] {
        assert_eq!(bob.kind_of(times(is_access)).await, Some(PermissionDenied), "{is_access}");
        assert_eq!(ann.kind_of(times(is_access)).await, None);
    }
    let lock = |id, owner, mode| Lock {
        id,
        kind: LockKind::Posix,
        owner,
        range: LockRange { start: 0, end: 10 },
        mode: Some(mode),
        wait: None,
        idles: None,
    };
    assert_eq!(bob.kind_of(lock(secret, 1, LockMode::Shared)).await, Some(PermissionDenied));
    let locked = ann.call(lock(secret, 2, LockMode::Exclusive)).await.unwrap();
    assert_eq!(locked.outcome, LockOutcome::Granted);
    assert_eq!(bob.kind_of(lock(shown, 3, LockMode::Shared)).await, None);
}

#[tokio::test(start_paused = true)]
async fn values_of_attributes_are_for_those_who_may_read_the_file() {
    let house = House::new().await;
    let client = house.client().await;
    let file = hers(&client, "f", 0o600).await;
    let name = XattrName::new("user.note").unwrap();
    let set = SetXattr { id: file, name, value: b"private".to_vec(), mode: XattrMode::Either };
    client.call(set).await.unwrap();
    let listed = async |caller: &Caller| {
        let reply = client.by(caller).call(ListXattrs { id: file }).await.unwrap();
        reply.xattrs.into_iter().map(|xattr| xattr.value).collect::<Vec<_>>()
    };
    assert_eq!(listed(&ann()).await, [b"private"]);
    assert_eq!(listed(&bob()).await, [b""]);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_used_is_no_new_files() {
    let house = House::keeping().await;
    let client = house.client_named(5, None).await;
    let first = client.call(Reserve { count: 100 }).await.unwrap().first;
    let id = FileId::new(MdtIndex(0), first);
    let now = Time { seconds: 1, nanos: 0 };
    let made = client.call(mkdir(ROOT, "all", 0o777)).await.unwrap();
    let all = made.attributes.unwrap().id;
    let make = |caller: &Caller, text: &str| item(caller, id, now, create(all, text, 0o600));
    let batch = |items| Batch { items };
    let root = Caller::root();
    client.call(batch(vec![make(&root, "secret")])).await.unwrap();
    client.commit(id, vec![client.chunk(1, 0, 100)]).await;
    client.call(unlink(all, "secret")).await.unwrap();
    // Its bytes wait to be brought back: nobody else's file has its id meanwhile.
    client.call(batch(vec![make(&bob(), "mine")])).await.unwrap();
    assert_eq!(client.id(all, "mine").await, None);
    // Of a session that ended, its client may give the rest: nobody else.
    house.mdt.end_session(client.session).await.unwrap();
    let (again, thief) = (house.client_named(5, None).await, house.client_named(6, None).await);
    thief.call(Reserve { count: 100 }).await.unwrap();
    let next = FileId::new(MdtIndex(0), first + 1);
    let late = || batch(vec![item(&root, next, now, create(ROOT, "late", 0o644))]);
    assert_eq!(thief.kind_of(late()).await, Some(InvalidArgument));
    again.call(late()).await.unwrap();
    assert_eq!(again.id(ROOT, "late").await, Some(next));
    again.call(batch(vec![make(&bob(), "mine")])).await.unwrap();
    assert_eq!(again.id(all, "mine").await, None);
    let undelete = Undelete { id, from: all, parent: ROOT, name: name("back"), lost: None };
    again.call(undelete).await.unwrap();
    assert_eq!(again.extents(id).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_batch_is_the_time_of_files_alone() {
    let house = House::keeping().await;
    let client = house.client().await;
    let first = client.call(Reserve { count: 100 }).await.unwrap().first;
    let id = |nth| FileId::new(MdtIndex(0), first + nth);
    let now = client
        .call(ListDeleted {
            directory: ROOT,
            after: None,
            limit: 1,
            is_lost: None,
            after_name: None,
        })
        .await
        .unwrap()
        .now;
    let far = Time { seconds: now.seconds + 1_000_000, nanos: 0 };
    let root = Caller::root();
    let items = vec![
        item(&root, id(0), far, create(ROOT, "a", 0o644)),
        item(&root, id(1), far, create(ROOT, "b", 0o644)),
        item(&root, id(1), far, unlink(ROOT, "b")),
        item(&root, id(2), Time { seconds: 1, nanos: 1 << 30 }, create(ROOT, "c", 0o644)),
        item(&root, id(3), Time { seconds: -1, nanos: 0 }, create(ROOT, "d", 0o644)),
    ];
    let reply = client.call(Batch { items }).await.unwrap();
    let failed: Vec<bool> = reply.outcomes.iter().map(|one| one.failure.is_some()).collect();
    assert_eq!(failed, [false, false, false, true, true]);
    let made = client.stat(id(0)).await;
    assert!(made.ctime.seconds <= now.seconds + 301, "{:?} is after {now:?}", made.ctime);
    let deleted = client
        .call(ListDeleted {
            directory: ROOT,
            after: None,
            limit: 9,
            is_lost: None,
            after_name: None,
        })
        .await
        .unwrap();
    assert!(deleted.files[0].deleted.seconds <= now.seconds + 1, "it would be kept longer");
}
