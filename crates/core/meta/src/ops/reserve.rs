//! Reserve: a run of file serials that the session gives out itself.
//!
//! The session's record names its runs. So a start knows from the records which sessions may have
//! done something by themselves that they have not sent yet.

use crate::error::{Error, Result};
use crate::sessions::RUNS_MAX;
use crate::view::View;
use tieline_format::mdt::{SerialRun, Session, key};
use tieline_wire::meta::{Reserve, ReserveReply};

/// Serials that one run holds at most.
const COUNT_MAX: u32 = 16_384;

pub async fn run(view: &mut View<'_>, request: &Reserve) -> Result<ReserveReply> {
    let session = view.scene.session;
    let count = request.count.clamp(1, COUNT_MAX);
    let record: Option<Session> = view.record(key::session(session)).await?;
    let mut record = record.ok_or(Error::SessionLost { session })?;
    let first = view.scene.serials.take_run(count).await?;
    let mut runs = record.runs.take().unwrap_or_default();
    runs.push(SerialRun { first, count });
    let extra = runs.len().saturating_sub(RUNS_MAX);
    runs.drain(..extra);
    record.runs = Some(runs);
    view.put(key::session(session), &record);
    Ok(ReserveReply { first, count })
}
