//! Dumps: one state of the store as a stream.
//!
//! Whoever asks over the network gets one in parts. The state is held for them while they go on; a
//! part that is asked for twice is the same. Beside a log the MDT makes its own ([`beside_log`]),
//! reads it again, and then deletes what it makes superfluous.
//!
//! Invariants: a held state is given up when nobody asks for it; few are held; a part is whole
//! frames.

use crate::directory::{self, Items};
use crate::log::Log;
use crate::stream::{Frames, verify};
use crate::{Error, Identity};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tieline_format::ledger::{Frame, Head, HeadKind, PREAMBLE, Sum, Write, preamble};
use tieline_kv::{Key, Range, Snapshot, Store};
use tieline_types::{ErrorKind, Time, Version};
use tieline_wire::Failure;
use tieline_wire::ledger::{DumpMdt, DumpMdtReply};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Pairs in a frame.
const PAIRS: usize = 256;
/// A part ends after so many bytes.
const PART_BYTES: usize = 2 << 20;
/// Dumps under way at once.
const HELD_MAX: usize = 4;
const HELD_FOR: Duration = Duration::from_secs(120);

/// All keys of a store.
pub fn everything() -> Range {
    Range::new(vec![], vec![0xff])
}

/// The states that are held for those who fetch them.
#[derive(Default)]
pub struct Dumps {
    held: std::sync::Mutex<BTreeMap<u64, Held>>,
}

struct Held {
    snapshot: Arc<Mutex<Box<dyn Snapshot>>>,
    used: Instant,
}

/// Where a dump goes on.
enum Cursor {
    /// A held state, behind a key.
    State(u64, Key),
    /// Segment and byte of the log.
    Log(u64, u64),
}

impl Cursor {
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::State(id, after) => [&[0][..], &id.to_be_bytes(), after].concat(),
            Self::Log(sequence, at) => {
                [&[1][..], &sequence.to_be_bytes(), &at.to_be_bytes()].concat()
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = u64::from_be_bytes(*number);
        match kind {
            0 => Some(Self::State(number, rest.to_vec())),
            1 => Some(Self::Log(number, u64::from_be_bytes(*rest.first_chunk()?))),
            _ => None,
        }
    }
}

/// One part: where the next begins, and frames.
type Part = (DumpMdtReply, Vec<u8>);

/// What a dump is made of.
pub struct Source<'a> {
    pub store: &'a dyn Store,
    pub identity: Identity,
    pub log: Option<&'a Log>,
    pub now: Time,
    /// For new ids of held states.
    pub id: u64,
}

impl Dumps {
    /// One part of a dump.
    pub async fn part(&self, source: Source<'_>, ask: &DumpMdt) -> Result<Part, Failure> {
        let cursor = match &ask.cursor {
            Some(bytes) => Some(Cursor::decode(bytes).ok_or_else(|| {
                Failure::new(ErrorKind::InvalidArgument, "cursor is not one of this server")
            })?),
            None => None,
        };
        if let (None, Some(log)) = (&cursor, source.log) {
            // So that whoever asks next for what came after this gets little of what came before.
            // A log that cannot be written says so itself.
            let _ = log.roll();
        }
        let part = match (cursor, ask.since) {
            (None, None) => self.begin(&source).await,
            (Some(Cursor::State(id, after)), _) => match self.held(id) {
                Some(snapshot) => state_part(&snapshot, id, after, vec![]).await,
                None => {
                    let detail = "this dump was given up or its server restarted: begin again";
                    return Err(Failure::new(ErrorKind::Gone, detail));
                }
            },
            (cursor, since) => {
                let Some(log) = source.log else {
                    let detail =
                        "this MDT keeps no change log: set mdt.log_to, or take a full dump";
                    return Err(Failure::new(ErrorKind::NotSupported, detail));
                };
                let (since, last) = (since.unwrap_or_default(), log.last());
                if since > last {
                    let detail = format!("nothing came after version {since} yet: it is {last}");
                    return Err(Failure::new(ErrorKind::InvalidArgument, detail));
                }
                log_part(log, cursor, since)
            }
        };
        if let Ok((DumpMdtReply { cursor: None }, _)) = &part
            && let Some(Cursor::State(id, _)) = ask.cursor.as_deref().and_then(Cursor::decode)
        {
            self.lock().remove(&id);
        }
        part.map_err(|error| Failure::new(ErrorKind::StorageFault, error.chain()))
    }

    async fn begin(&self, source: &Source<'_>) -> Result<Part, Error> {
        let snapshot = source.store.snapshot().await?;
        let head = head(&source.identity, snapshot.version(), 0, source.now);
        let snapshot = Arc::new(Mutex::new(snapshot));
        {
            let mut held = self.lock();
            let now = Instant::now();
            held.retain(|_, held| now.duration_since(held.used) < HELD_FOR);
            while held.len() >= HELD_MAX {
                let oldest = held.iter().min_by_key(|(_, held)| held.used).map(|(id, _)| *id);
                oldest.map(|id| held.remove(&id));
            }
            held.insert(source.id, Held { snapshot: snapshot.clone(), used: now });
        }
        state_part(&snapshot, source.id, vec![], Frame::Head(head).to_bytes()).await
    }

    fn held(&self, id: u64) -> Option<Arc<Mutex<Box<dyn Snapshot>>>> {
        let mut all = self.lock();
        let held = all.get_mut(&id)?;
        held.used = Instant::now();
        Some(held.snapshot.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn head(identity: &Identity, version: Version, sequence: u64, time: Time) -> Head {
    Head {
        fs: identity.fs.clone(),
        mdt: identity.mdt,
        kind: HeadKind::Dump,
        sequence,
        after: Version(0),
        version,
        time,
        features: 0,
    }
}

/// The next pairs of a state, and the key of the last.
async fn pairs(
    snapshot: &mut dyn Snapshot,
    after: &Key,
) -> Result<Option<(Frame, Key)>, tieline_kv::Error> {
    let start = if after.is_empty() { vec![] } else { [after.as_slice(), &[0]].concat() };
    let range = Range { start, ..everything() };
    let page = snapshot.scan(range, PAIRS).await?;
    let Some((last, _)) = page.last().cloned() else { return Ok(None) };
    let write = |(key, value)| Write { key, value: Some(value) };
    Ok(Some((Frame::Pairs(page.into_iter().map(write).collect()), last)))
}

async fn state_part(
    snapshot: &Mutex<Box<dyn Snapshot>>,
    id: u64,
    mut after: Key,
    mut bytes: Vec<u8>,
) -> Result<Part, Error> {
    let mut snapshot = snapshot.lock().await;
    while bytes.len() < PART_BYTES {
        let Some((frame, last)) = pairs(&mut **snapshot, &after).await? else {
            return Ok((DumpMdtReply { cursor: None }, bytes));
        };
        bytes.extend(frame.to_bytes());
        after = last;
    }
    Ok((DumpMdtReply { cursor: Some(Cursor::State(id, after).encode()) }, bytes))
}

/// What the log has after a version, or from a place on: whole segments, as they are.
fn log_part(log: &Log, cursor: Option<Cursor>, since: Version) -> Result<Part, Error> {
    let items = Items::list(&log.settings.directory, log.identity.mdt)?;
    let (sequence, at) = match cursor {
        Some(Cursor::Log(sequence, at)) => (sequence, at),
        _ => (first_segment(&items, since)?, PREAMBLE as u64),
    };
    let next = |sequence: u64| {
        let next = items.segments.range(sequence + 1..).next();
        let cursor = next.map(|(sequence, _)| Cursor::Log(*sequence, PREAMBLE as u64).encode());
        DumpMdtReply { cursor }
    };
    let Some(path) = items.segments.get(&sequence) else { return Ok((next(sequence), vec![])) };
    let failed = |source| Error::Io { doing: "read", path: path.clone(), source };
    let end = log.length(path).map_err(failed)?;
    let mut file = File::open(path).map_err(failed)?;
    file.seek(SeekFrom::Start(at)).map_err(failed)?;
    let input = std::io::Read::take(std::io::BufReader::new(file), end.saturating_sub(at));
    let mut frames = Frames::at_frame(input, path, at);
    let mut bytes = Vec::new();
    while bytes.len() < PART_BYTES {
        match frames.read() {
            Ok(Some((frame, _))) => bytes.extend(frame.to_bytes()),
            // The last may be half written: what is acknowledged is whole.
            Ok(None) | Err(Error::Cut { .. }) => return Ok((next(sequence), bytes)),
            Err(error) => return Err(error),
        }
    }
    let cursor = Some(Cursor::Log(sequence, frames.at()).encode());
    Ok((DumpMdtReply { cursor }, bytes))
}

/// The last segment that begins at or before a version.
fn first_segment(items: &Items, since: Version) -> Result<u64, Error> {
    let mut first = None;
    let mut oldest = None;
    for (&sequence, path) in &items.segments {
        let head = match Frames::open(path)?.read()? {
            Some((Frame::Head(head), _)) => head,
            _ => continue,
        };
        oldest.get_or_insert(head.after);
        if head.after <= since {
            first = Some(sequence);
        }
    }
    first.ok_or(Error::Hole { from: since, to: oldest.unwrap_or(since) })
}

/// Dumps the store beside its log, reads the dump again, and deletes what it makes superfluous if
/// `prunes`.
pub async fn beside_log(store: &dyn Store, log: &Log, prunes: bool) -> Result<(), Error> {
    // So that everything before lies in segments that are not written any more.
    log.roll()?;
    let mut snapshot = store.snapshot().await?;
    let version = snapshot.version();
    let (place, mdt) = (log.settings.directory.clone(), log.identity.mdt);
    let sequence = log.next_sequence();
    let path = directory::dump(&place, mdt, sequence);
    let unfinished = path.with_extension("dump.new");
    let failed = |doing| {
        let path = unfinished.clone();
        move |source| Error::Io { doing, path, source }
    };
    // One of a process that died, or somebody's link.
    let _ = std::fs::remove_file(&unfinished);
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&unfinished).map_err(failed("create"))?;
    let mut sum = Sum::default();
    let mut frame = Frame::Head(head(&log.identity, version, sequence, log.now()));
    file.write_all(&preamble()).map_err(failed("write"))?;
    let mut after = vec![];
    loop {
        let bytes = frame.to_bytes();
        sum.add_bytes(&frame, &bytes);
        file = in_thread(move || file.write_all(&bytes).map(|()| file))
            .await
            .map_err(failed("write"))?;
        match pairs(&mut *snapshot, &after).await? {
            Some((next, last)) => (frame, after) = (next, last),
            None => break,
        }
    }
    let end = Frame::End(sum.end()).to_bytes();
    let sync = move || file.write_all(&end).and_then(|()| file.sync_all());
    in_thread(sync).await.map_err(failed("write"))?;
    drop(snapshot);
    let check = unfinished.clone();
    match tokio::task::spawn_blocking(move || verify(&check)).await {
        Ok(verified) => verified?,
        Err(error) => return Err(failed("read")(std::io::Error::other(error))),
    };
    std::fs::rename(&unfinished, &path).map_err(failed("rename"))?;
    directory::sync(&place).map_err(failed("sync"))?;
    let bytes = path.metadata().map_or(0, |metadata| metadata.len());
    log.dumped(version, bytes);
    if prunes { prune(&place, log, sequence, version) } else { Ok(()) }
}

async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

/// Deletes older dumps, and segments that hold nothing beyond a dump.
fn prune(place: &Path, log: &Log, sequence: u64, version: Version) -> Result<(), Error> {
    let items = Items::list(place, log.identity.mdt)?;
    let mut gone: Vec<_> = items.dumps.range(..sequence).map(|(_, path)| path).collect();
    let mut segments = items.segments.values().peekable();
    while let Some(path) = segments.next() {
        let Some(next) = segments.peek() else { break };
        // Those before the one that was begun at or before the dump.
        match Frames::open(next)?.read()? {
            Some((Frame::Head(head), _)) if head.after <= version => gone.push(path),
            _ => break,
        }
    }
    for path in gone {
        let failed = |source| Error::Io { doing: "delete", path: path.clone(), source };
        std::fs::remove_file(path).map_err(failed)?;
    }
    Ok(())
}
