//! `tieline server drain`: tells the clients of servers that these will be away for a while.
//!
//! Clients then wait, longer than their mounts' `wait` if they have to, and dial at leisure. The
//! servers go on serving until somebody stops them.

use crate::location::Location;
use crate::operator::{self, Operator};
use crate::report::Usage;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::TcpListener;
use tieline_format::map::FederationMap;
use tieline_types::Span;
use tieline_wire::federation::Drain;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// For how long at most, such as 15m
    #[arg(long = "for", value_name = "SPAN")]
    span: Span,
    /// Addresses as the map has them (HOST:PORT), or sites; by default the servers of this machine
    servers: Vec<String>,
    /// The file system, by a path below its mount or as tieline://HOST[:PORT]/FS
    #[arg(long)]
    fs: Option<OsString>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let location = Location::find_fs(args.fs.as_deref(), None)?;
    operator::run(&location, |operator| async move { drain(&operator, args).await })
}

async fn drain(operator: &Operator, args: &Args) -> anyhow::Result<()> {
    let for_ms = u64::try_from(args.span.0.as_millis()).unwrap_or(u64::MAX);
    let chosen = choose(&operator.map, &args.servers)?;
    for address in chosen {
        let line = operator.dial_at(&address);
        let told = line.call(Drain { for_ms }).await;
        line.close().await;
        println!("{address}: {} sessions told to hold for {}", told?.0.told, args.span);
    }
    Ok(())
}

/// The first address of each server that is meant.
fn choose(map: &FederationMap, words: &[String]) -> anyhow::Result<BTreeSet<String>> {
    let mdts = map.mdts.iter().map(|mdt| (&mdt.home, &mdt.addresses));
    let osts = map.osts.iter().map(|ost| (&ost.site, &ost.addresses));
    let servers: Vec<_> = mdts.chain(osts).collect();
    let mut chosen = BTreeSet::new();
    if words.is_empty() {
        let own = servers.iter().filter(|(_, addresses)| addresses.iter().any(|a| is_own(a)));
        chosen.extend(own.filter_map(|(_, addresses)| addresses.first().cloned()));
    }
    for word in words {
        let mut found = servers
            .iter()
            .filter(|(site, addresses)| site.as_str() == word || addresses.contains(word))
            .filter_map(|(_, addresses)| addresses.first().cloned())
            .peekable();
        if found.peek().is_none() {
            return Err(Usage(format!("`{word}` is neither a site nor a server of the map")).into());
        }
        chosen.extend(found);
    }
    if chosen.is_empty() {
        let text = "no server of the map is at this machine: name addresses or sites";
        return Err(Usage(text.into()).into());
    }
    Ok(chosen)
}

/// Is that an address of this machine? Only then may we listen there.
fn is_own(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    TcpListener::bind((host.trim_matches(['[', ']']), 0)).is_ok()
}
