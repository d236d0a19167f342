//! What uproot reads of two branches of a tree, as it was traced: the file is opened for each
//! piece, and each is read in two calls, the second of which fills a buffer.

use super::super::{Manner, Past, Step};
use super::*;
use tieline_ranges::merged::Merged;
use tieline_types::{FileId, Version};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BUFFER: u64 = 131_072;
const SIZE: u64 = 256_091_442;
const DIRECTORY: FileId = FileId(2);

/// Header, index, and ten pieces of 2.5 MB, four of them side by side.
const PIECES: [u64; 10] = [
    31_557,
    25_632_897,
    128_038_257,
    230_490_028,
    51_234_237,
    153_639_597,
    76_835_577,
    179_240_937,
    102_436_917,
    204_842_277,
];
const PIECE: u64 = 2_490_368;

/// One file, and what was asked for and foretold of it.
struct Job<'p> {
    past: &'p mut Past,
    file: FileId,
    fetched: Merged,
    /// What the kernel keeps of it.
    cached: Merged,
    bytes: u64,
    /// Requests whose bytes were not on their way.
    waits: u32,
    direct: u32,
}

impl<'p> Job<'p> {
    fn new(past: &'p mut Past, file: u64) -> Self {
        let file = FileId(file);
        let (fetched, cached) = Default::default();
        Self { past, file, fetched, cached, bytes: 0, waits: 0, direct: 0 }
    }

    fn fetch(&mut self, range: Range<u64>) {
        let gaps = self.fetched.gaps(range.start..range.end.min(SIZE));
        self.bytes += gaps.iter().map(|gap| gap.end - gap.start).sum::<u64>();
        self.fetched.add(range.start..range.end.min(SIZE));
    }

    /// The kernel asks for a range.
    fn ask(&mut self, range: Range<u64>, piece: Option<u64>) {
        self.waits += u32::from(!self.fetched.gaps(range.clone()).is_empty());
        self.fetch(range.clone());
        let (file, version, directory) = (self.file, Version(1), Some(DIRECTORY));
        let step = Step { file, version, directory, range, piece, window: 16 * MIB };
        for ahead in self.past.note(&step).ranges {
            self.fetch(ahead);
        }
    }

    /// A program opens the file and reads one piece: past the cache what it asks for, and else what
    /// a kernel was seen to make of that.
    fn read(&mut self, from: u64, length: u64) {
        if self.past.opened(self.file, Some(DIRECTORY), SIZE) == Manner::Anew {
            self.direct += 1;
            let end = from + length;
            let mut at = from;
            while at < end {
                let piece = (!from.is_multiple_of(PAGE)).then_some(from);
                self.ask(at..end.min(at + MIB), piece);
                at = end.min(at + MIB);
            }
            return;
        }
        let (start, end) = (from / PAGE * PAGE, (from + length).div_ceil(PAGE) * PAGE);
        self.ask_cached(start..end);
        // What it takes for a stream.
        self.ask_cached(end..end + 384 * KIB);
    }

    fn ask_cached(&mut self, range: Range<u64>) {
        for gap in self.cached.gaps(range.clone()) {
            for at in gap.clone().step_by(MIB as usize) {
                self.ask(at..gap.end.min(at + MIB), None);
            }
        }
        self.cached.add(range);
    }

    fn run(mut self) -> (u64, u32, u32) {
        [0, 1304, 230_443_660].into_iter().for_each(|at| self.read(at, BUFFER));
        for at in PIECES {
            self.read(at, PIECE + BUFFER);
        }
        (self.bytes, self.waits, self.direct)
    }
}

/// What the program asks for, each byte once.
fn asked() -> u64 {
    let mut merged = Merged::default();
    let pieces = PIECES.map(|at| at..at + PIECE + BUFFER);
    let others = [0, 1304, 230_443_660].map(|at| at..at + BUFFER);
    let mut bytes = 0;
    for range in pieces.into_iter().chain(others) {
        bytes += merged.gaps(range.clone()).iter().map(|gap| gap.end - gap.start).sum::<u64>();
        merged.add(range);
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn the_next_file_costs_what_is_read_of_it() {
    let mut past = Past::default();
    let (first, _, direct) = Job::new(&mut past, 3).run();
    assert!(first <= asked() + asked() / 3, "{first} of {}", asked());
    assert!((1..13).contains(&direct), "known once it was seen: {direct}");
    assert_eq!(past.opened(FileId(9), Some(DIRECTORY), 1000), Manner::Unknown);
    for file in 4..7 {
        let (bytes, waits, direct) = Job::new(&mut past, file).run();
        assert!(bytes <= asked() + asked() / 50, "{bytes} of {}", asked());
        assert_eq!(direct, 13, "from the first on");
        assert!(waits <= 5, "{waits}");
    }
}

/// Whoever reads a file once more is given a cache.
#[tokio::test(start_paused = true)]
async fn what_is_read_again_is_cached() {
    let mut past = Past::default();
    Job::new(&mut past, 3).run();
    assert_eq!(Job::new(&mut past, 4).run().2, 13);
    let (_, _, direct) = Job::new(&mut past, 4).run();
    assert!(direct <= 4, "{direct}");
    assert_eq!(Job::new(&mut past, 4).run().2, 0);
}

/// All of a file is read, in however many pieces: there a cache takes nothing but what is wanted.
#[tokio::test(start_paused = true)]
async fn who_reads_all_of_it_reads_through_the_cache() {
    let mut past = Past::default();
    let mut job = Job::new(&mut past, 3);
    (0..24).for_each(|index| job.read(index * 10 * MIB, 10 * MIB));
    assert_eq!(job.direct, 0);
    assert_eq!(past.opened(FileId(4), Some(DIRECTORY), SIZE), Manner::Unknown);
}

/// Baskets of a compressed tree: each is read in one request either way, and rows of them are met.
#[tokio::test(start_paused = true)]
async fn small_pieces_are_read_through_the_cache() {
    let mut past = Past::default();
    let mut job = Job::new(&mut past, 3);
    (0..60).for_each(|index| job.read(31_560 + index * 1_045_417, BUFFER));
    assert_eq!(job.direct, 0);
    assert_eq!(past.opened(FileId(4), Some(DIRECTORY), SIZE), Manner::Unknown);
}

#[test]
fn the_rest_of_a_piece_comes_with_its_first_request() {
    let as_read = |foretold: &[Range<u64>], piece: Range<u64>, request: Range<u64>, longest| {
        as_read(foretold.to_vec(), (&piece, &request), longest)
    };
    let rest = |piece: Range<u64>, request: Range<u64>, longest| {
        as_read(&[], piece, request, longest).first().cloned()
    };
    let first = 7..7 + MIB;
    // Nothing is known: as much again.
    assert_eq!(rest(first.clone(), first.clone(), 0), Some(7 + MIB..7 + 2 * MIB));
    assert_eq!(rest(7..9, 7..9, 0), None, "a short request ends it");
    // As long as others.
    assert_eq!(rest(first.clone(), first.clone(), 3 * MIB), Some(7 + MIB..7 + 3 * MIB));
    assert_eq!(rest(first.clone(), first.clone(), MIB), None);
    let second = 7 + MIB..7 + 2 * MIB;
    assert_eq!(rest(7..second.end, second, MIB), Some(7 + 2 * MIB..7 + 4 * MIB));
    // What was read there before, by a kernel that asked for more.
    let told = [7 + MIB..90 * MIB, 100 * MIB..120 * MIB, 130 * MIB..130 * MIB + 5];
    let expected = [7 + MIB..7 + 3 * MIB, 100 * MIB..103 * MIB + ASIDE, 130 * MIB..130 * MIB + 5];
    assert_eq!(as_read(&told, first.clone(), first, 3 * MIB), expected);
}
