//! Which bytes a file has: a word that changes with them, for caches that ask whether theirs are
//! still right (an ETag).
//!
//! It tells of bytes alone: names, owners, times and where the bytes lie may change under it.
//!
//! Invariant: of two files, or of one file with other bytes, it is never the same.

use crate::{FileId, Version};
use std::fmt;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContentVersion {
    pub file: FileId,
    /// The commit that last changed the bytes.
    pub commit: Version,
}

/// Letters, digits and `-`: what stands between the quotes of an ETag.
impl fmt::Display for ContentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.file.0, self.commit.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_word_for_an_etag() {
        let version = ContentVersion { file: FileId(0x1_0000_0000_002a), commit: Version(255) };
        assert_eq!(version.to_string(), "100000000002a-ff");
    }
}
