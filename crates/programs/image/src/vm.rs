//! `tieline vm`: machines of this host, under QEMU.
//!
//! A machine is a folder that `image enroll` made: what it is given at its first boot, and while it
//! runs its process, its console's log and its control socket. Its disk is the image's; what it
//! writes there is gone with it, since all that is to stay is in the file system that it mounts.
//!
//! * [`start`]: starts one, and waits for what it says ([`crate::markers`]).
//! * [`qemu`]: the words of QEMU. [`control`]: orders to one that runs.
//! * [`running`]: which process a machine is.
//!
//! Invariants: a machine is known by its process's pid and start time; one start at a time; every
//! wait has an end.

mod control;
mod qemu;
mod running;
mod start;

pub use control::answer;

use crate::{machine, places};
use std::path::PathBuf;
use tieline_base::report::usage;
use tieline_types::Span;

/// Start, list, show and stop virtual clients.
#[derive(clap::Subcommand, Debug)]
pub enum Vm {
    /// Start a machine that was enrolled; it stays when its file system is mounted
    Start(Start),
    /// List the machines, and say which run
    List {
        #[command(flatten)]
        machines: Machines,
        #[arg(long)]
        json: bool,
    },
    /// Show what a machine said on its console
    Console {
        name: String,
        #[command(flatten)]
        machines: Machines,
    },
    /// Power a machine off in good order
    Stop {
        name: String,
        /// Pull the plug instead: what its programs wrote in the last seconds may be lost
        #[arg(long)]
        force: bool,
        /// How long its end may take
        #[arg(long, value_name = "SPAN", default_value = "2 min")]
        within: Span,
        #[command(flatten)]
        machines: Machines,
    },
}

#[derive(clap::Args, Debug)]
pub struct Start {
    /// As it was enrolled
    pub name: String,
    /// Run this file as a shell script in its file system, show what it says, and power off
    #[arg(long, value_name = "FILE")]
    pub run: Option<PathBuf>,
    /// The image's folder; by default ~/.local/share/tieline/images/client
    #[arg(long, value_name = "DIR")]
    pub image: Option<PathBuf>,
    /// Memory
    #[arg(long, value_name = "SIZE", default_value = "1 GiB")]
    pub memory: tieline_types::ByteSize,
    /// Processors
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub cpus: u16,
    /// What the machine runs on: the host's processor by KVM (`auto`: if that works here), or
    /// QEMU's translator
    #[arg(long, value_enum, default_value = "auto")]
    pub accel: qemu::Accel,
    /// How long until its file system is mounted
    #[arg(long, value_name = "SPAN", default_value = "5 min")]
    pub within: Span,
    /// How long its job may take
    #[arg(long, value_name = "SPAN", default_value = "1 h", requires = "run")]
    pub job_within: Span,
    #[command(flatten)]
    pub machines: Machines,
}

#[derive(clap::Args, Debug)]
pub struct Machines {
    /// The folder of all machines; by default ~/.local/share/tieline/machines
    #[arg(long = "machines", value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Machines {
    fn all(&self) -> anyhow::Result<PathBuf> {
        places::machines(self.dir.as_deref())
    }

    /// The folder of one.
    fn one(&self, name: &str) -> anyhow::Result<PathBuf> {
        machine::check_name(name).map_err(|error| usage(error.to_string()))?;
        Ok(self.all()?.join(name))
    }
}

pub fn run(verb: Vm) -> anyhow::Result<()> {
    match verb {
        Vm::Start(args) => start::run(&args),
        Vm::List { machines, json } => running::list(&machines.all()?, json),
        Vm::Console { name, machines } => running::console(&machines.one(&name)?),
        Vm::Stop { name, force, within, machines } => {
            control::stop(&machines.one(&name)?, &name, force, within.0)
        }
    }
}
