//! `tieline spool`: bytes that mounts were to store and could not ([`tieline_mount::spool`]).
//!
//! `put` writes them back by the file's id, through a session of its own. It refuses where somebody
//! else may have written since: the file is neither as it was when the bytes were lost, nor without
//! anything in their place.
//!
//! Invariant: an entry goes after its bytes are durable where they were put, or on somebody's word.

use crate::shell::{self, Shell};
use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tieline_base::location::Location;
use tieline_base::proving::Proving;
use tieline_base::registry;
use tieline_base::report::{self, Usage};
use tieline_base::source::Source;
use tieline_files::{Access, Writing};
use tieline_mount::spool::entry::{self, Entry, Manifest};
use tieline_mount::spool::{self as store, default_place};
use tieline_types::HandleId;
use tieline_types::{Attributes, ByteSize, Content, ErrorKind, FileKind};

/// Bytes that are written at once.
const PIECE: u64 = 4 << 20;

#[derive(clap::Subcommand, Debug)]
pub enum Spool {
    /// Show what is there
    List(ListArgs),
    /// Write bytes back into the files they are of
    Put(PutArgs),
    /// Delete bytes for good
    Drop(DropArgs),
}

#[derive(clap::Args, Debug)]
pub struct ListArgs {
    /// Spools, or directories of spools; those of the mounts here and the usual place by default
    directories: Vec<PathBuf>,
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub struct PutArgs {
    /// Entries, by the path of any of their files
    #[arg(required_unless_present = "all")]
    entries: Vec<PathBuf>,
    /// All that `tieline spool list` shows
    #[arg(long, conflicts_with = "entries")]
    all: bool,
    /// Write into a new file instead, at the same offsets
    #[arg(long, value_name = "PATH", conflicts_with = "all")]
    to: Option<PathBuf>,
    /// Write over what others wrote since
    #[arg(long, conflicts_with = "to")]
    force: bool,
}

#[derive(clap::Args, Debug)]
pub struct DropArgs {
    /// Entries, by the path of any of their files
    #[arg(required = true)]
    entries: Vec<PathBuf>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub fn run(verb: Spool) -> anyhow::Result<()> {
    crate::log_start();
    match verb {
        Spool::List(args) => list(&args),
        Spool::Put(args) => put(&args),
        Spool::Drop(args) => drop_all(&args),
    }
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let all = everything(&args.directories)?;
    let mut out = io::stdout().lock();
    if args.json {
        let rows: Vec<Value> = all.iter().map(row).collect();
        writeln!(out, "{}", Value::Array(rows))?;
        return Ok(());
    }
    for entry in &all {
        let Manifest { why, .. } = &entry.manifest;
        let (shown, bytes) = (entry.manifest.shown(), ByteSize(entry.manifest.bytes()));
        writeln!(out, "{}: {bytes} of {shown} ({why})", entry.shown().display())?;
    }
    Ok(())
}

fn row(entry: &Entry) -> Value {
    let manifest = &entry.manifest;
    let parts = |parts: &[entry::Part]| -> Vec<Value> {
        let part = |part: &entry::Part| json!({ "offset": part.offset, "length": part.length });
        parts.iter().map(part).collect()
    };
    json!({
        "entry": entry.shown(),
        "fid": manifest.file,
        "path": manifest.shown(),
        "mountpoint": manifest.about.mountpoint,
        "source": manifest.about.source,
        "bytes": manifest.bytes(),
        "placed": parts(&manifest.placed),
        "appended": parts(&manifest.appended),
        "records": parts(&manifest.records),
        "why": manifest.why,
        "at": manifest.at,
        "uid": manifest.uid,
        "gid": manifest.gid,
    })
}

/// What is in these spools; without any, in those of the mounts here and in the usual place.
fn everything(places: &[PathBuf]) -> anyhow::Result<Vec<Entry>> {
    let mut all: BTreeSet<PathBuf> = BTreeSet::new();
    for place in places {
        let found = store::directories(place).with_context(|| place.display().to_string())?;
        if found.is_empty() && !place.is_dir() {
            return Err(Usage(format!("{} is no spool", place.display())).into());
        }
        found.iter().try_for_each(|directory| store::opened(directory).map(drop))?;
        all.extend(found);
    }
    if places.is_empty() {
        // Spools of other users are theirs to look into.
        all.extend(store::directories(&default_place()).unwrap_or_default());
        let mounts = registry::all().into_iter().filter_map(|mount| mount.spool);
        all.extend(mounts.filter(|directory| directory.is_dir()));
    }
    Ok(all.iter().flat_map(|directory| entry::all_at(directory)).collect())
}

/// The entry that a path leads to.
fn named(path: &Path) -> anyhow::Result<Entry> {
    let path = tieline_machine::paths::absolute(path);
    let shown = path.display();
    let name = path.file_stem().and_then(|name| name.to_str());
    let found = match (path.parent(), name) {
        (Some(directory), Some(name)) if directory.is_dir() => {
            Entry::read(&store::opened(directory)?, name)?
        }
        _ => None,
    };
    let missing = || format!("{shown} is no entry of a spool: `tieline spool list` shows them");
    Ok(found.ok_or_else(|| Usage(missing()))?)
}

fn put(args: &PutArgs) -> anyhow::Result<()> {
    let entries = match args.all {
        true => everything(&[])?,
        false => args.entries.iter().map(|path| named(path)).collect::<Result<_, _>>()?,
    };
    if let Some(to) = &args.to {
        let [entry] = entries.as_slice() else {
            return Err(Usage("--to: one entry at a time".to_owned()).into());
        };
        return put_elsewhere(entry, to);
    }
    // One session for each federation.
    let keys: BTreeSet<&str> =
        entries.iter().map(|entry| entry.manifest.about.mapkey.as_str()).collect();
    let mut failed = 0;
    for key in keys {
        let own = entries.iter().filter(|entry| entry.manifest.about.mapkey == key);
        let own: Vec<Entry> = own.cloned().collect();
        let Some(first) = own.first() else { continue };
        let location = location(&first.manifest)?;
        failed += shell::run(&location, |shell| async move {
            let mut failed = 0;
            for entry in &own {
                if let Err(error) = put_back(&shell, entry, args.force).await {
                    let (shown, at) = (entry.manifest.shown(), entry.shown());
                    let why = report::chain(error.as_ref());
                    eprintln!("tieline: {shown}: {why}; its bytes stay in {}", at.display());
                    failed += 1;
                }
            }
            Ok(failed)
        })?;
    }
    match failed {
        0 => Ok(()),
        1 => bail!("1 file was not put back"),
        more => bail!("{more} files were not put back"),
    }
}

/// How to get at the servers that a file was for: as a mount here does, if there is one.
fn location(manifest: &Manifest) -> anyhow::Result<Location> {
    let about = &manifest.about;
    let mount = manifest.mount();
    let source: Source = match &mount {
        Some(mount) => mount.source.parse()?,
        None => about.source.parse()?,
    };
    let text = format!("/{}", source.fs);
    Ok(Location {
        source: source.whole(),
        path: Vec::new(),
        netns: mount.as_ref().and_then(|mount| mount.netns.clone()),
        mapkey: Some(about.mapkey.clone()),
        mountpoint: None,
        idmap: mount.as_ref().and_then(|mount| mount.idmap.clone()),
        proving: mount.map_or_else(Proving::default, |mount| mount.proving),
        typed: text.clone().into(),
        text,
    })
}

async fn put_back(shell: &Shell, entry: &Entry, is_forced: bool) -> anyhow::Result<()> {
    let (manifest, id) = (&entry.manifest, entry.manifest.id()?);
    if !manifest.records.is_empty() {
        bail!("these are records, and no bytes of a file: `--to PATH` copies them as they are");
    }
    let found = match shell.files.attributes(&shell.caller, id).await {
        Err(error) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound) => {
            bail!("the file is not there any more: `--to PATH` writes its bytes elsewhere")
        }
        found => found?.attributes,
    };
    if found.kind != FileKind::Regular {
        bail!("file {} is something else now: `--to PATH` writes its bytes elsewhere", id);
    }
    if !is_forced && !is_unchanged(shell, manifest, &found).await? {
        bail!(
            "others have changed the file since: `--to PATH` writes its bytes elsewhere, --force \
             writes over what is there"
        );
    }
    let access = Access { write: true, ..Access::default() };
    let opened = shell.files.open(&shell.caller, id, access).await?;
    let poured = pour(shell, entry, opened.handle).await;
    shell.files.release(opened.handle).await;
    if let Err(error) = poured {
        // What was written is ours: the next time is to know that.
        if let Ok(known) = shell.files.attributes(&shell.caller, id).await {
            store::rebase(entry, &known.attributes)?;
        }
        return Err(error);
    }
    store::take_away(entry)?;
    println!("{}: {} put back", manifest.shown(), ByteSize(manifest.bytes()));
    Ok(())
}

/// Has nobody written where these bytes belong? What goes to the end is in nobody's way.
async fn is_unchanged(
    shell: &Shell,
    manifest: &Manifest,
    found: &Attributes,
) -> anyhow::Result<bool> {
    let Attributes { version, mtime, size, .. } = *found;
    let is_same = manifest.base.as_ref().is_some_and(|base| base.is_of(version, mtime, size));
    if is_same || manifest.placed.is_empty() {
        return Ok(true);
    }
    // Whoever cut it later meant that.
    let lost_at = i64::try_from(manifest.at).unwrap_or(i64::MAX);
    if mtime.seconds > lost_at {
        return Ok(false);
    }
    for part in &manifest.placed {
        if !is_empty(shell, found, part.range()).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Was nothing ever written there?
async fn is_empty(shell: &Shell, found: &Attributes, range: Range<u64>) -> anyhow::Result<bool> {
    let mut at = range.start;
    while at < range.end.min(found.size) {
        let page = shell.files.extents(&shell.caller, found.id, at).await?;
        let is_in = |extent: &tieline_types::Extent| {
            extent.offset < range.end && extent.end() > range.start
        };
        let all = page.extents.iter();
        if all.clone().any(|extent| is_in(extent) && !matches!(extent.content, Content::Hole)) {
            return Ok(false);
        }
        if page.covered <= at {
            break;
        }
        at = page.covered;
    }
    Ok(true)
}

async fn pour(shell: &Shell, entry: &Entry, handle: HandleId) -> anyhow::Result<()> {
    let all = [("data", &entry.manifest.placed), ("appended", &entry.manifest.appended)];
    let cannot_read = || entry.shown().display().to_string();
    for (kind, parts) in all {
        for part in parts {
            let file = entry.open(kind)?;
            let how = Writing { appends: Some(kind == "appended"), ends_setid: None };
            for piece in pieces(part.range()) {
                let bytes = read(&file, &piece).with_context(cannot_read)?;
                shell.files.write_as(handle, piece.start, how, bytes).await?;
            }
        }
    }
    shell.files.sync(handle, false).await?;
    Ok(shell.files.flush(handle).await?)
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = (range.start..range.end).step_by(PIECE as usize);
    starts.map(move |start| start..(start + PIECE).min(range.end))
}

fn read(file: &File, piece: &Range<u64>) -> io::Result<Bytes> {
    let mut bytes = vec![0; (piece.end - piece.start) as usize];
    file.read_exact_at(&mut bytes, piece.start)?;
    Ok(bytes.into())
}

/// A new file has the bytes where they were to be; what was appended comes behind.
fn put_elsewhere(entry: &Entry, to: &Path) -> anyhow::Result<()> {
    let shown = to.display();
    // Nothing that is there is followed or written over.
    let file = File::options().write(true).create_new(true).mode(0o600).open(to);
    let file = file.with_context(|| format!("cannot make {shown}"))?;
    let manifest = &entry.manifest;
    let kinds = [
        ("data", &manifest.placed),
        ("appended", &manifest.appended),
        ("record", &manifest.records),
    ];
    let cannot_read = || entry.shown().display().to_string();
    let mut end = 0;
    for (kind, parts) in kinds {
        let base = if kind == "data" { 0 } else { end };
        for part in parts {
            let from = entry.open(kind)?;
            for piece in pieces(part.range()) {
                let bytes = read(&from, &piece).with_context(cannot_read)?;
                let at = base + piece.start;
                file.write_all_at(&bytes, at).with_context(|| format!("cannot write {shown}"))?;
                end = end.max(at + bytes.len() as u64);
            }
        }
    }
    file.sync_all().with_context(|| format!("cannot write {shown}"))?;
    store::take_away(entry)?;
    println!("{shown}: {} of {}", ByteSize(manifest.bytes()), manifest.shown());
    Ok(())
}

fn drop_all(args: &DropArgs) -> anyhow::Result<()> {
    let entries: Vec<Entry> =
        args.entries.iter().map(|path| named(path)).collect::<Result<_, _>>()?;
    for entry in &entries {
        let (shown, bytes) = (entry.manifest.shown(), ByteSize(entry.manifest.bytes()));
        if !args.yes && !is_sure(&format!("delete {bytes} of {shown} for good?"))? {
            bail!("nothing more was dropped: --yes does it without asking");
        }
        store::take_away(entry)?;
        println!("{shown}: {bytes} dropped");
    }
    Ok(())
}

fn is_sure(question: &str) -> io::Result<bool> {
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "yes"))
}
