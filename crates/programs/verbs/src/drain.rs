//! `tieline server drain`: tells the clients of servers that these will be away for a while.
//!
//! Clients then wait, longer than their mounts' `wait` if they have to, and dial at leisure. The
//! servers go on serving until somebody stops them. All are told at once: one that is dead keeps
//! no other from being told.
//!
//! Servers of this machine are those whose addresses it has, those that run here (also in network
//! namespaces of their own), and those whose settings are in /etc/tieline.

use crate::operator::{self, Operator};
use anyhow::bail;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tieline_auth::BelievedMap;
use tieline_base::location::Location;
use tieline_base::report::{Usage, chain};
use tieline_base::source::Source;
use tieline_format::map::FederationMap;
use tieline_serve::settings::{Plan, Settings};
use tieline_types::Span;
use tieline_wire::federation::Drain;
use tokio::task::JoinSet;
use tokio::time::timeout;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// For how long at most, such as 15m; 0s takes back what was said
    #[arg(long = "for", value_name = "SPAN", required_unless_present = "cancel")]
    span: Option<Span>,
    /// Take back what was said: the servers stay
    #[arg(long, conflicts_with = "span")]
    cancel: bool,
    /// One JSON list, with what became of each server
    #[arg(long)]
    json: bool,
    /// Addresses as the map has them (HOST:PORT), or sites; by default the servers of this machine
    servers: Vec<String>,
    /// The file system, by a path below its mount or as tieline://HOST[:PORT]/FS
    #[arg(long)]
    fs: Option<OsString>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let location = match Location::find_fs(args.fs.as_deref(), None) {
        // A host of servers need not have a mount.
        Err(error) if args.fs.is_none() => location_here().ok_or(error)?,
        found => found?,
    };
    operator::run(&location, |operator| async move { drain(&operator, args).await })
}

async fn drain(operator: &Operator, args: &Args) -> anyhow::Result<()> {
    let span = args.span.filter(|_| !args.cancel).map_or(Duration::ZERO, |span| span.0);
    let for_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let chosen = match args.servers.as_slice() {
        [] => own_servers(&operator.believed)?,
        words => choose(&operator.map, words)?,
    };
    let mut telling = JoinSet::new();
    for address in chosen {
        let line = operator.dial_at(&address);
        telling.spawn(async move {
            let told = timeout(PATIENCE, line.call(Drain { for_ms })).await;
            let told = match told {
                Ok(Ok((reply, _))) => Ok(reply.told),
                Ok(Err(error)) => Err(chain(error.as_ref())),
                Err(_) => Err(format!("did not answer within {}", Span(PATIENCE))),
            };
            line.close().await;
            (address, told)
        });
    }
    let (mut rows, mut untold, mut all) = (Vec::new(), 0, 0);
    while let Some(joined) = telling.join_next().await {
        let (address, told) = joined?;
        all += 1;
        untold += usize::from(told.is_err());
        if args.json {
            let (told, error) = (told.as_ref().ok(), told.as_ref().err());
            rows.push(json!({ "server": address, "told": told, "error": error }));
            continue;
        }
        match told {
            Ok(told) if span.is_zero() => println!("{address}: {told} sessions told that it stays"),
            Ok(told) => println!("{address}: {told} sessions told to hold for {}", Span(span)),
            Err(why) => println!("{address}: not told: {why}"),
        }
    }
    if args.json {
        println!("{}", Value::Array(rows));
    }
    if untold > 0 {
        bail!("{untold} of {all} servers could not be told: their clients do not wait for them");
    }
    Ok(())
}

/// Who does not answer meanwhile is not there to be told.
const PATIENCE: Duration = Duration::from_secs(10);

/// The first address of each server that is meant.
fn choose(map: &FederationMap, words: &[String]) -> anyhow::Result<BTreeSet<String>> {
    let mdts = map.mdts.iter().map(|mdt| (&mdt.home, &mdt.addresses));
    let osts = map.osts.iter().map(|ost| (&ost.site, &ost.addresses));
    let servers: Vec<_> = mdts.chain(osts).collect();
    let mut chosen = BTreeSet::new();
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
    Ok(chosen)
}

/// The first address of each server of this machine.
fn own_servers(believed: &BelievedMap) -> anyhow::Result<BTreeSet<String>> {
    let map = &believed.map;
    let mdts = map.mdts.iter().map(|mdt| &mdt.addresses);
    let all = mdts.chain(map.osts.iter().map(|ost| &ost.addresses));
    let own = all.filter(|addresses| addresses.iter().any(|address| is_own(address)));
    let mut chosen: BTreeSet<String> = own.filter_map(|one| one.first().cloned()).collect();
    // Of another program, or not to be read by us: not ours to tell.
    let plans = settings_here().into_iter().filter_map(|path| Settings::load(&path).ok());
    for plan in plans.filter(|plan| plan.fs == map.fs && believed.had_key(&plan.verifier)) {
        chosen.extend(addresses_of(map, &plan));
    }
    if chosen.is_empty() {
        let text = "no server of the map is at this machine: name addresses or sites";
        return Err(Usage(text.into()).into());
    }
    Ok(chosen)
}

/// The federation whose servers are at this machine, if that is one.
fn location_here() -> Option<Location> {
    let plans = settings_here().into_iter().filter_map(|path| Settings::load(&path).ok());
    let plans: Vec<Plan> = plans.collect();
    let first = plans.first()?;
    if plans.iter().any(|plan| plan.verifier != first.verifier) {
        return None;
    }
    let mut addresses = first.root.clone();
    addresses.push(first.listen.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:"));
    let source = Source { addresses, fs: first.fs.clone(), directory: String::new() };
    Some(Location {
        text: source.to_string(),
        source,
        path: Vec::new(),
        typed: Vec::new(),
        netns: None,
        mapkey: Some(first.verifier.to_hex()),
        mountpoint: None,
        proving: first.kerberos.proving(),
        idmap: None,
    })
}

/// Where the map says that the targets of these settings are.
fn addresses_of(map: &FederationMap, plan: &Plan) -> Vec<String> {
    let mdt = plan.mdt.as_ref().and_then(|mdt| map.mdt(mdt.index));
    let osts = plan.osts.iter().filter_map(|ost| map.ost(ost.index));
    let all = mdt.into_iter().map(|mdt| &mdt.addresses).chain(osts.map(|ost| &ost.addresses));
    all.filter_map(|addresses| addresses.first().cloned()).collect()
}

/// Settings of servers that run on this machine or are to.
fn settings_here() -> BTreeSet<PathBuf> {
    let files = |directory: &str| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let is_settings = |path: &PathBuf| path.extension() == Some("toml".as_ref());
    let written = files("/etc/tieline").filter(is_settings);
    let running = files("/proc").filter_map(|process| {
        let words = std::fs::read(process.join("cmdline")).ok()?;
        let path = settings_of(&words)?;
        // As the server itself sees it.
        let from = std::fs::read_link(process.join("cwd")).unwrap_or_default();
        Some(from.join(path))
    });
    written.chain(running).collect()
}

/// The settings file that `tieline server --settings FILE` names.
fn settings_of(command_line: &[u8]) -> Option<&Path> {
    use std::os::unix::ffi::OsStrExt;
    let mut words = command_line.split(|&byte| byte == 0);
    let program = Path::new(std::ffi::OsStr::from_bytes(words.next()?));
    if program.file_name() != Some("tieline".as_ref()) || words.next() != Some(b"server") {
        return None;
    }
    let path = loop {
        let word = words.next()?;
        match word.strip_prefix(b"--settings") {
            Some(b"") => break words.next()?,
            Some(rest) => break rest.strip_prefix(b"=")?,
            None => {}
        }
    };
    Some(Path::new(std::ffi::OsStr::from_bytes(path)))
}

/// Is that an address of this machine? Only then may we listen there.
fn is_own(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    TcpListener::bind((host.trim_matches(['[', ']']), 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_servers_name_their_settings() {
        let of = |line: &str| {
            let words = line.replace(' ', "\0");
            settings_of(words.as_bytes()).map(Path::to_owned)
        };
        let path = Some(PathBuf::from("/etc/tieline/mds.toml"));
        assert_eq!(of("/usr/bin/tieline server --settings /etc/tieline/mds.toml"), path);
        assert_eq!(of("tieline server --log-json --settings=/etc/tieline/mds.toml"), path);
        assert_eq!(of("tieline server drain --for 15m"), None);
        assert_eq!(of("tieline mount server --settings x"), None);
        assert_eq!(of("vi server --settings x"), None);
        assert_eq!(of(""), None);
    }
}
