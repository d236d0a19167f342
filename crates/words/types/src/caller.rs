//! On whose behalf a request is made.

use crate::AtMost;
use crate::identity::NOBODY;
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default,
            Encode, Decode, Serialize, Deserialize,
        )]
        #[cbor(transparent)]
        #[serde(transparent)]
        pub struct $name(#[n(0)] pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

identity! {
    /// An owner as stored on disk: an identity of the file system. Under `null` it is the client's
    /// uid.
    Uid
}
identity! {
    /// A group as stored on disk. Under `null` it is the client's gid.
    Gid
}

/// The identity a request is made for. Under `null` the client says it; else the MDS finds it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Encode, Decode)]
pub struct Caller {
    #[n(0)]
    pub uid: Uid,
    #[n(1)]
    pub gid: Gid,
    /// Supplementary groups, at most [`Caller::GROUPS_MAX`].
    #[n(2)]
    #[cbor(with = "AtMost::<{ Caller::GROUPS_MAX }>")]
    pub groups: Vec<Gid>,
    /// The proof of a user beside the connection's own, as the client numbered it: the MDS finds
    /// the rest.
    #[n(3)]
    pub proof: Option<u64>,
}

impl Caller {
    /// Linux's own limit is 65,536; no site of the field comes near a thousand.
    pub const GROUPS_MAX: usize = 1024;
    /// The number of a proof that nobody made: who carries it is nobody, whose connection it is.
    pub const STRANGER: u64 = 0;
    /// Another such number: root of the machine asks whose connection it is, whatever the servers
    /// take that for. Who carries it has the ids that they gave him.
    pub const MACHINE_ROOT: u64 = 1;

    pub fn root() -> Self {
        Self::default()
    }

    /// Who shows nothing, and is not who the connection belongs to.
    pub fn stranger() -> Self {
        let (uid, gid) = (Uid(NOBODY), Gid(NOBODY));
        Self { uid, gid, groups: Vec::new(), proof: Some(Self::STRANGER) }
    }

    /// Can a proof have this number?
    pub fn is_of_proof(number: u64) -> bool {
        !matches!(number, Self::STRANGER | Self::MACHINE_ROOT)
    }

    /// What is shown of this caller, if anything is.
    pub fn shown_proof(&self) -> Option<u64> {
        self.proof.filter(|&proof| Self::is_of_proof(proof))
    }

    pub fn is_root(&self) -> bool {
        self.uid == Uid(0)
    }

    pub fn is_member(&self, gid: Gid) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// May it give a file of that group setgid?
    pub fn may_setgid(&self, gid: Gid) -> bool {
        self.is_root() || self.is_member(gid)
    }
}
