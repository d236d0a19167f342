//! Room in memory for what waits for its requests, or is them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

/// What a pace lets through at once counts for so long.
const BURST: Duration = Duration::from_millis(250);

/// A share of a [`Budget`], given back when dropped.
#[derive(Debug, Default)]
pub struct Held {
    _of_one: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

/// Room in memory, shared by many connections. Cloned freely.
///
/// Of what all may have, one of them has no more than its share ([`Budget::share`]): whoever wants
/// more waits for what is his own, and the others pass by.
#[derive(Clone, Default)]
pub struct Budget {
    of_one: Option<Room>,
    pace: Option<Arc<Pace>>,
    of_all: Option<Room>,
}

/// How fast room is given, however fast it comes back.
struct Pace {
    bytes_per_second: f64,
    /// When all that was let through is made up for.
    due: Mutex<Instant>,
}

impl Pace {
    fn new(bytes_per_second: usize) -> Self {
        let bytes_per_second = bytes_per_second as f64;
        Self { bytes_per_second, due: Mutex::new(Instant::now()) }
    }

    async fn wait(&self, bytes: u32) {
        let begin = {
            // Nothing panics while the lock is held.
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = (*due).max(Instant::now());
            *due = begin + Duration::from_secs_f64(f64::from(bytes) / self.bytes_per_second);
            begin
        };
        sleep_until(begin.checked_sub(BURST).unwrap_or(begin)).await;
    }
}

#[derive(Clone)]
struct Room {
    free: Arc<Semaphore>,
    total: u32,
}

impl Room {
    fn new(bytes: usize) -> Self {
        let total = u32::try_from(bytes.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Self { free: Arc::new(Semaphore::new(total as usize)), total }
    }

    async fn hold(&self, bytes: u32) -> Option<OwnedSemaphorePermit> {
        self.free.clone().acquire_many_owned(bytes.min(self.total)).await.ok()
    }

    fn hold_now(&self, bytes: u32) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(bytes.min(self.total)).ok()
    }
}

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Self { of_all: Some(Room::new(bytes)), ..Self::default() }
    }

    /// For an end that receives only what it asked for.
    pub fn unlimited() -> Self {
        Self::default()
    }

    /// The same for one of those who share it: no more than `bytes` at the same time.
    pub fn share(&self, bytes: usize) -> Self {
        let of_all = self.of_all.clone();
        Self { of_one: Some(Room::new(bytes)), pace: None, of_all }
    }

    /// Gives no more than so much a second.
    pub fn paced(self, bytes_per_second: usize) -> Self {
        Self { pace: Some(Arc::new(Pace::new(bytes_per_second))), ..self }
    }

    /// Room for `bytes`, or for as many as there are in all, if there is some in time.
    pub async fn hold(&self, bytes: u32, patience: Duration) -> Option<Held> {
        if bytes == 0 {
            return Some(Held::default());
        }
        let held = async {
            let mut held = Held::default();
            if let Some(room) = &self.of_one {
                held._of_one = Some(room.hold(bytes).await?);
            }
            if let Some(pace) = &self.pace {
                pace.wait(bytes).await;
            }
            if let Some(room) = &self.of_all {
                held._of_all = Some(room.hold(bytes).await?);
            }
            Some(held)
        };
        timeout(patience, held).await.ok().flatten()
    }

    /// The same if there is some now.
    pub fn hold_now(&self, bytes: u32) -> Option<Held> {
        let hold = |room: &Option<Room>| match room {
            Some(room) => room.hold_now(bytes).map(Some),
            None => Some(None),
        };
        Some(Held { _of_one: hold(&self.of_one)?, _of_all: hold(&self.of_all)? })
    }
}
