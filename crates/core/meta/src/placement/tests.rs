//! Which OSTs new chunks go to: pools, weights, failures, mirrors.

use super::*;
use crate::fixture::map;

fn placement() -> Placement {
    Placement::new(World::local(3).0)
}

fn state(ost: u16, free: u64) -> OstState {
    OstState {
        ost: OstIndex(ost),
        bytes_total: 100 << 40,
        bytes_free: free,
        objects_total: 1 << 30,
        objects_free: 1 << 30,
        trouble: None,
        is_read_only: None,
        realms: None,
    }
}

fn layout(count: StripeCount, pool: Option<&str>) -> Layout {
    let pool = pool.map(|pool| pool.parse().unwrap());
    Layout { stripe_count: count, pool, ..Layout::default() }
}

fn one() -> Layout {
    layout(StripeCount::Exactly(1), None)
}

/// How often each of the four OSTs is chosen.
fn tally(placement: &Placement, layout: &Layout, rounds: usize) -> Vec<usize> {
    let mut counts = vec![0; 4];
    for _ in 0..rounds {
        for ost in placement.choose(&map(), layout, (&[], &[]), &[]).unwrap() {
            counts[usize::from(ost.0)] += 1;
        }
    }
    counts
}

fn mirrored(count: StripeCount, pool: Option<&str>, mirrors: u8, sync: u8) -> Layout {
    Layout { mirrors, sync, ..layout(count, pool) }
}

fn numbers(stripe: Vec<OstIndex>) -> Vec<u16> {
    stripe.into_iter().map(|ost| ost.0).collect()
}

#[tokio::test(start_paused = true)]
async fn copies_lie_at_different_sites_and_are_spread() {
    let placement = placement();
    placement.observe((0..4).map(|ost| state(ost, 1 << 40)).collect());
    let layout = mirrored(StripeCount::All, None, 2, 1);
    let stripe = numbers(placement.choose(&map(), &layout, (&[], &[]), &[]).unwrap());
    assert_eq!(stripe.len(), 8);
    let mut parts = [[0; 4]; 2];
    for column in stripe.chunks(2) {
        assert_ne!(column[0] / 2, column[1] / 2, "{stripe:?}");
        (0..2).for_each(|part| parts[part][usize::from(column[part])] += 1);
    }
    assert_eq!(parts, [[1; 4]; 2], "each OST has as many of either: {stripe:?}");
}

#[tokio::test(start_paused = true)]
async fn copies_within_a_site_lie_on_different_osts() {
    let placement = placement();
    placement.observe((0..4).map(|ost| state(ost, 1 << 40)).collect());
    let layout = mirrored(StripeCount::Exactly(1), Some("uf"), 2, 2);
    let stripe = placement.choose(&map(), &layout, (&[], &[]), &[]).unwrap();
    let mut sorted = numbers(stripe.clone());
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 1]);
    // One refuses, and there is no other: it has its place for later.
    let kept = placement.choose(&map(), &layout, (&stripe, &[]), &stripe[1..]).unwrap();
    assert_eq!(kept, stripe);
    let refused = placement.choose(&map(), &layout, (&stripe, &[]), &stripe);
    assert!(matches!(refused, Err(Error::PoolFull { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_failed_is_replaced_in_its_place() {
    let placement = placement();
    placement.observe((0..4).map(|ost| state(ost, 1 << 40)).collect());
    let layout = mirrored(StripeCount::Exactly(1), None, 2, 2);
    let stripe = [OstIndex(0), OstIndex(2)];
    let replaced = placement.choose(&map(), &layout, (&stripe, &[]), &[OstIndex(2)]).unwrap();
    assert_eq!(numbers(replaced), [0, 3]);
    let replaced = placement.choose(&map(), &layout, (&stripe, &[]), &[OstIndex(0)]).unwrap();
    assert_eq!(numbers(replaced), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_site_gets_no_copy_while_others_answer() {
    let placement = placement();
    placement.observe((0..2).map(|ost| state(ost, 1 << 40)).collect());
    let layout = mirrored(StripeCount::Exactly(1), None, 2, 1);
    let mut stripe = numbers(placement.choose(&map(), &layout, (&[], &[]), &[]).unwrap());
    stripe.sort_unstable();
    assert_eq!(stripe, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn more_copies_go_where_none_is() {
    let placement = placement();
    placement.observe((0..4).map(|ost| state(ost, 1 << 40)).collect());
    let layout = mirrored(StripeCount::Exactly(1), None, 3, 1);
    let there = [OstIndex(1)];
    let more = numbers(placement.choose_more(&map(), &layout, &there, 2).unwrap());
    assert!(more[0] >= 2 && more[1] != more[0] && more[1] != 1, "{more:?}");
    let all = [0, 1, 2, 3].map(OstIndex);
    assert!(placement.choose_more(&map(), &layout, &all, 1).unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn equals_take_turns() {
    let placement = placement();
    // Within a fifth of the emptiest is equal.
    placement.observe((0..4).map(|ost| state(ost, (10 << 40) - (u64::from(ost) << 39))).collect());
    assert_eq!(tally(&placement, &one(), 40), [10; 4]);
}

#[tokio::test(start_paused = true)]
async fn the_emptier_are_chosen_in_proportion() {
    let placement = placement();
    placement.observe(vec![
        state(0, 40 << 40),
        state(1, 20 << 40),
        state(2, 20 << 40),
        state(3, 1 << 20),
    ]);
    let counts = tally(&placement, &one(), 80);
    assert_eq!(counts[3], 0, "there is no room for a chunk");
    assert!((39..=41).contains(&counts[0]), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stripe_has_distinct_osts_as_many_as_there_are() {
    let placement = placement();
    for count in [StripeCount::All, StripeCount::Exactly(9)] {
        let mut stripe =
            placement.choose(&map(), &layout(count, Some("uf")), (&[], &[]), &[]).unwrap();
        stripe.sort();
        assert_eq!(stripe, [OstIndex(0), OstIndex(1)]);
    }
}

#[tokio::test(start_paused = true)]
async fn silent_osts_come_last_and_troubled_ones_never() {
    let placement = placement();
    let mut troubled = state(1, 10 << 40);
    troubled.trouble = Some("read-only".to_owned());
    placement.observe(vec![state(0, 1 << 40), troubled]);
    assert_eq!(tally(&placement, &one(), 10), [10, 0, 0, 0]);
    let all = placement.choose(&map(), &layout(StripeCount::All, None), (&[], &[]), &[]).unwrap();
    assert_eq!(all[0], OstIndex(0));
    assert!(!all.contains(&OstIndex(1)));
    // What was observed a minute ago counts no more.
    tokio::time::advance(FRESH).await;
    assert_eq!(tally(&placement, &one(), 40).iter().filter(|&&count| count > 0).count(), 4);
    assert!(placement.usage(&map()).iter().all(|usage| usage.state.is_none()));
    assert!(placement.usage(&map())[0].heard.is_some());
}

#[tokio::test(start_paused = true)]
async fn failures_say_what_is_wrong_with_the_pool() {
    let placement = placement();
    let choose = |map: &FederationMap, pool, exclude: &[OstIndex]| {
        let layout = layout(StripeCount::Exactly(1), Some(pool));
        placement.choose(map, &layout, (&[], &[]), exclude).unwrap_err()
    };
    let gone = choose(&map(), "nowhere", &[]);
    assert!(gone.to_string().contains("tieline setstripe -p"), "{gone}");
    assert_eq!(gone.kind(), tieline_types::ErrorKind::OstInactive, "no file is missing");
    assert!(matches!(choose(&map(), "empty", &[]), Error::PoolEmpty { .. }));
    let mut inactive = map();
    for ost in &mut inactive.osts {
        ost.is_active = false;
    }
    assert!(matches!(choose(&inactive, "uf", &[]), Error::PoolInactive { .. }));
    placement.observe(vec![state(0, 0)]);
    let error = choose(&map(), "uf", &[OstIndex(1)]);
    assert_eq!(
        error.to_string(),
        "no OST of pool uf takes chunks now: OST0000 full, OST0001 refused the writer"
    );
}

/// A writer has room there: what is known here may be older.
#[tokio::test(start_paused = true)]
async fn a_wish_is_heeded_within_the_rules() {
    let placement = placement();
    placement.observe((0..4).map(|ost| state(ost, if ost == 1 { 0 } else { 1 << 40 })).collect());
    let choose = |layout: &Layout, wish: &[u16], exclude: &[u16]| {
        let all = |osts: &[u16]| osts.iter().map(|&ost| OstIndex(ost)).collect::<Vec<_>>();
        let known: (&[OstIndex], &[OstIndex]) = (&[], &all(wish));
        numbers(placement.choose(&map(), layout, known, &all(exclude)).unwrap())
    };
    let uf = layout(StripeCount::Exactly(1), Some("uf"));
    for ost in 0..2 {
        assert_eq!(choose(&uf, &[ost], &[]), [ost]);
    }
    assert_eq!(choose(&uf, &[3], &[1]), [0], "it is of another pool");
    assert_eq!(choose(&uf, &[9, 1], &[1]), [0], "it has just refused");
    assert_eq!(choose(&layout(StripeCount::Exactly(2), None), &[1, 3], &[]), [1, 3]);
    let two = mirrored(StripeCount::Exactly(1), None, 2, 1);
    assert_eq!(choose(&two, &[1, 2], &[]), [1, 2]);
    assert_eq!(choose(&two, &[2, 1], &[]), [2, 1]);
    let apart = choose(&two, &[0, 1], &[]);
    assert!(apart[0] == 0 && apart[1] >= 2, "copies are at different sites: {apart:?}");
}

#[tokio::test(start_paused = true)]
async fn those_that_work_are_kept() {
    let placement = placement();
    let layout = layout(StripeCount::Exactly(3), None);
    let kept = [OstIndex(2), OstIndex(0)];
    let stripe = placement.choose(&map(), &layout, (&kept, &[]), &[OstIndex(1)]).unwrap();
    assert_eq!(stripe, [OstIndex(2), OstIndex(0), OstIndex(3)]);
}
