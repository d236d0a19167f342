//! Who uses how much, and whether they may use more.
//!
//! Every transaction that changes a file's size, owners or existence writes what that means for its
//! payers into a record of its own beside it ([`crate::view::View::commit`]): transactions of one
//! payer never meet in one record, and what is counted is what is there, whenever the server dies.
//! The records are added up in the background (`count`). In memory stands the sum of all.
//!
//! Before a change that uses more, its payers' limits are asked ([`Quotas::hold`]). What is asked
//! for is held until the change is committed or given up, so that two changes never share the same
//! room. Clients that gather bytes before they send them have them promised first
//! ([`Quotas::promise`]): what is promised counts as used, and a commit under a promise is not
//! refused. Promises are in memory: a restart forgets them, and clients ask anew.
//!
//! Root as a payer has no limits. What root does to others' files counts for them, and meets their
//! limits, but for giving files away.
//!
//! * `count`: adding up, loading, counting anew.
//! * `serve`: the calls.
//!
//! Invariant: for every payer with a hard limit, used, held and promised together stay within it,
//! but for what root gave away and what was used before the limit was set.

pub(crate) mod count;
mod serve;

use crate::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_format::mdt::{Inode, PayerChange, UsageTotal};
use tieline_types::quota::{Account, Grace, Limits, Payer, PayerKind};
use tieline_types::{FileId, FileKind, SessionId, Time};

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
    fn add(&mut self, other: Self) {
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
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Inodes => "inodes",
        }
    }
}

/// What a payer may use, and since when more than the soft limits is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bound {
    pub limits: Limits,
    pub bytes_over: Option<Time>,
    pub inodes_over: Option<Time>,
    /// The store says otherwise.
    pub is_changed: bool,
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
}

#[derive(Default)]
pub(crate) struct Table {
    pub used: BTreeMap<Payer, Sum>,
    /// By changes that are under way.
    held: BTreeMap<Payer, Sum>,
    pub bounds: BTreeMap<Payer, Bound>,
    pub grace: BTreeMap<PayerKind, Grace>,
    /// With those who would pay.
    promises: BTreeMap<(SessionId, FileId), (Account, u64)>,
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Promised {
    /// `None`: no limit concerns it.
    pub bytes: Option<u64>,
    /// The limit that allows no more.
    pub tight: Option<String>,
    /// Other sessions that something is promised to under that limit.
    pub others: BTreeSet<SessionId>,
}

impl Quotas {
    pub(crate) fn new(boot: u64, table: Table) -> Self {
        let has_limits = AtomicBool::new(!table.bounds.is_empty());
        Self {
            boot,
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
            table.note_over(payer, now);
        }
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
        let (mut left, mut tight) = (None, None);
        for payer in account.payers() {
            let Some((room, label)) = table.room(&payer, own, now) else { continue };
            if left.is_none_or(|left| room < left) {
                (left, tight) = (Some(room), Some((payer, label)));
            }
        }
        let (Some(left), Some((payer, label))) = (left, tight) else {
            table.promises.remove(&key);
            return Promised { bytes: None, tight: None, others: BTreeSet::new() };
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
        Promised { bytes: Some(bytes), tight: is_short.then_some(label), others }
    }

    /// Does any limit concern these?
    pub fn concerns(&self, payers: &[Payer]) -> bool {
        let table = self.table();
        payers.iter().any(|payer| payer.id != 0 && table.bounds.contains_key(payer))
    }

    /// The file is gone.
    pub fn forget(&self, session: SessionId, file: FileId) {
        self.table().promises.remove(&(session, file));
    }

    /// A session is over: nothing is promised to it any more.
    pub fn end(&self, session: SessionId) {
        self.table().promises.retain(|(holder, _), _| *holder != session);
    }

    /// Takes what a store says of limits.
    pub(crate) fn set(&self, payer: Payer, limits: Limits, now: Time) -> Bound {
        let mut table = self.table();
        let mut bound = table.bounds.get(&payer).copied().unwrap_or_default();
        bound.limits = limits;
        if limits.is_none() {
            table.bounds.remove(&payer);
        } else {
            table.bounds.insert(payer.clone(), bound);
            table.note_over(&payer, now);
        }
        let bound = table.bounds.get(&payer).copied().unwrap_or_default();
        self.has_limits.store(!table.bounds.is_empty(), Ordering::Release);
        bound
    }
}

impl Table {
    pub fn used(&self, payer: &Payer) -> Sum {
        self.used.get(payer).copied().unwrap_or_default()
    }

    pub fn grace(&self, kind: PayerKind) -> Grace {
        self.grace.get(&kind).copied().unwrap_or_default()
    }

    /// Bytes promised to sessions, of which this payer would pay.
    pub fn promised(&self, payer: &Payer) -> u64 {
        let of = self.promises.values().filter(|(account, _)| account.payers().contains(payer));
        of.map(|(_, bytes)| *bytes).sum()
    }

    /// What may be used of bytes and inodes now: the hard limits, or the soft ones when their
    /// grace is over.
    fn most(&self, payer: &Payer, now: Time) -> Option<[(Option<u64>, &'static str); 2]> {
        if payer.id == 0 {
            return None;
        }
        let Bound { limits, bytes_over, inodes_over, .. } = *self.bounds.get(payer)?;
        let grace = self.grace(payer.kind);
        let one = |soft: u64, hard: u64, over: Option<Time>, grace: u64| {
            let is_late = over.is_some_and(|over| {
                now.seconds.saturating_sub(over.seconds) >= i64::try_from(grace).unwrap_or(i64::MAX)
            });
            match (soft > 0 && is_late, hard) {
                (true, 0) => (Some(soft), "soft limit, whose grace is over,"),
                (true, hard) => (Some(soft.min(hard)), "soft limit, whose grace is over,"),
                (false, 0) => (None, "hard limit"),
                (false, hard) => (Some(hard), "hard limit"),
            }
        };
        Some([
            one(limits.bytes_soft, limits.bytes_hard, bytes_over, grace.bytes_seconds),
            one(limits.inodes_soft, limits.inodes_hard, inodes_over, grace.inodes_seconds),
        ])
    }

    /// How many bytes a session may have promised in all under a payer's limit, and what the limit
    /// is called.
    fn room(&self, payer: &Payer, own: u64, now: Time) -> Option<(u64, String)> {
        let [(most, which), _] = self.most(payer, now)?;
        let used = self.used(payer).bytes + self.held.get(payer).map_or(0, |held| held.bytes);
        let used = u64::try_from(used).unwrap_or(0);
        let others = self.promised(payer).saturating_sub(own);
        // A limit of inodes alone does not concern bytes; a soft one will when its grace is over.
        let most = match most {
            Some(most) => most,
            None if self.bounds.get(payer)?.limits.bytes_soft > 0 => u64::MAX / 2,
            None => return None,
        };
        let left = most.saturating_sub(used).saturating_sub(others);
        let size = tieline_types::ByteSize(most);
        Some((left, format!("{payer}: {which} of {size} bytes")))
    }

    fn check(&self, payer: &Payer, sum: Sum, own: u64, now: Time) -> Result<()> {
        let Some([(bytes, bytes_which), (inodes, inodes_which)]) = self.most(payer, now) else {
            return Ok(());
        };
        let held = self.held.get(payer).copied().unwrap_or_default();
        let used = self.used(payer);
        let over = |resource, which, most: u64| {
            let payer = payer.clone();
            Err(Error::Quota { payer, resource, which, most })
        };
        if let Some(most) = inodes
            && sum.inodes > 0
            && used.inodes + held.inodes + sum.inodes > most as i64
        {
            return over(Resource::Inodes, inodes_which, most);
        }
        let is_promised = sum.bytes <= own as i64;
        let others = self.promised(payer).saturating_sub(own) as i64;
        if let Some(most) = bytes
            && sum.bytes > 0
            && !is_promised
            && used.bytes + held.bytes + others + sum.bytes > most as i64
        {
            return over(Resource::Bytes, bytes_which, most);
        }
        Ok(())
    }

    /// Does the payer use more than the soft limits, or not any more?
    pub fn note_over(&mut self, payer: &Payer, now: Time) {
        let used = self.used(payer);
        let Some(bound) = self.bounds.get_mut(payer) else { return };
        let is_over = |used: i64, soft: u64| soft > 0 && used > soft as i64;
        let bytes = is_over(used.bytes, bound.limits.bytes_soft);
        let inodes = is_over(used.inodes, bound.limits.inodes_soft);
        let after = (
            bytes.then(|| bound.bytes_over.unwrap_or(now)),
            inodes.then(|| bound.inodes_over.unwrap_or(now)),
        );
        bound.is_changed |= after != (bound.bytes_over, bound.inodes_over);
        (bound.bytes_over, bound.inodes_over) = after;
    }
}

#[cfg(test)]
mod tests;
