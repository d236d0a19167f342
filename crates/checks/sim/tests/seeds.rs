//! Plays seeds under crashes and silences: every run twice, every history checked.

use std::collections::BTreeSet;
use tieline_sim::scenario::{Plan, play};

#[test]
fn worlds_replay_and_their_histories_hold() {
    for seed in 1..=12 {
        let again = format!("play it again: cargo xtask sim --seed {seed}");
        let outcome = play(seed, Plan::default()).unwrap_or_else(|e| panic!("{e}; {again}"));
        let violations = outcome.history.check();
        assert!(violations.is_empty(), "{violations:#?}; {again}");
        let names: BTreeSet<_> = outcome.created.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), outcome.created.len(), "a name was created twice; {again}");
        if seed <= 3 {
            let second = play(seed, Plan::default()).unwrap_or_else(|e| panic!("{e}; {again}"));
            assert!(outcome == second, "the seed does not decide everything; {again}");
        }
    }
}
