//! Which position each name of a listing got.
//!
//! Positions are numbers in the order in which names were first seen. To find one's way back to a
//! page that is not at hand any more, each page remembers its bounds, and of each name the position
//! and a hash: names that are found again keep their position, new ones get new numbers, and names
//! that are gone keep their place among the others.

use crate::cache::tables::mark;
use std::collections::{BTreeMap, BTreeSet};
use tieline_types::Name;

#[derive(Default)]
pub(super) struct Places {
    pages: Vec<Lines>,
    seen: u32,
}

/// The names of one page, in their order.
#[derive(Default)]
struct Lines {
    /// The page's names come after this one.
    after: Option<Name>,
    /// The last of them; as `after` if there were none.
    until: Option<Name>,
    marks: Vec<u64>,
    places: Vec<u32>,
}

/// Names a page lies between.
pub(super) struct Bounds {
    pub after: Option<Name>,
    /// The last that belongs to it. `None`: it was empty.
    pub until: Option<Name>,
}

/// Where to go on.
pub(super) struct Resume {
    pub page: usize,
    /// Places of the position itself and of what came before it in its page.
    pub before: BTreeSet<u32>,
}

impl Places {
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// The name after which the next page begins.
    pub fn last(&self) -> Option<&Name> {
        self.pages.last().and_then(|page| page.until.as_ref())
    }

    pub fn bounds(&self, page: usize) -> Bounds {
        match self.pages.get(page) {
            Some(lines) => Bounds { after: lines.after.clone(), until: lines.until.clone() },
            None => Bounds { after: None, until: None },
        }
    }

    /// A page that follows the last and ends with a name.
    pub fn begin(&mut self, last: Option<Name>) -> Adding<'_> {
        let after = self.last().cloned();
        let until = last.or_else(|| after.clone());
        self.pages.push(Lines { after, until, ..Lines::default() });
        self.renew(self.pages.len() - 1)
    }

    /// A page that is read again.
    pub fn renew(&mut self, page: usize) -> Adding<'_> {
        let lines = self.pages.get_mut(page);
        let old = lines.map(|lines| {
            let marks = std::mem::take(&mut lines.marks);
            marks.into_iter().zip(std::mem::take(&mut lines.places)).collect::<Vec<_>>()
        });
        let old = old.unwrap_or_default();
        let index = old.iter().enumerate().map(|(index, (mark, _))| (*mark, index)).collect();
        Adding { all: self, page, old, index, next: 0 }
    }

    pub fn find(&self, position: u64) -> Option<Resume> {
        let wanted = u32::try_from(position.checked_sub(1)?).ok().filter(|one| *one < self.seen)?;
        self.pages.iter().enumerate().find_map(|(page, lines)| {
            let index = lines.places.iter().position(|place| *place == wanted)?;
            let before = lines.places.iter().take(index + 1).copied().collect();
            Some(Resume { page, before })
        })
    }
}

/// A page that is being filled, name after name.
pub(super) struct Adding<'a> {
    all: &'a mut Places,
    page: usize,
    /// Its names as they were, and where each is among them.
    old: Vec<(u64, u32)>,
    index: BTreeMap<u64, usize>,
    /// Before here they are dealt with.
    next: usize,
}

impl Adding<'_> {
    /// The place of the next name.
    pub fn add(&mut self, name: &Name) -> u32 {
        let mark = mark(name);
        match self.index.get(&mark).copied().filter(|&index| index >= self.next) {
            Some(index) => {
                self.keep_until(index + 1);
                self.old.get(index).map_or(0, |(_, place)| *place)
            }
            None => {
                let place = self.all.seen;
                self.all.seen += 1;
                self.push(mark, place);
                place
            }
        }
    }

    /// After the last name: those that are gone keep their places.
    pub fn finish(mut self) {
        self.keep_until(self.old.len());
    }

    fn keep_until(&mut self, end: usize) {
        while self.next < end {
            if let Some(&(mark, place)) = self.old.get(self.next) {
                self.push(mark, place);
            }
            self.next += 1;
        }
    }

    fn push(&mut self, mark: u64, place: u32) {
        if let Some(lines) = self.all.pages.get_mut(self.page) {
            lines.marks.push(mark);
            lines.places.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn fill(mut adding: Adding<'_>, names: &[&str]) -> Vec<u32> {
        let places = names.iter().map(|text| adding.add(&name(text))).collect();
        adding.finish();
        places
    }

    #[test]
    fn names_found_again_keep_their_places() {
        let mut places = Places::default();
        assert_eq!(fill(places.begin(Some(name("d"))), &["a", "b", "d"]), [0, 1, 2]);
        assert_eq!(fill(places.begin(Some(name("x"))), &["x"]), [3]);
        // `b` went, `c` came.
        assert_eq!(fill(places.renew(0), &["a", "c", "d"]), [0, 4, 2]);
        let resume = places.find(2).unwrap();
        // Whether `b` stood before `c` is not known any more.
        assert_eq!((resume.page, resume.before), (0, BTreeSet::from([0, 1, 4])));
        // `c` is gone, `b` is back.
        assert_eq!(fill(places.renew(0), &["a", "b", "d"]), [0, 1, 2]);
        assert_eq!(places.find(5).unwrap().before, BTreeSet::from([0, 4]));
        assert_eq!(places.find(4).unwrap().page, 1);
        assert!(places.find(6).is_none() && places.find(0).is_none());
        assert_eq!(places.last(), Some(&name("x")));
        assert_eq!(places.bounds(1).after, Some(name("d")));
    }
}
