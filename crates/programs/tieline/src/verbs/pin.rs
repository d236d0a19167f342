//! `tieline pin`: has a mount keep trees for times without servers; `tieline unpin` lets them go.

use crate::report::Usage;
use anyhow::{Context, bail};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NAME: &str = "user.tieline.pin";
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
        setxattr(directory, NAME, b"1", XattrFlags::empty()).with_context(|| {
            format!("cannot pin {}: is it a directory on a tieline mount?", directory.display())
        })?;
    }
    for directory in args.directories.iter().filter(|_| !args.no_wait) {
        let state = wait(directory)?;
        let count = |key: &str| state[key].as_u64().unwrap_or(0);
        if args.json {
            println!("{state}");
        } else {
            let (files, bytes) = (count("files"), count("bytes"));
            println!("{}: {files} files, {bytes} bytes", directory.display());
        }
        if count("failed") > 0 {
            bail!("{}: {} of them cannot be read", directory.display(), count("failed"));
        }
    }
    Ok(())
}

pub fn unpin(args: &UnpinArgs) -> anyhow::Result<()> {
    for directory in &args.directories {
        removexattr(directory, NAME)
            .map_err(|_| Usage(format!("{} is not pinned", directory.display())))?;
    }
    Ok(())
}

/// Until the tree was walked. Whoever waits can end it at any time: the pin stays.
fn wait(directory: &Path) -> anyhow::Result<Value> {
    let mut look = Instant::now();
    loop {
        let mut value = vec![0; VALUE_MAX];
        let length = getxattr(directory, NAME, &mut value[..])?;
        let state: Value = serde_json::from_slice(value.get(..length).unwrap_or_default())?;
        if state["is_done"] == true {
            return Ok(state);
        }
        look += LOOK_AGAIN;
        std::thread::sleep(look.saturating_duration_since(Instant::now()));
    }
}
