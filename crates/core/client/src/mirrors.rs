//! Copies of a file's chunks, as operators look after them.

use crate::{Result, Volume};
use bytes::Bytes;
use tieline_believed::Under;
use tieline_types::{Caller, FileId, OstPlace, PoolName};
use tieline_wire::mirrors::{
    ExtendMirrors, ReportPlace, ResyncFile, ResyncFileReply, SplitMirror, SplitMirrorReply,
    VerifyObject, VerifyObjectReply,
};

/// Extents in one look.
const PAGE: u32 = 256;

impl Volume {
    /// Gives a file `count` more mirrors, in `pool` or where it is. Its chunks are copied in the
    /// background; [`Volume::resync_file`] tells how far that is.
    pub async fn extend_mirrors(
        &self,
        caller: &Caller,
        id: FileId,
        count: u8,
        pool: Option<PoolName>,
    ) -> Result<()> {
        let (shared, caller) = (self.shared.clone(), caller.clone());
        let work = async move {
            let asked = shared.ask(&caller, id, ExtendMirrors { id, count, pool }).await;
            let told = asked.inspect_err(|error| shared.doubt_change(id, error))?;
            let reply = told.reply;
            {
                let mut tables = shared.cache.lock();
                let known = tables.admit(told.stamp, &reply.lease);
                tables.learn_attributes(known, &reply.lease, Under::Granted, reply.attributes);
            }
            if let Some(file) = shared.files.known(id) {
                // The next open asks.
                file.with(|state| state.layout = None);
            }
            Ok(())
        };
        self.shared.detached(work).await
    }

    /// Takes a page of copies of a file away, or looks what would go.
    pub async fn split_mirror(
        &self,
        caller: &Caller,
        wish: SplitMirror,
    ) -> Result<SplitMirrorReply> {
        let (shared, caller) = (self.shared.clone(), caller.clone());
        let work = async move {
            let id = wish.id;
            let asked = shared.ask(&caller, id, wish).await;
            let told = asked.inspect_err(|error| shared.doubt_change(id, error))?;
            let reply = told.reply;
            {
                let mut tables = shared.cache.lock();
                let known = tables.admit(told.stamp, &reply.lease);
                let attributes = reply.attributes.clone();
                tables.learn_attributes(known, &reply.lease, Under::Granted, attributes);
            }
            if let Some(file) = shared.files.known(id) {
                // The next open asks.
                file.with(|state| state.layout = None);
            }
            Ok(reply)
        };
        self.shared.detached(work).await
    }

    /// Has the copies that a page of the file lacks made before others; tells which are lacking.
    pub async fn resync_file(
        &self,
        caller: &Caller,
        id: FileId,
        offset: u64,
    ) -> Result<ResyncFileReply> {
        let message = ResyncFile { id, offset, limit: PAGE };
        Ok(self.shared.ask(caller, id, message).await?.reply)
    }

    /// Has a place read and checked where it lies.
    pub async fn verify_place(&self, place: &OstPlace) -> Result<VerifyObjectReply> {
        let OstPlace { ost, offset, length, .. } = *place;
        let message =
            VerifyObject { ost, object: place.object.clone(), offset, length, capability: None };
        let wait = self.shared.servers.wait_for_osts([ost]);
        Ok(self.shared.servers.ask_oss(ost, message, Bytes::new(), wait).await?.0)
    }

    /// Tells the MDS of a bad place, so that it is made whole again.
    pub async fn report_place(&self, report: ReportPlace) {
        self.shared.chunks.osts.report(report).await;
    }
}
