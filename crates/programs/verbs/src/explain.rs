//! `tieline explain`: who somebody is to the file system, and why he may or may not.
//!
//! Each step on the way to the file is judged twice, as it is when a program asks: by the kernel,
//! with the ids that this machine shows, and by the server, with the identity behind a ticket. For
//! oneself the server is asked to open the file or to list the directory, too: its word counts, and
//! its denial has an id that is in its log and on record. What a mount denied to the caller's
//! programs on that way before, of whatever kind, is told with its id as well ([`denials`]). Who
//! may write may still find a mount read-only, a quota used up, or no storage that takes his bytes
//! ([`limits`]).
//!
//! Who has no ticket can ask no server, and may be served by a mount all the same: then that is
//! asked ([`by_mount`]).

mod by_mount;
mod denials;
mod flavors;
mod limits;

use crate::id::judged;
use crate::quota::whole;
use crate::shell::{self, Shell};
use anyhow::{Context, anyhow, bail, ensure};
use denials::Denial;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tieline_auth::gss::{default_cache, standing};
use tieline_base::location::Location;
use tieline_base::report;
use tieline_client::Access;
use tieline_machine::users::own_caller;
use tieline_people::idmap::{Idmap, Means};
use tieline_people::judges::{table_of, taken_for};
use tieline_people::tickets::reading;
use tieline_types::acl::{AccessList, Acls};
use tieline_types::rules::{READ, Rights, SEARCH, WRITE};
use tieline_types::{
    Attributes, Caller, FileId, FileKind, Gid, IdentityKind, MdtIndex, Mode, Name, Shown, Uid,
};
use tokio::time::timeout;

/// Longest wait for one site: others are asked meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// Links on one way, as for the kernel.
const LINKS_MAX: usize = 40;
/// Of a name that is to be created.
const TAKEN: &str = "the name is taken (EEXIST)";
/// As long as an attribute can be.
const LIST_ROOM: usize = 64 << 10;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Explain what holds of this principal (administrators see how it is mapped)
    #[arg(long = "as", value_name = "PRINCIPAL")]
    principal: Option<String>,
    /// read (list), write (append), execute; create or delete (unlink, rename): of the name PATH in
    /// its directory; chmod
    #[arg(long, default_value = "read")]
    op: Wish,
    /// One JSON value
    #[arg(long)]
    json: bool,
    /// Path below a mount, or tieline://HOST[:PORT]/FS/path
    path: OsString,
}

/// What somebody wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Read,
    Write,
    Execute,
    /// Names change in the directory that the path is in.
    Create,
    Delete,
    /// What only the owner may.
    Chmod,
}

impl Wish {
    fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::Execute)
    }
}

impl std::str::FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "read" | "list" => Self::Read,
            "write" | "append" => Self::Write,
            "execute" | "search" => Self::Execute,
            "create" => Self::Create,
            // A name that is moved goes from its directory; where it goes to is another path.
            "delete" | "unlink" | "rename" => Self::Delete,
            "chmod" => Self::Chmod,
            _ => {
                let known = "read, list, write, append, execute, create, delete, unlink, rename";
                return Err(format!("{known} or chmod"));
            }
        })
    }
}

/// Who it is about.
struct Subject {
    principal: Option<String>,
    name: Option<String>,
    caller: Caller,
    how: String,
    is_self: bool,
}

/// A step on the way, and what is wished there.
struct Step {
    path: String,
    attributes: Attributes,
    wish: u32,
    /// Whatever its mode says.
    is_for_owner: bool,
    /// A sticky directory keeps others' files: the one that is to go.
    stuck_to: Option<(Name, Attributes)>,
}

/// One judgement.
struct Verdict {
    by: &'static str,
    path: String,
    is_allowed: bool,
    rule: String,
}

/// Exit codes: 0 allowed, 1 denied, or nobody could be asked.
pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find(&args.path)?;
    let (asked, args) = (location.clone(), Arc::new(args));
    let (wished, is_open) = (args.clone(), Arc::new(AtomicBool::new(false)));
    let opened = is_open.clone();
    let outcome = shell::run(&location, |shell| async move {
        opened.store(true, Ordering::Relaxed);
        explain(&shell, &asked, &wished).await
    });
    let is_allowed = match outcome {
        Err(error) if !is_open.load(Ordering::Relaxed) => unheard(error, &location, &args)?,
        outcome => outcome?,
    };
    // Only now, when the session was closed: what it was lent would keep others waiting.
    if !is_allowed {
        crate::parting::leave(1);
    }
    Ok(())
}

/// No server heard us. Whoever has no ticket is told so, and what a mount denied him for that.
fn unheard(error: anyhow::Error, location: &Location, args: &Args) -> anyhow::Result<bool> {
    let own = own_caller().uid;
    let mut before = location.mountpoint.as_deref().map(denials::read).unwrap_or_default();
    before.retain(|denial| denial.uid == own);
    match standing(&location.proving.keys()) {
        Err(trouble) => {
            let why = reading::lack(&trouble, default_cache().as_deref()).why;
            let served = location.mountpoint.as_deref().filter(|_| args.principal.is_none());
            match served.and_then(by_mount::served) {
                Some(served) => {
                    let subject = by_mount::subject(served, &why);
                    tell_subject(&subject, args);
                    let mut verdicts = by_mount::verdicts(location, &subject.caller, args.op);
                    tell_verdicts(&mut verdicts, &[], args);
                    Ok(tell(&subject, &verdicts, (&before, &[]), args))
                }
                None => Ok(stranger(&anyhow!(why), &[], &before, args)),
            }
        }
        Ok(_) => {
            denials::told(&before).iter().for_each(|line| eprintln!("{line}"));
            Err(error)
        }
    }
}

async fn explain(shell: &Arc<Shell>, location: &Location, args: &Args) -> anyhow::Result<bool> {
    let flavors = tokio::spawn(flavors::here(shell.clone(), location.clone()));
    let subject = match &args.principal {
        Some(principal) => other(shell, principal).await,
        None => own(shell).await.map(Some),
    };
    // The shell may be in the mount's network; the mount is in ours all the same.
    let before = location.mountpoint.as_deref().map(denials::read).unwrap_or_default();
    let subject = match subject {
        Ok(Some(subject)) => subject,
        Ok(None) => bail!(
            "there are no identities yet, so the users of the MDS's machine count: add some \
             (`tieline id add`)"
        ),
        Err(error) => {
            // What this machine's programs were denied says nothing of a principal whom it does not
            // know; and others' is not the caller's.
            let is_own =
                |denial: &Denial| args.principal.is_none() && denial.uid == shell.caller.uid;
            let before: Vec<Denial> = before.into_iter().filter(is_own).collect();
            return Ok(stranger(&error, &flavors.await?, &before, args));
        }
    };
    tell_subject(&subject, args);
    let mut verdicts = vec![];
    let steps = steps(shell, location, &subject, args.op, &mut verdicts).await?;
    // Else the last step is where the way ends.
    let is_there = verdicts.is_empty();
    verdicts.extend(steps.iter().map(|step| judge("server", step, &subject.caller)));
    let here = here(shell, location, &subject).await;
    if let Some(here) = &here {
        verdicts.extend(by_kernel(location, &steps, here));
    }
    if args.op.changes() {
        verdicts.extend(location.mountpoint.as_deref().and_then(limits::read_only));
    }
    let known = verdicts.len();
    tell_verdicts(&mut verdicts, &steps, args);
    if let Some(step) = steps.last() {
        verdicts.extend(limits::quotas(shell, step, &subject, args.op).await);
        if args.op == Wish::Write && step.attributes.kind == FileKind::Regular {
            let realm = limits::realm(shell, location, &subject).await;
            verdicts.extend(limits::storage(shell, step, realm.as_deref()).await);
        }
    }
    if subject.is_self {
        let opens = matches!(args.op, Wish::Read | Wish::Write);
        let last = steps.last().filter(|_| opens && is_there);
        if let Some(step) = last {
            let late = || Verdict {
                by: "server, asked",
                path: step.path.clone(),
                is_allowed: false,
                rule: format!("no answer within {} s", PATIENCE.as_secs()),
            };
            let tried = timeout(PATIENCE, tried(shell, step, args.op)).await;
            verdicts.extend(tried.unwrap_or_else(|_| Some(late())));
        }
    }
    let uid = if subject.is_self { Some(shell.caller.uid) } else { here.map(|here| here.uid) };
    let is_of = |denial: &Denial| {
        let is_on_the_way = |step: &Step| step.attributes.id == denial.file;
        Some(denial.uid) == uid && steps.iter().any(is_on_the_way)
    };
    let mut before: Vec<Denial> = before.into_iter().filter(is_of).collect();
    for denial in &mut before {
        denial.reason = named(&denial.reason, &steps);
        let at = steps.iter().find(|step| step.attributes.id == denial.file);
        denial.path = at.map(|step| step.path.clone());
    }
    tell_verdicts(verdicts.get_mut(known..).unwrap_or_default(), &steps, args);
    Ok(tell(&subject, &verdicts, (&before, &flavors.await?), args))
}

/// Which MDT said nothing.
fn unanswered(shell: &Shell, mdt: MdtIndex) -> String {
    format!("{} did not answer within {} s", whole::name_of(shell, mdt), PATIENCE.as_secs())
}

/// What an MDT says in time, or why not.
async fn within<T>(
    shell: &Shell,
    mdt: MdtIndex,
    asked: impl Future<Output = Result<T, tieline_client::Error>>,
) -> Result<T, String> {
    match timeout(PATIENCE, asked).await {
        Ok(told) => told.map_err(|error| report::chain(&error)),
        Err(_) => Err(unanswered(shell, mdt)),
    }
}

/// Servers know files by their numbers; who asked here knows paths.
fn named(text: &str, steps: &[Step]) -> String {
    let mut text = text.to_owned();
    for step in steps {
        let id = step.attributes.id.to_string();
        let mut rest = text.as_str();
        let mut whole = String::new();
        while let Some((before, after)) = rest.split_once(&id) {
            whole.push_str(before);
            // The beginning of a longer number is another's.
            let is_whole = !after.starts_with(|next: char| next.is_ascii_hexdigit());
            whole.push_str(if is_whole { &step.path } else { &id });
            rest = after;
        }
        whole.push_str(rest);
        text = whole;
    }
    text
}

/// Whom the kernel of this machine knows the subject as, if it is known.
async fn here(shell: &Shell, location: &Location, subject: &Subject) -> Option<Caller> {
    if subject.is_self {
        return Some(shell.caller.clone());
    }
    let shows = Means::parse(location.idmap.as_deref()?);
    let idmap = Idmap::start(shows, shell.volume.servers(), None, true).await.ok()?;
    let Caller { uid, gid, groups, .. } = &subject.caller;
    let (uid, gid) = idmap.shown(*uid, *gid);
    let groups = groups.iter().map(|group| idmap.shown(Uid(0), *group).1).collect();
    Some(Caller { uid, gid, groups, proof: None })
}

/// Who we are to the servers.
async fn own(shell: &Shell) -> anyhow::Result<Subject> {
    let told = taken_for(shell.volume.servers(), MdtIndex(0), &shell.caller).await?;
    let name = name_of(shell, told.caller.uid).await;
    let (principal, caller, how) = (told.principal, told.caller, told.how);
    Ok(Subject { principal, name, caller, how, is_self: true })
}

/// Whom the table says; `None`: it is empty, and others are asked.
async fn other(shell: &Shell, principal: &str) -> anyhow::Result<Option<Subject>> {
    let map = shell.files.map();
    let realm = map.security.as_ref().context("this federation has no realm")?.realm.clone();
    let table = table_of(shell.volume.servers(), None).await?.unwrap_or_default();
    if table.is_empty() {
        return Ok(None);
    }
    let principal = &crate::id::completed(principal, &realm);
    let found = judged(&table, principal, &realm).map_err(|why| anyhow!(why))?;
    Ok(Some(Subject {
        principal: Some(principal.to_owned()),
        name: Some(found.name.to_string()),
        caller: found.caller,
        how: found.how,
        is_self: false,
    }))
}

async fn name_of(shell: &Shell, uid: Uid) -> Option<String> {
    let table = table_of(shell.volume.servers(), None).await.ok()??;
    table.identity(IdentityKind::User, uid.0).map(|identity| identity.name.to_string())
}

/// The way to the path, as far as we can see it. Links are followed as the kernel follows them.
async fn steps(
    shell: &Shell,
    location: &Location,
    subject: &Subject,
    wish: Wish,
    verdicts: &mut Vec<Verdict>,
) -> anyhow::Result<Vec<Step>> {
    let map = shell.files.map();
    let root = FileId::root_of(MdtIndex(0));
    let root = shell.files.attributes(&shell.caller, root).await?.attributes;
    let mut way = vec![(format!("/{}", location.source.fs), root)];
    let mut names = names_of(location.source.directory.as_bytes());
    names.extend(names_of(&location.path));
    let mut steps: Vec<Step> = vec![];
    let mut links = 0;
    let step = |path: &str, attributes: &Attributes, wish| {
        let (path, attributes) = (path.to_owned(), attributes.clone());
        Step { path, attributes, wish, is_for_owner: false, stuck_to: None }
    };
    while let (Some((path, here)), Some(name)) = (way.last().cloned(), names.pop_front()) {
        if name == b".." {
            way.truncate(way.len().saturating_sub(1).max(1));
            continue;
        }
        let is_last = names.is_empty();
        let is_name_wish = is_last && matches!(wish, Wish::Create | Wish::Delete);
        let wanted = if is_name_wish { WRITE | SEARCH } else { SEARCH };
        steps.push(step(&path, &here, wanted));
        let name = Name::new(name)?;
        let below = format!("{path}/{name}");
        let junction = map.junctions_in(here.id).find(|junction| junction.name == name);
        let mdt = junction.map_or(here.id.mdt(), |junction| junction.mdt);
        if is_last && wish == Wish::Create {
            // Who may not look there is told so by what follows.
            let found = within(shell, mdt, shell.files.lookup(&shell.caller, here.id, &name)).await;
            verdicts.extend(found.is_ok_and(|found| found.attributes.is_some()).then(|| {
                let rule = TAKEN.to_owned();
                Verdict { by: "server", path: below, is_allowed: false, rule }
            }));
            return Ok(steps);
        }
        let asked = shell.files.lookup(&shell.caller, here.id, &name);
        let found = match within(shell, mdt, asked).await {
            Ok(found) => found,
            Err(rule) => {
                let by = if subject.is_self { "server" } else { "server (of you)" };
                verdicts.push(Verdict { by, path: below, is_allowed: false, rule });
                return Ok(steps);
            }
        };
        let Some(found) = found.attributes else {
            let rule = "there is no such name".to_owned();
            verdicts.push(Verdict { by: "server", path: below, is_allowed: false, rule });
            if is_last {
                let create = step(&path, &here, WRITE | SEARCH);
                verdicts.push(judge("server, to create it", &create, &subject.caller));
            }
            return Ok(steps);
        };
        if is_name_wish {
            if let Some(step) = steps.last_mut().filter(|_| here.mode.has(Mode::STICKY)) {
                step.stuck_to = Some((name, found));
            }
            return Ok(steps);
        }
        if found.kind != FileKind::Symlink {
            way.push((below, found));
            continue;
        }
        links += 1;
        ensure!(links <= LINKS_MAX, "{below}: too many links, one to the other");
        let target = shell.files.read_symlink(&shell.caller, found.id).await?;
        let mut ahead = names_of(&target);
        if target.starts_with(b"/") {
            let within = location.mountpoint.as_deref().and_then(|mountpoint| {
                Path::new(OsStr::from_bytes(&target)).strip_prefix(mountpoint).ok()
            });
            let shown = Shown(&target);
            let within = within.with_context(|| {
                format!("{below} is a link to {shown}, which is not in the file system")
            })?;
            ahead = names_of(location.source.directory.as_bytes());
            ahead.extend(names_of(within.as_os_str().as_bytes()));
            way.truncate(1);
        }
        ahead.append(&mut names);
        names = ahead;
    }
    let is_for_owner = wish == Wish::Chmod;
    let wish = match wish {
        Wish::Chmod => 0,
        Wish::Read => READ,
        Wish::Execute => SEARCH,
        Wish::Write | Wish::Create | Wish::Delete => WRITE,
    };
    steps.extend(
        way.last().map(|(path, attributes)| Step { is_for_owner, ..step(path, attributes, wish) }),
    );
    Ok(steps)
}

/// The names of a path that lead anywhere.
fn names_of(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(<[u8]>::to_vec).collect()
}

fn judge(by: &'static str, step: &Step, caller: &Caller) -> Verdict {
    let rights = Rights::of(&step.attributes);
    let keeps = |(_, file): &(Name, Attributes)| rights.is_stuck(Rights::of(file), caller);
    let is_stuck = step.stuck_to.as_ref().is_some_and(keeps);
    let is_owner = caller.is_root() || caller.uid == rights.uid;
    let is_kept = step.is_for_owner && !is_owner;
    let is_allowed = rights.allow(caller, step.wish) && !is_stuck && !is_kept;
    let list = step.attributes.acls.as_ref().and_then(|acls| acls.access.as_ref());
    let about = list.map(|list| list.about(rights.mode, rights.gid, caller)).unwrap_or_default();
    let class = match () {
        () if caller.is_root() => "root".to_owned(),
        () if caller.uid == rights.uid => format!("its owner ({})", rights.uid),
        // An access list gives nobody what only the owner may.
        () if step.is_for_owner => format!("not its owner ({})", rights.uid),
        () if !about.is_empty() => format!("by its access list ({})", about.join(", ")),
        () if caller.is_member(rights.gid) => format!("in its group ({})", rights.gid),
        () => format!("neither its owner ({}) nor in its group ({})", rights.uid, rights.gid),
    };
    let stuck = if is_stuck { ", and it is sticky" } else { "" };
    let mode = rights.mode.bits();
    let wanted = if step.is_for_owner { "its owner".to_owned() } else { wished(step.wish) };
    let rule = format!("mode {mode:04o}, {wanted} wanted; {class}{stuck}");
    Verdict { by, path: step.path.clone(), is_allowed, rule }
}

fn wished(wish: u32) -> String {
    let bits = [(READ, 'r'), (WRITE, 'w'), (SEARCH, 'x')];
    bits.iter().filter(|(bit, _)| wish & bit != 0).map(|(_, letter)| letter).collect()
}

/// What the kernel of this machine says: it knows what the mount shows.
fn by_kernel(location: &Location, steps: &[Step], stated: &Caller) -> Vec<Verdict> {
    let Some(mountpoint) = &location.mountpoint else { return vec![] };
    let prefix = match location.source.directory.as_str() {
        "" => format!("/{}", location.source.fs),
        directory => format!("/{}/{directory}", location.source.fs),
    };
    let mut verdicts = vec![];
    for step in steps {
        let Some(rest) = step.path.strip_prefix(&prefix) else { continue };
        let path: PathBuf = mountpoint.join(rest.trim_start_matches('/'));
        match std::fs::symlink_metadata(&path) {
            Ok(shown) => {
                let attributes = Attributes {
                    uid: Uid(shown.uid()),
                    gid: Gid(shown.gid()),
                    mode: Mode::new(shown.mode() & 0o7777),
                    acls: shown_list(&path),
                    ..step.attributes.clone()
                };
                let stuck_to = step.stuck_to.clone().map(|(name, file)| {
                    let shown =
                        std::fs::symlink_metadata(path.join(OsStr::from_bytes(name.as_bytes())));
                    let uid = shown.map_or(file.uid, |shown| Uid(shown.uid()));
                    (name, Attributes { uid, ..file })
                });
                let step = Step { attributes, stuck_to, path: step.path.clone(), ..*step };
                verdicts.push(judge("kernel", &step, stated));
            }
            Err(error) => verdicts.push(Verdict {
                by: "mount",
                path: step.path.clone(),
                is_allowed: false,
                rule: error.to_string(),
            }),
        }
    }
    verdicts
}

/// The access list of a file, naming people as the mount shows them.
fn shown_list(path: &Path) -> Option<Box<Acls>> {
    let mut room = vec![0; LIST_ROOM];
    let length = rustix::fs::lgetxattr(path, "system.posix_acl_access", &mut room[..]).ok()?;
    let (_, list) = AccessList::parse(room.get(..length)?).ok()??;
    Acls::new(list, None)
}

/// What the servers say when they are asked to open the file and for its first byte, or to list the
/// directory.
async fn tried(shell: &Shell, step: &Step, wish: Wish) -> Option<Verdict> {
    let (read, write) = (wish == Wish::Read, wish == Wish::Write);
    let id = step.attributes.id;
    let asked = match step.attributes.kind {
        FileKind::Regular => {
            let access = Access { read, write, ..Access::default() };
            match shell.files.open(&shell.caller, id, access).await {
                Ok(opened) => {
                    // Who lends the storage may serve some realms only.
                    let first = match read {
                        true => shell.files.read(opened.handle, 0, 1).await.map(drop),
                        false => Ok(()),
                    };
                    shell.files.release(opened.handle).await;
                    first.map(|()| if read { "it was opened and read" } else { "it was opened" })
                }
                Err(error) => Err(error),
            }
        }
        FileKind::Directory if read => {
            let opened = shell.files.open_directory(&shell.caller, id).await;
            if let Ok(handle) = &opened {
                shell.files.release_directory(*handle).await;
            }
            opened.map(|_| "it was listed")
        }
        _ => return None,
    };
    let (is_allowed, rule) = match asked {
        Ok(done) => (true, done.to_owned()),
        Err(error) => (false, report::chain(&error)),
    };
    Some(Verdict { by: "server, asked", path: step.path.clone(), is_allowed, rule })
}

fn stranger(
    error: &anyhow::Error,
    flavors: &[(String, String)],
    before: &[Denial],
    args: &Args,
) -> bool {
    let why = report::chain(error.as_ref());
    if args.json {
        let denials: Vec<Value> = before.iter().map(Denial::json).collect();
        let flavors = flavors::json(flavors);
        println!(
            "{}",
            json!({
                "who": null, "allowed": false, "why": why, "denials": denials, "flavors": flavors,
            })
        );
    } else {
        println!("nobody: {why}");
        denials::told(before).iter().for_each(|line| println!("{line}"));
        flavors.iter().for_each(|(server, flavor)| println!("connection {server}: {flavor}"));
        println!("denied");
    }
    false
}

/// Who it is about, before anything else is known.
fn tell_subject(subject: &Subject, args: &Args) {
    if args.json {
        return;
    }
    let principal = subject.principal.as_deref().unwrap_or("nobody proven");
    let name = subject.name.as_deref().unwrap_or("no name");
    let Caller { uid, gid, groups, .. } = &subject.caller;
    println!("who: {principal} is {name}, number {uid}, by {}", subject.how);
    let list: Vec<String> = groups.iter().map(|gid| gid.0.to_string()).collect();
    println!("groups: {gid} {}", list.join(" "));
}

/// Tells judgements as they come, by paths.
fn tell_verdicts(verdicts: &mut [Verdict], steps: &[Step], args: &Args) {
    for Verdict { by, path, is_allowed, rule } in verdicts {
        *rule = named(rule, steps);
        if !args.json {
            let word = if *is_allowed { "allows" } else { "DENIES" };
            println!("{by} {word} {path}: {rule}");
        }
    }
}

/// Tells the rest: what was denied before, connections, and whether it is allowed.
fn tell(
    subject: &Subject,
    verdicts: &[Verdict],
    (before, flavors): (&[Denial], &[(String, String)]),
    args: &Args,
) -> bool {
    let is_allowed = verdicts.iter().all(|verdict| verdict.is_allowed);
    let caller = &subject.caller;
    let groups: Vec<u32> = caller.groups.iter().map(|gid| gid.0).collect();
    if args.json {
        let verdict = |verdict: &Verdict| {
            json!({
                "by": verdict.by, "path": verdict.path, "allowed": verdict.is_allowed,
                "rule": verdict.rule,
            })
        };
        let value = json!({
            "who": {
                "principal": subject.principal, "name": subject.name, "number": caller.uid.0,
                "gid": caller.gid.0, "groups": groups, "by": subject.how,
            },
            "allowed": is_allowed,
            "verdicts": verdicts.iter().map(verdict).collect::<Vec<_>>(),
            "denials": before.iter().map(Denial::json).collect::<Vec<_>>(),
            "flavors": flavors::json(flavors),
        });
        println!("{value}");
    } else {
        denials::told(before).iter().for_each(|line| println!("{line}"));
        flavors.iter().for_each(|(server, flavor)| println!("connection {server}: {flavor}"));
        println!("{}", if is_allowed { "allowed" } else { "denied" });
    }
    is_allowed
}
