//! Files on their way to tape and back.

use super::*;
use tieline_types::tape::WishFailure;
use tieline_wire::tape::{self, DriveState, TapeContent, TapeDeed};

fn copy() -> TapeCopy {
    TapeCopy {
        uris: vec!["osm://osm/?store=sql&group=cms&bfid=3434.0.994".into()],
        pool: "uf".parse().unwrap(),
        size: 70_000_000,
        digest: Digest::blake3([0xd1; 32]),
        adler32: 0x0123_4567,
        at: time(5),
    }
}

pub fn hsm() -> Hsm {
    let base = Hsm::new("/etc/tieline/hsm/osm.sh".into(), "osm".into());
    Hsm { options: vec!["group=cms".into()], tries: 7, ..base }
}

fn work(deed: TapeDeed, parts: Vec<tape::TapePart>) -> tape::TapeWork {
    let storage_info = "size=70000000;new=true;stored=false;sClass=uf:uf;".into();
    tape::TapeWork { hsm: hsm(), storage_info, deed, parts, before: 8192, total: 8195 }
}

fn drive(work: Option<tape::TapeWork>) -> tape::DriveTape {
    let (ost, job, ends) = (OstIndex(3), 0x1234_5678_9abc, None);
    tape::DriveTape { ost, job, file: file(), work, ends, capability: None }
}

pub fn calls(op: Op) -> Vec<Sample> {
    let id = file();
    let failure = WishFailure {
        kind: ErrorKind::NoSpace,
        detail: "put: exit status 41 (no space left on device)".into(),
        at: time(6),
    };
    let wish = WishState {
        tries: 2,
        next_ms: 1_700_000_120_000,
        failure: Some(failure),
        ..WishState::new(TapeWish::Archive, time(4))
    };
    let reply = tape::TapeReply {
        on_tape: Some(OnTape::DirtyReleased),
        copy: Some(copy()),
        released: 4 << 20,
        wish: Some(wish),
        now_ms: 1_700_000_000_123,
    };
    match op {
        Op::AskTape => pair(tape::AskTape { id, wish: TapeWish::Restore }, reply),
        Op::GetTape => pair(tape::GetTape { id }, reply),
        Op::GiveUpBytes => {
            let meta::AttributesReply { attributes, lease } = attributes_reply();
            let attributes = Attributes { tape: Some(OnTape::Released), ..attributes };
            let given_up = tape::GiveUpBytesReply {
                covered: 70_000_000,
                is_done: true,
                released: 69_000_000,
                kept: 5,
                attributes,
                lease,
            };
            pair(tape::GiveUpBytes { id, offset: 4096, limit: 512 }, given_up)
        }
        _ => drives(),
    }
}

fn drives() -> Vec<Sample> {
    let chunks: Vec<ChunkRef> = extents()
        .into_iter()
        .filter_map(|extent| match extent.content {
            Content::Chunk(chunk) => Some(chunk),
            _ => None,
        })
        .collect();
    let part = |content| tape::TapePart { offset: 4 << 20, length: 4 << 20, content };
    let inline = part(TapeContent::Inline(b"bytes".to_vec()));
    let from = chunks.iter().cloned().map(|chunk| part(TapeContent::Chunk(chunk)));
    let to = chunks.iter().cloned().map(|chunk| part(TapeContent::To(chunk, OstIndex(3))));
    let name = "000000010000123456780000000000003038".to_owned();
    let put = TapeDeed::Put { name: name.clone(), size: 70_000_000 };
    let get = TapeDeed::Get { name, copy: copy() };
    let put = work(put, [inline].into_iter().chain(from).collect());
    let mut samples = vec![
        request("-put", drive(Some(put))),
        request("-get", drive(Some(work(get, to.collect())))),
        request("-remove", drive(Some(work(TapeDeed::Remove(copy().uris), vec![])))),
    ];
    let ends = tape::DriveTape { ends: Some(true), capability: Some(vec![7; 3]), ..drive(None) };
    samples.push(request("-end", ends));
    let TapeCopy { uris, digest, adler32, .. } = copy();
    let (kind, detail, is_final) = (ErrorKind::Corrupt, "get: 7 bytes, not 8".into(), true);
    let states = [
        ("unknown", DriveState::Unknown),
        ("gathering", DriveState::Gathering(8192)),
        ("waiting", DriveState::Waiting),
        ("running", DriveState::Running),
        ("put", DriveState::Put { uris, digest, adler32 }),
        ("done", DriveState::Done),
        ("failed", DriveState::Failed { kind, detail, is_final }),
    ];
    for (name, state) in states {
        let reply = tape::DriveTapeReply { state };
        samples.push(reply_of::<tape::DriveTape>(&format!("-{name}"), reply));
    }
    samples
}
