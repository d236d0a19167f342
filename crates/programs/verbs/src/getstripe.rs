//! `tieline getstripe`: the layout of files, and where their bytes are; as text like `lfs
//! getstripe`, or as JSON with every extent, chunk and place.

use crate::list::listed;
use crate::shell::{self, Shell};
use anyhow::Context;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_base::show;
use tieline_client::LayoutInForce;
use tieline_format::map::FederationMap;
use tieline_types::{
    Attributes, ChunkRef, Content, Extent, FileKind, Layout, ObjectName, OstIndex, Place,
    Residency, Shown, Standing,
};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Of directories only their own layout, not the files in them
    #[arg(short, long)]
    directory: bool,
    /// Everything below directories
    #[arg(short, long)]
    recursive: bool,
    /// Only over how many OSTs
    #[arg(short = 'c', long)]
    stripe_count: bool,
    /// Only the bytes on one OST before the next
    #[arg(short = 'S', long)]
    stripe_size: bool,
    /// Only the first OST's number; -1: none yet
    #[arg(short = 'i', long)]
    stripe_index: bool,
    /// Only the pool
    #[arg(short = 'p', long)]
    pool: bool,
    /// As YAML, one document for each
    #[arg(short = 'y', long, conflicts_with = "json")]
    yaml: bool,
    /// One JSON list, with extents and places
    #[arg(long)]
    json: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    paths: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let (first, all) = crate::locations(&args.paths)?;
    shell::run(&first, |shell| async move {
        let mut out = io::stdout().lock();
        let mut values = Vec::new();
        for location in &all {
            let entry = shell.resolve(&location.path, true).await?;
            let chosen = chosen(&shell, &args, location.stem(), entry.attributes).await?;
            let is_named = all.len() > 1 || chosen.len() > 1;
            for (path, attributes) in chosen {
                if let Some(fields) = args.fields() {
                    let layout = shell.files.layout(&shell.caller, attributes.id).await?;
                    fields_text(&mut out, is_named.then_some(&path[..]), &layout, &fields)?;
                    continue;
                }
                let one = describe(&shell, &args, &path, attributes, &mut out).await;
                values.extend(
                    one.with_context(|| format!("cannot tell the layout of {}", Shown(&path)))?,
                );
            }
        }
        if args.json {
            writeln!(out, "{}", Value::Array(values))?;
        }
        Ok(())
    })
}

/// What of a layout is shown alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Count,
    Size,
    Index,
    Pool,
}

impl Args {
    /// `None`: all of it.
    fn fields(&self) -> Option<Vec<Field>> {
        let asked = [
            (self.stripe_count, Field::Count),
            (self.stripe_size, Field::Size),
            (self.stripe_index, Field::Index),
            (self.pool, Field::Pool),
        ];
        let asked: Vec<Field> = asked.iter().filter(|(is, _)| *is).map(|(_, f)| *f).collect();
        (!asked.is_empty() && !self.json).then_some(asked)
    }
}

/// As lfs: the bare value of one field, with their names those of several; the path before it where
/// there is more than one.
fn fields_text(
    out: &mut dyn Write,
    path: Option<&[u8]>,
    layout: &LayoutInForce,
    fields: &[Field],
) -> io::Result<()> {
    if let Some(path) = path {
        path_line(out, path)?;
    }
    for field in fields {
        let (name, value) = match (field, layout.stripe.as_slice()) {
            (Field::Count, []) => ("stripe_count", show::stripe_count(&layout.layout).to_string()),
            (Field::Count, stripe) => ("stripe_count", layout.layout.columns(stripe).to_string()),
            (Field::Size, _) => ("stripe_size", layout.layout.stripe_size.to_string()),
            (Field::Index, stripe) => {
                ("stripe_offset", stripe.first().map_or("-1".to_owned(), |ost| ost.0.to_string()))
            }
            (Field::Pool, _) => ("pool", pools(&layout.layout).unwrap_or_default()),
        };
        match fields.len() {
            1 => writeln!(out, "{value}")?,
            _ => writeln!(out, "{:<19}{value}", format!("lmm_{name}:"))?,
        }
    }
    Ok(())
}

fn path_line(out: &mut dyn Write, path: &[u8]) -> io::Result<()> {
    out.write_all(&[&show::printed(path)[..], b"\n"].concat())
}

/// The file itself, and what below it was asked for.
async fn chosen(
    shell: &Shell,
    args: &Args,
    path: Vec<u8>,
    attributes: Attributes,
) -> anyhow::Result<Vec<(Vec<u8>, Attributes)>> {
    let mut chosen = Vec::new();
    let mut todo = vec![(path, attributes, 0)];
    while let Some((path, attributes, depth)) = todo.pop() {
        let goes_down =
            attributes.is_directory() && !args.directory && (depth == 0 || args.recursive);
        if goes_down {
            for entry in listed(shell, attributes.id).await?.into_iter().rev() {
                let attributes = match entry.known {
                    Some(known) => known.attributes,
                    None => shell.files.attributes(&shell.caller, entry.id).await?.attributes,
                };
                todo.push((show::below(&path, &entry.name), attributes, depth + 1));
            }
        }
        if matches!(attributes.kind, FileKind::Regular | FileKind::Directory) {
            chosen.push((path, attributes));
        }
    }
    Ok(chosen)
}

async fn describe(
    shell: &Shell,
    args: &Args,
    path: &[u8],
    attributes: Attributes,
    out: &mut dyn Write,
) -> anyhow::Result<Option<Value>> {
    let layout = shell.files.layout(&shell.caller, attributes.id).await?;
    let extents = match attributes.kind {
        FileKind::Regular => extents(shell, &attributes).await?,
        _ => Vec::new(),
    };
    if args.json {
        let map = shell.files.map();
        let mut value = show::attributes_json(path, &attributes);
        if let Some(object) = value.as_object_mut() {
            object.insert("layout".into(), layout_json(&layout));
            object.insert("stripe".into(), layout.stripe.iter().map(|ost| ost.0).collect());
            if let Some(on_tape) = attributes.tape {
                object.insert("hsm".into(), on_tape.to_string().into());
            }
            if attributes.kind == FileKind::Regular {
                let extents = extents.iter().map(|extent| extent_json(&map, extent)).collect();
                object.insert("extents".into(), extents);
            }
        }
        return Ok(Some(value));
    }
    match attributes.kind {
        FileKind::Regular if args.yaml => file_yaml(out, path, &layout, &extents)?,
        FileKind::Regular => file_text(out, path, &layout, &extents)?,
        _ if args.yaml => directory_yaml(out, path, &layout)?,
        _ => directory_text(out, path, &layout)?,
    }
    Ok(None)
}

/// Every extent of a file.
pub async fn extents(shell: &Shell, attributes: &Attributes) -> anyhow::Result<Vec<Extent>> {
    let mut all = Vec::new();
    let mut offset = 0;
    while offset < attributes.size {
        let page = shell.files.extents(&shell.caller, attributes.id, offset).await?;
        all.extend(page.extents);
        if page.covered <= offset {
            break;
        }
        offset = page.covered;
    }
    Ok(all)
}

fn layout_json(layout: &LayoutInForce) -> Value {
    let Layout { stripe_size, pool, mirrors, sync, inline_limit, chunk_size, .. } = &layout.layout;
    json!({
        "stripe_count": show::stripe_count(&layout.layout),
        "stripe_size": stripe_size,
        "pool": pool,
        "mirrors": mirrors,
        "mirror_pools": layout.layout.mirror_pools,
        "sync": sync,
        "inline_limit": inline_limit,
        "chunk_size": chunk_size,
        "pattern": pattern(&layout.layout),
        "is_own": layout.is_own,
    })
}

fn extent_json(map: &FederationMap, extent: &Extent) -> Value {
    let mut value = json!({ "offset": extent.offset, "length": extent.length });
    let (key, content) = match &extent.content {
        Content::Inline(_) => ("inline", Value::Bool(true)),
        Content::Hole => ("hole", Value::Bool(true)),
        Content::Chunk(chunk) => ("chunk", chunk_json(map, chunk)),
    };
    if let Some(object) = value.as_object_mut() {
        object.insert(key.into(), content);
    }
    value
}

fn chunk_json(map: &FederationMap, chunk: &ChunkRef) -> Value {
    json!({
        "id": chunk.chunk.to_string(),
        "length": chunk.length,
        "skip": chunk.skip,
        "digest": chunk.digest().map(|digest| digest.to_string()),
        "adler32": chunk.adler32.map(|sum| format!("{sum:08x}")),
        "block_checks": match &chunk.checks {
            Some(checks) => json!({ "algorithm": "crc32c", "block": 4096, "kept": "metadata",
                "count": checks.len() }),
            None => json!({ "algorithm": "crc32c", "block": 4096, "kept": "objects" }),
        },
        "places": chunk.places.iter().map(|place| place_json(map, place)).collect::<Vec<_>>(),
    })
}

fn place_json(map: &FederationMap, place: &Place) -> Value {
    json!({
        "ost": place.ost().map(|ost| ost.0),
        "origin": place.origin.to_string(),
        "site": place.ost().and_then(|ost| map.ost(ost)).map(|ost| ost.site.to_string()),
        "object": place.object.to_string(),
        "adopted": matches!(place.object, ObjectName::External { .. }),
        "offset": place.offset,
        "length": place.length,
        "encoding": place.encoding().name(),
        "stale": place.is_stale,
    })
}

fn pattern(layout: &Layout) -> &'static str {
    if layout.inline_limit > 0 { "mdt,raid0" } else { "raid0" }
}

fn directory_text(out: &mut dyn Write, path: &[u8], layout: &LayoutInForce) -> io::Result<()> {
    path_line(out, path)?;
    let inherited = if layout.is_own { "" } else { " (inherited)" };
    let pool = pools(&layout.layout).map(|pool| format!(" pool: {pool}"));
    let mirrors = match layout.layout.mirrors {
        1 => String::new(),
        mirrors => format!(" mirror_count: {mirrors} sync_count: {}", layout.layout.sync),
    };
    let more = format!("{}{mirrors}{inherited}", pool.unwrap_or_default());
    writeln!(
        out,
        "stripe_count:  {} stripe_size:   {} pattern:       {} stripe_offset: -1{more}",
        show::stripe_count(&layout.layout),
        layout.layout.stripe_size,
        pattern(&layout.layout),
    )
}

fn file_text(
    out: &mut dyn Write,
    path: &[u8],
    layout: &LayoutInForce,
    extents: &[Extent],
) -> io::Result<()> {
    path_line(out, path)?;
    file_lines(out, layout, extents)?;
    writeln!(out, "\tobdidx\t\t objects\t\t bytes")?;
    for (ost, (objects, bytes)) in per_ost(&layout.stripe, extents) {
        writeln!(out, "\t{:>6}\t\t {objects:>7}\t\t {bytes}", ost.0)?;
    }
    let inline = inline_bytes(extents);
    if inline > 0 {
        writeln!(out, "\t   mdt\t\t       -\t\t {inline}")?;
    }
    writeln!(out)
}

/// What lfs calls so, with the bytes that lie on each OST and in the metadata.
fn file_yaml(
    out: &mut dyn Write,
    path: &[u8],
    layout: &LayoutInForce,
    extents: &[Extent],
) -> io::Result<()> {
    path_yaml(out, path)?;
    file_lines(out, layout, extents)?;
    writeln!(out, "lmm_mdt_bytes:     {}", inline_bytes(extents))?;
    let rows = per_ost(&layout.stripe, extents);
    writeln!(out, "lmm_objects:{}", if rows.is_empty() { " []" } else { "" })?;
    for (ost, (objects, bytes)) in rows {
        writeln!(out, "- l_ost_idx: {}", ost.0)?;
        writeln!(out, "  l_objects: {objects}")?;
        writeln!(out, "  l_bytes:   {bytes}")?;
    }
    Ok(())
}

fn directory_yaml(out: &mut dyn Write, path: &[u8], layout: &LayoutInForce) -> io::Result<()> {
    path_yaml(out, path)?;
    mirror_lines(out, &layout.layout)?;
    writeln!(out, "stripe_count:  {}", show::stripe_count(&layout.layout))?;
    writeln!(out, "stripe_size:   {}", layout.layout.stripe_size)?;
    writeln!(out, "pattern:       {}", pattern(&layout.layout))?;
    writeln!(out, "stripe_offset: -1")?;
    if let Some(pool) = pools(&layout.layout) {
        writeln!(out, "pool:          {pool}")?;
    }
    writeln!(out, "is_own:        {}", layout.is_own)
}

fn path_yaml(out: &mut dyn Write, path: &[u8]) -> io::Result<()> {
    writeln!(out, "---")?;
    // A JSON text is one of YAML.
    let path = show::with_bytes(json!({}), "path", path);
    for (key, value) in path.as_object().into_iter().flatten() {
        writeln!(out, "{key}: {value}")?;
    }
    Ok(())
}

fn mirror_lines(out: &mut dyn Write, layout: &Layout) -> io::Result<()> {
    if layout.mirrors > 1 {
        writeln!(out, "lcm_mirror_count:  {}", layout.mirrors)?;
        writeln!(out, "lcm_sync_count:    {}", layout.sync)?;
    }
    Ok(())
}

fn file_lines(out: &mut dyn Write, layout: &LayoutInForce, extents: &[Extent]) -> io::Result<()> {
    let stripe = &layout.stripe;
    mirror_lines(out, &layout.layout)?;
    if layout.layout.mirrors > 1 {
        writeln!(out, "lcm_stale_copies:  {}", stale_copies(&layout.layout, extents))?;
    }
    let count = layout.layout.columns(stripe);
    writeln!(out, "lmm_stripe_count:  {count}")?;
    writeln!(out, "lmm_stripe_size:   {}", layout.layout.stripe_size)?;
    writeln!(out, "lmm_pattern:       {}", pattern(&layout.layout))?;
    let first = stripe.first().map_or("-1".to_owned(), |ost| ost.0.to_string());
    writeln!(out, "lmm_stripe_offset: {first}")?;
    if let Some(pool) = pools(&layout.layout) {
        writeln!(out, "lmm_pool:          {pool}")?;
    }
    let residency = Residency::of(extents, |_| Standing::Answers);
    if residency == Residency::Nearline {
        writeln!(out, "lmm_residency:     {residency}")?;
    }
    Ok(())
}

fn inline_bytes(extents: &[Extent]) -> u64 {
    let is_inline = |extent: &&Extent| matches!(extent.content, Content::Inline(_));
    extents.iter().filter(is_inline).map(|extent| extent.length).sum()
}

/// The pool; where mirrors have their own, all of them.
fn pools(layout: &Layout) -> Option<String> {
    let Some(pools) = &layout.mirror_pools else {
        return layout.pool.as_ref().map(ToString::to_string);
    };
    let names = pools.iter().map(|pool| pool.as_ref().map_or("none".into(), ToString::to_string));
    Some(names.collect::<Vec<String>>().join(","))
}

/// Copies that are damaged or missing, those that were not made yet among them.
fn stale_copies(layout: &Layout, extents: &[Extent]) -> usize {
    let chunks = extents.iter().filter_map(|extent| match &extent.content {
        Content::Chunk(chunk) => Some(chunk),
        Content::Inline(_) | Content::Hole => None,
    });
    let lacking = |chunk: &ChunkRef| {
        let stale = chunk.places.iter().filter(|place| place.is_stale).count();
        stale + usize::from(layout.mirrors).saturating_sub(chunk.places.len())
    };
    chunks.map(lacking).sum()
}

/// How many chunks and bytes of the file lie on each OST: those of its stripe first, then any
/// other.
fn per_ost(stripe: &[OstIndex], extents: &[Extent]) -> Vec<(OstIndex, (u64, u64))> {
    let mut rows: Vec<(OstIndex, (u64, u64))> = Vec::new();
    for &ost in stripe {
        if !rows.iter().any(|(known, _)| *known == ost) {
            rows.push((ost, (0, 0)));
        }
    }
    for extent in extents {
        let Content::Chunk(chunk) = &extent.content else { continue };
        for place in chunk.at_osts().filter(|place| !place.is_stale) {
            let row = rows.iter().position(|(ost, _)| *ost == place.ost).unwrap_or_else(|| {
                rows.push((place.ost, (0, 0)));
                rows.len() - 1
            });
            if let Some((_, (objects, bytes))) = rows.get_mut(row) {
                *objects += 1;
                *bytes += extent.length;
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Grant, GrantedId, MdtIndex, OstPlace};

    fn extent(offset: u64, ost: u16) -> Extent {
        let chunk = GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial: offset };
        let place = OstPlace {
            ost: OstIndex(ost),
            object: ObjectName::Chunk(chunk),
            offset: 0,
            length: 100,
            is_stale: false,
        };
        let chunk = ChunkRef {
            chunk: chunk.into(),
            length: 100,
            skip: 0,
            places: vec![place.into()],
            digest: None,
            adler32: Some(1),
            checks: None,
        };
        Extent { offset, length: 100, content: Content::Chunk(chunk) }
    }

    #[test]
    fn bytes_are_counted_per_ost() {
        let extents = [extent(0, 1), extent(100, 0), extent(200, 1), extent(300, 7)];
        let rows = per_ost(&[OstIndex(1), OstIndex(0)], &extents);
        assert_eq!(
            rows,
            [(OstIndex(1), (2, 200)), (OstIndex(0), (1, 100)), (OstIndex(7), (1, 100))]
        );
    }

    #[test]
    fn single_values_are_bare() {
        let layout = LayoutInForce {
            layout: Layout { pool: Some("uf".parse().unwrap()), ..Layout::default() },
            is_own: true,
            stripe: vec![OstIndex(3)],
        };
        let text = |path: Option<&[u8]>, fields: &[Field]| {
            let mut out = Vec::new();
            fields_text(&mut out, path, &layout, fields).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(None, &[Field::Count]), "1\n");
        assert_eq!(text(None, &[Field::Size]), "4194304\n");
        assert_eq!(text(Some(b"/e/f"), &[Field::Pool]), "/e/f\nuf\n");
        let both = text(None, &[Field::Count, Field::Index]);
        assert_eq!(both, "lmm_stripe_count:  1\nlmm_stripe_offset: 3\n");
    }

    #[test]
    fn text_looks_like_lfs() {
        let layout = LayoutInForce {
            layout: Layout { pool: Some("uf".parse().unwrap()), ..Layout::default() },
            is_own: true,
            stripe: vec![OstIndex(1)],
        };
        let mut out = Vec::new();
        file_text(&mut out, b"/e/f", &layout, &[extent(0, 1)]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("lmm_stripe_count:  1\nlmm_stripe_size:   4194304\n"), "{text}");
        assert!(text.contains("lmm_pool:          uf"));
        assert!(text.contains("\t     1\t\t       1\t\t 100"));
        let mut out = Vec::new();
        file_yaml(&mut out, b"/e/\"f\"", &layout, &[extent(0, 1)]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("---\npath: \"/e/\\\"f\\\"\"\nlmm_stripe_count:  1\n"), "{text}");
        assert!(text.ends_with("lmm_objects:\n- l_ost_idx: 1\n  l_objects: 1\n  l_bytes:   100\n"));
    }
}
