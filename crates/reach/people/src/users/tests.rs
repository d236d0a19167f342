//! Who a caller is, by what servers say and by what a process of his finds.
//!
//! That process is a shell here: what it says is what a real one would.

use super::*;
use crate::fake::{Fake, Told, by, said, taken};
use crate::tickets::reading::{Found, Reading};
use std::process::Command;
use tieline_auth::Guard;

const MACHINE: &str = "host/wn17@EXTENCI.ORG";

/// A token of two bytes, from a ticket that holds an hour.
fn finds_a_ticket() -> Command {
    says(Found::Token { digits: "00ff".to_owned(), seconds: Some(3600) })
}

fn finds_none() -> Command {
    says(Found::Lack(Lack { is_silent: false, why: "run `kinit`".to_owned() }))
}

fn hears_no_kdc() -> Command {
    says(Found::Lack(Lack::silent("no KDC answers")))
}

fn says(found: Found) -> Command {
    let reading = Reading { cache: Some("KCM:".to_owned()), found };
    let text = serde_json::to_string(&reading).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("echo; echo '{text}'")]);
    command
}

/// Of a machine whose word is not taken, whose programs find what `start` does.
fn users(fake: &Arc<Fake>, start: fn() -> Command, shown: Told) -> Users {
    let tickets = Arc::new(Tickets::new(Guard::open(), start));
    fake.show(&tickets, shown);
    Users::judged_by(fake.clone(), (World::local(1).0, fake.cell()), Idmap::same(), tickets)
}

/// Our own uid: who is not root reads no cache of others.
fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

async fn who(users: &Users, stated: Caller) -> Result<Caller, Unknown> {
    users.caller(Asking { process: 0, stated }).await
}

#[tokio::test(start_paused = true)]
async fn a_caller_is_whoever_his_ticket_shows() {
    let fake = Fake::new();
    // Whether the machine's root or a user asks, over a user's connection all show tickets.
    fake.take(0, by("ann@EXTENCI.ORG", taken(5001)));
    let users = users(&fake, finds_a_ticket, taken(5002));
    let first = who(&users, said(own())).await.unwrap();
    assert_eq!(first.uid, Uid(5002));
    assert!(first.shown_proof().is_some() && users.are_personal());
    assert_eq!(who(&users, said(own())).await.unwrap(), first);
    assert_eq!(fake.shows(), 1, "what is known is not shown again at once");
    // Whether a cache that is no file is still what it was, only a reading tells.
    tokio::time::advance(Duration::from_secs(1)).await;
    let again = who(&users, said(own())).await.unwrap();
    assert_eq!((again.uid, fake.shows()), (first.uid, 2));
    let told = users.described(Asking { process: 0, stated: said(own()) }).await.unwrap();
    let served: Served = serde_json::from_str(&told).unwrap();
    assert_eq!((served.uid, served.how.contains("ticket")), (5002, true));
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_is_over_is_shown_again() {
    let fake = Fake::new();
    fake.take(0, by("ann@EXTENCI.ORG", taken(5001)));
    let over = taken(5002).map(|told| ProveReply { seconds: Some(1), ..told });
    let users = users(&fake, finds_a_ticket, over);
    let first = who(&users, said(own())).await.unwrap();
    let second = who(&users, said(own())).await.unwrap();
    assert_eq!((first.uid, second.uid, fake.shows()), (Uid(5002), Uid(5002), 2));
    assert_ne!(first.proof, second.proof, "each is a proof of its own");
}

#[tokio::test(start_paused = true)]
async fn who_lacks_a_ticket_is_whom_servers_take_a_stranger_for() {
    let fake = Fake::new();
    fake.take(0, by("ann@EXTENCI.ORG", taken(5001)));
    fake.take(NOBODY, taken(NOBODY));
    let users = users(&fake, finds_none, taken(5002));
    let caller = who(&users, said(own())).await.unwrap();
    assert_eq!((caller.uid, caller.proof), (Uid(NOBODY), Some(Caller::STRANGER)));
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_hears_what_he_lacked() {
    let fake = Fake::new();
    let why = "strangers are refused".to_owned();
    let refused = Unknown { kind: ErrorKind::PermissionDenied, why };
    fake.take(0, by("ann@EXTENCI.ORG", taken(5001)));
    fake.take(NOBODY, Err(refused));
    let users = users(&fake, finds_none, taken(5002));
    let unknown = who(&users, said(own())).await.unwrap_err();
    assert_eq!(unknown.kind, ErrorKind::PermissionDenied);
    assert_eq!(unknown.why, "run `kinit`; strangers are refused");
}

#[tokio::test(start_paused = true)]
async fn a_kdc_that_is_silent_makes_no_stranger_of_anybody() {
    let fake = Fake::new();
    fake.take(0, by("ann@EXTENCI.ORG", taken(5001)));
    let users = users(&fake, hears_no_kdc, taken(5002));
    for _ in 0..3 {
        let unknown = who(&users, said(own())).await.unwrap_err();
        assert_eq!((unknown.kind, &*unknown.why), (ErrorKind::Unreachable, "no KDC answers"));
    }
    assert_eq!(fake.shows(), 1, "it is not waited for again so soon");
    tokio::time::advance(SILENT).await;
    assert!(who(&users, said(own())).await.is_err());
    assert_eq!(fake.shows(), 2);
}

#[tokio::test(start_paused = true)]
async fn root_of_a_machine_is_whom_the_map_makes_it() {
    let fake = Fake::new();
    fake.take(0, by(MACHINE, taken(NOBODY)));
    let users = users(&fake, finds_none, taken(5002));
    let caller = who(&users, Caller::root()).await.unwrap();
    assert_eq!((caller.uid, caller.proof), (Uid(NOBODY), Some(Caller::MACHINE_ROOT)));
    assert_eq!(fake.shows(), 0, "root is not asked for a ticket");
}

#[tokio::test(start_paused = true)]
async fn who_is_believed_says_who_asks() {
    let fake = Fake::new();
    let believed = taken(0).map(|told| ProveReply { is_believed: true, ..told });
    fake.take(0, by(MACHINE, believed));
    let users = users(&fake, finds_none, taken(5002));
    assert_eq!(who(&users, said(1501)).await.unwrap(), said(1501));
    assert_eq!((fake.shows(), users.are_personal()), (0, false));
    // Nobody may be refused, and hears so before anything is done for him.
    let refused = Unknown { kind: ErrorKind::PermissionDenied, why: "nobody".to_owned() };
    fake.take(NOBODY, Err(refused));
    assert!(who(&users, said(NOBODY)).await.is_err());
}
