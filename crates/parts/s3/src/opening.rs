//! Where a bucket is, and whose it is: made once, and looked at whenever it is opened.

use crate::bucket::Bucket;
use crate::credentials::Credentials;
use crate::head::Heads;
use crate::key::Prefix;
use crate::trouble::{Refusal, Whose};
use crate::used::Used;
use crate::{Inner, MARKER_FRESH, S3Chunks, Seen};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tieline_blob::owner::{self, MARKER, MARKER_MAX};
use tieline_blob::{Error, Identity};
use tieline_http::url::Url;
use tieline_world::World;
use tokio::time::Instant;

/// Where an OST's objects are.
#[derive(Clone, Debug)]
pub struct Settings {
    pub bucket: String,
    /// Below which key; empty for all of the bucket.
    pub prefix: String,
    /// Of the store; `None`: AWS, in this region.
    pub endpoint: Option<String>,
    pub region: String,
    pub credentials: Credentials,
    /// A file of certificates that are believed in place of the system's.
    pub authorities: Option<PathBuf>,
    /// Bytes that objects may use.
    pub given: Option<u64>,
}

impl Settings {
    /// Where requests go.
    pub fn endpoint(&self) -> Result<Url, String> {
        let amazon = || format!("https://s3.{}.amazonaws.com", self.region);
        let text = self.endpoint.clone().unwrap_or_else(amazon);
        Url::parse(&text).map_err(|error| format!("endpoint `{text}`: {error}"))
    }

    /// For messages: no two OSTs have the same.
    pub fn describe(&self) -> String {
        format!("s3://{}/{} at {}", self.bucket, self.prefix, self.shown_endpoint())
    }

    fn shown_endpoint(&self) -> String {
        self.endpoint().map_or_else(|error| error, |url| url.origin.to_string())
    }

    pub(crate) fn whose(&self) -> Whose {
        let endpoint = self.shown_endpoint();
        Whose {
            store: self.describe(),
            bucket: self.bucket.clone(),
            endpoint,
            credentials: self.credentials.describe(),
        }
    }
}

impl S3Chunks {
    /// Makes a prefix the store of `identity`, and gives the uuid by which it is known again. One
    /// that has an owner is refused, whoever that is: another server may be serving it.
    pub async fn format(
        settings: &Settings,
        identity: &Identity,
        world: &World,
    ) -> Result<String, Error> {
        let bucket = Bucket::new(settings, world)?;
        let prefix = Prefix::new(&settings.prefix);
        let marker = read_marker(&bucket, &prefix).await?;
        if marker.is_none() {
            if !bucket.list(&prefix.objects(), None, 1).await?.keys.is_empty() {
                return Err(bucket.whose.wrong("it holds objects but no marker: whose are they?"));
            }
            let mut uuid = [0; 16];
            world.dice.fill(&mut uuid);
            let text = Bytes::from(owner::marker(identity, uuid));
            match bucket.put(&prefix.beside(MARKER), text.into(), false).await {
                // Another was quicker.
                Ok(()) | Err(Refusal::There) => {}
                Err(Refusal::Other(error)) => return Err(error),
                Err(Refusal::Absent) => return Err(bucket.whose.missing("no such bucket")),
            }
            let text = read_marker(&bucket, &prefix).await?.unwrap_or_default();
            let written = owner::check(&text, identity).map_err(|why| bucket.whose.wrong(why))?;
            let own: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            if written == own {
                return Ok(own);
            }
            return Err(taken(&bucket, identity, &written));
        }
        let uuid = owner::check(&marker.unwrap_or_default(), identity)
            .map_err(|why| bucket.whose.wrong(why))?;
        Err(taken(&bucket, identity, &uuid))
    }

    /// Opens the store of `identity` that [`Self::format`] gave `uuid`.
    pub async fn open(
        settings: &Settings,
        identity: &Identity,
        uuid: &str,
        world: &World,
    ) -> Result<Self, Error> {
        let mut inner = Inner {
            bucket: Bucket::new(settings, world)?,
            prefix: Prefix::new(&settings.prefix),
            identity: identity.clone(),
            uuid: uuid.to_owned(),
            is_conditional: true,
            heads: Heads::default(),
            used: settings.given.map(Used::new),
            seen: Mutex::new(Seen::default()),
        };
        let marker = inner.marker().await?;
        // The same bytes: whatever the store makes of the condition, nothing changes.
        let again = inner.bucket.put(&inner.prefix.beside(MARKER), marker.into(), false).await;
        inner.is_conditional = match again {
            Err(Refusal::There) => true,
            Ok(()) | Err(Refusal::Absent) => false,
            Err(Refusal::Other(error)) => return Err(error),
        };
        let (store, ost) = (&inner.bucket.whose.store, identity.ost.label());
        tracing::info!(%store, %ost, uuid, "opened bucket");
        if !inner.is_conditional {
            tracing::warn!(%store, %ost, "the store knows no If-None-Match: it is asked before \
                each put, and must not be served twice");
        }
        let store = Self { inner: Arc::new(inner) };
        if store.inner.used.is_some() {
            tokio::spawn(count(Arc::downgrade(&store.inner)));
        }
        Ok(store)
    }
}

/// Counts in the background, so that the first who puts need not wait.
async fn count(inner: std::sync::Weak<Inner>) {
    while let Some(inner) = inner.upgrade() {
        match inner.count().await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "objects cannot be counted yet"),
        }
        drop(inner);
        tokio::time::sleep(MARKER_FRESH * 5).await;
    }
}

impl Inner {
    /// The marker's text, if it is as it was.
    async fn marker(&self) -> Result<String, Error> {
        let whose = &self.bucket.whose;
        let text = read_marker(&self.bucket, &self.prefix).await?.ok_or_else(|| {
            whose.missing(format!(
                "its marker {MARKER} is gone: was the bucket emptied, or made anew? put its \
                 objects back with their marker, or give this server another prefix"
            ))
        })?;
        let uuid = owner::check(&text, &self.identity).map_err(|why| whose.wrong(why))?;
        if uuid != self.uuid {
            return Err(taken(&self.bucket, &self.identity, &uuid));
        }
        Ok(text)
    }

    /// Says why the bucket is no longer what it was, if so.
    pub(crate) async fn check_in_place(&self) -> Result<(), Error> {
        let is_fresh = self.seen().marker.is_some_and(|when| when.elapsed() < MARKER_FRESH);
        if !is_fresh {
            self.marker().await?;
            self.seen().marker = Some(Instant::now());
        }
        Ok(())
    }
}

fn taken(bucket: &Bucket, identity: &Identity, uuid: &str) -> Error {
    let made = format!("{}.made", identity.ost.label().to_lowercase());
    bucket.whose.wrong(format!(
        "another server made it for {identity} (uuid {uuid}): give this OST another `prefix`; if \
         that server is gone and this one takes its place, write the uuid into {made} of its state \
         directory"
    ))
}

/// `None`: there is none.
async fn read_marker(bucket: &Bucket, prefix: &Prefix) -> Result<Option<String>, Error> {
    match bucket.get(&prefix.beside(MARKER), None).await {
        Ok((text, length)) if length <= MARKER_MAX => {
            Ok(Some(String::from_utf8_lossy(&text).into_owned()))
        }
        Ok(_) => Err(bucket.whose.wrong(format!("its marker {MARKER} is no marker"))),
        Err(Refusal::Absent) => Ok(None),
        Err(Refusal::There) => Err(bucket.whose.missing("its marker cannot be read")),
        Err(Refusal::Other(error)) => Err(error),
    }
}
