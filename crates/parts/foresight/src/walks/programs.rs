//! What programs open, as *runs*: which files of an MDT, in the order of their first opens, and in
//! which directories they looked for names. Runs are told to the MDS, which keeps them as bundles;
//! and bundles of others are recognised, and followed ahead of the program.
//!
//! With a directory come the *signs* of the bundles below it: some of their files. Whoever opens
//! one has the lists of those bundles asked for, and follows the one that came true most lately:
//! its directories and files come in its order, from where the program is. What is followed is
//! taken back when three opens in a row are not in it; then another may be followed.
//!
//! Invariants: all is bounded; a list is asked for once, and four for one run at most.

use super::Walk;
use crate::bundles::{FILES_MIN, KEPT_MAX};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tieline_types::FileId;
use tieline_wire::trees::{BUNDLE_MAX, BundleList, BundleSigns, ReportBundle, SizedFile};
use tokio::time::Instant;

/// After so long without an open a program's run is over.
pub const QUIET: Duration = Duration::from_secs(2);
/// A run that has no end is told in parts.
const RUN_MAX: Duration = Duration::from_secs(600);
/// What is used and not news is told so often, lest others take its place.
const USE_TOLD: Duration = Duration::from_secs(3600);
/// Runs that are over and wait for being told.
const OVER_MAX: usize = 4;
/// Files that are signs, and lists that are remembered.
const SIGNS_KNOWN_MAX: usize = 32 << 10;
const LISTS_MAX: usize = 32;
const ASKED_MAX: usize = 4;
/// All opens lately were not in it. Each counts for a quarter.
const ALL_WRONG: u32 = 1 << 10;
const LATELY: u32 = 4;
/// More is not followed, and up to so much nothing need be guessed besides.
const DOUBTED: u32 = ALL_WRONG / 2;
const BELIEVED: u32 = ALL_WRONG / 4;
/// So much more must be wrong of what is followed than of another.
const BETTER: u32 = ALL_WRONG / 4;
/// Opens of a run that a list is tried on when it comes.
const TRIED_MAX: usize = 16;
/// Bytes of the first bundle that is followed in a run that may come at once, half as many of the
/// next, and so on; and so many times the bytes of its files that were opened.
const TRUST: u64 = 4 << 20;
const OPENED_GAIN: u64 = 4;
/// What is opened counts as so much at least.
const OPENED_MIN: u64 = 16 << 10;
/// Who goes so far ahead in a list goes another way, perhaps.
const JUMP: usize = 64;

/// Which bundle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Which {
    pub root: FileId,
    pub number: u32,
}

/// What a program opened, each once.
#[derive(Clone, Default)]
pub struct Run {
    pub directories: Vec<FileId>,
    /// With their sizes and directories.
    pub files: Vec<Opened>,
    seen: BTreeSet<FileId>,
    times: Option<(Instant, Instant)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    pub id: FileId,
    pub parent: FileId,
    pub size: u64,
}

impl Run {
    fn is_over(&self) -> bool {
        let is_full = self.files.len() >= BUNDLE_MAX || self.directories.len() >= BUNDLE_MAX;
        let is_late = |&(first, last): &(Instant, Instant)| {
            last.elapsed() >= QUIET || first.elapsed() >= RUN_MAX
        };
        is_full || self.times.as_ref().is_some_and(is_late)
    }

    fn touch(&mut self) {
        let now = Instant::now();
        self.times = Some((self.times.map_or(now, |(first, _)| first), now));
    }

    fn enter(&mut self, directory: FileId) {
        self.touch();
        if self.directories.len() < BUNDLE_MAX && self.seen.insert(directory) {
            self.directories.push(directory);
        }
    }

    /// What is to be said of it, below the directory that all of it is below. `way_up` gives a
    /// directory and those above it.
    pub fn report(&self, way_up: impl Fn(FileId) -> Vec<FileId>) -> Option<ReportBundle> {
        let opened_in: BTreeSet<FileId> = self.files.iter().map(|file| file.parent).collect();
        let entered = self.directories.iter().chain(&opened_in);
        let ways: BTreeMap<FileId, Vec<FileId>> = entered.map(|&id| (id, way_up(id))).collect();
        // Who goes down a path enters all that is above, and means the last.
        let passed: BTreeSet<FileId> =
            ways.values().flat_map(|way| way.iter().skip(1)).copied().collect();
        let meant = ways.iter().filter(|(id, _)| !passed.contains(id) || opened_in.contains(id));
        let mut meant = meant.map(|(_, way)| way);
        let mut shared: Vec<FileId> = meant.next()?.clone();
        for way in meant {
            let way: BTreeSet<FileId> = way.iter().copied().collect();
            shared.retain(|id| way.contains(id));
        }
        let root = *shared.first()?;
        let is_below = |id: &FileId| ways.get(id).is_some_and(|way| way.contains(&root));
        let directories = self.directories.iter().copied().filter(is_below).collect();
        let files = self.files.iter().map(|file| file.id).collect();
        Some(ReportBundle { root, directories, files })
    }

    /// Says whether it was not opened in this run.
    fn open(&mut self, file: Opened) -> bool {
        let is_new = self.files.len() < BUNDLE_MAX && self.seen.insert(file.id);
        if is_new {
            self.files.push(file);
        }
        is_new
    }
}

/// A list that came.
struct Known {
    list: BundleList,
    directories: BTreeSet<FileId>,
    places: BTreeMap<FileId, usize>,
    /// Of [`ALL_WRONG`], lately.
    wrong: u32,
    /// Where in it the program is.
    place: usize,
    used_told: Option<Instant>,
}

impl Known {
    fn new(list: BundleList) -> Self {
        let places = list.files.iter().enumerate().map(|(place, file)| (file.id, place)).collect();
        let directories = list.directories.iter().copied().collect();
        Self { list, directories, places, wrong: DOUBTED, place: 0, used_told: None }
    }

    fn judge(&mut self, file: FileId) {
        let wrong = match self.places.get(&file) {
            None => ALL_WRONG,
            Some(&place) => {
                let is_near = place <= self.place + JUMP;
                self.place = place;
                if is_near { 0 } else { DOUBTED }
            }
        };
        self.wrong = self.wrong - self.wrong / LATELY + wrong / LATELY;
    }

    fn has(&self, file: FileId) -> bool {
        self.places.contains_key(&file)
    }

    fn tells(&self, run: &Run) -> bool {
        let news = run.files.iter().filter(|file| !self.has(file.id)).count();
        // Some files of each run are its own.
        news * 50 <= run.files.len()
    }
}

#[derive(Default)]
pub(super) struct Programs {
    run: Run,
    over: Vec<Run>,
    /// Somebody sees to telling.
    is_due: bool,
    /// Files, and the bundles that they are signs of.
    signs: BTreeMap<FileId, BTreeSet<Which>>,
    lists: BTreeMap<Which, Known>,
    asked: BTreeSet<Which>,
    /// Asked for next.
    wanted: Vec<Which>,
    followed: Option<Which>,
    /// What is left of its directories.
    pub directories: VecDeque<FileId>,
    /// Bytes of it that came or are on their way, and those of its files that were opened.
    pub brought: u64,
    opened: u64,
    /// Others that were followed in this run.
    others: u32,
}

impl Programs {
    /// Need nothing be guessed? Of what came so much is not opened that no more of it may come:
    /// then something need.
    pub fn are_believed(&self) -> bool {
        let is_right = self.followed().is_some_and(|known| known.wrong <= BELIEVED);
        is_right && self.window() >= OPENED_MIN
    }

    /// Is this directory one of those that are followed?
    pub fn foretold(&self, directory: FileId) -> bool {
        let known = self.followed().filter(|known| known.wrong <= BELIEVED);
        known.is_some_and(|known| known.directories.contains(&directory))
    }

    /// How many more bytes of what is followed may come.
    pub fn window(&self) -> u64 {
        let trust = TRUST.checked_shr(self.others).unwrap_or(0);
        (trust + OPENED_GAIN * self.opened).saturating_sub(self.brought)
    }

    fn followed(&self) -> Option<&Known> {
        self.followed.as_ref().and_then(|which| self.lists.get(which))
    }

    fn begin_if_over(&mut self) {
        if !self.run.is_over() {
            return;
        }
        let run = std::mem::take(&mut self.run);
        if self.over.len() < OVER_MAX {
            self.over.push(run);
        }
        self.asked.clear();
        self.followed = None;
        self.directories.clear();
        (self.brought, self.opened, self.others) = (0, 0, 0);
        for known in self.lists.values_mut() {
            (known.wrong, known.place) = (DOUBTED, 0);
        }
    }

    /// Lists of which this file is a sign.
    fn want(&mut self, file: FileId) {
        let of = self.signs.get(&file).into_iter().flatten().copied();
        let is_new = |which: &Which| !self.lists.contains_key(which) && !self.asked.contains(which);
        let new: Vec<Which> = of.filter(is_new).collect();
        for which in new {
            if self.asked.len() < ASKED_MAX {
                self.asked.insert(which);
                self.wanted.push(which);
            }
        }
    }

    /// The one that is least wrong, if it is better than what is followed.
    fn best(&self) -> Option<Which> {
        let best = self.lists.iter().min_by_key(|(_, known)| known.wrong)?;
        let limit = match self.followed() {
            Some(known) if known.wrong <= DOUBTED => known.wrong.saturating_sub(BETTER),
            _ => DOUBTED,
        };
        (best.1.wrong < limit).then_some(*best.0)
    }
}

impl Walk {
    /// Somebody looks for a name there.
    pub(super) fn enter(&mut self, directory: FileId) {
        self.programs.begin_if_over();
        self.programs.run.enter(directory);
    }

    /// A file is opened. `waits`: it has not come. Says whether somebody has to see that the run is
    /// told when it is over.
    pub fn gather(&mut self, file: Opened, waits: bool) -> bool {
        let programs = &mut self.programs;
        programs.begin_if_over();
        programs.run.enter(file.parent);
        if programs.run.open(file) {
            programs.lists.values_mut().for_each(|known| known.judge(file.id));
            programs.want(file.id);
            self.follow();
            let is_foretold = self.programs.followed().is_some_and(|one| one.has(file.id));
            if is_foretold {
                self.programs.opened += file.size.max(OPENED_MIN);
            }
            if waits {
                self.go_to(file.id);
            }
        }
        !std::mem::replace(&mut self.programs.is_due, true)
    }

    /// Follows what came true most lately, or nothing.
    fn follow(&mut self) {
        let best = self.programs.best();
        let is_wrong = self.programs.followed().is_some_and(|known| known.wrong > DOUBTED);
        if best.is_none() && !is_wrong {
            return;
        }
        if let Some(before) = std::mem::replace(&mut self.programs.followed, best)
            && best != Some(before)
        {
            let programs = &mut self.programs;
            (programs.brought, programs.opened, programs.others) = (0, 0, programs.others + 1);
        }
        self.followed_files.clear();
        self.programs.directories.clear();
        let Some(known) = self.programs.followed() else { return };
        let place = known.place;
        let files = known.list.files.iter().map(|file| (file.id, file.size));
        let mut files: VecDeque<(FileId, u64)> = files.collect();
        files.rotate_left((place + 1).min(files.len()) % files.len().max(1));
        self.programs.directories = known.list.directories.iter().copied().collect();
        self.followed_files = files;
    }

    /// Does a bundle come true that is followed? Then nothing need be guessed.
    pub fn is_led(&self) -> bool {
        self.programs.are_believed()
    }

    /// What is left comes from there on.
    fn go_to(&mut self, file: FileId) {
        let Some(known) = self.programs.followed() else { return };
        let Some(&place) = known.places.get(&file) else { return };
        let is_behind =
            |(id, _): &(FileId, u64)| known.places.get(id).is_some_and(|at| *at > place);
        if let Some(first) = self.followed_files.iter().position(is_behind) {
            self.followed_files.rotate_left(first);
        }
    }

    /// Bytes went that were here: all may come again.
    pub(super) fn follow_again(&mut self) {
        if self.programs.followed.take().is_some() {
            self.follow();
        }
    }

    /// A directory came with bundles of what is below it.
    pub fn learn_signs(&mut self, root: FileId, signs: Vec<BundleSigns>) {
        let programs = &mut self.programs;
        if programs.signs.len() >= SIGNS_KNOWN_MAX {
            programs.signs.clear();
        }
        for BundleSigns { number, signs } in signs {
            for file in signs {
                let of = programs.signs.entry(file).or_default();
                if of.len() < KEPT_MAX {
                    of.insert(Which { root, number });
                }
            }
        }
        let opened = programs.run.files.iter().map(|file| file.id).take(TRIED_MAX);
        let opened: Vec<FileId> = opened.collect();
        opened.into_iter().for_each(|file| programs.want(file));
    }

    /// A bundle whose list is to be asked for.
    pub fn wanted_list(&mut self) -> Option<Which> {
        self.programs.wanted.pop()
    }

    pub fn learn_list(&mut self, which: Which, list: BundleList) {
        let programs = &mut self.programs;
        if programs.lists.len() >= LISTS_MAX {
            programs.lists.retain(|known, _| programs.followed == Some(*known));
        }
        let mut known = Known::new(list);
        let opened = programs.run.files.iter();
        let lately = opened.skip(programs.run.files.len().saturating_sub(TRIED_MAX));
        lately.for_each(|file| known.judge(file.id));
        programs.lists.insert(which, known);
        if programs.followed == Some(which) {
            programs.followed = None;
        }
        self.follow();
    }

    /// Runs that are over, if they are worth telling, and whether another is under way. `ends`:
    /// none goes on.
    pub fn runs_to_tell(&mut self, ends: bool) -> (Vec<Run>, bool) {
        let programs = &mut self.programs;
        if ends || programs.run.is_over() {
            programs.over.push(std::mem::take(&mut programs.run));
        }
        programs.is_due = programs.run.times.is_some();
        let over = std::mem::take(&mut programs.over);
        let news = over.into_iter().filter(|run| programs.is_news(run)).collect();
        (news, self.programs.is_due)
    }

    /// The MDS keeps what was told as this.
    pub fn told(&mut self, which: Which, run: &Run) {
        let files = run.files.iter().map(|file| SizedFile { id: file.id, size: file.size });
        let list = BundleList { directories: run.directories.clone(), files: files.collect() };
        self.learn_list(which, list);
        if let Some(known) = self.programs.lists.get_mut(&which) {
            known.used_told = Some(Instant::now());
        }
    }
}

impl Programs {
    fn is_news(&mut self, run: &Run) -> bool {
        let mut is_known = false;
        let now = Instant::now();
        for known in self.lists.values_mut().filter(|known| known.tells(run)) {
            let told = known.used_told.filter(|told| now.duration_since(*told) < USE_TOLD);
            is_known |= told.is_some();
            known.used_told = told.or(Some(now));
        }
        !is_known && run.files.len() >= FILES_MIN
    }
}

#[cfg(test)]
mod tests;
