//! Records of an MDT's store, version 1.

mod tape;

mod bundles;

pub use bundles::{Bundle, BundleHead, BundleMember, Bundles};

use crate::Record;
use minicbor::{Decode, Encode};
pub use tape::{Archived, OfTape, TapePlace, TapeRemoval, Wished};
use tieline_types::quota::{Grace, Limits, Payer, Share, Used};
use tieline_types::{
    Acls, ClientId, Digest, FileId, FileKind, FsName, Gid, Grant, GrantedId, Layout, LostLock,
    MdtIndex, Mode, Name, OstIndex, OstPlace, Scope, SessionId, Time, TokenHolder, Uid, Version,
};
pub use tieline_types::{Identity, MappedTo};

/// What the store is. Read first: a store of another file system, MDT or format is refused
/// untouched.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Superblock {
    #[n(0)]
    pub fs: FsName,
    #[n(1)]
    pub mdt: MdtIndex,
    /// The next file serial nobody has reserved; reserved in runs, so that numbers may be skipped,
    /// never reused.
    #[n(2)]
    pub file_serial: u64,
    /// The next session id nobody has reserved; grants count with it.
    #[n(3)]
    pub session_serial: u64,
    /// Feature bits without which the store must not be opened: [`FEATURE_USAGE`],
    /// [`FEATURE_TAPE`].
    #[n(4)]
    pub features: u64,
    /// How often the MDT was started.
    #[n(5)]
    pub boot: u64,
    /// Version numbers below this were given out before the last start.
    #[n(6)]
    pub version_serial: u64,
    /// Files of every kind, as of the last orderly note of it; recounted when in doubt.
    #[n(7)]
    pub inodes: u64,
    /// When it was filled from a dump or from objects: what the OSTs hold beyond it may be the only
    /// copy of something, until somebody has looked.
    #[n(8)]
    pub restored: Option<Time>,
}

/// Every change counts who uses how much: a build that does not must not change the store.
pub const FEATURE_USAGE: u64 = 1;
/// Files are on tape: a build that does not know that would forget where.
pub const FEATURE_TAPE: u64 = 2;

impl Record for Superblock {
    const VERSION: u8 = 1;
    const NAME: &'static str = "superblock";
}

/// One name of a file: its directory and the name there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub struct NameOf {
    #[n(0)]
    pub parent: FileId,
    #[n(1)]
    pub name: Name,
}

/// A file of any kind.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Inode {
    #[n(0)]
    pub kind: FileKind,
    #[n(1)]
    pub mode: Mode,
    #[n(2)]
    pub uid: Uid,
    #[n(3)]
    pub gid: Gid,
    /// As `st_nlink`: names of a file; for a directory 2 and one per subdirectory.
    #[n(4)]
    pub links: u32,
    #[n(5)]
    pub size: u64,
    /// Bytes that extents cover.
    #[n(6)]
    pub stored: u64,
    #[n(7)]
    pub device: u32,
    #[n(8)]
    pub atime: Time,
    #[n(9)]
    pub mtime: Time,
    #[n(10)]
    pub ctime: Time,
    #[n(11)]
    pub btime: Time,
    #[n(12)]
    pub version: Version,
    /// All its names, the oldest first; none for a root and for an orphan.
    #[n(13)]
    pub names: Vec<NameOf>,
    /// Of a directory: what was set on it. Of a regular file: the layout it was created with.
    #[n(14)]
    pub layout: Option<Layout>,
    /// The OSTs that new chunks go round.
    #[n(15)]
    pub stripe: Vec<OstIndex>,
    #[n(16)]
    #[cbor(with = "minicbor::bytes")]
    pub target: Option<Vec<u8>>,
    /// Entries of a directory.
    #[n(17)]
    pub entries: u64,
    /// Project for quotas; 0 for none.
    #[n(18)]
    pub project: u32,
    /// How many extended attributes it has. `None`: written before they were counted.
    #[n(19)]
    pub xattrs: Option<u32>,
    /// Access lists, if it has any.
    #[n(20)]
    pub acls: Option<Box<Acls>>,
    /// It was deleted, and takes part in no quota: what is left goes in the background.
    #[n(21)]
    pub is_uncounted: Option<bool>,
    /// The commit that last changed the bytes, if `version` is of a later one that did not.
    #[n(22)]
    pub content: Option<Version>,
    /// Of what was archived: what tape has, and what OSTs have no more.
    #[n(23)]
    pub tape: Option<OfTape>,
}

impl Inode {
    /// Something about the file's bytes is another, but not they.
    pub fn bytes_stay(&mut self, version: Version) {
        self.content = Some(self.content.unwrap_or(self.version));
        self.version = version;
    }

    /// The file has other bytes.
    pub fn bytes_change(&mut self, version: Version) {
        (self.content, self.version) = (None, version);
    }

    /// Of the root of a new MDT.
    pub fn root(now: Time) -> Self {
        Self {
            kind: FileKind::Directory,
            mode: Mode::new(0o755),
            uid: Uid(0),
            gid: Gid(0),
            links: 2,
            size: 0,
            stored: 0,
            device: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            version: Version(1),
            names: vec![],
            layout: None,
            stripe: vec![],
            target: None,
            entries: 0,
            project: 0,
            xattrs: Some(0),
            acls: None,
            is_uncounted: None,
            content: None,
            tape: None,
        }
    }

    /// The commit that last changed the bytes.
    pub fn content_version(&self) -> Version {
        self.content.unwrap_or(self.version)
    }
}

impl Record for Inode {
    const VERSION: u8 = 1;
    const NAME: &'static str = "inode";
}

/// One name in a directory.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Entry {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub kind: FileKind,
}

impl Record for Entry {
    const VERSION: u8 = 1;
    const NAME: &'static str = "entry";
}

/// An extent of a file; its offset is in the key. What a chunk is, its own record says.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct StoredExtent {
    #[n(0)]
    pub length: u64,
    #[n(1)]
    pub content: StoredContent,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum StoredContent {
    #[n(1)]
    Inline(
        #[n(0)]
        #[cbor(with = "minicbor::bytes")]
        Vec<u8>,
    ),
    #[n(2)]
    Chunk {
        #[n(0)]
        chunk: GrantedId,
        /// Offset within the chunk of the extent's first byte.
        #[n(1)]
        skip: u64,
    },
}

impl Record for StoredExtent {
    const VERSION: u8 = 1;
    const NAME: &'static str = "extent";
}

/// A chunk, shared by all extents that refer to it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Chunk {
    #[n(0)]
    pub length: u64,
    /// Extents that refer to it. At 0 it is freed.
    #[n(1)]
    pub references: u32,
    #[n(2)]
    pub places: Vec<OstPlace>,
    #[n(3)]
    pub digest: Option<Digest>,
    #[n(4)]
    pub adler32: Option<u32>,
    /// CRC32C per 4 KiB block, where the objects do not carry their own.
    #[n(5)]
    pub checks: Option<Vec<u32>>,
    /// If OSTs gave it up: until it was restored. One file refers to it then.
    #[n(6)]
    pub tape: Option<TapePlace>,
}

impl Record for Chunk {
    const VERSION: u8 = 1;
    const NAME: &'static str = "chunk";
}

/// A chunk nobody refers to any more, or copies of one that are wanted no more; deleted some time
/// after the moment in its key.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Freed {
    #[n(0)]
    pub length: u64,
    #[n(1)]
    pub places: Vec<OstPlace>,
    /// The file it was part of.
    #[n(2)]
    pub file: FileId,
    /// Only these copies of it are given up: the chunk stays.
    #[n(3)]
    pub is_split: Option<bool>,
}

impl Record for Freed {
    const VERSION: u8 = 1;
    const NAME: &'static str = "freed chunk";
}

/// Copies are missing, and made in the background; of what, the key says.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Lacking {
    #[n(0)]
    pub since: Time,
    /// The file whose layout says how many copies there shall be.
    #[n(1)]
    pub file: FileId,
    /// Of a file: extents before this offset were looked at.
    #[n(2)]
    pub next: u64,
}

impl Record for Lacking {
    const VERSION: u8 = 1;
    const NAME: &'static str = "lacking copies";
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct XattrValue {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub value: Vec<u8>,
}

impl Record for XattrValue {
    const VERSION: u8 = 1;
    const NAME: &'static str = "xattr";
}

/// A client's session.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Session {
    #[n(0)]
    pub client: ClientId,
    #[n(1)]
    pub grant: Grant,
    #[n(2)]
    pub description: String,
    #[n(3)]
    pub opened: Time,
    /// Runs of file serials that the client gives out itself, the latest last. A session that has
    /// any may hold directories alone.
    #[n(4)]
    pub runs: Option<Vec<SerialRun>>,
    /// How long the client waits for an answer, if it says so.
    #[n(5)]
    pub wait_ms: Option<u64>,
    /// Locks that were taken from it.
    #[n(6)]
    pub losses: Option<Losses>,
    /// Who opened it, as far as that was proven; else from which host. None in records of before.
    #[n(7)]
    pub party: Option<String>,
}

/// Locks that a session lost while it was silent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Losses {
    /// The number of the last one.
    #[n(0)]
    pub last: u64,
    /// Those of which the client has not said that it knows.
    #[n(1)]
    pub unheard: Vec<LostLock>,
}

/// Serials from `first` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SerialRun {
    #[n(0)]
    pub first: u64,
    #[n(1)]
    pub count: u32,
}

impl SerialRun {
    pub fn holds(self, serial: u64) -> bool {
        serial >= self.first && serial - self.first < u64::from(self.count)
    }
}

/// A ticket that a user showed over his machine's connection: whom requests of the session stand
/// for that carry the proof's number.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Shown {
    /// Nobody's for a delegation: a build that does not know what limits it would not keep it.
    #[n(0)]
    pub principal: String,
    #[n(1)]
    pub at: Time,
    /// The end of the ticket; `None`: it has none.
    #[n(2)]
    pub until: Option<Time>,
    /// A door speaks for him.
    #[n(3)]
    pub delegated: Option<Delegated>,
}

/// For whom a door speaks.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Delegated {
    /// The user's.
    #[n(0)]
    pub principal: String,
    #[n(1)]
    pub by: DelegatedBy,
    /// What it asked for. What the map lets the door is looked up.
    #[n(2)]
    pub scope: Option<Scope>,
}

/// What showed that the user had come.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum DelegatedBy {
    /// His own ticket for this server.
    #[n(1)]
    Own,
    /// His ticket for a service of the door.
    #[n(2)]
    Ticket {
        #[n(0)]
        service: String,
    },
    /// The door's word.
    #[n(3)]
    Word,
    /// A token of an issuer.
    #[n(4)]
    Token {
        #[n(0)]
        issuer: String,
        #[n(1)]
        subject: String,
        /// Of whom the rule speaks by which he is somebody: it must still be there.
        #[n(2)]
        holder: TokenHolder,
    },
}

impl Record for Shown {
    const VERSION: u8 = 1;
    const NAME: &'static str = "shown ticket";
}

impl Record for Session {
    const VERSION: u8 = 1;
    const NAME: &'static str = "session";
}

/// The answer to a mutation, stored in the transaction of its effects.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Answer {
    /// Number of the call.
    #[n(0)]
    pub op: u16,
    /// A failure as the protocol encodes it, rather than the call's reply.
    #[n(1)]
    pub is_failure: bool,
    #[n(2)]
    #[cbor(with = "minicbor::bytes")]
    pub body: Vec<u8>,
}

impl Record for Answer {
    const VERSION: u8 = 1;
    const NAME: &'static str = "answer";
}

/// A file without names that a session holds open; file and session are in the key.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Orphan {
    #[n(0)]
    pub since: Time,
    /// Its last name, and who took it: with them it can be undeleted.
    #[n(1)]
    pub name: Option<NameOf>,
    #[n(2)]
    pub by: Option<Uid>,
    /// It was made without a name, and may be given one.
    #[n(3)]
    pub is_linkable: Option<bool>,
}

impl Record for Orphan {
    const VERSION: u8 = 1;
    const NAME: &'static str = "orphan";
}

/// A file that lost its last name and can be brought back; directory and file are in the key. Its
/// extents and attributes stay where they are.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Deleted {
    /// Without names.
    #[n(0)]
    pub inode: Inode,
    #[n(1)]
    pub name: Name,
    #[n(2)]
    pub at: Time,
    #[n(3)]
    pub by: Uid,
}

impl Record for Deleted {
    const VERSION: u8 = 1;
    const NAME: &'static str = "deleted file";
}

/// A name that a file lost while it had others, and what the file was then; directory, file and
/// name are in the key.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LostName {
    #[n(0)]
    pub at: Time,
    #[n(1)]
    pub by: Uid,
    #[n(2)]
    pub kind: FileKind,
    #[n(3)]
    pub mode: Mode,
    #[n(4)]
    pub uid: Uid,
    #[n(5)]
    pub gid: Gid,
    #[n(6)]
    pub size: u64,
    #[n(7)]
    pub mtime: Time,
}

impl Record for LostName {
    const VERSION: u8 = 1;
    const NAME: &'static str = "lost name";
}

/// Where a deleted file's record is; its time and id are in the key.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DeletedAt {
    #[n(0)]
    pub parent: FileId,
}

impl Record for DeletedAt {
    const VERSION: u8 = 1;
    const NAME: &'static str = "deletion";
}

/// What holds of the table of identities. The MDT of the root keeps it; other servers have copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Identities {
    /// Counts changes.
    #[n(0)]
    pub version: u64,
    /// The highest numbers of users and of groups that were removed: files carry them, so that
    /// nobody gets them by himself.
    #[n(1)]
    pub last_user: Option<u32>,
    #[n(2)]
    pub last_group: Option<u32>,
}

impl Record for Identities {
    const VERSION: u8 = 1;
    const NAME: &'static str = "identities";
}

impl Record for Identity {
    const VERSION: u8 = 1;
    const NAME: &'static str = "identity";
}

/// Who a principal is; its text is in the key.
impl Record for MappedTo {
    const VERSION: u8 = 1;
    const NAME: &'static str = "principal";
}

/// The session that keeps an orphan nobody was known to hold: it goes when the MDT next starts.
pub const NO_SESSION: SessionId = SessionId(0);

/// What one transaction changed of who uses how much. Added up in the background, so that
/// transactions of one payer do not meet in one record.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct UsageChange {
    #[n(0)]
    pub changes: Vec<PayerChange>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct PayerChange {
    #[n(0)]
    pub payer: Payer,
    #[n(1)]
    pub bytes: i64,
    #[n(2)]
    pub inodes: i64,
}

impl Record for UsageChange {
    const VERSION: u8 = 1;
    const NAME: &'static str = "usage change";
}

/// What a payer uses, as far as it was added up; the payer is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct UsageTotal {
    #[n(0)]
    pub bytes: i64,
    #[n(1)]
    pub inodes: i64,
}

impl Record for UsageTotal {
    const VERSION: u8 = 1;
    const NAME: &'static str = "usage";
}

/// What a payer may use; the payer is in the key.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct QuotaLimits {
    #[n(0)]
    pub limits: Limits,
    /// Since when the soft limits are passed, as last noted.
    #[n(1)]
    pub bytes_over: Option<Time>,
    #[n(2)]
    pub inodes_over: Option<Time>,
    /// What this MDT may use by itself, if it is not the one that keeps the limits.
    #[n(3)]
    pub share: Option<Share>,
    /// They are those of everybody who has none of their own.
    #[n(4)]
    pub is_default: Option<bool>,
    /// Without limits, also of those for everybody.
    #[n(5)]
    pub is_free: Option<bool>,
}

impl Record for QuotaLimits {
    const VERSION: u8 = 1;
    const NAME: &'static str = "quota limits";
}

/// What another MDT may use by itself; which and whose is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct QuotaShare {
    #[n(0)]
    pub share: Share,
    /// What it said when that was noted.
    #[n(1)]
    pub used: Used,
    #[n(2)]
    pub promised: u64,
}

impl Record for QuotaShare {
    const VERSION: u8 = 1;
    const NAME: &'static str = "quota share";
}

/// For how long soft limits may be passed; the kind of payer is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct QuotaGrace {
    #[n(0)]
    pub grace: Grace,
}

impl Record for QuotaGrace {
    const VERSION: u8 = 1;
    const NAME: &'static str = "quota grace";
}

/// A file or directory of an exposed pool was changed: whoever looks after the exposure looks at
/// it. Pool and file are in the key.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ExposeNote {
    #[n(0)]
    pub at: Time,
    /// Who changed it last: it may have the file open still.
    #[n(1)]
    pub session: SessionId,
}

impl Record for ExposeNote {
    const VERSION: u8 = 1;
    const NAME: &'static str = "note of what is exposed";
}

/// A file or directory that may lie where its pool is exposed; pool and file are in the key. It is
/// there before anything lies there, and as long as something may.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Exposed {
    /// Of a file: which bytes.
    #[n(0)]
    pub content: Version,
    /// Under which names: in directories that are exposed, too.
    #[n(1)]
    pub names: Vec<NameOf>,
    #[n(2)]
    pub uid: Uid,
    #[n(3)]
    pub gid: Gid,
    /// As it was given there.
    #[n(4)]
    pub mode: Mode,
    #[n(5)]
    pub mtime: Time,
    #[n(6)]
    pub size: u64,
    #[n(7)]
    pub is_directory: bool,
    /// A step did not succeed: what lies there of it is taken away first.
    #[n(8)]
    pub is_doubtful: bool,
}

impl Record for Exposed {
    const VERSION: u8 = 1;
    const NAME: &'static str = "exposed file";
}

/// What has a name where a pool is exposed; the name is in the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ExposedEntry {
    #[n(0)]
    pub id: FileId,
}

impl Record for ExposedEntry {
    const VERSION: u8 = 1;
    const NAME: &'static str = "exposed name";
}

/// How far the exposure of a pool is; the pool is in the key.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ExposedPool {
    /// As the map says which one it is.
    #[n(0)]
    pub since: Version,
    /// What lies there is not known: it is to be emptied first.
    #[n(1)]
    pub is_unknown: bool,
    /// Files up to this one were looked at when it began; `None`: all were.
    #[n(2)]
    pub walked: Option<FileId>,
    /// The directory was marked as ours: it is not taken for another from now on.
    #[n(3)]
    pub is_marked: bool,
}

impl Record for ExposedPool {
    const VERSION: u8 = 1;
    const NAME: &'static str = "exposed pool";
}

/// Steps that were begun where a pool is exposed and may not have ended: they are done again before
/// anything else is.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ExposeSteps {
    /// The message that says them.
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub message: Vec<u8>,
    /// What they mean here, in their order.
    #[n(1)]
    pub groups: Vec<StepGroup>,
}

/// Steps that are done together or not, and what is written then.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct StepGroup {
    #[n(0)]
    pub steps: u32,
    #[n(1)]
    pub done: Vec<LaterWrite>,
    #[n(2)]
    pub undone: Vec<LaterWrite>,
}

/// What is written when steps have ended.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct LaterWrite {
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub key: Vec<u8>,
    /// `None`: it is deleted.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub value: Option<Vec<u8>>,
}

impl Record for ExposeSteps {
    const VERSION: u8 = 1;
    const NAME: &'static str = "steps of an exposure";
}
