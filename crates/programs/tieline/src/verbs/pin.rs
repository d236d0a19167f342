//! `tieline pin`: has a mount keep trees for times without servers; `tieline unpin` lets them go.
//!
//! The mount is told by attributes that are read: so whoever may read a tree may pin it, and on
//! mounts that are read-only.

use crate::report::Usage;
use anyhow::{Context, bail};
use rustix::fs::getxattr;
use rustix::io::Errno;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NAME: &str = "user.tieline.pin";
const SET: &str = "user.tieline.pin.set";
const DROP: &str = "user.tieline.pin.drop";
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// An attribute's value: a line of JSON.
const VALUE_MAX: usize = 4096;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directories on a mount
    #[arg(required = true)]
    directories: Vec<PathBuf>,
    /// Do not wait until all of it is here
    #[arg(long)]
    no_wait: bool,
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub struct UnpinArgs {
    #[arg(required = true)]
    directories: Vec<PathBuf>,
}

pub fn pin(args: &Args) -> anyhow::Result<()> {
    for directory in &args.directories {
        read(directory, SET).with_context(|| {
            format!("cannot pin {}: is it a directory on a tieline mount?", directory.display())
        })?;
    }
    for directory in args.directories.iter().filter(|_| !args.no_wait) {
        let state = wait(directory)?;
        let count = |key: &str| state[key].as_u64().unwrap_or(0);
        let (shown, why) = (directory.display(), state["why"].as_str().unwrap_or_default());
        if state["is_refused"] == true {
            read(directory, DROP)?;
            bail!("{shown} is not pinned: {why}: mount it with -o cache=DIR, DIR on a local disk");
        }
        if args.json {
            println!("{state}");
        } else {
            let (files, bytes) = (count("files"), count("bytes"));
            println!("{shown}: {files} files, {bytes} bytes");
        }
        if count("failed") > 0 {
            bail!("{shown}: {} of them are not here ({why}): it is tried again", count("failed"));
        }
    }
    Ok(())
}

pub fn unpin(args: &UnpinArgs) -> anyhow::Result<()> {
    for directory in &args.directories {
        let shown = directory.display();
        match read(directory, DROP) {
            Ok(_) => {}
            Err(Errno::NODATA) => return Err(Usage(format!("{shown} is not pinned")).into()),
            Err(error) => return Err(error).with_context(|| format!("cannot unpin {shown}")),
        }
    }
    Ok(())
}

fn read(directory: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; VALUE_MAX];
    let length = getxattr(directory, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

/// Until the tree was walked. Whoever waits can end it at any time: the pin stays.
fn wait(directory: &Path) -> anyhow::Result<Value> {
    let mut look = Instant::now();
    loop {
        let state: Value = serde_json::from_slice(&read(directory, NAME)?)?;
        if state["is_done"] == true {
            return Ok(state);
        }
        look += LOOK_AGAIN;
        std::thread::sleep(look.saturating_duration_since(Instant::now()));
    }
}
