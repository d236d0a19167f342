//! Changes of the map and of the identities that were made, with their answers.
//!
//! A connection may end before its answer is read: by the very rule of protection that was
//! changed over it. Whoever asks again under the same number gets the answer, and nothing is
//! changed twice.
//!
//! Invariant: at most [`KEPT`] answers, in memory: a server that was started since does not know
//! them.

use std::collections::VecDeque;
use tieline_net::{Reply, Response};
use tieline_types::{RequestNumber, SessionId};
use tieline_world::Bulk;
use tokio::sync::Mutex;

const KEPT: usize = 256;

/// See the module.
#[derive(Default)]
pub struct Edits(Mutex<VecDeque<(SessionId, RequestNumber, Vec<u8>)>>);

impl Edits {
    /// One after the other: an edit that is under way is waited for by who asks for it again.
    pub async fn once(
        &self,
        (session, number): (SessionId, RequestNumber),
        edit: impl Future<Output = Response>,
    ) -> Response {
        let mut done = self.0.lock().await;
        let known = done.iter().find(|known| (known.0, known.1) == (session, number));
        if let Some((.., body)) = known {
            return Ok(Reply { body: body.clone(), bulk: Bulk::Empty });
        }
        let reply = edit.await?;
        if done.len() >= KEPT {
            done.pop_front();
        }
        done.push_back((session, number, reply.body.clone()));
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_asked_again_is_answered_and_not_done_again() {
        let edits = Edits::default();
        let times = std::cell::Cell::new(0_u8);
        let edit = async || {
            times.set(times.get() + 1);
            Ok(Reply { body: vec![times.get()], bulk: Bulk::Empty })
        };
        let (session, other) = (SessionId(1), SessionId(2));
        for (who, number, answer) in
            [(session, 1, 1), (session, 1, 1), (session, 2, 2), (other, 1, 3), (session, 2, 2)]
        {
            let reply = edits.once((who, RequestNumber(number)), edit()).await.unwrap();
            assert_eq!(reply.body, [answer]);
        }
    }
}
