//! Buffers for requests: as large as the largest write, used again and again.
//!
//! A large write's bytes stay in the buffer they were read into until the client is done with them;
//! the event thread goes on with another. Fresh ones would cost a page fault per 4 KiB.
//!
//! Invariant: at most [`KEPT_MAX`] idle buffers are kept, and [`KEPT_IDLE`] once nobody has written
//! for a while; how many are in use is bounded by the pending requests, and by what the client
//! holds of written bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Idle buffers kept while they come and go: as many as a fast writer has on their way.
const KEPT_MAX: usize = 128;
/// And when none was wanted in [`LOOK_EVERY`]: 4 MiB at the usual size.
const KEPT_IDLE: usize = 4;
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// No page is smaller.
const PAGE: usize = 4096;

/// Where buffers come from and return to.
pub struct Pool {
    bytes: usize,
    idle: Mutex<Vec<Box<[u8]>>>,
    taken: AtomicU64,
}

impl Pool {
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, idle: Mutex::default(), taken: AtomicU64::default() })
    }

    pub fn take(self: &Arc<Self>) -> Buffer {
        self.taken.fetch_add(1, Ordering::Relaxed);
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = idle.unwrap_or_else(|| fresh(self.bytes));
        Buffer { bytes, pool: Arc::clone(self) }
    }

    /// Few idle buffers stay.
    fn shrink(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).truncate(KEPT_IDLE);
    }
}

/// Lets buffers go when nobody wants them, for as long as there is a pool.
pub async fn shrink_idle(pool: Weak<Pool>) {
    let mut seen = 0;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(pool) = pool.upgrade() else { return };
        let taken = pool.taken.load(Ordering::Relaxed);
        if taken == std::mem::replace(&mut seen, taken) {
            pool.shrink();
        }
    }
}

/// Every page is touched: the kernel hands a request over in one go, and not half of it to a
/// process that is killed while a page is missing.
fn fresh(bytes: usize) -> Box<[u8]> {
    let mut fresh = vec![0u8; bytes].into_boxed_slice();
    fresh.chunks_mut(PAGE).filter_map(<[u8]>::first_mut).for_each(|byte| *byte = u8::MAX);
    fresh
}

/// Returns to its pool when dropped.
pub struct Buffer {
    bytes: Box<[u8]>,
    pool: Arc<Pool>,
}

impl Buffer {
    pub fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT_MAX {
            idle.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_few_are_kept() {
        let pool = Pool::new(64);
        let many: Vec<Buffer> = (0..KEPT_MAX + 5).map(|_| pool.take()).collect();
        drop(many);
        assert_eq!(pool.idle.lock().unwrap().len(), KEPT_MAX);
        let one = pool.take();
        assert_eq!((one.as_ref().len(), pool.idle.lock().unwrap().len()), (64, KEPT_MAX - 1));
        pool.shrink();
        assert_eq!(pool.idle.lock().unwrap().len(), KEPT_IDLE);
    }
}
