//! Requests that outlive this process, where the kernel gives none again (FUSE before 7.40).
//!
//! There the holder has copies of all descriptors that requests are read from, so that no death of
//! a daemon ends what was taken; what was not answered must then be found in the holder's memory.
//! A thread reads into a *landing* there, which is found whenever the process dies; the request
//! moves into a record, and the landing is free for the next one. The record goes when the kernel
//! has its answer. The process that follows serves every request that is left, before any other.
//!
//! A process may die when the kernel has an answer and the record is still there. Such a request is
//! not served again: the kernel says whether it still waits.
//!
//! Where the kernel gives requests again, or nobody holds the mount, nothing is kept.

use crate::abi::incoming::{self, Header};
use crate::buffer::Buffer;
use std::collections::BTreeSet;
use tieline_keep::{Keep, Kept, Kind, Record, Room};

/// Where one thread's requests land; its key is the descriptor's number.
const LANDING: Kind = Kind(64);
/// A request that was not answered, with the same key.
const UNANSWERED: Kind = Kind(65);

/// There is no room for a request to be kept.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// Keeps what is not answered.
pub struct Requests {
    /// Off where nothing needs to be kept.
    keep: Keep,
}

/// A request as it came from a descriptor.
pub struct Request {
    pub device: usize,
    pub buffer: Buffer,
    pub length: usize,
    /// Until the kernel has its answer.
    pub kept: Option<Kept>,
    /// A process before this one had it.
    pub is_left: bool,
}

impl Request {
    /// One that nobody had before, and that is not kept.
    pub fn new(device: usize, buffer: Buffer, length: usize) -> Self {
        Self { device, buffer, length, kept: None, is_left: false }
    }
}

/// A request that an earlier process left.
pub struct Left {
    pub device: usize,
    pub header: Header,
    pub bytes: Vec<u8>,
    pub record: Record,
}

impl Requests {
    pub fn new(keep: Keep) -> Self {
        Self { keep }
    }

    /// For one thread, if requests are to be kept.
    pub fn landing(&self, device: usize, bytes: usize) -> Result<Option<Landing>, Full> {
        if !self.keep.is_on() {
            return Ok(None);
        }
        let room = self.keep.room(LANDING, device as u64, bytes).ok_or(Full)?;
        Ok(Some(Landing { room, keep: self.keep.clone(), device: device as u64 }))
    }
}

/// Where a thread's requests arrive.
pub struct Landing {
    room: Room,
    keep: Keep,
    device: u64,
}

impl Landing {
    pub fn as_mut(&mut self) -> &mut [u8] {
        self.room.bytes()
    }

    /// The request that landed, out of the way of the next one. Cleared by [`Self::clear`].
    pub fn move_to(&mut self, buffer: &mut Buffer, length: usize) -> Result<Kept, Full> {
        let (Some(from), Some(to)) =
            (self.room.bytes().get(..length), buffer.as_mut().get_mut(..length))
        else {
            return Err(Full);
        };
        to.copy_from_slice(from);
        self.keep.put(UNANSWERED, self.device, &[to]).ok_or(Full)
    }

    /// Nothing is here any more.
    pub fn clear(&mut self) {
        self.room.clear();
    }
}

/// Takes the requests that an earlier process left out of its records, in the order in which it
/// got them.
pub fn take_left(records: &mut Vec<Record>) -> Vec<Left> {
    let is_own = |record: &Record| [LANDING, UNANSWERED].contains(&record.kind);
    let (own, others): (Vec<_>, Vec<_>) = records.drain(..).partition(is_own);
    *records = others;
    // What landed last may be in a record already.
    let (landed, mut ordered): (Vec<_>, Vec<_>) =
        own.into_iter().partition(|record| record.kind == LANDING);
    ordered.extend(landed);
    let mut seen = BTreeSet::new();
    let left = ordered.into_iter().filter_map(|record| {
        let mut bytes = record.bytes();
        let header = header_of(&bytes)?;
        bytes.truncate(header.len as usize);
        let device = usize::try_from(record.key).ok()?;
        seen.insert(header.unique).then_some(Left { device, header, bytes, record })
    });
    left.collect()
}

/// `None` where nothing landed.
fn header_of(bytes: &[u8]) -> Option<Header> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let (header, _, _) = incoming::split(bytes.get(..length)?).ok()?;
    Some(header)
}
