//! What somebody who acts for another may do, and where: the scope of a token, of a ticket that was
//! shown to a door, of a delegation.
//!
//! Paths are compared component by component: `/data` is not above `/data2`. They are those of the
//! file system, from its root, with no link in them. It narrows what the user himself may do, and
//! never widens it. As WLCG's profile of tokens has it (v1.0, `storage.read`, `storage.create`,
//! `storage.modify`): reading is not part of writing.
//!
//! Invariant: at most [`Scope::ALLOWED_MAX`] paths, of at most [`Scope::DEPTH_MAX`] components.

use crate::AtMost;
use crate::Name;
use minicbor::{Decode, Encode};
use std::fmt;
use std::str::FromStr;

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
    pub const ALL: [Self; 3] = [Self::Read, Self::Create, Self::Modify];

    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Create => "create",
            Self::Modify => "modify",
        }
    }

    /// Who may do this, may he do that?
    pub fn includes(self, other: Self) -> bool {
        self == other || (self, other) == (Self::Modify, Self::Create)
    }
}

/// One path and what may be done there and below.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub struct Allowed {
    #[n(0)]
    #[cbor(with = "AtMost::<{ Scope::DEPTH_MAX }>")]
    pub path: Vec<Name>,
    #[n(1)]
    pub doing: Doing,
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.doing.name())?;
        if self.path.is_empty() {
            return f.write_str("/");
        }
        self.path.iter().try_for_each(|name| write!(f, "/{name}"))
    }
}

/// Why a text allows nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not read:/PATH, create:/PATH or modify:/PATH, of names as directories have them")]
pub struct AllowedError(String);

impl FromStr for Allowed {
    type Err = AllowedError;

    fn from_str(text: &str) -> Result<Self, AllowedError> {
        let wrong = || AllowedError(text.to_owned());
        let (word, path) = text.split_once(':').ok_or_else(wrong)?;
        let doing = Doing::ALL.into_iter().find(|doing| doing.name() == word);
        let path = path.strip_prefix('/').ok_or_else(wrong)?;
        let parts = path.split('/').filter(|part| !part.is_empty());
        let path = parts.map(|part| part.parse::<Name>().map_err(|_| wrong()));
        Ok(Self { path: path.collect::<Result<_, _>>()?, doing: doing.ok_or_else(wrong)? })
    }
}

/// All that may be done. Empty: nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Encode, Decode)]
pub struct Scope {
    #[n(0)]
    #[cbor(with = "AtMost::<{ Scope::ALLOWED_MAX }>")]
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

    /// Is anything at all allowed to what lies at that way?
    pub fn allows_any(&self, way: &[Name]) -> bool {
        self.allowed.iter().any(|one| way.starts_with(&one.path))
    }

    /// Does what lies at a way, and what lies below it, become more to who has this scope, if it is
    /// put at another? Then to put it there would be a way around the scope.
    pub fn gains(&self, from: &[Name], to: &[Name]) -> bool {
        self.allowed.iter().any(|one| {
            let below = one.path.strip_prefix(to);
            let place = match below {
                // What is allowed below the new place is below the old one, too.
                Some(rest) => [from, rest].concat(),
                None if to.starts_with(&one.path) => from.to_vec(),
                None => return false,
            };
            !self.allows(&place, one.doing)
        })
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

/// As [`Allowed`] is written, one after the other.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.allowed.split_first() else { return f.write_str("nothing") };
        write!(f, "{first}")?;
        rest.iter().try_for_each(|one| write!(f, " {one}"))
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
    fn what_is_moved_gains_nothing() {
        let scope =
            scope(&[("/in", Doing::Modify), ("/out", Doing::Modify), ("/out", Doing::Read)]);
        assert!(scope.gains(&way("/in/secret"), &way("/out/secret")), "it could be read there");
        assert!(!scope.gains(&way("/out/a"), &way("/in/a")), "it can be read no more");
        assert!(!scope.gains(&way("/out/a"), &way("/out/b/a")));
        assert!(scope.gains(&way("/elsewhere"), &way("/in/x")));
        let deep = Scope::new(vec!["read:/a/b/c".parse().unwrap()]).unwrap();
        assert!(deep.gains(&way("/x"), &way("/a/b")), "what is below would be read");
        assert!(!deep.gains(&way("/x"), &way("/y")));
    }

    #[test]
    fn scopes_are_written_as_they_are_read() {
        for text in ["read:/", "create:/data/run7", "modify:/a"] {
            assert_eq!(text.parse::<Allowed>().unwrap().to_string(), text);
        }
        for wrong in ["read", "read:data", "write:/x", "read:/a/../b", ""] {
            assert!(wrong.parse::<Allowed>().is_err(), "{wrong}");
        }
        let two = scope(&[("/b", Doing::Read), ("/a", Doing::Modify)]);
        assert_eq!(two.to_string(), "modify:/a read:/b");
        assert_eq!(Scope::default().to_string(), "nothing");
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
