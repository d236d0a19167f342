//! Capabilities: what an MDS lets a client do at OSSs, and what MDS and OSS tell each other of
//! them.
//!
//! A capability is signed by its MDS and shown to an OSS with each request about bytes. It is good
//! for one holder, for a few minutes, and for some files or for what a session itself writes.

use crate::bounds::EXTENTS_MAX;
use minicbor::{Decode, Encode};
use tieline_types::{AtMost, FileId, MdtIndex, ObjectName, SessionId};

/// Who may use a capability: a digest of a client's number and of the principal that proved to be
/// there. Every server finds it by itself for each connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct Holder(
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub [u8; 16],
);

/// Ends everything that an MDT signed: it has another key from now on. Only who may dump the MDT
/// may ask it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RenewCapabilityKey {}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RenewCapabilityKeyReply {}

/// What is signed.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Capability {
    #[n(0)]
    pub mdt: MdtIndex,
    /// Number of the key that signed it.
    #[n(1)]
    pub key: u64,
    /// Counted by the MDS: what is taken back is taken back below a serial.
    #[n(2)]
    pub serial: u64,
    /// At the MDS. Chunks that it writes carry its grant, which has the same number.
    #[n(3)]
    pub session: SessionId,
    #[n(4)]
    pub holder: Holder,
    /// By the clock of the MDS, in milliseconds since 1970.
    #[n(5)]
    pub expires_ms: u64,
    #[n(6)]
    pub scope: Scope,
}

/// What a capability is good for.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Scope {
    /// One file: its own chunks are read; new ones of the session are put for it.
    #[n(1)]
    File {
        #[n(0)]
        file: FileId,
        #[n(1)]
        is_read: bool,
        #[n(2)]
        is_write: bool,
        /// Objects that the file refers to and that do not say so themselves: chunks that it
        /// shares with others, and files that were there before us. Read as its own.
        #[n(3)]
        #[cbor(with = "AtMost::<EXTENTS_MAX>")]
        objects: Vec<ObjectName>,
    },
    /// What the session itself writes: its chunks are read, and put for files that it makes.
    #[n(2)]
    Own {
        #[n(0)]
        #[cbor(with = "AtMost::<RUNS_MAX>")]
        runs: Vec<FileRun>,
    },
    /// Several files of the MDT: their own chunks are read.
    #[n(3)]
    Files {
        #[n(0)]
        #[cbor(with = "AtMost::<RUNS_MAX>")]
        runs: Vec<FileRun>,
    },
    /// One file, as [`Scope::File`], for who acts for another: what the session wrote itself is
    /// read with it as far as it says so, for others wrote there, too.
    #[n(4)]
    Delegated {
        #[n(0)]
        file: FileId,
        #[n(1)]
        is_read: bool,
        #[n(2)]
        is_write: bool,
        #[n(3)]
        #[cbor(with = "AtMost::<EXTENTS_MAX>")]
        objects: Vec<ObjectName>,
    },
}

impl Scope {
    /// The one file, if it is for one.
    pub fn file(&self) -> Option<FileId> {
        match self {
            Self::File { file, .. } | Self::Delegated { file, .. } => Some(*file),
            Self::Own { .. } | Self::Files { .. } => None,
        }
    }

    /// May the one file be read, and written?
    pub fn rights(&self) -> (bool, bool) {
        match self {
            Self::File { is_read, is_write, .. } | Self::Delegated { is_read, is_write, .. } => {
                (*is_read, *is_write)
            }
            Self::Own { .. } | Self::Files { .. } => (false, false),
        }
    }

    /// Objects that are read as the file's own.
    pub fn objects(&self) -> &[ObjectName] {
        match self {
            Self::File { objects, .. } | Self::Delegated { objects, .. } => objects,
            Self::Own { .. } | Self::Files { .. } => &[],
        }
    }

    /// The same, for who acts for another.
    pub fn delegated(self) -> Self {
        match self {
            Self::File { file, is_read, is_write, objects } => {
                Self::Delegated { file, is_read, is_write, objects }
            }
            other => other,
        }
    }
}

/// The most runs that one capability names: it is shown with every request about bytes.
pub const RUNS_MAX: usize = 64;
/// Keys of an MDT that hold at once: one an hour, and each for its capabilities' lives beyond.
const KEYS_MAX: usize = 16;
/// What an MDT takes back before it changes all its keys.
pub const REVOKED_MAX: usize = 1024;

/// Serials of files that a session gives out itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct FileRun {
    #[n(0)]
    pub first: u64,
    #[n(1)]
    pub count: u32,
}

impl FileRun {
    pub fn holds(&self, serial: u64) -> bool {
        serial >= self.first && serial - self.first < u64::from(self.count)
    }
}

/// What is shown: the `capability` of requests to an OSS holds its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SignedCapability {
    /// A [`Capability`].
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub capability: Vec<u8>,
    /// Ed25519 (RFC 8032) over `tieline 1 capability` and the bytes above.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub signature: [u8; 64],
}

/// A capability on its way to who may use it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CapabilityGrant {
    /// A [`SignedCapability`].
    #[n(0)]
    #[cbor(with = "minicbor::bytes")]
    pub signed: Vec<u8>,
    /// How long it is good, from now on.
    #[n(1)]
    pub life_ms: u32,
}

/// Asks an MDS for a capability: of a file, as the caller's rights are now; or of what the session
/// itself writes.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetCapability {
    /// `None`: of what the session itself writes.
    #[n(0)]
    pub id: Option<FileId>,
    #[n(1)]
    pub is_read: bool,
    #[n(2)]
    pub is_write: bool,
    /// Name the objects of a page of extents from here.
    #[n(3)]
    pub offset: Option<u64>,
    /// Who is to use it, if the OSSs know the client under another name; as they told it.
    #[n(4)]
    pub holder: Option<Holder>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetCapabilityReply {
    /// `None`: none is needed in this federation.
    #[n(0)]
    pub grant: Option<CapabilityGrant>,
}

/// Asks an MDS what an OSS must know to judge its capabilities. Only another server may ask.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CapabilityNews {
    #[n(0)]
    pub mdt: MdtIndex,
}

/// All there is to know: what is not in it any more holds no more.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CapabilityNewsReply {
    #[n(0)]
    #[cbor(with = "AtMost::<KEYS_MAX>")]
    pub keys: Vec<CapabilityKey>,
    #[n(1)]
    #[cbor(with = "AtMost::<REVOKED_MAX>")]
    pub revoked: Vec<Revocation>,
    /// The clock of the MDS, in milliseconds since 1970.
    #[n(2)]
    pub now_ms: u64,
}

/// A key that signs capabilities, signed them lately, or soon will.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CapabilityKey {
    #[n(0)]
    pub number: u64,
    /// Ed25519.
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub public: [u8; 32],
}

/// Capabilities that hold no more, though their time is not over.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Revocation {
    /// Those of lower serials.
    #[n(0)]
    pub below: u64,
    /// Of this file; or
    #[n(1)]
    pub file: Option<FileId>,
    /// of this session.
    #[n(2)]
    pub session: Option<SessionId>,
}
