//! Whose use of the file system is counted, and how much they may use.
//!
//! Counted are bytes (those that extents cover, for each file that covers them) and inodes (each
//! file once), for the owner, the group and the project of a file, over all pools and for each pool
//! that its layout names.

use crate::{Gid, Layout, PoolName, Uid};
use minicbor::{Decode, Encode};
use std::collections::BTreeSet;
use std::fmt;

/// What a number in a [`Payer`] means. The numbers are on disk and on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum PayerKind {
    #[n(1)]
    User,
    #[n(2)]
    Group,
    /// A directory tree.
    #[n(3)]
    Project,
}

impl PayerKind {
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// The byte that stands for it in keys.
    pub fn number(self) -> u8 {
        match self {
            Self::User => 1,
            Self::Group => 2,
            Self::Project => 3,
        }
    }

    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        }
    }
}

/// Somebody whose use is counted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub struct Payer {
    #[n(0)]
    pub kind: PayerKind,
    #[n(1)]
    pub id: u32,
    /// Only what lies in this pool; `None`: all.
    #[n(2)]
    pub pool: Option<PoolName>,
}

impl fmt::Display for Payer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.id)?;
        match &self.pool {
            Some(pool) => write!(f, " in pool {pool}"),
            None => Ok(()),
        }
    }
}

/// What is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Used {
    #[n(0)]
    pub bytes: u64,
    #[n(1)]
    pub inodes: u64,
}

/// What an MDT may let a payer use by itself, of limits that hold over all MDTs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Share {
    #[n(0)]
    pub bytes: u64,
    #[n(1)]
    pub inodes: u64,
}

/// How much may be used; 0 is no limit. A soft limit may be passed for a while (the grace), a hard
/// one never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Limits {
    #[n(0)]
    pub bytes_soft: u64,
    #[n(1)]
    pub bytes_hard: u64,
    #[n(2)]
    pub inodes_soft: u64,
    #[n(3)]
    pub inodes_hard: u64,
}

impl Limits {
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// For how long soft limits may be passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Grace {
    #[n(0)]
    pub bytes_seconds: u64,
    #[n(1)]
    pub inodes_seconds: u64,
}

impl Default for Grace {
    /// A week, as everywhere.
    fn default() -> Self {
        const WEEK_SECONDS: u64 = 7 * 24 * 60 * 60;
        Self { bytes_seconds: WEEK_SECONDS, inodes_seconds: WEEK_SECONDS }
    }
}

/// Who pays for a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Account {
    pub uid: Uid,
    pub gid: Gid,
    /// 0: none.
    pub project: u32,
    pub pools: BTreeSet<PoolName>,
}

impl Account {
    /// `layout`: of the file, or that it is made with.
    pub fn new((uid, gid, project): (Uid, Gid, u32), layout: Option<&Layout>) -> Self {
        let own = layout.and_then(|layout| layout.pool.clone());
        let mirrors = layout.and_then(|layout| layout.mirror_pools.clone());
        let pools = own.into_iter().chain(mirrors.into_iter().flatten().flatten()).collect();
        Self { uid, gid, project, pools }
    }

    /// All whose use it is.
    pub fn payers(&self) -> Vec<Payer> {
        let mut payers = Vec::with_capacity(3);
        let kinds = [
            (PayerKind::User, Some(self.uid.0)),
            (PayerKind::Group, Some(self.gid.0)),
            (PayerKind::Project, Some(self.project).filter(|&project| project != 0)),
        ];
        for (kind, id) in kinds {
            let Some(id) = id else { continue };
            payers.push(Payer { kind, id, pool: None });
            let pools = self.pools.iter().cloned();
            payers.extend(pools.map(|pool| Payer { kind, id, pool: Some(pool) }));
        }
        payers
    }
}
