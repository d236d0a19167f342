//! The threads that a process works on.
//!
//! A message is done within microseconds, and a thread that sleeps takes tens of them to wake up.
//! So few workers are awake all the time rather than many now and then: half as many as there are
//! processors, since those who ask, the threads at FUSE and those that write stores need the others
//! (docs/benchmarks.md, *One worker where there are two processors*).

use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::io;
use std::thread::available_parallelism;
use tokio::runtime::{Builder, Runtime};

/// For a server or a mount, whose memory is looked after as well; that was prepared.
pub fn of_daemon() -> io::Result<Runtime> {
    let workers = available_parallelism().map_or(1, |processors| processors.get() / 2).max(1);
    // An event thread of a mount that runs beside a program may start one of the others, which
    // would stay on that processor with it.
    let anywhere = sched_getaffinity(None)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .on_thread_start(move || {
            if let Err(error) = sched_setaffinity(None, &anywhere) {
                tracing::warn!(%error, "a thread stays where the one that began it runs");
            }
        })
        .enable_all()
        .build()?;
    runtime.spawn(crate::memory::give_back());
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::CpuSet;

    #[test]
    fn threads_begin_anywhere_also_from_one_that_runs_beside_a_program() {
        let anywhere = sched_getaffinity(None).unwrap();
        let runtime = of_daemon().unwrap();
        let handle = runtime.handle().clone();
        let tied = std::thread::spawn(move || {
            let first = (0..CpuSet::MAX_CPU).find(|&cpu| anywhere.is_set(cpu)).unwrap();
            let mut only = CpuSet::new();
            only.set(first);
            sched_setaffinity(None, &only).unwrap();
            // None of those that are there is free: this begins another.
            let look = handle.spawn_blocking(|| sched_getaffinity(None).unwrap());
            let allowed = handle.block_on(look).unwrap();
            let is_as_before = |cpu| allowed.is_set(cpu) == anywhere.is_set(cpu);
            assert!((0..CpuSet::MAX_CPU).all(is_as_before));
        });
        tied.join().unwrap();
    }
}
