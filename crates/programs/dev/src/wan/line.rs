//! What is asked of a line, and where its ends are.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tieline_wan::{Distance, Ends, Loss, Quality, Queue, Rate, Tun};

/// A line as it is asked for.
#[derive(clap::Args, Debug, Clone)]
pub struct Asked {
    /// Round-trip time of the emulated line, such as 50ms
    #[arg(long)]
    pub rtt: Option<Distance>,
    /// Its rate in each direction, such as 1gbit; by default unlimited
    #[arg(long)]
    pub rate: Option<Rate>,
    /// Share of packets that are lost, such as 1e-4 or 0.01%
    #[arg(long)]
    pub loss: Option<Loss>,
    /// How much may wait for its turn; by default what the line carries in a round trip
    #[arg(long)]
    pub queue: Option<Queue>,
    /// Decides which packets are lost
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Asked {
    /// Was anything asked for?
    pub fn is_any(&self) -> bool {
        let Self { rtt, rate, loss, queue, seed: _ } = self;
        rtt.is_some() || rate.is_some() || loss.is_some() || queue.is_some()
    }

    pub fn quality(&self) -> Quality {
        Quality {
            rtt: self.rtt.unwrap_or_default(),
            rate: self.rate.unwrap_or_default(),
            loss: self.loss.unwrap_or_default(),
            queue: self.queue.unwrap_or_default(),
        }
    }
}

/// A line that a relay is to play. As text: `NAME=NETNS:DEVICE,NETNS:DEVICE,RTT,RATE,LOSS,QUEUE`,
/// the clients' end first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Line {
    pub name: String,
    pub clients: End,
    pub servers: End,
    pub quality: Quality,
}

/// A TUN device in a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct End {
    pub netns: PathBuf,
    pub device: String,
}

impl Line {
    pub fn open(&self) -> anyhow::Result<Ends> {
        Ok(Ends { clients: self.clients.open()?, servers: self.servers.open()? })
    }

    /// Words that [`Line::from_str`] understands.
    pub fn to_words(&self) -> String {
        let Quality { rtt, rate, loss, queue } = self.quality;
        let end = |end: &End| format!("{}:{}", end.netns.display(), end.device);
        let (clients, servers) = (end(&self.clients), end(&self.servers));
        format!("{}={clients},{servers},{rtt},{rate},{loss},{queue}", self.name)
    }
}

impl End {
    fn open(&self) -> anyhow::Result<Tun> {
        let (netns, device) = (self.netns.clone(), self.device.clone());
        // A thread of its own: only the opening happens in the namespace.
        let opened = std::thread::spawn(move || -> anyhow::Result<Tun> {
            enter(&netns)?;
            Ok(Tun::open(&device)?)
        });
        opened.join().map_err(|_| anyhow::anyhow!("thread panicked"))?
    }
}

fn enter(netns: &Path) -> anyhow::Result<()> {
    tieline_machine::namespace::enter(netns)
}

impl FromStr for Line {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let wrong = || format!("`{text}` is no line");
        let (name, rest) = text.split_once('=').with_context(wrong)?;
        let words: Vec<&str> = rest.split(',').collect();
        let [clients, servers, rtt, rate, loss, queue] = words.as_slice() else {
            bail!(wrong());
        };
        let end = |text: &str| -> anyhow::Result<End> {
            let (netns, device) = text.rsplit_once(':').with_context(wrong)?;
            Ok(End { netns: netns.into(), device: device.to_owned() })
        };
        Ok(Self {
            name: name.to_owned(),
            clients: end(clients)?,
            servers: end(servers)?,
            quality: Quality {
                rtt: rtt.parse()?,
                rate: rate.parse()?,
                loss: loss.parse()?,
                queue: queue.parse()?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_and_read() {
        let end =
            |name: &str| End { netns: format!("/run/netns/{name}").into(), device: "e".into() };
        let line = Line {
            name: "clients".to_owned(),
            clients: end("a"),
            servers: end("b"),
            quality: Quality {
                rtt: "50ms".parse().unwrap(),
                rate: "1gbit".parse().unwrap(),
                loss: "1e-4".parse().unwrap(),
                queue: "6MiB".parse().unwrap(),
            },
        };
        assert_eq!(line.to_words().parse::<Line>().unwrap(), line);
        assert!("a=b".parse::<Line>().is_err());
    }
}
