//! What must hold before every commit: formatting, clippy, tidy.

use crate::{docs, steps, tidy};
use anyhow::Result;

const NOTHING: &[&str] = &[];

pub fn run() -> Result<()> {
    steps::cargo(&["fmt", "--all", "--check"], NOTHING)?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];
    steps::cargo(&clippy, NOTHING)?;
    tidy::run()?;
    docs::run(true)
}
