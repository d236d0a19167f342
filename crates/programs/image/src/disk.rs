//! A disk of a root's tree: a GPT with an EFI system partition and an ext4 root. It starts by
//! itself, under BIOS (syslinux) and under UEFI (systemd-boot).
//!
//! No loop device, no mount: mke2fs and mtools write into files, which are put together here. The
//! file has holes where nothing was written.

use crate::tools::{self, Need, Runner};
use anyhow::{Context, ensure};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tieline_types::ByteSize;

pub const NEEDS: [Need; 8] = [
    tools::MKE2FS,
    tools::MKFS_VFAT,
    tools::MMD,
    tools::MCOPY,
    tools::SGDISK,
    tools::SYSLINUX,
    tools::GPTMBR,
    tools::SYSTEMD_BOOT,
];

const PATIENCE: Duration = Duration::from_secs(10 * 60);
const MIB: u64 = 1 << 20;
/// Kernel, first RAM disk and two boot loaders, with room for another kernel.
const ESP_MIB: u64 = 96;
/// What a root has free, beyond what its file system needs for itself.
const FREE_MIB: u64 = 256;
const PIECE: usize = 1 << 20;
/// Of the master boot record, what is program.
const MBR_CODE: u64 = 440;

// The same in every image, so that images of the same tree are alike and a machine knows its root.
const DISK_ID: &str = "7a1e11ce-0000-4000-8000-000000000000";
const ESP_ID: &str = "7a1e11ce-0000-4000-8000-000000000001";
const ROOT_ID: &str = "7a1e11ce-0000-4000-8000-000000000002";
const FAT_ID: &str = "7a1e11ce";

/// What the kernel is told by both loaders. A start that fails ends the machine, and waits for
/// nobody.
fn kernel_words() -> String {
    format!("root=PARTUUID={ROOT_ID} rw console=tty0 console=ttyS0,115200n8 quiet panic=10")
}

/// A kernel and its first RAM disk, as they lie in a tree.
pub struct Boot {
    pub version: String,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

impl Boot {
    pub fn find(tree: &Path) -> anyhow::Result<Self> {
        let boot = tree.join("boot");
        let names = fs::read_dir(&boot).with_context(|| format!("{}", boot.display()))?;
        let names = names.flatten().map(|entry| entry.file_name());
        let versions = names.filter_map(|name| {
            name.to_str().and_then(|name| name.strip_prefix("vmlinuz-")).map(str::to_owned)
        });
        let version = versions.max().context("the root has no kernel")?;
        let kernel = boot.join(format!("vmlinuz-{version}"));
        let initrd = boot.join(format!("initrd.img-{version}"));
        ensure!(initrd.exists(), "the root has no {}", initrd.display());
        Ok(Self { version, kernel, initrd })
    }
}

/// Writes a raw disk of `tree` to `raw`. `folder` is for what is needed meanwhile.
pub fn make(tree: &Path, raw: &Path, folder: &Path, runner: &Runner) -> anyhow::Result<()> {
    let boot = Boot::find(tree)?;
    let (esp, root) = (folder.join("esp"), folder.join("root.ext4"));
    make_esp(&boot, &esp, folder, runner).context("cannot make the EFI system partition")?;
    let root_mib = root_size(tree)?;
    make_root(tree, &root, root_mib, runner).context("cannot make the root's file system")?;
    // The first and the last MiB are the partition table's.
    let disk = File::create_new(raw).with_context(|| format!("cannot make {}", raw.display()))?;
    disk.set_len((1 + ESP_MIB + root_mib + 1) * MIB)?;
    make_table(raw, root_mib, runner).context("cannot make the partition table")?;
    let put = || -> std::io::Result<()> {
        put(&disk, MIB, &esp)?;
        put(&disk, (1 + ESP_MIB) * MIB, &root)?;
        let mut code = Vec::new();
        File::open(tools::GPTMBR.what)?.take(MBR_CODE).read_to_end(&mut code)?;
        (&disk).seek(SeekFrom::Start(0))?;
        (&disk).write_all(&code)?;
        disk.sync_all()
    };
    put().with_context(|| format!("cannot write {}", raw.display()))?;
    for part in [esp, root] {
        fs::remove_file(part)?;
    }
    Ok(())
}

fn make_esp(boot: &Boot, esp: &Path, folder: &Path, runner: &Runner) -> anyhow::Result<()> {
    File::create_new(esp)?.set_len(ESP_MIB * MIB)?;
    let mut format = tools::MKFS_VFAT.command();
    format.args(["-i", FAT_ID, "--invariant", "-n", "ESP", "-F", "32"]).arg(esp);
    runner.run(&mut format, PATIENCE)?;
    let words = kernel_words();
    let loader = written(folder, "loader.conf", "timeout 0\ndefault tieline\n")?;
    let entry =
        format!("title Tieline client\nlinux /vmlinuz\ninitrd /initrd.img\noptions {words}\n");
    let entry = written(folder, "tieline.conf", &entry)?;
    let bios = format!(
        "DEFAULT tieline\nPROMPT 0\nTIMEOUT 1\nSERIAL 0 115200\nLABEL tieline\n  \
         LINUX /vmlinuz\n  INITRD /initrd.img\n  APPEND {words}\n"
    );
    let bios = written(folder, "syslinux.cfg", &bios)?;
    let folders = ["EFI", "EFI/BOOT", "loader", "loader/entries", "syslinux"];
    let mut make = mtools(tools::MMD, esp);
    runner.run(make.args(folders.map(|folder| format!("::/{folder}"))), PATIENCE)?;
    let files: [(&Path, &str); 6] = [
        (&boot.kernel, "vmlinuz"),
        (&boot.initrd, "initrd.img"),
        (Path::new(tools::SYSTEMD_BOOT.what), "EFI/BOOT/BOOTX64.EFI"),
        (&loader, "loader/loader.conf"),
        (&entry, "loader/entries/tieline.conf"),
        (&bios, "syslinux/syslinux.cfg"),
    ];
    for (file, name) in files {
        let mut copy = mtools(tools::MCOPY, esp);
        runner.run(copy.arg(file).arg(format!("::/{name}")), PATIENCE)?;
    }
    let mut install = tools::SYSLINUX.command();
    install.args(["--install", "--directory", "syslinux"]).arg(esp);
    runner.run(&mut install, PATIENCE)
}

fn mtools(tool: Need, esp: &Path) -> Command {
    let mut command = tool.command();
    command.arg("-i").arg(esp).env("MTOOLS_SKIP_CHECK", "1");
    command
}

fn written(folder: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// In MiB: what is in it, a tenth for the file system itself, and room.
fn root_size(tree: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    let mut folders = vec![tree.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                // A small file takes a block.
                bytes += entry.metadata()?.len().next_multiple_of(4096);
            }
        }
    }
    let used = bytes.div_ceil(MIB);
    Ok((used + used / 10 + FREE_MIB).next_multiple_of(64))
}

fn make_root(tree: &Path, root: &Path, mib: u64, runner: &Runner) -> anyhow::Result<()> {
    let mut format = tools::MKE2FS.command();
    format.args(["-q", "-t", "ext4", "-L", "root", "-U", ROOT_ID, "-m", "0"]);
    format.args(["-E", &format!("hash_seed={DISK_ID},root_owner=0:0,lazy_itable_init=0")]);
    format.arg("-d").arg(tree).arg(root).arg(format!("{mib}M"));
    runner.run(&mut format, PATIENCE)
}

fn make_table(raw: &Path, root_mib: u64, runner: &Runner) -> anyhow::Result<()> {
    let mut table = tools::SGDISK.command();
    table.args(["-U", DISK_ID, "-n", &format!("1:2048:+{ESP_MIB}M"), "-t", "1:ef00"]);
    // What syslinux's record looks for.
    table.args(["-u", &format!("1:{ESP_ID}"), "-A", "1:set:2"]);
    table.args(["-n", &format!("2:0:+{root_mib}M"), "-t", "2:8304"]);
    table.args(["-u", &format!("2:{ROOT_ID}")]).arg(raw);
    runner.run(&mut table, PATIENCE)
}

/// Copies a partition to its place; zeros stay holes.
fn put(disk: &File, at: u64, part: &Path) -> std::io::Result<()> {
    let (part, mut disk) = (File::open(part)?, disk);
    let mut piece = Vec::with_capacity(PIECE);
    let mut place = at;
    loop {
        piece.clear();
        let read = Read::take(&part, PIECE as u64).read_to_end(&mut piece)? as u64;
        if read == 0 {
            return Ok(());
        }
        if piece.iter().any(|&byte| byte != 0) {
            disk.seek(SeekFrom::Start(place))?;
            disk.write_all(&piece)?;
        }
        place += read;
    }
}

/// The same disk as QEMU's own format, packed.
pub fn to_qcow2(raw: &Path, qcow2: &Path, runner: &Runner) -> anyhow::Result<()> {
    let mut convert = tools::QEMU_IMG.command();
    convert.args(["convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "compression_type=zstd"]);
    convert.arg(raw).arg(qcow2);
    runner.run(&mut convert, PATIENCE).context("cannot make the qcow2")?;
    let mut compare = tools::QEMU_IMG.command();
    compare.args(["compare", "-f", "raw", "-F", "qcow2"]).arg(raw).arg(qcow2);
    runner.run(&mut compare, PATIENCE).context("the qcow2 is not what the raw disk is")
}

/// What a file takes on its disk.
pub fn shown_size(path: &Path) -> anyhow::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let found = path.metadata()?;
    let (all, taken) = (ByteSize(found.len()), ByteSize(found.blocks() * 512));
    Ok(if taken.0 + MIB < all.0 {
        format!("{all}, of which {taken} are taken")
    } else {
        all.to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_of_a_tree_starts_it() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir(tree.path().join("boot")).unwrap();
        assert!(Boot::find(tree.path()).is_err());
        for name in ["vmlinuz-6.1.0-1", "vmlinuz-6.1.0-2", "initrd.img-6.1.0-2", "config-9"] {
            fs::write(tree.path().join("boot").join(name), "").unwrap();
        }
        assert_eq!(Boot::find(tree.path()).unwrap().version, "6.1.0-2");
    }

    #[test]
    fn partitions_are_put_in_place_and_holes_stay() {
        use std::os::unix::fs::{FileExt, MetadataExt};
        let folder = tempfile::tempdir().unwrap();
        let (part, disk) = (folder.path().join("part"), folder.path().join("disk"));
        let bytes = [vec![0; 2 * PIECE], vec![7; 10]].concat();
        fs::write(&part, &bytes).unwrap();
        let disk = File::options().read(true).write(true).create(true).truncate(true).open(disk);
        let disk = disk.unwrap();
        disk.set_len(8 * MIB).unwrap();
        put(&disk, MIB, &part).unwrap();
        let mut read = vec![1; 10];
        disk.read_exact_at(&mut read, 3 * MIB).unwrap();
        assert_eq!(read, [7; 10]);
        assert!(disk.metadata().unwrap().blocks() * 512 < MIB);
    }
}
