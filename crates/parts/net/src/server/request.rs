//! One request at a server: asked of the service within its deadline, counted, answered.
//!
//! Invariants: what a request holds is given back whatever its outcome; a reply that was begun can
//! be completed.

use super::Shared;
use super::connection::chain;
use super::parties::Party;
use crate::frames::{BODY_FREE, Held, OutFrame};
use crate::outbox::{Holds, Outbox};
use crate::{CallContext, Reply, Response};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ClientId, ErrorKind, RequestNumber, SessionId};
use tieline_wire::{BodyError, Failure, FrameHeader, FrameKind, Op, Request};
use tieline_world::Bulk;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tracing::Instrument;

pub(super) fn unreadable(error: &BodyError) -> Failure {
    let kind = match error {
        BodyError::UnknownCall(_) => ErrorKind::NotSupported,
        BodyError::Malformed(_) | BodyError::Trailing(_) | BodyError::Packed => ErrorKind::Protocol,
    };
    Failure::new(kind, format!("this server cannot read the request: {}", chain(error)))
}

/// Of a request whose bulk was not kept.
pub(super) fn without_bulk(op: Op) -> Failure {
    if !op.takes_bulk() {
        let detail = format!("{} takes no bytes beside it", op.name());
        return Failure::new(ErrorKind::Protocol, detail);
    }
    let detail = "no memory for the bytes of the request: try again";
    Failure::new(ErrorKind::Overloaded, detail)
}

/// How long a reply waits for room: longer than a connection lasts that takes nothing.
const REPLY_PATIENCE: Duration = Duration::from_secs(40);
/// How often a reply is made that grows while it waits for room.
const TELLINGS: usize = 3;

/// A request, and what it holds while it is at work.
pub(super) struct Asked {
    pub(super) header: FrameHeader,
    pub(super) op: Op,
    pub(super) body: Bytes,
    pub(super) principal: Option<Arc<str>>,
    pub(super) address: Arc<str>,
    pub(super) client: ClientId,
    pub(super) party: Arc<Party>,
    pub(super) bulk: Bytes,
    pub(super) held: [Held; 2],
    pub(super) places: [OwnedSemaphorePermit; 2],
}

pub(super) async fn answer_request(
    shared: Arc<Shared>,
    peer: Arc<str>,
    session: SessionId,
    outbox: Outbox,
    asked: Asked,
) -> RequestNumber {
    let Asked { header, op, body, principal, address, client, party, mut bulk, held, places } =
        asked;
    let (number, begun) = (header.number, Instant::now());
    let patience = match header.deadline_ms {
        0 => None,
        millis => Some(Duration::from_millis(millis.into())),
    };
    let service = &shared.service;
    let ask = || {
        let (body, bulk) = (body.clone(), std::mem::take(&mut bulk));
        let (principal, address, peer) = (principal.clone(), address.clone(), peer.clone());
        party.in_turn(async move {
            let (envelope, request) =
                Request::decode(header.op, &body).map_err(|e| unreadable(&e))?;
            drop(body);
            let context =
                CallContext { session, number, envelope, principal, address, client, patience };
            let span = tracing::info_span!(
                "request", %peer, %session, request = %number, op = op.name(),
                caller = %context.envelope.caller.uid
            );
            service.call(context, request, bulk).instrument(span).await
        })
    };
    let call = ask_with_room(&party, op, ask);
    let (response, room) = match patience {
        None => call.await,
        Some(patience) => tokio::time::timeout(patience, call).await.unwrap_or_else(|_| {
            let detail = format!("{} took longer than the caller waits", op.name());
            (Err(Failure::new(ErrorKind::Timeout, detail)), Default::default())
        }),
    };
    drop((body, held));
    count(op, &response, begun);
    let frame = reply_frame(number, header.op, response);
    outbox.push_holding(frame, Holds::new(places, room));
    // Whoever sends it goes first, on this thread. The connection's task, which hears of our end,
    // would else take its turn, and another thread be woken to send.
    tokio::task::yield_now().await;
    number
}

/// Asks, and finds room for the reply until it is sent. Where there is none, what only tells is
/// forgotten and asked again when there is: what waits takes no memory. Anything else waits whole,
/// and keeps the room of its request.
async fn ask_with_room<A: Future<Output = Response>>(
    party: &Party,
    op: Op,
    mut ask: impl FnMut() -> A,
) -> (Response, [Held; 2]) {
    let mut kept = (Lengths::default(), <[Held; 2]>::default());
    for _ in 0..TELLINGS {
        let response = ask().await.and_then(checked);
        let lengths = Lengths::of(&response);
        if lengths.fit(&kept.0) {
            return (response, kept.1);
        }
        // Not beside what is asked for now.
        drop(std::mem::take(&mut kept));
        if let Some(room) = lengths.hold_now(party) {
            return (response, room);
        }
        if !op.only_tells() {
            return (response, lengths.hold(party).await.unwrap_or_default());
        }
        drop(response);
        let Some(room) = lengths.hold(party).await else { break };
        kept = (lengths, room);
    }
    let detail = format!(
        "{} has as many replies waiting at this server as one may have: read them, then ask again",
        party.name
    );
    (Err(Failure::new(ErrorKind::Overloaded, detail)), Default::default())
}

/// What of a reply takes room in memory while it waits to be sent.
#[derive(Clone, Copy, Default)]
struct Lengths {
    body: u32,
    bulk: u32,
}

impl Lengths {
    fn of(response: &Response) -> Self {
        let Ok(reply) = response else { return Self::default() };
        let bulk = match &reply.bulk {
            bulk @ (Bulk::Bytes(_) | Bulk::Pieces(_)) => bulk.len(),
            Bulk::Empty | Bulk::File(_) => 0,
        };
        let body = Some(reply.body.len()).filter(|&length| length > BODY_FREE as usize);
        // `checked` said that they fit into a frame.
        let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        Self { body: length(body.unwrap_or(0)), bulk: length(bulk) }
    }

    fn fit(&self, room: &Self) -> bool {
        self.body <= room.body && self.bulk <= room.bulk
    }

    fn hold_now(&self, party: &Party) -> Option<[Held; 2]> {
        let body = party.replies.hold_now(self.body)?;
        Some([body, party.bulk.hold_now(self.bulk)?])
    }

    async fn hold(&self, party: &Party) -> Option<[Held; 2]> {
        let body = party.replies.hold(self.body, REPLY_PATIENCE).await?;
        Some([body, party.bulk.hold(self.bulk, REPLY_PATIENCE).await?])
    }
}

fn count(op: Op, response: &Response, begun: Instant) {
    let (kind, bulk) = match response {
        Ok(reply) => ("ok".to_owned(), reply.bulk.len()),
        Err(failure) => (format!("{:?}", failure.kind), 0),
    };
    METRICS.requests.with_label_values(&[op.name(), &kind]).inc();
    METRICS.request_seconds.with_label_values(&[op.name()]).observe(begun.elapsed().as_secs_f64());
    METRICS.bulk_sent_bytes.inc_by(bulk as u64);
}

/// Our own reply must fit into a frame, and its file must have what the frame announces: a frame
/// that cannot be completed costs the whole connection.
fn checked(reply: Reply) -> Response {
    let is_too_long = reply.body.len() > FrameHeader::BODY_MAX as usize
        || reply.bulk.len() > FrameHeader::BULK_MAX as usize;
    if is_too_long {
        let detail = "the reply exceeds a frame: ask for less";
        return Err(Failure::new(ErrorKind::Internal, detail));
    }
    if let Bulk::File(range) = &reply.bulk {
        let end = range.offset + u64::from(range.length);
        let is_whole = range.file.metadata().is_ok_and(|metadata| metadata.len() >= end);
        if !is_whole {
            return Err(Failure::new(ErrorKind::StorageFault, "the object's file was cut short"));
        }
    }
    Ok(reply)
}

pub(super) fn reply_frame(number: RequestNumber, op: u16, response: Response) -> OutFrame {
    let (flags, body, bulk) = match response {
        Ok(reply) => (0, reply.body, reply.bulk),
        Err(failure) => (FrameHeader::FLAG_FAILED, tieline_wire::encode(&failure), Bulk::Empty),
    };
    OutFrame::new(FrameKind::Reply, number, body, bulk).with(|header| {
        header.op = op;
        header.flags = flags;
    })
}
