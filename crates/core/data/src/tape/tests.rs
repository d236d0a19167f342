//! Real scripts over stores in memory.

use super::*;
use crate::{Limits, Rights, TargetParts};
use bytes::Bytes;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;
use tieline_blob::MemoryChunks;
use tieline_types::{
    ChunkRef, ClientId, Digest, Grant, GrantedId, Hsm, MdtIndex, ObjectName, OstIndex, OstPlace,
    TapeCopy, Time, Version, checksum,
};
use tieline_wire::data::{
    ObjectOwner, PutChunk, ReadObject, ReadObjectReply, StatObject, StatObjectReply,
};
use tieline_wire::decode;
use tieline_wire::tape::TapeContent;

const OST: OstIndex = OstIndex(1);
const NAME: &str = "000000010000123456780000000000003038";

struct Oss {
    folder: TempDir,
    chunks: Arc<ChunkService>,
    tape: Arc<TapeService>,
    source: Arc<dyn ObjectSource>,
}

struct Own(Arc<ChunkService>);

#[async_trait::async_trait]
impl ObjectSource for Own {
    async fn read(&self, message: ReadObject) -> Result<(ReadObjectReply, Bytes), Failure> {
        let client = ClientId([1; 16]);
        let (body, bulk) = self.0.call(client, message.into(), Bytes::new(), Rights::All).await?;
        Ok((decode(&body).unwrap(), bulk.to_bytes().unwrap()))
    }

    async fn stat(&self, _: StatObject) -> Result<StatObjectReply, Failure> {
        panic!("nobody looks")
    }
}

fn id(serial: u64) -> GrantedId {
    GrantedId { mdt: MdtIndex(0), grant: Grant(5), serial }
}

fn bytes(serial: u64) -> Bytes {
    (0..5000_u64).map(|at| (at * serial / 7) as u8).collect::<Vec<u8>>().into()
}

fn chunk(serial: u64) -> ChunkRef {
    let object = ObjectName::Chunk(id(serial));
    let place = OstPlace { ost: OST, object, offset: 0, length: 5000, is_stale: false };
    ChunkRef {
        chunk: id(serial).into(),
        length: 5000,
        skip: 0,
        places: vec![place.into()],
        digest: Some(Digest::of(&bytes(serial))),
        adler32: None,
        checks: None,
    }
}

impl Oss {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let [scripts, spool] = ["scripts", "spool"].map(|name| folder.path().join(name));
        fs::create_dir(&scripts).unwrap();
        let store = Arc::new(MemoryChunks::new(1 << 20));
        let parts = TargetParts { store, limits: Limits::default(), adopted: None };
        let chunks = ChunkService::new([(OST, parts)].into_iter().collect(), 1);
        let scripts = Scripts::new(Some(scripts), spool);
        let tape = TapeService::new(chunks.clone(), scripts).unwrap();
        let source = Arc::new(Own(chunks.clone()));
        Self { folder, chunks, tape, source }
    }

    /// A script that keeps files in a folder.
    fn hsm(&self, before: &str) -> Hsm {
        let path = self.folder.path().join("scripts/tape");
        let body = format!(
            "#!/bin/sh\n{before}\nT={}\nfor a; do case $a in -uri=*) u=${{a##*/}};; esac; done\n\
             case $1 in put) cp $3 $T/$2 && echo dir://t/$2;; get) cp $T/$u $3;; \
             remove) rm $T/$u;; esac\n",
            self.folder.path().display()
        );
        fs::write(&path, body).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Hsm::new(path.to_str().unwrap().to_owned(), "dir".to_owned())
    }

    async fn put(&self, serial: u64) {
        let (bytes, file) = (bytes(serial), FileId(9));
        let owner = ObjectOwner { file, offset: 0, version: Version(1), path: vec![] };
        let checks = checksum::block_checks(&bytes);
        let (chunk, client) = (id(serial), ClientId([1; 16]));
        let message = PutChunk { ost: OST, chunk, owner, checks, capability: None, room: None };
        self.chunks.call(client, message.into(), bytes, Rights::All).await.unwrap();
    }

    async fn ask(&self, job: u64, work: Option<TapeWork>) -> DriveState {
        let (ost, file) = (OST, FileId(9));
        let message = DriveTape { ost, job, file, work, ends: None, capability: None };
        self.tape.drive(message, &self.source).await.unwrap().state
    }

    async fn run(&self, job: u64, work: TapeWork) -> DriveState {
        let mut state = self.ask(job, Some(work)).await;
        while matches!(state, DriveState::Gathering(_) | DriveState::Waiting | DriveState::Running)
        {
            state = self.ask(job, None).await;
        }
        state
    }

    fn spooled(&self) -> usize {
        fs::read_dir(self.folder.path().join("spool")).unwrap().count()
    }
}

fn work(hsm: Hsm, deed: TapeDeed, parts: Vec<TapePart>) -> TapeWork {
    let (total, storage_info) = (parts.len() as u64, "size=1;".to_owned());
    TapeWork { hsm, storage_info, deed, parts, before: 0, total }
}

fn part(offset: u64, length: u64, content: TapeContent) -> TapePart {
    TapePart { offset, length, content }
}

/// A file of inline bytes, a hole, a chunk and half of another.
fn put_work(hsm: Hsm) -> (TapeWork, Vec<u8>) {
    let half = ChunkRef { skip: 2500, ..chunk(2) };
    let parts = vec![
        part(0, 3, TapeContent::Inline(b"abc".to_vec())),
        part(100, 5000, TapeContent::Chunk(chunk(1))),
        part(5100, 2500, TapeContent::Chunk(half)),
    ];
    let mut all = vec![0; 8000];
    all[..3].copy_from_slice(b"abc");
    all[100..5100].copy_from_slice(&bytes(1));
    all[5100..7600].copy_from_slice(&bytes(2)[2500..]);
    let deed = TapeDeed::Put { name: NAME.to_owned(), size: 8000 };
    (work(hsm, deed, parts), all)
}

#[tokio::test]
async fn a_file_is_put_whole_and_comes_back_as_chunks() {
    let oss = Oss::new();
    oss.put(1).await;
    oss.put(2).await;
    let (work_put, all) = put_work(oss.hsm(""));
    let state = oss.run(1, work_put).await;
    let DriveState::Put { uris, digest, adler32 } = state else { panic!("{state:?}") };
    assert_eq!(uris, [format!("dir://t/{NAME}")]);
    assert_eq!(digest, Digest::of(&all));
    assert_eq!(fs::read(oss.folder.path().join(NAME)).unwrap(), all);
    let copy = TapeCopy {
        uris,
        pool: "uf".parse().unwrap(),
        size: 8000,
        digest,
        adler32,
        at: Time::default(),
    };
    oss.chunks.target(OST).unwrap().delete(&[id(1)]).await.unwrap();
    let back = || vec![part(100, 5000, TapeContent::To(chunk(1), OST))];
    let get = |copy: &TapeCopy| TapeDeed::Get { name: NAME.to_owned(), copy: copy.clone() };
    assert_eq!(oss.run(2, work(oss.hsm(""), get(&copy), back())).await, DriveState::Done);
    let read = oss.chunks.target(OST).unwrap().read(id(1), 0, 5000).await.unwrap();
    assert_eq!(read.bulk.to_bytes().unwrap()[..5000], bytes(1));
    assert_eq!(oss.spooled(), 0);
    // Damage, wherever it is, is found before anything is stored.
    oss.chunks.target(OST).unwrap().delete(&[id(1)]).await.unwrap();
    fs::write(oss.folder.path().join(NAME), &all[..7999]).unwrap();
    let state = oss.run(3, work(oss.hsm(""), get(&copy), back())).await;
    let DriveState::Failed { kind, detail, is_final } = state else { panic!("{state:?}") };
    assert_eq!((kind, is_final), (ErrorKind::Corrupt, true));
    assert!(detail.contains(&copy.uris[0]) && detail.contains("7999 bytes"), "{detail}");
    let mut odd = all.clone();
    odd[7999] = 1;
    fs::write(oss.folder.path().join(NAME), &odd).unwrap();
    let state = oss.run(4, work(oss.hsm(""), get(&copy), back())).await;
    assert!(matches!(state, DriveState::Failed { kind: ErrorKind::Corrupt, .. }), "{state:?}");
    assert!(oss.chunks.target(OST).unwrap().stat(id(1)).await.is_err());
    let remove = TapeDeed::Remove(copy.uris);
    assert_eq!(oss.run(5, work(oss.hsm(""), remove, vec![])).await, DriveState::Done);
    assert!(!oss.folder.path().join(NAME).exists());
    assert_eq!(oss.spooled(), 0);
}

#[tokio::test]
async fn what_a_script_says_is_told_on() {
    let oss = Oss::new();
    oss.put(1).await;
    oss.put(2).await;
    let (failing, _) = put_work(oss.hsm("echo jammed >&2; exit 43"));
    let state = oss.run(1, failing).await;
    let DriveState::Failed { detail, is_final, .. } = state else { panic!("{state:?}") };
    assert!(!is_final && detail.ends_with("43 (disk write error): jammed"), "{detail}");
    let (silent, _) = put_work(oss.hsm("exit 0"));
    let state = oss.run(2, silent).await;
    let DriveState::Failed { detail, .. } = state else { panic!("{state:?}") };
    assert!(detail.contains("printed no URI"), "{detail}");
    assert_eq!(oss.spooled(), 0);
}

#[tokio::test]
async fn pages_count_once_and_nobody_hands_over_more_than_was_announced() {
    let oss = Oss::new();
    oss.put(1).await;
    oss.put(2).await;
    let (whole, _) = put_work(oss.hsm(""));
    let page = |range: std::ops::Range<usize>| TapeWork {
        before: range.start as u64,
        parts: whole.parts[range].to_vec(),
        ..whole.clone()
    };
    assert_eq!(oss.ask(1, None).await, DriveState::Unknown);
    assert_eq!(oss.ask(1, Some(page(0..2))).await, DriveState::Gathering(2));
    assert_eq!(oss.ask(1, Some(page(0..2))).await, DriveState::Gathering(2));
    let backwards = TapeWork { before: 2, parts: whole.parts[..1].to_vec(), ..whole.clone() };
    let (ost, file, job) = (OST, FileId(9), 1);
    let wrong = DriveTape { ost, job, file, work: Some(backwards), ends: None, capability: None };
    let refused = oss.tape.drive(wrong, &oss.source).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    let state = oss.run(1, page(2..3)).await;
    assert!(matches!(state, DriveState::Put { .. }), "{state:?}");
    let other = DriveTape { ost, job, file: FileId(8), work: None, ends: None, capability: None };
    let other = oss.tape.drive(other, &oss.source).await.unwrap();
    assert_eq!(other.state, DriveState::Unknown, "it is another file's");
}

/// The MDS was started again and asks anew: the script of before does not go on beside the next.
#[tokio::test]
async fn one_script_at_a_time_has_a_file() {
    let oss = Oss::new();
    let mark = oss.folder.path().join("mark");
    let slow = oss.hsm(&format!("sleep 1; echo $$ >> {}; sleep 5", mark.display()));
    let remove = || TapeDeed::Remove(vec!["dir://t/x".to_owned()]);
    oss.ask(1, Some(work(slow.clone(), remove(), vec![]))).await;
    oss.ask(1, None).await;
    oss.ask(2, Some(work(slow, remove(), vec![]))).await;
    oss.ask(2, None).await;
    assert_eq!(oss.ask(1, None).await, DriveState::Unknown);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let marks = fs::read_to_string(&mark).unwrap_or_default();
    assert_eq!(marks.lines().count(), 1, "{marks}");
    oss.tape.stop();
    assert_eq!(oss.ask(2, None).await, DriveState::Unknown);
}

/// Who may write in it chooses what a script writes through; a link would have others' files
/// deleted.
#[test]
fn a_spool_that_is_not_the_servers_own_is_not_used() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("home")).unwrap();
    fs::write(at("home/thesis"), "all of it").unwrap();
    std::os::unix::fs::symlink(at("home"), at("link")).unwrap();
    fs::create_dir(at("shared")).unwrap();
    fs::set_permissions(at("shared"), fs::Permissions::from_mode(0o777)).unwrap();
    let chunks = ChunkService::new(BTreeMap::new(), 1);
    let start = |name: &str| {
        let made = TapeService::new(chunks.clone(), Scripts::new(None, at(name)));
        made.map(drop).map_err(|error| error.to_string())
    };
    for name in ["link", "shared"] {
        let why = start(name).unwrap_err();
        assert!(why.contains(name) && why.contains("hsm.spool"), "{why}");
    }
    assert_eq!(fs::read(at("home/thesis")).unwrap(), b"all of it");
    start("new").unwrap();
    assert_eq!(fs::metadata(at("new")).unwrap().permissions().mode() & 0o777, 0o700);
    start("new").unwrap();
}
