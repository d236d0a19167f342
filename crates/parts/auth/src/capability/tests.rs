//! Capabilities that are forged, old, somebody else's, for something else, or taken back.

use super::*;
use std::sync::atomic::{AtomicU8, Ordering};
use tieline_types::{FileId, Grant, GrantedId, MdtIndex, ObjectName, SessionId};
use tieline_wire::capability::{FileRun, Scope, SignedCapability};
use tokio::time::{Instant, advance};

const MDT: MdtIndex = MdtIndex(0);
const SESSION: SessionId = SessionId(7);
const ANN: Holder = Holder([1; 16]);
const BOB: Holder = Holder([2; 16]);
const FILE: FileId = FileId(42);
const NOW: u64 = 1_700_000_000_000;

struct Bench {
    issuer: Issuer,
    checker: Checker,
    born: Instant,
}

fn issuer() -> Issuer {
    let turn = AtomicU8::new(1);
    let dice = move |bytes: &mut [u8]| bytes.fill(turn.fetch_add(1, Ordering::Relaxed));
    Issuer::new(MDT, LIFE_MAX, Box::new(dice))
}

fn bench() -> Bench {
    let bench = Bench { issuer: issuer(), checker: Checker::default(), born: Instant::now() };
    bench.tell();
    bench
}

impl Bench {
    fn now(&self) -> u64 {
        NOW + self.born.elapsed().as_millis() as u64
    }

    fn tell(&self) {
        self.checker.learn(MDT, &self.issuer.news(self.now()), Instant::now());
    }

    fn issue(&self, scope: Scope) -> Vec<u8> {
        let serial = self.issuer.serial(scope.file());
        self.issuer.issue(serial, self.now(), (SESSION, ANN), scope).signed
    }

    fn read(&self, shown: &[u8], holder: Holder, of: FileId) -> Result<(), Refused> {
        let object = ObjectName::Chunk(chunk(99, 1));
        let admitted = self.checker.admit(Some(shown), holder)?;
        admitted.allows(Wish::Read { object: &object, file: Some(of) })
    }
}

fn chunk(grant: u64, serial: u64) -> GrantedId {
    GrantedId { mdt: MDT, grant: Grant(grant), serial }
}

fn file(is_write: bool, objects: Vec<ObjectName>) -> Scope {
    Scope::File { file: FILE, is_read: true, is_write, objects }
}

#[tokio::test(start_paused = true)]
async fn a_capability_is_for_its_file_its_holder_and_its_rights() {
    let bench = bench();
    let shown = bench.issue(file(false, vec![]));
    assert_eq!(bench.read(&shown, ANN, FILE), Ok(()));
    assert_eq!(bench.read(&shown, BOB, FILE), Err(Refused::Foreign));
    assert_eq!(bench.read(&shown, ANN, FileId(43)), Err(Refused::OtherFile));
    let admitted = bench.checker.admit(Some(&shown), ANN).unwrap();
    let put = |grant, file| Wish::Put { chunk: chunk(grant, 1), file };
    assert!(matches!(admitted.allows(put(7, FILE)), Err(Refused::NotGranted(_))));
    let shown = bench.issue(file(true, vec![]));
    let admitted = bench.checker.admit(Some(&shown), ANN).unwrap();
    assert_eq!(admitted.allows(put(7, FILE)), Ok(()));
    assert!(matches!(admitted.allows(put(8, FILE)), Err(Refused::NotGranted(_))));
    assert_eq!(admitted.allows(put(7, FileId(43))), Err(Refused::OtherFile));
    assert_eq!(admitted.allows(Wish::Sync { file: FileId(43) }), Err(Refused::OtherFile));
    assert_eq!(bench.checker.admit(None, ANN).unwrap_err(), Refused::Missing);
}

#[tokio::test(start_paused = true)]
async fn objects_of_others_are_read_only_if_they_are_named() {
    let bench = bench();
    let adopted = |path: &str| ObjectName::External { path: path.into(), size: 5, mtime_ns: 1 };
    let shared = ObjectName::Chunk(chunk(9, 9));
    let shown = bench.issue(file(false, vec![adopted("a/b"), shared.clone()]));
    let admitted = bench.checker.admit(Some(&shown), ANN).unwrap();
    let read = |object: &ObjectName, of| admitted.allows(Wish::Read { object, file: of });
    assert_eq!(read(&adopted("a/b"), None), Ok(()));
    assert_eq!(read(&shared, Some(FileId(77))), Ok(()));
    for path in ["a/../a/b", "/etc/shadow", "a/c"] {
        assert_eq!(read(&adopted(path), None), Err(Refused::OtherFile), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_mds_signs_for_no_file_of_another() {
    let bench = bench();
    let there = MdtIndex(1);
    let theirs = FileId::new(there, 42);
    let scope = Scope::File { file: theirs, is_read: true, is_write: true, objects: vec![] };
    assert_eq!(bench.read(&bench.issue(scope), ANN, theirs), Err(Refused::OtherFile));
    // Nor for their chunks, beside a file of its own.
    let object = ObjectName::Chunk(GrantedId { mdt: there, grant: Grant(9), serial: 9 });
    let shown = bench.issue(file(false, vec![object.clone()]));
    let admitted = bench.checker.admit(Some(&shown), ANN).unwrap();
    let wish = Wish::Read { object: &object, file: Some(theirs) };
    assert_eq!(admitted.allows(wish), Err(Refused::OtherFile));
}

#[tokio::test(start_paused = true)]
async fn what_a_session_writes_itself_needs_no_word_of_the_mds_per_file() {
    let bench = bench();
    let shown = bench.issue(Scope::Own { runs: vec![FileRun { first: 100, count: 10 }] });
    let admitted = bench.checker.admit(Some(&shown), ANN).unwrap();
    let put = |grant, serial| {
        let file = FileId::new(MDT, serial);
        admitted.allows(Wish::Put { chunk: chunk(grant, 1), file })
    };
    assert_eq!(put(7, 100), Ok(()));
    assert_eq!(put(7, 109), Ok(()));
    assert_eq!(put(7, 110), Err(Refused::OtherFile));
    assert_eq!(put(7, 99), Err(Refused::OtherFile));
    assert!(matches!(put(8, 100), Err(Refused::NotGranted(_))));
    let (own, other) = (ObjectName::Chunk(chunk(7, 3)), ObjectName::Chunk(chunk(8, 3)));
    assert_eq!(admitted.allows(Wish::Read { object: &own, file: None }), Ok(()));
    let other = Wish::Read { object: &other, file: Some(FileId::new(MDT, 100)) };
    assert_eq!(admitted.allows(other), Err(Refused::OtherFile));
}

#[tokio::test(start_paused = true)]
async fn no_changed_bit_and_no_other_key_is_taken() {
    let bench = bench();
    let shown = bench.issue(file(false, vec![]));
    for at in 0..shown.len() {
        let mut changed = shown.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(bench.read(&changed, ANN, FILE).is_err(), "byte {at}");
    }
    // The holder may not make a right to write of one to read.
    let signed: SignedCapability = tieline_wire::decode(&shown).unwrap();
    let mut capability: tieline_wire::capability::Capability =
        tieline_wire::decode(&signed.capability).unwrap();
    capability.scope = file(true, vec![]);
    let capability = tieline_wire::encode(&capability);
    let forged = tieline_wire::encode(&SignedCapability { capability, ..signed });
    assert_eq!(bench.read(&forged, ANN, FILE), Err(Refused::Forged));
    let other = issuer();
    let strange = Issuer::new(MDT, LIFE_MAX, Box::new(|bytes| bytes.fill(200)));
    for (issuer, is_known) in [(&other, true), (&strange, false)] {
        let serial = issuer.serial(Some(FILE));
        let grant = issuer.issue(serial, NOW, (SESSION, ANN), file(false, vec![]));
        // The first was born with the same dice: it is the same key.
        assert_eq!(bench.read(&grant.signed, ANN, FILE).is_ok(), is_known);
        assert_eq!(bench.checker.lacks(&grant.signed), (!is_known).then_some(MDT));
    }
    assert_eq!(bench.read(b"", ANN, FILE), Err(Refused::Malformed));
}

#[tokio::test(start_paused = true)]
async fn a_capability_ends_by_the_clock_of_its_mds() {
    let bench = bench();
    let shown = bench.issue(file(false, vec![]));
    advance(LIFE_MAX - Duration::from_secs(1)).await;
    assert_eq!(bench.read(&shown, ANN, FILE), Ok(()));
    advance(Duration::from_secs(1)).await;
    assert_eq!(bench.read(&shown, ANN, FILE), Err(Refused::Expired));
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_back_holds_no_more_and_what_comes_after_does() {
    let bench = bench();
    let (first, of_other) = (bench.issue(file(false, vec![])), bench.issue(other_file()));
    // Rights were looked at before they changed.
    let late = bench.issuer.serial(Some(FILE));
    bench.issuer.revoke_file(FILE);
    let late = bench.issuer.issue(late, NOW, (SESSION, ANN), file(false, vec![])).signed;
    let after = bench.issue(file(false, vec![]));
    assert_eq!(bench.read(&first, ANN, FILE), Ok(()), "nobody has told yet");
    bench.tell();
    assert_eq!(bench.read(&first, ANN, FILE), Err(Refused::Revoked));
    assert_eq!(bench.read(&late, ANN, FILE), Err(Refused::Revoked));
    assert_eq!(bench.read(&after, ANN, FILE), Ok(()));
    assert_eq!(bench.read(&of_other, ANN, FileId(43)), Ok(()));
    bench.issuer.revoke_session(SESSION);
    bench.tell();
    assert_eq!(bench.read(&after, ANN, FILE), Err(Refused::Revoked));
    assert_eq!(bench.read(&of_other, ANN, FileId(43)), Err(Refused::Revoked));
}

#[tokio::test(start_paused = true)]
async fn one_for_several_files_is_for_each_until_that_is_taken_back() {
    let bench = bench();
    let files = [FILE, FileId(FILE.0 + 1), FileId(FILE.0 + 2)];
    let runs = vec![FileRun { first: FILE.serial(), count: 3 }];
    let serial = bench.issuer.serial_of_many(files);
    let scope = Scope::Files { runs };
    let shown = bench.issuer.issue(serial, NOW, (SESSION, ANN), scope).signed;
    assert_eq!(bench.read(&shown, ANN, FileId(FILE.0 + 3)), Err(Refused::OtherFile));
    assert!(bench.read(&shown, Holder([9; 16]), FILE).is_err());
    for file in files {
        assert_eq!(bench.read(&shown, ANN, file), Ok(()));
    }
    let admitted = bench.checker.admit(Some(&shown), ANN).unwrap();
    let put = Wish::Put { chunk: chunk(SESSION.0, 1), file: FILE };
    assert!(matches!(admitted.allows(put), Err(Refused::NotGranted(_))));
    let object = ObjectName::Chunk(chunk(99, 1));
    let nobodys = admitted.allows(Wish::Read { object: &object, file: None });
    assert_eq!(nobodys, Err(Refused::OtherFile));
    bench.issuer.revoke_file(files[1]);
    bench.tell();
    assert_eq!(bench.read(&shown, ANN, files[1]), Err(Refused::Revoked));
    assert_eq!(bench.read(&shown, ANN, files[2]), Ok(()));
}

fn other_file() -> Scope {
    Scope::File { file: FileId(43), is_read: true, is_write: false, objects: vec![] }
}

#[tokio::test(start_paused = true)]
async fn files_without_capabilities_cost_nothing_and_too_many_end_the_keys() {
    let bench = bench();
    bench.issuer.revoke_file(FILE);
    assert!(bench.issuer.news(NOW).revoked.is_empty());
    let shown = bench.issue(file(false, vec![]));
    for serial in 0..2000 {
        let file = FileId(1000 + serial);
        bench.issuer.serial(Some(file));
        bench.issuer.revoke_file(file);
    }
    assert!(bench.issuer.news(NOW).revoked.len() <= 1024);
    bench.tell();
    let ended = bench.read(&shown, ANN, FILE);
    assert!(matches!(ended, Err(Refused::UnknownKey { .. })), "{ended:?}");
    assert_eq!(bench.read(&bench.issue(file(false, vec![])), ANN, FILE), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn one_file_that_is_taken_back_again_and_again_ends_nobody_elses() {
    let bench = bench();
    let others = bench.issue(other_file());
    for _ in 0..2000 {
        let shown = bench.issue(file(false, vec![]));
        bench.issuer.serial(Some(FILE));
        bench.issuer.revoke_file(FILE);
        bench.tell();
        assert_eq!(bench.read(&shown, ANN, FILE), Err(Refused::Revoked));
    }
    assert_eq!(bench.issuer.news(NOW).revoked.len(), 1);
    assert_eq!(bench.read(&others, ANN, FileId(43)), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn keys_change_and_two_hold_at_once() {
    let bench = bench();
    let first = bench.issuer.news(bench.now()).keys;
    advance(Duration::from_secs(3600)).await;
    bench.tell();
    let both = bench.issuer.news(bench.now()).keys;
    assert_eq!((both.len(), &both[0]), (2, &first[0]));
    let old = bench.issue(file(false, vec![]));
    advance(Duration::from_secs(31)).await;
    // Nobody told again: the OSS knows the new key already.
    let new = bench.issue(file(false, vec![]));
    assert_eq!(bench.read(&new, ANN, FILE), Ok(()));
    assert_eq!(bench.read(&old, ANN, FILE), Ok(()));
    advance(LIFE_MAX + Duration::from_secs(30)).await;
    let last = bench.issuer.news(bench.now()).keys;
    assert_eq!(last, both[1..]);
}

#[test]
fn a_holder_is_a_client_and_a_principal() {
    let of = |client: u8, principal| holder_of(tieline_types::ClientId([client; 16]), principal);
    assert_eq!(of(1, None), None);
    assert_eq!(of(1, Some("ann@X")), of(1, Some("ann@X")));
    assert_ne!(of(1, Some("ann@X")), of(2, Some("ann@X")));
    assert_ne!(of(1, Some("ann@X")), of(1, Some("bob@X")));
}

#[tokio::test(start_paused = true)]
async fn who_acts_for_another_reads_what_he_may_and_not_what_the_session_wrote() {
    let bench = bench();
    let adopted = ObjectName::External { path: "a/b".into(), size: 1, mtime_ns: 0 };
    let objects = vec![adopted.clone()];
    let of = |is_read, is_write| Scope::Delegated {
        file: FILE,
        is_read,
        is_write,
        objects: objects.clone(),
    };
    let own = ObjectName::Chunk(chunk(SESSION.0, 1));
    let read = |shown: &[u8], object: &ObjectName, file| {
        let admitted = bench.checker.admit(Some(shown), ANN).unwrap();
        admitted.allows(Wish::Read { object, file })
    };
    let put = |shown: &[u8], file| {
        let admitted = bench.checker.admit(Some(shown), ANN).unwrap();
        admitted.allows(Wish::Put { chunk: chunk(SESSION.0, 2), file })
    };
    let (reading, writing) = (bench.issue(of(true, false)), bench.issue(of(false, true)));
    assert_eq!(read(&reading, &own, Some(FILE)), Ok(()));
    assert_eq!(read(&reading, &adopted, None), Ok(()));
    // Another user's, over the same session.
    assert_eq!(read(&reading, &own, Some(FileId(43))), Err(Refused::OtherFile));
    assert!(matches!(read(&writing, &own, Some(FILE)), Err(Refused::NotGranted(_))));
    assert!(matches!(put(&reading, FILE), Err(Refused::NotGranted(_))));
    assert_eq!(put(&writing, FILE), Ok(()));
    assert_eq!(put(&writing, FileId(43)), Err(Refused::OtherFile));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_given_for_less_ends_sooner() {
    let bench = bench();
    let serial = bench.issuer.serial(Some(FILE));
    let (life, whose) = (std::time::Duration::from_secs(7), (SESSION, ANN));
    let scope = file(false, vec![]).delegated();
    let given = bench.issuer.issue_for(life, serial, bench.now(), whose, scope);
    assert_eq!(given.life_ms, 7000);
    assert_eq!(bench.read(&given.signed, ANN, FILE), Ok(()));
    advance(life).await;
    assert_eq!(bench.read(&given.signed, ANN, FILE), Err(Refused::Expired));
    let longer = bench.issuer.issue_for(2 * LIFE_MAX, serial, 0, whose, file(false, vec![]));
    assert_eq!(u128::from(longer.life_ms), LIFE_MAX.as_millis());
}
