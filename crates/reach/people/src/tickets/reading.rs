//! A look into a user's cache, by a process that is that user.
//!
//! Whoever has a [`Start`] says how that process is started; [`look`] is what it does, and [`ask`]
//! runs it and hears what it found. Where the caller sees another tree of files than we do (a unit
//! with a private /tmp, a container), the process gets that tree's root as its standard input, and
//! opens caches that are files below it. So nothing of that tree is executed, no namespace is
//! entered, and what is opened is opened with the user's rights.
//!
//! The process says a line when it has seen what is in the cache, and only then may it ask a KDC:
//! who waits for storage that hangs, or for a keeper of caches, waits less long. Where all tickets
//! have ended the line says so: that is the answer, unless a KDC gives another one soon (a machine
//! may have a key of the user's).
//!
//! Invariants: the process ends with its deadline; it has the ids and groups of the caller before
//! it begins, and nothing of our environment but the name of krb5.conf.

use super::names::{keeper, leads_nowhere, name_below};
use super::{Owner, place_of};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use tieline_auth::gss::{Cache, GssInitiator, Keys, caches, default_cache};
use tieline_auth::{BINDING, Mechanism, Trouble};
use tieline_types::Time;

const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long a KDC has to give other tickets for those that have ended.
const ENDED_PATIENCE: Duration = Duration::from_secs(2);
/// Of what the process says: a token has 64 KiB, in hexadecimal digits.
const TEXT_MAX: u64 = 2 << 20;
const VARIABLE: &str = "KRB5CCNAME";

/// How a process is started that calls [`look`] with what is said behind: `--target PRINCIPAL
/// --binding DIGITS`, and `--below-stdin` where it shall look below its standard input. It prints
/// what `seen` is told, or an empty line, and then what it found: each a line of JSON.
pub type Start = fn() -> Command;

/// What was found, where.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reading {
    /// The cache, or the collection, that was looked into.
    pub cache: Option<String>,
    pub found: Found,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Found {
    /// A token in hexadecimal digits, and for how many seconds the ticket behind it holds, by its
    /// own end.
    Token {
        digits: String,
        seconds: Option<u64>,
    },
    Lack(Lack),
}

/// Why there is no token.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lack {
    /// Nobody could say whether there is one: it may be there the next time.
    pub is_silent: bool,
    /// With the next step.
    pub why: String,
}

impl Lack {
    pub fn silent(why: impl Into<String>) -> Self {
        Self { is_silent: true, why: why.into() }
    }
}

/// What this process' own caches have for a server, `below` the root at its standard input or not.
/// `seen` is called when they were opened, with what there is to say if all tickets have ended.
pub fn look(
    target: &str,
    binding: &[u8; BINDING],
    below: bool,
    seen: impl FnOnce(Option<&Reading>),
) -> Reading {
    let cache = default_cache();
    if let Some(name) = cache.as_deref().filter(|_| below).and_then(name_below) {
        // SAFETY: this process has one thread.
        unsafe { std::env::set_var(VARIABLE, name) };
    }
    let found = caches();
    let ended = (!found.is_empty() && found.iter().all(Cache::is_over)).then(|| {
        let lack = lack(&Trouble::Expired, cache.as_deref());
        Reading { cache: cache.clone(), found: Found::Lack(lack) }
    });
    seen(ended.as_ref());
    // No cache is named to the library: of a collection it takes the one of the server's realm.
    let mut initiator = GssInitiator::new(Keys::default(), target.to_owned());
    let found = match initiator.step(None, binding) {
        Ok(step) => Found::Token {
            digits: step.token.iter().flatten().map(|byte| format!("{byte:02x}")).collect(),
            seconds: initiator.left().map(|left| left.as_secs()),
        },
        Err(trouble) => Found::Lack(lack(&trouble, cache.as_deref())),
    };
    Reading { cache, found }
}

/// What is told of a trouble with the tickets of this process, in a cache of that name.
pub fn lack(trouble: &Trouble, cache: Option<&str>) -> Lack {
    let is_silent = matches!(trouble, Trouble::NoKdc { .. } | Trouble::Late { .. });
    let found = caches();
    let ended = found.iter().filter(|cache| cache.is_over()).filter_map(|cache| cache.ends).max();
    let mut owners: Vec<String> = found.into_iter().map(|cache| cache.principal).collect();
    owners.dedup();
    let whose = match owners.is_empty() {
        true => String::new(),
        false => format!(" of {}", owners.join(", ")),
    };
    let named = cache.filter(|_| *trouble == Trouble::NoTicket);
    let own = named.and_then(keeper);
    let what = match own {
        Some(keeper) => format!(
            "only {keeper} can look into the cache that KRB5CCNAME names: keep tickets in a file, \
             or in KEYRING:persistent:{}",
            rustix::process::getuid().as_raw()
        ),
        None => match ended.filter(|_| *trouble == Trouble::Expired) {
            Some(seconds) => {
                let at = Time { seconds: seconds.into(), nanos: 0 };
                format!("your ticket expired at {at} UTC: run `kinit`")
            }
            None => named.and_then(leads_nowhere).unwrap_or_else(|| trouble.to_string()),
        },
    };
    let why = format!("{what} (cache {}{whose})", cache.unwrap_or("without a name"));
    Lack { is_silent, why }
}

/// Has a process with the user's ids look for a ticket.
pub(super) fn ask(
    start: Start,
    owner: &Owner,
    target: &str,
    binding: &[u8; BINDING],
    deadline: Instant,
) -> Result<Reading, Lack> {
    let purse = &owner.hand.purse;
    let mut command = start();
    let binding: String = binding.iter().map(|byte| format!("{byte:02x}")).collect();
    command.args(["--target", target, "--binding", &binding]);
    command.env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if purse.place.is_some() {
        command.arg("--below-stdin").stdin(Stdio::from(root_of(owner)?));
    }
    if let Some(cache) = &purse.cache {
        command.env(VARIABLE, cache);
    }
    if let Some(config) = std::env::var_os("KRB5_CONFIG") {
        command.env("KRB5_CONFIG", config);
    }
    // SAFETY: between fork and exec one system call is made, on values made before.
    unsafe { command.pre_exec(ends_by_itself) };
    if rustix::process::geteuid().is_root() {
        let (uid, gid, groups) = (purse.uid, owner.gid, owner.groups.clone());
        // SAFETY: between fork and exec only system calls are made, on values made before.
        unsafe { command.pre_exec(move || become_user(uid, gid, &groups)) };
    } else if rustix::process::geteuid().as_raw() != purse.uid {
        let why = "this mount is another user's: it cannot look for tickets of others".to_owned();
        return Err(Lack { is_silent: false, why });
    }
    let seen_by = (Instant::now() + super::LOOK_PATIENCE).min(deadline);
    finish(command, seen_by, deadline).map_err(Lack::silent)
}

/// `seen_by`: until then it must have said something. Else why nothing was heard.
fn finish(mut command: Command, seen_by: Instant, deadline: Instant) -> Result<Reading, String> {
    let unheard = |what: &str, error: std::io::Error| format!("{what}: {error}");
    let mut child = command
        .spawn()
        .map_err(|error| unheard("the process that reads caches cannot be run", error))?;
    let (sender, first) = channel();
    // Read while it runs: a large token is more than a pipe takes.
    let said = child.stdout.take();
    let said = said.map(|stdout| std::thread::spawn(move || last_line(stdout, &sender)));
    let (mut until, mut why, mut ended) = (seen_by, super::HANGS, None);
    let unseen = |error| unheard("the process that reads caches cannot be waited for", error);
    while child.try_wait().map_err(unseen)?.is_none() {
        if let Ok(line) = first.try_recv() {
            (until, why) = (deadline, "looking for a ticket took too long: does a KDC answer?");
            ended = serde_json::from_str(&line).ok();
            if ended.is_some() {
                until = deadline.min(Instant::now() + ENDED_PATIENCE);
            }
        }
        if Instant::now() >= until {
            let _ = child.kill();
            let _ = child.wait();
            return ended.ok_or_else(|| why.to_owned());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let output = child.wait_with_output().map_err(unseen)?;
    let said = said.and_then(|said| said.join().ok()).unwrap_or_default();
    serde_json::from_str(&said).map_err(|error| {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let status = output.status;
        format!("the process that reads caches says nothing ({status}): {why}: {error}")
    })
}

/// The root of the caller's tree, if he is still there.
fn root_of(owner: &Owner) -> Result<OwnedFd, Lack> {
    let process = owner.hand.process;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(format!("/proc/{process}/root"), flags, Mode::empty());
    // It is looked at after the opening: a number of a process may have become another's.
    let is_same = place_of(process) == owner.hand.purse.place;
    root.ok().filter(|_| is_same).ok_or_else(|| {
        Lack::silent(format!("the tree of files of process {process} cannot be entered"))
    })
}

/// What is said after the first line, as far as it is text.
fn last_line(from: impl Read, first: &Sender<String>) -> String {
    let (mut from, mut bytes) = (BufReader::new(from.take(TEXT_MAX)), Vec::new());
    // What came before an error is not what was meant, and is found to be none.
    let _ = from.read_until(b'\n', &mut bytes);
    if bytes.ends_with(b"\n") {
        // Nobody listens who has ended the process.
        let _ = first.send(String::from_utf8_lossy(&bytes).into_owned());
    }
    bytes.clear();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A cache that hangs would hold the process for ever once nobody is there any more to end it.
fn ends_by_itself() -> std::io::Result<()> {
    let seconds = (super::PATIENCE + super::LEEWAY).as_secs();
    // SAFETY: it takes a number only; the kernel keeps the alarm across exec.
    unsafe { libc::alarm(u32::try_from(seconds).unwrap_or(u32::MAX)) };
    Ok(())
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

/// What hexadecimal digits mean.
pub fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_nobody_else_can_look_into_is_said_to_be_one() {
        for cache in ["KEYRING:session:x", "KEYRING:process:x", "MEMORY:x"] {
            let why = lack(&Trouble::NoTicket, Some(cache)).why;
            let has = |part: &str| why.contains(part);
            assert!(has("only ") && has("KEYRING:persistent:") && has(cache), "{why}");
        }
        for cache in ["KEYRING:persistent:7", "KEYRING:user:x", "FILE:/tmp/x", "KCM:"] {
            let why = lack(&Trouble::NoTicket, Some(cache)).why;
            assert!(why.contains("kinit") && !why.contains("only "), "{why}");
        }
        // What else is wrong is told as it is.
        let expired = lack(&Trouble::Expired, Some("KEYRING:session:x")).why;
        assert!(expired.contains("expired"), "{expired}");
    }

    #[test]
    fn a_cache_that_hangs_is_waited_for_less_long_than_a_kdc() {
        let ended = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
            let begun = Instant::now();
            let (seen_by, deadline) =
                (begun + Duration::from_millis(500), begun + Duration::from_secs(2));
            (finish(command, seen_by, deadline), begun.elapsed())
        };
        let (hung, took) = ended("exec sleep 60");
        assert!(hung.unwrap_err().contains("where nothing answers"));
        assert!(took < Duration::from_secs(2), "{took:?}");
        let (asking, took) = ended("echo; exec sleep 60");
        assert!(asking.unwrap_err().contains("KDC"));
        assert!(took >= Duration::from_secs(2), "{took:?}");
        let lack = Lack::silent("none");
        let found = Reading { cache: None, found: Found::Lack(lack) };
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(ended(&format!("echo; echo '{text}'")).0, Ok(found.clone()));
        // Tickets that have ended are an answer, where no KDC gives another.
        let (told, took) = ended(&format!("echo '{text}'; exec sleep 60"));
        assert_eq!(told, Ok(found.clone()));
        assert!(took >= Duration::from_secs(2), "{took:?}");
        let other = Reading { cache: Some("x".to_owned()), ..found };
        let newer = serde_json::to_string(&other).unwrap();
        assert_eq!(ended(&format!("echo '{text}'; echo '{newer}'")).0, Ok(other));
    }

    #[test]
    fn a_name_that_leads_nowhere_is_said_to_be_one() {
        let why = |cache| lack(&Trouble::NoTicket, Some(cache)).why;
        assert!(why("BOGUS:x").contains("unknown kind `BOGUS`"), "{}", why("BOGUS:x"));
        for cache in ["cc", "FILE:./cc", "DIR:d"] {
            assert!(why(cache).contains("relative: name it whole"), "{}", why(cache));
        }
    }

    #[test]
    fn digits_are_bytes() {
        assert_eq!(bytes_of("00ff7a"), Some(vec![0, 255, 0x7a]));
        assert!(bytes_of("0").is_none() && bytes_of("zz").is_none());
    }
}
