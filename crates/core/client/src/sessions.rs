//! Sessions with MDSs and requests under way: what [`tieline_servers`] puts down.

use crate::shared::{Shared, lock};
use std::sync::Weak;
use tieline_keep::{Keep, Kept};
use tieline_net::{Held, Keeping, Unanswered};
use tieline_owed::records::{
    CALL, KeptSession, first_number, hold, note, put_session, server_name,
};
use tieline_servers::Records;
use tieline_types::{RequestNumber, ServerNumber, SessionId};
use tieline_wire::{Op, Welcome};

/// What is kept of them, and what an earlier process left.
pub(crate) struct Sessions {
    pub keep: Keep,
    pub shared: Weak<Shared>,
}

impl Records for Sessions {
    fn keeping(&self, addresses: &[String]) -> Keeping {
        let (keep, session) = (self.keep.clone(), server_name(addresses));
        Keeping { keep, kind: CALL, session, first: RequestNumber(self.first_number() + 1) }
    }

    fn left(
        &self,
        number: ServerNumber,
        addresses: &[String],
    ) -> (Option<SessionId>, Vec<Unanswered>) {
        let Some(shared) = self.shared.upgrade() else { return (None, Vec::new()) };
        let name = server_name(addresses);
        let mut left = lock(&shared.left);
        let session = left.sessions.get(&name).map(|(kept, _)| {
            let session = SessionId(kept.session);
            shared.locks.restore_server(number, session, kept.boot);
            session
        });
        let (own, others) = left.calls.drain(..).partition(|call| call.session == name);
        left.calls = others;
        (session, own)
    }

    fn first_number(&self) -> u64 {
        first_number(&self.keep)
    }

    fn put_session(&self, addresses: &[String], welcome: &Welcome) -> Option<Kept> {
        let (session, boot) = (welcome.session.0, welcome.boot);
        let session = KeptSession { addresses: addresses.to_vec(), session, boot };
        put_session(&self.keep, server_name(addresses), &session)
    }

    fn note(&self, op: Op) -> Vec<u8> {
        note(op)
    }

    fn hold(&self, held: Held) {
        hold(held);
    }
}
