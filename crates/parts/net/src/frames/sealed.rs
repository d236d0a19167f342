//! Protected frames: how heads and bulk lie on the wire once a connection has keys.
//!
//! ```text
//! ├ prefix: 16 bytes, in clear ┤├ head ─────────────────┤├ bulk ──────────────────────────┤
//! │ "TLP1" head bulk epoch     ││ header, body     tag ││ segment tag  segment tag  …     │
//! ```
//!
//! The prefix says the length of header and body, that of the bulk, and the number of the key; it
//! is part of what the head's tag covers. Bulk is cut into segments of 256 KiB, sealed one by one
//! as they are sent and opened where they came. Which parts are encrypted or only covered is the
//! flavor's affair ([`Level`]); under krb5a bulk travels as it is, and the kernel sends files.
//!
//! Invariants: lengths are checked before anything is opened, and the head before room for bulk is
//! taken; nothing is handed on before it was opened.

use super::{
    Begun, FILE_STEP, FrameReader, FrameWriter, GATHER, OutFrame, ReadError, room_for_body,
};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use tieline_auth::seal::{Level, Opener, SEGMENT, Sealer, TAG};
use tieline_wire::{FrameError, FrameHeader};
use tieline_world::{Bulk, FileRange};

const PREFIX: usize = 16;
/// "TLP1" read as a little-endian number.
const MAGIC: u32 = u32::from_le_bytes(*b"TLP1");

struct Prefix {
    head: u32,
    bulk: u32,
    epoch: u32,
}

impl Prefix {
    fn encode(&self) -> [u8; PREFIX] {
        let mut bytes = [0; PREFIX];
        let fields = [MAGIC, self.head, self.bulk, self.epoch];
        for (place, field) in bytes.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; PREFIX]) -> Result<Self, ReadError> {
        let mut rest = bytes.as_slice();
        let magic = rest.get_u32_le();
        if magic != MAGIC {
            return Err(FrameError::Magic(magic).into());
        }
        Ok(Self { head: rest.get_u32_le(), bulk: rest.get_u32_le(), epoch: rest.get_u32_le() })
    }
}

impl FrameReader {
    /// What comes from now on is protected.
    pub fn protect(&mut self, opener: Opener) {
        self.opener = Some(opener);
    }

    pub(super) fn is_next_sealed(&self) -> bool {
        self.opener.as_ref().is_some_and(Opener::is_sealed)
    }

    /// Reads and opens a head. Dropped, it loses nothing: all stays in the buffer until it
    /// is whole.
    pub(super) async fn sealed_head(&mut self) -> Result<Begun, ReadError> {
        self.fill(PREFIX).await?;
        let clear = *self.buffer.first_chunk::<PREFIX>().ok_or(ReadError::Torn)?;
        let prefix = Prefix::decode(&clear)?;
        let length = prefix.head as usize;
        let limit = self.body_max.saturating_add(FrameHeader::LENGTH as u32);
        if prefix.head > limit {
            return Err(FrameError::BodyTooLong { length: prefix.head, limit }.into());
        }
        if length < FrameHeader::LENGTH {
            return Err(ReadError::Torn);
        }
        if self.head_room.is_none() {
            let body = prefix.head - FrameHeader::LENGTH as u32;
            self.head_room = Some(room_for_body(&self.bodies, body).await?);
        }
        self.fill(PREFIX + length + TAG).await?;
        let opener = self.opener.as_mut().ok_or(ReadError::Torn)?;
        let mut sealed = self.buffer.split_to(PREFIX + length + TAG);
        opener.head(prefix.epoch, PREFIX, &mut sealed)?;
        sealed.advance(PREFIX);
        sealed.truncate(length);
        let raw = sealed.split_to(FrameHeader::LENGTH);
        let raw = *raw.first_chunk::<{ FrameHeader::LENGTH }>().ok_or(ReadError::Torn)?;
        let mut begun = Begun::new(raw, self.body_max, self.bulk_max)?;
        let is_whole = begun.header.body_length as usize == sealed.len()
            && begun.header.bulk_length == prefix.bulk;
        if !is_whole {
            return Err(ReadError::Torn);
        }
        FrameHeader::verify(&raw, &sealed)?;
        begun.body = Some(sealed.freeze());
        begun.body_room = self.head_room.take();
        begun.is_bulk_sealed = opener.level() >= Level::Integrity;
        Ok(begun)
    }
}

impl Begun {
    /// Bytes of the segment that is under way, its tag included, that did not come yet.
    pub(super) fn segment_left(&self) -> usize {
        let plain = (self.header.bulk_length as usize).saturating_sub(self.opened).min(SEGMENT);
        let tag = if plain == 0 { 0 } else { TAG };
        (plain + tag).saturating_sub(self.bulk.len().saturating_sub(self.opened))
    }

    /// Opens the segment that came last, where it lies.
    pub(super) fn open_segment(&mut self, opener: &mut Opener) -> Result<(), ReadError> {
        let sealed = self.bulk.get_mut(self.opened..).unwrap_or_default();
        opener.segment(sealed)?;
        let length = self.bulk.len() - TAG;
        self.bulk.truncate(length);
        self.opened = length;
        Ok(())
    }
}

impl FrameWriter {
    /// What is written from now on is protected.
    pub fn protect(&mut self, sealer: Sealer) {
        self.sealer = Some(sealer);
    }

    /// Takes a frame, as [`FrameWriter::write`] does, under the connection's key.
    pub(super) async fn write_sealed(
        &mut self,
        frame: &OutFrame,
        sealer: &mut Sealer,
    ) -> io::Result<()> {
        let head = FrameHeader::LENGTH + frame.body.len();
        let prefix = Prefix {
            head: u32::try_from(head).unwrap_or(u32::MAX),
            bulk: frame.header.bulk_length,
            epoch: sealer.epoch(),
        };
        let start = self.gathered.len();
        self.gathered.extend_from_slice(&prefix.encode());
        self.gathered.extend_from_slice(&frame.header.encode(&frame.body));
        self.gathered.extend_from_slice(&frame.body);
        let tag = sealer.head(PREFIX, self.gathered.get_mut(start..).unwrap_or_default());
        self.gathered.extend_from_slice(&tag);
        if sealer.level() < Level::Integrity {
            return self.write_bulk(&frame.bulk).await;
        }
        match &frame.bulk {
            Bulk::Empty => Ok(()),
            Bulk::Bytes(bytes) if bytes.len() < GATHER => {
                let start = self.gathered.len();
                self.gathered.extend_from_slice(bytes);
                let tag = sealer.segment(self.gathered.get_mut(start..).unwrap_or_default());
                self.gathered.extend_from_slice(&tag);
                Ok(())
            }
            Bulk::Bytes(bytes) => {
                self.flush().await?;
                self.send_pieces(std::slice::from_ref(bytes), sealer).await
            }
            Bulk::Pieces(pieces) => {
                self.flush().await?;
                self.send_pieces(pieces, sealer).await
            }
            Bulk::File(range) => {
                self.flush().await?;
                self.send_file_sealed(range, sealer).await
            }
        }
    }

    /// Segment by segment, so that each stays in the processor's cache until it is sent. What is
    /// encrypted goes from where it is to where it is sent from, what is covered is sent from where
    /// it is: there is no other copy.
    async fn send_pieces(&mut self, pieces: &[Bytes], sealer: &mut Sealer) -> io::Result<()> {
        let mut run = std::mem::take(&mut self.run);
        for segment in cut(pieces) {
            if sealer.level() == Level::Privacy {
                run.resize(segment.len() + TAG, 0);
                sealer.segment_into(&segment, &mut run);
                self.send(&mut [IoSlice::new(&run)]).await?;
            } else {
                let tag = sealer.check(&segment);
                self.send(&mut [IoSlice::new(&segment), IoSlice::new(&tag)]).await?;
            }
        }
        self.run = run;
        Ok(())
    }

    /// A file passes through memory here: the kernel has no key. Segment by segment where it is in
    /// the kernel's cache, so that each stays in the processor's until it is sent.
    async fn send_file_sealed(&mut self, range: &FileRange, sealer: &mut Sealer) -> io::Result<()> {
        let mut run = std::mem::take(&mut self.run);
        let mut sent = 0;
        while sent < range.length {
            let left = range.length - sent;
            let mut length = left.min(SEGMENT as u32);
            run.resize(length as usize + TAG, 0);
            let segment = run.get_mut(..length as usize).unwrap_or_default();
            if !range.read_at_once(sent, segment) {
                length = left.min(FILE_STEP);
                run.resize(tieline_auth::seal::sealed_length(length as usize), 0);
                let step = range.part(sent, length);
                let read = move || read_apart(&step, &mut run).map(|()| run);
                let read = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?;
                run = read.inspect_err(|error| range.judge(error))?;
            }
            for sealed in run.chunks_mut(SEGMENT + TAG) {
                let (segment, place) = sealed.split_at_mut(sealed.len() - TAG);
                place.copy_from_slice(&sealer.segment(segment));
            }
            self.send(&mut [IoSlice::new(&run)]).await?;
            sent += length;
        }
        self.run = run;
        Ok(())
    }
}

/// Cuts pieces into segments; copies only those that lie in several pieces.
fn cut(pieces: &[Bytes]) -> impl Iterator<Item = Bytes> {
    let mut left: VecDeque<Bytes> =
        pieces.iter().filter(|piece| !piece.is_empty()).cloned().collect();
    std::iter::from_fn(move || {
        let first = front(&mut left, SEGMENT)?;
        if first.len() == SEGMENT || left.is_empty() {
            return Some(first);
        }
        let mut segment = BytesMut::with_capacity(SEGMENT);
        segment.extend_from_slice(&first);
        while let Some(next) = front(&mut left, SEGMENT - segment.len()) {
            segment.extend_from_slice(&next);
        }
        Some(segment.freeze())
    })
}

/// What comes first, and at most so much of it.
fn front(left: &mut VecDeque<Bytes>, length: usize) -> Option<Bytes> {
    if length == 0 {
        return None;
    }
    let mut piece = left.pop_front()?;
    if piece.len() > length {
        left.push_front(piece.split_off(length));
    }
    Some(piece)
}

/// Reads segments with room for a tag behind each.
fn read_apart(range: &FileRange, run: &mut [u8]) -> io::Result<()> {
    let mut at = range.offset;
    for place in run.chunks_mut(SEGMENT + TAG) {
        let length = place.len() - TAG;
        let segment = place.get_mut(..length).unwrap_or_default();
        range.file.read_exact_at(segment, at)?;
        at += length as u64;
    }
    Ok(())
}

/// Segments of bulk that long.
pub(super) fn segments(length: u32) -> usize {
    (length as usize).div_ceil(SEGMENT)
}

/// What a frame's bulk has on the wire beyond its bytes.
pub(super) fn tags(length: u32) -> usize {
    segments(length) * TAG
}

/// Room for the bulk and for the last tag, which is cut off again.
pub(super) fn reserve(bulk: &mut BytesMut, length: u32) {
    if bulk.capacity() == 0 {
        *bulk = super::room_for(length as usize + TAG);
    }
}
