//! What an MDT keeps for bad days, and what goes on in its background.

use super::*;
use tieline_wire::chores::{self, ChoreState};
use tieline_wire::ledger;

fn deleted_file() -> ledger::DeletedFile {
    ledger::DeletedFile {
        id: file(),
        name: name("run7.root"),
        kind: FileKind::Regular,
        mode: Mode::new(0o640),
        uid: Uid(501),
        gid: Gid(20),
        size: 70_000_000,
        mtime: Time { seconds: 1_700_000_000, nanos: 1 },
        deleted: Time { seconds: 1_700_000_100, nanos: 2 },
        by: Uid(502),
        is_lost: None,
    }
}

pub fn ledger_calls(op: Op) -> Vec<Sample> {
    match op {
        Op::ListDeleted => {
            let call = ledger::ListDeleted {
                directory: directory(),
                after: Some(file()),
                limit: 4096,
                is_lost: None,
                after_name: None,
            };
            let of_names = ledger::ListDeleted {
                is_lost: Some(true),
                after_name: Some(name("run7.root")),
                ..call.clone()
            };
            let now = Time { seconds: 1_700_000_200, nanos: 3 };
            let reply = ledger::ListDeletedReply {
                files: vec![deleted_file()],
                next: Some(file()),
                now,
                keep_ms: 3_600_000,
                next_name: None,
            };
            let lost = ledger::DeletedFile { is_lost: Some(true), ..deleted_file() };
            let names = ledger::ListDeletedReply {
                files: vec![lost],
                next_name: Some(name("run7.root")),
                ..reply.clone()
            };
            let mut samples = pair(call, reply);
            samples.push(request("-names", of_names));
            samples.push(message("reply-ListDeleted-names", names));
            samples
        }
        Op::Undelete => {
            let call = ledger::Undelete {
                id: file(),
                from: directory(),
                parent: FileId::new(MdtIndex(1), 9),
                name: name("run7.root"),
                lost: None,
            };
            let again = ledger::Undelete { lost: Some(name("run7.old")), ..call.clone() };
            let reply = meta::EntryReply {
                attributes: Some(attributes()),
                junction: None,
                lease: lease(),
                target: None,
            };
            let mut samples = pair(call, reply);
            samples.push(request("-name", again));
            samples
        }
        Op::DumpMdt => {
            let cursor = Some(vec![0, 0xff, 7]);
            let call = ledger::DumpMdt { cursor: cursor.clone(), since: Some(Version(12)) };
            pair(call, ledger::DumpMdtReply { cursor })
        }
        _ => {
            let call = ledger::CheckMdt {
                job: Some(7),
                received: 1000,
                is_repair: true,
                reads_bytes: true,
            };
            let finding = ledger::Finding {
                what: "missing-chunk".into(),
                path: b"data/run7.root".to_vec(),
                file: Some(file()),
                detail: "chunk is not at OST0003".into(),
                outcome: ledger::Outcome::Lost,
            };
            let reply = ledger::CheckMdtReply {
                job: 7,
                findings: vec![finding],
                phase: "names".into(),
                looked_at: 180_000,
                is_end: true,
            };
            pair(call, reply)
        }
    }
}

pub fn chores() -> Vec<Sample> {
    let now = Time { seconds: 1_700_000_200, nanos: 3 };
    let failed = chores::Chore {
        name: "freed-chunks".into(),
        state: ChoreState::Failed,
        waits_for: None,
        failure: Some(chores::ChoreFailure { at: now, detail: "OST0002 does not answer".into() }),
        done: 512,
        left: Some(3),
        unit: "chunks".into(),
        ended: Some(now),
    };
    let waiting = chores::Chore {
        name: "strays".into(),
        state: ChoreState::Waiting,
        waits_for: Some("a check".into()),
        failure: None,
        left: None,
        ended: None,
        ..failed.clone()
    };
    let reply = chores::ListChoresReply { mdt: MdtIndex(1), now, chores: vec![failed, waiting] };
    pair(chores::ListChores {}, reply)
}
