//! `tieline chores`: what goes on in the background of MDTs, and what is in its way.

use crate::operator::{self, Operator};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::time::Duration;
use tieline_base::location::Location;
use tieline_base::{report, show};
use tieline_types::{ErrorKind, MdtIndex, Shown, Span, Time};
use tieline_wire::chores::{Chore, ChoreState, ListChores, ListChoresReply};

/// It is told at once.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(clap::Args, Debug)]
pub struct Args {
    /// One JSON value
    #[arg(long)]
    json: bool,
    /// Only this MDT
    #[arg(long)]
    mdt: Option<u16>,
    /// Path below a mount, or tieline://HOST[:PORT]/FS: all MDTs of that file system
    path: Option<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    crate::log_start();
    let location = Location::find_word(args.path.as_deref())?;
    let (told, failed) = operator::run(&location, |operator| async move {
        let mdts: Vec<MdtIndex> = match args.mdt {
            Some(mdt) => vec![MdtIndex(mdt)],
            None => operator.map.mdts.iter().map(|mdt| mdt.mdt).collect(),
        };
        let (mut told, mut failed) = (vec![], vec![]);
        for mdt in mdts {
            match ask(&operator, mdt).await {
                Ok(reply) => told.push(reply),
                // The others may answer.
                Err(error) => failed.push(error),
            }
        }
        Ok((told, failed))
    })?;
    if args.json {
        let chores =
            told.iter().flat_map(|reply| reply.chores.iter().map(|one| as_json(reply, one)));
        println!("{}", json!({ "chores": chores.collect::<Vec<Value>>() }));
    } else {
        print(&told);
    }
    let codes: Vec<i32> = failed.iter().map(report::failed).collect();
    codes.last().map_or(Ok(()), |&code| crate::parting::leave(code))
}

async fn ask(operator: &Operator, mdt: MdtIndex) -> anyhow::Result<ListChoresReply> {
    let line = operator.dial(mdt)?;
    let asked = line.call_within(ListChores {}, PATIENCE).await;
    line.close().await;
    let (reply, _) = asked.map_err(|error| {
        let is_older = report::kind(&error) == Some(ErrorKind::NotSupported);
        let hint =
            if is_older { " (its server is older than this program: update it)" } else { "" };
        error.context(format!("{} does not list its background work{hint}", mdt.label()))
    })?;
    Ok(reply)
}

fn state_word(state: ChoreState) -> &'static str {
    match state {
        ChoreState::Resting => "resting",
        ChoreState::Working => "working",
        ChoreState::Waiting => "waiting",
        ChoreState::Failed => "failed",
    }
}

fn as_json(reply: &ListChoresReply, chore: &Chore) -> Value {
    let failure = chore.failure.as_ref();
    json!({
        "mdt": reply.mdt.0,
        "chore": chore.name,
        "state": state_word(chore.state),
        "waits_for": chore.waits_for,
        "done": chore.done,
        "left": chore.left,
        "unit": chore.unit,
        "ended": chore.ended.map(show::seconds),
        "failed": failure.map(|failure| show::seconds(failure.at)),
        "failure": failure.map(|failure| &failure.detail),
    })
}

fn print(told: &[ListChoresReply]) {
    let mut rows = vec![["MDT", "chore", "state", "done", "last round", ""].map(str::to_owned)];
    for reply in told {
        rows.extend(reply.chores.iter().map(|chore| row(reply, chore)));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 6] = std::array::from_fn(|column| width(column).unwrap_or_default());
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

fn row(reply: &ListChoresReply, chore: &Chore) -> [String; 6] {
    let left = chore.left.filter(|left| *left > 0);
    let left = left.map_or_else(String::new, |left| format!(", {left} left"));
    let ended = chore.ended.map_or_else(|| "-".to_owned(), |at| ago(at, reply.now));
    let reason = match (&chore.waits_for, &chore.failure) {
        (Some(what), _) if chore.state == ChoreState::Waiting => format!("for {what}"),
        (_, Some(failure)) if chore.state == ChoreState::Failed => failure.detail.clone(),
        (_, Some(failure)) => format!("failed {}: {}", ago(failure.at, reply.now), failure.detail),
        _ => String::new(),
    };
    [
        reply.mdt.label(),
        chore.name.clone(),
        state_word(chore.state).to_owned(),
        format!("{} {}{left}", chore.done, chore.unit),
        ended,
        Shown(reason.as_bytes()).to_string(),
    ]
}

fn ago(at: Time, now: Time) -> String {
    let seconds = u64::try_from(now.seconds.saturating_sub(at.seconds)).unwrap_or_default();
    // As exact as people want it.
    let unit = [86_400, 3_600, 60].into_iter().find(|unit| seconds >= 2 * unit).unwrap_or(1);
    format!("{} ago", Span(Duration::from_secs(seconds / unit * unit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_wire::chores::ChoreFailure;

    #[test]
    fn a_row_says_what_is_in_the_way() {
        let time = |seconds| Time { seconds, nanos: 0 };
        let reply = ListChoresReply { mdt: MdtIndex(1), now: time(1000), chores: vec![] };
        let failure = ChoreFailure { at: time(850), detail: "OST0002: no answer".to_owned() };
        let chore = Chore {
            name: "freed-chunks".to_owned(),
            state: ChoreState::Failed,
            waits_for: None,
            failure: Some(failure),
            done: 512,
            left: Some(3),
            unit: "chunks".to_owned(),
            ended: Some(time(995)),
        };
        let told = row(&reply, &chore);
        let expected = ["MDT0001", "freed-chunks", "failed", "512 chunks, 3 left", "5 s ago"];
        assert_eq!(
            (&told[..5], told[5].as_str()),
            (&expected.map(str::to_owned)[..], "OST0002: no answer")
        );
        let well = Chore { state: ChoreState::Resting, left: Some(0), ended: None, ..chore };
        let told = row(&reply, &well);
        assert_eq!(told[3..5], ["512 chunks", "-"]);
        assert_eq!(told[5], "failed 2 min ago: OST0002: no answer");
        let waits = Chore { state: ChoreState::Waiting, waits_for: Some("room".into()), ..well };
        assert_eq!(row(&reply, &waits)[5], "for room");
    }
}
