//! The process that holds a mount while its daemon may die.
//!
//! It starts the daemon, keeps a copy of every descriptor of /dev/fuse and the memory in which the
//! daemon puts down what it owes ([`tieline_keep`]), and does nothing else: a daemon that dies
//! before it has said that it is over is followed by another, which goes on with both. A daemon
//! that gives no sign of life for long is killed, and followed too.
//!
//! If the holder itself dies, the daemon starts another one, which is given everything by it.
//!
//! Daemons that die one soon after the other are followed ever more slowly ([`deaths`]).
//!
//! One thread, no runtime. SIGTERM and SIGINT are for the daemon: it unmounts. SIGHUP starts the
//! daemon anew, as the program on disk is now.
//!
//! Invariants: as long as a mount is in the tree, or anything that was written through it waits, a
//! daemon runs or is about to; when a daemon is over, so is its holder.

use crate::held::{self, Gift};
use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tieline_base::registry;
use tieline_keep::{Keep, Stage};
use tieline_machine::process::ProcessId;
use tieline_machine::table;

mod deaths;

use deaths::Deaths;

/// Room for what daemons put down; only what is used takes memory. Written bytes are at most 256
/// MiB, and take twice their size at worst.
const MEMORY_MAX: usize = 1 << 30;
/// A daemon could not even be started: memory is short, or the program is being replaced.
const START_AGAIN: Duration = Duration::from_secs(1);
/// This very program, also when its file was replaced or removed.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Looks for a sign of life within the time of the watchdog.
const LOOKS: u32 = 4;

/// How often it is looked whether a daemon was killed of which threads stay behind in the kernel.
const TICK: Duration = Duration::from_secs(1);
/// An ordinary end is over by then, on a busy machine, too.
const END_MAX: Duration = Duration::from_secs(5);

/// What to hold.
pub struct Task {
    pub mountpoint: PathBuf,
    /// Without a sign of life for so long a daemon is killed. `None`: never.
    pub watchdog: Option<Duration>,
    pub is_log_json: bool,
    /// Somebody waits at our standard output.
    pub is_daemon: bool,
}

/// A daemon that runs.
struct Running {
    pidfd: OwnedFd,
    pid: u32,
    /// `None`: somebody else's child.
    child: Option<Child>,
    socket: OwnedFd,
    since: Instant,
    /// The watchdog killed it.
    has_hung: bool,
}

struct Holder {
    task: Task,
    program: PathBuf,
    arguments: Vec<OsString>,
    signals: OwnedFd,
    keep: Keep,
    /// Of /dev/fuse, and what was agreed with the kernel.
    mount: Option<Gift>,
    is_ending: bool,
    /// Daemons that were killed and have not ended: threads of theirs wait in the kernel for what
    /// only the next one can answer.
    lingering: Vec<Child>,
}

/// What woke the holder.
#[derive(Default)]
struct Woken {
    has_ended: bool,
    has_message: bool,
    has_signal: bool,
}

/// Starts a daemon, and lives as long as it and those that follow it.
pub fn run(task: Task) -> anyhow::Result<()> {
    tieline_telemetry::log::start(task.is_log_json);
    if task.is_daemon {
        // Away from the terminal of whoever mounts.
        let _ = rustix::process::setsid();
    }
    let keep = Keep::create(MEMORY_MAX)?;
    Holder::new(task, keep)?.live(None)
}

/// Takes over from a holder that died: the daemon sends everything through the socket.
pub fn run_again(task: Task, socket: i32) -> anyhow::Result<()> {
    tieline_telemetry::log::start(task.is_log_json);
    let socket = held::take_descriptor(socket)?;
    let (gift, memory) = held::receive_all(&socket).context("the daemon gives nothing")?;
    let mut holder = Holder::new(task, Keep::watch(memory)?)?;
    let pid = u32::try_from(gift.pid).context("the daemon's pid")?;
    let pidfd = open_pidfd(pid)?;
    holder.mount = Some(gift);
    tracing::info!(daemon = pid, "holds the mount in place of one that died");
    let (child, since) = (None, Instant::now());
    holder.live(Some(Running { pidfd, pid, child, socket, since, has_hung: false }))
}

impl Holder {
    fn new(task: Task, keep: Keep) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        Ok(Self {
            task,
            program: without_mark(program),
            arguments: held::own_arguments(),
            signals: signals().context("cannot listen to signals")?,
            keep,
            mount: None,
            is_ending: false,
            lingering: Vec::new(),
        })
    }

    fn live(mut self, running: Option<Running>) -> anyhow::Result<()> {
        let mut deaths = Deaths::default();
        let mut next = running;
        loop {
            let mut daemon = match next.take() {
                Some(daemon) => daemon,
                None => self.start_surely()?,
            };
            let how = self.watch(&mut daemon)?;
            let code = how.and_then(|how| how.code());
            match self.keep.stage() {
                Stage::Serving => {}
                Stage::Starting => self.not_started(code),
                Stage::Over => std::process::exit(code.unwrap_or(0)),
            }
            self.keep.set_crashed(deaths::is_crash(how) || daemon.has_hung);
            let pause = deaths.add(how, daemon.since.elapsed());
            let (pid, how) = (daemon.pid, deaths::told(how));
            tracing::warn!(daemon = pid, how, "the mount's daemon died: another one goes on");
            if deaths.is_loop() {
                self.tell_loop(deaths.crashed, pause);
            }
            self.rest(pause);
        }
    }

    /// It has said why, where it was to; if it had time for that.
    fn not_started(&self, code: Option<i32>) -> ! {
        if self.mount.is_some() && table::is_mounted(&self.task.mountpoint) {
            let _ = table::detach(&self.task.mountpoint);
        }
        std::process::exit(code.filter(|&code| code != 0).unwrap_or(1))
    }

    /// What is to be done when daemons crash one after the other.
    fn tell_loop(&self, crashes: u32, pause: Duration) {
        let mountpoint = self.task.mountpoint.display();
        tracing::error!(
            crashes,
            ?pause,
            "the mount's daemon crashes again and again, see above; after an upgrade: `tieline \
             mount --restart {mountpoint}`; to give up what is not at servers: `tieline umount \
             --lazy {mountpoint}` and kill -9 {} (this holder)",
            std::process::id()
        );
    }

    /// Waits, unless a signal says otherwise.
    fn rest(&mut self, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        let mut signals = [PollFd::new(&self.signals, PollFlags::IN)];
        // Its end is all the same to us.
        let _ = rustix::event::poll(&mut signals, Some(&timespec(pause)));
        if let Some(libc::SIGTERM | libc::SIGINT) = read_signal(&self.signals) {
            self.is_ending = true;
        }
    }

    /// A mount that is in use is not left alone because no process can be made for now.
    fn start_surely(&mut self) -> anyhow::Result<Running> {
        loop {
            match self.start() {
                Err(error) if self.mount.is_some() => {
                    let error = tieline_base::report::chain(error.as_ref());
                    tracing::error!(error, "no daemon can be started for the mount: trying again");
                    self.rest(START_AGAIN);
                }
                outcome => return outcome,
            }
        }
    }

    fn start(&self) -> anyhow::Result<Running> {
        let (ours, theirs) = held::pair()?;
        let spawn = |program: &Path| {
            let mut command = Command::new(program);
            command.args(&self.arguments).arg("--held").arg(theirs.as_raw_fd().to_string());
            command.stdin(Stdio::null());
            if self.mount.is_some() {
                command.stdout(Stdio::null());
            }
            command.spawn()
        };
        let child = match spawn(&self.program) {
            Err(error) if self.mount.is_some() => {
                let program = self.program.display();
                tracing::warn!(%error, "{program} cannot be started: the running program is");
                spawn(Path::new(OWN_PROGRAM))
            }
            outcome => outcome,
        };
        let child = child.context("cannot start the mount's daemon")?;
        drop(theirs);
        held::give(&ours, &self.keep, self.mount.as_ref())?;
        let pid = child.id();
        let pidfd = open_pidfd(pid)?;
        let (child, since) = (Some(child), Instant::now());
        Ok(Running { pidfd, pid, child, socket: ours, since, has_hung: false })
    }

    /// Until the daemon has ended, or nothing of its program runs any more. Says how it ended, if
    /// it was our child.
    fn watch(&mut self, daemon: &mut Running) -> anyhow::Result<Option<ExitStatus>> {
        let (mut beats, mut silent) = (self.keep.beats(), 0);
        let (mut waited, mut dead_since) = (Duration::ZERO, None);
        if self.is_ending {
            signal(daemon, Signal::TERM);
        }
        loop {
            let look = self.task.watchdog.map(|watchdog| watchdog / LOOKS);
            let listens = self.mount.is_none();
            let tick = look.map_or(TICK, |look| look.min(TICK));
            let woken = wait(&daemon.pidfd, &self.signals, &daemon.socket, listens, tick)?;
            if woken.has_message
                && let Ok(gift) = held::receive_mount(&daemon.socket)
            {
                self.mount = Some(gift);
                if self.task.is_daemon {
                    // What it says there is for whoever started us.
                    held::close_stdout()?;
                }
            }
            if woken.has_ended {
                return Ok(daemon.child.as_mut().and_then(|child| child.wait().ok()));
            }
            if woken.has_signal {
                self.signalled(daemon);
            }
            if woken.has_message || woken.has_signal {
                continue;
            }
            self.lingering.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
            if !is_dead_inside(daemon.pid) {
                dead_since = None;
            } else if dead_since.get_or_insert_with(Instant::now).elapsed() >= END_MAX {
                tracing::warn!(daemon = daemon.pid, "threads of the mount's daemon stay behind");
                self.lingering.extend(daemon.child.take());
                return Ok(None);
            }
            waited += tick;
            let now = self.keep.beats();
            let is_look = look.is_some_and(|look| waited >= look);
            if is_look {
                waited = Duration::ZERO;
            }
            silent = if now != beats { 0 } else { silent + u32::from(is_look) };
            beats = now;
            if look.is_some() && silent > LOOKS {
                tracing::error!(daemon = daemon.pid, "the mount's daemon stands still: killing it");
                daemon.has_hung = true;
                signal(daemon, Signal::KILL);
                silent = 0;
            }
        }
    }

    fn signalled(&mut self, daemon: &Running) {
        match read_signal(&self.signals) {
            Some(libc::SIGHUP) => {
                tracing::info!(daemon = daemon.pid, "starting the mount's daemon anew");
                signal(daemon, Signal::KILL);
            }
            Some(_) => {
                self.is_ending = true;
                signal(daemon, Signal::TERM);
            }
            None => {}
        }
    }
}

fn signal(daemon: &Running, signal: Signal) {
    // It may have ended just now.
    let _ = rustix::process::pidfd_send_signal(&daemon.pidfd, signal);
}

fn open_pidfd(pid: u32) -> anyhow::Result<OwnedFd> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a pid is not 0")?;
    Ok(rustix::process::pidfd_open(raw, PidfdFlags::empty())?)
}

/// Has its main thread ended while others have not? Nothing of the program runs then: they are in
/// the kernel, and end as soon as they come back from there.
fn is_dead_inside(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    let after_name = stat.ok().and_then(|stat| stat.rsplit_once(") ").map(|it| it.1.to_owned()));
    after_name.is_some_and(|rest| rest.starts_with('Z'))
}

fn wait(
    daemon: &OwnedFd,
    signals: &OwnedFd,
    socket: &OwnedFd,
    listens: bool,
    tick: Duration,
) -> anyhow::Result<Woken> {
    let mut all = vec![PollFd::new(daemon, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
    if listens {
        all.push(PollFd::new(socket, PollFlags::IN));
    }
    match rustix::event::poll(&mut all, Some(&timespec(tick))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error).context("cannot wait for the mount's daemon"),
    }
    let is_ready = |place: usize| all.get(place).is_some_and(|one| !one.revents().is_empty());
    Ok(Woken { has_ended: is_ready(0), has_signal: is_ready(1), has_message: is_ready(2) })
}

fn timespec(span: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(span.subsec_nanos()),
    }
}

/// Signals that come as messages from now on.
fn signals() -> std::io::Result<OwnedFd> {
    // SAFETY: the set is initialised by the first call before it is used, and lives in this frame;
    // the descriptor that is returned belongs to nobody else.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let descriptor = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

fn read_signal(from: &OwnedFd) -> Option<i32> {
    let mut message = [0u8; 128];
    let length = rustix::io::read(from, &mut message).ok()?;
    let number = message.get(..length)?.first_chunk()?;
    i32::try_from(u32::from_ne_bytes(*number)).ok()
}

/// A program that was replaced while it ran is called so; what is there now is to be started.
fn without_mark(program: PathBuf) -> PathBuf {
    let text = program.to_string_lossy();
    match text.strip_suffix(" (deleted)") {
        Some(plain) => PathBuf::from(plain),
        None => program,
    }
}

/// `tieline mount --restart`: has the daemon of a mount started anew, and waits until it serves.
pub fn restart(mountpoint: &std::path::Path) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let shown = mountpoint.display();
    let entry = registry::at(mountpoint).with_context(|| format!("no mount at {shown}"))?;
    let before = entry.daemon.filter(|daemon| *daemon != entry.process);
    let before = before.ok_or_else(|| anyhow!("the mount at {shown} has no holder"))?;
    entry.process.signal(Signal::HUP);
    let deadline = Instant::now() + PATIENCE;
    let is_new = |daemon: ProcessId| daemon != before && daemon.is_alive();
    while !registry::at(mountpoint).and_then(|entry| entry.daemon).is_some_and(is_new) {
        if Instant::now() >= deadline {
            return Err(anyhow!("the mount at {shown} is not served again: see its log"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
