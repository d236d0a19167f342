//! What programs opened, for whoever runs them after.

use crate::Record;
use minicbor::{Decode, Encode};
use tieline_types::{FileId, Time, Uid};

/// Programs that were in the tree below a directory, the one that was there last first. A hint:
/// nothing rests on it, and its files may be gone.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Bundles {
    #[n(0)]
    pub heads: Vec<BundleHead>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct BundleHead {
    /// Its record's.
    #[n(0)]
    pub number: u32,
    /// Who told of it first, for the share of places that is his. Nobody is told.
    #[n(1)]
    pub by: Uid,
    /// When, about.
    #[n(2)]
    pub used: Time,
    /// Files by which it is recognised.
    #[n(3)]
    pub signs: Vec<FileId>,
}

/// What a program opened in a tree, in the order of its first opens, and where it looked for names.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Bundle {
    #[n(0)]
    pub directories: Vec<BundleMember>,
    #[n(1)]
    pub files: Vec<BundleMember>,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct BundleMember {
    #[n(0)]
    pub id: FileId,
    /// So many runs since have not opened it.
    #[n(1)]
    pub missed: u8,
}

impl Record for Bundles {
    const VERSION: u8 = 1;
    const NAME: &'static str = "bundles";
}

impl Record for Bundle {
    const VERSION: u8 = 1;
    const NAME: &'static str = "bundle";
}
