//! Readers of each kind, and what is fetched ahead of them.

use super::*;

const MIB: u64 = 1 << 20;
const FRAME: Frame = Frame { window_first: 512 << 10, window_max: 8 << 20, run: 0 };

/// Reads one after the other; says what was to be fetched beyond them, in all.
fn fetched(mode: Mode, reads: impl IntoIterator<Item = Range<u64>>) -> u64 {
    let mut pattern = Pattern::new(mode);
    let mut bytes = 0;
    for range in reads {
        let advice = pattern.observe(range.clone(), FRAME);
        bytes += advice.ahead.iter().map(|ahead| ahead.end - ahead.start).sum::<u64>();
        pattern.answered(&range);
    }
    bytes
}

fn steps(from: u64, step: u64, length: u64, count: u64) -> Vec<Range<u64>> {
    (0..count).map(|index| from + index * step..from + index * step + length).collect()
}

#[test]
fn the_window_is_twice_what_was_read_up_to_its_limit() {
    let (mut pattern, step) = (Pattern::default(), 128 << 10);
    let mut reached = 0;
    for range in steps(0, step, step, 200) {
        let advice = pattern.observe(range.clone(), FRAME);
        for ahead in advice.ahead {
            assert!(ahead.start >= reached, "nothing is fetched twice");
            assert!(ahead.end <= range.end + FRAME.window_max);
            assert!(ahead.end <= range.end + (2 * range.end).max(FRAME.window_first));
            reached = ahead.end;
        }
        pattern.answered(&range);
    }
    assert!(reached >= 200 * step + FRAME.window_max - PIECE);
}

/// The kernel reads ahead of a fast reader: some request of his is always under way.
#[test]
fn who_never_pauses_is_read_ahead_of() {
    let mut pattern = Pattern::default();
    let reads = steps(0, MIB, MIB, 64);
    let mut reached = 0;
    for (index, range) in reads.iter().enumerate() {
        let advice = pattern.observe(range.clone(), FRAME);
        reached = advice.ahead.iter().map(|ahead| ahead.end).fold(reached, u64::max);
        if let Some(earlier) = index.checked_sub(4) {
            pattern.answered(&reads[earlier]);
        }
    }
    assert!(reached >= 64 * MIB + FRAME.window_max - PIECE, "{reached}");
}

/// What each pattern makes us fetch beyond what it asks for.
#[test]
fn each_pattern_is_met_in_its_way() {
    let sequential = steps(0, MIB, MIB, 64);
    let skipping = steps(0, 10 * MIB, MIB, 20);
    let random: Vec<_> = [900, 5, 700, 30].iter().map(|&at| at * MIB..at * MIB + 4096).collect();
    // One read of 2.5 MiB, as the kernel passes it on, and a page that Python reads after it.
    let tail = [5 * MIB..7 * MIB + MIB / 2, 7 * MIB + MIB / 2..7 * MIB + MIB / 2 + 4096];
    let table = [
        (Mode::Auto, &sequential[..], 64 * MIB..73 * MIB),
        // The first read is at the file's start.
        (Mode::Auto, &skipping[..], 0..FRAME.window_first + 1),
        (Mode::Auto, &random[..], 0..1),
        (Mode::Auto, &tail[..], 0..1),
        (Mode::Normal, &sequential[..], 0..1),
        (Mode::ReadBuffer(MIB), &random[..], 4 * (MIB - 4096)..4 * MIB),
        (Mode::ReadBuffer(MIB), &sequential[..], 0..1),
        (Mode::ReadAhead, &random[..], 4 * FRAME.window_first..4 * FRAME.window_first + 1),
        (Mode::Stream, &random[..], 4 * FRAME.window_max..4 * FRAME.window_max + 1),
    ];
    for (mode, reads, expected) in table {
        let bytes = fetched(mode, reads.iter().cloned());
        assert!(expected.contains(&bytes), "{mode:?} {reads:?}: {bytes}");
    }
}

/// Steps that are shorter than what requests may overtake each other by.
#[test]
fn who_goes_in_short_leaps_is_not_taken_for_a_stream() {
    let first = iter::once(0..512 << 10);
    let leaps = first.chain(steps(780 << 10, 780 << 10, 80 << 10, 80));
    let ahead = fetched(Mode::Auto, leaps);
    assert!(ahead <= 2 * FRAME.window_first, "{ahead}");
}

#[test]
fn several_streams_on_one_handle_are_told_apart() {
    let streams = [0, 100 * MIB, 200 * MIB, 300 * MIB];
    let mut pattern = Pattern::default();
    for index in 0..16 {
        for from in streams {
            let range = from + index * MIB..from + (index + 1) * MIB;
            let advice = pattern.observe(range.clone(), FRAME);
            assert_eq!(advice.is_leap, index == 0);
            assert_eq!(advice.width == Width::Pieces, index > 0 || from == 0);
            pattern.answered(&range);
        }
    }
}

#[test]
fn one_long_read_is_not_yet_a_stream() {
    let mut pattern = Pattern::default();
    // The kernel passes it on in several requests, which overtake each other.
    for index in [0, 2, 1, 3] {
        let range = (50 + index) * MIB..(51 + index) * MIB;
        let advice = pattern.observe(range, FRAME);
        assert_eq!((advice.width, advice.ahead.len()), (Width::Exact, 0));
    }
    for index in 0..4 {
        pattern.answered(&((50 + index) * MIB..(51 + index) * MIB));
    }
    let advice = pattern.observe(54 * MIB..55 * MIB, FRAME);
    assert!(!advice.is_leap && advice.width == Width::Pieces);
    assert_eq!((advice.ahead.len(), &advice.ahead[0]), (1, &(55 * MIB..63 * MIB)));
}

#[test]
fn requests_may_overtake_each_other() {
    let mut pattern = Pattern::default();
    for index in [0u64, 1, 2, 4, 3, 5] {
        let range = index << 17..(index + 1) << 17;
        let advice = pattern.observe(range.clone(), FRAME);
        assert!(index < 2 || advice.width == Width::Pieces);
        pattern.answered(&range);
    }
}

#[test]
fn what_two_streams_have_read_counts_once() {
    let mut pattern = Pattern::default();
    // Three readers of one handle begin at the start, one after the other, before any is answered.
    for range in [0..MIB, MIB..2 * MIB, 2 * MIB..3 * MIB, MIB..2 * MIB, 0..4096] {
        pattern.observe(range, FRAME);
    }
    let is_sound = |stream: &Stream| stream.length() <= stream.next;
    assert!(pattern.streams.iter().all(is_sound), "{:?}", pattern.streams);
}

#[test]
fn much_at_the_start_is_the_beginning_of_all() {
    let advice = Pattern::default().observe(0..BOLD_FROM, FRAME);
    assert_eq!(advice.width, Width::Pieces);
    assert!(!advice.ahead.is_empty());
    let header = Pattern::default().observe(0..4096, FRAME);
    assert!(header.ahead.is_empty() && header.width == Width::Exact);
}

#[test]
fn a_file_that_is_read_in_runs_needs_a_longer_one() {
    let mut pattern = Pattern::default();
    let frame = Frame { run: 3 * MIB, ..FRAME };
    for range in steps(50 * MIB, MIB, MIB, 3) {
        assert!(pattern.observe(range.clone(), frame).ahead.is_empty());
        pattern.answered(&range);
    }
    assert!(!pattern.observe(53 * MIB..54 * MIB, frame).ahead.is_empty());
}

#[test]
fn what_overtakes_the_first_bytes_does_not_make_them_later_ones() {
    let mut pattern = Pattern::default();
    let mut before = |range| pattern.observe(range, FRAME).before;
    assert_eq!(before(MIB..2 * MIB), 0);
    assert_eq!(before(0..MIB), 0);
    assert_eq!(before(2 * MIB..3 * MIB), 2 * MIB);
    pattern.answered(&(0..MIB));
    assert_eq!(pattern.observe(0..MIB, FRAME).before, 3 * MIB);
}

#[test]
fn a_piece_begins_where_its_handle_was_first_read_there() {
    let mut pattern = Pattern::new(Mode::Auto).of_piece();
    let requests = [7..7 + MIB, 7 + MIB..7 + 2 * MIB, 90 * MIB + 1..91 * MIB, 0..MIB];
    let begun = requests.map(|range| {
        let begun = pattern.piece(&range);
        pattern.observe(range.clone(), FRAME);
        pattern.answered(&range);
        begun
    });
    assert_eq!(begun, [Some(7), Some(7), Some(90 * MIB + 1), None]);
    assert_eq!(Pattern::new(Mode::Auto).piece(&(7..9)), None);
}

/// What is announced is all on its way at once, as far as the window goes, and nothing beyond.
#[test]
fn what_is_announced_is_fetched_to_its_end_and_no_further() {
    let mut pattern = Pattern::default();
    let all = 3 * MIB + 5..20 * MIB + 7;
    pattern.announce(all.clone());
    let mut reached = all.start + MIB;
    let mut at = all.start;
    while at < all.end {
        let range = at..(at + MIB).min(all.end);
        let advice = pattern.observe(range.clone(), FRAME);
        assert!(advice.is_announced && advice.width == Width::Exact);
        for ahead in &advice.ahead {
            assert_eq!(ahead.start, reached.max(range.end), "nothing twice, no gap");
            reached = ahead.end;
        }
        assert!(reached >= (range.end + FRAME.window_max - PIECE).min(all.end), "{range:?}");
        assert!(reached <= all.end);
        pattern.answered(&range);
        at = range.end;
    }
    assert_eq!(reached, all.end);
    // Elsewhere it is read as readers show.
    let advice = pattern.observe(100 * MIB..100 * MIB + 10, FRAME);
    assert!(!advice.is_announced && advice.ahead.is_empty());
}
