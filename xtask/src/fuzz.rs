//! Fuzzing of decoders. `fuzz/` is a workspace of its own: it needs a nightly compiler and
//! cargo-fuzz.

use crate::steps;
use anyhow::{Result, bail};
use std::process::Command;

pub fn run(target: &str, seconds: u32) -> Result<()> {
    let folder = steps::root().join("fuzz");
    if !folder.join("fuzz_targets").join(target).with_extension("rs").is_file() {
        bail!("there is no fuzz/fuzz_targets/{target}.rs");
    }
    // rustup's cargo, not the one that runs us: only it understands `+nightly`.
    let mut command = Command::new("cargo");
    command.current_dir(steps::root()).env_remove("RUSTUP_TOOLCHAIN");
    command.args(["+nightly", "fuzz", "run", target, "--"]);
    command.arg(format!("-max_total_time={seconds}"));
    steps::run(&mut command)
}
