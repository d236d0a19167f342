//! One of each call about pools whose files lie in a directory, too.

use super::*;
use tieline_wire::exposed::{
    ArrangeExposed, ArrangeExposedReply, Dress, ExposedName, ListExposed, ListExposedReply,
    StageFile, StageFileReply, Step, StepOutcome,
};

pub fn calls(op: Op) -> Vec<Sample> {
    let (ost, pool): (_, PoolName) = (OstIndex(3), "uf".parse().unwrap());
    let path = vec![name("data"), name("run7.root")];
    let file = file();
    match op {
        Op::StageFile => {
            let call = StageFile {
                ost,
                pool,
                file,
                content: Version(12_345),
                size: 5,
                extents: vec![Extent {
                    offset: 0,
                    length: 5,
                    content: Content::Inline(b"bytes".to_vec()),
                }],
                is_first: true,
                is_last: true,
                capability: Some(b"capability".to_vec()),
            };
            pair(call, StageFileReply {})
        }
        Op::ArrangeExposed => {
            let mtime = Time { seconds: 1_700_000_000, nanos: 5 };
            let dress = Dress {
                uid: Uid(5001),
                gid: Gid(6001),
                mode: Mode::new(0o640),
                mtime,
                is_directory: false,
            };
            let folder = Dress { is_directory: true, ..dress };
            let (from, content) = (vec![name("old")], Version(12_345));
            let steps = vec![
                Step::MakeDirectory { path: vec![name("data")], dress: folder },
                Step::Place { path: path.clone(), file, content, dress },
                Step::Link { from: from.clone(), path: path.clone() },
                Step::Move { from, path: path.clone() },
                Step::Dress { path: path.clone(), dress },
                Step::Remove { path: path.clone() },
                Step::RemoveDirectory { path: vec![name("data")] },
                Step::Check { path, size: 5, mtime },
            ];
            let call =
                ArrangeExposed { ost, pool, mdt: MdtIndex(1), boot: 7, is_marked: true, steps };
            let failed = StepOutcome::Failed("cannot make `data`".into());
            let outcomes = vec![StepOutcome::Done, StepOutcome::Missing, failed];
            pair(call, ArrangeExposedReply { outcomes, boot: 0xb007, is_marked: true })
        }
        _ => {
            let (directory, after) = (vec![name("data")], Some(name("run6")));
            let call = ListExposed { ost, pool, directory, after, limit: 256 };
            let found = ExposedName { name: name("run7.root"), is_directory: false };
            pair(call, ListExposedReply { names: vec![found] })
        }
    }
}
