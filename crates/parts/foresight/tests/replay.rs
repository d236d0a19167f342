//! How real programs read, replayed: what they asked for, what was brought for it, and how often
//! they waited.
//!
//! The traces were recorded once (`traces/record.py`, `traces/programs.py`) with uproot on files of
//! its own tests, and with programs that everybody has. A kernel stands between: it asks for whole
//! pages that it does not have, and reads on where a handle goes on. What is brought ahead is there
//! when it is asked for, whatever its length: so this shows what is foretold, and not how fast a
//! line is.
//!
//! Each trace is replayed three times: by who never read its files, by who reads them again when
//! nothing of them is here any more, and on other files of the same directory.
//!
//! Each detector is missed if it is taken away. Waits without it, for those with it:
//!
//! * `stride`: skips 64 for 4, pieces 117 for 1, slices 19 for 7;
//! * `rounds`: clusters 33 for 14;
//! * `backward`: tac 977 for 4, tail 20 for 4;
//! * the walk before: again as often as the first time, of columns, leaps, rntuple, skips and
//!   tar_list;
//! * how files are opened: bytes that leaps bring again (3,608 KiB for 2,364), and slices (26,652
//!   for 23,627).
//!
//! What none foresees: columns side by side the first time, and where uproot's next large piece
//! lies (taus).

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use tieline_foresight::ahead::{Frame, Pattern, Width};
use tieline_foresight::mode::ReadMode;
use tieline_foresight::past::anew::PIECE_MAX;
use tieline_foresight::past::{Manner, Past, Step};
use tieline_ranges::merged::Merged;
use tieline_types::{FileId, Version};

const PAGE: u64 = 4096;
const REQUEST_MAX: u64 = 1 << 20;
/// What a kernel reads on.
const READ_ON: u64 = 128 << 10;
/// Of a far server at 50 ms and 1 Gbit/s.
const FRAME: Frame = Frame { window_first: 1 << 20, window_max: 24 << 20, run: 0 };
const PIECES: u64 = 1 << 20;

#[derive(Default)]
struct File {
    size: u64,
    handle: Option<Handle>,
    kernel: Merged,
    brought: Merged,
}

struct Handle {
    pattern: Pattern,
    is_direct: bool,
    /// Where it goes on.
    next: u64,
}

/// What came of a trace.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
struct Outcome {
    /// KiB that the program read.
    asked: u64,
    /// KiB that came for it.
    brought: u64,
    requests: u64,
    /// Requests of which something was not there.
    waits: u64,
}

struct Replay {
    past: Past,
    files: BTreeMap<u64, File>,
    outcome: Outcome,
}

/// Other files of the directory have numbers from here on.
const KIN: u64 = 100;

impl Replay {
    fn new() -> Self {
        Self { past: Past::default(), files: BTreeMap::new(), outcome: Outcome::default() }
    }

    /// Plays a trace, with these numbers added to those of its files.
    fn play(&mut self, trace: &str, added: u64) -> Outcome {
        (self.files, self.outcome) = Default::default();
        for line in trace.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            let file = added + number(1);
            match words[0] {
                "file" => {
                    self.files.insert(file, File { size: number(2), ..File::default() });
                }
                "open" => self.open(file),
                "read" => self.read(file, number(2)..number(2) + number(3)),
                other => panic!("{other}"),
            }
        }
        let Outcome { asked, brought, requests, waits } = self.outcome;
        Outcome { asked: asked >> 10, brought: brought >> 10, requests, waits }
    }

    fn open(&mut self, number: u64) {
        let Some(file) = self.files.get_mut(&number) else { return };
        let manner = self.past.opened(FileId(number), Some(FileId(1000)), file.size);
        let pattern = Pattern::new(ReadMode::Auto);
        let pattern = if manner == Manner::Anew { pattern.of_piece() } else { pattern };
        file.handle = Some(Handle { pattern, is_direct: manner != Manner::Unknown, next: 0 });
    }

    fn read(&mut self, number: u64, range: Range<u64>) {
        self.outcome.asked += range.end - range.start;
        let requests = self.files.get_mut(&number).unwrap().requests(&range);
        for request in requests {
            self.request(number, request);
        }
    }

    /// As the client does for a request of the kernel.
    fn request(&mut self, number: u64, range: Range<u64>) {
        let file = self.files.get_mut(&number).unwrap();
        let handle = file.handle.as_mut().unwrap();
        let piece = handle.pattern.piece(&range);
        let told = self.past.note(&Step {
            file: FileId(number),
            version: Version(1),
            directory: Some(FileId(1000)),
            range: range.clone(),
            piece,
            window: FRAME.window_max / 2,
        });
        let run = if piece.is_some() { told.run.max(PIECE_MAX) } else { told.run };
        let advice = handle.pattern.observe(range.clone(), Frame { run, ..FRAME });
        let wide = match advice.width {
            Width::Pieces | Width::Ahead => {
                range.start / PIECES * PIECES..range.end.next_multiple_of(PIECES)
            }
            Width::Exact | Width::Guess => range.clone(),
        };
        self.outcome.requests += 1;
        self.outcome.waits += u64::from(file.brought.first_gap(range.clone()).is_some());
        let wanted = [wide].into_iter().chain(advice.ahead).chain(told.ranges);
        for wanted in wanted {
            let wanted = wanted.start..wanted.end.min(file.size);
            let new = file.brought.gaps(wanted.clone());
            self.outcome.brought += new.iter().map(|gap| gap.end - gap.start).sum::<u64>();
            file.brought.add(wanted);
        }
        handle.pattern.answered(&range);
    }
}

impl File {
    /// What a kernel asks for when a program reads.
    fn requests(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let size = self.size;
        let handle = self.handle.as_mut().unwrap();
        let goes_on = handle.next == range.start;
        handle.next = range.end;
        let whole = match handle.is_direct {
            true => vec![range.clone()],
            false => {
                let pages = range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE);
                let mut gaps = self.kernel.gaps(pages);
                if let Some(last) = gaps.last_mut().filter(|_| goes_on) {
                    last.end += READ_ON;
                }
                gaps.iter().for_each(|gap| self.kernel.add(gap.clone()));
                gaps
            }
        };
        let clipped = whole.into_iter().map(|one| one.start..one.end.min(size));
        let steps = clipped.flat_map(|one| {
            let end = one.end;
            one.step_by(REQUEST_MAX as usize).map(move |at| at..end.min(at + REQUEST_MAX))
        });
        steps.collect()
    }
}

/// What each trace comes to: KiB asked for; then KiB brought, requests, and how many of these
/// waited: the first time, again, and on other files of the directory.
const KNOWN: &[(&str, u64, [[u64; 3]; 3])] = &[
    ("baskets", 314, [[665, 36, 1], [665, 36, 1], [665, 36, 1]]),
    ("clusters", 11718, [[19567, 238, 14], [13513, 238, 1], [13513, 238, 2]]),
    ("columns", 16512, [[20084, 342, 298], [20084, 342, 104], [20084, 342, 104]]),
    ("hzz_twice", 1368, [[665, 5, 1], [665, 5, 1], [665, 5, 1]]),
    ("leaps", 1600, [[3608, 200, 196], [2364, 200, 1], [2364, 200, 1]]),
    ("md5sum", 65536, [[65536, 410, 1], [65536, 410, 1], [65536, 410, 1]]),
    ("pieces", 7808, [[25184, 121, 1], [16832, 121, 1], [16832, 121, 1]]),
    ("rntuple", 164, [[1224, 19, 10], [1224, 19, 1], [1224, 19, 1]]),
    ("skips", 3072, [[3168, 64, 4], [3152, 64, 1], [3152, 64, 1]]),
    ("slices", 18432, [[29764, 24, 7], [23627, 26, 3], [26652, 27, 3]]),
    ("tac", 7812, [[7812, 977, 4], [7812, 977, 4], [7812, 977, 4]]),
    ("tail", 305, [[421, 20, 4], [421, 20, 4], [421, 20, 4]]),
    ("tar_list", 660, [[2188, 64, 56], [2188, 64, 1], [2188, 64, 1]]),
    ("taus_all", 3920, [[3912, 8, 7], [3912, 8, 7], [3912, 8, 7]]),
    ("taus_some", 3916, [[3912, 8, 7], [3912, 8, 7], [3912, 8, 7]]),
];

#[tokio::test(start_paused = true)]
async fn programs_are_foreseen_as_they_were() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "trace") {
            continue;
        }
        let trace = fs::read_to_string(&path).unwrap();
        let (mut replay, mut asked, mut times) = (Replay::new(), 0, Vec::new());
        for added in [0, 0, KIN] {
            let outcome = replay.play(&trace, added);
            asked = outcome.asked;
            times.push([outcome.brought, outcome.requests, outcome.waits]);
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        found.push(format!("    (\"{name}\", {asked}, {times:?}),"));
    }
    found.sort();
    let known =
        KNOWN.iter().map(|(name, asked, times)| format!("    (\"{name}\", {asked}, {times:?}),"));
    let known: Vec<String> = known.collect();
    assert!(found == known, "what is foreseen has changed:\n{}", found.join("\n"));
}
