//! Clients that are cut off for longer than a lease: what lapses, and what they find when they are
//! back.

use crate::fixture::*;
use std::time::Duration;
use tieline_types::{Content, ErrorKind, SessionId, Time};
use tieline_wire::Request;
use tieline_wire::meta::*;

const MINUTE: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(900);

/// A client that waits for 15 minutes.
async fn patient(house: &House, session: Option<SessionId>) -> Client {
    house.client_waiting((77, Some(WAIT)), session).await
}

/// So many minutes pass in which others work where the holder has leases.
async fn minutes_pass(house: &House, others: &Client, minutes: u32) {
    let mdt = house.mdt.clone();
    let running = tokio::spawn(async move {
        loop {
            mdt.end_lost_sessions().await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    for minute in 0..minutes {
        tokio::time::sleep(MINUTE).await;
        house.mdt.heard(others.session);
        others.mkdir(ROOT, &format!("{minute}-{:?}", others.number())).await;
    }
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_cut_that_is_shorter_than_the_wait_takes_leases_and_nothing_else() {
    let house = House::new().await;
    let (others, holder) = (house.client().await, patient(&house, None).await);
    let number = holder.number();
    let made = holder.call_numbered(number, mkdir(ROOT, "made", 0o755)).await.unwrap();
    let file = holder.create(ROOT, "f").await;
    holder.call(Unlink { keep: Some(file), ..unlink(ROOT, "f") }).await.unwrap();
    holder.lookup(ROOT, "x").await;
    assert!(house.mdt.leases.holds(holder.session, ROOT));
    house.clients.set(holder.session, Manner::IsAway);
    minutes_pass(&house, &others, 14).await;
    assert!(!house.mdt.leases.holds(holder.session, ROOT));
    let back = patient(&house, Some(holder.session)).await;
    assert!(back.is_resumed);
    // What was sent before and not answered is answered as it would have been.
    let again = holder.call_numbered(number, mkdir(ROOT, "made", 0o755)).await.unwrap();
    assert_eq!(again.attributes, made.attributes);
    assert_eq!(holder.stat(file).await.links, 0);
}

/// The answer to a batch is lost in a cut, and others write to the file before it comes again.
#[tokio::test(start_paused = true)]
async fn a_batch_of_before_a_cut_is_not_carried_out_over_what_others_wrote() {
    let house = House::new().await;
    let (others, holder) = (house.client().await, patient(&house, None).await);
    let file = others.create(ROOT, "f").await;
    let written = Request::from(commit(file, vec![inline(0, b"old")]));
    let (op, message) = (written.op().number(), written.encode_message());
    let at = Time { seconds: 1000, nanos: 5 };
    let item = BatchItem { caller: holder.caller.clone(), at, id: file, op, message };
    let (number, batch) = (holder.number(), Batch { items: vec![item] });
    holder.call_numbered(number, batch.clone()).await.unwrap();
    holder.lookup(ROOT, "x").await;
    house.clients.set(holder.session, Manner::IsAway);
    minutes_pass(&house, &others, 2).await;
    others.commit(file, vec![inline(0, b"new")]).await;
    assert!(patient(&house, Some(holder.session)).await.is_resumed);
    holder.call_numbered(number, batch).await.unwrap();
    let extents = others.extents(file).await;
    let bytes = extents.iter().map(|extent| extent.content.clone()).collect::<Vec<_>>();
    assert_eq!(bytes, [Content::Inline(b"new".to_vec())]);
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_its_client_has_given_up() {
    let house = House::new().await;
    let (others, holder) = (house.client().await, patient(&house, None).await);
    minutes_pass(&house, &others, 18).await;
    assert!(!patient(&house, Some(holder.session)).await.is_resumed);
    assert_eq!(holder.kind_of(GetAttributes { id: ROOT }).await, Some(ErrorKind::SessionLost));
}

/// The way to it is cut, and not the way from it: it is heard until it notices.
#[tokio::test(start_paused = true)]
async fn a_client_that_hears_nothing_keeps_its_session() {
    let house = House::new().await;
    let (others, holder) = (house.client().await, patient(&house, None).await);
    holder.lookup(ROOT, "x").await;
    house.clients.set(holder.session, Manner::Ignores);
    let (mdt, clients, session) = (house.mdt.clone(), house.clients.clone(), holder.session);
    let beating = tokio::spawn(async move {
        while !clients.hung_up.lock().unwrap().contains(&session) {
            mdt.heard(session);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let begun = tokio::time::Instant::now();
    others.mkdir(ROOT, "y").await;
    assert!(begun.elapsed() <= Duration::from_secs(41), "{:?}", begun.elapsed());
    beating.await.unwrap();
    minutes_pass(&house, &others, 3).await;
    assert!(patient(&house, Some(holder.session)).await.is_resumed);
}

/// Also one of before a start is kept for its client's wait.
#[tokio::test(start_paused = true)]
async fn a_start_forgets_no_wait() {
    let house = House::new().await;
    let holder = house.client_waiting((77, None), None).await;
    assert!(patient(&house, Some(holder.session)).await.is_resumed);
    let house = house.restarted().await;
    let others = house.client().await;
    minutes_pass(&house, &others, 14).await;
    assert!(patient(&house, Some(holder.session)).await.is_resumed);
}
