//! One request on its way through the operations.

use crate::abi::incoming::{Header, Reader};
use crate::abi::opcode::Opcode;
use crate::session::Session;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Its caller's other groups were read a while ago.
    is_by_memory: AtomicBool,
}

impl Call {
    pub fn new(
        session: Arc<Session>,
        header: Header,
        opcode: Opcode,
        body: Bytes,
        groups: Vec<u32>,
    ) -> Self {
        let is_by_memory = AtomicBool::new(false);
        Self { session, header, opcode, body, groups, is_by_memory }
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
        let groups = self.session.callers.groups(&self.header);
        self.is_by_memory.store(groups.is_memory, Ordering::Relaxed);
        groups.caller(&self.header, &self.groups)
    }

    /// The same, with the groups of now: for what depends on them in other ways than by being
    /// denied.
    pub fn caller_now(&self) -> Caller {
        let groups = self.session.callers.groups_now(&self.header);
        self.is_by_memory.store(false, Ordering::Relaxed);
        groups.caller(&self.header, &self.groups)
    }

    /// It was denied. Is it worth another try, with groups that are read anew?
    pub fn renews_groups(&self) -> bool {
        let was_by_memory = self.is_by_memory.load(Ordering::Relaxed);
        if was_by_memory {
            self.session.callers.groups_now(&self.header);
        }
        was_by_memory
    }

    pub fn arguments(&self) -> Reader<'_> {
        Reader::new(&self.body)
    }
}
