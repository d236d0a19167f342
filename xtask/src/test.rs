//! Single layers of the tests, for who works on one of them. The lab needs `/dev/fuse` and, for a
//! few tests, root; `make test` sets that up.

use crate::steps;
use anyhow::Result;
use std::path::PathBuf;

const NOTHING: &[&str] = &[];

/// The suites that every implementation of a seam passes.
pub fn conform() -> Result<()> {
    let seams = ["--package", "tieline-kv", "--package", "tieline-blob"];
    steps::cargo(&["test"], &[&seams[..], &["conform"]].concat())
}

pub fn sim(seed: Option<u64>) -> Result<()> {
    let chosen = seed.map(|seed| ["--seed".to_owned(), seed.to_string()]);
    let chosen = chosen.iter().flatten().collect::<Vec<_>>();
    steps::cargo(&["run", "--package", "tieline-sim", "--"], &chosen)
}

/// Tests named after a crash, in every room that writes to disk.
pub fn crash() -> Result<()> {
    let rooms = ["test", "--package", "tieline-kv", "--package", "tieline-meta", "crash"];
    steps::cargo(&rooms, NOTHING)?;
    steps::cargo(&["test", "--package", "tieline-blob", "--test", "crash"], NOTHING)
}

pub fn lab(filter: Option<&str>, is_matrix: bool) -> Result<()> {
    // Built first, so that its messages show and no test waits for it.
    steps::cargo(&["build", "--package", "tieline"], NOTHING)?;
    let mut command = steps::cargo_command();
    command.args(["test", "--package", "tieline-lab", "--no-fail-fast"]).args(filter);
    if is_matrix {
        command.env("TIELINE_MATRIX", "1");
    }
    steps::run(&mut command)
}

/// Tests that are ignored elsewhere: they take minutes, and need what no distribution has.
pub fn patroni(place: Option<PathBuf>) -> Result<()> {
    let mut command = steps::cargo_command();
    command.args(["test", "--package", "tieline-kv", "--lib", "patroni", "--"]);
    command.args(["--ignored", "--nocapture"]);
    if let Some(place) = place {
        command.env("TIELINE_PATRONI", place);
    }
    steps::run(&mut command)
}

/// Golden files are written by the tests that compare them, when asked.
pub fn bless() -> Result<()> {
    let mut command = steps::cargo_command();
    command.args(["test", "--package", "tieline-wire", "--package", "tieline-format", "golden"]);
    steps::run(command.env("TIELINE_BLESS", "1"))
}
