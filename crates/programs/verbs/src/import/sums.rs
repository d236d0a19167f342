//! Checksums of adopted files: read once where they lie, kept by the MDS, checked by every reader
//! from then on.
//!
//! A file whose bytes contradict what XRootD's servers keep beside it is named: it was damaged
//! before it came to us.
//!
//! Invariant: what has its checksums is not read again.

use crate::checksum::by_reading;
use crate::checksum::kind::{self, Kind, hex};
use crate::list::listed;
use crate::shell::{self, Shell};
use anyhow::{Context, bail};
use serde_json::json;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use tieline_base::location::Location;
use tieline_types::{
    Attributes, ChunkRef, Content, ErrorKind, FileKind, ObjectName, Place, XattrName,
};

/// Starts `tieline import --checksums` in the background; it outlives us.
pub fn start(path: &OsStr) -> anyhow::Result<u32> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["import", "--checksums"]).arg(path).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.spawn().context("cannot start computing checksums")?.id())
}

/// What was computed, and what is wrong with it.
#[derive(Default)]
pub struct Sums {
    files: u64,
    chunks: u64,
    bytes: u64,
    wrong: Vec<String>,
}

impl Sums {
    pub fn json(&self) -> serde_json::Value {
        let Self { files, chunks, bytes, wrong } = self;
        json!({ "files": files, "chunks": chunks, "bytes": bytes, "wrong": wrong })
    }

    pub fn print(&self) {
        self.wrong.iter().for_each(|wrong| eprintln!("tieline: {wrong}"));
        let bytes = tieline_types::ByteSize(self.bytes);
        println!("checksums of {} files computed ({bytes} read)", self.files);
    }

    pub fn judge(&self) -> anyhow::Result<()> {
        match self.wrong.len() {
            0 => Ok(()),
            count => bail!("{count} files could not be read, or are not what they should be"),
        }
    }
}

/// Computes what is missing below a path.
pub fn compute(path: &OsStr) -> anyhow::Result<Sums> {
    let location = Location::find(path)?;
    let text = location.text.trim_end_matches('/').to_owned();
    shell::run(&location.clone(), |shell| async move {
        let entry = shell.resolve(&location.path, true).await?;
        let mut sums = Sums::default();
        let mut todo = vec![(text, entry.attributes)];
        while let Some((path, attributes)) = todo.pop() {
            match attributes.kind {
                FileKind::Directory => {
                    for entry in listed(&shell, attributes.id).await? {
                        let known = match entry.known {
                            Some(known) => known,
                            None => shell.files.attributes(&shell.caller, entry.id).await?,
                        };
                        todo.push((format!("{path}/{}", entry.name), known.attributes));
                    }
                }
                FileKind::Regular => {
                    if let Err(error) = one(&shell, &path, &attributes, &mut sums).await {
                        let why = tieline_base::report::chain(error.as_ref());
                        sums.wrong.push(format!("{path}: {why}"));
                    }
                }
                _ => {}
            }
        }
        Ok(sums)
    })
}

async fn one(
    shell: &Shell,
    path: &str,
    attributes: &Attributes,
    sums: &mut Sums,
) -> anyhow::Result<()> {
    let missing = unsummed(shell, attributes).await?;
    if missing.is_empty() {
        return Ok(());
    }
    for chunk in &missing {
        let sum = shell.volume.checksum_adopted(&shell.caller, attributes.id, chunk).await?;
        sums.chunks += 1;
        sums.bytes += chunk.length;
        // Only a chunk that is the whole file had one before.
        if let Some(kept) = chunk.adler32.filter(|&kept| kept != sum) {
            let text = "its bytes are not those that user.XrdCks.adler32 is of";
            sums.wrong.push(format!("{path}: {text}: {kept:08x} kept, {sum:08x} found"));
        }
    }
    sums.files += 1;
    others(shell, path, attributes, sums).await
}

/// Compares what XRootD's servers keep beside Adler-32 with the bytes, which are read once more for
/// it, checked by what was just computed.
async fn others(
    shell: &Shell,
    path: &str,
    attributes: &Attributes,
    sums: &mut Sums,
) -> anyhow::Result<()> {
    let mut kept = Vec::new();
    for kind in Kind::ALL {
        let name = XattrName::new(format!("user.XrdCks.{}", kind.name()))?;
        let value = match shell.files.xattr(&shell.caller, attributes.id, &name).await {
            Err(error) if error.kind() == ErrorKind::NoAttribute => continue,
            value => value?,
        };
        let sum = kind::kept(kind, &value, attributes.mtime.seconds);
        kept.extend(sum.map(|sum| (kind, sum.to_vec())));
    }
    if kept.is_empty() {
        return Ok(());
    }
    let kinds: Vec<Kind> = kept.iter().map(|(kind, _)| *kind).collect();
    let found = by_reading(shell, (path, attributes), &kinds).await?;
    for ((kind, kept), (_, found)) in kept.iter().zip(&found).filter(|(k, f)| k.1 != f.1) {
        let (name, kept, found) = (kind.name(), hex(kept), hex(found));
        let text = format!("its bytes are not those that user.XrdCks.{name} is of");
        sums.wrong.push(format!("{path}: {text}: {kept} kept, {found} found"));
    }
    Ok(())
}

/// Is this a chunk that lies in an adopted file, without block checks?
pub fn is_missing(content: &Content) -> bool {
    let Content::Chunk(chunk) = content else { return false };
    let is_external = |place: &Place| matches!(place.object, ObjectName::External { .. });
    chunk.checks.is_none() && chunk.places.iter().any(is_external)
}

/// Adopted chunks without block checks.
pub async fn unsummed(shell: &Shell, attributes: &Attributes) -> anyhow::Result<Vec<ChunkRef>> {
    let mut missing = Vec::new();
    let mut offset = 0;
    while offset < attributes.size {
        let page = match shell.files.extents(&shell.caller, attributes.id, offset).await {
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(Vec::new()),
            page => page?,
        };
        for extent in page.extents {
            if is_missing(&extent.content)
                && let Content::Chunk(chunk) = extent.content
            {
                missing.push(chunk);
            }
        }
        if page.covered <= offset {
            break;
        }
        offset = page.covered;
    }
    missing.dedup_by_key(|chunk| chunk.chunk);
    Ok(missing)
}
