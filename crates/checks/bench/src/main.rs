//! `cargo xtask bench`: measures, and prints a table or JSON.

use anyhow::{Result, ensure};
use clap::Parser;
use std::path::PathBuf;
use tieline_bench::sweep::Gathered;
use tieline_bench::{Settings, connections, crowd, figure, plot, recall, small};
use tieline_types::ByteSize;

/// Measures Tieline beside references in the same run
#[derive(Parser)]
#[command(name = "tieline-bench")]
struct Arguments {
    /// A directory in a mounted federation [default: a federation that is started for this]
    #[arg(long)]
    mount: Option<PathBuf>,
    /// Where local references and the store write [default: the directory for temporary files]
    #[arg(long)]
    local: Option<PathBuf>,
    /// Parts: wire, store, metadata, scale, large, random, small, listing, sharing, programs, cost
    /// [default: all of these]; scram, tree, reads, recall, caches, flavors [default with
    /// `--charts`: all of these]; smallfiles,
    /// connections, crowd, protection
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Size of the large file
    #[arg(long, default_value = "1 GiB")]
    size: ByteSize,
    /// Small files per turn
    #[arg(long, default_value_t = 10_000)]
    files: usize,
    /// Files of the part `scale`
    #[arg(long, default_value_t = 5_000_000)]
    scale: usize,
    /// Random reads, and writes, per turn
    #[arg(long, default_value_t = 1000)]
    reads: usize,
    /// Turns that each workload takes with its references
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Twentieths of the paper's unit of a build's walk
    #[arg(long, default_value_t = 1)]
    parts: usize,
    /// A packed tree of sources for the part `tree` [default: one that is made up]
    #[arg(long)]
    tar: Option<PathBuf>,
    /// Programs of the part `smallfiles`, by their names in crates/checks/replay/corpus, or
    /// `bursts`, `walk` and other shapes [default: bursts, import_physics, git_status, ninja_build]
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// Flavor of connections over a line [default: as a federation with Kerberos has them]
    #[arg(long)]
    sec: Option<String>,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Draw the ratios, as SVG
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Vary round trips, losses, modes and clients, and draw what comes of it, one picture and one
    /// file of numbers per chart, into this folder
    #[arg(long)]
    charts: Option<PathBuf>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(clap::Subcommand)]
enum Part {
    /// One process's share of a phase on small files
    #[command(hide = true)]
    Worker { phase: String, directory: PathBuf, from: usize, to: usize },
    /// Clients that hold what a recall takes back
    #[command(hide = true)]
    Holders { mount: PathBuf, count: usize },
    /// Connections, one after the other
    #[command(hide = true)]
    Dial(connections::Dialing),
    /// Connections that say nothing
    #[command(hide = true)]
    Crowd { address: String, count: usize, seconds: u64 },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.part {
        Some(Part::Worker { phase, directory, from, to }) => {
            return small::work(&phase, &directory, from..to);
        }
        Some(Part::Holders { mount, count }) => return recall::hold(&mount, count),
        Some(Part::Dial(dialing)) => return connections::dial(&dialing),
        Some(Part::Crowd { address, count, seconds }) => {
            return crowd::stand(&address, count, seconds);
        }
        None => {}
    }
    let settings = Settings {
        program: std::env::current_exe()?,
        local: arguments.local.unwrap_or_else(std::env::temp_dir),
        mount: arguments.mount,
        only: arguments.only,
        size: arguments.size.0,
        files: arguments.files,
        scale: arguments.scale,
        reads: arguments.reads,
        turns: arguments.turns,
        parts: arguments.parts,
        tar: arguments.tar,
        programs: arguments.programs,
        sec: arguments.sec,
        charts: arguments.charts,
    };
    let Gathered { figures, failed, .. } = tieline_bench::run(&settings);
    if let Some(path) = arguments.plot {
        std::fs::write(path, plot::svg(&figures))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        print!("{}", figure::table(&figures));
    }
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}
