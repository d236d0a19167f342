//! A copy of the table, as it is fetched page by page.
//!
//! Invariant: all pages of a copy are of one version; when the table is changed in between, it is
//! fetched from the beginning.

use crate::IdentityTable;
use tieline_wire::identity::{ListIdentities, ListIdentitiesReply};

/// No table has this version: whoever says that he has it is told a whole one.
const NONE: u64 = u64::MAX;

/// See the module.
pub struct Pages {
    have: u64,
    version: Option<u64>,
    table: IdentityTable,
    from: u32,
}

/// What a page brought.
pub enum Step {
    /// There are more.
    More(Pages),
    /// The table is as it was.
    Same,
    Whole(IdentityTable),
}

impl Pages {
    /// Of a table that is another than the one of this version.
    pub fn newer_than(have: Option<u64>) -> Self {
        let have = have.unwrap_or(NONE);
        Self { have, version: None, table: IdentityTable::default(), from: 0 }
    }

    /// What the MDS is to be asked next.
    pub fn wanted(&self) -> ListIdentities {
        ListIdentities { have: self.have, from: self.from }
    }

    pub fn take(mut self, page: ListIdentitiesReply) -> Step {
        if page.version == self.have {
            return Step::Same;
        }
        if self.version.is_some_and(|version| version != page.version) {
            let have = Some(self.have);
            return Step::More(Self::newer_than(have));
        }
        self.version = Some(page.version);
        let entries = page.identities.len() + page.mappings.len();
        self.from = self.from.saturating_add(u32::try_from(entries).unwrap_or(u32::MAX));
        self.table.told(page.is_whole);
        self.table.adopt(page.version, page.identities, page.mappings);
        if page.is_end { Step::Whole(self.table) } else { Step::More(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Identity, IdentityKind};

    fn page(version: u64, numbers: &[u32], is_end: bool) -> ListIdentitiesReply {
        let identity = |&number: &u32| Identity {
            kind: IdentityKind::User,
            number,
            name: format!("u{number}").parse().unwrap(),
            groups: vec![],
            roles: vec![],
        };
        let identities = numbers.iter().map(identity).collect();
        let (mappings, is_whole) = (vec![], Some(true));
        ListIdentitiesReply { version, identities, mappings, is_end, is_whole }
    }

    fn more(step: Step) -> Pages {
        let Step::More(pages) = step else { panic!("there are more") };
        pages
    }

    #[test]
    fn a_copy_is_of_one_version() {
        let pages = Pages::newer_than(Some(3));
        assert_eq!((pages.wanted().have, pages.wanted().from), (3, 0));
        let pages = more(pages.take(page(4, &[1, 2], false)));
        assert_eq!((pages.wanted().have, pages.wanted().from), (3, 2));
        // It was changed in between, and 1 is gone.
        let pages = more(pages.take(page(5, &[3], true)));
        assert_eq!(pages.wanted().from, 0);
        let pages = more(pages.take(page(5, &[2], false)));
        let Step::Whole(table) = pages.take(page(5, &[3], true)) else { panic!("that was all") };
        assert_eq!((table.version(), table.is_whole()), (5, true));
        let numbers: Vec<u32> = table.identities().map(|one| one.number).collect();
        assert_eq!(numbers, [2, 3]);
    }

    #[test]
    fn what_is_there_already_is_not_fetched_again() {
        let same = Pages::newer_than(Some(3)).take(page(3, &[], true));
        assert!(matches!(same, Step::Same));
        // Who has none is told even an empty one.
        let whole = Pages::newer_than(None).take(page(0, &[], true));
        assert!(matches!(whole, Step::Whole(table) if table.is_empty()));
    }
}
