//! The table of identities in the MDT of the root: its records.
//!
//! What the table means, and which edits it takes: [`tieline_identities`]. Read and changed by
//! [`crate::Mdt::identities`] and [`crate::Mdt::edit_identities`].
//!
//! Invariant: only what differs is written, and the version with it.

use crate::error::Result;
use crate::view::decode;
use tieline_format::Record;
use tieline_format::mdt::{Identities, key};
use tieline_identities::IdentityTable;
use tieline_kv::{Range, Transaction};
use tieline_types::{IdentityKind, Mapping};

/// Records in one look.
const STEP: usize = 1000;

/// Writes what differs from `old`.
pub(crate) fn write(new: &IdentityTable, old: &IdentityTable, transaction: &mut dyn Transaction) {
    for identity in new.identities() {
        let (kind, number) = (identity.kind, identity.number);
        if old.identity(kind, number) != Some(identity) {
            transaction.put(key::identity(kind, number), identity.to_bytes());
        }
    }
    for gone in old.identities().filter(|one| new.identity(one.kind, one.number).is_none()) {
        transaction.delete(key::identity(gone.kind, gone.number));
    }
    for Mapping { principal, to } in new.mappings() {
        if old.mapped(&principal) != Some(&to) {
            transaction.put(key::principal(&principal), to.to_bytes());
        }
    }
    for gone in old.mappings().filter(|one| new.mapped(&one.principal).is_none()) {
        transaction.delete(key::principal(&gone.principal));
    }
    let record = Identities {
        version: new.version(),
        last_user: new.last_removed(IdentityKind::User),
        last_group: new.last_removed(IdentityKind::Group),
    };
    transaction.put(key::identities(), record.to_bytes());
}

/// The table as a store has it.
pub(crate) async fn read(transaction: &mut dyn Transaction) -> Result<IdentityTable> {
    let (mut table, mut version) = (IdentityTable::default(), 0);
    let record = transaction.read(&[key::identities()]).await?.into_iter().next().flatten();
    if let Some(value) = record {
        let record: Identities = decode(&value, || "identities".to_owned())?;
        version = record.version;
        let last =
            [(IdentityKind::User, record.last_user), (IdentityKind::Group, record.last_group)];
        for (kind, last) in last.into_iter().filter_map(|(kind, last)| Some((kind, last?))) {
            table.note_removed(kind, last);
        }
    }
    let (mut identities, mut mappings) = (vec![], vec![]);
    for (_, value) in all(transaction, key::identities_each()).await? {
        identities.push(decode(&value, || "identity".to_owned())?);
    }
    for (key, value) in all(transaction, key::principals()).await? {
        let to = decode(&value, || "principal".to_owned())?;
        let principal = key::principal_text(&key).unwrap_or_default().to_owned();
        mappings.push(Mapping { principal, to });
    }
    table.adopt(version, identities, mappings);
    Ok(table)
}

/// Every record whose key has the letter of `start`, from there on.
async fn all(transaction: &mut dyn Transaction, start: Vec<u8>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let end = key::after(start.get(..1).unwrap_or_default());
    let (mut start, mut found) = (start, vec![]);
    loop {
        let page = transaction.scan(Range::new(start.clone(), end.clone()), STEP).await?;
        let is_last = page.len() < STEP;
        if let Some((last, _)) = page.last() {
            start = [last.as_slice(), &[0]].concat();
        }
        found.extend(page);
        if is_last {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests;
