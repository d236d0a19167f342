//! Random writes, truncations, holes, flushes and reads against a plain vector.

use super::fake::{Fake, ROOT};
use super::*;
use proptest::prelude::*;
use tieline_types::ErrorKind;

const SPACE: u64 = 300_000;

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        length: u64,
    },
    Append {
        length: u64,
    },
    Truncate {
        size: u64,
    },
    Punch {
        offset: u64,
        length: u64,
    },
    Zero {
        offset: u64,
        length: u64,
    },
    Copy {
        from: u64,
        to: u64,
        length: u64,
    },
    Seek {
        offset: u64,
    },
    Compact,
    Read {
        offset: u64,
        length: u64,
    },
    Flush,
    Sync,
    Wait,
    LoseSession,
    /// Another client comes in between.
    Recall,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![1u64..5000, 1u64..140_000];
    prop_oneof![
        6 => (0..SPACE, length.clone())
            .prop_map(|(offset, length)| Step::Write { offset, length }),
        2 => length.clone().prop_map(|length| Step::Append { length }),
        1 => (0..SPACE).prop_map(|size| Step::Truncate { size }),
        1 => (0..SPACE, 1..100_000u64)
            .prop_map(|(offset, length)| Step::Punch { offset, length }),
        1 => (0..SPACE, 1..100_000u64)
            .prop_map(|(offset, length)| Step::Zero { offset, length }),
        1 => (0..SPACE, 0..SPACE, 1..100_000u64)
            .prop_map(|(from, to, length)| Step::Copy { from, to, length }),
        1 => (0..SPACE).prop_map(|offset| Step::Seek { offset }),
        1 => Just(Step::Compact),
        4 => (0..SPACE, length).prop_map(|(offset, length)| Step::Read { offset, length }),
        1 => Just(Step::Flush),
        1 => Just(Step::Sync),
        1 => Just(Step::Wait),
        1 => Just(Step::LoseSession),
        1 => Just(Step::Recall),
        1 => Just(Step::Reopen),
    ]
}

struct Run {
    fake: Arc<Fake>,
    volume: Arc<Volume>,
    id: FileId,
    handle: HandleId,
    append: HandleId,
    model: Vec<u8>,
    fill: u8,
}

impl Run {
    async fn new() -> Self {
        let fake = Fake::new();
        let volume = fake.mount();
        let name: Name = "a".parse().unwrap();
        let id = fake.lock().add(ROOT, &name, FileKind::Regular);
        let (handle, append) = Self::open(&volume, id).await;
        Self { fake, volume, id, handle, append, model: Vec::new(), fill: 0 }
    }

    async fn open(volume: &Volume, id: FileId) -> (HandleId, HandleId) {
        let access = Access { read: true, write: true, ..Access::default() };
        let handle = volume.open(&Caller::root(), id, access).await.unwrap().handle;
        let access = Access { append: true, ..access };
        (handle, volume.open(&Caller::root(), id, access).await.unwrap().handle)
    }

    fn bytes(&mut self, length: u64) -> Bytes {
        self.fill = self.fill.wrapping_add(1).max(1);
        let fill = self.fill;
        (0..length).map(|index| fill ^ (index >> 8) as u8).collect::<Vec<u8>>().into()
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[offset as usize..end].copy_from_slice(bytes);
    }

    /// Holes may be told of less than there are zeroes, never of anything else.
    async fn seek(&self, offset: u64) {
        let size = self.model.len() as u64;
        let hole = self.volume.seek(self.handle, offset, SeekTarget::Hole).await;
        let data = self.volume.seek(self.handle, offset, SeekTarget::Data).await;
        if offset >= size {
            assert_eq!(hole.unwrap_err().kind(), ErrorKind::NoDevice);
            assert_eq!(data.unwrap_err().kind(), ErrorKind::NoDevice);
            return;
        }
        let hole = hole.unwrap();
        assert!((offset..=size).contains(&hole));
        let data = data.unwrap_or(size);
        assert!(self.model[offset as usize..data as usize].iter().all(|&byte| byte == 0));
        assert!(hole == offset || data == offset);
    }

    async fn take(&mut self, step: Step) {
        let (volume, handle) = (self.volume.clone(), self.handle);
        match step {
            Step::Write { offset, length } => {
                let bytes = self.bytes(length);
                self.write(offset, &bytes);
                volume.write(handle, offset, bytes).await.unwrap();
            }
            Step::Append { length } => {
                let bytes = self.bytes(length);
                self.write(self.model.len() as u64, &bytes);
                volume.write(self.append, 0, bytes).await.unwrap();
            }
            Step::Truncate { size } => {
                self.model.resize(size as usize, 0);
                let change = AttributeChange { size: Some(size), ..Default::default() };
                let root = Caller::root();
                let known = volume.set_attributes(&root, self.id, Some(handle), change);
                assert_eq!(known.await.unwrap().attributes.size, size);
            }
            Step::Punch { offset, length } => {
                let end = ((offset + length) as usize).min(self.model.len());
                if let Some(range) = self.model.get_mut(offset as usize..end) {
                    range.fill(0);
                }
                let mode = AllocationMode::Punch;
                volume.allocate(handle, Allocation { offset, length, mode }).await.unwrap();
            }
            Step::Zero { offset, length } => {
                let end = (offset + length) as usize;
                self.model.resize(self.model.len().max(end), 0);
                self.model[offset as usize..end].fill(0);
                let mode = AllocationMode::Zero { keeps_size: false };
                volume.allocate(handle, Allocation { offset, length, mode }).await.unwrap();
            }
            Step::Copy { from, to, length } => {
                let end = |offset| CopyEnd { handle, offset };
                let copied = volume.copy_range(end(from), end(to), length).await;
                if from.abs_diff(to) < length {
                    assert_eq!(copied.unwrap_err().kind(), ErrorKind::InvalidArgument);
                    return;
                }
                let size = self.model.len() as u64;
                let bytes = (from.min(size) as usize)..((from + length).min(size) as usize);
                let bytes = self.model[bytes].to_vec();
                assert_eq!(copied.unwrap(), bytes.len() as u64);
                if !bytes.is_empty() {
                    self.write(to, &bytes);
                }
            }
            Step::Seek { offset } => self.seek(offset).await,
            Step::Compact => {
                let file = volume.shared.file(self.id);
                volume.flush(handle).await.unwrap();
                volume.shared.compact(&file).await.unwrap();
                assert!(self.fake.bytes(self.id) == self.model, "compacted");
            }
            Step::Read { offset, length } => {
                let read = volume.read(handle, offset, length as u32).await.unwrap().concat();
                let start = (offset as usize).min(self.model.len());
                let end = ((offset + length) as usize).min(self.model.len());
                assert!(read == self.model[start..end], "{offset} + {length}");
            }
            Step::Flush => {
                volume.flush(handle).await.unwrap();
                assert!(self.fake.bytes(self.id) == self.model, "committed");
            }
            Step::Sync => {
                volume.sync(handle, false).await.unwrap();
                assert!(self.fake.bytes(self.id) == self.model, "synced");
            }
            Step::Wait => {
                tokio::time::sleep(Duration::from_secs(3)).await;
                assert!(self.fake.bytes(self.id) == self.model, "committed in the background");
            }
            Step::LoseSession => self.fake.lose_session(),
            Step::Recall => drop(self.fake.elsewhere(ROOT, &[], &[self.id], |_| {}).await),
            Step::Reopen => {
                volume.release(handle).await;
                volume.release(self.append).await;
                (self.handle, self.append) = Self::open(&volume, self.id).await;
            }
        }
        let known = volume.attributes(&Caller::root(), self.id).await.unwrap();
        assert_eq!(known.attributes.size, self.model.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_file_is_what_was_written(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut run = Run::new().await;
            for step in steps {
                run.take(step).await;
            }
            run.take(Step::Flush).await;
            let sum = run.volume.adler32(&Caller::root(), run.id).await.unwrap();
            assert_eq!(sum, simd_adler32::adler32(&run.model.as_slice()));
            // Another client sees the same.
            run.volume = run.fake.mount();
            (run.handle, run.append) = Run::open(&run.volume, run.id).await;
            run.take(Step::Read { offset: 0, length: 1 << 20 }).await;
            let sum = run.volume.adler32(&Caller::root(), run.id).await.unwrap();
            assert_eq!(sum, simd_adler32::adler32(&run.model.as_slice()));
        });
    }
}
