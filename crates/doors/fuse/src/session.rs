//! What all threads of a mount share, and the loops that take requests from the kernel.
//!
//! Each event thread reads from a descriptor of its own. A request becomes a future over the
//! client, polled once on the spot: what the client can answer from its caches is answered at once,
//! without a wake-up. The rest becomes a task of the runtime; the thread goes on. Replies go back
//! through the descriptor they came from, as the kernel demands.
//!
//! Invariants: every request gets exactly one reply, also if its code panics or its task is dropped
//! ([`Reply`]). All descriptors live as long as the session: closing one would fail the requests
//! that were read from it.

use crate::abi::incoming::{self, Header, InterruptIn, Reader};
use crate::abi::opcode::Opcode;
use crate::abi::outgoing;
use crate::answer::{Answer, Body, Undo};
use crate::appenders::Appenders;
use crate::buffer::{Buffer, Pool};
use crate::call::Call;
use crate::errno::{self, Refusal};
use crate::kernel::Kernel;
use crate::pending::{Pending, Place};
use crate::process::{self, Callers};
use crate::{ops, unwind};
use bytes::Bytes;
use rustix::io::Errno;
use std::future::Future;
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tieline_client::FileSystem;
use tieline_telemetry::metrics::METRICS;
use tokio::runtime::Handle;

/// Requests longer than this keep the buffer they were read into; shorter ones are copied out of
/// it.
const COPIED_BYTES_MAX: usize = 64 << 10;
/// How often a thread that was interrupted, but not to die, is looked at again.
const LEAVING_CHECKED: Duration = Duration::from_millis(100);
/// The kernel takes 1024 pieces at once; one is the header.
const PIECES_MAX: usize = 1000;

/// A mount, as its threads and tasks see it.
pub struct Session {
    pub fs: Arc<dyn FileSystem>,
    pub runtime: Handle,
    pub kernel: Arc<Kernel>,
    pub callers: Callers,
    pub appenders: Appenders,
    pending: Pending,
    buffers: Arc<Pool>,
}

impl Session {
    pub fn new(
        fs: Arc<dyn FileSystem>,
        runtime: Handle,
        kernel: Arc<Kernel>,
        buffers: Arc<Pool>,
    ) -> Self {
        Self {
            fs,
            runtime,
            kernel,
            callers: Callers::default(),
            appenders: Appenders::default(),
            pending: Pending::default(),
            buffers,
        }
    }

    /// Takes requests until the mount is gone: the life of one thread.
    pub fn run(self: &Arc<Self>, thread: usize) {
        let _inside = self.runtime.enter();
        let device = thread % self.kernel.devices();
        let Some(from) = self.kernel.device(device) else { return };
        let mut buffer = self.buffers.take();
        loop {
            match rustix::io::read(from, buffer.as_mut()) {
                Ok(length) => buffer = self.receive(device, buffer, length),
                // The request went away while it was being handed over, or a signal came.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return,
                Err(Errno::CONNABORTED) => {
                    return tracing::warn!("the kernel's connection to the mount was aborted");
                }
                Err(error) => {
                    return tracing::error!(%error, "the kernel gives no more requests");
                }
            }
        }
    }

    /// Serves one request; returns a buffer for the next.
    fn receive(self: &Arc<Self>, device: usize, buffer: Buffer, length: usize) -> Buffer {
        let Some(bytes) = buffer.as_ref().get(..length) else { return buffer };
        let (header, arguments, groups) = match receive_split(bytes) {
            Ok(parts) => parts,
            Err(_) => {
                tracing::error!(length, "the kernel sent a request that cannot be read");
                return buffer;
            }
        };
        let opcode = Opcode::from_number(header.opcode);
        METRICS.fuse_requests.with_label_values(&[opcode.label()]).inc();
        match opcode {
            Opcode::Forget | Opcode::BatchForget => {
                let arguments = bytes.get(arguments).unwrap_or_default();
                if ops::names::forget(self, &header, opcode, arguments).is_err() {
                    tracing::error!("the kernel sent a forget that cannot be read");
                }
                buffer
            }
            Opcode::Interrupt => {
                METRICS.fuse_interrupts.inc();
                let arguments = bytes.get(arguments).unwrap_or_default();
                if let Ok(about) = InterruptIn::read(&mut Reader::new(arguments)) {
                    self.pending.interrupt(about.unique);
                }
                buffer
            }
            _ => {
                let (body, next) = if length > COPIED_BYTES_MAX {
                    (Bytes::from_owner(buffer).slice(arguments), self.buffers.take())
                } else {
                    let bytes = bytes.get(arguments).unwrap_or_default();
                    (Bytes::copy_from_slice(bytes), buffer)
                };
                self.serve(device, Call::new(Arc::clone(self), header, opcode, body, groups));
                next
            }
        }
    }

    fn serve(self: &Arc<Self>, device: usize, call: Call) {
        let Header { unique, pid, .. } = call.header;
        let reply = Reply { session: Arc::clone(self), device, unique, is_sent: false };
        let mut work: Work = Box::pin(unwind::caught(ops::dispatch(call)));
        let mut once = Context::from_waker(Waker::noop());
        if let Poll::Ready(outcome) = work.as_mut().poll(&mut once) {
            return reply.outcome(outcome);
        }
        match self.pending.enter(unique) {
            Ok(place) => {
                self.runtime.spawn(wait(work, reply, place, pid));
            }
            Err(_) => {
                tracing::warn!("too many requests wait; refusing one");
                reply.refuse(Errno::BUSY);
            }
        }
    }
}

type Outcome = Result<Result<Answer, Refusal>, unwind::Panicked>;
type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

type Parts = (Header, std::ops::Range<usize>, Vec<u32>);

/// Where the arguments are, so that they can be taken out of the buffer or kept in it.
fn receive_split(bytes: &[u8]) -> Result<Parts, crate::abi::Malformed> {
    let (header, arguments, extensions) = incoming::split(bytes)?;
    let begin = crate::abi::IN_HEADER_BYTES;
    let groups = incoming::extension_groups(extensions)?;
    Ok((header, begin..begin + arguments.len(), groups))
}

/// Waits for an answer, or until the thread that asked is on its way out.
async fn wait(work: Work, reply: Reply, mut place: Place, thread: u32) {
    tokio::select! {
        biased;
        outcome = work => reply.outcome(outcome),
        () = leaving(&mut place, thread) => reply.refuse(Errno::INTR),
    }
}

/// The kernel interrupts once for any signal; whether the thread must go is seen in /proc, also
/// later.
async fn leaving(place: &mut Place, thread: u32) {
    if (&mut place.interrupted).await.is_err() {
        return std::future::pending().await;
    }
    while !process::is_leaving(thread) {
        tokio::time::sleep(LEAVING_CHECKED).await;
    }
}

/// The duty to answer one request. Dropped unanswered, it answers EIO.
struct Reply {
    session: Arc<Session>,
    device: usize,
    unique: u64,
    is_sent: bool,
}

impl Reply {
    fn outcome(self, outcome: Outcome) {
        match outcome {
            Ok(Ok(answer)) => self.answer_caught(answer),
            Ok(Err(refusal)) => {
                let Refusal { errno, cause } = refusal;
                if let Some(error) = cause {
                    if errno::is_remarkable(error.kind()) {
                        tracing::warn!(%error, errno = errno.raw_os_error(), "a call failed");
                    } else {
                        tracing::debug!(%error, errno = errno.raw_os_error(), "a call failed");
                    }
                }
                self.refuse(errno);
            }
            Err(unwind::Panicked(what)) => {
                tracing::error!(what, "a request panicked; its caller gets EIO");
                self.refuse(Errno::IO);
            }
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
        let Answer { body, undo } = answer;
        let is_taken = match body {
            Body::Bytes(bytes) => self.send(0, &[&bytes]),
            Body::Pieces(pieces) => self.send_pieces(&pieces),
            Body::Believed(belief, build) => {
                let session = Arc::clone(&self.session);
                let mut build = Some(build);
                let mut is_taken = false;
                session.fs.settle(&belief, &mut |valid| {
                    if let Some(build) = build.take() {
                        is_taken = self.send(0, &[&build(valid)]);
                    }
                });
                is_taken
            }
        };
        if !is_taken {
            undo_all(&self.session, undo);
        }
    }

    fn refuse(mut self, errno: Errno) {
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
        let mut slices = Vec::with_capacity(pieces.len() + 1);
        slices.push(IoSlice::new(&header));
        slices.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
        match rustix::io::writev(to, &slices) {
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
    undo.file.iter().for_each(|&handle| session.appenders.leave(handle));
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
