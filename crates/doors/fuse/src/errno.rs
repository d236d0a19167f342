//! What programs are told: every error kind as an errno. The only place where one becomes the
//! other.

use crate::abi::Malformed;
use rustix::io::Errno;
use tieline_types::{ErrorKind, NameError};

/// Why a request is refused: what the program is told, and what the log may tell.
#[derive(Debug)]
pub struct Refusal {
    pub errno: Errno,
    /// Of a call that failed below.
    pub cause: Option<tieline_files::Error>,
}

impl Refusal {
    /// Is it about rights, which groups may give?
    pub fn is_denial(&self) -> bool {
        matches!(self.errno, Errno::ACCESS | Errno::PERM)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self { errno, cause: None }
    }
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Errno::INVAL.into()
    }
}

impl From<NameError> for Refusal {
    fn from(error: NameError) -> Self {
        from_name(&error).into()
    }
}

impl From<tieline_files::Error> for Refusal {
    fn from(error: tieline_files::Error) -> Self {
        Self { errno: from_kind(error.kind()), cause: Some(error) }
    }
}

/// Exhaustive: a new kind does not compile until it has its errno.
pub fn from_kind(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::Exists => Errno::EXIST,
        ErrorKind::NotDirectory => Errno::NOTDIR,
        ErrorKind::IsDirectory => Errno::ISDIR,
        ErrorKind::NotEmpty => Errno::NOTEMPTY,
        ErrorKind::PermissionDenied => Errno::ACCESS,
        ErrorKind::NotPermitted => Errno::PERM,
        ErrorKind::NameTooLong => Errno::NAMETOOLONG,
        ErrorKind::InvalidArgument => Errno::INVAL,
        ErrorKind::TooManyLinks => Errno::MLINK,
        ErrorKind::CrossDevice => Errno::XDEV,
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::QuotaExceeded => Errno::DQUOT,
        ErrorKind::ReadOnly => Errno::ROFS,
        ErrorKind::FileTooLarge => Errno::FBIG,
        ErrorKind::Busy => Errno::BUSY,
        ErrorKind::NoAttribute => Errno::NODATA,
        ErrorKind::OutOfRange => Errno::RANGE,
        // Never ENOSYS: the kernel would not ask again until the next mount.
        ErrorKind::NotSupported => Errno::OPNOTSUPP,
        ErrorKind::Stale => Errno::STALE,
        ErrorKind::SymlinkLoop => Errno::LOOP,
        ErrorKind::WouldBlock => Errno::AGAIN,
        ErrorKind::BadHandle => Errno::BADF,
        ErrorKind::NoDevice => Errno::NXIO,
        ErrorKind::Deadlock => Errno::DEADLK,
        ErrorKind::NoLocks => Errno::NOLCK,
        ErrorKind::Timeout => Errno::TIMEDOUT,
        // Not ENOTCONN, by which FUSE says that the mount's own program is gone.
        ErrorKind::Unreachable => Errno::HOSTUNREACH,
        ErrorKind::Disconnected => Errno::CONNRESET,
        ErrorKind::Conflict | ErrorKind::Overloaded => Errno::BUSY,
        ErrorKind::Unauthenticated => Errno::ACCESS,
        ErrorKind::VersionMismatch => Errno::PROTONOSUPPORT,
        ErrorKind::Protocol => Errno::PROTO,
        ErrorKind::Cancelled => Errno::INTR,
        ErrorKind::SessionLost => Errno::STALE,
        ErrorKind::Corrupt
        | ErrorKind::Gone
        | ErrorKind::StorageFault
        | ErrorKind::Internal
        | ErrorKind::WrongServer
        | ErrorKind::OstInactive
        | ErrorKind::LockLost => Errno::IO,
    }
}

/// Is it about the machinery, not about what the program asked? Then somebody should find it in the
/// log.
pub fn is_remarkable(kind: ErrorKind) -> bool {
    /// Below are the kinds that POSIX knows.
    const FIRST_OF_DISTANCE: u16 = 40;
    kind.number() >= FIRST_OF_DISTANCE
}

fn from_name(error: &NameError) -> Errno {
    match error {
        NameError::TooLong { .. } => Errno::NAMETOOLONG,
        NameError::Empty | NameError::Forbidden | NameError::Charset(_) => Errno::INVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_an_errno_that_programs_know() {
        for &kind in ErrorKind::ALL {
            let errno = from_kind(kind);
            // The kernel takes 1 to 511; ENOSYS and ENOTCONN mean something else on a mount.
            assert!((1..512).contains(&errno.raw_os_error()), "{kind:?}");
            assert!(errno != Errno::NOSYS && errno != Errno::NOTCONN, "{kind:?}");
        }
    }

    #[test]
    fn what_posix_knows_keeps_its_meaning() {
        for (kind, number) in [
            (ErrorKind::NotFound, libc::ENOENT),
            (ErrorKind::Exists, libc::EEXIST),
            (ErrorKind::PermissionDenied, libc::EACCES),
            (ErrorKind::NotPermitted, libc::EPERM),
            (ErrorKind::CrossDevice, libc::EXDEV),
            (ErrorKind::QuotaExceeded, libc::EDQUOT),
            (ErrorKind::NoAttribute, libc::ENODATA),
            (ErrorKind::NotSupported, libc::EOPNOTSUPP),
            (ErrorKind::Timeout, libc::ETIMEDOUT),
            (ErrorKind::Corrupt, libc::EIO),
        ] {
            assert_eq!(from_kind(kind).raw_os_error(), number, "{kind:?}");
            assert!(!is_remarkable(kind) || kind.number() >= 40);
        }
    }
}
