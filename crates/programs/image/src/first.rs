//! Inside the machine: what its units run.
//!
//! At each start it takes the credentials that systemd was given for it (by QEMU's fw_cfg or SMBIOS
//! tables); what it was given before stays, so that a disk that is kept starts again without them.
//! All that matters is said on the console in [`markers`](crate::markers).
//!
//! Invariants: a keytab is its owner's alone before it has its name; a job runs only where the file
//! system is mounted.

use crate::machine::{self, Machine};
use crate::markers::Said;
use anyhow::{Context, bail, ensure};
use std::fs;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tieline_base::report;
use tieline_machine::{beneath, table};

const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";
const KEPT: &str = "/etc/tieline/machine.toml";
const KEYTAB: &str = "/etc/krb5.keytab";
const KRB5_CONF: &str = "/etc/krb5.conf";
const CONSOLE: &str = "/dev/console";
const SSH_KEYGEN: &str = "/usr/bin/ssh-keygen";
const HOST_RULES: &str = include_str!("units/host.nft");
/// Keytabs and configurations are a few KiB.
const GIVEN_MAX: u64 = 1 << 20;
/// Servers may start together with their machines.
const MOUNT_PATIENCE: Duration = Duration::from_secs(120);
const MOUNT_AGAIN: Duration = Duration::from_secs(2);

/// `tieline image first-boot`.
pub fn boot() -> anyhow::Result<()> {
    let outcome = take_and_mount();
    match &outcome {
        Ok(Some(mountpoint)) => say(&Said::Mounted(mountpoint.display().to_string())),
        Ok(None) => say(&Said::Empty),
        Err(error) => say(&Said::Failed(report::chain(error.as_ref()))),
    }
    outcome.map(drop)
}

fn take_and_mount() -> anyhow::Result<Option<PathBuf>> {
    // Of a machine with an sshd: it makes those that are not there.
    if Path::new(SSH_KEYGEN).exists() {
        let made = Command::new(SSH_KEYGEN).arg("-A").stdout(Stdio::null()).status();
        ensure!(made.is_ok_and(|status| status.success()), "ssh-keygen made no host keys");
    }
    let given = std::env::var_os(CREDENTIALS).map(PathBuf::from);
    if let Some(text) = given_one(given.as_deref(), machine::MACHINE)? {
        Machine::parse(&text).with_context(|| format!("credential {}", machine::MACHINE))?;
        install(Path::new(KEPT), &text, 0o644)?;
    }
    if let Some(keytab) = given_one(given.as_deref(), machine::KEYTAB)? {
        install(Path::new(KEYTAB), &keytab, 0o600)?;
    }
    if let Some(config) = given_one(given.as_deref(), machine::KRB5_CONF)? {
        install(Path::new(KRB5_CONF), &config, 0o644)?;
    }
    let Some(text) = read(Path::new(KEPT))? else { return Ok(None) };
    let machine = Machine::parse(&text).context(KEPT)?;
    rustix::system::sethostname(machine.hostname.as_bytes()).context("cannot set the name")?;
    if let Some(host) = given_one(given.as_deref(), machine::HOST)? {
        reach_host(&host).context("cannot reach the host's own servers")?;
    }
    fs::create_dir_all(&machine.mountpoint)
        .with_context(|| format!("cannot make {}", machine.mountpoint.display()))?;
    mount(&machine)?;
    Ok(Some(machine.mountpoint))
}

/// A credential, if it was given.
fn given_one(folder: Option<&Path>, name: &str) -> anyhow::Result<Option<Vec<u8>>> {
    match folder {
        Some(folder) => read(&folder.join(name)),
        None => Ok(None),
    }
}

fn read(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let mut bytes = Vec::new();
    file.take(GIVEN_MAX + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= GIVEN_MAX, "{} is longer than 1 MiB", path.display());
    Ok(Some(bytes))
}

fn install(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    beneath::write_whole(path, bytes, mode)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The map and krb5.conf of a federation on the host's loopback name 127.0.0.1, which is another
/// machine here. What is sent there goes to the address that the host has for us.
fn reach_host(address: &[u8]) -> anyhow::Result<()> {
    let address = std::str::from_utf8(address)?.trim();
    let host: IpAddr = address.parse().with_context(|| format!("`{address}` is no address"))?;
    ensure!(host.is_ipv4(), "{host} is not of IPv4");
    fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1")?;
    let rules = HOST_RULES.replace("HOST", &host.to_string());
    let path = Path::new("/run/tieline-host.nft");
    fs::write(path, rules)?;
    let output = Command::new("nft").arg("-f").arg(path).output().context("cannot run nft")?;
    ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Until it is mounted, or cannot be for too long.
fn mount(machine: &Machine) -> anyhow::Result<()> {
    if table::is_mounted(&machine.mountpoint) {
        return Ok(());
    }
    let deadline = Instant::now() + MOUNT_PATIENCE;
    loop {
        let mut command = ourselves()?;
        command.args(["mount", &machine.source]).arg(&machine.mountpoint);
        command.args(["-o", &machine.options]).stdin(Stdio::null());
        let output = command.output().context("cannot run tieline mount")?;
        if output.status.success() {
            return Ok(());
        }
        // Wrongly asked: it will not be better later.
        if output.status.code() == Some(2) || Instant::now() >= deadline {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        std::thread::sleep(MOUNT_AGAIN);
    }
}

/// `tieline image job`: a shell runs what was given, in the file system.
pub fn job() -> anyhow::Result<()> {
    let folder = std::env::var_os(CREDENTIALS).context("the job needs systemd's credentials")?;
    let script = Path::new(&folder).join(machine::JOB);
    let kept = read(Path::new(KEPT))?.context("this machine was given nothing")?;
    let machine = Machine::parse(&kept).context(KEPT)?;
    ensure!(
        table::is_mounted(&machine.mountpoint),
        "{} is not mounted",
        machine.mountpoint.display()
    );
    say(&Said::JobBegins);
    let mut shell = Command::new("/bin/sh");
    shell.arg(&script).current_dir(&machine.mountpoint).stdin(Stdio::null());
    let status = shell.status().context("cannot run /bin/sh");
    let code = status.as_ref().map_or(-1, |status| status.code().unwrap_or(-1));
    say(&Said::JobEnded(code));
    status.map(drop)
}

/// `tieline image leave`: before the machine ends.
pub fn leave() -> anyhow::Result<()> {
    let Some(kept) = read(Path::new(KEPT))? else { return Ok(()) };
    let machine = Machine::parse(&kept).context(KEPT)?;
    if !table::is_mounted(&machine.mountpoint) {
        return Ok(());
    }
    let mut command = ourselves()?;
    command.args(["umount", "--wait"]).arg(&machine.mountpoint).stdin(Stdio::null());
    let output = command.output().context("cannot run tieline umount")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        say(&Said::Failed(format!("cannot unmount: {why}")));
        bail!("{why}");
    }
    say(&Said::Unmounted);
    Ok(())
}

fn ourselves() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program")?))
}

/// On the console, whatever the unit's output is. Nobody may read it: that is no failure.
fn say(said: &Said) {
    use std::io::Write;
    let line = format!("\n{}\n", said.line());
    if let Ok(mut console) = fs::File::options().write(true).open(CONSOLE) {
        let _ = console.write_all(line.as_bytes());
    }
}
