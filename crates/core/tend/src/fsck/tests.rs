//! Damage is found, named and repaired, and a sound MDT has none.

use crate::error::decode;
use crate::fixture::*;

use std::time::Duration;
use tieline_format::Record;
use tieline_format::mdt::{Chunk, Entry, Inode, key};
use tieline_kv::Store;
use tieline_types::{
    Content, Digest, Extent, FileId, FileKind, Grant, GrantedId, MdtIndex, ObjectName, OstIndex,
    OstPlace, Place,
};
use tieline_wire::data::ForeignName;
use tieline_wire::ledger::{CheckMdt, Finding, Outcome};

async fn check(house: &House, is_repair: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut job = None;
    loop {
        let received = findings.len() as u64;
        let ask = CheckMdt { job, received, is_repair, reads_bytes: true };
        let reply = house.tender.check(&ask).await.unwrap();
        job = Some(reply.job);
        findings.extend(reply.findings);
        if reply.is_end {
            return findings;
        }
    }
}

fn kinds(findings: &[Finding]) -> Vec<(&str, Outcome)> {
    findings.iter().map(|finding| (finding.what.as_str(), finding.outcome)).collect()
}

async fn edit<R: Record>(house: &House, key: Vec<u8>, change: impl FnOnce(&mut R)) {
    let mut transaction = house.store.begin().await.unwrap();
    let value = transaction.read(std::slice::from_ref(&key)).await.unwrap().remove(0).unwrap();
    let mut record: R = decode(&value, String::new).unwrap();
    change(&mut record);
    transaction.put(key, record.to_bytes());
    transaction.commit().await.unwrap();
}

async fn delete(house: &House, key: Vec<u8>) {
    let mut transaction = house.store.begin().await.unwrap();
    transaction.delete(key);
    transaction.commit().await.unwrap();
}

/// A chunk whose object is there.
fn chunk(house: &House, client: &Client, serial: u64, bytes: &[u8]) -> Extent {
    let extent = client.chunk(serial, 0, bytes.len() as u64);
    house.remover.put(0, id_of(&extent), bytes);
    extent
}

fn id_of(extent: &Extent) -> GrantedId {
    match &extent.content {
        Content::Chunk(chunk) => chunk.chunk.granted().unwrap(),
        other => panic!("{other:?} is no chunk"),
    }
}

async fn some_house() -> (House, Client, FileId, Extent) {
    let house = House::keeping().await;
    let client = house.client().await;
    let d = client.mkdir(ROOT, "d").await;
    let file = client.create(d, "f").await;
    let extent = chunk(&house, &client, 1, b"some bytes");
    client.commit(file, vec![extent.clone(), inline(10, b"more")]).await;
    client.call(link(file, ROOT, "second")).await.unwrap();
    client.mkdir(d, "empty").await;
    let gone = client.create(d, "gone").await;
    client.commit(gone, vec![chunk(&house, &client, 2, b"deleted")]).await;
    client.call(unlink(d, "gone")).await.unwrap();
    (house, client, file, extent)
}

#[tokio::test(start_paused = true)]
async fn a_sound_house_has_no_findings() {
    let (house, ..) = some_house().await;
    assert_eq!(check(&house, false).await, []);
    assert_eq!(check(&house, true).await, []);
}

#[tokio::test(start_paused = true)]
async fn damaged_names_and_counts_are_found_and_repaired() {
    let (house, client, file, extent) = some_house().await;
    let d = client.id(ROOT, "d").await.unwrap();
    let nameless = client.create(ROOT, "nameless").await;
    let ghost = client.create(ROOT, "ghost").await;
    edit::<Inode>(&house, key::inode(d), |d| (d.entries, d.links) = (7, 9)).await;
    edit::<Inode>(&house, key::inode(file), |file| file.stored = 1).await;
    delete(&house, key::entry(ROOT, &name("nameless"))).await;
    delete(&house, key::inode(ghost)).await;
    edit::<Chunk>(&house, key::chunk(id_of(&extent)), |chunk| chunk.references = 5).await;
    let mut found = check(&house, false).await;
    found.sort_by(|a, b| a.what.cmp(&b.what));
    let left = Outcome::Left;
    let expected = [
        ("entry-without-file", left),
        ("name-without-entry", left),
        ("usage", left),
        ("usage", left),
        ("wrong-count", left),
        ("wrong-count", left),
        ("wrong-references", left),
        ("wrong-stored", left),
    ];
    assert_eq!(kinds(&found), expected);
    assert_eq!(found.last().unwrap().path, b"d/f");
    let repaired = check(&house, true).await;
    assert!(repaired.iter().all(|finding| finding.outcome == Outcome::Repaired), "{repaired:?}");
    // Counts that were moved by repairs of the first round are right after the second.
    check(&house, true).await;
    assert_eq!(check(&house, false).await, []);
    let lost = client.id(ROOT, "lost+found").await.unwrap();
    assert_eq!(client.list(lost).await, [format!("#{nameless}")]);
    assert_eq!(client.id(ROOT, "ghost").await, None);
}

#[tokio::test(start_paused = true)]
async fn chunks_that_nobody_can_verify_are_named_where_clients_prove_themselves() {
    let house = House::proven().await;
    let client = house.client().await;
    let file = client.create(ROOT, "f").await;
    let mut verified = chunk(&house, &client, 2, b"others");
    verified.offset = 10;
    if let Content::Chunk(chunk) = &mut verified.content {
        chunk.digest = Some(Digest::of(b"others"));
    }
    client.commit(file, vec![chunk(&house, &client, 1, b"some bytes"), verified]).await;
    let found = check(&house, false).await;
    assert_eq!(kinds(&found), [("unverified-chunk", Outcome::Left)]);
    assert!(found[0].path == b"f" && found[0].detail.contains("bytes 0 to 10"), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn missing_wrong_and_orphan_objects_are_named() {
    let (house, client, file, _) = some_house().await;
    let other = client.create(ROOT, "other").await;
    let extent = chunk(&house, &client, 3, b"0123456789");
    client.commit(other, vec![extent.clone()]).await;
    house.remover.there.lock().unwrap().retain(|(_, chunk), _| chunk.serial != 1);
    house.remover.put(0, id_of(&extent), b"01234");
    let orphan = GrantedId { mdt: MdtIndex(0), grant: Grant(999), serial: 1 };
    house.remover.put(2, orphan, b"x");
    // Not committed yet, and another MDT's: neither is ours to judge.
    house.remover.put(0, client_chunk(&client, 77), b"x");
    house.remover.put(0, GrantedId { mdt: MdtIndex(1), ..orphan }, b"x");
    let mut found = check(&house, false).await;
    found.sort_by(|a, b| a.what.cmp(&b.what));
    let expected = [
        ("missing-chunk", Outcome::Lost),
        ("orphan-object", Outcome::Left),
        ("wrong-chunk", Outcome::Lost),
    ];
    assert_eq!(kinds(&found), expected);
    assert_eq!((found[0].path.as_slice(), found[0].file), (&b"d/f"[..], Some(file)));
    assert_eq!(found[2].path, b"other");
    check(&house, true).await;
    let there = house.remover.there.lock().unwrap();
    assert!(!there.contains_key(&(OstIndex(2), orphan)));
    assert!(there.contains_key(&(OstIndex(0), client_chunk(&client, 77))));
    assert_eq!(there.keys().filter(|(_, chunk)| chunk.mdt == MdtIndex(1)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_opened_is_named_and_ends_nothing() {
    let (house, client, ..) = some_house().await;
    let mut chunks = vec![];
    for serial in 3..30 {
        let file = client.create(ROOT, &format!("f{serial}")).await;
        let extent = chunk(&house, &client, serial, b"0123456789");
        chunks.push(id_of(&extent));
        client.commit(file, vec![extent]).await;
    }
    house.remover.unreadable.lock().unwrap().extend([chunks[0], chunks[1], chunks[20]]);
    house.remover.there.lock().unwrap().remove(&(OstIndex(0), chunks[26]));
    let found = check(&house, false).await;
    let (unreadable, lost) = ("unreadable-chunk", Outcome::Lost);
    let expected =
        [(unreadable, lost), (unreadable, lost), (unreadable, lost), ("missing-chunk", lost)];
    assert_eq!(kinds(&found), expected, "{found:?}");
    let named = [&b"f3"[..], b"f4", b"f23", b"f29"];
    assert_eq!(found.iter().map(|one| one.path.as_slice()).collect::<Vec<_>>(), named);
    let why = format!("chunk {} at OST0000: Is a directory", chunks[0]);
    assert!(found[0].detail.contains(&why), "{found:?}");
    // Many in a row: it is the OST.
    house.remover.unreadable.lock().unwrap().extend(chunks.iter().take(20));
    let found = check(&house, false).await;
    assert_eq!(kinds(&found), [("ost-unreachable", Outcome::Left)], "{found:?}");
    assert!(found[0].detail.contains("16 in a row"), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_object_is_named_and_stays() {
    let (house, ..) = some_house().await;
    let name = |path: &str, kind| ForeignName { path: path.into(), kind };
    let names = vec![
        name("objects/notes", FileKind::Regular),
        name("objects/0000/link", FileKind::Symlink),
        // Another MDT's to tell.
        name("objects/0001/dir", FileKind::Directory),
    ];
    house.remover.foreign.lock().unwrap().insert(OstIndex(1), names);
    for is_repair in [false, true] {
        let found = check(&house, is_repair).await;
        assert_eq!(kinds(&found), [("foreign-object", Outcome::Left); 2], "{found:?}");
        let expected = "objects/notes below the directory of OST0001 is no object (regular)";
        assert!(found[0].detail.starts_with(expected), "{found:?}");
        assert!(found[1].detail.contains("(symlink)"), "{found:?}");
    }
    assert_eq!(house.remover.removed.lock().unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_the_damaged_bytes_of_a_file_are_named() {
    let (house, client, ..) = some_house().await;
    let bytes: Vec<u8> = (0..3 * 4096 + 100).map(|at| (at / 9) as u8).collect();
    let extent = chunk(&house, &client, 3, &bytes);
    let file = client.create(ROOT, "damaged").await;
    client.commit(file, vec![Extent { offset: 8192, ..extent.clone() }]).await;
    let at = (OstIndex(0), id_of(&extent));
    for (byte, told) in [(5000, "bytes 12288 to 16384: chunk"), (12_288, "bytes 20480 to 20580: ")]
    {
        house.remover.damaged.lock().unwrap().insert(at, byte);
        let found = check(&house, false).await;
        assert_eq!(kinds(&found), [("wrong-chunk", Outcome::Lost)]);
        assert!(found[0].detail.starts_with(told), "{found:?}");
    }
    // Whoever has another part of the chunk is not hurt: what is damaged lay where now other bytes
    // are.
    client.commit(file, vec![inline(20_480, &[1; 100])]).await;
    let found = check(&house, false).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path, b"", "{found:?}");
}

fn client_chunk(client: &Client, serial: u64) -> GrantedId {
    GrantedId { mdt: MdtIndex(0), grant: client.grant, serial }
}

/// A chunk of three blocks on OSTs 0 and 1, of which each has damaged another, and the first is
/// known to be bad.
async fn scattered(house: &House, client: &Client) -> GrantedId {
    let bytes: Vec<u8> = (0..3 * 4096).map(|at| (at / 9) as u8).collect();
    let mut extent = chunk(house, client, 3, &bytes);
    let id = id_of(&extent);
    if let Content::Chunk(chunk) = &mut extent.content {
        let place = |ost: u16| OstPlace {
            ost: OstIndex(ost),
            object: ObjectName::Chunk(id),
            offset: 0,
            length: bytes.len() as u64,
            is_stale: false,
        };
        chunk.places = vec![place(0).into(), place(1).into()];
        chunk.digest = Some(Digest::of(&bytes));
    }
    let file = client.create(ROOT, "mirrored").await;
    client.commit(file, vec![extent]).await;
    edit(house, key::chunk(id), |chunk: &mut Chunk| chunk.places[0].is_stale = true).await;
    house.remover.put(1, id, &bytes);
    let both = [(OstIndex(0), id), (OstIndex(1), id)];
    house.remover.damaged.lock().unwrap().extend([(both[0], 5), (both[1], 5000)]);
    house.mender.held.lock().unwrap().extend(both);
    house.mender.bad.lock().unwrap().extend(both);
    house.mender.scattered.lock().unwrap().insert(id);
    id
}

#[tokio::test(start_paused = true)]
async fn a_chunk_whose_blocks_are_good_in_one_copy_or_the_other_is_mended() {
    let (house, client, ..) = some_house().await;
    let id = scattered(&house, &client).await;
    house.mdt.observe(vec![state(0), state(1)]);
    let found = check(&house, false).await;
    assert_eq!(kinds(&found), [("wrong-chunk", Outcome::Left)], "{found:?}");
    assert!(found[0].detail.contains("each block is good"), "{found:?}");
    let found = check(&house, true).await;
    assert_eq!(kinds(&found), [("wrong-chunk", Outcome::Repaired)], "{found:?}");
    let bad = house.mender.bad.lock().unwrap().clone();
    assert_eq!(bad, [(OstIndex(1), id)].into(), "the worker makes it from the other");
    house.mender.bad.lock().unwrap().insert((OstIndex(0), id));
    // The same block in both.
    house.remover.damaged.lock().unwrap().insert((OstIndex(0), id), 5001);
    edit(&house, key::chunk(id), |chunk: &mut Chunk| chunk.places[0].is_stale = true).await;
    edit(&house, key::chunk(id), |chunk: &mut Chunk| chunk.places[1].is_stale = false).await;
    assert_eq!(kinds(&check(&house, true).await), [("wrong-chunk", Outcome::Lost)]);
}

#[tokio::test(start_paused = true)]
async fn one_check_at_a_time_and_an_ost_that_is_away_is_said() {
    let (house, ..) = some_house().await;
    house.remover.down.lock().unwrap().insert(OstIndex(0));
    let begin = CheckMdt { job: None, received: 0, is_repair: false, reads_bytes: false };
    let first = house.tender.check(&begin).await.unwrap();
    let second = house.tender.check(&begin).await;
    assert!(second.is_err() || first.is_end);
    let unknown = CheckMdt { job: Some(first.job ^ 1), ..begin.clone() };
    assert!(house.tender.check(&unknown).await.is_err());
    let mut reply = first;
    while !reply.is_end {
        let ask = CheckMdt { job: Some(reply.job), ..begin.clone() };
        reply = house.tender.check(&ask).await.unwrap();
    }
    assert_eq!(kinds(&reply.findings), [("ost-unreachable", Outcome::Left)]);
}

fn ask(job: Option<u64>, received: u64) -> CheckMdt {
    CheckMdt { job, received, is_repair: false, reads_bytes: false }
}

#[tokio::test(start_paused = true)]
async fn a_check_that_is_given_up_or_forgotten_ends_before_the_next() {
    let (house, client, ..) = some_house().await;
    for number in 10..40 {
        let many = client.create(ROOT, &format!("many{number}")).await;
        client.commit(many, vec![chunk(&house, &client, number, b"some bytes")]).await;
    }
    *house.remover.pace.lock().unwrap() = Duration::from_secs(10);
    // Given up: the next need not wait.
    let first = house.tender.check(&ask(None, 0)).await.unwrap();
    assert!(house.tender.check(&ask(None, 0)).await.is_err(), "one at a time");
    let given_up = house.tender.check(&ask(Some(first.job), CheckMdt::GIVE_UP)).await.unwrap();
    assert_eq!(given_up.job, first.job);
    let second = house.tender.check(&ask(None, 0)).await.unwrap();
    // Forgotten: it ends by itself, and until then it is the only one.
    let looks = || house.remover.looks.load(std::sync::atomic::Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert!(house.tender.check(&ask(None, 0)).await.is_err(), "it is still under way");
    tokio::time::sleep(Duration::from_secs(30)).await;
    let before = looks();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(looks(), before, "nobody asks, and it goes on");
    assert!(house.tender.check(&ask(Some(second.job), 0)).await.is_err());
    assert!(house.tender.check(&ask(None, 0)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn adopted_files_that_are_gone_or_changed_are_named() {
    let (house, client, ..) = some_house().await;
    let (kept, lost) = (Digest::blake3([1; 32]), Digest::blake3([2; 32]));
    for (serial, path, digest) in [(50, "well", kept), (51, "gone", kept), (52, "other", lost)] {
        let file = client.create(ROOT, path).await;
        let mut extent = client.chunk(serial, 0, 8192);
        let Content::Chunk(chunk) = &mut extent.content else { panic!("{extent:?}") };
        let object = ObjectName::External { path: path.into(), size: 8192, mtime_ns: 1 };
        chunk.places = vec![Place { object, ..chunk.places[0].clone() }];
        client.commit(file, vec![extent.clone()]).await;
        edit::<Chunk>(&house, key::chunk(id_of(&extent)), |chunk| chunk.digest = Some(kept)).await;
        if path != "gone" {
            house.mender.adopted.lock().unwrap().insert(path.to_owned(), digest);
        }
    }
    let mut found = check(&house, false).await;
    found.sort_by(|a, b| a.what.cmp(&b.what));
    let expected = [("adopted-changed", Outcome::Lost), ("wrong-chunk", Outcome::Lost)];
    assert_eq!(kinds(&found), expected);
    assert_eq!([&found[0].path, &found[1].path], [b"gone".as_slice(), b"other"]);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_its_file_does_not_know_is_learnt() {
    let (house, client, file, _) = some_house().await;
    let mut transaction = house.store.begin().await.unwrap();
    let entry = Entry { id: file, kind: tieline_types::FileKind::Regular };
    transaction.put(key::entry(ROOT, &name("third")), entry.to_bytes());
    transaction.commit().await.unwrap();
    let found = check(&house, true).await;
    assert!(found.iter().any(|finding| finding.what == "entry-without-name"));
    check(&house, true).await;
    assert_eq!(check(&house, false).await, []);
    assert_eq!(client.stat(file).await.links, 3);
}
