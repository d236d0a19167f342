//! What an operation can fail with, and how that is told to the client.

use crate::quotas::Resource;
use tieline_format::RecordError;
use tieline_types::acl::AclError;
use tieline_types::extent::ExtentError;
use tieline_types::layout::LayoutError;
use tieline_types::quota::Payer;
use tieline_types::{
    ErrorKind, FileId, GrantedId, MdtIndex, Name, OstIndex, PoolName, SessionId, XattrName,
};
use tieline_wire::Failure;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no name `{name}` in directory {parent}")]
    NoName { parent: FileId, name: Name },
    #[error("file {id} has no name any more")]
    Nameless { id: FileId },
    #[error("name `{name}` is taken in directory {parent}")]
    NameTaken { parent: FileId, name: Name },
    #[error("name `{name}` in directory {parent} is where {mdt} is mounted", mdt = .mdt.label())]
    Junction { parent: FileId, name: Name, mdt: MdtIndex },
    #[error("file {id} is not a directory")]
    NotDirectory { id: FileId },
    #[error("file {id} is a directory")]
    IsDirectory { id: FileId },
    #[error("file {id} is a symbolic link")]
    IsSymlink { id: FileId },
    #[error("directory {id} is not empty")]
    NotEmpty { id: FileId },
    #[error("mode of {id} does not let uid {uid} {wish}")]
    Denied { id: FileId, uid: u32, wish: &'static str },
    #[error("only the owner of {id} or root may {wish}, not uid {uid}")]
    NotOwner { id: FileId, uid: u32, wish: &'static str },
    #[error("only root may {wish}, not uid {uid}")]
    NotRoot { uid: u32, wish: &'static str },
    #[error("the scope of this delegation ({scope}) does not hold {what}")]
    OutOfScope { scope: String, what: String },
    #[error("{op} is not for who acts for another")]
    NotDelegated { op: &'static str },
    #[error(
        "a scope cannot be kept in {mdt}: it is mounted below a directory of another MDT, and only \
         root directories stay where they are", mdt = .mdt.label()
    )]
    Unmounted { mdt: MdtIndex },
    #[error("file {id} does not exist any more")]
    Stale { id: FileId },
    #[error("no deleted file {id} is kept there")]
    NotDeleted { id: FileId },
    #[error("file {id} belongs to {mdt}: look at the federation map", mdt = .id.mdt().label())]
    OtherMdt { id: FileId },
    #[error("{from} and {to} are on different MDTs: copy instead")]
    CrossDevice { from: FileId, to: FileId },
    #[error("file {id} has {limit} names, which is the most")]
    TooManyNames { id: FileId, limit: usize },
    #[error("directory {id} would be moved below itself")]
    Cycle { id: FileId },
    #[error("{what}")]
    Invalid { what: &'static str },
    #[error("{what}")]
    TooLong { what: &'static str },
    #[error("a file of {size} bytes would be too large")]
    TooLarge { size: u64 },
    #[error("the layout is not possible")]
    Layout(#[from] LayoutError),
    #[error("the extent is not possible")]
    Extent(#[from] ExtentError),
    #[error("file {id} has bytes already: its layout is settled")]
    LayoutSettled { id: FileId },
    #[error("pool {pool} does not exist: list pools with `tieline pool list`")]
    NoPool { pool: PoolName },
    #[error(
        "its layout names pool {pool}, which does not exist any more: give new files of the \
         directory another with `tieline setstripe -p POOL DIR`, this one with `tieline setstripe \
         -p POOL FILE`, or make the pool again"
    )]
    PoolGone { pool: PoolName },
    #[error("{pool} has no OSTs: add some with `tieline pool add`")]
    PoolEmpty { pool: PoolLabel },
    #[error("every OST of {pool} is deactivated: activate one, or choose another pool")]
    PoolInactive { pool: PoolLabel },
    #[error("no OST of {pool} takes chunks now: {reasons}")]
    PoolFull { pool: PoolLabel, reasons: String },
    #[error("{pool} has {have} active OSTs: {mirrors} mirrors need as many different ones")]
    PoolSmall { pool: PoolLabel, have: usize, mirrors: usize },
    #[error("no OST {ost} is in the federation map", ost = .ost.label())]
    NoOst { ost: OstIndex },
    #[error("no attribute `{name}` on {id}")]
    NoXattr { id: FileId, name: XattrName },
    #[error("attribute `{name}` of {id} is there already")]
    XattrTaken { id: FileId, name: XattrName },
    #[error("attributes `{name}` are not kept: use the `user.` namespace")]
    XattrNamespace { name: XattrName },
    #[error("symbolic link {id} cannot have access lists")]
    NoAccessLists { id: FileId },
    #[error("the access list is not possible")]
    AccessList(#[from] AclError),
    #[error("the attributes of {id} take more than {limit} bytes")]
    XattrSpace { id: FileId, limit: usize },
    #[error(
        "quota exceeded: {payer}: {which} of {most} {}; delete files, or raise it with `tieline \
         setquota`", .resource.name()
    )]
    Quota {
        payer: Payer,
        resource: Resource,
        which: &'static str,
        most: u64,
        /// What would have to fit at this MDT.
        needed: u64,
    },
    #[error("limits are kept by MDT0000: ask there")]
    LimitsElsewhere,
    #[error("{what} is of another project: copy instead")]
    OtherProject { what: FileId },
    #[error("file {id} has one copy only: there is none to split from it")]
    OneCopy { id: FileId },
    #[error(
        "bytes at {offset} would have no whole copy without that on {}: have the others made with \
         `tieline mirror resync` first, or split another", .ost.label()
    )]
    NotWhole { offset: u64, ost: OstIndex },
    #[error(
        "pool {pool} is exposed, and what lies there of the file is not taken away yet: {reason}. \
         The change waits for it; `tieline pool set {pool} --no-expose` ends the exposure"
    )]
    StillExposed { pool: PoolName, reason: String },
    #[error("chunk {chunk} was freed: fetch the extents again")]
    ChunkGone { chunk: GrantedId },
    #[error("chunk {chunk} is named with another session's grant")]
    ChunkForeign { chunk: GrantedId },
    #[error("chunk {chunk} is known with another length")]
    ChunkLength { chunk: GrantedId },
    #[error(
        "no pool of file {id} has an HSM: `tieline pool set POOL --hsm SCRIPT` gives it one, \
         `tieline getstripe` tells its pool"
    )]
    NoHsm { id: FileId },
    #[error("file {id} is not archived as it is now: `tieline hsm archive` it, and wait for that")]
    NotArchived { id: FileId },
    #[error("file {id} is being written")]
    IsWritten { id: FileId },
    #[error("file {id} is on tape alone: `tieline hsm restore` it first")]
    Nearline { id: FileId },
    #[error("waiting for this lock on {file} would be waiting for oneself")]
    Deadlock { file: FileId },
    #[error("no more locks can be kept on {file}, or by this client")]
    LocksFull { file: FileId },
    #[error("a lock on {file} was taken from this client, which was silent")]
    LockLost { file: FileId },
    #[error("session {session} lost a lock: connect again to hear of it")]
    LossUntold { session: SessionId },
    #[error("session {session} is not known: open another")]
    SessionLost { session: SessionId },
    #[error("session {session} keeps {kept} answers unconfirmed: confirm some first")]
    AnswersFull { session: SessionId, kept: usize },
    #[error(
        "{party} has as many bytes of answers unconfirmed at this MDT as one may have: confirm \
         some, and unmount what is not used"
    )]
    PartyAnswersFull { party: String },
    #[error(
        "{whose} has {most} sessions at this MDT, which is the most: unmount what is not used; \
         sessions of machines that are gone end by themselves"
    )]
    SessionsFull { whose: String, most: usize },
    #[error("the request met others {attempts} times: send it again")]
    Contended { attempts: usize },
    #[error("{op} is not a request for a metadata server")]
    NotServed { op: &'static str },
    #[error("the metadata store is short of room: {reason}")]
    StoreShort { reason: String },
    #[error("the metadata store ended: {reason}; restart the server once the disk is well")]
    Ended { reason: String },
    #[error("{what} {id} cannot be read")]
    Record { what: &'static str, id: String, source: RecordError },
    #[error("{what} of {id} is missing")]
    Missing { what: &'static str, id: String },
    #[error("{ost} does not answer: {reason}", ost = .ost.label())]
    Ost { ost: OstIndex, reason: String },
    #[error("the metadata store did not do it")]
    Store(#[from] tieline_kv::Error),
}

/// A pool in messages; any OST when none was named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolLabel(pub Option<PoolName>);

impl std::fmt::Display for PoolLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(pool) => write!(f, "pool {pool}"),
            None => f.write_str("the file system"),
        }
    }
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoName { .. }
            | Self::Nameless { .. }
            | Self::NotDeleted { .. }
            | Self::NoPool { .. } => ErrorKind::NotFound,
            Self::NameTaken { .. } | Self::XattrTaken { .. } | Self::LayoutSettled { .. } => {
                ErrorKind::Exists
            }
            Self::Junction { .. } | Self::IsWritten { .. } => ErrorKind::Busy,
            Self::NotArchived { .. } | Self::NoHsm { .. } => ErrorKind::InvalidArgument,
            Self::Nearline { .. } => ErrorKind::WouldBlock,
            Self::NotDirectory { .. } => ErrorKind::NotDirectory,
            Self::IsDirectory { .. } => ErrorKind::IsDirectory,
            Self::IsSymlink { .. } => ErrorKind::SymlinkLoop,
            Self::NotEmpty { .. } => ErrorKind::NotEmpty,
            Self::Denied { .. } | Self::OutOfScope { .. } => ErrorKind::PermissionDenied,
            Self::NotOwner { .. } | Self::NotRoot { .. } => ErrorKind::NotPermitted,
            Self::Stale { .. } => ErrorKind::Stale,
            Self::OtherMdt { .. } => ErrorKind::WrongServer,
            Self::CrossDevice { .. } | Self::OtherProject { .. } => ErrorKind::CrossDevice,
            Self::Quota { .. } => ErrorKind::QuotaExceeded,
            Self::TooManyNames { .. } => ErrorKind::TooManyLinks,
            Self::Cycle { .. }
            | Self::Invalid { .. }
            | Self::Layout(_)
            | Self::Extent(_)
            | Self::AccessList(AclError::Shape)
            | Self::NoOst { .. }
            | Self::LimitsElsewhere
            | Self::PoolSmall { .. }
            | Self::OneCopy { .. }
            | Self::NotWhole { .. }
            | Self::ChunkForeign { .. }
            | Self::ChunkLength { .. } => ErrorKind::InvalidArgument,
            Self::TooLong { .. } => ErrorKind::NameTooLong,
            Self::TooLarge { .. } => ErrorKind::FileTooLarge,
            Self::PoolGone { .. } | Self::PoolEmpty { .. } | Self::PoolInactive { .. } => {
                ErrorKind::OstInactive
            }
            Self::PoolFull { .. }
            | Self::StoreShort { .. }
            | Self::XattrSpace { .. }
            | Self::AccessList(AclError::TooLong) => ErrorKind::NoSpace,
            Self::NoXattr { .. } => ErrorKind::NoAttribute,
            Self::XattrNamespace { .. }
            | Self::NoAccessLists { .. }
            | Self::AccessList(AclError::Version) => ErrorKind::NotSupported,
            Self::ChunkGone { .. } => ErrorKind::Gone,
            Self::Deadlock { .. } => ErrorKind::Deadlock,
            Self::LocksFull { .. } => ErrorKind::NoLocks,
            Self::LockLost { .. } => ErrorKind::LockLost,
            Self::SessionLost { .. } => ErrorKind::SessionLost,
            Self::AnswersFull { .. }
            | Self::PartyAnswersFull { .. }
            | Self::SessionsFull { .. }
            | Self::LossUntold { .. }
            | Self::StillExposed { .. } => ErrorKind::Overloaded,
            Self::Contended { .. } => ErrorKind::Conflict,
            Self::NotServed { .. } | Self::NotDelegated { .. } | Self::Unmounted { .. } => {
                ErrorKind::NotSupported
            }
            Self::Ost { .. } => ErrorKind::Unreachable,
            Self::Ended { .. } | Self::Record { .. } | Self::Missing { .. } => {
                ErrorKind::StorageFault
            }
            Self::Store(error) => error.kind(),
        }
    }

    /// As a client is told: the whole chain, and which MDT says so.
    pub fn into_failure(self, mdt: MdtIndex) -> Failure {
        let mut detail = chain(&self);
        detail.push_str(&format!(" ({})", mdt.label()));
        Failure::new(self.kind(), detail)
    }

    /// Only another transaction was in the way: run it again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Store(tieline_kv::Error::Conflict))
    }
}

/// An error and what it came from, as one clause.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
