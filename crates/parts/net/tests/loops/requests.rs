//! Calls and their answers on one connection.

use crate::house::*;
use bytes::Bytes;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tieline_net::{CallError, Channel, ServerSettings};
use tieline_types::checksum::BLOCK;
use tieline_types::{ErrorKind, FileId};
use tieline_wire::{Request, meta};
use tieline_world::Bulk;
use tokio::task::JoinSet;

#[tokio::test(start_paused = true)]
async fn calls_are_answered_in_any_order() {
    let house = House::new().await;
    let session = house.session.clone();
    let held = tokio::spawn(async move { ask(&*session, 1).await });
    let mut asked = JoinSet::new();
    for id in (2..1002).step_by(2) {
        let session = house.session.clone();
        asked.spawn(async move {
            let answer = ask(&*session, id).await.unwrap();
            assert_eq!(answer, format!("no file {id:#x}"));
        });
    }
    while let Some(result) = asked.join_next().await {
        result.unwrap();
    }
    assert!(!held.is_finished());
    house.desk.gate.add_permits(1);
    assert_eq!(held.await.unwrap().unwrap(), "no file 0x1");
    assert_eq!(house.session.round_trips(), 501);
    assert_eq!(house.transport.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_ends_the_session_in_order() {
    let house = House::new().await;
    ask(&*house.session, 2).await.unwrap();
    house.session.close(Duration::from_secs(5)).await;
    let log = house.desk.log();
    assert_eq!(log, ["connected 1", "call 1 GetAttributes", "disconnected 1", "goodbye 1"]);
    assert!(matches!(ask(&*house.session, 2).await, Err(CallError::Closed { .. })));
    assert!(!house.session.standing().unwrap().is_connected);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_dropped_leaves_without_a_goodbye() {
    let House { desk, session, server, .. } = House::new().await;
    ask(&*session, 2).await.unwrap();
    drop(session);
    until(|| desk.log().len() == 3).await;
    assert_eq!(desk.log()[2], "disconnected 1");
    drop(server);
}

#[tokio::test(start_paused = true)]
async fn closing_what_nobody_answers_ends_with_its_patience() {
    let house = House::new().await;
    ask(&*house.session, 2).await.unwrap();
    house.transport.freeze(ADDRESS);
    let begun = tokio::time::Instant::now();
    house.session.close(Duration::from_secs(3)).await;
    assert_eq!(begun.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_dropped_at_the_server_too() {
    let house = House::new().await;
    let (session, desk) = (house.session.clone(), house.desk.clone());
    let held = tokio::spawn(async move { ask(&*session, 1).await });
    until(|| desk.log().len() == 2).await;
    held.abort();
    assert!(held.await.is_err());
    ask(&*house.session, 2).await.unwrap();
    // Nobody waits at the gate any more: the one who comes now is the first.
    house.desk.gate.add_permits(1);
    ask(&*house.session, 3).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn patience_ends_at_the_caller_and_the_server_stops_working() {
    let house = House::new().await;
    let begun = tokio::time::Instant::now();
    let error = ask(&*house.session, 1).await.unwrap_err();
    assert_eq!(begun.elapsed(), PATIENCE);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    // Whichever end looked at its clock first.
    if let CallError::Timeout { server, .. } = error {
        assert_eq!(server, "desk at mds:1");
    }
    house.desk.gate.add_permits(1);
    ask(&*house.session, 3).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_costs_the_callers_patience_and_no_more() {
    let house = House::new().await;
    house.transport.cut(ADDRESS);
    let begun = tokio::time::Instant::now();
    let error = ask(&*house.session, 2).await.unwrap_err();
    assert_eq!(begun.elapsed(), PATIENCE);
    let wanted = "mds:1 did not answer within 20 s: cannot connect: mds:1 is cut off";
    assert_eq!(error.to_string(), wanted);
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_places_wait_their_turn_within_their_patience() {
    let house = House::new().await;
    let mut held = JoinSet::new();
    for _ in 0..200 {
        let session = house.session.clone();
        held.spawn(async move { ask(&*session, 1).await });
    }
    let desk = house.desk.clone();
    until(|| desk.log().len() == 129).await;
    house.desk.gate.add_permits(100);
    until(|| desk.log().len() == 201).await;
    let mut answered = 0;
    while let Some(result) = held.join_next().await {
        match result.unwrap() {
            Ok(_) => answered += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Timeout),
        }
    }
    assert_eq!(answered, 100);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_answer_to_its_own_request_only() {
    let house = House::new().await;
    let session = house.session.clone();
    let held = tokio::spawn(async move { ask(&*session, 1).await });
    let error = exchange(&*house.session, meta::Usage {}, Bulk::Empty).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    house.desk.gate.add_permits(1);
    assert!(held.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn bulk_goes_both_ways_beside_other_calls() {
    let house = House::new().await;
    let mut tasks = JoinSet::new();
    for at in 1..20u8 {
        let session = house.session.clone();
        tasks.spawn(async move {
            let bulk = Bulk::from(Bytes::from(vec![at; 3 << 20]));
            exchange(&*session, put(at.into()), bulk).await.unwrap();
        });
        let session = house.session.clone();
        tasks.spawn(async move {
            let bytes = exchange(&*session, fetch(at.into(), 2 << 20), Bulk::Empty).await.unwrap();
            assert!(bytes == vec![at; 2 << 20]);
        });
        let session = house.session.clone();
        tasks.spawn(async move {
            ask(&*session, u64::from(at) * 2).await.unwrap();
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn small_answers_overtake_bulk() {
    let house = House::new().await;
    let mut tasks = JoinSet::new();
    for at in 0..16 {
        let session = house.session.clone();
        tasks.spawn(async move {
            exchange(&*session, fetch(at, 4 << 20), Bulk::Empty).await.unwrap();
            "bulk"
        });
    }
    let session = house.session.clone();
    tasks.spawn(async move {
        ask(&*session, 2).await.unwrap();
        "small"
    });
    let mut order = Vec::new();
    while let Some(result) = tasks.join_next().await {
        order.push(result.unwrap());
    }
    let place = order.iter().position(|&what| what == "small").unwrap();
    assert!(place < 8, "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_read_holds_up_nobody_else() {
    let house = House::new().await;
    let (_stuck, mut writer) = raw::welcomed(&house.transport).await;
    for number in 1..=400 {
        // The server stops reading once its places are taken, so the rest may not fit.
        let request = Request::from(fetch(1, 1 << 20));
        let sent = raw::request(&mut writer, number, &request);
        if tokio::time::timeout(Duration::from_secs(1), sent).await.is_err() {
            break;
        }
    }
    for id in (2..200).step_by(2) {
        ask(&*house.session, id).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn replies_that_nobody_reads_take_bounded_memory() {
    const LENGTH: u32 = 256 << 10;
    let house = House::with(ServerSettings { bulk_bytes_max: 4 << 20, ..settings() }).await;
    let (mut reader, mut writer) = raw::welcomed(&house.transport).await;
    for number in 1..=100 {
        raw::request(&mut writer, number, &Request::from(fetch(1, LENGTH))).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let peak = || house.desk.told[1].load(Ordering::Relaxed);
    // Three quarters of all, one that is made, and one that is being sent.
    assert!(peak() <= (3 << 20) + 2 * u64::from(LENGTH), "{}", peak());
    // Whoever reads gets all of them, though most were made twice.
    for _ in 0..100 {
        let frame = reader.next().await.unwrap();
        assert_eq!(frame.header.bulk_length, LENGTH);
    }
    assert!(peak() <= (3 << 20) + 2 * u64::from(LENGTH), "{}", peak());
}

#[tokio::test(start_paused = true)]
async fn room_for_replies_comes_back_from_who_reads_nothing() {
    const LENGTH: usize = 300 << 10;
    let (reply_bytes_max, reply_bytes_of_one_max) = (1 << 20, 1 << 20);
    let settings = ServerSettings { reply_bytes_max, reply_bytes_of_one_max, ..settings() };
    let house = House::with(settings).await;
    let long = || meta::ReadSymlink { id: FileId(LENGTH as u64) };
    let (_stuck, mut writer) = raw::welcomed(&house.transport).await;
    for number in 1..=100 {
        raw::request(&mut writer, number, &Request::from(long())).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    // There is no room for others' either; short ones need none.
    ask(&*house.session, 2).await.unwrap();
    let begun = tokio::time::Instant::now();
    let patience = Some(Duration::from_secs(60));
    exchange_within(&*house.session, long(), Bulk::Empty, patience).await.unwrap();
    let took = begun.elapsed().as_secs();
    assert!((20..40).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn a_request_beyond_the_budget_is_refused_as_overload_not_as_loss() {
    let house = House::with(ServerSettings { bulk_bytes_max: 1 << 20, ..settings() }).await;
    // A peer that announces bulk and does not send it holds all the room there is.
    let (_reader, mut writer) = raw::welcomed(&house.transport).await;
    raw::announce(&mut writer, 1 << 20).await;
    let bulk = Bulk::from(Bytes::from(vec![1; BLOCK]));
    let error = exchange(&*house.session, put(1), bulk.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    // The one that stalls is closed, and there is room again.
    tokio::time::sleep(Duration::from_secs(40)).await;
    exchange(&*house.session, put(1), bulk).await.unwrap();
}

/// Whatever becomes of them; others go on.
#[tokio::test(start_paused = true)]
async fn long_bodies_of_one_party_are_read_at_a_pace() {
    let (length, times) = (4 << 20, 32);
    let house = House::new().await;
    let (mut reader, mut writer) = raw::welcomed(&house.transport).await;
    let begun = tokio::time::Instant::now();
    for number in 1..=times {
        raw::send(&mut writer, number, 3, &vec![0xff; length]).await;
        assert!(reader.next().await.unwrap().header.is_failure());
    }
    let took = begun.elapsed().as_secs_f64();
    assert!((1.6..2.0).contains(&took), "{took} s for 128 MiB, of which some come at once");
    let begun = tokio::time::Instant::now();
    let (mut reader, mut writer) = raw::welcomed(&house.transport).await;
    raw::send(&mut writer, 1, 3, &vec![0xff; length]).await;
    assert!(reader.next().await.unwrap().header.is_failure());
    assert!(begun.elapsed() < Duration::from_millis(10), "another party");
}

#[tokio::test(start_paused = true)]
async fn room_for_bulk_comes_back_with_every_outcome() {
    let house = House::with(ServerSettings { bulk_bytes_max: 1 << 20, ..settings() }).await;
    let bulk = || Bulk::from(Bytes::from(vec![1; 600 << 10]));
    let begun = tokio::time::Instant::now();
    for _ in 0..5 {
        exchange(&*house.session, put(1), bulk()).await.unwrap();
        exchange(&*house.session, fetch(1, 700 << 10), Bulk::Empty).await.unwrap();
        // Bulk beside a call that has no use for it.
        assert!(exchange(&*house.session, meta::Usage {}, bulk()).await.is_err());
        let given_up = exchange(&*house.session, put(WAITS), bulk());
        assert!(tokio::time::timeout(Duration::from_millis(10), given_up).await.is_err());
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_plays_the_same_game() {
    async fn game() -> (Vec<String>, Vec<String>) {
        let house = House::new().await;
        let mut tasks = JoinSet::new();
        for id in 0..300u64 {
            let session = house.session.clone();
            tasks.spawn(async move {
                tokio::time::sleep(Duration::from_millis(id * 7 % 50)).await;
                let _ = ask(&*session, id).await;
            });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        house.transport.reset(ADDRESS);
        house.desk.gate.add_permits(1000);
        while tasks.join_next().await.is_some() {}
        let heard = house.ear.log.lock().unwrap().clone();
        (house.desk.log(), heard)
    }
    let (once, again) = (game().await, game().await);
    assert!(once.0.len() > 300, "{}", once.0.len());
    assert_eq!(once, again);
}

fn settings() -> ServerSettings {
    ServerSettings::default()
}
