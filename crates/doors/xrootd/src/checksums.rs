//! Checksums of whole files: those that are known, and those on their way.
//!
//! One is known by the version of the file's bytes, so that it is right for as long as it is found.
//! It is computed once for all who ask meanwhile, and goes on when they leave: they come again.
//!
//! Invariants: at most [`KNOWN_MAX`] are remembered, [`RUNNING_MAX`] wait or run, and [`TURNS`]
//! run; none is told of bytes that changed while they were read.

use crate::login::Guest;
use crate::refusal::{Code, Refusal};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_files::Files;
use tieline_types::{ContentVersion, FileId};
use tokio::sync::{Semaphore, watch};

const KNOWN_MAX: usize = 16_384;
const RUNNING_MAX: usize = 256;
const TURNS: usize = 2;

/// A file with the bytes of a commit.
type Key = (u64, u64);
/// `None`: not yet.
pub type Sum = watch::Receiver<Option<Result<u32, Refusal>>>;

pub struct Checksums {
    state: Mutex<State>,
    turns: Semaphore,
}

#[derive(Default)]
struct State {
    /// With when it was asked for last.
    known: BTreeMap<Key, (u32, u64)>,
    running: BTreeMap<Key, Sum>,
    asked: u64,
}

impl Checksums {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), turns: Semaphore::new(TURNS) })
    }

    /// The Adler-32 of bytes, if it is known.
    pub fn known(&self, version: ContentVersion) -> Option<u32> {
        let mut state = self.lock();
        state.asked += 1;
        let asked = state.asked;
        let (sum, last) = state.known.get_mut(&key(version))?;
        *last = asked;
        Some(*sum)
    }

    /// The same, now or later. Whoever asks may read the file.
    pub fn ask(
        self: &Arc<Self>,
        files: &Arc<dyn Files>,
        guest: &Arc<Guest>,
        (id, version): (FileId, ContentVersion),
    ) -> Result<Sum, Refusal> {
        if let Some(sum) = self.known(version) {
            return Ok(watch::channel(Some(Ok(sum))).1);
        }
        let mut state = self.lock();
        if let Some(running) = state.running.get(&key(version)) {
            return Ok(running.clone());
        }
        if state.running.len() >= RUNNING_MAX {
            let what = format!("{RUNNING_MAX} checksums are being computed: ask again later");
            return Err(Refusal::new(Code::Overloaded, what));
        }
        let (sender, receiver) = watch::channel(None);
        state.running.insert(key(version), receiver.clone());
        drop(state);
        let (this, files, guest) = (self.clone(), files.clone(), guest.clone());
        tokio::spawn(async move {
            let sum = this.compute(&*files, &guest, (id, version)).await;
            this.end(version, &sum);
            // Nobody may wait for it any more.
            let _ = sender.send(Some(sum));
        });
        Ok(receiver)
    }

    async fn compute(
        &self,
        files: &dyn Files,
        guest: &Guest,
        (id, version): (FileId, ContentVersion),
    ) -> Result<u32, Refusal> {
        let ends = |_| Refusal::new(Code::ServerError, "the door ends");
        let _turn = self.turns.acquire().await.map_err(ends)?;
        let caller = guest.visitor.caller();
        let failed = |error| Refusal::of("checksum", &error);
        let sum = files.adler32(caller, id).await.map_err(failed)?;
        if files.content_version(caller, id).await.map_err(failed)? != version {
            let what = "the file was written while its checksum was computed: ask again when it is \
                        closed";
            return Err(Refusal::new(Code::FileLocked, what));
        }
        Ok(sum)
    }

    fn end(&self, version: ContentVersion, sum: &Result<u32, Refusal>) {
        let mut state = self.lock();
        state.running.remove(&key(version));
        let Ok(sum) = sum else { return };
        if state.known.len() >= KNOWN_MAX
            && let Some((oldest, _)) = state.known.iter().min_by_key(|(_, (_, asked))| *asked)
        {
            let oldest = *oldest;
            state.known.remove(&oldest);
        }
        state.asked += 1;
        let asked = state.asked;
        state.known.insert(key(version), (*sum, asked));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(version: ContentVersion) -> Key {
    (version.file.0, version.commit.0)
}
