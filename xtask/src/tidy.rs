//! The laws of the house that a program can watch over.
//!
//! * [`arrows`]: which room may depend on which.
//! * [`rooms`]: how large each is, and how many of its files hang together.
//! * [`text`]: what each source file looks like: header, line and file length, words, `select!`.
//! * [`locks`]: documents that are tied to code by a hash.
//! * [`promises`]: docs/semantics.md, sentence by sentence above the tests that prove it.
//!
//! Failures are listed together and fail the run; warnings are only listed.

mod arrows;
mod locks;
mod promises;
mod rooms;
mod text;

use crate::steps;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// What was found.
#[derive(Default)]
pub struct Findings {
    pub failures: Vec<String>,
    pub warnings: Vec<String>,
}

pub fn run() -> Result<()> {
    let root = steps::root();
    let mut findings = Findings::default();
    arrows::look(&root, &mut findings)?;
    rooms::look(&root, &mut findings)?;
    text::look(&root, &mut findings)?;
    locks::look(&root, &mut findings)?;
    promises::look(&root, &mut findings)?;
    for warning in &findings.warnings {
        eprintln!("warning: {warning}");
    }
    for failure in &findings.failures {
        eprintln!("error: {failure}");
    }
    if !findings.failures.is_empty() {
        bail!("tidy: {} failures", findings.failures.len());
    }
    eprintln!("tidy: fine, {} warnings", findings.warnings.len());
    Ok(())
}

/// Every file below `folder`, except what was built or is hidden.
pub fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "target" || name.to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
