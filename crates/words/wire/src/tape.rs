//! Messages about files on tape: wishes and their state at an MDS, the work itself at an OSS.

use crate::meta::LeaseGrant;
use minicbor::{Decode, Encode};
use tieline_types::tape::WishFailure;
use tieline_types::{
    AtMost, Attributes, ChunkRef, Digest, ErrorKind, FileId, Hsm, OnTape, OstIndex, TapeCopy,
    TapeWish, WishState,
};

/// A file shall be archived or restored, in the background: [`GetTape`] tells how far that is.
/// What is so already is no error.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct AskTape {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub wish: TapeWish,
}

/// How a file stands to tape.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GetTape {
    #[n(0)]
    pub id: FileId,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TapeReply {
    /// `None`: tape has nothing of it.
    #[n(0)]
    pub on_tape: Option<OnTape>,
    #[n(1)]
    pub copy: Option<TapeCopy>,
    /// Bytes that OSTs gave up.
    #[n(2)]
    pub released: u64,
    /// What is to be done with it.
    #[n(3)]
    pub wish: Option<WishState>,
    /// The server's clock, in milliseconds since 1970.
    #[n(4)]
    pub now_ms: u64,
}

impl TapeReply {
    /// Do OSTs have all of it?
    pub fn is_here(&self) -> bool {
        !self.on_tape.is_some_and(OnTape::is_nearline)
    }

    /// Why it was given up, if that was since then.
    pub fn given_up(&self, since_ms: u64) -> Option<&WishFailure> {
        let wish = self.wish.as_ref().filter(|wish| wish.is_over);
        let failure = wish.and_then(|wish| wish.failure.as_ref());
        failure.filter(|failure| failure.at.millis() >= since_ms)
    }
}

/// Gives up the chunks at OSTs of a file that is archived as it is, a page of extents at a time.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GiveUpBytes {
    #[n(0)]
    pub id: FileId,
    /// Extents that end after this offset.
    #[n(1)]
    pub offset: u64,
    /// At most 1,024.
    #[n(2)]
    pub limit: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct GiveUpBytesReply {
    /// As in [`crate::meta::ExtentPage`].
    #[n(0)]
    pub covered: u64,
    /// It was the last page.
    #[n(1)]
    pub is_done: bool,
    /// Bytes of this page that OSTs give up.
    #[n(2)]
    pub released: u64,
    /// Bytes that they keep: of chunks that other files have, too, that were written over in part,
    /// or that lie in adopted files.
    #[n(3)]
    pub kept: u64,
    #[n(4)]
    pub attributes: Attributes,
    #[n(5)]
    pub lease: LeaseGrant,
}

/// Has an OSS run a pool's script, or asks how far it is. Only the MDS of the file may ask.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DriveTape {
    /// One of the OSS's.
    #[n(0)]
    pub ost: OstIndex,
    /// Chosen by the MDS, never twice.
    #[n(1)]
    pub job: u64,
    #[n(2)]
    pub file: FileId,
    /// What is to be done, or more of it; `None` asks only.
    #[n(3)]
    pub work: Option<TapeWork>,
    /// It is wanted no more.
    #[n(4)]
    pub ends: Option<bool>,
    /// For what lies at other OSSs.
    #[n(5)]
    #[cbor(with = "minicbor::bytes")]
    pub capability: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TapeWork {
    #[n(0)]
    pub hsm: Hsm,
    /// What the script is told of the file, as `-si=`.
    #[n(1)]
    pub storage_info: String,
    #[n(2)]
    pub deed: TapeDeed,
    /// Parts of the file, in the order of their offsets.
    #[n(3)]
    #[cbor(with = "AtMost::<{ TapeWork::PARTS_MAX }>")]
    pub parts: Vec<TapePart>,
    /// How many came before: what comes twice is taken once.
    #[n(4)]
    pub before: u64,
    /// Of all parts; the work begins when they are there.
    #[n(5)]
    pub total: u64,
}

impl TapeWork {
    /// Parts in one message.
    pub const PARTS_MAX: usize = 8192;
    /// Parts of one file.
    pub const TOTAL_MAX: u64 = 1 << 20;
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum TapeDeed {
    /// The file's bytes are put together as one local file, which the script puts on tape.
    #[n(1)]
    Put {
        /// 36 hexadecimal digits, others for other bytes: dCache's `pnfsID`.
        #[n(0)]
        name: String,
        #[n(1)]
        size: u64,
    },
    /// The script gets the file, and those of its chunks that are named go where they are said to.
    #[n(2)]
    Get {
        #[n(0)]
        name: String,
        #[n(1)]
        copy: TapeCopy,
    },
    #[n(3)]
    Remove(
        #[n(0)]
        #[cbor(with = "AtMost::<{ TapeCopy::URIS_MAX }>")]
        Vec<String>,
    ),
}

/// A part of a file that goes to tape, or comes from there.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TapePart {
    /// In the file on tape. Of a chunk that is restored: where the whole chunk begins.
    #[n(0)]
    pub offset: u64,
    #[n(1)]
    pub length: u64,
    #[n(2)]
    pub content: TapeContent,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum TapeContent {
    #[n(1)]
    Inline(
        #[n(0)]
        #[cbor(with = "minicbor::bytes")]
        Vec<u8>,
    ),
    /// `length` bytes of it.
    #[n(2)]
    Chunk(#[n(0)] ChunkRef),
    /// All of it, to this OST.
    #[n(3)]
    To(#[n(0)] ChunkRef, #[n(1)] OstIndex),
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DriveTapeReply {
    #[n(0)]
    pub state: DriveState,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum DriveState {
    /// The OSS knows nothing of the job: it was started since, perhaps.
    #[n(1)]
    Unknown,
    /// So many parts are there.
    #[n(2)]
    Gathering(#[n(0)] u64),
    /// Others are before it.
    #[n(3)]
    Waiting,
    #[n(4)]
    Running,
    /// It is on tape: under these names, with these checksums.
    #[n(5)]
    Put {
        #[n(0)]
        #[cbor(with = "AtMost::<{ TapeCopy::URIS_MAX }>")]
        uris: Vec<String>,
        #[n(1)]
        digest: Digest,
        #[n(2)]
        adler32: u32,
    },
    /// Gotten, and durable where it was wanted; or removed.
    #[n(6)]
    Done,
    #[n(7)]
    Failed {
        #[n(0)]
        kind: ErrorKind,
        #[n(1)]
        detail: String,
        /// Another try would end in the same way.
        #[n(2)]
        is_final: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::Time;

    #[test]
    fn what_was_given_up_is_told_while_it_is_news() {
        let at = Time { seconds: 100, nanos: 0 };
        let detail = "osm://a is not it".to_owned();
        let failure = Some(WishFailure { kind: ErrorKind::Corrupt, detail, at });
        let wish = WishState { failure, ..WishState::new(TapeWish::Restore, at) };
        let found = |is_over| TapeReply {
            on_tape: Some(OnTape::Released),
            copy: None,
            released: 1,
            wish: Some(WishState { is_over, ..wish.clone() }),
            now_ms: 100_500,
        };
        assert!(found(false).given_up(0).is_none(), "it is tried again");
        assert!(found(true).given_up(100_000).is_some());
        assert!(found(true).given_up(100_001).is_none(), "of before it was asked for");
        assert!(!found(true).is_here());
    }
}
