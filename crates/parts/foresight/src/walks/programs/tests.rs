//! Programs as tables: which bundle is followed after which opens, and what is told.

use super::*;
use tieline_types::{Caller, MdtIndex};

const SIZE: u64 = 20_000;

fn id(serial: u64) -> FileId {
    FileId::new(MdtIndex(0), serial)
}

fn which(number: u32) -> Which {
    Which { root: id(1), number }
}

fn list(files: impl IntoIterator<Item = u64>) -> BundleList {
    let files = files.into_iter().map(|serial| SizedFile { id: id(serial), size: SIZE });
    BundleList { directories: vec![id(10), id(11)], files: files.collect() }
}

/// A walk that was told of bundles, by their files.
fn knowing(lists: &[&[u64]]) -> Walk {
    let mut walk = Walk::default();
    for (files, number) in lists.iter().zip(0..) {
        walk.learn_list(which(number), list(files.iter().copied()));
    }
    walk
}

fn open(walk: &mut Walk, serial: u64, waits: bool) {
    let file = Opened { id: id(serial), parent: id(10), size: SIZE };
    walk.gather(file, waits);
    walk.wants(file.id, SIZE);
    walk.opened(&Caller::root(), file.id, file.parent, !waits);
}

fn brought(walk: &mut Walk) -> Vec<u64> {
    let Some(job) = walk.next_files(u64::MAX) else { return vec![] };
    let told = job.files.iter().map(|(id, _)| *id).collect();
    walk.files_landed(&job.files, &told, &[]);
    job.files.iter().map(|(id, _)| id.serial()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_list_is_asked_for_when_one_of_its_signs_is_opened() {
    let mut walk = Walk::default();
    let signs = |number, file| BundleSigns { number, signs: vec![id(file)] };
    walk.learn_signs(id(1), (0..9).map(|number| signs(number, 100)).collect());
    open(&mut walk, 99, true);
    assert_eq!(walk.wanted_list(), None);
    open(&mut walk, 100, true);
    let asked: Vec<Which> = std::iter::from_fn(|| walk.wanted_list()).collect();
    assert_eq!(asked.len(), ASKED_MAX, "and no more, whoever begins so");
    // Of what was opened before its signs came as well.
    walk.learn_signs(id(2), vec![signs(0, 99)]);
    assert_eq!(walk.wanted_list(), None, "four were asked for");
    tokio::time::advance(QUIET).await;
    open(&mut walk, 99, true);
    assert_eq!(walk.wanted_list(), Some(Which { root: id(2), number: 0 }));
}

#[tokio::test(start_paused = true)]
async fn a_bundle_comes_in_its_order_from_where_the_program_is() {
    let mut walk = knowing(&[&(100..200).collect::<Vec<_>>()]);
    assert!(brought(&mut walk).is_empty(), "nobody runs it");
    open(&mut walk, 150, true);
    let job = walk.next_job().unwrap();
    assert_eq!((&job.roots[..], job.is_followed), (&[id(10), id(11)][..], true));
    let first = brought(&mut walk);
    assert_eq!(first[..3], [151, 152, 153]);
    // Who goes on elsewhere and waits there has what is behind that.
    open(&mut walk, 120, true);
    assert_eq!(brought(&mut walk)[..2], [121, 122]);
}

#[tokio::test(start_paused = true)]
async fn a_bundle_is_taken_back_when_three_opens_in_a_row_are_others() {
    let mut walk = knowing(&[&(100..200).collect::<Vec<_>>()]);
    (100..110).for_each(|serial| open(&mut walk, serial, false));
    walk.enqueue_files(vec![(id(900), SIZE)], false);
    walk.missed();
    assert!(walk.is_led());
    assert!(!brought(&mut walk).contains(&900), "nothing is guessed besides");
    for (serial, is_followed) in [(500, true), (501, true), (502, false)] {
        open(&mut walk, serial, true);
        assert_eq!(walk.programs.followed.is_some(), is_followed, "{serial}");
    }
    assert_eq!(brought(&mut walk), [900], "now it is");
    // What comes true again is followed again.
    (110..115).for_each(|serial| open(&mut walk, serial, true));
    assert!(walk.programs.followed.is_some());
}

/// Two programs begin alike; one does more than the other.
#[tokio::test(start_paused = true)]
async fn of_two_bundles_the_one_that_comes_true_is_followed() {
    let short: Vec<u64> = (100..120).collect();
    let long: Vec<u64> = (100..105).chain(200..300).collect();
    let mut walk = knowing(&[&short, &long]);
    (100..105).for_each(|serial| open(&mut walk, serial, false));
    assert!(walk.programs.followed.is_some());
    (200..204).for_each(|serial| open(&mut walk, serial, true));
    assert_eq!(walk.programs.followed, Some(which(1)));
    assert_eq!(brought(&mut walk)[0], 204);
}

/// Another program that shares a few files takes little of the line.
#[tokio::test(start_paused = true)]
async fn little_comes_for_a_bundle_of_which_little_is_opened() {
    let mut walk = knowing(&[&(100..4000).collect::<Vec<_>>()]);
    let come = |walk: &mut Walk| {
        let pages = std::iter::from_fn(|| Some(brought(walk)).filter(|page| !page.is_empty()));
        pages.map(|page| page.len() as u64 * SIZE).sum::<u64>()
    };
    open(&mut walk, 100, false);
    let first = come(&mut walk);
    assert!((TRUST / 2..=TRUST + (2 << 20)).contains(&first), "{first}");
    assert_eq!(come(&mut walk), 0);
    (101..150).for_each(|serial| open(&mut walk, serial, false));
    let then = come(&mut walk);
    assert!((OPENED_GAIN * 40 * SIZE..OPENED_GAIN * 80 * SIZE).contains(&then), "{then}");
}

#[tokio::test(start_paused = true)]
async fn a_run_is_told_when_it_is_over_and_once() {
    let mut walk = Walk::default();
    walk.enter(id(1));
    for serial in 100..120 {
        let file = Opened { id: id(serial), parent: id(10), size: SIZE };
        assert_eq!(walk.gather(file, true), serial == 100, "somebody has to see to it");
    }
    let (runs, goes_on) = walk.runs_to_tell(false);
    assert!(runs.is_empty() && goes_on);
    tokio::time::advance(QUIET).await;
    let (runs, goes_on) = walk.runs_to_tell(false);
    assert!(!goes_on);
    let files: Vec<u64> = runs[0].files.iter().map(|file| file.id.serial()).collect();
    assert_eq!(files, (100..120).collect::<Vec<_>>());
    assert_eq!(runs[0].directories, [id(1), id(10)]);
    walk.told(which(0), &runs[0]);
    // The same again is no news for an hour; what ends with the mount is told at once.
    (100..120).for_each(|serial| open(&mut walk, serial, false));
    assert!(walk.runs_to_tell(true).0.is_empty());
    tokio::time::advance(USE_TOLD).await;
    (100..120).for_each(|serial| open(&mut walk, serial, false));
    assert_eq!(walk.runs_to_tell(true).0.len(), 1);
    (100..103).for_each(|serial| open(&mut walk, serial, false));
    assert!(walk.runs_to_tell(true).0.is_empty(), "three files are no program");
}

/// Whoever opens without end is told of in parts, and what is kept of him is bounded.
#[tokio::test(start_paused = true)]
async fn a_run_without_an_end_is_told_in_parts() {
    let mut walk = Walk::default();
    for serial in 0..10 * BUNDLE_MAX as u64 {
        open(&mut walk, 1000 + serial, true);
    }
    let (runs, _) = walk.runs_to_tell(true);
    assert!((OVER_MAX..=OVER_MAX + 1).contains(&runs.len()), "{}", runs.len());
    assert!(runs.iter().all(|run| run.files.len() <= BUNDLE_MAX));
}

/// Much came and is not opened: then no more of it comes, and something is to be guessed.
#[tokio::test(start_paused = true)]
async fn what_comes_in_vain_keeps_no_guesses_away() {
    let all: Vec<u64> = (1..1000).collect();
    let mut walk = knowing(&[&all]);
    (1..8).for_each(|serial| open(&mut walk, serial, true));
    assert!(walk.is_led());
    while !brought(&mut walk).is_empty() {}
    assert!(!walk.is_led());
    walk.enqueue_files(vec![(id(5000), SIZE)], false);
    assert_eq!(brought(&mut walk), [5000]);
    // What is opened lets more of it come.
    (8..12).for_each(|serial| open(&mut walk, serial, false));
    assert!(walk.is_led());
}
