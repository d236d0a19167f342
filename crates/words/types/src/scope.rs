//! What somebody who acts for another may do, and where: the scope of a token, of a ticket that was
//! shown to a door, of a delegation.
//!
//! Paths are compared component by component: `/data` is not above `/data2`. They are those of the
//! file system, from its root, with no link in them. It narrows what the user himself may do, and
//! never widens it. As WLCG's profile of tokens has it (v1.0, `storage.read`, `storage.create`,
//! `storage.modify`): reading is not part of writing.
//!
//! Invariant: at most [`Scope::ALLOWED_MAX`] paths, of at most [`Scope::DEPTH_MAX`] components.

use crate::Name;
use minicbor::{Decode, Encode};

/// A kind of work on files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Doing {
    /// Looks, lists and reads.
    #[n(1)]
    Read,
    /// Makes what was not there: files with their bytes, directories.
    #[n(2)]
    Create,
    /// The same, and changes, replaces, renames and removes what is there.
    #[n(3)]
    Modify,
}

impl Doing {
    /// Who may do this, may he do that?
    pub fn includes(self, other: Self) -> bool {
        self == other || (self, other) == (Self::Modify, Self::Create)
    }
}

/// One path and what may be done there and below.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub struct Allowed {
    #[n(0)]
    pub path: Vec<Name>,
    #[n(1)]
    pub doing: Doing,
}

/// All that may be done. Empty: nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Encode, Decode)]
pub struct Scope {
    #[n(0)]
    allowed: Vec<Allowed>,
}

/// A scope that nobody keeps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a scope has more than {max} paths, or one of more than {depth} components",
    max = Scope::ALLOWED_MAX, depth = Scope::DEPTH_MAX)]
pub struct ScopeError;

impl Scope {
    pub const ALLOWED_MAX: usize = 64;
    pub const DEPTH_MAX: usize = 64;

    pub fn new(mut allowed: Vec<Allowed>) -> Result<Self, ScopeError> {
        allowed.sort();
        allowed.dedup();
        let scope = Self { allowed };
        scope.check().map(|()| scope)
    }

    /// Of a scope that came from outside.
    pub fn check(&self) -> Result<(), ScopeError> {
        let is_deep = |one: &Allowed| one.path.len() > Self::DEPTH_MAX;
        let is_large = self.allowed.len() > Self::ALLOWED_MAX || self.allowed.iter().any(is_deep);
        if is_large { Err(ScopeError) } else { Ok(()) }
    }

    pub fn allowed(&self) -> &[Allowed] {
        &self.allowed
    }

    /// May this be done to what lies at that way from the root?
    pub fn allows(&self, way: &[Name], doing: Doing) -> bool {
        let mut all = self.allowed.iter();
        all.any(|one| one.doing.includes(doing) && way.starts_with(&one.path))
    }

    /// Does that way lead to something that is allowed? Then the next name on it may be looked up,
    /// and the directory's attributes be told; nothing else.
    pub fn leads_on(&self, way: &[Name]) -> bool {
        self.allowed.iter().any(|one| one.path.starts_with(way) || way.starts_with(&one.path))
    }

    /// Is all of the other allowed here, too?
    pub fn covers(&self, other: &Self) -> bool {
        other.allowed.iter().all(|one| self.allows(&one.path, one.doing))
    }

    /// What both allow.
    pub fn narrowed(&self, by: &Self) -> Result<Self, ScopeError> {
        let mut both = Vec::new();
        for (one, other) in [(self, by), (by, self)] {
            for allowed in &one.allowed {
                let weaker = [Doing::Read, Doing::Create, Doing::Modify].into_iter().rev();
                let doing = weaker.filter(|&doing| allowed.doing.includes(doing));
                let found = doing.into_iter().find(|&doing| other.allows(&allowed.path, doing));
                both.extend(found.map(|doing| Allowed { path: allowed.path.clone(), doing }));
            }
        }
        Self::new(both)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(path: &str) -> Vec<Name> {
        path.split('/').filter(|part| !part.is_empty()).map(|part| part.parse().unwrap()).collect()
    }

    fn scope(of: &[(&str, Doing)]) -> Scope {
        let allowed = of.iter().map(|&(path, doing)| Allowed { path: way(path), doing });
        Scope::new(allowed.collect()).unwrap()
    }

    #[test]
    fn paths_are_compared_by_components() {
        let data = scope(&[("/data", Doing::Read)]);
        assert!(data.allows(&way("/data"), Doing::Read));
        assert!(data.allows(&way("/data/run7/a"), Doing::Read));
        assert!(!data.allows(&way("/data2"), Doing::Read));
        assert!(!data.allows(&way("/"), Doing::Read) && data.leads_on(&way("/")));
        assert!(!data.allows(&way("/data"), Doing::Create));
        assert!(!Scope::default().allows(&[], Doing::Read) && !Scope::default().leads_on(&[]));
    }

    #[test]
    fn modifying_is_creating_and_neither_is_reading() {
        let all = scope(&[("/", Doing::Modify)]);
        assert!(all.allows(&way("/x"), Doing::Create) && !all.allows(&way("/x"), Doing::Read));
        let new = scope(&[("/x", Doing::Create)]);
        assert!(all.covers(&new) && !new.covers(&all));
        assert!(!new.allows(&way("/x/y"), Doing::Modify));
    }

    #[test]
    fn narrowing_gives_what_both_allow() {
        let one = scope(&[("/a", Doing::Modify), ("/b", Doing::Read)]);
        let other = scope(&[("/a/c", Doing::Create), ("/", Doing::Read)]);
        let both = one.narrowed(&other).unwrap();
        assert_eq!(both, scope(&[("/a/c", Doing::Create), ("/b", Doing::Read)]));
        assert!(one.covers(&both) && other.covers(&both));
        let nothing = one.narrowed(&scope(&[("/z", Doing::Read)])).unwrap();
        assert_eq!(nothing, Scope::default());
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let one = Allowed { path: vec!["d".parse().unwrap(); 65], doing: Doing::Read };
        assert!(Scope::new(vec![one]).is_err());
        let path = |number: u32| Allowed { path: way(&number.to_string()), doing: Doing::Read };
        assert!(Scope::new((0..65).map(path).collect()).is_err());
        assert!(Scope::new((0..64).map(path).collect()).is_ok());
    }
}
