//! `tieline mirror verify`: every copy of every chunk, looked at by the OSS that has it.

use super::Outcome;
use crate::progress::Progress;
use crate::shell::Shell;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tieline_types::{Attributes, ChunkRef, Content, ErrorKind, OstPlace};
use tieline_wire::mirrors::{ReportPlace, VerifyObjectReply};
use tokio::task::JoinSet;

/// Copies that are looked at at once.
const AT_ONCE: usize = 8;

/// A copy to be looked at.
struct Copy {
    chunk: ChunkRef,
    offset: u64,
    place: OstPlace,
}

/// How a copy is.
pub(super) enum State {
    Good,
    Bad(String),
    /// Nobody could look.
    Unknown(String),
}

#[derive(Default)]
struct Tally {
    chunks: u64,
    good: u64,
    stale: u64,
    /// Copies that the layout wants, and that are nowhere.
    lacking: u64,
    is_told: bool,
    rows: Vec<Value>,
    lines: Vec<String>,
}

/// `is_told`: of the good copies too.
pub async fn verify(
    shell: &Shell,
    path: &str,
    attributes: &Attributes,
    is_told: bool,
) -> anyhow::Result<Outcome> {
    let wanted = shell.files.layout(&shell.caller, attributes.id).await?.layout.mirrors;
    let mut progress = Progress::new(path, 0);
    let mut tally = Tally { is_told, ..Tally::default() };
    let mut seen = BTreeSet::new();
    let mut looking = JoinSet::new();
    let mut offset = 0;
    while offset < attributes.size {
        let page = shell.files.extents(&shell.caller, attributes.id, offset).await?;
        for extent in page.extents {
            let Content::Chunk(chunk) = extent.content else { continue };
            if !seen.insert(chunk.chunk) {
                continue;
            }
            tally.chunks += 1;
            tally.lacking += u64::from(wanted).saturating_sub(chunk.places.len() as u64);
            for place in chunk.at_osts() {
                let copy = Copy { chunk: chunk.clone(), offset: extent.offset, place };
                if copy.place.is_stale {
                    tally.stale(shell, &copy);
                    continue;
                }
                while looking.len() >= AT_ONCE {
                    settle(shell, &mut tally, &mut progress, &mut looking).await;
                }
                let volume = shell.volume.clone();
                looking.spawn(async move {
                    let found = volume.verify_place(&copy.place).await;
                    (copy, found)
                });
            }
        }
        if page.covered <= offset {
            break;
        }
        offset = page.covered;
    }
    while !looking.is_empty() {
        settle(shell, &mut tally, &mut progress, &mut looking).await;
    }
    progress.end();
    Ok(tally.outcome())
}

type Looking = JoinSet<(Copy, tieline_files::Result<VerifyObjectReply>)>;

/// Waits for one look, and tells the MDS if it was bad.
async fn settle(shell: &Shell, tally: &mut Tally, progress: &mut Progress, looking: &mut Looking) {
    let Some(Ok((copy, found))) = looking.join_next().await else { return };
    progress.widen(copy.chunk.length);
    progress.add(copy.chunk.length);
    let state = concluded(shell, &copy.chunk, &copy.place, found).await;
    tally.count(shell, &copy, state);
}

/// How a place is that was looked at; the MDS is told if it is bad.
pub(super) async fn concluded(
    shell: &Shell,
    chunk: &ChunkRef,
    place: &OstPlace,
    found: tieline_files::Result<VerifyObjectReply>,
) -> State {
    let state = match found {
        Ok(reply) => judge(chunk, place, &reply),
        Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::Corrupt) => {
            State::Bad(error.to_string())
        }
        Err(error) => State::Unknown(error.to_string()),
    };
    if let State::Bad(what) = &state {
        let (ost, what) = (place.ost, what.clone());
        if let Some(chunk) = chunk.chunk.granted() {
            shell.volume.report_place(ReportPlace { chunk, ost, what }).await;
        }
    }
    state
}

fn judge(chunk: &ChunkRef, place: &OstPlace, reply: &VerifyObjectReply) -> State {
    if reply.length != place.length {
        return State::Bad(format!("{} of {} bytes are there", reply.length, place.length));
    }
    if reply.bad_blocks > 0 {
        let (count, first) = (reply.bad_blocks, reply.first_bad.unwrap_or_default());
        return State::Bad(format!("{count} damaged blocks of 4 KiB, the first at {first}"));
    }
    match chunk.digest {
        Some(digest) if digest != reply.digest => {
            State::Bad("its bytes are not those that were written".to_owned())
        }
        _ => State::Good,
    }
}

impl Tally {
    fn count(&mut self, shell: &Shell, copy: &Copy, state: State) {
        let (state, reason) = match state {
            State::Good => {
                self.good += 1;
                if self.is_told {
                    let (chunk, label) = (copy.chunk.chunk, copy.place.ost.label());
                    self.lines.push(format!("  good: chunk {chunk} at {label}"));
                }
                return;
            }
            State::Bad(reason) => ("bad", reason),
            State::Unknown(reason) => ("unknown", reason),
        };
        self.row(shell, copy, state, &reason);
    }

    fn stale(&mut self, shell: &Shell, copy: &Copy) {
        self.stale += 1;
        self.row(shell, copy, "stale", "known to be missing or damaged");
    }

    fn row(&mut self, shell: &Shell, copy: &Copy, state: &str, reason: &str) {
        let map = shell.files.map();
        let site = map.ost(copy.place.ost).map_or(String::new(), |ost| ost.site.to_string());
        let (chunk, label) = (copy.chunk.chunk, copy.place.ost.label());
        self.lines.push(format!("  {state}: chunk {chunk} at {label} ({site}): {reason}"));
        self.rows.push(json!({
            "state": state,
            "chunk": chunk.to_string(),
            "offset": copy.offset,
            "ost": copy.place.ost.0,
            "site": site,
            "object": copy.place.object.to_string(),
            "reason": reason,
        }));
    }

    fn outcome(self) -> Outcome {
        let Self { chunks, good, stale, lacking, rows, mut lines, .. } = self;
        let is_bad = !rows.is_empty() || lacking > 0;
        if lacking > 0 {
            lines.push(format!(
                "  lacking: {lacking} copies were not made yet (`tieline mirror resync` makes them)"
            ));
        }
        let head = match is_bad {
            false => format!("{chunks} chunks, {good} copies, all good"),
            true => format!("{chunks} chunks, {good} good copies"),
        };
        let text = std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n");
        let json = json!({
            "chunks": chunks, "good": good, "stale": stale, "lacking": lacking,
            "troubles": rows,
        });
        Outcome { json, text, is_bad }
    }
}
