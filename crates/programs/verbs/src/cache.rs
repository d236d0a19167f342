//! `tieline cache`: what a node's and a site's cache hold, what stays in them, and what goes.
//!
//! A cache is named by its directory, or by a mount that uses it. Verbs work on the directory while
//! mounts use it; what they remove is missed by nobody, what they bring comes through the mount.

mod warm;

use crate::list::listed;
use crate::progress::Progress;
use crate::shell::{self, Shell};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tieline_base::location::Location;
use tieline_base::registry::{self, Entry};
use tieline_base::registry::{CachesAt, scope};
use tieline_base::report;
use tieline_cache::Kind;
use tieline_cache::survey::{Status, Survey};
use tieline_machine::paths::absolute;
use tieline_types::{Attributes, ByteSize, ChunkRef, Content, FileKind};

#[derive(clap::Subcommand, Debug)]
pub enum Cache {
    /// What is in caches, and what they did
    Status(WhereArgs),
    /// Keep chunks of files and trees in the caches they are in: no cleaner evicts them
    Pin(PathArgs),
    /// Let chunks of files and trees be evicted again
    Unpin(PathArgs),
    /// Take chunks of files and trees away, or all that are not pinned
    Evict(EvictArgs),
    /// Bring files and trees into the caches of the mount they are below
    Warm(warm::Args),
    /// Verify every chunk, and take bad ones away
    Scrub(WhereArgs),
}

#[derive(clap::Args, Debug)]
pub struct WhereArgs {
    /// Directories of caches, or mounts that use them; all mounts here by default
    places: Vec<PathBuf>,
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub struct PathArgs {
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// A cache's directory, instead of the caches of the mount
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub struct EvictArgs {
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required_unless_present = "all")]
    paths: Vec<OsString>,
    /// Everything that is not pinned; needs --cache, or a mount as the only path
    #[arg(long)]
    all: bool,
    /// A cache's directory, instead of the caches of the mount
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[arg(long)]
    json: bool,
}

pub fn run(verb: Cache) -> anyhow::Result<()> {
    crate::log_start();
    match verb {
        Cache::Status(args) => status(&args),
        Cache::Pin(args) => pin(args, true),
        Cache::Unpin(args) => pin(args, false),
        Cache::Evict(args) => evict(args),
        Cache::Warm(args) => warm::run(&args),
        Cache::Scrub(args) => scrub(&args),
    }
}

/// A cache, and the mount by which it was named, if it was.
struct Named {
    survey: Survey,
    mount: Option<Entry>,
    /// Its directory is not there, or none of a cache: a mount does without it.
    lack: Option<tieline_cache::Error>,
}

/// The caches of a mount.
fn of_mount(entry: &Entry) -> Vec<Named> {
    let CachesAt { node, site, .. } = &entry.caches;
    let paths = [(Kind::Node, node), (Kind::Site, site)];
    let named = |(kind, path): (Kind, &Option<PathBuf>)| {
        let path = path.clone()?;
        let (survey, lack) = match Survey::open(&path) {
            Ok(survey) => (survey, None),
            Err(error) => (Survey { path, kind }, Some(error)),
        };
        Some(Named { survey, mount: Some(entry.clone()), lack })
    };
    paths.into_iter().filter_map(named).collect()
}

/// Those that can be worked on; the others are named.
fn there(all: Vec<Named>) -> anyhow::Result<Vec<Survey>> {
    let (mut surveys, mut lacks) = (Vec::new(), Vec::new());
    for Named { survey, lack, .. } in all {
        match lack {
            None => surveys.push(survey),
            Some(lack) => lacks.push(lack),
        }
    }
    if surveys.is_empty()
        && let Some(lack) = lacks.pop()
    {
        return Err(lack.into());
    }
    for lack in lacks {
        eprintln!("tieline: left out: {}", report::chain(&lack));
    }
    Ok(surveys)
}

/// What the words of a command line name.
fn named(places: &[PathBuf]) -> anyhow::Result<Vec<Named>> {
    if places.is_empty() {
        let mut all = Vec::new();
        for entry in registry::all() {
            all.extend(of_mount(&entry));
        }
        return Ok(all);
    }
    let mut all = Vec::new();
    for place in places {
        let path = absolute(place);
        match registry::covering(&path) {
            Some((entry, _)) => {
                let caches = of_mount(&entry);
                if caches.is_empty() {
                    bail!("the mount at {} has no caches", entry.mountpoint.display());
                }
                all.extend(caches);
            }
            None => all.push(Named { survey: Survey::open(&path)?, mount: None, lack: None }),
        }
    }
    Ok(all)
}

/// Each directory once, however many mounts use it.
fn distinct(all: Vec<Named>) -> anyhow::Result<impl Iterator<Item = Survey>> {
    let mut seen = BTreeSet::new();
    Ok(there(all)?.into_iter().filter(move |survey| {
        let path = std::fs::canonicalize(&survey.path);
        seen.insert(path.unwrap_or_else(|_| survey.path.clone()))
    }))
}

/// The caches for paths: those of their mount, or the one that was named.
fn caches_for(location: &Location, cache: Option<&Path>) -> anyhow::Result<Vec<Survey>> {
    if let Some(path) = cache {
        return Ok(vec![Survey::open(&absolute(path))?]);
    }
    let mount = location.mountpoint.as_ref().and_then(|path| registry::at(path));
    let entry = mount.context("not below a mount: name the cache with --cache DIR")?;
    let caches = of_mount(&entry);
    if caches.is_empty() {
        bail!("the mount at {} has no caches", entry.mountpoint.display());
    }
    there(caches)
}

fn status(args: &WhereArgs) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for named in named(&args.places)? {
        let counters = named.mount.as_ref().map(|mount| counters(mount, named.survey.kind));
        let path = &named.survey.path;
        if let (Some(mount), Some(lack)) = (&named.mount, &named.lack) {
            // A mount that knows of no trouble has nothing to keep yet.
            let told = counters.as_ref().filter(|counters| counters.is_object());
            let trouble = match told.map(|counters| counters["trouble"].as_str()) {
                Some(told) => told.map(str::to_owned),
                None => Some(report::chain(lack)),
            };
            let (kind, mount) = (named.survey.kind, &mount.mountpoint);
            if args.json {
                let kind = kind.to_string();
                let row = json!({ "path": path, "kind": kind, "mount": mount, "trouble": trouble });
                rows.push(row);
            } else {
                let (path, mount) = (path.display(), mount.display());
                let state = trouble.map_or_else(
                    || "nothing is kept yet".to_owned(),
                    |trouble| format!("not used: {trouble}"),
                );
                println!("{path}: {kind} cache of {mount}: {state}");
            }
            continue;
        }
        let mut status = named.survey.status()?;
        if let Some(mount) = &named.mount {
            name_pins(mount, &mut status);
        }
        if args.json {
            rows.push(status_json(path, &status, named.mount.as_ref(), counters));
        } else {
            print_status(path, &status, named.mount.as_ref(), counters.as_ref());
        }
    }
    if args.json {
        println!("{}", Value::Array(rows));
    }
    Ok(())
}

/// Pins of a mount carry its numbers of directories: it says which paths these are.
fn name_pins(mount: &Entry, status: &mut Status) {
    let Ok(pins) = crate::pin::all(&mount.mountpoint) else { return };
    for pin in &mut status.pins {
        if let Some(known) = pins.iter().find(|known| known.words == pin.what) {
            pin.what = format!("{} (by `tieline pin`)", known.shown(mount));
        }
    }
}

/// What a mount did with a cache since it began.
fn counters(mount: &Entry, kind: Kind) -> Value {
    let mut buffer = vec![0; 64 << 10];
    let read = rustix::fs::getxattr(&mount.mountpoint, "user.tieline.cache", &mut buffer[..]);
    let text = read.ok().and_then(|length| buffer.get(..length));
    let all: Value = text.and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
    all[kind.to_string()].clone()
}

fn status_json(
    path: &Path,
    status: &Status,
    mount: Option<&Entry>,
    counters: Option<Value>,
) -> Value {
    let pins = status.pins.iter().map(|pin| json!({ "what": pin.what, "chunks": pin.chunks }));
    let poisoned = status.poisoned.iter();
    let poisoned = poisoned.map(|(chunk, note)| json!({ "chunk": chunk, "note": note }));
    json!({
        "path": path,
        "kind": status.kind.to_string(),
        "mount": mount.map(|mount| &mount.mountpoint),
        "chunks": status.chunks,
        "bytes": status.bytes,
        "cleaner": status.cleaner,
        "pins": pins.collect::<Vec<_>>(),
        "poisoned": poisoned.collect::<Vec<_>>(),
        "trouble": counters.as_ref().map(|counters| &counters["trouble"]),
        "counters": counters,
    })
}

fn print_status(path: &Path, status: &Status, mount: Option<&Entry>, counters: Option<&Value>) {
    let used = mount.map_or(String::new(), |mount| format!(" of {}", mount.mountpoint.display()));
    let (kind, bytes) = (status.kind, ByteSize(status.bytes));
    println!("{}: {kind} cache{used}: {} chunks, {bytes}", path.display(), status.chunks);
    if let Some(counters) = counters.filter(|counters| counters.is_object()) {
        let bytes = |key: &str| ByteSize(counters[key].as_u64().unwrap_or_default());
        println!(
            "  since it was mounted: {} served, {} not there, {} kept, {} evicted",
            bytes("served_bytes"),
            bytes("missed_bytes"),
            bytes("kept_bytes"),
            bytes("evicted_bytes"),
        );
        let count = |key: &str| counters[key].as_u64().unwrap_or_default();
        let (poisoned, damaged, errors) = (count("poisoned"), count("damaged"), count("errors"));
        if poisoned + damaged + errors > 0 {
            println!("  {poisoned} poisoned, {damaged} damaged, {errors} failures of its storage");
        }
    }
    if let Some(trouble) = counters.and_then(|counters| counters["trouble"].as_str()) {
        println!("  not used: {trouble}");
    }
    if let Some(cleaner) = &status.cleaner {
        println!("  cleaned by {cleaner}");
    }
    for pin in &status.pins {
        println!("  pinned: {} ({} chunks)", pin.what, pin.chunks);
    }
    for (chunk, note) in &status.poisoned {
        println!("  was poisoned: {chunk}: {note}");
    }
}

fn pin(args: PathArgs, is_pinned: bool) -> anyhow::Result<()> {
    let (first, all) = crate::locations(&args.paths)?;
    let caches = caches_for(&first, args.cache.as_deref())?;
    shell::run(&first, |shell| async move {
        let current = shell.map.current();
        let scope = scope(&current.map.fs, &current.origin());
        let mut rows = Vec::new();
        for location in &all {
            let what = what(location);
            let chunks = match is_pinned {
                true => chunks(&shell, location).await?,
                false => Vec::new(),
            };
            for cache in &caches {
                let names = names(cache, &chunks);
                if !is_pinned {
                    if !cache.unpin(&scope, &what)? {
                        bail!("{what} is not pinned in {}", cache.path.display());
                    }
                    rows.push(json!({ "path": what, "cache": cache.path }));
                    continue;
                }
                cache.pin(&scope, &what, &names)?;
                let held = cache.holds(&names)?.len();
                if !args.json {
                    let (kind, all) = (cache.kind, names.len());
                    println!("{what}: {all} chunks stay in the {kind} cache; {held} are there");
                }
                rows.push(json!({
                    "path": what, "cache": cache.path, "chunks": names.len(), "held": held,
                }));
            }
        }
        if args.json {
            println!("{}", Value::Array(rows));
        }
        Ok(())
    })
}

fn evict(args: EvictArgs) -> anyhow::Result<()> {
    if args.all {
        let places: Vec<PathBuf> = match &args.cache {
            Some(cache) if args.paths.is_empty() => vec![cache.clone()],
            None if args.paths.len() == 1 => args.paths.iter().map(PathBuf::from).collect(),
            _ => {
                return Err(tieline_base::report::usage(
                    "evict --all: name --cache DIR, or one mount",
                ));
            }
        };
        let caches = distinct(named(&places)?)?;
        return show_evicted(caches.map(|cache| (cache, None)).collect(), args.json);
    }
    let (first, all) = crate::locations(&args.paths)?;
    let caches = caches_for(&first, args.cache.as_deref())?;
    let wanted = shell::run(&first, |shell| async move {
        let mut wanted = Vec::new();
        for location in &all {
            wanted.extend(chunks(&shell, location).await?);
        }
        Ok(wanted)
    })?;
    let with_names = |cache| {
        let names = names(&cache, &wanted);
        (cache, Some(names))
    };
    show_evicted(caches.into_iter().map(with_names).collect(), args.json)
}

fn show_evicted(
    caches: Vec<(Survey, Option<BTreeSet<String>>)>,
    is_json: bool,
) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let (mut failed, mut why) = (0, None);
    for (cache, names) in caches {
        let evicted = cache.evict(names.as_ref())?;
        let (chunks, bytes, pinned) = (evicted.chunks, evicted.bytes, evicted.pinned);
        failed += evicted.failed;
        why = why.or(evicted.why);
        if !is_json {
            let (path, size) = (cache.path.display(), ByteSize(bytes));
            println!("{path}: {chunks} chunks, {size} evicted; {pinned} stay because of pins");
        }
        rows.push(json!({
            "path": cache.path, "chunks": chunks, "bytes": bytes, "pinned": pinned,
            "failed": evicted.failed,
        }));
    }
    if is_json {
        println!("{}", Value::Array(rows));
    }
    if failed > 0 {
        bail!("{failed} chunks cannot be removed: {}", why.unwrap_or_default());
    }
    Ok(())
}

fn scrub(args: &WhereArgs) -> anyhow::Result<()> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let finder = format!("tieline cache scrub on {host}");
    let (mut rows, mut bad, mut kept) = (Vec::new(), 0, 0);
    for survey in distinct(named(&args.places)?)? {
        let path = &survey.path;
        let mut progress = Progress::new(path.display().to_string(), 0);
        let scrubbed = survey.scrub(&finder, |bytes| {
            progress.widen(bytes);
            progress.add(bytes);
        })?;
        progress.end();
        bad += scrubbed.bad.len();
        kept += scrubbed.kept.len();
        if !args.json {
            let (chunks, size) = (scrubbed.chunks, ByteSize(scrubbed.bytes));
            let found = scrubbed.bad.len() + scrubbed.kept.len();
            println!("{}: {chunks} chunks, {size}: {found} bad", path.display());
            for (chunk, why) in &scrubbed.bad {
                println!("  discarded: {chunk}: {why}");
            }
            for (chunk, why) in &scrubbed.kept {
                println!("  still there: {chunk}: {why}");
            }
        }
        let list = |chunks: &[(String, String)]| {
            let rows = chunks.iter().map(|(chunk, why)| json!({ "chunk": chunk, "why": why }));
            rows.collect::<Vec<_>>()
        };
        rows.push(json!({
            "path": path, "chunks": scrubbed.chunks, "bytes": scrubbed.bytes,
            "bad": list(&scrubbed.bad), "kept": list(&scrubbed.kept),
        }));
    }
    if args.json {
        println!("{}", Value::Array(rows));
    }
    if kept > 0 {
        bail!("{kept} chunks are bad, and still there; {bad} were bad, and are gone");
    }
    if bad > 0 {
        bail!("{bad} chunks were bad, and are gone: they come anew when they are next read");
    }
    Ok(())
}

/// Under which words a path is pinned.
fn what(location: &Location) -> String {
    let directory = location.source.directory.trim_matches('/');
    let below = String::from_utf8_lossy(&location.path).into_owned();
    let parts = [location.source.fs.as_str(), directory, below.trim_matches('/')];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    format!("/{}", parts.collect::<Vec<_>>().join("/"))
}

fn names(cache: &Survey, chunks: &[ChunkRef]) -> BTreeSet<String> {
    chunks.iter().filter_map(|chunk| cache.name(chunk)).collect()
}

/// All chunks of a file, or of all files below a directory.
async fn chunks(shell: &Shell, location: &Location) -> anyhow::Result<Vec<ChunkRef>> {
    let mut chunks = Vec::new();
    let mut progress = Progress::new(location.text.clone(), 0);
    let mut todo = vec![shell.resolve(&location.path, true).await?.attributes];
    while let Some(attributes) = todo.pop() {
        match attributes.kind {
            FileKind::Directory => {
                for entry in listed(shell, attributes.id).await? {
                    todo.push(match entry.known {
                        Some(known) => known.attributes,
                        None => shell.files.attributes(&shell.caller, entry.id).await?.attributes,
                    });
                }
            }
            FileKind::Regular => {
                add_chunks(shell, &attributes, &mut chunks).await?;
                progress.widen(attributes.size);
                progress.add(attributes.size);
            }
            _ => {}
        }
    }
    progress.end();
    Ok(chunks)
}

async fn add_chunks(
    shell: &Shell,
    attributes: &Attributes,
    chunks: &mut Vec<ChunkRef>,
) -> anyhow::Result<()> {
    let mut offset = 0;
    while offset < attributes.size {
        let page = shell.files.extents(&shell.caller, attributes.id, offset).await?;
        chunks.extend(page.extents.into_iter().filter_map(|extent| match extent.content {
            Content::Chunk(chunk) => Some(chunk),
            _ => None,
        }));
        if page.covered <= offset {
            break;
        }
        offset = page.covered;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_several_mounts_use_is_scrubbed_once() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("cache"), folder.path().join("link"));
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let named = |path: &Path| {
            let survey = Survey { path: path.to_owned(), kind: Kind::Site };
            Named { survey, mount: None, lack: None }
        };
        let all = vec![named(&path), named(&link), named(&path), named(folder.path())];
        let paths: Vec<PathBuf> = distinct(all).unwrap().map(|survey| survey.path).collect();
        assert_eq!(paths, [path, folder.path().to_owned()]);
    }

    #[test]
    fn a_cache_that_is_not_there_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let gone = folder.path().join("gone");
        let named = |path: &Path, lack| {
            let survey = Survey { path: path.to_owned(), kind: Kind::Site };
            Named { survey, mount: None, lack }
        };
        let lacking = || named(&gone, Survey::open(&gone).err());
        let found = there(vec![lacking(), named(folder.path(), None)]).unwrap();
        assert_eq!(found.len(), 1);
        // Where there is no other, that is all there is to say.
        assert!(there(vec![lacking()]).is_err());
    }
}
