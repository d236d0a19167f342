//! Errors as the protocol numbers them: the one place where kinds of errors become its codes.

use tieline_files::Error;
use tieline_types::ErrorKind;

/// The protocol's errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Code {
    ArgInvalid = 3000,
    ArgMissing = 3001,
    ArgTooLong = 3002,
    FileLocked = 3003,
    FileNotOpen = 3004,
    FsError = 3005,
    InvalidRequest = 3006,
    IoError = 3007,
    NoMemory = 3008,
    NoSpace = 3009,
    NotAuthorized = 3010,
    NotFound = 3011,
    ServerError = 3012,
    Unsupported = 3013,
    NoServer = 3014,
    NotFile = 3015,
    IsDirectory = 3016,
    Cancelled = 3017,
    ItExists = 3018,
    ChecksumError = 3019,
    OverQuota = 3021,
    Overloaded = 3024,
    FsReadOnly = 3025,
    AttrNotFound = 3027,
    AuthFailed = 3030,
    Conflict = 3032,
    ReqTimedOut = 3034,
}

/// What somebody is told who does not get what he asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub code: Code,
    pub text: String,
}

impl Refusal {
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Of a file, by the path that was asked for.
    pub fn of(path: &str, error: &Error) -> Self {
        Self { code: code_of(error.kind()), text: format!("{path}: {error}") }
    }
}

pub fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::NotFound | ErrorKind::Stale | ErrorKind::Gone => Code::NotFound,
        ErrorKind::Exists | ErrorKind::NotEmpty => Code::ItExists,
        ErrorKind::IsDirectory => Code::IsDirectory,
        ErrorKind::NotDirectory
        | ErrorKind::SymlinkLoop
        | ErrorKind::TooManyLinks
        | ErrorKind::CrossDevice
        | ErrorKind::NoDevice => Code::FsError,
        ErrorKind::PermissionDenied | ErrorKind::NotPermitted => Code::NotAuthorized,
        ErrorKind::Unauthenticated => Code::AuthFailed,
        ErrorKind::NameTooLong => Code::ArgTooLong,
        ErrorKind::InvalidArgument | ErrorKind::OutOfRange | ErrorKind::FileTooLarge => {
            Code::ArgInvalid
        }
        ErrorKind::NoSpace => Code::NoSpace,
        ErrorKind::QuotaExceeded => Code::OverQuota,
        ErrorKind::ReadOnly => Code::FsReadOnly,
        ErrorKind::Busy
        | ErrorKind::WouldBlock
        | ErrorKind::Deadlock
        | ErrorKind::NoLocks
        | ErrorKind::LockLost => Code::FileLocked,
        ErrorKind::NoAttribute => Code::AttrNotFound,
        ErrorKind::NotSupported => Code::Unsupported,
        ErrorKind::BadHandle => Code::FileNotOpen,
        ErrorKind::Timeout => Code::ReqTimedOut,
        ErrorKind::Overloaded => Code::Overloaded,
        ErrorKind::Unreachable
        | ErrorKind::Disconnected
        | ErrorKind::SessionLost
        | ErrorKind::WrongServer
        | ErrorKind::OstInactive => Code::NoServer,
        ErrorKind::Conflict => Code::Conflict,
        ErrorKind::Corrupt => Code::ChecksumError,
        ErrorKind::StorageFault => Code::IoError,
        ErrorKind::Cancelled => Code::Cancelled,
        ErrorKind::Protocol | ErrorKind::VersionMismatch | ErrorKind::Internal => Code::ServerError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_go_by_has_its_number() {
        let number = |kind| code_of(kind) as u32;
        assert_eq!(number(ErrorKind::NotFound), 3011);
        assert_eq!(number(ErrorKind::PermissionDenied), 3010);
        assert_eq!(number(ErrorKind::IsDirectory), 3016);
        assert_eq!(number(ErrorKind::ReadOnly), 3025);
        assert_eq!(number(ErrorKind::Corrupt), 3019);
        assert!(ErrorKind::ALL.iter().all(|&kind| (3000..3036).contains(&number(kind))));
    }
}
