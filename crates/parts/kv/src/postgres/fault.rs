//! What a failed question to the database means for the store.

use crate::Error;
use std::error::Error as _;
use std::time::Duration;
use tokio_postgres::error::SqlState;

/// Why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The database is not there, or not yet: asking again may help. Whether a write was done is
    /// not known.
    #[error("the database is away")]
    Away(#[source] tokio_postgres::Error),
    #[error("the database did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// Its name is not known, or not now.
    #[error("the database's address is not known")]
    Unknown(#[source] std::io::Error),
    /// Of several hosts none took us.
    #[error("no host of the database answers as its primary ({0})")]
    Nowhere(String),
    /// It is written where it was asked for, and a standby that takes over may lack it.
    #[error("somebody cancelled the wait for the synchronous standby")]
    Unreplicated,
    #[error("the database has no space left")]
    Full(#[source] tokio_postgres::Error),
    /// Asking again would not help.
    #[error("the database refused")]
    Refused(#[source] tokio_postgres::Error),
}

impl Trouble {
    pub fn is_away(&self) -> bool {
        !matches!(self, Self::Full(_) | Self::Refused(_))
    }

    /// All that led to it: the outermost does not say whether a name is unknown, or nobody listens.
    pub fn cause(&self) -> String {
        let causes = std::iter::successors(self.source(), |&cause| cause.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    pub fn into_error(self, store: &str) -> Error {
        let store = store.to_owned();
        match self {
            Self::Full(_) => Error::Full { store },
            other => Error::Failed { store, source: Box::new(other) },
        }
    }
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.code() {
            Some(code) if *code == SqlState::DISK_FULL => Self::Full(error),
            Some(code) if is_passing(code) => Self::Away(error),
            Some(_) => Self::Refused(error),
            // Without a code it is our end that failed: the connection, or words it cannot use.
            None if error.is_closed() || is_io(&error) => Self::Away(error),
            None => Self::Refused(error),
        }
    }
}

/// States of a database that pass by themselves.
fn is_passing(code: &SqlState) -> bool {
    const PASSING: [SqlState; 10] = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::OUT_OF_MEMORY,
        SqlState::QUERY_CANCELED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        // A standby that is about to be the primary.
        SqlState::READ_ONLY_SQL_TRANSACTION,
        SqlState::LOCK_NOT_AVAILABLE,
    ];
    // Class 08 is the connection.
    code.code().starts_with("08") || PASSING.contains(code)
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if error.is::<std::io::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}
