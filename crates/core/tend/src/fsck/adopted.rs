//! Adopted files: each that chunks lie in is there, and is what it was when it was adopted.
//!
//! Its OSS looks at size and time; with all bytes to be read, also whether they are those that the
//! kept digests are of. Nobody else would notice before a reader does.

use super::objects::{Bad, Fault};
use super::{Check, PAGE};
use crate::error::Result;
use std::sync::Arc;
use std::time::Duration;
use tieline_format::Record;
use tieline_format::mdt::{Chunk, key};
use tieline_types::{Digest, ErrorKind, GrantedId, ObjectName, OstIndex, OstPlace};
use tieline_wire::Failure;
use tieline_wire::mirrors::{VerifyObject, VerifyObjectReply};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Files that an OSS looks at at once: it may be far.
const LOOKS: usize = 64;
/// Chunks that it reads at once.
const READS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// A chunk, and the adopted file that it lies in at one OST.
struct Lies {
    chunk: GrantedId,
    place: OstPlace,
    digest: Option<Digest>,
}

impl Check {
    /// Looks at all adopted files of an OST. What the OST fails with ends it.
    pub(super) async fn adopted_of(
        &mut self,
        ost: OstIndex,
        bad: &mut Bad,
    ) -> Result<Result<(), Failure>> {
        let (mut start, end) = (key::kind(b'k'), key::after(&key::kind(b'k')));
        loop {
            let page = self.page(&mut start, &end).await?;
            if page.is_empty() {
                return Ok(Ok(()));
            }
            let chunks = page.iter().filter_map(|(key, value)| {
                let chunk = Chunk::from_bytes(value).ok().filter(|chunk| chunk.references > 0)?;
                let place = chunk.places.iter().find(|place| {
                    let is_external = matches!(place.object, ObjectName::External { .. });
                    place.ost == ost && is_external && !place.is_stale
                })?;
                let (chunk_id, place) = (key::chunk_id(key)?, place.clone());
                Some(Lies { chunk: chunk_id, place, digest: chunk.digest })
            });
            for (lies, found) in self.look_at(chunks.collect()).await {
                let fault = match fault(&lies, found) {
                    Ok(None) => continue,
                    Ok(Some(fault)) => fault,
                    Err(failure) => return Ok(Err(failure)),
                };
                self.hurt((ost, lies.chunk), fault, bad).await?;
            }
        }
    }

    /// Asks for some chunks at once; answers in their order.
    async fn look_at(
        &mut self,
        chunks: Vec<Lies>,
    ) -> Vec<(Lies, Result<VerifyObjectReply, Failure>)> {
        let reads = self.job.reads_bytes;
        let places = Arc::new(Semaphore::new(if reads { READS } else { LOOKS }));
        let mut looks = JoinSet::new();
        for (number, lies) in chunks.into_iter().enumerate() {
            let Ok(place) = places.clone().acquire_owned().await else { break };
            if self.job.check_asked().is_err() {
                break;
            }
            let mender = self.parts.mender.clone();
            looks.spawn(async move {
                let _place = place;
                let OstPlace { ost, ref object, offset, length, .. } = lies.place;
                let length = if reads { length } else { 0 };
                let object = object.clone();
                let message = VerifyObject { ost, object, offset, length, capability: None };
                let found = mender.verify(message, PATIENCE).await;
                (number, (lies, found))
            });
        }
        let mut found = Vec::with_capacity(PAGE);
        while let Some(look) = looks.join_next().await {
            found.extend(look.ok());
        }
        found.sort_by_key(|(number, _)| *number);
        self.job.state().looked_at += found.len() as u64;
        found.into_iter().map(|(_, look)| look).collect()
    }
}

/// What is wrong with an adopted file, if something is.
fn fault(lies: &Lies, found: Result<VerifyObjectReply, Failure>) -> Result<Option<Fault>, Failure> {
    let told = |what, why| Ok(Some(Fault { what, why, ranges: vec![] }));
    match found {
        // Its place and size were looked at alone.
        Ok(reply) if reply.length == 0 => Ok(None),
        Ok(reply) if reply.length != lies.place.length => {
            let (is, should) = (reply.length, lies.place.length);
            told("wrong-chunk", format!("it has {is} bytes, not {should}"))
        }
        Ok(reply) if lies.digest.is_some_and(|digest| digest != reply.digest) => {
            let why = "the adopted file's bytes are not those that were adopted: restore it, or \
                       take them as they are by `tieline import --in-place --compare`";
            told("wrong-chunk", why.to_owned())
        }
        Ok(_) => Ok(None),
        Err(failure) => match failure.kind {
            ErrorKind::Corrupt | ErrorKind::Gone => told("adopted-changed", failure.detail),
            ErrorKind::StorageFault => told("adopted-unreadable", failure.detail),
            _ => Err(failure),
        },
    }
}
