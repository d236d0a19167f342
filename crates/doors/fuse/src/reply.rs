//! Replies: each request gets exactly one, through the descriptor it came from.
//!
//! Invariants: a [`Reply`] that is dropped unanswered answers EIO, so that no panic and no dropped
//! task leaves a program waiting. What the kernel does not take is given back ([`Undo`]).

use crate::abi::outgoing;
use crate::answer::{Answer, Body, Undo};
use crate::errno::{self, Refusal};
use crate::session::Session;
use crate::unwind::Panicked;
use bytes::Bytes;
use rustix::io::Errno;
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tieline_keep::Kept;
use tieline_owed::cause::Cause;

/// The kernel takes 1024 pieces at once; one is the header.
const PIECES_MAX: usize = 1000;

/// A reply up to here is copied into one piece: the kernel looks up the pages of each.
const JOINED_MAX: usize = 512;

/// The duty to answer one request. Dropped unanswered, it answers EIO.
pub struct Reply {
    session: Arc<Session>,
    device: usize,
    unique: u64,
    /// Lets go when the kernel was answered.
    cause: Option<Arc<Cause>>,
    /// The request, for the next process if this one dies before it has answered.
    pub kept: Option<Kept>,
    is_sent: bool,
}

/// What serving a request ends with.
pub type Outcome = Result<Result<Answer, Refusal>, Panicked>;

/// The answer, or the errno where there is none; tells the log what programs are not told.
pub fn logged(outcome: Outcome) -> Result<Answer, Errno> {
    match outcome {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Refusal { errno, cause: None })) => Err(errno),
        Ok(Err(Refusal { errno, cause: Some(error) })) => {
            if errno::is_remarkable(error.kind()) {
                tracing::warn!(%error, errno = errno.raw_os_error(), "a call failed");
            } else {
                tracing::debug!(%error, errno = errno.raw_os_error(), "a call failed");
            }
            Err(errno)
        }
        Err(Panicked(what)) => {
            tracing::error!(what, "a request panicked; its caller gets EIO");
            Err(Errno::IO)
        }
    }
}

impl Reply {
    pub fn new(
        session: Arc<Session>,
        device: usize,
        unique: u64,
        cause: Option<Arc<Cause>>,
    ) -> Self {
        Self { session, device, unique, cause, kept: None, is_sent: false }
    }

    pub fn outcome(self, outcome: Outcome) {
        match logged(outcome) {
            Ok(answer) => self.answer_caught(answer),
            Err(errno) => self.refuse(errno),
        }
    }

    /// A panic while answering drops the reply, which answers EIO.
    fn answer_caught(self, answer: Answer) {
        let answering = AssertUnwindSafe(|| self.answer(answer));
        if catch_unwind(answering).is_err() {
            tracing::error!("an answer panicked; its caller gets EIO");
        }
    }

    fn answer(mut self, answer: Answer) {
        let Answer { body, told, undo } = answer;
        let is_taken = match body {
            Body::Bytes(bytes) => self.send(0, &[&bytes]),
            Body::Pieces(pieces) => self.send_pieces(&pieces),
            Body::Believed(belief, build) => {
                let session = Arc::clone(&self.session);
                let mut build = Some(build);
                let mut is_taken = false;
                session.fs.settle(&belief, &mut |valid| {
                    let Some(build) = build.take() else { return };
                    let valid = session.trusted(valid);
                    let kept = if valid.is_zero() { &[][..] } else { &told[..] };
                    session.kernel.nodes.give_attributes(kept);
                    is_taken = self.send(0, &[&build(valid)]);
                    session.kernel.nodes.give_attributes(kept);
                });
                is_taken
            }
        };
        if !is_taken {
            undo_all(&self.session, undo);
        }
    }

    pub fn refuse(mut self, errno: Errno) {
        self.send(-errno.raw_os_error(), &[]);
    }

    fn send_pieces(&mut self, pieces: &[Bytes]) -> bool {
        if pieces.len() > PIECES_MAX {
            return self.send(0, &[&pieces.concat()]);
        }
        let pieces: Vec<&[u8]> = pieces.iter().map(AsRef::as_ref).collect();
        self.send(0, &pieces)
    }

    /// Says whether the kernel took it.
    fn send(&mut self, code: i32, pieces: &[&[u8]]) -> bool {
        self.is_sent = true;
        let Some(to) = self.session.kernel.device(self.device) else { return false };
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        let header = outgoing::header(bytes, code, self.unique);
        let mut room = [0; JOINED_MAX];
        let written = match room.get_mut(..header.len() + bytes) {
            Some(whole) => {
                let mut rest = &mut whole[..];
                for piece in [&header[..]].iter().chain(pieces) {
                    let (place, behind) = rest.split_at_mut(piece.len());
                    place.copy_from_slice(piece);
                    rest = behind;
                }
                rustix::io::write(to, whole)
            }
            None => {
                let mut slices = Vec::with_capacity(pieces.len() + 1);
                slices.push(IoSlice::new(&header));
                slices.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
                rustix::io::writev(to, &slices)
            }
        };
        // Before what says that it was carried out: else it might be, twice.
        drop(self.kept.take());
        if let Some(cause) = &self.cause {
            cause.answered();
        }
        match written {
            Ok(_) => true,
            // The request or the whole mount is gone; nobody waits.
            Err(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::CONNABORTED) => false,
            Err(error) => {
                tracing::error!(%error, code, bytes, "the kernel refused a reply");
                let header = outgoing::header(0, -Errno::IO.raw_os_error(), self.unique);
                // It may have ended the request with its refusal; then this finds nothing.
                let _ = rustix::io::write(to, &header);
                false
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_sent {
            self.send(-Errno::IO.raw_os_error(), &[]);
        }
    }
}

/// Gives back what the kernel did not take.
fn undo_all(session: &Arc<Session>, undo: Undo) {
    undo.nodes.iter().for_each(|&id| session.kernel.nodes.forget(id, 1));
    if undo.file.is_none() && undo.directory.is_none() {
        return;
    }
    let fs = Arc::clone(&session.fs);
    session.runtime.spawn(async move {
        if let Some(handle) = undo.file {
            fs.release(handle).await;
        }
        if let Some(handle) = undo.directory {
            fs.release_directory(handle).await;
        }
    });
}
