//! What all threads of a mount share, and the loops that take requests from the kernel.
//!
//! Each event thread reads from a descriptor of its own when it is its turn ([`Watch`]). A request
//! becomes a future over the client, polled once on the spot: what the client can answer from its
//! caches is answered at once, without a wake-up. The rest becomes a task of the runtime; the
//! thread goes on. Replies go back through the descriptor they came from, as the kernel demands.
//!
//! Where the kernel would not give it again, a request is kept until it is answered ([`Requests`]).
//!
//! Invariants: every request gets exactly one reply, also if its code panics or its task is dropped
//! ([`Reply`]). All descriptors live as long as the session: closing one would fail the requests
//! that were read from it.

use crate::abi::bits::RESENT_UNIQUE;
use crate::abi::incoming::{self, Header, InterruptIn, ReadIn, Reader};
use crate::abi::opcode::Opcode;
use crate::buffer::{Buffer, Pool};
use crate::call::Call;
use crate::denials::Denials;
use crate::kernel::Kernel;
use crate::mountable::Mountable;
use crate::moves::Moves;
use crate::pending::Pending;
use crate::process::Callers;
use crate::reply::Reply;
use crate::requests::{Full, Landing, Left, Request, Requests};
use crate::wait::{self, Work};
use crate::watch::{Next, Turn, Watch};
use crate::{ops, unwind};
use bytes::Bytes;
use rustix::io::Errno;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tieline_files::Belief;
use tieline_keep::Kept;
use tieline_owed::cause;
use tieline_people::People;
use tieline_telemetry::metrics::METRICS;
use tieline_types::FileId;
use tokio::runtime::Handle;

/// Requests longer than this keep the buffer they were read into; shorter ones are copied out of
/// it.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// What all who come in may know is asked for again after so long, where people are personal: who
/// stands in a directory may have lost his ticket, or the directory may be closed to others now.
const PERSONAL: Duration = Duration::from_secs(1);

/// The number of no event thread, and not that of nobody.
const NO_THREAD: usize = usize::MAX - 1;

/// A mount, as its threads and tasks see it.
pub struct Session {
    pub fs: Arc<dyn Mountable>,
    pub runtime: Handle,
    pub kernel: Arc<Kernel>,
    pub moves: Arc<Moves>,
    pub callers: Callers,
    pub people: Option<Arc<dyn People>>,
    pub denials: Denials,
    pending: Pending,
    buffers: Arc<Pool>,
    requests: Requests,
    pub watch: Watch,
}

impl Session {
    pub fn new(
        fs: Arc<dyn Mountable>,
        runtime: Handle,
        (kernel, moves): (Arc<Kernel>, Arc<Moves>),
        (buffers, requests): (Arc<Pool>, Requests),
        people: Option<Arc<dyn People>>,
    ) -> Self {
        Self {
            fs,
            runtime,
            kernel,
            moves,
            callers: Callers::default(),
            people,
            denials: Denials::default(),
            pending: Pending::default(),
            buffers,
            requests,
            watch: Watch::default(),
        }
    }

    fn are_people_personal(&self) -> bool {
        self.people.as_ref().is_some_and(|people| people.are_personal())
    }

    /// How long the kernel may believe what the client believes for so long.
    pub fn trusted(&self, valid: Duration) -> Duration {
        if self.are_people_personal() { valid.min(PERSONAL) } else { valid }
    }

    /// How far the kernel may believe a name in a directory, for whoever comes there next. Where
    /// people are personal it does not know who that is: then it is told names that anybody may
    /// look up, and asks at the first step of each path whether he who goes it is anybody here.
    pub fn trusted_name(&self, directory: FileId, name: Belief) -> Belief {
        if !self.are_people_personal() {
            return name;
        }
        match self.kernel.nodes.is_root(directory) {
            true => Belief::default(),
            false => name.and(self.fs.searched_by_all(directory)),
        }
    }

    /// Takes requests until the mount is gone: the life of one thread.
    pub fn run(self: &Arc<Self>, thread: usize) {
        let _inside = self.runtime.enter();
        self.take_all(thread);
        self.watch.end();
    }

    fn take_all(self: &Arc<Self>, thread: usize) {
        let device = thread % self.kernel.devices();
        let Some(from) = self.kernel.device(device) else { return };
        if let Err(error) = rustix::io::ioctl_fionbio(from, true) {
            return tracing::error!(%error, "the kernel's requests cannot be looked for");
        }
        let mut turn = self.watch.turn(thread);
        let mut buffer = self.buffers.take();
        let Ok(mut landing) = self.requests.landing(device, buffer.as_ref().len()) else {
            return tracing::error!("no memory is left to keep requests in; a thread ends");
        };
        loop {
            let into = landing.as_mut().map_or_else(|| buffer.as_mut(), Landing::as_mut);
            match rustix::io::read(from, into) {
                Ok(length) => {
                    turn.found();
                    buffer = match &mut landing {
                        None => self.receive(Request::new(device, buffer, length), &mut turn),
                        Some(landing) => {
                            self.receive_landed(landing, (device, buffer, length), &mut turn)
                        }
                    };
                }
                Err(Errno::AGAIN) => {
                    if turn.idle(from) == Next::Leave {
                        return;
                    }
                }
                // The request went away while it was being handed over, or a signal came.
                Err(Errno::NOENT | Errno::INTR) => {}
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

    /// Serves what a process before this one was asked and has not answered, before any thread
    /// runs.
    pub fn serve_left(self: &Arc<Self>, left: Vec<Left>) {
        let _inside = self.runtime.enter();
        let mut turn = self.watch.turn(NO_THREAD);
        let left: Vec<Left> = left.into_iter().filter(|left| self.is_waited_for(left)).collect();
        if !left.is_empty() {
            tracing::info!(requests = left.len(), "serving what was not answered");
        }
        for Left { device, bytes, record, .. } in left {
            let mut buffer = self.buffers.take();
            let Some(place) = buffer.as_mut().get_mut(..bytes.len()) else { continue };
            place.copy_from_slice(&bytes);
            let is_aside = record.is_aside;
            let in_hand = record.kept.in_hand();
            let request = Request {
                kept: Some(record.kept),
                is_left: true,
                ..Request::new(device, buffer, bytes.len())
            };
            if is_aside {
                tracing::error!("serving a request has crashed processes; its caller gets EIO");
                self.refuse(&request, Errno::IO);
            } else {
                self.receive(request, &mut turn);
            }
            drop(in_hand);
        }
    }

    /// What was answered just before the process died is done: what it opened is in use, what it
    /// locked may be free again.
    fn is_waited_for(&self, left: &Left) -> bool {
        let Header { opcode, unique, .. } = left.header;
        !Opcode::from_number(opcode).has_answer() || self.kernel.awaits(left.device, unique)
    }

    /// Serves what a thread's landing holds, which is kept until it is answered.
    fn receive_landed(
        self: &Arc<Self>,
        landing: &mut Landing,
        (device, mut buffer, length): (usize, Buffer, usize),
        turn: &mut Turn<'_>,
    ) -> Buffer {
        let moved = landing.move_to(&mut buffer, length);
        let mut request = Request::new(device, buffer, length);
        match moved {
            Ok(kept) => {
                landing.clear();
                request.kept = Some(kept);
                self.receive(request, turn)
            }
            // An answer that says no is better than none after this process's death.
            Err(Full) => {
                tracing::error!("too many requests wait to be kept; refusing one");
                self.refuse(&request, Errno::NOMEM);
                landing.clear();
                request.buffer
            }
        }
    }

    /// Answers an error to what is not looked at any further.
    fn refuse(self: &Arc<Self>, request: &Request, errno: Errno) {
        let bytes = request.buffer.as_ref().get(..request.length);
        if let Some(Ok((header, ..))) = bytes.map(incoming::split) {
            Reply::new(Arc::clone(self), request.device, header.unique, None).refuse(errno);
        }
    }

    /// Serves one request; returns a buffer for the next.
    fn receive(self: &Arc<Self>, request: Request, turn: &mut Turn<'_>) -> Buffer {
        let Request { device, buffer, length, kept, is_left } = request;
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
                if length.max(answered(opcode, bytes.get(arguments.clone()))) > COPIED_BYTES_MAX {
                    turn.leave();
                }
                let (body, next) = if length > COPIED_BYTES_MAX {
                    (Bytes::from_owner(buffer).slice(arguments), self.buffers.take())
                } else {
                    let bytes = bytes.get(arguments).unwrap_or_default();
                    (Bytes::copy_from_slice(bytes), buffer)
                };
                let caller = header.pid;
                let call = Call::new(Arc::clone(self), header, opcode, body, groups);
                self.serve(call, device, (kept, is_left));
                turn.served(caller);
                next
            }
        }
    }

    fn serve(self: &Arc<Self>, call: Call, device: usize, (kept, is_left): (Option<Kept>, bool)) {
        let Header { unique, pid, .. } = call.header;
        let opcode = call.opcode;
        let is_again = is_left || unique & RESENT_UNIQUE != 0;
        let cause =
            changes(opcode).then(|| self.fs.cause(unique & !RESENT_UNIQUE, is_again)).flatten();
        let mut reply = Reply::new(Arc::clone(self), device, unique, cause.clone());
        reply.kept = kept;
        if is_left && opcode != Opcode::Setlkw {
            // The kernel told the process before, and tells once: its thread is looked at.
            self.pending.interrupt(unique);
        }
        let work = unwind::caught(ops::dispatch(call));
        let mut work: Work = match cause {
            None => Box::pin(work),
            cause => Box::pin(cause::within(cause, work)),
        };
        let mut once = Context::from_waker(Waker::noop());
        if let Poll::Ready(outcome) = work.as_mut().poll(&mut once) {
            return reply.outcome(outcome);
        }
        match self.pending.enter(unique) {
            Ok(place) if opcode == Opcode::Flush => {
                self.runtime.spawn(wait::at_close(work, reply, place, pid));
            }
            Ok(place) if opcode == Opcode::Setlkw => {
                self.runtime.spawn(wait::for_lock(work, reply, place));
            }
            Ok(place) => {
                self.runtime.spawn(wait::for_answer(work, reply, place, pid));
            }
            Err(_) => {
                tracing::warn!("too many requests wait; refusing one");
                reply.refuse(Errno::BUSY);
            }
        }
    }
}

/// Does it leave anything behind, so that it must not be carried out twice?
fn changes(opcode: Opcode) -> bool {
    use Opcode::{
        Access, Getattr, Getlk, Getxattr, Listxattr, Lookup, Lseek, Read, Readdir, Readdirplus,
        Readlink, Statfs,
    };
    !matches!(
        opcode,
        Access
            | Getattr
            | Getlk
            | Getxattr
            | Listxattr
            | Lookup
            | Lseek
            | Read
            | Readdir
            | Readdirplus
            | Readlink
            | Statfs
    )
}

/// How many bytes the kernel asks for.
fn answered(opcode: Opcode, arguments: Option<&[u8]>) -> usize {
    let Some(arguments) = arguments.filter(|_| opcode == Opcode::Read) else { return 0 };
    ReadIn::read(&mut Reader::new(arguments)).map_or(0, |read| read.size as usize)
}

type Parts = (Header, std::ops::Range<usize>, Vec<u32>);

/// Where the arguments are, so that they can be taken out of the buffer or kept in it.
fn receive_split(bytes: &[u8]) -> Result<Parts, crate::abi::Malformed> {
    let (header, arguments, extensions) = incoming::split(bytes)?;
    let begin = crate::abi::IN_HEADER_BYTES;
    let groups = incoming::extension_groups(extensions)?;
    Ok((header, begin..begin + arguments.len(), groups))
}
