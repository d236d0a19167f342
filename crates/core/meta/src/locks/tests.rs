//! Locks between sessions, through the calls that clients make.

use super::{FileLocks, WAITS_MAX, Wait, Wish};
use crate::fixture::*;
use std::sync::Arc;
use std::time::Duration;
use tieline_types::{ErrorKind, FileId, LockKind, LockMode, LockRange, SessionId};
use tieline_wire::locks::*;
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(20);
const FILE: FileId = FileId(7);

fn lock(owner: u64, range: (u64, u64), mode: Option<LockMode>) -> Lock {
    let range = LockRange { start: range.0, end: range.1 };
    Lock { id: FILE, kind: LockKind::Posix, owner, range, mode, wait: None, idles: None }
}

fn exclusive(owner: u64) -> Lock {
    lock(owner, (0, 10), Some(LockMode::Exclusive))
}

fn shared(owner: u64) -> Lock {
    lock(owner, (0, 10), Some(LockMode::Shared))
}

fn free(owner: u64) -> Lock {
    lock(owner, (0, 10), None)
}

fn waiting(lock: Lock, ticket: u64) -> Lock {
    Lock { wait: Some(LockWait { ticket, patience_ms: 5000 }), ..lock }
}

async fn ask(client: &Client, lock: Lock) -> LockOutcome {
    client.call(lock).await.unwrap().outcome
}

/// Asks in a task of its own, and waits until it waits.
async fn wait(client: &Client, call: Lock) -> tokio::task::JoinHandle<LockOutcome> {
    let client = client.clone();
    let asking = tokio::spawn(async move { ask(&client, call).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    asking
}

use LockOutcome::{Cancelled, Granted, Queued, Refused};

#[tokio::test(start_paused = true)]
async fn sessions_keep_each_other_out() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    assert_eq!(ask(&a, exclusive(1)).await, Granted);
    // The same number of another session is another owner.
    assert_eq!(ask(&b, exclusive(1)).await, Refused);
    let test = |owner| TestLock {
        id: FILE,
        kind: LockKind::Posix,
        owner,
        range: LockRange { start: 3, end: 4 },
        mode: LockMode::Shared,
    };
    let found = b.call(test(1)).await.unwrap().found.unwrap();
    assert_eq!((found.range.end, found.owner), (10, None));
    assert_eq!(a.call(test(2)).await.unwrap().found.unwrap().owner, Some(1));
    assert_eq!(a.call(test(1)).await.unwrap().found, None);
    // The two kinds do not see each other.
    let flock = Lock { kind: LockKind::Flock, range: LockRange::WHOLE, ..exclusive(9) };
    assert_eq!(ask(&b, flock).await, Granted);
    assert_eq!(ask(&a, free(1)).await, Granted);
    assert_eq!(ask(&b, exclusive(1)).await, Granted);
}

#[tokio::test(start_paused = true)]
async fn turns_come_in_order() {
    let house = House::new().await;
    let (a, b, c) = (house.client().await, house.client().await, house.client().await);
    assert_eq!(ask(&a, shared(1)).await, Granted);
    let writer = wait(&b, waiting(exclusive(1), 1)).await;
    // A reader that comes later does not overtake, unless it does not wait.
    let reader = wait(&c, waiting(shared(1), 1)).await;
    assert!(!writer.is_finished() && !reader.is_finished());
    assert_eq!(ask(&c, shared(2)).await, Granted);
    assert_eq!(ask(&c, free(2)).await, Granted);
    ask(&a, free(1)).await;
    assert_eq!(writer.await.unwrap(), Granted);
    assert!(!reader.is_finished());
    ask(&b, free(1)).await;
    assert_eq!(reader.await.unwrap(), Granted);
}

#[tokio::test(start_paused = true)]
async fn a_place_is_kept_between_two_questions() {
    let house = House::new().await;
    let (a, b, c) = (house.client().await, house.client().await, house.client().await);
    ask(&a, exclusive(1)).await;
    let begun = Instant::now();
    assert_eq!(ask(&b, waiting(exclusive(1), 5)).await, Queued);
    assert_eq!(begun.elapsed().as_secs(), 5);
    let later = wait(&c, waiting(exclusive(1), 5)).await;
    ask(&a, free(1)).await;
    // Granted to who was first, although it was not asking just then.
    assert!(!later.is_finished());
    assert_eq!(ask(&b, waiting(exclusive(1), 5)).await, Granted);
    ask(&b, free(1)).await;
    assert_eq!(later.await.unwrap(), Granted);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_come_back_loses_place_and_grant() {
    let house = House::new().await;
    let (a, b, c) = (house.client().await, house.client().await, house.client().await);
    ask(&a, exclusive(1)).await;
    assert_eq!(ask(&b, waiting(exclusive(1), 5)).await, Queued);
    ask(&a, free(1)).await;
    assert_eq!(ask(&c, exclusive(1)).await, Refused, "it was granted to who waits");
    tokio::time::sleep(Duration::from_secs(11)).await;
    house.mdt.locks.sweep();
    assert_eq!(ask(&c, exclusive(1)).await, Granted);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_leaves_nothing() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    ask(&a, exclusive(1)).await;
    let asking = wait(&b, waiting(exclusive(1), 5)).await;
    let cancel = CancelLock { id: FILE, ticket: 5 };
    assert!(b.call(cancel.clone()).await.unwrap().was_waiting);
    assert_eq!(asking.await.unwrap(), Cancelled);
    assert!(!b.call(cancel).await.unwrap().was_waiting);
    // A cancellation that overtakes its request counts.
    b.call(CancelLock { id: FILE, ticket: 6 }).await.unwrap();
    assert_eq!(ask(&b, waiting(exclusive(1), 6)).await, Cancelled);
    ask(&a, free(1)).await;
    assert_eq!(ask(&a, exclusive(2)).await, Granted);
}

#[tokio::test(start_paused = true)]
async fn rings_of_waiting_are_refused() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    ask(&a, lock(1, (0, 1), Some(LockMode::Exclusive))).await;
    ask(&b, lock(1, (1, 2), Some(LockMode::Exclusive))).await;
    let asking = wait(&a, waiting(lock(1, (1, 2), Some(LockMode::Shared)), 1)).await;
    let back = waiting(lock(1, (0, 1), Some(LockMode::Shared)), 1);
    assert_eq!(b.kind_of(back).await, Some(ErrorKind::Deadlock));
    ask(&b, free(1)).await;
    assert_eq!(asking.await.unwrap(), Granted);
    // With flock what is changed is given up first: else both would wait.
    let whole = |lock| Lock { kind: LockKind::Flock, range: LockRange::WHOLE, ..lock };
    ask(&a, whole(shared(7))).await;
    ask(&b, whole(shared(7))).await;
    let first = wait(&a, waiting(whole(exclusive(7)), 2)).await;
    assert_eq!(ask(&b, waiting(whole(exclusive(7)), 2)).await, Granted);
    assert!(!first.is_finished());
    ask(&b, whole(free(7))).await;
    assert_eq!(first.await.unwrap(), Granted);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_or_falls_silent_frees_its_locks() {
    let house = House::new().await;
    let (a, c) = (house.client().await, house.client().await);
    let b = house.client_named(2, None).await;
    ask(&a, exclusive(1)).await;
    let asking = wait(&b, waiting(exclusive(1), 1)).await;
    house.mdt.end_session(a.session).await.unwrap();
    assert_eq!(asking.await.unwrap(), Granted);
    // Silent, with somebody who waits.
    let begun = Instant::now();
    loop {
        house.mdt.heard(c.session);
        match ask(&c, waiting(exclusive(1), 2)).await {
            Queued => {}
            outcome => break assert_eq!(outcome, Granted),
        }
    }
    assert!(begun.elapsed() <= LEASE + Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(house.client_named(2, Some(b.session)).await.is_resumed);
    assert_eq!(ask(&b, exclusive(1)).await, Refused);
}

#[tokio::test(start_paused = true)]
async fn locks_come_back_after_a_restart_before_new_ones() {
    let house = House::new().await;
    let (a, b) = (house.client_named(1, None).await, house.client_named(2, None).await);
    ask(&a, exclusive(1)).await;
    let house = house.restarted().await;
    let b = house.client_named(2, Some(b.session)).await;
    let asserted = AssertLocks { locks: vec![], is_last: true, heard: None };
    b.call(asserted).await.unwrap();
    let thief = wait(&b, exclusive(1)).await;
    assert!(!thief.is_finished());
    let a = house.client_named(1, Some(a.session)).await;
    let own = AssertedLock {
        id: FILE,
        kind: LockKind::Posix,
        owner: 1,
        range: LockRange { start: 0, end: 10 },
        mode: LockMode::Exclusive,
    };
    let asserted = AssertLocks { locks: vec![own], is_last: true, heard: None };
    assert!(a.call(asserted.clone()).await.unwrap().lost.is_empty());
    assert_eq!(thief.await.unwrap(), Refused);
    // Those who never come back hold nobody up for longer than the lease.
    let house = house.restarted().await;
    let b = house.client_named(2, Some(b.session)).await;
    let begun = Instant::now();
    assert_eq!(ask(&b, exclusive(1)).await, Granted);
    assert!(begun.elapsed() >= LEASE && begun.elapsed() < LEASE * 2);
    let a = house.client_named(1, Some(a.session)).await;
    assert_eq!(a.call(asserted).await.unwrap().lost, [0]);
}

fn idling(lock: Lock) -> Lock {
    Lock { idles: Some(true), ..lock }
}

/// What no program holds keeps nobody out, whether he waits or not, and nobody else is asked.
#[tokio::test(start_paused = true)]
async fn idle_locks_are_freed_before_anybody_is_refused() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    for waits in [false, true] {
        let reply = a.call(idling(exclusive(1))).await.unwrap();
        assert_eq!((reply.outcome, reply.idles), (Granted, Some(true)));
        house.clients.frees(&a, vec![free(1)]);
        let wish = if waits { waiting(exclusive(1), 1) } else { exclusive(1) };
        assert_eq!(b.call(wish).await.unwrap(), LockReply { outcome: Granted, idles: None });
        assert_eq!(house.clients.asked(), [a.session]);
        ask(&b, free(1)).await;
    }
    // Who asks about it finds nobody either.
    ask(&a, idling(exclusive(1))).await;
    house.clients.frees(&a, vec![free(1)]);
    let (range, mode) = (LockRange { start: 0, end: 10 }, LockMode::Shared);
    let test = TestLock { id: FILE, kind: LockKind::Posix, owner: 1, range, mode };
    assert_eq!(b.call(test).await.unwrap().found, None);
    assert_eq!(house.clients.asked(), [a.session]);
    // A downgrade, as far as programs still hold it.
    ask(&a, idling(exclusive(1))).await;
    house.clients.frees(&a, vec![shared(1)]);
    assert_eq!(ask(&b, shared(1)).await, Granted);
    assert_eq!((ask(&b, exclusive(1)).await, house.clients.asked().len()), (Refused, 1));
}

/// Whoever is kept out by a program is refused, and the client is not asked again and again.
#[tokio::test(start_paused = true)]
async fn a_program_that_holds_keeps_others_out() {
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    ask(&a, idling(exclusive(1))).await;
    assert_eq!(ask(&b, exclusive(1)).await, Refused);
    assert_eq!(ask(&b, exclusive(1)).await, Refused);
    assert_eq!(house.clients.asked(), [a.session]);
    let waiter = wait(&b, waiting(exclusive(1), 1)).await;
    // It may leave locks idle again: the waiter, too, has it asked.
    ask(&a, idling(lock(1, (50, 60), Some(LockMode::Shared)))).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(house.clients.asked(), [a.session]);
    assert!(!waiter.is_finished());
    ask(&a, free(1)).await;
    assert_eq!(waiter.await.unwrap(), Granted);
    // So does a wait within the session of who holds.
    ask(&b, idling(exclusive(1))).await;
    let waiter = wait(&b, waiting(exclusive(2), 2)).await;
    assert_eq!(house.clients.asked(), [b.session]);
    ask(&b, free(1)).await;
    assert_eq!(waiter.await.unwrap(), Granted);
}

/// Told again that its locks may be idle while it frees them, a client is asked again.
#[tokio::test(start_paused = true)]
async fn what_is_idle_again_is_asked_for_again() {
    let house = House::new().await;
    let (a, b, c) = (house.client().await, house.client().await, house.client().await);
    ask(&a, idling(exclusive(1))).await;
    house.clients.set(a.session, Manner::Takes(Duration::from_secs(1)));
    house.clients.frees(&a, vec![idling(exclusive(1))]);
    let asking = wait(&b, exclusive(1)).await;
    house.clients.frees(&a, vec![free(1)]);
    assert_eq!(asking.await.unwrap(), Granted);
    assert_eq!(house.clients.asked(), [a.session; 2]);
    ask(&b, free(1)).await;
    // Two who ask at once do no harm.
    ask(&a, idling(exclusive(1))).await;
    house.clients.frees(&a, vec![free(1)]);
    let (one, other) = (wait(&b, shared(1)).await, wait(&c, shared(1)).await);
    assert_eq!((one.await.unwrap(), other.await.unwrap()), (Granted, Granted));
    assert_eq!(house.clients.asked(), [a.session; 2]);
}

/// A client that does not answer holds others up no longer than one whose programs hold locks.
#[tokio::test(start_paused = true)]
async fn idle_locks_of_who_is_gone_end_with_the_lease() {
    for manner in [Manner::IsAway, Manner::Ignores] {
        let house = House::new().await;
        let (a, b) = (house.client_named(1, None).await, house.client().await);
        ask(&a, idling(exclusive(1))).await;
        house.clients.set(a.session, manner);
        let begun = Instant::now();
        loop {
            house.mdt.heard(b.session);
            match ask(&b, waiting(exclusive(1), 2)).await {
                Queued => {}
                outcome => break assert_eq!(outcome, Granted),
            }
        }
        assert!(begun.elapsed() <= LEASE + Duration::from_secs(1), "{:?}", begun.elapsed());
        // Who was not heard meanwhile is not barred.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(house.client_named(1, Some(a.session)).await.is_resumed);
        assert_eq!(ask(&a, shared(2)).await, Refused);
    }
    // One that is connected and heard of, and never answers, counts as one that holds.
    let house = House::new().await;
    let (a, b) = (house.client().await, house.client().await);
    ask(&a, idling(exclusive(1))).await;
    house.clients.set(a.session, Manner::Ignores);
    let mdt = house.mdt.clone();
    let session = a.session;
    tokio::spawn(async move {
        loop {
            mdt.heard(session);
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    let begun = Instant::now();
    assert_eq!(ask(&b, exclusive(1)).await, Refused);
    assert!(begun.elapsed() <= LEASE + Duration::from_secs(1), "{:?}", begun.elapsed());
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(house.clients.hung_up.lock().unwrap().contains(&session), "it may hear nothing");
    tokio::time::sleep(LEASE).await;
    assert_eq!(a.kind_of(exclusive(2)).await, Some(ErrorKind::SessionLost), "it is barred");
}

#[tokio::test(start_paused = true)]
async fn one_session_fills_no_queue() {
    let wait = |session: u64, ticket: u64| Wait {
        ticket,
        wish: Wish {
            owner: (SessionId(session), ticket),
            kind: LockKind::Flock,
            range: LockRange::WHOLE,
            mode: LockMode::Exclusive,
        },
        is_granted: false,
        is_parked: false,
        kept_until: Instant::now(),
        turn: Arc::default(),
    };
    let mut locks = FileLocks::default();
    locks.queue.extend((0..WAITS_MAX as u64 / 2 - 1).map(|ticket| wait(1, ticket)));
    assert!(!locks.is_full_for(SessionId(1)));
    locks.queue.push_back(wait(1, 1 << 20));
    assert!(locks.is_full_for(SessionId(1)) && !locks.is_full_for(SessionId(2)));
    locks.queue.extend((0..WAITS_MAX as u64 / 2).map(|ticket| wait(3 + ticket, ticket)));
    assert!(locks.is_full_for(SessionId(2)));
}
