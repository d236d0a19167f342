//! Slots of powers of two in slabs of 4 MiB, each with a mark that is stored last.
//!
//! ```text
//! 0      magic, version, bytes, generation, beats, stage, sequence, salt, crashed   8 bytes each
//! 4096   of each slab: the power of two of its slots, 0 while it has none      8 bytes each
//! 8192   the slabs
//!
//! a slot:  0 mark   8 kind (16 bits), length (upper 32 bits)   16 sequence   24 key
//!          32 check   40 body
//! ```
//!
//! A killed process leaves its stores in the order of its program, so that a mark that is stored
//! after everything else says that all of it is there; freeing a slot is one store. The check
//! covers the header and the first block of the body: it finds what a stray write did, while no
//! pass over megabytes of written data is paid for what cannot be torn. A room's body changes while
//! it stands, and is not covered.
//!
//! The mark also says whether a process has the record in hand just now, and how many have crashed
//! with it in hand: who watches says whether the last one crashed. A record with which
//! [`CRASHES_MAX`] have is set aside: its bytes stay where they are, and nobody is given it again.
//!
//! What is free is known to the process alone, and found anew by a scan. Before a slab gets slots
//! of another size its pages are given back, so that no body of before is taken for a slot.
//!
//! Invariants: a slot belongs to one record; a scan believes nothing of what it reads.

use crate::memory::Memory;
use crate::{Error, Stage};
use rustix::fs::MemfdFlags;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tieline_types::checksum;

const MAGIC: u64 = u64::from_le_bytes(*b"tielkeep");
/// Changes with what programs put into records, too.
const VERSION: u64 = 2;
/// The first had no rooms, and everything else as it is.
const VERSION_OLDEST: u64 = 1;
/// With how often a process crashed that had it in hand, in the lowest bits.
const MARK: u64 = 0x6b65_7074_6b65_7074;
const CRASHES: u64 = 3;
const IN_HAND: u64 = 8;
const CRASHES_MAX: u64 = 3;

const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 8;
const AT_BYTES: usize = 16;
const AT_GENERATION: usize = 24;
const AT_BEATS: usize = 32;
const AT_STAGE: usize = 40;
const AT_SEQUENCE: usize = 48;
const AT_SALT: usize = 56;
const AT_CRASHED: usize = 64;
const AT_TABLE: usize = 4096;
const AT_SLABS: usize = 8192;

const SLAB: usize = 4 << 20;
const SLABS_MAX: usize = (AT_SLABS - AT_TABLE) / 8;
const HEADER: usize = 40;
/// Powers of two of the smallest and the largest slot.
const CLASS_MIN: usize = 7;
const CLASS_MAX: usize = 22;
/// Slots so large get their memory at once: fault by fault it costs as much as what is copied
/// there.
const CLASS_LARGE: usize = 16;
/// In a slot's second word, between kind and length: it is a room.
const ROOM: u64 = 1 << 16;
/// So much of a body is covered by the check.
const CHECKED: usize = 4096;

pub(crate) struct Heap {
    memory: Memory,
    slabs: usize,
    state: Mutex<State>,
}

/// Where a record is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    slab: usize,
    offset: usize,
}

/// What a scan found.
pub(crate) struct Found {
    pub is_aside: bool,
    pub kind: u16,
    pub key: u64,
    pub sequence: u64,
    pub slot: Slot,
}

struct State {
    slabs: Vec<Slab>,
    /// Per class: slabs that may have a free slot. One that has none leaves when that is found.
    open: Vec<Vec<usize>>,
}

#[derive(Default)]
struct Slab {
    /// 0: it has no slots.
    class: usize,
    free: Vec<usize>,
    used: usize,
    is_open: bool,
    was_used: bool,
}

impl Heap {
    pub fn create(bytes: usize) -> Result<Self, Error> {
        let slabs = (bytes / SLAB).clamp(1, SLABS_MAX);
        let bytes = AT_SLABS + slabs * SLAB;
        let file = rustix::fs::memfd_create("tieline-keep", MemfdFlags::CLOEXEC)
            .map_err(std::io::Error::from)?;
        rustix::fs::ftruncate(&file, bytes as u64).map_err(std::io::Error::from)?;
        let memory = Memory::map(file, bytes)?;
        for (at, value) in [(AT_VERSION, VERSION), (AT_BYTES, bytes as u64), (AT_SEQUENCE, 1)] {
            memory.word(at).store(value, Ordering::Relaxed);
        }
        let salt = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let salt = salt.map_or(1, |since| since.as_nanos() as u64);
        memory.word(AT_SALT).store(salt, Ordering::Relaxed);
        memory.word(AT_MAGIC).store(MAGIC, Ordering::Release);
        Ok(Self::over(memory, slabs))
    }

    /// Maps what another process made.
    pub fn map(file: OwnedFd) -> Result<Self, Error> {
        let memory = Memory::map(file.try_clone()?, AT_SLABS)?;
        let word = |at: usize| memory.word(at).load(Ordering::Acquire);
        let is_known = (VERSION_OLDEST..=VERSION).contains(&word(AT_VERSION));
        if word(AT_MAGIC) != MAGIC || !is_known {
            return Err(Error::Layout { found: word(AT_VERSION) });
        }
        let bytes = usize::try_from(word(AT_BYTES)).unwrap_or(0);
        let slabs = bytes.saturating_sub(AT_SLABS) / SLAB;
        if slabs == 0 || slabs > SLABS_MAX || bytes != AT_SLABS + slabs * SLAB {
            return Err(Error::Layout { found: word(AT_VERSION) });
        }
        drop(memory);
        Ok(Self::over(Memory::map(file, bytes)?, slabs))
    }

    /// The same, to go on with it.
    pub fn open(file: OwnedFd) -> Result<Self, Error> {
        let heap = Self::map(file)?;
        heap.memory.word(AT_GENERATION).fetch_add(1, Ordering::AcqRel);
        Ok(heap)
    }

    fn over(memory: Memory, slabs: usize) -> Self {
        let open = vec![Vec::new(); CLASS_MAX + 1];
        let state = State { slabs: (0..slabs).map(|_| Slab::default()).collect(), open };
        Self { memory, slabs, state: Mutex::new(state) }
    }

    pub fn file(&self) -> &OwnedFd {
        self.memory.file()
    }

    pub fn generation(&self) -> u64 {
        self.memory.word(AT_GENERATION).load(Ordering::Acquire)
    }

    pub fn beat(&self) {
        self.memory.word(AT_BEATS).fetch_add(1, Ordering::AcqRel);
    }

    pub fn beats(&self) -> u64 {
        self.memory.word(AT_BEATS).load(Ordering::Acquire)
    }

    pub fn set_crashed(&self, has_crashed: bool) {
        self.memory.word(AT_CRASHED).store(has_crashed.into(), Ordering::Release);
    }

    /// Whoever dies now has died with it in hand.
    pub fn take_in_hand(&self, slot: &Slot, is_in_hand: bool) {
        let mark = self.memory.word(slot.offset);
        match is_in_hand {
            true => mark.fetch_or(IN_HAND, Ordering::AcqRel),
            false => mark.fetch_and(!IN_HAND, Ordering::AcqRel),
        };
    }

    pub fn stage(&self) -> Stage {
        match self.memory.word(AT_STAGE).load(Ordering::Acquire) {
            0 => Stage::Starting,
            1 => Stage::Serving,
            _ => Stage::Over,
        }
    }

    pub fn set_stage(&self, stage: Stage) {
        let number = match stage {
            Stage::Starting => 0,
            Stage::Serving => 1,
            Stage::Over => 2,
        };
        self.memory.word(AT_STAGE).store(number, Ordering::Release);
    }

    pub fn put(&self, kind: u16, key: u64, parts: &[&[u8]]) -> Option<Slot> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let form = form_of(kind, length)?;
        let slot = self.take(class_of(length)?)?;
        let mut at = slot.offset + HEADER;
        for part in parts {
            self.memory.write(at, part);
            at += part.len();
        }
        self.set_valid(&slot, form, key, length);
        Some(slot)
    }

    /// A slot whose owner writes into it while it counts. Its memory stays where it is.
    pub fn room(&self, kind: u16, key: u64, length: usize) -> Option<Slot> {
        let form = form_of(kind, length)? | ROOM;
        let slot = self.take(class_of(length.max(8))?)?;
        self.memory.pin(slot.offset, HEADER + length);
        self.memory.word(slot.offset + HEADER).store(0, Ordering::Relaxed);
        self.set_valid(&slot, form, key, 0);
        Some(slot)
    }

    /// A room's first word, which says whether anything is in it.
    pub fn room_word(&self, slot: &Slot) -> &AtomicU64 {
        self.memory.word(slot.offset + HEADER)
    }

    /// A room's bytes.
    ///
    /// # Safety
    ///
    /// The slot is the caller's, who has no other reference into it.
    #[expect(clippy::mut_from_ref, reason = "the slot is the caller's alone")]
    pub unsafe fn room_bytes(&self, slot: &Slot) -> &mut [u8] {
        let form = self.memory.word(slot.offset + 8).load(Ordering::Relaxed);
        // SAFETY: the length was checked when the slot was taken; the rest is the caller's promise.
        unsafe { self.memory.slice_mut(slot.offset + HEADER, (form >> 32) as usize) }
    }

    /// Everything else of it is in its place.
    fn set_valid(&self, slot: &Slot, form: u64, key: u64, covered: usize) {
        let sequence = self.memory.word(AT_SEQUENCE).fetch_add(1, Ordering::Relaxed);
        let words = [form, sequence, key];
        for (index, word) in words.into_iter().enumerate() {
            self.memory.word(slot.offset + 8 + index * 8).store(word, Ordering::Relaxed);
        }
        let check = self.check(words, slot.offset, covered);
        self.memory.word(slot.offset + 32).store(check, Ordering::Relaxed);
        self.memory.word(slot.offset).store(MARK, Ordering::Release);
    }

    fn check(&self, words: [u64; 3], offset: usize, covered: usize) -> u64 {
        let salt = self.memory.word(AT_SALT).load(Ordering::Relaxed);
        let covered = covered.min(CHECKED);
        // Not on the heap: every written piece comes by here.
        let mut room = [0; CHECKED + 4 * 8];
        self.memory.read_into(offset + HEADER, &mut room[..covered]);
        let words = words.into_iter().chain([salt]);
        for (place, word) in room[covered..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        u64::from(checksum::crc32c(&room[..covered + 4 * 8]))
    }

    pub fn free(&self, slot: Slot) {
        self.memory.word(slot.offset).store(0, Ordering::Release);
        let mut state = self.lock();
        let Some(slab) = state.slabs.get_mut(slot.slab) else { return };
        slab.free.push(slot.offset);
        slab.used -= 1;
        let class = slab.class;
        if !std::mem::replace(&mut slab.is_open, true)
            && let Some(open) = state.open.get_mut(class)
        {
            open.push(slot.slab);
        }
    }

    pub fn bytes(&self, slot: &Slot) -> Vec<u8> {
        let word = self.memory.word(slot.offset + 8).load(Ordering::Relaxed);
        self.memory.read(slot.offset + HEADER, (word >> 32) as usize)
    }

    fn take(&self, class: usize) -> Option<Slot> {
        let mut state = self.lock();
        loop {
            let State { slabs, open } = &mut *state;
            let open = open.get_mut(class)?;
            while let Some(&index) = open.last() {
                let slab = slabs.get_mut(index)?;
                if slab.class == class
                    && let Some(offset) = slab.free.pop()
                {
                    (slab.used, slab.was_used) = (slab.used + 1, true);
                    return Some(Slot { slab: index, offset });
                }
                if slab.class == class {
                    slab.is_open = false;
                }
                open.pop();
            }
            let virgin = slabs.iter().position(|slab| slab.class == 0);
            let index = virgin.or_else(|| slabs.iter().position(|slab| slab.used == 0))?;
            self.lay_out(&mut state, index, class)?;
        }
    }

    /// Gives a slab that holds nothing slots of a size.
    fn lay_out(&self, state: &mut State, index: usize, class: usize) -> Option<()> {
        let slab = state.slabs.get_mut(index)?;
        let start = AT_SLABS + index * SLAB;
        if slab.class != 0 {
            self.memory.punch(start, SLAB).ok()?;
        }
        self.memory.word(AT_TABLE + index * 8).store(class as u64, Ordering::Release);
        if class >= CLASS_LARGE {
            self.memory.fill(start, SLAB);
        }
        let free = (0..SLAB >> class).rev().map(|number| start + (number << class)).collect();
        *slab = Slab { class, free, used: 0, is_open: true, was_used: true };
        state.open.get_mut(class)?.push(index);
        Some(())
    }

    /// Everything that was marked, oldest first.
    pub fn scan(&self) -> Vec<Found> {
        let mut found = Vec::new();
        let mut state = self.lock();
        for index in 0..self.slabs {
            let told = self.memory.word(AT_TABLE + index * 8).load(Ordering::Acquire);
            let Some(class) = class_told(told) else { continue };
            let mut slab = Slab { class, ..Slab::default() };
            for number in (0..SLAB >> class).rev() {
                let offset = AT_SLABS + index * SLAB + (number << class);
                match self.look(index, offset, class) {
                    Some(record) => {
                        slab.used += 1;
                        found.push(record);
                    }
                    None => slab.free.push(offset),
                }
            }
            slab.is_open = !slab.free.is_empty();
            if slab.is_open
                && let Some(open) = state.open.get_mut(class)
            {
                open.push(index);
            }
            if let Some(place) = state.slabs.get_mut(index) {
                *place = slab;
            }
        }
        drop(state);
        found.sort_by_key(|record| record.sequence);
        let last = found.last().map_or(0, |record| record.sequence);
        // Sequences only grow, whatever the header says.
        self.memory.word(AT_SEQUENCE).fetch_max(last.saturating_add(1), Ordering::AcqRel);
        found
    }

    fn look(&self, slab: usize, offset: usize, class: usize) -> Option<Found> {
        let mark = self.memory.word(offset);
        let told = mark.load(Ordering::Acquire);
        if told & !(CRASHES | IN_HAND) != MARK {
            return None;
        }
        let has_crashed = self.memory.word(AT_CRASHED).load(Ordering::Acquire) != 0;
        let is_guilty = has_crashed && told & IN_HAND != 0;
        let crashes = ((told & CRASHES) + u64::from(is_guilty)).min(CRASHES_MAX);
        let word = |at: usize| self.memory.word(offset + at).load(Ordering::Relaxed);
        let words = [word(8), word(16), word(24)];
        let [form, sequence, key] = words;
        let length = (form >> 32) as usize;
        let covered = if form & ROOM == 0 { length } else { 0 };
        let is_whole =
            length <= (1 << class) - HEADER && self.check(words, offset, covered) == word(32);
        if !is_whole {
            mark.store(0, Ordering::Release);
            return None;
        }
        mark.store(MARK | crashes, Ordering::Release);
        let (kind, is_aside) = (form as u16, crashes >= CRASHES_MAX);
        Some(Found { is_aside, kind, key, sequence, slot: Slot { slab, offset } })
    }

    /// Gives back slabs that hold nothing, and did not since the last call.
    pub fn trim(&self) {
        let mut state = self.lock();
        for index in 0..self.slabs {
            let Some(slab) = state.slabs.get_mut(index) else { continue };
            let was_used = std::mem::take(&mut slab.was_used);
            if slab.class == 0 || slab.used > 0 || was_used {
                continue;
            }
            if self.memory.punch(AT_SLABS + index * SLAB, SLAB).is_ok() {
                self.memory.word(AT_TABLE + index * 8).store(0, Ordering::Release);
                let class = std::mem::take(slab).class;
                if let Some(open) = state.open.get_mut(class) {
                    open.retain(|&other| other != index);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        self.memory.word(at)
    }
}

/// Says what a record is, and how long.
fn form_of(kind: u16, length: usize) -> Option<u64> {
    Some(u64::from(kind) | u64::from(u32::try_from(length).ok()?) << 32)
}

/// The power of two of the slots that a body of `length` bytes goes into.
fn class_of(length: usize) -> Option<usize> {
    let class = (length + HEADER).next_power_of_two().trailing_zeros() as usize;
    (class <= CLASS_MAX).then_some(class.max(CLASS_MIN))
}

fn class_told(told: u64) -> Option<usize> {
    let class = usize::try_from(told).ok()?;
    (CLASS_MIN..=CLASS_MAX).contains(&class).then_some(class)
}
