//! The table of identities in the store: read, and changed.

use crate::error::Result;
use crate::identities::{read, write};
use crate::mdt::Mdt;
use tieline_identities::IdentityTable;
use tieline_kv::Transaction;
use tieline_wire::Failure;
use tieline_wire::identity::IdentityEdit;

impl Mdt {
    /// The table as the store has it.
    pub async fn identities(&self) -> Result<IdentityTable, Failure> {
        let mut transaction = self.begin_identities().await?;
        read(&mut *transaction).await.map_err(|error| error.into_failure(self.settings.mdt))
    }

    /// Changes the table; what comes back is durable.
    pub async fn edit_identities(&self, edits: &[IdentityEdit]) -> Result<IdentityTable, Failure> {
        let failed = |error: crate::Error| error.into_failure(self.settings.mdt);
        loop {
            let mut transaction = self.begin_identities().await?;
            let old = read(&mut *transaction).await.map_err(failed)?;
            let new = old.edited(edits);
            let new = new.map_err(|error| Failure::new(error.kind(), error.to_string()))?;
            if new == old {
                return Ok(new);
            }
            write(&new, &old, &mut *transaction);
            let committed = match transaction.commit().await.map_err(crate::Error::from) {
                Err(error) if error.is_conflict() => continue,
                other => other.map_err(failed)?,
            };
            committed.durable.await.map_err(|error| failed(error.into()))?;
            return Ok(new);
        }
    }

    async fn begin_identities(&self) -> Result<Box<dyn Transaction>, Failure> {
        let begun = self.parts.store.begin().await;
        begun.map_err(|error| crate::Error::from(error).into_failure(self.settings.mdt))
    }
}
