//! Restore: the newest dump, then what the log has after it, into an empty store.
//!
//! Everything is read and judged first ([`Sources`]). Then pairs are written in bounded
//! transactions, the superblock last: a store that was not filled to its end is refused by the MDT.
//! Serials and versions move on beyond all that the lost store can have given out. The store's log
//! is told of that before the store has its superblock, so that what is logged from now on follows
//! what was restored: a store that is lost once more comes back as this one did.

use crate::log::Log;
use crate::sources::{Segment, Sources};
use crate::stream::{Frames, Summary, is_stream, verify};
use crate::{Error, Identity};
use std::path::{Path, PathBuf};
use tieline_format::Record;
use tieline_format::ledger::{Frame, Group, Write};
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
    pub groups: u64,
    pub pairs: u64,
    /// The last commit that is in it.
    pub version: Version,
    /// What an operator should know.
    pub notes: Vec<String>,
}

/// What an operator asks for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Dumps, segments, and directories of both.
    pub paths: &'a [PathBuf],
    /// Where something is lacking, what is before it.
    pub up_to_hole: bool,
    /// The log that the store goes on with.
    pub log: Option<&'a Log>,
    pub now: Time,
}

/// Restores an MDT.
pub async fn restore(
    store: &dyn Store,
    identity: &Identity,
    asked: Asked<'_>,
) -> Result<Restored, Error> {
    if !store.begin().await?.scan(crate::dump::everything(), 1).await?.is_empty() {
        return Err(Error::NotEmpty { store: store.describe() });
    }
    let sources = Sources::gather(asked.paths, identity)?;
    let plan = sources.plan(identity.mdt, asked.up_to_hole)?;
    if let Some(log) = asked.log {
        let (reached, named) = (log.reach()?, plan.newest);
        if reached > named {
            let place = log.place().to_owned();
            return Err(Error::NotNamed { place, reached, named });
        }
    }
    let mut filler = Filler::new(store);
    if let Some((path, _)) = &plan.dump {
        let mut frames = Frames::open(path)?;
        while let Some((frame, _)) = frames.read()? {
            if let Frame::Pairs(pairs) = frame {
                filler.fill(pairs).await?;
            }
        }
    }
    let dump_version = plan.dump.as_ref().map_or(Version(0), |(_, version)| *version);
    let mut version = dump_version;
    let mut groups = 0;
    for (segment, until) in &plan.segments {
        let (applied, last) = filler.apply(segment, version, *until).await?;
        groups += applied;
        version = version.max(last);
    }
    let pairs = filler.pairs;
    let next = Next { newest: plan.newest, now: asked.now };
    let log = asked.log.map(|log| (log, version, plan.sequence));
    filler.finish(next, log).await?;
    Ok(Restored {
        dump: plan.dump.map(|(path, _)| path),
        dump_version,
        groups,
        pairs,
        version,
        notes: plan.notes,
    })
}

/// Beyond what a filled store goes on.
pub(crate) struct Next {
    pub newest: Version,
    pub now: Time,
}

/// Fills a store.
pub(crate) struct Filler<'a> {
    store: &'a dyn Store,
    /// Held back: it comes last.
    superblock: Option<Value>,
    last: Option<Durable>,
    pairs: u64,
}

impl<'a> Filler<'a> {
    pub(crate) fn new(store: &'a dyn Store) -> Self {
        Self { store, superblock: None, last: None, pairs: 0 }
    }

    async fn apply(
        &mut self,
        segment: &Segment,
        after: Version,
        until: Version,
    ) -> Result<(u64, Version), Error> {
        let mut frames = Frames::open(&segment.path)?;
        let (mut applied, mut last, mut place) = (0, after, None);
        let mut read = after.max(segment.head.version);
        while read < until {
            // It was read up to there before.
            let cut = |at| Error::Cut { path: segment.path.clone(), at };
            let (frame, _) = frames.read()?.ok_or_else(|| cut(frames.at()))?;
            match frame {
                Frame::Head(_) => place = Some(place.map_or(0, |place: usize| place + 1)),
                Frame::Group(group) if place == Some(segment.index) => {
                    read = group.version;
                    if group.version > after && group.version <= until {
                        last = group.version;
                        applied += 1;
                        self.fill(group.writes).await?;
                    }
                }
                _ => {}
            }
        }
        Ok((applied, last))
    }

    pub(crate) async fn fill(&mut self, writes: Vec<Write>) -> Result<(), Error> {
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

    /// `log`, if the store has one, holds what was filled in up to a version, in segments up to a
    /// sequence.
    pub(crate) async fn finish(
        self,
        next: Next,
        log: Option<(&Log, Version, u64)>,
    ) -> Result<(), Error> {
        let superblock = self.superblock.ok_or(Error::NoSuperblock)?;
        let mut superblock = Superblock::from_bytes(&superblock)?;
        superblock.file_serial += FILES_SKIPPED;
        superblock.session_serial += SESSIONS_SKIPPED;
        superblock.restored = Some(next.now);
        if let Some(durable) = self.last {
            durable.await?;
        }
        self.store.advance(Version(next.newest.0 + VERSIONS_SKIPPED)).await?;
        let (key, value) = (key::superblock(), superblock.to_bytes());
        let mut transaction = self.store.begin().await?;
        let filled = transaction.version();
        transaction.put(key.clone(), value.clone());
        if let Some((log, restored, sequence)) = log {
            // Nobody else commits to this store.
            let version = Version(filled.0 + 1);
            let writes = vec![Write { key, value: Some(value) }];
            let group = Group { after: filled, version, writes };
            log.go_on(restored, sequence, group)?;
        }
        let committed = transaction.commit().await?;
        assert_eq!(committed.version.0, filled.0 + 1, "somebody else writes to the store");
        committed.durable.await?;
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
    let is_named = |path: &PathBuf| path.extension().is_some_and(|it| it == "log" || it == "dump");
    let is_begun = |path: &PathBuf| path.extension().is_some_and(|it| it == "new" || it == "part");
    paths.retain(|path| is_named(path) || !is_begun(path) && path.is_file() && is_stream(path));
    paths.sort();
    Ok(paths.into_iter().map(|path| (path.clone(), verify(&path))).collect())
}
