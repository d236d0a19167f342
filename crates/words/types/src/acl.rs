//! POSIX access lists: who may do what beyond owner, group and others.
//!
//! A list is kept without what the mode says already. The mode's owner and other bits are the
//! list's entries for these, and its group bits are the mask, so that `chmod` and a list can never
//! disagree; the owning group's own entry is kept here. A directory may have a second list, which
//! new files in it get as their own ([`DefaultList::hand_down`]).
//!
//! Programs see lists as extended attributes in Linux's binary form: a version, then tag, rights
//! and id of each entry, little-endian. What is read from there is from outside: it is checked as
//! Linux checks it, and keeps its order.

use crate::{AtMost, Caller, Gid, Mode, Uid};
use minicbor::{Decode, Encode};

/// The attribute by which programs see the list of a file.
pub const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// The attribute by which programs see what a directory hands down.
pub const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";
/// Entries of one list: what Linux takes from a FUSE file system in one page.
pub const ENTRIES_MAX: usize = 508;

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

const ALL: u8 = 7;

/// Both lists of a file, where it has any.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Acls {
    #[n(0)]
    pub access: Option<AccessList>,
    /// Only directories have one.
    #[n(1)]
    pub default: Option<DefaultList>,
}

impl Acls {
    pub fn new(access: Option<AccessList>, default: Option<DefaultList>) -> Option<Box<Self>> {
        let has_any = access.is_some() || default.is_some();
        has_any.then(|| Box::new(Self { access, default }))
    }
}

/// Somebody by name, and what they may do: bits of read (4), write (2) and search (1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Named {
    #[n(0)]
    pub who: Who,
    #[n(1)]
    pub rights: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Who {
    #[n(1)]
    User(#[n(0)] Uid),
    #[n(2)]
    Group(#[n(0)] Gid),
}

/// What a file's list says beyond its mode. The mode's group bits are the mask.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct AccessList {
    /// The owning group's own entry.
    #[n(0)]
    pub group: u8,
    #[n(1)]
    #[cbor(with = "AtMost::<ENTRIES_MAX>")]
    pub named: Vec<Named>,
}

impl AccessList {
    /// Is it so of the rights in each entry?
    pub fn all(&self, is_so: impl Fn(u32) -> bool) -> bool {
        let named = self.named.iter().map(|one| one.rights);
        named.chain([self.group]).all(|rights| is_so(rights.into()))
    }

    /// Do the mode and this list let the caller, who is not the owner, do all of `wish`?
    pub fn allow(&self, mode: Mode, owning: Gid, caller: &Caller, wish: u32) -> bool {
        let mask = mode.bits() >> 3 & 7;
        // Linux looks into no list whose mask is empty: the owning group gets nothing, and
        // whoever is not in it what others get.
        if mask == 0 {
            return !caller.is_member(owning) && mode.bits() & wish == wish;
        }
        let users = self.named.iter().filter(|one| one.who == Who::User(caller.uid));
        if let Some(user) = users.map(|one| u32::from(one.rights)).next() {
            return user & mask & wish == wish;
        }
        let is_in = |one: &&Named| matches!(one.who, Who::Group(gid) if caller.is_member(gid));
        let own = caller.is_member(owning).then_some(self.group);
        let groups = self.named.iter().filter(is_in).map(|one| one.rights);
        let mut is_in_any = false;
        for rights in own.into_iter().chain(groups) {
            is_in_any = true;
            if u32::from(rights) & wish == wish {
                return mask & wish == wish;
            }
        }
        !is_in_any && mode.bits() & wish == wish
    }

    /// The entries that speak of a caller who is not the owner, as `getfacl` writes them, and the
    /// mask over them; empty where he is one of the others.
    pub fn about(&self, mode: Mode, owning: Gid, caller: &Caller) -> Vec<String> {
        let entry = |tag: &str, rights: u8| format!("{tag}:{}", letters(rights));
        let user = self.named.iter().find(|one| one.who == Who::User(caller.uid));
        let mut entries: Vec<String> = match user {
            Some(one) => vec![entry(&format!("user:{}", caller.uid), one.rights)],
            None => {
                let own = caller.is_member(owning).then(|| entry("group:", self.group));
                let groups = self.named.iter().filter_map(|one| match one.who {
                    Who::Group(gid) if caller.is_member(gid) => {
                        Some(entry(&format!("group:{gid}"), one.rights))
                    }
                    _ => None,
                });
                own.into_iter().chain(groups).collect()
            }
        };
        if !entries.is_empty() {
            entries.push(entry("mask:", (mode.bits() >> 3 & 7) as u8));
        }
        entries
    }

    /// In the form of the extended attribute.
    pub fn to_bytes(&self, mode: Mode) -> Vec<u8> {
        let class = |shift: u32| (mode.bits() >> shift & 7) as u8;
        let list = Whole {
            owner: class(6),
            group: self.group,
            mask: Some(class(3)),
            other: class(0),
            named: self.named.clone(),
        };
        list.to_bytes()
    }

    /// What a list means that was set through the extended attribute: the mode's nine bits, and
    /// what they do not say. `None`: it takes the list away and leaves the mode.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Mode, Option<Self>)>, AclError> {
        Ok(Whole::parse(bytes)?.map(Whole::split))
    }
}

/// A list of another file system in the form of the extended attribute, whose users and groups have
/// other numbers here. Several that become one may do what all of them may.
pub fn renamed(bytes: &[u8], rename: impl Fn(Who) -> Who) -> Result<Vec<u8>, AclError> {
    let Some(mut list) = Whole::parse(bytes)? else { return Ok(vec![]) };
    let mut named: Vec<Named> = Vec::with_capacity(list.named.len());
    for Named { who, rights } in list.named {
        let who = rename(who);
        match named.iter_mut().find(|one| one.who == who) {
            Some(one) => one.rights &= rights,
            None => named.push(Named { who, rights }),
        }
    }
    list.named = named;
    Ok(list.to_bytes())
}

/// What the owning group may do by a list in the form of the extended attribute: the mode's group
/// bits where the list itself cannot be kept. Nothing, if it is no list.
pub fn group_alone(bytes: &[u8]) -> u8 {
    let list = Whole::parse(bytes).ok().flatten();
    list.map_or(0, |list| list.group & list.mask.unwrap_or(ALL))
}

/// `rw-` and the like.
fn letters(rights: u8) -> String {
    let bits = [(4, 'r'), (2, 'w'), (1, 'x')];
    bits.into_iter().map(|(bit, letter)| if rights & bit != 0 { letter } else { '-' }).collect()
}

/// What new files in a directory get.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DefaultList {
    #[n(0)]
    pub owner: u8,
    #[n(1)]
    pub group: u8,
    #[n(2)]
    pub other: u8,
    #[n(3)]
    pub mask: Option<u8>,
    #[n(4)]
    #[cbor(with = "AtMost::<ENTRIES_MAX>")]
    pub named: Vec<Named>,
}

impl DefaultList {
    /// Mode and list of a new file that was asked for with `mode`; no umask comes into it.
    pub fn hand_down(&self, mode: Mode) -> (Mode, Option<AccessList>) {
        let class = |shift: u32| (mode.bits() >> shift & 7) as u8;
        let mut list = self.whole();
        list.owner &= class(6);
        list.other &= class(0);
        match &mut list.mask {
            Some(mask) => *mask &= class(3),
            None => list.group &= class(3),
        }
        let (classes, access) = list.split();
        (Mode::new(mode.bits() & 0o7000 | classes.bits()), access)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        self.whole().to_bytes()
    }

    /// `None`: it takes the list away.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, AclError> {
        let list = Whole::parse(bytes)?;
        Ok(list.map(|Whole { owner, group, other, mask, named }| Self {
            owner,
            group,
            other,
            mask,
            named,
        }))
    }

    fn whole(&self) -> Whole {
        let Self { owner, group, other, mask, ref named } = *self;
        Whole { owner, group, other, mask, named: named.clone() }
    }
}

/// Why bytes are no list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AclError {
    #[error("an access list of another version than {VERSION}")]
    Version,
    #[error("an access list that is cut off, out of order or without a mask it needs")]
    Shape,
    #[error("an access list of more than {ENTRIES_MAX} entries")]
    TooLong,
}

/// A list with everything in it, as programs see it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Whole {
    owner: u8,
    group: u8,
    other: u8,
    mask: Option<u8>,
    /// Users first.
    named: Vec<Named>,
}

impl Whole {
    /// The mode's bits, and the rest if there is more than they say.
    fn split(self) -> (Mode, Option<AccessList>) {
        let Self { owner, group, other, mask, named } = self;
        let middle = mask.unwrap_or(group);
        let bits = [owner, middle, other].map(|rights| u32::from(rights & ALL));
        let mode = Mode::new(bits[0] << 6 | bits[1] << 3 | bits[2]);
        (mode, mask.map(|_| AccessList { group: group & ALL, named }))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        let mut put = |tag: u16, rights: u8, id: u32| {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(u16::from(rights & ALL).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        };
        put(USER_OBJ, self.owner, NO_ID);
        for one in &self.named {
            if let Who::User(uid) = one.who {
                put(USER, one.rights, uid.0);
            }
        }
        put(GROUP_OBJ, self.group, NO_ID);
        for one in &self.named {
            if let Who::Group(gid) = one.who {
                put(GROUP, one.rights, gid.0);
            }
        }
        if let Some(mask) = self.mask {
            put(MASK, mask, NO_ID);
        }
        put(OTHER, self.other, NO_ID);
        bytes
    }

    /// Reads a list strictly. Nothing, and a list without entries, are no list.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, AclError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, entries) = bytes.split_first_chunk().ok_or(AclError::Shape)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(AclError::Version);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        if entries.len() > ENTRIES_MAX * ENTRY_BYTES {
            return Err(AclError::TooLong);
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(AclError::Shape);
        }
        let mut reader = Reader::default();
        for &[tag_low, tag_high, low, high, a, b, c, d] in entries {
            let tag = u16::from_le_bytes([tag_low, tag_high]);
            let rights = u8::try_from(u16::from_le_bytes([low, high]));
            let rights = rights.ok().filter(|&rights| rights <= ALL).ok_or(AclError::Shape)?;
            reader.entry(tag, rights, u32::from_le_bytes([a, b, c, d]))?;
        }
        reader.end().map(Some)
    }
}

/// A list as far as it was read. Entries come in the order of their tags.
#[derive(Default)]
struct Reader {
    last: u16,
    owner: Option<u8>,
    group: Option<u8>,
    mask: Option<u8>,
    other: Option<u8>,
    named: Vec<Named>,
}

impl Reader {
    fn entry(&mut self, tag: u16, rights: u8, id: u32) -> Result<(), AclError> {
        let may_repeat = matches!(tag, USER | GROUP);
        if tag < self.last || (tag == self.last && !may_repeat) {
            return Err(AclError::Shape);
        }
        if may_repeat && id == NO_ID {
            return Err(AclError::Shape);
        }
        self.last = tag;
        match tag {
            USER_OBJ => self.owner = Some(rights),
            USER => self.named.push(Named { who: Who::User(Uid(id)), rights }),
            GROUP_OBJ => self.group = Some(rights),
            GROUP => self.named.push(Named { who: Who::Group(Gid(id)), rights }),
            MASK => self.mask = Some(rights),
            OTHER => self.other = Some(rights),
            _ => return Err(AclError::Shape),
        }
        Ok(())
    }

    fn end(self) -> Result<Whole, AclError> {
        let Self { owner, group, mask, other, named, .. } = self;
        if !named.is_empty() && mask.is_none() {
            return Err(AclError::Shape);
        }
        match (owner, group, other) {
            (Some(owner), Some(group), Some(other)) => {
                Ok(Whole { owner, group, other, mask, named })
            }
            _ => Err(AclError::Shape),
        }
    }
}

#[cfg(test)]
mod tests;
