//! Users' tickets, as a mount finds them: whose cache a process means, and tokens from it.
//!
//! Which cache: the one that KRB5CCNAME names in the environment of the process, unless that
//! process is another's than it seems (set-uid programs); else that of the job it belongs to
//! ([`crate::verbs::auth`]); else the default of its user. A cache is never opened by the mount,
//! which is root: a helper process does it with the user's ids and groups, so that nobody can point
//! at another's cache, and caches in keyrings and homes behind root squash are found.
//!
//! Whether a cache is still what it was is seen by a look at its file at each use; of caches that
//! are no files a helper says so again, once a second.
//!
//! Invariants: at most [`KNOWN_MAX`] credentials are remembered, and [`HELPERS_MAX`] helpers run at
//! once, each for [`HELPER_PATIENCE`] at most.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_auth::{Guard, proof_binding};
use tieline_types::{Caller, SessionId};
use tokio::sync::Semaphore;
use tokio::time::Instant;

const KNOWN_MAX: usize = 4096;
const HELPERS_MAX: usize = 8;
const HELPER_PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long a cache that is no file is believed to be what it was.
const BELIEVED: Duration = Duration::from_secs(1);
/// Of an environment, and of what a helper says.
const TEXT_MAX: u64 = 2 << 20;
const VARIABLE: &[u8] = b"KRB5CCNAME=";

/// Whose cache, and which.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Purse {
    pub uid: u32,
    /// As in KRB5CCNAME; `None`: the user's default.
    pub cache: Option<String>,
}

/// Whom a number of a proof stands for, here.
#[derive(Clone, Debug)]
struct Owner {
    purse: Purse,
    gid: u32,
    groups: Vec<u32>,
    /// The last helper found no ticket.
    is_empty: bool,
}

/// What a file is known by.
type Stamp = (u64, u64, i64, i64, u64);

/// A cache, as it was when it was used last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    File(Option<Stamp>),
    At(Instant),
}

/// See the module.
pub struct Tickets {
    guard: Arc<Guard>,
    owners: Mutex<BTreeMap<u64, Owner>>,
    helpers: Semaphore,
}

impl Tickets {
    pub fn new(guard: Arc<Guard>) -> Self {
        crate::verbs::auth::make_place_for_jobs();
        Self { guard, owners: Mutex::default(), helpers: Semaphore::new(HELPERS_MAX) }
    }

    /// Which cache a process means.
    pub async fn purse(&self, process: u32, uid: u32) -> Purse {
        // The kernel may make us wait for the memory of a process that waits for us.
        let named = tokio::task::spawn_blocking(move || {
            cache_named(process, uid).or_else(|| crate::verbs::auth::cache_of_job(process, uid))
        });
        Purse { uid, cache: named.await.unwrap_or_default() }
    }

    /// From now on a number stands for a user and his cache.
    pub fn register(&self, number: u64, purse: &Purse, stated: &Caller) {
        let mut owners = self.lock();
        if owners.len() >= KNOWN_MAX {
            owners.pop_first();
        }
        let groups = stated.groups.iter().map(|gid| gid.0).collect();
        let owner = Owner { purse: purse.clone(), gid: stated.gid.0, groups, is_empty: false };
        owners.insert(number, owner);
    }

    pub fn forget(&self, number: u64) {
        self.lock().remove(&number);
    }

    /// There was no ticket behind a number when it was asked for one.
    pub fn is_empty(&self, number: u64) -> bool {
        self.lock().get(&number).is_none_or(|owner| owner.is_empty)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Purse {
    /// How the cache looks now.
    pub fn look(&self) -> Seen {
        match self.file() {
            Some(file) => Seen::File(stamp(&file)),
            None => Seen::At(Instant::now()),
        }
    }

    /// Is it still what it was?
    pub fn is_as(&self, seen: Seen) -> bool {
        match (seen, self.file()) {
            (Seen::File(Some(was)), Some(file)) => stamp(&file) == Some(was),
            (Seen::At(at), _) => at.elapsed() < BELIEVED,
            _ => false,
        }
    }

    /// It is a file that is not there.
    pub fn is_gone(&self) -> bool {
        let named = self.cache.as_deref().and_then(file_named);
        named.is_some_and(|file| matches!(file.try_exists(), Ok(false)))
    }

    fn file(&self) -> Option<PathBuf> {
        match &self.cache {
            Some(name) => file_named(name),
            // Where most machines have it; if it is there, it is it.
            None => Some(PathBuf::from(format!("/tmp/krb5cc_{}", self.uid)))
                .filter(|file| file.exists()),
        }
    }
}

fn file_named(name: &str) -> Option<PathBuf> {
    let path = Path::new(name.strip_prefix("FILE:").unwrap_or(name));
    path.is_absolute().then(|| path.to_owned())
}

fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(file).ok()?;
    let (mtime, nanos) = (metadata.mtime(), metadata.mtime_nsec());
    Some((metadata.dev(), metadata.ino(), mtime, nanos, metadata.size()))
}

/// What KRB5CCNAME is to a process that is nobody else's than its user's.
fn cache_named(process: u32, uid: u32) -> Option<String> {
    if process == 0 {
        return None;
    }
    let status = std::fs::read(format!("/proc/{process}/status")).ok()?;
    let status = String::from_utf8_lossy(&status).into_owned();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    if !ids.split_whitespace().all(|id| id.parse() == Ok(uid)) {
        return None;
    }
    let mut environ = vec![];
    let file = std::fs::File::open(format!("/proc/{process}/environ")).ok()?;
    file.take(TEXT_MAX).read_to_end(&mut environ).ok()?;
    let value = environ.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(VARIABLE))?;
    let value = String::from_utf8(value.to_vec()).ok()?;
    // What is in another process' memory is not to be had.
    (!value.is_empty() && !value.starts_with("MEMORY:")).then_some(value)
}

#[async_trait::async_trait]
impl tieline_client::Credentials for Tickets {
    async fn token(&self, proof: u64, session: SessionId, addresses: &[String]) -> Option<Vec<u8>> {
        let owner = self.lock().get(&proof).cloned()?;
        let target = self.guard.principal_of(addresses.first()?);
        let binding = proof_binding(session, proof);
        let _turn = self.helpers.acquire().await.ok()?;
        let asked = owner.clone();
        let asking = tokio::task::spawn_blocking(move || ask_helper(&asked, &target, &binding));
        let token = match asking.await {
            Ok(Ok(token)) => Some(token),
            Ok(Err(why)) => {
                let Purse { uid, cache } = &owner.purse;
                tracing::info!(uid, cache, %why, "no ticket of a user");
                None
            }
            Err(_) => None,
        };
        if let Some(owner) = self.lock().get_mut(&proof) {
            owner.is_empty = token.is_none();
        }
        token
    }
}

/// Has a process with the user's ids read his cache.
fn ask_helper(owner: &Owner, target: &str, binding: &[u8; 32]) -> Result<Vec<u8>, String> {
    let mut command = Command::new("/proc/self/exe");
    let binding: String = binding.iter().map(|byte| format!("{byte:02x}")).collect();
    command.args(["auth", "token", "--target", target, "--binding", &binding]);
    command.env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(cache) = &owner.purse.cache {
        command.env("KRB5CCNAME", cache);
    }
    if let Some(config) = std::env::var_os("KRB5_CONFIG") {
        command.env("KRB5_CONFIG", config);
    }
    if rustix::process::geteuid().is_root() {
        let (uid, gid, groups) = (owner.purse.uid, owner.gid, owner.groups.clone());
        // SAFETY: between fork and exec only system calls are made, on values made before.
        unsafe { command.pre_exec(move || become_user(uid, gid, &groups)) };
    } else if rustix::process::geteuid().as_raw() != owner.purse.uid {
        return Err("this mount is another user's".to_owned());
    }
    let failed = |error: std::io::Error| format!("the helper cannot be run: {error}");
    let mut child = command.spawn().map_err(failed)?;
    // Read while it runs: a large token is more than a pipe takes.
    let said = child.stdout.take().map(|stdout| std::thread::spawn(move || text_of(stdout)));
    let deadline = std::time::Instant::now() + HELPER_PATIENCE;
    while child.try_wait().map_err(failed)?.is_none() {
        if std::time::Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err("the helper took too long: is a KDC reachable?".to_owned());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let output = child.wait_with_output().map_err(failed)?;
    let said = said.and_then(|said| said.join().ok()).unwrap_or_default();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    crate::verbs::auth::bytes_of(said.trim()).ok_or_else(|| "the helper says no token".to_owned())
}

/// All that comes, as far as it is text.
fn text_of(from: impl Read) -> String {
    let mut bytes = vec![];
    // What came before an error is not what was meant, and is found to be none.
    let _ = from.take(TEXT_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Everything that a process of this user could do, and nothing else.
fn become_user(uid: u32, gid: u32, groups: &[u32]) -> std::io::Result<()> {
    let check = |status: libc::c_int| match status {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: the list has that many entries; the other calls take numbers only.
    unsafe {
        check(libc::setgroups(groups.len(), groups.as_ptr()))?;
        check(libc::setresgid(gid, gid, gid))?;
        check(libc::setresuid(uid, uid, uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names() {
        assert_eq!(file_named("FILE:/tmp/x"), Some("/tmp/x".into()));
        assert_eq!(file_named("/tmp/x"), Some("/tmp/x".into()));
        for other in ["KCM:", "KEYRING:persistent:7", "DIR:/tmp/d", "FILE:x", ""] {
            assert_eq!(file_named(other), None, "{other}");
        }
    }

    #[test]
    fn a_cache_that_changes_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cc");
        let purse = Purse { uid: 7, cache: Some(format!("FILE:{}", file.display())) };
        assert!(purse.is_gone() && !purse.is_as(purse.look()));
        std::fs::write(&file, "one").unwrap();
        let seen = purse.look();
        assert!(purse.is_as(seen) && !purse.is_gone());
        std::fs::write(&file, "other").unwrap();
        assert!(!purse.is_as(seen));
        std::fs::remove_file(&file).unwrap();
        assert!(!purse.is_as(seen));
    }

    #[test]
    fn the_environment_of_others_is_not_read() {
        let mut child = Command::new("sleep").arg("60").env("KRB5CCNAME", "FILE:/tmp/a").spawn();
        let child = child.as_mut().unwrap();
        let own = rustix::process::geteuid().as_raw();
        // Until it is executed it is still us.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        let mut found = None;
        while found.is_none() && std::time::Instant::now() < deadline {
            found = cache_named(child.id(), own);
        }
        assert_eq!(found.as_deref(), Some("FILE:/tmp/a"));
        assert_eq!(cache_named(child.id(), own + 1), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
