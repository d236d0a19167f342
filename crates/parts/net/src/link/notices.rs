//! What the server says unasked: notices, each of which is answered; and what it says of its own
//! absence, which concerns the calls.
//!
//! Invariant: a notice that cannot be read ends the connection, for a lease might stand behind it.

use super::{Action, HOLD_GRACE, Phase, State};
use crate::frames::{Frame, OutFrame};
use std::time::Duration;
use tieline_types::RequestNumber;
use tieline_wire::{FrameKind, Notice, NoticeAnswer};
use tieline_world::Bulk;
use tokio::time::Instant;

/// More notices at once than any server of ours sends: the peer is not one.
const NOTICES_MAX: usize = 4096;

/// The longest absence that a server can announce.
const HOLD_MAX: Duration = Duration::from_secs(24 * 3600);

impl State {
    /// Nobody gives up before the server had its time to come back. An absence of no length takes
    /// back what was announced.
    fn hold(&mut self, span: Duration, now: Instant) {
        self.held_until = (!span.is_zero()).then(|| now + span.min(HOLD_MAX));
        if let Some(until) = self.held_until {
            self.calls.extend(until + HOLD_GRACE);
        }
    }

    pub(super) fn notice(&mut self, frame: &Frame, now: Instant) {
        let Phase::Up(up) = &mut self.phase else { return };
        up.notices += 1;
        if up.notices > NOTICES_MAX {
            return self.give_up("server sent too many notices at once");
        }
        match tieline_wire::decode::<Notice>(&frame.body) {
            Ok(notice) => {
                if let Notice::Hold(millis) = notice {
                    self.hold(Duration::from_millis(millis), now);
                }
                self.actions.push_back(Action::Notice(frame.header.number, notice));
            }
            // A lease might stand behind it: better to begin anew than to keep what is recalled.
            Err(_) => self.give_up("server sent a notice that cannot be read"),
        }
    }

    pub(super) fn notice_handled(
        &mut self,
        number: RequestNumber,
        answer: &NoticeAnswer,
        now: Instant,
    ) {
        let Phase::Up(up) = &mut self.phase else { return };
        up.notices = up.notices.saturating_sub(1);
        up.sent = now;
        let body = tieline_wire::encode(answer);
        let frame = OutFrame::new(FrameKind::NoticeAnswer, number, body, Bulk::Empty);
        self.actions.push_back(Action::Send(frame));
    }
}
