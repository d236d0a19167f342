//! Reading many ranges, of one file or several: one read for all that are in memory at once.

use super::read::BATCH_LEAST;
use super::{Asked, FRAME, Last, Outcome, total};
use crate::answer;
use crate::budget::OWN;
use crate::handles::OpenFile;
use crate::output::Frame;
use crate::refusal::{Code, Refusal};
use crate::request::{Element, RANGE_HEAD};
use crate::wire::{Handle, Status};
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are read at once.
const BATCH: usize = 16 << 20;

impl Asked {
    pub(super) async fn read_many(&self, elements: &[Element]) -> Outcome {
        let mut left = elements;
        while !left.is_empty() {
            let wanted = left.iter().map(bytes_of).sum::<usize>().min(BATCH);
            let taken = self.room(wanted.max(BATCH_LEAST), OWN).await?;
            let (now, later) = left.split_at(fitting(left, taken.bytes));
            let read = self.read_batch(now).await?;
            let taken = Arc::new(taken);
            let mut frames = framed(now, read).into_iter().peekable();
            while let Some((length, mut pieces)) = frames.next() {
                let is_last = later.is_empty() && frames.peek().is_none();
                let status = if is_last { Status::Done } else { Status::Partly };
                pieces.push_front(answer::begun(self.stream, status, length));
                self.send(Frame { pieces, taken: Some(taken.clone()) }).await?;
            }
            left = later;
        }
        Ok(Last::Sent)
    }

    /// The bytes of each, in their order.
    async fn read_batch(&self, elements: &[Element]) -> Result<Vec<Vec<Bytes>>, Refusal> {
        let mut wanted: BTreeMap<Handle, (Arc<OpenFile>, Vec<usize>)> = BTreeMap::new();
        for (place, element) in elements.iter().enumerate() {
            let file = self.session.handles.get(element.handle)?;
            wanted.entry(element.handle).or_insert_with(|| (file, Vec::new())).1.push(place);
        }
        let mut read = vec![Vec::new(); elements.len()];
        for (file, places) in wanted.into_values() {
            let own = places.iter().filter_map(|&place| elements.get(place));
            let ranges: Vec<Range<u64>> = own.map(|element| element.range()).collect();
            let got = self.files().read_ranges(file.held.handle, &ranges).await;
            let got = got.map_err(|error| self.refused(&file.path, &error))?;
            for ((place, range), bytes) in places.into_iter().zip(&ranges).zip(got) {
                if total(&bytes) as u64 != range.end - range.start {
                    let (path, size) = (&file.path, range.start + total(&bytes) as u64);
                    let what = format!(
                        "{path}: bytes {} to {} are wanted, and it ends at {size} or before",
                        range.start, range.end
                    );
                    return Err(Refusal::new(Code::FsError, what));
                }
                if let Some(room) = read.get_mut(place) {
                    *room = bytes;
                }
            }
        }
        Ok(read)
    }
}

fn bytes_of(element: &Element) -> usize {
    RANGE_HEAD + element.length as usize
}

/// How many of them have room, at least one.
fn fitting(elements: &[Element], mut bytes: usize) -> usize {
    let fits = |element: &&Element| {
        let left = bytes.checked_sub(bytes_of(element));
        bytes = left.unwrap_or(0);
        left.is_some()
    };
    elements.iter().take_while(fits).count().max(1)
}

/// Each with its head, cut to frames between two of them.
fn framed(elements: &[Element], read: Vec<Vec<Bytes>>) -> Vec<(usize, VecDeque<Bytes>)> {
    let mut frames = vec![(0, VecDeque::new())];
    for (element, bytes) in elements.iter().zip(read) {
        let length = bytes_of(element);
        if frames.last().is_some_and(|(so_far, _)| *so_far > 0 && so_far + length > FRAME) {
            frames.push((0, VecDeque::new()));
        }
        if let Some((so_far, pieces)) = frames.last_mut() {
            let mut head = BytesMut::with_capacity(RANGE_HEAD);
            head.put_u32(element.handle);
            head.put_u32(element.length);
            head.put_u64(element.offset);
            pieces.push_back(head.freeze());
            pieces.extend(bytes);
            *so_far += length;
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(length: u32) -> Element {
        Element { handle: 1, offset: 0, length }
    }

    #[test]
    fn a_range_is_never_cut() {
        let elements = [element(1 << 20), element((1 << 20) - 32), element(1), element(2 << 20)];
        let bytes = |element: &Element| vec![Bytes::from(vec![0; element.length as usize])];
        let lengths: Vec<usize> = framed(&elements, elements.iter().map(bytes).collect())
            .iter()
            .map(|(l, _)| *l)
            .collect();
        assert_eq!(lengths, [2 << 20, 17, (2 << 20) + 16]);
    }

    #[test]
    fn as_many_are_read_as_have_room() {
        let elements = [element(100), element(100), element(100)];
        assert_eq!(fitting(&elements, 116), 1);
        assert_eq!(fitting(&elements, 232), 2);
        assert_eq!(fitting(&elements, 10), 1);
        assert_eq!(fitting(&elements, 1000), 3);
    }
}
