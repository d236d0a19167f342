//! Rules of POSIX, as Linux applies them, that are wanted in more than one room: what an MDS
//! decides, a client that holds a directory alone decides the same way.
//!
//! Knows no store and no lease: values in, values out.

use crate::{Attributes, Caller, FileKind, Gid, Mode};

pub const READ: u32 = 4;
pub const WRITE: u32 = 2;
pub const SEARCH: u32 = 1;

/// What the mode, kind and owners of a file say about who may do what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    pub kind: FileKind,
    pub mode: Mode,
    pub uid: crate::Uid,
    pub gid: Gid,
}

impl Rights {
    pub fn of(attributes: &Attributes) -> Self {
        let Attributes { kind, mode, uid, gid, .. } = *attributes;
        Self { kind, mode, uid, gid }
    }

    /// Does the mode let the caller do all of `wish` (bits of [`READ`], [`WRITE`], [`SEARCH`])?
    pub fn allow(self, caller: &Caller, wish: u32) -> bool {
        let bits = self.mode.bits();
        if caller.is_root() {
            // Root executes what somebody may execute.
            let is_executable = self.kind == FileKind::Directory || bits & 0o111 != 0;
            return wish & SEARCH == 0 || is_executable;
        }
        let class = if caller.uid == self.uid {
            bits >> 6
        } else if caller.is_member(self.gid) {
            bits >> 3
        } else {
            bits
        };
        class & wish == wish
    }

    pub fn is_owner(self, caller: &Caller) -> bool {
        caller.is_root() || caller.uid == self.uid
    }

    /// Does a sticky directory keep the caller from removing `file`?
    pub fn is_stuck(self, file: Self, caller: &Caller) -> bool {
        self.mode.has(Mode::STICKY) && !self.is_owner(caller) && !file.is_owner(caller)
    }

    /// Mode and group of a new file in this directory: the umask, and what setgid hands down.
    pub fn inherit(self, caller: &Caller, kind: FileKind, mode: Mode, umask: Mode) -> (Mode, Gid) {
        let is_setgid = self.mode.has(Mode::SETGID);
        let gid = if is_setgid { self.gid } else { caller.gid };
        let mut mode = mode.without(umask.bits() & 0o777);
        if kind == FileKind::Directory {
            let inherited = if is_setgid { Mode::SETGID } else { 0 };
            mode = Mode::new(mode.bits() & 0o1777 | inherited);
        } else if mode.has(Mode::SETGID | 0o010) && !caller.is_root() && !caller.is_member(gid) {
            mode = mode.without(Mode::SETGID);
        }
        (mode, gid)
    }
}
