//! Stores that are lost and come back.

use super::log::{Log, LogSettings};
use super::rebuild::{FoundObject, rebuild};
use super::restore::{Asked, Restored, restore};
use super::stream::{Frames, verify};
use super::{Error, Identity, dump};
use crate::fixture::*;
use crate::view::decode;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tieline_format::ledger::{Frame, Sum, preamble};
use tieline_format::mdt::{Inode, Superblock, key};
use tieline_kv::{EmbeddedStore, MemoryStore, Opening, Range, Store};
use tieline_types::{
    ByteSize, ChunkId, FileId, Grant, MdtIndex, OstIndex, Time, Version, XattrName,
};
use tieline_wire::data::ObjectOwner;
use tieline_wire::ledger::DumpMdt;
use tieline_wire::meta::{GetXattr, SetXattr, XattrMode};

mod again;

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn identity() -> Identity {
    Identity { fs: "extenci".parse().unwrap(), mdt: MdtIndex(0) }
}

fn superblock() -> Vec<u8> {
    use tieline_format::Record;
    let (fs, mdt) = (identity().fs, MdtIndex(0));
    Superblock {
        fs,
        mdt,
        file_serial: 5,
        session_serial: 6,
        features: 0,
        boot: 1,
        version_serial: 0,
        inodes: 1,
        restored: None,
    }
    .to_bytes()
}

/// A store with a log, in a directory.
struct Place {
    directory: tempfile::TempDir,
    waits: bool,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), waits: true }
    }

    fn logs(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn open(&self) -> (EmbeddedStore, Arc<Log>) {
        self.try_open().unwrap()
    }

    fn try_open(&self) -> Result<(EmbeddedStore, Arc<Log>), tieline_kv::Error> {
        let settings = LogSettings { directory: self.logs(), waits: self.waits };
        let log = Log::open(identity(), settings, Box::new(Time::default)).unwrap();
        let journal = Some(log.writer());
        let opening = Opening { cache: ByteSize(1 << 20), journal, ..Opening::default() };
        let store = EmbeddedStore::open_with(&self.path(), opening)?;
        Ok((store, log))
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("store.redb")
    }
}

async fn put(store: &dyn Store, pairs: &[(&str, &str)]) -> Version {
    let mut transaction = store.begin().await.unwrap();
    for (name, value) in pairs {
        transaction.put(name.as_bytes().to_vec(), value.as_bytes().to_vec());
    }
    transaction.put(key::superblock(), superblock());
    let committed = transaction.commit().await.unwrap();
    committed.durable.await.unwrap();
    committed.version
}

async fn all(store: &dyn Store) -> Pairs {
    let everything = Range::new(vec![], vec![0xff]);
    let mut pairs: Pairs = store
        .begin()
        .await
        .unwrap()
        .scan(everything, usize::MAX)
        .await
        .unwrap()
        .into_iter()
        .collect();
    // The restored one differs, as it should.
    pairs.remove(&key::superblock());
    pairs
}

fn asked(paths: &[PathBuf]) -> Asked<'_> {
    Asked { paths, up_to_hole: false, log: None, now: Time::default() }
}

async fn restored(paths: &[PathBuf]) -> Result<(MemoryStore, Restored), Error> {
    let store = MemoryStore::new();
    let outcome = restore(&store, &identity(), asked(paths)).await?;
    Ok((store, outcome))
}

async fn up_to_hole(
    store: &dyn Store,
    identity: &Identity,
    paths: &[PathBuf],
) -> Result<Restored, Error> {
    restore(store, identity, Asked { up_to_hole: true, ..asked(paths) }).await
}

#[tokio::test]
async fn a_log_from_the_beginning_is_the_store() {
    let place = Place::new();
    let (store, log) = place.open();
    assert!(!log.wants_dump(), "a new store is logged from its first commit");
    put(&store, &[("a", "1"), ("b", "1")]).await;
    let mut transaction = store.begin().await.unwrap();
    transaction.delete(b"b".to_vec());
    transaction.commit().await.unwrap().durable.await.unwrap();
    drop((store, log));
    let (store, log) = place.open();
    assert!(!log.wants_dump(), "it goes on where it was");
    let last = put(&store, &[("c", "2")]).await;
    let before = all(&store).await;
    let (again, outcome) = restored(&[place.logs()]).await.unwrap();
    assert_eq!(all(&again).await, before);
    assert_eq!((outcome.version, outcome.groups, outcome.dump), (last, 3, None));
    assert!(again.begin().await.unwrap().version() > last);
    let value = again.begin().await.unwrap().read(&[key::superblock()]).await.unwrap().remove(0);
    let superblock: Superblock = decode(&value.unwrap(), String::new).unwrap();
    assert!(superblock.restored.is_some() && superblock.file_serial > 5);
}

#[tokio::test]
async fn an_empty_store_does_not_go_on_with_anothers_log() {
    let place = Place::new();
    let (store, log) = place.open();
    put(&store, &[("a", "1"), ("b", "1")]).await;
    let before = all(&store).await;
    drop((store, log));
    std::fs::remove_file(place.path()).unwrap();
    let refused = place.try_open().err().expect("it is not this store's log");
    let why = chain_of(&refused).join(": ");
    assert!(why.contains("tieline mdt restore"), "{why}");
    // The log is as it was, and brings all back.
    let (again, _) = restored(&[place.logs()]).await.unwrap();
    assert_eq!(all(&again).await, before);
    // Nor does an older copy of the store, from before what was acknowledged since.
    let older = Place::new();
    let (store, log) = older.open();
    put(&store, &[("a", "1")]).await;
    drop((store, log));
    let copy = std::fs::read(older.path()).unwrap();
    let (store, log) = older.open();
    put(&store, &[("b", "1")]).await;
    put(&store, &[("c", "1")]).await;
    drop((store, log));
    std::fs::write(older.path(), copy).unwrap();
    assert!(older.try_open().is_err());
    // Logs of two stores in one directory are not put together.
    let other = Place::new();
    let segment =
        |place: &Place, number| super::directory::segment(&place.logs(), identity().mdt, number);
    std::fs::create_dir(other.logs()).unwrap();
    std::fs::write(segment(&other, 1), "so that it begins with the second").unwrap();
    let (store, log) = other.open();
    put(&store, &[("c", "2")]).await;
    drop((store, log));
    std::fs::copy(segment(&other, 2), segment(&place, 2)).unwrap();
    let refused = restored(&[place.logs()]).await.err();
    assert!(matches!(refused, Some(Error::TwoStores { .. })), "{refused:?}");
    let (again, _) = restored(&[segment(&place, 1)]).await.unwrap();
    assert_eq!(all(&again).await, before);
}

/// Why, and why that.
fn chain_of(error: &dyn std::error::Error) -> Vec<String> {
    let mut chain = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        chain.push(error.to_string());
        next = error.source();
    }
    chain
}

#[tokio::test]
async fn a_store_that_got_a_log_later_begins_with_a_dump() {
    let place = Place::new();
    {
        let store = EmbeddedStore::open(&place.path(), ByteSize(1 << 20)).unwrap();
        put(&store, &[("old", "1")]).await;
    }
    let (store, log) = place.open();
    assert!(log.wants_dump());
    put(&store, &[("new", "1")]).await;
    assert!(matches!(restored(&[place.logs()]).await, Err(Error::NoDump { .. })));
    drop((store, log));
    let (store, log) = place.open();
    assert!(log.wants_dump(), "also after a restart");
    dump::beside_log(&store, &log, true).await.unwrap();
    assert!(!log.wants_dump());
    put(&store, &[("newer", "1")]).await;
    let before = all(&store).await;
    let (again, outcome) = restored(&[place.logs()]).await.unwrap();
    assert_eq!(all(&again).await, before);
    assert!(outcome.dump.is_some());
    assert_eq!(outcome.groups, 1, "what lies before the dump was deleted");
    drop((store, log));
    let (store, log) = place.open();
    assert!(!log.wants_dump(), "the hole is closed");
    // A second dump makes the first superfluous.
    dump::beside_log(&store, &log, true).await.unwrap();
    let dumps = files(&place.logs(), "dump");
    assert_eq!(dumps.len(), 1);
    assert_eq!(all(&restored(&[place.logs()]).await.unwrap().0).await, before);
}

fn files(directory: &Path, end: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|other| other == end));
    files.sort();
    files
}

#[tokio::test]
async fn a_torn_end_is_cut_off_and_damage_elsewhere_is_said() {
    let place = Place::new();
    let (store, log) = place.open();
    put(&store, &[("a", "1")]).await;
    let before = all(&store).await;
    let segment = files(&place.logs(), "log").remove(0);
    let whole = std::fs::read(&segment).unwrap();
    put(&store, &[("b", "1")]).await;
    drop((store, log));
    let longer = std::fs::read(&segment).unwrap();
    for cut in [whole.len() + 1, whole.len() + 8, longer.len() - 1] {
        std::fs::write(&segment, &longer[..cut]).unwrap();
        let (again, outcome) = restored(&[place.logs()]).await.unwrap();
        assert_eq!(all(&again).await, before, "cut at {cut}");
        assert_eq!(outcome.notes.len(), 1);
    }
    let mut damaged = longer.clone();
    damaged[whole.len() - 3] ^= 1;
    std::fs::write(&segment, &damaged).unwrap();
    assert!(matches!(restored(&[place.logs()]).await, Err(Error::Damaged { .. })));
}

#[tokio::test]
async fn what_the_store_never_had_is_not_restored() {
    let place = Place::new();
    let (store, log) = place.open();
    put(&store, &[("a", "1")]).await;
    // An embedded store that is open is two files.
    let files = [place.path(), place.path().with_extension("redb-wal")];
    let before = files.each_ref().map(|file| std::fs::read(file).unwrap());
    put(&store, &[("lost", "1")]).await;
    drop((store, log));
    // The machine lost the store's last commits, not the log's.
    for (file, before) in files.iter().zip(before) {
        std::fs::write(file, before).unwrap();
    }
    let (store, log) = place.open();
    assert!(!log.wants_dump());
    put(&store, &[("b", "1")]).await;
    let now = all(&store).await;
    assert!(!now.contains_key(&b"lost"[..]));
    assert_eq!(all(&restored(&[place.logs()]).await.unwrap().0).await, now);
}

#[tokio::test]
async fn a_hole_is_an_error() {
    let place = Place::new();
    for round in 0..3 {
        let (store, _log) = place.open();
        put(&store, &[("a", &round.to_string())]).await;
    }
    std::fs::remove_file(&files(&place.logs(), "log")[1]).unwrap();
    assert!(matches!(restored(&[place.logs()]).await, Err(Error::Hole { .. })));
    let store = MemoryStore::new();
    let outcome = up_to_hole(&store, &identity(), &[place.logs()]).await;
    assert_eq!(outcome.unwrap().groups, 1);
    assert_eq!(all(&store).await[&b"a"[..]], b"0");
    let used = up_to_hole(&store, &identity(), &[place.logs()]).await;
    assert!(matches!(used, Err(Error::NotEmpty { .. })));
    let other = Identity { mdt: MdtIndex(0), fs: "other".parse().unwrap() };
    let empty = MemoryStore::new();
    let foreign = up_to_hole(&empty, &other, &[place.logs()]).await;
    assert!(matches!(foreign, Err(Error::Foreign { .. })));
}

/// Fetches a dump in parts, as the verb does.
async fn fetch(house: &House, since: Option<Version>) -> Vec<u8> {
    let mut bytes = preamble().to_vec();
    let mut sum = Sum::default();
    let mut cursor = None;
    loop {
        let (reply, frames) = house.mdt.dump(&DumpMdt { cursor, since }).await.unwrap();
        let mut parts = Frames::at_frame(&frames[..], Path::new("part"), 0);
        while let Some((frame, check)) = parts.read().unwrap() {
            sum.add(&frame, check);
        }
        bytes.extend(frames);
        cursor = reply.cursor;
        if cursor.is_none() {
            break;
        }
    }
    bytes.extend(Frame::End(sum.end()).to_bytes());
    bytes
}

#[tokio::test(start_paused = true)]
async fn a_dump_of_a_house_at_work_is_a_house() {
    let house = House::new().await;
    let client = house.client().await;
    for number in 0..700 {
        client.create(ROOT, &format!("f{number}")).await;
    }
    let file = client.id(ROOT, "f7").await.unwrap();
    // `u::rwx,u:11:r--,g::r-x,m::r-x,o::---`
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [(1, 7, none), (2, 4, 11), (4, 5, none), (16, 5, none), (32, 0, none)];
    let entries = entries.map(|(tag, rights, id)| entry(tag, rights, id)).concat();
    let list = [&2u32.to_le_bytes()[..], &entries].concat();
    let lists = [(file, "system.posix_acl_access"), (ROOT, "system.posix_acl_default")];
    for (id, name) in lists {
        let (name, mode) = (XattrName::new(name).unwrap(), XattrMode::Either);
        client.call(SetXattr { id, name, value: list.clone(), mode }).await.unwrap();
    }
    let bytes = fetch(&house, None).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dump");
    std::fs::write(&path, &bytes).unwrap();
    assert!(verify(&path).unwrap().has_end);
    let (store, _) = restored(std::slice::from_ref(&path)).await.unwrap();
    let again = House::with(store).await;
    // The session is in the dump: the client goes on.
    let asker = Client { mdt: again.mdt.clone(), ..client.clone() };
    assert_eq!(asker.id(ROOT, "f7").await, Some(file));
    assert_eq!(asker.list(ROOT).await.len(), 701);
    for (id, name) in lists {
        let name = XattrName::new(name).unwrap();
        assert_eq!(asker.call(GetXattr { id, name }).await.unwrap().value, list);
    }
    let new = asker.create(ROOT, "new").await;
    assert!(new.serial() > file.serial() + 700);
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(verify(&path), Err(Error::Cut { .. })), "a dump must be whole");
    let refused = house.mdt.dump(&DumpMdt { cursor: None, since: Some(Version(0)) }).await;
    assert!(refused.unwrap_err().detail.contains("mdt.log_to"));
}

/// Small writes of many places that became one chunk: it cannot be laid anywhere as one piece.
#[tokio::test]
async fn what_lay_in_many_places_is_not_laid_in_one() {
    let object = |serial, offset, version| FoundObject {
        ost: OstIndex(1),
        chunk: ChunkId { mdt: MdtIndex(0), grant: Grant(3), serial },
        length: 100,
        owner: ObjectOwner {
            file: FileId(10),
            offset,
            version: Version(version),
            path: b"f".to_vec(),
        },
    };
    let found = vec![object(1, 0, 5), object(2, ObjectOwner::SCATTERED, 9)];
    let store = MemoryStore::new();
    let rebuilt = rebuild(&store, &identity(), b"", found, Time::default()).await.unwrap();
    assert_eq!((rebuilt.bytes, rebuilt.superseded, rebuilt.scattered), (100, 0, 1));
    assert!(rebuilt.notes[0].starts_with("f: 1 objects"), "{:?}", rebuilt.notes);
    let client = House::with(store).await.client().await;
    let extents = client.extents(FileId(10)).await;
    assert_eq!(extents.iter().map(|e| (e.offset, e.length)).collect::<Vec<_>>(), [(0, 100)]);
}

#[tokio::test]
async fn objects_alone_give_files_back() {
    let object = |serial, file, offset, length, version, path: &[u8]| FoundObject {
        ost: OstIndex(1),
        chunk: ChunkId { mdt: MdtIndex(0), grant: Grant(3), serial },
        length,
        owner: ObjectOwner {
            file: FileId(file),
            offset,
            version: Version(version),
            path: path.to_vec(),
        },
    };
    let found = vec![
        object(1, 10, 0, 100, 5, b"d/old-name"),
        object(2, 10, 100, 100, 6, b"d/name"),
        object(3, 10, 50, 100, 9, b"d/name"),
        object(4, 11, 0, 10, 7, b"d/name"),
        object(5, 12, 0, 10, 4, b""),
        object(6, 13, 500, 10, 3, b"d/late"),
        object(7, 13, 600, 10, 3, b"d/late"),
    ];
    let store = MemoryStore::new();
    let rebuilt = rebuild(&store, &identity(), b"", found, Time::default()).await.unwrap();
    assert_eq!((rebuilt.files, rebuilt.directories, rebuilt.bytes), (4, 2, 240));
    assert_eq!(rebuilt.notes.len(), 3, "{:?}", rebuilt.notes);
    let gaps = "d/late: bytes 0 to 500, 510 to 600 are in no object";
    assert!(rebuilt.notes.iter().any(|note| note.starts_with(gaps)), "{:?}", rebuilt.notes);
    let house = House::with(store).await;
    let client = house.client().await;
    let d = client.id(ROOT, "d").await.unwrap();
    assert_eq!(client.id(d, "name").await, Some(FileId(10)), "the newer one has the name");
    assert_eq!(client.list(d).await, ["late", "name", "name.~0xb"]);
    let extents: Vec<_> =
        client.extents(FileId(10)).await.iter().map(|e| (e.offset, e.length)).collect();
    assert_eq!(extents, [(0, 50), (50, 100), (150, 50)], "the newer bytes count");
    let stat = client.stat(FileId(10)).await;
    assert_eq!((stat.size, stat.uid.0, stat.mode.bits()), (200, 0, 0o600));
    let lost = client.id(ROOT, "lost+found").await.unwrap();
    assert_eq!(client.list(lost).await.len(), 1);
    // What is new collides with nothing.
    assert!(client.create(d, "new").await.serial() > 13);
    assert!(client.grant.0 > 3);
    let inode = house.dump().await.into_iter().find(|(key, _)| *key == key::inode(FileId(10)));
    let inode: Inode = decode(&inode.unwrap().1, String::new).unwrap();
    assert_eq!(inode.stripe, [OstIndex(1)]);
}
