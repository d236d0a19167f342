//! Who somebody is to the file system: identities, what principals are mapped to, and roles.
//!
//! An identity is a number, which is what stands on disk as an owner, and a name. Users and groups
//! are numbered apart, as in POSIX. A Kerberos principal is mapped to a user; a person may have
//! several principals.
//!
//! Knows no store and no Kerberos.

use crate::{AtMost, Caller, NameError, PoolName, SiteName};
use minicbor::{Decode, Encode};
use std::fmt;
use std::str::FromStr;

pub use crate::names::IdentityName;

/// Numbers of identities are below this: what is above, clients show of identities unknown to
/// them.
pub const IDENTITY_MAX: u32 = 1 << 31;
/// Whoever is nobody in particular, as Linux numbers him.
pub const NOBODY: u32 = 65_534;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum IdentityKind {
    #[n(1)]
    User,
    #[n(2)]
    Group,
}

impl IdentityKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
        }
    }
}

/// A user or a group.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Identity {
    #[n(0)]
    pub kind: IdentityKind,
    /// What files of this owner carry.
    #[n(1)]
    pub number: u32,
    #[n(2)]
    pub name: IdentityName,
    /// Of a user: its groups' numbers, the first one that of its new files.
    #[n(3)]
    #[cbor(with = "AtMost::<{ Caller::GROUPS_MAX }>")]
    pub groups: Vec<u32>,
    /// Of a user: what it may administer.
    #[n(4)]
    #[cbor(with = "AtMost::<{ Identity::ROLES_MAX }>")]
    pub roles: Vec<Role>,
}

impl Identity {
    /// One for each site and pool that somebody cares for, and those of the whole.
    pub const ROLES_MAX: usize = 1024;
}

/// What somebody may administer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub enum Role {
    /// Everything of the file system.
    #[n(1)]
    FsAdmin,
    /// A site's servers and what they hold.
    #[n(2)]
    SiteAdmin(#[n(0)] SiteName),
    /// A pool's OSTs, and which they are.
    #[n(3)]
    PoolAdmin(#[n(0)] PoolName),
}

/// Why a text names no role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    #[error("`{0}` is no role: fs-admin, site-admin:SITE or pool-admin:POOL")]
    Unknown(String),
    #[error(transparent)]
    Name(#[from] NameError),
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        match text.split_once(':') {
            None if text == "fs-admin" => Ok(Self::FsAdmin),
            Some(("site-admin", site)) => Ok(Self::SiteAdmin(site.parse()?)),
            Some(("pool-admin", pool)) => Ok(Self::PoolAdmin(pool.parse()?)),
            _ => Err(RoleError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FsAdmin => f.write_str("fs-admin"),
            Self::SiteAdmin(site) => write!(f, "site-admin:{site}"),
            Self::PoolAdmin(pool) => write!(f, "pool-admin:{pool}"),
        }
    }
}

/// A principal, or all of a realm, and who that is.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Mapping {
    /// `ann@EXTENCI.ORG`, or `*@UFL.EDU`.
    #[n(0)]
    pub principal: String,
    #[n(1)]
    pub to: MappedTo,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum MappedTo {
    /// The user with this number.
    #[n(1)]
    User(#[n(0)] u32),
    /// The user of this name, in which `*` stands for what it stands for in the principal.
    #[n(2)]
    Named(#[n(0)] String),
    /// Nobody: whatever a wider mapping says.
    #[n(3)]
    Nobody,
}

/// What is believed of a machine that has proven to be itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum MachineTrust {
    /// Nothing: its users prove themselves, its root is nobody in particular.
    #[default]
    #[n(1)]
    Squash,
    /// That its root is root (`no_root_squash`); its users prove themselves.
    #[n(2)]
    Root,
    /// Who its users are; its root is nobody in particular.
    #[n(3)]
    Users,
    /// Everything it states.
    #[n(4)]
    All,
}

impl MachineTrust {
    pub const ALL: [Self; 4] = [Self::Squash, Self::Root, Self::Users, Self::All];

    pub fn name(self) -> &'static str {
        match self {
            Self::Squash => "squash",
            Self::Root => "root",
            Self::Users => "users",
            Self::All => "all",
        }
    }

    pub fn believes_root(self) -> bool {
        matches!(self, Self::Root | Self::All)
    }

    pub fn believes_users(self) -> bool {
        matches!(self, Self::Users | Self::All)
    }
}

impl FromStr for MachineTrust {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|trust| trust.name() == text);
        found.ok_or_else(|| format!("`{text}` is not squash, root, users or all"))
    }
}

/// What becomes of those whom nobody knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum Strangers {
    #[default]
    #[n(1)]
    Deny,
    /// They are [`NOBODY`], and may what everybody may.
    #[n(2)]
    Squash,
}

impl Strangers {
    pub fn name(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Squash => "squash",
        }
    }
}

impl FromStr for Strangers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "deny" => Ok(Self::Deny),
            "squash" => Ok(Self::Squash),
            _ => Err(format!("`{text}` is neither deny nor squash")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_read_and_print() {
        for text in ["fs-admin", "site-admin:fnal", "pool-admin:fast"] {
            assert_eq!(text.parse::<Role>().unwrap().to_string(), text);
        }
        for wrong in ["", "root", "fs-admin:uf", "site-admin", "site-admin:-x"] {
            assert!(wrong.parse::<Role>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_read_and_print() {
        for trust in MachineTrust::ALL {
            assert_eq!(trust.name().parse(), Ok(trust));
        }
        for rule in [Strangers::Deny, Strangers::Squash] {
            assert_eq!(rule.name().parse(), Ok(rule));
        }
        assert!("most".parse::<MachineTrust>().is_err() && "".parse::<Strangers>().is_err());
    }
}
