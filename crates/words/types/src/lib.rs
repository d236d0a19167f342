//! What things are called: ids, names, attributes, layouts, extents, errors and units.
//!
//! Every other room imports its nouns from here, so that one concept has one word and one type in
//! prose, code, wire, metric and log. Nothing here does I/O, knows the time, or is async.
//!
//! * [`identity`]: users and groups of the file system, and who is which.
//! * [`ids`]: who is who: files, MDTs, OSTs, chunks, sessions, requests, versions.
//! * [`names`]: names of entries, pools, sites and file systems, checked once at the border.
//! * [`acl`]: access lists.
//! * [`attributes`]: what `stat` tells.
//! * [`background`]: changes that no client asked for.
//! * [`door`]: what speaks for users to the servers, and how far it is heard.
//! * [`flavor`]: how connections are protected, and the rules for it.
//! * [`issuer`]: issuers of tokens, and whom their users are here.
//! * [`layout`]: where a file's chunks shall go, as `setstripe` says it.
//! * [`extent`]: where a file's bytes are: extents over immutable chunks, and the places of chunks.
//! * [`checksum`]: the CRC32C of 4 KiB blocks that travels with every range.
//! * [`civil`]: times as people see them.
//! * [`patchwork`]: a range put together from copies that are damaged in different blocks.
//! * [`locks`]: the arithmetic of advisory locks.
//! * [`content_version`]: which bytes a file has.
//! * [`digest`]: digests, by which algorithm and of which bytes.
//! * [`error`]: the closed, numbered list of what can go wrong.
//! * [`quota`]: whose use is counted, and how much they may use.
//! * [`replacing`]: how a change treats what is there already.
//! * [`residency`]: where a file's bytes are to be had.
//! * [`rules`]: who may do what, and what new files inherit.
//! * [`scope`]: what somebody who acts for another may do, and where.
//! * [`shown`]: names and paths as people see them.
//! * [`tape`]: files on tape, and what gets them there and back.
//! * [`tree`]: the tree below a digest, by which a range of a chunk is verified without the rest.
//! * [`units`]: sizes and durations as people write them.

pub mod acl;
pub mod attributes;
pub mod background;
pub mod bounded;
pub mod caller;
pub mod checksum;
mod civil;
pub mod content_version;
pub mod digest;
pub mod door;
pub mod error;
pub mod extent;
pub mod flavor;
pub mod identity;
pub mod ids;
pub mod issuer;
pub mod layout;
pub mod locks;
pub mod names;
pub mod patchwork;
pub mod quota;
pub mod replacing;
pub mod residency;
pub mod rules;
pub mod scope;
pub mod shown;
pub mod tape;
pub mod tree;
pub mod units;

pub use acl::Acls;
pub use attributes::{Attributes, FileKind, Mode, SetTime, Time};
pub use bounded::AtMost;
pub use caller::{Caller, Gid, Uid};
pub use content_version::ContentVersion;
pub use digest::{Algorithm, Digest, DigestError, Encoding, Hasher};
pub use door::{Door, Vouched};
pub use error::{Effect, ErrorKind, Retry};
pub use extent::{ChunkRef, Content, Extent, ObjectName, Origin, OstPlace, Place};
pub use flavor::{Flavor, FlavorRule, FlavorRules, Network, Pair};
pub use identity::{
    Identity, IdentityKind, IdentityName, MachineTrust, MappedTo, Mapping, Role, Strangers,
};
pub use ids::{
    ChunkId, ClientId, FileId, Grant, GrantedId, HandleId, MdtIndex, OstIndex, RequestNumber,
    ServerNumber, SessionId, Version,
};
pub use issuer::{Issuer, IssuerError, IssuerKey, PublicKey, TokenHolder, TokenUser};
pub use layout::{Layout, StripeCount};
pub use locks::{LockKind, LockMode, LockRange, LockWish, LostLock};
pub use names::{FsName, Name, NameError, PoolName, RepositoryName, SiteName, XattrName};
pub use patchwork::Patchwork;
pub use replacing::{RenameMode, XattrMode};
pub use residency::{Residency, Standing};
pub use scope::{Allowed, Doing, Scope};
pub use shown::Shown;
pub use tape::{Hsm, OnTape, TapeCopy, TapeWish, WishState};
pub use units::{ByteSize, Span};
