//! `tieline issuer`: whose tokens are taken, and whom their users are here.
//!
//! Issuers are part of the federation map, with their keys: no server asks an issuer for anything.
//! What is said of one holds everywhere as soon as the map is there, also for tokens that were
//! shown before.

use crate::shell;
use anyhow::Context;
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use tieline_base::issuers::{IssuerText, issuer};
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_tokens::JWKS_MAX;
use tieline_types::{Issuer, TokenUser};
use tieline_wire::federation::MapEdit;

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Path below the file system, or tieline://HOST[:PORT]/FS
    #[arg(long, global = true)]
    fs: Option<OsString>,
    #[command(subcommand)]
    verb: IssuerVerb,
}

#[derive(clap::Subcommand, Debug)]
enum IssuerVerb {
    /// Take the tokens of an issuer; of one whose tokens are taken, change what is said
    Add {
        /// As its tokens name it (`iss`), letter by letter: https://HOST[/PATH]
        url: String,
        /// Its keys: a file with the JWK set that it publishes, `-` for standard input
        #[arg(long, value_name = "FILE")]
        keys: PathBuf,
        /// A token is for us if its `aud` is this, letter by letter: https://HOST[:PORT] of a
        /// door; may be given several times
        #[arg(long, required = true)]
        audience: Vec<String>,
        /// Whom the holder of a token is: sub:SUBJECT=USER, group:/GROUP=USER or everybody=USER,
        /// where USER is as `tieline id` knows him; may be given several times
        #[arg(long, value_name = "RULE")]
        user: Vec<String>,
        /// The directory of the file system that the tokens' `/` is
        #[arg(long, default_value = "/", value_name = "PATH")]
        base: String,
    },
    /// Take its tokens no more, not those either that were shown before
    Remove { url: String },
    /// Show whose are taken
    List {
        #[arg(long)]
        json: bool,
    },
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let edit = match args.verb {
        IssuerVerb::Add { url, keys, audience, user, base } => {
            let text = read(&keys)?;
            let keys = tieline_tokens::keys(&text)
                .with_context(|| format!("cannot use {}", keys.display()))?;
            MapEdit::IssuerSet(issuer(url, &audience, &user, &base, keys).map_err(Usage)?)
        }
        IssuerVerb::Remove { url } => MapEdit::IssuerRemove(url),
        IssuerVerb::List { json } => return list(args.fs, json),
    };
    let location = Location::find_fs(args.fs.as_deref(), None)?;
    shell::run(&location, |shell| async move {
        shell.files.edit_map(&shell.caller, edit).await?;
        Ok(())
    })
}

/// A byte more than can be used, so that what is too large is told.
fn read(path: &PathBuf) -> anyhow::Result<Vec<u8>> {
    let failed = || format!("cannot read {}", path.display());
    let from: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(std::fs::File::open(path).with_context(failed)?),
    };
    let mut text = Vec::new();
    from.take(JWKS_MAX as u64 + 1).read_to_end(&mut text).with_context(failed)?;
    Ok(text)
}

fn list(fs: Option<OsString>, is_json: bool) -> anyhow::Result<()> {
    let location = Location::find_fs(fs.as_deref(), None)?;
    shell::run(&location, |shell| async move {
        let map = shell.files.map();
        let issuers = map.security.as_ref().map(|security| security.issuers());
        let issuers = issuers.unwrap_or_default();
        let mut out = io::stdout().lock();
        if is_json {
            let issuers: Vec<IssuerText> = issuers.iter().map(IssuerText::of).collect();
            writeln!(out, "{}", json!({ "issuers": issuers }))?;
            return Ok(());
        }
        issuers.iter().try_for_each(|issuer| writeln!(out, "{}", line(issuer)))?;
        Ok(())
    })
}

/// For people.
pub fn line(issuer: &Issuer) -> String {
    let names: String = issuer.base.iter().map(|name| format!("/{name}")).collect();
    let base = if names.is_empty() { "/" } else { &names };
    let users: Vec<String> = issuer.users.iter().map(TokenUser::to_string).collect();
    let users = if users.is_empty() { "nobody".to_owned() } else { users.join(" ") };
    let keys = issuer.keys.iter().map(|key| key.id.as_deref().unwrap_or("without a name"));
    format!(
        "{}: for {}; users {users}; paths from {base}; keys {}",
        issuer.url,
        issuer.audiences.join(" "),
        keys.collect::<Vec<_>>().join(" "),
    )
}
