//! A store that was not there when its server started: its file system is not mounted yet, its disk
//! does not answer, or what keeps its bucket is away.
//!
//! Whoever wants something of it gets the reason, and has it looked for again, at most once in
//! [`LOOK_EVERY`] and one at a time: an OSS that is asked how its OSTs are thereby finds it. Once
//! found it is the store that it always was.
//!
//! Invariants: nothing is made where it should be; a look that hangs holds up nobody else.

use crate::{Abilities, ChunkStore, Error, Listed, Slice, Space};
use bytes::Bytes;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tieline_format::object::ObjectTrailer;
use tieline_types::GrantedId;
use tokio::time::Instant;

const LOOK_EVERY: Duration = Duration::from_secs(2);

type Opening = Pin<Box<dyn Future<Output = Result<Arc<dyn ChunkStore>, Error>> + Send>>;
type Open = Box<dyn Fn() -> Opening + Send + Sync>;

/// A store that may come later.
pub struct LateChunks {
    inner: Arc<Inner>,
}

struct Inner {
    store: String,
    open: Open,
    found: OnceLock<Arc<dyn ChunkStore>>,
    /// Held by who looks.
    looking: tokio::sync::Mutex<()>,
    last: Mutex<Last>,
}

/// What the last look found.
struct Last {
    at: Instant,
    why: String,
}

impl LateChunks {
    /// `why` it could not be opened just now; `open` tries again.
    pub fn new<F>(why: &Error, open: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn ChunkStore>, Error>> + Send + 'static,
    {
        let last = Mutex::new(Last { at: Instant::now(), why: reason(why) });
        let inner = Inner {
            store: why.store().to_owned(),
            open: Box::new(move || Box::pin(open())),
            found: OnceLock::new(),
            looking: tokio::sync::Mutex::default(),
            last,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The store, if it is there by now.
    async fn found(&self) -> Result<&dyn ChunkStore, Error> {
        if let Some(found) = self.inner.found.get() {
            return Ok(&**found);
        }
        if self.inner.is_due()
            && let Ok(_one) = self.inner.looking.try_lock()
        {
            let inner = self.inner.clone();
            // If it ends in another way than by an answer, the next look is as good.
            let _ = tokio::spawn(async move { inner.look().await }).await;
        }
        let found = self.inner.found.get().map(|found| &**found);
        found.ok_or_else(|| Error::Missing {
            store: self.inner.store.clone(),
            reason: self.inner.last().why.clone(),
        })
    }
}

impl Inner {
    fn is_due(&self) -> bool {
        self.last().at.elapsed() >= LOOK_EVERY
    }

    async fn look(&self) {
        self.last().at = Instant::now();
        match (self.open)().await {
            Ok(found) => {
                tracing::info!(store = self.store, "the store is there now");
                let _ = self.found.set(found);
            }
            Err(error) => self.last().why = reason(&error),
        }
        self.last().at = Instant::now();
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        // Nothing panics while it is held.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without the store, which is named anyway.
fn reason(error: &Error) -> String {
    match error {
        Error::Missing { reason, .. } | Error::WrongStore { reason, .. } => reason.clone(),
        Error::Failed { doing, source, .. } => format!("cannot {doing}: {source}"),
        other => other.to_string(),
    }
}

#[async_trait::async_trait]
impl ChunkStore for LateChunks {
    fn abilities(&self) -> Abilities {
        let none = Abilities { range: true, append: false, rename: false, sendfile: false };
        self.inner.found.get().map_or(none, |found| found.abilities())
    }

    fn describe(&self) -> String {
        self.inner.store.clone()
    }

    async fn put(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        self.found().await?.put(trailer, data).await
    }

    async fn replace(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        self.found().await?.replace(trailer, data).await
    }

    fn forget(&self, chunk: GrantedId) {
        if let Some(found) = self.inner.found.get() {
            found.forget(chunk);
        }
    }

    async fn read(&self, chunk: GrantedId, offset: u64, length: u32) -> Result<Slice, Error> {
        self.found().await?.read(chunk, offset, length).await
    }

    async fn stat(&self, chunk: GrantedId) -> Result<(ObjectTrailer, u64), Error> {
        self.found().await?.stat(chunk).await
    }

    async fn delete(&self, chunk: GrantedId) -> Result<bool, Error> {
        self.found().await?.delete(chunk).await
    }

    async fn sync(&self, chunks: &[GrantedId]) -> Result<(), Error> {
        self.found().await?.sync(chunks).await
    }

    async fn list(&self, after: Option<GrantedId>, limit: usize) -> Result<Listed, Error> {
        self.found().await?.list(after, limit).await
    }

    async fn space(&self) -> Result<Space, Error> {
        self.found().await?.space().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DirChunks, Identity};
    use tieline_types::OstIndex;
    use tieline_world::World;

    #[tokio::test]
    async fn a_directory_that_comes_late_is_served_then() {
        let folder = tempfile::tempdir().unwrap();
        let (home, away) = (folder.path().join("ost"), folder.path().join("away"));
        let identity = Identity { fs: "extenci".parse().unwrap(), ost: OstIndex(3) };
        std::fs::create_dir(&home).unwrap();
        DirChunks::format(&home, &identity, &*World::real().dice).unwrap();
        std::fs::rename(&home, &away).unwrap();
        let open = {
            let home = home.clone();
            move || {
                let opened = DirChunks::open(&home, &identity);
                async { Ok(Arc::new(opened?) as Arc<dyn ChunkStore>) }
            }
        };
        let why = open().await.map(drop).unwrap_err();
        assert!(matches!(why, Error::Missing { .. }), "{why}");
        let late = LateChunks::new(&why, open);
        let refused = late.space().await.unwrap_err();
        assert!(refused.to_string().contains("no such directory"), "{refused}");
        assert!(!home.exists());
        // An empty mount point is not it either.
        std::fs::create_dir(&home).unwrap();
        tokio::time::sleep(LOOK_EVERY).await;
        let refused = late.space().await.unwrap_err();
        assert!(refused.to_string().contains("mounted"), "{refused}");
        std::fs::remove_dir(&home).unwrap();
        std::fs::rename(&away, &home).unwrap();
        tokio::time::sleep(LOOK_EVERY).await;
        assert!(late.space().await.unwrap().bytes_total > 0);
    }
}
