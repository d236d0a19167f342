//! Connections that are lost, servers that come back, sessions that are taken over.

use crate::house::*;
use std::sync::Arc;
use std::time::Duration;
use tieline_net::{CallError, Channel, ServerSettings};
use tieline_types::{ErrorKind, FileId, Name};
use tieline_wire::{Refusal, meta};
use tieline_world::{Bulk, Transport};

fn unlink() -> meta::Unlink {
    let name = "f".parse::<Name>().unwrap();
    meta::Unlink { parent: FileId(1), name, keep: None }
}

/// A call that waits at the server's gate.
async fn held(house: &House) -> tokio::task::JoinHandle<Result<bytes::Bytes, CallError>> {
    let (session, desk) = (house.session.clone(), house.desk.clone());
    let held = tokio::spawn(async move { exchange(&*session, unlink(), Bulk::Empty).await });
    until(|| desk.log().iter().any(|line| line.contains("Unlink"))).await;
    held
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_has_one_outcome_through_a_reset() {
    let house = House::new().await;
    let held = held(&house).await;
    house.transport.reset(ADDRESS);
    house.desk.gate.add_permits(1);
    let error = held.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!(
        house.desk.log(),
        ["connected 1", "call 1 Unlink", "disconnected 1", "connected 1", "call 1 Unlink"]
    );
    assert_eq!(*house.ear.log.lock().unwrap(), ["new 1", "disconnected", "resumed 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_restarts_and_remembers_goes_on() {
    let house = House::new().await;
    let held = held(&house).await;
    house.server.stop();
    house.server.ended().await;
    let desk = Desk::new(&house.desk.sessions, true);
    let _server = serve(&*house.transport, &desk, ServerSettings::default()).await;
    desk.gate.add_permits(1);
    assert_eq!(held.await.unwrap().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(desk.log(), ["connected 1", "call 1 Unlink"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgot_ends_mutations_and_answers_the_rest() {
    let house = House::new().await;
    let held = held(&house).await;
    let session = house.session.clone();
    let asking = tokio::spawn(async move { ask(&*session, 1).await });
    let desk = house.desk.clone();
    until(|| desk.log().len() == 3).await;
    house.server.stop();
    house.server.ended().await;
    let desk = Desk::new(&house.desk.sessions, false);
    let _server = serve(&*house.transport, &desk, ServerSettings::default()).await;
    desk.gate.add_permits(1);
    assert!(matches!(held.await.unwrap(), Err(CallError::SessionLost { .. })));
    assert_eq!(asking.await.unwrap().unwrap(), "no file 0x1");
    assert_eq!(desk.log(), ["connected 2", "call 1 GetAttributes"]);
}

#[tokio::test(start_paused = true)]
async fn silence_is_noticed_and_the_session_resumed_elsewhere() {
    let house = House::new().await;
    ask(&*house.session, 2).await.unwrap();
    house.transport.freeze(ADDRESS);
    let ear = house.ear.clone();
    until_slow(|| ear.log.lock().unwrap().contains(&"disconnected".to_owned())).await;
    assert!(!house.session.standing().unwrap().is_connected);
    house.transport.mend(ADDRESS);
    ask(&*house.session, 4).await.unwrap();
    assert_eq!(house.ear.log.lock().unwrap().last().unwrap(), "resumed 1");
    // The server, too, has let go of the old connection before it greeted the new one.
    let log = house.desk.log();
    let greetings: Vec<&str> =
        log.iter().map(String::as_str).filter(|line| line.contains("connected")).collect();
    assert_eq!(greetings, ["connected 1", "disconnected 1", "connected 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_and_never_answers_is_left() {
    let house = House::new().await;
    house.server.stop();
    house.server.ended().await;
    // Greets, then reads and says nothing: talking to it is no sign of its life.
    let mut listener = house.transport.listen(ADDRESS).await.unwrap();
    let deaf = tokio::spawn(async move {
        let connection = listener.accept().await.unwrap();
        raw::greet_and_read(connection).await;
    });
    let session = house.session.clone();
    let talking = tokio::spawn(async move {
        loop {
            let (patience, message) = (Duration::from_millis(200), meta::Usage {});
            let talk = exchange(&*session, message, Bulk::Empty);
            let _ = tokio::time::timeout(patience, talk).await;
        }
    });
    let begun = tokio::time::Instant::now();
    deaf.await.unwrap();
    assert!(begun.elapsed() <= Duration::from_secs(16), "{:?}", begun.elapsed());
    talking.abort();
}

/// Four megabytes in each direction at 100 kB/s, with pings every five seconds.
#[tokio::test(start_paused = true)]
async fn a_slow_transfer_is_not_silence() {
    let house = House::new().await;
    ask(&*house.session, 2).await.unwrap();
    house.transport.slow(ADDRESS, Some(100_000));
    let patience = Some(Duration::from_secs(300));
    let bulk = Bulk::from(bytes::Bytes::from(vec![1; 4 << 20]));
    exchange_within(&*house.session, put(1), bulk, patience).await.unwrap();
    let fetched = exchange_within(&*house.session, fetch(1, 4 << 20), Bulk::Empty, patience);
    assert_eq!(fetched.await.unwrap().len(), 4 << 20);
    assert_eq!(house.transport.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_second_connection_takes_the_sessions_seat() {
    let house = House::new().await;
    ask(&*house.session, 2).await.unwrap();
    for _ in 0..5 {
        let (mut reader, writer) = raw::resume(&house.transport, 1).await;
        drop(writer);
        // Ours comes back and takes the seat again.
        until(|| house.session.standing().unwrap().is_connected).await;
        let ended = tokio::time::timeout(Duration::from_secs(5), reader.next()).await;
        assert!(ended.unwrap().is_err());
        ask(&*house.session, 4).await.unwrap();
    }
    let log = house.desk.log();
    let greetings = log.iter().filter(|line| line.contains("connected"));
    for (at, line) in greetings.enumerate() {
        assert_eq!(line, if at % 2 == 0 { "connected 1" } else { "disconnected 1" }, "{log:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_stays_connected_and_its_leases_are_renewed() {
    let house = House::new().await;
    ask(&*house.session, 2).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(house.transport.connections(), 1);
    let renewed = house.ear.renewed.lock().unwrap().clone();
    assert!(renewed.len() > 100, "{}", renewed.len());
    assert!(renewed.is_sorted());
    assert!(renewed.last().unwrap().elapsed() <= Duration::from_secs(6));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_for_good_ends_the_calls_and_one_for_now_does_not() {
    let house = House::new().await;
    let refusal =
        |kind| Refusal { kind, detail: "no".to_owned(), version_oldest: 1, version_newest: 1 };
    *house.desk.refusal.lock().unwrap() = Some(refusal(ErrorKind::PermissionDenied));
    let error = ask(&*house.session, 2).await.unwrap_err();
    assert!(matches!(error, CallError::Handshake { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);

    *house.desk.refusal.lock().unwrap() = Some(refusal(ErrorKind::Overloaded));
    let session = house.session.clone();
    let asking = tokio::spawn(async move { ask(&*session, 2).await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    *house.desk.refusal.lock().unwrap() = None;
    asking.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn connections_beyond_the_limit_are_told_so() {
    let settings = ServerSettings { connections_max: 1, ..ServerSettings::default() };
    let house = House::with(settings).await;
    ask(&*house.session, 2).await.unwrap();
    let other = dial(&house.world, &Arc::default());
    let asking = {
        let other = other.clone();
        tokio::spawn(async move { ask(&*other, 2).await })
    };
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!asking.is_finished());
    house.session.close(Duration::from_secs(1)).await;
    asking.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_dropped_leaves_nothing_running() {
    let House { transport, desk, server, session, .. } = House::new().await;
    ask(&*session, 2).await.unwrap();
    drop(server);
    until(|| desk.log().contains(&"disconnected 1".to_owned())).await;
    until(|| Arc::strong_count(&desk) == 1).await;
    drop((session, transport));
}
