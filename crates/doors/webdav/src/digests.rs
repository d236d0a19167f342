//! Checksums of whole files, as clients ask for them: `Want-Digest` (RFC 3230) and
//! `Want-Repr-Digest` (RFC 9530).
//!
//! Adler-32 is put together from the chunks'. Others cost reading the file, so they are told of
//! files up to [`READ_MAX`], a few at a time. They are remembered for as long as the bytes are the
//! same, as is the sum of what was put here: clients ask for it next.
//! What is not told is left out: no request fails for want of a checksum.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tieline_files::{Access, Entry, Files, Held, Result, Stream, Who};
use tieline_http::HeaderMap;
use tieline_http::digest::{Algorithm, Digest, Hashing, parse_want_digest, parse_want_repr_digest};
use tieline_http::header::HeaderName;
use tieline_http::server::{Request, Response};
use tieline_types::Attributes;
use tokio::sync::Semaphore;

/// Larger files are not read to be summed: a client would wait for minutes.
const READ_MAX: u64 = 256 << 20;
/// Files that are read for that at the same time.
const READERS: usize = 4;
const KNOWN_MAX: usize = 4096;

pub const DIGEST: HeaderName = HeaderName::from_static("digest");
pub const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
const WANT_DIGEST: HeaderName = HeaderName::from_static("want-digest");
const WANT_REPR_DIGEST: HeaderName = HeaderName::from_static("want-repr-digest");

type Known = BTreeMap<(u64, u64, Algorithm), Digest>;

/// What was computed before.
pub struct Digests {
    known: Mutex<Known>,
    readers: Semaphore,
}

impl Default for Digests {
    fn default() -> Self {
        Self { known: Mutex::default(), readers: Semaphore::new(READERS) }
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Default)]
pub struct Wanted {
    old: Option<Algorithm>,
    new: Option<Algorithm>,
}

impl Wanted {
    /// The one that is wanted most, of each kind of header.
    pub fn of(request: &Request) -> Self {
        let text = |name| joined(&request.headers, &name);
        let first = |all: Vec<Algorithm>| all.first().copied();
        Self {
            old: text(WANT_DIGEST).and_then(|text| first(parse_want_digest(&text))),
            new: text(WANT_REPR_DIGEST).and_then(|text| first(parse_want_repr_digest(&text))),
        }
    }

    pub fn algorithms(self) -> Vec<Algorithm> {
        self.old.into_iter().chain(self.new).collect()
    }

    /// With the headers that were asked for, as far as they are known.
    pub fn tell(self, mut response: Response, digests: &[Digest]) -> Response {
        let find = |wanted: Option<Algorithm>| {
            wanted.and_then(|wanted| digests.iter().find(|one| one.algorithm() == wanted))
        };
        if let Some(digest) = find(self.old) {
            response = response.with_text(DIGEST, &digest.to_digest());
        }
        match find(self.new) {
            Some(digest) => response.with_text(REPR_DIGEST, &digest.to_repr_digest()),
            None => response,
        }
    }
}

/// The values of a header that may stand there several times.
pub fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut texts = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).peekable();
    texts.peek()?;
    Some(texts.collect::<Vec<_>>().join(","))
}

impl Digests {
    /// Those of a file that are known or can be had soon.
    pub async fn of(
        &self,
        (files, who): (&Arc<dyn Files>, &Who),
        entry: &Entry,
        wanted: Wanted,
    ) -> Vec<Digest> {
        let (mut digests, mut missing) = (Vec::new(), Vec::new());
        for algorithm in wanted.algorithms() {
            let mut known = self.known(&entry.attributes, algorithm);
            if known.is_none() && algorithm == Algorithm::Adler32 {
                let sum = files.adler32(&who.caller, entry.id()).await;
                known = sum.ok().map(Digest::adler32);
            }
            match known {
                Some(known) => digests.push(known),
                None => missing.push(algorithm),
            }
        }
        if !missing.is_empty() && entry.attributes.size <= READ_MAX {
            match self.read(files, who, entry, &missing).await {
                Ok(read) => digests.extend(read),
                Err(error) => tracing::info!(%error, "a checksum is not told"),
            }
        }
        digests
    }

    async fn read(
        &self,
        files: &Arc<dyn Files>,
        who: &Who,
        entry: &Entry,
        algorithms: &[Algorithm],
    ) -> Result<Vec<Digest>> {
        // Never closed.
        let _turn = self.readers.acquire().await;
        let access = Access { read: true, ..Access::default() };
        let held = Held::open(files.clone(), who, entry, access).await?;
        let mut hashing = Hashing::new(algorithms);
        let mut stream = Stream::of(files.clone(), held.handle, 0..held.attributes.size);
        while let Some(piece) = stream.next().await {
            let piece: Bytes = piece?;
            hashing.update(&piece);
        }
        let digests = hashing.finish();
        self.remember(&held.attributes, &digests);
        Ok(digests)
    }

    /// Those that are known without asking anybody.
    pub fn remembered(&self, attributes: &Attributes, wanted: Wanted) -> Vec<Digest> {
        let wanted = wanted.algorithms().into_iter();
        wanted.filter_map(|algorithm| self.known(attributes, algorithm)).collect()
    }

    /// These are of the bytes that a file has now.
    pub fn remember(&self, attributes: &Attributes, digests: &[Digest]) {
        let version = attributes.content_version();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for digest in digests {
            if known.len() >= KNOWN_MAX {
                known.pop_first();
            }
            let key = (version.file.0, version.commit.0, digest.algorithm());
            known.insert(key, digest.clone());
        }
    }

    fn known(&self, attributes: &Attributes, algorithm: Algorithm) -> Option<Digest> {
        let version = attributes.content_version();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(version.file.0, version.commit.0, algorithm)).cloned()
    }
}
