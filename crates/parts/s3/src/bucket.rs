//! The few things that are asked of a bucket, each with a deadline and in its turn.

use crate::AT_ONCE;
use crate::connector::Connector;
use crate::credentials::Provider;
use crate::opening::Settings;
use crate::trouble::{Refusal, Whose};
use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum, S3ConditionalPut};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode,
    PutPayload, RetryConfig,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_blob::Error;
use tieline_world::World;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// For one thing that is asked, with all its repetitions and the wait for a turn.
const PATIENCE: Duration = Duration::from_secs(40);
/// Nothing is asked again after so long.
const REPEAT_WITHIN: Duration = Duration::from_secs(15);
const REPEATS_MAX: usize = 8;
/// What was found of a store that is away is told for so long without asking again.
const AWAY_FRESH: Duration = Duration::from_secs(10);

/// A bucket.
pub(crate) struct Bucket {
    store: AmazonS3,
    turns: Semaphore,
    /// Since when it is away, as far as anybody asked, and why.
    away: Mutex<Option<(Instant, String)>>,
    pub whose: Whose,
}

impl Bucket {
    pub fn new(settings: &Settings, world: &World) -> Result<Self, Error> {
        let whose = settings.whose();
        let url = settings.endpoint().map_err(|why| whose.wrong(why))?;
        let connector = Connector::new(world, &url, settings.authorities.as_deref(), AT_ONCE)
            .map_err(|error| whose.wrong(format!("no TLS for {url}: {error}")))?;
        let retry = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(4),
                base: 2.0,
            },
            max_retries: REPEATS_MAX,
            retry_timeout: REPEAT_WITHIN,
        };
        let provider = Arc::new(Provider::new(settings.credentials.clone()));
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&settings.bucket)
            .with_region(&settings.region)
            .with_credentials(provider)
            .with_client_options(ClientOptions::new().with_allow_http(true))
            .with_allow_http(true)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // The store compares: what it has is what was sent.
            .with_checksum_algorithm(Checksum::SHA256)
            .with_disable_bulk_delete(true)
            .with_retry(retry)
            .with_http_connector(connector);
        if let Some(endpoint) = &settings.endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
        }
        let store = builder.build().map_err(|error| whose.wrong(error.to_string()))?;
        Ok(Self { store, turns: Semaphore::new(AT_ONCE), away: Mutex::default(), whose })
    }

    async fn ask<T>(
        &self,
        doing: &'static str,
        asking: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Refusal> {
        let in_turn = async {
            // It is never closed; if it were, requests would only lose their bound.
            let _turn = self.turns.acquire().await;
            asking.await
        };
        let answer = match tokio::time::timeout(PATIENCE, in_turn).await {
            Ok(answer) => answer.map_err(|error| self.whose.refusal(doing, &error)),
            Err(_) => {
                let (endpoint, patience) = (&self.whose.endpoint, PATIENCE.as_secs());
                let why = format!("{endpoint} did not do it within {patience} s");
                Err(Refusal::Other(self.whose.missing(why)))
            }
        };
        self.note(&answer);
        answer
    }

    /// Says in the log that the store went away, or is back: once each.
    fn note<T>(&self, answer: &Result<T, Refusal>) {
        let why = match answer {
            Err(Refusal::Other(Error::Missing { reason, .. })) => Some(reason),
            _ => None,
        };
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let (store, was_away) = (&self.whose.store, away.is_some());
        *away = why.map(|why| (Instant::now(), why.clone()));
        match &*away {
            Some((_, why)) if !was_away => {
                tracing::warn!(%store, %why, "store is away: reads and writes fail for now");
            }
            None if was_away => tracing::info!(%store, "store is back"),
            _ => {}
        }
    }

    /// Why it is away, if somebody found it so lately: who only wants to know need not try again.
    pub fn check_lately(&self) -> Result<(), Error> {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        match &*away {
            Some((when, why)) if when.elapsed() < AWAY_FRESH => {
                Err(self.whose.missing(why.as_str()))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of an object, and how many it has.
    pub async fn get(&self, key: &str, range: Option<GetRange>) -> Result<(Bytes, u64), Refusal> {
        let path = Path::from(key);
        let asking = async {
            let options = GetOptions { range, ..GetOptions::default() };
            let got = self.store.get_opts(&path, options).await?;
            let total = got.meta.size;
            Ok((got.bytes().await?, total))
        };
        self.ask("read an object", asking).await
    }

    /// Bytes of an object.
    pub async fn size(&self, key: &str) -> Result<u64, Refusal> {
        let path = Path::from(key);
        let asking = async { Ok(self.store.head(&path).await?.size) };
        self.ask("look at an object", asking).await
    }

    /// `over`: whatever is there.
    pub async fn put(&self, key: &str, payload: PutPayload, over: bool) -> Result<(), Refusal> {
        let path = Path::from(key);
        let mode = if over { PutMode::Overwrite } else { PutMode::Create };
        let asking = self.store.put_opts(&path, payload, mode.into());
        self.ask("put an object", asking).await.map(drop)
    }

    pub async fn delete(&self, key: &str) -> Result<(), Refusal> {
        let path = Path::from(key);
        self.ask("delete an object", self.store.delete(&path)).await
    }

    /// Up to `limit` keys after `after`, in their order, with the bytes of their objects.
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, Error> {
        let options = PaginatedListOptions {
            offset: after.map(str::to_owned),
            max_keys: Some(limit),
            ..PaginatedListOptions::default()
        };
        let asking = self.store.list_paginated(Some(prefix), options);
        let page = self.ask("list objects", asking).await.map_err(|refusal| match refusal {
            Refusal::Other(error) => error,
            Refusal::Absent | Refusal::There => self.whose.missing("its objects cannot be listed"),
        })?;
        let found = page.result.objects.into_iter();
        let mut keys: Vec<_> = found.map(|meta| (meta.location.to_string(), meta.size)).collect();
        // Nothing that was there before, whatever a store takes `start-after` for.
        keys.retain(|(key, _)| after.is_none_or(|after| key.as_str() > after));
        keys.sort_unstable();
        Ok(Page { is_end: page.page_token.is_none(), keys })
    }
}

/// Some of a bucket's keys, with the bytes of their objects.
pub(crate) struct Page {
    pub keys: Vec<(String, u64)>,
    /// There are no more.
    pub is_end: bool,
}

impl Page {
    /// Behind which key the next page begins.
    pub fn next(&self) -> Option<String> {
        self.keys.last().filter(|_| !self.is_end).map(|(key, _)| key.clone())
    }
}
