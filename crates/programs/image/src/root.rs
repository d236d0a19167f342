//! The Debian part of an image, as a tar: mmdebstrap makes it out of packages.
//!
//! It depends on nothing but the recipe in this file, the packages that are named and what their
//! mirror has today, so it can be kept and used again: under a name with the recipe's digest. With
//! the same packages it is the same to the byte.
//!
//! mmdebstrap runs in a mount and a process namespace of its own: if it or we are killed, its
//! mounts and children go with the namespaces.

use crate::tools::{self, Need, Runner};
use crate::work::Work;
use anyhow::Context;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub const NEEDS: [Need; 5] =
    [tools::MMDEBSTRAP, tools::MERGED_USR, tools::KEYRING, tools::UNSHARE, tools::CHROOT];

/// Downloads included, on a slow line.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
pub const SUITE: &str = "bookworm";

/// What a client needs, and what makes a machine start.
const PACKAGES: [&str; 20] = [
    // Without it the merging of /usr brings perl.
    "usr-is-merged",
    "linux-image-cloud-amd64",
    "initramfs-tools",
    "zstd",
    "systemd",
    "systemd-sysv",
    "systemd-resolved",
    "systemd-timesyncd",
    "udev",
    "dbus",
    "kmod",
    "iproute2",
    "netbase",
    "procps",
    "e2fsprogs",
    "fuse3",
    "krb5-user",
    "ca-certificates",
    // A host's own servers, for a machine that runs on it.
    "nftables",
    "attr",
];

/// Disks of QEMU, VirtualBox, VMware, Hyper-V and Xen: the first RAM disk has these modules and no
/// others.
const DISK_MODULES: &str = "virtio_pci\\nvirtio_blk\\nvirtio_scsi\\nsd_mod\\nata_piix\\n\
                            vmw_pvscsi\\nhv_storvsc\\nxen_blkfront\\n";

/// Files that no client needs.
const LEFT_OUT: [&str; 6] = [
    "/usr/share/man/*",
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/lib/modules/*/kernel/drivers/infiniband/*",
    "/usr/share/bash-completion/*",
];

/// What an image is made of.
pub struct Recipe {
    pub mirrors: Vec<String>,
    /// Beyond a client's own.
    pub packages: Vec<String>,
    /// The time that every file carries.
    pub epoch: u64,
}

impl Recipe {
    /// Lines of apt's sources.
    fn sources(&self) -> Vec<String> {
        if !self.mirrors.is_empty() {
            let line = |mirror: &String| match mirror.starts_with("deb ") {
                true => mirror.clone(),
                false => format!("deb {mirror} {SUITE} main"),
            };
            return self.mirrors.iter().map(line).collect();
        }
        let debian = "http://deb.debian.org/debian";
        vec![
            format!("deb {debian} {SUITE} main"),
            format!("deb {debian} {SUITE}-updates main"),
            format!("deb {debian}-security {SUITE}-security main"),
        ]
    }

    fn include(&self) -> String {
        let more = self.packages.iter().map(String::as_str);
        let mut all: Vec<&str> = PACKAGES.into_iter().chain(more).collect();
        all.sort_unstable();
        all.dedup();
        all.join(",")
    }

    /// The words behind `mmdebstrap`, but for where the tar goes.
    fn words(&self) -> Vec<String> {
        let hooks = tools::MERGED_USR.what;
        let mut words = vec!["--mode=root".to_owned(), "--variant=minbase".to_owned()];
        words.push(format!("--include={}", self.include()));
        words.push(format!("--hook-dir={hooks}"));
        for option in ["Apt::Install-Recommends \"false\"", "Acquire::Languages \"none\""] {
            words.push(format!("--aptopt={option}"));
        }
        words.extend(LEFT_OUT.iter().map(|path| format!("--dpkgopt=path-exclude={path}")));
        words.push("--dpkgopt=path-include=/usr/share/doc/*/copyright".to_owned());
        words.push(format!(
            "--essential-hook=mkdir -p \"$1\"/etc/initramfs-tools/conf.d \
             \"$1\"/usr/share/initramfs-tools/modules.d && \
             printf 'MODULES=list\\nCOMPRESS=zstd\\n' \
             >\"$1\"/etc/initramfs-tools/conf.d/tieline && \
             printf '{DISK_MODULES}' >\"$1\"/usr/share/initramfs-tools/modules.d/tieline"
        ));
        words.push(
            "--customize-hook=chroot \"$1\" systemctl enable systemd-networkd && \
             chroot \"$1\" systemctl mask e2scrub_reap.service e2scrub_all.timer \
             apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer"
                .to_owned(),
        );
        words.push("--skip=output/dev".to_owned());
        words.push("--format=tar".to_owned());
        words.push(SUITE.to_owned());
        words
    }

    /// By which a tar is known that was made by this recipe.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for word in self.words().iter().chain(&self.sources()) {
            hash.update(word.as_bytes());
            hash.update([0]);
        }
        hash.update(self.epoch.to_be_bytes());
        let mut text = String::new();
        for byte in hash.finalize().iter().take(8) {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

/// A tar by this recipe: one that was kept, or a new one.
pub fn tar(recipe: &Recipe, keep: Option<&Path>, work: &Work) -> anyhow::Result<PathBuf> {
    let Some(keep) = keep else {
        let tar = work.path().join("root.tar");
        make(recipe, &tar, work)?;
        return Ok(tar);
    };
    let kept = std::path::absolute(keep)?.join(format!("root-{}.tar", recipe.digest()));
    if kept.exists() {
        println!("taking the packages from {}", kept.display());
        return Ok(kept);
    }
    let making = Work::begin(&kept)?;
    let tar = making.path().join("root.tar");
    make(recipe, &tar, &making)?;
    std::fs::File::open(&tar)?.sync_all()?;
    std::fs::rename(&tar, &kept).with_context(|| format!("cannot keep {}", kept.display()))?;
    Ok(kept)
}

fn make(recipe: &Recipe, tar: &Path, work: &Work) -> anyhow::Result<()> {
    println!(
        "making a root of {} packages and what they need",
        recipe.include().matches(',').count() + 1
    );
    let mut command = tools::UNSHARE.command();
    command.args(["--mount", "--mount-proc", "--pid", "--fork", "--kill-child=KILL", "--"]);
    command.arg(tools::MMDEBSTRAP.find().context("mmdebstrap is gone")?);
    command.args(recipe.words()).arg(tar).args(recipe.sources());
    // Its own temporary folder, which is as large as the image, goes with the work.
    command.env("TMPDIR", work.path()).env("SOURCE_DATE_EPOCH", recipe.epoch.to_string());
    command.env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
    let runner = Runner { log: work.path().join("mmdebstrap.log") };
    runner.run(&mut command, PATIENCE).context(
        "cannot make the root: are the mirrors reachable from here (--mirror names others), \
         and are the packages there?",
    )
}

/// Unpacks a tar as root's tree.
pub fn unpack(tar: &Path, tree: &Path, runner: &Runner) -> anyhow::Result<()> {
    std::fs::create_dir(tree).with_context(|| format!("cannot make {}", tree.display()))?;
    let mut command = Command::new("tar");
    command.args(["--extract", "--numeric-owner", "--preserve-permissions"]);
    command.args(["--xattrs", "--xattrs-include=*", "--file"]).arg(tar);
    command.arg("--directory").arg(tree);
    runner.run(&mut command, PATIENCE).with_context(|| {
        format!("{} cannot be unpacked: remove it, and it is made again", tar.display())
    })
}

/// Packs a tree, the same to the byte whenever its files are the same.
pub fn pack(tree: &Path, tar: &Path, epoch: u64, runner: &Runner) -> anyhow::Result<()> {
    let mut command = Command::new("tar");
    command.args(["--create", "--numeric-owner", "--sort=name", "--format=pax"]);
    command.arg("--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime");
    command.arg(format!("--mtime=@{epoch}")).args(["--xattrs", "--file"]).arg(tar);
    command.arg("--directory").arg(tree).arg(".");
    runner.run(&mut command, PATIENCE).context("cannot pack the root")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe() -> Recipe {
        Recipe { mirrors: vec![], packages: vec![], epoch: 1 }
    }

    #[test]
    fn a_recipe_is_known_by_all_that_it_says() {
        let plain = recipe().digest();
        assert_eq!(plain, recipe().digest());
        let others = [
            Recipe { packages: vec!["vim-tiny".to_owned()], ..recipe() },
            Recipe { mirrors: vec!["http://mirror.example/debian".to_owned()], ..recipe() },
            Recipe { epoch: 2, ..recipe() },
        ];
        for other in others {
            assert_ne!(other.digest(), plain);
        }
    }

    #[test]
    fn mirrors_are_lines_of_sources() {
        let line = "deb [signed-by=/k.gpg] http://m.example/debian bookworm main contrib";
        let mirrors = vec!["http://m.example/debian".to_owned(), line.to_owned()];
        let sources = Recipe { mirrors, ..recipe() }.sources();
        assert_eq!(sources, ["deb http://m.example/debian bookworm main", line]);
        assert!(recipe().sources().iter().any(|line| line.contains("bookworm-security")));
    }

    #[test]
    fn a_package_is_named_once() {
        let packages = vec!["fuse3".to_owned(), "vim-tiny".to_owned()];
        let include = Recipe { packages, ..recipe() }.include();
        assert_eq!(include.matches("fuse3").count(), 1);
        assert!(include.contains("vim-tiny"));
    }
}
