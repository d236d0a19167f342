//! Messages about identities: the table of them, and proofs of users beside their machine's.

use minicbor::{Decode, Encode};
use tieline_types::{AtMost, Caller, Identity, IdentityKind, IdentityName, Mapping, Role, Scope};

/// Changes that are made together.
pub const EDITS_MAX: usize = 1000;
/// Identities, and mappings, of a page.
const PAGE_MAX: usize = 2000;

/// Changes the table of identities. Only the MDS of the root does it, and for who may.
///
/// All changes are made, or none. Made twice they change nothing again.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct EditIdentities {
    /// At most 1,000.
    #[n(0)]
    #[cbor(with = "AtMost::<EDITS_MAX>")]
    pub edits: Vec<IdentityEdit>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum IdentityEdit {
    /// Makes an identity, or replaces what is said of the one with that kind and name.
    #[n(1)]
    Put(#[n(0)] NewIdentity),
    /// Forgets an identity, and what was mapped to it. Files keep its number.
    #[n(2)]
    Remove {
        #[n(0)]
        kind: IdentityKind,
        #[n(1)]
        name: IdentityName,
    },
    /// Maps a principal, or `*@REALM`.
    #[n(3)]
    Map {
        #[n(0)]
        principal: String,
        #[n(1)]
        to: NewMapping,
    },
    #[n(4)]
    Unmap(#[n(0)] String),
    /// Gives or takes a role.
    #[n(5)]
    Role {
        #[n(0)]
        user: IdentityName,
        #[n(1)]
        role: Role,
        #[n(2)]
        is_given: bool,
    },
}

/// An identity as people state it: by names.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct NewIdentity {
    #[n(0)]
    pub kind: IdentityKind,
    #[n(1)]
    pub name: IdentityName,
    /// `None`: the one it has, or the next that is free.
    #[n(2)]
    pub number: Option<u32>,
    /// Of a user: names of groups, the first one that of its new files. `None`: as they are.
    #[n(3)]
    #[cbor(with = "AtMost::<{ Caller::GROUPS_MAX }>")]
    pub groups: Option<Vec<IdentityName>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum NewMapping {
    /// To a user; in a mapping of a realm `*` stands for the principal's name.
    #[n(1)]
    Named(#[n(0)] String),
    #[n(2)]
    Nobody,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct EditIdentitiesReply {
    /// The table's version with the changes.
    #[n(0)]
    pub version: u64,
}

/// Reads the table of identities, a page at a time. Clients are not told principals and roles.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListIdentities {
    /// The version whoever asks has already; 0 for none.
    #[n(0)]
    pub have: u64,
    /// How many entries, identities first, came with earlier pages.
    #[n(1)]
    pub from: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ListIdentitiesReply {
    /// Pages of different versions do not fit together: begin again.
    #[n(0)]
    pub version: u64,
    #[n(1)]
    #[cbor(with = "AtMost::<PAGE_MAX>")]
    pub identities: Vec<Identity>,
    #[n(2)]
    #[cbor(with = "AtMost::<PAGE_MAX>")]
    pub mappings: Vec<Mapping>,
    /// Nothing follows; nothing is there either if `have` is this version.
    #[n(3)]
    pub is_end: bool,
    /// Principals and roles are told as well, if there are any.
    #[n(4)]
    pub is_whole: Option<bool>,
}

/// Proves a user over the connection of a mount: requests of this session whose caller carries
/// `proof` are that user's from now on. Without a token: tells whom the caller is taken for.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Prove {
    /// The client's number for it, see [`Caller::is_of_proof`].
    #[n(0)]
    pub proof: u64,
    /// The first token of GSSAPI, bound to session and number (docs/security.md, section 2).
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub token: Option<Vec<u8>>,
    /// Of a door, over its own connection: how, and for what, the user is spoken for.
    #[n(2)]
    pub delegation: Option<Delegation>,
}

/// How a door that proved a user speaks for him (docs/security.md, section 9).
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Delegation {
    /// `None`: the token of the proof shows it, the user's own for this server.
    #[n(0)]
    pub evidence: Option<Evidence>,
    /// No more than this is to be done; `None`: whatever the door and the user may.
    #[n(1)]
    pub scope: Option<Scope>,
    /// For no longer.
    #[n(2)]
    pub seconds: Option<u32>,
}

/// What shows that a user came to a door.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Evidence {
    /// The first token of Kerberos that the user sent to a service of the door: of GSSAPI, or an
    /// AP-REQ alone. The service's key is the MDSs' and not the door's: who has it makes tickets.
    #[n(1)]
    Ticket(
        #[n(0)]
        #[cbor(with = "minicbor::bytes")]
        Vec<u8>,
    ),
    /// The door says so: heard only of those for whom the map lets it vouch.
    #[n(2)]
    Word {
        #[n(0)]
        principal: String,
    },
    /// The token that the user sent, of an issuer that the map names: a JWT of the WLCG profile.
    #[n(3)]
    Token(
        #[n(0)]
        #[cbor(with = "minicbor::bytes")]
        Vec<u8>,
    ),
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ProveReply {
    /// Who that is here.
    #[n(0)]
    pub caller: Caller,
    /// The user's, if a ticket showed it.
    #[n(1)]
    pub principal: Option<String>,
    /// By what mapping or rule, for people.
    #[n(2)]
    pub how: String,
    /// How long the proof holds, in seconds.
    #[n(3)]
    pub seconds: Option<u32>,
    /// The connection's own name is believed, or squashed, without proofs of users: whatever is
    /// asked over it is judged by what it states.
    #[n(4)]
    pub is_believed: bool,
    /// Of a delegation: what may be done; `None`: whatever the user may.
    #[n(5)]
    pub scope: Option<Scope>,
    /// What the door's user is to be answered, if he wants to know who is there: the door has no
    /// key to say it.
    #[n(6)]
    #[cbor(with = "minicbor::bytes")]
    pub answer: Option<Vec<u8>>,
}
