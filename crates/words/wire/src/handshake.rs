//! How a connection begins: `Hello`, perhaps tokens of an authentication mechanism, then `Welcome`
//! or `Refused`.

use crate::capability::Holder;
use minicbor::{Decode, Encode};
use tieline_types::{
    AtMost, ClientId, ErrorKind, FsName, Grant, LostLock, SessionId, Shown, Version,
};

pub use tieline_types::Flavor;

/// The protocol version this build speaks best, and the oldest it still speaks.
pub const VERSION: u16 = 1;
pub const VERSION_OLDEST: u16 = 1;

/// What the connecting end is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum PeerRole {
    /// A mount, a door or a command.
    #[n(1)]
    Client,
    #[n(2)]
    Mds,
    #[n(3)]
    Oss,
}

/// What kind of credential the tokens of the handshake will carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum CredentialKind {
    /// No proof at all: flavor `null`.
    #[n(1)]
    None,
    /// GSSAPI with Kerberos (RFC 4121).
    #[n(2)]
    Kerberos,
    /// A seeded mechanism for simulated worlds. Programs refuse it.
    #[n(3)]
    Test,
}

/// The connecting end's first frame.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Hello {
    #[n(0)]
    pub version_oldest: u16,
    #[n(1)]
    pub version_newest: u16,
    #[n(2)]
    pub role: PeerRole,
    #[n(3)]
    pub client: ClientId,
    /// The session to go on with, after a lost connection.
    #[n(4)]
    pub session: Option<SessionId>,
    #[n(5)]
    pub fs: FsName,
    #[n(6)]
    pub credential: CredentialKind,
    /// The weakest flavor this end accepts; the stricter end's rule holds.
    #[n(7)]
    pub flavor: Flavor,
    /// Bits of optional abilities: [`Hello::VISITOR`].
    #[n(8)]
    pub features: u64,
    /// Who says so, for people: `mount /extenci on wn17 (pid 4711)`.
    #[n(9)]
    pub description: String,
    /// The federation map this end has; 0 for none.
    #[n(10)]
    pub map: Version,
    /// How long this end waits for an answer, in milliseconds: an MDS keeps its session so long.
    #[n(11)]
    pub wait_ms: Option<u64>,
}

impl Hello {
    /// A client that asks a few things and keeps nothing: it gets no session of an MDT.
    pub const VISITOR: u64 = 1;
    /// Characters of a description; what follows is cut off.
    pub const DESCRIPTION_MAX: usize = 256;
}

/// What the accepting end decided: the body of its [`crate::FrameKind::Token`]. Not protected
/// itself, but whatever is said in it goes into the keys of the connection.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Offer {
    #[n(0)]
    pub flavor: Flavor,
}

/// The accepting end's agreement.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Welcome {
    #[n(0)]
    pub version: u16,
    #[n(1)]
    pub session: SessionId,
    /// The session of `Hello` goes on: unanswered requests may be sent again under their numbers.
    #[n(2)]
    pub is_resumed: bool,
    /// What chunk ids of this session carry.
    #[n(3)]
    pub grant: Grant,
    /// Another number than before: the server was restarted and remembers no leases.
    #[n(4)]
    pub boot: u64,
    /// How long leases last, in milliseconds, counted by the client from sending what renews them.
    #[n(5)]
    pub lease_ms: u32,
    #[n(6)]
    pub flavor: Flavor,
    /// Bits of optional abilities: [`Welcome::TREES`], [`Welcome::SLOWS_AT_LOSSES`],
    /// [`Welcome::ROOM`], [`Welcome::FROZEN`].
    #[n(7)]
    pub features: u64,
    /// For people: `mds-uf (MDT0000)`.
    #[n(8)]
    pub server: String,
    /// The federation map the server has.
    #[n(9)]
    pub map: Version,
    /// As whom capabilities know the dialing end; nobody under flavor null.
    #[n(10)]
    pub holder: Option<Holder>,
    /// Locks that the session lost, until the client says that it has heard of them.
    #[n(11)]
    #[cbor(with = "AtMost::<1024>")]
    pub lost_locks: Option<Vec<LostLock>>,
}

impl Welcome {
    /// The server tells metadata in bulk ([`crate::trees`]).
    pub const TREES: u64 = 1;
    /// Each lost packet slows down what the server sends over this connection, for the kernel there
    /// takes losses for congestion: more connections fill a long way better.
    pub const SLOWS_AT_LOSSES: u64 = 2;
    /// An OSS that grants room ([`crate::data::GrantRoom`]); an MDS that places files where their
    /// writer has some. Who lets closes wait for data servers needs neither.
    pub const ROOM: u64 = 4;
    /// Nothing that it answers for ever changes: no write is to be begun in the hope that it will
    /// be taken.
    pub const FROZEN: u64 = 8;
}

/// The accepting end's disagreement.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, thiserror::Error)]
#[error("{kind}: {}", Shown(detail.as_bytes()))]
pub struct Refusal {
    #[n(0)]
    pub kind: ErrorKind,
    #[n(1)]
    pub detail: String,
    #[n(2)]
    pub version_oldest: u16,
    #[n(3)]
    pub version_newest: u16,
}
