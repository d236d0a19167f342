//! The project's own commands: `cargo xtask NAME`. One file per command; each mostly calls cargo.
//!
//! `check` before every commit, `test` before every merge; the rest are parts of these two, or
//! tools.

mod bench;
mod check;
mod docs;
mod failures;
mod fuzz;
mod run;
mod slow;
mod steps;
mod test;
mod tests;
mod tidy;
mod wan;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tieline's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Formatting, clippy without a warning, tidy
    Check,
    /// All that must hold before a change lands: `check`, every test, decoders, the lab
    Test,
    /// One conformance suite per seam, on every implementation
    Conform,
    /// The whole system in a simulated world
    Sim {
        /// Play this seed only, as a failure's message says
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Die at each named crash point, reopen, check
    Crash,
    /// Real processes and real mounts
    Lab {
        /// Only tests whose name contains this
        filter: Option<String>,
        /// Tests of two clients in every setting: both trees, near and far, proven or not
        #[arg(long)]
        matrix: bool,
    },
    /// Metadata on three nodes of PostgreSQL that fail over: minutes, and no part of `test`
    Patroni {
        /// Where `pip install --target` put Patroni; without it, TIELINE_PATRONI
        place: Option<std::path::PathBuf>,
    },
    /// Feed a decoder with invented bytes
    Fuzz {
        target: String,
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Keep what it found worth keeping among the sources
        #[arg(long)]
        keep: bool,
    },
    /// Rewrite the golden files; the diff is the review
    Bless,
    /// Rewrite generated pages and the hashes that lock documents to code
    Docs {
        /// Change nothing; fail if something would change
        #[arg(long)]
        check: bool,
    },
    /// The laws of the house: arrows, sizes, words, locked documents
    Tidy,
    /// Benchmarks, in a release build
    #[command(trailing_var_arg = true, allow_hyphen_values = true)]
    Bench { arguments: Vec<String> },
    /// A command at one end of an emulated line: `--rtt 50ms --rate 1gbit -- COMMAND`
    #[command(trailing_var_arg = true, allow_hyphen_values = true)]
    Wan { arguments: Vec<String> },
    /// The program itself, in a debug build
    #[command(trailing_var_arg = true, allow_hyphen_values = true)]
    Run { arguments: Vec<String> },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Check => check::run(),
        Command::Test => run::all(),
        Command::Conform => test::conform(),
        Command::Sim { seed } => test::sim(seed),
        Command::Crash => test::crash(),
        Command::Lab { filter, matrix } => test::lab(filter.as_deref(), matrix),
        Command::Patroni { place } => test::patroni(place),
        Command::Fuzz { target, seconds, keep } => fuzz::run(&target, seconds, keep),
        Command::Bless => test::bless(),
        Command::Docs { check } => docs::run(check, docs::tieline),
        Command::Tidy => tidy::run(),
        Command::Bench { arguments } => bench::run(&arguments),
        Command::Wan { arguments } => wan::run(&arguments),
        Command::Run { arguments } => {
            steps::cargo(&["run", "--package", "tieline", "--"], &arguments)
        }
    }
}
