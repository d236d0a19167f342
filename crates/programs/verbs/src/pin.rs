//! `tieline pin`: has a mount keep trees for times without servers; `tieline unpin` lets them go.
//!
//! The mount is told by attributes that are read: so whoever may read a tree may pin it, and on
//! mounts that are read-only.

use anyhow::{Context, bail};
use rustix::fs::getxattr;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tieline_base::registry::{self, Entry};
use tieline_base::report::Usage;
use tieline_base::source::Source;
use tieline_machine::paths::absolute;

const NAME: &str = "user.tieline.pin";
const SET: &str = "user.tieline.pin.set";
const ALL: &str = "user.tieline.pins";
const DROP: &str = "user.tieline.pin.drop";
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// An attribute's value: a line of JSON.
const VALUE_MAX: usize = 4096;
/// The longest value that Linux hands on.
const LIST_MAX: usize = 64 << 10;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directories on a mount
    #[arg(required_unless_present = "list")]
    directories: Vec<PathBuf>,
    /// Do not wait until all of it is here
    #[arg(long, conflicts_with = "list")]
    no_wait: bool,
    /// Tell which trees are pinned: on these mounts, or on all mounts here
    #[arg(long)]
    list: bool,
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub struct UnpinArgs {
    #[arg(required = true)]
    directories: Vec<PathBuf>,
}

/// A pinned tree, as its mount tells it.
#[derive(serde::Deserialize)]
pub struct Pinned {
    /// In the whole file system.
    path: Option<String>,
    uid: u32,
    /// Under which words a cache has it.
    pub words: String,
    state: Value,
}

impl Pinned {
    /// Where it is below its mount, if the mount knows by now.
    pub fn shown(&self, mount: &Entry) -> String {
        let Some(path) = &self.path else { return self.words.clone() };
        let source: Option<Source> = mount.source.parse().ok();
        let directory = source.map_or_else(String::new, |source| source.directory);
        let path = path.trim_start_matches('/');
        let below = path.strip_prefix(directory.trim_matches('/')).unwrap_or(path);
        mount.mountpoint.join(below.trim_start_matches('/')).display().to_string()
    }
}

/// All pins of a mount.
pub fn all(mount: &Path) -> anyhow::Result<Vec<Pinned>> {
    let text = read_up_to(mount, ALL, LIST_MAX)?;
    Ok(serde_json::from_slice(&text)?)
}

fn list(args: &Args) -> anyhow::Result<()> {
    let mut mounts = Vec::new();
    for directory in &args.directories {
        let known = registry::covering(&absolute(directory));
        let (entry, _) = known.with_context(|| format!("no mount at {}", directory.display()))?;
        mounts.push(entry);
    }
    if args.directories.is_empty() {
        mounts = registry::all();
    }
    let mut rows = Vec::new();
    for mount in mounts {
        let shown = mount.mountpoint.display();
        let pins = match all(&mount.mountpoint) {
            // Of another user, or of a daemon that does not know of this yet.
            Err(error) if args.directories.is_empty() => {
                eprintln!("tieline: cannot tell the pins of {shown}: {error}");
                continue;
            }
            pins => pins.with_context(|| format!("cannot tell the pins of {shown}"))?,
        };
        for pin in pins {
            let (path, state) = (pin.shown(&mount), &pin.state);
            if args.json {
                rows.push(json!({ "path": path, "uid": pin.uid, "state": state }));
                continue;
            }
            let count = |key: &str| state[key].as_u64().unwrap_or(0);
            let how = match (state["is_done"] == true, count("failed")) {
                (false, _) => "is being fetched".to_owned(),
                (true, 0) => format!("{} files, {} bytes", count("files"), count("bytes")),
                (true, failed) => format!("{} files, {failed} not here", count("files")),
            };
            println!("{path}: {how} (for user {})", pin.uid);
        }
    }
    if args.json {
        println!("{}", Value::Array(rows));
    }
    Ok(())
}

pub fn pin(args: &Args) -> anyhow::Result<()> {
    if args.list {
        return list(args);
    }
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
    read_up_to(directory, name, VALUE_MAX)
}

fn read_up_to(directory: &Path, name: &str, length_max: usize) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; length_max];
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
