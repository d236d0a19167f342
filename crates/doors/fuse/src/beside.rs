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
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// After so many calls it is looked where their program runs.
const ROW: u32 = 64;
/// A program that stays where it is, is looked for less often, down to once in so many calls.
const ROW_MAX: u32 = 1024;
/// Calls that come slower than [`ROW`] in this time have nothing to gain.
const QUICK: Duration = Duration::from_millis(16);

/// The program beside which the last thread ran: who serves it next is there from the first call.
#[derive(Default)]
pub struct Neighbour(AtomicU32);

/// Where one thread may run. To be used by that thread alone.
pub struct Beside<'mount> {
    neighbour: &'mount Neighbour,
    /// Where it might run when it began; nothing if that is not known.
    anywhere: Option<CpuSet>,
    tied_to: Option<usize>,
    caller: u32,
    row: u32,
    row_max: u32,
    since: Instant,
    quick: Duration,
}

impl<'mount> Beside<'mount> {
    pub fn new(neighbour: &'mount Neighbour) -> Self {
        Self {
            neighbour,
            anywhere: sched_getaffinity(None).ok(),
            tied_to: None,
            caller: 0,
            row: 0,
            row_max: ROW,
            since: Instant::now(),
            quick: QUICK,
        }
    }

    /// A call of `caller` (a thread; 0 where the kernel names none) was served. It must have been
    /// answered or be somebody else's by now: a program that is about to become another one cannot
    /// be looked at before its calls return.
    pub fn served(&mut self, caller: u32) {
        if caller == 0 {
            return;
        }
        if caller != self.caller {
            if self.is_tied() {
                // They take turns: neither has the thread to itself.
                self.neighbour.0.store(0, Ordering::Relaxed);
            }
            self.part();
            self.caller = caller;
            if self.neighbour.0.load(Ordering::Relaxed) == caller {
                self.join();
            }
        }
        if self.row == 0 {
            self.since = Instant::now();
        }
        self.row += 1;
        if self.row > self.row_max {
            let is_quick = self.since.elapsed() < self.quick * (self.row_max / ROW);
            self.row = 0;
            if is_quick {
                self.join();
            } else {
                self.neighbour.0.store(0, Ordering::Relaxed);
                self.part();
            }
        }
    }

    pub fn is_tied(&self) -> bool {
        self.tied_to.is_some()
    }

    fn join(&mut self) {
        let Some(anywhere) = &self.anywhere else { return };
        let there = process::processor(self.caller).filter(|&cpu| anywhere.is_set(cpu));
        let Some(there) = there.filter(|_| self.tied_to != there) else {
            self.row_max = (self.row_max * 2).min(ROW_MAX);
            return;
        };
        self.row_max = ROW;
        let mut only = CpuSet::new();
        only.set(there);
        if sched_setaffinity(None, &only).is_ok() {
            self.tied_to = Some(there);
            self.neighbour.0.store(self.caller, Ordering::Relaxed);
        }
    }

    /// Serves no program in particular.
    pub fn part(&mut self) {
        (self.caller, self.row, self.row_max) = (0, 0, ROW);
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

    fn serve(beside: &mut Beside<'_>, caller: u32, count: u32) {
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
            let neighbour = Neighbour::default();
            let mut beside = Beside { quick: Duration::from_secs(600), ..Beside::new(&neighbour) };
            serve(&mut beside, caller, ROW);
            assert_eq!(allowed(), everywhere, "not many yet");
            // In a row, with a call that is nobody's between them.
            beside.served(0);
            serve(&mut beside, caller, 1);
            assert_eq!(allowed(), [cpu]);
            serve(&mut beside, caller, 3 * ROW);
            assert_eq!(allowed(), [cpu]);
            // Somebody else calls, and they take turns.
            for caller in [caller + 1, caller] {
                beside.served(caller);
                assert_eq!(allowed(), everywhere);
            }
            serve(&mut beside, caller, 2 * ROW);
            assert_eq!(allowed(), [cpu]);
            // Who serves it next is there at once.
            let mut next = Beside::new(&neighbour);
            next.served(caller);
            assert_eq!(allowed(), [cpu]);
            next.part();
            beside.tied_to = None;
            serve(&mut beside, caller, ROW + 1);
            assert_eq!(allowed(), [cpu]);
            // It has time for other things.
            beside.quick = Duration::ZERO;
            serve(&mut beside, caller, ROW);
            assert_eq!(allowed(), everywhere);
            beside.quick = Duration::from_secs(600);
            // It is gone, and whoever served it serves nobody in particular.
            serve(&mut beside, caller, 2 * ROW);
            beside.part();
            assert_eq!(allowed(), everywhere);
            drop(end);
            program.join().unwrap();
            // It is joined before it is gone.
            while process::processor(caller).is_some() {
                std::thread::yield_now();
            }
            serve(&mut beside, caller, 2 * ROW);
            assert_eq!(allowed(), everywhere);
        }
    }
}
