//! `tieline mirror create|extend|split|resync|verify`, with the meanings of `lfs mirror`.
//!
//! `create` is `setstripe` of a new file; `extend` changes the layout and waits until every chunk
//! has its new copies; `resync` waits until none is missing; the work is the servers'. `verify` has
//! every copy read and checked by the OSS that has it, so that no bytes travel, and tells the MDS
//! of those that are bad.

use crate::progress::Progress;
use crate::setstripe;
use crate::shell::{self, Shell};
use anyhow::bail;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tieline_base::show;
use tieline_types::{Attributes, FileKind, Shown};
use tieline_wire::mirrors::{LackingChunk, ResyncFileReply};

mod split;
mod verify;

/// A look at what is missing, while it is made.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// So long nothing may be done before the command gives up; the servers go on.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same, if the servers say of every missing copy why they cannot make it.
const PATIENCE_TROUBLED: Duration = Duration::from_secs(5);

#[derive(clap::Subcommand, Debug)]
pub enum Mirror {
    /// Make files that will have copies, with the options of `setstripe`
    Create(Box<setstripe::Args>),
    /// Give files more copies
    Extend(Extend),
    /// Take one copy away; it is freed as deleted files are
    Split(split::Split),
    /// Make missing and damaged copies again, now
    Resync(Resync),
    /// Read every copy where it lies, and compare
    Verify(Verify),
}

#[derive(clap::Args, Debug)]
pub struct Resync {
    /// As in `lfs`; the other copies are made too, where they are missing
    #[arg(long, value_name = "ID", value_delimiter = ',',
        value_parser = clap::value_parser!(u8).range(1..))]
    only: Vec<u8>,
    #[command(flatten)]
    files: Files,
}

#[derive(clap::Args, Debug)]
pub struct Verify {
    /// Tell of the good copies too
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    files: Files,
}

#[derive(clap::Args, Debug)]
pub struct Extend {
    /// How many copies more
    #[arg(short = 'N', long, value_name = "COUNT", default_value_t = 1)]
    mirror_count: u8,
    /// On OSTs of this pool
    #[arg(short = 'p', long, value_name = "POOL")]
    pool: Option<String>,
    #[command(flatten)]
    files: Files,
}

#[derive(clap::Args, Debug)]
pub struct Files {
    /// One JSON list
    #[arg(long)]
    json: bool,
    /// Paths below a mount, or tieline://HOST[:PORT]/FS/path
    #[arg(required = true)]
    files: Vec<OsString>,
}

pub fn run(verb: Mirror) -> anyhow::Result<()> {
    crate::log_start();
    match verb {
        Mirror::Create(args) => setstripe::run(*args),
        Mirror::Extend(args) => {
            let pool = args.pool.as_deref().map(setstripe::pool).transpose()?.flatten();
            let count = args.mirror_count;
            each(args.files, "extend", async move |shell, path, attributes| {
                let (caller, id) = (&shell.caller, attributes.id);
                shell.volume.extend_mirrors(caller, id, count, pool.clone()).await?;
                complete(&shell, &path, &attributes).await
            })
        }
        Mirror::Split(args) => {
            let (choice, verifies) = (args.choice()?, args.verifies());
            each(args.files, "split", async move |shell, path, attributes| {
                split::split(&shell, &path, &attributes, &choice, verifies).await
            })
        }
        Mirror::Resync(args) => each(args.files, "resync", async |shell, path, attributes| {
            complete(&shell, &path, &attributes).await
        }),
        Mirror::Verify(Verify { verbose, files }) => {
            each(files, "verify", async move |shell, path, attributes| {
                verify::verify(&shell, &path, &attributes, verbose).await
            })
        }
    }
}

/// What became of one file.
pub(super) struct Outcome {
    /// Without the path, as `text` is.
    pub json: Value,
    pub text: String,
    /// Something is left to be done or told: the command fails, after all files.
    pub is_bad: bool,
}

/// Does the same with every file, and prints what came of it.
pub(super) fn each(
    files: Files,
    verb: &str,
    work: impl AsyncFn(Arc<Shell>, String, Attributes) -> anyhow::Result<Outcome>,
) -> anyhow::Result<()> {
    let (first, all) = crate::locations(&files.files)?;
    shell::run(&first, |shell| async move {
        let (mut values, mut bad) = (Vec::new(), 0);
        for location in &all {
            let text = location.text.clone();
            let outcome = async {
                let entry = shell.resolve(&location.path, true).await?;
                if entry.attributes.kind != FileKind::Regular {
                    bail!("it is no regular file: only those have bytes on OSTs");
                }
                work(shell.clone(), text.clone(), entry.attributes).await
            };
            let outcome = match outcome.await {
                Ok(outcome) => outcome,
                // The others are done all the same.
                Err(error) if all.len() > 1 => {
                    let why = tieline_base::report::chain(error.as_ref());
                    eprintln!("tieline: cannot {verb} {text}: {why}");
                    let json = json!({ "error": why });
                    values.push(show::with_bytes(json, "path", &location.typed));
                    bad += 1;
                    continue;
                }
                Err(error) => return Err(error.context(format!("cannot {verb} {text}"))),
            };
            bad += usize::from(outcome.is_bad);
            if files.json {
                values.push(show::with_bytes(outcome.json, "path", &location.typed));
            } else {
                let path = show::printed(&location.typed);
                let line = [&path[..], b": ", outcome.text.as_bytes(), b"\n"].concat();
                io::stdout().write_all(&line)?;
            }
        }
        if files.json {
            writeln!(io::stdout(), "{}", Value::Array(values))?;
        }
        if bad > 0 {
            bail!("{bad} of {} files are not in order", all.len());
        }
        Ok(())
    })
}

/// Waits until no chunk of the file lacks a copy.
async fn complete(shell: &Shell, path: &str, attributes: &Attributes) -> anyhow::Result<Outcome> {
    let (chunks, missing) = survey(shell, attributes).await?;
    let mut progress = Progress::new(path, missing);
    let mut offset = 0;
    while offset < attributes.size {
        let reply = finish_page(shell, attributes, offset, &mut progress).await?;
        if reply.covered <= offset {
            break;
        }
        offset = reply.covered;
    }
    progress.end();
    let json = json!({ "chunks": chunks, "bytes_copied": missing, "lacking": 0 });
    let text = match missing {
        0 => format!("{chunks} chunks, no copy is missing"),
        missing => format!("{chunks} chunks, {missing} bytes copied"),
    };
    Ok(Outcome { json, text, is_bad: false })
}

/// How many chunks the file has, and how many bytes are to be copied.
async fn survey(shell: &Shell, attributes: &Attributes) -> anyhow::Result<(u64, u64)> {
    let (mut chunks, mut missing, mut offset) = (0, 0, 0);
    while offset < attributes.size {
        let reply = shell.volume.resync_file(&shell.caller, attributes.id, offset).await?;
        chunks += u64::from(reply.chunks);
        missing += bytes(&reply.lacking);
        if reply.covered <= offset {
            break;
        }
        offset = reply.covered;
    }
    Ok((chunks, missing))
}

fn bytes(lacking: &[LackingChunk]) -> u64 {
    lacking.iter().map(|chunk| chunk.length * u64::from(chunk.copies)).sum()
}

async fn finish_page(
    shell: &Shell,
    attributes: &Attributes,
    offset: u64,
    progress: &mut Progress,
) -> anyhow::Result<ResyncFileReply> {
    let mut left = u64::MAX;
    let mut moved = Instant::now();
    loop {
        let reply = shell.volume.resync_file(&shell.caller, attributes.id, offset).await?;
        let now = bytes(&reply.lacking);
        if now < left {
            progress.add(if left == u64::MAX { 0 } else { left - now });
            (left, moved) = (now, Instant::now());
        }
        if reply.lacking.is_empty() {
            return Ok(reply);
        }
        let is_hopeless = reply.lacking.iter().all(|chunk| chunk.trouble.is_some());
        let patience = if is_hopeless { PATIENCE_TROUBLED } else { PATIENCE };
        if moved.elapsed() >= patience {
            return Err(troubles(&reply.lacking));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What stands in the way of the first chunk that lacks a copy.
fn troubles(lacking: &[LackingChunk]) -> anyhow::Error {
    let count = lacking.len();
    let trouble = lacking.iter().find_map(|chunk| Some((chunk, chunk.trouble.as_ref()?)));
    let reason = match trouble {
        Some((chunk, trouble)) => {
            let reason = Shown(trouble.reason.as_bytes());
            format!("chunk {} at {}: {reason}", chunk.chunk, chunk.offset)
        }
        None => "the servers do not say why".to_owned(),
    };
    anyhow::anyhow!("{count} chunks lack a copy, and go on to be tried in the background: {reason}")
}
