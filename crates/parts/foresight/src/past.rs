//! How files were read, and what that says of what will be read next.
//!
//! A *walk* is what is read of a file until it rests for a while: runs of bytes, in the order in
//! which they were begun, whichever handles they were read through (many programs open a file anew
//! for each block they want). From it four things follow:
//!
//! * runs that lie equally far from each other go on so ([`stride`]);
//! * whoever goes on where he stopped, place by place, does so at all of them ([`rounds`]);
//! * whoever reads block after block from the end reads what lies before them ([`backward`]);
//! * who reads as was read before goes on as was read before ([`walk`]): on the same file, and on
//!   other files of its directory, once more than their beginnings agree.
//!
//! What is foretold is what was read, not what lies between. It grows with what came true: twice as
//! many bytes are fetched ahead as were foretold rightly, so a past that does not repeat itself
//! costs little. No byte is foretold twice, nor after it was read ([`pass`]).
//!
//! It also says whether the kernel's cache would only add to what is read ([`Manner`]).
//!
//! Knows no chunk, no server. Nothing of it outlives the process.
//!
//! Invariants: at most [`FILES_MAX`] files of [`RUNS_MAX`] runs are remembered; a changed file has
//! no past.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use tieline_ranges::merged::Merged;
use tieline_types::{FileId, Version};
use tokio::time::Instant;

pub mod anew;
mod backward;
mod pass;
mod rounds;
mod stride;
mod walk;

use anew::PIECE_MAX;
use backward::Backward;
use pass::Pass;
use rounds::Rounds;
use stride::Stride;
use walk::{Told, Walk};

const FILES_MAX: usize = 512;
const RUNS_MAX: usize = 1024;
/// A file that rests so long is read anew.
const REST: Duration = Duration::from_secs(1);
/// Kernels that cache read whole pages.
pub const PAGE: u64 = 4096;
/// What is fetched ahead before anything came true: a header and an index.
const TRUST: u64 = 1 << 20;
/// A file is read in scattered small pieces if it has so many runs, half of them at most so long.
const SCATTERED_FROM: usize = 64;
const SCATTERED_RUN: u64 = 16 << 10;
/// Whoever asks again for more than a header and an index wants a cache.
const REREAD: u64 = 512 << 10;
/// Whoever left so many gaps is not worth remembering for that.
const SEEN_MAX: usize = 4096;

#[derive(Default)]
pub struct Past {
    files: BTreeMap<FileId, Story>,
    /// The file of a directory that was last read to some length.
    latest: BTreeMap<FileId, FileId>,
    clock: u64,
}

struct Story {
    version: Version,
    /// The walk that is under way.
    walk: Walk,
    at: Instant,
    stride: Stride,
    rounds: Rounds,
    backward: Backward,
    pass: Pass,
    /// The walk before, or one through another file of the directory.
    told: Option<Told>,
    /// The longest run of walks that are over. The kernel was given all of it: pieces of it are
    /// what it has dropped.
    given: Range<u64>,
    /// All that was ever asked for, and how much of it again.
    seen: Merged,
    again: u64,
    used: u64,
}

/// A read that came.
#[derive(Clone, Debug)]
pub struct Step {
    pub file: FileId,
    pub version: Version,
    pub directory: Option<FileId>,
    pub range: Range<u64>,
    /// Past the kernel's cache, of a file that is opened anew for each piece: where this one
    /// begins.
    pub piece: Option<u64>,
    /// The most to be fetched ahead of it.
    pub window: u64,
}

/// What comes after a read.
#[derive(Clone, Debug, Default)]
pub struct Foretold {
    pub ranges: Vec<Range<u64>>,
    /// The longest run of late, where the file is read in runs; else 0.
    pub run: u64,
}

/// What a file's past says of how it should be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    Unknown,
    /// From place to place, in pieces that are smaller than what the kernel would add.
    Scattered,
    /// From place to place, and opened for each ([`anew`]).
    Anew,
}

impl Past {
    /// Takes note of a read, and says what will be read after it.
    pub fn note(&mut self, step: &Step) -> Foretold {
        self.clock += 1;
        self.admit(step);
        let now = Instant::now();
        let Some(story) = self.files.get_mut(&step.file) else { return Foretold::default() };
        story.used = self.clock;
        if now - story.at >= REST {
            story.rest();
        }
        story.at = now;
        story.see(&step.range);
        if story.pass.note(&step.range) {
            (story.stride, story.rounds, story.backward) = Default::default();
        }
        let begun = story.walk.note(&step.range);
        let run = story.walk.longest_but(&step.range);
        let ranges = match &mut story.told {
            Some(told) => told.next(&step.range, step.window),
            None => Vec::new(),
        };
        if let Some(directory) = step.directory.filter(|_| story.walk.is_telling()) {
            self.latest.insert(directory, step.file);
        }
        let round = story.rounds.note(&step.range, step.window);
        // Whoever reads as before stops where he stopped before.
        let is_told = story.told.as_ref().is_some_and(Told::is_right);
        let ranges = if is_told || !ranges.is_empty() { ranges } else { round };
        let ranges = match begun && ranges.is_empty() {
            true => story.stride.next(&story.walk, step.window),
            false => ranges,
        };
        let before = story.backward.note(&step.range, step.window);
        let ranges = match step.piece {
            Some(start) => story.as_read(ranges, &(start..step.range.end), &step.range),
            None if ranges.is_empty() => before.into_iter().collect(),
            None => ranges,
        };
        Foretold { ranges: story.pass.new_of(ranges), run }
    }

    /// The same of ranges that were asked for in one call, in their order. Whoever asks so says
    /// himself how far apart they lie: foretold is only what was read after them before.
    pub fn note_list(&mut self, step: &Step, ranges: &[Range<u64>]) -> Foretold {
        self.clock += 1;
        self.admit(step);
        let now = Instant::now();
        let Some(story) = self.files.get_mut(&step.file) else { return Foretold::default() };
        story.used = self.clock;
        if now - story.at >= REST {
            story.rest();
        }
        story.at = now;
        let mut told = Vec::new();
        for range in ranges {
            story.see(range);
            story.pass.note(range);
            story.walk.note(range);
            told.extend(story.told.iter_mut().flat_map(|one| one.next(range, step.window)));
        }
        (story.stride, story.rounds, story.backward) = Default::default();
        if let Some(directory) = step.directory.filter(|_| story.walk.is_telling()) {
            self.latest.insert(directory, step.file);
        }
        Foretold { ranges: story.pass.new_of(told), run: 0 }
    }

    /// The file is opened; says how it is read.
    pub fn opened(&mut self, file: FileId, directory: Option<FileId>, size: u64) -> Manner {
        if let Some(story) = self.files.get_mut(&file) {
            let now = Instant::now();
            if now - story.at >= REST {
                story.rest();
                story.at = now;
            }
            story.walk.note_open();
        }
        match self.manner(file, directory) {
            // What lies beside large files need not be read as they are.
            Manner::Anew if size < PIECE_MAX => Manner::Unknown,
            manner => manner,
        }
    }

    /// How a file is read, or others in its directory.
    pub fn manner(&self, file: FileId, directory: Option<FileId>) -> Manner {
        let own = self.files.get(&file);
        let kin = || self.files.get(self.latest.get(&directory?)?);
        match own.or_else(kin) {
            Some(story) if story.is_scattered() => Manner::Scattered,
            Some(story) if story.is_anew() => Manner::Anew,
            _ => Manner::Unknown,
        }
    }

    /// Makes place for a file, with what others of its directory tell.
    fn admit(&mut self, step: &Step) {
        let known = self.files.get(&step.file);
        if known.is_some_and(|story| story.version == step.version) {
            return;
        }
        let kin = step.directory.and_then(|directory| self.latest.get(&directory));
        let kin = kin.filter(|&&kin| kin != step.file).and_then(|kin| self.files.get(kin));
        let told = kin.and_then(|story| story.best()).filter(|walk| walk.is_telling());
        let told = told.map(|walk| Told::of_kin(walk.clone()));
        // Who reads others twice reads this one twice.
        let again = kin.map_or(0, |story| story.again);
        let again = if again > REREAD { again } else { 0 };
        let seen = Merged::default();
        let (version, used, at) = (step.version, self.clock, Instant::now());
        let (walk, stride, rounds, backward, pass) = Default::default();
        let given = 0..0;
        let story = Story {
            version,
            walk,
            at,
            stride,
            rounds,
            backward,
            pass,
            told,
            given,
            seen,
            again,
            used,
        };
        self.files.insert(step.file, story);
        if self.files.len() > FILES_MAX {
            let oldest = self.files.iter().min_by_key(|(_, story)| story.used);
            if let Some(oldest) = oldest.map(|(&id, _)| id) {
                self.files.remove(&oldest);
                self.latest.retain(|_, file| *file != oldest);
            }
        }
    }
}

impl Story {
    /// The file was not read for a while: what comes now begins anew.
    fn rest(&mut self) {
        let walk = std::mem::take(&mut self.walk);
        let length = |run: &Range<u64>| run.end - run.start;
        let longest = walk.runs().iter().chain([&self.given]).max_by_key(|run| length(run));
        self.given = longest.cloned().unwrap_or_default();
        let before = self.told.take().filter(Told::is_right).map(Told::into_walk);
        // What the kernel has is not asked for again: a walk that is part of the one before says
        // less than that.
        let kept = match before {
            Some(before) if walk.bytes() < before.bytes() / 2 => before,
            _ => walk,
        };
        self.told = kept.is_telling().then(|| Told::own(kept));
        (self.stride, self.rounds, self.backward, self.pass) = Default::default();
    }

    /// The walk that says most.
    fn best(&self) -> Option<&Walk> {
        let told = self.told.as_ref().map(Told::walk);
        told.into_iter().chain([&self.walk]).max_by_key(|walk| walk.bytes())
    }

    /// Takes note of what was asked for, and whether it was before.
    fn see(&mut self, range: &Range<u64>) {
        let new: u64 = self.seen.gaps(range.clone()).iter().map(|gap| gap.end - gap.start).sum();
        self.again += range.end - range.start - new;
        self.seen.add(range.clone());
        if self.seen.count() > SEEN_MAX {
            (self.seen, self.again) = (Merged::default(), REREAD + 1);
        }
    }

    /// What is foretold for a piece of a file that is opened anew for each.
    fn as_read(
        &mut self,
        foretold: Vec<Range<u64>>,
        piece: &Range<u64>,
        request: &Range<u64>,
    ) -> Vec<Range<u64>> {
        let told = self.told.as_ref().map_or(0, |told| told.walk().piece());
        let longest = told.max(self.walk.piece());
        self.walk.note_piece(piece);
        anew::as_read(foretold, (piece, request), longest)
    }

    fn is_anew(&self) -> bool {
        let told = self.told.as_ref().map(Told::walk);
        self.again <= REREAD && told.into_iter().chain([&self.walk]).any(anew::is_anew)
    }

    fn is_scattered(&self) -> bool {
        let is_asked_for =
            |run: &Range<u64>| run.start < self.given.start || run.end > self.given.end;
        self.best().is_some_and(|walk| {
            let lengths =
                walk.runs().iter().filter(|run| is_asked_for(run)).map(|run| run.end - run.start);
            let lengths: Vec<u64> = lengths.collect();
            let small = lengths.iter().filter(|&&length| length <= SCATTERED_RUN).count();
            lengths.len() >= SCATTERED_FROM && small * 2 >= lengths.len()
        })
    }
}

#[cfg(test)]
mod tests;
