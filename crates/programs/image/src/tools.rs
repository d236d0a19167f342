//! Programs and files of Debian that we use, the packages that have them, and how they are run.
//!
//! Invariants: what is missing is said before anything is begun, all at once, with the command that
//! installs it; a program that we run ends when we do, and within its deadline.

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Where programs may be that only root looks for.
const SBIN: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/bin"];
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How much of what a failed program said is shown.
const SHOWN_LINES: usize = 12;
const SHOWN_BYTES: u64 = 64 << 10;

/// Something that a package has: a program's name, or a file's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    pub what: &'static str,
    pub package: &'static str,
}

const fn need(what: &'static str, package: &'static str) -> Need {
    Need { what, package }
}

pub const MMDEBSTRAP: Need = need("mmdebstrap", "mmdebstrap");
pub const MERGED_USR: Need = need("/usr/share/mmdebstrap/hooks/merged-usr", "mmdebstrap");
pub const KEYRING: Need =
    need("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring");
pub const UNSHARE: Need = need("unshare", "util-linux");
pub const CHROOT: Need = need("chroot", "coreutils");
pub const TAR: Need = need("tar", "tar");
pub const DPKG_QUERY: Need = need("dpkg-query", "dpkg");
pub const MKE2FS: Need = need("mke2fs", "e2fsprogs");
pub const MKFS_VFAT: Need = need("mkfs.vfat", "dosfstools");
pub const MMD: Need = need("mmd", "mtools");
pub const MCOPY: Need = need("mcopy", "mtools");
pub const SGDISK: Need = need("sgdisk", "gdisk");
pub const SYSLINUX: Need = need("syslinux", "syslinux");
pub const GPTMBR: Need = need("/usr/lib/syslinux/mbr/gptmbr.bin", "syslinux-common");
pub const SYSTEMD_BOOT: Need =
    need("/usr/lib/systemd/boot/efi/systemd-bootx64.efi", "systemd-boot-efi");
pub const QEMU_IMG: Need = need("qemu-img", "qemu-utils");
pub const QEMU: Need = need("qemu-system-x86_64", "qemu-system-x86");
/// QEMU's firmware, which Debian's QEMU only recommends.
pub const SEABIOS: Need = need("/usr/share/seabios/bios-256k.bin", "seabios");
pub const STRIP: Need = need("strip", "binutils");
pub const KADMIN: Need = need("kadmin", "krb5-user");
pub const KADMIN_LOCAL: Need = need("kadmin.local", "krb5-admin-server");

impl Need {
    /// Where it is.
    pub fn find(self) -> Option<PathBuf> {
        if self.what.starts_with('/') {
            return Some(PathBuf::from(self.what)).filter(|path| path.exists());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(SBIN.map(PathBuf::from));
        folders.map(|folder| folder.join(self.what)).find(|program| program.is_file())
    }

    pub fn command(self) -> Command {
        // Whoever did not check hears of it from the kernel.
        Command::new(self.find().unwrap_or_else(|| PathBuf::from(self.what)))
    }
}

/// All of these must be there.
pub fn check(needs: &[Need]) -> anyhow::Result<()> {
    let missing: Vec<&Need> = needs.iter().filter(|need| need.find().is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|need| need.what).collect();
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    bail!(
        "these are missing here: {}; install them with: apt-get install {}",
        names.join(", "),
        packages.join(" ")
    )
}

/// What a program says goes to a file, which is shown if it fails.
pub struct Runner {
    pub log: PathBuf,
}

impl Runner {
    /// Runs a program to its end; it must succeed.
    pub fn run(&self, command: &mut Command, patience: Duration) -> anyhow::Result<()> {
        let name = name_of(command);
        let log = File::create(&self.log)
            .with_context(|| format!("cannot write {}", self.log.display()))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let status = finish(command, patience).with_context(|| name.clone())?;
        if status.success() {
            return Ok(());
        }
        bail!("{name} failed ({status}):\n{}", last_lines(&self.log, SHOWN_LINES))
    }

    /// The same; what it says on its standard output is returned.
    pub fn read(&self, command: &mut Command, patience: Duration) -> anyhow::Result<String> {
        self.run(command, patience)?;
        std::fs::read_to_string(&self.log).with_context(|| name_of(command))
    }
}

fn name_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

/// Waits for the end; one that takes too long is killed with its group.
pub fn finish(command: &mut Command, patience: Duration) -> anyhow::Result<ExitStatus> {
    with_us(command);
    command.process_group(0);
    let mut child = command.spawn().context("cannot start it")?;
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
            bail!("it still ran after {} s, and was ended", patience.as_secs());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The child is killed when we end, however that comes.
pub fn with_us(command: &mut Command) -> &mut Command {
    let us = rustix::process::getpid();
    let follow = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // We may have ended before the line above.
        match rustix::process::getppid() {
            Some(parent) if parent == us => Ok(()),
            _ => Err(std::io::ErrorKind::Interrupted.into()),
        }
    };
    // SAFETY: between fork and exec it makes two system calls, and neither allocates nor locks.
    unsafe { command.pre_exec(follow) }
}

/// The end of a file that a program wrote.
pub fn last_lines(path: &Path, count: usize) -> String {
    let text = tail(path, SHOWN_BYTES);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let skipped = lines.len().saturating_sub(count);
    lines.into_iter().skip(skipped).collect::<Vec<_>>().join("\n")
}

/// At most so many bytes of its end, as text that a terminal can show.
pub fn tail(path: &Path, most: u64) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    text.chars().filter(|&letter| letter == '\n' || !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_at_once_with_the_command() {
        let absent = need("no-such-program-here", "some-package");
        let also = need("/no/such/file", "another");
        let said = check(&[UNSHARE, absent, also, absent]).unwrap_err().to_string();
        assert!(said.contains("no-such-program-here, /no/such/file"), "{said}");
        assert!(said.ends_with("apt-get install another some-package"), "{said}");
        check(&[UNSHARE, TAR]).unwrap();
    }

    #[test]
    fn a_program_that_fails_or_hangs_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let runner = Runner { log: folder.path().join("log") };
        let patience = Duration::from_secs(20);
        let failed = runner.run(Command::new("sh").args(["-c", "echo so; exit 3"]), patience);
        let said = format!("{:#}", failed.unwrap_err());
        assert!(said.contains("sh failed") && said.ends_with("so"), "{said}");
        let hung = runner.run(Command::new("sleep").arg("60"), Duration::from_millis(100));
        assert!(format!("{:#}", hung.unwrap_err()).contains("still ran"));
        assert_eq!(runner.read(Command::new("echo").arg("a"), patience).unwrap(), "a\n");
    }

    #[test]
    fn only_the_end_of_a_log_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        std::fs::write(&log, "one\ntwo\n\u{1b}[31mthree\n\n").unwrap();
        assert_eq!(last_lines(&log, 2), "two\n[31mthree");
        assert_eq!(tail(&log, 3), "e\n\n");
        assert_eq!(last_lines(Path::new("/no/such/log"), 2), "");
    }
}
