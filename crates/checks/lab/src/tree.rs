//! What a directory tree looks like: for comparing two of them, entry by entry.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Every entry by its path, with a line that says all a program could see of it.
pub fn describe(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut entries = BTreeMap::new();
    walk(root, root, &mut entries)?;
    Ok(entries)
}

/// Fails with the first differences.
pub fn compare(one: &Path, other: &Path) -> Result<()> {
    let (left, right) = (describe(one)?, describe(other)?);
    if left == right {
        return Ok(());
    }
    let paths: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let differences: Vec<_> = paths
        .into_iter()
        .filter(|path| left.get(*path) != right.get(*path))
        .map(|path| format!("{path:?}: {:?} against {:?}", left.get(path), right.get(path)))
        .take(10)
        .collect();
    bail!("{one:?} and {other:?} differ:\n{}", differences.join("\n"))
}

fn walk(root: &Path, folder: &Path, entries: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("{folder:?}"))? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path).with_context(|| format!("{path:?}"))?;
        entries.insert(path.strip_prefix(root)?.to_owned(), line(&path, &metadata)?);
        if metadata.is_dir() {
            walk(root, &path, entries)?;
        }
    }
    Ok(())
}

fn line(path: &Path, metadata: &fs::Metadata) -> Result<String> {
    let kind = metadata.file_type();
    let mode = metadata.mode() & 0o7777;
    let owner = format!("{mode:04o} {}:{}", metadata.uid(), metadata.gid());
    let what = if kind.is_symlink() {
        // The mode of a symlink means nothing.
        return Ok(format!("symlink to {:?}", fs::read_link(path)?));
    } else if kind.is_dir() {
        "directory".to_owned()
    } else if kind.is_fifo() {
        "fifo".to_owned()
    } else {
        let bytes = fs::read(path).with_context(|| format!("reading {path:?}"))?;
        let times = (metadata.mtime(), metadata.mtime_nsec());
        let links = metadata.nlink();
        format!("file {} {:08x} {times:?} links {links}", bytes.len(), digest(&bytes))
    };
    Ok(format!("{owner} {what}"))
}

/// FNV-1a: notices a difference.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
