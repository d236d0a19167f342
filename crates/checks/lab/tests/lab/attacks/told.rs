//! What is told to whom: a client that asks for all that it has heard of, and for what it guesses.

use super::hostile::{Guise, Line, Scene, refused, user};
use anyhow::{Context, Result, ensure};
use tieline_types::{
    Caller, Extent, FileId, LockKind, LockMode, LockRange, Mode, RenameMode, Time,
};
use tieline_wire::Call;
use tieline_wire::capability::GetCapability;
use tieline_wire::locks::Lock;
use tieline_wire::meta::{
    Batch, BatchItem, Create, GetAttributes, GetExtents, GetLayout, Link, ListXattrs, Lookup,
    LookupParent, Open, ReadDirectory, ReadSymlink, Rename, Unlink,
};
use tieline_wire::trees::{
    BundleList, FilesPage, ReadBundle, ReadFiles, ReadTree, ReportBundle, TreePage,
};

/// By what the user database here knows `daemon`.
const DAEMON: u32 = 1;
/// How an honest program is she.
const AS_DAEMON: &str = "setpriv --reuid=1 --regid=1 --clear-groups";

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let hers = scene.dial(&scene.mds, &Guise::of(&scene.user("daemon")?, 70));
    bytes(scene, &hers).await.context("bytes")?;
    names(scene, &hers).await.context("what can be listed and not searched")?;
    guesses(scene, &hers).await.context("ids that are guessed")
}

pub async fn find(line: &Line, parent: FileId, name: &str) -> Result<FileId> {
    let found = line.ask(&user(DAEMON), Lookup { parent, name: name.parse()? }).await?;
    Ok(found.attributes.context("it is there")?.id)
}

/// Who may write alone: an in-tray, small enough to lie in the metadata.
async fn bytes(scene: &Scene<'_>, hers: &Line) -> Result<()> {
    let script = "chmod 755 . && mkdir -m 777 told && cd told && echo private > in-tray \
                  && chmod 622 in-tray && sync in-tray";
    scene.federation.shell(script)?;
    let caller = user(DAEMON);
    let parent = find(hers, FileId(1), "told").await?;
    let id = find(hers, parent, "in-tray").await?;
    for writes in [None, Some(true)] {
        let open = Open { id, is_read: false, is_write: true, writes };
        let opened = hers.ask(&caller, open).await.context("she may write")?;
        ensure!(opened.extents.extents.is_empty(), "an open to write tells bytes");
    }
    let page = GetExtents { id, offset: 0, limit: 10 };
    refused("extents of what may only be written", hers.ask(&caller, page).await)?;
    let there = Create {
        parent,
        name: "in-tray".parse()?,
        mode: Mode::new(0o644),
        umask: Mode::new(0),
        is_exclusive: false,
        layout: None,
        is_nameless: None,
    };
    let created = hers.ask(&caller, there).await?;
    let extents: Vec<Extent> = created.open.extents.extents;
    ensure!(!created.is_new && extents.is_empty(), "what was there is told to who would make it");
    // Honest programs write it all the same, in both ways, and ask how long it is.
    let honest = format!(
        "cd told && {AS_DAEMON} sh -c 'echo one >> in-tray' \
         && printf 'private\\none\\n' | cmp - in-tray \
         && {AS_DAEMON} dd if=/dev/zero of=in-tray bs=1 seek=3 count=2 \
            conv=notrunc status=none \
         && {AS_DAEMON} perl -e 'open(my $f, q(>>), q(in-tray)) or die; \
            sysseek($f, 0, 4) == 12 or die qq(hole: $!); \
            sysseek($f, 2, 3) == 2 or die qq(data: $!)' \
         && test $(stat -c %s in-tray) = 12 && ! {AS_DAEMON} cat in-tray 2> /dev/null"
    );
    scene.federation.shell(&honest).context("honest work")?;
    Ok(())
}

/// A directory of mode 744 tells names and no more.
async fn names(scene: &Scene<'_>, hers: &Line) -> Result<()> {
    let script = "cd told && mkdir listed && ln -s /secret/place listed/link && chmod 744 listed \
                  && sync listed";
    scene.federation.shell(script)?;
    let parent = find(hers, FileId(1), "told").await?;
    let id = find(hers, parent, "listed").await?;
    let list = ReadDirectory { id, after: None, limit: 10, is_plus: true };
    let told = hers.ask(&user(DAEMON), list.clone()).await?;
    let entry = told.entries.first().context("its name is told")?;
    ensure!(entry.attributes.is_none() && entry.target.is_none(), "{entry:?}");
    let root = scene.dial(&scene.mds, &Guise::of(&scene.machine, 71));
    let told = root.ask(&Caller::root(), list).await?;
    ensure!(told.entries.first().is_some_and(|entry| entry.target.is_some()));
    let script = format!("cd told && {AS_DAEMON} ls listed && ! {AS_DAEMON} stat listed/link");
    scene.federation.shell(&script).map(drop)
}

/// What everybody may read lies below a directory that root alone may search. Its ids are numbers.
async fn guesses(scene: &Scene<'_>, hers: &Line) -> Result<()> {
    let script = "cd told && mkdir -m 755 private && cd private && mkdir -m 755 below && cd below \
                  && echo secret > file && head -c 100000 /dev/urandom > large \
                  && ln -s secret link && cp file one && cp file other \
                  && chmod 644 file large one other && mkdir -m 777 ../open \
                  && echo moved > ../open/moved && sync file large ../open/moved . ..";
    scene.federation.shell(script)?;
    let caller = user(DAEMON);
    let told = find(hers, FileId(1), "told").await?;
    // While it is open she walks in, with one of her sessions; she works on there.
    let works = scene.dial(&scene.mds, &Guise::of(&scene.user("daemon")?, 72));
    let told_there = find(&works, FileId(1), "told").await?;
    let private = find(&works, told_there, "private").await?;
    let below = find(&works, private, "below").await?;
    let (file, large) = (find(&works, below, "file").await?, find(&works, below, "large").await?);
    let link = find(&works, below, "link").await?;
    let open = find(&works, private, "open").await?;
    let (one, other) = (find(&works, below, "one").await?, find(&works, below, "other").await?);
    // A program of hers was there.
    let directories = vec![told, private, below];
    let files = vec![file, large, one, other];
    let opened = ReportBundle { root: told, directories, files };
    let number = works.ask(&caller, opened.clone()).await?.number.context("it is kept")?;
    scene.federation.shell("chmod 700 told/private && sync told/private")?;
    let read = |id| Open { id, is_read: true, is_write: false, writes: None };
    works.ask(&caller, GetAttributes { id: file }).await.context("she holds it")?;
    works.ask(&caller, read(file)).await.context("she holds it")?;
    let up = works.ask(&caller, LookupParent { id: below }).await?;
    ensure!(up.parent == private, "{up:?}");
    works.ask(&caller, ReadSymlink { id: link }).await.context("she holds it")?;
    let name: tieline_types::Name = "below".parse()?;
    refused("a name", works.ask(&caller, Lookup { parent: private, name }).await)?;
    // With another she guesses.
    for id in [below, file, link] {
        refused("the way up", hers.ask(&caller, LookupParent { id }).await)?;
        refused("attributes", hers.ask(&caller, GetAttributes { id }).await)?;
        refused("a layout", hers.ask(&caller, GetLayout { id }).await)?;
        refused("names of attributes", hers.ask(&caller, ListXattrs { id }).await)?;
    }
    refused("a target", hers.ask(&caller, ReadSymlink { id: link }).await)?;
    for id in [file, large] {
        refused("an open", hers.ask(&caller, read(id)).await)?;
        let page = GetExtents { id, offset: 0, limit: 10 };
        refused("extents", hers.ask(&caller, page).await)?;
        let (is_read, is_write, offset, holder) = (true, false, Some(0), None);
        let right = GetCapability { id: Some(id), is_read, is_write, offset, holder };
        refused("a capability", hers.ask(&caller, right).await)?;
        let name = Link { id, parent: told, name: "mine".parse()?, replaces: None, keep: None };
        refused("a name of her own", hers.ask(&caller, name).await)?;
    }
    let name: tieline_types::Name = "file".parse()?;
    refused("a name", hers.ask(&caller, Lookup { parent: below, name }).await)?;
    let list = ReadDirectory { id: below, after: None, limit: 10, is_plus: true };
    refused("names", hers.ask(&caller, list).await)?;
    refused("a tree", hers.ask(&caller, tree_of(below)).await)?;
    let (ids, bytes, contents_max) = (vec![file, large], 1 << 20, 1 << 20);
    let files = ReadFiles { ids, bytes, contents_max, holder: None };
    let page: FilesPage = hers.ask(&caller, files).await?.page.open()?;
    ensure!(page.files.is_empty(), "files are told in bulk");
    bundles(hers, opened, number).await?;
    moves_and_locks(hers, (open, told), file).await?;
    after_a_start(scene, &works, (told, file)).await
}

/// What programs opened below a private directory is told to nobody who may not search it, and
/// nobody says so who may not.
async fn bundles(hers: &Line, opened: ReportBundle, number: u32) -> Result<()> {
    let (caller, root) = (user(DAEMON), opened.root);
    let list = hers.ask(&caller, ReadBundle { root, number }).await?.list;
    let list: BundleList = list.open()?;
    ensure!(list.files.is_empty() && list.directories == [root], "{list:?}");
    let message = ReadTree { depth: 0, contents_max: 0, ..tree_of(root) };
    let page: TreePage = hers.ask(&caller, message).await?.page.open()?;
    let signs = page.directories.iter().filter_map(|one| one.bundles.as_ref()).flatten();
    ensure!(signs.count() == 0, "signs of what is private are told");
    let private = opened.directories.get(1).copied().context("the private one")?;
    for root in [root, private] {
        let said = hers.ask(&caller, ReportBundle { root, ..opened.clone() }).await?;
        ensure!(said.number.is_none(), "{said:?}");
    }
    let list = hers.ask(&caller, ReadBundle { root: private, number }).await?.list;
    ensure!(list.open::<BundleList>()? == BundleList::default(), "a private tree's bundles");
    Ok(())
}

fn tree_of(root: FileId) -> ReadTree {
    ReadTree {
        roots: vec![root],
        depth: 1,
        entries: 100,
        bytes: 1 << 20,
        contents_max: 1 << 20,
        after: None,
        holder: None,
    }
}

/// What everybody may write in is no way to what lies there, for who guesses its id; nor is anybody
/// waited for by it.
async fn moves_and_locks(hers: &Line, (open, told): (FileId, FileId), file: FileId) -> Result<()> {
    let caller = user(DAEMON);
    let moved = Rename {
        from_parent: open,
        from_name: "moved".parse()?,
        to_parent: told,
        to_name: "mine".parse()?,
        mode: RenameMode::Replace,
        keep: None,
    };
    refused("moving it out", hers.ask(&caller, moved.clone()).await)?;
    let (op, message) = (Rename::OP.number(), tieline_wire::encode(&moved));
    let item = BatchItem { caller: caller.clone(), at: Time::default(), id: open, op, message };
    let reply = hers.ask(&caller, Batch { items: vec![item] }).await?;
    ensure!(reply.outcomes.iter().all(|one| one.failure.is_some()), "moved out: {reply:?}");
    let (parent, name) = (open, "moved".parse()?);
    refused("removing it", hers.ask(&caller, Unlink { parent, name, keep: None }).await)?;
    let (kind, range) = (LockKind::Flock, LockRange::WHOLE);
    let mode = Some(LockMode::Exclusive);
    let lock = Lock { id: file, kind, owner: 1, range, mode, wait: None, idles: None };
    refused("locking it", hers.ask(&caller, lock).await)?;
    // Of what seems to be done already nothing is told.
    let (parent, name) = (told, "nothing".parse()?);
    let message = tieline_wire::encode(&Unlink { parent, name, keep: None });
    let op = Unlink::OP.number();
    let item = BatchItem { caller: caller.clone(), at: Time::default(), id: file, op, message };
    let reply = hers.ask(&caller, Batch { items: vec![item] }).await?;
    let told = reply.outcomes.iter().find(|one| one.version.is_some() || one.stored.is_some());
    ensure!(told.is_none(), "{told:?}");
    Ok(())
}

/// What the session held is forgotten with the server: the way decides, and honest work goes on.
async fn after_a_start(
    scene: &Scene<'_>,
    works: &Line,
    (told, file): (FileId, FileId),
) -> Result<()> {
    scene.federation.kill_and_restart("mds-uf")?;
    let caller = user(DAEMON);
    let begun = std::time::Instant::now();
    while let Err(error) = works.ask(&caller, GetAttributes { id: told }).await {
        ensure!(begun.elapsed().as_secs() < 60, "after a start: {error}");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    refused("what it held", works.ask(&caller, GetAttributes { id: file }).await)?;
    scene.federation.shell("cat told/private/below/file && ls told").map(drop)
}
