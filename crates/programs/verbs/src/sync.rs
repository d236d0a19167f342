//! `tieline sync`: everything that was done through a mount is durable when it ends.
//!
//! A mount hears nothing of sync(2) and syncfs(2); it takes an fsync of its uppermost directory for
//! all of it.

use anyhow::{Context, Result, bail};
use std::fs::{File, Metadata, canonicalize, metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tieline_machine::table;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Paths below mounts
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    for path in &args.paths {
        let shown = path.display();
        let (top, device) = uppermost(path).with_context(|| format!("cannot find {shown}"))?;
        if !table::is_ours(device) {
            bail!("{shown} is not below a tieline mount: nothing was synced");
        }
        let synced = File::open(&top).and_then(|directory| directory.sync_all());
        synced.with_context(|| {
            let top = top.display();
            format!("not everything that was done below {top} is durable: see the mount's log")
        })?;
    }
    Ok(())
}

/// The directory where the file system that holds `path` is mounted.
fn uppermost(path: &Path) -> std::io::Result<(PathBuf, u64)> {
    let path = canonicalize(path)?;
    let device = metadata(&path)?.dev();
    let is_inside =
        |above: &&Path| metadata(above).is_ok_and(|above: Metadata| above.dev() == device);
    let above = path.ancestors().take_while(is_inside).last().unwrap_or(&path);
    Ok((above.to_path_buf(), device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_found_is_named() {
        let error = run(&Args { paths: vec!["/nowhere/at/all".into()] }).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere/at/all"));
        assert_eq!(uppermost(Path::new("/proc/self")).unwrap().0, Path::new("/proc"));
        let error = run(&Args { paths: vec!["/proc/self".into()] }).unwrap_err();
        assert!(error.to_string().contains("/proc/self is not below a tieline mount"), "{error}");
    }
}
