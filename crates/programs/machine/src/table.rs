//! The kernel's table of mounts: is something mounted there, and how is it taken away?

use anyhow::{Context, bail};
use rustix::mount::UnmountFlags;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Is anything mounted exactly there?
pub fn is_mounted(mountpoint: &Path) -> bool {
    all().iter().any(|path| path == mountpoint)
}

/// Mounts below a directory, itself included.
pub fn below(directory: &Path) -> Vec<PathBuf> {
    all().into_iter().filter(|path| path.starts_with(directory)).collect()
}

/// Unmounts, unless it is in use.
pub fn unmount(mountpoint: &Path) -> anyhow::Result<()> {
    remove(mountpoint, UnmountFlags::NOFOLLOW, "-u")
}

/// Takes a mount out of the tree at once; it ends when its last user leaves.
pub fn detach(mountpoint: &Path) -> anyhow::Result<()> {
    remove(mountpoint, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW, "-uz")
}

fn remove(mountpoint: &Path, flags: UnmountFlags, flag: &str) -> anyhow::Result<()> {
    let shown = mountpoint.display();
    if rustix::process::geteuid().is_root() {
        return rustix::mount::unmount(mountpoint, flags)
            .with_context(|| format!("cannot unmount {shown}"));
    }
    let output = Command::new("fusermount3").arg(flag).arg("--").arg(mountpoint).output();
    let output = output.context("cannot run fusermount3, which unmounts for users")?;
    if !output.status.success() {
        bail!("cannot unmount {shown}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Is that the device of a mount of ours?
pub fn is_ours(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = format!("{major}:{minor}");
    read().split(|&byte| byte == b'\n').any(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let is_there = words.nth(2) == Some(device.as_bytes());
        is_there && words.skip_while(|&word| word != b"-").nth(1) == Some(b"fuse.tieline")
    })
}

/// Major and minor number of what is mounted there, as the table writes them. The mount is not
/// asked.
pub fn device_at(mountpoint: &Path) -> Option<String> {
    // What was mounted last lies on top.
    lines(&read())
        .filter(|words| words.get(4).map(|path| unescape(path)).as_deref() == Some(mountpoint))
        .filter_map(|words| String::from_utf8(words.get(2)?.to_vec()).ok())
        .last()
}

/// Is the file system with that device read-only, all its mounts taken together? `None` if it is
/// mounted nowhere here.
pub fn is_read_only(device: &str) -> Option<bool> {
    let table = read();
    let line = lines(&table).find(|words| words.get(2) == Some(&device.as_bytes()))?;
    let options = line.iter().skip_while(|&&word| word != b"-").nth(3)?;
    Some(options.split(|&byte| byte == b',').any(|option| option == b"ro"))
}

/// The words of each line.
fn lines(table: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let lines = table.split(|&byte| byte == b'\n');
    lines.map(|line| line.split(|&byte| byte == b' ').collect())
}

fn all() -> Vec<PathBuf> {
    let table = read();
    let lines = table.split(|&byte| byte == b'\n');
    lines.filter_map(|line| line.split(|&byte| byte == b' ').nth(4)).map(unescape).collect()
}

fn read() -> Vec<u8> {
    std::fs::read("/proc/self/mountinfo").unwrap_or_default()
}

/// Spaces and the like are written as `\040`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, code) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// As the table writes it: absolute, symlinks resolved. What is mounted is not touched: it may be
/// dead, or wait for servers that are away.
pub fn mountpoint(path: &Path) -> PathBuf {
    let whole = crate::paths::absolute(path);
    if is_mounted(&whole) {
        return whole;
    }
    match std::fs::symlink_metadata(&whole) {
        Ok(metadata) if metadata.is_symlink() => whole.canonicalize().unwrap_or(whole),
        _ => PathBuf::from(std::ffi::OsStr::from_bytes(whole.as_os_str().as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        assert!(is_mounted(Path::new("/proc")));
        assert!(!is_mounted(Path::new("/proc/self")));
        assert_eq!(unescape(br"/a\040b\134c"), Path::new(r"/a b\c"));
    }
}
