//! Small files in one directory, by one process and by several: each phase is done by fresh
//! processes, side by side, and its rate is that of all together.

use crate::files::{pattern, per_second};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

const LENGTH: usize = 1 << 10;

/// What is done to every file, in this order. The kernel asks for attributes once after a write:
/// what `again` finds it has.
pub const PHASES: [&str; 6] = ["create", "stat", "again", "list", "open", "unlink"];

/// Rates of one pass, in the order of [`PHASES`].
pub type Pass = [f64; PHASES.len()];

/// Does all phases on `count` files in a new directory below `parent`.
pub fn pass(program: &Path, parent: &Path, count: usize, processes: usize) -> Result<Pass> {
    let directory = parent.join("small");
    std::fs::create_dir(&directory)?;
    let mut rates = Pass::default();
    for (rate, phase) in rates.iter_mut().zip(PHASES) {
        *rate = together(program, phase, &directory, count, processes)?;
    }
    std::fs::remove_dir(&directory)?;
    Ok(rates)
}

fn together(
    program: &Path,
    phase: &str,
    directory: &Path,
    count: usize,
    processes: usize,
) -> Result<f64> {
    let share = |worker: usize| count * worker / processes;
    let start = Instant::now();
    let workers = (0..processes).map(|worker| -> Result<Child> {
        let mut command = Command::new(program);
        command.args(["worker", phase]).arg(directory);
        command.args([share(worker), share(worker + 1)].map(|at| at.to_string()));
        command.spawn().with_context(|| format!("cannot start {}", program.display()))
    });
    for mut worker in workers.collect::<Result<Vec<_>>>()? {
        ensure!(worker.wait()?.success(), "a worker of phase {phase} failed");
    }
    Ok(per_second(count, start))
}

/// One process's part of a phase.
pub fn work(phase: &str, directory: &Path, part: Range<usize>) -> Result<()> {
    if phase == "list" {
        // What `ls -l` does.
        for entry in std::fs::read_dir(directory)? {
            entry?.metadata()?;
        }
        return Ok(());
    }
    let content = pattern(LENGTH);
    for at in part {
        let path = path(directory, at);
        match phase {
            "create" => File::create_new(path)?.write_all(&content)?,
            "stat" | "again" => {
                let _ = path.metadata()?;
            }
            "open" => {
                let _ = File::open(path)?.read(&mut [0; LENGTH])?;
            }
            "unlink" => std::fs::remove_file(path)?,
            other => anyhow::bail!("no phase `{other}`"),
        }
    }
    Ok(())
}

fn path(directory: &Path, at: usize) -> PathBuf {
    directory.join(format!("{at:07}"))
}
