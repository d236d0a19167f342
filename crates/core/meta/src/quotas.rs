//! Who uses how much, and whether they may use more.
//!
//! Every transaction that changes a file's size, owners or existence writes what that means for its
//! payers into a record of its own beside it ([`crate::view::View::commit`]): transactions of one
//! payer never meet in one record, and what is counted is what is there, whenever the server dies.
//! The records are added up in the background. In memory stands the sum of all.
//!
//! Before a change that uses more, its payers' limits are asked ([`Quotas::hold`]). What is asked
//! for is held until the change is committed or given up, so that two changes never share the same
//! room. Clients that gather bytes before they send them have them promised first
//! ([`Quotas::promise`]): what is promised counts as used, and a commit under a promise is not
//! refused. Promises are in memory: a restart forgets them, and clients ask anew.
//!
//! Limits hold over all MDTs. The MDT of the root keeps them; each other one has a share of each,
//! which it enforces as if it were the limit, has extended when it is short, and keeps when it is
//! cut off (`shares`).
//!
//! Root as a payer has no limits. What root does to others' files counts for them, and meets their
//! limits, but for giving files away.
//!
//! * `table`: what is known of everybody, and how much room there is.
//! * `defaults`: the limits of who has none of their own.
//! * `shares`: who may use how much of limits that several MDTs meet.
//! * `home`: what the MDT that keeps the limits knows of others; `follow`, `news`: what those know.
//! * `count`: what is noted, loading, counting anew.
//! * `told`: what people are told.
//!
//! Invariant: for every payer with a hard limit, what is used, held and promised here, and the
//! shares of other MDTs, together stay within it, but for what root gave away and what was used
//! before the limit was set.

pub(crate) mod count;
mod defaults;
pub(crate) mod follow;
mod home;
pub(crate) mod news;
pub(crate) mod shares;
mod table;
pub(crate) mod told;

pub(crate) use follow::Following;
pub(crate) use home::Home;
pub(crate) use table::{Bound, Table};

use crate::error::Result;
use shares::Amount;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_format::mdt::{Inode, PayerChange, UsageTotal};
use tieline_types::quota::{Account, Limits, Payer};
use tieline_types::{FileId, FileKind, SessionId, Time};
use tokio::sync::watch;

/// What a file costs its payers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Charge {
    pub account: Account,
    pub bytes: u64,
}

impl Charge {
    /// `None`: it is not counted any more.
    pub fn of(inode: &Inode) -> Option<Self> {
        if inode.is_uncounted == Some(true) {
            return None;
        }
        Some(Self { account: account_of(inode), bytes: inode.stored })
    }
}

/// Who pays for a file.
pub fn account_of(inode: &Inode) -> Account {
    // A directory's layout is for its files: it lies in no pool itself.
    let layout = inode.layout.as_ref().filter(|_| inode.kind != FileKind::Directory);
    Account::new((inode.uid, inode.gid, inode.project), layout)
}

/// Bytes and inodes, more or fewer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    pub bytes: i64,
    pub inodes: i64,
}

impl Sum {
    pub fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.inodes += other.inodes;
    }
}

impl From<UsageTotal> for Sum {
    fn from(UsageTotal { bytes, inodes }: UsageTotal) -> Self {
        Self { bytes, inodes }
    }
}

/// Changes of usage, by payer.
pub type Sums = BTreeMap<Payer, Sum>;

/// What a file's change from `before` to `after` means, added to `sums`.
pub fn add_change(sums: &mut Sums, before: Option<&Charge>, after: Option<&Charge>) {
    let mut add = |charge: &Charge, sign: i64| {
        let sum = Sum { bytes: sign * charge.bytes as i64, inodes: sign };
        for payer in charge.account.payers() {
            sums.entry(payer).or_default().add(sum);
        }
    };
    before.into_iter().for_each(|charge| add(charge, -1));
    after.into_iter().for_each(|charge| add(charge, 1));
    sums.retain(|_, sum| *sum != Sum::default());
}

/// As the store keeps it.
pub fn records(sums: &Sums) -> Vec<PayerChange> {
    let record = |(payer, sum): (&Payer, &Sum)| PayerChange {
        payer: payer.clone(),
        bytes: sum.bytes,
        inodes: sum.inodes,
    };
    sums.iter().map(record).collect()
}

/// Which of the two is over, or short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    Bytes,
    Inodes,
}

impl Resource {
    /// So much of this one.
    pub fn amount(self, much: u64) -> Amount {
        match self {
            Self::Bytes => Amount { bytes: much, inodes: 0 },
            Self::Inodes => Amount { bytes: 0, inodes: much },
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Inodes => "inodes",
        }
    }
}

/// Use and limits of everybody. All methods may be called from many tasks.
pub struct Quotas {
    boot: u64,
    /// Number of the next record of a change.
    next: AtomicU64,
    /// Records below this number are committed, or never will be.
    settled: AtomicU64,
    has_limits: AtomicBool,
    table: Mutex<Table>,
    /// The number of the newest news of limits, where they are kept.
    news: watch::Sender<u64>,
}

/// Room that a change holds until it is committed or given up.
pub struct Held {
    quotas: Arc<Quotas>,
    sums: Sums,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = self.quotas.table();
        for (payer, sum) in &self.sums {
            if let Some(held) = table.held.get_mut(payer) {
                held.add(Sum { bytes: -sum.bytes, inodes: -sum.inodes });
                if *held == Sum::default() {
                    table.held.remove(payer);
                }
            }
        }
    }
}

/// What came of asking for a promise.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Promised {
    /// `None`: no limit concerns it.
    pub bytes: Option<u64>,
    /// The limit that allows no more.
    pub tight: Option<String>,
    /// All whose limits are in the way, and how much would have to fit below each in all.
    pub lacks: BTreeMap<Payer, Amount>,
    /// Less than was wanted.
    pub is_less: bool,
    /// Other sessions that something is promised to under that limit.
    pub others: BTreeSet<SessionId>,
}

impl Quotas {
    pub(crate) fn new(boot: u64, table: Table) -> Self {
        let has_limits = AtomicBool::new(!table.bounds.is_empty());
        let (news, _) = watch::channel(table.news);
        Self {
            boot,
            news,
            next: AtomicU64::new(1),
            settled: AtomicU64::new(0),
            has_limits,
            table: Mutex::new(table),
        }
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is anybody limited?
    pub fn has_limits(&self) -> bool {
        self.has_limits.load(Ordering::Acquire)
    }

    /// The number of a new record of a change, with the start that it is of.
    pub fn change_number(&self) -> (u64, u64) {
        (self.boot, self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Which changes are surely committed: those of this start below this number. It is what came
    /// next when this was last asked.
    pub fn settle(&self) -> (u64, u64) {
        let next = self.next.load(Ordering::Relaxed);
        (self.boot, self.settled.swap(next, Ordering::Relaxed))
    }

    /// Holds room for a change, or says whose limit is in the way.
    pub fn hold(
        self: &Arc<Self>,
        (session, file): (SessionId, FileId),
        (before, after): (Option<&Charge>, &Charge),
        now: Time,
    ) -> Result<Option<Held>> {
        if !self.has_limits() {
            return Ok(None);
        }
        let mut sums = Sums::new();
        add_change(&mut sums, before, Some(after));
        sums.retain(|_, sum| sum.bytes > 0 || sum.inodes > 0);
        let mut table = self.table();
        let own = table.promises.get(&(session, file)).map_or(0, |(_, bytes)| *bytes);
        for (payer, sum) in &sums {
            table.inherit(payer, now);
            table.check(payer, *sum, own, now)?;
        }
        // What was promised is counted as such until it is used.
        let beyond = |bytes: i64| (bytes - own as i64).max(0);
        for sum in sums.values_mut() {
            *sum = Sum { bytes: beyond(sum.bytes), inodes: sum.inodes.max(0) };
        }
        sums.retain(|_, sum| *sum != Sum::default());
        for (payer, sum) in &sums {
            table.held.entry(payer.clone()).or_default().add(*sum);
        }
        drop(table);
        Ok(Some(Held { quotas: self.clone(), sums }))
    }

    /// Counts what was committed. `grown`: by how much which files grew.
    pub fn apply(&self, session: SessionId, sums: &Sums, grown: &BTreeMap<FileId, u64>, now: Time) {
        let mut table = self.table();
        for (payer, sum) in sums {
            table.used.entry(payer.clone()).or_default().add(*sum);
            if table.is_home {
                table.inherit(payer, now);
            }
            table.note_over(payer, now);
        }
        self.announce(&table);
        for (&file, bytes) in grown {
            let key = (session, file);
            if let Some((_, promised)) = table.promises.get_mut(&key) {
                *promised = promised.saturating_sub(*bytes);
                if *promised == 0 {
                    table.promises.remove(&key);
                }
            }
        }
    }

    /// Sets what is promised to a session for a file to `wanted`, or as much of it as there is.
    /// When room is short each gets a part of what is left, if more than needed.
    pub fn promise(
        &self,
        (session, file): (SessionId, FileId),
        account: &Account,
        (wanted, needed): (u64, u64),
        now: Time,
    ) -> Promised {
        let mut table = self.table();
        let key = (session, file);
        let own = table.promises.get(&key).map_or(0, |(_, bytes)| *bytes);
        let mut rooms = vec![];
        for payer in account.payers() {
            table.inherit(&payer, now);
            rooms.extend(table.room(&payer, own, now).map(|(room, label)| (room, payer, label)));
        }
        let Some((left, payer, label)) = rooms.iter().min_by_key(|(room, ..)| *room).cloned()
        else {
            table.promises.remove(&key);
            return Promised::default();
        };
        let bytes = wanted.min((left / 4).max(needed)).min(left);
        match bytes {
            0 => drop(table.promises.remove(&key)),
            _ => drop(table.promises.insert(key, (account.clone(), bytes))),
        }
        let is_short = bytes < needed;
        let mut others = BTreeSet::new();
        if is_short {
            let shared = table.promises.iter();
            let shared = shared.filter(|(_, (other, _))| other.payers().contains(&payer));
            others.extend(shared.map(|((other, _), _)| *other).filter(|&other| other != session));
        }
        let in_all = |payer: &Payer| {
            let others = table.in_use(payer).bytes.saturating_sub(bytes);
            Amount { bytes: others.saturating_add(needed), inodes: 0 }
        };
        let short = rooms.iter().filter(|(room, ..)| *room < needed);
        let lacks = short.map(|(_, payer, _)| (payer.clone(), in_all(payer))).collect();
        let (tight, is_less) = (is_short.then_some(label), bytes < wanted);
        Promised { bytes: Some(bytes), tight, lacks, is_less, others }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Wakes those who wait for news of limits.
    pub(crate) fn announce(&self, table: &Table) {
        let is_newer = |known: &mut u64| std::mem::replace(known, table.news) != table.news;
        self.news.send_if_modified(is_newer);
    }

    /// Limits came or went.
    pub(crate) fn note_limits(&self, table: &Table) {
        self.has_limits.store(!table.bounds.is_empty(), Ordering::Release);
    }

    /// Does any limit concern these?
    pub fn concerns(&self, payers: &[Payer]) -> bool {
        let table = self.table();
        payers.iter().any(|payer| table.is_concerned(payer))
    }

    /// The file is gone.
    pub fn forget(&self, session: SessionId, file: FileId) {
        self.table().promises.remove(&(session, file));
    }

    /// A session is over: nothing is promised to it any more.
    pub fn end(&self, session: SessionId) {
        self.table().promises.retain(|(holder, _), _| *holder != session);
    }

    /// Sets limits, where they are kept. Says whose are others now, and which.
    pub(crate) fn set(
        &self,
        payer: &Payer,
        (limits, is_default): (Limits, bool),
        now: Time,
    ) -> BTreeMap<Payer, Option<Bound>> {
        let mut table = self.table();
        let changed = table.set_limits(payer, limits, is_default, now);
        self.note_limits(&table);
        self.announce(&table);
        let bound = |payer: Payer| (payer.clone(), table.bounds.get(&payer).copied());
        changed.into_iter().map(bound).collect()
    }
}

#[cfg(test)]
mod tests;
