//! Directories that are moved elsewhere while programs here stand in them.
//!
//! Such a program is to see the new path. Of a name that is moved away the kernel is told that it
//! has run out (and not to drop it: who stands there would stand nowhere). Then one thread, which
//! serves nobody, asks where the directory is now, and has a [`Scout`] go there. A change is
//! announced before it is made, so that it asks again until the directory is elsewhere.
//!
//! The same thread lets names run out once more: an answer to a question of before may have been
//! put to use after the first time ([`crate::recent`]).
//!
//! Invariants: nobody waits for any of this; at most [`DIRECTORIES_MAX`] directories and
//! [`NAMES_MAX`] names are remembered, and of a directory only until the last of [`PAUSES`].

use crate::kernel::{Forget, Kernel};
use crate::mountable::Mountable;
use crate::places::Place;
use crate::scout::{Scout, Start};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tieline_types::{Caller, ErrorKind, FileId, Name};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// When to look for a directory, each counted from the look before.
const PAUSES: [Duration; 7] = [
    Duration::from_millis(2),
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];
/// It is looked for so often at least: for a third of a second.
const LOOKS_MIN: usize = 4;
/// How long the answer to where a directory is may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a scout is kept that has nothing to do.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// When names run out once more, after the first time.
const AGAIN: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];
const DIRECTORIES_MAX: usize = 1024;
const NAMES_MAX: usize = 4096;

pub struct Moves {
    kernel: Arc<Kernel>,
    fs: Weak<dyn Mountable>,
    runtime: Handle,
    mountpoint: PathBuf,
    start: Option<Start>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    wanted: BTreeMap<FileId, Wanted>,
    events: u64,
    names: [VecDeque<(Instant, FileId, Name)>; AGAIN.len()],
    /// The scout that is on its way, and for whom.
    sent: Option<(u32, Arc<Caller>)>,
    is_closed: bool,
}

/// A directory that is to be looked for.
struct Wanted {
    due: Instant,
    looks: usize,
    /// Where it was when that was learned.
    from: Place,
    /// Which of all the times that something was learned.
    event: u64,
}

enum Due {
    Name(FileId, Name),
    Directory(FileId, Place, u64),
    Rest,
    End,
}

impl Moves {
    pub fn start(
        (kernel, fs): (Arc<Kernel>, &Arc<dyn Mountable>),
        runtime: Handle,
        mountpoint: PathBuf,
        start: Option<Start>,
    ) -> std::io::Result<Arc<Self>> {
        let (state, changed) = Default::default();
        let fs = Arc::downgrade(fs);
        let moves = Arc::new(Self { kernel, fs, runtime, mountpoint, start, state, changed });
        let thread = std::thread::Builder::new().name("fuse-moves".to_owned());
        let running = Arc::clone(&moves);
        thread.spawn(move || running.run()).map(drop)?;
        Ok(moves)
    }

    /// The directory is, or will be, at another place than this.
    pub fn follow(&self, directory: FileId, from: Place) {
        let mut state = self.lock();
        let is_full = state.wanted.len() >= DIRECTORIES_MAX;
        if self.start.is_none() || is_full && !state.wanted.contains_key(&directory) {
            return;
        }
        state.events += 1;
        let event = state.events;
        let wanted = Wanted { due: Instant::now() + PAUSES[0], looks: 0, from, event };
        state.wanted.insert(directory, wanted);
        drop(state);
        self.changed.notify_all();
    }

    /// The name just ran out, and may have been answered right before.
    pub fn expire_again(&self, parent: FileId, name: Name) {
        let (mut state, now) = (self.lock(), Instant::now());
        for (names, pause) in state.names.iter_mut().zip(AGAIN) {
            if names.len() >= NAMES_MAX {
                names.pop_front();
            }
            names.push_back((now + pause, parent, name.clone()));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// On whose behalf this process asks, if it is the scout.
    pub fn sender(&self, process: u32) -> Option<Caller> {
        let state = self.lock();
        let (_, caller) = state.sent.as_ref().filter(|(scout, _)| *scout == process)?;
        Some(Caller::clone(caller))
    }

    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut scout = None;
        loop {
            match self.next(scout.is_some()) {
                Due::Name(parent, name) => {
                    self.kernel.forget(&Forget::Name { parent, name, is_doubted: true });
                }
                Due::Directory(directory, from, event) => {
                    self.look(&mut scout, directory, (&from, event));
                }
                Due::Rest => scout.take().into_iter().for_each(Scout::end),
                Due::End => return scout.take().into_iter().for_each(Scout::end),
            }
        }
    }

    fn next(&self, has_scout: bool) -> Due {
        let (mut state, since) = (self.lock(), Instant::now());
        loop {
            let now = Instant::now();
            if state.is_closed {
                return Due::End;
            }
            if let Some((parent, name)) = state.take_name(now) {
                return Due::Name(parent, name);
            }
            if let Some((directory, from, event)) = state.take_directory(now) {
                return Due::Directory(directory, from, event);
            }
            let idle = has_scout.then(|| since + IDLE_MAX);
            if idle.is_some_and(|idle| idle <= now) {
                return Due::Rest;
            }
            let Some(due) = state.due().into_iter().chain(idle).min() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = self.changed.wait_timeout(state, due.duration_since(now));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Looks for a directory once. It is looked for again until it is elsewhere, and a while
    /// longer: the kernel may be told only then to drop what had its name before.
    fn look(&self, scout: &mut Option<Scout>, directory: FileId, (from, event): (&Place, u64)) {
        let places = &self.kernel.nodes.places;
        if !self.kernel.nodes.is_known(directory) {
            return self.lock().settle(directory, (event, 0));
        }
        match self.way_to(&from.caller, directory) {
            Some(Ok(way)) => {
                if !self.send(scout, &from.caller, &way) {
                    tracing::debug!(%directory, "could not be reached where it is now");
                } else if places.of(directory).is_some_and(|place| place.spot() != from.spot()) {
                    self.lock().settle(directory, (event, LOOKS_MIN));
                }
            }
            // It is no more: who stands in it stands nowhere.
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => {
                let (parent, name) = from.spot();
                self.kernel.forget(&Forget::Name { parent, name, is_doubted: false });
                self.lock().settle(directory, (event, 0));
            }
            Some(Err(error)) => tracing::debug!(%error, %directory, "cannot be followed now"),
            None => {}
        }
    }

    /// `None`: the mount is going away.
    fn way_to(
        &self,
        caller: &Caller,
        directory: FileId,
    ) -> Option<Result<Vec<Name>, tieline_files::Error>> {
        let fs = self.fs.upgrade()?;
        let late = |_| tieline_files::Error::local(ErrorKind::Timeout, "no answer in time");
        let asked = async { tokio::time::timeout(PATIENCE, fs.way_to(caller, directory)).await };
        Some(self.runtime.block_on(asked).map_err(late).and_then(|told| told))
    }

    /// Says whether the scout got there.
    fn send(&self, scout: &mut Option<Scout>, caller: &Arc<Caller>, way: &[Name]) -> bool {
        let Some(start) = self.start else { return false };
        let path = way.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/');
        let went = match scout.take().map_or_else(|| Scout::start(start, &self.mountpoint), Ok) {
            Ok(mut one) => {
                self.lock().sent = Some((one.process(), Arc::clone(caller)));
                let went = one.go(&path);
                self.lock().sent = None;
                match went {
                    Ok(_) => *scout = Some(one),
                    Err(_) => one.end(),
                }
                went
            }
            Err(error) => Err(error),
        };
        went.unwrap_or_else(|error| {
            tracing::warn!(%error, "paths of directories that were moved cannot be looked for");
            false
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_name(&mut self, now: Instant) -> Option<(FileId, Name)> {
        let mut all = self.names.iter_mut();
        let due = all.find(|names| names.front().is_some_and(|(due, ..)| *due <= now));
        due?.pop_front().map(|(_, parent, name)| (parent, name))
    }

    /// It is due again after the next pause, if that is not the last.
    fn take_directory(&mut self, now: Instant) -> Option<(FileId, Place, u64)> {
        let (&directory, wanted) = self.wanted.iter_mut().find(|(_, one)| one.due <= now)?;
        wanted.looks += 1;
        let (from, event) = (wanted.from.clone(), wanted.event);
        match PAUSES.get(wanted.looks) {
            Some(&pause) => wanted.due = now + pause,
            None => drop(self.wanted.remove(&directory)),
        }
        Some((directory, from, event))
    }

    /// Nothing more is to be done for the directory, if nothing was learned of it since, and if it
    /// was looked for so often.
    fn settle(&mut self, directory: FileId, (event, looks): (u64, usize)) {
        let is_over = |wanted: &Wanted| wanted.event == event && wanted.looks >= looks;
        if self.wanted.get(&directory).is_some_and(is_over) {
            self.wanted.remove(&directory);
        }
    }

    fn due(&self) -> Option<Instant> {
        let names = self.names.iter().filter_map(|names| names.front().map(|(due, ..)| *due));
        self.wanted.values().map(|one| one.due).chain(names).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_looked_for_at_growing_pauses_and_then_no_more() {
        let (mut state, begun) = (State::default(), Instant::now());
        let name = Name::new("a").unwrap();
        let from = Place { parent: FileId(1), name, caller: Arc::new(Caller::root()) };
        state.wanted.insert(FileId(7), Wanted { due: begun + PAUSES[0], looks: 0, from, event: 1 });
        let mut looks = Vec::new();
        while let Some(due) = state.due() {
            assert!(state.take_directory(due - Duration::from_millis(1)).is_none());
            assert!(state.take_directory(due).is_some());
            looks.push(due);
        }
        let last = looks.last().unwrap().duration_since(begun);
        assert_eq!((looks.len(), last), (PAUSES.len(), PAUSES.iter().sum()));
    }

    #[test]
    fn a_name_runs_out_at_each_of_its_times() {
        let (mut state, now) = (State::default(), Instant::now());
        let name = Name::new("a").unwrap();
        for (names, pause) in state.names.iter_mut().zip(AGAIN) {
            names.push_back((now + pause, FileId(1), name.clone()));
        }
        assert!(state.take_name(now).is_none());
        for pause in AGAIN {
            assert_eq!(state.due(), Some(now + pause));
            assert_eq!(state.take_name(now + pause), Some((FileId(1), name.clone())));
        }
        assert_eq!(state.due(), None);
    }
}
