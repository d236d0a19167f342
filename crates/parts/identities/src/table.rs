//! The table of identities: who principals are, and what numbers their files carry.
//!
//! A value, which an MDS keeps and everybody else has copies of: made of pages
//! ([`IdentityTable::page`], [`crate::Pages`]) or of records, and asked.
//!
//! A principal is looked for as it stands; then, as `NAME/INSTANCE@REALM`, under `NAME/*@REALM` and
//! `*/INSTANCE@REALM`; then under `*@REALM`; then, in the file system's own realm, as a user of
//! that name. A name that a mapping makes must be a user's.

use std::collections::BTreeMap;
use tieline_types::identity::NOBODY;
use tieline_types::{
    Caller, Gid, Identity, IdentityKind, IdentityName, MappedTo, Mapping, Role, Uid,
};
use tieline_wire::identity::ListIdentitiesReply;

/// Entries of a page.
const PAGE: usize = 2000;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IdentityTable {
    pub(crate) version: u64,
    pub(crate) identities: BTreeMap<(IdentityKind, u32), Identity>,
    pub(crate) names: BTreeMap<(IdentityKind, IdentityName), u32>,
    pub(crate) principals: BTreeMap<String, MappedTo>,
    /// The highest number of each kind that was removed; the root's table alone knows.
    pub(crate) removed: BTreeMap<IdentityKind, u32>,
    /// Of a copy that a client has: what it was told of itself.
    is_whole: Option<bool>,
}

/// Who a principal is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    pub caller: Caller,
    pub name: IdentityName,
    pub roles: Vec<Role>,
    /// By which mapping, for people.
    pub how: String,
}

/// Why a principal is nobody.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unknown {
    #[error("nothing maps it")]
    NotMapped,
    #[error("the mapping of {0} says it is nobody")]
    Nobody(String),
    #[error("the mapping of {mapping} makes it `{name}`, and there is no such user")]
    NoUser { mapping: String, name: String },
}

impl IdentityTable {
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn is_empty(&self) -> bool {
        self.identities.is_empty() && self.principals.is_empty()
    }

    pub fn identities(&self) -> impl Iterator<Item = &Identity> {
        self.identities.values()
    }

    pub fn mappings(&self) -> impl Iterator<Item = Mapping> {
        let mapping = |(principal, to): (&String, &MappedTo)| Mapping {
            principal: principal.clone(),
            to: to.clone(),
        };
        self.principals.iter().map(mapping)
    }

    pub fn identity(&self, kind: IdentityKind, number: u32) -> Option<&Identity> {
        self.identities.get(&(kind, number))
    }

    pub fn named(&self, kind: IdentityKind, name: &IdentityName) -> Option<&Identity> {
        let number = self.names.get(&(kind, name.clone()))?;
        self.identity(kind, *number)
    }

    /// Takes an entry as another server has it.
    pub fn adopt(&mut self, version: u64, identities: Vec<Identity>, mappings: Vec<Mapping>) {
        self.version = version;
        for identity in identities {
            self.insert(identity);
        }
        self.principals.extend(mappings.into_iter().map(|m| (m.principal, m.to)));
    }

    /// The server said whether it told us principals and roles as well.
    pub fn told(&mut self, is_whole: Option<bool>) {
        self.is_whole = is_whole;
    }

    /// Are principals and roles among what we were told? A server that does not say so may have
    /// none to tell.
    pub fn is_whole(&self) -> bool {
        let shows_some = || {
            let has_role = |known: &Identity| !known.roles.is_empty();
            !self.principals.is_empty() || self.identities.values().any(has_role)
        };
        self.is_whole.unwrap_or_else(shows_some)
    }

    /// A page of the table. `is_whole`: with principals and roles.
    pub fn page(&self, have: u64, from: u32, is_whole: bool) -> ListIdentitiesReply {
        let version = self.version;
        if have == version {
            let (identities, mappings) = (vec![], vec![]);
            let (is_end, is_whole) = (true, Some(is_whole));
            return ListIdentitiesReply { version, identities, mappings, is_end, is_whole };
        }
        let from = from as usize;
        let mut identities: Vec<Identity> =
            self.identities.values().skip(from).take(PAGE).cloned().collect();
        let mut mappings = vec![];
        let mut is_end = from + identities.len() >= self.identities.len();
        if is_whole && is_end {
            let (from, room) = (
                (from + identities.len()).saturating_sub(self.identities.len()),
                PAGE - identities.len(),
            );
            mappings = self.mappings().skip(from).take(room).collect();
            is_end = from + mappings.len() >= self.principals.len();
        }
        if !is_whole {
            identities.iter_mut().for_each(|identity| identity.roles.clear());
        }
        let is_whole = Some(is_whole);
        ListIdentitiesReply { version, identities, mappings, is_end, is_whole }
    }

    /// Who is it, in a file system with this realm?
    pub fn resolve(&self, principal: &str, own_realm: &str) -> Result<Resolved, Unknown> {
        if let Some(to) = self.principals.get(principal) {
            return self.follow(principal, principal, to);
        }
        let Some((name, realm)) = principal.rsplit_once('@') else {
            return Err(Unknown::NotMapped);
        };
        for (pattern, rest) in patterns(name) {
            let wide = format!("{pattern}@{realm}");
            if let Some(to) = self.principals.get(&wide) {
                return self.follow(&wide, rest, to);
            }
        }
        if realm != own_realm {
            return Err(Unknown::NotMapped);
        }
        let found = name.parse().ok().and_then(|name| self.named(IdentityKind::User, &name));
        let how = || format!("the user of that name in realm {realm}");
        found.map(|user| resolved(user, how())).ok_or(Unknown::NotMapped)
    }

    fn follow(&self, mapping: &str, name: &str, to: &MappedTo) -> Result<Resolved, Unknown> {
        let how = format!("the mapping of {mapping}");
        let (found, name) = match to {
            MappedTo::Nobody => return Err(Unknown::Nobody(mapping.to_owned())),
            MappedTo::User(number) => {
                (self.identity(IdentityKind::User, *number), format!("number {number}"))
            }
            MappedTo::Named(pattern) => {
                let name = pattern.replace('*', name);
                let parsed = name.parse().ok();
                (parsed.and_then(|name| self.named(IdentityKind::User, &name)), name)
            }
        };
        let missing = || Unknown::NoUser { mapping: mapping.to_owned(), name };
        found.map(|user| resolved(user, how)).ok_or_else(missing)
    }

    /// What a principal is mapped to, for people.
    pub fn named_to(&self, to: &MappedTo) -> String {
        match to {
            MappedTo::User(number) => {
                let user = self.identity(IdentityKind::User, *number);
                user.map_or_else(|| number.to_string(), |user| user.name.to_string())
            }
            MappedTo::Named(pattern) => pattern.clone(),
            MappedTo::Nobody => "nobody".to_owned(),
        }
    }

    /// What a principal as it stands is mapped to.
    pub fn mapped(&self, principal: &str) -> Option<&MappedTo> {
        self.principals.get(principal)
    }

    /// The highest number of a kind that was removed.
    pub fn last_removed(&self, kind: IdentityKind) -> Option<u32> {
        self.removed.get(&kind).copied()
    }

    /// Notes a number that nobody shall get by himself.
    pub fn note_removed(&mut self, kind: IdentityKind, number: u32) {
        let last = self.removed.entry(kind).or_default();
        *last = number.max(*last);
    }

    pub(crate) fn insert(&mut self, identity: Identity) {
        let (kind, number) = (identity.kind, identity.number);
        if let Some(old) = self.identities.get(&(kind, number)) {
            self.names.remove(&(kind, old.name.clone()));
        }
        self.names.insert((kind, identity.name.clone()), number);
        self.identities.insert((kind, number), identity);
    }
}

/// The patterns that a principal's name is one of, the narrowest first, each with what its `*`
/// stands for.
fn patterns(name: &str) -> Vec<(String, &str)> {
    let service = name.split_once('/').map(|(first, rest)| (format!("{first}/*"), rest));
    let instance = name.rsplit_once('/').map(|(rest, last)| (format!("*/{last}"), rest));
    service.into_iter().chain(instance).chain([("*".to_owned(), name)]).collect()
}

fn resolved(user: &Identity, how: String) -> Resolved {
    let mut groups = user.groups.iter().copied().map(Gid);
    // Tables from before users had groups of their own.
    let gid = groups.next().unwrap_or(Gid(NOBODY));
    let caller = Caller { uid: Uid(user.number), gid, groups: groups.collect(), proof: None };
    Resolved { caller, name: user.name.clone(), roles: user.roles.clone(), how }
}

#[cfg(test)]
mod tests;
