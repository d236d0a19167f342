//! The kernel's protocol: what bytes on /dev/fuse mean, and nothing else.
//!
//! * [`bits`]: flags of requests, replies and the opening handshake.
//! * [`opcode`]: which requests there are.
//! * [`incoming`]: requests, read field by field; any bytes give a request or [`Malformed`], never
//!   a panic.
//! * [`outgoing`]: replies and notifications, written field by field.
//!
//! Numbers have this machine's byte order, for both ends are on it. Written for protocol 7.45;
//! every kernel from 7.31 (Linux 5.4) on is spoken to, since newer structures only grew at their
//! ends.

pub mod bits;
pub mod incoming;
pub mod opcode;
pub mod outgoing;

#[cfg(test)]
mod tests;

/// The protocol's only major version.
pub const MAJOR: u32 = 7;
/// The newest minor version whose features are known here.
pub const MINOR_NEWEST: u32 = 45;
/// The oldest kernel that is served, as of Linux 5.4: requests of 1 MiB came before it.
pub const MINOR_OLDEST: u32 = 31;
/// The node that is the root of a mount.
pub const ROOT_NODE: u64 = 1;
/// The uid of a request of which the kernel does not say who asks (`FUSE_INVALID_UIDGID`).
pub const UID_UNSAID: u32 = u32::MAX;
/// Bytes before a request's arguments.
pub const IN_HEADER_BYTES: usize = 40;
/// Bytes before a reply's body.
pub const OUT_HEADER_BYTES: usize = 16;
/// Bytes of a write's arguments before its data.
pub const WRITE_IN_BYTES: usize = 40;

/// Bytes that are not the request they claim to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed request from the kernel")]
pub struct Malformed;
