//! A user whose client lies: about chunks, and about what handles were opened for.

use super::hostile::{Guise, Line, Scene, refused, user};
use anyhow::{Context, Result, bail, ensure};
use tieline_types::{
    Algorithm, Caller, Content, Digest, Encoding, Extent, FileId, GrantedId, LockKind, LockMode,
    LockRange, Mode, ObjectName, SetTime, Time,
};
use tieline_wire::locks::Lock;
use tieline_wire::meta::{Commit, Create, Lookup, Open, Place, SetAttributes};
use tieline_wire::quotas::Promise;
use tieline_wire::ranges::{Compact, SeenContent, SeenExtent};

/// What the liar calls itself.
const LIAR: u8 = 60;

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let script = "mkdir -m 777 everybody && cd everybody \
                  && for f in shown hidden; do head -c 5000000 /dev/urandom > $f; done \
                  && chmod 644 shown && chmod 600 hidden && sync shown hidden";
    scene.federation.shell(script)?;
    let mds = scene.dial(&scene.mds, &Guise::of(&scene.machine, LIAR));
    let root = Caller::root();
    let all = find(&mds, FileId(1), "everybody").await?;
    let (shown, hidden) = (find(&mds, all, "shown").await?, find(&mds, all, "hidden").await?);
    let opened =
        mds.ask(&root, Open { id: hidden, is_read: true, is_write: false, writes: None }).await?;
    let secret = opened.extents.extents.into_iter().next().context("it has an extent")?;
    chunks(&mds, all, &secret).await?;
    handles(&mds, shown, hidden).await
}

async fn find(mds: &Line, parent: FileId, name: &str) -> Result<FileId> {
    let found = mds.ask(&Caller::root(), Lookup { parent, name: name.parse()? }).await?;
    Ok(found.attributes.context("it is there")?.id)
}

fn commit(id: FileId, extent: Extent) -> Commit {
    let (extents, mtime) = (vec![extent], SetTime::Now);
    let (append_from, closes, is_promised) = (None, None, None);
    Commit {
        id,
        extents,
        size_min: 0,
        mtime,
        clears_setid: false,
        append_from,
        closes,
        is_promised,
    }
}

/// Another's bytes are not had by naming them as one's own.
async fn chunks(mds: &Line, all: FileId, secret: &Extent) -> Result<()> {
    let caller = user(1);
    let create = Create {
        parent: all,
        name: "mine".parse()?,
        mode: Mode::new(0o644),
        umask: Mode::new(0),
        is_exclusive: true,
        layout: None,
        is_nameless: None,
    };
    let mine = mds.ask(&caller, create).await?.open.attributes.id;
    refused("its chunk", mds.ask(&caller, commit(mine, secret.clone())).await)?;
    let mut posing = secret.clone();
    let Content::Chunk(chunk) = &mut posing.content else { bail!("it has chunks") };
    let grant = mds.welcome()?.grant;
    let mdt = tieline_types::MdtIndex(0);
    let own = GrantedId { mdt, grant, serial: 1 << 40 };
    chunk.chunk = own.into();
    let why = refused("its object", mds.ask(&caller, commit(mine, posing.clone())).await)?;
    ensure!(why.contains("another name"), "{why}");
    // One that nobody could verify: its OST, or who puts it elsewhere, would say what is in it.
    let Content::Chunk(chunk) = &mut posing.content else { bail!("it has chunks") };
    chunk.places.iter_mut().for_each(|place| place.object = ObjectName::Chunk(own));
    chunk.digest = None;
    let why = refused("no digest", mds.ask(&caller, commit(mine, posing.clone())).await)?;
    ensure!(why.contains("has no digest"), "{why}");
    let Content::Chunk(chunk) = &mut posing.content else { bail!("it has chunks") };
    chunk.digest = Some(Digest::compute(Algorithm::Sha1, Encoding::Plain, b"x"));
    let why = refused("a weak digest", mds.ask(&caller, commit(mine, posing)).await)?;
    ensure!(why.contains("no BLAKE3"), "{why}");
    Ok(())
}

/// Calls that a client makes for files that are open: it may say so of any.
async fn handles(mds: &Line, shown: FileId, hidden: FileId) -> Result<()> {
    let (caller, root) = (user(1), Caller::root());
    let opened =
        mds.ask(&root, Open { id: shown, is_read: true, is_write: false, writes: None }).await?;
    let extents = opened.extents.extents;
    let was = extents.iter().map(seen).collect::<Result<Vec<_>>>()?;
    let compact = Compact { id: shown, was, extents };
    refused("compacting", mds.ask(&caller, compact).await)?;
    let promise = Promise { id: shown, wanted: 1 << 40, needed: 1 << 40, payers: None };
    refused("another's quota", mds.ask(&caller, promise).await)?;
    refused("placing", mds.ask(&caller, Place { id: shown, exclude: vec![], wish: None }).await)?;
    let lock = Lock {
        id: hidden,
        kind: LockKind::Posix,
        owner: 1,
        range: LockRange { start: 0, end: 1 },
        mode: Some(LockMode::Shared),
        wait: None,
        idles: None,
    };
    refused("locking", mds.ask(&caller, lock).await)?;
    let no_right = Open { id: hidden, is_read: false, is_write: false, writes: None };
    refused("opening for nothing", mds.ask(&caller, no_right).await)?;
    for is_access in [None, Some(true)] {
        let time = Some(SetTime::At(Time { seconds: 1, nanos: 0 }));
        let set = SetAttributes {
            id: hidden,
            mode: None,
            uid: None,
            gid: None,
            size: None,
            atime: time,
            mtime: time.filter(|_| is_access.is_none()),
            is_handle: true,
            is_access,
        };
        refused("its times", mds.ask(&caller, set).await)?;
    }
    Ok(())
}

fn seen(extent: &Extent) -> Result<SeenExtent> {
    let Content::Chunk(chunk) = &extent.content else { bail!("it has chunks") };
    let content = SeenContent::Chunk { chunk: chunk.chunk, skip: chunk.skip };
    Ok(SeenExtent { offset: extent.offset, length: extent.length, content })
}
