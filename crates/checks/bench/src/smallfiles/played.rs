//! A tree of the corpus on a file system, and a program that is played on it.

use crate::files::pattern;
use anyhow::{Context, Result, ensure};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tieline_replay::trace::{Call, Trace};
use tieline_replay::tree::{Kind, ROOT, Tree};

/// Programs sleep no shorter than this.
const TICK: Duration = Duration::from_millis(1);
/// A call that took longer waited for the line.
const A_WAIT: Duration = Duration::from_millis(20);
const BUFFER: usize = 128 << 10;

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Played {
    pub took: Duration,
    /// Calls that waited for the line.
    pub waits: u64,
}

/// Where everything of a tree is, by its number.
fn paths(tree: &Tree, root: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = Vec::with_capacity(tree.nodes.len());
    for node in &tree.nodes {
        let path = match &node.name {
            Some(name) => paths[node.parent].join(OsStr::from_bytes(name.as_bytes())),
            None => root.to_owned(),
        };
        paths.push(path);
    }
    paths
}

/// Makes a tree in an empty directory.
pub fn make(tree: &Tree, root: &Path) -> Result<()> {
    let longest = tree.files().map(|at| tree.size(at)).max().unwrap_or(0);
    let bytes = pattern(longest as usize);
    for (number, (node, path)) in tree.nodes.iter().zip(paths(tree, root)).enumerate() {
        match node.kind {
            Kind::Directory if number == ROOT => {}
            Kind::Directory => fs::create_dir(&path)?,
            Kind::Symlink => symlink("nowhere", &path)?,
            Kind::File { size } => File::create_new(&path)?.write_all(&bytes[..size as usize])?,
        }
    }
    Ok(())
}

/// Plays a program, with as many of its processes at once as there were.
pub fn play(trace: &Trace, root: &Path) -> Result<Played> {
    let paths = paths(&trace.tree, root);
    let queue: Mutex<VecDeque<&Vec<Call>>> = Mutex::new(trace.processes.iter().collect());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let begun = Instant::now();
    let lane = || -> Result<u64> {
        let mut lane = Lane { trace, paths: &paths, waits: 0, owed: Duration::ZERO };
        while let Some(calls) = next() {
            calls.iter().try_for_each(|call| lane.call(call))?;
        }
        Ok(lane.waits)
    };
    let waits = std::thread::scope(|scope| -> Result<u64> {
        let lanes: Vec<_> = (0..trace.lanes).map(|_| scope.spawn(lane)).collect();
        let mut waits = 0;
        for lane in lanes {
            waits += lane.join().map_err(|_| anyhow::anyhow!("a process panicked"))??;
        }
        Ok(waits)
    })?;
    Ok(Played { took: begun.elapsed(), waits })
}

struct Lane<'l> {
    trace: &'l Trace,
    paths: &'l [PathBuf],
    waits: u64,
    /// What the program computed and did not sleep for yet.
    owed: Duration,
}

impl Lane<'_> {
    fn call(&mut self, call: &Call) -> Result<()> {
        let begun = Instant::now();
        self.ask(call).with_context(|| format!("{call:?}"))?;
        self.waits += u64::from(begun.elapsed() >= A_WAIT);
        self.owed += self.trace.pause;
        if self.owed >= TICK {
            std::thread::sleep(std::mem::take(&mut self.owed));
        }
        Ok(())
    }

    fn ask(&self, call: &Call) -> Result<()> {
        match call {
            Call::Stat(at) => fs::symlink_metadata(&self.paths[*at]).map(|_| ())?,
            Call::Missing(at, name) => {
                // What the program made itself is there from the first.
                if !self.trace.tree.nodes[*at].names.contains_key(name) {
                    let found = fs::symlink_metadata(
                        self.paths[*at].join(OsStr::from_bytes(name.as_bytes())),
                    );
                    let is_missing = |error: std::io::Error| {
                        matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
                    };
                    ensure!(found.is_err_and(is_missing), "it is there");
                }
            }
            Call::Read(at, bytes) => {
                let mut file = File::open(&self.paths[*at])?.take(*bytes);
                let mut buffer = vec![0; BUFFER.min((*bytes).max(1) as usize)];
                while file.read(&mut buffer)? > 0 {}
            }
            Call::List(at) => {
                for entry in fs::read_dir(&self.paths[*at])? {
                    entry?;
                }
            }
            Call::ReadLink(at) => fs::read_link(&self.paths[*at]).map(|_| ())?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_find_the_trees_that_were_made() {
        let all = tieline_replay::trace::all().unwrap();
        for name in ["latex", "git_log", "pip_install"] {
            let trace = all.iter().find(|one| one.name == name).unwrap();
            let folder = tempfile::tempdir().unwrap();
            make(&trace.tree, folder.path()).unwrap();
            play(trace, folder.path()).unwrap();
        }
    }
}
