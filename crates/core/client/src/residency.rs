//! Where the bytes of a file are to be had ([`tieline_types::residency`]), as far as is seen from
//! here: an OST answers if its server is connected, or is so within [`PATIENCE`].

use crate::Result;
use crate::reader::EXTENTS_PAGE;
use crate::shared::Shared;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tieline_types::{Caller, Content, FileId, OstIndex, Residency, Standing};
use tieline_wire::meta::{ExtentPage, GetExtents};
use tokio::time::{Instant, sleep};

/// Who asks waits no longer for servers that do not answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether they do.
const PAUSE: Duration = Duration::from_millis(10);

impl Shared {
    pub(crate) async fn residency(
        self: &Arc<Self>,
        caller: &Caller,
        id: FileId,
    ) -> Result<Residency> {
        let (mut found, mut offset) = (Residency::Online, 0);
        let mut standings = BTreeMap::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = GetExtents { id, offset, limit: EXTENTS_PAGE };
            let reply = self.ask(caller, id, message).await?.reply;
            self.stand(&reply.page, deadline, &mut standings).await;
            let standing = |ost| standings.get(&ost).copied().unwrap_or(Standing::Unknown);
            found = found.and(Residency::of(&reply.page.extents, standing));
            let is_end = reply.page.covered >= reply.attributes.size;
            // It gets no worse; and a page that does not go on is the last.
            if is_end || found == Residency::Lost || reply.page.covered <= offset {
                return Ok(found.with_tape(reply.attributes.tape));
            }
            offset = reply.page.covered;
        }
    }

    /// Learns of the OSTs that a page names.
    async fn stand(
        &self,
        page: &ExtentPage,
        deadline: Instant,
        standings: &mut BTreeMap<OstIndex, Standing>,
    ) {
        let chunks = page.extents.iter().filter_map(|extent| match &extent.content {
            Content::Chunk(chunk) => Some(chunk),
            Content::Inline(_) | Content::Hole => None,
        });
        let osts = chunks.flat_map(|chunk| chunk.places.iter().filter_map(|place| place.ost()));
        let mut unknown: Vec<OstIndex> = osts.filter(|ost| !standings.contains_key(ost)).collect();
        unknown.sort();
        unknown.dedup();
        unknown.iter().for_each(|ost| self.servers.warm(std::slice::from_ref(ost)));
        loop {
            unknown.retain(|&ost| match self.servers.oss(ost) {
                Ok(server) if server.is_connected() => {
                    standings.insert(ost, Standing::Answers);
                    false
                }
                Ok(_) => true,
                Err(_) => {
                    standings.insert(ost, Standing::Unknown);
                    false
                }
            });
            if unknown.is_empty() || Instant::now() >= deadline {
                break;
            }
            sleep(PAUSE).await;
        }
        standings.extend(unknown.into_iter().map(|ost| (ost, Standing::Silent)));
    }
}
