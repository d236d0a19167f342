//! One request on its way through the operations.

use crate::abi::incoming::{Header, Reader};
use crate::abi::opcode::Opcode;
use crate::errno::Refusal;
use crate::people::{self, Asking, Unknown};
use crate::session::Session;
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tieline_client::FileSystem;
use tieline_types::{Attributes, Caller, FileId};

/// Must it be known who asks?
enum Identifying {
    Needed,
    /// What an open file gives is given to whoever has it.
    Wished,
    /// Rights belong to the handle.
    Never,
}

impl Identifying {
    fn of(opcode: Opcode) -> Self {
        use Opcode::{
            Create, Getattr, Getxattr, Link, Listxattr, Lookup, Mkdir, Mknod, Open, Opendir,
            Readdir, Readdirplus, Readlink, Removexattr, Rename, Rename2, Rmdir, Setattr, Setxattr,
            Symlink, Tmpfile, Unlink,
        };
        match opcode {
            Getattr | Readdir | Readdirplus => Self::Wished,
            Lookup | Mknod | Mkdir | Symlink | Readlink | Link | Unlink | Rmdir | Rename
            | Rename2 | Setattr | Open | Create | Tmpfile | Opendir | Getxattr | Listxattr
            | Setxattr | Removexattr => Self::Needed,
            _ => Self::Never,
        }
    }
}

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
    /// It could not be found out who its caller is.
    is_unknown: AtomicBool,
    /// Who its caller is to the file system, where that was asked.
    known: Mutex<Option<Caller>>,
}

impl Call {
    pub fn new(
        session: Arc<Session>,
        header: Header,
        opcode: Opcode,
        body: Bytes,
        groups: Vec<u32>,
    ) -> Self {
        let (is_by_memory, is_unknown) = (AtomicBool::new(false), AtomicBool::new(false));
        let known = Mutex::default();
        Self { session, header, opcode, body, groups, is_by_memory, is_unknown, known }
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
        self.known().unwrap_or_else(|| self.stated())
    }

    fn stated(&self) -> Caller {
        let groups = self.session.callers.groups(&self.header);
        self.is_by_memory.store(groups.is_memory, Ordering::Relaxed);
        groups.caller(&self.header, &self.groups)
    }

    /// The same, with the groups of now: for what depends on them in other ways than by being
    /// denied.
    pub fn caller_now(&self) -> Caller {
        self.known().unwrap_or_else(|| self.stated_now())
    }

    fn stated_now(&self) -> Caller {
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

    /// Finds out who the caller is to the file system.
    pub async fn identify(&self) -> Result<(), Refusal> {
        let Some(people) = &self.session.people else { return Ok(()) };
        let is_soft = match Identifying::of(self.opcode) {
            Identifying::Never => return Ok(()),
            Identifying::Needed => false,
            Identifying::Wished => true,
        };
        // What is made belongs to groups of now.
        let is_making = matches!(
            self.opcode,
            Opcode::Create | Opcode::Tmpfile | Opcode::Mknod | Opcode::Mkdir | Opcode::Setattr
        );
        let stated = if is_making { self.stated_now() } else { self.stated() };
        let found = people.caller(Asking { process: self.header.pid, stated }).await;
        let caller = match found {
            Ok(caller) => caller,
            Err(_) if is_soft => Caller::stranger(),
            Err(Unknown { kind, why }) => {
                self.is_unknown.store(true, Ordering::Relaxed);
                return Err(tieline_client::Error::local(kind, why).into());
            }
        };
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(caller);
        Ok(())
    }

    pub fn is_unknown(&self) -> bool {
        self.is_unknown.load(Ordering::Relaxed)
    }

    fn known(&self) -> Option<Caller> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Attributes as they are shown on this machine.
    pub fn shown(&self, mut attributes: Attributes) -> Attributes {
        people::show(self.session.people.as_deref(), &mut attributes);
        attributes
    }

    pub fn arguments(&self) -> Reader<'_> {
        Reader::new(&self.body)
    }
}
