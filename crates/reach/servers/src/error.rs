//! What a call can end with.

use tieline_net::CallError;
use tieline_types::ErrorKind;

/// A call that failed. Names the server and the file where they are known; doors translate
/// [`Error::kind`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Call(#[from] CallError),
    /// Decided here, without a server.
    #[error("{what}: {kind}")]
    Local { kind: ErrorKind, what: String },
    /// Bytes failed their check at every place.
    #[error("{what} does not match its checksum: see `tieline mirror verify` and `tieline fsck`")]
    Corrupt { what: String },
    /// An earlier write failed after its caller was answered; reported once, at fsync or close.
    #[error("an earlier write failed: {detail}")]
    Late { kind: ErrorKind, detail: String },
}

impl Error {
    pub fn local(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self::Local { kind, what: what.into() }
    }

    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Call(source) => source.kind(),
            Self::Local { kind, .. } | Self::Late { kind, .. } => *kind,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
        }
    }
}
