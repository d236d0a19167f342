//! Reading a range with a check of each page of 4 KiB.

use super::read::{BATCH, BATCH_LEAST};
use super::{Asked, FRAME, Last, Outcome, cut};
use crate::answer;
use crate::output::Frame;
use crate::refusal::Refusal;
use crate::wire::Handle;
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = 4096;
const CHECK: usize = 4;

/// Pages of one frame.
struct Cut {
    offset: u64,
    data: u64,
    pieces: VecDeque<Bytes>,
}

impl Asked {
    pub(super) async fn read_pages(&self, handle: Handle, range: Range<u64>) -> Outcome {
        let file = self.session.handles.get(handle)?;
        let mut at = range.start;
        loop {
            let wanted = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(BATCH);
            let taken = self.room(wanted.max(1), BATCH_LEAST).await?;
            // A page is read at once, so that it has one check.
            let end = (at + taken.bytes as u64).min(range.end);
            let end = if end < range.end { end / PAGE * PAGE } else { end };
            let length = u32::try_from(end - at).unwrap_or(u32::MAX);
            let read = self.files().read_pages(file.held.handle, at, length).await;
            let pages = read.map_err(|error| self.refused(&file.path, &error))?;
            let got: u64 = pages.pieces.iter().map(|piece| piece.len() as u64).sum();
            let (is_end, taken) = (got < u64::from(length) || end == range.end, Arc::new(taken));
            let frames = frames(at, pages.pieces.into(), &pages.checks, got);
            let count = frames.len();
            for (place, frame) in frames.into_iter().enumerate() {
                let is_last = is_end && place + 1 == count;
                self.pages(frame, is_last, &taken).await?;
            }
            if is_end && count == 0 {
                let nothing = Cut { offset: at, data: 0, pieces: VecDeque::new() };
                self.pages(nothing, true, &taken).await?;
            }
            at += got;
            if is_end {
                return Ok(Last::Sent);
            }
        }
    }

    async fn pages(
        &self,
        Cut { offset, data, mut pieces }: Cut,
        is_last: bool,
        taken: &Arc<crate::budget::Taken>,
    ) -> Result<(), Refusal> {
        let length = data as usize + CHECK * count(offset, data) as usize;
        pieces.push_front(answer::pages(self.stream, offset, length, is_last));
        self.send(Frame { pieces, taken: Some(taken.clone()) }).await
    }
}

/// How many pages some bytes lie in.
fn count(offset: u64, data: u64) -> u64 {
    if data == 0 { 0 } else { (offset + data).div_ceil(PAGE) - offset / PAGE }
}

/// Bytes with their checks before each page, cut to frames.
fn frames(mut at: u64, mut pieces: VecDeque<Bytes>, checks: &[u32], mut left: u64) -> Vec<Cut> {
    let mut all = BytesMut::with_capacity(checks.len() * CHECK);
    checks.iter().for_each(|&check| all.put_u32(check));
    let mut checks = all.freeze();
    let mut frames = Vec::new();
    while left > 0 {
        let offset = at;
        let end = (at + left).min((at / PAGE + FRAME as u64 / PAGE) * PAGE);
        let mut framed = VecDeque::new();
        while at < end {
            let next = ((at / PAGE + 1) * PAGE).min(end);
            framed.push_back(checks.split_to(CHECK.min(checks.len())));
            framed.extend(cut(&mut pieces, (next - at) as usize));
            at = next;
        }
        left -= end - offset;
        frames.push(Cut { offset, data: end - offset, pieces: framed });
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tieline_files::Pages;
    use tieline_types::checksum::crc32c;

    proptest! {
        /// What a client puts together again are the bytes, and each page has its check.
        #[test]
        fn pages_are_whole_wherever_they_are_cut(
            offset in 0_u64..20_000, length in 0_usize..20_000, piece in 1_usize..9000,
        ) {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
            let pieces: Vec<Bytes> = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
            let pages = Pages::of(offset, pieces);
            let cuts = frames(offset, pages.pieces.into(), &pages.checks, length as u64);
            let (mut at, mut again) = (offset, Vec::new());
            for Cut { offset, data, pieces } in cuts {
                prop_assert_eq!(offset, at);
                let framed = Vec::from(pieces).concat();
                prop_assert_eq!(framed.len() as u64, data + 4 * count(offset, data));
                let (mut left, end) = (&framed[..], offset + data);
                while at < end {
                    let next = ((at / PAGE + 1) * PAGE).min(end);
                    let (check, rest) = left.split_at(4);
                    let (page, rest) = rest.split_at((next - at) as usize);
                    prop_assert_eq!(check, crc32c(page).to_be_bytes());
                    again.extend_from_slice(page);
                    (left, at) = (rest, next);
                }
                prop_assert!(left.is_empty());
            }
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn a_frame_ends_with_a_page() {
        let bytes = vec![Bytes::from(vec![7; 5 << 20])];
        let pages = Pages::of(100, bytes);
        let cuts = frames(100, pages.pieces.into(), &pages.checks, 5 << 20);
        let data: Vec<u64> = cuts.iter().map(|cut| cut.data).collect();
        assert_eq!(data, [(2 << 20) - 100, 2 << 20, (1 << 20) + 100]);
    }
}
