//! Where a file's bytes are: extents over immutable chunks, and the places where chunks lie.
//!
//! Invariants: the extents of a file never overlap and are ordered by offset; what no extent covers
//! is a hole and reads as zeroes; a chunk never changes.

use crate::{
    AtMost, ChunkId, Digest, Encoding, GrantedId, Layout, OstIndex, PoolName, RepositoryName,
    SiteName,
};
use minicbor::{Decode, Decoder, Encode, Encoder, data, decode, encode};
use std::fmt;

/// Who has a place.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    Ost(OstIndex),
    /// Whoever serves a repository.
    Repository(RepositoryName),
    /// What a site keeps of others' chunks.
    Cache(SiteName),
    /// The tape behind a pool: to be restored before it is read. `offset` counts in the file there.
    Tape(PoolName),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ost(ost) => f.write_str(&ost.label()),
            Self::Repository(name) => write!(f, "repository {name}"),
            Self::Cache(site) => write!(f, "the cache of {site}"),
            Self::Tape(pool) => write!(f, "the tape of pool {pool}"),
        }
    }
}

/// An OST is its index; others are a list of what they are and their name.
impl<C> Encode<C> for Origin {
    fn encode<W: encode::Write>(
        &self,
        e: &mut Encoder<W>,
        ctx: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        match self {
            Self::Ost(ost) => e.encode_with(ost, ctx)?.ok(),
            Self::Repository(name) => e.array(2)?.u8(1)?.encode_with(name, ctx)?.ok(),
            Self::Cache(site) => e.array(2)?.u8(2)?.encode_with(site, ctx)?.ok(),
            Self::Tape(pool) => e.array(2)?.u8(3)?.encode_with(pool, ctx)?.ok(),
        }
    }
}

impl<'b, C> Decode<'b, C> for Origin {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, decode::Error> {
        if !matches!(d.datatype()?, data::Type::Array) {
            return d.decode_with(ctx).map(Self::Ost);
        }
        match (d.array()?, d.u8()?) {
            (Some(2), 1) => d.decode_with(ctx).map(Self::Repository),
            (Some(2), 2) => d.decode_with(ctx).map(Self::Cache),
            (Some(2), 3) => d.decode_with(ctx).map(Self::Tape),
            _ => Err(decode::Error::message("an origin of an unknown kind")),
        }
    }
}

/// What an object is called where it lies.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub enum ObjectName {
    /// An object we made: one chunk, or a pack of chunks named after its first.
    #[n(1)]
    Chunk(#[n(0)] GrantedId),
    /// A file that was there before us, below the OST's adopted tree. If size or time differ from
    /// what is remembered here, it was changed behind us and is not served.
    #[n(2)]
    External {
        #[n(0)]
        path: String,
        #[n(1)]
        size: u64,
        /// Nanoseconds since 1970.
        #[n(2)]
        mtime_ns: i64,
    },
    /// What a repository calls it: a path below its own.
    #[n(3)]
    Key(#[n(0)] String),
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk(chunk) => chunk.fmt(f),
            Self::External { path, .. } => path.fmt(f),
            Self::Key(key) => key.fmt(f),
        }
    }
}

/// A place of plain bytes at an OST: all that an MDT's own chunks have.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct OstPlace {
    #[n(0)]
    pub ost: OstIndex,
    #[n(1)]
    pub object: ObjectName,
    #[n(2)]
    pub offset: u64,
    #[n(3)]
    pub length: u64,
    /// Known to lag behind its mirrors: not read from until it was synced again.
    #[n(4)]
    pub is_stale: bool,
}

impl OstPlace {
    /// Is it an object with the chunk's name, that holds the chunk and nothing else?
    pub fn is_own(&self, chunk: GrantedId) -> bool {
        self.object == ObjectName::Chunk(chunk) && self.offset == 0
    }
}

/// One place of a chunk: `length` bytes at `offset` of an object, which may be larger than the
/// chunk, as a pack of many is.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Place {
    #[n(0)]
    pub origin: Origin,
    #[n(1)]
    pub object: ObjectName,
    #[n(2)]
    pub offset: u64,
    /// As they lie there. `None`: to the object's end, where nobody says how many that are.
    #[n(3)]
    pub length: Option<u64>,
    /// Known to lag behind its mirrors: not read from until it was synced again.
    #[n(4)]
    pub is_stale: bool,
    /// How they lie there; `None`: plain.
    #[n(5)]
    pub encoding: Option<Encoding>,
}

impl Place {
    /// The OST that has it, if one has.
    pub fn ost(&self) -> Option<OstIndex> {
        match self.origin {
            Origin::Ost(ost) => Some(ost),
            Origin::Repository(_) | Origin::Cache(_) | Origin::Tape(_) => None,
        }
    }

    /// The same, if an OST has it plain.
    pub fn at_ost(&self) -> Option<OstPlace> {
        let Self { ref object, offset, is_stale, .. } = *self;
        let (ost, length) = (self.ost()?, self.length?);
        let is_plain = self.encoding() == Encoding::Plain;
        is_plain.then(|| OstPlace { ost, object: object.clone(), offset, length, is_stale })
    }

    pub fn is_at(&self, ost: OstIndex) -> bool {
        self.origin == Origin::Ost(ost)
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding.unwrap_or_default()
    }

    /// Has it all of a chunk of that length, as far as can be said?
    pub fn is_whole(&self, length: u64) -> bool {
        match (self.encoding(), self.length) {
            (Encoding::Plain, Some(stored)) => stored == length,
            (encoding, Some(stored)) => 0 < stored && stored <= encoding.stored_max(length),
            (_, None) => self.ost().is_none(),
        }
    }
}

impl From<OstPlace> for Place {
    /// Written as it is, too: the fields have the same numbers.
    fn from(place: OstPlace) -> Self {
        let OstPlace { ost, object, offset, length, is_stale } = place;
        let (origin, length) = (Origin::Ost(ost), Some(length));
        Self { origin, object, offset, length, is_stale, encoding: None }
    }
}

/// A chunk as readers see it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChunkRef {
    #[n(0)]
    pub chunk: ChunkId,
    /// Bytes of the whole chunk, as programs read them.
    #[n(1)]
    pub length: u64,
    /// Offset within the chunk of the extent's first byte.
    #[n(2)]
    pub skip: u64,
    /// At least one.
    #[n(3)]
    #[cbor(with = "AtMost::<{ ChunkRef::PLACES_MAX }>")]
    pub places: Vec<Place>,
    /// Of a granted chunk; one that is named by its content has that name ([`ChunkRef::digest`]).
    #[n(4)]
    pub digest: Option<Digest>,
    /// Adler-32 of the whole chunk.
    #[n(5)]
    pub adler32: Option<u32>,
    /// CRC32C per 4 KiB block, for places whose objects do not carry their own.
    #[n(6)]
    #[cbor(with = "AtMost::<{ ChunkRef::CHECKS_MAX }>")]
    pub checks: Option<Vec<u32>>,
}

impl ChunkRef {
    /// Its copies, those that are on their way from one OST to another, and tape.
    pub const PLACES_MAX: usize = 64;
    /// Blocks of the largest chunk.
    pub const CHECKS_MAX: usize = Layout::CHUNK_SIZE_MAX as usize / 4096;

    /// Named by its content, whole, at one place.
    pub fn of_content(digest: Digest, length: u64, place: Place) -> Self {
        Self {
            chunk: ChunkId::Content(digest),
            length,
            skip: 0,
            places: vec![place],
            digest: None,
            adler32: None,
            checks: None,
        }
    }

    /// As an MDT has it: granted, with all its places at OSTs. Others are no MDT's own.
    pub fn granted(&self) -> Option<(GrantedId, Vec<OstPlace>)> {
        let places = self.places.iter().map(Place::at_ost).collect::<Option<_>>()?;
        Some((self.chunk.granted()?, places))
    }

    /// Those of its places that OSTs have.
    pub fn at_osts(&self) -> impl Iterator<Item = OstPlace> {
        self.places.iter().filter_map(Place::at_ost)
    }

    /// Is it nowhere but on tape?
    pub fn is_nearline(&self) -> bool {
        let is_tape = |place: &Place| matches!(place.origin, Origin::Tape(_));
        let mut good = self.places.iter().filter(|place| !place.is_stale);
        self.places.iter().any(is_tape) && good.all(is_tape)
    }

    /// What all of it must have.
    pub fn digest(&self) -> Option<Digest> {
        match self.chunk {
            ChunkId::Granted(_) => self.digest,
            ChunkId::Content(digest) => Some(digest),
        }
    }
}

/// What an extent holds.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Content {
    /// The bytes themselves, at most 16 KiB.
    #[n(1)]
    Inline(
        #[n(0)]
        #[cbor(with = "minicbor::bytes")]
        Vec<u8>,
    ),
    #[n(2)]
    Chunk(#[n(0)] ChunkRef),
    /// Nothing: only in a commit, where it cuts a hole.
    #[n(3)]
    Hole,
}

/// `length` bytes of a file from `offset`.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Extent {
    #[n(0)]
    pub offset: u64,
    #[n(1)]
    pub length: u64,
    #[n(2)]
    pub content: Content,
}

/// Why an extent was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExtentError {
    #[error("extent at {offset} with {length} bytes is empty or ends beyond the largest file")]
    Range { offset: u64, length: u64 },
    #[error("extent at {offset} holds {held} inline bytes and says {length}; at most 16 KiB")]
    Inline { offset: u64, length: u64, held: usize },
    #[error("extent at {offset} wants bytes outside chunk {chunk} or its places")]
    Chunk { offset: u64, chunk: ChunkId },
    #[error("extent at {offset} has the digest {digest}, which is no BLAKE3 of plain bytes")]
    Digest { offset: u64, digest: Digest },
}

impl Extent {
    /// Largest file: what a signed 64-bit offset can name, rounded down to a block.
    pub const FILE_SIZE_MAX: u64 = i64::MAX as u64 - 4095;

    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// The part of it that lies in `from..to`.
    pub fn within(&self, from: u64, to: u64) -> Option<Self> {
        let (from, to) = (self.offset.max(from), self.end().min(to));
        if from >= to {
            return None;
        }
        let skip = from - self.offset;
        let content = match &self.content {
            Content::Inline(bytes) => {
                let end = skip + (to - from);
                Content::Inline(bytes.get(skip as usize..end as usize)?.to_vec())
            }
            Content::Chunk(chunk) => {
                let mut chunk = chunk.clone();
                chunk.skip += skip;
                Content::Chunk(chunk)
            }
            Content::Hole => Content::Hole,
        };
        Some(Self { offset: from, length: to - from, content })
    }

    /// Checks an extent that came from outside.
    pub fn validate(&self) -> Result<(), ExtentError> {
        let (offset, length) = (self.offset, self.length);
        let end = offset.checked_add(length).filter(|&end| end <= Self::FILE_SIZE_MAX);
        if length == 0 || end.is_none() {
            return Err(ExtentError::Range { offset, length });
        }
        match &self.content {
            Content::Inline(bytes)
                if bytes.len() as u64 != length
                    || bytes.len() > crate::Layout::INLINE_MAX as usize =>
            {
                Err(ExtentError::Inline { offset, length, held: bytes.len() })
            }
            Content::Chunk(chunk) => {
                let end = chunk.skip.checked_add(length);
                let is_inside = end.is_some_and(|end| end <= chunk.length);
                let is_whole = |place: &Place| place.is_whole(chunk.length);
                if !is_inside || chunk.places.is_empty() || !chunk.places.iter().all(is_whole) {
                    return Err(ExtentError::Chunk { offset, chunk: chunk.chunk });
                }
                // By no other can ranges be verified.
                match chunk.digest.filter(|digest| digest.as_blake3().is_none()) {
                    Some(digest) => Err(ExtentError::Digest { offset, digest }),
                    None => Ok(()),
                }
            }
            Content::Inline(_) | Content::Hole => Ok(()),
        }
    }
}
