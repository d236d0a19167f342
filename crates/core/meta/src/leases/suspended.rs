//! Who is given no leases for a while, since it let recalls run out.

use super::{Entitled, LeaseTable, Standing};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_sessions::Suspended;
use tieline_telemetry::metrics::METRICS;
use tieline_types::SessionId;

impl LeaseTable {
    /// From which host a session comes.
    pub fn came_from(&self, session: SessionId, host: &str) {
        lock(&self.suspended).came(session, host);
        lock(&self.suspended_outside).came(session, host);
    }

    /// A session that holds something from outside did not answer at once, as one that is far away
    /// may. It holds the rest.
    pub fn ran_out_outside(&self, session: SessionId) {
        lock(&self.suspended_outside).ran_out(session);
    }

    /// Of what a session is entitled to, what it may be given now.
    pub(super) fn unsuspended(&self, session: SessionId, units: &[Entitled]) -> Vec<Entitled> {
        if self.is_suspended(session) {
            return vec![];
        }
        let is_inside = |(_, standing): &Entitled| *standing == Standing::Inside;
        if units.iter().all(is_inside) || lock(&self.suspended_outside).until(session).is_none() {
            return units.to_vec();
        }
        units.iter().copied().filter(is_inside).collect()
    }

    /// A session let a recall run out: it is given no leases for a while.
    pub fn ran_out(&self, session: SessionId) {
        let mut suspended = lock(&self.suspended);
        if let Some(span) = suspended.ran_out(session) {
            METRICS.lease_suspensions.inc();
            METRICS.sessions_suspended.set(suspended.count() as i64);
            let (session, seconds) = (session.0, span.as_secs());
            tracing::info!(session, seconds, "a recall ran out: its client is given no leases");
        }
    }

    pub fn is_suspended(&self, session: SessionId) -> bool {
        lock(&self.suspended).until(session).is_some()
    }

    /// Brings what is told of suspensions up to date.
    pub fn count_suspended(&self) {
        METRICS.sessions_suspended.set(lock(&self.suspended).count() as i64);
    }

    pub(super) fn end_suspension(&self, session: SessionId) {
        lock(&self.suspended).end(session);
        lock(&self.suspended_outside).end(session);
    }
}

fn lock(table: &Mutex<Suspended>) -> MutexGuard<'_, Suspended> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
