//! What all threads of a mount share, and the loops that take requests from the kernel.
//!
//! Each event thread reads from a descriptor of its own when it is its turn ([`Watch`]). A request
//! becomes a future over the client, polled once on the spot: what the client can answer from its
//! caches is answered at once, without a wake-up. The rest becomes a task of the runtime; the
//! thread goes on. Replies go back through the descriptor they came from, as the kernel demands.
//!
//! Invariants: every request gets exactly one reply, also if its code panics or its task is dropped
//! ([`Reply`]). All descriptors live as long as the session: closing one would fail the requests
//! that were read from it.

use crate::abi::bits::RESENT_UNIQUE;
use crate::abi::incoming::{self, Header, InterruptIn, ReadIn, Reader};
use crate::abi::opcode::Opcode;
use crate::appenders::Appenders;
use crate::buffer::{Buffer, Pool};
use crate::call::Call;
use crate::denials::Denials;
use crate::kernel::Kernel;
use crate::pending::Pending;
use crate::people::People;
use crate::process::Callers;
use crate::reply::Reply;
use crate::wait::{self, Work};
use crate::watch::{Next, Turn, Watch};
use crate::{ops, unwind};
use bytes::Bytes;
use rustix::io::Errno;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tieline_client::{FileSystem, cause};
use tieline_telemetry::metrics::METRICS;
use tokio::runtime::Handle;

/// Requests longer than this keep the buffer they were read into; shorter ones are copied out of
/// it.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// A mount, as its threads and tasks see it.
pub struct Session {
    pub fs: Arc<dyn FileSystem>,
    pub runtime: Handle,
    pub kernel: Arc<Kernel>,
    pub callers: Callers,
    pub appenders: Appenders,
    pub people: Option<Arc<dyn People>>,
    pub denials: Denials,
    pending: Pending,
    buffers: Arc<Pool>,
    pub watch: Watch,
}

impl Session {
    pub fn new(
        fs: Arc<dyn FileSystem>,
        runtime: Handle,
        kernel: Arc<Kernel>,
        buffers: Arc<Pool>,
        people: Option<Arc<dyn People>>,
    ) -> Self {
        Self {
            fs,
            runtime,
            kernel,
            callers: Callers::default(),
            appenders: Appenders::default(),
            people,
            denials: Denials::default(),
            pending: Pending::default(),
            buffers,
            watch: Watch::default(),
        }
    }

    /// How long the kernel may believe what the client believes for so long.
    pub fn trusted(&self, valid: std::time::Duration) -> std::time::Duration {
        let is_personal = self.people.as_ref().is_some_and(|people| people.are_personal());
        if is_personal { std::time::Duration::ZERO } else { valid }
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
        loop {
            match rustix::io::read(from, buffer.as_mut()) {
                Ok(length) => {
                    turn.found();
                    buffer = self.receive(device, buffer, length, &mut turn);
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

    /// Serves one request; returns a buffer for the next.
    fn receive(
        self: &Arc<Self>,
        device: usize,
        buffer: Buffer,
        length: usize,
        turn: &mut Turn<'_>,
    ) -> Buffer {
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
                self.serve(device, Call::new(Arc::clone(self), header, opcode, body, groups));
                next
            }
        }
    }

    fn serve(self: &Arc<Self>, device: usize, call: Call) {
        let Header { unique, pid, .. } = call.header;
        let opcode = call.opcode;
        let cause = changes(opcode)
            .then(|| self.fs.cause(unique & !RESENT_UNIQUE, unique & RESENT_UNIQUE != 0))
            .flatten();
        let reply = Reply::new(Arc::clone(self), device, unique, cause.clone());
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
