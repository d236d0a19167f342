//! The change log: every group of commits, in segments in a directory at a second place.
//!
//! With `waits`, a group is durable there before the store has it: whatever is answered is in both
//! places, and a log that cannot be written ends the store. Without, it is written at once and
//! synced within a second; a log that cannot be written is given up for a while, `/health` says so,
//! and the hole is closed by a dump.
//!
//! A new store's log is complete from its first commit. Any other begins with a dump, which the MDT
//! makes by itself ([`Log::wants_dump`]); so does one that has grown well beyond its last dump.
//! What lies behind a dump is deleted when the dump was read again.
//!
//! Invariants: one writer per directory and MDT (a lock file says so); segments are whole but for
//! the last frame of the last.

use crate::directory::{self, Items};
use crate::stream::{Frames, read_through};
use crate::{Error, Identity};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tieline_format::ledger::{Frame, Group, Head, HeadKind, Write, preamble};
use tieline_kv::{Batch, Journal};
use tieline_telemetry::metrics::METRICS;
use tieline_types::{ByteSize, Time, Version};

/// A segment is ended at this size.
const SEGMENT_BYTES: u64 = 64 << 20;
/// A log without waiting is synced this often.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How long a log that cannot be written is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// A dump is due when the log is this much larger than the last one, and not small.
const GROWTH: u64 = 4;
const GROWTH_MIN: u64 = 256 << 20;

/// Where and how a log is kept.
#[derive(Clone, Debug)]
pub struct LogSettings {
    pub directory: PathBuf,
    /// Answers wait until the log is durable.
    pub waits: bool,
}

/// What writer, syncer and dumper share.
pub struct Log {
    pub(crate) identity: Identity,
    pub(crate) settings: LogSettings,
    clock: Box<dyn Fn() -> Time + Send + Sync>,
    state: Mutex<State>,
    /// Wakes the syncer at the end.
    ended: Condvar,
    _lock: File,
}

struct State {
    current: Option<Current>,
    sequence: u64,
    /// The last version that was appended, or from which versions go on.
    last: Version,
    /// Something is missing in the log: only a dump closes the hole.
    wants_dump: bool,
    bytes_since_dump: u64,
    dump_bytes: u64,
    /// Why nothing is written now, and since when.
    broken: Option<(String, Instant)>,
    is_ended: bool,
}

/// The segment that is written.
struct Current {
    file: Arc<File>,
    /// The version after which its groups begin.
    begun: Version,
    written: u64,
    is_synced: bool,
}

/// Writes the log: the store's journal.
pub struct LogWriter(Arc<Log>);

impl Log {
    /// Takes a directory (made if it is not there) for an MDT's log.
    pub fn open(
        identity: Identity,
        settings: LogSettings,
        clock: Box<dyn Fn() -> Time + Send + Sync>,
    ) -> Result<Arc<Self>, Error> {
        let path = settings.directory.clone();
        let failed = |doing| {
            let path = path.clone();
            move |source| Error::Io { doing, path, source }
        };
        std::fs::create_dir_all(&path).map_err(failed("make"))?;
        let lock = lock(&path, &identity).map_err(failed("lock"))?;
        let items = Items::list(&path, identity.mdt)?;
        let bytes = |paths: &mut dyn Iterator<Item = &PathBuf>| -> u64 {
            paths.filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum()
        };
        let state = State {
            current: None,
            sequence: items.next(),
            last: Version(0),
            wants_dump: false,
            bytes_since_dump: bytes(&mut items.segments.values()),
            dump_bytes: bytes(&mut items.dumps.values().rev().take(1)),
            broken: None,
            is_ended: false,
        };
        let log = Self {
            identity,
            settings,
            clock,
            state: Mutex::new(state),
            ended: Condvar::new(),
            _lock: lock,
        };
        Ok(Arc::new(log))
    }

    /// The journal for the store. One per log.
    pub fn writer(self: &Arc<Self>) -> Box<dyn Journal> {
        if !self.settings.waits {
            let log = Arc::downgrade(self);
            let spawned = std::thread::Builder::new().name("log-syncer".into()).spawn(move || {
                while let Some(log) = log.upgrade() {
                    if !log.sync_once() {
                        return;
                    }
                }
            });
            if let Err(error) = spawned {
                tracing::error!(%error, "change log is synced only at its ends of segments");
            }
        }
        Box::new(LogWriter(self.clone()))
    }

    /// Should a dump be made?
    pub fn wants_dump(&self) -> bool {
        let state = self.state();
        let limit = (state.dump_bytes * GROWTH).max(GROWTH_MIN);
        state.broken.is_none() && (state.wants_dump || state.bytes_since_dump > limit)
    }

    /// The last version that it has, or would have if it could be written.
    pub(crate) fn last(&self) -> Version {
        self.state().last
    }

    /// For `/health`: why nothing is written now.
    pub fn trouble(&self) -> Option<String> {
        self.state().broken.as_ref().map(|(reason, _)| reason.clone())
    }

    /// What is on its way to the disk becomes durable within a second.
    fn sync_once(&self) -> bool {
        let state = self.state();
        if state.is_ended {
            return false;
        }
        let waited = self.ended.wait_timeout(state, SYNC_EVERY);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(current) = state.current.as_mut().filter(|current| !current.is_synced) else {
            return true;
        };
        current.is_synced = true;
        let file = current.file.clone();
        drop(state);
        if let Err(error) = file.sync_data() {
            self.give_up(&mut self.state(), &error);
        }
        true
    }

    fn give_up(&self, state: &mut State, error: &io::Error) {
        let place = self.settings.directory.display();
        tracing::error!(mdt = self.identity.mdt.label(), "change log at {place} failed: {error}");
        state.broken = Some((format!("change log at {place}: {error}"), Instant::now()));
        state.wants_dump = true;
        state.current = None;
    }

    /// Begins a segment. What earlier ones have beyond `after` never happened.
    fn begin(&self, state: &mut State, after: Version, version: Version) -> io::Result<()> {
        let head = Head {
            fs: self.identity.fs.clone(),
            mdt: self.identity.mdt,
            kind: HeadKind::Segment,
            sequence: state.sequence,
            after,
            version,
            time: (self.clock)(),
            features: 0,
        };
        if let Some(before) = state.current.take() {
            before.file.sync_data()?;
        }
        if state.wants_dump {
            note_hole(&hole(&self.settings.directory, &self.identity))?;
        }
        let path = directory::segment(&self.settings.directory, head.mdt, state.sequence);
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create_new(true).mode(0o600).open(path)?;
        let bytes = [&preamble()[..], &Frame::Head(head).to_bytes()].concat();
        file.write_all(&bytes)?;
        file.sync_all()?;
        directory::sync(&self.settings.directory)?;
        let written = bytes.len() as u64;
        state.current =
            Some(Current { file: Arc::new(file), begun: version, written, is_synced: true });
        state.sequence += 1;
        state.last = version;
        Ok(())
    }

    /// Goes on with a store that was filled with everything up to `restored`: a segment of its own,
    /// beyond `sequence`, that begins with the group which ends the filling. A dump is due all the
    /// same: what was restored from may lie elsewhere.
    pub(crate) fn go_on(
        &self,
        restored: Version,
        sequence: u64,
        group: Group,
    ) -> Result<(), Error> {
        let version = group.after;
        let mut state = self.state();
        state.sequence = state.sequence.max(sequence + 1);
        state.wants_dump = true;
        let bytes = Frame::Group(group).to_bytes();
        let begun = self.begin(&mut state, restored, version).and_then(|()| {
            let Some(current) = state.current.take() else { return Ok(()) };
            (&*current.file).write_all(&bytes)?;
            current.file.sync_data()
        });
        let path = self.settings.directory.clone();
        begun.map_err(|source| Error::Io { doing: "begin a segment in", path, source })
    }

    /// How far what lies there goes.
    pub(crate) fn reach(&self) -> Result<Version, Error> {
        Ok(reached(&self.settings.directory, &self.identity)?.reached)
    }

    pub(crate) fn place(&self) -> &Path {
        &self.settings.directory
    }

    fn append(&self, state: &mut State, batch: &Batch) -> io::Result<()> {
        let last = state.last;
        let is_full = state.current.as_ref().is_some_and(|now| now.written > SEGMENT_BYTES);
        if state.current.is_none() || is_full {
            self.begin(state, last, last)?;
        }
        let Some(current) = &mut state.current else { return Ok(()) };
        let bytes = Frame::Group(group(last, batch)).to_bytes();
        (&*current.file).write_all(&bytes)?;
        if self.settings.waits {
            current.file.sync_data()?;
        } else {
            current.is_synced = false;
        }
        current.written += bytes.len() as u64;
        state.bytes_since_dump += bytes.len() as u64;
        METRICS.log_bytes.inc_by(bytes.len() as u64);
        state.last = batch.version;
        Ok(())
    }

    /// Ends the segment that is written, so that a dump made from now on covers all before.
    pub(crate) fn roll(&self) -> Result<(), Error> {
        let mut state = self.state();
        let last = state.last;
        if state.current.as_ref().is_none_or(|current| current.begun == last) {
            return Ok(());
        }
        let rolled = self.begin(&mut state, last, last);
        rolled.map_err(|source| {
            self.give_up(&mut state, &source);
            let path = self.settings.directory.clone();
            Error::Io { doing: "begin a segment in", path, source }
        })
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        let mut state = self.state();
        state.sequence += 1;
        state.sequence - 1
    }

    /// How much of a segment may be read: of the one that is written, what is.
    pub(crate) fn length(&self, path: &Path) -> io::Result<u64> {
        // An append is one write: whoever reads less than a frame leaves it for later.
        Ok(path.metadata()?.len())
    }

    /// A dump at `version` lies beside the log, `bytes` long.
    pub(crate) fn dumped(&self, version: Version, bytes: u64) {
        let mut state = self.state();
        state.wants_dump = false;
        state.dump_bytes = bytes;
        state.bytes_since_dump = 0;
        drop(state);
        let _ = std::fs::remove_file(hole(&self.settings.directory, &self.identity));
        tracing::info!(mdt = self.identity.mdt.label(), %version, bytes, "dumped beside the log");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Time {
        (self.clock)()
    }
}

impl Journal for LogWriter {
    fn start(&mut self, durable: Version, version: Version) -> io::Result<()> {
        let log = &*self.0;
        let place = &log.settings.directory;
        let Reach { reached, had } = reached(place, &log.identity).map_err(io::Error::other)?;
        if durable < had {
            let place = place.clone();
            return Err(io::Error::other(Error::OtherStore { place, reached, durable }));
        }
        let mut state = log.state();
        let hole = hole(&log.settings.directory, &log.identity);
        state.wants_dump = reached < durable || hole.exists();
        if state.wants_dump {
            let mdt = log.identity.mdt.label();
            let place = log.settings.directory.display();
            tracing::info!(mdt, %durable, logged = %reached, "log at {place} needs a dump first");
        }
        log.begin(&mut state, durable, version)
    }

    fn append(&mut self, batch: &Batch) -> io::Result<()> {
        let log = &*self.0;
        let mut state = log.state();
        if let Some((_, since)) = &state.broken {
            if since.elapsed() < RETRY_AFTER {
                state.last = batch.version;
                return Ok(());
            }
            state.broken = None;
        }
        match log.append(&mut state, batch) {
            Err(error) if !log.settings.waits => {
                log.give_up(&mut state, &error);
                state.last = batch.version;
                Ok(())
            }
            result => result,
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_ended = true;
        let current = state.current.take();
        drop(state);
        self.0.ended.notify_all();
        if let Some(Err(error)) = current.map(|current| current.file.sync_data()) {
            tracing::error!(%error, "change log could not be synced at its end");
        }
    }
}

fn group(after: Version, batch: &Batch) -> Group {
    let write = |(key, value): (&Arc<Vec<u8>>, &Option<Arc<Vec<u8>>>)| Write {
        key: key.to_vec(),
        value: value.as_ref().map(|value| value.to_vec()),
    };
    Group { after, version: batch.version, writes: batch.writes.iter().map(write).collect() }
}

/// How far a log goes.
#[derive(Default)]
struct Reach {
    reached: Version,
    /// What the store had for certain: one group at a time is written here before it is there.
    had: Version,
}

/// Up to which version the log goes, by its last segment and its last dump.
fn reached(directory: &Path, identity: &Identity) -> Result<Reach, Error> {
    let items = Items::list(directory, identity.mdt)?;
    let mut reach = Reach::default();
    if let Some(path) = items.dumps.values().next_back()
        && let Ok(Some((Frame::Head(head), _))) = Frames::open(path).and_then(|mut f| f.read())
    {
        // It has its name because it was whole.
        reach.reached = head.version;
    }
    let Some(path) = items.segments.values().next_back() else { return Ok(reach) };
    let mut had = Version(0);
    let summary = Frames::open(path).and_then(|mut frames| {
        read_through(&mut frames, |_, frame| match frame {
            Frame::Head(head) => had = head.after,
            Frame::Group(group) => had = group.after,
            _ => {}
        })
    });
    // A damaged one ends what is known; a dump closes the hole.
    let Ok(summary) = summary else { return Ok(reach) };
    let Some((head, last)) = summary.parts.last() else { return Ok(reach) };
    if head.fs != identity.fs {
        let found = Identity { fs: head.fs.clone(), mdt: head.mdt }.label();
        return Err(Error::Foreign { path: path.clone(), found, wanted: identity.label() });
    }
    Ok(Reach { reached: reach.reached.max(*last), had })
}

/// Says that something is missing in the log until a dump is made, also after a restart.
fn hole(directory: &Path, identity: &Identity) -> PathBuf {
    directory.join(format!("{}.hole", identity.mdt.label()))
}

fn note_hole(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        // Whatever it is, it is there.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

/// One writer per directory and MDT.
fn lock(directory: &Path, identity: &Identity) -> io::Result<File> {
    let path = directory.join(format!("{}.lock", identity.mdt.label()));
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // A server that was just killed may hold it for as long as the kernel takes to bury it.
    for _ in 0..100 {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    let reason = "another server writes its log there";
    Err(io::Error::new(io::ErrorKind::WouldBlock, reason))
}

/// For people: `12.5 MiB since the last dump`.
impl std::fmt::Display for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = ByteSize(self.state().bytes_since_dump);
        write!(f, "{}: {bytes} since the last dump", self.settings.directory.display())
    }
}
