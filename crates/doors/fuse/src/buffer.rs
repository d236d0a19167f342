//! Buffers for requests: as large as the largest write, used again and again.
//!
//! A large write's bytes stay in the buffer they were read into until the client is done with them;
//! the event thread goes on with another. Fresh ones would cost a page fault per 4 KiB.
//!
//! Invariant: at most [`KEPT_MAX`] idle buffers are kept; how many are in use is bounded by the
//! pending requests.

use std::sync::{Arc, Mutex, PoisonError};

/// Idle buffers kept: 16 MiB at the usual size.
const KEPT_MAX: usize = 16;

/// Where buffers come from and return to.
pub struct Pool {
    bytes: usize,
    idle: Mutex<Vec<Box<[u8]>>>,
}

impl Pool {
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, idle: Mutex::default() })
    }

    pub fn take(self: &Arc<Self>) -> Buffer {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = idle.unwrap_or_else(|| vec![0; self.bytes].into_boxed_slice());
        Buffer { bytes, pool: Arc::clone(self) }
    }
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
    }
}
