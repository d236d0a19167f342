//! Files put together from chunks of two OSTs, and what an earlier start of an MDS says.

use super::*;
use crate::copies::ObjectSource;
use bytes::Bytes;
use tieline_types::checksum;
use tieline_types::{
    ChunkId, ChunkRef, Content, Digest, Extent, Gid, Grant, GrantedId, Mode, ObjectName, OstPlace,
    Place, Time, Uid, Version,
};
use tieline_wire::data::{ReadObject, ReadObjectReply, StatObject, StatObjectReply};
use tieline_wire::exposed::{Dress, StageFile};

/// Chunks whose bytes are their serial, over and over; one is damaged.
struct Chunks;

const LENGTH: u64 = 10_000;
const DAMAGED: u64 = 9;

fn bytes_of(serial: u64) -> Vec<u8> {
    vec![serial as u8; LENGTH as usize]
}

#[async_trait::async_trait]
impl ObjectSource for Chunks {
    async fn read(&self, message: ReadObject) -> Result<(ReadObjectReply, Bytes), Failure> {
        let ObjectName::Chunk(chunk) = message.object else { panic!("chunks only") };
        let whole = bytes_of(chunk.serial);
        let checks = checksum::block_checks(&whole);
        let mut bytes = whole.clone();
        if chunk.serial == DAMAGED && message.ost == OstIndex(0) {
            bytes[5000] ^= 1;
        }
        let reply = ReadObjectReply { offset: 0, checks, object_length: LENGTH, proof: None };
        Ok((reply, bytes.into()))
    }

    async fn stat(&self, _: StatObject) -> Result<StatObjectReply, Failure> {
        Err(Failure::new(ErrorKind::Gone, "no object"))
    }
}

struct Same;

#[async_trait::async_trait]
impl Owners for Same {
    async fn local(&self, uid: Uid, gid: Gid) -> (Option<u32>, Option<u32>) {
        (Some(uid.0), Some(gid.0))
    }

    fn may_give(&self) -> bool {
        false
    }
}

fn extent(offset: u64, serial: u64, (skip, length): (u64, u64), osts: &[u16]) -> Extent {
    let chunk = GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial };
    let place = |&ost: &u16| {
        let object = ObjectName::Chunk(chunk);
        let ost = OstIndex(ost);
        Place::from(OstPlace { ost, object, offset: 0, length: LENGTH, is_stale: false })
    };
    let chunk = ChunkRef {
        chunk: ChunkId::Granted(chunk),
        length: LENGTH,
        skip,
        places: osts.iter().map(place).collect(),
        digest: Some(Digest::of(&bytes_of(serial))),
        adler32: None,
        checks: None,
    };
    Extent { offset, length, content: Content::Chunk(chunk) }
}

fn page(extents: Vec<Extent>, size: u64) -> StageFile {
    StageFile {
        ost: OstIndex(0),
        pool: "uf".parse().unwrap(),
        file: FileId(7),
        content: Version(3),
        size,
        extents,
        is_first: true,
        is_last: true,
        capability: None,
    }
}

fn arranged(boot: u64, content: u64) -> ArrangeExposed {
    let dress = Dress {
        uid: Uid(0),
        gid: Gid(0),
        mode: Mode::new(0o644),
        mtime: Time::default(),
        is_directory: false,
    };
    let path = vec!["file".parse().unwrap()];
    let place = Step::Place { path, file: FileId(7), content: Version(content), dress };
    ArrangeExposed {
        ost: OstIndex(0),
        pool: "uf".parse().unwrap(),
        mdt: MdtIndex(0),
        boot,
        is_marked: false,
        steps: vec![place],
    }
}

#[tokio::test]
async fn a_file_of_parts_of_chunks_is_put_together_whole_and_verified() {
    let folder = tempfile::tempdir().unwrap();
    let at = ExposedAt { directory: folder.path().into(), owner: "extenci.uf".to_owned() };
    let service = ChunkService::new(BTreeMap::new(), 1);
    // Two parts of one chunk, a hole, a chunk of which the first copy is damaged, bytes inline.
    let inline = Content::Inline(b"end".to_vec());
    let extents = vec![
        extent(0, 1, (100, 50), &[0]),
        extent(50, 1, (0, 20), &[0]),
        extent(100, DAMAGED, (0, LENGTH), &[0, 2]),
        Extent { offset: 100 + LENGTH, length: 3, content: inline },
    ];
    let size = 103 + LENGTH;
    service.stage(page(extents.clone(), size), at.clone(), &Chunks).await.unwrap();
    let placed = |boot, content| service.arrange(arranged(boot, content), at.clone(), &Same);
    // Bytes of another version are not there.
    assert_eq!(placed(2, 4).await.unwrap().outcomes, [StepOutcome::Missing]);
    service.stage(page(extents, size), at.clone(), &Chunks).await.unwrap();
    assert_eq!(placed(2, 3).await.unwrap().outcomes, [StepOutcome::Done]);
    let mut wanted = [vec![1; 70], vec![0; 30]].concat();
    wanted.extend(bytes_of(DAMAGED));
    wanted.extend(b"end");
    assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), wanted);
    // What an earlier start of the MDS said comes late.
    let late = placed(1, 3).await.unwrap_err();
    assert_eq!(late.kind, ErrorKind::NotPermitted);
    assert_eq!(service.exposed_troubles().values().flatten().count(), 0);
}

#[tokio::test]
async fn what_has_no_good_copy_or_is_out_of_order_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = ExposedAt { directory: folder.path().into(), owner: "extenci.uf".to_owned() };
    let service = ChunkService::new(BTreeMap::new(), 1);
    let staged = |extents, size| service.stage(page(extents, size), at.clone(), &Chunks);
    let damaged = staged(vec![extent(0, DAMAGED, (0, LENGTH), &[0])], LENGTH).await;
    assert_eq!(damaged.unwrap_err().kind, ErrorKind::Corrupt);
    let beyond = staged(vec![extent(0, 1, (0, LENGTH), &[0])], LENGTH - 1).await;
    assert_eq!(beyond.unwrap_err().kind, ErrorKind::InvalidArgument);
    let two = vec![extent(5, 1, (0, 10), &[0]), extent(0, 1, (0, 10), &[0])];
    assert_eq!(staged(two, 100).await.unwrap_err().kind, ErrorKind::InvalidArgument);
    let next = StageFile { is_first: false, file: FileId(8), ..page(vec![], 5) };
    let unknown = service.stage(next, at.clone(), &Chunks).await;
    assert_eq!(unknown.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
