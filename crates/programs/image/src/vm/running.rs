//! Which process a machine is, what it said, and which machines there are.

use crate::machine::{self, Machine};
use crate::tools;
use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use tieline_machine::private;
use tieline_machine::process::ProcessId;

const FILE: &str = "running.json";
const LOCK: &str = "lock";
pub const GIVEN: &str = "given";
const CONSOLE: &str = "console.log";
/// Of a console, what is shown.
const CONSOLE_SHOWN: u64 = 256 << 10;
const MACHINES_MAX: usize = 10_000;

/// A machine that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Running {
    pub process: ProcessId,
    pub image: PathBuf,
    pub accel: String,
}

impl Running {
    /// The one in a machine's folder, if it lives.
    pub fn of(folder: &Path) -> Option<Self> {
        let text = fs::read(folder.join(FILE)).ok()?;
        let running: Self = serde_json::from_slice(&text).ok()?;
        running.process.is_alive().then_some(running)
    }

    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(FILE);
        private::write_whole(&path, &serde_json::to_vec(self)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Nobody else starts or stops this machine while this lives.
pub fn hold(folder: &Path, name: &str) -> anyhow::Result<File> {
    if !folder.join(GIVEN).join(machine::MACHINE).exists() {
        bail!("{name} is not enrolled: `tieline image enroll {name}`");
    }
    let path = folder.join(LOCK);
    let file = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("another `tieline vm start {name}` starts it, or waits for its job");
    }
    Ok(file)
}

/// What a machine was given of itself.
pub fn machine(folder: &Path) -> anyhow::Result<Machine> {
    let path = folder.join(GIVEN).join(machine::MACHINE);
    let text = fs::read(&path).with_context(|| path.display().to_string())?;
    Machine::parse(&text).with_context(|| format!("{} is not in order", path.display()))
}

pub fn console_log(folder: &Path) -> PathBuf {
    folder.join(CONSOLE)
}

/// `tieline vm console`.
pub fn console(folder: &Path) -> anyhow::Result<()> {
    let log = console_log(folder);
    if !log.exists() {
        bail!("{} was never started", folder.display());
    }
    std::io::stdout().lock().write_all(tools::tail(&log, CONSOLE_SHOWN).as_bytes())?;
    Ok(())
}

/// `tieline vm list`.
pub fn list(folder: &Path, is_json: bool) -> anyhow::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries.flatten().take(MACHINES_MAX).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| folder.display().to_string()),
    };
    let mut folders: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    folders.sort();
    let mut rows = Vec::new();
    for folder in folders {
        let Ok(machine) = machine(&folder) else { continue };
        let running = Running::of(&folder);
        rows.push(json!({
            "name": machine.name,
            "state": if running.is_some() { "running" } else { "off" },
            "pid": running.as_ref().map(|running| running.process.pid),
            "image": running.as_ref().map(|running| &running.image),
            "accel": running.as_ref().map(|running| &running.accel),
            "source": machine.source,
            "mountpoint": machine.mountpoint,
            "console": console_log(&folder),
        }));
    }
    let mut out = std::io::stdout().lock();
    if is_json {
        writeln!(out, "{:#}", serde_json::Value::from(rows))?;
        return Ok(());
    }
    for row in &rows {
        let text = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        let pid = row["pid"].as_u64().map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let (name, state) = (text("name"), text("state"));
        writeln!(out, "{name:<16} {state:<8} pid {pid:<8} {}", text("source"))?;
    }
    Ok(())
}
