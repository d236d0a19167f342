//! Adler-32 of a whole file: combined from its chunks' where extents are whole chunks, else from
//! their bytes.

use crate::file::File;
use crate::shared::Shared;
use crate::{Error, Result};
use std::sync::Arc;
use tieline_ranges::adler::{combine, zeroes};
use tieline_types::{Caller, Content, ErrorKind, FileId};

impl Shared {
    pub(crate) async fn adler32(self: &Arc<Self>, caller: &Caller, id: FileId) -> Result<u32> {
        let file = self.file(id);
        self.view(caller, &file, 0..1).await?;
        let mut sum = 1;
        let mut at = 0;
        loop {
            self.view(caller, &file, at..at.saturating_add(1)).await?;
            match file.with(|state| next(state, at)) {
                Next::End => return Ok(sum),
                Next::Known { adler32, length } => {
                    sum = combine(sum, adler32, length);
                    at += length;
                }
                Next::Read { length } => {
                    let (part, read) = self.adler32_read(caller, &file, at, length).await?;
                    sum = combine(sum, part, read);
                    at += read;
                }
            }
        }
    }

    async fn adler32_read(
        self: &Arc<Self>,
        caller: &Caller,
        file: &Arc<File>,
        at: u64,
        length: u64,
    ) -> Result<(u32, u64)> {
        let mut hash = simd_adler32::Adler32::new();
        let mut left = length;
        for piece in self.read_step(caller, file, at).await? {
            let some = (piece.len() as u64).min(left);
            hash.write(&piece[..some as usize]);
            left -= some;
        }
        if left == length {
            return Err(Error::local(ErrorKind::Stale, "file was cut while it was read"));
        }
        Ok((hash.finish(), length - left))
    }
}

enum Next {
    End,
    Known { adler32: u32, length: u64 },
    Read { length: u64 },
}

/// How the checksum of what begins at `at` can be had.
fn next(state: &crate::file::State, at: u64) -> Next {
    let size = state.size_here();
    if at >= size {
        return Next::End;
    }
    let own = state.overlay.read(at..size).first().map(|(offset, _)| *offset);
    let end = own.unwrap_or(size).min(state.size.max(at));
    let known = state.extents.unknown(at..end).unwrap_or(end);
    match state.extents.plan(at..known).into_iter().next() {
        Some(piece) => match piece.extent.map(|extent| (extent.length, extent.content)) {
            None => {
                let length = piece.range.end - piece.range.start;
                Next::Known { adler32: zeroes(length), length }
            }
            Some((length, Content::Chunk(chunk)))
                if chunk.skip == 0 && chunk.length == length && chunk.adler32.is_some() =>
            {
                Next::Known { adler32: chunk.adler32.unwrap_or(1), length }
            }
            Some((length, _)) => Next::Read { length },
        },
        None => Next::Read { length: size - at },
    }
}
