//! Every store against a map: any sequence of operations answers alike.

use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;
use tieline_blob::conformance::{bytes, read, trailer};
use tieline_blob::{ChunkStore, DirChunks, Error, Identity, MemoryChunks};
use tieline_types::{Grant, GrantedId, MdtIndex, OstIndex};
use tieline_world::SystemDice;

#[derive(Clone, Debug)]
enum Step {
    Put {
        chunk: GrantedId,
        length: usize,
        seed: u8,
    },
    Read {
        chunk: GrantedId,
        offset: u64,
        length: u32,
    },
    Delete(GrantedId),
    Sync(Vec<GrantedId>),
    List {
        after: Option<GrantedId>,
        limit: usize,
    },
    /// Another process takes over.
    Reopen,
}

/// Few chunks, so that steps meet; spread over every level of the fan-out.
fn any_chunk() -> impl Strategy<Value = GrantedId> {
    let grant = prop::sample::select(vec![1, 2, 0x1001, 0x100_0001]);
    let serial = prop::sample::select(vec![0, 1, 0x1000, u64::MAX]);
    (0..2u16, grant, serial).prop_map(|(mdt, grant, serial)| GrantedId {
        mdt: MdtIndex(mdt),
        grant: Grant(grant),
        serial,
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any_chunk(), 0..20_000usize, 0..3u8)
            .prop_map(|(chunk, length, seed)| Step::Put { chunk, length, seed }),
        4 => (any_chunk(), 0..25_000u64, 0..25_000u32)
            .prop_map(|(chunk, offset, length)| Step::Read { chunk, offset, length }),
        2 => any_chunk().prop_map(Step::Delete),
        1 => prop::collection::vec(any_chunk(), 0..3).prop_map(Step::Sync),
        2 => (prop::option::of(any_chunk()), 0..10usize)
            .prop_map(|(after, limit)| Step::List { after, limit }),
        1 => Just(Step::Reopen),
    ]
}

type Model = BTreeMap<GrantedId, Bytes>;

async fn step(store: &dyn ChunkStore, model: &mut Model, step: Step) {
    match step {
        Step::Put { chunk, length, seed } => {
            let data = bytes(length, seed);
            let outcome = store.put(&trailer(chunk, &data), data.clone()).await;
            match model.get(&chunk) {
                Some(there) if *there != data => {
                    assert!(matches!(outcome, Err(Error::Different { .. })));
                }
                _ => {
                    outcome.unwrap();
                    model.insert(chunk, data);
                }
            }
        }
        Step::Read { chunk, offset, length } => {
            let outcome = read(store, chunk, offset, length).await;
            match model.get(&chunk) {
                None => assert!(matches!(outcome, Err(Error::Absent { .. }))),
                Some(data) => {
                    let start = data.len().min(offset as usize);
                    let end = data.len().min(offset as usize + length as usize);
                    assert_eq!(outcome.unwrap(), data.slice(start..end));
                }
            }
        }
        Step::Delete(chunk) => {
            assert_eq!(store.delete(chunk).await.unwrap(), model.remove(&chunk).is_some());
        }
        Step::Sync(chunks) => {
            let is_whole = chunks.iter().all(|chunk| model.contains_key(chunk));
            assert_eq!(store.sync(&chunks).await.is_ok(), is_whole);
        }
        Step::List { after, limit } => {
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let wanted: Vec<GrantedId> = model
                .range((from, Bound::Unbounded))
                .map(|(chunk, _)| *chunk)
                .take(limit)
                .collect();
            assert_eq!(store.list(after, limit).await.unwrap().chunks, wanted);
        }
        Step::Reopen => {}
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_a_map(steps in prop::collection::vec(any_step(), 1..60)) {
        runtime().block_on(async {
            let (store, mut model) = (MemoryChunks::new(u64::MAX), Model::new());
            for next in steps {
                step(&store, &mut model, next).await;
            }
        });
    }

    #[test]
    fn a_directory_is_a_map(steps in prop::collection::vec(any_step(), 1..40)) {
        let directory = tempfile::tempdir().unwrap();
        let identity = Identity { fs: "extenci".parse().unwrap(), ost: OstIndex(0) };
        DirChunks::format(directory.path(), &identity, &SystemDice).unwrap();
        let open = || DirChunks::open(directory.path(), &identity).unwrap();
        runtime().block_on(async {
            let (mut store, mut model) = (Some(open()), Model::new());
            for next in steps {
                if matches!(next, Step::Reopen) {
                    store = None;
                }
                step(store.get_or_insert_with(open), &mut model, next).await;
            }
        });
    }
}
