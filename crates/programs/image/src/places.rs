//! Where images and machines are, unless they are told to be elsewhere.
//!
//! Beside what `tieline dev` keeps: `~/.local/share/tieline/images/LEVEL` and
//! `~/.local/share/tieline/machines/NAME`.

use anyhow::Context;
use std::path::{Path, PathBuf};

/// An absolute path: the one that was given, or the usual one.
pub fn image(given: Option<&Path>, level: &str) -> anyhow::Result<PathBuf> {
    match given {
        Some(path) => absolute(path),
        None => Ok(home()?.join("images").join(level)),
    }
}

pub fn machines(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    match given {
        Some(path) => absolute(path),
        None => Ok(home()?.join("machines")),
    }
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}

fn home() -> anyhow::Result<PathBuf> {
    let home = std::env::home_dir().context("no home directory: name a folder")?;
    Ok(home.join(".local/share/tieline"))
}
