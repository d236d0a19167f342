//! Permission, where it can be decided without asking the MDS.
//!
//! Mode bits, owner and groups of attributes that are believed say yes at once; everything else (a
//! no, attributes that are not known) is the MDS's to decide. So a change of rights elsewhere takes
//! effect with the recall that announces it, and a denial always comes from the MDS. Access lists
//! are not kept by the file system.

use tieline_types::{Attributes, Caller};

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const SEARCH: u32 = 1;

/// Do the mode bits give `caller` all of `wanted`?
pub(crate) fn allows(caller: &Caller, attributes: &Attributes, wanted: u32) -> bool {
    let mode = attributes.mode.bits();
    if caller.is_root() {
        let is_searchable = attributes.is_directory() || mode & 0o111 != 0;
        return wanted & SEARCH == 0 || is_searchable;
    }
    let shift = match () {
        () if caller.uid == attributes.uid => 6,
        () if caller.is_member(attributes.gid) => 3,
        () => 0,
    };
    (mode >> shift) & wanted == wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{FileId, FileKind, Gid, Mode, Time, Uid, Version};

    fn attributes(mode: u32) -> Attributes {
        let time = Time::default();
        Attributes {
            id: FileId(9),
            kind: FileKind::Regular,
            mode: Mode::new(mode),
            links: 1,
            uid: Uid(10),
            gid: Gid(20),
            size: 0,
            stored: 0,
            device: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            version: Version(1),
            has_xattrs: None,
        }
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let owner = Caller { uid: Uid(10), gid: Gid(20), groups: vec![], proof: None };
        let member = Caller { uid: Uid(11), gid: Gid(1), groups: vec![Gid(20)], proof: None };
        let other = Caller { uid: Uid(12), gid: Gid(2), groups: vec![], proof: None };
        assert!(!allows(&owner, &attributes(0o077), READ));
        assert!(!allows(&member, &attributes(0o707), READ));
        assert!(allows(&other, &attributes(0o704), READ));
        assert!(!allows(&other, &attributes(0o704), READ | WRITE));
        assert!(allows(&Caller::root(), &attributes(0), READ | WRITE));
        assert!(!allows(&Caller::root(), &attributes(0o600), SEARCH));
    }
}
