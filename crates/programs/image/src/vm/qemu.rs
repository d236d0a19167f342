//! The words of QEMU for a machine.
//!
//! Secrets go by files (fw_cfg), never by words, which everybody on the host can read. The network
//! is QEMU's own: the machine reaches out, also to the host's loopback at [`HOST`], and nobody
//! reaches it.

use crate::about::{self, About};
use crate::machine;
use crate::tools::{self, Need};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const NEEDS: [Need; 2] = [tools::QEMU, tools::SEABIOS];

/// The host's own loopback, as QEMU's network shows it.
pub const HOST: &str = "10.0.2.2";
pub const CONTROL: &str = "control.sock";
const KVM: &str = "/dev/kvm";
/// A kernel under a working KVM needs one or two.
const PROBE_PATIENCE: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// What a kernel says that has no root, which a probe gives it none.
const PROBED: &str = "Kernel panic";

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accel {
    Auto,
    Kvm,
    Tcg,
}

/// What a machine starts from.
pub struct Image {
    pub folder: PathBuf,
    disk: PathBuf,
    format: &'static str,
    kernel: PathBuf,
}

impl Image {
    pub fn find(folder: &Path) -> anyhow::Result<Self> {
        let about = About::read(folder)?;
        let file = |name| about.file(folder, name);
        let (disk, format) = match (file(about::RAW), file(about::QCOW2)) {
            (Some(raw), _) => (raw, "raw"),
            (None, Some(qcow2)) => (qcow2, "qcow2"),
            (None, None) => {
                bail!("{} has no disk: build it with --format raw", folder.display())
            }
        };
        let lacks = || format!("{} has no {}", folder.display(), about::KERNEL);
        let kernel = file(about::KERNEL).with_context(lacks)?;
        Ok(Self { folder: folder.to_owned(), disk, format, kernel })
    }
}

/// A machine's words.
pub struct Words<'a> {
    pub name: &'a str,
    pub image: &'a Image,
    /// What it is given, by the names of systemd's credentials.
    pub given: Vec<(&'static str, PathBuf)>,
    pub memory_mib: u64,
    pub cpus: u16,
    pub accel: Accel,
    /// Where its console goes.
    pub console: &'a Path,
}

impl Words<'_> {
    /// In the machine's folder, where its socket is to be.
    pub fn command(&self, folder: &Path) -> Command {
        let mut command = tools::QEMU.command();
        command.current_dir(folder).stdin(Stdio::null());
        command.args(["-name", &format!("tieline-{},process=tieline-{0}", self.name)]);
        command.args(["-machine", "q35", "-nodefaults", "-display", "none", "-no-reboot"]);
        command.args(accel(self.accel));
        command.args(["-smp", &self.cpus.to_string(), "-m", &self.memory_mib.to_string()]);
        // Nothing that a machine could make it do is needed after its start.
        command.args(["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny"]);
        command.args(["-chardev", &format!("file,id=console,path={}", plain(self.console))]);
        command.args(["-serial", "chardev:console"]);
        command.args(["-qmp", &format!("unix:{CONTROL},server=on,wait=off")]);
        let (disk, format) = (plain(&self.image.disk), self.image.format);
        command.args(["-drive", &format!("file={disk},format={format},if=virtio,snapshot=on")]);
        command.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
        command.args(["-device", "virtio-rng-pci"]);
        for (name, file) in &self.given {
            let place = format!("opt/io.systemd.credentials/{name}");
            command.args(["-fw_cfg", &format!("name={place},file={}", plain(file))]);
        }
        command
    }
}

/// A comma ends a value in QEMU's words, unless it is there twice.
fn plain(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

fn accel(accel: Accel) -> &'static [&'static str] {
    match accel {
        Accel::Kvm => &["-accel", "kvm", "-cpu", "host"],
        Accel::Tcg | Accel::Auto => &["-accel", "tcg,thread=multi", "-cpu", "max"],
    }
}

/// What `auto` means here. A KVM that can be opened may still not run a kernel (a host that is
/// itself a guest), and QEMU does not notice: so one is started, without a disk, and must say what
/// a kernel without a disk says.
pub fn settle(accel: Accel, image: &Image, folder: &Path) -> anyhow::Result<Accel> {
    if accel != Accel::Auto {
        return Ok(accel);
    }
    let is_open = fs::OpenOptions::new().read(true).write(true).open(KVM).is_ok();
    if !is_open {
        return Ok(Accel::Tcg);
    }
    let verdict = folder.join("kvm");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let works = match fs::read_to_string(&verdict) {
        // Found out since this host's start.
        Ok(text) if text.starts_with(boot.trim()) => text.trim_end().ends_with("works"),
        _ => {
            let works = probe(image, folder)?;
            let word = if works { "works" } else { "fails" };
            let _ = fs::write(&verdict, format!("{} {word}\n", boot.trim()));
            works
        }
    };
    if !works {
        println!("KVM runs no kernel here: QEMU translates instead, which is slower");
    }
    Ok(if works { Accel::Kvm } else { Accel::Tcg })
}

fn probe(image: &Image, folder: &Path) -> anyhow::Result<bool> {
    let log = folder.join("kvm.log");
    let mut command = tools::QEMU.command();
    command.args(["-machine", "q35", "-nodefaults", "-display", "none", "-no-reboot"]);
    command.args(accel(Accel::Kvm)).args(["-smp", "1", "-m", "256"]);
    command.args(["-chardev", &format!("file,id=c,path={}", plain(&log)), "-serial", "chardev:c"]);
    command.arg("-kernel").arg(&image.kernel);
    command.args(["-append", "console=ttyS0 panic=-1"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = tools::with_us(&mut command).spawn().context("cannot start QEMU")?;
    let deadline = Instant::now() + PROBE_PATIENCE;
    let is_said = || tools::tail(&log, 64 << 10).contains(PROBED);
    let mut works = false;
    while !works && Instant::now() < deadline {
        let ended = child.try_wait()?.is_some();
        works = is_said();
        if ended {
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    let _ = child.kill();
    let _ = child.wait();
    let _ = fs::remove_file(&log);
    Ok(works)
}

/// What is given by the folder that `image enroll` made.
pub fn given(folder: &Path) -> Vec<(&'static str, PathBuf)> {
    let names = [machine::MACHINE, machine::KEYTAB, machine::KRB5_CONF];
    let files = names.map(|name| (name, folder.join(name)));
    files.into_iter().filter(|(_, file)| file.exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_by_files_and_commas_are_no_ends() {
        let (disk, kernel) = ("/a,b/disk.raw".into(), "/k".into());
        let image = Image { folder: "/a,b".into(), disk, format: "raw", kernel };
        let words = Words {
            name: "wn1",
            image: &image,
            given: vec![(machine::KEYTAB, "/m/krb5.keytab".into())],
            memory_mib: 512,
            cpus: 1,
            accel: Accel::Tcg,
            console: Path::new("/m/console.log"),
        };
        let command = words.command(Path::new("/m"));
        let all: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let all = all.join(" ");
        assert!(all.contains("file=/a,,b/disk.raw,format=raw,if=virtio,snapshot=on"), "{all}");
        let keytab = "-fw_cfg name=opt/io.systemd.credentials/krb5.keytab,file=/m/krb5.keytab";
        assert!(all.contains(keytab), "{all}");
    }
}
