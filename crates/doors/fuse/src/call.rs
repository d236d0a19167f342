//! One request on its way through the operations.

use crate::abi::incoming::{Header, Reader};
use crate::abi::opcode::Opcode;
use crate::session::Session;
use bytes::Bytes;
use std::sync::Arc;
use tieline_client::FileSystem;
use tieline_types::{Caller, FileId};

pub struct Call {
    pub session: Arc<Session>,
    pub header: Header,
    pub opcode: Opcode,
    /// Arguments, and the data of a write.
    pub body: Bytes,
    /// Groups that the request itself names.
    groups: Vec<u32>,
}

impl Call {
    pub fn new(
        session: Arc<Session>,
        header: Header,
        opcode: Opcode,
        body: Bytes,
        groups: Vec<u32>,
    ) -> Self {
        Self { session, header, opcode, body, groups }
    }

    pub fn fs(&self) -> &dyn FileSystem {
        self.session.fs.as_ref()
    }

    /// The file that the request is about.
    pub fn id(&self) -> FileId {
        self.session.kernel.nodes.id_of(self.header.node)
    }

    /// On whose behalf. Not to be asked for reads ahead and writes from the page cache, which have
    /// no meaningful caller.
    pub fn caller(&self) -> Caller {
        self.session.callers.caller(&self.header, &self.groups)
    }

    pub fn arguments(&self) -> Reader<'_> {
        Reader::new(&self.body)
    }
}
