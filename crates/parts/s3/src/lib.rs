//! An OST's objects in a bucket behind S3: whole objects, put once, read by ranges.
//!
//! An object is byte for byte what it is in a directory, under a key that sorts as its id
//! ([`Prefix`]). Requests are signed and repeated by `object_store`, and sent by our own HTTP
//! client ([`connector`]). Tails of objects that were met lately are remembered ([`Heads`]): then a
//! read is one request.
//!
//! * A put is one request with its SHA-256, which the store checks; it makes the object visible
//!   whole or not at all. It is conditional (`If-None-Match: *`): nothing is written over. A store
//!   that does not know the condition is found out at the start, and asked before each put.
//! * What a store answers a put is durable: a sync only asks whether the objects are there.
//! * `PREFIX/tieline-ost` says whose objects these are. It is looked at before an object is called
//!   absent: a bucket that was emptied or replaced is no bucket without objects.
//!
//! Does not know: multipart uploads, versions of objects, storage classes, chunks' meaning.
//!
//! Invariants: every request has a deadline, repeated requests too; at most [`AT_ONCE`] are under
//! way; no secret is in a message or a log; bytes that do not match their checks are fetched once
//! more before a reader sees them.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod bucket;
mod connector;
mod credentials;
mod head;
mod key;
mod opening;
mod trouble;
mod used;

pub use credentials::{Credentials, Keys, parse as parse_credentials};
pub use head::{Tail, read_tail};
pub use key::Prefix;
pub use opening::Settings;
pub use trouble::said;

use bucket::Bucket;
use bytes::Bytes;
use head::{Head, Heads, TAIL_GUESS, TAIL_MAX};
use object_store::{GetRange, PutPayload};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_blob::{
    Abilities, BlockRange, ChunkStore, Error, FOREIGN_MAX, Foreign, Identity, Listed, Slice, Space,
};
use tieline_format::object::ObjectTrailer;
use tieline_types::checksum::first_mismatch;
use tieline_types::{FileKind, GrantedId};
use tieline_world::Bulk;
use tokio::time::Instant;
use trouble::Refusal;
use used::Used;

/// Requests under way at once.
const AT_ONCE: usize = 32;
/// An object that comes and goes while it is put is not put any more.
const PUT_TRIES: usize = 4;
/// The marker is believed for so long.
const MARKER_FRESH: Duration = Duration::from_secs(2);
/// After a store said that it is full, nothing more is tried for so long.
const FULL_FOR: Duration = Duration::from_secs(30);
/// What is said of a store that nobody limits.
const UNLIMITED: u64 = 1 << 50;
const OBJECTS_MAX: u64 = 1 << 40;
/// As a store lists them at most.
const PAGE: usize = 1000;

/// An OST's objects in a bucket.
#[derive(Clone)]
pub struct S3Chunks {
    inner: Arc<Inner>,
}

struct Inner {
    bucket: Bucket,
    prefix: Prefix,
    identity: Identity,
    /// Of the marker.
    uuid: String,
    /// The store refuses to put over what is there.
    is_conditional: bool,
    heads: Heads,
    used: Option<Used>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// When the marker was as it should be.
    marker: Option<Instant>,
    full: Option<Instant>,
}

impl Inner {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics while it is held.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Objects that seem gone because the bucket is gone must not be taken for deleted.
    async fn absent(&self, chunk: GrantedId) -> Error {
        match self.check_in_place().await {
            Ok(()) => Error::Absent { chunk, store: self.bucket.whose.store.clone() },
            Err(error) => error,
        }
    }

    fn damaged(&self, chunk: GrantedId, reason: impl Into<String>) -> Error {
        let (store, reason) = (self.bucket.whose.store.clone(), reason.into());
        Error::Damaged { chunk, store, reason }
    }

    fn full(&self) -> Error {
        Error::Full { store: self.bucket.whose.store.clone() }
    }

    async fn of_chunk(&self, chunk: GrantedId, doing: &'static str, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Absent => self.absent(chunk).await,
            Refusal::There => self.bucket.whose.failed(doing, "the store refuses it".into()),
            Refusal::Other(error) => {
                if matches!(error, Error::Full { .. }) {
                    self.seen().full = Some(Instant::now());
                }
                error
            }
        }
    }

    /// An object's head as it is now, and the end of the object that came with it.
    async fn look(&self, chunk: GrantedId) -> Result<(Arc<Head>, Bytes), Error> {
        let epoch = self.heads.epoch();
        let mut wanted = TAIL_GUESS;
        loop {
            let range = GetRange::Suffix(wanted);
            let got = self.bucket.get(&self.prefix.object(chunk), Some(range)).await;
            let (tail, total) = match got {
                Ok(got) => got,
                Err(refusal) => {
                    return Err(self.of_chunk(chunk, "look at an object", refusal).await);
                }
            };
            match head::read_tail(&tail, total, chunk) {
                Ok(Tail::Whole(head)) => {
                    let head = Arc::new(*head);
                    self.heads.insert(epoch, head.clone());
                    return Ok((head, tail));
                }
                Ok(Tail::Longer(longer)) if longer > wanted && longer <= TAIL_MAX => {
                    wanted = longer
                }
                Ok(Tail::Longer(_)) => return Err(self.damaged(chunk, "its end was not sent")),
                Err(reason) => return Err(self.damaged(chunk, reason)),
            }
        }
    }

    /// Is the same object there already? One with other bytes is an error; a damaged one does not
    /// count.
    async fn is_there(&self, trailer: &ObjectTrailer, length: u64) -> Result<There, Error> {
        let chunk = trailer.chunk;
        match self.look(chunk).await {
            Ok((head, _)) if head.length == length && head.trailer.checks == trailer.checks => {
                Ok(There::Same)
            }
            Ok(_) => Err(Error::Different { chunk, store: self.bucket.whose.store.clone() }),
            Err(Error::Absent { .. }) => Ok(There::Nothing),
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!(%error, "damaged object is put again");
                Ok(There::Damaged)
            }
            Err(error) => Err(error),
        }
    }

    async fn put(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        let length = data.len() as u64;
        for _ in 0..PUT_TRIES {
            if !self.is_conditional {
                match self.is_there(trailer, length).await? {
                    There::Same => return Ok(()),
                    There::Damaged => return self.write(trailer, &data, true).await.map(drop),
                    There::Nothing => {}
                }
            }
            if self.write(trailer, &data, !self.is_conditional).await? {
                return Ok(());
            }
            match self.is_there(trailer, length).await? {
                There::Same => return Ok(()),
                There::Damaged => return self.write(trailer, &data, true).await.map(drop),
                // It went just now.
                There::Nothing => {}
            }
        }
        let why = "the store has it and has it not: another writer?";
        Err(self.bucket.whose.failed("put an object", why.into()))
    }

    /// Writes an object; says whether it is there now. `over`: whatever is there.
    async fn write(
        &self,
        trailer: &ObjectTrailer,
        data: &Bytes,
        over: bool,
    ) -> Result<bool, Error> {
        let (chunk, length) = (trailer.chunk, data.len() as u64);
        let tail = Bytes::from(trailer.to_tail(length));
        let total = length + tail.len() as u64;
        let key = self.prefix.object(chunk);
        let before = match &self.used {
            Some(_) if over => self.bucket.size(&key).await.unwrap_or(0),
            _ => 0,
        };
        self.count().await?;
        if self.used.as_ref().is_some_and(|used| !used.take(total)) {
            // What is there already needs no more room.
            let there = self.is_there(trailer, length).await?;
            return if matches!(there, There::Same) { Ok(true) } else { Err(self.full()) };
        }
        if over {
            self.heads.forget(chunk);
        }
        let epoch = self.heads.epoch();
        let pieces = [data.clone(), tail].into_iter().filter(|piece| !piece.is_empty());
        let put = self.bucket.put(&key, PutPayload::from_iter(pieces), over).await;
        let give_back = |bytes| self.used.iter().for_each(|used| used.give_back(bytes));
        match put {
            Ok(()) => {
                give_back(before);
                let head = Head { length, total, trailer: trailer.clone() };
                self.heads.insert(epoch, Arc::new(head));
                Ok(true)
            }
            Err(Refusal::There) => {
                give_back(total);
                Ok(false)
            }
            // A bucket that is not there: an object needs nothing else.
            Err(Refusal::Absent) => {
                give_back(total);
                Err(self.absent(chunk).await)
            }
            // It may be there: it counts until the next start.
            Err(refusal) => Err(self.of_chunk(chunk, "put an object", refusal).await),
        }
    }

    async fn read(&self, chunk: GrantedId, offset: u64, length: u32) -> Result<Slice, Error> {
        let mut was_other = false;
        loop {
            let (head, tail) = match self.heads.get(chunk) {
                Some(head) => (head, Bytes::new()),
                None => self.look(chunk).await?,
            };
            let range = BlockRange::widen(offset, length, head.length);
            let checks = range.checks(&head.trailer.checks);
            let bytes = self.range(&head, range, &tail).await?;
            let is_sound = bytes.as_ref().is_some_and(|bytes| {
                bytes.len() == range.length as usize && first_mismatch(bytes, &checks).is_none()
            });
            match bytes {
                // Damage shows at the reader, who knows what to do about it.
                Some(bytes) if is_sound || was_other => {
                    let (object_length, file) = (head.length, head.trailer.file);
                    let bulk = if bytes.is_empty() { Bulk::Empty } else { Bulk::from(bytes) };
                    let (offset, tree) = (range.offset, head.trailer.tree.clone());
                    return Ok(Slice { offset, bulk, checks, object_length, file, tree });
                }
                None if was_other => return Err(self.damaged(chunk, "it changes as it is read")),
                // It was replaced since it was looked at, or its bytes were changed on their way.
                _ => self.heads.forget(chunk),
            }
            was_other = true;
        }
    }

    /// The bytes of a range; `None`: they are of another object than the head.
    async fn range(
        &self,
        head: &Head,
        range: BlockRange,
        tail: &Bytes,
    ) -> Result<Option<Bytes>, Error> {
        if range.length == 0 {
            return Ok(Some(Bytes::new()));
        }
        let end = range.offset + u64::from(range.length);
        let tail_start = head.total.saturating_sub(tail.len() as u64);
        if range.offset >= tail_start {
            let within = |at: u64| (at - tail_start) as usize;
            return Ok(Some(tail.slice(within(range.offset)..within(end))));
        }
        let chunk = head.trailer.chunk;
        let asked = Some(GetRange::Bounded(range.offset..end));
        match self.bucket.get(&self.prefix.object(chunk), asked).await {
            Ok((bytes, total)) if total == head.total => Ok(Some(bytes)),
            Ok(_) => Ok(None),
            Err(refusal) => {
                self.heads.forget(chunk);
                Err(self.of_chunk(chunk, "read an object", refusal).await)
            }
        }
    }

    async fn delete(&self, chunk: GrantedId) -> Result<bool, Error> {
        self.count().await?;
        let key = self.prefix.object(chunk);
        // A store deletes what is not there as willingly.
        let total = match self.bucket.size(&key).await {
            Ok(total) => total,
            Err(Refusal::Absent) => {
                self.heads.forget(chunk);
                return self.check_in_place().await.map(|()| false);
            }
            Err(refusal) => return Err(self.of_chunk(chunk, "delete an object", refusal).await),
        };
        self.heads.forget(chunk);
        let deleted = self.bucket.delete(&key).await;
        // Who looked for it meanwhile does not remember it.
        self.heads.forget(chunk);
        match deleted {
            Ok(()) | Err(Refusal::Absent) => {
                self.used.iter().for_each(|used| used.give_back(total));
                Ok(true)
            }
            Err(refusal) => Err(self.of_chunk(chunk, "delete an object", refusal).await),
        }
    }

    async fn list(&self, after: Option<GrantedId>, limit: usize) -> Result<Listed, Error> {
        let objects = self.prefix.objects();
        let mut listed = Listed::default();
        let mut from = after.map(|chunk| self.prefix.object(chunk));
        while listed.chunks.len() < limit {
            let wanted = (limit - listed.chunks.len()).min(PAGE);
            let page = self.bucket.list(&objects, from.as_deref(), wanted).await?;
            for (key, _) in &page.keys {
                match self.prefix.chunk(key) {
                    Some(chunk) => listed.chunks.push(chunk),
                    None if listed.foreign.len() < FOREIGN_MAX => {
                        let path = key.as_bytes().to_vec();
                        listed.foreign.push(Foreign { path, kind: FileKind::Regular });
                    }
                    None => {}
                }
            }
            from = page.next();
            if from.is_none() {
                break;
            }
        }
        Ok(listed)
    }

    /// Counts what is there, if the OST is limited and nobody has.
    async fn count(&self) -> Result<(), Error> {
        let Some(used) = &self.used else { return Ok(()) };
        let objects = self.prefix.objects();
        used.count(async || {
            let (mut bytes, mut from) = (0_u64, None::<String>);
            loop {
                let page = self.bucket.list(&objects, from.as_deref(), PAGE).await?;
                bytes += page.keys.iter().map(|(_, size)| size).sum::<u64>();
                from = page.next();
                if from.is_none() {
                    return Ok(bytes);
                }
            }
        })
        .await
    }

    async fn space(&self) -> Result<Space, Error> {
        self.bucket.check_lately()?;
        self.check_in_place().await?;
        let (given, mut free) = match &self.used {
            Some(used) => (used.given, used.free().unwrap_or(0)),
            None => (UNLIMITED, UNLIMITED),
        };
        if self.seen().full.is_some_and(|when| when.elapsed() < FULL_FOR) {
            free = 0;
        }
        Ok(Space {
            bytes_total: given,
            bytes_free: free,
            unit: 1,
            objects_total: OBJECTS_MAX,
            objects_free: OBJECTS_MAX,
        })
    }

    async fn sync(&self, chunks: &[GrantedId]) -> Result<(), Error> {
        for &chunk in chunks {
            if self.heads.get(chunk).is_none() {
                self.look(chunk).await?;
            }
        }
        Ok(())
    }
}

enum There {
    Same,
    Nothing,
    Damaged,
}

#[async_trait::async_trait]
impl ChunkStore for S3Chunks {
    fn abilities(&self) -> Abilities {
        Abilities { range: true, append: false, rename: true, sendfile: false }
    }

    fn describe(&self) -> String {
        self.inner.bucket.whose.store.clone()
    }

    async fn put(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        self.inner.put(trailer, data).await
    }

    async fn replace(&self, trailer: &ObjectTrailer, data: Bytes) -> Result<(), Error> {
        self.inner.write(trailer, &data, true).await.map(drop)
    }

    async fn read(&self, chunk: GrantedId, offset: u64, length: u32) -> Result<Slice, Error> {
        self.inner.read(chunk, offset, length).await
    }

    fn forget(&self, chunk: GrantedId) {
        self.inner.heads.forget(chunk);
    }

    async fn stat(&self, chunk: GrantedId) -> Result<(ObjectTrailer, u64), Error> {
        let (head, _) = self.inner.look(chunk).await?;
        Ok((head.trailer.clone(), head.length))
    }

    async fn delete(&self, chunk: GrantedId) -> Result<bool, Error> {
        self.inner.delete(chunk).await
    }

    /// What was put here is there; what others put is looked for.
    async fn sync(&self, chunks: &[GrantedId]) -> Result<(), Error> {
        self.inner.sync(chunks).await
    }

    async fn list(&self, after: Option<GrantedId>, limit: usize) -> Result<Listed, Error> {
        self.inner.list(after, limit).await
    }

    async fn space(&self) -> Result<Space, Error> {
        self.inner.space().await
    }
}

#[cfg(test)]
mod tests;
