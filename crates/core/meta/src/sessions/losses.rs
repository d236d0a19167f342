//! Locks that sessions lost while they were silent, until their clients say that they have heard of
//! it.
//!
//! They are in the session's record, which every mutation reads: one that was under way when a lock
//! was taken does not commit unseen after it.
//!
//! Invariants: the record knows of a loss before the lock is anybody else's; who was not told of a
//! loss yet is not answered.

use super::{SessionTable, commit};
use crate::error::Result;
use crate::view::decode;
use tieline_format::Record;
use tieline_format::mdt::{Losses, Session, key};
use tieline_types::{FileId, LockKind, LostLock, SessionId};

/// Losses of one session that are kept: they fit into a welcome.
const UNHEARD_MAX: usize = 128;
/// Characters of who wanted a lock.
const BY_MAX: usize = 64;

impl SessionTable {
    /// Notes durably that an owner of a session loses its locks on a file to another session. Says
    /// whether it could be: not if the session is unknown, or has lost too many unheard.
    pub async fn lose_lock(
        &self,
        session: SessionId,
        (id, kind, owner): (FileId, LockKind, u64),
        to: SessionId,
    ) -> Result<bool> {
        let lose = |losses: &mut Losses, by: &str| {
            let number = losses.last + 1;
            let is_kept = losses.unheard.len() < UNHEARD_MAX;
            if is_kept {
                let by = by.chars().take(BY_MAX).collect();
                losses.last = number;
                losses.unheard.push(LostLock { number, id, kind, owner, by });
            }
            is_kept
        };
        self.change_losses((session, to), lose).await
    }

    /// The client has heard of what its session lost up to a number.
    pub async fn heard_of_losses(&self, session: SessionId, upto: u64) -> Result<()> {
        let forget = |losses: &mut Losses, _: &str| {
            let before = losses.unheard.len();
            losses.unheard.retain(|lost| lost.number > upto);
            losses.unheard.len() < before
        };
        self.change_losses((session, session), forget).await.map(drop)
    }

    /// What a session lost unheard.
    pub fn losses(&self, session: SessionId) -> Vec<LostLock> {
        let inner = self.lock();
        inner.get(&session).map(|known| known.losses.unheard.clone()).unwrap_or_default()
    }

    /// The same, for a welcome.
    pub fn tell_losses(&self, session: SessionId) -> Vec<LostLock> {
        if let Some(known) = self.lock().get_mut(&session) {
            known.told = known.losses.last;
        }
        self.losses(session)
    }

    /// Has a session lost something since it was welcomed?
    pub fn is_untold(&self, session: SessionId) -> bool {
        let inner = self.lock();
        let last = |losses: &Losses| losses.unheard.last().map_or(0, |lost| lost.number);
        inner.get(&session).is_some_and(|known| last(&known.losses) > known.told)
    }

    /// Changes a session's losses, durably. `change` hears who the other session is, and says
    /// whether there is a change; so does this.
    async fn change_losses(
        &self,
        (session, other): (SessionId, SessionId),
        change: impl Fn(&mut Losses, &str) -> bool,
    ) -> Result<bool> {
        loop {
            let mut transaction = self.store.begin().await?;
            let keys = [key::session(session), key::session(other)];
            let mut found = transaction.read(&keys).await?.into_iter().flatten();
            let Some(value) = found.next() else { return Ok(false) };
            let record: Session = decode(&value, || session.to_string())?;
            let other: Option<Session> =
                found.next().map(|value| decode(&value, || other.to_string())).transpose()?;
            let by = other.map(|other| other.description).unwrap_or_default();
            let mut losses = record.losses.clone().unwrap_or_default();
            if !change(&mut losses, &by) {
                return Ok(false);
            }
            let record = Session { losses: Some(losses.clone()), ..record };
            transaction.put(key::session(session), record.to_bytes());
            match commit(transaction).await {
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    if let Some(known) = self.lock().get_mut(&session) {
                        known.losses = losses;
                    }
                    return Ok(true);
                }
            }
        }
    }
}
