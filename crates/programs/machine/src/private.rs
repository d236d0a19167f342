//! Files that are for their owner alone: keys, passwords, and what servers remember.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The text of a file that nobody but its owner can read.
pub fn read(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let cannot = |error| format!("cannot read {shown}: {error}");
    if !is_private(path).map_err(cannot)? {
        return Err(format!("{shown} can be read by others: chmod 600 it"));
    }
    Ok(fs::read_to_string(path).map_err(cannot)?.trim().to_owned())
}

/// Can nobody but its owner read a file?
pub fn is_private(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.mode() & 0o077 == 0)
}

/// Replaces a file in one step, and makes that durable. Nobody but its owner may read it: some of
/// what servers remember is not for others.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    crate::beneath::write_whole(path, bytes, 0o600)
}
