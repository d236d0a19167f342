//! Runs a site's HSM script, by dCache's convention: `put NAME FILE -si=…`, `get NAME FILE -si=…
//! -uri=…`, `remove -uri=…`.
//!
//! * [`Scripts`]: which scripts a site lets its server run, and how many at once.
//! * [`said`]: what a script printed: the URIs of a put.
//! * `run`: one process, with its group, its time and its output.
//!
//! The map names a script, and whoever may change the map is not thereby let to run programs at a
//! site: a script must lie in the directory that the server's own settings name, and be writable by
//! nobody but its owner.
//!
//! Knows no chunk and no MDS.
//!
//! Invariants: a script is a process group of its own, which is killed when its time is over, when
//! it says too much, or when nobody waits for it any more; no more run at once than the HSM's
//! settings say.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

mod error;
mod run;
pub mod said;

pub use error::Error;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::Hsm;
use tokio::sync::Notify;

/// What a script is asked.
#[derive(Clone, Debug)]
pub enum Deed<'a> {
    /// Put a file on tape; its storage information.
    Put {
        name: &'a str,
        file: &'a Path,
        info: &'a str,
    },
    Get {
        name: &'a str,
        file: &'a Path,
        info: &'a str,
        uri: &'a str,
    },
    Remove {
        uri: &'a str,
    },
}

impl Deed<'_> {
    pub fn word(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Get { .. } => "get",
            Self::Remove { .. } => "remove",
        }
    }

    fn limits(&self, hsm: &Hsm) -> (u16, Duration) {
        let (count, seconds) = match self {
            Self::Put { .. } => (hsm.puts, hsm.put_seconds),
            Self::Get { .. } => (hsm.gets, hsm.get_seconds),
            Self::Remove { .. } => (hsm.removes, hsm.remove_seconds),
        };
        (count.max(1), Duration::from_secs(seconds.into()))
    }

    fn arguments(&self, hsm: &Hsm) -> Vec<OsString> {
        let word = || OsString::from(self.word());
        let mut all = match *self {
            Self::Put { name, file, info } => {
                vec![word(), name.into(), file.into(), format!("-si={info}").into()]
            }
            Self::Get { name, file, info, uri } => vec![
                word(),
                name.into(),
                file.into(),
                format!("-si={info}").into(),
                format!("-uri={uri}").into(),
            ],
            Self::Remove { uri } => vec![word(), format!("-uri={uri}").into()],
        };
        all.extend(hsm.options.iter().map(|option| format!("-{option}").into()));
        all.push(format!("-hsmInstance={}", hsm.instance).into());
        all.push(format!("-command={}", hsm.script).into());
        all
    }
}

/// The scripts of a site.
pub struct Scripts {
    /// Where they lie. `None`: the site lets none be run.
    directory: Option<PathBuf>,
    /// Where they are started, and whole files lie on their way.
    spool: PathBuf,
    running: Mutex<BTreeMap<(String, &'static str), u16>>,
    ended: Notify,
}

impl Scripts {
    pub fn new(directory: Option<PathBuf>, spool: PathBuf) -> Self {
        Self { directory, spool, running: Mutex::default(), ended: Notify::new() }
    }

    pub fn spool(&self) -> &Path {
        &self.spool
    }

    /// Runs a script when its turn has come, and says what it printed. `begins` hears when it does.
    pub async fn run(
        &self,
        hsm: &Hsm,
        deed: &Deed<'_>,
        begins: impl FnOnce(),
    ) -> Result<Vec<u8>, Error> {
        let script = self.check(&hsm.script)?;
        let (count, time) = deed.limits(hsm);
        let _turn = self.turn((hsm.script.clone(), deed.word()), count).await;
        begins();
        run::run(&script, &deed.arguments(hsm), &self.spool, time).await
    }

    /// May this be run, and what is it?
    fn check(&self, script: &str) -> Result<PathBuf, Error> {
        let directory = self
            .directory
            .as_ref()
            .ok_or_else(|| Error::NoneAllowed { script: script.to_owned() })?;
        let read = |path: &Path| {
            let source = |source| Error::Missing { path: path.to_owned(), source };
            path.canonicalize().map_err(source)
        };
        let (directory, path) = (read(directory)?, read(Path::new(script))?);
        if !path.starts_with(&directory) {
            return Err(Error::Elsewhere { script: script.to_owned(), directory });
        }
        let found =
            path.metadata().map_err(|source| Error::Missing { path: path.clone(), source })?;
        let mode = found.permissions().mode();
        let own = rustix::process::geteuid().as_raw();
        if !found.is_file() || mode & 0o111 == 0 {
            return Err(Error::NoProgram { path });
        }
        if mode & 0o022 != 0 || !(found.uid() == 0 || found.uid() == own) {
            return Err(Error::Writable { path });
        }
        Ok(path)
    }

    /// Waits until fewer than `count` of a kind run.
    async fn turn(&self, kind: (String, &'static str), count: u16) -> Turn<'_> {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            {
                let mut running = self.lock();
                let now = running.entry(kind.clone()).or_default();
                if *now < count {
                    *now += 1;
                    return Turn { scripts: self, kind };
                }
            }
            ended.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, &'static str), u16>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A script that runs.
struct Turn<'s> {
    scripts: &'s Scripts,
    kind: (String, &'static str),
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut running = self.scripts.lock();
        if let Some(now) = running.get_mut(&self.kind) {
            *now = now.saturating_sub(1);
        }
        drop(running);
        self.scripts.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
