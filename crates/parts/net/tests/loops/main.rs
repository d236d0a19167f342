//! Sessions and servers together: over in-memory streams with paused time, and over TCP.

mod house;

use house::*;
use std::time::Duration;
use tieline_net::Channel;

#[tokio::test(start_paused = true)]
async fn calls_are_answered_in_any_order() {
    let house = House::new().await;
    let session = house.session.clone();
    let held = tokio::spawn(async move { ask(&*session, 1).await });
    let mut asked = tokio::task::JoinSet::new();
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
    assert!(ask(&*house.session, 2).await.is_err());
    assert!(!house.session.standing().unwrap().is_connected);
}
