//! Walks as tables: what is asked for after which visits.

use super::*;
use tieline_types::MdtIndex;

fn id(serial: u64) -> FileId {
    FileId::new(MdtIndex(0), serial)
}

fn root() -> Caller {
    Caller::root()
}

fn coming(serial: u64, parent: u64) -> Coming<'static> {
    Coming { directory: id(serial), parent: Some(id(parent)), name: None, mark: None }
}

/// Visits directory `serial`, which comes at once with ten entries.
fn visit(walk: &mut Walk, serial: u64, parent: u64) -> Option<bool> {
    match walk.visit(&root(), &coming(serial, parent)) {
        Visit::Ask { is_walk, .. } => {
            walk.arrived(id(serial), true, &[], None);
            Some(is_walk)
        }
        _ => None,
    }
}

/// Answers all questions with what is asked, at ten entries a directory; says how many directories
/// came.
fn answer(walk: &mut Walk) -> usize {
    let mut count = 0;
    while let Some(job) = walk.next_job() {
        let reached = job.roots.len().min(job.entries as usize / 11);
        let told: Vec<_> = job.roots[..reached].iter().map(|&id| (id, 10)).collect();
        count += told.len();
        let left = job.entries - 11 * reached as u32;
        walk.landed((&job.roots, left), &told, job.roots[reached..].to_vec(), None);
    }
    count
}

#[tokio::test(start_paused = true)]
async fn one_look_brings_one_directory() {
    let mut walk = Walk::default();
    assert_eq!(visit(&mut walk, 10, 1), Some(false));
    walk.enqueue((100..200).map(id).collect(), false);
    assert!(walk.next_job().is_none(), "nobody walks here");
    assert_eq!(visit(&mut walk, 20, 2), Some(false), "somewhere else");
}

#[tokio::test(start_paused = true)]
async fn the_second_neighbour_begins_a_walk_that_grows_with_its_use() {
    let mut walk = Walk::default();
    assert_eq!(visit(&mut walk, 10, 1), Some(false));
    assert_eq!(visit(&mut walk, 11, 1), Some(true));
    walk.enqueue((100..10_000).map(id).collect(), false);
    let first = answer(&mut walk);
    assert!((50..200).contains(&first), "{first} directories for 1024 entries");
    // Nobody uses what came: a visit elsewhere brings twice as much, no more.
    assert_eq!(visit(&mut walk, 12, 1), Some(true));
    let second = answer(&mut walk);
    assert!(second > first && second < 4 * first, "{second} after {first}");
    // What is used pays for four times as much.
    for serial in 100..200 {
        assert!(walk.revisit(id(serial)));
    }
    let third = answer(&mut walk);
    assert!(third > 400, "{third} after a hundred were used");
}

/// Each directory that comes just in time is none that somebody has to wait for.
#[tokio::test(start_paused = true)]
async fn who_walks_through_what_comes_ahead_walks() {
    let mut walk = Walk::default();
    assert_eq!(visit(&mut walk, 10, 1), Some(false));
    walk.landed((&[id(11), id(12)], 0), &[(id(11), 10), (id(12), 10)], vec![], None);
    assert!(!walk.revisit(id(99)), "it was not brought ahead");
    let credit = walk.credit().0;
    assert!(walk.revisit(id(11)) && walk.walks_in(id(1)));
    assert!(walk.credit().0 >= credit + RAISE_FIRST);
    assert!(walk.revisit(id(12)) && !walk.walks_in(id(1)), "that is known");
}

#[tokio::test(start_paused = true)]
async fn what_is_on_its_way_is_waited_for_and_what_failed_is_left_alone() {
    let mut walk = Walk::default();
    let Visit::Ask { under, .. } = walk.visit(&root(), &coming(10, 1)) else { panic!() };
    let Visit::Wait(mut flight) = walk.visit(&root(), &coming(10, 1)) else { panic!() };
    walk.arrived(id(10), false, &[], None);
    drop(under);
    assert!(flight.changed().await.is_err(), "it has landed");
    for _ in 0..3 {
        // Whoever looks again does not put it off.
        assert!(matches!(walk.visit(&root(), &coming(10, 1)), Visit::Alone));
        tokio::time::advance(ASKED_KEPT / 3 + Duration::from_millis(1)).await;
    }
    assert!(matches!(walk.visit(&root(), &coming(10, 1)), Visit::Ask { .. }));
}

#[tokio::test(start_paused = true)]
async fn what_was_left_out_ahead_comes_with_its_visitor_or_when_nobody_works_there() {
    let mut walk = Walk::default();
    visit(&mut walk, 10, 1);
    visit(&mut walk, 11, 1);
    let ids = || (100..120).map(id).collect::<Vec<_>>();
    assert_eq!(walk.enqueue(ids(), true), 20);
    while let Some(job) = walk.next_job() {
        walk.landed((&job.roots, job.entries), &[], vec![], None);
    }
    assert_eq!(visit(&mut walk, 100, 1), Some(true), "it is asked for by itself");
    assert_eq!(walk.enqueue(ids(), true), 1, "others not at once, but this one may be lost again");
    tokio::time::advance(AT_WORK).await;
    assert_eq!(walk.enqueue(ids(), true), 19);
    // Who asked for it alone, in vain, does not ask again for long.
    let Visit::Ask { .. } = walk.visit(&root(), &coming(110, 1)) else { panic!() };
    walk.arrived(id(110), false, &[], None);
    assert!(matches!(walk.visit(&root(), &coming(110, 1)), Visit::Alone));
}

#[tokio::test(start_paused = true)]
async fn who_comes_to_what_stands_in_the_queue_does_not_wait_for_its_turn() {
    let mut walk = Walk::default();
    visit(&mut walk, 10, 1);
    visit(&mut walk, 11, 1);
    walk.enqueue((100..10_000).map(id).collect(), false);
    answer(&mut walk);
    assert_eq!(visit(&mut walk, 9000, 2), Some(false));
    visit(&mut walk, 9001, 2);
    while let Some(job) = walk.next_job() {
        assert!(!job.roots.contains(&id(9000)), "it has come");
        walk.landed((&job.roots, 0), &[], vec![], None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_directory_comes_in_parts_as_names_are_looked_for() {
    let mut walk = Walk::default();
    let mark = ListingMark::default();
    let rest = |after: &str, count| Rest { after: after.parse().unwrap(), mark, count };
    let (early, late): (Name, Name) = ("c".parse().unwrap(), "x".parse().unwrap());
    let coming = |name| Coming {
        directory: id(10),
        parent: Some(id(1)),
        name: Some(name),
        mark: Some(mark),
    };
    let Visit::Ask { rest: None, .. } = walk.visit(&root(), &coming(&late)) else { panic!() };
    walk.arrived(id(10), false, &[], Some((id(10), rest("m", VISIT_ENTRIES))));
    // It is not there: those before `m` are known.
    assert!(matches!(walk.visit(&root(), &coming(&early)), Visit::Alone));
    let Visit::Ask { rest: Some(asked), .. } = walk.visit(&root(), &coming(&late)) else {
        panic!()
    };
    assert_eq!((asked.after.as_bytes(), asked.entries()), (&b"m"[..], VISIT_ENTRIES));
    walk.arrived(id(10), false, &[], Some((id(10), rest("p", 3 * VISIT_ENTRIES))));
    // What came is not known any more: it comes from the beginning, but not at once.
    let lost = Coming { mark: None, ..coming(&late) };
    assert!(matches!(walk.visit(&root(), &lost), Visit::Alone));
    tokio::time::advance(ASKED_KEPT).await;
    assert!(matches!(walk.visit(&root(), &lost), Visit::Ask { rest: None, .. }));
    // Of very many names the others are asked for by themselves.
    walk.arrived(id(10), false, &[], Some((id(10), rest("r", NAMES_MAX))));
    assert!(matches!(walk.visit(&root(), &coming(&late)), Visit::Alone));
}

#[tokio::test(start_paused = true)]
async fn a_walk_goes_on_where_an_answer_was_cut() {
    let mut walk = Walk::default();
    visit(&mut walk, 10, 1);
    visit(&mut walk, 11, 1);
    walk.enqueue(vec![id(100), id(101)], false);
    let job = walk.next_job().unwrap();
    assert_eq!((&job.roots[..], job.rest), (&[id(100)][..], None));
    let rest = Rest { after: "m".parse().unwrap(), mark: ListingMark::default(), count: 1000 };
    walk.landed((&job.roots, 1000), &[], vec![], Some((id(100), rest.clone())));
    let job = walk.next_job().unwrap();
    assert_eq!((&job.roots[..], job.rest), (&[id(100)][..], Some(rest.clone())));
    // Beyond some thousand names somebody has to come.
    walk.landed((&job.roots, 1000), &[], vec![], Some((id(100), Rest { count: 1 << 20, ..rest })));
    assert_eq!(walk.next_job().unwrap().roots, [id(101)]);
}

#[tokio::test(start_paused = true)]
async fn bytes_that_nobody_reads_stop_coming() {
    let mut walk = Walk::default();
    visit(&mut walk, 10, 1);
    let files: Vec<_> = (1000..9000).map(|serial| (id(serial), 10_000)).collect();
    walk.opened(&root(), id(1), id(10), false);
    walk.enqueue_files(files, false);
    let mut came = 0;
    while let Some(job) = walk.next_files(u64::MAX) {
        let told = job.files.iter().map(|(id, _)| *id).collect();
        came += job.files.len();
        walk.files_landed(&job.files, &told, &[]);
    }
    assert!((20..40).contains(&came), "{came} files for the first that was opened");
    // Each that is opened brings others.
    for serial in 1000..1020 {
        assert_eq!(walk.opened(&root(), id(serial), id(10), true), 10_000);
    }
    let (_, credit) = walk.credit();
    assert!(credit >= 20 * 4 * 10_000, "{credit}");
    // Whatever else is opened: of what comes a tenth must be used.
    let mut came = 0;
    for serial in 100_000..101_000 {
        walk.opened(&root(), id(serial), id(10), false);
        let more = (0..1000).map(|number| (id(serial * 1000 + number), 100_000)).collect();
        walk.enqueue_files(more, true);
        while let Some(job) = walk.next_files(u64::MAX) {
            let told = job.files.iter().map(|(id, _)| *id).collect();
            came += job.files.iter().map(|(_, size)| size).sum::<u64>();
            walk.files_landed(&job.files, &told, &[]);
        }
    }
    // A thousand waits are forgiven 64 KiB each.
    assert!((WASTE_FREE / 2..WASTE_FREE * 2 + 1000 * MISS_FORGIVES).contains(&came), "{came}");
}

/// Brings files of a queue that never ends until nothing more comes; gives their number.
fn bring(walk: &mut Walk, from: &mut u64, size: u64) -> u64 {
    let first = *from;
    loop {
        walk.enqueue_files((*from..*from + 64).map(|serial| (id(serial), size)).collect(), false);
        let Some(job) = walk.next_files(u64::MAX) else { return *from - first };
        *from = job.files.last().map_or(*from, |(last, _)| last.serial() + 1);
        let told = job.files.iter().map(|(id, _)| *id).collect();
        walk.files_landed(&job.files, &told, &[]);
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_comes_than_has_room_until_it_is_read() {
    let mut walk = Walk::default();
    let (mut next, mut read) = (1000, 1000);
    // So much was used that any credit is there.
    walk.used = 1 << 30;
    walk.file_credit = BYTES_CREDIT_MAX;
    bring(&mut walk, &mut next, 100_000);
    let ahead = (next - read) * 100_000;
    assert!((AHEAD_MAX..AHEAD_MAX + (8 << 20)).contains(&ahead), "{ahead} bytes");
    for _ in 0..50 {
        walk.opened(&root(), id(read), id(10), true);
        read += 1;
    }
    bring(&mut walk, &mut next, 100_000);
    assert_eq!((next - read) * 100_000 / (1 << 20), ahead / (1 << 20));
    // Whoever reads something else has that brought.
    walk.opened(&root(), id(5), id(11), false);
    assert!(bring(&mut walk, &mut next, 100_000) > 100);
}

/// Of many files one in five is read, and now and then one that did not come: those behind the
/// reader make room, those before it are still his.
#[tokio::test(start_paused = true)]
async fn who_reads_a_few_of_what_comes_wastes_the_others_only() {
    let mut walk = Walk::default();
    walk.opened(&root(), id(1), id(10), false);
    walk.file_credit = BYTES_CREDIT_MAX;
    let (mut next, size, mut waits) = (1000, 31_000, 0);
    for step in 0..1300 {
        bring(&mut walk, &mut next, size);
        let read = 1000 + 5 * step;
        walk.wants(id(read), size);
        waits += u64::from(walk.opened(&root(), id(read), id(10), read < next) == 0);
        if step % 5 == 0 {
            walk.opened(&root(), id(1_000_000 + step), id(11), false);
        }
    }
    let (brought, used) = walk.bytes();
    assert!(waits < 20, "{waits} waits; {brought} bytes came for {used}");
}

#[tokio::test(start_paused = true)]
async fn after_much_waste_files_come_again() {
    let mut walk = Walk::default();
    let mut next = 1000;
    walk.brought = 10 * WASTE_FREE;
    walk.opened(&root(), id(1), id(10), false);
    assert_eq!(bring(&mut walk, &mut next, 10_000), 0);
    let mut waits = 0;
    while bring(&mut walk, &mut next, 10_000) == 0 {
        walk.opened(&root(), id(1_000_000 + waits), id(10), false);
        waits += 1;
        assert!(waits < 10_000, "nothing comes any more");
    }
}

#[tokio::test(start_paused = true)]
async fn the_files_of_directories_behind_come_in_the_order_of_paths() {
    let mut walk = Walk::default();
    let after = |at: FileId| Some(id(at.serial() + 1)).filter(|next| next.serial() < 20);
    walk.opened(&root(), id(100), id(10), false);
    assert_eq!(walk.next_to_file(id(10), after), Some(id(10)));
    assert_eq!(walk.next_to_file(id(10), after), None, "one directory is no walk");
    walk.opened(&root(), id(101), id(11), false);
    let mut told = vec![];
    while let Some(next) = walk.next_to_file(id(11), after) {
        told.push(next.serial());
    }
    assert_eq!(told, (11..20).collect::<Vec<_>>());
    // What somebody waits for again is brought again, from there on.
    tokio::time::advance(2 * LOST_PAUSE).await;
    walk.lost(&root(), id(102), id(18));
    assert_eq!(walk.next_to_file(id(18), after), Some(id(18)));
    assert_eq!(walk.next_to_file(id(18), after), Some(id(19)));
}

#[tokio::test(start_paused = true)]
async fn one_look_at_a_file_brings_no_large_ones() {
    let mut walk = Walk::default();
    walk.opened(&root(), id(1), id(10), false);
    (0..GUESS_PART).for_each(|one| walk.wants(id(900 + one), SMALL_MAX));
    walk.enqueue_files(vec![(id(2), 4 << 20), (id(3), 4 << 20)], true);
    assert!(walk.next_files(u64::MAX).is_none());
    for serial in 20..26 {
        walk.opened(&root(), id(serial), id(10), false);
    }
    assert_eq!(walk.next_files(u64::MAX).unwrap().files, [(id(2), 4 << 20)]);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_opened_in_time_takes_no_room() {
    let mut walk = Walk::default();
    visit(&mut walk, 10, 1);
    let mut next = 1000;
    walk.used = 1 << 30;
    walk.opened(&root(), id(1), id(10), false);
    while bring(&mut walk, &mut next, 100_000) > 0 {
        walk.file_credit = BYTES_CREDIT_MAX;
    }
    assert_eq!(walk.files_ahead.room(), 0);
    tokio::time::advance(AHEAD_KEPT).await;
    walk.next_files(u64::MAX);
    assert_eq!(walk.files_ahead.room(), AHEAD_MAX);
}

#[tokio::test(start_paused = true)]
async fn what_was_opened_comes_again_only_when_it_was_lost() {
    let mut walk = Walk::default();
    let files: Vec<_> = (100..110).map(|serial| (id(serial), 1000)).collect();
    for (file, _) in &files {
        walk.opened(&root(), *file, id(10), false);
    }
    walk.enqueue_files(files.clone(), true);
    assert!(walk.next_files(u64::MAX).is_none());
    // Once more, and its bytes are gone: so are others'.
    walk.opened(&root(), id(105), id(10), true);
    walk.lost(&root(), id(105), id(10));
    walk.enqueue_files(files, true);
    let job = walk.next_files(u64::MAX).unwrap();
    assert_eq!((job.files.len(), job.files.contains(&(id(105), 1000))), (9, false));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_lost_is_not_brought_again() {
    let mut walk = Walk::default();
    walk.opened(&root(), id(100), id(10), false);
    assert_eq!(walk.next_to_file(id(10), |_| None), Some(id(10)));
    // The kernel has it: opened again after any time, nothing crosses the line.
    tokio::time::advance(10 * AHEAD_KEPT).await;
    walk.opened(&root(), id(100), id(10), true);
    assert_eq!(walk.next_to_file(id(10), |_| None), None);
}

/// A queue whose first file is too large for what may come now once stood still for good.
#[tokio::test(start_paused = true)]
async fn a_large_file_lets_others_pass() {
    let mut walk = Walk::default();
    let room = 1 << 20;
    walk.file_credit = BYTES_CREDIT_MAX;
    walk.wanted = 64 << 20;
    walk.enqueue_files(vec![(id(1), 4 << 20), (id(2), 1000)], false);
    walk.enqueue_files(vec![(id(3), 4 << 20), (id(4), 100_000)], false);
    // With nothing on its way the first may come, whatever its size.
    assert_eq!(walk.next_files(room).unwrap().files, [(id(1), 4 << 20)]);
    assert_eq!(walk.next_files(room).unwrap().files, [(id(2), 1000), (id(4), 100_000)]);
    assert!(walk.next_files(room).is_none(), "it waits for room");
}

#[tokio::test(start_paused = true)]
async fn a_library_that_is_guessed_is_not_worth_all_that_may_come_for_nothing() {
    let mut walk = Walk { file_credit: BYTES_CREDIT_MAX, ..Walk::default() };
    let guesses = || vec![(id(1), WASTE_FREE / GUESS_PART + 1), (id(2), 1000)];
    walk.enqueue_files(guesses(), false);
    assert_eq!(walk.next_files(u64::MAX).unwrap().files, [(id(2), 1000)]);
    // Who reads much may be given more.
    (0..WASTE_FREE / SMALL_MAX).for_each(|one| walk.wants(id(900 + one), SMALL_MAX));
    walk.enqueue_files(guesses(), false);
    assert_eq!(walk.next_files(u64::MAX).unwrap().files, [guesses()[0]]);
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_on_its_way_is_not_passed_over() {
    let mut walk = Walk::default();
    let after = |at: FileId| Some(id(at.serial() + 1)).filter(|next| next.serial() < 20);
    let coming = Coming { directory: id(12), parent: None, name: None, mark: None };
    let Visit::Ask { .. } = walk.visit(&root(), &coming) else { panic!("it is not known") };
    walk.opened(&root(), id(100), id(10), false);
    walk.opened(&root(), id(101), id(11), false);
    assert_eq!(walk.next_to_file(id(11), after), Some(id(11)));
    assert_eq!(walk.next_to_file(id(11), after), None, "what it has is not known yet");
    walk.arrived(id(12), true, &[], None);
    assert_eq!(walk.next_to_file(id(11), after), Some(id(12)));
}

#[tokio::test(start_paused = true)]
async fn neighbours_come_while_others_are_on_their_way() {
    let mut walk = Walk::default();
    for serial in 0..20 {
        walk.opened(&root(), id(serial), id(10), false);
    }
    let far = |from: u64| (from..from + 20).map(|serial| (id(serial), 100_000)).collect();
    for page in 0..FILE_PAGES_MAX as u64 {
        walk.enqueue_files(far(1000 + 100 * page), false);
        assert!(walk.next_files(u64::MAX).is_some());
    }
    walk.enqueue_files(far(5000), false);
    assert!(walk.next_files(u64::MAX).is_none(), "enough is on its way");
    walk.enqueue_files(vec![(id(6000), 100_000)], true);
    let files = walk.next_files(0).unwrap().files;
    assert_eq!(files.first(), Some(&(id(6000), 100_000)));
    assert!(walk.next_files(0).is_none(), "and no more");
}
