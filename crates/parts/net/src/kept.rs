//! Requests under way that outlive this process.
//!
//! A mutation is put down with its number before it is first sent, and taken away when whoever
//! asked is done with the answer ([`Held`]). The process that follows sends what it finds under the
//! numbers it had, in the same session, and gets the stored answers where the server had carried it
//! out.
//!
//! Invariant: a number counts as unanswered for the server as long as its record is there, so that
//! the stored answer is.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use tieline_keep::{Keep, Kept, Kind, Record};
use tieline_types::{Caller, RequestNumber};
use tieline_wire::Request;

/// How a session keeps its requests.
#[derive(Clone)]
pub struct Keeping {
    pub keep: Keep,
    pub kind: Kind,
    /// Names the session among those that are kept.
    pub session: u64,
    /// The first number that was never used.
    pub first: RequestNumber,
}

/// A request that an earlier process sent, or was about to.
pub struct Unanswered {
    pub session: u64,
    pub number: RequestNumber,
    pub caller: Caller,
    pub request: Request,
    /// What stood beside it.
    pub note: Vec<u8>,
    pub kept: Kept,
}

/// Numbers whose answers are in use.
pub(crate) type InUse = Arc<Mutex<BTreeSet<RequestNumber>>>;

/// Keeps a request's record, until what it brought is taken care of.
pub struct Held {
    kept: Option<Kept>,
    number: RequestNumber,
    in_use: InUse,
}

impl Held {
    pub(crate) fn new(kept: Kept, number: RequestNumber, in_use: &InUse) -> Self {
        lock(in_use).insert(number);
        Self { kept: Some(kept), number, in_use: in_use.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // First the record: as long as it is there its answer must be.
        drop(self.kept.take());
        lock(&self.in_use).remove(&self.number);
    }
}

pub(crate) fn lock(in_use: &InUse) -> std::sync::MutexGuard<'_, BTreeSet<RequestNumber>> {
    in_use.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeping {
    /// `body` is that of the request's frame.
    pub(crate) fn put(
        &self,
        number: RequestNumber,
        op: u16,
        note: &[u8],
        body: &[u8],
    ) -> Option<Kept> {
        let note_bytes = u32::try_from(note.len()).ok()?;
        let head =
            [&number.0.to_le_bytes()[..], &op.to_le_bytes(), &note_bytes.to_le_bytes()].concat();
        self.keep.put(self.kind, self.session, &[&head, note, body])
    }
}

impl Unanswered {
    /// `None` for bytes that are no such record.
    pub fn read(record: Record) -> Option<Self> {
        let bytes = record.bytes();
        let (number, rest) = bytes.split_first_chunk()?;
        let (op, rest) = rest.split_first_chunk()?;
        let (note_bytes, rest) = rest.split_first_chunk()?;
        let note_bytes = usize::try_from(u32::from_le_bytes(*note_bytes)).ok()?;
        let (note, body) = rest.split_at_checked(note_bytes)?;
        let (envelope, request) = Request::decode(u16::from_le_bytes(*op), body).ok()?;
        Some(Self {
            session: record.key,
            number: RequestNumber(u64::from_le_bytes(*number)),
            caller: envelope.caller,
            request,
            note: note.to_vec(),
            kept: record.kept,
        })
    }
}
