//! One request at a server: asked of the service within its deadline, counted, answered.
//!
//! Invariants: what a request holds is given back whatever its outcome; a reply that was begun can
//! be completed.

use super::Shared;
use super::connection::chain;
use super::parties::Party;
use crate::frames::{Held, OutFrame};
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
    let Asked { header, op, body, principal, address, client, party, bulk, held, places } = asked;
    let (number, begun) = (header.number, Instant::now());
    let patience = match header.deadline_ms {
        0 => None,
        millis => Some(Duration::from_millis(millis.into())),
    };
    let service = shared.service.clone();
    let call = party.in_turn(async move {
        let (envelope, request) = Request::decode(header.op, &body).map_err(|e| unreadable(&e))?;
        drop(body);
        let context =
            CallContext { session, number, envelope, principal, address, client, patience };
        let span = tracing::info_span!(
            "request", %peer, %session, request = %number, op = op.name(),
            caller = %context.envelope.caller.uid
        );
        service.call(context, request, bulk).instrument(span).await
    });
    let response = match patience {
        None => call.await,
        Some(patience) => tokio::time::timeout(patience, call).await.unwrap_or_else(|_| {
            let detail = format!("{} took longer than the caller waits", op.name());
            Err(Failure::new(ErrorKind::Timeout, detail))
        }),
    };
    drop(held);
    let response = response.and_then(checked);
    count(op, &response, begun);
    let frame = reply_frame(number, header.op, response);
    let room = match &frame.bulk {
        bulk @ (Bulk::Bytes(_) | Bulk::Pieces(_)) => party.bulk.count(bulk.len()),
        Bulk::Empty | Bulk::File(_) => Held::default(),
    };
    outbox.push_holding(frame, Holds::new(places, room));
    // Whoever sends it goes first, on this thread. The connection's task, which hears of our end,
    // would else take its turn, and another thread be woken to send.
    tokio::task::yield_now().await;
    number
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
