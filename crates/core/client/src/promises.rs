//! Bytes that may be written under quotas.
//!
//! Where an MDT has limits, a write is accepted only when its bytes were promised: what is held
//! here fits when it is committed, and the write that crosses a limit fails itself. Promises are
//! asked for per file, in steps, and given back with the last close. Files that no limit concerns
//! are free until the MDT says that its limits change, by a recall of the whole of it; then what
//! waits here is promised before anything else, and what is promised and not needed is given back.
//!
//! Where no MDT has limits nothing is asked at all.
//!
//! Invariant: what was drawn of a promise is at least what the commit of the bytes will add.

use crate::file::{File, State};
use crate::handles::FileHandle;
use crate::shared::{Shared, lock};
use crate::writer::Waiting;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tieline_believed::Limits;
use tieline_believed::Tables;
use tieline_granted::{FilePromise, Payers};
use tieline_servers::by_key::ByKey;
use tieline_types::quota::{Account, Payer};
use tieline_types::{Attributes, Caller, ErrorKind, FileId, Gid, Layout, Uid};
use tieline_wire::quotas::{Promise, PromiseReply};
use tokio::time::Instant;

/// Asked for beyond what is needed at once.
const STEP: u64 = 32 << 20;
/// Accounts that are remembered as free.
const FREE_MAX: usize = 4096;

/// What is known of limits.
#[derive(Default)]
pub(crate) struct Promises {
    limits: Limits,
    /// Advances when limits change: who was free before may not be.
    epoch: AtomicU64,
    /// Accounts that no limit concerns.
    free: Mutex<BTreeSet<Account>>,
    /// One question about a file at a time.
    turns: ByKey<FileId>,
}

impl Promises {
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub fn told(&self, has: bool) {
        self.limits.told(has);
    }

    pub fn has_limits(&self) -> bool {
        self.limits.may_be()
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

fn payers_of(tables: &Tables, file: &Attributes) -> Payers {
    (file.uid, file.gid, tables.parent_of(file.id))
}

/// How many bytes a write can add to what the file covers. `is_whole`: it has no holes as far as it
/// is committed.
fn growth(state: &State, offset: u64, length: u64, is_whole: bool) -> u64 {
    let size = state.size_here();
    let beyond = (offset + length).saturating_sub(offset.max(size));
    let waits = state.overlay.bytes() as u64;
    let is_dense = is_whole && size.saturating_sub(state.size) <= waits;
    if is_dense { beyond } else { length }
}

impl Shared {
    /// Has the bytes of a write promised, or fails as the write that crosses a limit.
    pub(crate) async fn afford(
        self: &Arc<Self>,
        open: &FileHandle,
        place: Option<u64>,
        length: u64,
    ) -> Result<()> {
        if !self.promises.has_limits() {
            return Ok(());
        }
        let (file, epoch) = (&open.file, self.promises.epoch());
        let (is_whole, payers) = {
            let mut tables = self.cache.lock();
            let known = tables.attributes(file.id).map(|known| known.attributes);
            let is_whole = known.as_ref().is_some_and(|known| known.stored >= known.size);
            (is_whole, known.map(|known| payers_of(&tables, &known)))
        };
        let place = |state: &State| place.unwrap_or_else(|| state.size_here());
        let draw = |is_asked: bool| {
            file.with(|state| {
                let needed = growth(state, place(state), length, is_whole);
                let promise = &mut state.promise;
                let is_theirs = is_asked || payers.is_some_and(|payers| promise.is_of(payers));
                let is_free = promise.is_free_in(epoch);
                (is_theirs && (is_free || promise.draw(needed)), needed)
            })
        };
        let (is_drawn, needed) = draw(false);
        if is_drawn {
            return Ok(());
        }
        let _waiting = Waiting::new(file);
        if self.ask_promise(&open.caller, file, (needed, STEP)).await?.is_none() {
            return Ok(());
        }
        if draw(true).0 {
            return Ok(());
        }
        // What waits may take less than it could have, and what is shared out more than there is.
        let _ = self.launder_within_write(file).await;
        let refused = self.ask_promise(&open.caller, file, (needed, 0)).await?;
        match refused {
            Some(_) if draw(true).0 => Ok(()),
            None => Ok(()),
            Some(reason) => {
                let reason = reason.unwrap_or_else(|| "a limit".to_owned());
                tracing::info!(file = %file.id, uid = open.caller.uid.0, "write refused: {reason}");
                Err(Error::local(ErrorKind::QuotaExceeded, reason))
            }
        }
    }

    /// Has so much promised, and more if there is. `None`: no limit concerns the file.
    async fn ask_promise(
        &self,
        caller: &Caller,
        file: &File,
        (bytes, more): (u64, u64),
    ) -> Result<Option<Option<String>>> {
        // The last question that the MDS heard is the one that counts.
        let until = Instant::now() + self.servers.wait_for(file.id.mdt());
        let mut turn = self.promises.turns.wait(file.id, until).await?;
        let answer = self.ask_promise_now(caller, file, (bytes, more)).await;
        turn.note(&answer);
        answer
    }

    /// The same, for whoever asks alone about the file.
    async fn ask_promise_now(
        &self,
        caller: &Caller,
        file: &File,
        (bytes, more): (u64, u64),
    ) -> Result<Option<Option<String>>> {
        let epoch = self.promises.epoch();
        let payers = {
            let mut tables = self.cache.lock();
            let known = tables.attributes(file.id);
            known.map(|known| payers_of(&tables, &known.attributes))
        };
        let (needed, used) = file.with(|state| {
            let needed = state.promise.drawn() + bytes;
            (needed, state.promise.ask(needed + more))
        });
        let message = Promise { id: file.id, wanted: needed + more, needed, payers: None };
        let reply = self.ask(caller, file.id, message).await?.reply;
        let PromiseReply { promised, reason } = reply;
        file.with(|state| match promised {
            None => state.promise = FilePromise::free(epoch, payers),
            Some(granted) => state.promise.answered(granted, used, payers),
        });
        Ok(promised.map(|_| reason))
    }

    /// The last handle was closed.
    pub(crate) async fn give_promise_back(&self, file: &File) {
        let held = |state: &mut State| (state.promise.may_be_held(), state.writer.clone());
        let (may_be_held, writer) = file.with(held);
        if may_be_held && let Err(error) = self.ask_promise(&writer, file, (0, 0)).await {
            tracing::info!(file = %file.id, %error, "what was promised is given back later");
        }
    }

    /// Limits of an MDT change: what waits here is promised before they hold, and what is promised
    /// in vain is given back.
    pub(crate) async fn limits_changed(self: &Arc<Self>) {
        self.promises.told(true);
        self.promises.epoch.fetch_add(1, Ordering::AcqRel);
        lock(&self.promises.free).clear();
        self.promise_anew().await;
    }

    /// An MDS that begins anew remembers no promises.
    pub(crate) fn promises_welcomed(self: &Arc<Self>) {
        let is_promised = |file: &File| file.with(|state| state.promise.is_some());
        if self.promises.has_limits() && self.promised_files().iter().any(|one| is_promised(one)) {
            let shared = self.clone();
            tokio::spawn(async move { shared.promise_anew().await });
        }
    }

    fn promised_files(&self) -> Vec<Arc<File>> {
        let mut files = lock(&self.dirty).clone();
        for open in self.handles.open_files() {
            if let Some(file) = self.files.known(open.id) {
                files.insert(open.id, file);
            }
        }
        files.into_values().collect()
    }

    async fn promise_anew(self: &Arc<Self>) {
        let mut tasks = tokio::task::JoinSet::new();
        for file in self.promised_files() {
            let (is_needed, writer) = file.with(|state| {
                state.promise.count(state.overlay.bytes() as u64);
                (state.promise.may_be_held(), state.writer.clone())
            });
            if is_needed {
                let shared = self.clone();
                tasks.spawn(async move {
                    // Who asks now is waited for by others, perhaps by the one who made us ask:
                    // his answer leaves him no more than he needs.
                    let Some(_one) = shared.promises.turns.try_wait(file.id) else { return };
                    if let Err(error) = shared.ask_promise_now(&writer, &file, (0, 0)).await {
                        tracing::info!(file = %file.id, %error, "nothing is promised for it yet");
                    }
                });
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    /// May a file be made here by ourselves, since no limit concerns those who would pay? Who is
    /// not known yet is asked after, and the MDS makes this one.
    pub(crate) fn is_free(
        &self,
        parent: FileId,
        (uid, gid, project): (Uid, Gid, u32),
        layout: Option<&Layout>,
    ) -> bool {
        if !self.promises.has_limits() {
            return true;
        }
        let account = Account::new((uid, gid, project), layout);
        if lock(&self.promises.free).contains(&account) {
            return true;
        }
        let Some(shared) = self.weak.upgrade() else { return false };
        tokio::spawn(async move { shared.ask_free(parent, account).await });
        false
    }

    async fn ask_free(&self, parent: FileId, account: Account) {
        let epoch = self.promises.epoch();
        let payers: Option<Vec<Payer>> = Some(account.payers());
        let message = Promise { id: parent, wanted: 0, needed: 0, payers };
        let Ok(told) = self.ask(&Caller::root(), parent, message).await else { return };
        let mut free = lock(&self.promises.free);
        if told.reply.promised.is_none() && self.promises.epoch() == epoch {
            if free.len() >= FREE_MAX {
                free.clear();
            }
            free.insert(account);
        }
    }
}
