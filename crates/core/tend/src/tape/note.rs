//! What became of a wish that was not fulfilled.

use super::{Undone, inner};
use crate::Parts;
use crate::error::{Error, Result, decode};
use std::time::Duration;
use tieline_format::Record;
use tieline_format::mdt::{Archived, Inode, Wished, key};
use tieline_types::tape::WishFailure;
use tieline_types::{FileId, Hsm, TapeWish};

/// What was nobody's fault is tried again so soon.
const DELAY: Duration = Duration::from_secs(5);
/// Longer details are cut.
const DETAIL_MAX: usize = 1000;

/// Notes it with the wish, and tells people. Says what to tell operators.
pub async fn undone(parts: &Parts, file: FileId, wish: TapeWish, undone: Undone) -> Option<String> {
    match write(parts, file, wish, &undone).await {
        Ok(Some((tries, pause, is_over))) => {
            let Undone { failure, is_delay, .. } = &undone;
            let detail = &failure.detail;
            match (is_delay, is_over) {
                (true, _) => tracing::info!(%file, %wish, "tape waits: {detail}"),
                (false, true) => tracing::error!(
                    %file, %wish, tries,
                    "tape: {detail}; not tried again before somebody asks: `tieline hsm {wish}`"
                ),
                (false, false) => tracing::warn!(
                    %file, %wish, tries,
                    "tape: {detail}; tried again in {} s", pause.as_secs()
                ),
            }
            (!is_delay).then(|| format!("{wish} of {file}: {detail}"))
        }
        // The wish is gone.
        Ok(None) => None,
        Err(error) => {
            let failure = inner(parts, error).failure;
            Some(format!("{wish} of {file}: {failure}"))
        }
    }
}

async fn write(
    parts: &Parts,
    file: FileId,
    wish: TapeWish,
    undone: &Undone,
) -> Result<Option<(u32, Duration, bool)>> {
    loop {
        let mut transaction = parts.store.begin().await?;
        let keys = [key::tape_wish(file), key::inode(file), key::tape_copy(file)];
        let mut values = transaction.read(&keys).await?.into_iter();
        let id = || file.to_string();
        let noted = values.next().flatten();
        let noted: Option<Wished> = noted.map(|value| decode(&value, id)).transpose()?;
        let inode = values.next().flatten();
        let inode: Option<Inode> = inode.map(|value| decode(&value, id)).transpose()?;
        let copy = values.next().flatten();
        let copy: Option<Archived> = copy.map(|value| decode(&value, id)).transpose()?;
        let noted = noted.filter(|noted| noted.state.wish == wish);
        let Some(Wished { mut state }) = noted else { return Ok(None) };
        let hsm = hsm_of(parts, inode.as_ref(), copy.as_ref(), wish);
        state.tries += u32::from(!undone.is_delay);
        let pause = match hsm.as_ref().filter(|_| !undone.is_delay) {
            Some(hsm) => Duration::from_secs(hsm.pause(state.tries).into()),
            None => DELAY,
        };
        let is_last = hsm.is_some_and(|hsm| hsm.tries > 0 && state.tries >= hsm.tries);
        // A file that was deleted is not waited for.
        state.is_over = undone.is_final || (is_last && !undone.is_delay);
        let now = parts.now();
        state.next_ms = now.millis() + pause.as_millis() as u64;
        let detail = undone.failure.detail.chars().take(DETAIL_MAX).collect();
        state.failure = Some(WishFailure { kind: undone.failure.kind, detail, at: now });
        let told = (state.tries, pause, state.is_over);
        transaction.put(key::tape_wish(file), Wished { state }.to_bytes());
        match transaction.commit().await {
            Ok(committed) => {
                committed.durable.await?;
                return Ok(Some(told));
            }
            Err(tieline_kv::Error::Conflict) => {}
            Err(error) => return Err(Error::from(error)),
        }
    }
}

fn hsm_of(
    parts: &Parts,
    inode: Option<&Inode>,
    copy: Option<&Archived>,
    wish: TapeWish,
) -> Option<Hsm> {
    let map = parts.map.current();
    let pool = match wish {
        TapeWish::Archive => parts.mdt.tape_pool(inode?),
        TapeWish::Restore => map.map.pool(&copy?.copy.pool).cloned(),
    };
    pool.and_then(|pool| pool.hsm)
}
