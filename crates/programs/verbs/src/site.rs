//! `tieline site`: the sites of a federation, and letting another one join.

use crate::shell::{self, Shell};
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_base::invitation::Invitation;
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_format::map::FederationMap;
use tieline_types::{FileId, MdtIndex, Name, SiteName, Span};
use tieline_wire::federation::MapEdit;
use tieline_world::World;

#[derive(clap::Subcommand, Debug)]
pub enum Site {
    /// Let a server of another site join: prints the word that `tieline join` takes there
    Invite {
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long)]
        fs: Option<OsString>,
        /// How long it holds
        #[arg(long, default_value = "7 d", value_name = "SPAN")]
        valid: String,
        #[arg(long)]
        json: bool,
        /// The site's name, such as fnal
        site: SiteName,
    },
    /// Take back a site's invitations that nobody has used
    Uninvite {
        /// Path below the file system, or tieline://HOST[:PORT]/FS
        #[arg(long)]
        fs: Option<OsString>,
        /// The site's name, such as fnal
        site: SiteName,
    },
    /// List the sites, what they hold, and who is invited
    List {
        #[arg(long)]
        json: bool,
        /// FS, or a path below it
        name: Option<OsString>,
    },
}

pub fn run(verb: Site) -> anyhow::Result<()> {
    crate::log_start();
    match verb {
        Site::Invite { fs, valid, json, site } => {
            let span: Span = valid.parse().map_err(|error| Usage(format!("--valid: {error}")))?;
            invite(&Location::find_fs(fs.as_deref(), None)?, site, span, json)
        }
        Site::Uninvite { fs, site } => {
            shell::run(&Location::find_fs(fs.as_deref(), None)?, |shell| async move {
                shell.files.edit_map(&shell.caller, MapEdit::SiteUninvite(site)).await?;
                Ok(())
            })
        }
        Site::List { json, name } => list(name, json),
    }
}

fn invite(location: &Location, site: SiteName, span: Span, is_json: bool) -> anyhow::Result<()> {
    shell::run(location, |shell| async move {
        let world = World::real();
        let map = shell.files.map();
        let root = map.mdt(MdtIndex(0)).context("the federation map has no root MDT")?;
        let mut secret = [0; 32];
        world.dice.fill(&mut secret);
        let invitation = Invitation {
            fs: map.fs.clone(),
            site: site.clone(),
            addresses: root.addresses.clone(),
            key: shell.key.to_hex(),
            secret,
        };
        let digest = tieline_federation::digest(&secret);
        let until = world.clock.wall() + span.0;
        let until_ms = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        let edit = MapEdit::SiteInvite { site, digest, until_ms };
        shell.files.edit_map(&shell.caller, edit).await?;
        let hides = hides(&shell, &invitation.site).await;
        if is_json {
            let word = invitation.to_string();
            println!("{}", json!({ "invitation": word, "until_ms": until_ms, "hides": hides }));
            return Ok(());
        }
        println!("{invitation}");
        if let Some(path) = hides {
            eprintln!(
                "{path} is there already: {} can bring OSTs, and an MDT (--mdt) once that is \
                 renamed (`mv {path} {path}.old`): its tree would hide it",
                invitation.site
            );
        }
        eprintln!(
            "Good once, for {span}. At {}, on the new server: tieline join --address HOST:PORT \
             --ost DIR, which asks for it",
            invitation.site
        );
        Ok(())
    })
}

/// What is where the site's MDT would be mounted.
async fn hides(shell: &Shell, site: &SiteName) -> Option<String> {
    let (root, name) = (FileId::root_of(MdtIndex(0)), Name::new(site.as_str()).ok()?);
    let map = shell.files.map();
    if map.junctions_in(root).any(|junction| junction.name == name) {
        return None;
    }
    shell.files.lookup(&shell.caller, root, &name).await.ok()?.attributes?;
    Some(format!("/{}/{site}", map.fs))
}

fn list(name: Option<OsString>, is_json: bool) -> anyhow::Result<()> {
    let location = Location::find_word(name.as_deref())?;
    shell::run(&location, |shell| async move {
        let now_ms = u64::try_from(World::real().clock.wall().as_millis()).unwrap_or(u64::MAX);
        let sites = sites_json(&shell.files.map(), now_ms);
        let mut out = io::stdout().lock();
        if is_json {
            writeln!(out, "{}", Value::Array(sites))?;
            return Ok(());
        }
        writeln!(out, "{:<16} {:<24} OSTs", "site", "MDTs")?;
        for site in sites {
            let words = |key: &str| {
                let words = site[key].as_array().into_iter().flatten();
                words.filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
            };
            let name = site["site"].as_str().unwrap_or_default();
            let invited = if site["invited"] == true { "  (invited)" } else { "" };
            writeln!(out, "{name:<16} {:<24} {}{invited}", words("mdts"), words("osts"))?;
        }
        Ok(())
    })
}

fn sites_json(map: &FederationMap, now_ms: u64) -> Vec<Value> {
    let open = map.invitations.iter().flatten().filter(|invited| invited.until_ms > now_ms);
    let invited: BTreeSet<&SiteName> = open.map(|invited| &invited.site).collect();
    let homes = map.mdts.iter().map(|mdt| &mdt.home);
    let all: BTreeSet<&SiteName> =
        homes.chain(map.osts.iter().map(|ost| &ost.site)).chain(invited.iter().copied()).collect();
    let one = |site: &SiteName| {
        let mdts = map.mdts.iter().filter(|mdt| mdt.home == *site).map(|mdt| mdt.mdt.label());
        let osts = map.osts.iter().filter(|ost| ost.site == *site).map(|ost| ost.ost.label());
        json!({
            "site": site,
            "mdts": mdts.collect::<Vec<_>>(),
            "osts": osts.collect::<Vec<_>>(),
            "invited": invited.contains(site),
        })
    };
    all.into_iter().map(one).collect()
}
