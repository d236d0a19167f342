//! Walks as tables: what is asked for after which visits.

use super::*;
use tieline_types::MdtIndex;

fn id(serial: u64) -> FileId {
    FileId::new(MdtIndex(0), serial)
}

fn root() -> Caller {
    Caller::root()
}

/// Visits directory `serial`, which comes at once with ten entries.
fn visit(walk: &mut Walk, serial: u64, parent: u64) -> Option<bool> {
    match walk.visit(&root(), id(serial), Some(id(parent))) {
        Visit::Ask { is_walk, .. } => {
            walk.arrived(id(serial), true);
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
        walk.landed((&job.roots, left), &told, job.roots[reached..].to_vec());
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

#[tokio::test(start_paused = true)]
async fn what_is_on_its_way_is_waited_for_and_what_failed_is_left_alone() {
    let mut walk = Walk::default();
    let Visit::Ask { under, .. } = walk.visit(&root(), id(10), Some(id(1))) else { panic!() };
    let Visit::Wait(mut flight) = walk.visit(&root(), id(10), Some(id(1))) else { panic!() };
    walk.arrived(id(10), false);
    drop(under);
    assert!(flight.changed().await.is_err(), "it has landed");
    assert!(matches!(walk.visit(&root(), id(10), Some(id(1))), Visit::Alone));
    tokio::time::advance(ASKED_KEPT).await;
    assert!(matches!(walk.visit(&root(), id(10), Some(id(1))), Visit::Ask { .. }));
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
    assert!((WASTE_FREE / 2..WASTE_FREE * 2).contains(&came), "{came} bytes for nothing");
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_being_walked_is_reported_whole_again() {
    let mut walk = Walk::default();
    let files = |range: std::ops::Range<u64>| range.map(id).collect::<Vec<_>>();
    let told = |walk: &mut Walk| {
        let reports: Vec<_> = walk.report().into_iter().flatten().collect();
        reports.into_iter().map(|one| (one.directory, one.trail.files)).collect::<Vec<_>>()
    };
    assert!(walk.gather(id(1), id(10)), "somebody has to see to it");
    (11..20).for_each(|serial| assert!(!walk.gather(id(1), id(serial))));
    assert_eq!(told(&mut walk), [(id(1), files(10..20))]);
    assert_eq!(told(&mut walk), [], "no news");
    assert!(walk.gather(id(1), id(20)));
    walk.gather(id(2), id(30));
    assert_eq!(told(&mut walk), [(id(1), files(10..21)), (id(2), files(30..31))]);
}

#[tokio::test(start_paused = true)]
async fn a_trail_that_is_wrong_is_not_believed() {
    let mut walk = Walk::default();
    visit(&mut walk, 10, 1);
    walk.learn_trail(id(10), tieline_wire::trees::Trail { files: vec![id(99)], next: None });
    for serial in 100..102 {
        walk.opened(&root(), id(serial), id(10), false);
        assert_eq!(walk.next_to_file(id(10)).is_some(), serial == 101, "two of a kind");
    }
}
