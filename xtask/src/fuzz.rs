//! Fuzzing of decoders. `fuzz/` is a workspace of its own; the stable compiler is enough for it.

use crate::steps;
use anyhow::{Context, Result, bail};
use std::process::Command;

/// Count edges and see comparisons, so that libFuzzer learns from what it tries. Given to the
/// target only: with an explicit `--target`, cargo leaves build scripts alone.
const FLAGS: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=3",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

pub fn run(target: &str, seconds: u32) -> Result<()> {
    let folder = steps::root().join("fuzz");
    if !folder.join("fuzz_targets").join(target).with_extension("rs").is_file() {
        bail!("there is no fuzz/fuzz_targets/{target}.rs");
    }
    let mut seeds = steps::cargo_command();
    seeds.current_dir(&folder).args(["run", "--release", "--locked", "--bin", "seeds"]);
    steps::run(&mut seeds)?;
    let artifacts = format!("artifacts/{target}/");
    std::fs::create_dir_all(folder.join(&artifacts))?;
    let host = host()?;
    let mut command = steps::cargo_command();
    command.current_dir(&folder).env("RUSTFLAGS", FLAGS.join(" "));
    command.args(["run", "--release", "--locked", "--target", host.as_str(), "--bin", target]);
    command.args(["--", &format!("corpus/{target}")]);
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={artifacts}"));
    // An input of some kilobytes that takes more than this is a finding.
    command.args(["-timeout=5", "-rss_limit_mb=512", "-max_len=4096"]);
    steps::run(&mut command)
}

/// The compiler's own target.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).context("`rustc -vV` names no host")
}
