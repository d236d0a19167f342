//! What is remembered of readings, and what is foretold from it.

use super::*;
use proptest::prelude::*;
use tieline_ranges::merged::Merged;
use tieline_types::Version;

const MIB: u64 = 1 << 20;
const DIRECTORY: FileId = FileId(2);

struct Reader {
    past: Past,
    file: FileId,
    size: u64,
    /// Fetched ahead.
    fetched: Merged,
    bytes: u64,
}

impl Reader {
    fn new() -> Self {
        let (past, fetched) = (Past::default(), Merged::default());
        Self { past, file: FileId(3), size: u64::MAX, fetched, bytes: 0 }
    }

    /// Reads one range after the other; says how many of them were there already.
    fn read(&mut self, ranges: &[Range<u64>]) -> usize {
        let mut found = 0;
        for range in ranges {
            let (file, version) = (self.file, Version(1));
            found += usize::from(self.fetched.gaps(range.clone()).is_empty());
            let (directory, range) = (Some(DIRECTORY), range.clone());
            let step = Step { file, version, directory, range, piece: None, window: 32 * MIB };
            for ahead in self.past.note(&step).ranges {
                let ahead = ahead.start.min(self.size)..ahead.end.min(self.size);
                self.bytes += ahead.end - ahead.start;
                self.fetched.add(ahead);
            }
        }
        found
    }

    async fn rest(&mut self) {
        tokio::time::advance(REST).await;
        self.fetched = Merged::default();
        self.bytes = 0;
    }
}

fn steps(from: u64, step: u64, length: u64, count: u64) -> Vec<Range<u64>> {
    (0..count).map(|index| from + index * step..from + index * step + length).collect()
}

fn total(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

#[tokio::test(start_paused = true)]
async fn a_strided_reader_is_met_from_the_third_piece_on() {
    let mut reader = Reader::new();
    let skip = steps(0, 10 * MIB, MIB, 103);
    assert_eq!(reader.read(&skip), 100);
    // The last ones were foretold beyond the file's end, where nothing is fetched.
    assert!(reader.bytes <= total(&skip) + 32 * MIB);
}

/// Down to the first byte, whatever the blocks, and nothing but what comes.
#[tokio::test(start_paused = true)]
async fn a_reader_from_the_end_is_met_from_the_fifth_block_on() {
    for block in [PAGE, 64 << 10, 4 * MIB] {
        let mut reader = Reader::new();
        let count = 48;
        let blocks = (0..count).rev().map(|index| index * block..(index + 1) * block);
        let blocks: Vec<_> = blocks.collect();
        assert_eq!(reader.read(&blocks), count as usize - 4, "{block}");
        assert_eq!(reader.bytes, (count - 4) * block);
    }
}

/// The kernel asks for a block in pieces, and the pieces overtake each other.
#[tokio::test(start_paused = true)]
async fn blocks_that_are_read_backwards_come_in_any_order() {
    let mut reader = Reader::new();
    let block = |index: u64| index * 4 * MIB;
    let pieces = |at: u64| [1, 0, 2, 3].map(|piece| at + piece * MIB..at + (piece + 1) * MIB);
    let blocks: Vec<_> = (0..32).rev().flat_map(|index| pieces(block(index))).collect();
    let found = reader.read(&blocks);
    assert!(found >= 28 * 4, "{found}");
}

/// A few blocks from the end, and then others: what was foretold in vain stays little.
#[tokio::test(start_paused = true)]
async fn whoever_looks_at_a_files_end_gets_little_more() {
    let mut reader = Reader::new();
    let blocks: Vec<_> = (90..100u64).rev().map(|index| index << 16..(index + 1) << 16).collect();
    reader.read(&blocks);
    assert!(reader.bytes <= 3 * total(&blocks), "{}", reader.bytes);
}

#[tokio::test(start_paused = true)]
async fn rows_may_be_read_side_by_side_and_rounded_to_pages() {
    let mut reader = Reader::new();
    let row = |from: u64, count| steps(from, 25_601_340, 2_560_000, count);
    let to_pages = |range: &Range<u64>| range.start / PAGE * PAGE..range.end.div_ceil(PAGE) * PAGE;
    let (one, other) = (row(31_545, 8), row(1_128_038_245, 8));
    let mixed: Vec<_> =
        one.iter().zip(&other).flat_map(|(a, b)| [to_pages(a), to_pages(b)]).collect();
    let found = reader.read(&mixed);
    assert!(found >= 6, "{found} of {mixed:?}: {:?}", reader.fetched);
}

/// Two threads, each in a row of its own: one step of both shows what follows.
#[tokio::test(start_paused = true)]
async fn two_pairs_that_lie_equally_far_apart_are_gone_on_with() {
    let mut reader = Reader { size: 256_000_000, ..Reader::new() };
    let length = 2_494_464;
    let run = |at: u64| at..at + length + 524_288;
    let [one, other] = [25_632_768, 128_036_864];
    let header = [0..1_310_720, 230_440_960..230_576_128, run(230_576_128)];
    assert_eq!(reader.read(&header) + reader.read(&[run(one), run(other)]), 0);
    assert_eq!(reader.read(&[run(51_232_768), run(153_636_864)]), 0);
    // Each lies up to a page beside what the distance says.
    let ahead = [76_832_768, 179_236_864, 102_436_864, 204_840_960];
    assert_eq!(reader.read(&ahead.map(run)), 4);
    assert!(reader.bytes <= total(&ahead.map(run)) * 11 / 10, "{}", reader.bytes);
}

#[tokio::test(start_paused = true)]
async fn random_reads_foretell_nothing() {
    let mut reader = Reader::new();
    let mut seed = 7u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % 100_000 * 4096
    };
    let reads: Vec<_> = (0..500).map(|_| random()).map(|at| at..at + 4096).collect();
    reader.read(&reads);
    assert!(reader.bytes <= total(&reads) / 20, "{}", reader.bytes);
    assert_eq!(reader.past.manner(reader.file, None), Manner::Scattered);
    assert_eq!(reader.past.manner(FileId(99), Some(DIRECTORY)), Manner::Scattered);
    assert_eq!(reader.past.manner(FileId(99), None), Manner::Unknown);
}

/// Kernels that need their memory drop pages here and there of what they were given.
#[tokio::test(start_paused = true)]
async fn pages_that_were_dropped_are_no_scattered_reading() {
    let mut reader = Reader::new();
    reader.read(&(0..64).map(|at| at * MIB..(at + 1) * MIB).collect::<Vec<_>>());
    let dropped: Vec<_> = (0..500).map(|at| at * 131_072..at * 131_072 + 8192).collect();
    for _ in 0..2 {
        reader.rest().await;
        reader.read(&dropped);
        assert_eq!(reader.past.manner(reader.file, None), Manner::Unknown);
    }
    let beyond: Vec<_> =
        dropped.iter().map(|run| run.start + 64 * MIB..run.end + 64 * MIB).collect();
    reader.rest().await;
    reader.read(&beyond);
    assert_eq!(reader.past.manner(reader.file, None), Manner::Scattered);
}

/// A header, an index, and blocks that lie anywhere.
fn blocks(seed: u64) -> Vec<Range<u64>> {
    let (mut at, mut dice) = (0, seed);
    let mut ranges = vec![0..16_384, 230 * MIB..230 * MIB + 49_152];
    for _ in 0..20 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        at += 5 * MIB + (dice >> 33) % (3 * MIB);
        ranges.push(at / PAGE * PAGE..at / PAGE * PAGE + MIB);
    }
    ranges
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_is_there_the_second_time() {
    let mut reader = Reader::new();
    let ranges = blocks(1);
    assert_eq!(reader.read(&ranges), 0, "nothing is known yet");
    reader.rest().await;
    let found = reader.read(&ranges);
    assert!(found >= ranges.len() - 2, "{found} of {}", ranges.len());
    assert!(reader.bytes <= total(&ranges));
}

#[tokio::test(start_paused = true)]
async fn another_file_of_the_directory_is_read_alike_or_not() {
    let mut reader = Reader::new();
    let ranges = blocks(1);
    reader.read(&ranges);
    reader.file = FileId(4);
    reader.rest().await;
    let found = reader.read(&ranges);
    assert!(found >= ranges.len() - 4, "{found} of {}", ranges.len());
    reader.file = FileId(5);
    reader.rest().await;
    // The header alone is not enough.
    reader.read(&ranges[..1]);
    assert_eq!(reader.bytes, 0);
    let other = blocks(2);
    reader.read(&other[2..]);
    assert_eq!(reader.bytes, 0, "they lie elsewhere");
}

#[tokio::test(start_paused = true)]
async fn who_reads_otherwise_costs_little() {
    let mut reader = Reader::new();
    let ranges = blocks(1);
    reader.read(&ranges);
    reader.rest().await;
    let other = [&ranges[..2], &blocks(5)[2..]].concat();
    reader.read(&other);
    assert!(reader.bytes <= 3 * MIB, "{}", reader.bytes);
}

/// The kernel's requests for what it reads ahead overtake each other.
#[tokio::test(start_paused = true)]
async fn a_file_that_was_read_whole_does_not_tell_how_to_skip_through_others() {
    let whole: Vec<_> = (0..100u64).map(|at| (at ^ 3) * MIB..((at ^ 3) + 1) * MIB).collect();
    let skip = steps(0, 10 * MIB, MIB, 10);
    let mut reader = Reader { size: 100 * MIB, ..Reader::new() };
    reader.read(&whole);
    for file in [4, 5] {
        reader.rest().await;
        reader.file = FileId(file);
        assert!(reader.read(&skip) >= 6);
        assert!(reader.bytes <= 11 * MIB, "file {file}: {} bytes", reader.bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn who_takes_little_of_each_run_is_not_brought_all_of_them() {
    for (distance, length) in [(30 * MIB, 25 * MIB), (10 * MIB, 8 * MIB)] {
        let large = steps(0, distance, length, 90 * MIB / distance);
        let large: Vec<_> =
            large.iter().flat_map(|run| steps(run.start, MIB, MIB, length / MIB)).collect();
        let skip = steps(0, 10 * MIB, MIB, 9);
        let mut reader = Reader { size: 90 * MIB, ..Reader::new() };
        reader.read(&large);
        reader.rest().await;
        reader.file = FileId(4);
        reader.read(&skip);
        assert!(reader.bytes <= 30 * MIB, "first: {} bytes", reader.bytes);
        reader.rest().await;
        reader.read(&skip);
        assert!(reader.bytes <= 10 * MIB, "again: {} bytes", reader.bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_has_no_past() {
    let mut reader = Reader::new();
    let ranges = blocks(1);
    reader.read(&ranges);
    reader.rest().await;
    let step = Step {
        file: reader.file,
        version: Version(2),
        directory: None,
        range: ranges[0].clone(),
        piece: None,
        window: 32 * MIB,
    };
    assert!(reader.past.note(&step).ranges.is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_more_is_remembered_than_there_is_room_for() {
    let mut reader = Reader::new();
    for file in 0..2 * FILES_MAX as u64 {
        reader.file = FileId(100 + file);
        reader.read(&steps(0, 10 * MIB, MIB, 4));
    }
    assert!(reader.past.files.len() <= FILES_MAX && reader.past.latest.len() <= 1);
    reader.read(&steps(0, 8192, 4096, 2 * RUNS_MAX as u64));
    let story = &reader.past.files[&reader.file];
    assert!(story.walk.runs().len() <= RUNS_MAX);
}

/// What uproot was seen to read of an RNTuple, through a kernel: for each cluster its list of
/// pages, then, in several passes over the file, what its fields lack yet. Clusters are equally far
/// apart but for the rounding to pages.
#[tokio::test(start_paused = true)]
async fn no_byte_is_fetched_twice_in_one_pass() {
    const CLUSTERS: u64 = 60;
    const STEP: u64 = 1_915_333;
    const SIZE: u64 = (CLUSTERS + 1) * STEP;
    let parts = [(0, 131_072), (135_168, 229_376), (364_544, 241_664), (606_208, 1_236_992)];
    let to_pages =
        |from: u64, length: u64| from / PAGE * PAGE..(from + length).div_ceil(PAGE) * PAGE;
    let reads = parts.into_iter().flat_map(|(from, length)| {
        (0..CLUSTERS).map(move |index| to_pages(1_916_928 + from + index * STEP, length))
    });
    let (mut past, mut had) = (Past::default(), Merged::default());
    let (mut asked, mut fetched, mut twice, mut found) = (0, 0, 0, 0);
    let sum = |ranges: Vec<Range<u64>>| total(&ranges);
    for range in reads {
        let lacking = sum(had.gaps(range.clone()));
        found += u64::from(lacking == 0);
        asked += range.end - range.start;
        fetched += lacking;
        had.add(range.clone());
        let (file, version) = (FileId(3), Version(1));
        let step = Step {
            file,
            version,
            directory: Some(DIRECTORY),
            range,
            piece: None,
            window: 16 * MIB,
        };
        for ahead in past.note(&step).ranges {
            // Nothing is fetched beyond the file's end.
            let ahead = ahead.start.min(SIZE)..ahead.end.min(SIZE);
            let new = sum(had.gaps(ahead.clone()));
            twice += ahead.end - ahead.start - new;
            fetched += new;
            had.add(ahead);
        }
    }
    assert_eq!(twice, 0);
    assert!(fetched <= asked + asked / 20, "{fetched} for {asked}");
    assert!(found >= 3 * CLUSTERS, "{found}");
}

/// Whoever reads all of it once more has dropped what he had.
#[tokio::test(start_paused = true)]
async fn what_is_asked_for_again_is_foretold_again() {
    let mut reader = Reader::new();
    let skip = steps(0, 10 * MIB, MIB, 60);
    reader.read(&skip);
    reader.fetched = Merged::default();
    let found = reader.read(&skip);
    assert!(found >= 50, "{found}");
}

/// An RNTuple: clusters of 20 columns, in pages of some 60 KB; read column by column, 128 KiB at a
/// time, of which the kernel asks for what it has not.
fn columns(clusters: u64, count: u64) -> Vec<Range<u64>> {
    let (cluster, page) = (1_192_000, 59_600);
    let mut had = Merged::default();
    let mut asked = Vec::new();
    for column in 0..count {
        for index in 0..clusters {
            let start = index * cluster + column * page;
            let wanted = start / PAGE * PAGE..(start + (128 << 10)).div_ceil(PAGE) * PAGE;
            for gap in had.gaps(wanted) {
                had.add(gap.clone());
                asked.push(gap);
            }
        }
    }
    asked
}

#[tokio::test(start_paused = true)]
async fn columns_of_clusters_are_met_from_the_second_round_on() {
    let asked = columns(60, 20);
    let mut reader = Reader { size: 60 * 1_192_000, ..Reader::new() };
    let found = reader.read(&asked);
    let missed = asked.len() - found;
    assert!(missed <= 20, "{missed} of {} were waited for", asked.len());
    assert!(reader.bytes <= total(&asked) * 5 / 4, "{} for {}", reader.bytes, total(&asked));
}

#[tokio::test(start_paused = true)]
async fn two_columns_of_many_do_not_bring_the_third() {
    let asked = columns(60, 3);
    let mut reader = Reader { size: 60 * 1_192_000, ..Reader::new() };
    reader.read(&asked);
    assert!(reader.bytes <= total(&asked) * 5 / 4, "{} for {}", reader.bytes, total(&asked));
}

proptest! {
    /// However a file is read, if no byte twice: none is foretold that was read or foretold before,
    /// nor more at once than the window, and a page before and after each piece.
    #[test]
    fn no_byte_is_foretold_twice_nor_after_it_was_read(
        order in Just((0u64..120).collect::<Vec<_>>()).prop_shuffle(),
        lengths in prop::collection::vec(1u64..16, 120),
        (shape, step) in (0u8..4, 1u64..7),
    ) {
        let (mut past, mut had) = (Past::default(), Merged::default());
        for (count, &place) in order.iter().enumerate() {
            let at = match shape {
                0 => place,
                1 => count as u64,
                2 => 119 - count as u64,
                // Side by side.
                _ => (count as u64 * step) % 120,
            };
            let length = lengths[count] * PAGE;
            let range = at * 64 * PAGE..at * 64 * PAGE + length;
            if shape == 3 && count as u64 * step >= 120 {
                break;
            }
            let (file, version, directory) = (FileId(3), Version(1), Some(DIRECTORY));
            let window = 4 * MIB;
            let step = Step { file, version, directory, range: range.clone(), piece: None, window };
            had.add(range);
            let told = past.note(&step).ranges;
            let around = told.len() as u64 * 2 * PAGE;
            prop_assert!(total(&told) <= window + around, "{} bytes", total(&told));
            for ahead in told {
                prop_assert_eq!(had.gaps(ahead.clone()), vec![ahead.clone()], "{:?}", ahead);
                had.add(ahead);
            }
        }
    }
}

/// What was read in lists before is foretold by the first lists of the next time; equal leaps
/// within a list are not.
#[tokio::test(start_paused = true)]
async fn lists_are_met_by_what_was_read_before_alone() {
    let mut reader = Reader::new();
    let list = |index: u64| steps(index * 100 * MIB, 3 * MIB, 64 << 10, 20);
    let note = |reader: &mut Reader, index: u64| {
        let (file, version) = (reader.file, Version(1));
        let (directory, range, piece, window) = (Some(DIRECTORY), 0..0, None, 32 * MIB);
        let step = Step { file, version, directory, range, piece, window };
        let list = list(index);
        let found =
            list.iter().filter(|one| reader.fetched.gaps((*one).clone()).is_empty()).count();
        for ahead in reader.past.note_list(&step, &list).ranges {
            reader.bytes += ahead.end - ahead.start;
            reader.fetched.add(ahead);
        }
        found
    };
    for index in 0..8 {
        assert_eq!(note(&mut reader, index), 0);
    }
    assert_eq!(reader.bytes, 0);
    reader.rest().await;
    let found: usize = (0..8).map(|index| note(&mut reader, index)).sum();
    assert!(found > 100, "{found} of 160 were there");
    assert!(reader.bytes <= 8 * total(&list(0)), "and nothing else");
}
