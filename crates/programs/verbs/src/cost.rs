//! `tieline cost`: where the chunks of a file lie, or of all files below a directory, what each way
//! to them costs now, and which would be taken.
//!
//! It measures itself, from where it is run: a few round trips to each OST, and some of the file's
//! own bytes from there. Where the mount has caches or reads an OST's storage directly, it looks
//! what of the file is there ([`Nearer`]): that is taken before any OST is asked.

use crate::getstripe::extents;
use crate::list::listed;
use crate::shell::{self, Shell};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tieline_base::registry;
use tieline_base::show;
use tieline_bytes::PathCost;
use tieline_cache::survey::Survey;
use tieline_types::{
    Attributes, ChunkRef, Content, Extent, FileId, FileKind, OstIndex, OstPlace, Span,
};
use tokio::time::timeout;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// One JSON list, with every chunk and place
    #[arg(long)]
    json: bool,
    /// Files and directories below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// How long a server may take to show its cost.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was found of the ways to OSTs: the cost, or why there is none.
type Ways = BTreeMap<OstIndex, Result<PathCost, String>>;

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let (first, all) = crate::locations(&args.paths)?;
    shell::run(&first, |shell| async move {
        let mut out = io::stdout().lock();
        let (mut values, mut unreached) = (Vec::new(), 0);
        for location in &all {
            let entry = shell.resolve(&location.path, true).await?;
            let (path, shown) = (location.stem(), &location.text);
            let files = files_below(&shell, entry.attributes).await?;
            let costs = Costs::of(&shell, path, &files).await;
            let mut costs = costs.with_context(|| format!("cannot tell what {shown} costs"))?;
            costs.nearer = Nearer::of(location.mountpoint.as_deref(), &costs.chunks);
            unreached += costs.ways.values().filter(|way| way.is_err()).count();
            if args.json {
                values.push(costs.json(&shell));
            } else {
                costs.text(&shell, &mut out)?;
            }
        }
        if args.json {
            writeln!(out, "{}", Value::Array(values))?;
        }
        if unreached > 0 {
            bail!("{unreached} OSTs that have chunks of it are out of reach");
        }
        Ok(())
    })
}

/// The file itself, or all files below a directory.
async fn files_below(shell: &Shell, top: Attributes) -> anyhow::Result<Vec<Attributes>> {
    let (mut files, mut todo) = (Vec::new(), vec![top]);
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
            FileKind::Regular => files.push(attributes),
            _ => {}
        }
    }
    Ok(files)
}

/// Chunks of one file or more, and the ways to them.
struct Costs {
    path: Vec<u8>,
    files: usize,
    size: u64,
    chunks: Vec<Part>,
    ways: Ways,
    nearer: Vec<Nearer>,
}

/// A chunk of a file.
struct Part {
    file: FileId,
    extent: Extent,
    chunk: ChunkRef,
}

/// A place nearer than any OST, in the order in which a mount asks them.
struct Nearer {
    kind: &'static str,
    path: PathBuf,
    /// What of the file is there, by place in the file's list.
    chunks: BTreeSet<usize>,
}

impl Nearer {
    /// Those of the mount.
    fn of(mountpoint: Option<&Path>, chunks: &[Part]) -> Vec<Self> {
        let Some(entry) = mountpoint.and_then(registry::at) else { return Vec::new() };
        let caches = entry.caches;
        let node = caches.node.map(|path| Self::cache("node cache", path, chunks));
        let direct = caches.direct.into_iter().map(|(ost, path)| {
            let lies = |chunk: &ChunkRef| {
                chunk.at_osts().any(|place| place.ost.0 == ost && !place.is_stale)
            };
            let there = chunks.iter().enumerate().filter(|(_, part)| lies(&part.chunk));
            Self { kind: "direct", path, chunks: there.map(|(place, _)| place).collect() }
        });
        let site = caches.site.map(|path| Self::cache("site cache", path, chunks));
        node.into_iter().chain(direct).chain(site).collect()
    }

    /// One that cannot be read has nothing.
    fn cache(kind: &'static str, path: PathBuf, chunks: &[Part]) -> Self {
        let held = Survey::open(&path).and_then(|survey| {
            let names: Vec<_> = chunks.iter().map(|part| survey.name(&part.chunk)).collect();
            let held = survey.holds(&names.iter().flatten().cloned().collect())?;
            let is_held = |name: &Option<String>| name.as_ref().is_some_and(|n| held.contains(n));
            let there = names.iter().enumerate().filter(|(_, name)| is_held(name));
            Ok(there.map(|(place, _)| place).collect())
        });
        Self { kind, path, chunks: held.unwrap_or_default() }
    }
}

impl Costs {
    async fn of(shell: &Shell, path: Vec<u8>, files: &[Attributes]) -> anyhow::Result<Self> {
        let mut chunks: Vec<Part> = Vec::new();
        for attributes in files {
            let file = attributes.id;
            let all = extents(shell, attributes).await?;
            chunks.extend(all.into_iter().filter_map(|extent| match &extent.content {
                Content::Chunk(chunk) => Some(Part { file, chunk: chunk.clone(), extent }),
                Content::Inline(_) | Content::Hole => None,
            }));
        }
        let map = shell.files.map();
        let server = |ost| map.ost(ost).map(|known| known.addresses.clone());
        let mut ways = Ways::new();
        let mut silent = BTreeSet::new();
        // The largest chunk of each OST says most of its rate.
        let mut largest: Vec<&Part> = chunks.iter().collect();
        largest.sort_by_key(|part| std::cmp::Reverse(part.chunk.length));
        for Part { file, extent, chunk } in largest {
            for place in chunk.at_osts().filter(|place| !place.is_stale) {
                if ways.contains_key(&place.ost) {
                    continue;
                }
                let wanted = (extent, chunk);
                let measured = shell.volume.path_cost(&shell.caller, *file, wanted, &place);
                let measured = async {
                    // Another OST of a server that does not answer.
                    if silent.contains(&server(place.ost)) {
                        return None;
                    }
                    timeout(PATIENCE, measured).await.ok()
                };
                let found = match measured.await {
                    Some(found) => found.map_err(|error| tieline_base::report::chain(&error)),
                    None => {
                        silent.insert(server(place.ost));
                        Err(format!("its server did not answer within {}", Span(PATIENCE)))
                    }
                };
                ways.insert(place.ost, found);
            }
        }
        let nearer = Vec::new();
        let (files, size) = (files.len(), files.iter().map(|file| file.size).sum());
        Ok(Self { path, files, size, chunks, ways, nearer })
    }

    /// From where a mount takes a chunk before it asks an OST.
    fn near(&self, place: usize) -> Option<&Nearer> {
        self.nearer.iter().find(|nearer| nearer.chunks.contains(&place))
    }

    /// Where a chunk would be read now.
    fn taken(&self, shell: &Shell, chunk: &ChunkRef) -> Option<OstPlace> {
        let order = shell.volume.places_in_order(chunk);
        order.into_iter().find(|place| matches!(self.ways.get(&place.ost), Some(Ok(_))))
    }

    fn json(&self, shell: &Shell) -> Value {
        let map = shell.files.map();
        let way = |(ost, found): (&OstIndex, &Result<PathCost, String>)| {
            let site = map.ost(*ost).map(|entry| entry.site.to_string());
            match found {
                Ok(cost) => json!({
                    "ost": ost.0, "site": site, "server": cost.server,
                    "ms": millis(cost), "mb_per_s": megabytes(cost),
                }),
                Err(why) => json!({ "ost": ost.0, "site": site, "failure": why }),
            }
        };
        let chunk = |(number, part): (usize, &Part)| {
            let Part { file, extent, chunk } = part;
            let places: Vec<_> = chunk.at_osts().map(|place| self.place_json(&place)).collect();
            json!({
                "inode": file.0,
                "offset": extent.offset,
                "length": extent.length,
                "id": chunk.chunk.to_string(),
                "places": places,
                "taken": self.taken(shell, chunk).map(|place| place.ost.0),
                "nearer": self.near(number).map(|nearer| nearer.kind),
            })
        };
        let nearer = |nearer: &Nearer| {
            let Nearer { kind, path, chunks } = nearer;
            json!({ "kind": kind, "path": path, "chunks": chunks.len() })
        };
        let value = json!({
            "files": self.files,
            "size": self.size,
            "paths": self.ways.iter().map(way).collect::<Vec<_>>(),
            "nearer": self.nearer.iter().map(nearer).collect::<Vec<_>>(),
            "chunks": self.chunks.iter().enumerate().map(chunk).collect::<Vec<_>>(),
        });
        show::with_bytes(value, "path", &self.path)
    }

    fn place_json(&self, place: &OstPlace) -> Value {
        let cost = self.ways.get(&place.ost).and_then(|found| found.as_ref().ok());
        json!({
            "ost": place.ost.0,
            "stale": place.is_stale,
            "ms": cost.map(millis),
            "mb_per_s": cost.map(megabytes),
        })
    }

    fn text(&self, shell: &Shell, out: &mut dyn Write) -> io::Result<()> {
        let files = if self.files == 1 { String::new() } else { format!(": {} files", self.files) };
        out.write_all(&[&show::printed(&self.path)[..], files.as_bytes(), b"\n"].concat())?;
        if self.chunks.is_empty() {
            return writeln!(out, "  no chunks: its bytes are in the metadata");
        }
        let mut taken: BTreeMap<OstIndex, (u64, u64)> = BTreeMap::new();
        let mut held = taken.clone();
        for (number, Part { extent, chunk, .. }) in self.chunks.iter().enumerate() {
            let count = |rows: &mut BTreeMap<_, (u64, u64)>, ost| {
                let row = rows.entry(ost).or_insert((0, 0));
                *row = (row.0 + 1, row.1 + extent.length);
            };
            for place in chunk.at_osts().filter(|place| !place.is_stale) {
                count(&mut held, place.ost);
            }
            if self.near(number).is_some() {
                continue;
            }
            if let Some(place) = self.taken(shell, chunk) {
                count(&mut taken, place.ost);
            }
        }
        let all = self.chunks.len();
        for nearer in &self.nearer {
            let (kind, there, path) = (nearer.kind, nearer.chunks.len(), nearer.path.display());
            writeln!(out, "  {kind}: {there} of {all} chunks at {path}, taken there first")?;
        }
        let map = shell.files.map();
        writeln!(
            out,
            "  {:>5}  {:<12} {:>9} {:>9}  {:>14}  {:>14}  server",
            "ost", "site", "ms", "MB/s", "chunks there", "taken there"
        )?;
        for (ost, found) in &self.ways {
            let site = map.ost(*ost).map_or_else(String::new, |entry| entry.site.to_string());
            let (there, here) = (held.get(ost).map_or(0, |row| row.0), taken.get(ost));
            let here = here.map_or(0, |row| row.0);
            match found {
                Ok(cost) => writeln!(
                    out,
                    "  {:>5}  {site:<12} {:>9.1} {:>9.1}  {there:>14}  {here:>14}  {}",
                    ost.0,
                    millis(cost),
                    megabytes(cost),
                    cost.server
                )?,
                Err(why) => writeln!(
                    out,
                    "  {:>5}  {site:<12} {:>9} {:>9}  {there:>14}  {here:>14}  {why}",
                    ost.0, "-", "-"
                )?,
            }
        }
        Ok(())
    }
}

fn millis(cost: &PathCost) -> f64 {
    (cost.round_trip.as_secs_f64() * 1e5).round() / 100.0
}

fn megabytes(cost: &PathCost) -> f64 {
    (cost.rate as f64 / 1e5).round() / 10.0
}
