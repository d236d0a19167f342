//! The process, or thread, that plays lines.

use super::line::Line;
use crate::state::Process;
use rustix::process::setpriority_process;
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use tieline_wan::{Link, Relay};

/// Before whoever computes: packets that are late because of a busy machine are none of the line's.
const PRIORITY: i32 = -15;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where it takes orders
    #[arg(long)]
    socket: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// `NAME=NETNS:DEVICE,NETNS:DEVICE,RTT,RATE,LOSS,QUEUE`
    #[arg(long)]
    line: Vec<Line>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    play(&args.line, args.seed, &args.socket)
}

/// The process of a federation that plays these lines, if there are any.
pub fn process(dir: &Path, lines: &[Line], seed: u64) -> Option<Process> {
    if lines.is_empty() {
        return None;
    }
    let socket = super::socket(dir);
    let mut argv = ["dev", "wan", "relay", "--socket"].map(str::to_owned).to_vec();
    argv.extend([socket.display().to_string(), "--seed".into(), seed.to_string()]);
    argv.extend(lines.iter().flat_map(|line| ["--line".to_owned(), line.to_words()]));
    Some(Process {
        name: "wan".to_owned(),
        argv,
        log: dir.join("logs").join("wan.log"),
        address: None,
        admin: String::new(),
        socket: Some(socket),
        mountpoint: None,
        netns: None,
        process: None,
    })
}

/// Plays lines with this thread, until something breaks.
pub fn play(lines: &[Line], seed: u64, socket: &Path) -> anyhow::Result<()> {
    let mut links = Vec::new();
    for (line, seed) in lines.iter().zip(seed..) {
        links.push(Link::new(&line.name, line.open()?, line.quality, seed));
    }
    // Not allowed is no reason to stop: the line is a little less even.
    let _ = setpriority_process(None, PRIORITY);
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    Ok(Relay::new(links)?.run(socket)?)
}
