//! One of each call about chunks and the objects that hold them: put, read, copied, adopted.

use super::*;

pub fn chunk_calls(op: Op) -> Vec<Sample> {
    let (ost, chunk) = (OstIndex(3), chunk_id());
    match op {
        Op::PutChunk => {
            let capability = Some(b"capability".to_vec());
            let checks = vec![1, 0xffff_ffff];
            let room = None;
            let call = data::PutChunk { ost, chunk, owner: owner(), checks, capability, room };
            let granted = data::PutChunk { room: Some(12 << 10), ..call.clone() };
            let mut samples = pair(call, data::PutChunkReply {});
            samples.push(request("-granted", granted));
            samples
        }
        Op::ReadObject => {
            let read = |object| data::ReadObject {
                ost,
                object,
                offset: 4097,
                length: 1 << 20,
                capability: None,
                hashed: None,
            };
            let checks = vec![0x8a91_36aa];
            let reply =
                data::ReadObjectReply { offset: 4096, checks, object_length: 8192, proof: None };
            let hashed = Some(data::Hashed { offset: 0, length: 8192 });
            let proof = Some(vec![0x5a; 32]);
            let proven = data::ReadObjectReply { proof, ..reply.clone() };
            let mut samples = pair(read(ObjectName::Chunk(chunk)), reply);
            let of_hashed = data::ReadObject { hashed, ..read(ObjectName::Chunk(chunk)) };
            samples.push(request("-proven", of_hashed));
            samples.push(reply_of::<data::ReadObject>("-proven", proven));
            samples.push(request("-external", read(external())));
            samples
        }
        Op::SyncFile => {
            let capability = Some(b"capability".to_vec());
            let call = data::SyncFile { ost, file: file(), capability };
            pair(call, data::SyncFileReply { synced: 17 })
        }
        Op::DeleteChunks => {
            let call = data::DeleteChunks { ost, chunks: vec![chunk] };
            pair(call, data::DeleteChunksReply { deleted: 1 })
        }
        Op::OstStatus => pair(data::OstStatus {}, data::OstStatusReply { osts: vec![ost_state()] }),
        Op::Fill => pair(data::Fill { length: 128 << 10 }, data::FillReply {}),
        Op::GrantRoom => {
            let call = data::GrantRoom { ost, held: Some(1 << 20), wanted: 8 << 20 };
            let reply = data::GrantRoomReply { granted: 4 << 20, unit: 4096, bytes_free: 1 << 40 };
            let mut samples = pair(call.clone(), reply);
            samples.push(request("-unknown", data::GrantRoom { held: None, ..call }));
            samples
        }
        Op::StatObject => {
            let reply = data::StatObjectReply { length: 4 << 20, owner: owner(), check: 5 };
            pair(data::StatObject { ost, chunk }, reply)
        }
        _ => {
            let call = data::ListObjects { ost, after: Some(chunk), limit: 4096 };
            let path = b"objects/0001/notes".to_vec();
            let foreign = Some(vec![data::ForeignName { path, kind: FileKind::Regular }]);
            pair(call, data::ListObjectsReply { chunks: vec![chunk], is_end: false, foreign })
        }
    }
}

pub fn mirror_calls(op: Op) -> Vec<Sample> {
    let (id, ost, chunk) = (file(), OstIndex(3), chunk_id());
    match op {
        Op::ReportPlace => {
            let call = mirrors::ReportPlace { chunk, ost, what: "block 7 is damaged".into() };
            pair(call, mirrors::ReportPlaceReply {})
        }
        Op::ExtendMirrors => {
            let pool = Some("fnal".parse().unwrap());
            pair(mirrors::ExtendMirrors { id, count: 1, pool }, attributes_reply())
        }
        Op::SplitMirror => {
            let call = mirrors::SplitMirror {
                id,
                mirrors: 2,
                mirror: 1,
                within: Some(vec![ost]),
                offset: 4096,
                limit: 256,
                is_look: true,
            };
            let chunks = extents().into_iter().filter_map(|extent| match extent.content {
                Content::Chunk(chunk) => Some(chunk),
                _ => None,
            });
            let gone = chunks.map(|chunk| mirrors::GoneCopy { offset: 8 << 20, chunk, ost });
            let meta::AttributesReply { attributes, lease } = attributes_reply();
            let reply = mirrors::SplitMirrorReply {
                covered: 70_000_000,
                is_done: false,
                gone: gone.collect(),
                shared: 1,
                attributes,
                lease,
            };
            pair(call, reply)
        }
        _ => {
            let trouble = mirrors::Trouble { ost, reason: "out of reach".into() };
            let lacking = mirrors::LackingChunk {
                offset: 8 << 20,
                chunk,
                length: 4 << 20,
                copies: 1,
                trouble: Some(trouble),
            };
            let covered = 70_000_000;
            let reply = mirrors::ResyncFileReply { covered, chunks: 17, lacking: vec![lacking] };
            pair(mirrors::ResyncFile { id, offset: 4096, limit: 1024 }, reply)
        }
    }
}

pub fn copy_calls(op: Op) -> Vec<Sample> {
    let (ost, chunk, length) = (OstIndex(3), chunk_id(), 4 << 20);
    let digest = Digest::blake3([0xd1; 32]);
    if op == Op::FetchChunk {
        let object = ObjectName::Chunk(chunk);
        let place = OstPlace { ost: OstIndex(4), object, offset: 0, length, is_stale: false };
        let call = mirrors::FetchChunk {
            ost,
            chunk,
            length,
            digest: Some(digest),
            from: vec![place],
            owner: owner(),
            capability: None,
        };
        return pair(call, mirrors::FetchChunkReply { is_fetched: true, bad: vec![OstIndex(4)] });
    }
    let (object, offset) = (external(), 8192);
    let call = mirrors::VerifyObject { ost, object, offset, length, capability: None };
    let first_bad = Some(12_288);
    pair(call, mirrors::VerifyObjectReply { digest, bad_blocks: 2, first_bad, length })
}

pub fn adopted_calls(op: Op) -> Vec<Sample> {
    let (ost, digest) = (OstIndex(3), Digest::blake3([7; 32]));
    match op {
        Op::RecordSums => {
            let checks = vec![1, 0xffff_ffff];
            let sums = meta::ChunkSums { chunk: chunk_id(), checks, adler32: 5, digest };
            let call = meta::RecordSums { id: file(), sums: vec![sums] };
            pair(call, meta::RecordSumsReply { recorded: 1 })
        }
        Op::ListAdopted => {
            let entry = |name: &str, kind, target: Option<&str>| data::AdoptedEntry {
                name: name.into(),
                kind,
                mode: Mode::new(0o2750),
                uid: Uid(1001),
                gid: Gid(1002),
                size: 5000,
                mtime: Time { seconds: -5, nanos: 999_999_999 },
                target: target.map(Into::into),
                xattrs: vec![meta::Xattr {
                    name: XattrName::new(*b"user.x").unwrap(),
                    value: b"v".to_vec(),
                }],
            };
            let (directory, after) = (b"/lustre/cms".to_vec(), Some(b"a".to_vec()));
            let call = data::ListAdopted { ost, directory, after, limit: 4096 };
            let reply = data::ListAdoptedReply {
                root: b"/lustre".to_vec(),
                directory: b"cms".to_vec(),
                own: entry("cms", FileKind::Directory, None),
                entries: vec![entry("b", FileKind::Symlink, Some("a"))],
                is_end: true,
            };
            pair(call, reply)
        }
        _ => {
            let object = external();
            let (offset, length) = (4096, 1 << 20);
            let call = data::ChecksumAdopted { ost, object, offset, length, capability: None };
            let checks = vec![0x8a91_36aa];
            pair(call, data::ChecksumAdoptedReply { checks, adler32: 9, digest })
        }
    }
}
