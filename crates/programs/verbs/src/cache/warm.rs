//! `tieline cache warm`: reads files through their mount, past the kernel's cache, so that the
//! mount's own caches have them. One that cannot be read keeps no other from it.

use super::{of_mount, there};
use crate::progress::Progress;
use anyhow::{Context, bail};
use rustix::fs::OFlags;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tieline_base::registry;
use tieline_machine::paths::absolute;

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
        let path = absolute(path);
        let shown = path.display();
        let (entry, _) = registry::covering(&path)
            .with_context(|| format!("{shown} is not below a mount: mount it with a cache"))?;
        if there(of_mount(&entry))?.is_empty() {
            bail!("the mount at {} has no caches to warm", entry.mountpoint.display());
        }
        todo.push(path);
    }
    let mut progress = Progress::new("warming", 0);
    let named: BTreeSet<PathBuf> = todo.iter().cloned().collect();
    let mut warmed = Warmed::default();
    while let Some(path) = todo.pop() {
        match warmed.warm(&path, &mut progress) {
            Ok(below) => todo.extend(below),
            // It went away during the walk.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !named.contains(&path) => {}
            Err(error) => {
                eprintln!("tieline: cannot read {}: {error}", path.display());
                warmed.failed += 1;
            }
        }
    }
    progress.end();
    let Warmed { files, bytes, failed } = warmed;
    if args.json {
        println!("{}", json!({ "files": files, "bytes": bytes, "failed": failed }));
    } else {
        println!("{files} files, {} read", tieline_types::ByteSize(bytes));
    }
    if failed > 0 {
        bail!("{failed} files or directories could not be read");
    }
    Ok(())
}

#[derive(Default)]
struct Warmed {
    files: u64,
    bytes: u64,
    failed: u64,
}

impl Warmed {
    /// Reads a file, or lists a directory.
    fn warm(&mut self, path: &Path, progress: &mut Progress) -> io::Result<Vec<PathBuf>> {
        let metadata = std::fs::symlink_metadata(path)?;
        if metadata.is_dir() {
            return std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect();
        }
        if metadata.is_file() {
            progress.widen(metadata.len());
            self.bytes += read(path, progress)?;
            self.files += 1;
        }
        Ok(Vec::new())
    }
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
