//! `tieline door`: who speaks for users that came to it, and how far it is heard.
//!
//! Doors are part of the federation map: what is said of one holds everywhere as soon as the map is
//! there, also for those whom it speaks for already.

use crate::shell;
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write};
use tieline_base::federation::DoorText;
use tieline_base::location::Location;
use tieline_base::report::Usage;
use tieline_types::{Door, Span};
use tieline_wire::federation::MapEdit;

#[derive(clap::Subcommand, Debug)]
pub enum DoorVerb {
    /// Let a principal speak for users that came to it; of one that does, change what is said
    Add {
        /// As which it connects: SERVICE/HOST@REALM
        principal: String,
        /// A Kerberos service whose tickets, which users send it, it may hand on; may be given
        /// several times. Every MDS has its key in its keytab, and the door has it not: who has it
        /// can make tickets of any user
        #[arg(long, value_name = "SERVICE")]
        tickets_for: Vec<String>,
        /// Whom it may name by its own word: user:NAME, group:NAME, or everybody (who has no
        /// role); may be given several times
        #[arg(long, value_name = "WHOM")]
        vouch_for: Vec<String>,
        /// What may be done through it at most: read:/PATH, create:/PATH, modify:/PATH; may be
        /// given several times. Without, whatever its users may
        #[arg(long)]
        scope: Vec<String>,
        /// How long it may speak for a user who came once, at most 12h
        #[arg(long, default_value = "1h")]
        life: Span,
    },
    /// Let it speak for nobody, not for those either who came before
    Remove { principal: String },
    /// Show who may
    List {
        #[arg(long)]
        json: bool,
    },
}

pub fn run(fs: Option<OsString>, verb: DoorVerb) -> anyhow::Result<()> {
    crate::log_start();
    let edit = match verb {
        DoorVerb::Add { principal, tickets_for, vouch_for, scope, life } => {
            let seconds = u32::try_from(life.0.as_secs()).unwrap_or(u32::MAX);
            let text = DoorText {
                principal,
                services: tickets_for,
                vouches_for: vouch_for,
                scope: Some(scope).filter(|scope| !scope.is_empty()),
                seconds: Some(seconds).filter(|&seconds| seconds != Door::SECONDS_USUAL),
            };
            MapEdit::DoorSet(text.record().map_err(Usage)?)
        }
        DoorVerb::Remove { principal } => MapEdit::DoorRemove(principal),
        DoorVerb::List { json } => return list(fs, json),
    };
    let location = Location::find_fs(fs.as_deref(), None)?;
    shell::run(&location, |shell| async move {
        shell.files.edit_map(&shell.caller, edit).await?;
        Ok(())
    })
}

fn list(fs: Option<OsString>, is_json: bool) -> anyhow::Result<()> {
    let location = Location::find_fs(fs.as_deref(), None)?;
    shell::run(&location, |shell| async move {
        let map = shell.files.map();
        let doors = map.security.as_ref().and_then(|security| security.doors.as_deref());
        let doors = doors.unwrap_or_default();
        let mut out = io::stdout().lock();
        if is_json {
            let doors: Vec<DoorText> = doors.iter().map(DoorText::of).collect();
            writeln!(out, "{}", json!({ "doors": doors }))?;
            return Ok(());
        }
        doors.iter().try_for_each(|door| writeln!(out, "{}", line(door)))?;
        Ok(())
    })
}

/// For people.
pub fn line(door: &Door) -> String {
    let life = Span(std::time::Duration::from_secs(door.seconds().into()));
    let scope = door.scope.as_ref();
    let scope = scope.map_or_else(|| "whatever its users may".to_owned(), ToString::to_string);
    let vouched: Vec<String> = door.vouches_for.iter().map(ToString::to_string).collect();
    let or_none = |words: &[String]| match words {
        [] => "none".to_owned(),
        words => words.join(" "),
    };
    format!(
        "{}: tickets for {}; vouches for {}; scope {scope}; for {life}",
        door.principal,
        or_none(&door.services),
        or_none(&vouched),
    )
}
