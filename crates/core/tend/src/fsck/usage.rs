//! Usage: what is noted for quotas is what all files together use.
//!
//! Both are read from one state; that they differ then stays so whatever changes meanwhile, and is
//! put right by noting the difference.

use super::Check;
use crate::error::Result;
use tieline_format::mdt::PayerChange;
use tieline_wire::ledger::Outcome;

impl Check {
    pub(super) async fn usage(&mut self) -> Result<()> {
        self.phase("usage");
        let missing = self.parts.mdt.usage_missing(&mut *self.snapshot).await?;
        let is_repair = self.job.is_repair && !missing.is_empty();
        if is_repair {
            self.parts.mdt.correct_usage(missing.clone()).await?;
        }
        let outcome = if is_repair { Outcome::Repaired } else { Outcome::Left };
        for PayerChange { payer, bytes, inodes } in missing {
            let detail = format!("{payer} uses {bytes} bytes and {inodes} files more than noted");
            self.tell("usage", None, detail, outcome).await?;
        }
        Ok(())
    }
}
