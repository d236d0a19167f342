//! What the client wants forgotten is told to the kernel, by threads that wait for nobody else.
//!
//! Four lanes, since notifications wait for different things in the kernel: *swift* ones
//! (attributes, the epoch) for nothing; *names* for their directory's lock; *pages* for reads and
//! writes of the file that are under way; *parts* for those of a part that is chosen to have none.
//! A read that waits for a far server so delays other files' pages at worst, never a name.
//!
//! A directory's lock may be held by a request of our own that itself waits for the recall to be
//! answered. Where the client knows of one (`is_contended`), and where a name's notification does
//! not get through within [`PATIENCE`], all names are doubted at once by raising the epoch, which
//! takes no lock. Kernels before 7.44 cannot: there the recall is answered, and the name follows
//! when the lock is free.
//!
//! A name on which a directory stands runs out, and is not dropped while the directory is
//! somewhere: to the kernel, who stands in it would stand nowhere. Where names cannot run out,
//! those of directories are not believed in the first place ([`Nodes::trust`]).
//!
//! Invariants: each thing is queued once per lane and only if the kernel may know it, so queues are
//! bounded by the kernel's own caches, and names further by [`NAMES_MAX`]. `done` is called exactly
//! once, also if a thread panics.

use crate::kernel::{Forget, Kernel};
use crate::moves::Moves;
#[cfg(doc)]
use crate::nodes::Nodes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_files::{CacheListener, Invalidation};
use tieline_types::{FileId, Name};
use tokio::time::Instant;

/// How long a name may wait for its directory's lock before all names are doubted instead.
const PATIENCE: Duration = Duration::from_millis(200);
/// With more names than this it is cheaper to doubt all.
const NAMES_MAX: usize = 4096;
/// Threads of each lane that may wait in the kernel.
const WAITING_THREADS: usize = 2;
/// The same for bytes. A read that waits for a server holds up who is to forget its pages, and may
/// itself wait until others are forgotten: so each such file needs a thread of its own.
const WAITING_THREADS_OF_PAGES: usize = 16;
/// Threads for names where no epoch helps those that are queued behind a lock.
const WAITING_THREADS_WITHOUT_EPOCH: usize = 8;

/// The mount's ear at the client.
pub struct Notifier {
    kernel: Arc<Kernel>,
    moves: Arc<Moves>,
    swift: Arc<Lane>,
    names: Arc<Lane>,
    pages: Arc<Lane>,
    parts: Arc<Lane>,
}

impl Notifier {
    /// Starts the threads. They end when [`Notifier::close`] is called.
    pub fn start(kernel: Arc<Kernel>, moves: Arc<Moves>) -> std::io::Result<Arc<Self>> {
        let lane = || Arc::new(Lane::default());
        let (swift, names, pages, parts) = (lane(), lane(), lane(), lane());
        let notifier = Self { kernel, moves, swift, names, pages, parts };
        notifier.spawn("fuse-swift", &notifier.swift, Lane::run)?;
        for _ in 0..WAITING_THREADS_OF_PAGES {
            notifier.spawn("fuse-pages", &notifier.pages, Lane::run)?;
            notifier.spawn("fuse-parts", &notifier.parts, Lane::run)?;
        }
        let has_epoch = notifier.kernel.features.has_epoch;
        let count = if has_epoch { WAITING_THREADS } else { WAITING_THREADS_WITHOUT_EPOCH };
        for _ in 0..count {
            notifier.spawn("fuse-names", &notifier.names, Lane::run)?;
        }
        notifier.spawn("fuse-watch", &notifier.names, Lane::watch)?;
        Ok(Arc::new(notifier))
    }

    fn spawn(&self, name: &str, lane: &Arc<Lane>, run: fn(&Lane, &Kernel)) -> std::io::Result<()> {
        let (lane, kernel) = (Arc::clone(lane), Arc::clone(&self.kernel));
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || run(&lane, &kernel)).map(drop)
    }

    /// The mount is gone: nothing is cached any more.
    pub fn close(&self) {
        let lanes = [&self.swift, &self.names, &self.pages, &self.parts];
        lanes.into_iter().for_each(|lane| lane.close());
        self.moves.close();
    }

    fn invalidate_names(&self, names: Vec<Forget>, is_contended: bool, ticket: &Arc<Ticket>) {
        let has_epoch = self.kernel.features.has_epoch;
        if names.is_empty() {
            return;
        }
        if has_epoch && (is_contended || names.len() + self.names.length() > NAMES_MAX) {
            return self.swift.push([Forget::Names], Some(ticket));
        }
        // Nobody waits for a lock that is held for a request which may wait for this very answer.
        self.names.push(names, (!is_contended).then_some(ticket));
    }

    /// A name that may be right still. `None`: the kernel does not believe it.
    fn doubted(&self, parent: FileId, name: Name) -> Option<Forget> {
        let is_directory = self.kernel.nodes.places.at(parent, &name).is_some();
        if is_directory && !self.kernel.features.expires {
            return None;
        }
        Some(self.run_out(parent, name, is_directory))
    }

    /// `keeps`: what stands on it must stay.
    fn run_out(&self, parent: FileId, name: Name, keeps: bool) -> Forget {
        let is_recent = self.kernel.recent.has(parent, &name);
        if keeps && is_recent {
            self.moves.expire_again(parent, name.clone());
        }
        Forget::Name { parent, name, is_doubted: keeps || !is_recent }
    }

    /// A name that changes. What stood on it is gone.
    fn changed(parent: FileId, name: Name) -> Forget {
        Forget::Name { parent, name, is_doubted: false }
    }

    /// A name of a directory that moves: it had the name, or gets it, and may have it already when
    /// the kernel hears of this.
    fn moved(&self, parent: FileId, name: Name) -> Option<Forget> {
        let places = &self.kernel.nodes.places;
        let directory = places.at(parent, &name);
        if let Some(directory) = directory
            && let Some(place) = places.of(directory)
        {
            self.moves.follow(directory, place);
        }
        match (directory, self.kernel.features.expires) {
            (Some(_), false) => None,
            (None, false) => Some(Self::changed(parent, name)),
            (_, true) => Some(self.run_out(parent, name, true)),
        }
    }
}

impl CacheListener for Notifier {
    fn invalidate(&self, what: Invalidation, done: Box<dyn FnOnce() + Send>) {
        let Invalidation { entries, doubted, attributes, data, parts, is_contended, moved } = what;
        let ticket = Arc::new(Ticket(Mutex::new(Some(done))));
        let nodes = &self.kernel.nodes;
        if let Some(directory) = moved.filter(|_| entries.is_empty())
            && let Some(place) = nodes.places.of(directory)
        {
            self.moves.follow(directory, place);
        }
        let in_known = |(parent, _): &(FileId, Name)| nodes.is_known(*parent);
        let changed = entries.into_iter().filter(in_known);
        let changed = changed.filter_map(|(parent, name)| match moved {
            Some(_) => self.moved(parent, name),
            None => Some(Self::changed(parent, name)),
        });
        let doubted = doubted.into_iter().filter(in_known);
        let doubted = doubted.filter_map(|(parent, name)| self.doubted(parent, name));
        let names = changed.chain(doubted).collect();
        self.invalidate_names(names, is_contended, &ticket);
        let known = |ids: Vec<FileId>| ids.into_iter().filter(|&id| nodes.is_known(id));
        self.swift.push(known(attributes).map(Forget::Attributes), Some(&ticket));
        self.pages.push(known(data).map(Forget::Data), Some(&ticket));
        let parts = parts.into_iter().filter(|(id, _)| nodes.is_known(*id));
        let part =
            |(id, part): (_, Range<u64>)| Forget::Part(id, part.start, part.end - part.start);
        self.parts.push(parts.map(part), Some(&ticket));
    }
}

/// Calls `done` when the last part of an invalidation lets go of it.
struct Ticket(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Drop for Ticket {
    fn drop(&mut self) {
        let done = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(done) = done {
            done();
        }
    }
}

type Tickets = Vec<Arc<Ticket>>;

/// A queue and what its threads are at.
#[derive(Default)]
struct Lane {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: BTreeMap<Forget, Tickets>,
    /// Since when nothing was taken from the queue, or it was empty.
    stuck_since: Option<Instant>,
    /// By a number of their own.
    writing: BTreeMap<u64, Writing>,
    written: u64,
    is_closed: bool,
}

struct Writing {
    since: Instant,
    tickets: Tickets,
}

impl Lane {
    fn push(&self, what: impl IntoIterator<Item = Forget>, ticket: Option<&Arc<Ticket>>) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        if state.queue.is_empty() {
            state.stuck_since = Some(Instant::now());
        }
        for one in what {
            state.queue.entry(one).or_default().extend(ticket.cloned());
        }
        drop(state);
        self.changed.notify_all();
    }

    fn length(&self) -> usize {
        self.lock().queue.len()
    }

    fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let abandoned = std::mem::take(&mut state.queue);
        drop(state);
        self.changed.notify_all();
        // Their tickets are called without the lock.
        drop(abandoned);
    }

    /// A thread's life: writes what is queued.
    fn run(&self, kernel: &Kernel) {
        while let Some((number, what)) = self.begin() {
            kernel.forget(&what);
            let finished = self.lock().writing.remove(&number);
            self.changed.notify_all();
            drop(finished);
        }
    }

    fn begin(&self) -> Option<(u64, Forget)> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some((what, tickets)) = state.queue.pop_first() {
                let (number, since) = (state.written, Instant::now());
                state.written += 1;
                state.stuck_since = Some(since);
                state.writing.insert(number, Writing { since, tickets });
                drop(state);
                self.changed.notify_all();
                return Some((number, what));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Another thread's life: sees to it that nobody waits for long for names to get through.
    fn watch(&self, kernel: &Kernel) {
        let has_epoch = kernel.features.has_epoch;
        let mut state = self.lock();
        while !state.is_closed {
            let Some(since) = state.waited_for_since(has_epoch) else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let age = Instant::now().duration_since(since);
            if age < PATIENCE {
                let waited = self.changed.wait_timeout(state, PATIENCE - age);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let overdue = state.take_overdue(has_epoch);
            drop(state);
            if has_epoch {
                kernel.forget(&Forget::Names);
            }
            tracing::debug!("names could not be invalidated in time");
            drop(overdue);
            state = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Since when somebody waits for a name. What is queued counts only if the epoch can help it.
    fn waited_for_since(&self, has_epoch: bool) -> Option<Instant> {
        let writing = self.writing.values().filter(|writing| !writing.tickets.is_empty());
        let queued = self.stuck_since.filter(|_| has_epoch && !self.queue.is_empty());
        writing.map(|writing| writing.since).chain(queued).min()
    }

    /// Takes the tickets of all that is under way, and all that is queued if the epoch covers it.
    fn take_overdue(&mut self, has_epoch: bool) -> Tickets {
        let mut tickets: Tickets = Vec::new();
        for writing in self.writing.values_mut() {
            tickets.append(&mut writing.tickets);
        }
        if has_epoch {
            for mut queued in std::mem::take(&mut self.queue).into_values() {
                tickets.append(&mut queued);
            }
        }
        tickets
    }
}
