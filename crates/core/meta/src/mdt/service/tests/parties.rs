//! What one party, and one session, may have of an MDT.

use crate::fixture::*;
use crate::sessions::{ANSWERS_MAX, SessionTable};
use crate::{Coming, Opened};
use std::sync::Arc;
use std::time::Duration;
use tieline_kv::{MemoryStore, Store};
use tieline_types::{ClientId, ErrorKind, RequestNumber, Time};
use tieline_wire::Failure;

const SESSIONS_OF_ONE_MAX: usize = 8192;
const HOUR: Duration = Duration::from_secs(3600);

/// A client of the party, which waits for an hour.
async fn come(house: &House, party: &str) -> Result<Opened, Failure> {
    let coming = Coming { description: "a farm's", host: party, party, wait: Some(HOUR) };
    house.mdt.open_session(ClientId([7; 16]), None, coming).await
}

#[tokio::test(start_paused = true)]
async fn sessions_of_one_party_are_bounded_also_after_a_start() {
    let house = House::new().await;
    let mut sessions = vec![];
    for _ in 0..SESSIONS_OF_ONE_MAX {
        sessions.push(come(&house, "ann@X").await.unwrap().session);
    }
    let house = house.restarted().await;
    let refused = come(&house, "ann@X").await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Overloaded);
    assert!(refused.detail.starts_with("ann@X has 8192 sessions"), "{refused}");
    // Who is there works on, and others come.
    let coming = Coming { description: "", host: "ann@X", party: "ann@X", wait: Some(HOUR) };
    let resumed = house.mdt.open_session(ClientId([7; 16]), Some(sessions[5]), coming).await;
    assert!(resumed.unwrap().is_resumed);
    come(&house, "bob@X").await.unwrap();
    house.mdt.end_session(sessions[7]).await.unwrap();
    come(&house, "ann@X").await.unwrap();
}

/// Sessions are kept for as long as their clients wait, unless their party needs the places.
#[tokio::test(start_paused = true)]
async fn who_is_silent_makes_room_in_a_party_that_has_no_place_left() {
    let house = House::new().await;
    let other = come(&house, "bob@X").await.unwrap().session;
    for _ in 0..SESSIONS_OF_ONE_MAX - 1 {
        come(&house, "ann@X").await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_eq!(house.mdt.end_lost_sessions().await.unwrap(), 0);
    let last = come(&house, "ann@X").await.unwrap().session;
    let ended = house.mdt.end_lost_sessions().await.unwrap();
    assert_eq!(ended, SESSIONS_OF_ONE_MAX as u64 - 1);
    assert_eq!(house.mdt.sessions(), [other, last].into());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_full_of_answers_goes_on_when_it_confirms_some() {
    let house = House::new().await;
    let client = house.client().await;
    for at in 0..ANSWERS_MAX {
        client.mkdir(ROOT, &format!("d{at}")).await;
    }
    assert_eq!(client.kind_of(mkdir(ROOT, "more", 0o755)).await, Some(ErrorKind::Overloaded));
    client.confirming(client.number()).mkdir(ROOT, "more").await;
}

#[tokio::test]
async fn answers_are_bounded_by_their_bytes_in_a_session_and_in_a_party() {
    const LENGTH: usize = 8 << 20;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mdt = start_on(store.clone()).await;
    let table = SessionTable::load(store).await.unwrap();
    let open = async |party| {
        let coming = Coming { description: "", host: party, party, wait: None };
        table.open(ClientId([7; 16]), coming, Time::default()).await.unwrap().0
    };
    let none = RequestNumber(0);
    let little = open("ann@X").await;
    table.answered(little, (RequestNumber(1), 1000), &[]);
    let mut full = vec![];
    while table.check_room(*full.last().unwrap_or(&little), none).is_ok() || full.len() < 32 {
        let session = open("ann@X").await;
        for number in 1..=4 {
            table.check_room(session, none).unwrap();
            table.answered(session, (RequestNumber(number), LENGTH), &[]);
        }
        // Its own bytes are too many, whatever the party has.
        table.check_room(session, none).unwrap_err();
        full.push(session);
    }
    let some = open("ann@X").await;
    table.answered(some, (RequestNumber(1), 100_000), &[]);
    let refused = table.check_room(some, none).unwrap_err().to_string();
    assert!(refused.starts_with("ann@X has as many bytes of answers"), "{refused}");
    // Who keeps little goes on; so does who has seen what came, and whoever is of another party.
    table.check_room(little, none).unwrap();
    table.check_room(some, RequestNumber(2)).unwrap();
    let other = open("bob@X").await;
    table.answered(other, (RequestNumber(1), 100_000), &[]);
    table.check_room(other, none).unwrap();
    // A session that ends gives back what it had.
    assert!(table.forget(full[0]));
    table.check_room(some, none).unwrap();
    drop(mdt);
}
