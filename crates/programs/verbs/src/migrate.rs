//! `tieline migrate`: rewrites files as another layout has it, while they are in use, as `lfs
//! migrate`.
//!
//! The layout is set first, so that whoever opens the file from then on writes as it says; then the
//! bytes that lie otherwise are moved ([`tieline_client::Migration`]). What others write meanwhile
//! is looked for in further rounds.

use crate::mirror::{Files, Outcome, each};
use crate::progress::Progress;
use crate::setstripe::Wishes;
use crate::shell::Shell;
use anyhow::Context;
use serde_json::json;
use tieline_types::Attributes;
use tieline_wire::meta::LayoutChange;

/// Times that a file is looked through: who writes to it all the time is told of.
const ROUNDS: u32 = 8;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    wishes: Wishes,
    #[command(flatten)]
    files: Files,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let change = LayoutChange { moves: Some(true), ..args.wishes.change()? };
    each(args.files, "migrate", async move |shell, path, attributes| {
        let change = change.clone();
        shell.files.set_layout(&shell.caller, attributes.id, Some(change)).await?;
        let moved = migrate(&shell, &path, &attributes).await;
        moved.context("what was not moved is where it was: the same command goes on")
    })
}

async fn migrate(shell: &Shell, path: &str, attributes: &Attributes) -> anyhow::Result<Outcome> {
    let mut migration = shell.volume.migration(&shell.caller, attributes.id).await?;
    let mut progress = Progress::new(path, attributes.stored);
    let (mut moved, mut left) = (0, 0);
    for round in 0..ROUNDS {
        let (mut offset, mut found) = (0, 0);
        left = 0;
        loop {
            let step = migration.step(offset).await?;
            if round == 0 {
                progress.add(step.looked);
            }
            moved += step.moved;
            found += step.moved;
            left += step.busy;
            offset = step.covered;
            if step.is_end {
                break;
            }
        }
        if found + left == 0 {
            break;
        }
    }
    progress.end();
    if moved > 0 {
        // Whoever has it open forgets where its bytes were.
        let same = LayoutChange { moves: Some(true), ..LayoutChange::default() };
        shell.files.set_layout(&shell.caller, attributes.id, Some(same)).await?;
    }
    let json = json!({ "bytes_moved": moved, "bytes_left": left });
    let text = match left {
        0 => format!("{moved} bytes moved"),
        left => format!(
            "{moved} bytes moved; {left} were written to meanwhile again and again, and \
             stay where they are: once more when nobody writes there"
        ),
    };
    Ok(Outcome { json, text, is_bad: left > 0 })
}
