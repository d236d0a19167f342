//! Permission, where it can be decided without asking the MDS.
//!
//! Mode bits, owner, groups and access list of attributes that are believed say yes at once;
//! everything else (a no, attributes that are not known) is the MDS's to decide. So a change of
//! rights elsewhere takes effect with the recall that announces it, and a denial always comes from
//! the MDS.

use tieline_types::rules::Rights;
use tieline_types::{Attributes, Caller};

pub use tieline_types::rules::{READ, SEARCH, WRITE};

/// Do mode and list give `caller` all of `wanted`?
pub fn allows(caller: &Caller, attributes: &Attributes, wanted: u32) -> bool {
    Rights::of(attributes).allow(caller, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{FileId, FileKind, Gid, Mode, Time, Uid};

    fn attributes(mode: u32) -> Attributes {
        Attributes {
            uid: Uid(10),
            gid: Gid(20),
            ..Attributes::new(FileId(9), FileKind::Regular, Mode::new(mode), Time::default())
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
