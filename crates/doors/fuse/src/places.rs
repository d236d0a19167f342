//! Where the kernel has the directories that it knows.
//!
//! The kernel names a directory by its number alone. Whoever stands in one sees the path that the
//! kernel has for it, so it matters which name leads there, and whether that is a directory's.
//!
//! Invariant: only directories that the kernel knows are here, each at one place: a directory has
//! one name in the kernel, too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_types::{Caller, FileId, Name};

#[derive(Default)]
pub struct Places(Mutex<Known>);

impl Place {
    pub fn spot(&self) -> (FileId, Name) {
        (self.parent, self.name.clone())
    }
}

#[derive(Default)]
struct Known {
    of: HashMap<FileId, Place>,
    at: HashMap<(FileId, Name), FileId>,
}

/// A name of a directory, and who found it there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub parent: FileId,
    pub name: Name,
    pub caller: Arc<Caller>,
}

impl Places {
    /// Says which other directory was there before: it is gone, or elsewhere.
    #[must_use]
    pub fn put(&self, directory: FileId, place: Place) -> Option<(FileId, Place)> {
        self.lock().put(directory, place)
    }

    pub fn of(&self, directory: FileId) -> Option<Place> {
        self.lock().of.get(&directory).cloned()
    }

    /// The directory that has this name.
    pub fn at(&self, parent: FileId, name: &Name) -> Option<FileId> {
        let known = self.lock();
        if known.at.is_empty() { None } else { known.at.get(&(parent, name.clone())).copied() }
    }

    pub fn remove(&self, directory: FileId) {
        self.lock().take(directory);
    }

    /// The kernel itself renamed what is here.
    pub fn renamed(&self, from: (FileId, &Name), to: (FileId, &Name), is_exchange: bool) {
        let mut known = self.lock();
        let mut take = |(parent, name): (FileId, &Name)| {
            let directory = known.at.get(&(parent, name.clone())).copied()?;
            known.take(directory).map(|place| (directory, place))
        };
        let (moved, other) = (take(from), take(to));
        let mut put = |taken: Option<(FileId, Place)>, (parent, name): (FileId, &Name)| {
            if let Some((directory, Place { caller, .. })) = taken {
                let _ = known.put(directory, Place { parent, name: name.clone(), caller });
            }
        };
        put(moved, to);
        if is_exchange {
            put(other, from);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn put(&mut self, directory: FileId, place: Place) -> Option<(FileId, Place)> {
        let spot = (place.parent, place.name.clone());
        let is_there = |known: &Place| (known.parent, &known.name) == (spot.0, &spot.1);
        if self.of.get(&directory).is_some_and(is_there) {
            // Asked for again.
            return None;
        }
        self.take(directory);
        let before = self.at.insert(spot, directory);
        self.of.insert(directory, place);
        before.and_then(|before| Some((before, self.of.remove(&before)?)))
    }

    fn take(&mut self, directory: FileId) -> Option<Place> {
        let place = self.of.remove(&directory)?;
        self.at.remove(&(place.parent, place.name.clone()));
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: FileId = FileId(1);

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn places(all: &[(u64, &str)]) -> Places {
        let (places, caller) = (Places::default(), Arc::new(Caller::root()));
        for &(id, text) in all {
            let place = Place { parent: TOP, name: name(text), caller: caller.clone() };
            let before = places.put(FileId(id), place);
            assert_eq!(before.is_some(), (id, text) == (8, "b") && all.len() == 3);
        }
        places
    }

    fn at(places: &Places, text: &str) -> Option<u64> {
        let found = places.at(TOP, &name(text));
        let is_same = |id: &FileId| places.of(*id).unwrap().name == name(text);
        assert!(found.as_ref().is_none_or(is_same), "both ways");
        found.map(|id| id.0)
    }

    #[test]
    fn a_directory_is_at_its_last_place_and_a_place_has_its_last_directory() {
        let places = places(&[(7, "a"), (7, "b"), (8, "b")]);
        assert_eq!((at(&places, "a"), at(&places, "b")), (None, Some(8)));
        assert_eq!(places.of(FileId(7)), None);
        places.remove(FileId(8));
        assert_eq!(at(&places, "b"), None);
    }

    #[test]
    fn what_the_kernel_renames_goes_along() {
        let (a, b, c) = (&name("a"), &name("b"), &name("c"));
        let places = places(&[(7, "a"), (8, "b")]);
        places.renamed((TOP, a), (TOP, b), true);
        assert_eq!((at(&places, "a"), at(&places, "b")), (Some(8), Some(7)));
        places.renamed((TOP, a), (TOP, b), false);
        assert_eq!((at(&places, "a"), at(&places, "b")), (None, Some(8)));
        places.renamed((TOP, c), (TOP, b), false);
        assert_eq!((at(&places, "b"), at(&places, "c")), (None, None));
    }
}
