//! Metadata in bulk: whole directories, trees of them, and where the bytes of many files are.
//!
//! What is told of a tree repeats itself, so it travels packed: an LZ4 block (its block format,
//! nothing around it) of the page's CBOR. Knows no network, and nothing of when to ask.
//!
//! Invariant: nothing is unpacked beyond [`UNPACKED_MAX`], whatever a peer says.

use crate::BodyError;
use crate::bounds::{OSTS_MAX, XATTRS_MAX};
use crate::capability::{CapabilityGrant, Holder};
use crate::meta::{DirectoryEntry, ExtentPage, LeaseGrant, Xattr};
use minicbor::{Decode, Encode};
use tieline_types::{AtMost, Attributes, FileId, Layout, Name, OstIndex};

/// Files of a bundle, and its directories.
pub const BUNDLE_MAX: usize = NAMED_MAX;
/// Files by which a bundle is recognised, and bundles of one directory.
pub const SIGNS_MAX: usize = 16;
pub const BUNDLES_MAX: usize = 16;
/// Directories or files that one request names.
pub const NAMED_MAX: usize = 4096;
/// Entries in one answer.
pub const ENTRIES_MAX: u32 = 8192;
/// What a page may tell of: its entries, and what it was asked for.
const TOLD_MAX: usize = ENTRIES_MAX as usize + NAMED_MAX;
/// Bytes of a page before it is packed, and half as many of files.
pub const BYTES_MAX: u32 = 2 << 20;
/// What a page can have at most: the last entry may reach beyond the wish.
pub const UNPACKED_MAX: u32 = 3 * BYTES_MAX;

/// Asks for directories, and what is below them. Told are those that the caller may list and
/// search; each whole, as far as the answer reaches.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadTree {
    /// Directories of one MDT, at most [`NAMED_MAX`]. The first is the one that somebody waits for.
    #[n(0)]
    #[cbor(with = "AtMost::<NAMED_MAX>")]
    pub roots: Vec<FileId>,
    /// Levels below them that are told, too: a directory's own directories before its neighbours.
    #[n(1)]
    pub depth: u32,
    /// At most so many entries.
    #[n(2)]
    pub entries: u32,
    /// No entry begins behind so many bytes, before packing; files' bytes add at most half as many.
    #[n(3)]
    pub bytes: u32,
    /// Of regular files up to this size: where their bytes are, and small bytes themselves.
    #[n(4)]
    pub contents_max: u64,
    /// The first root goes on after this name.
    #[n(5)]
    pub after: Option<Name>,
    /// Who is to use capabilities, if the OSSs know the client under another name.
    #[n(6)]
    pub holder: Option<Holder>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadTreeReply {
    #[n(0)]
    pub lease: LeaseGrant,
    /// A [`TreePage`], packed.
    #[n(1)]
    pub page: Packed,
    /// For reading those of its files that have chunks.
    #[n(2)]
    #[cbor(with = "AtMost::<NAMED_MAX>")]
    pub capabilities: Option<Vec<CapabilityGrant>>,
    /// The MDT has quotas: what is written may have to be promised ([`crate::quotas`]).
    #[n(3)]
    pub has_limits: Option<bool>,
}

/// Bytes that were packed, and how many they were.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Packed {
    #[n(0)]
    pub length: u32,
    #[n(1)]
    #[cbor(with = "minicbor::bytes")]
    pub bytes: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct TreePage {
    /// Layouts of its files, each once.
    #[n(0)]
    #[cbor(with = "AtMost::<TOLD_MAX>")]
    pub layouts: Vec<Layout>,
    /// Those that were reached. A directory that is among the entries and not here was not.
    #[n(1)]
    #[cbor(with = "AtMost::<TOLD_MAX>")]
    pub directories: Vec<TreeDirectory>,
    /// There was more to tell than was asked for. Else, what is not told is not to be told.
    #[n(2)]
    pub is_cut: bool,
}

/// A directory, from its first name or from where the request went on.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TreeDirectory {
    #[n(0)]
    pub attributes: Attributes,
    /// In the order of the names' bytes.
    #[n(1)]
    #[cbor(with = "AtMost::<TOLD_MAX>")]
    pub entries: Vec<TreeEntry>,
    /// Its last name is here.
    #[n(2)]
    pub is_end: bool,
    /// By what programs are recognised that were in the tree below it, the one that was here last
    /// first.
    #[n(3)]
    #[cbor(with = "AtMost::<BUNDLES_MAX>")]
    pub bundles: Option<Vec<BundleSigns>>,
}

/// Some files of a bundle: whoever opens them may be that program.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct BundleSigns {
    /// Among those of the directory.
    #[n(0)]
    pub number: u32,
    #[n(1)]
    #[cbor(with = "AtMost::<SIGNS_MAX>")]
    pub signs: Vec<FileId>,
}

/// Says what a program opened in a tree: it will be told to whoever starts as it did.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReportBundle {
    /// All of it is below this.
    #[n(0)]
    pub root: FileId,
    /// Where names were looked for, in the order of the first time.
    #[n(1)]
    #[cbor(with = "AtMost::<BUNDLE_MAX>")]
    pub directories: Vec<FileId>,
    /// What was opened, in the same order.
    #[n(2)]
    #[cbor(with = "AtMost::<BUNDLE_MAX>")]
    pub files: Vec<FileId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReportBundleReply {
    /// It is known as this. Nothing: it is not kept.
    #[n(0)]
    pub number: Option<u32>,
}

/// Asks what a program opened: as much of it as the caller may search and read.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadBundle {
    #[n(0)]
    pub root: FileId,
    #[n(1)]
    pub number: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadBundleReply {
    /// A [`BundleList`], packed.
    #[n(0)]
    pub list: Packed,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct BundleList {
    #[n(0)]
    #[cbor(with = "AtMost::<BUNDLE_MAX>")]
    pub directories: Vec<FileId>,
    #[n(1)]
    #[cbor(with = "AtMost::<BUNDLE_MAX>")]
    pub files: Vec<SizedFile>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SizedFile {
    #[n(0)]
    pub id: FileId,
    #[n(1)]
    pub size: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TreeEntry {
    /// With attributes, unless another MDT has them.
    #[n(0)]
    pub entry: DirectoryEntry,
    /// As long as there is room for files' bytes.
    #[n(1)]
    pub file: Option<FileBytes>,
    /// All extended attributes that the caller may see, if they are told.
    #[n(2)]
    #[cbor(with = "AtMost::<XATTRS_MAX>")]
    pub xattrs: Option<Vec<Xattr>>,
}

/// Where a file's bytes are: all of them.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct FileBytes {
    /// Which of the page's layouts it has.
    #[n(0)]
    pub layout: u32,
    #[n(1)]
    #[cbor(with = "AtMost::<OSTS_MAX>")]
    pub stripe: Vec<OstIndex>,
    #[n(2)]
    pub extents: ExtentPage,
}

/// Asks where the bytes of small files are, and for those that are in the metadata: as opens for
/// reading of each would tell. Left out are those that the caller may not read, and that are not
/// small.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadFiles {
    /// Regular files of one MDT, at most [`NAMED_MAX`].
    #[n(0)]
    #[cbor(with = "AtMost::<NAMED_MAX>")]
    pub ids: Vec<FileId>,
    /// No file begins behind so many bytes, before packing.
    #[n(1)]
    pub bytes: u32,
    /// The largest file that is told.
    #[n(2)]
    pub contents_max: u64,
    /// As for [`ReadTree`].
    #[n(3)]
    pub holder: Option<Holder>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ReadFilesReply {
    #[n(0)]
    pub lease: LeaseGrant,
    /// A [`FilesPage`], packed.
    #[n(1)]
    pub page: Packed,
    #[n(2)]
    #[cbor(with = "AtMost::<NAMED_MAX>")]
    pub capabilities: Option<Vec<CapabilityGrant>>,
    #[n(3)]
    pub has_limits: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct FilesPage {
    #[n(0)]
    #[cbor(with = "AtMost::<TOLD_MAX>")]
    pub layouts: Vec<Layout>,
    #[n(1)]
    #[cbor(with = "AtMost::<NAMED_MAX>")]
    pub files: Vec<ToldFile>,
    /// How many of the ids were looked at.
    #[n(2)]
    pub count: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ToldFile {
    #[n(0)]
    pub attributes: Attributes,
    /// The unit under which it may be believed.
    #[n(1)]
    pub unit: FileId,
    #[n(2)]
    pub bytes: FileBytes,
}

impl Packed {
    pub fn new<T: Encode<()>>(page: &T) -> Self {
        let plain = crate::encode(page);
        let length = u32::try_from(plain.len()).unwrap_or(u32::MAX);
        Self { length, bytes: lz4_flex::block::compress(&plain) }
    }

    /// What was packed. Lengths that cannot be meant are refused before memory is taken for them.
    pub fn open<T: for<'b> Decode<'b, ()>>(&self) -> Result<T, BodyError> {
        if self.length > UNPACKED_MAX {
            return Err(BodyError::Packed);
        }
        let plain = lz4_flex::block::decompress(&self.bytes, self.length as usize);
        crate::decode(&plain.map_err(|_| BodyError::Packed)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pages_are_packed_and_opened() {
        let page = FilesPage { layouts: vec![Layout::default(); 100], files: vec![], count: 7 };
        let packed = Packed::new(&page);
        assert!(packed.bytes.len() < crate::encode(&page).len() / 4);
        assert_eq!(packed.open::<FilesPage>().unwrap(), page);
    }

    #[test]
    fn what_cannot_be_meant_takes_no_memory() {
        let packed = Packed { length: u32::MAX, bytes: vec![0; 10] };
        assert!(matches!(packed.open::<FilesPage>(), Err(BodyError::Packed)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_opened_or_refused(
            length in 0u32..100_000,
            bytes in prop::collection::vec(any::<u8>(), 0..300)
        ) {
            // An error or a page: either will do.
            let _ = Packed { length, bytes }.open::<TreePage>();
        }
    }
}
