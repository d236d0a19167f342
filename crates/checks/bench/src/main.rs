//! `cargo xtask bench`: measures, and prints a table or JSON.

use anyhow::Result;
use clap::Parser;
use std::path::PathBuf;
use tieline_bench::{Settings, figure};
use tieline_types::ByteSize;

/// Measures Tieline beside references in the same run
#[derive(Parser)]
#[command(name = "tieline-bench")]
struct Arguments {
    /// A directory in a mounted federation, to be measured too
    #[arg(long)]
    mount: Option<PathBuf>,
    /// Where local references and the store write [default: the directory for temporary files]
    #[arg(long)]
    local: Option<PathBuf>,
    /// Size of the large file
    #[arg(long, default_value = "1 GiB")]
    size: ByteSize,
    /// Small files per turn
    #[arg(long, default_value_t = 1000)]
    files: usize,
    /// Random reads per turn
    #[arg(long, default_value_t = 1000)]
    reads: usize,
    /// Turns that each workload takes with its references
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let figures = tieline_bench::run(&Settings {
        local: arguments.local.unwrap_or_else(std::env::temp_dir),
        mount: arguments.mount,
        size: arguments.size.0,
        files: arguments.files,
        reads: arguments.reads,
        turns: arguments.turns,
    })?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        print!("{}", figure::table(&figures));
    }
    Ok(())
}
