//! Which event thread waits for the kernel's next request, and which rest.
//!
//! One thread keeps watch: it waits at the device and serves what comes, while the others rest. If
//! all waited there, the kernel would wake them in turn, each on another processor and with nothing
//! of the mount at hand: unpacking 33,617 files took 38 s that way, and 21 s with one on watch.
//! Whoever takes [`ROW`] requests one straight after the other calls another to look for more; for
//! a request that takes long the watch is left to another; whoever finds nothing rests, if there is
//! a watch.
//!
//! The keeper of the watch looks for the next request for a while before it sleeps, if the last one
//! did not take long to come ([`BRISK`]): a program that makes one call after the other wakes
//! nobody then. It gives way to whoever wants the processor.
//!
//! Invariants: no request lies there while all rest. One that holds its thread up (it looks into
//! /proc; it waits for a disk) holds up no other for more than two [`TICK`]s: the guard sees to it
//! that another thread takes over.

use crate::beside::{Beside, Neighbour};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// As many in a row are more than one thread's work. Not fewer: a program that is answered at once
/// asks again before the thread has looked.
const ROW: u32 = 256;
/// So long is looked for the next request.
const LOOKED_FOR: Duration = Duration::from_micros(50);
/// A request that came as soon as this lets expect another; to wake up takes some of it.
const BRISK: Duration = Duration::from_micros(200);
/// How often the guard looks while there is work.
const TICK: Duration = Duration::from_millis(4);

/// Number of no thread.
const NOBODY: usize = usize::MAX;

/// What the event threads of a mount share.
pub struct Watch {
    /// Changes under the lock; whoever keeps the watch may look without.
    keeper: AtomicUsize,
    /// Odd while the keeper serves a request; another number for each.
    beat: AtomicU64,
    guard_rests: AtomicBool,
    neighbour: Neighbour,
    state: Mutex<State>,
    called: Condvar,
    stirred: Condvar,
}

#[derive(Default)]
struct State {
    resting: usize,
    /// How many of those shall get up.
    calls: usize,
    is_over: bool,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            keeper: AtomicUsize::new(NOBODY),
            beat: AtomicU64::default(),
            guard_rests: AtomicBool::default(),
            neighbour: Neighbour::default(),
            state: Mutex::default(),
            called: Condvar::new(),
            stirred: Condvar::new(),
        }
    }
}

impl Watch {
    /// One thread's part, of which there is one per number.
    pub fn turn(&self, thread: usize) -> Turn<'_> {
        let beside = Beside::new(&self.neighbour);
        Turn { watch: self, thread, row: 0, idle_since: None, is_brisk: false, beside }
    }

    /// The mount is gone: all threads leave.
    pub fn end(&self) {
        self.state().is_over = true;
        self.called.notify_all();
        self.stirred.notify_all();
    }

    /// The life of the guard: a keeper that is at the same request for a [`TICK`] is one no more.
    pub fn guard(&self) {
        let mut seen = self.beat.load(Ordering::SeqCst);
        let mut state = self.state();
        while !state.is_over {
            let waited = self.stirred.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let beat = self.beat.load(Ordering::SeqCst);
            let is_same = std::mem::replace(&mut seen, beat) == beat;
            if is_same && beat % 2 == 1 {
                self.relieve(&mut state);
            } else if is_same {
                state = self.rest_guard(state, beat);
            }
        }
    }

    /// Until the keeper is woken by a request: nothing ticks in a mount that nobody uses.
    fn rest_guard<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        beat: u64,
    ) -> MutexGuard<'a, State> {
        self.guard_rests.store(true, Ordering::SeqCst);
        while !state.is_over && self.beat.load(Ordering::SeqCst) == beat {
            state = self.stirred.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.guard_rests.store(false, Ordering::SeqCst);
        state
    }

    fn stir_guard(&self) {
        let rests = &self.guard_rests;
        if rests.load(Ordering::SeqCst) && rests.swap(false, Ordering::SeqCst) {
            // It looks at the beat under the lock, and cannot miss this.
            drop(self.state());
            self.stirred.notify_one();
        }
    }

    /// Nobody keeps watch: whoever gets up next does.
    fn relieve(&self, state: &mut State) {
        self.keeper.store(NOBODY, Ordering::SeqCst);
        self.beat.fetch_or(1, Ordering::SeqCst);
        self.beat.fetch_add(1, Ordering::SeqCst);
        self.call(state);
    }

    fn call(&self, state: &mut State) {
        if state.calls < state.resting {
            state.calls += 1;
            self.called.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether there is anything left to do.
#[derive(PartialEq, Eq, Debug)]
pub enum Next {
    /// There may be a request.
    Look,
    /// The mount is gone.
    Leave,
}

pub struct Turn<'watch> {
    watch: &'watch Watch,
    thread: usize,
    /// Requests taken one straight after the other.
    row: u32,
    idle_since: Option<Instant>,
    /// The last request was not long in coming.
    is_brisk: bool,
    beside: Beside<'watch>,
}

impl Turn<'_> {
    /// A request was there, and is served next.
    pub fn found(&mut self) {
        match self.idle_since.take() {
            Some(since) => (self.row, self.is_brisk) = (0, since.elapsed() < BRISK),
            None => self.row += 1,
        }
        if self.keeps() {
            self.watch.beat.fetch_or(1, Ordering::SeqCst);
            self.watch.stir_guard();
        }
        if self.row == ROW {
            self.row = 0;
            self.watch.call(&mut self.watch.state());
        }
    }

    /// A request of this thread was served ([`Beside::served`]).
    pub fn served(&mut self, caller: u32) {
        if !self.keeps() {
            return;
        }
        self.beside.served(caller);
        if self.beside.is_tied() {
            // The program can ask again only when it has this processor.
            self.begin_idle();
            std::thread::yield_now();
        }
    }

    /// The request takes long: others are not to wait for that.
    pub fn leave(&mut self) {
        self.beside.part();
        if self.keeps() {
            let mut state = self.watch.state();
            if self.keeps() {
                self.watch.relieve(&mut state);
            }
        }
    }

    /// No request was there. Comes back when there may be one for this thread.
    pub fn idle(&mut self, device: &OwnedFd) -> Next {
        if !self.keeps() {
            self.idle_since = None;
            return self.rest();
        }
        let since = self.begin_idle();
        if self.is_brisk && since.elapsed() < LOOKED_FOR {
            std::thread::yield_now();
            return Next::Look;
        }
        // What is wrong with the device, the next look tells.
        let _ = poll(&mut [PollFd::new(device, PollFlags::IN)], None);
        Next::Look
    }

    /// The keeper has nothing to do, since when.
    fn begin_idle(&mut self) -> Instant {
        *self.idle_since.get_or_insert_with(|| {
            // The keeper's alone while it is at work, but for a guard that just relieves it.
            self.watch.beat.fetch_or(1, Ordering::SeqCst);
            self.watch.beat.fetch_add(1, Ordering::SeqCst);
            Instant::now()
        })
    }

    fn keeps(&self) -> bool {
        self.watch.keeper.load(Ordering::SeqCst) == self.thread
    }

    fn rest(&mut self) -> Next {
        self.beside.part();
        let watch = self.watch;
        let mut state = watch.state();
        loop {
            if state.is_over {
                return Next::Leave;
            }
            let is_called = state.calls > 0;
            state.calls -= usize::from(is_called);
            let is_unwatched = watch.keeper.load(Ordering::SeqCst) == NOBODY;
            if is_unwatched {
                watch.keeper.store(self.thread, Ordering::SeqCst);
            }
            if is_called || is_unwatched {
                return Next::Look;
            }
            state.resting += 1;
            state = watch.called.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.resting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: u8 = 0;
    /// Its thread says before that it takes long.
    const ANNOUNCED: u8 = 1;

    /// A device, and threads that tell who took what, and go on when they are told to.
    struct Mount {
        watch: Arc<Watch>,
        kernel: UnixStream,
        taken: Receiver<(usize, u8)>,
        done: Vec<Sender<()>>,
        threads: Vec<std::thread::JoinHandle<()>>,
    }

    fn mount(threads: usize, is_guarded: bool) -> Mount {
        let (kernel, device) = UnixStream::pair().unwrap();
        device.set_nonblocking(true).unwrap();
        let device = Arc::new(OwnedFd::from(device));
        let watch = Arc::new(Watch::default());
        let (taken_by, taken) = channel();
        let (mut done, mut all) = (Vec::new(), Vec::new());
        for thread in 0..threads {
            let (sender, goes_on) = channel();
            done.push(sender);
            let (watch, device) = (Arc::clone(&watch), Arc::clone(&device));
            let tell = taken_by.clone();
            all.push(std::thread::spawn(move || {
                let mut turn = watch.turn(thread);
                let mut request = [0];
                loop {
                    match rustix::io::read(&device, &mut request) {
                        Ok(0) => return watch.end(),
                        Ok(_) => {}
                        Err(_) if turn.idle(&device) == Next::Look => continue,
                        Err(_) => return,
                    }
                    turn.found();
                    if request[0] == ANNOUNCED {
                        turn.leave();
                    }
                    tell.send((thread, request[0])).unwrap();
                    goes_on.recv().unwrap();
                }
            }));
        }
        let guarded = Arc::clone(&watch);
        if is_guarded {
            all.push(std::thread::spawn(move || guarded.guard()));
        }
        // Whoever is late takes a request before it knows that another keeps watch.
        while watch.state().resting < threads - 1 {
            std::thread::yield_now();
        }
        Mount { watch, kernel, taken, done, threads: all }
    }

    impl Mount {
        /// Who takes a request.
        fn takes(&self, request: u8) -> usize {
            (&self.kernel).write_all(&[request]).unwrap();
            self.taken.recv_timeout(LONG).unwrap().0
        }

        fn ends(self) {
            drop(self.kernel);
            for thread in self.threads {
                thread.join().unwrap();
            }
        }
    }

    #[test]
    fn one_thread_serves_what_comes_one_by_one() {
        // A guard might think that this test itself takes long.
        let mount = mount(4, false);
        let first = mount.takes(SHORT);
        for _ in 0..1000 {
            mount.done[first].send(()).unwrap();
            // One that is there before its thread looks again is one of a row.
            while mount.watch.beat.load(Ordering::SeqCst) % 2 == 1 {
                std::thread::yield_now();
            }
            assert_eq!(mount.takes(SHORT), first);
        }
        mount.done[first].send(()).unwrap();
        mount.ends();
    }

    #[test]
    fn what_takes_long_holds_up_nobody() {
        for request in [SHORT, ANNOUNCED] {
            let mount = mount(3, true);
            let mut busy: Vec<usize> = (0..3).map(|_| mount.takes(request)).collect();
            busy.sort_unstable();
            assert_eq!(busy, [0, 1, 2], "each takes one while the others are at theirs");
            mount.done[1].send(()).unwrap();
            assert_eq!(mount.takes(request), 1, "who is done first takes the next");
            mount.done.iter().for_each(|done| done.send(()).unwrap());
            mount.ends();
        }
    }

    #[test]
    fn a_guard_that_rested_is_there_again() {
        let mount = mount(2, true);
        for _ in 0..3 {
            let first = mount.takes(SHORT);
            let second = mount.takes(SHORT);
            assert_ne!(first, second);
            mount.done.iter().for_each(|done| done.send(()).unwrap());
            std::thread::sleep(5 * TICK);
        }
        mount.ends();
    }
}
