//! The federation map, version 1.

use crate::Record;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Encode};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use tieline_types::{
    Algorithm, Digest, Door, Encoding, FileId, FlavorRules, FsName, GrantedId, Hsm, Issuer,
    MachineTrust, MdtIndex, Name, OstIndex, OstPlace, PoolName, RepositoryName, SiteName,
    Strangers, Version,
};

/// Who serves what.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct FederationMap {
    #[n(0)]
    pub fs: FsName,
    /// Counts every change.
    #[n(1)]
    pub version: Version,
    /// In order of their index.
    #[n(2)]
    pub mdts: Vec<Mdt>,
    #[n(3)]
    pub junctions: Vec<Junction>,
    #[n(4)]
    pub osts: Vec<Ost>,
    #[n(5)]
    pub pools: Vec<Pool>,
    /// How connections are proven and protected; `None`: not at all.
    #[n(6)]
    pub security: Option<Security>,
    /// Sites that may join; none is the same as an empty list.
    #[n(7)]
    pub invitations: Option<Vec<Invitation>>,
    /// Trees that no MDS serves; none is the same as an empty list.
    #[n(8)]
    pub repositories: Option<Vec<Repository>>,
}

impl Record for FederationMap {
    const VERSION: u8 = 1;
    const NAME: &'static str = "federation map";
}

/// A metadata target and where it is served.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Mdt {
    #[n(0)]
    pub mdt: MdtIndex,
    #[n(1)]
    pub home: SiteName,
    /// `HOST:PORT`, in order of preference.
    #[n(2)]
    pub addresses: Vec<String>,
}

/// A tree that is published as files on servers that are not ours: clients read its names and
/// bytes from there, check them, and are told nothing by anybody.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Repository {
    #[n(0)]
    pub name: RepositoryName,
    /// What the ids of its files carry, as if it were an MDT; no MDT has it.
    #[n(1)]
    pub mdt: MdtIndex,
    /// Where its files are: `http://HOST[:PORT]/path`, `https://…` or `file:///path`, the first
    /// ones preferred.
    #[n(2)]
    pub sources: Vec<String>,
    #[n(3)]
    pub catalog: Catalog,
}

/// What says which tree of a repository is the right one.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Catalog {
    /// A list of this digest, which never changes.
    #[n(1)]
    Frozen(#[n(0)] Digest),
    /// What was published last in CVMFS's format, if one of these master keys says so.
    #[n(2)]
    Signed(#[n(0)] Vec<PublicKey>),
}

/// An RSA key in DER (X.509's SubjectPublicKeyInfo).
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct PublicKey(#[n(0)] pub ByteVec);

/// By its digest: all of it is long.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = Digest::compute(Algorithm::Sha256, Encoding::Plain, &self.0);
        digest.as_bytes().iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl Repository {
    /// What addresses of repositories begin with, where those of servers have a host.
    pub const SCHEME: &'static str = "repository:";

    /// Where it is asked for, in place of the addresses of an MDS.
    pub fn address(&self) -> String {
        format!("{}{}", Self::SCHEME, self.name)
    }
}

/// Where an MDT is mounted in another.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Junction {
    #[n(0)]
    pub parent: FileId,
    #[n(1)]
    pub name: Name,
    #[n(2)]
    pub mdt: MdtIndex,
}

/// An object storage target and the OSS that serves it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Ost {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub site: SiteName,
    #[n(2)]
    pub addresses: Vec<String>,
    /// Takes new chunks.
    #[n(3)]
    pub is_active: bool,
}

/// A named group of OSTs.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Pool {
    #[n(0)]
    pub name: PoolName,
    #[n(1)]
    pub osts: Vec<OstIndex>,
    /// Its closed files lie whole in a directory, too.
    #[n(2)]
    pub exposure: Option<Exposure>,
    /// How its files get to tape and back, if they do.
    #[n(3)]
    pub hsm: Option<Hsm>,
}

/// Where a pool's closed files lie whole under their logical names.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Exposure {
    /// An absolute path, on the machine whose OSS serves `ost`.
    #[n(0)]
    pub directory: String,
    #[n(1)]
    pub ost: OstIndex,
    /// Another each time that the pool is exposed: the version of the map that began it.
    #[n(2)]
    pub since: Version,
    /// It is over: what lies there is taken away.
    #[n(3)]
    pub is_over: Option<bool>,
}

impl Pool {
    /// Where its files are to lie, if they are.
    pub fn exposed(&self) -> Option<&Exposure> {
        self.exposure.as_ref().filter(|exposure| exposure.is_over != Some(true))
    }
}

/// Who proves what to whom.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Security {
    /// The realm of servers that `services` does not name.
    #[n(0)]
    pub realm: String,
    #[n(1)]
    pub flavors: FlavorRules,
    #[n(2)]
    pub services: Vec<Service>,
    /// Machines of which more, or less, is believed than of others.
    #[n(3)]
    pub machines: Option<Vec<Machine>>,
    #[n(4)]
    pub strangers: Option<Strangers>,
    /// Who may speak for users that came to them.
    #[n(5)]
    pub doors: Option<Vec<Door>>,
    /// Whose tokens are taken; none is the same as an empty list.
    #[n(6)]
    pub issuers: Option<Vec<Issuer>>,
}

/// How far a machine is believed.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Machine {
    /// `host/wn17.uf.example@EXTENCI.ORG`.
    #[n(0)]
    pub principal: String,
    #[n(1)]
    pub trust: MachineTrust,
}

impl Security {
    /// How far the machine with this principal is believed; `None` if nothing is said of it.
    pub fn machine(&self, principal: &str) -> Option<MachineTrust> {
        let mut machines = self.machines.iter().flatten();
        machines.find(|machine| machine.principal == principal).map(|machine| machine.trust)
    }

    /// The door with this principal, if it is one.
    pub fn door(&self, principal: &str) -> Option<&Door> {
        self.doors.iter().flatten().find(|door| door.principal == principal)
    }

    /// Whose tokens are taken.
    pub fn issuers(&self) -> &[Issuer] {
        self.issuers.as_deref().unwrap_or_default()
    }

    pub fn strangers(&self) -> Strangers {
        self.strangers.unwrap_or_default()
    }
}

/// The Kerberos name of a server, where it is not `tieline_mds/HOST` or `tieline_oss/HOST`.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Service {
    /// `HOST:PORT`, as the targets of this map have it.
    #[n(0)]
    pub address: String,
    /// `tieline_mds/mds.uf.example@EXTENCI.ORG`.
    #[n(1)]
    pub principal: String,
}

/// Lets servers of a new site join, once: whoever has the secret says so.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Invitation {
    #[n(0)]
    pub site: SiteName,
    /// BLAKE3 of the secret, which is 32 random bytes.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub digest: [u8; 32],
    /// In milliseconds since 1970.
    #[n(2)]
    pub until_ms: u64,
}

/// A map's record with the signature of the federation's key over exactly these bytes.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SignedMap {
    /// A [`FederationMap`] record.
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub map: Vec<u8>,
    /// Ed25519 (RFC 8032).
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub signature: [u8; 64],
    /// How keys of before lead to the one that signed, the oldest first; none is the same as an
    /// empty list.
    #[n(2)]
    pub handovers: Option<Vec<Handover>>,
}

impl Record for SignedMap {
    const VERSION: u8 = 1;
    const NAME: &'static str = "signed map";
}

/// One key of the federation says that another is its key from now on.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Handover {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub from: [u8; 32],
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub to: [u8; 32],
    /// Ed25519 by the key `from` over [`Handover::signed`].
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    pub signature: [u8; 64],
}

impl Handover {
    /// A map carries no more; the oldest goes.
    pub const MAX: usize = 64;

    /// What is signed. No record of a map begins like it.
    pub fn signed(from: &[u8; 32], to: &[u8; 32]) -> Vec<u8> {
        [&b"tieline 1 handover"[..], from, to].concat()
    }
}

impl SignedMap {
    pub fn handovers(&self) -> &[Handover] {
        self.handovers.as_deref().unwrap_or_default()
    }
}

impl FederationMap {
    pub fn mdt(&self, index: MdtIndex) -> Option<&Mdt> {
        self.mdts.iter().find(|mdt| mdt.mdt == index)
    }

    pub fn repositories(&self) -> impl Iterator<Item = &Repository> {
        self.repositories.iter().flatten()
    }

    /// The repository that is asked for at an address.
    pub fn repository_at(&self, address: &str) -> Option<&Repository> {
        let name = address.strip_prefix(Repository::SCHEME)?;
        self.repositories().find(|repository| repository.name.as_str() == name)
    }

    /// Where "which chunks?" is asked of the files with this index: at an MDS, or a repository.
    pub fn answerer(&self, index: MdtIndex) -> Option<Cow<'_, [String]>> {
        let of_mds = self.mdt(index).map(|mdt| Cow::Borrowed(&mdt.addresses[..]));
        let repository = || self.repositories().find(|repository| repository.mdt == index);
        of_mds.or_else(|| Some(Cow::Owned(vec![repository()?.address()])))
    }

    /// The indexes that file ids of this federation may carry.
    pub fn indexes(&self) -> impl Iterator<Item = MdtIndex> {
        let repositories = self.repositories().map(|repository| repository.mdt);
        self.mdts.iter().map(|mdt| mdt.mdt).chain(repositories)
    }

    pub fn ost(&self, index: OstIndex) -> Option<&Ost> {
        self.osts.iter().find(|ost| ost.ost == index)
    }

    pub fn pool(&self, name: &PoolName) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == *name)
    }

    /// Pools whose files lie in directories, too.
    pub fn exposed_pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().filter(|pool| pool.exposed().is_some())
    }

    /// The junctions that stand in a directory.
    pub fn junctions_in(&self, parent: FileId) -> impl Iterator<Item = &Junction> {
        self.junctions.iter().filter(move |junction| junction.parent == parent)
    }

    /// Where an MDT is mounted; `None` for the root's.
    pub fn junction_of(&self, mdt: MdtIndex) -> Option<&Junction> {
        self.junctions.iter().find(|junction| junction.mdt == mdt)
    }

    /// How many copies of a chunk are to be made: those that its file wants and nobody has, or
    /// those that are marked where they can be made.
    pub fn copies_lacking(&self, chunk: GrantedId, places: &[OstPlace], mirrors: usize) -> usize {
        let good = places.iter().filter(|place| !place.is_stale).map(|place| place.ost);
        let good: BTreeSet<OstIndex> = good.collect();
        let marked = places.iter().filter(|place| self.can_be_filled(chunk, place)).count();
        mirrors.saturating_sub(good.len()).max(marked)
    }

    /// Is it a place that can be filled again? Adopted files are not ours to write, and an OST that
    /// is not active takes nothing new.
    pub fn can_be_filled(&self, chunk: GrantedId, place: &OstPlace) -> bool {
        let is_ours = place.is_stale && place.is_own(chunk);
        is_ours && self.ost(place.ost).is_some_and(|ost| ost.is_active)
    }
}
