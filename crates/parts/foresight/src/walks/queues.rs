//! Which files are asked for next: those that are guessed, and those that the same program opened
//! before.
//!
//! Invariants: what is asked for is noted then, and not when it joins a queue, so that what stands
//! in one queue in vain may come by the other; no file holds up those behind it.

use super::{
    BYTES_CREDIT_MIN, BYTES_RAISE_FIRST, FILE_PAGES_MAX, FILES_BYTES, FILES_MAX, FilesJob,
    GUESS_PART, HISTORY, LATE_MAX, LED_PAGES_MAX, NEAR_BYTES, NEAR_MAX, NEAR_PAGES, QUEUE_MAX,
    SMALL_MAX, WASTE_FREE, WASTE_MAX, Walk,
};
use std::collections::{BTreeSet, VecDeque};
use tieline_types::FileId;

#[derive(Clone, Copy)]
enum Queue {
    Guessed,
    Followed,
}

/// Bytes that may come: at once, at all, and of one file.
#[derive(Clone, Copy)]
struct Limits {
    room: u64,
    most: u64,
    size_max: u64,
}

#[derive(Default)]
struct Chosen {
    files: Vec<(FileId, u64)>,
    bytes: u64,
}

impl Walk {
    /// Files to be brought: before all else, or after.
    pub fn enqueue_files(&mut self, files: Vec<(FileId, u64)>, is_next: bool) {
        let room = QUEUE_MAX.saturating_sub(self.files.len());
        let new: Vec<_> =
            files.into_iter().take(room).filter(|(id, _)| self.may_come(*id)).collect();
        if is_next {
            self.near = new.len().min(NEAR_MAX);
            new.into_iter().rev().for_each(|one| self.files.push_front(one));
        } else {
            self.files.extend(new);
        }
    }

    /// Is it neither here, nor on its way, nor was it asked for in vain lately?
    fn may_come(&self, file: FileId) -> bool {
        !self.files_ahead.has(file) && !self.pass.has(file) && !self.was_asked(file, false)
    }

    pub fn has_files(&self) -> bool {
        !self.files.is_empty() || !self.followed_files.is_empty()
    }

    /// How much more may come for nothing.
    fn waste_left(&self) -> u64 {
        let wasted = self.brought.saturating_sub(self.used);
        (WASTE_FREE + WASTE_MAX * self.wanted).saturating_sub(wasted)
    }

    /// The next files to be asked for. `room`: how many bytes may come.
    pub fn next_files(&mut self, room: u64) -> Option<FilesJob> {
        self.files_ahead.expire();
        let left = self.waste_left().min(self.files_ahead.room());
        let of = |most: u64| Limits { room: room.min(most), most, size_max: SMALL_MAX };
        let follow = of(left.min(self.programs.window()));
        // What is free at first is for small files.
        let to_guess = self.waste_left().saturating_sub(WASTE_FREE);
        let size_max = BYTES_RAISE_FIRST.max(to_guess / GUESS_PART);
        let mut guess = Limits { size_max, ..of(left.min(self.file_credit)) };
        let mut pages_max = if self.is_led() { LED_PAGES_MAX } else { FILE_PAGES_MAX };
        if self.near > 0 {
            guess.room = guess.room.max(NEAR_BYTES.min(guess.most));
            pages_max += NEAR_PAGES;
        }
        if self.file_pages >= pages_max {
            return None;
        }
        let mut chosen = Chosen::default();
        if follow.room >= BYTES_CREDIT_MIN {
            self.choose(Queue::Followed, follow, &mut chosen);
        }
        let followed = chosen.bytes;
        self.programs.brought += followed;
        if guess.room >= BYTES_CREDIT_MIN && !self.is_led() {
            self.choose(Queue::Guessed, guess, &mut chosen);
        }
        let Chosen { files, bytes } = chosen;
        if files.is_empty() {
            return None;
        }
        self.file_credit = self.file_credit.saturating_sub(bytes - followed);
        self.brought += bytes;
        self.file_pages += 1;
        let ids: Vec<FileId> = files.iter().map(|(id, _)| *id).collect();
        let (under, _) = self.fly(&ids);
        Some(FilesJob { files, caller: self.caller.clone(), under })
    }

    /// Takes files from a queue. A large one comes when there is room for it, or nothing else is on
    /// its way; until then it lets others pass.
    fn choose(&mut self, queue: Queue, limits: Limits, chosen: &mut Chosen) {
        let mut late = vec![];
        while chosen.files.len() < FILES_MAX
            && chosen.bytes < limits.room.min(FILES_BYTES)
            && late.len() < LATE_MAX
            && let Some((id, size)) = self.queue(queue).pop_front()
        {
            if matches!(queue, Queue::Guessed) {
                self.near = self.near.saturating_sub(1);
            }
            if size > limits.size_max || !self.may_come(id) {
                continue;
            }
            let is_alone = self.file_pages == 0 && chosen.files.is_empty() && late.is_empty();
            let room = if is_alone { limits.most } else { limits.room };
            if size <= BYTES_RAISE_FIRST || chosen.bytes + size <= room {
                self.note_asked(id, false);
                chosen.bytes += size;
                chosen.files.push((id, size));
            } else {
                late.push((id, size));
            }
        }
        late.into_iter().rev().for_each(|one| self.queue(queue).push_front(one));
    }

    fn queue(&mut self, queue: Queue) -> &mut VecDeque<(FileId, u64)> {
        match queue {
            Queue::Guessed => &mut self.files,
            Queue::Followed => &mut self.followed_files,
        }
    }

    /// A question about files has been answered. `unreached`: those that the answer did not come
    /// to.
    pub fn files_landed(
        &mut self,
        asked: &[(FileId, u64)],
        told: &BTreeSet<FileId>,
        unreached: &[(FileId, u64)],
    ) {
        self.file_pages = self.file_pages.saturating_sub(1);
        for (id, size) in asked {
            self.flights.remove(id);
            if told.contains(id) {
                // It may go and be asked for again at any time.
                self.asked.remove(id);
                self.files_ahead.add(*id, *size);
            } else {
                self.file_credit += size;
                self.brought = self.brought.saturating_sub(*size);
            }
        }
        if self.brought > HISTORY {
            (self.brought, self.used) = (self.brought / 2, self.used / 2);
            self.wanted /= 2;
        }
        for (id, size) in unreached.iter().rev() {
            self.asked.remove(id);
            self.files.push_front((*id, *size));
        }
    }

    /// Bytes that came ahead, and of these those that were used.
    pub fn bytes(&self) -> (u64, u64) {
        (self.brought, self.used)
    }
}
