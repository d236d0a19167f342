//! What is noted of use, and counting everything anew.

use super::shares::There;
use super::{Bound, Charge, Sum, Sums, Table, add_change};
use crate::error::{Error, Result};
use crate::view::decode;
use tieline_format::Record;
use tieline_format::mdt::{
    Inode, QuotaGrace, QuotaLimits, QuotaShare, UsageChange, UsageTotal, key,
};
use tieline_kv::{Key, Range, Snapshot, Store, Value};
use tieline_types::Time;
use tieline_types::quota::{PayerKind, Share};

/// Records in one step.
pub(crate) const STEP: usize = 1024;

/// Walks the records under a prefix, in steps.
async fn walk(
    snapshot: &mut dyn Snapshot,
    prefix: &[u8],
    mut see: impl FnMut(&Key, &Value) -> Result<()>,
) -> Result<()> {
    let (mut start, end) = (prefix.to_vec(), key::after(prefix));
    loop {
        let page = snapshot.scan(Range::new(start, end.clone()), STEP).await?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        start = [last.as_slice(), &[0]].concat();
        for (key, value) in &page {
            see(key, value)?;
        }
        tokio::task::yield_now().await;
    }
}

fn label(key: &[u8]) -> String {
    key::payer(key).map_or_else(|| "of nobody".to_owned(), |payer| payer.to_string())
}

fn damaged(key: &[u8]) -> Error {
    let id = key.iter().map(|byte| format!("{byte:02x}")).collect();
    Error::Missing { what: "payer in a key", id }
}

/// What the store says is used.
pub(crate) async fn noted(snapshot: &mut dyn Snapshot) -> Result<Sums> {
    let mut sums = Sums::new();
    walk(snapshot, &key::usages(), |key, value| {
        let total: UsageTotal = decode(value, || label(key))?;
        let payer = key::payer(key).ok_or_else(|| damaged(key))?;
        sums.entry(payer).or_default().add(total.into());
        Ok(())
    })
    .await?;
    walk(snapshot, &key::usage_changes(), |_, value| {
        add_records(&mut sums, decode(value, String::new)?);
        Ok(())
    })
    .await?;
    sums.retain(|_, sum| *sum != Sum::default());
    Ok(sums)
}

pub(crate) fn add_records(sums: &mut Sums, record: UsageChange) {
    for change in record.changes {
        let sum = Sum { bytes: change.bytes, inodes: change.inodes };
        sums.entry(change.payer).or_default().add(sum);
    }
}

/// What is used, by looking at every file.
pub(crate) async fn counted(snapshot: &mut dyn Snapshot) -> Result<Sums> {
    let mut sums = Sums::new();
    walk(snapshot, &key::kind(b'i'), |_, value| {
        // What cannot be read is for fsck to tell.
        if let Ok(inode) = Inode::from_bytes(value) {
            add_change(&mut sums, None, Charge::of(&inode).as_ref());
        }
        Ok(())
    })
    .await?;
    Ok(sums)
}

impl Table {
    /// `is_home`: limits are kept here.
    pub(crate) async fn load(
        snapshot: &mut dyn Snapshot,
        is_home: bool,
        boot: u64,
        now: Time,
    ) -> Result<Self> {
        // Its lowest bits count how often everybody had to begin anew since the start.
        let epoch = boot << 16;
        let used = noted(snapshot).await?;
        let mut table = Self { used, is_home, epoch, ..Self::default() };
        walk(snapshot, &key::all_limits(), |key, value| {
            let record: QuotaLimits = decode(value, || label(key))?;
            let payer = key::payer(key).ok_or_else(|| damaged(key))?;
            let QuotaLimits { limits, bytes_over, inodes_over, share, is_default, is_free } =
                record;
            let (is_default, is_free) = (is_default == Some(true), is_free == Some(true));
            table.news += 1;
            let (share, news) = (share.unwrap_or_default(), table.news);
            let bound = Bound { limits, bytes_over, inodes_over, share, news, ..Bound::default() };
            let bound = Bound { is_default, is_free, ..bound };
            table.bounds.insert(payer, Bound { noted: share, ..bound });
            Ok(())
        })
        .await?;
        walk(snapshot, &key::shares(), |key, value| {
            let record: QuotaShare = decode(value, || label(key))?;
            let (mdt, payer) = key::share_parts(key).ok_or_else(|| damaged(key))?;
            let QuotaShare { share, used, promised } = record;
            let there = There { share, used, promised, known: 0, is_noted: true };
            table.others.entry(payer).or_default().insert(mdt, there);
            Ok(())
        })
        .await?;
        for kind in PayerKind::ALL {
            let value = snapshot.read(&[key::grace(kind)]).await?.into_iter().next().flatten();
            if let Some(value) = value {
                let QuotaGrace { grace } = decode(&value, || kind.name().to_owned())?;
                table.grace.insert(kind, grace);
            }
        }
        let payers: Vec<_> = table.bounds.keys().cloned().collect();
        payers.iter().for_each(|payer| table.note_over(payer, now));
        Ok(table)
    }
}

/// Counts a store that was never counted, or not by every change. Nobody else uses it.
pub(crate) async fn count_anew(store: &dyn Store) -> Result<()> {
    let mut snapshot = store.snapshot().await?;
    let sums = counted(&mut *snapshot).await?;
    let mut old = vec![];
    for prefix in [key::usages(), key::usage_changes()] {
        walk(&mut *snapshot, &prefix, |key, _| {
            old.push(key.clone());
            Ok(())
        })
        .await?;
    }
    drop(snapshot);
    let mut transaction = store.begin().await?;
    old.into_iter().for_each(|key| transaction.delete(key));
    for (payer, &Sum { bytes, inodes }) in &sums {
        transaction.put(key::usage(payer), UsageTotal { bytes, inodes }.to_bytes());
    }
    transaction.commit().await?.durable.await?;
    tracing::info!(payers = sums.len(), "usage was counted, for quotas");
    Ok(())
}

impl Bound {
    pub(crate) fn record(self) -> QuotaLimits {
        let Self { limits, bytes_over, inodes_over, share, .. } = self;
        let share = Some(share).filter(|share| *share != Share::default());
        let mark = |is: bool| is.then_some(true);
        let (is_default, is_free) = (mark(self.is_default), mark(self.is_free));
        QuotaLimits { limits, bytes_over, inodes_over, share, is_default, is_free }
    }
}
