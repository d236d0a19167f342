//! A real KDC in a folder of its own: MIT's `krb5kdc` on a free port of loopback or of given hosts.
//!
//! For tests and for `tieline dev`. Everything it has lies in its folder: database, keytabs, and
//! the `krb5.conf` that clients and servers of it are pointed at with `KRB5_CONFIG`. Nothing
//! outside is read or written, and no DNS is asked.
//!
//! Invariants: the daemon ends with [`ScratchKdc::stop`] or when this is dropped, unless it was
//! [left running](ScratchKdc::leave); the folder is the caller's to remove.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const READY_PATIENCE: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Debian and RHEL have the KDC's programs where only root looks for programs.
const SBIN: &str = "/usr/sbin";
const LOOPBACK: &str = "127.0.0.1";
/// Below those that the kernel gives to outgoing connections, and beside those of `tieline dev up`,
/// which may look for some before a KDC that is being made listens.
const PORTS: std::ops::Range<u16> = 30_000..32_768;

#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    #[error("cannot run {program}: install krb5-kdc, krb5-admin-server and krb5-user")]
    Program { program: String, source: io::Error },
    #[error("{what} failed: {said}")]
    Failed { what: String, said: String },
    #[error("cannot write {}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("no port is free for the KDC")]
    Port,
}

/// A realm of its own.
pub struct ScratchKdc {
    dir: PathBuf,
    realm: String,
    port: u16,
    /// Where clients look for it, in this order.
    hosts: Vec<String>,
    daemons: Vec<Child>,
}

/// The realm's folder, and in it one where every user may keep his tickets.
fn make_folders(dir: &Path) -> Result<(), ScratchError> {
    let caches = dir.join("caches");
    let everybody = fs::Permissions::from_mode(0o1777);
    fs::create_dir_all(&caches)
        .and_then(|()| fs::set_permissions(&caches, everybody))
        .map_err(|source| ScratchError::Write { path: caches, source })
}

impl ScratchKdc {
    /// Makes a realm in `dir` and starts its KDC.
    pub fn start(dir: &Path, realm: &str) -> Result<Self, ScratchError> {
        let mut kdc = Self::make(dir, realm, &[LOOPBACK.to_owned()])?;
        kdc.serve()?;
        Ok(kdc)
    }

    /// Makes a realm whose clients look for a KDC at `hosts`, names or addresses of either family;
    /// [`ScratchKdc::serve`] starts one where the caller is.
    pub fn make(dir: &Path, realm: &str, hosts: &[String]) -> Result<Self, ScratchError> {
        let port = free_port().ok_or(ScratchError::Port)?;
        let mut kdc = Self::again(dir, realm, port);
        kdc.hosts = hosts.to_vec();
        make_folders(dir)?;
        kdc.write("krb5.conf", &kdc.client_conf())?;
        kdc.write("kdc.conf", &kdc.server_conf())?;
        kdc.write("acl", "")?;
        kdc.run("kdb5_util", &["create", "-s", "-r", realm, "-P", "scratch"])?;
        Ok(kdc)
    }

    /// The same realm again, after [`ScratchKdc::leave`] or [`ScratchKdc::stop`].
    pub fn again(dir: &Path, realm: &str, port: u16) -> Self {
        let (dir, realm) = (dir.to_owned(), realm.to_owned());
        Self { dir, realm, port, hosts: vec![LOOPBACK.to_owned()], daemons: Vec::new() }
    }

    /// A second KDC of this realm in another folder, with all that is known now; not started.
    pub fn replica(&self, dir: &Path) -> Result<Self, ScratchError> {
        let port = free_port().ok_or(ScratchError::Port)?;
        let replica = Self::again(dir, &self.realm, port);
        make_folders(dir)?;
        replica.write("krb5.conf", &replica.client_conf())?;
        replica.write("kdc.conf", &replica.server_conf())?;
        replica.write("acl", "")?;
        let dump = dir.join("dump").display().to_string();
        self.run("kdb5_util", &["-r", &self.realm, "dump", &dump])?;
        let stash = dir.join("stash");
        fs::copy(self.dir.join("stash"), &stash)
            .map_err(|source| ScratchError::Write { path: stash, source })?;
        replica.run("kdb5_util", &["-r", &self.realm, "load", &dump])?;
        Ok(replica)
    }

    pub fn realm(&self) -> &str {
        &self.realm
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// For `KRB5_CONFIG`.
    pub fn config(&self) -> PathBuf {
        self.dir.join("krb5.conf")
    }

    /// The daemons' processes, while they are ours.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.daemons.iter().map(Child::id)
    }

    /// Starts a daemon and waits until it answers.
    pub fn serve(&mut self) -> Result<(), ScratchError> {
        let log = self.dir.join("krb5kdc.out");
        let out = fs::File::options().create(true).append(true).open(&log);
        let out = out.map_err(|source| ScratchError::Write { path: log.clone(), source })?;
        let mut command = self.command("krb5kdc");
        command.args(["-n", "-r", &self.realm]).stdin(Stdio::null()).stderr(Stdio::null());
        // Of its own group: what ends its maker by a key does not end it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let daemon = command.stdout(out).spawn();
        let mut daemon = daemon
            .map_err(|source| ScratchError::Program { program: "krb5kdc".to_owned(), source })?;
        let deadline = Instant::now() + READY_PATIENCE;
        while TcpStream::connect((LOOPBACK, self.port)).is_err() {
            if let Ok(Some(_)) = daemon.try_wait() {
                return Err(self.silent());
            }
            if Instant::now() >= deadline {
                let _ = daemon.kill();
                let _ = daemon.wait();
                return Err(self.silent());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        self.daemons.push(daemon);
        Ok(())
    }

    fn silent(&self) -> ScratchError {
        let said = fs::read_to_string(self.dir.join("kdc.log")).unwrap_or_default();
        let said = said.lines().last().unwrap_or_default().to_owned();
        ScratchError::Failed { what: "krb5kdc".to_owned(), said }
    }

    /// Ends the daemons; nobody answers until [`ScratchKdc::serve`].
    pub fn stop(&mut self) {
        for mut daemon in self.daemons.drain(..) {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    /// Lets the daemons live on.
    pub fn leave(mut self) {
        self.daemons.clear();
    }

    /// Adds principals with random keys, and writes those of all into one keytab.
    pub fn keytab(&self, name: &str, principals: &[String]) -> Result<PathBuf, ScratchError> {
        let path = self.dir.join(name);
        let mut script = String::new();
        for principal in principals {
            // Adding one that is there fails, which is fine: it keeps its keys.
            let _ = writeln!(script, "addprinc -randkey {principal}");
            let _ = writeln!(script, "ktadd -norandkey -k {} {principal}", path.display());
        }
        self.admin(&script)?;
        if !path.exists() {
            let what = format!("writing the keytab {}", path.display());
            return Err(ScratchError::Failed { what, said: "kadmin.local wrote none".to_owned() });
        }
        Ok(path)
    }

    /// Adds a user with a password.
    pub fn user(&self, name: &str, password: &str) -> Result<(), ScratchError> {
        self.admin(&format!("addprinc -pw {password} {name}\n"))
    }

    /// What an administrator types.
    pub fn admin(&self, script: &str) -> Result<(), ScratchError> {
        let mut command = self.command("kadmin.local");
        command.args(["-r", &self.realm]);
        said_by(&mut command, "kadmin.local", script.as_bytes()).map(drop)
    }

    /// Gets a user's first ticket into a cache, such as `FILE:/tmp/x`.
    pub fn kinit(&self, name: &str, password: &str, cache: &str) -> Result<(), ScratchError> {
        let mut command = self.command("kinit");
        command.args(["-c", cache, name]);
        said_by(&mut command, "kinit", format!("{password}\n").as_bytes()).map(drop)
    }

    /// A program of MIT Kerberos, with this realm's settings.
    pub fn command(&self, program: &str) -> Command {
        let path = Path::new(SBIN).join(program);
        let mut command = if path.exists() { Command::new(path) } else { Command::new(program) };
        command.env("KRB5_CONFIG", self.config());
        command.env("KRB5_KDC_PROFILE", self.dir.join("kdc.conf"));
        command
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<(), ScratchError> {
        let mut command = self.command(program);
        said_by(command.args(words), program, b"").map(drop)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), ScratchError> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(|source| ScratchError::Write { path, source })
    }

    fn client_conf(&self) -> String {
        let Self { realm, port, dir, .. } = self;
        let kdc = |host: &String| match host.contains(':') {
            true => format!("    kdc = [{host}]:{port}\n"),
            false => format!("    kdc = {host}:{port}\n"),
        };
        let kdcs: String = self.hosts.iter().map(kdc).collect();
        format!(
            "[libdefaults]\n  default_realm = {realm}\n  rdns = false\n  \
             dns_canonicalize_hostname = false\n  dns_lookup_kdc = false\n  \
             dns_lookup_realm = false\n  udp_preference_limit = 1\n  \
             default_ccache_name = FILE:{dir}/caches/%{{uid}}\n  \
             permitted_enctypes = aes256-cts-hmac-sha384-192 aes256-cts-hmac-sha1-96\n\n\
             [realms]\n  {realm} = {{\n{kdcs}  }}\n",
            dir = dir.display()
        )
    }

    fn server_conf(&self) -> String {
        let Self { realm, port, dir, .. } = self;
        let dir = dir.display();
        // Other hosts are namespaces, where nobody else is.
        let listen = match self.hosts.iter().all(|host| host == LOOPBACK) {
            true => format!("{LOOPBACK}:{port}"),
            false => format!("0.0.0.0:{port},[::]:{port}"),
        };
        format!(
            "[kdcdefaults]\n  kdc_listen = {listen}\n  \
             kdc_tcp_listen = {listen}\n\n\
             [realms]\n  {realm} = {{\n    database_name = {dir}/principal\n    \
             key_stash_file = {dir}/stash\n    acl_file = {dir}/acl\n    max_life = 24h\n    \
             max_renewable_life = 7d\n    \
             supported_enctypes = aes256-cts-hmac-sha384-192:normal \
             aes256-cts-hmac-sha1-96:normal\n    \
             master_key_type = aes256-cts-hmac-sha1-96\n  }}\n\n\
             [logging]\n  kdc = FILE:{dir}/kdc.log\n"
        )
    }
}

impl Drop for ScratchKdc {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a program with something to read; it must succeed.
fn said_by(command: &mut Command, program: &str, input: &[u8]) -> Result<Output, ScratchError> {
    use std::io::Write as _;
    let missing = |source| ScratchError::Program { program: program.to_owned(), source };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(missing)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends before it read all says why by itself.
        let _ = stdin.write_all(input);
    }
    let output = child.wait_with_output().map_err(missing)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ScratchError::Failed { what: program.to_owned(), said });
    }
    Ok(output)
}

/// A port that neither TCP nor UDP has.
fn free_port() -> Option<u16> {
    let start = address_noise();
    (0..200u16)
        .map(|step| {
            PORTS.start + start.wrapping_add(step.wrapping_mul(37)) % (PORTS.end - PORTS.start)
        })
        .find(|&port| {
            TcpListener::bind((LOOPBACK, port)).is_ok() && UdpSocket::bind((LOOPBACK, port)).is_ok()
        })
}

/// Two KDCs that are made at once begin to look at different places.
fn address_noise() -> u16 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u16
}
