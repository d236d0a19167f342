//! Users' tickets, as a mount finds them: whose cache a process means, and tokens from it.
//!
//! Which cache: the one that KRB5CCNAME names in the environment of the process, unless that
//! process is another's than it seems (set-uid programs); else that of the job it belongs to
//! ([`jobs`]); else the default of its user. A cache is never opened by the mount,
//! which is root: a process does it with the user's ids and groups ([`reading`]), so that nobody
//! can point at another's cache, and caches in keyrings and homes behind root squash are found.
//!
//! Whether a cache is still what it was is seen by a look at its file at each use; of caches that
//! are no files a reading says so again, once a second.
//!
//! The path of a cache is of its user's choice, and so is what lies there: storage that hangs, or
//! this very mount. Looks and readings take [`turns`], and end for who waits when they take long.
//! Of a cache on this mount: looking at it makes requests of our own process, and reading it those
//! of a process that we started. Neither is looked for a ticket, else each would begin the next:
//! they have none, and what strangers may see is what they see.
//!
//! Invariants: at most [`KNOWN_MAX`] credentials are remembered, and [`READERS_MAX`] readings are
//! under way at once; one look for a ticket takes [`PATIENCE`] at most, its turn included, and one
//! at a cache, or into it, [`LOOK_PATIENCE`]; no look is made for who looks for us.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_auth::{Guard, proof_binding};
use tieline_types::{Caller, SessionId};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use turns::Turns;

pub mod jobs;
pub mod reading;
mod turns;

pub use reading::Lack;
use reading::{Found, Reading, file_named};

const KNOWN_MAX: usize = 4096;
const READERS_MAX: usize = 8;
/// A program waits in a system call. The library asks a KDC again after a second, and goes to the
/// next one then: who does not answer within ten times that is away.
const PATIENCE: Duration = Duration::from_secs(10);
/// A reading ends by itself then, but for one that cannot be killed. It says why.
const LEEWAY: Duration = Duration::from_secs(1);
/// A look is made at each call, and takes microseconds where nothing hangs; so does a reading,
/// until a KDC is asked.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// Looks and readings of one user at once, and of all: some of them may hang for ever, and the
/// threads that they have are needed for other work, too.
const LOOKS: (usize, usize) = (4, 128);
const READINGS: (usize, usize) = (2, 64);
/// How long a cache that is no file is believed to be what it was.
const BELIEVED: Duration = Duration::from_secs(1);
/// Of an environment.
const TEXT_MAX: u64 = 2 << 20;
const VARIABLE: &[u8] = b"KRB5CCNAME=";
const HANGS: &str = "the cache of tickets lies where nothing answers: see KRB5CCNAME";

/// Whose cache, and which.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Purse {
    pub uid: u32,
    /// As in KRB5CCNAME; `None`: the user's default.
    pub cache: Option<String>,
    /// The tree of files it is in, if that is not ours: a mount namespace.
    pub place: Option<u64>,
}

/// A purse, and the process that means it.
#[derive(Clone, Debug)]
pub struct Hand {
    pub purse: Purse,
    pub process: u32,
    /// What the user's default was, the last time.
    default: Option<String>,
    /// How the cache looked when it was found.
    pub seen: Seen,
    is_gone: bool,
}

/// Whom a number of a proof stands for, here.
#[derive(Clone, Debug)]
struct Owner {
    hand: Hand,
    gid: u32,
    groups: Vec<u32>,
    last: Last,
}

/// What the last reading brought.
#[derive(Clone, Debug)]
enum Last {
    Nothing,
    Ticket { until: Option<Instant> },
    Lack(Lack),
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
    /// Users' default caches, as the last readings had them.
    defaults: Mutex<BTreeMap<u32, String>>,
    readers: Semaphore,
    looks: Turns,
    readings: Turns,
}

impl Tickets {
    pub fn new(guard: Arc<Guard>) -> Self {
        jobs::make_place_for_jobs();
        let (owners, defaults) = (Mutex::default(), Mutex::default());
        let [looks, readings] = [LOOKS, READINGS].map(|(each, all)| Turns::new(each, all));
        let readers = Semaphore::new(READERS_MAX);
        Self { guard, owners, defaults, readers, looks, readings }
    }

    /// Which cache a process means, and how it looks.
    pub async fn hand(&self, process: u32, uid: u32) -> Result<Hand, Lack> {
        // Without a turn: whoever looks has one, and others of his user's may wait for theirs.
        if is_own_thread(process) {
            return Err(looks_itself());
        }
        let default = lock(&self.defaults).get(&uid).cloned();
        let until = Instant::now() + LOOK_PATIENCE;
        // The kernel may make us wait for the memory of a process that waits for us.
        let found = self.looks.run(uid, until, move || Hand::find(process, uid, default)).await;
        found.unwrap_or_else(|| Err(Lack::silent(HANGS)))
    }

    /// How a cache looks now.
    pub async fn look(&self, hand: &Hand) -> Seen {
        let (uid, until) = (hand.purse.uid, Instant::now() + LOOK_PATIENCE);
        let hand = hand.clone();
        let seen = self.looks.run(uid, until, move || hand.look().0).await;
        seen.unwrap_or(Seen::File(None))
    }

    /// From now on a number stands for a user and his cache.
    pub fn register(&self, number: u64, hand: &Hand, stated: &Caller) {
        let mut owners = lock(&self.owners);
        if owners.len() >= KNOWN_MAX {
            owners.pop_first();
        }
        let groups = stated.groups.iter().map(|gid| gid.0).collect();
        let owner = Owner { hand: hand.clone(), gid: stated.gid.0, groups, last: Last::Nothing };
        owners.insert(number, owner);
    }

    pub fn forget(&self, number: u64) {
        lock(&self.owners).remove(&number);
    }

    /// Why there was no ticket behind a number when it was asked for one.
    pub fn lack(&self, number: u64) -> Option<Lack> {
        match &lock(&self.owners).get(&number)?.last {
            Last::Lack(lack) => Some(lack.clone()),
            Last::Nothing | Last::Ticket { .. } => None,
        }
    }

    /// When the ticket is over that was shown last under a number.
    pub fn until(&self, number: u64) -> Option<Instant> {
        match &lock(&self.owners).get(&number)?.last {
            Last::Ticket { until } => *until,
            Last::Nothing | Last::Lack(_) => None,
        }
    }

    async fn read(&self, owner: Owner, target: String, binding: [u8; 32]) -> Result<Reading, Lack> {
        let (deadline, until) = (std::time::Instant::now() + PATIENCE, Instant::now() + PATIENCE);
        let busy = || Lack::silent("too many others look for tickets: try again");
        // Who waits for his own turns keeps no reader from others.
        let turns = async {
            let own = self.readings.take(owner.hand.purse.uid).await?;
            Some((own, self.readers.acquire().await.ok()?))
        };
        let turns = timeout_at(until, turns).await.ok().flatten();
        let (own, _reader) = turns.ok_or_else(busy)?;
        let asking = own.hold(move || reading::ask(&owner, &target, &binding, deadline));
        let asked = timeout_at(until + LEEWAY, asking).await;
        let asked = asked.map_err(|_| Lack::silent(HANGS))?;
        asked.unwrap_or_else(|| Err(Lack::silent("looking for a ticket ended early")))
    }
}

impl Hand {
    /// May take as long as its user likes.
    fn find(process: u32, uid: u32, default: Option<String>) -> Result<Self, Lack> {
        let status = status_of(process).unwrap_or_default();
        if is_reader(&status) {
            return Err(looks_itself());
        }
        let cache = cache_named(process, uid, &status);
        let cache = cache.or_else(|| jobs::cache_of_job(process, uid));
        let default = default.filter(|_| cache.is_none());
        let purse = Purse { uid, cache, place: place_of(process) };
        let mut hand = Self { purse, process, default, seen: Seen::File(None), is_gone: false };
        (hand.seen, hand.is_gone) = hand.look();
        Ok(hand)
    }

    /// How the cache looks now; is it a file that is not there?
    fn look(&self) -> (Seen, bool) {
        let named = self.purse.cache.as_deref().or(self.default.as_deref());
        let Some(file) = named.and_then(file_named) else {
            return (Seen::At(Instant::now()), false);
        };
        match std::fs::metadata(self.here(file)) {
            Ok(found) => (Seen::File(Some(stamp(&found))), false),
            Err(error) => (Seen::File(None), error.kind() == std::io::ErrorKind::NotFound),
        }
    }

    /// Was it found as it was then?
    pub fn is_as(&self, then: Seen) -> bool {
        match (then, self.seen) {
            (Seen::File(Some(then)), Seen::File(now)) => now == Some(then),
            (Seen::At(at), Seen::At(_)) => at.elapsed() < BELIEVED,
            _ => false,
        }
    }

    /// The file that KRB5CCNAME names, if it is not there.
    pub fn is_gone(&self) -> Option<&str> {
        self.purse.cache.as_deref().filter(|_| self.is_gone)
    }

    /// Where we find a file of the caller's tree.
    fn here(&self, file: &Path) -> PathBuf {
        let rest = file.strip_prefix("/").unwrap_or(file);
        match self.purse.place {
            Some(_) => Path::new(&format!("/proc/{}/root", self.process)).join(rest),
            None => file.to_owned(),
        }
    }
}

/// Are these looks at one and the same file, or at what is none?
pub(crate) fn is_same_file(before: Seen, after: Seen) -> bool {
    match (before, after) {
        (Seen::File(Some(before)), Seen::File(Some(after))) => {
            (before.0, before.1) == (after.0, after.1)
        }
        (Seen::At(_), Seen::At(_)) => true,
        _ => false,
    }
}

fn stamp(found: &Metadata) -> Stamp {
    (found.dev(), found.ino(), found.mtime(), found.mtime_nsec(), found.size())
}

/// What is told of a process that looks at caches for us.
fn looks_itself() -> Lack {
    let why =
        "who looks for a ticket here has none: a cache is of no use on the mount that needs it";
    Lack { is_silent: false, why: why.to_owned() }
}

/// Is it a thread of ours? The kernel names threads.
fn is_own_thread(thread: u32) -> bool {
    thread != 0 && Path::new(&format!("/proc/self/task/{thread}")).exists()
}

/// Is it of a process that we started? We start none but readers.
fn is_reader(status: &str) -> bool {
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.is_some_and(|parent| parent.trim().parse() == Ok(std::process::id()))
}

/// The tree of files that a process sees, if it is not ours.
fn place_of(process: u32) -> Option<u64> {
    let namespace = |process: &str| {
        let found = std::fs::metadata(format!("/proc/{process}/ns/mnt"));
        found.ok().map(|found| found.ino())
    };
    let theirs = namespace(&process.to_string()).filter(|_| process != 0)?;
    (Some(theirs) != namespace("self")).then_some(theirs)
}

fn status_of(process: u32) -> Option<String> {
    if process == 0 {
        return None;
    }
    let status = std::fs::read(format!("/proc/{process}/status")).ok()?;
    Some(String::from_utf8_lossy(&status).into_owned())
}

/// What KRB5CCNAME is to a process that is nobody else's than its user's.
fn cache_named(process: u32, uid: u32, status: &str) -> Option<String> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    if !ids.split_whitespace().all(|id| id.parse() == Ok(uid)) {
        return None;
    }
    let mut environ = vec![];
    let file = std::fs::File::open(format!("/proc/{process}/environ")).ok()?;
    file.take(TEXT_MAX).read_to_end(&mut environ).ok()?;
    let value = environ.split(|&byte| byte == 0).find_map(|entry| entry.strip_prefix(VARIABLE))?;
    let value = String::from_utf8(value.to_vec()).ok()?;
    let cwd = || std::fs::read_link(format!("/proc/{process}/cwd")).ok();
    (!value.is_empty()).then(|| reading::named_whole(value, cwd))
}

#[async_trait::async_trait]
impl tieline_client::Credentials for Tickets {
    async fn token(&self, proof: u64, session: SessionId, addresses: &[String]) -> Option<Vec<u8>> {
        let owner = lock(&self.owners).get(&proof).cloned()?;
        let target = self.guard.principal_of(addresses.first()?);
        let binding = proof_binding(session, proof);
        let Purse { uid, cache, .. } = owner.hand.purse.clone();
        let (last, token) = match self.read(owner, target, binding).await {
            Ok(Reading { cache: default, found: Found::Token { digits, seconds } }) => {
                if let Some(default) = default.filter(|_| cache.is_none()) {
                    let mut defaults = lock(&self.defaults);
                    if defaults.len() >= KNOWN_MAX {
                        defaults.clear();
                    }
                    defaults.insert(uid, default);
                }
                let until = seconds.map(|left| Instant::now() + Duration::from_secs(left));
                (Last::Ticket { until }, reading::bytes_of(&digits))
            }
            Ok(Reading { found: Found::Lack(lack), .. }) | Err(lack) => (Last::Lack(lack), None),
        };
        if let Last::Lack(Lack { why, .. }) = &last {
            tracing::info!(uid, cache, %why, "no ticket of a user");
        }
        if let Some(owner) = lock(&self.owners).get_mut(&proof) {
            owner.last = last;
        }
        token
    }

    fn is_silent(&self, proof: u64) -> bool {
        self.lack(proof).is_some_and(|lack| lack.is_silent)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_cache_that_changes_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cc");
        let named = format!("FILE:{}", file.display());
        let purse = Purse { uid: 7, cache: Some(named.clone()), place: None };
        let (seen, is_gone) = (Seen::File(None), false);
        let hand = Hand { purse, process: 0, default: None, seen, is_gone };
        let look = |hand: &Hand| {
            let (seen, is_gone) = hand.look();
            Hand { seen, is_gone, ..hand.clone() }
        };
        let gone = look(&hand);
        assert!(gone.is_gone().is_some() && !gone.is_as(gone.seen));
        std::fs::write(&file, "one").unwrap();
        let one = look(&hand);
        assert!(look(&hand).is_as(one.seen) && one.is_gone().is_none());
        std::fs::write(&file, "other").unwrap();
        assert!(!look(&hand).is_as(one.seen));
        // A default is looked at as well; whether it still is the default, only a reading says.
        let purse = Purse { cache: None, ..hand.purse.clone() };
        let default = Hand { purse, default: Some(named), ..hand.clone() };
        let seen = look(&default).seen;
        assert!(look(&default).is_as(seen));
        std::fs::remove_file(&file).unwrap();
        assert!(!look(&hand).is_as(seen) && !look(&default).is_as(seen));
        assert!(look(&default).is_gone().is_none());
    }

    /// On this mount, looks for a cache would look for caches themselves, without an end.
    #[test]
    fn who_looks_for_us_is_not_looked_for() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(is_own_thread(thread) && is_own_thread(std::process::id()));
        assert!(!is_own_thread(0) && !is_own_thread(1));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let find = |process| Hand::find(process, rustix::process::geteuid().as_raw(), None);
        assert!(find(child.id()).is_err_and(|lack| !lack.is_silent));
        assert!(find(1).is_ok() && find(0).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_sees_other_files_is_known() {
        assert_eq!((place_of(0), place_of(std::process::id())), (None, None));
        let mut child = match Command::new("unshare").args(["-m", "sleep", "60"]).spawn() {
            Ok(child) if rustix::process::geteuid().is_root() => child,
            _ => return eprintln!("SKIPPED: no namespaces can be made here"),
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        let mut place = None;
        while place.is_none() && std::time::Instant::now() < deadline {
            place = place_of(child.id());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(place.is_some());
    }

    #[test]
    fn the_environment_of_others_is_not_read() {
        // One that is in the process' memory is not to be had, and no other is taken instead.
        for cache in ["FILE:/tmp/a", "MEMORY:a"] {
            let mut child = Command::new("sleep").arg("60").env("KRB5CCNAME", cache).spawn();
            let child = child.as_mut().unwrap();
            let own = rustix::process::geteuid().as_raw();
            let id = child.id();
            let status = || status_of(id).unwrap();
            // Until it is executed it is still us.
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            let mut found = None;
            while found.is_none() && std::time::Instant::now() < deadline {
                found = cache_named(child.id(), own, &status());
            }
            assert_eq!(found.as_deref(), Some(cache));
            assert_eq!(cache_named(child.id(), own + 1, &status()), None);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
