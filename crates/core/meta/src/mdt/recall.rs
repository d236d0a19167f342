//! Taking leases back before a change.
//!
//! Whoever holds a lease on what is touched is asked, all at once, and so is everybody who may have
//! a file open that is about to lose its last name. A holder is waited for until it answers or its
//! lease has run out. One that is heard of but does not answer within the lease may hear nothing,
//! as in a cut of one direction: its connection is ended, and it is asked again when it is back.
//! One that does not answer then either is barred, so that its lease runs out too. Whoever's ran
//! out is given none for a while.
//!
//! Files are opened under leases without a question. So whoever gives a lease back says what else
//! it has open in that directory, and is asked from then on before that loses its last name.
//!
//! Invariants: the changing session is never asked; when the waiting is over nobody else believes
//! what changes.

use crate::Recaller;
use crate::error::Result;
use crate::leases::{Change, EVERYTHING, Holder, LeaseTable};
use crate::mdt::Mdt;
use crate::permission::{self, READ, SEARCH, WRITE};
use crate::view::{Keepers, Touched, decode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tieline_format::mdt::{Inode, key};
use tieline_sessions::OpenTable;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{FileId, FileKind, SessionId, Version};
use tieline_wire::NoticeAnswer;
use tieline_wire::notice::Recall;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// A session that is not connected is asked again so often: it may be back.
const AWAY_PAUSE: Duration = Duration::from_millis(50);

/// So long who holds a directory from outside is waited for, and who is given no leases since he
/// did not answer.
const PATIENCE_SHORT: Duration = Duration::from_secs(1);

/// Who is away is not waited for: a wait shorter than this is held against nobody.
const WAIT_MIN: Duration = Duration::from_millis(200);

/// Files beside those that change which one answer says are open, and that are looked at at once.
const BESIDE_MAX: usize = 16_384;
const STEP: usize = 512;

/// Why a session is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// It may have what loses its last name open.
    Open,
    /// It holds a lease on what changes.
    Change,
    /// It holds alone what another wants to see.
    Look,
}

/// A session to be asked before a change, or before somebody looks.
pub struct Ask {
    pub holder: Holder,
    why: Why,
    recall: Recall,
    nameless: BTreeSet<FileId>,
}

impl Ask {
    /// What the holder gave up beside the unit.
    fn shared_beside(&self, answer: &NoticeAnswer) -> impl Iterator<Item = FileId> {
        let asked: BTreeSet<FileId> = self.recall.beside.iter().flatten().copied().collect();
        let shared = answer.shared.clone().unwrap_or_default().into_iter();
        shared.filter(move |unit| asked.contains(unit))
    }
}

impl Mdt {
    /// Covers what is touched: from here on nobody else is granted a lease on it. Who must be asked
    /// before the commit?
    pub(crate) fn cover(
        &self,
        asking: SessionId,
        change: &mut Change,
        (touched, sweeps): (&Touched, bool),
        asked: &BTreeSet<Holder>,
    ) -> Vec<Ask> {
        for &file in &touched.nameless {
            change.lose(file);
        }
        let mut holders: BTreeMap<Holder, Why> = BTreeMap::new();
        for &file in &touched.nameless {
            for session in self.openers(file) {
                let mut units = touched.units.iter();
                let unit = units.find(|(_, unit)| unit.files.contains(&file));
                let holder = unit.map(|(&unit, _)| Holder { session, unit });
                holders.extend(
                    holder
                        .filter(|holder| !asked.contains(holder))
                        .map(|holder| (holder, Why::Open)),
                );
            }
        }
        let mut holding = change.cover(touched.units.keys().copied());
        if let Some(first) = holding.first().filter(|_| sweeps) {
            holding.extend(change.sweep(first.unit));
        }
        holders.extend(holding.into_iter().map(|holder| (holder, Why::Change)));
        holders.retain(|holder, _| holder.session != asking);
        let ask = |(holder, why): (Holder, Why)| {
            let unit = touched.units.get(&holder.unit).cloned().unwrap_or_default();
            let recall = Recall {
                names: unit.names.into_iter().collect(),
                files: unit.files.into_iter().collect(),
                moves: unit.moves.then_some(true),
                ..Recall::of(holder.unit, Version(0))
            };
            Ask { holder, why, recall, nameless: touched.nameless.clone() }
        };
        holders.into_iter().map(ask).collect()
    }

    /// Who must be asked before `asking` may see what was read under `seen`? What they hold alone
    /// they may have changed.
    pub(crate) fn alone(
        &self,
        asking: SessionId,
        seen: &BTreeSet<FileId>,
        sends: bool,
    ) -> Vec<Ask> {
        let mut asked = BTreeSet::new();
        let ask = |holder: Holder| {
            let unit = match holder.unit {
                EVERYTHING => FileId::new(self.settings.mdt, EVERYTHING.serial()),
                unit => unit,
            };
            // Where he is asked for several, once.
            let is_first = asked.insert(holder.session);
            let beside = is_first.then(|| self.leases.idle_beside(holder));
            let beside = beside.filter(|beside| !beside.is_empty());
            let recall = Recall { beside, ..Recall::look(unit, Version(0)) };
            Ask { holder, why: Why::Look, recall, nameless: BTreeSet::new() }
        };
        self.leases.alone(asking, seen, sends).into_iter().map(ask).collect()
    }

    /// Sessions that may have a file open: those that were seen opening it, and for files of before
    /// the start all that came over it.
    pub fn openers(&self, file: FileId) -> BTreeSet<SessionId> {
        self.with_old_sessions(file, self.opens.openers(file))
    }

    /// The same of those that may have it open to be written.
    pub(crate) fn open_to_write(&self, file: FileId) -> BTreeSet<SessionId> {
        self.with_old_sessions(file, self.opens.writers(file))
    }

    fn with_old_sessions(
        &self,
        file: FileId,
        mut sessions: BTreeSet<SessionId>,
    ) -> BTreeSet<SessionId> {
        if file.serial() < self.first_serial {
            sessions.extend(self.old_sessions());
        }
        sessions
    }

    /// Recalls name the newest version anybody can have read before the change was covered.
    pub(crate) async fn dated(&self, mut asks: Vec<Ask>) -> Result<Vec<Ask>> {
        let at = self.parts.store.begin().await?.version();
        for ask in &mut asks {
            ask.recall.at = at;
        }
        Ok(asks)
    }

    /// Asks all at once, and waits until each has answered or believes nothing any more.
    pub(crate) async fn take_back(&self, asks: Vec<Ask>, keepers: &mut Keepers) {
        let mut waiting = JoinSet::new();
        for ask in asks {
            let asking = Asking {
                leases: self.leases.clone(),
                opens: self.opens.clone(),
                recaller: self.parts.recaller.clone(),
                lease: self.settings.lease,
            };
            waiting.spawn(async move {
                let mut beside = vec![];
                let answer = asking.ask(&ask, &mut beside).await;
                (ask, answer, beside)
            });
        }
        while let Some(joined) = waiting.join_next().await {
            let Ok((ask, answer, beside)) = joined else { continue };
            self.check_beside(ask.holder, &beside).await;
            if let Some(answer) = answer.as_ref().filter(|_| ask.why == Why::Look) {
                // First: whoever looks when it is shared asks those who write.
                self.note_written(ask.holder, answer).await;
                self.leases.share(ask.holder, ask.recall.at);
                self.leases.share_idle(ask.holder, ask.shared_beside(answer), ask.recall.at);
                METRICS.recalls.with_label_values(&["shared"]).inc();
            }
            self.note_opens(&ask, answer, keepers);
            self.forget_ended(ask.holder.session);
        }
    }

    /// Of files that a session says it has open beside those that it was asked for, only those
    /// count that it could have opened: in the directory that it held, for one of those as whom it
    /// asks.
    async fn check_beside(&self, holder: Holder, beside: &[FileId]) {
        for files in beside.chunks(STEP) {
            let doubted = self.not_openable(holder, files).await.unwrap_or_default();
            doubted.into_iter().for_each(|file| self.opens.closed(holder.session, file));
        }
    }

    async fn not_openable(&self, holder: Holder, files: &[FileId]) -> Result<Vec<FileId>> {
        let (map, callers) = (self.parts.map.current(), self.callers.of(holder.session));
        let may_open = |file: FileId, inode: &Inode| {
            let may = |caller| {
                let wishes = &[READ, SEARCH, WRITE];
                permission::check_handle_of(caller, &map.map, (file, inode), wishes).is_ok()
            };
            inode.kind == FileKind::Regular
                && inode.names.iter().any(|name| name.parent == holder.unit)
                && callers.iter().any(may)
        };
        let keys: Vec<_> = files.iter().map(|&file| key::inode(file)).collect();
        let found = self.parts.store.begin().await?.read(&keys).await?;
        let mut doubted = vec![];
        for (&file, value) in files.iter().zip(found) {
            let is_good = match value {
                Some(value) => may_open(file, &decode(&value, || file.to_string())?),
                None => false,
            };
            if !is_good {
                doubted.push(file);
            }
        }
        Ok(doubted)
    }

    fn note_opens(&self, ask: &Ask, answer: Option<NoticeAnswer>, keepers: &mut Keepers) {
        let session = ask.holder.session;
        for &file in &ask.nameless {
            let is_open = match &answer {
                Some(answer) => answer.open.contains(&file),
                // Who does not answer may well have it open still.
                None => self.openers(file).contains(&session),
            };
            if is_open {
                keepers.insert((file, session));
            } else if answer.is_some() && ask.recall.files.contains(&file) {
                self.opens.closed(session, file);
            }
        }
        for file in answer.into_iter().flat_map(|answer| answer.open) {
            if ask.recall.files.contains(&file) {
                self.opens.opened(session, file, false);
            }
        }
    }
}

/// What one task of [`Mdt::take_back`] works with.
struct Asking {
    leases: Arc<LeaseTable>,
    opens: Arc<OpenTable>,
    recaller: Arc<dyn Recaller>,
    lease: Duration,
}

impl Asking {
    /// `beside`: files that the answer says are open beside those that it was asked for, as far as
    /// that is news.
    async fn ask(&self, ask: &Ask, beside: &mut Vec<FileId>) -> Option<NoticeAnswer> {
        let session = ask.holder.session;
        let mut give_up = Instant::now() + self.lease;
        if ask.why == Why::Open {
            return self.ask_opener(ask).await;
        }
        if self.leases.is_outside(ask.holder) {
            return self.ask_outside(ask).await;
        }
        let mut answer = self.answer_before_end(ask, give_up).await;
        let is_overdue = answer.is_none() && self.leases.is_good(ask.holder);
        if is_overdue {
            self.recaller.hang_up(session);
            give_up = Instant::now() + self.lease;
            answer = self.answer_before_end(ask, give_up).await;
        }
        if answer.is_some() && ask.why == Why::Look {
            return answer;
        }
        if let Some(answer) = &answer {
            // Before the lease is out of the table: whoever takes a last name from then on finds
            // the session here.
            *beside = self.note_beside(ask, answer);
        }
        self.settle(ask.holder, (give_up, is_overdue), answer).await
    }

    fn note_beside(&self, ask: &Ask, answer: &NoticeAnswer) -> Vec<FileId> {
        let changing: BTreeSet<FileId> = ask.recall.files.iter().copied().collect();
        let beside = answer.open.iter().copied().filter(|file| !changing.contains(file));
        let said = beside.take(BESIDE_MAX);
        said.filter(|&file| self.opens.opened(ask.holder.session, file, false)).collect()
    }

    /// Whoever does not answer has it open.
    async fn ask_opener(&self, ask: &Ask) -> Option<NoticeAnswer> {
        let session = ask.holder.session;
        let (begun, is_suspended) = (Instant::now(), self.leases.is_suspended(session));
        let patience = if is_suspended { PATIENCE_SHORT } else { self.lease };
        let answer = tokio::select! {
            biased;
            answer = self.recaller.recall(session, ask.recall.clone(), patience) => answer,
            () = self.leases.silent(session) => None,
        };
        if answer.is_none() && begun.elapsed() >= WAIT_MIN {
            self.leases.ran_out(session);
        }
        answer
    }

    /// What is sent comes before anything else that the holder is told: it believes nothing older
    /// then, whenever it answers.
    async fn ask_outside(&self, ask: &Ask) -> Option<NoticeAnswer> {
        let (session, begun) = (ask.holder.session, Instant::now());
        let answer = self.recaller.recall(session, ask.recall.clone(), PATIENCE_SHORT).await;
        if answer.is_none() && begun.elapsed() >= WAIT_MIN {
            self.leases.ran_out_outside(session);
        }
        let outcome = if answer.is_some() { "answered" } else { "outside" };
        METRICS.recalls.with_label_values(&[outcome]).inc();
        self.leases.taken_back(ask.holder);
        answer
    }

    async fn answer_before_end(&self, ask: &Ask, give_up: Instant) -> Option<NoticeAnswer> {
        tokio::select! {
            biased;
            answer = self.answer(ask, give_up) => answer,
            _ = self.leases.ended(ask.holder) => None,
        }
    }

    /// Asks, and again when the holder comes back from a lost connection and still holds the unit.
    async fn answer(&self, ask: &Ask, give_up: Instant) -> Option<NoticeAnswer> {
        while Instant::now() < give_up && self.leases.is_held(ask.holder) {
            let patience = give_up.saturating_duration_since(Instant::now());
            let session = ask.holder.session;
            let answer = self.recaller.recall(session, ask.recall.clone(), patience).await;
            if answer.is_some() {
                return answer;
            }
            tokio::time::sleep(AWAY_PAUSE).await;
        }
        None
    }

    /// Waits for the end of a lease whose holder did not answer, and takes it out of the table.
    async fn settle(
        &self,
        holder: Holder,
        (give_up, is_overdue): (Instant, bool),
        answer: Option<NoticeAnswer>,
    ) -> Option<NoticeAnswer> {
        let outcome = match &answer {
            Some(answer) if answer.is_contended => "contended",
            Some(_) => "answered",
            None => {
                let ended = timeout_at(give_up, self.leases.ended(holder)).await;
                if ended.is_err() {
                    // Heard of, but no answer: what it says from now on is refused.
                    self.leases.bar(holder.session);
                    self.leases.ended(holder).await;
                }
                if is_overdue || ended.unwrap_or(true) {
                    self.leases.ran_out(holder.session);
                    "expired"
                } else {
                    // Another asked for the same, whom it answered.
                    "answered"
                }
            }
        };
        METRICS.recalls.with_label_values(&[outcome]).inc();
        self.leases.taken_back(holder);
        answer
    }
}
