//! One federation on this machine, for one test.

use crate::program::{self, DEADLINE, Run};
use crate::{times, tree};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What kind of federation a test wants.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// More arguments of `tieline dev up`.
    pub arguments: Vec<String>,
    /// A mount elsewhere than in the federation's own folder.
    pub mount: Option<PathBuf>,
    /// Others may come through to the federation's folder: then root's servers do not run as root.
    pub is_open: bool,
}

impl Plan {
    /// With these words for `dev up`.
    pub fn of(words: &[&str]) -> Self {
        Self { arguments: words.iter().map(|word| (*word).to_owned()).collect(), ..Self::default() }
    }

    /// With a KDC. The servers believe this machine about its users: tests run as all of them.
    pub fn proven(words: &[&str]) -> Self {
        // Under flavor null there is no realm, and nobody else but the machine to believe.
        let believed: &[&str] = if words.contains(&"null") { &[] } else { &["--machine", "all"] };
        Self::of(&[words, believed].concat())
    }
}

/// A running federation. Dropped, it is taken down, whatever happened.
pub struct Federation {
    /// Holds the federation's folder, its mounts and what the test puts beside them.
    folder: tempfile::TempDir,
    mount: PathBuf,
    mounts_more: Mutex<Vec<PathBuf>>,
    /// Parts of log lines that this test provokes.
    expected: Mutex<Vec<String>>,
    is_down: Mutex<bool>,
}

/// Runs a test on a federation of two sites, `uf` and `fnal`, and looks at what it left behind.
pub fn with_federation(test: impl FnOnce(&Federation) -> Result<()>) -> Result<()> {
    with_plan(&Plan::default(), test)
}

/// The same with another plan.
pub fn with_plan(plan: &Plan, test: impl FnOnce(&Federation) -> Result<()>) -> Result<()> {
    if !crate::can_mount() {
        return Ok(());
    }
    let begun = Instant::now();
    let federation = Federation::start(plan)?;
    let watchdog = Watchdog::start(&federation);
    let outcome = test(&federation);
    drop(watchdog);
    if outcome.is_err() {
        eprintln!("{}", federation.logs().unwrap_or_default());
    }
    let pids = federation.status().and_then(|all| pids(&all)).unwrap_or_default();
    let busy = times::busy(&pids);
    let outcome = outcome.and_then(|()| federation.finish());
    times::note(begun.elapsed(), busy);
    outcome
}

/// Ends a test that hangs inside the kernel: with the mount's process gone, every call returns.
struct Watchdog {
    /// Dropped with the watchdog, which ends the thread.
    _stop: std::sync::mpsc::Sender<()>,
}

impl Watchdog {
    /// Far beyond what any test needs.
    const PATIENCE: Duration = Duration::from_secs(300);

    fn start(federation: &Federation) -> Self {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let dir = federation.dir();
        std::thread::spawn(move || {
            use std::sync::mpsc::RecvTimeoutError;
            if stopped.recv_timeout(Self::PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the test hangs: killing its federation");
                // Looked up now: mounts come while a test runs.
                kill_all(&status(&dir).and_then(|all| pids(&all)).unwrap_or_default());
            }
        });
        Self { _stop: stop }
    }
}

impl Federation {
    pub fn start(plan: &Plan) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("tieline-lab-").tempdir()?;
        if plan.is_open {
            let passable = std::os::unix::fs::PermissionsExt::from_mode(0o711);
            std::fs::set_permissions(folder.path(), passable)?;
        }
        let mount = plan.mount.clone().unwrap_or_else(|| folder.path().join("mount"));
        std::fs::create_dir_all(&mount)?;
        let federation = Self {
            folder,
            mount,
            mounts_more: Mutex::default(),
            expected: Mutex::default(),
            is_down: Mutex::new(false),
        };
        let mut command = Command::new(program::tieline()?);
        command.args(["dev", "up", "--dir"]).arg(federation.dir());
        command.arg("--mount").arg(&federation.mount).args(&plan.arguments);
        program::finish(&mut command, DEADLINE)?
            .succeed("tieline dev up")
            .with_context(|| federation.logs().unwrap_or_default())?;
        Ok(federation)
    }

    /// Where `dev` keeps the federation.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("federation")
    }

    /// Where the file system appears.
    pub fn mount(&self) -> &Path {
        &self.mount
    }

    /// A place beside the federation for what a test needs on a local disk.
    pub fn local(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Another client on this machine, with caches of its own.
    pub fn mount_again(&self) -> Result<PathBuf> {
        self.mount_within(&[])
    }

    /// Another client whose wall clock is wrong by `ahead`, such as `+2h` or `-30s`.
    pub fn mount_by_clock(&self, ahead: &str) -> Result<PathBuf> {
        // Only that clock: waits are to be as long as they are.
        self.mount_within(&[
            ("LD_PRELOAD", crate::FAKETIME),
            ("FAKETIME", ahead),
            ("DONT_FAKE_MONOTONIC", "1"),
            ("NO_FAKE_STAT", "1"),
        ])
    }

    /// The same, by what the file says at each look.
    pub fn mount_by_clock_of(&self, file: &Path) -> Result<PathBuf> {
        self.mount_within(&[
            ("LD_PRELOAD", crate::FAKETIME),
            ("FAKETIME_TIMESTAMP_FILE", &file.to_string_lossy()),
            ("FAKETIME_NO_CACHE", "1"),
            ("DONT_FAKE_MONOTONIC", "1"),
            ("NO_FAKE_STAT", "1"),
        ])
    }

    /// A client that was taken away comes back to its place, with what it kept there.
    pub fn mount_back(&self, mount: &Path) -> Result<()> {
        self.bring(mount, &[])
    }

    /// Another client, in this environment.
    fn mount_within(&self, environment: &[(&str, &str)]) -> Result<PathBuf> {
        let mut mounts = self.mounts_more.lock().expect("no test panics with this lock");
        let mount = self.folder.path().join(format!("mount-{}", mounts.len() + 1));
        std::fs::create_dir_all(&mount)?;
        self.bring(&mount, environment)?;
        mounts.push(mount.clone());
        Ok(mount)
    }

    fn bring(&self, mount: &Path, environment: &[(&str, &str)]) -> Result<()> {
        let mut command = Command::new(program::tieline()?);
        command.args(["dev", "mount"]).arg(mount).arg("--dir").arg(self.dir());
        command.envs(environment.iter().copied());
        program::finish(&mut command, DEADLINE)?.succeed("tieline dev mount").map(drop)
    }

    /// A mount of its own with these options, which `dev` does not know; its log is returned.
    pub fn with_mount(
        &self,
        options: &str,
        test: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<String> {
        let (mount, log) = (self.local("own"), self.local("own.log"));
        std::fs::create_dir_all(&mount)?;
        let (status, path) = (self.status()?, mount.to_string_lossy());
        let source = status["source"].as_str().context("a source")?;
        let options = format!("{options},log={}", log.display());
        self.tieline(&["mount", source, &path, "-o", &options])?;
        let outcome = test(&mount);
        if outcome.is_err() {
            eprintln!("{}", std::fs::read_to_string(&log)?);
        }
        self.umount(&mount)?;
        outcome?;
        Ok(std::fs::read_to_string(&log)?)
    }

    /// `tieline umount`, which must succeed, though not at once.
    ///
    /// The kernel may still be letting go of what a program had open that has just ended; and what
    /// the test itself opened is also its children's, and those of other tests beside it, for the
    /// moment between their fork and their exec.
    pub fn umount(&self, mount: &Path) -> Result<()> {
        let is_unmounted = || self.tieline(&["umount".as_ref(), mount.as_os_str()]).is_ok();
        program::until("it is unmounted", Duration::from_secs(10), is_unmounted)
    }

    /// Takes a client away that [`Federation::mount_again`] brought.
    pub fn unmount(&self, mount: &Path) -> Result<()> {
        let is_unmounted = || program::call("umount", &[mount]).is_ok();
        program::until("it is unmounted", Duration::from_secs(10), is_unmounted)
    }

    /// Runs `tieline` with these arguments; it must succeed. What it printed.
    pub fn tieline(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        self.try_tieline(arguments)?.succeed("tieline")
    }

    /// The same, however it ends.
    pub fn try_tieline(&self, arguments: &[impl AsRef<OsStr>]) -> Result<Run> {
        program::finish(Command::new(program::tieline()?).args(arguments), DEADLINE)
    }

    /// A command of `tieline` that prints JSON.
    pub fn json(&self, arguments: &[impl AsRef<OsStr>]) -> Result<Value> {
        let arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
        let said = self.tieline(&[&arguments[..], &[OsStr::new("--json")]].concat())?;
        serde_json::from_str(&said).with_context(|| format!("not JSON: {said}"))
    }

    /// A shell script run inside the mount; it must succeed. What it printed.
    pub fn shell(&self, script: &str) -> Result<String> {
        program::shell(&self.mount, script)
    }

    /// `dev status`.
    pub fn status(&self) -> Result<Value> {
        status(&self.dir())
    }

    /// The process with that name, as `dev status` tells it.
    pub fn process(&self, name: &str) -> Result<Value> {
        let status = self.status()?;
        status["processes"]
            .as_array()
            .and_then(|all| all.iter().find(|process| process["name"] == name))
            .cloned()
            .with_context(|| format!("no process {name} in {status:#}"))
    }

    /// What a process says of a metric, all its labels together that have `label` in them.
    pub fn counted(&self, process: &Value, metric: &str, label: &str) -> Result<u64> {
        let admin = process["admin"].as_str().context("an admin address")?;
        let asked = format!("http://{admin}/metrics");
        let mut command = match process["netns"].as_str() {
            Some(netns) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={netns}")).arg("curl");
                command
            }
            None => Command::new("curl"),
        };
        command.args(["--silent", "--fail"]).arg(asked);
        let said = program::finish(&mut command, DEADLINE)?.succeed("curl")?;
        let of_metric = |line: &&str| {
            let rest = line.strip_prefix(metric);
            rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
        };
        let values = said.lines().filter(of_metric).map(|line| {
            line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok()).context("a count")
        });
        values.sum()
    }

    /// Sends a signal to one of the federation's processes.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<()> {
        let pid = self.process(name)?["pid"].as_i64().context("a process has a pid")?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("a pid is not 0")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Kills a client whole, its holder with its daemon: as if its machine died.
    pub fn kill_client(&self, name: &str) -> Result<()> {
        let pid = self.process(name)?["pid"].as_i64().context("a process has a pid")?;
        let group = Pid::from_raw(i32::try_from(pid)?).context("a pid is not 0")?;
        kill_process_group(group, Signal::KILL)?;
        program::until("the client is gone", DEADLINE, || !program::is_running(pid))
    }

    /// The daemon that serves a mount now.
    pub fn daemon(&self, name: &str) -> Result<Pid> {
        let pid = self.process(name)?["daemon"].as_i64().context("a mount has a daemon")?;
        Pid::from_raw(i32::try_from(pid)?).context("a pid is not 0")
    }

    /// `kill -9`, and start again.
    pub fn kill_and_restart(&self, name: &str) -> Result<()> {
        let dir = self.dir();
        let arguments = ["dev", "kill", name, "--restart", "--dir"].map(OsStr::new);
        self.tieline(&[&arguments[..], &[dir.as_os_str()]].concat())?;
        Ok(())
    }

    /// This test provokes log lines with `part` in them.
    pub fn expect_log(&self, part: &str) {
        self.expected.lock().expect("no test panics with this lock").push(part.to_owned());
    }

    /// Takes it down.
    pub fn down(&self) -> Result<()> {
        let mut is_down = self.is_down.lock().expect("no test panics with this lock");
        if *is_down {
            return Ok(());
        }
        *is_down = true;
        let mut command = Command::new(program::tieline()?);
        command.args(["dev", "down", "--dir"]).arg(self.dir());
        program::finish(&mut command, DEADLINE)?.succeed("tieline dev down")?;
        Ok(())
    }

    /// Takes it down and judges what it leaves.
    fn finish(self) -> Result<()> {
        // `dev down` may take the folder and the logs with it, so they are read first.
        let logs = self.logs()?;
        let pids = self.status().and_then(|all| pids(&all)).unwrap_or_default();
        self.down()?;
        let expected = self.expected.lock().expect("no test panics with this lock").clone();
        let surprises: Vec<_> = logs
            .lines()
            .filter(|line| is_trouble(line))
            .filter(|line| !expected.iter().any(|part| line.contains(part.as_str())))
            .take(20)
            .collect();
        ensure!(surprises.is_empty(), "unexpected in the logs:\n{}", surprises.join("\n"));
        for pid in pids {
            ensure!(!program::is_running(pid), "process {pid} is still there");
        }
        let folder = self.folder.path().to_string_lossy().into_owned();
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        ensure!(!mounts.contains(&folder), "still mounted:\n{mounts}");
        ensure!(tree::describe(&self.mount)?.is_empty(), "files were written below the mount");
        Ok(())
    }

    /// All logs, each line with the name of its file in front.
    pub fn logs(&self) -> Result<String> {
        let mut logs = Vec::new();
        logs_below(&self.dir(), &mut logs);
        logs.sort();
        let mut lines = String::new();
        for log in logs {
            let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for line in String::from_utf8_lossy(&std::fs::read(&log)?).lines() {
                lines += &format!("{name}: {line}\n");
            }
        }
        Ok(lines)
    }
}

impl Drop for Federation {
    fn drop(&mut self) {
        if let Err(error) = self.down() {
            eprintln!("taking the federation down: {error:#}");
            self.down_by_force();
        }
    }
}

impl Federation {
    /// When `dev down` does not work: nothing may outlive the test all the same.
    fn down_by_force(&self) {
        kill_all(&self.status().and_then(|all| pids(&all)).unwrap_or_default());
        let mounts = self.mounts_more.lock().map(|mounts| mounts.clone()).unwrap_or_default();
        for mount in mounts.iter().chain([&self.mount]) {
            let program = if crate::is_root() { "umount" } else { "fusermount3" };
            let flag = if crate::is_root() { "-l" } else { "-uz" };
            let mut command = Command::new(program);
            let _ = program::finish(command.arg(flag).arg(mount), Duration::from_secs(10));
        }
    }
}

/// `dev status` of a folder.
fn status(dir: &Path) -> Result<Value> {
    let mut command = Command::new(program::tieline()?);
    command.args(["dev", "status", "--json", "--dir"]).arg(dir);
    let said = program::finish(&mut command, DEADLINE)?.succeed("tieline dev status")?;
    Ok(serde_json::from_str(&said)?)
}

fn pids(status: &Value) -> Result<Vec<i64>> {
    let processes = status["processes"].as_array().context("status lists processes")?;
    Ok(processes.iter().filter_map(|process| process["pid"].as_i64()).collect())
}

fn kill_all(pids: &[i64]) {
    for &pid in pids {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // A holder and its daemon go together, or one would start the other.
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Does a line of a log tell of trouble? The level stands near its start.
fn is_trouble(line: &str) -> bool {
    let head: String = line.chars().take(80).collect();
    ["ERROR", "WARN", "panicked at"].iter().any(|level| head.contains(level))
}

fn logs_below(folder: &Path, logs: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            logs_below(&path, logs);
        } else if path.extension().is_some_and(|extension| extension == "log") {
            logs.push(path);
        }
    }
}
