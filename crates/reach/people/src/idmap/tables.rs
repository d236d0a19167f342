//! Which uid and which gid an identity is here, and back.
//!
//! By the names that this machine knows; or as a file says it, in lines of passwd(5) and group(5),
//! whose names are identities; `user NAME UID`, `group NAME GID` (a number may stand for the name);
//! `range user FIRST LAST LOCAL`, `range group …`.
//!
//! Invariant: root and nobody are themselves, whatever is said of them.

use super::Means;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use tieline_identities::IdentityTable;
use tieline_types::identity::{IDENTITY_MAX, NOBODY};
use tieline_types::{Caller, Identity, IdentityKind};

/// Names that are looked up at this machine; a larger table wants a file.
const NAMES_MAX: usize = 20_000;
/// Room for an entry of the user database.
const ENTRY: usize = 64 << 10;

/// Why a file says nothing.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("idmap={}: {source}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("idmap={}, line {line}: `{text}` means nothing", .path.display())]
    Line { path: PathBuf, line: usize, text: String },
}

/// Numbers to uids or gids, and back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Pairs {
    shown: BTreeMap<u32, u32>,
    stored: BTreeMap<u32, u32>,
    /// First and last number, and the first here.
    ranges: Vec<(u32, u32, u32)>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Tables {
    /// Numbers are the same.
    pub is_same: bool,
    pub users: Pairs,
    pub groups: Pairs,
}

impl Pairs {
    pub(super) fn add(&mut self, number: u32, local: u32) {
        // The first that is named is whom a local id means; a second is shown as he is, too.
        self.shown.entry(number).or_insert(local);
        self.stored.entry(local).or_insert(number);
    }

    /// Whatever was said of either.
    fn set(&mut self, number: u32, local: u32) {
        if number != 0 && number != NOBODY && local != 0 {
            self.shown.retain(|_, known| *known != local);
            self.shown.insert(number, local);
            self.stored.insert(local, number);
        }
    }

    pub(super) fn show(&self, number: u32) -> u32 {
        if number == 0 || number == NOBODY || number >= IDENTITY_MAX {
            return number;
        }
        if let Some(&local) = self.shown.get(&number) {
            return local;
        }
        let within = |range: &&(u32, u32, u32)| (range.0..=range.1).contains(&number);
        match self.ranges.iter().find(within) {
            Some((first, _, local)) => local + (number - first),
            None => IDENTITY_MAX + number,
        }
    }

    pub(super) fn store(&self, local: u32) -> Option<u32> {
        if local == 0 || local == NOBODY {
            return Some(local);
        }
        if let Some(&number) = self.stored.get(&local) {
            return Some(number);
        }
        if local >= IDENTITY_MAX {
            return Some(local - IDENTITY_MAX);
        }
        let within =
            |range: &&(u32, u32, u32)| (range.2..=range.2 + (range.1 - range.0)).contains(&local);
        let range = self.ranges.iter().find(within)?;
        Some(range.0 + (local - range.2))
    }
}

impl Tables {
    pub(super) fn read(source: &Means, table: &IdentityTable) -> Result<Self, FileError> {
        match source {
            Means::Same => Ok(Self { is_same: true, ..Self::default() }),
            Means::File(path) => read(path, table),
            Means::Auto | Means::Names => Ok(by_name(table)),
        }
    }

    pub(super) fn with(mut self, own: Option<&(Caller, Caller)>) -> Self {
        if let Some((identity, here)) = own {
            self.users.set(identity.uid.0, here.uid.0);
            self.groups.set(identity.gid.0, here.gid.0);
        }
        self
    }
}

pub(super) fn by_name(table: &IdentityTable) -> Tables {
    let mut tables = Tables::default();
    for identity in table.identities().take(NAMES_MAX) {
        let Identity { kind, number, name, .. } = identity;
        let Ok(name) = CString::new(name.as_str()) else { continue };
        match kind {
            IdentityKind::User => {
                if let Some(uid) = uid_of(&name).filter(is_somebody) {
                    tables.users.add(*number, uid);
                }
            }
            IdentityKind::Group => {
                if let Some(gid) = gid_of(&name).filter(is_somebody) {
                    tables.groups.add(*number, gid);
                }
            }
        }
    }
    tables
}

fn read(path: &Path, table: &IdentityTable) -> Result<Tables, FileError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    let mut tables = Tables::default();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if read_line(text, table, &mut tables).is_none() {
            let (path, text) = (path.to_owned(), text.to_owned());
            return Err(FileError::Line { path, line, text });
        }
    }
    Ok(tables)
}

/// Names that the file system does not know are passed over: the file may be a machine's own.
pub(super) fn read_line(text: &str, table: &IdentityTable, tables: &mut Tables) -> Option<()> {
    use IdentityKind::{Group, User};
    let fields: Vec<&str> = text.split(':').collect();
    let (kind, name, local) = match fields.as_slice() {
        [name, _, uid, _, _, _, _] => (User, *name, *uid),
        [name, _, gid, _] => (Group, *name, *gid),
        _ => {
            let words: Vec<&str> = text.split_whitespace().collect();
            match words.as_slice() {
                ["user", name, uid] => (User, *name, *uid),
                ["group", name, gid] => (Group, *name, *gid),
                ["range", kind @ ("user" | "group"), first, last, local] => {
                    let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
                    let local: u32 = local.parse().ok()?;
                    let is_fine = first <= last && last < IDENTITY_MAX && local < IDENTITY_MAX;
                    let end = local.checked_add(last.checked_sub(first)?).filter(|_| is_fine)?;
                    // Root and nobody are nobody else.
                    (local > 0 && !(local..=end).contains(&NOBODY)).then_some(())?;
                    let pairs =
                        if *kind == "user" { &mut tables.users } else { &mut tables.groups };
                    pairs.ranges.push((first, last, local));
                    return Some(());
                }
                _ => return None,
            }
        }
    };
    let local: u32 = local.parse().ok()?;
    let named = name.parse().ok().and_then(|name| table.named(kind, &name));
    let number = named.map(|identity| identity.number).or_else(|| name.parse().ok());
    let is_meant = |number: &u32| *number != 0 && is_somebody(&local);
    let Some(number) = number.filter(is_meant) else { return Some(()) };
    let pairs = if kind == User { &mut tables.users } else { &mut tables.groups };
    pairs.add(number, local);
    Some(())
}

/// Root and nobody are themselves, whatever identity has their name.
fn is_somebody(local: &u32) -> bool {
    *local != 0 && *local != NOBODY
}

fn uid_of(name: &CString) -> Option<u32> {
    // SAFETY: a `passwd` of zeroes is one of null pointers and of ids 0.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let (mut room, mut found) = (vec![0; ENTRY], std::ptr::null_mut());
    // SAFETY: all pointers are to values that live through the call; the room has that length.
    let status = unsafe {
        libc::getpwnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr(), room.len(), &mut found)
    };
    (status == 0 && !found.is_null()).then_some(entry.pw_uid)
}

fn gid_of(name: &CString) -> Option<u32> {
    // SAFETY: a `group` of zeroes is one of null pointers and of id 0.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    let (mut room, mut found) = (vec![0; ENTRY], std::ptr::null_mut());
    // SAFETY: all pointers are to values that live through the call; the room has that length.
    let status = unsafe {
        libc::getgrnam_r(name.as_ptr(), &mut entry, room.as_mut_ptr(), room.len(), &mut found)
    };
    (status == 0 && !found.is_null()).then_some(entry.gr_gid)
}
