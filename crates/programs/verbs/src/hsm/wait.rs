//! Until what was wished is so: for all files together.

use super::{One, Said, Told, state};
use crate::progress::Progress;
use crate::shell::Shell;
use anyhow::anyhow;
use std::time::Duration;
use tieline_types::{OnTape, TapeWish};
use tieline_wire::tape::{GetTape, TapeReply};
use tokio::time::sleep;

/// Between two looks at all: the first, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A file that is waited for.
struct Waiting {
    one: One,
    reply: TapeReply,
    /// Failures that were told.
    tries: u32,
}

pub async fn all(shell: &Shell, wish: TapeWish, wished: Vec<(One, TapeReply)>, told: &mut Told) {
    let total = wished.iter().map(|(one, _)| one.size).sum();
    let mut progress = Progress::new(format!("{wish} of {} files", wished.len()), total);
    let wait = |(one, reply)| Waiting { one, reply, tries: 0 };
    let mut waiting: Vec<Waiting> = wished.into_iter().map(wait).collect();
    let mut pause = PAUSE_FIRST;
    loop {
        let mut still = vec![];
        for mut one in waiting {
            match judge(wish, &mut one) {
                Some(outcome) => {
                    progress.add(one.one.size);
                    told.tell(&wish.to_string(), &one.one, outcome);
                }
                None => still.push(one),
            }
        }
        waiting = still;
        if waiting.is_empty() {
            progress.end();
            return;
        }
        progress.add(0);
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
        let mut looked = vec![];
        for mut one in waiting {
            match shell.volume.ask(&shell.caller, one.one.id, GetTape { id: one.one.id }).await {
                Ok(reply) => {
                    one.reply = reply;
                    looked.push(one);
                }
                Err(error) => told.tell(&wish.to_string(), &one.one, Err(error.into())),
            }
        }
        waiting = looked;
    }
}

/// Is it done? What failed meanwhile is told.
fn judge(wish: TapeWish, waiting: &mut Waiting) -> Option<anyhow::Result<Said>> {
    let Waiting { one, reply, tries } = waiting;
    let is_done = match wish {
        TapeWish::Archive => matches!(reply.on_tape, Some(OnTape::Archived | OnTape::Released)),
        TapeWish::Restore => !reply.on_tape.is_some_and(OnTape::is_nearline),
    };
    if is_done {
        let text = match (&wish, &reply.copy) {
            (TapeWish::Archive, Some(copy)) => format!("archived at {}", copy.uris.join(" ")),
            (TapeWish::Archive, None) => "archived".to_owned(),
            (TapeWish::Restore, _) => "all on disk".to_owned(),
        };
        return Some(Ok(Said { text, json: state::json(reply) }));
    }
    let Some(own) = &reply.wish else {
        let gone = "somebody changed or deleted it meanwhile: look at `tieline hsm state`";
        return Some(Err(anyhow!(gone)));
    };
    if own.is_over {
        return Some(Err(anyhow!(state::wish_text(own, reply.now_ms))));
    }
    if own.tries > *tries {
        *tries = own.tries;
        eprintln!("tieline: {}: {}", one.shown(), state::wish_text(own, reply.now_ms));
    }
    None
}
