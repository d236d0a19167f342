//! A whole federation on this machine: servers of several sites and mounts, as processes of this
//! very program.
//!
//! `dev up` generates keys, a signed map and settings ([`plan`]), starts every process and waits
//! until it says that it is ready ([`processes`]), and writes down what it started ([`state`]);
//! with `--doors` one process more serves other protocols ([`doors`], [`token`]);
//! `dev kill`, `start` and `restart` play with it ([`control`]), `dev down` takes all of it away.
//! With `--netns` each site is a network namespace behind a router ([`netns`]), and clients and
//! sites may be far from it ([`wan`]).
//!
//! Invariants: only processes, mounts, namespaces and files that were made here are ended or
//! removed; a process is known by pid and start time; every wait has an end.

mod control;
mod doors;
mod down;
mod health;
mod kdc;
mod netns;
mod plan;
mod processes;
mod state;
mod token;
mod up;
mod user;
mod wan;

use anyhow::Context;
use std::path::PathBuf;
use tieline_types::SiteName;

#[derive(clap::Subcommand, Debug)]
pub enum Dev {
    /// Start a federation, and mount it
    Up(Up),
    /// Mount the federation once more, as another client
    Mount {
        /// Where
        mountpoint: PathBuf,
        /// With --netns: a client at this site, and not far from all of them
        #[arg(long)]
        site: Option<SiteName>,
        /// More options of the mount
        #[arg(short = 'o', value_name = "OPTIONS")]
        options: Option<String>,
        #[command(flatten)]
        dir: Dir,
    },
    /// Show what runs, and how it is
    Status {
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        dir: Dir,
    },
    /// Make a token for the door of a federation that was started with --doors
    Token(token::Args),
    /// Kill a process
    Kill {
        /// As `dev status` names it
        #[arg(required_unless_present = "random", conflicts_with = "random")]
        name: Option<String>,
        /// Any process
        #[arg(long)]
        random: bool,
        /// And start it again
        #[arg(long)]
        restart: bool,
        /// Another signal
        #[arg(long, default_value = "KILL")]
        signal: String,
        #[command(flatten)]
        dir: Dir,
    },
    /// Start a process that does not run
    Start {
        name: String,
        #[command(flatten)]
        dir: Dir,
    },
    /// End a process in good order, and start it again
    Restart {
        name: String,
        #[command(flatten)]
        dir: Dir,
    },
    /// Change the emulated line of a federation, or run a command at one end of such a line
    #[command(subcommand)]
    Wan(wan::Wan),
    /// End the federation and remove all of it
    Down {
        #[command(flatten)]
        dir: Dir,
    },
}

#[derive(clap::Args, Debug)]
pub struct Up {
    #[command(flatten)]
    pub dir: Dir,
    /// Where the file system appears; by default `mnt` in the federation's folder
    #[arg(long)]
    pub mount: Option<PathBuf>,
    /// The sites, the first with the root MDT
    #[arg(long, value_delimiter = ',', default_value = "uf,fnal")]
    pub sites: Vec<SiteName>,
    /// A KDC of its own (realm EXTENCI.ORG): krb5p between client and MDS, krb5i elsewhere
    #[arg(long)]
    pub kerberos: bool,
    /// Protection of all connections: null, krb5n, krb5a, krb5i or krb5p
    #[arg(long)]
    pub sec: Option<String>,
    /// With a KDC, what the servers believe of the machine whose mounts these are: squash, root,
    /// users or all (see `tieline id machine`). By default `root`, so that users show tickets;
    /// `all` if it is not root who runs this
    #[arg(long, value_name = "RULE")]
    pub machine: Option<tieline_types::MachineTrust>,
    /// With a KDC, a door at the first site: https:// for tickets and tokens (`dev token`), root://
    /// for tickets
    #[arg(long)]
    pub doors: bool,
    /// With a KDC, servers have the keys of their machines only (`host/HOST`)
    #[arg(long, hide = true)]
    pub host_keys: bool,
    /// Each site in a network namespace of its own (root only)
    #[arg(long)]
    pub netns: bool,
    /// With --netns: IP versions that servers announce, in their order: 4, 6, 46 or 64
    #[arg(long, default_value = "4", value_parser = ["4", "6", "46", "64"])]
    pub ip: String,
    #[command(flatten)]
    pub line: wan::line::Asked,
    /// Round-trip time between two sites; the clients stay as far from each as --rtt says
    #[arg(long)]
    pub between_sites: Option<tieline_wan::Distance>,
    /// The MDTs' engine: `embedded`, `memory`, or `postgres=CONNECTION` (libpq's words or a URL)
    #[arg(long, default_value = "embedded")]
    pub engine: String,
    /// A tree whose files the first OST may adopt: `tieline import --in-place`
    #[arg(long, value_name = "DIR")]
    pub adopt: Option<PathBuf>,
    /// How long clients may believe what they were told
    #[arg(long, default_value = "20 s")]
    pub lease: tieline_types::Span,
    /// Each MDT keeps a change log; not by default: on one disk with the store it is flushed twice
    #[arg(long)]
    pub log: bool,
    /// As whom the servers run, if root starts them; by default `nobody` with --kerberos, else root
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Say what was started as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args, Debug, Clone)]
pub struct Dir {
    /// The federation's folder; by default ~/.local/share/tieline/dev
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Dir {
    /// Absolute.
    pub fn path(&self) -> anyhow::Result<PathBuf> {
        let path = match &self.dir {
            Some(dir) => dir.clone(),
            None => {
                let home = std::env::home_dir().context("no home directory: give --dir")?;
                home.join(".local/share/tieline/dev")
            }
        };
        std::path::absolute(&path).with_context(|| format!("{}", path.display()))
    }
}

pub fn run(verb: Dev) -> anyhow::Result<()> {
    match verb {
        Dev::Up(up) => up::run(&up),
        Dev::Mount { mountpoint, site, options, dir } => {
            let more = up::MountMore { site, options };
            up::mount_again(&dir.path()?, &mountpoint, &more)
        }
        Dev::Status { json, dir } => control::status(&dir.path()?, json),
        Dev::Token(args) => token::run(&args),
        Dev::Kill { name, restart, signal, dir, .. } => {
            control::kill(&dir.path()?, name.as_deref(), &signal, restart)
        }
        Dev::Start { name, dir } => control::start(&dir.path()?, &name),
        Dev::Restart { name, dir } => control::restart(&dir.path()?, &name),
        Dev::Wan(verb) => wan::run(verb),
        Dev::Down { dir } => down::run(&dir.path()?),
    }
}
