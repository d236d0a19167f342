//! Exposed directories and tape, with the keys of another site's MDS and its admin's tickets: what
//! is others' is neither read by way of them nor changed there (docs/security.md, section 8).

use super::hostile::{Guise, Line, Scene, refused, user};
use super::stolen::keys;
use anyhow::{Context, Result, bail, ensure};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tieline_lab::program::{DEADLINE, until};
use tieline_types::{
    Caller, ChunkId, ChunkRef, Content, Extent, FileId, Gid, Grant, GrantedId, Hsm, MdtIndex, Mode,
    Name, OstIndex, PoolName, Time, Uid, Version,
};
use tieline_wire::PeerRole;
use tieline_wire::exposed::{ArrangeExposed, Dress, ListExposed, StageFile, Step};
use tieline_wire::federation::{EditMap, MapEdit};
use tieline_wire::meta::{Lookup, Open};
use tieline_wire::tape::{DriveTape, TapeContent, TapeDeed, TapePart, TapeWork};

/// The MDT whose key the thief has, and the OST of the other site by which a pool is exposed.
const THEIRS: MdtIndex = MdtIndex(1);
const HERE: OstIndex = OstIndex(0);
/// What an OSS says to who asks for what is another MDT's.
const NOT_ITS: &str = "only the MDS of a";

pub async fn attack(scene: &Scene<'_>) -> Result<()> {
    let (federation, out) = (scene.federation, scene.federation.local("out"));
    std::fs::create_dir(&out)?;
    let fs = federation.mount().to_string_lossy().into_owned();
    federation.tieline(&["pool", "new", "extenci.shown", "--fs", &fs])?;
    federation.tieline(&["pool", "add", "extenci.shown", "OST0000", "--fs", &fs])?;
    federation.shell("mkdir shown other fnal/theirs")?;
    for folder in ["shown", "fnal/theirs"] {
        let folder = federation.mount().join(folder);
        let folder = folder.to_str().context("a path")?;
        federation.tieline(&["setstripe", "-c", "1", "-p", "shown", folder])?;
    }
    let expose = ["pool", "set", "extenci.shown", "--expose", out.to_str().context("a path")?];
    federation.tieline(&[&expose[..], &["--fs", &fs]].concat())?;
    federation.shell(
        "umask 077; head -c 3000000 /dev/urandom > shown/private; echo theirs > fnal/theirs/f; \
         sync shown/private fnal/theirs/f",
    )?;
    let is_there = || out.join("shown/private").exists() && out.join("fnal/theirs/f").exists();
    until("both sites' files lie there", DEADLINE, is_there)?;
    let guise = Guise { role: PeerRole::Mds, ..Guise::of(&keys(scene, "mds"), 42) };
    let line = scene.dial(&scene.oss, &guise);
    let chunk = chunk(scene).await?;
    let outcomes = [
        ("a file of another's chunk", puts_together(&line, &chunk).await),
        ("another's chunk, to tape", archives(&line, &chunk).await),
        ("another's names, listed", lists(&line).await),
        ("another's names", arranges(&line, &out).await),
    ];
    // Whatever came of one, the others were tried.
    let failed: Vec<_> = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    Ok(())
}

/// Of the private file.
async fn chunk(scene: &Scene<'_>) -> Result<ChunkRef> {
    let mds = scene.dial(&scene.mds, &Guise::of(&scene.machine, 43));
    let mut id = FileId(1);
    for name in ["shown", "private"] {
        let found = mds.ask(&Caller::root(), Lookup { parent: id, name: name.parse()? }).await?;
        id = found.attributes.context("it is there")?.id;
    }
    let open = Open { id, is_read: true, is_write: false, writes: None };
    let opened = mds.ask(&Caller::root(), open).await?;
    let extent = opened.extents.extents.into_iter().next().context("it has an extent")?;
    let Content::Chunk(chunk) = extent.content else { bail!("it has chunks") };
    Ok(chunk)
}

fn pool() -> Result<PoolName> {
    Ok("shown".parse()?)
}

/// A name for a chunk of the thief's own MDT.
fn own_chunk() -> ChunkId {
    GrantedId { mdt: THEIRS, grant: Grant(1), serial: 1 << 41 }.into()
}

fn own_file() -> FileId {
    FileId::new(THEIRS, 1 << 41)
}

/// By the other's name, and by a name of his own with the other's object behind it.
fn named(chunk: &ChunkRef) -> [ChunkRef; 2] {
    let posing = ChunkRef { chunk: own_chunk(), digest: None, checks: None, ..chunk.clone() };
    [chunk.clone(), posing]
}

/// The OSS reads its own OSTs for whom it puts a file together.
async fn puts_together(line: &Line, chunk: &ChunkRef) -> Result<()> {
    for chunk in named(chunk) {
        let (length, content) = (chunk.length, Content::Chunk(chunk));
        let stage = StageFile {
            ost: HERE,
            pool: pool()?,
            file: own_file(),
            content: Version(1),
            size: length,
            extents: vec![Extent { offset: 0, length, content }],
            is_first: true,
            is_last: true,
            capability: None,
        };
        let why = refused("putting it together", line.ask(&Caller::root(), stage).await)?;
        ensure!(why.contains(NOT_ITS), "{why}");
    }
    Ok(())
}

/// It would run before it is seen whether a script is there at all.
async fn archives(line: &Line, chunk: &ChunkRef) -> Result<()> {
    for chunk in named(chunk) {
        let (offset, length) = (0, chunk.length);
        let deed = TapeDeed::Put { name: "0".repeat(36), size: length };
        let parts = vec![TapePart { offset, length, content: TapeContent::Chunk(chunk) }];
        let hsm = Hsm::new("/hsm/script".to_owned(), "osm".to_owned());
        let (storage_info, before, total) = (String::new(), 0, 1);
        let work = Some(TapeWork { hsm, storage_info, deed, parts, before, total });
        let (job, file, ends, capability) = (1, own_file(), None, None);
        let drive = DriveTape { ost: HERE, job, file, work, ends, capability };
        let why = refused("archiving it", line.ask(&Caller::root(), drive).await)?;
        ensure!(why.contains(NOT_ITS), "{why}");
    }
    Ok(())
}

fn path(text: &str) -> Result<Vec<Name>> {
    Ok(text.split('/').map(str::parse).collect::<Result<_, _>>()?)
}

/// Names of another MDT's tree stay as they are, and as private.
async fn arranges(line: &Line, out: &Path) -> Result<()> {
    let shown = Dress {
        uid: Uid(0),
        gid: Gid(0),
        mode: Mode::new(0o644),
        mtime: Time::default(),
        is_directory: false,
    };
    let (private, theirs) = (path("shown/private")?, path("fnal/theirs/mine")?);
    let before = std::fs::metadata(out.join("shown/private"))?.permissions().mode();
    for step in [
        Step::Remove { path: private.clone() },
        Step::Dress { path: private.clone(), dress: shown },
        Step::Move { from: private.clone(), path: theirs.clone() },
        Step::Link { from: private.clone(), path: theirs },
        Step::MakeDirectory { path: path("mine")?, dress: shown },
        Step::Check { path: private, size: 3_000_000, mtime: Time::default() },
    ] {
        let arrange = ArrangeExposed {
            ost: HERE,
            pool: pool()?,
            mdt: THEIRS,
            // It is the latest for the MDT's own server as well.
            boot: u64::MAX,
            is_marked: true,
            steps: vec![step.clone()],
        };
        let why = refused(&format!("{step:?}"), line.ask(&Caller::root(), arrange).await)?;
        ensure!(why.contains(NOT_ITS), "{why}");
    }
    let after = std::fs::metadata(out.join("shown/private"))?.permissions().mode();
    ensure!(before == after && !out.join("mine").exists(), "something was changed there");
    Ok(())
}

async fn lists(line: &Line) -> Result<()> {
    let list = |text: &str| -> Result<ListExposed> {
        let (pool, directory, after, limit) = (pool()?, path(text)?, None, 10);
        Ok(ListExposed { ost: HERE, pool, directory, after, limit })
    };
    let why = refused("listing", line.ask(&Caller::root(), list("shown")?).await)?;
    ensure!(why.contains(NOT_ITS), "{why}");
    let own = line.ask(&Caller::root(), list("fnal/theirs")?).await?.names;
    ensure!(own.len() == 1, "its own: {own:?}");
    Ok(())
}

/// A site's admin exposes what lies at his site alone: else another's bytes came to his machine.
pub async fn by_site_admin(scene: &Scene<'_>, her: &Line) -> Result<()> {
    let (federation, out) = (scene.federation, scene.federation.local("hers"));
    std::fs::create_dir(&out)?;
    let fs = federation.mount().to_string_lossy().into_owned();
    let is_far = |ost: &&tieline_format::map::Ost| ost.site.as_str() == "fnal";
    let far = scene.map().osts.iter().find(is_far).context("an OST there")?.ost;
    for pool in ["mixed", "far"] {
        federation.tieline(&["pool", "new", &format!("extenci.{pool}"), "--fs", &fs])?;
    }
    federation.tieline(&["pool", "add", "extenci.mixed", "OST0000", "--fs", &fs])?;
    for pool in ["extenci.mixed", "extenci.far"] {
        federation.tieline(&["pool", "add", pool, &far.label(), "--fs", &fs])?;
    }
    let directory = out.to_str().context("a path")?.to_owned();
    let expose = |pool: &str| -> Result<EditMap> {
        let (pool, directory) = (pool.parse()?, directory.clone());
        let edit = MapEdit::PoolExpose { pool, directory, ost: Some(far), is_trusted: true };
        Ok(EditMap { edit })
    };
    let why = refused("exposing", her.ask(&user(5001), expose("mixed")?).await)?;
    ensure!(why.contains("(denial "), "{why}");
    her.ask(&user(5001), expose("far")?).await.context("a pool of her site")?;
    // Nor is another site's bytes' way there to add its OST afterwards.
    let add = MapEdit::PoolAdd { pool: "far".parse()?, osts: vec![HERE] };
    refused("another site's OST", her.ask(&user(5001), EditMap { edit: add }).await)?;
    let hide = MapEdit::PoolHide("far".parse()?);
    her.ask(&user(5001), EditMap { edit: hide }).await.context("and hiding it")?;
    Ok(())
}
