//! Any store, failing as told.
//!
//! The test keeps the [`Faults`] that it gave and changes them while the store is in use.

use crate::{Abilities, ChunkStore, Error, Listed, Slice, Space};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_format::object::ObjectTrailer;
use tieline_types::GrantedId;
use tieline_world::Bulk;

/// A store that fails by plan.
pub struct FaultyChunks {
    inner: Arc<dyn ChunkStore>,
    faults: Faults,
}

/// What shall go wrong. Cloned freely; all clones are the same plan.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Default)]
struct Plan {
    puts_full: u32,
    reads_failing: u32,
    syncs_failing: u32,
    is_read_only: bool,
    wrong_store: Option<String>,
    /// Where in each of these a bit is flipped.
    flipped: BTreeMap<GrantedId, u64>,
    delay: Duration,
}

impl Faults {
    /// The next `count` puts find no room.
    pub fn fill_puts(&self, count: u32) {
        self.lock().puts_full = count;
    }

    /// The next `count` reads get an I/O error.
    pub fn fail_reads(&self, count: u32) {
        self.lock().reads_failing = count;
    }

    /// The next `count` syncs get an I/O error; what they should have synced is not durable.
    pub fn fail_syncs(&self, count: u32) {
        self.lock().syncs_failing = count;
    }

    pub fn set_read_only(&self, is_read_only: bool) {
        self.lock().is_read_only = is_read_only;
    }

    /// As if the file system had been unmounted, until `None`.
    pub fn set_wrong_store(&self, reason: Option<&str>) {
        self.lock().wrong_store = reason.map(str::to_owned);
    }

    /// Reads of `chunk` have a bit flipped in the byte at this offset of it.
    pub fn flip_bit(&self, chunk: GrantedId, at: u64) {
        self.lock().flipped.insert(chunk, at);
    }

    /// Everything takes so much longer.
    pub fn delay(&self, delay: Duration) {
        self.lock().delay = delay;
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts one fault down; says whether it is due.
fn is_due(count: &mut u32) -> bool {
    let is_due = *count > 0;
    *count = count.saturating_sub(1);
    is_due
}

impl FaultyChunks {
    pub fn new(inner: Arc<dyn ChunkStore>, faults: Faults) -> Self {
        Self { inner, faults }
    }

    async fn wait(&self) -> Result<(), Error> {
        let (delay, wrong) = {
            let plan = self.faults.lock();
            (plan.delay, plan.wrong_store.clone())
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let store = self.describe();
        wrong.map_or(Ok(()), |reason| Err(Error::WrongStore { store, reason }))
    }

    /// May bytes be written now?
    async fn check_put(&self) -> Result<(), Error> {
        self.wait().await?;
        let (is_read_only, is_full) = {
            let mut plan = self.faults.lock();
            (plan.is_read_only, is_due(&mut plan.puts_full))
        };
        if is_read_only {
            return Err(Error::ReadOnly { store: self.describe() });
        }
        if is_full {
            return Err(Error::Full { store: self.describe() });
        }
        Ok(())
    }
}

fn io_error() -> io::Error {
    rustix::io::Errno::IO.into()
}

#[async_trait::async_trait]
impl ChunkStore for FaultyChunks {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn describe(&self) -> String {
        format!("faulty {}", self.inner.describe())
    }

    async fn put(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        self.check_put().await?;
        self.inner.put(trailer, data).await
    }

    async fn replace(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        self.check_put().await?;
        self.inner.replace(trailer, data).await?;
        // What was damaged was the old one.
        self.faults.lock().flipped.remove(&trailer.chunk);
        Ok(())
    }

    fn forget(&self, chunk: GrantedId) {
        self.inner.forget(chunk);
    }

    async fn read(&self, chunk: GrantedId, offset: u64, length: u32) -> Result<Slice, Error> {
        self.wait().await?;
        let failed = |source| Error::Failed { store: self.describe(), doing: "read", source };
        if is_due(&mut self.faults.lock().reads_failing) {
            return Err(failed(io_error()));
        }
        let mut slice = self.inner.read(chunk, offset, length).await?;
        let flipped = self.faults.lock().flipped.get(&chunk).copied();
        if let Some(at) = flipped.and_then(|at| at.checked_sub(slice.offset)) {
            let mut bytes = BytesMut::from(&slice.bulk.to_bytes().map_err(failed)?[..]);
            bytes.iter_mut().skip(at as usize).take(1).for_each(|byte| *byte ^= 1);
            slice.bulk = Bulk::from(bytes.freeze());
        }
        Ok(slice)
    }

    async fn stat(&self, chunk: GrantedId) -> Result<(ObjectTrailer, u64), Error> {
        self.wait().await?;
        self.inner.stat(chunk).await
    }

    async fn delete(&self, chunk: GrantedId) -> Result<bool, Error> {
        self.wait().await?;
        if self.faults.lock().is_read_only {
            return Err(Error::ReadOnly { store: self.describe() });
        }
        self.inner.delete(chunk).await
    }

    async fn sync(&self, chunks: &[GrantedId]) -> Result<(), Error> {
        self.wait().await?;
        if is_due(&mut self.faults.lock().syncs_failing) {
            let (chunks, store) = (chunks.to_vec(), self.describe());
            return Err(Error::NotDurable { chunks, store, source: io_error() });
        }
        self.inner.sync(chunks).await
    }

    async fn list(&self, after: Option<GrantedId>, limit: usize) -> Result<Listed, Error> {
        self.wait().await?;
        self.inner.list(after, limit).await
    }

    async fn space(&self) -> Result<Space, Error> {
        self.wait().await?;
        self.inner.space().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryChunks;
    use crate::conformance::{self, bytes, chunk, trailer};
    use tieline_types::{ErrorKind, checksum};

    fn store() -> (FaultyChunks, Faults) {
        let faults = Faults::default();
        (FaultyChunks::new(Arc::new(MemoryChunks::new(8 << 20)), faults.clone()), faults)
    }

    #[tokio::test]
    async fn conforms_while_nothing_is_planned() {
        conformance::check(&store().0).await;
    }

    #[tokio::test]
    async fn fails_as_told_and_no_longer() {
        let (store, faults) = store();
        let data = bytes(5000, 1);
        let trailer = trailer(chunk(1), &data);
        let put = || store.put(&trailer, data.clone());
        faults.fill_puts(1);
        assert_eq!(put().await.unwrap_err().kind(), ErrorKind::NoSpace);
        faults.set_read_only(true);
        assert_eq!(put().await.unwrap_err().kind(), ErrorKind::ReadOnly);
        faults.set_read_only(false);
        put().await.unwrap();
        faults.fail_reads(1);
        assert_eq!(store.read(chunk(1), 0, 1).await.unwrap_err().kind(), ErrorKind::StorageFault);
        faults.fail_syncs(1);
        let unsynced = store.sync(&[chunk(1)]).await;
        assert!(matches!(unsynced, Err(Error::NotDurable { chunks, .. }) if chunks == [chunk(1)]));
        store.sync(&[chunk(1)]).await.unwrap();
        faults.flip_bit(chunk(1), 0);
        let slice = store.read(chunk(1), 0, 5000).await.unwrap();
        let got = slice.bulk.to_bytes().unwrap();
        assert_eq!(checksum::first_mismatch(&got, &slice.checks), Some(0));
    }
}
