//! Sites as network namespaces: one per site, one for clients, joined by a router, with ip(8).
//!
//! ```text
//! tl-ID-uf   eth0 10.77.1.2   fd77:0:1::2   ── uf0   10.77.1.1   fd77:0:1::1   ┐
//! tl-ID-fnal eth0 10.77.2.2   fd77:0:2::2   ── fnal0 10.77.2.1   fd77:0:2::1   ├ tl-ID-router
//! tl-ID-cl   eth0 10.77.254.2 fd77:0:fe::2  ── cl0   10.77.254.1 fd77:0:fe::1  ┘
//! ```
//!
//! The addresses mean nothing outside, so federations beside each other use the same. Where a
//! distance is asked for, the two ends are TUN devices instead of a pair of veth, and a relay
//! plays the line between them (`wan`).
//!
//! Invariants: names carry an id that is made from the folder; only namespaces that were made here
//! are deleted.

use crate::wan::line::{End, Line};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use tieline_types::SiteName;
use tieline_wan::Quality;

/// More sites do not fit the numbering.
const SITES_MAX: usize = 250;
pub const CLIENTS: usize = 254;
/// As the line of the clients is called.
const CLIENTS_LINE: &str = "clients";
/// What waits in a device for a relay that has no turn, in packets.
const DEVICE_QUEUE: &str = "10000";

/// The namespaces of a federation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Network {
    /// Made from the folder.
    pub id: String,
    /// Names, the router's last.
    pub made: Vec<String>,
    /// What a relay is to play.
    #[serde(default)]
    pub lines: Vec<Line>,
}

/// How far namespaces are from each other; `None`: not at all.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Distances {
    pub clients: Option<Quality>,
    /// Each site from the router: half of what is between two sites.
    pub sites: Option<Quality>,
}

impl Network {
    pub fn new(dir: &Path) -> Self {
        Self { id: id(dir), made: Vec::new(), lines: Vec::new() }
    }

    /// Can namespaces be made at all?
    pub fn check() -> anyhow::Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!("--netns makes network namespaces, which needs root: leave it out, or use sudo");
        }
        match Command::new("ip").arg("-V").output() {
            Ok(_) => Ok(()),
            Err(error) => Err(error).context("--netns needs ip(8): install iproute2"),
        }
    }

    /// The namespace of a site.
    pub fn site(&self, site: &SiteName) -> PathBuf {
        tieline_machine::namespace::path(&self.name(site.as_str()))
    }

    /// The namespace of clients.
    pub fn clients(&self) -> PathBuf {
        tieline_machine::namespace::path(&self.name("cl"))
    }

    fn name(&self, part: &str) -> String {
        format!("tl-{}-{part}", self.id)
    }

    /// Makes everything. What was made before a failure is in `made`.
    pub fn make(&mut self, sites: &[SiteName], distances: Distances) -> anyhow::Result<()> {
        if sites.len() > SITES_MAX {
            bail!("--netns numbers at most {SITES_MAX} sites");
        }
        if let Some(site) =
            sites.iter().find(|site| ["cl", "router", CLIENTS_LINE].contains(&site.as_str()))
        {
            bail!("a site cannot be called `{site}` with --netns");
        }
        let router = self.name("router");
        self.add(&router)?;
        forward(&tieline_machine::namespace::path(&router))?;
        for (place, site) in sites.iter().enumerate() {
            self.join(&router, site.as_str(), place + 1, distances.sites)?;
        }
        self.join(&router, "cl", CLIENTS, distances.clients)
    }

    /// Deletes what was made; absent is fine.
    pub fn remove(&self) {
        for name in self.made.iter().rev() {
            let _ = ip(&["netns", "delete", name]);
        }
    }

    fn add(&mut self, name: &str) -> anyhow::Result<()> {
        ip(&["netns", "add", name])?;
        self.made.push(name.to_owned());
        ip(&["-n", name, "link", "set", "lo", "up"])
    }

    /// A namespace with a link to the router.
    fn join(
        &mut self,
        router: &str,
        part: &str,
        number: usize,
        distance: Option<Quality>,
    ) -> anyhow::Result<()> {
        let name = self.name(part);
        self.add(&name)?;
        // Names of links have at most 15 characters.
        let outer = format!("{}0", part.get(..13).unwrap_or(part));
        let inner = "eth0";
        match distance {
            None => ip(&[
                "link", "add", inner, "netns", &name, "type", "veth", "peer", "name", &outer,
                "netns", router,
            ])?,
            Some(quality) => {
                add_tun(&name, inner)?;
                add_tun(router, &outer)?;
                self.lines.push(line(part, (&name, inner), (router, &outer), quality));
            }
        }
        for (family, address, gateway, width) in [
            ("-4", address(number, 2), address(number, 1), 24),
            ("-6", address6(number, 2), address6(number, 1), 64),
        ] {
            let put = |netns: &str, address: &str, device: &str| {
                let address = format!("{address}/{width}");
                // Nobody else can have it: there is nothing to wait for.
                let nodad = if family == "-6" { &["nodad"][..] } else { &[] };
                let words = [family, "-n", netns, "address", "add", &address, "dev", device];
                ip(&[&words[..], nodad].concat())
            };
            put(&name, &address, inner)?;
            put(router, &gateway, &outer)?;
            ip(&["-n", &name, "link", "set", inner, "up"])?;
            ip(&["-n", router, "link", "set", &outer, "up"])?;
            ip(&[family, "-n", &name, "route", "add", "default", "via", &gateway, "dev", inner])?;
        }
        if number == CLIENTS {
            // Where answers to clients behind one address go, if a line plays that.
            ip(&["-n", router, "route", "add", "10.77.253.0/24", "dev", &outer])?;
        }
        Ok(())
    }
}

/// The clients' end of a site's line is the router's.
fn line(part: &str, inner: (&str, &str), outer: (&str, &str), quality: Quality) -> Line {
    let end = |(netns, device): (&str, &str)| End {
        netns: tieline_machine::namespace::path(netns),
        device: device.to_owned(),
    };
    let (inner, outer) = (end(inner), end(outer));
    match part {
        "cl" => Line { name: CLIENTS_LINE.to_owned(), clients: inner, servers: outer, quality },
        _ => Line { name: part.to_owned(), clients: outer, servers: inner, quality },
    }
}

/// Makes a TUN device, which stays when its relay goes and is there for the next.
pub fn add_tun(netns: &str, device: &str) -> anyhow::Result<()> {
    ip(&["-n", netns, "tuntap", "add", "dev", device, "mode", "tun", "vnet_hdr"])?;
    ip(&["-n", netns, "link", "set", device, "txqueuelen", DEVICE_QUEUE])
}

/// The addresses of a site's servers, of both families.
pub fn site_addresses(place: usize) -> [String; 2] {
    addresses(place + 1)
}

/// The addresses of a namespace.
pub fn addresses(number: usize) -> [String; 2] {
    [address(number, 2), address6(number, 2)]
}

fn address(number: usize, end: usize) -> String {
    format!("10.77.{number}.{end}")
}

fn address6(number: usize, end: usize) -> String {
    format!("fd77:0:{number:x}::{end}")
}

/// Six hexadecimal digits of the folder's FNV-1a hash: short enough for names of links and
/// namespaces.
fn id(dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = dir.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step);
    format!("{:06x}", hash & 0x00ff_ffff)
}

/// Lets a namespace pass packets on.
fn forward(netns: &Path) -> anyhow::Result<()> {
    let netns = netns.to_owned();
    let thread = std::thread::spawn(move || -> anyhow::Result<()> {
        tieline_machine::namespace::enter(&netns)?;
        // These files are the namespace's of whoever opens them.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot forward packets")?;
        // A machine without IPv6 has no such file, and nothing to forward.
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
        Ok(())
    });
    thread.join().map_err(|_| anyhow::anyhow!("thread panicked"))?
}

pub fn ip(words: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(words).output().context("cannot run ip(8)")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`ip {}` failed: {}", words.join(" "), said.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_folder() {
        let one = Network::new(Path::new("/tmp/a"));
        let other = Network::new(Path::new("/tmp/b"));
        assert_eq!(one, Network::new(Path::new("/tmp/a")));
        assert_ne!(one.id, other.id);
        assert!(one.clients().starts_with("/run/netns"));
        assert_eq!(site_addresses(0), ["10.77.1.2", "fd77:0:1::2"]);
    }
}
