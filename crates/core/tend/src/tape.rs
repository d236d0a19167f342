//! Files on their way to tape and back, as wished.
//!
//! What is wished is in the store ([`Wished`], [`TapeRemoval`]), so that it outlives this process;
//! an OSS of the pool runs the site's script ([`driver`]) and knows nothing any more when it is
//! started anew: then the work is begun again. A script may so be run twice for the same bytes,
//! under the same name.
//!
//! * `archive`: what a file is made of, and what tape has of it then.
//! * `restore`: chunks that tape alone has, put back at OSTs under their own names.
//! * `remove`: copies on tape that nobody needs.
//! * `driver`: one piece of work at one OSS, until it ends.
//! * `note`: what became of it.
//!
//! Invariants: a file's record says that it is archived only after the script has said so for
//! exactly these bytes; a chunk has a place again only after its OSS has compared it and made it
//! durable; what fails is tried again after a pause that doubles; at most [`AT_ONCE`] are under
//! way.

mod archive;
mod driver;
mod note;
mod remove;
mod restore;

use crate::Parts;
use crate::chore::Chore;
use crate::chore::status::Status;
use crate::error::{Result, decode};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::{TapeRemoval, Wished, key};
use tieline_kv::{Key, Range};
use tieline_types::TapeWish;
use tieline_types::{ErrorKind, FileId};
use tieline_wire::Failure;
use tokio::task::JoinSet;

/// Files and removals under way: those beyond what scripts may run at once wait at the OSSs.
const AT_ONCE: usize = 64;
const PAUSE: Duration = Duration::from_millis(500);
const PAGE: usize = 256;
/// Notes looked through in one round.
const LOOKS: usize = 16_384;

/// One thing under way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Job {
    Wish(FileId, u8),
    Remove(Key),
}

/// Has files archived, restored and removed from tape.
pub struct Tape {
    parts: Arc<Parts>,
    working: JoinSet<(Job, Option<String>)>,
    busy: BTreeSet<Job>,
}

/// What a piece of work came to, if not to its end.
pub(crate) struct Undone {
    pub failure: Failure,
    /// Another try would end in the same way.
    pub is_final: bool,
    /// It was not its own fault: it is tried again soon, as often as need be.
    pub is_delay: bool,
}

impl Undone {
    fn delay(kind: ErrorKind, detail: String) -> Self {
        Self { failure: Failure::new(kind, detail), is_final: false, is_delay: true }
    }

    fn fault(kind: ErrorKind, detail: String) -> Self {
        Self { failure: Failure::new(kind, detail), is_final: false, is_delay: false }
    }
}

#[async_trait::async_trait]
impl Chore for Tape {
    fn title(&self) -> (&'static str, &'static str) {
        ("tape", "files")
    }

    fn pause(&self) -> Duration {
        PAUSE
    }

    async fn round(&mut self, status: &Status) -> Result<()> {
        while let Some(ended) = self.working.try_join_next() {
            match ended {
                Ok((job, trouble)) => {
                    status.did(u64::from(trouble.is_none()));
                    trouble.into_iter().for_each(|trouble| status.trouble(trouble));
                    self.busy.remove(&job);
                }
                // Which it was is not known: all may be taken up again.
                Err(_) => self.busy.clear(),
            }
        }
        let wishes = self.begin_wishes().await?;
        let removals = self.begin_removals().await?;
        status.set_left(Some(wishes + removals));
        Ok(())
    }

    async fn rest(&mut self) {
        tokio::time::sleep(PAUSE).await;
    }
}

impl Tape {
    pub fn new(parts: &Arc<Parts>) -> Self {
        Self { parts: parts.clone(), working: JoinSet::new(), busy: BTreeSet::new() }
    }

    /// Takes up wishes whose time has come. Says how many there are.
    async fn begin_wishes(&mut self) -> Result<u64> {
        let (mut start, mut count) = (key::tape_wishes(), 0);
        let end = key::after(&start);
        let now_ms = self.parts.now().millis();
        while count < LOOKS as u64 {
            let range = Range::new(start, end.clone());
            let page = self.parts.store.begin().await?.scan(range, PAGE).await?;
            for (key, value) in &page {
                let Some(file) = key::tape_file(key) else { continue };
                let Wished { state } = decode(value, || file.to_string())?;
                count += u64::from(!state.is_over);
                if !state.is_over && state.next_ms <= now_ms {
                    self.begin_wish(file, state.wish);
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => start = [last.as_slice(), &[0]].concat(),
                _ => break,
            }
        }
        Ok(count)
    }

    fn begin_wish(&mut self, file: FileId, wish: TapeWish) {
        let number = match wish {
            TapeWish::Archive => 1,
            TapeWish::Restore => 2,
        };
        let is_busy = [1, 2].iter().any(|&other| self.busy.contains(&Job::Wish(file, other)));
        if is_busy || self.working.len() >= AT_ONCE {
            return;
        }
        let job = Job::Wish(file, number);
        self.busy.insert(job.clone());
        let parts = self.parts.clone();
        self.working.spawn(async move {
            let done = match wish {
                TapeWish::Archive => archive::archive(&parts, file).await,
                TapeWish::Restore => restore::restore(&parts, file).await,
            };
            let trouble = match done {
                Ok(()) => None,
                Err(undone) => note::undone(&parts, file, wish, undone).await,
            };
            (job, trouble)
        });
    }

    async fn begin_removals(&mut self) -> Result<u64> {
        let (mut start, mut count) = (key::tape_removals(), 0);
        let end = key::after(&start);
        let now_ms = self.parts.now().millis();
        while count < LOOKS as u64 {
            let range = Range::new(start, end.clone());
            let page = self.parts.store.begin().await?.scan(range, PAGE).await?;
            for (key, value) in &page {
                let removal: TapeRemoval = decode(value, || format!("{key:02x?}"))?;
                count += 1;
                let job = Job::Remove(key.clone());
                let is_due = removal.next_ms <= now_ms && !self.busy.contains(&job);
                if is_due && self.working.len() < AT_ONCE {
                    self.busy.insert(job.clone());
                    let (parts, key) = (self.parts.clone(), key.clone());
                    self.working.spawn(async move {
                        let trouble = remove::remove(&parts, &key, removal).await;
                        (job, trouble)
                    });
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => start = [last.as_slice(), &[0]].concat(),
                _ => break,
            }
        }
        Ok(count)
    }
}

/// Errors of the store and of the MDT: tried again like all others.
fn inner(parts: &Parts, error: crate::error::Error) -> Undone {
    let failure = parts.failure(error);
    Undone { failure, is_final: false, is_delay: true }
}

#[cfg(test)]
mod tests;
