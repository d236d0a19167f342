//! What processes cost when nobody asks anything of them, and what remembering files costs them.

use crate::figure::{Figure, Goal, Unit};
use anyhow::{Context, Result};
use std::path::Path;
use std::time::Duration;
use tieline_lab::Federation;

const IDLE: Duration = Duration::from_secs(5);
const MIB: f64 = 1_048_576.0;

/// Cores and memory of an idle server and an idle client.
pub fn idle(federation: &Federation) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for name in ["mds-uf", "oss-uf", "mount-0"] {
        let pid = pid(federation, name)?;
        let before = ticks(pid)?;
        std::thread::sleep(IDLE);
        let share = (ticks(pid)? - before) as f64 / TICKS_PER_SECOND / IDLE.as_secs_f64();
        let idle = Figure::single(format!("idle {name}: of a core"), Unit::Percent, share * 100.0);
        figures.push(idle.with_goal(Goal::Value(1.0)));
        let memory = Figure::single(format!("idle {name}: memory"), Unit::Mebibytes, memory(pid)?);
        figures.push(memory.with_goal(Goal::Value(60.0)));
    }
    Ok(figures)
}

/// Memory of a fresh client for each 100,000 of `count` files that it has listed and looked at.
pub fn per_file(federation: &Federation, directory: &Path, count: usize) -> Result<Vec<Figure>> {
    let folder = tempfile::tempdir_in(directory)?;
    for at in 0..count {
        std::fs::File::create_new(folder.path().join(format!("{at:07}")))?;
    }
    let mount = federation.mount_again()?;
    let client = pid_of_mount(federation, &mount)?;
    let before = memory(client)?;
    let below = mount.join(folder.path().strip_prefix(federation.mount())?);
    for entry in std::fs::read_dir(below)? {
        entry?.metadata()?;
    }
    let grown = (memory(client)? - before).max(0.0) * 1e5 / count as f64;
    federation.unmount(&mount)?;
    let what = "client: memory per 100,000 inodes";
    Ok(vec![Figure::single(what, Unit::Mebibytes, grown).with_goal(Goal::Value(100.0))])
}

/// `_SC_CLK_TCK` on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

pub fn pid(federation: &Federation, name: &str) -> Result<i64> {
    federation.process(name)?["daemon"].as_i64().context("it runs")
}

pub fn pid_of_mount(federation: &Federation, mount: &Path) -> Result<i64> {
    let status = federation.status()?;
    let processes = status["processes"].as_array().context("there are processes")?;
    let is_it =
        |process: &&serde_json::Value| process["mountpoint"].as_str().map(Path::new) == Some(mount);
    processes.iter().find(is_it).and_then(|it| it["daemon"].as_i64()).context("it is mounted")
}

/// Resident memory in MiB.
pub fn memory(pid: i64) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages: f64 = text.split(' ').nth(1).context("statm has two fields")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64 / MIB)
}

/// Seconds that all of these were on a processor.
pub fn seconds_of(processes: &[i64]) -> Result<f64> {
    let all = processes.iter().map(|&pid| ticks(pid)).sum::<Result<u64>>()?;
    Ok(all as f64 / TICKS_PER_SECOND)
}

/// Time it was on a processor.
fn ticks(pid: i64) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = text.rsplit_once(')').context("stat has a name")?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = || -> Result<u64> { Ok(fields.next().context("stat is short")?.parse()?) };
    Ok(next()? + next()?)
}
