//! Which tickets of doors' users were shown here: each counts once.
//!
//! One is good for the minutes that clocks may differ; it is remembered for longer. A server that
//! was started anew remembers none, and a door that kept one could show it a second time within
//! those minutes: it would speak for a user who did come, a little longer.
//!
//! Invariant: at most [`MARKS_MAX`] are remembered, and none is forgotten for others.

use super::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tieline_types::SessionId;
use tokio::time::Instant;

/// Clocks may differ by five minutes, where nobody says otherwise.
const REMEMBERED: Duration = Duration::from_secs(3600);
const MARKS_MAX: usize = 1_000_000;

/// For whom a ticket was shown: a session, and the door's number there.
type Showing = (SessionId, u64);

#[derive(Default)]
pub struct Witnesses(Mutex<BTreeMap<[u8; 32], (Showing, Instant)>>);

/// What is known of a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    Never,
    /// For the same: its answer was lost, perhaps.
    Here,
    Elsewhere,
    /// No more can be remembered.
    Full,
}

impl Witnesses {
    pub fn see(&self, mark: [u8; 32], showing: Showing) -> Seen {
        let mut known = lock(&self.0);
        let now = Instant::now();
        let is_known = |(_, until): &&(Showing, Instant)| *until > now;
        match known.get(&mark).filter(is_known) {
            Some((before, _)) if *before == showing => return Seen::Here,
            Some(_) => return Seen::Elsewhere,
            None => {}
        }
        if known.len() >= MARKS_MAX {
            known.retain(|_, (_, until)| *until > now);
        }
        if known.len() >= MARKS_MAX {
            return Seen::Full;
        }
        known.insert(mark, (showing, now + REMEMBERED));
        Seen::Never
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_ticket_counts_once() {
        let seen = Witnesses::default();
        let (here, there) = ((SessionId(1), 2), (SessionId(1), 3));
        assert_eq!(seen.see([1; 32], here), Seen::Never);
        assert_eq!(seen.see([1; 32], here), Seen::Here);
        assert_eq!(seen.see([1; 32], there), Seen::Elsewhere);
        assert_eq!(seen.see([2; 32], there), Seen::Never);
        tokio::time::advance(REMEMBERED).await;
        assert_eq!(seen.see([1; 32], there), Seen::Never, "nobody takes it any more");
    }
}
