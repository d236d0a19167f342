//! Storage that the nodes of a site share, each by a mount of its own: a local directory, GlusterFS
//! on two bricks, and one that can less than either (`storage/awkward.py`).
//!
//! Everything runs in the foreground below a test's folder and ends with it; nothing of the
//! machine's own GlusterFS is used or changed.
//!
//! Invariant: what is missing on the machine fails a test, by its package's name.

use crate::program;
use anyhow::{Context, Result, ensure};
use std::cell::RefCell;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const BRICKS: usize = 2;
/// What a volume of GlusterFS has on its clients by default: attributes are up to a second old.
const CLIENT_CACHES: [&str; 4] = ["write-behind", "open-behind", "quick-read", "md-cache"];
const PATIENCE: Duration = Duration::from_secs(30);
/// Debian's own: other Pythons do not see its packages.
const PYTHON: &str = "/usr/bin/python3";

/// What the nodes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One directory, mounted nowhere else.
    Local,
    /// GlusterFS of the distribution's packages.
    Gluster,
    /// Without locks, without overwriting, with stale handles.
    Awkward,
}

/// A shared storage. Dropped, it is taken down.
pub struct Storage {
    kind: Kind,
    folder: PathBuf,
    mounts: RefCell<Vec<PathBuf>>,
    processes: RefCell<Vec<Child>>,
}

impl Storage {
    /// Keeps all that it has below `folder`.
    pub fn start(kind: Kind, folder: PathBuf) -> Result<Self> {
        fs::create_dir(&folder)?;
        let (mounts, processes) = (RefCell::default(), RefCell::default());
        let storage = Self { kind, folder, mounts, processes };
        match kind {
            Kind::Local | Kind::Awkward => fs::create_dir(storage.folder.join("local"))?,
            Kind::Gluster => storage.start_bricks()?,
        }
        Ok(storage)
    }

    /// The storage as one more node sees it.
    pub fn node(&self) -> Result<PathBuf> {
        let local = self.folder.join("local");
        if self.kind == Kind::Local {
            return Ok(local);
        }
        let mount = self.folder.join(format!("node-{}", self.mounts.borrow().len()));
        fs::create_dir(&mount)?;
        if self.kind == Kind::Gluster {
            self.gluster("glusterfs", "client", &[&mount])?;
        } else {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/storage/awkward.py");
            let mut command = Command::new(PYTHON);
            command.arg(script).arg(&local).arg(&mount);
            self.begin(&mut command, "python3-fusepy")?;
        }
        self.mounts.borrow_mut().push(mount.clone());
        let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev);
        let outside = device(&self.folder)?;
        let is_mounted = || {
            let is_other = device(&mount).is_ok_and(|device| device != outside);
            is_other && fs::read_dir(&mount).is_ok()
        };
        program::until("the node has mounted the storage", PATIENCE, is_mounted)
            .with_context(|| self.logs())?;
        Ok(mount)
    }

    fn start_bricks(&self) -> Result<()> {
        let mut client = String::new();
        for number in 0..BRICKS {
            let (brick, port) = (self.folder.join(format!("brick{number}")), program::free_port()?);
            fs::create_dir(&brick)?;
            let name = format!("server{number}");
            fs::write(self.volume(&name), brick_volume(number, &brick, port))?;
            self.gluster("glusterfsd", &name, &[])?;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let answers = || TcpStream::connect(address).is_ok();
            program::until("a brick answers", PATIENCE, answers).with_context(|| self.logs())?;
            client += &remote_volume(number, port);
        }
        let names: Vec<String> = (0..BRICKS).map(|number| format!("remote{number}")).collect();
        client += &format!(
            "volume all\n type cluster/distribute\n subvolumes {}\nend-volume\n",
            names.join(" ")
        );
        let mut below = "all";
        for above in CLIENT_CACHES {
            client += &format!(
                "volume {above}\n type performance/{above}\n subvolumes {below}\nend-volume\n"
            );
            below = above;
        }
        Ok(fs::write(self.volume("client"), client)?)
    }

    fn volume(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.vol"))
    }

    fn gluster(&self, program: &str, volume: &str, more: &[&Path]) -> Result<()> {
        let log = self.folder.join(format!("{volume}.log"));
        let mut command = Command::new(program);
        command.arg("--no-daemon").arg("-f").arg(self.volume(volume)).arg("-l").arg(log);
        self.begin(command.args(more), "glusterfs-client")
    }

    fn begin(&self, command: &mut Command, package: &str) -> Result<()> {
        command.stdin(Stdio::null());
        let mut child = program::start(command)
            .with_context(|| format!("is {package} installed? (setup.sh system does it)"))?;
        std::thread::sleep(Duration::from_millis(100));
        let ended = child.try_wait()?;
        ensure!(ended.is_none(), "{command:?} ended at once: is {package} installed?");
        self.processes.borrow_mut().push(child);
        Ok(())
    }

    /// The last lines of every log, for whoever reads of a failure.
    fn logs(&self) -> String {
        let mut told = String::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                let last: Vec<&str> = text.lines().rev().take(10).collect();
                told += &format!("{}:\n", entry.path().display());
                last.iter().rev().for_each(|line| told += &format!("{line}\n"));
            }
        }
        told
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        for mount in self.mounts.borrow().iter() {
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
        for child in self.processes.borrow_mut().iter_mut() {
            program::kill_group(child);
            let _ = child.wait();
        }
    }
}

fn brick_volume(number: usize, directory: &Path, port: u16) -> String {
    format!(
        "volume posix\n type storage/posix\n option directory {}\nend-volume\n\
         volume locks\n type features/locks\n subvolumes posix\nend-volume\n\
         volume brick{number}\n type performance/io-threads\n subvolumes locks\nend-volume\n\
         volume server\n type protocol/server\n option transport-type tcp\n \
         option transport.socket.bind-address 127.0.0.1\n \
         option transport.socket.listen-port {port}\n \
         option auth.addr.brick{number}.allow 127.0.0.1\n subvolumes brick{number}\nend-volume\n",
        directory.display()
    )
}

fn remote_volume(number: usize, port: u16) -> String {
    format!(
        "volume remote{number}\n type protocol/client\n option transport-type tcp\n \
         option remote-host 127.0.0.1\n option remote-port {port}\n \
         option remote-subvolume brick{number}\nend-volume\n"
    )
}
