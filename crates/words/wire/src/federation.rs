//! Messages about the federation map and those who administer it.

use crate::bounds::{ADDRESSES_MAX, OSTS_MAX};
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use tieline_types::{
    AtMost, Digest, Door, FlavorRule, Hsm, Issuer, MachineTrust, Name, OstIndex, PoolName,
    RepositoryName, SiteName, Strangers, Version,
};

/// Master keys of a repository.
const KEYS_MAX: usize = 64;

/// Fetches the newest map the server has.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetMap {}

/// A signed map, as `format::map` defines it: the protocol carries its bytes unread.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct MapReply {
    #[n(0)]
    pub version: Version,
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub signed: Vec<u8>,
    /// The federation's public key, as hexadecimal digits: for a client that meets the federation
    /// for the first time and decides to trust it. Proves nothing.
    #[n(2)]
    pub key: Option<String>,
    /// The server's clock, in milliseconds since 1970: for people who look for a wrong one.
    #[n(3)]
    pub now_ms: Option<u64>,
}

/// Changes the map. Only the MDS that holds the federation's signing key does it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct EditMap {
    #[n(0)]
    pub edit: MapEdit,
}

/// Tells the clients of a server that it will be away for a while. Asked by operators, before they
/// stop it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Drain {
    #[n(0)]
    pub for_ms: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DrainReply {
    /// Sessions that were told.
    #[n(0)]
    pub told: u32,
}

/// One change of the map.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum MapEdit {
    #[n(1)]
    PoolNew(#[n(0)] PoolName),
    /// The pool must be empty, as in Lustre.
    #[n(2)]
    PoolDestroy(#[n(0)] PoolName),
    #[n(3)]
    PoolAdd {
        #[n(0)]
        pool: PoolName,
        #[n(1)]
        #[cbor(with = "AtMost::<OSTS_MAX>")]
        osts: Vec<OstIndex>,
    },
    #[n(4)]
    PoolRemove {
        #[n(0)]
        pool: PoolName,
        #[n(1)]
        #[cbor(with = "AtMost::<OSTS_MAX>")]
        osts: Vec<OstIndex>,
    },
    /// New chunks go to it again.
    #[n(5)]
    OstActivate(#[n(0)] OstIndex),
    /// No new chunks; what is there stays readable.
    #[n(6)]
    OstDeactivate(#[n(0)] OstIndex),
    /// Its closed files are to lie whole in a directory, too.
    #[n(7)]
    PoolExpose {
        #[n(0)]
        pool: PoolName,
        /// An absolute path on the machine that serves `ost`.
        #[n(1)]
        directory: String,
        /// Whose server does it; `None`: that of the pool's first OST.
        #[n(2)]
        ost: Option<OstIndex>,
        /// Also where bytes must not be read on the way: whoever reads the disk is trusted.
        #[n(3)]
        is_trusted: bool,
    },
    /// And no more.
    #[n(8)]
    PoolHide(#[n(0)] PoolName),
    /// How a pool's files get to tape and back; `None`: they do not.
    #[n(9)]
    PoolHsm {
        #[n(0)]
        pool: PoolName,
        #[n(1)]
        hsm: Option<Hsm>,
    },
    /// How connections are protected, from now on.
    #[n(70)]
    FlavorSet(#[n(0)] FlavorRule),
    /// How far a machine is believed; `None`: as any other.
    #[n(71)]
    MachineSet {
        #[n(0)]
        principal: String,
        #[n(1)]
        trust: Option<MachineTrust>,
    },
    /// What becomes of those whom nobody knows.
    #[n(72)]
    StrangersSet(#[n(0)] Strangers),
    /// Takes away the rule about the same connections, whatever its flavor.
    #[n(73)]
    FlavorUnset(#[n(0)] FlavorRule),
    /// Somebody is a door from now on, or one of other rules.
    #[n(74)]
    DoorSet(#[n(0)] Door),
    /// And no more.
    #[n(75)]
    DoorRemove(#[n(0)] String),
    /// Tokens of this issuer are taken from now on, or by other rules.
    #[n(76)]
    IssuerSet(#[n(0)] Issuer),
    /// And no more.
    #[n(77)]
    IssuerRemove(#[n(0)] String),
    /// Another key signs the map from now on: the server with the key makes it, and keeps it.
    #[n(78)]
    KeyRotate,
    /// A site may join until then.
    #[n(90)]
    SiteInvite {
        #[n(0)]
        site: SiteName,
        /// BLAKE3 of a secret of 32 bytes.
        #[n(1)]
        #[cbor(with = "minicbor::bytes")]
        digest: [u8; 32],
        /// In milliseconds since 1970.
        #[n(2)]
        until_ms: u64,
    },
    /// What the site brings. Anybody may say it who has the secret, and no other right.
    #[n(91)]
    SiteJoin(#[n(0)] SiteJoin),
    /// Mounts a repository in the root directory.
    #[n(92)]
    RepositoryAdd(#[n(0)] RepositoryAdd),
    /// Takes it out again.
    #[n(93)]
    RepositoryRemove(#[n(0)] RepositoryName),
    /// Mounts a repository in CVMFS's format in the root directory.
    #[n(94)]
    RepositoryTrust(#[n(0)] RepositoryTrust),
    /// Takes back every invitation of a site.
    #[n(95)]
    SiteUninvite(#[n(0)] SiteName),
}

/// A repository as it is mounted.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RepositoryAdd {
    #[n(0)]
    pub name: RepositoryName,
    /// At least one, as the map has them.
    #[n(1)]
    #[cbor(with = "AtMost::<ADDRESSES_MAX>")]
    pub sources: Vec<String>,
    /// Of the frozen list that says what is in it.
    #[n(2)]
    pub list: Digest,
    /// Its name in the root directory.
    #[n(3)]
    pub junction: Name,
}

/// A repository in CVMFS's format, and whom it is believed from.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RepositoryTrust {
    #[n(0)]
    pub name: RepositoryName,
    /// At least one, as the map has them.
    #[n(1)]
    #[cbor(with = "AtMost::<ADDRESSES_MAX>")]
    pub sources: Vec<String>,
    /// At least one master key, as the map has them.
    #[n(2)]
    #[cbor(with = "AtMost::<KEYS_MAX>")]
    pub keys: Vec<ByteVec>,
    /// Its name in the root directory.
    #[n(3)]
    pub junction: Name,
}

/// A server of an invited site.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SiteJoin {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub secret: [u8; 32],
    /// `HOST:PORT`s where it is reached; at least one.
    #[n(1)]
    #[cbor(with = "AtMost::<ADDRESSES_MAX>")]
    pub addresses: Vec<String>,
    /// How many OSTs it holds.
    #[n(2)]
    pub osts: u16,
    /// It holds an MDT, to be mounted in the root directory under the site's name.
    #[n(3)]
    pub has_mdt: bool,
    /// Its Kerberos name, if that is not `tieline_mds/HOST` or `tieline_oss/HOST`.
    #[n(4)]
    pub principal: Option<String>,
}

/// The version that holds the change.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct EditMapReply {
    #[n(0)]
    pub version: Version,
}
