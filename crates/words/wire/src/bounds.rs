//! How many elements the arrays of messages have at most, where several messages have such.
//!
//! What is bounded here are lengths: `tieline_types::bounded` says how. No room makes a longer one,
//! and whoever is sent one refuses the message before it has read the first element.

use crate::frame::FrameHeader;

/// Names in a page of a directory, objects in one of an OST, and files that lost their names.
pub const ENTRIES_MAX: usize = 4096;
/// Extents that a request replaces, or that are asked for.
pub const EXTENTS_MAX: usize = 1024;
/// What a page of extents holds: those asked for, and what they are cut into.
pub const PAGE_MAX: usize = 4096;
/// OSTs are numbered by 16 bits, and so are MDTs.
pub const OSTS_MAX: usize = 1 << 16;
pub const MDTS_MAX: usize = 1 << 16;
/// Lease units that one reply grants: of a tree's directories, and of what they were asked for.
pub const UNITS_MAX: usize = 16_384;
/// Names that one change may be about: those of a file, or two for each item of a batch.
pub const NAMES_MAX: usize = 1 << 16;
/// Files that one notice asks for.
pub const FILES_MAX: usize = 1 << 16;
/// Directories that one notice asks for beside another.
pub const BESIDE_MAX: usize = 1024;
/// Extended attributes of a file.
pub const XATTRS_MAX: usize = 4096;
/// Checks of 4 KiB blocks, beside the most bytes that one frame carries.
pub const CHECKS_MAX: usize = FrameHeader::BULK_MAX as usize / 4096;
/// Where a server or a repository is reached.
pub const ADDRESSES_MAX: usize = 64;
/// Components of a path.
pub const DEPTH_MAX: usize = 2048;
