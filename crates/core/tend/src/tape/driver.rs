//! One piece of work at one OSS: handed over in pages, asked about until it ends.

use super::Undone;
use crate::Parts;
use std::time::Duration;
use tieline_format::map::Pool;
use tieline_types::{ErrorKind, FileId, OstIndex, OstPlace};
use tieline_wire::Failure;
use tieline_wire::tape::{DriveState, DriveTape, TapeContent, TapePart, TapeWork};
use tokio::time::Instant;

/// One question.
const PATIENCE: Duration = Duration::from_secs(20);
/// An OSS that does not answer is given up then: the script may still be running there.
const SILENCE: Duration = Duration::from_secs(60);
/// Between two questions, where the OSS did not wait itself.
const PAUSE: Duration = Duration::from_millis(50);
/// An OSS that was heard of within this time is asked.
const HEARD_WITHIN: Duration = Duration::from_secs(15);
/// Objects at other OSSs that one capability names.
const OBJECTS_MAX: usize = 1024;

/// An OST of the pool whose OSS is heard of: the wished one, if it is.
pub fn choose(parts: &Parts, pool: &Pool, wished: Option<OstIndex>) -> Result<OstIndex, Undone> {
    let map = parts.map.current();
    let is_there = |ost: &OstIndex| {
        let is_active = map.map.ost(*ost).is_some_and(|ost| ost.is_active);
        is_active && parts.mdt.is_heard(*ost, HEARD_WITHIN)
    };
    let wished = wished.filter(|ost| pool.osts.contains(ost));
    let found = wished.into_iter().chain(pool.osts.iter().copied()).find(is_there);
    found.ok_or_else(|| {
        let detail = format!("no OSS of pool {} answers", pool.name);
        Undone::delay(ErrorKind::Unreachable, detail)
    })
}

/// Drives work to its end.
pub async fn drive(
    parts: &Parts,
    (ost, file): (OstIndex, FileId),
    work: TapeWork,
    all: Vec<TapePart>,
) -> Result<DriveState, Undone> {
    let job = parts.world.random();
    let elsewhere = elsewhere(parts, ost, &all);
    let drive = Drive { parts, ost, file, job, elsewhere };
    let outcome = drive.run(work, all).await;
    // Whatever is kept of it there is of no use any more.
    let _ = drive.ask(None, true).await;
    outcome
}

struct Drive<'a> {
    parts: &'a Parts,
    ost: OstIndex,
    file: FileId,
    job: u64,
    /// What it reads at other OSSs.
    elsewhere: Vec<OstPlace>,
}

impl Drive<'_> {
    async fn run(&self, work: TapeWork, all: Vec<TapePart>) -> Result<DriveState, Undone> {
        let mut left = all.into_iter();
        let mut before = 0;
        loop {
            let page: Vec<TapePart> = left.by_ref().take(TapeWork::PARTS_MAX).collect();
            let sent = page.len() as u64;
            let page = TapeWork { parts: page, before, ..work.clone() };
            let state = self.asked(Some(page)).await?;
            before += sent;
            match state {
                DriveState::Gathering(count) if count == before && before < work.total => {}
                DriveState::Unknown | DriveState::Gathering(_) if before < work.total => {
                    return Err(lost(self.ost));
                }
                _ => break,
            }
        }
        loop {
            let asked = Instant::now();
            match self.asked(None).await? {
                DriveState::Unknown => return Err(lost(self.ost)),
                DriveState::Failed { kind, detail, is_final } => {
                    let failure = Failure::new(kind, detail);
                    // It has much to do.
                    let is_delay = kind == ErrorKind::Overloaded;
                    return Err(Undone { failure, is_final, is_delay });
                }
                DriveState::Gathering(_) | DriveState::Waiting | DriveState::Running => {
                    if asked.elapsed() < PAUSE {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                done @ (DriveState::Put { .. } | DriveState::Done) => return Ok(done),
            }
        }
    }

    /// Asks, and again for a while where nothing is answered: the same page counts once.
    async fn asked(&self, work: Option<TapeWork>) -> Result<DriveState, Undone> {
        let begun = Instant::now();
        loop {
            match self.ask(work.clone(), false).await {
                Ok(state) => return Ok(state),
                Err(failure) if is_silence(failure.kind) && begun.elapsed() < SILENCE => {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Err(failure) => {
                    let is_delay =
                        is_silence(failure.kind) || failure.kind == ErrorKind::Overloaded;
                    return Err(Undone { failure, is_final: false, is_delay });
                }
            }
        }
    }

    async fn ask(&self, work: Option<TapeWork>, ends: bool) -> Result<DriveState, Failure> {
        let (ost, file, job) = (self.ost, self.file, self.job);
        let capability = match self.elsewhere.as_slice() {
            [] => None,
            places => self.parts.mdt.copy_capability(ost, file, places),
        };
        let ends = ends.then_some(true);
        let message = DriveTape { ost, job, file, work, ends, capability };
        Ok(self.parts.tape.drive(message, PATIENCE).await?.state)
    }
}

fn is_silence(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Timeout | ErrorKind::Unreachable | ErrorKind::Disconnected)
}

fn lost(ost: OstIndex) -> Undone {
    let detail = format!("the OSS of {} was started anew", ost.label());
    Undone::delay(ErrorKind::Disconnected, detail)
}

/// The places that the OSS does not serve itself.
fn elsewhere(parts: &Parts, ost: OstIndex, all: &[TapePart]) -> Vec<OstPlace> {
    let map = parts.map.current();
    let address = |ost| map.map.ost(ost).map(|ost| ost.addresses.clone());
    let here = address(ost);
    let chunks = all.iter().filter_map(|part| match &part.content {
        TapeContent::Chunk(chunk) => Some(chunk),
        TapeContent::Inline(_) | TapeContent::To(..) => None,
    });
    let places = chunks.flat_map(|chunk| chunk.at_osts().collect::<Vec<_>>());
    places.filter(|place| address(place.ost) != here).take(OBJECTS_MAX).collect()
}
