//! What `dev` wrote down of a federation, in `dev.json` in its folder.
//!
//! Invariants: one command at a time changes it; what is in `made` was made by us and by nobody
//! else.

use crate::doors::DoorState;
use crate::kdc::Kdc;
use crate::netns::Network;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use tieline_base::registry;
use tieline_base::report::Usage;
use tieline_machine::beneath::Directory;
use tieline_machine::process::ProcessId;

const FILE: &str = "dev.json";
const LOCK: &str = "dev.lock";

/// A federation on this machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    pub fs: String,
    /// The federation's public key, as digits.
    pub key: String,
    /// `HOST:PORT`s of the MDSs, the root's first.
    pub mds: Vec<String>,
    pub network: Option<Network>,
    /// Directories to remove; those outside the folder, and itself, only if they are empty.
    pub made: Vec<PathBuf>,
    pub processes: Vec<Process>,
    /// What was made in a database.
    #[serde(default)]
    pub database: Option<Database>,
    #[serde(default)]
    pub kdc: Option<Kdc>,
    #[serde(default)]
    pub door: Option<DoorState>,
}

/// Schemas of a database that were made here. The file is readable by its owner only, for the
/// connection may hold a password.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Database {
    pub connection: String,
    pub schemas: Vec<String>,
}

/// A process of the federation, whether it runs or not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Process {
    /// `mds-uf`, `oss-uf`, `mount-0`.
    pub name: String,
    /// The arguments of `tieline`.
    pub argv: Vec<String>,
    pub log: PathBuf,
    /// `HOST:PORT` of a server.
    pub address: Option<String>,
    /// `HOST:PORT` of `/metrics` and `/health`; empty if it has none.
    pub admin: String,
    /// Where a relay takes orders.
    #[serde(default)]
    pub socket: Option<PathBuf>,
    /// Of a mount.
    pub mountpoint: Option<PathBuf>,
    /// Network namespace it is started in.
    pub netns: Option<PathBuf>,
    /// The running process; `None` if it was never started.
    pub process: Option<ProcessId>,
}

impl Process {
    /// Does the relay, if it is one, take orders?
    pub fn takes_orders(&self) -> Option<bool> {
        let socket = self.socket.as_ref()?;
        Some(self.is_alive() && tieline_wan::ask(socket, "show").is_ok())
    }

    pub fn is_alive(&self) -> bool {
        self.running().is_some()
    }

    /// What stands for it now: a mount whose holder died has another one.
    pub fn running(&self) -> Option<ProcessId> {
        let own = self.process.filter(|process| process.is_alive());
        own.or_else(|| Some(registry::at(self.mountpoint.as_ref()?)?.process))
    }

    /// What does its work: of a mount the daemon, not its holder.
    pub fn working(&self) -> Option<ProcessId> {
        let entry = self.mountpoint.as_ref().and_then(|mountpoint| registry::at(mountpoint));
        match entry.and_then(|entry| entry.daemon) {
            // Never its holder in place of a daemon that is about to be followed.
            Some(daemon) => Some(daemon).filter(|daemon| daemon.is_alive()),
            None => self.running(),
        }
    }
}

/// A state that only we change, for as long as this lives.
pub struct Held {
    pub state: State,
    dir: PathBuf,
    _lock: File,
}

impl Held {
    /// Begins a federation; refuses a folder that has one.
    pub fn begin(dir: &Path, state: State) -> anyhow::Result<Self> {
        let lock = lock(dir)?;
        if dir.join(FILE).exists() {
            bail!(
                "there is a federation in {} already: end it with `tieline dev down --dir {}`",
                dir.display(),
                dir.display()
            );
        }
        let held = Self { state, dir: dir.to_owned(), _lock: lock };
        held.save()?;
        Ok(held)
    }

    /// Takes hold of a federation that is there.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        // Looked at first, so that asking after a federation that is not there leaves no lock
        // behind.
        read(dir)?;
        let lock = lock(dir)?;
        Ok(Self { state: read(dir)?, dir: dir.to_owned(), _lock: lock })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn save(&self) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(&self.state)?;
        let path = self.dir.join(FILE);
        tieline_machine::private::write_whole(&path, &text)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes what was written down; nothing is left to be known.
    pub fn forget(self) {
        for file in [FILE, LOCK] {
            let _ = std::fs::remove_file(self.dir.join(file));
        }
    }

    pub fn process_mut(&mut self, name: &str) -> anyhow::Result<&mut Process> {
        let names: Vec<String> = self.state.processes.iter().map(|p| p.name.clone()).collect();
        let found = self.state.processes.iter_mut().find(|process| process.name == name);
        found.ok_or_else(|| {
            Usage(format!("no process `{name}`: there are {}", names.join(", "))).into()
        })
    }
}

/// The state as it is now.
pub fn read(dir: &Path) -> anyhow::Result<State> {
    let path = dir.join(FILE);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!(
                "there is no federation in {}: start one with `tieline dev up --dir {}`",
                dir.display(),
                dir.display()
            );
        }
        Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
    };
    serde_json::from_slice(&text).with_context(|| format!("{} is not in order", path.display()))
}

fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join(LOCK);
    let opened = Directory::open(dir).and_then(|dir| dir.log(OsStr::new(LOCK)));
    let file = opened.with_context(|| format!("cannot open {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}
