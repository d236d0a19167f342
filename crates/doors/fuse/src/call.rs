//! One request on its way through the operations.

use crate::abi::UID_UNSAID;
use crate::abi::bits::{get, set};
use crate::abi::incoming::{GetattrIn, Header, Reader, SetattrIn};
use crate::abi::opcode::Opcode;
use crate::errno::Refusal;
use crate::mountable::Mountable;
use crate::session::Session;
use bytes::Bytes;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_people::{Asking, People, Unknown};
use tieline_types::HandleId;
use tieline_types::{Attributes, Caller, FileId};

/// The virtual attribute of any file that tells a program as whom it is served here: as
/// [`People::described`] puts it, for who can ask no server himself.
pub const WHO: &str = "system.tieline.who";

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
    /// Why that is not known, of a request that was served as a stranger's all the same.
    doubt: Mutex<Option<Unknown>>,
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
        let (known, doubt) = (Mutex::default(), Mutex::default());
        Self { session, header, opcode, body, groups, is_by_memory, is_unknown, known, doubt }
    }

    pub fn fs(&self) -> &dyn Mountable {
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

    fn are_ids_mapped(&self) -> bool {
        self.session.kernel.features.maps_ids
    }

    fn stated(&self) -> Caller {
        let groups = self.session.callers.groups(&self.header, self.are_ids_mapped());
        self.is_by_memory.store(groups.is_memory, Ordering::Relaxed);
        groups.caller(&self.header, &self.groups)
    }

    /// The same, with the groups of now: for what depends on them in other ways than by being
    /// denied.
    pub fn caller_now(&self) -> Caller {
        self.known().unwrap_or_else(|| self.stated_now())
    }

    fn stated_now(&self) -> Caller {
        let groups = self.session.callers.groups_now(&self.header, self.are_ids_mapped());
        self.is_by_memory.store(false, Ordering::Relaxed);
        groups.caller(&self.header, &self.groups)
    }

    /// It was denied. Is it worth another try, with groups that are read anew?
    pub fn renews_groups(&self) -> bool {
        let was_by_memory = self.is_by_memory.load(Ordering::Relaxed);
        if was_by_memory {
            self.session.callers.groups_now(&self.header, self.are_ids_mapped());
        }
        was_by_memory
    }

    /// Finds out who the caller is to the file system.
    pub async fn identify(&self) -> Result<(), Refusal> {
        if let Some(sender) = self.session.moves.sender(self.header.pid) {
            self.know(sender);
            return Ok(());
        }
        let is_unsaid = self.header.uid == UID_UNSAID;
        let people = self.session.people.as_ref();
        let people = people.filter(|_| !is_unsaid || self.session.kernel.features.maps_ids);
        let Some(people) = people else {
            // Nothing is decided for somebody of whom it is not known who it is.
            let is_never = matches!(Identifying::of(self.opcode), Identifying::Never);
            return if is_unsaid && !is_never { Err(Errno::PERM.into()) } else { Ok(()) };
        };
        let is_soft = match Identifying::of(self.opcode) {
            Identifying::Never => return Ok(()),
            Identifying::Needed => false,
            Identifying::Wished => true,
        };
        if let Some(opener) = self.opener() {
            self.know(opener);
            return Ok(());
        }
        // What is made belongs to groups of now.
        let is_making = matches!(
            self.opcode,
            Opcode::Create | Opcode::Tmpfile | Opcode::Mknod | Opcode::Mkdir | Opcode::Setattr
        );
        let stated = if is_making { self.stated_now() } else { self.stated() };
        let found = people.caller(Asking { process: self.header.pid, stated }).await;
        let caller = match found {
            Ok(caller) => caller,
            Err(unknown) if is_soft => match self.opener_by_uid(&**people) {
                Some(opener) => opener,
                None => {
                    *lock(&self.doubt) = Some(unknown);
                    Caller::stranger()
                }
            },
            Err(unknown) => return Err(self.refuse(unknown)),
        };
        self.know(caller);
        Ok(())
    }

    /// A stranger was denied. If he is one only because it could not be found out who he is, that
    /// is what he hears: he may well have the right.
    pub fn doubt(&self) -> Option<Refusal> {
        let unknown = lock(&self.doubt).take()?;
        Some(self.refuse(unknown))
    }

    fn refuse(&self, Unknown { kind, why }: Unknown) -> Refusal {
        self.is_unknown.store(true, Ordering::Relaxed);
        tieline_files::Error::local(kind, why).into()
    }

    /// As whom the caller is served, for people; nothing where everybody is whom he states.
    pub async fn described(&self) -> Result<String, Refusal> {
        let Some(people) = &self.session.people else { return Err(Errno::NODATA.into()) };
        let asking = Asking { process: self.header.pid, stated: self.stated() };
        let told = people.described(asking).await;
        told.map_err(|Unknown { kind, why }| tieline_files::Error::local(kind, why).into())
    }

    /// Who opened the handle that the request names. What it gives, it gives whoever has it: its
    /// size and times to see, and to write, its size to set.
    fn opener(&self) -> Option<Caller> {
        let mut arguments = self.arguments();
        let handle = match self.opcode {
            Opcode::Getattr => {
                let asked = GetattrIn::read(&mut arguments).ok()?;
                (asked.flags & get::HANDLE != 0).then_some(asked.handle)
            }
            Opcode::Setattr => {
                let asked = SetattrIn::read(&mut arguments).ok()?;
                let is_owners = asked.valid & (set::MODE | set::UID | set::GID) != 0;
                (asked.valid & set::HANDLE != 0 && !is_owners).then_some(asked.handle)
            }
            _ => None,
        };
        self.fs().openers(self.id(), Some(HandleId(handle?))).pop()
    }

    /// For `fstat` the kernel names no handle: who opened the file under the uid that asks.
    fn opener_by_uid(&self, people: &dyn People) -> Option<Caller> {
        if self.opcode != Opcode::Getattr {
            return None;
        }
        let mut openers = self.fs().openers(self.id(), None).into_iter();
        openers.find(|opener| people.shown(opener.uid, opener.gid).0.0 == self.header.uid)
    }

    fn know(&self, caller: Caller) {
        *lock(&self.known) = Some(caller);
    }

    pub fn is_unknown(&self) -> bool {
        self.is_unknown.load(Ordering::Relaxed)
    }

    fn known(&self) -> Option<Caller> {
        lock(&self.known).clone()
    }

    /// Attributes as they are shown on this machine.
    pub fn shown(&self, mut attributes: Attributes) -> Attributes {
        tieline_people::show(self.session.people.as_deref(), &mut attributes);
        attributes
    }

    pub fn arguments(&self) -> Reader<'_> {
        Reader::new(&self.body)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
