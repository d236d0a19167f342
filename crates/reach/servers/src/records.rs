//! What outlives this process, for clients that go on where an earlier one was killed.

use crate::lock;
use crate::server::{Server, ServerKind};
use crate::servers::Servers;
use crate::sink::ServerSink;
use std::sync::Arc;
use tieline_keep::Kept;
use tieline_net::{Answer, Channel, Held, Keeping, Unanswered};
use tieline_types::{ServerNumber, SessionId};
use tieline_wire::{Hello, Op, Request, Welcome};

/// Where requests under way and sessions are put down, and what an earlier process left of them.
pub trait Records: Send + Sync {
    /// How the session with the server at these addresses keeps its requests.
    fn keeping(&self, addresses: &[String]) -> Keeping;

    /// Gives out what an earlier process had with a server. It is asked for once.
    fn left(
        &self,
        number: ServerNumber,
        addresses: &[String],
    ) -> (Option<SessionId>, Vec<Unanswered>);

    /// The number before the first that only this process gives out.
    fn first_number(&self) -> u64;

    /// Puts down in which session we are with a server.
    fn put_session(&self, addresses: &[String], welcome: &Welcome) -> Option<Kept>;

    /// What is to stand beside a mutation that is sent now.
    fn note(&self, op: Op) -> Vec<u8>;

    /// A request was answered: its record goes when this is dropped.
    fn hold(&self, held: Held);
}

/// A request that an earlier process left, and where its answer comes.
pub struct LeftAnswer {
    pub request: Request,
    pub note: Vec<u8>,
    pub answer: Answer,
}

impl Servers {
    /// A channel whose requests outlive this process. It goes on with the session of an earlier
    /// one, whose requests it sends again.
    pub(crate) fn dial_kept(
        &self,
        records: &dyn Records,
        addresses: &[String],
        hello: Hello,
        sink: Arc<ServerSink>,
    ) -> Arc<dyn Channel> {
        let (session, unanswered) = records.left(sink.number, addresses);
        let told: Vec<_> =
            unanswered.iter().map(|call| (call.request.clone(), call.note.clone())).collect();
        let (hello, keeping) = (Hello { session, ..hello }, records.keeping(addresses));
        let (channel, answers) = self.dialer.dial_kept(addresses, hello, sink, keeping, unanswered);
        let answers = told.into_iter().zip(answers);
        let left = answers.map(|((request, note), answer)| LeftAnswer { request, note, answer });
        lock(&self.answers).extend(left);
        channel
    }

    /// Goes on with the sessions of an earlier process; gives back what it had under way.
    pub fn go_on(&self, sessions: &[Vec<String>]) -> (Vec<Arc<Server>>, Vec<LeftAnswer>) {
        let believed = self.map.current();
        let mut servers = Vec::new();
        for addresses in sessions {
            match self.server(ServerKind::Mds, addresses, &believed.map) {
                Ok(server) => servers.push(server),
                Err(error) => tracing::error!(%error, "a session is not resumed"),
            }
        }
        (servers, std::mem::take(&mut lock(&self.answers)))
    }

    /// Puts down in which session we are with a server.
    pub(crate) fn keep_session(&self, number: ServerNumber, welcome: &Welcome) {
        let Some(records) = &self.records else { return };
        let Some(server) = self.numbered(number) else { return };
        let kept = records.put_session(&server.addresses, welcome);
        *lock(&server.session) = kept;
    }
}
