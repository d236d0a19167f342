//! Sources of a restore: which dump and which segments count, and how far each does.
//!
//! Every byte is read first. The newest dump that is whole and of the store's past begins; segments
//! follow in the order of their sequence, each up to where a later one began: what is beyond that
//! never happened. A damaged segment counts up to its damage, and is an error only where something
//! behind that is wanted; a damaged dump counts for nothing, and is one where nothing else goes as
//! far.
//!
//! Invariant: what a plan leaves out without `up_to_hole` never happened.

use crate::directory::{self, Items};
use crate::stream::{Frames, Summary, read_whole};
use crate::{Error, Identity};
use std::path::{Path, PathBuf};
use tieline_format::ledger::{Frame, Head, HeadKind, PREAMBLE};
use tieline_types::{MdtIndex, Version};

/// One segment, perhaps within a stream of several.
pub(crate) struct Segment {
    pub path: PathBuf,
    /// Which of the stream's.
    pub index: usize,
    pub head: Head,
    /// Of its whole groups.
    last: Version,
    /// What follows those cannot be read.
    damage: Option<Error>,
}

/// A segment whose head cannot be read: only its name says which it is.
struct Headless {
    sequence: u64,
    path: PathBuf,
    damage: Error,
}

/// What there is to restore from.
#[derive(Default)]
pub(crate) struct Sources {
    dumps: Vec<(PathBuf, Head)>,
    /// In their order.
    segments: Vec<Segment>,
    headless: Vec<Headless>,
    damaged_dumps: Vec<(PathBuf, Head, Error)>,
    notes: Vec<String>,
}

/// What is to be restored.
pub(crate) struct Plan {
    pub dump: Option<(PathBuf, Version)>,
    /// Each with the last version that counts.
    pub segments: Vec<(Segment, Version)>,
    /// The newest version, and the highest sequence, that anything speaks of.
    pub newest: Version,
    pub sequence: u64,
    pub notes: Vec<String>,
}

impl Sources {
    pub fn gather(paths: &[PathBuf], identity: &Identity) -> Result<Self, Error> {
        let mut sources = Self::default();
        for path in paths {
            if !path.is_dir() {
                sources.read(path, identity)?;
                continue;
            }
            let items = Items::list(path, identity.mdt)?;
            for path in items.dumps.values() {
                match sources.read(path, identity) {
                    Err(error) if !matches!(error, Error::Foreign { .. }) => {
                        sources.notes.push(format!("{}: this dump is not used", error.chain()));
                    }
                    read => read?,
                }
            }
            for path in items.segments.values() {
                sources.read(path, identity)?;
            }
            for path in directory::others(path, identity.mdt)? {
                if is_of(&path, identity) {
                    sources.read(&path, identity)?;
                }
            }
        }
        // The same segment may be there twice: the longer copy counts, then the whole one.
        sources
            .segments
            .sort_by_key(|segment| (segment.head.sequence, segment.last, segment.damage.is_none()));
        sources.segments.reverse();
        sources.segments.dedup_by_key(|segment| segment.head.sequence);
        sources.segments.reverse();
        let segments = &sources.segments;
        let has_copy = |it: &Headless| segments.iter().any(|one| one.head.sequence == it.sequence);
        sources.headless.retain(|headless| !has_copy(headless));
        sources.headless.sort_by_key(|headless| headless.sequence);
        Ok(sources)
    }

    /// A dump counts if it is whole; a segment as far as it is.
    fn read(&mut self, path: &Path, identity: &Identity) -> Result<(), Error> {
        let sequence = directory::segment_sequence(path, identity.mdt);
        let mut frames = match Frames::open(path) {
            Ok(frames) => frames,
            Err(damage @ Error::Stream { .. }) => return self.add_headless(path, sequence, damage),
            Err(error) => return Err(error),
        };
        let (summary, damage) = read_whole(&mut frames, |_, _| ());
        match damage {
            Some(damage)
                if summary.parts.is_empty() && sequence.is_none() && !damage.is_newer() =>
            {
                let why = damage.chain();
                self.notes.push(format!("{why}: not used, and what it was cannot be told"));
                Ok(())
            }
            Some(damage) if summary.parts.is_empty() => self.add_headless(path, sequence, damage),
            Some(damage) if summary.is_dump() && !damage.is_newer() => {
                let first = summary.parts.into_iter().next();
                let Some((head, _)) = first else { return Err(damage) };
                check_identity(path, &head, identity)?;
                self.damaged_dumps.push((path.to_owned(), head, damage));
                Ok(())
            }
            Some(damage) if summary.is_dump() => Err(damage),
            damage => self.add(path, summary, damage, identity),
        }
    }

    fn add_headless(
        &mut self,
        path: &Path,
        sequence: Option<u64>,
        damage: Error,
    ) -> Result<(), Error> {
        let is_begun = matches!(damage, Error::Cut { .. })
            || path.metadata().is_ok_and(|found| found.len() < PREAMBLE as u64);
        match sequence {
            None => return Err(damage),
            Some(_) if damage.is_newer() => return Err(damage),
            // A crash when it was begun: nothing was acknowledged that is in it.
            Some(_) if is_begun => {
                self.notes.push(format!("{} was begun, and nothing is in it", path.display()));
            }
            Some(sequence) => {
                let path = path.to_owned();
                self.headless.push(Headless { sequence, path, damage });
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        path: &Path,
        summary: Summary,
        mut damage: Option<Error>,
        identity: &Identity,
    ) -> Result<(), Error> {
        if let Some(at) = summary.torn_at {
            let shown = path.display();
            self.notes
                .push(format!("{shown} is cut off at byte {at}: what follows never was done"));
        }
        let last_part = summary.parts.len().saturating_sub(1);
        for (index, (head, last)) in summary.parts.into_iter().enumerate() {
            check_identity(path, &head, identity)?;
            let path = path.to_owned();
            match head.kind {
                HeadKind::Segment => {
                    let damage = if index == last_part { damage.take() } else { None };
                    self.segments.push(Segment { path, index, head, last, damage });
                }
                HeadKind::Dump => self.dumps.push((path, head)),
            }
        }
        Ok(())
    }

    /// A store that is opened again goes on beyond all that it ever gave out; another does not.
    fn check_one_store(&self) -> Result<(), Error> {
        for pair in self.segments.windows(2) {
            let [before, next] = pair else { continue };
            if next.head.version < before.last {
                return Err(Error::TwoStores {
                    one: before.path.clone(),
                    other: next.path.clone(),
                    reached: before.last,
                    version: next.head.version,
                });
            }
        }
        Ok(())
    }

    /// The newest dump that holds nothing of what was given up when a segment was begun.
    fn dump(&mut self) -> Option<(PathBuf, Version)> {
        let mut newest: Option<(PathBuf, Version)> = None;
        for (path, head) in std::mem::take(&mut self.dumps) {
            let given_up = |segment: &&Segment| {
                segment.head.after < head.version && head.version < segment.head.version
            };
            if let Some(segment) = self.segments.iter().find(given_up) {
                let (shown, by) = (path.display(), segment.path.display());
                let note = format!("{shown} holds what was given up when {by} was begun: not used");
                self.notes.push(note);
            } else if newest.as_ref().is_none_or(|(_, version)| head.version > *version) {
                newest = Some((path, head.version));
            }
        }
        newest
    }

    pub fn plan(mut self, mdt: MdtIndex, up_to_hole: bool) -> Result<Plan, Error> {
        self.check_one_store()?;
        let newest = self.newest();
        let sequence = self.sequence();
        let dump = self.dump();
        let ends = self.ends();
        let Self { segments, mut headless, mut notes, damaged_dumps, .. } = self;
        let mut reached = dump.as_ref().map_or(Version(0), |(_, version)| *version);
        let mut wanted: Vec<(Segment, Version)> = vec![];
        // What is lacking before the next segment, if that does not follow.
        let mut damage: Option<(PathBuf, Error)> = None;
        let mut hole = None;
        for (mut segment, end) in segments.into_iter().zip(ends) {
            while headless.first().is_some_and(|one| one.sequence < segment.head.sequence) {
                let Headless { path, damage: why, .. } = headless.remove(0);
                damage.get_or_insert((path, why));
            }
            if end <= reached {
                note_unwanted(&mut notes, segment.damage.map(|why| (segment.path, why)));
                continue;
            }
            if segment.head.after > reached {
                let is_first = dump.is_none() && wanted.is_empty();
                hole = Some(match damage.take() {
                    Some((path, source)) => Error::damaged(path, reached, source),
                    None if is_first => return Err(Error::NoDump { after: segment.head.after }),
                    None => Error::Hole { from: reached, to: segment.head.after },
                });
                break;
            }
            note_unwanted(&mut notes, damage.take());
            damage = segment.damage.take().map(|why| (segment.path.clone(), why));
            // A jump of versions at a start is no group: it is cut by nothing.
            let until = end.min(segment.last);
            if until <= reached && segment.head.version <= reached {
                continue;
            }
            reached = reached.max(segment.head.version).max(until);
            wanted.push((segment, until));
        }
        if hole.is_none() {
            let last = headless.into_iter().next().map(|one| (one.path, one.damage));
            hole = damage.or(last).map(|(path, source)| Error::damaged(path, reached, source));
        }
        for (path, head, why) in damaged_dumps {
            if head.version > reached && hole.is_none() {
                hole = Some(Error::damaged(path, reached, why));
            } else {
                notes.push(format!("{}: this dump is not used", why.chain()));
            }
        }
        match hole {
            Some(hole) if up_to_hole => {
                notes.push(format!("restored only what is before a hole: {}", hole.chain()));
            }
            Some(hole) => return Err(hole),
            None => {}
        }
        if dump.is_none() && wanted.is_empty() {
            return Err(Error::Nothing { mdt });
        }
        Ok(Plan { dump, segments: wanted, newest, sequence, notes })
    }

    /// Up to where each segment counts: to where the first of all later ones began.
    fn ends(&self) -> Vec<Version> {
        let mut end = Version(u64::MAX);
        let mut ends: Vec<Version> = self
            .segments
            .iter()
            .rev()
            .map(|segment| {
                let before = end.min(segment.head.after);
                std::mem::replace(&mut end, before)
            })
            .collect();
        ends.reverse();
        ends
    }

    fn newest(&self) -> Version {
        let segments = self.segments.iter().map(|segment| segment.last);
        let dumps = self.dumps.iter().map(|(_, head)| head.version);
        let damaged = self.damaged_dumps.iter().map(|(_, head, _)| head.version);
        segments.chain(dumps).chain(damaged).max().unwrap_or_default()
    }

    fn sequence(&self) -> u64 {
        let segments = self.segments.iter().map(|segment| segment.head.sequence);
        let dumps = self.dumps.iter().map(|(_, head)| head.sequence);
        let headless = self.headless.iter().map(|headless| headless.sequence);
        segments.chain(dumps).chain(headless).max().unwrap_or_default()
    }
}

/// Is it a dump or a segment of this MDT's? What has another head is somebody else's.
fn is_of(path: &Path, identity: &Identity) -> bool {
    let Ok(mut frames) = Frames::open(path) else { return false };
    match frames.read() {
        Ok(Some((Frame::Head(head), _))) => check_identity(path, &head, identity).is_ok(),
        // To be told of.
        _ => true,
    }
}

fn check_identity(path: &Path, head: &Head, identity: &Identity) -> Result<(), Error> {
    let found = Identity { fs: head.fs.clone(), mdt: head.mdt };
    if found == *identity {
        return Ok(());
    }
    let (found, wanted) = (found.label(), identity.label());
    Err(Error::Foreign { path: path.to_owned(), found, wanted })
}

fn note_unwanted(notes: &mut Vec<String>, damaged: Option<(PathBuf, Error)>) {
    if let Some((path, damage)) = damaged {
        let (shown, why) = (path.display(), damage.chain());
        notes.push(format!("{shown} is damaged ({why}): nothing behind that is wanted"));
    }
}
