//! Nodes of a site: mounts of one federation, each a machine of its own, and what they read.

use crate::{Federation, program};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub const CHUNK: usize = 4 << 20;
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Mounts of one test, each a machine of its own.
pub struct Clients<'a> {
    lab: &'a Federation,
    mounts: RefCell<Vec<PathBuf>>,
}

impl<'a> Clients<'a> {
    pub fn new(lab: &'a Federation) -> Self {
        Self { lab, mounts: RefCell::default() }
    }

    pub fn mount(&self, options: &str) -> Result<PathBuf> {
        let mount = self.folder()?;
        self.mount_at(&mount, options)?;
        Ok(mount)
    }

    /// Where nobody has mounted anything yet.
    pub fn folder(&self) -> Result<PathBuf> {
        let names = (0..).map(|number| self.lab.local(&format!("client-{number}")));
        let mount = names.into_iter().find(|mount| !mount.exists()).context("a name is free")?;
        fs::create_dir(&mount)?;
        Ok(mount)
    }

    pub fn mount_at(&self, mount: &Path, options: &str) -> Result<()> {
        let status = self.lab.status()?;
        let source = status["source"].as_str().context("a source")?;
        let (log, pid) = (mount.with_extension("log"), mount.with_extension("pid"));
        let own = format!("hold=off,log={},pidfile={}", log.display(), pid.display());
        let mount_text = mount.to_str().context("path")?;
        self.lab.tieline(&["mount", source, mount_text, "-o", &format!("{own},{options}")])?;
        self.mounts.borrow_mut().push(mount.to_owned());
        Ok(())
    }

    pub fn unmount(&self, mount: &Path) -> Result<()> {
        self.lab.umount(mount)?;
        self.mounts.borrow_mut().retain(|known| known != mount);
        Ok(())
    }

    pub fn kill(&self, mount: &Path) -> Result<()> {
        let pid = fs::read_to_string(mount.with_extension("pid"))?.trim().parse()?;
        kill_process(Pid::from_raw(pid).context("a pid is not 0")?, Signal::KILL)?;
        let _ = Command::new("umount").arg("-l").arg(mount).status();
        self.mounts.borrow_mut().retain(|known| known != mount);
        Ok(())
    }

    /// Bytes that these mounts had from servers.
    pub fn fetched(&self) -> Result<u64> {
        let mounts = self.mounts.borrow();
        mounts.iter().map(|mount| number(&report(mount)?, &["fetched_bytes"])).sum()
    }

    pub fn log(&self, mount: &Path) -> Result<String> {
        Ok(fs::read_to_string(mount.with_extension("log"))?)
    }

    /// All of them, for whoever reads of a failure.
    pub fn logs(&self) -> String {
        let mounts = self.mounts.borrow();
        let told = |mount: &PathBuf| {
            let (log, report) = (self.log(mount).unwrap_or_default(), report(mount));
            format!("{}: {}\n{log}", mount.display(), report.unwrap_or_default())
        };
        mounts.iter().map(told).collect()
    }
}

impl Drop for Clients<'_> {
    fn drop(&mut self) {
        for mount in self.mounts.borrow().iter() {
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
    }
}

/// What a mount says of its caches.
pub fn report(mount: &Path) -> Result<Value> {
    let mut buffer = vec![0; 64 << 10];
    let length = rustix::fs::getxattr(mount, "user.tieline.cache", &mut buffer[..])?;
    Ok(serde_json::from_slice(&buffer[..length])?)
}

pub fn number(value: &Value, path: &[&str]) -> Result<u64> {
    let found = path.iter().try_fold(value, |value, key| value.get(key));
    found.and_then(Value::as_u64).with_context(|| format!("{path:?} in {value}"))
}

/// Bytes that repeat nowhere: equal chunks are one in a site's cache.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bytes.extend((mixed ^ (mixed >> 29)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A file of whole chunks, known at its servers.
pub fn write(lab: &Federation, name: &str, bytes: &[u8]) -> Result<()> {
    let path = lab.mount().join(name);
    fs::write(&path, bytes)?;
    Ok(fs::File::open(path)?.sync_all()?)
}

/// A process that reads a file, and fails if it is not `bytes`.
pub fn reader(lab: &Federation, mount: &Path, name: &str) -> Result<Child> {
    let same = Command::new("cmp")
        .arg(mount.join(name))
        .arg(lab.local(&format!("expected-{name}")))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(same)
}

pub fn expect(lab: &Federation, name: &str, bytes: &[u8]) -> Result<()> {
    Ok(fs::write(lab.local(&format!("expected-{name}")), bytes)?)
}

pub fn finish(mut children: Vec<Child>) -> Result<()> {
    for child in &mut children {
        ensure!(program::wait(child, PATIENCE)?.success(), "a reader got other bytes");
    }
    Ok(())
}

pub fn folder(lab: &Federation, name: &str) -> Result<PathBuf> {
    let path = lab.local(name);
    fs::create_dir(&path)?;
    Ok(path)
}

/// Names below a cache's `chunks`.
pub fn chunks(cache: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(cache.join("chunks")).into_iter().flatten().flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten());
    files.flatten().map(|file| file.path()).collect()
}
