//! Which position each name of a directory has.
//!
//! A position is a number that a name got when it was first told, in one table for all handles of
//! its directory: so it is good on each of them, also when the name is gone. To go on from one
//! means to list the names behind that name.
//!
//! Names lie in their order, each without what it has in common with the one before: some 15 bytes
//! of each. When all tables take too much, those that were not used for the longest time are
//! forgotten. A table that begins after that has a new series of numbers, so that no number means
//! another name. Short positions, for programs whose numbers have 31 bits, have 127 series: with
//! them that holds until some 250 million more names were listed.
//!
//! Invariants: of a directory a number means one name; what all tables take is bounded.

use std::collections::BTreeMap;
use std::ops::Bound;
use tieline_types::{FileId, Name};

/// Names that are kept together.
const LEAF_NAMES: usize = 256;
/// What all tables may take: some 4 million names.
const BYTES_MAX: usize = 64 << 20;
/// What a directory, and a leaf of it, take besides their names, roughly.
const DIRECTORY_BYTES: usize = 256;
const LEAF_BYTES: usize = 128;

/// What a position is made of: a series, and a number in it.
#[derive(Clone, Copy)]
struct Form {
    number_bits: u32,
    /// What a door adds to a position stays within its bits.
    series_max: u64,
}

const LONG: Form = Form { number_bits: 32, series_max: 1 << 28 };
/// A table has fewer than 2²⁴ names: each takes seven bytes at least.
const SHORT: Form = Form { number_bits: 24, series_max: (1 << 7) - 1 };
const _: () = assert!(BYTES_MAX / 7 < 1 << SHORT.number_bits);

pub struct Places {
    form: Form,
    directories: BTreeMap<FileId, Directory>,
    /// The clock of uses.
    clock: u64,
    /// Counts how often anything was forgotten.
    series: u64,
    bytes: usize,
    bytes_max: usize,
}

struct Directory {
    /// By the first name of each.
    leaves: BTreeMap<Vec<u8>, Leaf>,
    /// What is added to each number.
    first: u64,
    /// How many names got a number.
    seen: u32,
    used: u64,
    bytes: usize,
}

/// Names in their order, and their numbers within the series.
#[derive(Default)]
struct Leaf {
    /// Of each: how many bytes are those of the name before, how many follow, and they.
    names: Box<[u8]>,
    numbers: Box<[u32]>,
}

type Line = (Vec<u8>, u32);

impl Places {
    /// `are_short`: positions are less than 2³¹ - 2.
    pub fn new(are_short: bool) -> Self {
        Self::with_room(BYTES_MAX, if are_short { SHORT } else { LONG })
    }

    fn with_room(bytes_max: usize, form: Form) -> Self {
        Self { form, directories: BTreeMap::new(), clock: 0, series: 0, bytes: 0, bytes_max }
    }

    /// The positions after these names, which follow one another in their order.
    pub fn number(&mut self, directory: FileId, names: &[&Name]) -> Vec<u64> {
        if names.is_empty() {
            return Vec::new();
        }
        self.clock += 1;
        let (clock, first) = (self.clock, self.series << self.form.number_bits);
        let table = self.directories.entry(directory).or_insert_with(|| Directory::new(first));
        table.used = clock;
        let before = table.bytes;
        let numbers = table.number(names);
        self.bytes = self.bytes + table.bytes - before;
        if self.bytes > self.bytes_max {
            self.forget();
        }
        numbers
    }

    /// The name after which to go on from a position. `None`: it is not known any more.
    pub fn name(&mut self, directory: FileId, position: u64) -> Option<Name> {
        self.clock += 1;
        let table = self.directories.get_mut(&directory)?;
        table.used = self.clock;
        table.name(position)
    }

    /// Forgets the half that was not used for the longest time.
    fn forget(&mut self) {
        let mut order: Vec<_> = self.directories.iter().map(|(&id, one)| (one.used, id)).collect();
        order.sort_unstable();
        for (_, id) in order {
            if self.bytes <= self.bytes_max / 2 {
                break;
            }
            if let Some(table) = self.directories.remove(&id) {
                self.bytes -= table.bytes;
            }
        }
        self.series = (self.series + 1) % self.form.series_max;
    }
}

impl Directory {
    fn new(first: u64) -> Self {
        Self { leaves: BTreeMap::new(), first, seen: 0, used: 0, bytes: 0 }
    }

    fn number(&mut self, names: &[&Name]) -> Vec<u64> {
        let mut positions = Vec::with_capacity(names.len());
        let mut rest = names;
        while let Some(first) = rest.first() {
            let key = self.leaf_of(first);
            let behind = (Bound::Excluded(key.as_slice()), Bound::Unbounded);
            let until = self.leaves.range::<[u8], _>(behind).next().map(|(key, _)| key.clone());
            let is_here =
                |name: &&&Name| until.as_deref().is_none_or(|until| name.as_bytes() < until);
            let count = rest.iter().take_while(is_here).count().max(1);
            let (here, others) = rest.split_at(count);
            self.number_in(&key, here, &mut positions);
            rest = others;
        }
        positions
    }

    /// The leaf that a name is in, or belongs into.
    fn leaf_of(&self, name: &Name) -> Vec<u8> {
        let upto = (Bound::Unbounded, Bound::Included(name.as_bytes()));
        let leaf = self.leaves.range::<[u8], _>(upto).next_back();
        let leaf = leaf.or_else(|| self.leaves.first_key_value());
        leaf.map(|(key, _)| key.clone()).unwrap_or_default()
    }

    fn number_in(&mut self, key: &[u8], names: &[&Name], positions: &mut Vec<u64>) {
        let mut lines: Vec<Line> =
            self.leaves.get(key).map(|leaf| leaf.lines().collect()).unwrap_or_default();
        let count = lines.len();
        for name in names {
            let found = lines.binary_search_by(|(line, _)| line.as_slice().cmp(name.as_bytes()));
            let number = match found {
                Ok(at) => lines.get(at).map_or(0, |(_, number)| *number),
                Err(at) => {
                    self.seen += 1;
                    lines.insert(at, (name.as_bytes().to_vec(), self.seen));
                    self.seen
                }
            };
            positions.push(self.first + u64::from(number));
        }
        if lines.len() > count {
            self.put(key, &lines);
        }
    }

    /// Puts lines in the place of a leaf.
    fn put(&mut self, key: &[u8], lines: &[Line]) {
        if let Some(old) = self.leaves.remove(key) {
            self.bytes -= old.bytes();
        } else {
            self.bytes += DIRECTORY_BYTES;
        }
        let parts = lines.len().div_ceil(LEAF_NAMES);
        for part in lines.chunks(lines.len().div_ceil(parts.max(1)).max(1)) {
            let Some((first, _)) = part.first() else { continue };
            let leaf = Leaf::new(part);
            self.bytes += leaf.bytes();
            self.leaves.insert(first.clone(), leaf);
        }
    }

    fn name(&self, position: u64) -> Option<Name> {
        let number = u32::try_from(position.checked_sub(self.first)?).ok()?;
        let found = self.leaves.values().find_map(|leaf| {
            let at = leaf.numbers.iter().position(|one| *one == number)?;
            leaf.lines().nth(at)
        });
        Name::new(found?.0).ok()
    }
}

impl Leaf {
    fn new(lines: &[Line]) -> Self {
        let mut names = Vec::new();
        let mut before: &[u8] = &[];
        for (name, _) in lines {
            let common = before.iter().zip(name).take_while(|(one, other)| one == other).count();
            let rest = name.get(common..).unwrap_or_default();
            // A name has 255 bytes at most.
            names.extend([common as u8, rest.len() as u8]);
            names.extend_from_slice(rest);
            before = name;
        }
        let numbers = lines.iter().map(|(_, number)| *number).collect();
        Self { names: names.into_boxed_slice(), numbers }
    }

    fn lines(&self) -> impl Iterator<Item = Line> {
        let (mut left, mut name) = (&*self.names, Vec::new());
        self.numbers.iter().map_while(move |&number| {
            let (&[common, rest], behind) = left.split_first_chunk::<2>()?;
            let (rest, behind) = behind.split_at_checked(rest.into())?;
            left = behind;
            name.truncate(common.into());
            name.extend_from_slice(rest);
            Some((name.clone(), number))
        })
    }

    fn bytes(&self) -> usize {
        LEAF_BYTES + self.names.len() + self.numbers.len() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: FileId = FileId(7);

    fn names(texts: &[String]) -> Vec<Name> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn number(places: &mut Places, directory: FileId, texts: &[String]) -> Vec<u64> {
        places.number(directory, &names(texts).iter().collect::<Vec<_>>())
    }

    fn texts(range: std::ops::Range<usize>, step: usize) -> Vec<String> {
        range.step_by(step).map(|index| format!("name{index:06}")).collect()
    }

    #[test]
    fn names_keep_their_numbers_whatever_comes_between() {
        let mut places = Places::new(false);
        let even = texts(0..4000, 2);
        let numbers = number(&mut places, HERE, &even);
        assert_eq!(numbers, (1..=2000).collect::<Vec<_>>());
        // Those between them, and a part of the old ones.
        let news = number(&mut places, HERE, &texts(1..4000, 2));
        assert_eq!(news, (2001..=4000).collect::<Vec<_>>());
        assert_eq!(number(&mut places, HERE, &even), numbers);
        for (text, number) in even.iter().zip(&numbers).step_by(7) {
            assert_eq!(places.name(HERE, *number), Some(text.parse().unwrap()));
        }
        assert_eq!((places.name(HERE, 0), places.name(HERE, 4001)), (None, None));
        assert_eq!(places.name(FileId(8), 1), None);
    }

    #[test]
    fn any_order_and_any_name_will_do() {
        let mut places = Places::new(false);
        let odd: Vec<_> = [vec![b'z'; 255], vec![0xff, 1], b"a".to_vec(), b"ab".to_vec()]
            .into_iter()
            .map(|bytes| Name::new(bytes).unwrap())
            .collect();
        let all: Vec<_> = odd.iter().collect();
        for _ in 0..2 {
            assert_eq!(places.number(HERE, &all), [1, 2, 3, 4]);
        }
        for (name, number) in odd.iter().zip(1..) {
            assert_eq!(places.name(HERE, number).as_ref(), Some(name));
        }
        assert!(places.number(HERE, &[]).is_empty());
    }

    #[test]
    fn a_million_names_take_little_and_there_is_a_bound() {
        let mut places = Places::new(false);
        for from in (0..1_000_000).step_by(4096) {
            number(&mut places, HERE, &texts(from..(from + 4096).min(1_000_000), 1));
        }
        assert!(places.bytes < 10 << 20, "{}", places.bytes);
        assert_eq!(places.name(HERE, 777_778), Some("name777777".parse().unwrap()));
    }

    #[test]
    fn what_is_forgotten_never_means_another_name() {
        for form in [LONG, SHORT] {
            forgets(Places::with_room(20_000, form));
        }
    }

    fn forgets(mut places: Places) {
        let (old, kept) = (FileId(1), FileId(2));
        let first = number(&mut places, old, &texts(0..500, 1));
        for other in 10..100 {
            number(&mut places, kept, &texts(0..10, 1));
            number(&mut places, FileId(other), &texts(0..100, 1));
            assert!(places.bytes <= places.bytes_max);
        }
        assert_eq!(places.name(old, first[3]), None);
        assert_eq!(places.name(kept, 4), Some("name000003".parse().unwrap()));
        let anew = number(&mut places, old, &texts(0..500, 1));
        assert!(anew.iter().all(|one| !first.contains(one)));
        assert_eq!(places.name(old, first[3]), None);
        assert_eq!(places.name(old, anew[3]), Some("name000003".parse().unwrap()));
        // One that takes all the room alone is forgotten, too.
        number(&mut places, old, &texts(0..9000, 1));
        assert!(places.bytes <= places.bytes_max);
    }

    #[test]
    fn short_positions_have_31_bits_whatever_was_forgotten() {
        let mut places = Places::with_room(20_000, SHORT);
        let mut most = 0;
        for other in 0..2000 {
            let numbers = number(&mut places, FileId(other), &texts(0..500, 1));
            most = numbers.into_iter().fold(most, u64::max);
        }
        assert!((120 << 24..(1 << 31) - 2).contains(&most), "{most:#x}");
    }
}
