//! The folder with a job's tickets. It goes with `tieline auth run`; what one that was killed left
//! behind goes with the user's next job.
//!
//! Whose folder it is a lock on it says, which the job's processes share from birth: it ends with
//! the last of them, however that ends. Who closes every descriptor that he did not open is still
//! known by his environment, or by his control group.
//!
//! Invariant: a folder goes only if nobody holds its lock, and no process of the user's is seen
//! that means it.

use super::{group_of, note_of_job};
use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::FdFlags;
use std::fs::{DirBuilder, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Somebody may be clearing away one of our name.
const TRIES: usize = 50;
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// A folder of our own, which goes with us.
pub struct Home {
    path: PathBuf,
    _lock: File,
}

impl Home {
    pub fn new() -> anyhow::Result<Self> {
        let (uid, pid) = (rustix::process::getuid().as_raw(), std::process::id());
        // Whoever came here by another's leave has another's runtime directory.
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let temporary = std::env::temp_dir();
        for base in runtime.iter().chain([&temporary]) {
            clear(base, uid);
        }
        let name = name_of(uid, &pid.to_string());
        if let Some(home) = runtime.and_then(|base| Self::make(&base.join(&name)).ok()) {
            return Ok(home);
        }
        Self::make(&temporary.join(name))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn make(path: &Path) -> anyhow::Result<Self> {
        for _ in 0..TRIES {
            let made = DirBuilder::new().mode(0o700).create(path);
            if !made.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::AlreadyExists)
            {
                made.with_context(|| format!("cannot make {}", path.display()))?;
                if let Some(lock) = locked(path) {
                    // Those whom we start have it, too.
                    rustix::io::fcntl_setfd(&lock, FdFlags::empty())?;
                    return Ok(Self { path: path.to_owned(), _lock: lock });
                }
            }
            std::thread::sleep(TRY_AGAIN);
        }
        bail!("cannot make {}: it is another job's", path.display());
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn name_of(uid: u32, pid: &str) -> String {
    format!("tieline-job-{uid}-{pid}")
}

/// The lock of a folder of ours, if nobody holds it and the folder is there still.
fn locked(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    flock(&folder, FlockOperation::NonBlockingLockExclusive).ok()?;
    let (ours, there) = (folder.metadata().ok()?, std::fs::symlink_metadata(path).ok()?);
    ((ours.dev(), ours.ino()) == (there.dev(), there.ino())).then_some(folder)
}

/// Takes away what killed jobs of the user left below a directory.
fn clear(base: &Path, uid: u32) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    let prefix = name_of(uid, "");
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        let (Some(pid), path) = (pid.and_then(|pid| pid.parse::<u32>().ok()), entry.path()) else {
            continue;
        };
        // It is held until the folder is gone, so that none of its name is made meanwhile.
        let Some(lock) = locked(&path) else { continue };
        let is_ours = lock.metadata().is_ok_and(|found| found.uid() == uid);
        if !is_ours || is_meant(&path, pid, uid) {
            continue;
        }
        let _ = std::fs::remove_dir_all(&path);
        super::forget_job(pid, &path, uid);
    }
}

/// Does a process of the user's name the folder in its environment, or belong to the job?
fn is_meant(path: &Path, pid: u32, uid: u32) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let job = note_of_job(pid);
    processes.flatten().any(|entry| {
        let process = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let is_his = || entry.metadata().is_ok_and(|found| found.uid() == uid);
        let Some(process) = process.filter(|_| is_his()) else { return false };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let folder = path.as_os_str().as_bytes();
        let names = |text: &[u8]| {
            let end = text.get(folder.len());
            text.starts_with(folder) && end.is_none_or(|end| *end == b'/' || *end == 0)
        };
        let is_in = |group: String| group.split('/').any(|part| part == job);
        (0..environment.len()).any(|at| environment.get(at..).is_some_and(names))
            || (!has_ended(process) && group_of(process).is_some_and(is_in))
    })
}

/// Is it a process that nobody waited for? It keeps its control group.
fn has_ended(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn what_a_killed_job_left_goes_when_its_processes_are_gone() {
        let base = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let path = |pid: u32| base.path().join(name_of(uid, &pid.to_string()));
        // Numbers that no process has.
        let [left, held, meant, other] = [1, 2, 3, 4].map(|more| (1 << 22) + more);
        std::fs::create_dir(path(left)).unwrap();
        std::fs::write(path(left).join("tickets"), "secret").unwrap();
        std::fs::create_dir(path(meant)).unwrap();
        std::fs::create_dir(base.path().join(name_of(uid + 1, &other.to_string()))).unwrap();
        std::os::unix::fs::symlink(base.path(), path(other)).unwrap();
        let mut home = Home::make(&path(held)).unwrap();
        let sleep = |cache: PathBuf| {
            let mut command = Command::new("sleep");
            command.arg("60").env("KRB5CCNAME", format!("FILE:{}", cache.display()));
            command.stdout(Stdio::null()).spawn().unwrap()
        };
        // The first was started with the lock; the second knows a name only.
        let mut jobs = [sleep("/elsewhere".into()), sleep(path(meant).join("tickets"))];
        // As by a SIGKILL: the lock goes, and the folder stays.
        home.path = base.path().join("none");
        drop(home);
        let is_begun = || is_meant(&path(meant), meant, uid);
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while !is_begun() && std::time::Instant::now() < deadline {}
        clear(base.path(), uid);
        assert!(!path(left).exists() && path(held).exists() && path(meant).exists());
        for job in &mut jobs {
            job.kill().unwrap();
            job.wait().unwrap();
        }
        // Processes of other tests may have been born with the lock.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while (path(held).exists() || path(meant).exists()) && std::time::Instant::now() < deadline
        {
            clear(base.path(), uid);
            std::thread::sleep(TRY_AGAIN);
        }
        assert!(!path(held).exists() && !path(meant).exists());
        // Others' things, and what is no folder, are not ours.
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_that_is_in_use_is_no_new_ones() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("tieline-job-0-1");
        let home = Home::make(&path).unwrap();
        assert!(locked(&path).is_none(), "it is locked");
        drop(home);
        assert!(!path.exists());
        assert!(Home::make(&path).is_ok());
    }
}
