//! MDTs on stores that were lost and came back.

use crate::fixture::*;
use crate::view::decode;
use std::path::Path;
use tieline_format::ledger::{Frame, Sum, preamble};
use tieline_format::mdt::{Inode, key};
use tieline_kv::MemoryStore;
use tieline_ledger::rebuild::{FoundObject, rebuild};
use tieline_ledger::restore::{Asked, restore};
use tieline_ledger::stream::{Frames, verify};
use tieline_ledger::{Error, Identity};
use tieline_types::{
    FileId, Grant, GrantedId, MdtIndex, OstIndex, Time, Version, XattrMode, XattrName,
};
use tieline_wire::data::ObjectOwner;
use tieline_wire::ledger::DumpMdt;
use tieline_wire::meta::{GetXattr, SetXattr};

fn identity() -> Identity {
    Identity { fs: "extenci".parse().unwrap(), mdt: MdtIndex(0) }
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
    let store = MemoryStore::new();
    let paths = std::slice::from_ref(&path);
    let asked = Asked { paths, up_to_hole: false, log: None, now: Time::default() };
    restore(&store, &identity(), asked).await.unwrap();
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
        chunk: GrantedId { mdt: MdtIndex(0), grant: Grant(3), serial },
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
        chunk: GrantedId { mdt: MdtIndex(0), grant: Grant(3), serial },
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
