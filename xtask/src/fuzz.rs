//! A decoder fed by libFuzzer. `fuzz/` is a workspace of its own; the stable compiler is enough for
//! it.

use crate::steps;
use anyhow::{Context, Result, bail};
use std::fs;
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

/// An input of some kilobytes that takes more than this is a finding.
const LIMITS: [&str; 3] = ["-timeout=5", "-rss_limit_mb=512", "-max_len=4096"];

/// Feeds a decoder; what is found worth keeping is kept if `keeps` says so.
pub fn run(target: &str, seconds: u32, keeps: bool) -> Result<()> {
    let folder = steps::root().join("fuzz");
    if !folder.join("fuzz_targets").join(target).with_extension("rs").is_file() {
        bail!("there is no fuzz/fuzz_targets/{target}.rs");
    }
    let corpus = folder.join("corpus").join(target);
    decoders(&["seeds", target, &corpus.to_string_lossy()])?;
    let artifacts = format!("artifacts/{target}/");
    fs::create_dir_all(folder.join(&artifacts))?;
    let found = format!("corpus/{target}");
    let host = host()?;
    let run = |words: &[&str]| {
        let mut command = steps::cargo_command();
        command.current_dir(&folder).env("RUSTFLAGS", FLAGS.join(" "));
        command.args(["run", "--release", "--locked", "--target", host.as_str(), "--bin", target]);
        steps::run(command.arg("--").args(words).args(LIMITS))
    };
    let time = format!("-max_total_time={seconds}");
    run(&[&found, &time, &format!("-artifact_prefix={artifacts}")])?;
    if !keeps {
        return Ok(());
    }
    let fewest = folder.join("corpus").join(format!("{target}-fewest"));
    fs::create_dir_all(&fewest)?;
    run(&["-merge=1", &fewest.to_string_lossy(), &found])?;
    decoders(&["keep", target, &fewest.to_string_lossy()])?;
    Ok(fs::remove_dir_all(&fewest)?)
}

fn decoders(words: &[&str]) -> Result<()> {
    steps::cargo(&["run", "--quiet", "--package", "tieline-decoders", "--"], words)
}

/// The compiler's own target.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).context("`rustc -vV` names no host")
}
