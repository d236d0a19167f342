//! What clients tell and ask of copies: bad places, and what a file lacks.
//!
//! Whoever has copies made hears of it through [`crate::CopyMender`].

use crate::Asker;
use crate::chunks;
use crate::error::{Error, Result};
use crate::mdt::Mdt;
use crate::mirrors::copies_of;
use crate::ops::open_kind;
use crate::permission;
use crate::view::{Keepers, View};
use tieline_types::{Content, Grant};
use tieline_wire::mirrors::{
    LackingChunk, ReportPlace, ReportPlaceReply, ResyncFile, ResyncFileReply,
};

impl Mdt {
    /// Somebody found a place bad: the worker has its OSS look.
    pub(crate) fn report_place(&self, report: &ReportPlace) -> Result<ReportPlaceReply> {
        if report.chunk.mdt != self.settings.mdt {
            return Err(Error::Invalid { what: "the chunk belongs to another MDT" });
        }
        let (chunk, ost) = (report.chunk, report.ost.label());
        tracing::info!(%chunk, ost, what = report.what, "a copy is reported as bad");
        self.parts.copies.suspect(report.chunk, report.ost);
        Ok(ReportPlaceReply {})
    }

    /// Has what a page of a file lacks made before others, and tells what that is.
    pub(crate) async fn resync_file(
        &self,
        asker: &Asker,
        request: &ResyncFile,
    ) -> Result<ResyncFileReply> {
        let map = self.parts.map.current();
        let nobody = Keepers::new();
        let scene = self.scene(asker, Grant(0), &map.map, &nobody);
        let mut view = View::new(scene, self.parts.store.begin().await?);
        let id = request.id;
        let inode = view.inode(id).await?;
        open_kind(id, &inode)?;
        permission::check_owner(id, &inode, &asker.caller, "have its mirrors made")?;
        let limit = (request.limit as usize).clamp(1, crate::ops::EXTENTS_MAX);
        let page = chunks::page(&mut view, id, &inode, request.offset, limit).await?;
        view.commit().await?.durable.await?;
        let mut reply = ResyncFileReply { covered: page.covered, chunks: 0, lacking: vec![] };
        for extent in &page.extents {
            let Content::Chunk(chunk) = &extent.content else { continue };
            reply.chunks += 1;
            let Some((own, places)) = chunk.granted() else { continue };
            let copies = map.map.copies_lacking(own, &places, copies_of(&inode));
            if copies > 0 {
                reply.lacking.push(LackingChunk {
                    offset: extent.offset,
                    chunk: own,
                    length: chunk.length,
                    copies: copies as u32,
                    trouble: self.parts.copies.hurry(own, id),
                });
            }
        }
        Ok(reply)
    }
}
