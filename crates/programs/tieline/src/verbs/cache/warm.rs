//! `tieline cache warm`: reads files through their mount, past the kernel's cache, so that the
//! mount's own caches have them.

use super::of_mount;
use crate::location;
use crate::mount::registry;
use crate::verbs::progress::Progress;
use anyhow::{Context, bail};
use rustix::fs::OFlags;
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What is read at once: the window ahead does the rest.
const PIECE: usize = 1 << 20;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files and directories below a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut todo = Vec::new();
    for path in &args.paths {
        let path = location::absolute(path);
        let shown = path.display();
        let (entry, _) = registry::covering(&path)
            .with_context(|| format!("{shown} is not below a mount: mount it with a cache"))?;
        if of_mount(&entry)?.is_empty() {
            bail!("the mount at {} has no caches to warm", entry.mountpoint.display());
        }
        todo.push(path);
    }
    let mut progress = Progress::new("warming", 0);
    let (mut files, mut bytes) = (0_u64, 0_u64);
    while let Some(path) = todo.pop() {
        let context = || format!("cannot read {}", path.display());
        let metadata = std::fs::symlink_metadata(&path).with_context(context)?;
        if metadata.is_dir() {
            for entry in std::fs::read_dir(&path).with_context(context)? {
                todo.push(entry.with_context(context)?.path());
            }
        } else if metadata.is_file() {
            progress.widen(metadata.len());
            bytes += read(&path, &mut progress).with_context(context)?;
            files += 1;
        }
    }
    progress.end();
    if args.json {
        println!("{}", json!({ "files": files, "bytes": bytes }));
    } else {
        println!("{files} files, {} read", tieline_types::ByteSize(bytes));
    }
    Ok(())
}

fn read(path: &Path, progress: &mut Progress) -> std::io::Result<u64> {
    let mut options = File::options();
    // What the kernel has would not be asked of the mount.
    let flags = (OFlags::DIRECT | OFlags::NOFOLLOW).bits() as i32;
    let mut file = options.read(true).custom_flags(flags).open(path)?;
    let mut buffer = vec![0; PIECE];
    let mut total = 0;
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok(total);
        }
        total += length as u64;
        progress.add(length as u64);
    }
}
