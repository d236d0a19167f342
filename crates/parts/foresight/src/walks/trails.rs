//! In which order files are opened: what programs here do, to be told to the MDS; and what others
//! did before, as the MDS tells it.
//!
//! Files of a trail are expected as soon as one is opened there: the rest of its directory's, then
//! those of the directory where others went next, and so on, as long as enough of what was expected
//! comes to be used.
//!
//! Invariants: trails are bounded in number and length; only what is news is reported.

use super::Walk;
use std::collections::{BTreeMap, BTreeSet};
use tieline_types::FileId;
use tieline_wire::trees::{TRAIL_MAX, Trail, TrailOf};

/// Directories whose trails are remembered, and those of one report.
const KNOWN_MAX: usize = 32 << 10;
const GATHERED_MAX: usize = 8 << 10;
/// Bytes that the word of others is good for, before any of them is used.
const TRUST: u64 = 4 << 20;
/// All of what was opened lately was foretold. Each open counts for an eighth of it, so that three
/// that were not end the belief, and six in a row all use of it.
const CERTAIN: u32 = 1 << 10;
const LATELY: u32 = 8;
/// From so much on nothing need be guessed besides, and down to so much nothing is asked for.
const BELIEVED: u32 = CERTAIN * 3 / 4;
const DOUBTED: u32 = CERTAIN / 2;
/// More ways of eight than seven were others: so many programs go that share a tree and nothing
/// else. Of those that do the same again it is about half.
const ASTRAY: u32 = CERTAIN * 7 / 8;
/// So many of the last ways count.
const WAYS_LATELY: u32 = 12;
/// Files that are expected ahead of the one that is opened.
const EXPECTED_MAX: usize = 2048;

/// What is known of a directory when somebody has gone through it once more: his way first; but
/// behind what was known, if he goes on where that ended: one who goes through a large directory
/// tells of it in parts. What is too much goes at the end, so that what nobody opens any more is
/// forgotten.
pub fn merge(old: &Trail, new: &Trail) -> Trail {
    let known: BTreeSet<FileId> = old.files.iter().copied().collect();
    let goes_on = new.files.len() + old.files.len() <= TRAIL_MAX
        && !new.files.iter().any(|id| known.contains(id));
    let (first, then) = if goes_on { (&old.files, &new.files) } else { (&new.files, &old.files) };
    let mut seen = BTreeSet::new();
    let files = first.iter().chain(then).copied();
    let files: Vec<FileId> = files.filter(|id| seen.insert(*id)).take(TRAIL_MAX).collect();
    Trail { files, next: new.next.or(old.next) }
}

#[derive(Default)]
pub(super) struct Trails {
    /// As the MDS told them, and what was opened here.
    known: BTreeMap<FileId, Trail>,
    /// Of these, those that were not expected yet.
    left: BTreeSet<FileId>,
    /// What happens here, since the last report.
    gathered: BTreeMap<FileId, Trail>,
    /// Where the last file was opened.
    last: Option<FileId>,
    /// Whose trails were expected, and whose is next.
    followed: BTreeSet<FileId>,
    next: Option<FileId>,
    is_trusted: bool,
    /// How much of what was opened lately they did not foretell, of [`CERTAIN`].
    doubt: u32,
    /// The share of ways from directory to directory, lately, that trails did not tell, of
    /// [`CERTAIN`].
    astray: u32,
    /// Somebody sees to a report.
    is_due: bool,
}

impl Trails {
    /// Is known what will be opened there, so that nothing need be guessed? A trail of full length
    /// need not be whole.
    pub fn suffices(&self, directory: FileId) -> bool {
        let tells = self.known.get(&directory).is_some_and(|one| one.files.len() < TRAIL_MAX);
        tells && self.are_believed()
    }

    /// A file is opened: was it foretold?
    pub fn came_true(&mut self, directory: FileId, file: FileId) {
        let Some(trail) = self.known.get(&directory) else { return };
        let missing = if trail.files.contains(&file) { 0 } else { CERTAIN };
        self.doubt = self.doubt - self.doubt / LATELY + missing / LATELY;
    }

    /// A trail came after files were opened in its directory: were they foretold?
    fn look_back(&mut self, directory: FileId) {
        let opened = self.gathered.get(&directory).map(|trail| trail.files.clone());
        for file in opened.into_iter().flatten() {
            self.came_true(directory, file);
        }
    }

    pub fn are_believed(&self) -> bool {
        self.doubt <= CERTAIN - BELIEVED && !self.lead_astray()
    }

    /// Does the program go other ways than those before it? Then trails tell of directories where
    /// it is, and of none where it may come to.
    fn lead_astray(&self) -> bool {
        self.astray > ASTRAY
    }

    /// A file is opened in one directory after one in another: was that told?
    fn went(&mut self, from: FileId, to: FileId) {
        let told = self.known.get(&from).and_then(|trail| trail.next);
        let Some(told) = told else { return };
        let wrong = if told == to { 0 } else { CERTAIN };
        self.astray = self.astray - self.astray / WAYS_LATELY + wrong / WAYS_LATELY;
    }

    /// Was anything expected by them?
    pub fn are_followed(&self) -> bool {
        !self.followed.is_empty()
    }

    pub fn may_be_right(&self) -> bool {
        self.doubt <= CERTAIN - DOUBTED
    }

    /// What was known was wrong, or not all. Says whether anything was.
    pub fn doubt(&mut self, directory: FileId) -> bool {
        self.left.remove(&directory);
        self.known.remove(&directory).is_some()
    }

    pub fn forget(&mut self) {
        self.followed.clear();
        self.left = self.known.keys().copied().collect();
        self.next = None;
    }

    /// All is expected again that is not over, from there on.
    pub fn begin(&mut self, directory: FileId, is_over: impl Fn(&Trail) -> bool) {
        self.followed.clear();
        let left = self.known.iter().filter(|(_, trail)| !is_over(trail));
        self.left = left.map(|(&id, _)| id).collect();
        self.next = Some(directory);
    }

    /// Says whether this is the first since the last report.
    fn gather(&mut self, directory: FileId, file: FileId) -> bool {
        if let Some(last) = self.last.replace(directory).filter(|last| *last != directory) {
            self.went(last, directory);
            if let Some(trail) = self.gathered.get_mut(&last) {
                trail.next.get_or_insert(directory);
            }
        }
        if self.gathered.len() < GATHERED_MAX {
            let files = &mut self.gathered.entry(directory).or_default().files;
            if files.len() < TRAIL_MAX && !files.contains(&file) {
                files.push(file);
            }
        }
        !std::mem::replace(&mut self.is_due, true)
    }

    fn is_news(&self, directory: FileId, trail: &Trail) -> bool {
        let known = self.known.get(&directory);
        known.is_none_or(|known| trail.files.iter().any(|file| !known.files.contains(file)))
    }
}

impl Walk {
    /// A file was opened there. Says whether somebody has to see to a report.
    pub fn gather(&mut self, directory: FileId, file: FileId) -> bool {
        let trails = &mut self.trails;
        let is_first = trails.gather(directory, file);
        if trails.lead_astray() {
            trails.next = None;
            self.expected.clear();
        }
        if !trails.followed.contains(&directory) && trails.next.is_none() {
            trails.next = Some(directory);
        }
        is_first
    }

    /// What is to be reported now, in parts; nothing of it is news any more. The directory where
    /// files are opened right now is reported whole again when more were.
    pub fn report(&mut self) -> Vec<Vec<TrailOf>> {
        let trails = &mut self.trails;
        let gathered = std::mem::take(&mut trails.gathered);
        trails.is_due = false;
        if let Some(last) = trails.last
            && let Some(trail) = gathered.get(&last)
        {
            trails.gathered.insert(last, trail.clone());
        }
        let of = |(directory, trail)| TrailOf { directory, trail };
        let news: Vec<TrailOf> = gathered
            .into_iter()
            .filter(|(directory, trail)| self.trails.is_news(*directory, trail))
            .map(of)
            .collect();
        for one in &news {
            // As the MDS will keep it.
            let known = self.trails.known.get(&one.directory);
            let trail = known.map_or_else(|| one.trail.clone(), |old| merge(old, &one.trail));
            self.learn_trail(one.directory, trail);
        }
        news.chunks(TRAIL_MAX).map(<[TrailOf]>::to_vec).collect()
    }

    /// The MDS tells how others went through a directory.
    pub fn learn_trail(&mut self, directory: FileId, trail: Trail) {
        let is_new = !self.trails.known.contains_key(&directory);
        let Trails { known, left, followed, .. } = &mut self.trails;
        if known.len() < KNOWN_MAX || known.contains_key(&directory) {
            let is_over = trail.files.iter().all(|&file| self.pass.has(file));
            if !is_over && !followed.contains(&directory) {
                left.insert(directory);
            }
            known.insert(directory, trail);
        }
        if is_new {
            self.trails.look_back(directory);
        }
    }

    /// The next directory whose files are expected, with them. Directories that are not known yet
    /// are asked for.
    pub fn expect(&mut self) -> Option<(FileId, Vec<FileId>)> {
        if self.expected.len() >= EXPECTED_MAX || !self.trails.may_be_right() {
            return None;
        }
        let next = match self.trails.next {
            Some(next) => next,
            // The trail goes round: others of it were not expected yet.
            None if self.trails.followed.is_empty() => return None,
            None => self.unfollowed()?,
        };
        let Some(trail) = self.trails.known.get(&next).cloned() else {
            self.trails.next = Some(next);
            if !self.came.contains(&next) {
                let new = self.enqueue(vec![next], true);
                self.credit += new as u64 * super::CREDIT_MIN;
            } else {
                // It has none.
                self.trails.followed.insert(next);
                self.trails.next = None;
            }
            return None;
        };
        let trails = &mut self.trails;
        trails.followed.insert(next);
        trails.left.remove(&next);
        let is_right = !trails.lead_astray();
        trails.next = trail.next.filter(|after| is_right && !trails.followed.contains(after));
        if !std::mem::replace(&mut trails.is_trusted, true) {
            self.file_credit += TRUST;
        }
        Some((next, trail.files))
    }

    /// One of those that were made after the one where files are opened, or of the others.
    fn unfollowed(&self) -> Option<FileId> {
        if self.trails.lead_astray() {
            return None;
        }
        let Trails { left, last, .. } = &self.trails;
        let behind = left.range(last.unwrap_or_default()..).next();
        behind.or_else(|| left.first()).copied()
    }
}
