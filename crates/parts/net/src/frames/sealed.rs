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

use super::{Begun, FILE_STEP, FrameReader, FrameWriter, GATHER, OutFrame, ReadError};
use bytes::{Buf, Bytes, BytesMut};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use tieline_auth::seal::{Level, Opener, SEGMENT, Sealer, TAG};
use tieline_wire::{FrameError, FrameHeader};
use tieline_world::{Bulk, FileRange};

const PREFIX: usize = 16;
/// "TLP1" read as a little-endian number.
const MAGIC: u32 = u32::from_le_bytes(*b"TLP1");
/// Segments that one write takes.
const RUN: usize = FILE_STEP as usize / SEGMENT;

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
        self.fill(PREFIX + length + TAG).await?;
        let opener = self.opener.as_mut().ok_or(ReadError::Torn)?;
        self.buffer.advance(PREFIX);
        let mut sealed = self.buffer.split_to(length + TAG);
        opener.head(prefix.epoch, &clear, &mut sealed)?;
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
        let clear = prefix.encode();
        self.gathered.extend_from_slice(&clear);
        let start = self.gathered.len();
        self.gathered.extend_from_slice(&frame.header.encode(&frame.body));
        self.gathered.extend_from_slice(&frame.body);
        let tag = sealer.head(&clear, self.gathered.get_mut(start..).unwrap_or_default());
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
                match sealer.level() {
                    Level::Privacy => self.send_private(bytes, sealer).await,
                    _ => self.send_checked(bytes, sealer).await,
                }
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

    /// Encrypts from where the bytes are to where they are sent from: one pass, no other copy.
    async fn send_private(&mut self, bytes: &[u8], sealer: &mut Sealer) -> io::Result<()> {
        let mut run = std::mem::take(&mut self.run);
        for some in bytes.chunks(RUN * SEGMENT) {
            run.resize(tieline_auth::seal::sealed_length(some.len()), 0);
            for (segment, place) in some.chunks(SEGMENT).zip(run.chunks_mut(SEGMENT + TAG)) {
                sealer.segment_into(segment, place);
            }
            self.send(&mut [IoSlice::new(&run)]).await?;
        }
        self.run = run;
        Ok(())
    }

    /// Sends the bytes from where they are, with tags between them.
    async fn send_checked(&mut self, bytes: &[u8], sealer: &mut Sealer) -> io::Result<()> {
        for some in bytes.chunks(RUN * SEGMENT) {
            let tags: Vec<[u8; TAG]> =
                some.chunks(SEGMENT).map(|segment| sealer.check(segment)).collect();
            let pieces = some.chunks(SEGMENT).zip(&tags);
            let mut slices: Vec<IoSlice<'_>> = pieces
                .flat_map(|(segment, tag)| [IoSlice::new(segment), IoSlice::new(tag)])
                .collect();
            self.send(&mut slices).await?;
        }
        Ok(())
    }

    /// Gathers pieces into segments and sends those.
    async fn send_pieces(&mut self, pieces: &[Bytes], sealer: &mut Sealer) -> io::Result<()> {
        let mut run = std::mem::take(&mut self.run);
        run.clear();
        let mut filled = 0;
        for piece in pieces {
            let mut rest = piece.as_ref();
            while !rest.is_empty() {
                let (some, later) = rest.split_at(rest.len().min(SEGMENT - filled));
                run.extend_from_slice(some);
                filled += some.len();
                rest = later;
                if filled == SEGMENT {
                    seal_last(&mut run, filled, sealer);
                    filled = 0;
                }
                if run.len() >= RUN * SEGMENT && filled == 0 {
                    self.send(&mut [IoSlice::new(&run)]).await?;
                    run.clear();
                }
            }
        }
        if filled > 0 {
            seal_last(&mut run, filled, sealer);
        }
        self.send(&mut [IoSlice::new(&run)]).await?;
        self.run = run;
        Ok(())
    }

    /// A file passes through memory here: the kernel has no key.
    async fn send_file_sealed(&mut self, range: &FileRange, sealer: &mut Sealer) -> io::Result<()> {
        let mut run = std::mem::take(&mut self.run);
        let mut sent = 0;
        while sent < range.length {
            let length = (range.length - sent).min(FILE_STEP);
            let (file, offset) = (range.file.clone(), range.offset + u64::from(sent));
            run.resize(tieline_auth::seal::sealed_length(length as usize), 0);
            let read = move || read_apart(&file, offset, &mut run).map(|()| run);
            run = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
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

/// Seals the last bytes where they lie, and puts the tag behind them.
fn seal_last(run: &mut Vec<u8>, length: usize, sealer: &mut Sealer) {
    let start = run.len() - length;
    let tag = sealer.segment(run.get_mut(start..).unwrap_or_default());
    run.extend_from_slice(&tag);
}

/// Reads segments with room for a tag behind each.
fn read_apart(file: &std::fs::File, offset: u64, run: &mut [u8]) -> io::Result<()> {
    let mut at = offset;
    for place in run.chunks_mut(SEGMENT + TAG) {
        let length = place.len() - TAG;
        let segment = place.get_mut(..length).unwrap_or_default();
        file.read_exact_at(segment, at)?;
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
