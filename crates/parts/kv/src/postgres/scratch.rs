//! A PostgreSQL server of one's own in a folder, for tests and benchmarks: the real program of the
//! distribution's package, without a network.
//!
//! It refuses to run as root; then it runs as the user `postgres` that the package made.
//!
//! Invariant: what was started is ended when this is dropped.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where distributions keep what is not for everybody's PATH.
const PACKAGED: &str = "/usr/lib/postgresql";
/// Who runs it when we are root, and who if the package made no such user.
pub(super) const USER: &str = "postgres";
const NOBODY: u32 = 65534;
/// Longest wait for a start, recovery included.
const START_PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where a server that only tests something has its folder: in memory, if the machine has that. A
/// server that was killed syncs every file it has when it starts, which takes a busy disk long.
pub fn fast_folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// A running server, or one that is to be started again.
pub struct ScratchServer {
    bin: PathBuf,
    folder: PathBuf,
    /// As whom it runs, if not as ourselves.
    user: Option<u32>,
    server: Option<Child>,
}

impl ScratchServer {
    /// Makes a database cluster in `folder`, which is there and empty, and starts its server.
    pub fn start(folder: &Path) -> io::Result<Self> {
        let is_root = fs::metadata("/proc/self")?.uid() == 0;
        let user = is_root.then(|| user_id(USER).unwrap_or(NOBODY));
        let mut server =
            Self { bin: find_programs()?, folder: folder.to_owned(), user, server: None };
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        for part in ["data", "socket"] {
            let path = folder.join(part);
            fs::create_dir(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
            chown(&path, user, user)?;
        }
        fs::set_permissions(folder.join("socket"), fs::Permissions::from_mode(0o755))?;
        let mut make = server.command("initdb");
        make.args(["--username=tieline", "--auth=trust", "--no-sync", "--locale=C"]);
        finish(make.args(["--encoding=UTF8", "--pgdata"]).arg(folder.join("data")))?;
        server.start_again()?;
        Ok(server)
    }

    /// `host=… user=tieline dbname=postgres`.
    pub fn words(&self) -> String {
        let socket = self.folder.join("socket");
        format!("host={} user=tieline dbname=postgres", socket.display())
    }

    /// Starts it on what it left.
    pub fn start_again(&mut self) -> io::Result<()> {
        let until = Instant::now() + START_PATIENCE;
        loop {
            let mut child = self.spawn()?;
            // A killed server's workers may still hold its memory: then a new one ends at once.
            while child.try_wait()?.is_none() {
                if self.is_ready() {
                    self.server = Some(child);
                    return Ok(());
                }
                if Instant::now() > until {
                    child.kill()?;
                    child.wait()?;
                    return Err(self.failed("is not ready in time"));
                }
                std::thread::sleep(LOOK_AGAIN);
            }
            if Instant::now() > until {
                return Err(self.failed("does not start"));
            }
            std::thread::sleep(LOOK_AGAIN * 10);
        }
    }

    /// Ends it as an administrator does who is in a hurry: connections are cut, data is kept.
    pub fn stop(&mut self) -> io::Result<()> {
        let mut stop = self.command("pg_ctl");
        stop.args(["stop", "--mode=fast", "--wait", "--pgdata"]).arg(self.folder.join("data"));
        finish(&mut stop)?;
        self.reap()
    }

    /// Ends it without a warning.
    pub fn kill(&mut self) -> io::Result<()> {
        if let Some(server) = &mut self.server {
            server.kill()?;
        }
        self.reap()
    }

    fn reap(&mut self) -> io::Result<()> {
        match self.server.take() {
            Some(mut server) => server.wait().map(|_| ()),
            None => Ok(()),
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let log = fs::File::options().create(true).append(true).open(self.log())?;
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.folder.join("data"));
        command.arg("-k").arg(self.folder.join("socket"));
        command.args(["-c", "listen_addresses=", "-c", "shared_buffers=64MB"]);
        // Of its own: a Ctrl-C for the test does not end it before the test did.
        command.process_group(0).stdout(log.try_clone()?).stderr(log);
        command.spawn()
    }

    fn is_ready(&self) -> bool {
        let mut look = self.command("pg_isready");
        look.arg("--quiet").arg("--host").arg(self.folder.join("socket"));
        look.status().is_ok_and(|status| status.success())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir("/").env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn failed(&self, what: &str) -> io::Error {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        io::Error::other(format!("the PostgreSQL server {what}:\n{log}"))
    }
}

impl Drop for ScratchServer {
    fn drop(&mut self) {
        if self.server.is_some() && self.stop().is_err() {
            // Not to be stopped: then by force, since its folder is about to go.
            let _ = self.kill();
        }
    }
}

/// The folder with `initdb` and `postgres`: the newest one.
pub(super) fn find_programs() -> io::Result<PathBuf> {
    let folders = fs::read_dir(PACKAGED).into_iter().flatten().flatten();
    let packaged = folders.map(|folder| folder.path().join("bin"));
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let all = packaged.chain(std::env::split_paths(&on_path).collect::<Vec<_>>());
    let mut usable: Vec<PathBuf> = all.filter(|bin| bin.join("initdb").exists()).collect();
    usable.sort_by_key(|bin| version(bin));
    usable.pop().ok_or_else(|| {
        let text = format!("no PostgreSQL below {PACKAGED} or on PATH: install `postgresql`");
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// `15` of `/usr/lib/postgresql/15/bin`.
fn version(bin: &Path) -> u32 {
    let folder = bin.parent().and_then(Path::file_name).unwrap_or_default();
    folder.to_string_lossy().parse().unwrap_or(0)
}

pub(super) fn user_id(name: &str) -> Option<u32> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

fn finish(command: &mut Command) -> io::Result<()> {
    let output = command.stderr(Stdio::piped()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {}: {}", output.status, said.trim())))
}
