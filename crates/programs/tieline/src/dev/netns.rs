//! Sites as network namespaces: one per site, one for clients, joined by a router, with ip(8).
//!
//! ```text
//! tl-ID-uf   eth0 10.77.1.2 ── uf0   10.77.1.1 ┐
//! tl-ID-fnal eth0 10.77.2.2 ── fnal0 10.77.2.1 ├ tl-ID-router
//! tl-ID-cl   eth0 10.77.254.2 ── cl0 10.77.254.1 ┘
//! ```
//!
//! The addresses mean nothing outside, so federations beside each other use the same. Faults and
//! distance are put on the router's ends with tc(8).
//!
//! Invariants: names carry an id that is made from the folder; only namespaces that were made here
//! are deleted.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use tieline_types::SiteName;

/// More sites do not fit the numbering.
const SITES_MAX: usize = 250;
const CLIENTS: usize = 254;

/// The namespaces of a federation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Network {
    /// Made from the folder.
    pub id: String,
    /// Names, the router's last.
    pub made: Vec<String>,
}

impl Network {
    pub fn new(dir: &Path) -> Self {
        Self { id: id(dir), made: Vec::new() }
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
        crate::namespace::path(&self.name(site.as_str()))
    }

    /// The namespace of clients.
    pub fn clients(&self) -> PathBuf {
        crate::namespace::path(&self.name("cl"))
    }

    fn name(&self, part: &str) -> String {
        format!("tl-{}-{part}", self.id)
    }

    /// Makes everything. What was made before a failure is in `made`.
    pub fn make(&mut self, sites: &[SiteName]) -> anyhow::Result<()> {
        if sites.len() > SITES_MAX {
            bail!("--netns numbers at most {SITES_MAX} sites");
        }
        if let Some(site) = sites.iter().find(|site| ["cl", "router"].contains(&site.as_str())) {
            bail!("a site cannot be called `{site}` with --netns");
        }
        let router = self.name("router");
        self.add(&router)?;
        forward(&crate::namespace::path(&router))?;
        for (place, site) in sites.iter().enumerate() {
            self.join(&router, site.as_str(), place + 1)?;
        }
        self.join(&router, "cl", CLIENTS)
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
    fn join(&mut self, router: &str, part: &str, number: usize) -> anyhow::Result<()> {
        let name = self.name(part);
        self.add(&name)?;
        // Names of links have at most 15 characters.
        let end = format!("{}0", part.get(..13).unwrap_or(part));
        ip(&[
            "link", "add", "eth0", "netns", &name, "type", "veth", "peer", "name", &end, "netns",
            router,
        ])?;
        let (inner, outer) = (format!("10.77.{number}.2/24"), format!("10.77.{number}.1/24"));
        ip(&["-n", &name, "address", "add", &inner, "dev", "eth0"])?;
        ip(&["-n", &name, "link", "set", "eth0", "up"])?;
        ip(&["-n", router, "address", "add", &outer, "dev", &end])?;
        ip(&["-n", router, "link", "set", &end, "up"])?;
        let gateway = format!("10.77.{number}.1");
        ip(&["-n", &name, "route", "add", "default", "via", &gateway])
    }
}

/// The address of a site's servers.
pub fn address(place: usize) -> String {
    format!("10.77.{}.2", place + 1)
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
        crate::namespace::enter(&netns)?;
        // This file is the namespace's of whoever opens it.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot forward packets")
    });
    thread.join().map_err(|_| anyhow::anyhow!("thread panicked"))?
}

fn ip(words: &[&str]) -> anyhow::Result<()> {
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
        assert_eq!(address(0), "10.77.1.2");
    }
}
