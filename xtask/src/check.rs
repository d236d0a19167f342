//! What must hold before every commit: formatting, clippy, tidy.

use crate::{docs, steps, tidy};
use anyhow::{Result, bail};

const NOTHING: &[&str] = &[];

pub fn run() -> Result<()> {
    formatting()?;
    clippy()?;
    tidy::run()?;
    docs::run(true, docs::tieline)
}

pub fn formatting() -> Result<()> {
    if !has("fmt")? {
        return Ok(());
    }
    steps::cargo(&["fmt", "--all", "--check"], NOTHING)
}

pub fn clippy() -> Result<()> {
    if !has("clippy")? {
        return Ok(());
    }
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    steps::cargo(&clippy, NOTHING)
}

/// Has this cargo such a part? Where everything is to be checked (`CI=1`) it must.
fn has(part: &str) -> Result<bool> {
    let output = steps::cargo_command().args([part, "--version"]).output()?;
    let is_everything = std::env::var_os("CI").is_some_and(|value| value == "1");
    if !output.status.success() && is_everything {
        bail!("CI=1, and yet there is no `cargo {part}`");
    }
    if !output.status.success() {
        eprintln!("SKIPPED: there is no `cargo {part}` (rustup component add rustfmt clippy)");
    }
    Ok(output.status.success())
}
