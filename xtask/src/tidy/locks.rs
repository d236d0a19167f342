//! Documents locked to code: each must hold the hash of the source it describes.

use super::Findings;
use crate::docs::{LOCKS, lock_line};
use anyhow::Result;
use std::path::Path;

pub fn look(root: &Path, findings: &mut Findings) -> Result<()> {
    for (document, source) in LOCKS {
        let Ok(text) = std::fs::read_to_string(root.join(document)) else {
            findings.failures.push(format!("{document} is missing: it describes {source}"));
            continue;
        };
        let line = lock_line(source)?;
        if !text.lines().any(|present| present == line) {
            findings.failures.push(format!(
                "{source} has moved and {document} has not: read it again, then `cargo xtask docs`"
            ));
        }
    }
    Ok(())
}
