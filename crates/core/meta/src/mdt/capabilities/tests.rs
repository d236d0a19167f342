//! What is taken back, and by whom.

use crate::fixture::*;
use tieline_types::{Caller, ErrorKind, FileId, Mode, Time};
use tieline_wire::Request;
use tieline_wire::capability::{Capability, GetCapability, Revocation, Scope, SignedCapability};
use tieline_wire::meta::*;

fn ann() -> Caller {
    user(5001, 5001, &[])
}

fn bob() -> Caller {
    user(5002, 5002, &[])
}

/// A file that all may read, for which a client has a capability.
async fn open_to_all(client: &Client, text: &str) -> FileId {
    let id = client.call(create(ROOT, text, 0o644)).await.unwrap().open.attributes.id;
    let given = SetAttributes { uid: Some(ann().uid), gid: Some(ann().gid), ..setattr(id) };
    client.call(given).await.unwrap();
    let (offset, holder) = (None, None);
    let asked = GetCapability { id: Some(id), is_read: true, is_write: false, offset, holder };
    assert!(client.call(asked).await.unwrap().grant.is_some());
    id
}

fn private(id: FileId) -> SetAttributes {
    SetAttributes { mode: Some(Mode::new(0o600)), ..setattr(id) }
}

/// An item that says to be about `named` and changes `changed`.
fn item(caller: &Caller, named: FileId, changed: FileId) -> BatchItem {
    let request: Request = private(changed).into();
    let (op, message) = (request.op().number(), request.encode_message());
    BatchItem { caller: caller.clone(), at: Time::default(), id: named, op, message }
}

fn taken_back(house: &House) -> Vec<FileId> {
    let revoked: Vec<Revocation> = house.mdt.capability_news().revoked;
    revoked.into_iter().filter_map(|one| one.file).collect()
}

/// As its program is read by the kernel that starts it: nobody else gets the bytes.
#[tokio::test(start_paused = true)]
async fn who_may_run_a_program_gets_its_bytes() {
    let house = House::proven().await;
    let client = house.client().await;
    let id = open_to_all(&client, "program").await;
    let other = client.by(&bob());
    let open = |is_read| Open { id, is_read, is_write: false, writes: None };
    let holder = None;
    let bytes =
        GetCapability { id: Some(id), is_read: true, is_write: false, offset: None, holder };
    for (mode, reads, runs) in [(0o711, false, true), (0o700, false, false), (0o744, true, true)] {
        let mode = Some(Mode::new(mode));
        client.call(SetAttributes { mode, ..setattr(id) }).await.unwrap();
        let denied = |may: bool| (!may).then_some(ErrorKind::PermissionDenied);
        assert_eq!(other.kind_of(open(true)).await, denied(reads), "{mode:?}, read");
        assert_eq!(other.kind_of(open(false)).await, denied(runs), "{mode:?}, run");
        assert_eq!(other.kind_of(bytes.clone()).await, denied(reads || runs), "{mode:?}, bytes");
    }
}

/// Whoever may only write opens what he has a handle of, and is not let read by that.
#[tokio::test(start_paused = true)]
async fn an_open_without_rights_gives_none_that_its_caller_lacks() {
    let house = House::proven().await;
    let client = house.client().await;
    let id = open_to_all(&client, "file").await;
    let other = client.by(&bob());
    for (mode, reads) in [(0o722, false), (0o711, true), (0o744, true)] {
        let mode = Some(Mode::new(mode));
        client.call(SetAttributes { mode, ..setattr(id) }).await.unwrap();
        let open = Open { id, is_read: false, is_write: false, writes: None };
        let given = other.call(open).await.unwrap().capability.unwrap();
        let signed: SignedCapability = tieline_wire::decode(&given.signed).unwrap();
        let capability: Capability = tieline_wire::decode(&signed.capability).unwrap();
        let Scope::File { is_read, is_write, .. } = capability.scope else { panic!("{mode:?}") };
        assert_eq!((is_read, is_write), (reads, false), "{mode:?}");
    }
}

/// Else whoever may send batches ends the capabilities of all, as often as he likes.
#[tokio::test(start_paused = true)]
async fn what_is_denied_takes_nothing_back() {
    let house = House::proven().await;
    let client = house.client().await;
    let (hers, other) = (open_to_all(&client, "hers").await, open_to_all(&client, "other").await);
    let thief = house.client().await.by(&bob());
    let reply = thief.call(Batch { items: vec![item(&bob(), hers, hers)] }).await.unwrap();
    let denied = reply.outcomes[0].failure.as_ref().map(|failure| failure.kind);
    assert_eq!(denied, Some(ErrorKind::NotPermitted));
    assert_eq!(taken_back(&house), []);
    // What is changed counts, whatever file the item says to be about.
    let items = vec![item(&bob(), other, other), item(&ann(), other, hers)];
    let reply = client.call(Batch { items }).await.unwrap();
    assert!(reply.outcomes[0].failure.is_some() && reply.outcomes[1].failure.is_none());
    assert_eq!(taken_back(&house), [hers]);
}
