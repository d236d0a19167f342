//! What this client did by itself, in its order, until the MDS knows it.
//!
//! Under an exclusive lease a call is decided here, from what is held ([`crate::own`]): its effect
//! is put into the cache, its request into the journal of its MDT, and it is answered. A task per
//! MDT sends what has gathered, oldest first, in batches that are one transaction each
//! ([`Queue::run`]): soon, at once when much has gathered or somebody waits for it
//! ([`Queue::drain`]).
//!
//! Everything else goes to the MDS as it always did, after what it may depend on
//! ([`Queue::before`]): a change after all that was done before it, a question after what was done
//! to the files it is about. While a change is under way nothing is decided here about the files it
//! is about: they are *busy*.
//!
//! An operation that the MDS refuses is said in the log, and at the next fsync of what it was
//! about; nothing of that directory is believed any more. One whose ticket cannot be shown is kept
//! as if the server were away, and after that refused by itself.
//!
//! Lock order: a file's state, the cache, the journal. Invariants: what is in the cache and in the
//! journal changes together, under both locks; the MDS is told in the order of the journal; what
//! waits is bounded in number, bytes and age.

use crate::shared::{Shared, lock};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tieline_believed::tables::provisional;
use tieline_keep::{Keep, Kept};
use tieline_owed::act::{Act, ActRecord};
use tieline_owed::line::{Entry, Line};
use tieline_owed::records::{KeptAct, Noting, first_number};
use tieline_types::{Caller, ErrorKind, FileId, MdtIndex, Name, Retry, Version};
use tieline_wire::meta::{Batch, BatchItem, BatchOutcome, BatchReply, Reserve};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

mod ask;

pub(crate) use ask::Busy;

/// Serials that are reserved at once, and how few are left when more are.
const SERIALS: u32 = 16_384;
const SERIALS_LOW: u64 = 8192;
/// Pause after a batch that could not be sent.
const AGAIN: Duration = Duration::from_millis(500);

/// All journals of a mounted file system.
pub(crate) struct Journal {
    is_on: bool,
    shared: Weak<Shared>,
    queues: Mutex<BTreeMap<MdtIndex, Arc<Queue>>>,
    versions: AtomicU64,
    keep: Keep,
    /// Nothing is sent before the outcome of what an earlier process sent is known.
    is_open: watch::Sender<bool>,
}

impl Journal {
    pub fn new(is_on: bool, shared: Weak<Shared>, keep: Keep) -> Self {
        Self {
            is_on,
            shared,
            queues: Mutex::default(),
            versions: AtomicU64::new(first_number(&keep)),
            keep,
            is_open: watch::Sender::new(true),
        }
    }

    /// What an earlier process decided, in its order. Nothing is sent before [`Journal::open`].
    pub fn restore(&self, acts: Vec<(KeptAct, Kept)>) {
        self.is_open.send_replace(false);
        for (act, kept) in acts {
            let _in_hand = kept.in_hand();
            let Some(queue) = self.of(act.item.id.mdt()) else { continue };
            let record = ActRecord::restored(kept, &act);
            let KeptAct { item, files, names, rights, version, cuts, .. } = act;
            let version = Version(version);
            let mut line = queue.lock();
            line.add(Act { item, files, names, rights, version, cuts }, record);
            line.may_be_sent();
        }
    }

    pub fn open(&self) {
        self.is_open.send_replace(true);
    }

    /// The journal of an MDT, if one is kept.
    pub fn of(&self, mdt: MdtIndex) -> Option<Arc<Queue>> {
        if !self.is_on {
            return None;
        }
        let mut queues = lock(&self.queues);
        let queue = queues.entry(mdt).or_insert_with(|| {
            let queue = Arc::new(Queue::new(mdt, self.keep.clone()));
            tokio::spawn(queue.clone().run(self.shared.clone(), self.is_open.subscribe()));
            queue
        });
        Some(queue.clone())
    }

    pub fn all(&self) -> Vec<Arc<Queue>> {
        lock(&self.queues).values().cloned().collect()
    }

    /// A version for what an own change leaves, until the MDS gives one.
    pub fn version(&self) -> Version {
        provisional(self.versions.fetch_add(1, Ordering::Relaxed))
    }

    /// The session is another one: serials must be reserved under it before more is granted.
    pub fn session_changed(&self) {
        for queue in self.all() {
            queue.needs_serials.store(true, Ordering::Relaxed);
            queue.lock().forget_serials();
        }
    }
}

/// The journal of one MDT.
pub(crate) struct Queue {
    pub mdt: MdtIndex,
    line: Mutex<Line>,
    /// Woken when something was sent, or refused.
    moved: Notify,
    /// Wakes the one who sends.
    work: Notify,
    /// Tickets that cannot be shown, and since when.
    unproven: Mutex<BTreeMap<u64, Instant>>,
    /// None were reserved under this session.
    needs_serials: AtomicBool,
    /// One reserves at a time.
    reserving: tokio::sync::Mutex<()>,
}

impl Queue {
    fn new(mdt: MdtIndex, keep: Keep) -> Self {
        Self {
            mdt,
            line: Mutex::new(Line::new(keep)),
            moved: Notify::new(),
            work: Notify::new(),
            unproven: Mutex::default(),
            needs_serials: AtomicBool::new(true),
            reserving: tokio::sync::Mutex::default(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    /// A file id that nobody had.
    pub fn serial(&self) -> Option<FileId> {
        Some(FileId::new(self.mdt, self.lock().serial()?))
    }

    /// How many operations the MDS does not know.
    pub fn waiting(&self) -> u64 {
        self.lock().entries().len() as u64
    }

    /// The operations that the MDS does not know, with the names that they are about.
    pub fn unsent(&self) -> Vec<(BatchItem, Vec<(FileId, Name)>)> {
        let line = self.lock();
        let acts = line.entries().iter().map(|entry| &entry.act);
        acts.map(|act| (act.item.clone(), act.names.clone())).collect()
    }

    /// To be called after something was pushed, without locks.
    pub fn pushed(&self) {
        let is_news = self.lock().is_news();
        if is_news {
            self.work.notify_one();
        }
    }

    /// Waits while too much waits.
    pub async fn room(&self, patience: Duration) -> Result<()> {
        let room = async {
            loop {
                let moved = self.moved.notified();
                tokio::pin!(moved);
                moved.as_mut().enable();
                if self.lock().has_room() {
                    return;
                }
                moved.await;
            }
        };
        let slow = |_| Error::local(ErrorKind::Timeout, "what was done here cannot be sent");
        timeout(patience, room).await.map_err(slow)
    }

    /// Waits until the MDS knows operations up to `number`.
    pub async fn drain(&self, number: u64, patience: Duration) -> Result<()> {
        let sent = async {
            loop {
                let moved = self.moved.notified();
                tokio::pin!(moved);
                moved.as_mut().enable();
                if self.lock().want(number) {
                    return;
                }
                self.work.notify_one();
                moved.await;
            }
        };
        let slow = |_| Error::local(ErrorKind::Timeout, "what was done here cannot be sent");
        timeout(patience, sent).await.map_err(slow)
    }

    /// The last operation on a file; 0 for none that waits.
    pub fn last_on(&self, file: FileId) -> u64 {
        self.lock().last_on(file)
    }

    pub fn last(&self) -> u64 {
        self.lock().last()
    }

    /// What was refused in a directory, once; or anywhere.
    pub fn late(&self, directory: Option<FileId>) -> Result<()> {
        match self.lock().take_late(directory) {
            Some((kind, detail)) => Err(Error::Late { kind, detail }),
            None => Ok(()),
        }
    }

    /// Sends until the file system is gone.
    async fn run(self: Arc<Self>, shared: Weak<Shared>, mut is_open: watch::Receiver<bool>) {
        // The sender goes with the file system.
        let _ = is_open.wait_for(|is_open| *is_open).await;
        drop(is_open);
        loop {
            let due = self.lock().due();
            match due {
                Ok(entries) => {
                    let Some(shared) = shared.upgrade() else { return };
                    self.send(&shared, entries).await;
                }
                Err(at) => {
                    if shared.strong_count() == 0 {
                        return;
                    }
                    let woken = self.work.notified();
                    let at = at.unwrap_or_else(|| Instant::now() + Duration::from_secs(1));
                    tokio::select! {
                        biased;
                        () = woken => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
            }
        }
    }

    async fn send(&self, shared: &Arc<Shared>, entries: Vec<Entry>) {
        let entries = self.proven(shared, entries).await;
        self.send_proven(shared, entries).await;
        if self.lock().serials_left() < SERIALS_LOW {
            self.reserve(shared).await;
        }
    }

    /// Says whether it is known what became of all of them.
    async fn send_proven(&self, shared: &Arc<Shared>, mut entries: Vec<Entry>) -> bool {
        if entries.is_empty() {
            return true;
        }
        let items: Vec<_> = entries.iter().map(|entry| entry.act.item.clone()).collect();
        let count = items.len();
        // The request's record goes after those of what is in it.
        let noting = Noting::of(Vec::new());
        let caller = Caller::root();
        let asking = shared.ask_now(&caller, self.mdt, Batch { items });
        let is_known = match noting.within(asking).await {
            Ok(told) if told.reply.outcomes.len() == count => {
                shared.settle_batch(self, &entries, &told.reply).await;
                true
            }
            Ok(_) => {
                let error = Error::local(ErrorKind::Protocol, "answer to a batch");
                self.refused(shared, &entries, &error).await;
                true
            }
            Err(error) if error.kind() == ErrorKind::Unauthenticated => {
                tracing::info!(%error, count, "what was done here waits for tickets");
                let proofs = entries.iter().filter_map(Entry::proof).collect();
                let unshown = shared.servers.unshown(self.mdt, &proofs).await;
                if unshown.is_empty() {
                    tokio::time::sleep(AGAIN).await;
                }
                let since = unshown.into_iter().map(|proof| (proof, Instant::now()));
                lock(&self.unproven).extend(since);
                false
            }
            // Nothing of it was carried out. It may be for one of them, who is no identity any
            // more, say, that all are refused.
            Err(error) if error.kind().retry() == Retry::Never && count > 1 => {
                let others = entries.split_off(count / 2);
                let some = std::mem::take(&mut entries);
                Box::pin(self.send_proven(shared, some)).await
                    && Box::pin(self.send_proven(shared, others)).await
            }
            Err(error) if error.kind().retry() == Retry::Never => {
                self.refused(shared, &entries, &error).await;
                true
            }
            Err(error) => {
                tracing::info!(%error, count, "what was done here waits for the server");
                tokio::time::sleep(AGAIN).await;
                false
            }
        };
        drop(entries);
        drop(noting);
        is_known
    }

    /// What can be sent now: all before the first thing that was done in the name of a ticket which
    /// cannot be shown. That waits as for a server that is away, and is refused then, alone.
    async fn proven(&self, shared: &Arc<Shared>, mut entries: Vec<Entry>) -> Vec<Entry> {
        let since = |entry: &Entry| lock(&self.unproven).get(&entry.proof()?).copied();
        let Some(at) = entries.iter().position(|entry| since(entry).is_some()) else {
            return entries;
        };
        entries.truncate(at.max(1));
        let first = entries.first().and_then(|first| Some((first.proof()?, since(first)?)));
        let Some((proof, since)) = first.filter(|_| at == 0) else { return entries };
        if shared.servers.unshown(self.mdt, &BTreeSet::from([proof])).await.is_empty() {
            lock(&self.unproven).remove(&proof);
        } else if since.elapsed() >= shared.servers.wait_for(self.mdt) {
            let error = Error::local(ErrorKind::Unauthenticated, "a ticket that is not shown");
            self.refused(shared, &entries, &error).await;
            entries.clear();
        } else {
            tokio::time::sleep(AGAIN).await;
            entries.clear();
        }
        entries
    }

    /// All of a batch is refused.
    async fn refused(&self, shared: &Arc<Shared>, entries: &[Entry], error: &Error) {
        let failure = tieline_wire::Failure::new(error.kind(), error.to_string());
        let outcome = BatchOutcome { failure: Some(failure), ..BatchOutcome::default() };
        let outcomes = vec![outcome; entries.len()];
        let reply = BatchReply { outcomes, lease: Default::default() };
        shared.settle_batch(self, entries, &reply).await;
    }

    /// Reserves serials, if that was not done under this session.
    pub async fn reserve_first(&self, shared: &Arc<Shared>) {
        if self.needs_serials.load(Ordering::Relaxed) {
            self.reserve(shared).await;
        }
    }

    async fn reserve(&self, shared: &Arc<Shared>) {
        let Ok(_one) = self.reserving.try_lock() else { return };
        let message = Reserve { count: SERIALS };
        match shared.ask_now(&Caller::root(), self.mdt, message).await {
            Ok(told) => {
                let first = told.reply.first;
                let run = first..first + u64::from(told.reply.count);
                self.lock().lend(run);
            }
            Err(error) => tracing::info!(%error, "server lends no serials: it decides everything"),
        }
        self.needs_serials.store(false, Ordering::Relaxed);
    }
}

impl Shared {
    /// An earlier process sent a batch, and this is what came of it. It may have begun to settle
    /// it.
    pub(crate) async fn settle_left(&self, mdt: MdtIndex, batch: &Batch, reply: &BatchReply) {
        let Some(queue) = self.journal.of(mdt) else { return };
        let waiting = queue.lock().entries().clone();
        let Some(first) = waiting.front() else { return };
        let from = batch.items.iter().position(|item| *item == first.act.item);
        let Some(from) = from.filter(|_| reply.outcomes.len() == batch.items.len()) else { return };
        let same = batch.items.iter().skip(from).zip(&waiting);
        let count = same.take_while(|(item, entry)| **item == entry.act.item).count();
        let entries: Vec<Entry> = waiting.into_iter().take(count).collect();
        let outcomes = reply.outcomes.iter().skip(from).take(count).cloned().collect();
        let reply = BatchReply { outcomes, lease: reply.lease.clone() };
        self.settle_batch(&queue, &entries, &reply).await;
    }

    /// The outcome of a batch is known.
    async fn settle_batch(&self, queue: &Queue, entries: &[Entry], reply: &BatchReply) {
        let as_of = reply.lease.as_of;
        let refused = entries.iter().zip(&reply.outcomes).filter_map(|(entry, outcome)| {
            let failure = outcome.failure.as_ref()?;
            Some((&entry.act.item, failure.kind, failure.detail.as_str()))
        });
        // Before their records go.
        self.spool_refused(refused).await;
        let mut failed = Vec::new();
        for (entry, outcome) in entries.iter().zip(&reply.outcomes) {
            let act = &entry.act;
            let mut tables = self.cache.lock();
            let changed = (act.files.as_slice(), act.names.as_slice());
            tables.settle((entry.number, as_of), changed, (act.version, outcome));
            drop(tables);
            if let (Some(file), Some(version)) = (self.file_known(act.item.id), outcome.version) {
                file.with(|state| state.settle(act.version, version, as_of));
            }
            if let Some(failure) = &outcome.failure {
                failed.push((act.clone(), failure.clone()));
            }
        }
        if let Some(last) = entries.last() {
            queue.lock().finish(last.number);
        }
        for (act, failure) in failed {
            self.settle_failure(queue, &act, &failure);
        }
        queue.moved.notify_waiters();
    }

    /// The MDS refused what was done here.
    fn settle_failure(&self, queue: &Queue, act: &Act, failure: &tieline_wire::Failure) {
        let id = act.item.id;
        tracing::error!(file = %id, %failure, "what was done here is refused, and lost");
        let unit = self.cache.lock().unit_of(id);
        if let Some(file) = self.file_known(id) {
            file.with(|state| {
                state.late.lose(failure.kind, failure.detail.clone());
                state.version = Version(0);
                // What it left is not there.
                state.door.spoil();
            });
        }
        {
            let mut line = queue.lock();
            let parents = act.names.iter().map(|(parent, _)| *parent);
            let itself = act.names.is_empty().then_some(id).into_iter().chain(unit);
            for unit in parents.chain(itself) {
                line.note_late((unit, None), failure.kind, &failure.detail);
            }
        }
        let units = act.files.iter().copied().chain(unit);
        for unit in units {
            self.let_go(unit);
        }
    }

    /// Sends what was done to a file, or in a directory, and waits until the MDS has it.
    pub(crate) async fn drain_file(&self, id: FileId) -> Result<()> {
        let Some(queue) = self.journal.of(id.mdt()) else { return Ok(()) };
        let number = queue.last_on(id);
        queue.drain(number, self.servers.wait_for(id.mdt())).await
    }

    /// Sends everything that was done here.
    pub(crate) async fn drain_all(&self, patience: Duration) -> Result<()> {
        for queue in self.journal.all() {
            let number = queue.last();
            queue.drain(number, patience).await?;
        }
        Ok(())
    }
}
