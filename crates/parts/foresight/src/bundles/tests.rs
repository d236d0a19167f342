//! Which runs are of one program, how they join, and whose makes room.

use super::*;
use tieline_types::{MdtIndex, Time};

fn id(serial: u64) -> FileId {
    FileId::new(MdtIndex(0), serial)
}

fn run(files: impl IntoIterator<Item = u64>) -> Bundle {
    let files: Vec<FileId> = files.into_iter().map(id).collect();
    of_run(&[id(1)], &files)
}

fn files(bundle: &Bundle) -> Vec<u64> {
    bundle.files.iter().map(|member| member.id.serial()).collect()
}

#[test]
fn a_program_that_runs_again_is_the_same_and_part_of_it_is_another() {
    assert!(are_same(&run(100..200), &run((110..200).rev())));
    assert!(
        !are_same(&run(100..200), &run(100..150)),
        "a program may do half of what another does"
    );
    assert!(!are_same(&run(100..200), &run(150..250)));
}

#[test]
fn what_a_program_opens_no_more_is_forgotten_in_time() {
    let mut known = run([10, 11, 12, 13]);
    known = joined(&known, &run([13, 10, 14, 11]));
    assert_eq!(files(&known), [13, 10, 14, 11, 12], "as it went last");
    for left in [5, 5, 4] {
        known = joined(&known, &run([13, 10, 14, 11]));
        assert_eq!(files(&known).len(), left);
    }
    let long = joined(&run(0..BUNDLE_MAX as u64), &run(5000..6000));
    assert_eq!(long.files.len(), BUNDLE_MAX);
}

#[test]
fn signs_are_first_files_and_some_from_everywhere() {
    let first = signs(&run(100..1100));
    assert_eq!(first[..8], [100, 101, 102, 103, 104, 105, 106, 107].map(id));
    assert!(first.len() <= SIGNS_MAX && first.contains(&id(975)), "{first:?}");
    assert_eq!(signs(&run(5..8)), [5, 6, 7].map(id));
}

/// Whoever trains much takes the places of others only down to a quarter.
#[test]
fn one_principal_takes_a_quarter_of_the_places_at_most_from_others() {
    let head = |number, by| BundleHead {
        number,
        by: Uid(by),
        used: Time { seconds: 0, nanos: 0 },
        signs: vec![],
    };
    let mut heads: Vec<BundleHead> = (0..15).map(|number| head(number, 1)).collect();
    assert_eq!(to_replace(&heads, Uid(2)), None);
    heads.push(head(15, 1));
    for turn in 0..10 {
        let at = to_replace(&heads, Uid(2)).unwrap();
        let freed = heads.remove(at);
        assert_eq!(freed.by, Uid(if turn < 4 { 1 } else { 2 }), "turn {turn}");
        heads.insert(0, head(freed.number, 2));
    }
    assert_eq!(heads.iter().filter(|head| head.by == Uid(2)).count(), 4);
    // Of his own the one that was used least lately goes.
    assert_eq!(to_replace(&heads, Uid(1)), Some(15));
}
