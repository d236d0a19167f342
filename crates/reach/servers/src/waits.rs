//! How long a server is waited for: as the mount says, or longer while that server announced that
//! it will be away.
//!
//! Invariant: an announcement concerns its server only, and is over when that is met again.

use crate::{Error, Server, Servers, lock};
use std::time::Duration;
use tieline_types::{ErrorKind, MdtIndex, OstIndex, ServerNumber, Span};
use tokio::time::Instant;

/// The longest absence that is waited for, and how much longer than announced.
const HOLD_MAX: Duration = Duration::from_secs(24 * 3600);
const HOLD_GRACE: Duration = Duration::from_secs(60);

/// Nothing came from an MDT's MDS in time.
pub fn silence(mdt: MdtIndex, patience: Duration) -> Error {
    let text = format!("{} did not answer within {}", mdt.label(), Span(patience));
    Error::local(ErrorKind::Timeout, text)
}

impl Servers {
    /// A server announced an absence, or took it back by one of no length.
    pub(crate) fn hold(&self, number: ServerNumber, span: Duration) {
        let Some(server) = self.numbered(number) else { return };
        let (span, shown) = (span.min(HOLD_MAX), server.addresses.join(" or "));
        if span.is_zero() {
            tracing::info!(server = shown, "a server stays after all");
        } else {
            let seconds = span.as_secs();
            tracing::info!(server = shown, seconds, "a server will be away, and is waited for");
        }
        let until = (!span.is_zero()).then(|| Instant::now() + span + HOLD_GRACE);
        *lock(&server.held_until) = until;
    }

    /// It is back, or was never gone: one that still means to go says so again.
    pub(crate) fn hold_ended(&self, number: ServerNumber) {
        if let Some(server) = self.numbered(number) {
            *lock(&server.held_until) = None;
        }
    }

    /// The longest wait for a server: longer than the mount says while it announced its absence.
    pub(crate) fn wait_at(&self, server: &Server) -> Duration {
        let held = *lock(&server.held_until);
        let left = held.map(|until| until.saturating_duration_since(Instant::now()));
        self.wait.max(left.unwrap_or_default())
    }

    /// The longest wait for the MDS of an MDT.
    pub fn wait_for(&self, mdt: MdtIndex) -> Duration {
        self.mds(mdt).map_or(self.wait, |server| self.wait_at(&server))
    }

    /// The longest wait for one of these OSTs.
    pub fn wait_for_osts(&self, osts: impl IntoIterator<Item = OstIndex>) -> Duration {
        let servers = osts.into_iter().filter_map(|ost| self.oss(ost).ok());
        servers.map(|server| self.wait_at(&server)).max().unwrap_or(self.wait)
    }

    /// Until when who began then waits for one of these OSTs.
    pub fn until_for_osts<'o>(
        &self,
        begun: Instant,
        osts: impl IntoIterator<Item = &'o OstIndex>,
    ) -> Instant {
        let servers = osts.into_iter().filter_map(|&ost| self.oss(ost).ok());
        let held = servers.filter_map(|server| *lock(&server.held_until)).max();
        held.map_or(begun + self.wait, |held| held.max(begun + self.wait))
    }

    /// The longest wait where any server may be what is waited for.
    pub fn wait(&self) -> Duration {
        self.lock().values().map(|server| self.wait_at(server)).max().unwrap_or(self.wait)
    }
}
