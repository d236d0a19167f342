//! The operator's verbs, one per file: each turns words into calls of the client room, and answers
//! into text or JSON.
//!
//! They go past the mount, over a file system without one ([`shell`]) or a connection to one server
//! ([`operator`]); [`known`]: what a mount tells while servers are out of reach; [`parting`]: where
//! verbs end, early too.
//!
//! Invariants: what is printed with `--json` is one JSON value, with stable names; text is for
//! people.

pub mod auth;
pub mod cache;
pub mod checksum;
pub mod chores;
pub mod cost;
pub mod df;
pub mod doctor;
pub mod door;
pub mod drain;
pub mod explain;
pub mod export;
pub mod fetch;
pub mod fid;
pub mod find;
pub mod flavor;
pub mod fsck;
pub mod getstripe;
pub mod hsm;
pub mod id;
pub mod import;
pub mod issuer;
pub mod join;
mod known;
pub mod list;
pub mod map;
pub mod mdt;
pub mod migrate;
pub mod mirror;
mod operator;
pub mod ost;
mod owners;
pub mod parting;
pub mod pin;
pub mod pool;
mod progress;
pub mod project;
pub mod put;
pub mod quota;
pub mod repo;
mod runtime;
pub mod setstripe;
pub mod shell;
pub mod site;
pub mod spool;
pub mod stat;
pub mod sync;
pub mod undelete;

use std::ffi::OsString;
use tieline_base::location::Location;

/// Where several words of one command point to: all must be reached through the same servers.
fn locations(words: &[OsString]) -> anyhow::Result<(Location, Vec<Location>)> {
    let all: Result<Vec<Location>, _> = words.iter().map(|word| Location::find(word)).collect();
    let all = all?;
    let Some(first) = all.first().cloned() else {
        return Err(tieline_base::report::usage("name at least one path"));
    };
    if let Some(other) = all.iter().find(|other| !other.is_together_with(&first)) {
        return Err(tieline_base::report::usage(format!(
            "`{}` and `{}` are reached differently: use one command for each",
            first.text, other.text
        )));
    }
    Ok((first, all))
}

/// Log lines of verbs: only what a person should see, and for whom he waits. Lost bytes are what
/// the verb fails by.
fn log_start() {
    let filter = format!("warn,{}=info,tieline_client::late=off", tieline_base::contact::LOGS);
    tieline_telemetry::log::start_from(&filter, false);
}
