//! How the table is changed: some edits, all or none.
//!
//! Invariants: numbers are unique per kind, below 2^31, and not 0 (root) or nobody's; names are
//! unique per kind; what is mapped to a user goes with him; edits happen all or none.

use crate::IdentityTable;
use tieline_types::identity::{IDENTITY_MAX, NOBODY};
use tieline_types::{Caller, ErrorKind, Identity, IdentityKind, IdentityName, MappedTo};
use tieline_wire::identity::{EDITS_MAX, IdentityEdit, NewIdentity, NewMapping};

/// Identities and mappings together: all of it is in every server's memory.
const ENTRIES_MAX: usize = 1_000_000;
/// Groups of a user.
const GROUPS_MAX: usize = Caller::GROUPS_MAX;
/// Numbers given where none is asked for begin here, above those of most machines' own users.
const FIRST_NUMBER: u32 = 100_000;
const PRINCIPAL_MAX: usize = 400;

/// Root and nobody are the same on every machine, by these names.
const RESERVED: [&str; 3] = ["root", "nobody", "nogroup"];

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
                if found.roles.len() > Identity::ROLES_MAX {
                    return Err(EditError::TooMany);
                }
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
        self.note_removed(gone.kind, gone.number);
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
}

fn is_reserved(name: &IdentityName) -> bool {
    // Verbs take numbers where they take names.
    let is_number = name.as_str().bytes().all(|byte| byte.is_ascii_digit());
    is_number || RESERVED.contains(&name.as_str())
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
