//! Reads streams frame by frame, from a file or a pipe.

use crate::Error;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use tieline_format::ledger::{
    self, FRAME_HEADER, Frame, FrameStart, Head, HeadKind, LedgerError, PREAMBLE, Sum,
};
use tieline_types::Version;

/// A stream being read.
pub struct Frames<R> {
    input: R,
    path: PathBuf,
    /// Where the next frame begins.
    at: u64,
}

impl Frames<BufReader<File>> {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path);
        let failed = |source| Error::Io { doing: "open", path: path.to_owned(), source };
        Self::new(BufReader::with_capacity(1 << 20, file.map_err(failed)?), path)
    }
}

impl<R: Read> Frames<R> {
    /// `path` is for messages.
    pub fn new(input: R, path: &Path) -> Result<Self, Error> {
        let mut frames = Self { input, path: path.to_owned(), at: 0 };
        let mut preamble = [0; PREAMBLE];
        if frames.fill(&mut preamble)? < PREAMBLE {
            return Err(frames.wrong(LedgerError::NoStream));
        }
        ledger::check_preamble(preamble).map_err(|source| frames.wrong(source))?;
        frames.at = PREAMBLE as u64;
        Ok(frames)
    }

    /// Goes on at a frame's beginning.
    pub fn at_frame(input: R, path: &Path, at: u64) -> Self {
        Self { input, path: path.to_owned(), at }
    }

    /// Where the next frame begins.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The next frame with its checksum; none at the end.
    pub fn read(&mut self) -> Result<Option<(Frame, u32)>, Error> {
        let mut start = [0; FRAME_HEADER];
        match self.fill(&mut start)? {
            0 => return Ok(None),
            FRAME_HEADER => {}
            _ => return Err(self.cut()),
        }
        let start = FrameStart::decode(start).map_err(|source| self.wrong(source))?;
        let mut cbor = Vec::new();
        let limit = u64::from(start.length);
        self.input.by_ref().take(limit).read_to_end(&mut cbor).map_err(|e| self.failed(e))?;
        if (cbor.len() as u64) < limit {
            return Err(self.cut());
        }
        let frame = start.frame(&cbor).map_err(|source| self.wrong(source))?;
        self.at += FRAME_HEADER as u64 + limit;
        Ok(Some((frame, start.check)))
    }

    /// Is there nothing behind what was read so far?
    fn is_at_end(&mut self) -> bool {
        matches!(self.input.read(&mut [0]), Ok(0))
    }

    /// Reads as much as there is.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(filled)
    }

    fn wrong(&self, source: LedgerError) -> Error {
        Error::Stream { path: self.path.clone(), at: self.at, source }
    }

    fn cut(&self) -> Error {
        Error::Cut { path: self.path.clone(), at: self.at }
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::Io { doing: "read", path: self.path.clone(), source }
    }

    fn malformed(&self, what: &str) -> Error {
        Error::Malformed { path: self.path.clone(), what: format!("{what}, byte {}", self.at) }
    }
}

/// Does a file begin as streams do? Nothing else of it is read.
pub fn is_stream(path: &Path) -> bool {
    Frames::open(path).is_ok()
}

/// What a stream holds, all of it read and checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The dump, or every segment, with the last version of its groups.
    pub parts: Vec<(Head, Version)>,
    pub frames: u64,
    pub pairs: u64,
    /// Its end says that nothing is missing.
    pub has_end: bool,
    /// Where the whole frames end, if something that is not whole follows.
    pub torn_at: Option<u64>,
}

impl Summary {
    pub fn is_dump(&self) -> bool {
        self.parts.iter().any(|(head, _)| head.kind == HeadKind::Dump)
    }
}

/// Reads a whole stream. A segment may be torn at its end; nothing else may.
pub fn read_through<R: Read>(
    frames: &mut Frames<R>,
    each: impl FnMut(&Head, Frame),
) -> Result<Summary, Error> {
    match read_whole(frames, each) {
        (summary, None) => Ok(summary),
        (_, Some(damage)) => Err(damage),
    }
}

/// The same as far as it is whole, and what ends it there.
pub fn read_whole<R: Read>(
    frames: &mut Frames<R>,
    each: impl FnMut(&Head, Frame),
) -> (Summary, Option<Error>) {
    let mut summary = Summary::default();
    let damage = summary.read(frames, each).err();
    (summary, damage)
}

impl Summary {
    fn read<R: Read>(
        &mut self,
        frames: &mut Frames<R>,
        mut each: impl FnMut(&Head, Frame),
    ) -> Result<(), Error> {
        let mut sum = Sum::default();
        loop {
            let next = match frames.read() {
                Ok(next) => next,
                Err(error) => {
                    let is_last = matches!(error, Error::Cut { .. }) || frames.is_at_end();
                    let is_segment = !self.parts.is_empty() && !self.is_dump();
                    if !is_segment || !is_last || matches!(error, Error::Io { .. }) {
                        return Err(error);
                    }
                    self.torn_at = Some(frames.at);
                    break;
                }
            };
            let Some((frame, check)) = next else { break };
            if self.has_end {
                return Err(frames.malformed("something follows the end"));
            }
            if let Frame::End(end) = &frame {
                if *end != sum.end() {
                    return Err(frames.malformed("the end says that something is missing"));
                }
                self.has_end = true;
                continue;
            }
            sum.add(&frame, check);
            self.follow(&frame).map_err(|what| frames.malformed(what))?;
            if let Some((head, _)) = self.parts.last() {
                each(head, frame);
            }
        }
        let end = sum.end();
        (self.frames, self.pairs) = (end.frames, end.pairs);
        if self.parts.is_empty() && self.torn_at.is_none() {
            return Err(frames.malformed("nothing is in it"));
        }
        if self.is_dump() && !self.has_end {
            return Err(frames.cut());
        }
        Ok(())
    }

    /// May this frame stand here?
    fn follow(&mut self, frame: &Frame) -> Result<(), &'static str> {
        match (frame, self.parts.last_mut()) {
            (Frame::Head(head), None) => self.parts.push((head.clone(), head.version)),
            (Frame::Head(head), Some((before, _)))
                if before.kind == HeadKind::Segment && head.kind == HeadKind::Segment =>
            {
                self.parts.push((head.clone(), head.version));
            }
            (Frame::Pairs(_), Some((head, _))) if head.kind == HeadKind::Dump => {}
            (Frame::Group(group), Some((head, last))) if head.kind == HeadKind::Segment => {
                if group.after != *last || group.version <= group.after {
                    return Err("a group does not follow the one before it");
                }
                *last = group.version;
            }
            _ => return Err("a frame stands where it cannot"),
        }
        Ok(())
    }
}

/// Reads and checks a file.
pub fn verify(path: &Path) -> Result<Summary, Error> {
    read_through(&mut Frames::open(path)?, |_, _| ())
}
