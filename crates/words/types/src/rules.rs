//! Rules of POSIX, as Linux applies them, that are wanted in more than one room: what an MDS
//! decides, a client that holds a directory alone decides the same way.
//!
//! Knows no store and no lease: values in, values out.

use crate::acl::{Acls, DefaultList};
use crate::{Attributes, Caller, FileKind, Gid, Mode};

pub const READ: u32 = 4;
pub const WRITE: u32 = 2;
pub const SEARCH: u32 = 1;

/// What the mode, kind, owners and lists of a file say about who may do what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights<'a> {
    pub kind: FileKind,
    pub mode: Mode,
    pub uid: crate::Uid,
    pub gid: Gid,
    pub acls: Option<&'a Acls>,
}

/// What a new file gets of its directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inherited {
    pub mode: Mode,
    pub gid: Gid,
    pub acls: Option<Box<Acls>>,
}

impl<'a> Rights<'a> {
    pub fn of(attributes: &'a Attributes) -> Self {
        let Attributes { kind, mode, uid, gid, ref acls, .. } = *attributes;
        Self { kind, mode, uid, gid, acls: acls.as_deref() }
    }

    fn default_list(self) -> Option<&'a DefaultList> {
        self.acls?.default.as_ref()
    }

    /// Do mode and list let the caller do all of `wish` (bits of [`READ`], [`WRITE`], [`SEARCH`])?
    pub fn allow(self, caller: &Caller, wish: u32) -> bool {
        let bits = self.mode.bits();
        if caller.is_root() {
            // Root executes what somebody may execute.
            let is_executable = self.kind == FileKind::Directory || bits & 0o111 != 0;
            return wish & SEARCH == 0 || is_executable;
        }
        let list = self.acls.and_then(|acls| acls.access.as_ref());
        let class = if caller.uid == self.uid {
            bits >> 6
        } else if let Some(list) = list {
            return list.allow(self.mode, self.gid, caller, wish);
        } else if caller.is_member(self.gid) {
            bits >> 3
        } else {
            bits
        };
        class & wish == wish
    }

    /// Do they let everybody do all of `wish`, whoever it is?
    pub fn allow_everybody(self, wish: u32) -> bool {
        let bits = self.mode.bits();
        let has = |class: u32| class & wish == wish;
        let list = self.acls.and_then(|acls| acls.access.as_ref());
        has(bits >> 6) && has(bits >> 3) && has(bits) && list.is_none_or(|list| list.all(has))
    }

    pub fn is_owner(self, caller: &Caller) -> bool {
        caller.is_root() || caller.uid == self.uid
    }

    /// Does a sticky directory keep the caller from removing `file`?
    pub fn is_stuck(self, file: Rights<'_>, caller: &Caller) -> bool {
        self.mode.has(Mode::STICKY) && !self.is_owner(caller) && !file.is_owner(caller)
    }

    /// What a new file in this directory gets: its mode cut by the umask, or by the directory's
    /// default list in its stead, and what setgid hands down.
    pub fn inherit(self, caller: &Caller, kind: FileKind, mode: Mode, umask: Mode) -> Inherited {
        let is_setgid = self.mode.has(Mode::SETGID);
        let gid = if is_setgid { self.gid } else { caller.gid };
        let default = self.default_list().filter(|_| kind != FileKind::Symlink);
        let (mut mode, access) = match default {
            Some(default) => default.hand_down(mode),
            None => (mode.without(umask.bits() & 0o777), None),
        };
        if kind == FileKind::Directory {
            let inherited = if is_setgid { Mode::SETGID } else { 0 };
            mode = Mode::new(mode.bits() & 0o1777 | inherited);
        } else if mode.has(Mode::SETGID | 0o010) && !caller.may_setgid(gid) {
            mode = mode.without(Mode::SETGID);
        }
        let handed = default.filter(|_| kind == FileKind::Directory).cloned();
        Inherited { mode, gid, acls: Acls::new(access, handed) }
    }
}
