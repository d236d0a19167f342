//! Who guesses is told nothing, and who was there goes on.

use super::*;
use crate::fixture::*;
use tieline_types::ErrorKind::*;
use tieline_types::{
    Caller, ErrorKind, LockKind, LockMode, LockRange, RenameMode, SetTime, TapeWish, Time,
    XattrName,
};
use tieline_wire::capability::GetCapability;
use tieline_wire::locks::{Lock, TestLock};
use tieline_wire::meta::*;
use tieline_wire::ranges::CopyRange;
use tieline_wire::tape::AskTape;
use tieline_wire::trees::{FilesPage, ReadFiles, ReadTree};

fn bob() -> Caller {
    user(5002, 5002, &[])
}

/// What everybody may read, below a directory that only root may search.
struct Tree {
    private: FileId,
    directory: FileId,
    file: FileId,
    link: FileId,
    /// Everybody may write in it.
    open: FileId,
}

impl Tree {
    async fn new(root: &Client) -> Self {
        let private = root.mkdir(ROOT, "private").await;
        let directory = root.mkdir(private, "directory").await;
        let file = root.create(directory, "file").await;
        root.commit(file, vec![inline(0, b"secret")]).await;
        let link = root.call(symlink(directory, "link", "secret")).await.unwrap();
        let link = link.attributes.unwrap().id;
        root.call(mkdir(ROOT, "all", 0o777)).await.unwrap();
        let open = root.call(mkdir(private, "open", 0o777)).await.unwrap().attributes.unwrap().id;
        for text in ["moved", "gone"] {
            root.create(open, text).await;
        }
        root.mkdir(open, "empty").await;
        Self { private, directory, file, link, open }
    }

    async fn close(&self, root: &Client) {
        root.call(chmod(self.private, 0o700)).await.unwrap();
    }
}

fn read(id: FileId) -> Open {
    Open { id, is_read: true, is_write: false, writes: None }
}

fn tree(id: FileId) -> ReadTree {
    ReadTree {
        roots: vec![id],
        depth: 4,
        entries: 100,
        bytes: 1 << 20,
        contents_max: 1 << 20,
        after: None,
        holder: None,
    }
}

async fn refusals(
    client: &Client,
    tree: &Tree,
    all: FileId,
) -> Vec<(&'static str, Option<ErrorKind>)> {
    let Tree { directory, file, link, open, .. } = *tree;
    let name = XattrName::new("security.label").unwrap();
    let list = ReadDirectory { id: directory, after: None, limit: 10, is_plus: true };
    let own = client.call(create(all, "own", 0o644)).await.unwrap().open.attributes.id;
    let copy = CopyRange {
        from: file,
        from_offset: 0,
        to: own,
        to_offset: 0,
        length: 6,
        mtime: SetTime::Now,
        clears_setid: true,
    };
    let capability = GetCapability {
        id: Some(file),
        is_read: true,
        is_write: false,
        offset: Some(0),
        holder: None,
    };
    vec![
        ("attributes", client.kind_of(GetAttributes { id: file }).await),
        ("of a directory", client.kind_of(GetAttributes { id: directory }).await),
        ("nothing set", client.kind_of(setattr(file)).await),
        (
            "that it was read",
            client.kind_of(SetAttributes { is_access: Some(true), ..setattr(file) }).await,
        ),
        ("the way up", client.kind_of(LookupParent { id: directory }).await),
        (
            "a name",
            client.kind_of(Lookup { parent: directory, name: crate::fixture::name("file") }).await,
        ),
        ("names", client.kind_of(list).await),
        ("a target", client.kind_of(ReadSymlink { id: link }).await),
        ("an open", client.kind_of(read(file)).await),
        ("extents", client.kind_of(GetExtents { id: file, offset: 0, limit: 10 }).await),
        ("attributes' names", client.kind_of(ListXattrs { id: file }).await),
        ("an attribute", client.kind_of(GetXattr { id: file, name }).await),
        ("a layout", client.kind_of(GetLayout { id: file }).await),
        ("a copy", client.kind_of(copy).await),
        ("a name of one's own", client.kind_of(crate::fixture::link(file, all, "mine")).await),
        ("a capability", client.kind_of(capability).await),
        ("a tree", client.kind_of(super::tests::tree(directory)).await),
        ("a lock", client.kind_of(lock(file)).await),
        ("who locks", client.kind_of(test_lock(file)).await),
        ("what tape has", client.kind_of(AskTape { id: file, wish: TapeWish::Restore }).await),
        ("a file that is moved out", client.kind_of(rename((open, "moved"), (all, "out"))).await),
        ("one that is moved in", client.kind_of(rename((all, "own"), (open, "in"))).await),
        ("one that is removed", client.kind_of(unlink(open, "gone")).await),
        ("a directory that is", client.kind_of(rmdir(open, "empty")).await),
        ("one that is made", client.kind_of(mkdir(open, "made", 0o755)).await),
        ("a link that is", client.kind_of(symlink(open, "linked", "there")).await),
    ]
}

async fn told_late(client: &Client, id: FileId, request: &Request) -> BatchOutcome {
    let (op, message) = (request.op().number(), request.encode_message());
    let at = Time { seconds: 1, nanos: 0 };
    let items = vec![BatchItem { caller: bob(), at, id, op, message }];
    client.call(Batch { items }).await.unwrap().outcomes.remove(0)
}

fn lock(id: FileId) -> Lock {
    Lock {
        id,
        kind: LockKind::Flock,
        owner: 1,
        range: LockRange::WHOLE,
        mode: Some(LockMode::Exclusive),
        wait: None,
        idles: None,
    }
}

fn test_lock(id: FileId) -> TestLock {
    TestLock {
        id,
        kind: LockKind::Flock,
        owner: 1,
        range: LockRange::WHOLE,
        mode: LockMode::Shared,
    }
}

#[tokio::test(start_paused = true)]
async fn what_lies_below_a_private_directory_is_not_told_to_who_guesses() {
    let house = House::proven().await;
    let (root, thief) = (house.client().await, house.client().await.by(&bob()));
    let tree = Tree::new(&root).await;
    tree.close(&root).await;
    let all = thief.id(ROOT, "all").await.unwrap();
    let mut told = refusals(&thief, &tree, all).await;
    told.retain(|(_, refused)| *refused != Some(PermissionDenied));
    assert_eq!(told, []);
    let files =
        ReadFiles { ids: vec![tree.file], bytes: 1 << 20, contents_max: 1 << 20, holder: None };
    let page: FilesPage = thief.call(files).await.unwrap().page.open().unwrap();
    assert!(page.files.is_empty(), "{page:?}");
    // Nor by telling later that he gave it a name, or moved it.
    let moved = root.id(tree.open, "moved").await.unwrap();
    let own = root.id(all, "own").await.unwrap();
    let mut exchanged = rename((all, "own"), (tree.open, "moved"));
    exchanged.mode = RenameMode::Exchange;
    for (id, request) in [
        (tree.file, Request::from(link(tree.file, all, "mine"))),
        (moved, Request::from(rename((tree.open, "moved"), (all, "mine")))),
        (own, Request::from(exchanged)),
    ] {
        let outcome = told_late(&thief, id, &request).await;
        let kind = outcome.failure.map(|failure| failure.kind);
        assert_eq!(kind, Some(PermissionDenied), "{request:?}");
    }
    // Nor by a change of it that seems to be done.
    let outcome = told_late(&thief, tree.file, &unlink(all, "nothing").into()).await;
    assert_eq!(outcome, BatchOutcome::default());
    // What he was refused he does not hold.
    assert_eq!(thief.kind_of(GetAttributes { id: tree.file }).await, Some(PermissionDenied));
    // Root holds nothing there, and may go anywhere.
    let other = house.client().await;
    assert_eq!(other.kind_of(GetAttributes { id: tree.file }).await, None);
}

#[tokio::test(start_paused = true)]
async fn who_was_there_goes_on_and_who_comes_after_the_start_goes_the_way() {
    let house = House::proven().await;
    let (root, honest) = (house.client().await, house.client_named(7, None).await);
    let session = honest.session;
    let bob = honest.by(&bob());
    let tree = Tree::new(&root).await;
    let private = bob.id(ROOT, "private").await.unwrap();
    let directory = bob.id(private, "directory").await.unwrap();
    assert_eq!(bob.id(directory, "file").await, Some(tree.file));
    assert_eq!(bob.id(directory, "link").await, Some(tree.link));
    assert_eq!(bob.id(private, "open").await, Some(tree.open));
    tree.close(&root).await;
    // His place of work, what is open there, and what is made there.
    let all = bob.id(ROOT, "all").await.unwrap();
    for (what, refused) in refusals(&bob, &tree, all).await {
        let absent = (what == "an attribute").then_some(NoAttribute);
        assert_eq!(refused, absent, "{what}");
    }
    let again = Lookup { parent: private, name: crate::fixture::name("directory") };
    assert_eq!(bob.kind_of(again).await, Some(PermissionDenied));
    let house = House::proven_on(house.store.clone()).await;
    let again = house.client_named(7, Some(session)).await;
    assert!(again.is_resumed);
    let bob = again.by(&bob.caller);
    let id = tree.directory;
    assert_eq!(bob.kind_of(GetAttributes { id }).await, Some(PermissionDenied));
    // The file has a name of his by now.
    assert!(bob.id(all, "mine").await.is_some());
    assert_eq!(bob.kind_of(GetAttributes { id: tree.file }).await, None);
}

#[tokio::test(start_paused = true)]
async fn any_of_a_files_names_leads_there() {
    let house = House::proven().await;
    let (root, bob) = (house.client().await, house.client().await.by(&bob()));
    let tree = Tree::new(&root).await;
    tree.close(&root).await;
    root.call(link(tree.file, ROOT, "shown")).await.unwrap();
    assert_eq!(bob.kind_of(read(tree.file)).await, None);
    assert_eq!(bob.kind_of(GetAttributes { id: tree.directory }).await, Some(PermissionDenied));
}

#[tokio::test(start_paused = true)]
async fn writing_is_not_asked_for_the_way() {
    let house = House::proven().await;
    let (root, bob) = (house.client().await, house.client().await.by(&bob()));
    let tree = Tree::new(&root).await;
    root.call(chmod(tree.file, 0o666)).await.unwrap();
    tree.close(&root).await;
    bob.commit(tree.file, vec![inline(0, b"promised")]).await;
    assert_eq!(bob.kind_of(GetAttributes { id: tree.file }).await, Some(PermissionDenied));
}
