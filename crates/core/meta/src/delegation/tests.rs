//! A door speaks for users: what it may touch for whom.

use super::*;
use crate::fixture::*;
use tieline_types::ErrorKind::{NotSupported, PermissionDenied};
use tieline_types::{Allowed, Caller, LockKind, LockMode, LockRange, Mode, SetTime};
use tieline_wire::capability::{
    Capability, CapabilityGrant, GetCapability, Scope as Good, SignedCapability,
};
use tieline_wire::ledger::{ListDeleted, Undelete};
use tieline_wire::locks::Lock;
use tieline_wire::meta::*;
use tieline_wire::quotas::{GetQuota, SetProject};
use tieline_wire::ranges::CopyRange;
use tieline_wire::trees::ReadFiles;

const LIFE: Duration = Duration::from_secs(60);

fn ann() -> Caller {
    user(5001, 5001, &[])
}

fn scope(of: &[&str]) -> Scope {
    Scope::new(of.iter().map(|text| text.parse::<Allowed>().unwrap()).collect()).unwrap()
}

fn delegation(proof: u64, scope: Option<Scope>) -> Delegation {
    let door = "tieline_door/a@EXTENCI.ORG".into();
    Delegation { door, proof, scope, until: Some(Instant::now() + LIFE) }
}

/// A session of a door, on behalf of ann.
fn through(client: &Client, of: &[&str]) -> Client {
    client.through(&ann(), delegation(2, Some(scope(of))))
}

/// `/data/run7` and `/data2/run7`, all of them ann's.
struct Tree {
    house: House,
    client: Client,
    data: FileId,
    data2: FileId,
    run7: FileId,
    other: FileId,
}

impl Tree {
    async fn new() -> Self {
        let house = House::proven().await;
        let client = house.client().await;
        let root = client.by(&Caller::root());
        let mode = SetAttributes { mode: Some(Mode::new(0o777)), ..unchanged(ROOT) };
        root.call(mode).await.unwrap();
        let ann = client.by(&ann());
        let (data, data2) = (ann.mkdir(ROOT, "data").await, ann.mkdir(ROOT, "data2").await);
        let (run7, other) = (ann.create(data, "run7").await, ann.create(data2, "run7").await);
        for file in [run7, other] {
            ann.commit(file, vec![inline(0, b"events")]).await;
        }
        Self { house, client, data, data2, run7, other }
    }

    fn through(&self, of: &[&str]) -> Client {
        through(&self.client, of)
    }
}

fn unchanged(id: FileId) -> SetAttributes {
    SetAttributes {
        id,
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        is_handle: false,
        is_access: None,
    }
}

fn open(id: FileId, is_read: bool, is_write: bool) -> Open {
    Open { id, is_read, is_write, writes: None }
}

fn link(id: FileId, parent: FileId, text: &str) -> Link {
    Link { id, parent, name: name(text), replaces: None, keep: None }
}

fn list(id: FileId) -> ReadDirectory {
    ReadDirectory { id, after: None, limit: 100, is_plus: true }
}

async fn refused<C: tieline_wire::Call>(client: &Client, call: C) -> String {
    let failure = client.call(call).await.err().expect("it is refused");
    assert_eq!(failure.kind, PermissionDenied, "{failure}");
    assert!(failure.detail.contains("the scope of this delegation"), "{failure}");
    failure.detail
}

#[tokio::test(start_paused = true)]
async fn what_is_within_is_read_and_nothing_else() {
    let tree = Tree::new().await;
    let reader = tree.through(&["read:/data"]);
    assert_eq!(reader.id(ROOT, "data").await, Some(tree.data));
    assert_eq!(reader.list(tree.data).await, ["run7"]);
    let opened = reader.call(open(tree.run7, true, false)).await.unwrap();
    assert_eq!(opened.extents.extents, [inline(0, b"events")]);
    reader.stat(tree.data).await;
    // On the way: the next name, and attributes; no more.
    reader.stat(ROOT).await;
    let why = refused(&reader, list(ROOT)).await;
    assert!(why.contains("(read:/data) does not hold reading / "), "{why}");
    let why = refused(&reader, Lookup { parent: ROOT, name: name("data2") }).await;
    assert!(why.contains("looking at /data2"), "{why}");
    // By numbers, nobody is told what they stand for.
    for why in [
        refused(&reader, GetAttributes { id: tree.data2 }).await,
        refused(&reader, list(tree.data2)).await,
        refused(&reader, LookupParent { id: tree.other }).await,
        refused(&reader, Lookup { parent: tree.data2, name: name("run7") }).await,
        refused(&reader, open(tree.other, true, false)).await,
        refused(&reader, open(tree.other, false, false)).await,
        refused(&reader, GetExtents { id: tree.other, offset: 0, limit: 1 }).await,
        refused(&reader, ListXattrs { id: tree.other }).await,
        refused(&reader, GetLayout { id: tree.other }).await,
    ] {
        assert!(!why.contains("/data2"), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_read_changes_nothing() {
    let tree = Tree::new().await;
    let reader = tree.through(&["read:/data"]);
    let (data, run7) = (tree.data, tree.run7);
    refused(&reader, open(run7, true, true)).await;
    refused(&reader, Open { writes: Some(true), ..open(run7, true, false) }).await;
    refused(&reader, commit(run7, vec![inline(0, b"x")])).await;
    refused(&reader, SetAttributes { mode: Some(Mode::new(0o777)), ..unchanged(run7) }).await;
    refused(&reader, SetAttributes { size: Some(0), is_handle: true, ..unchanged(run7) }).await;
    refused(&reader, Place { id: run7, exclude: vec![], wish: None }).await;
    refused(&reader, create(data, "new", 0o644)).await;
    refused(&reader, mkdir(data, "new", 0o755)).await;
    refused(&reader, unlink(data, "run7")).await;
    refused(&reader, rename((data, "run7"), (data, "run8"))).await;
    refused(&reader, link(run7, data, "run8")).await;
    let time = Some(SetTime::Now);
    let read = SetAttributes { atime: time, is_access: Some(true), ..unchanged(run7) };
    reader.call(read).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_may_make_files_fills_his_own_and_no_other() {
    let tree = Tree::new().await;
    let maker = tree.through(&["create:/data"]);
    let data = tree.data;
    refused(&maker, Create { is_exclusive: false, ..create(data, "run7", 0o644) }).await;
    let made = maker.create(data, "new").await;
    maker.commit(made, vec![inline(0, b"new")]).await;
    maker.call(open(made, true, true)).await.unwrap();
    maker.call(rename((data, "new"), (data, "newer"))).await.unwrap();
    refused(&maker, rename((data, "newer"), (data, "run7"))).await;
    refused(&maker, commit(tree.run7, vec![inline(0, b"x")])).await;
    refused(&maker, unlink(data, "run7")).await;
    refused(&maker, open(tree.run7, true, false)).await;
    // Another user of the same door, and another delegation of the same.
    let other = tree.client.through(&ann(), delegation(3, Some(scope(&["create:/data"]))));
    refused(&other, commit(made, vec![inline(0, b"x")])).await;
    maker.call(unlink(data, "newer")).await.unwrap();
    let call = Create { is_nameless: Some(true), ..create(data, "x", 0o644) };
    let nameless = maker.call(call.clone()).await.unwrap().open.attributes.id;
    maker.commit(nameless, vec![inline(0, b"new")]).await;
    refused(&maker, link(nameless, tree.data2, "out")).await;
    maker.call(link(nameless, data, "linked")).await.unwrap();
    refused(&maker, Create { parent: tree.data2, ..call }).await;
}

/// As doors put files in place that were sent to them: made without a name, filled, and linked.
#[tokio::test(start_paused = true)]
async fn what_is_sent_hidden_replaces_only_what_may_be_changed() {
    let tree = Tree::new().await;
    let nameless = || Create { is_nameless: Some(true), ..create(tree.data, "x", 0o644) };
    let replacing = |id, text: &str| Link { replaces: Some(true), ..link(id, tree.data, text) };
    for (of, may_replace) in [("create:/data", false), ("modify:/data", true)] {
        let door = tree.through(&[of]);
        let file = door.call(nameless()).await.unwrap().open.attributes.id;
        door.commit(file, vec![inline(0, b"sent")]).await;
        door.call(replacing(file, of.split_once(':').unwrap().0)).await.unwrap();
        let other = door.call(nameless()).await.unwrap().open.attributes.id;
        if may_replace {
            door.call(replacing(other, "run7")).await.unwrap();
        } else {
            let why = refused(&door, replacing(other, "run7")).await;
            assert!(why.contains("changing /data/run7"), "{why}");
        }
    }
    let reader = tree.through(&["read:/data"]);
    refused(&reader, nameless()).await;
}

#[tokio::test(start_paused = true)]
async fn who_may_write_and_not_read_is_told_no_bytes() {
    let tree = Tree::new().await;
    let writer = tree.through(&["modify:/data"]);
    refused(&writer, open(tree.run7, true, true)).await;
    let opened = writer.call(open(tree.run7, false, true)).await.unwrap();
    assert_eq!(opened.extents, ExtentPage::default());
    let created = writer.call(Create { is_exclusive: false, ..create(tree.data, "run7", 0o644) });
    assert_eq!(created.await.unwrap().open.extents, ExtentPage::default());
    refused(&writer, GetExtents { id: tree.run7, offset: 0, limit: 1 }).await;
    refused(&writer, open(tree.run7, false, false)).await;
    refused(&writer, list(tree.data)).await;
    writer.commit(tree.run7, vec![inline(0, b"other")]).await;
    writer.call(unlink(tree.data, "run7")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_brought_within_by_other_names() {
    let tree = Tree::new().await;
    let writer = tree.through(&["read:/data", "modify:/data"]);
    refused(&writer, link(tree.other, tree.data, "mine")).await;
    refused(&writer, rename((tree.data2, "run7"), (tree.data, "mine"))).await;
    refused(&writer, rename((tree.data, "run7"), (tree.data2, "out"))).await;
    let exchange =
        Rename { mode: RenameMode::Exchange, ..rename((tree.data, "run7"), (tree.data2, "run7")) };
    refused(&writer, exchange).await;
    let copy = CopyRange {
        from: tree.other,
        to: tree.run7,
        from_offset: 0,
        to_offset: 0,
        length: 6,
        mtime: SetTime::Now,
        clears_setid: false,
    };
    refused(&writer, copy).await;
    // Nor by somebody else, who may link what is not his.
    let bob = tree.client.by(&user(5002, 5002, &[]));
    let mode = SetAttributes { mode: Some(Mode::new(0o777)), ..unchanged(tree.data) };
    tree.client.by(&ann()).call(mode).await.unwrap();
    bob.call(link(tree.other, tree.data, "bait")).await.unwrap();
    let why = refused(&writer, open(tree.other, true, false)).await;
    assert!(why.contains("by each of its names"), "{why}");
    refused(&writer, commit(tree.other, vec![inline(0, b"x")])).await;
    refused(&writer, Create { is_exclusive: false, ..create(tree.data, "bait", 0o644) }).await;
    // A link to elsewhere leads nobody there.
    let target = b"../data2/run7".to_vec();
    let symlink = MakeSymlink { parent: tree.data, name: name("sym"), target };
    writer.call(symlink).await.unwrap();
    refused(&writer, Lookup { parent: ROOT, name: name("data2") }).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_moves_to_where_more_is_allowed() {
    let tree = Tree::new().await;
    let both = tree.through(&["modify:/data", "modify:/data2", "read:/data2"]);
    refused(&both, rename((tree.data, "run7"), (tree.data2, "read"))).await;
    refused(&both, link(tree.run7, tree.data2, "read")).await;
    let why = refused(&both, rename((ROOT, "data"), (tree.data2, "all"))).await;
    assert!(why.contains("doing more with it at /data2/all"), "{why}");
    both.call(rename((tree.data2, "run7"), (tree.data, "less"))).await.unwrap();
    // What lies below moves along.
    let deep = tree.through(&["modify:/", "read:/data2/sub/in"]);
    deep.mkdir(tree.data, "in").await;
    refused(&deep, rename((ROOT, "data"), (tree.data2, "sub"))).await;
    deep.call(rename((ROOT, "data"), (tree.data2, "sup"))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_was_moved_out_is_out_at_once() {
    let tree = Tree::new().await;
    let reader = tree.through(&["read:/data"]);
    reader.call(open(tree.run7, true, false)).await.unwrap();
    let ann = tree.client.by(&ann());
    ann.call(rename((tree.data, "run7"), (tree.data2, "moved"))).await.unwrap();
    refused(&reader, open(tree.run7, true, false)).await;
    ann.call(rename((ROOT, "data2"), (tree.data, "within"))).await.unwrap();
    reader.call(open(tree.run7, true, false)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_door_decides_nothing_by_itself() {
    let tree = Tree::new().await;
    for client in [tree.through(&["modify:/", "read:/"]), {
        tree.client.through(&ann(), delegation(2, None))
    }] {
        assert_eq!(client.kind_of(Reserve { count: 8 }).await, Some(NotSupported));
        let project = SetProject { ids: vec![tree.run7], project: 1 };
        assert_eq!(client.kind_of(project).await, Some(NotSupported));
        let undelete = Undelete {
            id: tree.run7,
            from: tree.data2,
            parent: tree.data,
            name: name("x"),
            lost: None,
        };
        assert_eq!(client.kind_of(undelete).await, Some(NotSupported));
        client.list(ROOT).await;
        client.create(tree.data2, "new").await;
        client.call(unlink(tree.data2, "new")).await.unwrap();
    }
    // For itself it keeps its session, and touches nothing.
    let nobody = user(65_534, 65_534, &[]);
    let itself = tree.client.through(&nobody, Delegation::of_itself("tieline_door/a@R".into()));
    itself.call(Usage {}).await.unwrap();
    for id in [ROOT, tree.data] {
        refused(&itself, GetAttributes { id }).await;
        refused(&itself, list(id)).await;
    }
    refused(&itself, Lookup { parent: ROOT, name: name("data") }).await;
    assert_eq!(itself.kind_of(Reserve { count: 8 }).await, Some(NotSupported));
}

#[tokio::test(start_paused = true)]
async fn rights_are_looked_at_as_ever() {
    let tree = Tree::new().await;
    let bob = user(5002, 5002, &[]);
    let all = scope(&["modify:/", "read:/"]);
    for scope in [Some(all), None] {
        let bob = tree.client.through(&bob, delegation(2, scope));
        let failure = bob.call(commit(tree.run7, vec![inline(0, b"x")])).await.unwrap_err();
        assert_eq!(failure.kind, PermissionDenied);
        assert!(failure.detail.contains("mode of"), "{failure}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_beside_the_store_and_in_bulk_are_looked_at_too() {
    let tree = Tree::new().await;
    let reader = tree.through(&["read:/data"]);
    let lock = |id| Lock {
        id,
        kind: LockKind::Posix,
        owner: 1,
        range: LockRange { start: 0, end: 1 },
        mode: Some(LockMode::Shared),
        wait: None,
        idles: None,
    };
    reader.call(lock(tree.run7)).await.unwrap();
    refused(&reader, lock(tree.other)).await;
    let listing = |directory| ListDeleted {
        directory,
        after: None,
        limit: 10,
        is_lost: None,
        after_name: None,
    };
    reader.call(listing(tree.data)).await.unwrap();
    refused(&reader, listing(tree.data2)).await;
    let files = |id| ReadFiles { ids: vec![id], bytes: 100, contents_max: 100, holder: None };
    assert_eq!(reader.kind_of(files(tree.run7)).await, Some(NotSupported));
    let all = tree.through(&["read:/"]);
    all.call(files(tree.run7)).await.unwrap();
    let payer = tieline_types::quota::Payer {
        kind: tieline_types::quota::PayerKind::User,
        id: 5001,
        pool: None,
    };
    reader.call(GetQuota { payer, is_default: None }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn items_of_a_batch_are_their_callers() {
    let tree = Tree::new().await;
    let item = |id, request: Request| {
        let (op, message) = (request.op().number(), request.encode_message());
        BatchItem { caller: ann(), at: Default::default(), id, op, message }
    };
    let set = |id| SetAttributes { mode: Some(Mode::new(0o600)), ..unchanged(id) };
    let items: Vec<BatchItem> =
        [tree.run7, tree.other, tree.run7].map(|id| item(id, set(id).into())).into();
    let writes = Some(Arc::new(delegation(2, Some(scope(&["modify:/data"])))));
    let reads = Some(Arc::new(delegation(3, Some(scope(&["read:/data"])))));
    let door = Delegation::of_itself("tieline_door/a@R".into());
    let client = Client {
        of_items: vec![writes.clone(), writes, reads],
        ..tree.client.through(&user(65_534, 65_534, &[]), door)
    };
    let reply = client.call(Batch { items }).await.unwrap();
    let refused: Vec<bool> = reply.outcomes.iter().map(|one| one.failure.is_some()).collect();
    assert_eq!(refused, [false, true, true]);
}

/// What a capability that was given says.
fn said(grant: &CapabilityGrant) -> Capability {
    let signed: SignedCapability = tieline_wire::decode(&grant.signed).unwrap();
    tieline_wire::decode(&signed.capability).unwrap()
}

#[tokio::test(start_paused = true)]
async fn capabilities_say_no_more_and_hold_no_longer() {
    let tree = Tree::new().await;
    let reader = tree.through(&["read:/data"]);
    let opened = reader.call(open(tree.run7, true, false)).await.unwrap();
    let grant = opened.capability.unwrap();
    assert!(u128::from(grant.life_ms) <= LIFE.as_millis() && grant.life_ms > 0);
    let scope = said(&grant).scope;
    assert!(matches!(scope, Good::Delegated { file, is_read: true, is_write: false, .. }
        if file == tree.run7));
    let wish =
        |id, is_read, is_write| GetCapability { id, is_read, is_write, offset: None, holder: None };
    let given = reader.call(wish(Some(tree.run7), true, false)).await.unwrap().grant.unwrap();
    assert!(u128::from(given.life_ms) <= LIFE.as_millis());
    refused(&reader, wish(Some(tree.run7), false, true)).await;
    refused(&reader, wish(Some(tree.run7), true, true)).await;
    refused(&reader, wish(Some(tree.other), true, false)).await;
    refused(&reader, wish(Some(tree.other), false, false)).await;
    // What the session writes is not one user's.
    assert_eq!(reader.call(wish(None, true, true)).await.unwrap().grant, None);
    let writer = tree.through(&["modify:/data"]);
    refused(&writer, wish(Some(tree.run7), true, false)).await;
    let given = writer.call(wish(Some(tree.run7), false, true)).await.unwrap().grant.unwrap();
    assert_eq!(said(&given).scope.rights(), (false, true));
    tokio::time::advance(LIFE).await;
    let late = reader.call(wish(Some(tree.run7), true, false)).await.unwrap().grant.unwrap();
    assert_eq!(late.life_ms, 0, "whoever judges who asks lets nobody come so late");
}

#[tokio::test(start_paused = true)]
async fn where_an_mdt_is_mounted_is_part_of_the_way() {
    let tree = Tree::new().await;
    let current = tree.house.mdt.parts.map.current();
    let fnal = current.map.junctions.first().unwrap().mdt;
    assert_eq!(way_of_root(&current.map, fnal).unwrap(), [name("fnal")]);
    assert_eq!(way_of_root(&current.map, MdtIndex(0)).unwrap(), []);
    let mut nested = current.map.clone();
    let junction = |parent, text: &str, mdt| tieline_format::map::Junction {
        parent,
        name: name(text),
        mdt: MdtIndex(mdt),
    };
    nested.junctions.push(junction(FileId::root_of(fnal), "deep", 7));
    nested.junctions.push(junction(tree.data, "far", 8));
    nested.junctions.push(junction(FileId::root_of(MdtIndex(9)), "round", 9));
    assert_eq!(way_of_root(&nested, MdtIndex(7)).unwrap(), [name("fnal"), name("deep")]);
    for unknown in [8, 9, 10] {
        let error = way_of_root(&nested, MdtIndex(unknown)).unwrap_err();
        assert_eq!(error.kind(), NotSupported, "{error}");
    }
    // Its name is looked up like any other.
    let reader = tree.through(&["read:/fnal/run7"]);
    assert_eq!(reader.lookup(ROOT, "fnal").await.junction, Some(fnal));
    refused(&tree.through(&["read:/data"]), Lookup { parent: ROOT, name: name("fnal") }).await;
}
