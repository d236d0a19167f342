//! Programs that tests run: each in a process group of its own, with a deadline, its output kept.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Seek};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Generous: tests share two cores with others, and a deadline is only there to end a hang.
pub const DEADLINE: Duration = Duration::from_secs(120);

const PORTS: Range<u16> = 9_000..10_000;

/// How often a wait looks again.
const PERIOD: Duration = Duration::from_millis(10);

/// What a program said and how it ended.
#[derive(Debug)]
pub struct Run {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// The program under test, built if it has to be.
pub fn tieline() -> Result<&'static Path> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| find().map_err(|error| format!("{error:#}")));
    program.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// `TIELINE_BIN`, or what cargo builds beside this test.
fn find() -> Result<PathBuf> {
    if let Some(program) = std::env::var_os("TIELINE_BIN") {
        return Ok(program.into());
    }
    // TARGET/PROFILE/deps/TEST
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("a test lies in TARGET/PROFILE/deps")?;
    let target = profile.parent().context("a profile lies in TARGET")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "tieline", "--target-dir"]).arg(target);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.status().context("cannot start cargo")?;
    if !status.success() {
        bail!("`cargo build --package tieline` failed");
    }
    Ok(profile.join("tieline"))
}

/// A port of this machine's own that nobody listens at now. Neither another test nor `tieline dev
/// up` nor a KDC takes it meanwhile, nor the kernel for an outgoing connection.
pub fn free_port() -> Result<u16> {
    let noise = std::hash::RandomState::new().build_hasher().finish();
    let mut ports = (0..PORTS.len() as u64)
        .map(|step| PORTS.start + (noise.wrapping_add(step) % PORTS.len() as u64) as u16);
    let is_free = |&port: &u16| {
        reserve(port).is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
    };
    ports.find(is_free).context("no port is free")
}

/// Keeps a port from other tests as long as this process lives, which an abstract socket does not
/// outlive.
fn reserve(port: u16) -> std::io::Result<()> {
    let address = SocketAddr::from_abstract_name(format!("tieline lab port {port}"))?;
    UnixListener::bind_addr(&address).map(std::mem::forget)
}

/// Runs `command` to its end, or to the deadline.
pub fn finish(command: &mut Command, deadline: Duration) -> Result<Run> {
    // Files and not pipes: a program that leaves a daemon behind does not keep us waiting.
    let mut stdout = tempfile::tempfile()?;
    let mut stderr = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let mut child = start(command)?;
    let status = wait(&mut child, deadline).with_context(|| format!("{command:?}"));
    let said = |file: &mut std::fs::File| -> Result<String> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (stdout, stderr) = (said(&mut stdout)?, said(&mut stderr)?);
    match status {
        Ok(status) => Ok(Run { status, stdout, stderr }),
        Err(error) => bail!("{error:#}\n{stdout}{stderr}"),
    }
}

/// Starts `command` in a process group of its own.
pub fn start(command: &mut Command) -> Result<Child> {
    command.process_group(0).spawn().with_context(|| format!("cannot start {command:?}"))
}

/// Waits for a child; kills its group if it takes too long.
pub fn wait(child: &mut Child, deadline: Duration) -> Result<ExitStatus> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= end {
            kill_group(child);
            // A process in an uninterruptible wait would never be reaped: do not wait for it.
            std::thread::sleep(PERIOD);
            let _ = child.try_wait();
            bail!("still running after {deadline:?}");
        }
        std::thread::sleep(PERIOD);
    }
}

/// Kills a child's whole group.
pub fn kill_group(child: &Child) {
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Does a process run? One that ended and was not yet taken note of by its parent does not.
pub fn is_running(pid: i64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state stands behind the name, which is in parentheses and may hold any bytes.
    let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Waits until `is_so`, or says what it waited for.
pub fn until(what: &str, deadline: Duration, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + deadline;
    while !is_so() {
        if Instant::now() >= end {
            bail!("waited {deadline:?} for this and it did not come: {what}");
        }
        std::thread::sleep(PERIOD);
    }
    Ok(())
}

/// Runs a shell script in `folder`; it must succeed. What it printed.
pub fn shell(folder: &Path, script: &str) -> Result<String> {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(folder);
    finish(&mut command, DEADLINE)?.succeed(script)
}

/// Runs a program; it must succeed. What it printed.
pub fn call(program: impl AsRef<OsStr>, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
    let mut command = Command::new(program);
    finish(command.args(arguments), DEADLINE)?.succeed(&format!("{command:?}"))
}

impl Run {
    /// What it printed, if it succeeded.
    pub fn succeed(self, what: &str) -> Result<String> {
        if !self.status.success() {
            bail!("{what}: {}\n{}{}", self.status, self.stdout, self.stderr);
        }
        Ok(self.stdout)
    }
}
