//! Room for the store: changes end before its disk does.
//!
//! Whoever runs the MDT looks at the disk and says how it is. While it is short, what would grow
//! the store is refused with the reason; what frees goes on, and so does what clients had been
//! promised before they could know: what they hold alone is taken back, and comes in. When there is
//! none (others filled the disk), only reading goes on.
//!
//! Knows no disk. Invariant: a request that was done before is answered as it was, however full the
//! disk is now.

use crate::error::{Error, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_wire::Request;

/// How much room the store has, and why not more.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum StoreRoom {
    #[default]
    Enough,
    Short(String),
    None(String),
}

#[derive(Default)]
pub(crate) struct Room(Mutex<StoreRoom>);

impl Room {
    pub fn is_short(&self) -> bool {
        *self.lock() != StoreRoom::Enough
    }

    /// Nothing may be written at all.
    pub fn check_any(&self) -> Result<()> {
        match &*self.lock() {
            StoreRoom::None(reason) => Err(Error::StoreShort { reason: reason.clone() }),
            StoreRoom::Short(_) | StoreRoom::Enough => Ok(()),
        }
    }

    /// May this change be made?
    pub fn check(&self, request: &Request) -> Result<()> {
        match &*self.lock() {
            StoreRoom::Enough => Ok(()),
            StoreRoom::Short(_) if frees(request) => Ok(()),
            StoreRoom::Short(reason) | StoreRoom::None(reason) => {
                Err(Error::StoreShort { reason: reason.clone() })
            }
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, StoreRoom> {
        // Nothing panics while it is held, and nothing waits.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does it give room back, or was it promised?
fn frees(request: &Request) -> bool {
    match request {
        Request::Unlink(_)
        | Request::RemoveDirectory(_)
        | Request::RemoveXattr(_)
        | Request::Release(_)
        | Request::Compact(_)
        | Request::Batch(_)
        | Request::Reserve(_) => true,
        Request::SetAttributes(change) => change.size.is_some(),
        Request::Commit(commit) => commit.is_promised == Some(true),
        Request::Place(place) => place.wish.is_some(),
        _ => false,
    }
}
