//! How far ahead of who walks through directories to ask: what is to be brought next, and how much.
//!
//! The first visit to a directory that is not known brings it. The second to one whose neighbour
//! was visited brings all of them, and what is below: directories stand in a queue, in the order in
//! which a walk comes to them, and leave it as long as there is *credit*. Every visit to what was
//! not known raises it, by twice as much each time; every visit to what was brought ahead by a
//! multiple of that. So one look into a large tree costs little, and a walk that uses a fourth of
//! what comes is never kept waiting. Who comes to a directory that stands in the queue does not
//! wait for its turn.
//!
//! A directory that has more names than an answer comes in parts, as long as somebody looks for
//! names behind those that came.
//!
//! The same holds for the bytes of small files: the first that is opened, or read when its bytes
//! are not here any more, brings its neighbours', and in a walk those of the directories behind, in
//! the order of their paths: so go `git`, `tar`, `find`, and whoever lists before he reads.
//!
//! What the same program opened before is *followed*, and has a queue of its own. It comes before
//! what is guessed so, instead of it where it came true lately, and not at all where it was wrong:
//! nothing that was learned takes the place of what would be done without it. What comes for
//! nothing is bounded by what is opened.
//!
//! * [`queues`]: which files are asked for next.
//! * [`programs`]: what programs open, here and elsewhere before.
//! * [`pass`]: which were opened.
//! * [`loaded`](mod@loaded): libraries and programs.
//!
//! Knows neither servers nor caches: who owns it asks and learns. Invariants: all tables are
//! bounded; a directory is on its way once; what came to nothing is not asked again at once.

pub use loaded::{LOADED_EXTENTS, is_loaded, loaded};
use pass::Pass;
use programs::Programs;
pub use programs::{Opened, QUIET, Run, Which};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tieline_types::{Caller, FileId, Name};
use tokio::sync::watch;
use tokio::time::Instant;

mod loaded;
mod pass;
mod programs;
mod queues;

/// Entries that come with the first visit to a directory: what most have.
pub const VISIT_ENTRIES: u32 = 1024;
/// Entries of a page of a walk.
const PAGE_ENTRIES: u32 = 4096;
/// Names of one directory that a walk brings before somebody comes to it.
const NAMES_AHEAD_MAX: u32 = 4 * PAGE_ENTRIES;
/// Names of one directory that come before those that are looked for: of a larger one the others
/// are asked for one by one, as whoever wants all of them lists it.
const NAMES_MAX: u32 = 64 << 10;
/// Pages on their way at once.
const PAGES_MAX: usize = 4;
/// So many directories of one were come to: somebody walks there.
const WALK_FROM: u32 = 2;
/// Less credit is not worth a question.
const CREDIT_MIN: u64 = 64;
const RAISE_FIRST: u64 = 1024;
const RAISE_MAX: u64 = 128 << 10;
const CREDIT_MAX: u64 = 512 << 10;
/// A visit to a directory that was brought ahead is good for so many times its entries.
const USED_GAIN: u64 = 4;
/// Directories of one question.
const ROOTS_MAX: usize = 256;
const QUEUE_MAX: usize = 64 << 10;
/// Files and directories that are remembered as asked for, or as brought ahead.
const NOTED_MAX: usize = 256 << 10;
/// What was asked for is asked again, if it is not known, only after so long.
const ASKED_KEPT: Duration = Duration::from_secs(20);
/// For so long after a change a directory that somebody holds alone is told by its name only, and
/// not at all ahead of a walk (the MDS's `AT_WORK`, and something for the way).
pub const AT_WORK: Duration = Duration::from_millis(3500);

/// Bytes of files: as entries of directories.
const BYTES_RAISE_FIRST: u64 = 256 << 10;
const BYTES_RAISE_MAX: u64 = 32 << 20;
const BYTES_CREDIT_MAX: u64 = 256 << 20;
const BYTES_CREDIT_MIN: u64 = 16 << 10;
const BYTES_USED_GAIN: u64 = 4;
/// So much may come for nothing as was opened, so many times: over 50 ms a file that is here
/// already saves a round trip, in which a link of 1 Gbit/s carries 6 MB.
const WASTE_MAX: u64 = 5;
/// The same before anything was opened.
const WASTE_FREE: u64 = 16 << 20;
/// Of what may come for nothing one file that is guessed takes such a part at most: a library is
/// not worth all the small files that could come for it.
const GUESS_PART: u64 = 16;
/// Older history counts half, again and again.
const HISTORY: u64 = 1 << 30;
/// Whoever waits for a file that did not come has so much of what came for nothing forgiven: it is
/// little beside what a link carries meanwhile, and without it nothing would ever come again.
const MISS_FORGIVES: u64 = 64 << 10;
/// Files up to this size are small: they travel together.
pub const SMALL_MAX: u64 = 4 << 20;
/// Of a larger one so much is read at least.
const LARGE_READ: u64 = 1 << 20;
/// Files of one question.
const FILES_MAX: usize = 512;
const FILES_BYTES: u64 = 1 << 20;
const FILE_PAGES_MAX: usize = 4;
/// The same where what comes is most likely wanted.
const LED_PAGES_MAX: usize = 8;
/// Pages beyond these, and bytes, for the directory where a file was just opened: what lies farther
/// off and is on its way must not keep its neighbours from coming.
const NEAR_PAGES: usize = 2;
const NEAR_BYTES: u64 = 512 << 10;
const NEAR_MAX: usize = 128;
/// Large ones that wait for room, and let others pass.
const LATE_MAX: usize = 64;
/// What was brought and not opened is here for so long.
pub const AHEAD_KEPT: Duration = Duration::from_secs(60);
/// Bytes that were brought and not opened yet: more would push out what is needed first. Ten round
/// trips of a link of 1 Gbit/s.
const AHEAD_MAX: u64 = 48 << 20;
/// So much of that is given up when others are read than those that came.
const PASSED_ROOM: u64 = AHEAD_MAX / 4;
/// Directories that are looked at for one that may bring files.
const STEPS_MAX: usize = 256;
/// Files that went are looked for so often.
const LOST_PAUSE: Duration = Duration::from_secs(1);

/// The lease that a page of a listing came under, and that no name was dropped since it began: as
/// who keeps listings counts both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ListingMark {
    pub generation: u64,
    pub dropped: u64,
}

/// Lands when the question is answered and what came is learned, or came to nothing.
pub type Flight = watch::Receiver<()>;
/// Held while a question is under way.
pub type Under = watch::Sender<()>;

/// What a visit to something unknown is to do.
pub enum Visit {
    /// It is on its way.
    Wait(Flight),
    /// The one that it is in is on its way, and what is below with it, as far as there is room.
    WaitAbove(Flight),
    /// It is asked for, from `rest` on if some came before: with what is below it, if somebody
    /// walks there.
    Ask { under: Under, flight: Flight, is_walk: bool, rest: Option<Rest> },
    /// Asking in bulk came to nothing lately.
    Alone,
}

/// Somebody comes to a directory.
pub struct Coming<'a> {
    pub directory: FileId,
    /// It is seen there.
    pub parent: Option<FileId>,
    /// What is looked for; `None`: all names.
    pub name: Option<&'a Name>,
    /// What is known of it is known under this.
    pub mark: Option<ListingMark>,
}

/// What is left of a directory of which some names came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rest {
    /// The last name that came.
    pub after: Name,
    /// Those before are known while this is so.
    pub mark: ListingMark,
    /// How many came.
    pub count: u32,
}

impl Rest {
    /// Is what is looked for to be expected among what is left?
    fn may_hold(&self, name: Option<&Name>) -> bool {
        self.count < NAMES_MAX && name.is_some_and(|name| *name > self.after)
    }

    /// As many again.
    pub fn entries(&self) -> u32 {
        self.count.clamp(VISIT_ENTRIES, PAGE_ENTRIES)
    }
}

/// A directory was asked for.
#[derive(Clone, Copy)]
struct Asked {
    at: Instant,
    /// Nobody had come to it: it is left out of the answer while another works there alone.
    is_ahead: bool,
}

/// Directories to be asked for.
#[derive(Debug)]
pub struct Job {
    pub roots: Vec<FileId>,
    /// What is left of the first.
    pub rest: Option<Rest>,
    pub entries: u32,
    /// They alone, as a program wanted them, and nothing below.
    pub is_followed: bool,
    pub caller: Caller,
    pub under: Under,
}

/// Files whose bytes are to be asked for.
pub struct FilesJob {
    pub files: Vec<(FileId, u64)>,
    pub caller: Caller,
    pub under: Under,
}

/// What is brought of one MDT.
#[derive(Default)]
pub struct Walk {
    flights: BTreeMap<FileId, Flight>,
    /// Those of them that somebody came to.
    visiting: BTreeSet<FileId>,
    /// Visits to unknown directories, by the directory they are in.
    visits: BTreeMap<FileId, u32>,
    queue: VecDeque<FileId>,
    /// Those of the queue that nobody asked for meanwhile.
    queued: BTreeSet<FileId>,
    asked: BTreeMap<FileId, Asked>,
    rests: BTreeMap<FileId, Rest>,
    /// Brought and not visited yet, with the number of entries.
    ahead: BTreeMap<FileId, u32>,
    credit: u64,
    raise: u64,
    pages: usize,
    caller: Caller,
    /// Files: to be brought, and brought and not opened yet, with their bytes.
    files: VecDeque<(FileId, u64)>,
    /// So many of these, the first, lie where a file was just opened.
    near: usize,
    /// The same by what the same program opened before.
    followed_files: VecDeque<(FileId, u64)>,
    files_ahead: FilesAhead,
    file_credit: u64,
    file_raise: u64,
    file_pages: usize,
    /// Bytes that were brought ahead or are on their way, and those of them that were used.
    brought: u64,
    used: u64,
    /// Bytes of all files that were opened.
    wanted: u64,
    /// Directories that came.
    came: BTreeSet<FileId>,
    /// Those whose files stand in the queue or did, and since when.
    filed: BTreeMap<FileId, Instant>,
    /// Those of before are forgotten.
    filed_from: Option<Instant>,
    /// The last of them: who walks on comes to those behind it.
    front: Option<FileId>,
    /// In which directories files were opened, and how many levels down.
    opened_in: BTreeSet<FileId>,
    deepest: usize,
    loaded: BTreeSet<FileId>,
    pass: Pass,
    programs: Programs,
}

/// Files whose bytes were brought and that were not opened yet.
#[derive(Default)]
struct FilesAhead {
    sizes: BTreeMap<FileId, (u64, Instant)>,
    /// In the order in which they came, with those that were opened since.
    order: VecDeque<(FileId, Instant)>,
    /// Of all of them.
    bytes: u64,
    /// Those that readers went past: they take no room any more, but may be opened yet.
    passed: BTreeMap<FileId, (u64, Instant)>,
}

impl FilesAhead {
    fn add(&mut self, id: FileId, size: u64) {
        self.take(id);
        if self.order.len() >= NOTED_MAX {
            self.pass_oldest();
        }
        let now = Instant::now();
        self.sizes.insert(id, (size, now));
        self.order.push_back((id, now));
        self.bytes += size;
    }

    /// Those whose bytes are not here any more take no room.
    fn expire(&mut self) {
        while let Some(&(id, since)) = self.order.front()
            && since.elapsed() >= AHEAD_KEPT
        {
            self.order.pop_front();
            if self.sizes.get(&id).is_some_and(|(_, at)| *at == since) {
                self.take(id);
            }
        }
    }

    /// Others are read than those that came: the oldest make room.
    fn pass(&mut self) {
        while self.room() < PASSED_ROOM && self.pass_oldest() {}
    }

    /// Says whether there was one.
    fn pass_oldest(&mut self) -> bool {
        let Some((id, since)) = self.order.pop_front() else { return false };
        if self.sizes.get(&id).is_some_and(|(_, at)| *at == since)
            && let Some(size) = self.take(id)
        {
            if self.passed.len() >= NOTED_MAX {
                self.passed.clear();
            }
            self.passed.insert(id, (size, since));
        }
        true
    }

    /// Gives the file's size, if it is one of them.
    fn take(&mut self, id: FileId) -> Option<u64> {
        if let Some((size, since)) = self.passed.remove(&id) {
            return (since.elapsed() < AHEAD_KEPT).then_some(size);
        }
        let (size, _) = self.sizes.remove(&id)?;
        self.bytes -= size;
        Some(size)
    }

    /// Has it come so lately that its bytes are still here?
    fn has(&self, id: FileId) -> bool {
        let came = self.sizes.get(&id).or_else(|| self.passed.get(&id));
        came.is_some_and(|(_, since)| since.elapsed() < AHEAD_KEPT)
    }

    fn room(&self) -> u64 {
        if self.sizes.len() >= NOTED_MAX { 0 } else { AHEAD_MAX.saturating_sub(self.bytes) }
    }
}

impl Walk {
    /// Somebody comes to a directory whose names are not known.
    pub fn visit(&mut self, caller: &Caller, coming: &Coming<'_>) -> Visit {
        let id = coming.directory;
        self.enter(id);
        if let Some(flight) = self.flights.get(&id) {
            return Visit::Wait(flight.clone());
        }
        let above = coming.parent.filter(|parent| self.visiting.contains(parent));
        if let Some(flight) = above.and_then(|above| self.flights.get(&above)) {
            return Visit::WaitAbove(flight.clone());
        }
        let rest = self.rest_of(coming);
        if rest.as_ref().is_some_and(|rest| !rest.may_hold(coming.name)) {
            return Visit::Alone;
        }
        self.rests.remove(&id);
        let is_first = self.queued.remove(&id) || rest.is_some();
        if !self.note_asked(id, false) && !is_first {
            return Visit::Alone;
        }
        self.caller = caller.clone();
        let is_foretold = self.programs.foretold(id);
        let is_walk = !is_foretold && self.count_visit(coming.parent) >= WALK_FROM;
        if is_walk {
            self.raise_credit();
        }
        self.visiting.insert(id);
        let (under, flight) = self.fly(&[id]);
        Visit::Ask { under, flight, is_walk, rest }
    }

    fn rest_of(&self, coming: &Coming<'_>) -> Option<Rest> {
        let rest = self.rests.get(&coming.directory)?;
        (coming.mark == Some(rest.mark)).then(|| rest.clone())
    }

    fn count_visit(&mut self, parent: Option<FileId>) -> u32 {
        let Some(parent) = parent else { return 0 };
        if self.visits.len() >= QUEUE_MAX {
            self.visits.clear();
        }
        let visits = self.visits.entry(parent).or_default();
        *visits += 1;
        *visits
    }

    fn raise_credit(&mut self) {
        self.raise = (self.raise * 2).clamp(RAISE_FIRST, RAISE_MAX);
        self.credit = (self.credit + self.raise).min(CREDIT_MAX);
    }

    /// Somebody comes to a directory that is known. Says whether it was brought ahead.
    pub fn revisit(&mut self, id: FileId) -> bool {
        self.enter(id);
        let Some(entries) = self.ahead.remove(&id) else { return false };
        let gain = USED_GAIN * (u64::from(entries) + CREDIT_MIN);
        self.credit = (self.credit + gain).min(CREDIT_MAX);
        true
    }

    /// What was brought ahead came alone, perhaps: whoever comes to one after the other
    /// walks all the same. Says whether somebody does in this directory, of whom it was not known.
    pub fn walks_in(&mut self, parent: FileId) -> bool {
        let is_known = self.visits.get(&parent).is_some_and(|visits| *visits >= WALK_FROM);
        if is_known {
            return false;
        }
        let walks = self.count_visit(Some(parent)) >= WALK_FROM;
        if walks {
            self.raise_credit();
        }
        walks
    }

    /// Who came last.
    pub fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// Is it on its way?
    pub fn flight(&self, id: FileId) -> Option<Flight> {
        self.flights.get(&id).cloned()
    }

    fn fly(&mut self, ids: &[FileId]) -> (Under, Flight) {
        let (under, flight) = watch::channel(());
        self.flights.extend(ids.iter().map(|&id| (id, flight.clone())));
        (under, flight)
    }

    /// Says whether it was not asked for lately; if so, it is now.
    fn note_asked(&mut self, id: FileId, is_ahead: bool) -> bool {
        let is_new = !self.was_asked(id, is_ahead);
        if is_new {
            if self.asked.len() >= NOTED_MAX {
                self.asked.clear();
            }
            self.asked.insert(id, Asked { at: Instant::now(), is_ahead });
        }
        is_new
    }

    /// Would asking come to nothing, as it did lately? Whoever comes to a directory is told what
    /// was left out ahead of him; and ahead of others it is told when nobody works there any more.
    fn was_asked(&self, id: FileId, is_ahead: bool) -> bool {
        self.asked.get(&id).is_some_and(|asked| match (asked.is_ahead, is_ahead) {
            (true, false) => false,
            (true, true) => asked.at.elapsed() < AT_WORK,
            (false, _) => asked.at.elapsed() < ASKED_KEPT,
        })
    }

    /// What a walk comes to next: before all else, or after. Says how many are new.
    pub fn enqueue(&mut self, ids: Vec<FileId>, is_next: bool) -> usize {
        let room = QUEUE_MAX.saturating_sub(self.queue.len());
        let mut new: Vec<FileId> = vec![];
        for id in ids.into_iter().take(room) {
            let is_known = self.flights.contains_key(&id) || self.was_asked(id, true);
            if !is_known && self.queued.insert(id) {
                new.push(id);
            }
        }
        let count = new.len();
        if is_next {
            new.into_iter().rev().for_each(|id| self.queue.push_front(id));
        } else {
            self.queue.extend(new);
        }
        count
    }

    /// The next question, if it may be asked now.
    pub fn next_job(&mut self) -> Option<Job> {
        if self.pages >= PAGES_MAX {
            return None;
        }
        if let Some(job) = self.next_followed() {
            return Some(job);
        }
        if self.credit < CREDIT_MIN || self.queue.is_empty() {
            return None;
        }
        // Several questions at once share what stands there.
        let count = self.queue.len().div_ceil(PAGES_MAX).clamp(1, ROOTS_MAX);
        let (mut roots, mut rest) = (vec![], None);
        while roots.len() < count
            && let Some(&id) = self.queue.front()
        {
            // An answer goes on with its first directory alone.
            if !roots.is_empty() && self.rests.contains_key(&id) {
                break;
            }
            self.queue.pop_front();
            if self.queued.remove(&id) {
                rest = rest.or(self.rests.remove(&id));
                self.note_asked(id, true);
                roots.push(id);
            }
        }
        if roots.is_empty() {
            return None;
        }
        let entries = self.credit.min(PAGE_ENTRIES.into()) as u32;
        self.credit -= u64::from(entries);
        self.pages += 1;
        let (under, _) = self.fly(&roots);
        let caller = self.caller.clone();
        Some(Job { roots, rest, entries, is_followed: false, caller, under })
    }

    /// Directories in which the same program looked for names before: they cost no credit.
    fn next_followed(&mut self) -> Option<Job> {
        let mut roots = vec![];
        while roots.len() < ROOTS_MAX
            && let Some(id) = self.programs.directories.pop_front()
        {
            if !self.flights.contains_key(&id) && self.note_asked(id, true) {
                roots.push(id);
            }
        }
        if roots.is_empty() {
            return None;
        }
        self.pages += 1;
        let (under, _) = self.fly(&roots);
        let caller = self.caller.clone();
        Some(Job { roots, rest: None, entries: PAGE_ENTRIES, is_followed: true, caller, under })
    }

    /// The same has been answered.
    pub fn followed_landed(
        &mut self,
        roots: &[FileId],
        told: &[(FileId, u32)],
        unreached: &[FileId],
        cut: Option<(FileId, Rest)>,
    ) {
        for id in unreached.iter().rev() {
            self.asked.remove(id);
            self.programs.directories.push_front(*id);
        }
        self.landed((roots, 0), told, unreached.to_vec(), None);
        for id in unreached {
            self.queued.remove(id);
        }
        if let Some((id, rest)) = cut {
            self.came_in_part(id, rest);
        }
    }

    /// A question about `roots` has been answered with so many entries of these directories, and
    /// so many `left` that it might have brought. `unreached`: roots that the answer did not come
    /// to.
    pub fn landed(
        &mut self,
        (roots, left): (&[FileId], u32),
        told: &[(FileId, u32)],
        unreached: Vec<FileId>,
        cut: Option<(FileId, Rest)>,
    ) {
        self.pages = self.pages.saturating_sub(1);
        self.credit = (self.credit + u64::from(left)).min(CREDIT_MAX);
        for id in roots {
            self.flights.remove(id);
            if !unreached.contains(id) {
                self.note_came(*id);
            }
        }
        self.came_ahead(told);
        let parts = cut.and_then(|(id, rest)| self.came_in_part(id, rest));
        parts.into_iter().chain(unreached).rev().for_each(|id| self.stand_first(id));
    }

    /// A visited directory has come, or has not, or in part; and others with it.
    pub fn arrived(
        &mut self,
        id: FileId,
        is_here: bool,
        below: &[(FileId, u32)],
        cut: Option<(FileId, Rest)>,
    ) {
        self.visiting.remove(&id);
        self.flights.remove(&id);
        if is_here {
            self.brought(id);
        }
        self.came_ahead(below);
        if let Some((id, rest)) = cut {
            self.came_in_part(id, rest);
        }
    }

    fn came_ahead(&mut self, told: &[(FileId, u32)]) {
        for &(id, count) in told {
            self.brought(id);
            if self.ahead.len() < NOTED_MAX {
                self.ahead.insert(id, count);
            }
        }
    }

    fn brought(&mut self, id: FileId) {
        // It may be lost and visited again at any time.
        self.asked.remove(&id);
        self.note_came(id);
        self.filed.remove(&id);
    }

    fn note_came(&mut self, id: FileId) {
        if self.came.len() >= NOTED_MAX {
            self.came.clear();
            self.filed.clear();
        }
        self.came.insert(id);
    }

    /// Gives the directory if its rest is to come before somebody asks.
    fn came_in_part(&mut self, id: FileId, rest: Rest) -> Option<FileId> {
        let is_next = rest.count < NAMES_AHEAD_MAX;
        self.note_came(id);
        self.filed.remove(&id);
        if self.rests.len() >= QUEUE_MAX {
            self.rests.clear();
        }
        self.rests.insert(id, rest);
        is_next.then_some(id)
    }

    fn stand_first(&mut self, id: FileId) {
        if self.queued.insert(id) {
            self.queue.push_front(id);
        }
    }

    /// Nothing of before counts: leases are gone.
    pub fn forget(&mut self) {
        self.asked.clear();
        self.rests.clear();
        self.queue.clear();
        self.queued.clear();
        self.files.clear();
        self.followed_files.clear();
        self.ahead.clear();
        self.files_ahead = FilesAhead::default();
        self.filed.clear();
        self.front = None;
        self.follow_again();
    }

    // Bytes of files.

    /// A file is opened for reading. `is_known`: no server need be asked. Gives the bytes that were
    /// brought ahead for it.
    pub fn opened(&mut self, caller: &Caller, id: FileId, parent: FileId, is_known: bool) -> u64 {
        self.caller = caller.clone();
        self.pass.opened(id);
        self.note_read(id, parent, is_known)
    }

    pub fn was_opened(&self, id: FileId) -> bool {
        self.pass.has(id)
    }

    /// A file of so many bytes is about to be opened.
    pub fn wants(&mut self, id: FileId, size: u64) {
        if !self.pass.has(id) {
            // Of a large one it is not known how much will be read.
            self.wanted += if size > SMALL_MAX { LARGE_READ } else { size };
        }
    }

    /// A library or a program is opened. Says whether that is news: later its bytes are here, or
    /// with the door.
    pub fn loads(&mut self, id: FileId) -> bool {
        if self.loaded.len() >= NOTED_MAX {
            self.loaded.clear();
        }
        self.loaded.insert(id)
    }

    fn note_read(&mut self, id: FileId, parent: FileId, is_known: bool) -> u64 {
        if self.opened_in.len() < 16 {
            self.opened_in.insert(parent);
        }
        let used = self.files_ahead.take(id).unwrap_or(0);
        if used > 0 {
            self.used += used;
            let gain = BYTES_USED_GAIN * used.max(BYTES_CREDIT_MIN);
            self.file_credit = (self.file_credit + gain).min(BYTES_CREDIT_MAX);
        } else if !is_known {
            self.missed();
        }
        used
    }

    /// A file is read whose bytes are not here, though it is known: what came, or was written here,
    /// has gone since. So have others'.
    pub fn lost(&mut self, caller: &Caller, id: FileId, parent: FileId) {
        self.caller = caller.clone();
        let was_ahead = self.note_read(id, parent, true) > 0;
        self.missed();
        self.pass.lost(id);
        let now = Instant::now();
        if self.filed_from.is_none_or(|from| now.duration_since(from) >= LOST_PAUSE) {
            self.filed_from = Some(now);
            self.follow_again();
            if was_ahead {
                self.files_ahead = FilesAhead::default();
            }
        }
    }

    /// Somebody has to wait for a file's bytes.
    fn missed(&mut self) {
        self.brought = self.brought.saturating_sub(MISS_FORGIVES);
        self.file_raise = (self.file_raise * 2).clamp(BYTES_RAISE_FIRST, BYTES_RAISE_MAX);
        self.file_credit = (self.file_credit + self.file_raise).min(BYTES_CREDIT_MAX);
        if self.files_ahead.room() < SMALL_MAX {
            self.files_ahead.pass();
        }
    }

    fn is_filed(&self, directory: FileId) -> bool {
        let since = self.filed.get(&directory);
        since.is_some_and(|since| self.filed_from.is_none_or(|from| *since >= from))
    }

    /// Says whether its files did not stand in the queue.
    fn file(&mut self, directory: FileId) -> bool {
        let is_new = !self.is_filed(directory);
        if is_new {
            self.filed.insert(directory, Instant::now());
        }
        is_new
    }

    /// A file is opened so many levels down. Gives the most: what lies deeper is not guessed.
    pub fn opened_at(&mut self, level: usize) -> usize {
        self.deepest = self.deepest.max(level);
        self.deepest
    }

    /// A directory whose files are not in the queue yet: the one where files are opened, and those
    /// that come behind it, if files are opened in several. `after` gives the directory behind one.
    pub fn next_to_file(
        &mut self,
        parent: FileId,
        after: impl Fn(FileId) -> Option<FileId>,
    ) -> Option<FileId> {
        // Who knows what the program opened before need not guess.
        if self.programs.are_believed() {
            return None;
        }
        if self.file(parent) {
            self.front = Some(parent);
            return Some(parent);
        }
        let is_walk = self.opened_in.len() >= 2;
        for _ in 0..STEPS_MAX {
            let is_enough = self.files.len() > FILES_MAX || self.file_credit < BYTES_CREDIT_MIN;
            if !is_walk || is_enough || self.files_ahead.room() == 0 {
                return None;
            }
            let next = after(self.front?);
            // What it has is not known yet: from there it goes on when that has come.
            if next.is_some_and(|id| self.flights.contains_key(&id) || self.queued.contains(&id)) {
                return None;
            }
            self.front = next;
            let next = next?;
            if self.file(next) {
                return Some(next);
            }
        }
        None
    }

    #[cfg(test)]
    pub fn credit(&self) -> (u64, u64) {
        (self.credit, self.file_credit)
    }
}

#[cfg(test)]
mod tests;
