//! Catalogs: SQLite databases with the names of a repository, or of a part of it.
//!
//! [`draft`] writes one, [`read`] asks one, [`counters`] is what each says of its own numbers.

pub mod counters;
pub mod draft;
pub mod read;

pub use counters::Counters;
pub use draft::Draft;
pub use read::Catalog;

use crate::row::RowError;
use tieline_types::Digest;

/// Bytes of a file, from an offset on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub offset: u64,
    /// As programs read them.
    pub length: u64,
    pub digest: Digest,
}

#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error("it cannot be unpacked, or is larger than it says")]
    Packed,
    #[error("it is of schema {0}; 2.5 is known here")]
    Schema(String),
    #[error("it has no table `{0}`")]
    Table(&'static str),
    #[error("SQLite: {0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Row(#[from] RowError),
    #[error("{0}")]
    Content(&'static str),
}
