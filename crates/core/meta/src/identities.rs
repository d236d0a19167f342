//! The table of identities: who principals are, and what numbers their files carry.
//!
//! [`IdentityTable`] is a value: edits and questions are pure. The MDT of the root keeps it in its
//! store ([`crate::Mdt::identities`], [`crate::Mdt::edit_identities`]); other servers keep copies.
//!
//! A principal is looked for as it stands; then, as `NAME/INSTANCE@REALM`, under `NAME/*@REALM` and
//! `*/INSTANCE@REALM`; then under `*@REALM`; then, in the file system's own realm, as a user of
//! that name. A name that a mapping makes must be a user's.
//!
//! Invariants: numbers are unique per kind, below 2^31, and not 0 (root) or nobody's; names are
//! unique per kind; what is mapped to a user goes with him; edits happen all or none.

use crate::error::Result;
use crate::view::decode;
use std::collections::BTreeMap;
use tieline_format::Record;
use tieline_format::mdt::{Identities, key};
use tieline_kv::{Range, Transaction};
use tieline_types::identity::{IDENTITY_MAX, NOBODY};
use tieline_types::{
    Caller, ErrorKind, Gid, Identity, IdentityKind, IdentityName, MappedTo, Mapping, Role, Uid,
};
use tieline_wire::identity::{IdentityEdit, ListIdentitiesReply, NewIdentity, NewMapping};

/// Records in one look.
const STEP: usize = 1000;
/// Edits in one request.
const EDITS_MAX: usize = 1000;
/// Identities and mappings together: all of it is in every server's memory.
const ENTRIES_MAX: usize = 1_000_000;
/// Groups of a user.
const GROUPS_MAX: usize = Caller::GROUPS_MAX;
/// Numbers given where none is asked for begin here, above those of most machines' own users.
const FIRST_NUMBER: u32 = 100_000;
const PRINCIPAL_MAX: usize = 400;
/// Entries of a page.
const PAGE: usize = 2000;

/// Root and nobody are the same on every machine, by these names.
const RESERVED: [&str; 3] = ["root", "nobody", "nogroup"];

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IdentityTable {
    version: u64,
    identities: BTreeMap<(IdentityKind, u32), Identity>,
    names: BTreeMap<(IdentityKind, IdentityName), u32>,
    principals: BTreeMap<String, MappedTo>,
    /// The highest number of each kind that was removed; the root's table alone knows.
    removed: BTreeMap<IdentityKind, u32>,
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

/// Why the table was not changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EditError {
    #[error("no {kind} `{name}`: `tieline id list` shows who there is", kind = .kind.name())]
    NoIdentity { kind: IdentityKind, name: IdentityName },
    #[error("number {number} is that of {kind} `{name}`", kind = .kind.name())]
    Taken { kind: IdentityKind, number: u32, name: IdentityName },
    #[error("`{name}` has number {number}: files carry it, so it does not change")]
    Fixed { name: IdentityName, number: u32 },
    #[error("{number} is no identity's number: 1 to 2147483647 without 65534 are")]
    Number { number: u32 },
    #[error(
        "no {kind} is named `{name}`: numbers are taken for identities' numbers, and root and \
         nobody are the same on every machine", kind = .kind.name()
    )]
    Reserved { kind: IdentityKind, name: IdentityName },
    #[error("a group has no groups")]
    Groups,
    #[error(
        "user `{name}` would be in no group, and one of its name is there already, which others \
         may be in: say its groups (`tieline id add {name} --groups GROUP`)"
    )]
    OwnGroup { name: IdentityName },
    #[error("`{0}` is no principal: NAME@REALM, *@REALM, */INSTANCE@REALM or NAME/*@REALM")]
    Principal(String),
    #[error("`{0}` is no user's name, and none with one `*` in the place of the principal's")]
    Pattern(String),
    #[error(
        "{principal} is mapped to {holder} already: `tieline id map --move` takes it from there"
    )]
    Mapped { principal: String, holder: String },
    #[error(
        "group `{name}` is the first of {users}: give them another (`tieline id add USER --groups \
         GROUP,…`), or remove them"
    )]
    FirstGroup { name: IdentityName, users: String },
    #[error("too many at once, or altogether")]
    TooMany,
    #[error("`{0}` is not mapped")]
    NotMapped(String),
}

fn is_reserved(name: &IdentityName) -> bool {
    // Verbs take numbers where they take names.
    let is_number = name.as_str().bytes().all(|byte| byte.is_ascii_digit());
    is_number || RESERVED.contains(&name.as_str())
}

impl EditError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoIdentity { .. } | Self::NotMapped(_) => ErrorKind::NotFound,
            Self::Taken { .. }
            | Self::Fixed { .. }
            | Self::OwnGroup { .. }
            | Self::Mapped { .. } => ErrorKind::Exists,
            Self::Number { .. }
            | Self::Reserved { .. }
            | Self::Groups
            | Self::FirstGroup { .. }
            | Self::Principal(_)
            | Self::Pattern(_) => ErrorKind::InvalidArgument,
            Self::TooMany => ErrorKind::NoSpace,
        }
    }
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

    /// The table after some edits, with the next version.
    pub fn edited(&self, edits: &[IdentityEdit]) -> Result<Self, EditError> {
        let mut table = self.clone();
        for edit in edits {
            table.apply(edit)?;
        }
        let entries = table.identities.len() + table.principals.len();
        if edits.len() > EDITS_MAX || entries > ENTRIES_MAX {
            return Err(EditError::TooMany);
        }
        if table != *self {
            table.version += 1;
        }
        Ok(table)
    }

    /// One edit, done or not; the version stays.
    pub fn apply(&mut self, edit: &IdentityEdit) -> Result<(), EditError> {
        match edit {
            IdentityEdit::Put(new) => self.put(new),
            IdentityEdit::Remove { kind, name } => self.remove(*kind, name),
            IdentityEdit::Map { principal, to } => self.map(principal, to),
            IdentityEdit::Unmap(principal) => {
                let gone = self.principals.remove(principal);
                gone.map(drop).ok_or_else(|| EditError::NotMapped(principal.clone()))
            }
            IdentityEdit::Role { user, role, is_given } => {
                let mut found = self.existing(IdentityKind::User, user)?.clone();
                found.roles.retain(|other| other != role);
                found.roles.extend(is_given.then(|| role.clone()));
                found.roles.sort();
                self.insert(found);
                Ok(())
            }
        }
    }

    fn existing(&self, kind: IdentityKind, name: &IdentityName) -> Result<&Identity, EditError> {
        let missing = || EditError::NoIdentity { kind, name: name.clone() };
        self.named(kind, name).ok_or_else(missing)
    }

    fn put(&mut self, new: &NewIdentity) -> Result<(), EditError> {
        let kind = new.kind;
        let old = self.named(kind, &new.name).cloned();
        if old.is_none() && is_reserved(&new.name) {
            return Err(EditError::Reserved { kind, name: new.name.clone() });
        }
        let number = match (&old, new.number) {
            (Some(old), Some(number)) if old.number != number => {
                return Err(EditError::Fixed { name: new.name.clone(), number: old.number });
            }
            (Some(old), _) => old.number,
            (None, Some(number)) => number,
            (None, None) => self.free_number(kind),
        };
        if number == 0 || number == NOBODY || number >= IDENTITY_MAX {
            return Err(EditError::Number { number });
        }
        if let Some(holder) = self.identity(kind, number).filter(|holder| holder.name != new.name) {
            return Err(EditError::Taken { kind, number, name: holder.name.clone() });
        }
        let groups = match &new.groups {
            Some(names) if kind == IdentityKind::Group && !names.is_empty() => {
                return Err(EditError::Groups);
            }
            Some(names) if names.len() > GROUPS_MAX => return Err(EditError::TooMany),
            Some(names) => self.numbers_of(names)?,
            None => old.as_ref().map(|old| old.groups.clone()).unwrap_or_default(),
        };
        let roles = old.map(|old| old.roles).unwrap_or_default();
        let mut identity = Identity { kind, number, name: new.name.clone(), groups, roles };
        self.give_group(&mut identity)?;
        self.insert(identity);
        Ok(())
    }

    /// Puts a user who is in no group into one of his own, named as he is: what he lets his group
    /// read is then nobody else's, nor that of strangers.
    fn give_group(&mut self, user: &mut Identity) -> Result<(), EditError> {
        let kind = IdentityKind::Group;
        if user.kind == kind || !user.groups.is_empty() {
            return Ok(());
        }
        let name = user.name.clone();
        if self.named(kind, &name).is_some() {
            return Err(EditError::OwnGroup { name });
        }
        let is_free = self.identity(kind, user.number).is_none();
        let number = if is_free { user.number } else { self.free_number(kind) };
        self.insert(Identity { kind, number, name, groups: vec![], roles: vec![] });
        user.groups.push(number);
        Ok(())
    }

    fn numbers_of(&self, groups: &[IdentityName]) -> Result<Vec<u32>, EditError> {
        let mut numbers = vec![];
        for name in groups {
            let number = self.existing(IdentityKind::Group, name)?.number;
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        Ok(numbers)
    }

    fn free_number(&self, kind: IdentityKind) -> u32 {
        let last = self.identities.range(..=(kind, IDENTITY_MAX)).next_back();
        let last = last.filter(|((of, _), _)| *of == kind).map_or(0, |((_, number), _)| *number);
        // A removed one's files are still his.
        let last = last.max(self.removed.get(&kind).copied().unwrap_or_default());
        (last + 1).max(FIRST_NUMBER)
    }

    fn remove(&mut self, kind: IdentityKind, name: &IdentityName) -> Result<(), EditError> {
        let gone = self.existing(kind, name)?.clone();
        let number = gone.number;
        match kind {
            IdentityKind::User => {
                self.forget(&gone);
                self.principals.retain(|_, to| *to != MappedTo::User(number));
                let own = self.named(IdentityKind::Group, name).cloned();
                let is_others =
                    |group: u32| self.identities.values().any(|one| one.groups.contains(&group));
                if let Some(own) = own
                    && gone.groups == [own.number]
                    && !is_others(own.number)
                {
                    self.forget(&own);
                }
            }
            IdentityKind::Group => {
                let has = |one: &&Identity| one.groups.contains(&number);
                let members: Vec<Identity> =
                    self.identities.values().filter(has).cloned().collect();
                // Their new files would carry another group without a word.
                let firsts = members.iter().filter(|one| one.groups.first() == Some(&number));
                let firsts: Vec<String> = firsts.map(|one| one.name.to_string()).collect();
                if !firsts.is_empty() {
                    let users = some_of(&firsts);
                    return Err(EditError::FirstGroup { name: gone.name, users });
                }
                for mut user in members {
                    user.groups.retain(|&group| group != number);
                    self.insert(user);
                }
                self.forget(&gone);
            }
        }
        Ok(())
    }

    fn forget(&mut self, gone: &Identity) {
        let last = self.removed.entry(gone.kind).or_default();
        *last = gone.number.max(*last);
        self.identities.remove(&(gone.kind, gone.number));
        self.names.remove(&(gone.kind, gone.name.clone()));
    }

    fn map(&mut self, principal: &str, to: &NewMapping) -> Result<(), EditError> {
        let is_wide = principal.contains('*') && !principal.starts_with('/');
        if !is_principal(principal) {
            return Err(EditError::Principal(principal.to_owned()));
        }
        let to = match to {
            NewMapping::Nobody => MappedTo::Nobody,
            NewMapping::Named(pattern) if is_wide && pattern.contains('*') => {
                let sample = pattern.replace('*', "x").parse::<IdentityName>();
                let is_name = sample.is_ok() && pattern.matches('*').count() == 1;
                is_name.then_some(()).ok_or_else(|| EditError::Pattern(pattern.clone()))?;
                MappedTo::Named(pattern.clone())
            }
            NewMapping::Named(name) => {
                let name = name.parse().map_err(|_| EditError::Pattern(name.clone()))?;
                MappedTo::User(self.existing(IdentityKind::User, &name)?.number)
            }
        };
        // Whoever says that it is nobody means whoever has it.
        if to != MappedTo::Nobody
            && let Some(now) = self.principals.get(principal).filter(|&now| *now != to)
        {
            let holder = self.named_to(now);
            return Err(EditError::Mapped { principal: principal.to_owned(), holder });
        }
        self.principals.insert(principal.to_owned(), to);
        Ok(())
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

    fn insert(&mut self, identity: Identity) {
        let (kind, number) = (identity.kind, identity.number);
        if let Some(old) = self.identities.get(&(kind, number)) {
            self.names.remove(&(kind, old.name.clone()));
        }
        self.names.insert((kind, identity.name.clone()), number);
        self.identities.insert((kind, number), identity);
    }

    /// Writes what differs from `old`.
    pub(crate) fn write(&self, old: &Self, transaction: &mut dyn Transaction) {
        for (&(kind, number), identity) in &self.identities {
            if old.identities.get(&(kind, number)) != Some(identity) {
                transaction.put(key::identity(kind, number), identity.to_bytes());
            }
        }
        let gone = old.identities.keys().filter(|id| !self.identities.contains_key(id));
        gone.for_each(|&(kind, number)| transaction.delete(key::identity(kind, number)));
        for (principal, to) in &self.principals {
            if old.principals.get(principal) != Some(to) {
                transaction.put(key::principal(principal), to.to_bytes());
            }
        }
        let gone = old.principals.keys().filter(|known| !self.principals.contains_key(*known));
        gone.for_each(|principal| transaction.delete(key::principal(principal)));
        let last = |kind| self.removed.get(&kind).copied();
        let record = Identities {
            version: self.version,
            last_user: last(IdentityKind::User),
            last_group: last(IdentityKind::Group),
        };
        transaction.put(key::identities(), record.to_bytes());
    }
}

/// Some names, and how many more there are.
fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// `NAME@REALM`, a pattern of such, or the subject of a certificate (`/DC=org/CN=Ann Smith`), which
/// no ticket carries.
fn is_principal(text: &str) -> bool {
    if text.is_empty() || text.len() > PRINCIPAL_MAX || text.contains(char::is_control) {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let is_name = |name: &str| {
        // An `@` in a name is written `\\@`.
        let is_one = !name.replace("\\@", "").contains('@');
        !name.is_empty() && is_one && (!name.contains('*') || is_pattern(name))
    };
    let parts = text.rsplit_once('@').filter(|_| !text.contains(char::is_whitespace));
    parts.is_some_and(|(name, realm)| is_name(name) && !realm.is_empty() && !realm.contains('*'))
}

/// `*`, `*/INSTANCE` or `NAME/*`.
fn is_pattern(name: &str) -> bool {
    let rest = name.strip_prefix("*/").or_else(|| name.strip_suffix("/*"));
    name == "*" || rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['*', '/']))
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

/// The table as a store has it.
pub(crate) async fn read(transaction: &mut dyn Transaction) -> Result<IdentityTable> {
    let mut table = IdentityTable::default();
    let version = transaction.read(&[key::identities()]).await?.into_iter().next().flatten();
    if let Some(value) = version {
        let record: Identities = decode(&value, || "identities".to_owned())?;
        table.version = record.version;
        let last =
            [(IdentityKind::User, record.last_user), (IdentityKind::Group, record.last_group)];
        let last = last.into_iter().filter_map(|(kind, last)| Some((kind, last?)));
        table.removed = last.collect();
    }
    for (_, value) in all(transaction, key::identities_each()).await? {
        table.insert(decode(&value, || "identity".to_owned())?);
    }
    for (key, value) in all(transaction, key::principals()).await? {
        let to = decode(&value, || "principal".to_owned())?;
        let text = key::principal_text(&key).unwrap_or_default();
        table.principals.insert(text.to_owned(), to);
    }
    Ok(table)
}

/// Every record whose key has the letter of `start`, from there on.
async fn all(transaction: &mut dyn Transaction, start: Vec<u8>) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let end = key::after(start.get(..1).unwrap_or_default());
    let (mut start, mut found) = (start, vec![]);
    loop {
        let page = transaction.scan(Range::new(start.clone(), end.clone()), STEP).await?;
        let is_last = page.len() < STEP;
        if let Some((last, _)) = page.last() {
            start = [last.as_slice(), &[0]].concat();
        }
        found.extend(page);
        if is_last {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests;
