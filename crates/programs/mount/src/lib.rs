//! `tieline mount` and `tieline umount`.
//!
//! Mounting starts this program again as a daemon, which says on its standard output that it is
//! mounted, or why not ([`daemon`]). What is started is a holder ([`holder`]), which starts the
//! daemon proper, and another one if that dies ([`held`]). The daemon keeps an entry in the
//! [`registry`] of mounts for as long as it lives. Unmounting takes the mount out of the tree and
//! waits until the daemon has committed everything and is gone, and names what could not be stored;
//! where servers are away, it says what is left and leaves that to the daemon.
//!
//! * [`options`]: what stands behind `-o`; [`caches`]: those about caches.
//! * [`callers`]: who callers are (`tieline_people`); [`one`]: where all are one user.
//! * [`remount`]: other flags for a mount that is there.
//! * [`spool`]: bytes that programs were answered for and that cannot be stored, on disk.
//! * [`helper`]: the same by the words of mount(8) and umount(8).

pub mod caches;
mod callers;
mod daemon;
mod held;
pub mod helper;
mod holder;
mod one;
mod options;
mod remount;
pub mod spool;

use crate::options::Options;
use crate::spool::entry::Entry;
use anyhow::{Context, anyhow, bail};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tieline_base::registry;
use tieline_base::source::Source;
use tieline_machine::beneath::{Directory, is_ours};
use tieline_machine::table;
use tieline_types::ByteSize;

/// Longest wait for a daemon that has been unmounted and still commits.
const DRAIN_PATIENCE: Duration = Duration::from_secs(300);
/// What is left is not waited for if servers are away and nothing became less for so long.
const STUCK_AFTER: Duration = Duration::from_secs(2);
/// Whoever waits is told how far it is.
const TELL_EVERY: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// An end that is over so soon is waited for.
const WAITED_OUT: Duration = Duration::from_secs(60);
/// Files that are named where some could not be stored.
const NAMED_MAX: usize = 20;
/// A daemon that is told to drop what is left.
const DROP_PATIENCE: Duration = Duration::from_secs(10);
/// What the daemon prints when it is mounted, after lines about caches that cannot be used yet.
pub const READY: &str = "mounted";

#[derive(clap::Args, Debug)]
pub struct Args {
    /// HOST[:PORT][,HOST2[:PORT]]:/FS[/dir]
    #[arg(required_unless_present_any = ["restart", "scout"])]
    pub source: Option<Source>,
    /// Where it shall appear
    #[arg(required_unless_present_any = ["restart", "scout"])]
    pub mountpoint: Option<PathBuf>,
    /// ro, wait=SPAN, interactive, offline=stale|error, relatime, journal=off, hold=off,
    /// watchdog=SPAN, fuse=7.N, readmode=auto|normal|readbuf|readahead|stream, readbuf=SIZE,
    /// inodes=N, ino32, congestion=auto|system, sec=FLAVOR, keytab=FILE, principal=NAME,
    /// krb5conf=FILE, service=NAME, idmap=names|same|FILE, idmapped=USER, mapkey=KEY,
    /// admin=HOST:PORT, cache=DIR, cache-size=SIZE, sitecache=DIR, sitecache-size=HIGH[:LOW],
    /// direct=OST0000=DIR, at-rest=trusted, spool=DIR|off, spool-size=SIZE, log=FILE,
    /// pidfile=FILE, netns=NAME, and what fstab carries
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground, and log to standard error
    #[arg(long)]
    pub foreground: bool,
    /// This is the daemon: say on standard output when it is mounted
    #[arg(long, hide = true)]
    pub daemon: bool,
    /// Start the daemon of a mount anew, as the program is now; programs go on
    #[arg(long, value_name = "MOUNTPOINT", conflicts_with = "source")]
    pub restart: Option<PathBuf>,
    /// This is the daemon of a holder, which speaks through this descriptor
    #[arg(long, hide = true)]
    pub held: Option<i32>,
    /// This is a holder for the daemon at the other end of this descriptor
    #[arg(long, hide = true)]
    pub hold: Option<i32>,
    /// This goes to paths below this mount point, for the daemon that wants it
    #[arg(long, hide = true, value_name = "MOUNTPOINT", conflicts_with = "source")]
    pub scout: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub struct UmountArgs {
    /// Take it out of the tree even if it is in use
    #[arg(short, long)]
    pub lazy: bool,
    /// Drop what was written and cannot be sent because servers are away
    #[arg(short, long)]
    pub force: bool,
    /// Wait until everything written is at its servers, even if they are away, as long as the
    /// mount's `wait=` says
    #[arg(short, long, conflicts_with = "force")]
    pub wait: bool,
    /// Where it is mounted
    #[arg(required = true)]
    pub mountpoints: Vec<PathBuf>,
}

/// `tieline mount`.
pub fn run(args: Args, is_log_json: bool) -> anyhow::Result<()> {
    if let Some(mountpoint) = &args.restart {
        return holder::restart(&table::mountpoint(mountpoint));
    }
    if let Some(mountpoint) = &args.scout {
        return Ok(tieline_fuse::serve_scout(mountpoint, std::io::stdin(), std::io::stdout())?);
    }
    if remount::is_wanted(&args.options) {
        let mountpoint = args.mountpoint.as_deref().context("a mount point is needed")?;
        return remount::run(&table::mountpoint(mountpoint), &args.options);
    }
    let mut options = Options::parse(args.options.iter().map(String::as_str))?;
    if args.hold.is_none() && args.held.is_none() {
        options.proving.check()?;
    }
    let missing = || anyhow!("a source and a mount point are needed");
    let source = args.source.clone().ok_or_else(missing)?;
    let mountpoint = args.mountpoint.as_deref().ok_or_else(missing)?;
    let mountpoint = match (args.held, args.hold) {
        (None, None) => table::mountpoint(mountpoint),
        // It may be mounted, and a look at it would wait for this very process.
        _ => tieline_machine::paths::absolute(mountpoint),
    };
    options.near.settle(&source.fs, &mountpoint);
    if !(args.foreground || args.daemon) {
        check(&mountpoint)?;
        return start_daemon(&args, (&source, &mountpoint), &options, is_log_json);
    }
    let (is_daemon, watchdog) = (args.daemon, options.watchdog);
    let holding = holder::Task { mountpoint: mountpoint.clone(), watchdog, is_log_json, is_daemon };
    match (args.hold, args.held) {
        (Some(socket), _) => holder::run_again(holding, socket),
        (None, None) if options.is_held => holder::run(holding),
        (None, held) => {
            let words = args.options;
            let task = daemon::Task { source, mountpoint, options, words, is_daemon, is_log_json };
            daemon::run(task, held)
        }
    }
}

/// What the kernel would say less clearly.
fn check(mountpoint: &Path) -> anyhow::Result<()> {
    let shown = mountpoint.display();
    if let Some(entry) = registry::at(mountpoint).filter(|_| table::is_mounted(mountpoint)) {
        bail!("{} is mounted at {shown} already (pid {})", entry.source, entry.process.pid);
    }
    match std::fs::metadata(mountpoint) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => bail!("{shown} is not a directory"),
        Err(error) => Err(error).with_context(|| format!("cannot mount at {shown}")),
    }
}

/// Starts this program again in the background, and waits until it is mounted.
fn start_daemon(
    args: &Args,
    (source, mountpoint): (&Source, &Path),
    options: &Options,
    is_log_json: bool,
) -> anyhow::Result<()> {
    let log_path = options.log.clone().unwrap_or_else(|| default_log(mountpoint));
    if let Some(folder) = log_path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    }
    let log = match &options.log {
        Some(named) => log_named(named),
        None => log_own(&log_path),
    };
    let log = log.with_context(|| format!("cannot open log {}", log_path.display()))?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["mount", "--daemon"]).arg(source.to_string()).arg(mountpoint);
    command.args(args.options.iter().flat_map(|list| ["-o", list]));
    if is_log_json {
        command.arg("--log-json");
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().context("cannot start the mount's daemon")?;
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut said)?;
    }
    if let Some(warnings) = said.trim().strip_suffix(READY) {
        warn_of_spooled(options, source, mountpoint);
        for why in warnings.lines() {
            eprintln!("tieline: warning: {why}");
        }
        return Ok(());
    }
    // It said why not, and is about to end.
    let _ = child.wait();
    match said.trim() {
        "" => Err(anyhow!("the mount's daemon ended: see {}", log_path.display())),
        why => Err(anyhow!("{why}")),
    }
}

/// Where there may be a directory that somebody else made for it.
fn log_own(path: &Path) -> anyhow::Result<File> {
    let (at, name) = Directory::of(path)?;
    let found = at.held().metadata()?;
    if !is_ours(found.uid()) || found.mode() & 0o002 != 0 {
        let shown = at.shown().display();
        bail!("{shown} is not ours alone: chmod o-w it, or mount with -o log=FILE");
    }
    Ok(at.log(&name)?)
}

/// As it was named: also what is a link or no file, such as /dev/stderr; but no link of somebody
/// else, and no pipe that nobody reads.
fn log_named(path: &Path) -> anyhow::Result<File> {
    let (at, name) = Directory::of(path)?;
    let Some(there) = at.look(&name)? else { return Ok(at.log(&name)?) };
    let found = there.metadata()?;
    match found.file_type() {
        kind if kind.is_file() => Ok(at.log(&name)?),
        kind if kind.is_symlink() && !is_ours(found.uid()) => {
            bail!("it is a link of uid {}: name what is meant", found.uid())
        }
        _ => {
            let mut options = File::options();
            let flags = OFlags::NONBLOCK.bits() as i32;
            let file = options.append(true).custom_flags(flags).open(path)?;
            // Of what is opened whoever writes waits for its reader, as ever.
            fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
            Ok(file)
        }
    }
}

/// An earlier mount there could not store everything.
fn warn_of_spooled(options: &Options, source: &Source, mountpoint: &Path) {
    let Some(place) = &options.spool else { return };
    let directory = spool::own_directory(place, source.fs.as_str(), mountpoint);
    let count = spool::entry::all_at(&directory).len();
    if count > 0 {
        let (directory, shown) = (directory.display(), mountpoint.display());
        eprintln!(
            "tieline: warning: {count} files of an earlier mount at {shown} could not be stored: \
             `tieline spool list {directory}` names them, `tieline spool put` brings them back"
        );
    }
}

/// `/var/log/tieline/mount-extenci.log`, or in the user's state directory; who has none has a
/// directory among everybody's temporary ones, where [`Directory::log`] goes through no link.
fn default_log(mountpoint: &Path) -> PathBuf {
    let name = mountpoint.to_string_lossy().trim_matches('/').replace('/', "-");
    let file = format!("mount-{name}.log");
    if rustix::process::geteuid().is_root() {
        return Path::new("/var/log/tieline").join(file);
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| std::env::home_dir().map(|home| home.join(".local/state")));
    match state {
        Some(state) => state.join("tieline").join(file),
        None => {
            let own = format!("tieline-{}", rustix::process::geteuid().as_raw());
            std::env::temp_dir().join(own).join(file)
        }
    }
}

/// `tieline umount`. All are taken out of the tree before any is waited for, and all of them are
/// waited for at once: one whose servers are away costs the others nothing.
pub fn umount(args: &UmountArgs) -> anyhow::Result<()> {
    let taken: Vec<_> = args.mountpoints.iter().map(|path| take_out(path, args)).collect();
    let outcomes: Vec<anyhow::Result<()>> = std::thread::scope(|scope| {
        let waiting: Vec<_> = taken
            .into_iter()
            .map(|taken| {
                scope.spawn(move || taken?.map_or(Ok(()), |entry| wait_for_end(&entry, args)))
            })
            .collect();
        let ended = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("waiting for a mount's end failed")))
        };
        waiting.into_iter().map(ended).collect()
    });
    let mut wrongs = outcomes.into_iter().filter_map(Result::err);
    let last = wrongs.next_back();
    for wrong in wrongs {
        eprintln!("tieline: {}", tieline_base::report::chain(wrong.as_ref()));
    }
    last.map_or(Ok(()), Err)
}

/// Takes a mount out of the tree; gives back the one whose end is to be waited for.
fn take_out(path: &Path, args: &UmountArgs) -> anyhow::Result<Option<registry::Entry>> {
    let mountpoint = table::mountpoint(path);
    let entry = registry::at(&mountpoint);
    let shown = mountpoint.display();
    if !table::is_mounted(&mountpoint) && entry.is_none() {
        bail!("nothing is mounted at {shown}");
    }
    if table::is_mounted(&mountpoint) {
        if args.lazy {
            table::detach(&mountpoint)?;
        } else {
            table::unmount(&mountpoint)
                .with_context(|| format!("{shown} may be in use: see `fuser -m {shown}`"))?;
        }
    }
    // A detached mount ends when its last user leaves, and one of another mount namespace goes on
    // there: nobody should have to wait for that.
    Ok(entry.filter(|entry| !args.lazy && entry.is_own()))
}

/// Waits until a mount that is not in the tree any more has sent everything, or cannot.
fn wait_for_end(entry: &registry::Entry, args: &UmountArgs) -> anyhow::Result<()> {
    let (shown, pid) = (entry.mountpoint.display(), entry.process.pid);
    let begun = Instant::now();
    let (mut moved, mut spoken, mut last) = (begun, begun, None);
    let is_short = entry.wait.is_some_and(|wait| Duration::from_secs(wait) <= WAITED_OUT);
    while !entry.process.wait_end(LOOK_AGAIN) {
        let left = registry::again(entry).and_then(|entry| entry.ending);
        if left != last {
            (moved, last) = (Instant::now(), left);
        }
        let Some(left) = last.as_ref().filter(|left| left.files + left.changes > 0) else {
            if begun.elapsed() > DRAIN_PATIENCE {
                bail!("{shown} is unmounted, but its daemon (pid {pid}) does not end");
            }
            continue;
        };
        let is_stuck = !left.away.is_empty() && moved.elapsed() > STUCK_AFTER;
        if is_stuck && args.force {
            eprintln!("{shown}: {left}: dropped");
            drop_left(entry)?;
            return tell_spooled(entry);
        }
        if is_stuck && !args.wait && !is_short {
            tell_waiting(entry);
            bail!(
                "{shown} is unmounted, but {left}. Its daemon (pid {pid}) sends them when it can, \
                 for as long as `-o wait` says; `tieline umount --wait {shown}` waits for it, \
                 --force drops them"
            );
        }
        if !args.wait && begun.elapsed() > DRAIN_PATIENCE {
            bail!("{shown} is unmounted, but {left}: its daemon (pid {pid}) goes on");
        }
        if spoken.elapsed() > TELL_EVERY {
            eprintln!("{shown}: {left}");
            spoken = Instant::now();
        }
    }
    tell_spooled(entry)
}

/// Names what is not stored yet, and where a copy of its bytes is.
fn tell_waiting(entry: &registry::Entry) {
    let Some(directory) = &entry.spool else { return };
    let kept = spool::unnamed(directory);
    name_some(directory, &kept, |entry| {
        let (manifest, at) = (&entry.manifest, entry.shown());
        let (shown, bytes) = (manifest.shown(), ByteSize(manifest.bytes()));
        format!("{shown}: {bytes} are not stored yet; a copy is in {}", at.display())
    });
}

fn name_some(directory: &Path, entries: &[Entry], line: impl Fn(&Entry) -> String) {
    entries.iter().take(NAMED_MAX).for_each(|entry| eprintln!("{}", line(entry)));
    if let Some(more) = entries.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        eprintln!("and {more} more: `tieline spool list {}` names them", directory.display());
    }
}

/// Names what could not be stored in the life of a mount, and where its bytes are. An error if
/// there is such.
fn tell_spooled(entry: &registry::Entry) -> anyhow::Result<()> {
    let Some(directory) = &entry.spool else { return Ok(()) };
    let spooled = spool::unnamed(directory);
    if spooled.is_empty() {
        return Ok(());
    }
    name_some(directory, &spooled, |entry| {
        let (manifest, at) = (&entry.manifest, entry.shown());
        let (shown, bytes, why) = (manifest.shown(), ByteSize(manifest.bytes()), &manifest.why);
        format!("{shown}: {bytes} could not be stored ({why}), and are in {}", at.display())
    });
    spool::mark_named(directory, &spooled)?;
    let (count, shown) = (spooled.len(), entry.mountpoint.display());
    let files = if count == 1 { "file" } else { "files" };
    bail!(
        "{shown} is unmounted, and {count} {files} could not be stored: when the cause is mended, \
         mount again and run `tieline spool put --all`"
    )
}

/// Ends a mount that has something to send still.
fn drop_left(entry: &registry::Entry) -> anyhow::Result<()> {
    let daemon = registry::again(entry).and_then(|entry| entry.daemon).unwrap_or(entry.process);
    daemon.signal(Signal::QUIT);
    if !entry.process.wait_end(DROP_PATIENCE) {
        entry.process.kill_whole();
    }
    Ok(())
}
