//! Restore: the newest dump, then what the log has after it, into an empty store.
//!
//! Everything is read and judged first. Then pairs are written in bounded transactions, the
//! superblock last: a store that was not filled to its end is refused by the MDT. Serials and
//! versions move on beyond all that the lost store can have given out.

use super::directory::Items;
use super::stream::{Frames, Summary, verify};
use super::{Error, Identity};
use std::path::{Path, PathBuf};
use tieline_format::Record;
use tieline_format::ledger::{Frame, Head, HeadKind, Write};
use tieline_format::mdt::{Superblock, key};
use tieline_kv::{Durable, Store, Value};
use tieline_types::{Time, Version};

/// Pairs, and bytes, of one transaction.
const PAIRS: usize = 4096;
const BYTES: usize = 8 << 20;
/// What the lost store may have given out and nobody logged.
const FILES_SKIPPED: u64 = 1 << 20;
const SESSIONS_SKIPPED: u64 = 1 << 16;
/// More than an engine skips when it is opened: a log that goes on shows where the old one ended.
const VERSIONS_SKIPPED: u64 = 1 << 24;

/// What was restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    pub dump: Option<PathBuf>,
    pub dump_version: Version,
    pub segments: usize,
    pub groups: u64,
    pub pairs: u64,
    /// The last commit that is in it.
    pub version: Version,
    /// What an operator should know.
    pub notes: Vec<String>,
}

/// One segment, perhaps within a stream of several.
struct Segment {
    path: PathBuf,
    /// Which of the stream's.
    index: usize,
    head: Head,
    last: Version,
}

/// What is to be restored.
struct Sources {
    dump: Option<(PathBuf, Version)>,
    segments: Vec<Segment>,
    notes: Vec<String>,
}

/// Restores an MDT from dumps, segments, and directories of both.
pub async fn restore(
    store: &dyn Store,
    paths: &[PathBuf],
    identity: &Identity,
    up_to_hole: bool,
    now: Time,
) -> Result<Restored, Error> {
    if !store.begin().await?.scan(super::dump::everything(), 1).await?.is_empty() {
        return Err(Error::NotEmpty { store: store.describe() });
    }
    let mut sources = gather(paths, identity)?;
    let dump_version = sources.dump.as_ref().map_or(Version(0), |(_, version)| *version);
    let plan = sources.plan(dump_version, identity, up_to_hole)?;
    let mut filler = Filler::new(store);
    if let Some((path, _)) = &sources.dump {
        let mut frames = Frames::open(path)?;
        while let Some((frame, _)) = frames.read()? {
            if let Frame::Pairs(pairs) = frame {
                filler.fill(pairs).await?;
            }
        }
    }
    let mut version = dump_version;
    let mut groups = 0;
    for (place, until) in plan {
        let Some(segment) = sources.segments.get(place) else { continue };
        let (applied, last) = filler.apply(segment, version, until).await?;
        groups += applied;
        version = version.max(last);
    }
    let pairs = filler.pairs;
    filler.finish(version, now).await?;
    Ok(Restored {
        dump: sources.dump.map(|(path, _)| path),
        dump_version,
        segments: sources.segments.len(),
        groups,
        pairs,
        version,
        notes: sources.notes,
    })
}

fn gather(paths: &[PathBuf], identity: &Identity) -> Result<Sources, Error> {
    let mut sources = Sources { dump: None, segments: vec![], notes: vec![] };
    for path in paths {
        if path.is_dir() {
            let items = Items::list(path, identity.mdt)?;
            for path in items.dumps.values() {
                match verify(path) {
                    Ok(summary) => sources.add(path, summary, identity)?,
                    Err(error) => sources.notes.push(format!("{error}: this dump is not used")),
                }
            }
            for path in items.segments.values() {
                sources.add(path, verify(path)?, identity)?;
            }
        } else {
            sources.add(path, verify(path)?, identity)?;
        }
    }
    // The same segment may be there twice: the longer copy counts.
    sources.segments.sort_by_key(|segment| (segment.head.sequence, segment.last));
    sources.segments.reverse();
    sources.segments.dedup_by_key(|segment| segment.head.sequence);
    sources.segments.reverse();
    Ok(sources)
}

impl Sources {
    fn add(&mut self, path: &Path, summary: Summary, identity: &Identity) -> Result<(), Error> {
        if let Some(at) = summary.torn_at {
            let shown = path.display();
            self.notes
                .push(format!("{shown} is cut off at byte {at}: what follows never was done"));
        }
        for (index, (head, last)) in summary.parts.into_iter().enumerate() {
            let found = Identity { fs: head.fs.clone(), mdt: head.mdt };
            if found != *identity {
                let (found, wanted) = (found.label(), identity.label());
                return Err(Error::Foreign { path: path.to_owned(), found, wanted });
            }
            let path = path.to_owned();
            match head.kind {
                HeadKind::Segment => self.segments.push(Segment { path, index, head, last }),
                HeadKind::Dump => {
                    let is_newer = |(_, before): &(PathBuf, Version)| head.version > *before;
                    if self.dump.as_ref().is_none_or(is_newer) {
                        self.dump = Some((path, head.version));
                    }
                }
            }
        }
        Ok(())
    }

    /// A store that is opened again goes on beyond all that it ever gave out; another does not.
    fn check_one_store(&self) -> Result<(), Error> {
        let mut last: Option<&Segment> = None;
        for segment in &self.segments {
            if let Some(before) = last.filter(|before| segment.head.version < before.last) {
                return Err(Error::TwoStores {
                    one: before.path.clone(),
                    other: segment.path.clone(),
                    reached: before.last,
                    version: segment.head.version,
                });
            }
            last = Some(segment);
        }
        Ok(())
    }

    /// Which segments (by place), each with the last version that happened in it.
    fn plan(
        &mut self,
        dump: Version,
        identity: &Identity,
        up_to_hole: bool,
    ) -> Result<Vec<(usize, Version)>, Error> {
        self.check_one_store()?;
        let mut plan = Vec::new();
        let mut reached = dump;
        for (place, segment) in self.segments.iter().enumerate() {
            let next = self.segments.get(place + 1).map(|next| next.head.after);
            // A jump of versions at a start is no group: it is cut by nothing.
            let until = next.map_or(segment.last, |next| next.min(segment.last));
            if until <= reached && segment.head.version <= reached {
                continue;
            }
            if segment.head.after > reached {
                if self.dump.is_none() && plan.is_empty() {
                    return Err(Error::NoDump { after: segment.head.after });
                }
                let hole = Error::Hole { from: reached, to: segment.head.after };
                if !up_to_hole {
                    return Err(hole);
                }
                self.notes.push(format!("restored only what is before a hole: {hole}"));
                break;
            }
            plan.push((place, until));
            reached = reached.max(segment.head.version).max(until);
        }
        if self.dump.is_none() && plan.is_empty() {
            return Err(Error::Nothing { mdt: identity.mdt });
        }
        Ok(plan)
    }
}

/// Fills a store.
pub(super) struct Filler<'a> {
    store: &'a dyn Store,
    /// Held back: it comes last.
    superblock: Option<Value>,
    last: Option<Durable>,
    pairs: u64,
}

impl<'a> Filler<'a> {
    pub(super) fn new(store: &'a dyn Store) -> Self {
        Self { store, superblock: None, last: None, pairs: 0 }
    }

    async fn apply(
        &mut self,
        segment: &Segment,
        after: Version,
        until: Version,
    ) -> Result<(u64, Version), Error> {
        let mut frames = Frames::open(&segment.path)?;
        let mut wanted: Vec<Vec<Write>> = vec![];
        let (mut applied, mut last, mut place) = (0, after, None);
        loop {
            // What is torn at the end was judged before.
            let next = match frames.read() {
                Ok(Some((frame, _))) => frame,
                Ok(None) => break,
                Err(error @ Error::Io { .. }) => return Err(error),
                Err(_) => break,
            };
            match next {
                Frame::Head(_) => place = Some(place.map_or(0, |place: usize| place + 1)),
                Frame::Group(group)
                    if place == Some(segment.index)
                        && group.version > after
                        && group.version <= until =>
                {
                    last = group.version;
                    applied += 1;
                    wanted.push(group.writes);
                }
                _ => {}
            }
            for writes in wanted.drain(..) {
                self.fill(writes).await?;
            }
        }
        Ok((applied, last))
    }

    pub(super) async fn fill(&mut self, writes: Vec<Write>) -> Result<(), Error> {
        let mut transaction = self.store.begin().await?;
        let (mut count, mut bytes) = (0, 0);
        for Write { key, value } in writes {
            self.pairs += 1;
            if key == key::superblock() {
                self.superblock = value.or(self.superblock.take());
                continue;
            }
            count += 1;
            bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            match value {
                Some(value) => transaction.put(key, value),
                None => transaction.delete(key),
            }
            if count >= PAIRS || bytes >= BYTES {
                self.last = Some(transaction.commit().await?.durable);
                transaction = self.store.begin().await?;
                (count, bytes) = (0, 0);
            }
        }
        self.last = Some(transaction.commit().await?.durable);
        Ok(())
    }

    pub(super) async fn finish(self, version: Version, now: Time) -> Result<(), Error> {
        let superblock = self.superblock.ok_or(Error::NoSuperblock)?;
        let mut superblock = Superblock::from_bytes(&superblock)?;
        superblock.file_serial += FILES_SKIPPED;
        superblock.session_serial += SESSIONS_SKIPPED;
        superblock.restored = Some(now);
        if let Some(durable) = self.last {
            durable.await?;
        }
        self.store.advance(Version(version.0 + VERSIONS_SKIPPED)).await?;
        let mut transaction = self.store.begin().await?;
        transaction.put(key::superblock(), superblock.to_bytes());
        transaction.commit().await?.durable.await?;
        Ok(())
    }
}

/// What was found at a path.
pub type Checked = (PathBuf, Result<Summary, Error>);

/// What a path holds, for people who check their backups: each file by itself, and all of them
/// whatever one of them is like.
pub fn verify_all(path: &Path) -> Result<Vec<Checked>, Error> {
    if !path.is_dir() {
        return Ok(vec![(path.to_owned(), verify(path))]);
    }
    let failed = |source| Error::Io { doing: "list", path: path.to_owned(), source };
    let mut paths: Vec<PathBuf> = std::fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(failed)?;
    paths.retain(|path| path.extension().is_some_and(|end| end == "log" || end == "dump"));
    paths.sort();
    Ok(paths.into_iter().map(|path| (path.clone(), verify(&path))).collect())
}
