//! An event thread that serves one program's calls, one after the other, runs on the processor on
//! which that program runs.
//!
//! Of the two only one is at work at a time. On two processors each call wakes the other one up
//! twice, and in a virtual machine that takes longer than the call (22 to 28 µs for 13).
//!
//! Invariant: whoever has not just served many quick calls of one program in a row runs where the
//! scheduler likes.

use crate::process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::{Duration, Instant};

/// After so many calls it is looked where their program runs.
const ROW: u32 = 64;
/// Calls that come slower than so many in this time have nothing to gain.
const QUICK: Duration = Duration::from_millis(16);

/// Where one thread may run. To be used by that thread alone.
pub struct Beside {
    /// Where it might run when it began; nothing if that is not known.
    anywhere: Option<CpuSet>,
    tied_to: Option<usize>,
    caller: u32,
    row: u32,
    since: Instant,
    quick: Duration,
}

impl Beside {
    pub fn new() -> Self {
        let anywhere = sched_getaffinity(None).ok();
        let since = Instant::now();
        Self { anywhere, tied_to: None, caller: 0, row: 0, since, quick: QUICK }
    }

    /// A call of `caller` (a thread; 0 where the kernel names none) was served. It must have been
    /// answered or be somebody else's by now: a program that is about to become another one cannot
    /// be looked at before its calls return.
    pub fn served(&mut self, caller: u32) {
        if caller == 0 {
            return;
        }
        if caller != self.caller {
            self.part();
            self.caller = caller;
        }
        if self.row == 0 {
            self.since = Instant::now();
        }
        self.row += 1;
        if self.row > ROW {
            let is_quick = self.since.elapsed() < self.quick;
            self.row = 0;
            if is_quick {
                self.join();
            } else {
                self.part();
            }
        }
    }

    fn join(&mut self) {
        let Some(anywhere) = &self.anywhere else { return };
        let there = process::processor(self.caller).filter(|&cpu| anywhere.is_set(cpu));
        let Some(there) = there.filter(|_| self.tied_to != there) else { return };
        let mut only = CpuSet::new();
        only.set(there);
        if sched_setaffinity(None, &only).is_ok() {
            self.tied_to = Some(there);
        }
    }

    /// Serves no program in particular.
    pub fn part(&mut self) {
        (self.caller, self.row) = (0, 0);
        if self.tied_to.take().is_some()
            && let Some(anywhere) = &self.anywhere
            && let Err(error) = sched_setaffinity(None, anywhere)
        {
            tracing::warn!(%error, "an event thread stays on one processor");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(beside: &mut Beside, caller: u32, count: u32) {
        (0..count).for_each(|_| beside.served(caller));
    }

    /// Where this thread may run, of the first processors.
    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
    }

    #[test]
    fn who_serves_one_program_runs_where_it_runs() {
        let everywhere = allowed();
        for &cpu in everywhere.iter().take(2) {
            // A program on one processor, for as long as it is looked at.
            let (tell, told) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let program = std::thread::spawn(move || {
                let mut only = CpuSet::new();
                only.set(cpu);
                sched_setaffinity(None, &only).unwrap();
                tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
                let _ = ended.recv();
            });
            let caller = told.recv().unwrap();
            let mut beside = Beside { quick: Duration::MAX, ..Beside::new() };
            serve(&mut beside, caller, ROW);
            assert_eq!(allowed(), everywhere, "not many yet");
            // In a row, with a call that is nobody's between them.
            beside.served(0);
            serve(&mut beside, caller, 1);
            assert_eq!(allowed(), [cpu]);
            serve(&mut beside, caller, 3 * ROW);
            assert_eq!(allowed(), [cpu]);
            // Somebody else calls.
            beside.served(caller + 1);
            assert_eq!(allowed(), everywhere);
            serve(&mut beside, caller, 2 * ROW);
            assert_eq!(allowed(), [cpu]);
            // It has time for other things.
            beside.quick = Duration::ZERO;
            serve(&mut beside, caller, ROW);
            assert_eq!(allowed(), everywhere);
            beside.quick = Duration::MAX;
            // It is gone, and whoever served it serves nobody in particular.
            serve(&mut beside, caller, 2 * ROW);
            beside.part();
            assert_eq!(allowed(), everywhere);
            drop(end);
            program.join().unwrap();
            serve(&mut beside, caller, 2 * ROW);
            assert_eq!(allowed(), everywhere);
        }
    }
}
