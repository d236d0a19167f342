//! What is ours in an image: this program, the names it is called by, and units of systemd.

use crate::tools::{self, Need, Runner};
use anyhow::{Context, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub const NEEDS: [Need; 1] = [tools::CHROOT];

const PATIENCE: Duration = Duration::from_secs(120);
const PROGRAM: &str = "usr/bin/tieline";
/// By which mount(8) and umount(8) call it.
const HELPERS: [&str; 4] =
    ["mount.tieline", "mount.fuse.tieline", "umount.tieline", "umount.fuse.tieline"];
const FILES: [(&str, &str); 5] = [
    ("etc/systemd/system/tieline-client.service", include_str!("units/tieline-client.service")),
    ("etc/systemd/system/tieline-job.service", include_str!("units/tieline-job.service")),
    ("etc/systemd/network/80-dhcp.network", include_str!("units/80-dhcp.network")),
    ("etc/systemd/timesyncd.conf.d/tieline.conf", include_str!("units/timesyncd.conf")),
    ("etc/hostname", "tieline-client\n"),
];
const ENABLED: [&str; 2] = ["tieline-client.service", "tieline-job.service"];
const WANTS: &str = "etc/systemd/system/multi-user.target.wants";
/// What makes one machine of all that start from the image, or was made while it was built.
const EMPTIED: [&str; 1] = ["etc/machine-id"];
const REMOVED: [&str; 5] = [
    "var/lib/dbus/machine-id",
    "var/lib/systemd/random-seed",
    "etc/krb5.keytab",
    "etc/resolv.conf",
    "etc/ld.so.cache~",
];

/// Each machine makes its own at its first boot, if it has an sshd.
const HOST_KEYS: (&str, &str) = ("etc/ssh", "ssh_host_");
/// Which mmdebstrap leaves out with what is in it; the kernel mounts its own there.
const DEVICES: &str = "dev";

/// Puts all of it into a tree. `program`: this program, for the machine. Says its version.
pub fn add(tree: &Path, program: &Path, runner: &Runner) -> anyhow::Result<String> {
    let devices = tree.join(DEVICES);
    fs::create_dir_all(&devices).with_context(|| format!("cannot make {}", devices.display()))?;
    let version = add_program(tree, program, runner)?;
    for (name, text) in FILES {
        write(tree, name, text.as_bytes(), 0o644)?;
    }
    for name in EMPTIED {
        write(tree, name, b"", 0o444)?;
    }
    for name in REMOVED {
        let _ = fs::remove_file(tree.join(name));
    }
    remove_host_keys(tree);
    link(tree, "etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf")?;
    for unit in ENABLED {
        link(tree, &format!("{WANTS}/{unit}"), &format!("/etc/systemd/system/{unit}"))?;
    }
    for helper in HELPERS {
        link(tree, &format!("usr/sbin/{helper}"), "../bin/tieline")?;
    }
    Ok(version)
}

fn remove_host_keys(tree: &Path) {
    let (folder, prefix) = HOST_KEYS;
    for entry in fs::read_dir(tree.join(folder)).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn add_program(tree: &Path, program: &Path, runner: &Runner) -> anyhow::Result<String> {
    let place = tree.join(PROGRAM);
    fs::copy(program, &place)
        .with_context(|| format!("cannot copy {} to {}", program.display(), place.display()))?;
    fs::set_permissions(&place, Permissions::from_mode(0o755))?;
    // Where binutils is; what debuggers want is most of a debug build.
    if tools::STRIP.find().is_some() {
        runner.run(tools::STRIP.command().arg(&place), PATIENCE)?;
    }
    let mut run = tools::CHROOT.command();
    run.arg(tree).arg(format!("/{PROGRAM}")).arg("version");
    let said = runner.read(&mut run, PATIENCE).with_context(|| {
        format!(
            "{} does not run on the image's Debian: build it on Debian 12 (--program FILE)",
            program.display()
        )
    })?;
    let version = said.trim().strip_prefix("tieline ").map(str::to_owned);
    version.with_context(|| format!("{} is not this program", program.display()))
}

fn write(tree: &Path, name: &str, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let path = tree.join(name);
    let write = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Never through a link that the tree may have there.
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes)?;
        fs::set_permissions(&path, Permissions::from_mode(mode))
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn link(tree: &Path, name: &str, target: &str) -> anyhow::Result<()> {
    let path = tree.join(name);
    let link = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let _ = fs::remove_file(&path);
        symlink(target, &path)
    };
    link().with_context(|| format!("cannot make {}", path.display()))
}

/// The packages of a tree with their versions, one a line.
pub fn packages(tree: &Path) -> anyhow::Result<String> {
    let mut query = Command::new("dpkg-query");
    query.arg("--admindir").arg(tree.join("var/lib/dpkg"));
    query.args(["--show", "--showformat=${Package}\\t${Version}\\t${Architecture}\\n"]);
    let output = query.output().context("cannot run dpkg-query")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "dpkg-query: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_put_into_a_tree_and_what_is_one_machines_goes() {
        let tree = tempfile::tempdir().unwrap();
        let path = |name: &str| tree.path().join(name);
        write(tree.path(), "etc/machine-id", b"0123\n", 0o644).unwrap();
        write(tree.path(), "etc/resolv.conf", b"nameserver 192.0.2.1\n", 0o644).unwrap();
        fs::create_dir_all(path("usr/bin")).unwrap();
        let runner = Runner { log: path("log") };
        // `true` does not run below another root that has nothing: the failure is said.
        let refused = add(tree.path(), Path::new("/usr/bin/true"), &runner).unwrap_err();
        assert!(format!("{refused:#}").contains("--program"), "{refused:#}");
        for (name, text) in FILES {
            write(tree.path(), name, text.as_bytes(), 0o644).unwrap();
        }
        let unit = fs::read_to_string(path("etc/systemd/system/tieline-client.service")).unwrap();
        assert!(unit.contains("tieline image first-boot"));
        assert!(!unit.contains("keytab="), "no secret's value");
    }

    #[test]
    fn a_link_in_the_tree_is_not_written_through() {
        let tree = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        fs::create_dir(tree.path().join("etc")).unwrap();
        symlink(outside.path(), tree.path().join("etc/hostname")).unwrap();
        write(tree.path(), "etc/hostname", b"x", 0o644).unwrap();
        assert_eq!(fs::read(outside.path()).unwrap(), b"");
        assert_eq!(fs::read(tree.path().join("etc/hostname")).unwrap(), b"x");
    }
}
