//! `tieline dev wan`: the emulated line of a federation, or of a command, and how it is changed.
//!
//! * [`line`]: what is asked of a line, and where its ends are. * [`relay`]: the process that plays
//!   it. * [`run`]: two namespaces with a line between them, for one command.
//!
//! Invariant: the relay's socket lies in the folder of what it was made for, and goes with it.

pub mod line;
pub mod relay;
pub mod run;

use crate::Dir;
use anyhow::Context;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tieline_wan::{Distance, Loss, Queue, Rate};

#[derive(clap::Subcommand, Debug)]
pub enum Wan {
    /// Tell how the line is, and what crossed it
    Show {
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        which: Which,
    },
    /// Change the round-trip time
    Rtt {
        rtt: Distance,
        #[command(flatten)]
        which: Which,
    },
    /// Change the rate, that of each direction
    Rate {
        /// Such as 100mbit, or `unlimited`
        rate: Rate,
        #[command(flatten)]
        which: Which,
    },
    /// Change the share of packets that are lost
    Loss {
        loss: Loss,
        #[command(flatten)]
        which: Which,
    },
    /// Change how much may wait for its turn
    Queue {
        /// A size, or `bdp`
        queue: Queue,
        #[command(flatten)]
        which: Which,
    },
    /// Cut the line
    Cut {
        /// In one direction only: `to-servers` or `to-clients`
        #[arg(long, value_parser = ["to-servers", "to-clients"])]
        one_way: Option<String>,
        #[command(flatten)]
        which: Which,
    },
    /// Make it whole
    Heal {
        #[command(flatten)]
        which: Which,
    },
    /// Put the clients behind one address: `on`, `off`, or `rebind` to another one
    Nat {
        #[arg(value_parser = ["on", "off", "rebind"])]
        what: String,
        #[command(flatten)]
        which: Which,
    },
    /// Carry packets of these IP versions only: `6`, `4`, or `46` for both
    Ip {
        #[arg(value_parser = ["4", "6", "46"])]
        versions: String,
        #[command(flatten)]
        which: Which,
    },
    /// Do such things at their times, from now on and in the background: `cut@5s heal@15s
    /// rtt=100ms@20s ip=6@30s`. Takes the place of a script that is played; an empty one stops it
    Script {
        steps: String,
        #[command(flatten)]
        which: Which,
    },
    /// Run a command at one end of a line, with a namespace for its servers at the other
    Run(run::Args),
    /// Play lines until the end of the process
    #[command(hide = true)]
    Relay(relay::Args),
}

/// Whose line, and which.
#[derive(clap::Args, Debug, Clone)]
pub struct Which {
    /// `clients`, or a site if sites have lines; by default all
    #[arg(long, value_name = "NAME")]
    link: Option<String>,
    #[command(flatten)]
    dir: Dir,
}

pub fn run(verb: Wan) -> anyhow::Result<()> {
    match verb {
        Wan::Show { json: true, which } => {
            println!("{}", order(&which, "show")?);
            Ok(())
        }
        Wan::Show { json: false, which } => print(&order(&which, "show")?),
        Wan::Rtt { rtt, which } => order(&which, &format!("rtt {rtt}")).map(drop),
        Wan::Rate { rate, which } => order(&which, &format!("rate {rate}")).map(drop),
        Wan::Loss { loss, which } => order(&which, &format!("loss {loss}")).map(drop),
        Wan::Queue { queue, which } => order(&which, &format!("queue {queue}")).map(drop),
        Wan::Cut { one_way, which } => {
            order(&which, &format!("cut {}", one_way.unwrap_or_default())).map(drop)
        }
        Wan::Nat { what, which } => order(&which, &format!("nat {what}")).map(drop),
        Wan::Ip { versions, which } => order(&which, &format!("ip {versions}")).map(drop),
        Wan::Heal { which } => order(&which, "heal").map(drop),
        Wan::Script { steps, which } => order(&which, &format!("script {steps}")).map(drop),
        Wan::Run(args) => run::run(&args),
        Wan::Relay(args) => relay::run(&args),
    }
}

/// Where the relay of a folder takes orders.
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("wan.sock")
}

fn order(which: &Which, order: &str) -> anyhow::Result<String> {
    let link = which.link.as_ref().map_or_else(String::new, |link| format!("link {link} "));
    let path = socket(&which.dir.path()?);
    let hint = "a federation has a line if it was started with `--netns --rtt`";
    let asked = tieline_wan::ask(&path, &format!("{link}{order}"));
    if path.exists() { Ok(asked?) } else { asked.context(hint) }
}

fn print(answer: &str) -> anyhow::Result<()> {
    let links: Vec<Value> = serde_json::from_str(answer)?;
    for link in &links {
        let word = |key: &str| link[key].as_str().unwrap_or("-").to_owned();
        let (name, rtt, rate) = (word("link"), word("rtt"), word("rate"));
        let ip = Some(word("ip")).filter(|ip| ip != "46");
        let ip = ip.map_or_else(String::new, |ip| format!("; IPv{ip} ONLY"));
        println!(
            "{name}: rtt {rtt}, rate {rate}, loss {}, queue {}{ip}",
            word("loss"),
            word("queue")
        );
        for way in ["to_servers", "to_clients"] {
            let count = |key: &str| link[way][key].as_u64().unwrap_or(0);
            let is_cut = link[format!("is_cut_{way}")].as_bool().unwrap_or(false);
            println!(
                "  {:<11} {:>12} bytes in {} packets; lost {}, dropped {}, cut {}{}",
                way.replace('_', " "),
                count("bytes"),
                count("packets"),
                count("lost"),
                count("dropped"),
                count("cut"),
                if is_cut { "; CUT" } else { "" }
            );
        }
    }
    Ok(())
}
