//! The machine we run on: its clock and its entropy. Its TCP is in [`crate::tcp`].

use crate::{Clock, Dice};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> Duration {
        // A clock before 1970 is wrong anyway; zero is as good as any wrong time.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn steady(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        // Since the machine started: neither part is negative.
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }
}

pub struct SystemDice;

impl Dice for SystemDice {
    fn fill(&self, bytes: &mut [u8]) {
        // Without entropy nothing this program does is safe; the kernel has it once it has booted.
        getrandom::fill(bytes).expect("the kernel gives no random bytes");
    }
}
