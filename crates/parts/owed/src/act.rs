//! Operations that a client decides by itself, and their records until an MDS knows them.

use crate::cause::{self, Cause};
use crate::records::{ACT, ActToKeep, KeptAct, put};
use crate::writes::Cut;
use std::sync::Arc;
use tieline_keep::{Keep, Kept};
use tieline_types::{Caller, FileId, Name, Time, Version};
use tieline_wire::Request;
use tieline_wire::meta::BatchItem;

/// An operation that was decided here.
#[derive(Clone)]
pub struct Act {
    pub item: BatchItem,
    /// Files that it changed, and the directories that they lie in.
    pub files: Vec<FileId>,
    pub names: Vec<(FileId, Name)>,
    /// It made a directory, or changed who may do what in one.
    pub rights: Option<FileId>,
    /// The version that it left its file with.
    pub version: Version,
    /// Written bytes that are in it.
    pub cuts: Vec<Cut>,
}

impl Act {
    pub fn new(caller: &Caller, at: Time, id: FileId, version: Version, request: Request) -> Self {
        let (op, message) = (request.op().number(), request.encode_message());
        let item = BatchItem { caller: caller.clone(), at, id, op, message };
        Self { item, files: vec![id], names: vec![], rights: None, version, cuts: vec![] }
    }

    pub fn names(mut self, names: impl IntoIterator<Item = (FileId, Name)>) -> Self {
        self.names.extend(names);
        self.files.extend(self.names.iter().map(|(parent, _)| *parent));
        self
    }

    /// Another file that it changes.
    pub fn also(mut self, file: Option<FileId>) -> Self {
        self.files.extend(file);
        self
    }

    pub fn rights(mut self, of: FileId) -> Self {
        self.rights = Some(of);
        self
    }

    pub fn cuts(mut self, cuts: Vec<Cut>) -> Self {
        self.cuts = cuts;
        self
    }

    pub fn bytes(&self) -> usize {
        self.item.weight()
    }
}

/// An operation's record, and what it leaves when it goes.
pub struct ActRecord {
    kept: Option<Kept>,
    cause: Option<Arc<Cause>>,
    op: u16,
    id: FileId,
}

impl ActRecord {
    pub fn put(keep: &Keep, act: &Act) -> Self {
        let (op, id) = (act.item.op, act.item.id);
        if !keep.is_on() {
            return Self { kept: None, cause: None, op, id };
        }
        let cause = cause::current();
        let record = ActToKeep {
            item: &act.item,
            files: &act.files,
            names: &act.names,
            rights: act.rights,
            version: act.version.0,
            cause: cause.as_ref().map_or(0, |cause| cause.number),
            cuts: &act.cuts,
        };
        Self { kept: put(keep, ACT, id.0, &record), cause, op, id }
    }

    pub fn restored(kept: Kept, act: &KeptAct) -> Self {
        Self { kept: Some(kept), cause: None, op: act.item.op, id: act.item.id }
    }
}

impl Drop for ActRecord {
    fn drop(&mut self) {
        if let Some(cause) = &self.cause {
            cause.leave_mark(self.op, self.id);
        }
        drop(self.kept.take());
    }
}
