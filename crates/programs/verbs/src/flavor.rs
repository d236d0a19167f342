//! `tieline flavor`: how connections are protected, in Lustre's notation.
//!
//! The rules are part of the federation map: they hold everywhere as soon as the map is there, and
//! connections that a new rule concerns are made anew, with what is under way.

use crate::shell;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_types::{Flavor, FlavorRule, FsName, Pair};
use tieline_wire::federation::MapEdit;

#[derive(clap::Subcommand, Debug)]
pub enum FlavorVerb {
    /// Say how connections are protected
    Set {
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long)]
        fs: Option<OsString>,
        /// FS.srpc.flavor.NET[.cli2mdt|cli2ost|mdt2ost|mdt2mdt]=FLAVOR; NET is `default` or
        /// ADDRESS/BITS
        #[arg(required = true)]
        rules: Vec<String>,
    },
    /// Take rules away: wider ones hold there again, or what holds where there is none
    Unset {
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long)]
        fs: Option<OsString>,
        /// FS.srpc.flavor.NET[.PAIR], as `flavor list` shows them
        #[arg(required = true)]
        rules: Vec<String>,
    },
    /// List the rules, and what holds where there is none
    List {
        #[arg(long)]
        json: bool,
        /// FS, or a path below it
        name: Option<OsString>,
    },
}

pub fn run(verb: FlavorVerb) -> anyhow::Result<()> {
    crate::log_start();
    match verb {
        FlavorVerb::Set { fs, rules } => edit(fs, &rules, MapEdit::FlavorSet),
        FlavorVerb::Unset { fs, rules } => {
            // Which flavor it was does not matter.
            let subject = |rule: &String| rule.split('=').next().unwrap_or_default().to_owned();
            let rules: Vec<String> =
                rules.iter().map(|rule| format!("{}=null", subject(rule))).collect();
            edit(fs, &rules, MapEdit::FlavorUnset)
        }
        FlavorVerb::List { json, name } => list(name, json),
    }
}

fn edit(
    typed: Option<OsString>,
    lines: &[String],
    change: fn(FlavorRule) -> MapEdit,
) -> anyhow::Result<()> {
    let mut named: Option<FsName> = None;
    let mut rules = Vec::new();
    for line in lines {
        let (fs, rule) = FlavorRule::parse(line).map_err(|error| Usage(error.to_string()))?;
        let fs: FsName = fs.parse().map_err(|error| Usage(format!("`{line}`: {error}")))?;
        if named.as_ref().is_some_and(|named| *named != fs) {
            return Err(Usage(format!("`{line}`: one file system at a time")).into());
        }
        named = Some(fs);
        rules.push(rule);
    }
    let location = Location::find_fs(typed.as_deref(), named.as_ref())?;
    shell::run(&location, |shell| async move {
        for rule in rules {
            shell.files.edit_map(&shell.caller, change(rule)).await?;
        }
        Ok(())
    })
}

fn list(name: Option<OsString>, is_json: bool) -> anyhow::Result<()> {
    let location = Location::find_word(name.as_deref())?;
    shell::run(&location, |shell| async move {
        let map = shell.files.map();
        let mut out = io::stdout().lock();
        let rules = map.security.as_ref().map(|security| &security.flavors);
        if is_json {
            let rules = rules.into_iter().flat_map(|rules| &rules.0).map(|rule| {
                json!({
                    "net": rule.network.to_string(),
                    "pair": rule.pair.map(Pair::name),
                    "flavor": rule.flavor.name(),
                })
            });
            let defaults =
                Pair::ALL.map(|pair| (pair.name().to_owned(), json!(default(&map, pair))));
            let defaults = Value::Object(defaults.into_iter().collect());
            let rules: Vec<Value> = rules.collect();
            writeln!(out, "{}", json!({ "rules": rules, "otherwise": defaults }))?;
            return Ok(());
        }
        for rule in rules.into_iter().flat_map(|rules| &rules.0) {
            writeln!(out, "{}.{}={}", map.fs, rule.subject(), rule.flavor.name())?;
        }
        for pair in Pair::ALL {
            writeln!(out, "# otherwise {}: {}", pair.name(), default(&map, pair))?;
        }
        Ok(())
    })
}

/// What holds of a pair from no particular network.
fn default(map: &tieline_format::map::FederationMap, pair: Pair) -> &'static str {
    let security = map.security.as_ref();
    security.map_or(Flavor::Null, |security| security.flavors.flavor(pair, None)).name()
}
