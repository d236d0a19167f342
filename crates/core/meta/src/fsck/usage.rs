//! Usage: what is noted for quotas is what all files together use.
//!
//! Both are read from one state; that they differ then stays so whatever changes meanwhile, and is
//! put right by noting the difference.

use super::Check;
use crate::error::Result;
use crate::mdt::Mdt;
use crate::placement::wall_time;
use crate::quotas::{self, Sum, Sums, count};
use std::collections::BTreeMap;
use tieline_format::Record;
use tieline_format::mdt::{NO_SESSION, UsageChange, key};
use tieline_wire::ledger::Outcome;

impl Check {
    pub(super) async fn usage(&mut self) -> Result<()> {
        self.phase("usage");
        let noted = count::noted(&mut *self.snapshot).await?;
        let mut missing = count::counted(&mut *self.snapshot).await?;
        for (payer, sum) in &noted {
            let counted = missing.entry(payer.clone()).or_default();
            (counted.bytes, counted.inodes) =
                (counted.bytes - sum.bytes, counted.inodes - sum.inodes);
        }
        missing.retain(|_, sum| *sum != Sum::default());
        let is_repair = self.job.is_repair && !missing.is_empty();
        if is_repair {
            self.mdt.correct_usage(&missing).await?;
        }
        let outcome = if is_repair { Outcome::Repaired } else { Outcome::Left };
        for (payer, Sum { bytes, inodes }) in missing {
            let detail = format!("{payer} uses {bytes} bytes and {inodes} files more than noted");
            self.tell("usage", None, detail, outcome).await?;
        }
        Ok(())
    }
}

impl Mdt {
    async fn correct_usage(&self, missing: &Sums) -> Result<()> {
        let (boot, number) = self.quotas.change_number();
        let record = UsageChange { changes: quotas::records(missing) };
        let mut transaction = self.parts.store.begin().await?;
        transaction.put(key::usage_change(boot, number), record.to_bytes());
        let committed = transaction.commit().await?;
        let now = wall_time(&self.parts.world);
        self.quotas.apply(NO_SESSION, missing, &BTreeMap::new(), now);
        committed.durable.await?;
        Ok(())
    }
}
