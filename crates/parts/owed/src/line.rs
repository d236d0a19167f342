//! Operations that an MDT does not know yet, in their order.
//!
//! Invariant: what waits is bounded in number, bytes and age.

use crate::act::{Act, ActRecord};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tieline_keep::Keep;
use tieline_types::{Caller, ErrorKind, FileId};
use tieline_wire::Op;
use tieline_wire::meta::{BatchItem, SetAttributes};
use tokio::time::Instant;

/// What is done is sent after so long at the latest: with the time of sending, well within a
/// second.
const AGE: Duration = Duration::from_millis(300);
/// Operations, and bytes of them, that are sent without waiting for more.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 1 << 20;
/// What is sent at once at most: over a distance much gathers while one batch is on its way.
const BATCH_MAX: usize = 2048;
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Operations that may wait; whoever has more waits. One call may go beyond, none beyond twice
/// that.
const WAITING_MAX: usize = 16_384;
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Directories in which something was lost, and nobody was told yet.
const LATE_MAX: usize = 1024;

/// The operations of one MDT, and what is known for deciding more.
#[derive(Default)]
pub struct Line {
    waiting: VecDeque<Entry>,
    bytes: usize,
    /// The last operation's number, and the last that the MDS knows.
    last: u64,
    done: u64,
    /// Somebody waits for operations up to this.
    wanted: u64,
    /// The last operation that was ever taken to be sent.
    taken: u64,
    /// The last operation on each file.
    touched: BTreeMap<FileId, u64>,
    /// The last operation that made a directory or changed who may do what there.
    rights: BTreeMap<FileId, u64>,
    /// Files with changes under way that were not decided here.
    busy: BTreeMap<FileId, u32>,
    serials: VecDeque<Range<u64>>,
    /// Of directories: what was refused, and the files of which bytes were lost; told once.
    late: BTreeMap<(FileId, Option<FileId>), (ErrorKind, String)>,
    keep: Keep,
}

/// An operation that the MDS does not know yet.
#[derive(Clone)]
pub struct Entry {
    pub number: u64,
    since: Instant,
    pub act: Act,
    /// Goes when the MDS knows it.
    _record: Arc<ActRecord>,
}

impl Entry {
    /// What shows for whom it was done.
    pub fn proof(&self) -> Option<u64> {
        self.act.item.caller.shown_proof()
    }
}

impl Line {
    pub fn new(keep: Keep) -> Self {
        Self { keep, ..Self::default() }
    }

    /// The number that the next operation gets.
    pub fn next(&self) -> u64 {
        self.last + 1
    }

    /// The number of the last operation.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// May anything be decided here about these files? Whoever has waited for room may need more
    /// than there is: a file's bytes, and then its times.
    pub fn is_free(&self, files: &[FileId]) -> bool {
        self.holds_less_than(2) && !files.iter().any(|file| self.busy.contains_key(file))
    }

    pub fn has_room(&self) -> bool {
        self.holds_less_than(1)
    }

    fn holds_less_than(&self, rooms: usize) -> bool {
        self.waiting.len() < rooms * WAITING_MAX && self.bytes < rooms * WAITING_BYTES_MAX
    }

    pub fn push(&mut self, act: Act) {
        let record = ActRecord::put(&self.keep, &act);
        self.add(act, record);
    }

    /// What the last of all operations sets, if that is all it does, of `files` for `caller`, and
    /// nobody has taken it to be sent. More can be said in it ([`Line::push_instead`]).
    pub fn last_setting(&self, caller: &Caller, files: &[FileId]) -> Option<SetAttributes> {
        let act = &self.waiting.back().filter(|last| last.number > self.taken)?.act;
        let BatchItem { op, caller: by, message, .. } = &act.item;
        let is_of = act.files == files && act.rights.is_none() && by == caller;
        if !is_of || *op != Op::SetAttributes.number() {
            return None;
        }
        tieline_wire::decode(message).ok()
    }

    /// The same as the last operation and one more, in its place.
    pub fn push_instead(&mut self, act: Act) {
        let record = ActRecord::put(&self.keep, &act);
        if let Some(last) = self.waiting.back_mut() {
            self.bytes = self.bytes + act.bytes() - last.act.bytes();
            // What is kept of the one before goes when that of both is there.
            (last.act, last._record) = (act, Arc::new(record));
        }
    }

    /// One that has its record.
    pub fn add(&mut self, act: Act, record: ActRecord) {
        self.last += 1;
        for &file in &act.files {
            self.touched.insert(file, self.last);
        }
        if let Some(directory) = act.rights {
            self.rights.insert(directory, self.last);
        }
        self.bytes += act.bytes();
        let (number, since) = (self.last, Instant::now());
        self.waiting.push_back(Entry { number, since, act, _record: Arc::new(record) });
    }

    /// Takes what the MDS knows out.
    pub fn finish(&mut self, done: u64) {
        while let Some(entry) = self.waiting.front()
            && entry.number <= done
        {
            let act = &entry.act;
            for file in &act.files {
                if self.touched.get(file).is_some_and(|&last| last <= done) {
                    self.touched.remove(file);
                    self.rights.remove(file);
                }
            }
            self.bytes -= act.bytes();
            self.waiting.pop_front();
        }
        self.done = done;
    }

    /// What is to be sent next; or when to look again.
    pub fn due(&mut self) -> Result<Vec<Entry>, Option<Instant>> {
        let Some(first) = self.waiting.front() else { return Err(None) };
        let at = first.since + AGE;
        if !self.is_full() && self.wanted <= self.done && Instant::now() < at {
            return Err(Some(at));
        }
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += entry.act.bytes();
            bytes <= BATCH_BYTES_MAX || entry.number == first.number
        };
        let due: Vec<_> = self.waiting.iter().take(BATCH_MAX).take_while(fits).cloned().collect();
        self.taken = due.last().map_or(self.taken, |last| self.taken.max(last.number));
        Ok(due)
    }

    /// Something in a directory is lost, perhaps bytes of a file: told once, by fsync of it or of
    /// all.
    pub fn note_late(&mut self, at: (FileId, Option<FileId>), kind: ErrorKind, detail: &str) {
        self.late.entry(at).or_insert_with(|| (kind, detail.to_owned()));
        while self.late.len() > LATE_MAX {
            self.late.pop_first();
        }
    }

    /// Whoever wrote the file was told of its losses: they are no news of its directory.
    pub fn told_late(&mut self, file: FileId) {
        self.late.retain(|(_, of), _| *of != Some(file));
    }

    /// What was refused in a directory, once; or anywhere.
    pub fn take_late(&mut self, directory: Option<FileId>) -> Option<(ErrorKind, String)> {
        let is_meant = |at: &(FileId, Option<FileId>)| directory.is_none_or(|one| at.0 == one);
        let meant: Vec<_> = self.late.keys().filter(|at| is_meant(at)).copied().collect();
        let told: Vec<_> = meant.iter().filter_map(|at| self.late.remove(at)).collect();
        told.into_iter().next()
    }

    /// All that waits may have been sent by an earlier process.
    pub fn may_be_sent(&mut self) {
        self.taken = self.last;
    }

    /// Whoever sends does not wait for more to gather: operations up to this are waited for. Says
    /// whether the MDS knows them.
    pub fn want(&mut self, number: u64) -> bool {
        let is_known = self.done >= number;
        if !is_known {
            self.wanted = self.wanted.max(number);
        }
        is_known
    }

    /// Those that the MDS does not know, the oldest first.
    pub fn entries(&self) -> &VecDeque<Entry> {
        &self.waiting
    }

    /// Is it time to look whether something is to be sent? After one was pushed.
    pub fn is_news(&self) -> bool {
        self.waiting.len() == 1 || self.is_full()
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= BATCH || self.bytes >= BATCH_BYTES
    }

    /// The last operation on a file; 0 for none that waits.
    pub fn last_on(&self, file: FileId) -> u64 {
        self.touched.get(&file).copied().unwrap_or(0)
    }

    /// The last that made a directory, or changed who may do what there.
    pub fn last_rights(&self, directory: FileId) -> u64 {
        self.rights.get(&directory).copied().unwrap_or(0)
    }

    /// Changes that are not decided here are under way for these files.
    pub fn begin(&mut self, files: &[FileId]) {
        for &file in files {
            *self.busy.entry(file).or_default() += 1;
        }
    }

    /// They are answered.
    pub fn end(&mut self, files: &[FileId]) {
        for file in files {
            if let Some(count) = self.busy.get_mut(file) {
                *count -= 1;
                if *count == 0 {
                    self.busy.remove(file);
                }
            }
        }
    }

    /// A serial that nobody had.
    pub fn serial(&mut self) -> Option<u64> {
        let run = self.serials.front_mut()?;
        let serial = run.start;
        run.start += 1;
        if run.is_empty() {
            self.serials.pop_front();
        }
        Some(serial)
    }

    /// The MDS lends serials.
    pub fn lend(&mut self, run: Range<u64>) {
        self.serials.push_back(run);
    }

    /// Those that it has lent are not ours any more.
    pub fn forget_serials(&mut self) {
        self.serials.clear();
    }

    pub fn serials_left(&self) -> u64 {
        self.serials.iter().map(|run| run.end - run.start).sum()
    }
}
