//! What background work can fail with.

use tieline_format::{Record, RecordError};
use tieline_types::{ErrorKind, MdtIndex, OstIndex};
use tieline_wire::Failure;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}")]
    Given { what: &'static str },
    #[error("{what} {id} cannot be read")]
    Record { what: &'static str, id: String, source: RecordError },
    #[error("{ost} does not answer: {reason}", ost = .ost.label())]
    Ost { ost: OstIndex, reason: String },
    #[error("the metadata store did not do it")]
    Store(#[from] tieline_kv::Error),
    #[error(transparent)]
    Ledger(#[from] tieline_ledger::Error),
    /// The MDT did not do it, and has noted why.
    #[error("{0}")]
    Mdt(#[from] Failure),
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Given { .. } => ErrorKind::InvalidArgument,
            Self::Ost { .. } => ErrorKind::Unreachable,
            Self::Record { .. } | Self::Ledger(_) => ErrorKind::StorageFault,
            Self::Store(error) => error.kind(),
            Self::Mdt(failure) => failure.kind,
        }
    }

    /// As people are told: the whole chain, and which MDT says so.
    pub fn into_failure(self, mdt: MdtIndex) -> Failure {
        match self {
            Self::Mdt(failure) => failure,
            other => Failure::new(other.kind(), format!("{} ({})", chain(&other), mdt.label())),
        }
    }

    /// Only another transaction was in the way.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Store(tieline_kv::Error::Conflict))
    }
}

/// An error and what it came from, as one clause.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Reads a record.
pub fn decode<R: Record>(value: &[u8], id: impl FnOnce() -> String) -> Result<R> {
    R::from_bytes(value).map_err(|source| Error::Record { what: R::NAME, id: id(), source })
}
