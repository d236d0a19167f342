//! Adding up what transactions noted for quotas.

use crate::error::Result;
use crate::mdt::Mdt;
use crate::quotas::count::{STEP, add_records};
use crate::quotas::{Sum, Sums};
use crate::view::decode;
use std::collections::BTreeMap;
use tieline_format::Record;
use tieline_format::mdt::{UsageTotal, key};
use tieline_kv::Range;

impl Mdt {
    /// Adds up what transactions noted, and notes since when soft limits are passed.
    pub(crate) async fn add_up_usage(&self) -> Result<()> {
        // Of the round before: what was numbered then is committed by now.
        let (boot, settled) = self.quotas.settle();
        let (mut start, end) = (key::usage_changes(), key::usage_change(boot, settled));
        loop {
            let mut transaction = self.parts.store.begin().await?;
            let page = transaction.scan(Range::new(start, end.clone()), STEP).await?;
            let Some((last, _)) = page.last() else { break };
            start = [last.as_slice(), &[0]].concat();
            let mut sums = Sums::new();
            for (key, value) in page {
                add_records(&mut sums, decode(&value, String::new)?);
                transaction.delete(key);
            }
            for (payer, sum) in sums {
                let key = key::usage(&payer);
                let value = transaction.read(std::slice::from_ref(&key)).await?;
                let old: Option<UsageTotal> = match value.into_iter().next().flatten() {
                    Some(value) => Some(decode(&value, || payer.to_string())?),
                    None => None,
                };
                let mut total = Sum::from(old.unwrap_or_default());
                total.add(sum);
                let Sum { bytes, inodes } = total;
                if total == Sum::default() {
                    transaction.delete(key);
                } else {
                    transaction.put(key, UsageTotal { bytes, inodes }.to_bytes());
                }
            }
            transaction.commit().await?.durable.await?;
        }
        self.note_bounds().await
    }

    async fn note_bounds(&self) -> Result<()> {
        let changed: BTreeMap<_, _> = {
            let mut table = self.quotas.table();
            let changed = table.bounds.iter_mut().filter(|(_, bound)| bound.is_changed);
            let taken = changed.map(|(payer, bound)| {
                bound.is_changed = false;
                (payer.clone(), *bound)
            });
            taken.collect()
        };
        if changed.is_empty() {
            return Ok(());
        }
        let mut transaction = self.parts.store.begin().await?;
        for (payer, bound) in changed {
            transaction.put(key::limits(&payer), bound.record().to_bytes());
        }
        transaction.commit().await?.durable.await?;
        Ok(())
    }
}
