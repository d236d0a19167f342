//! What a catalog says of how much is in it, and below it.

use crate::row::Row;
use tieline_types::FileKind;

pub const NAMES: [&str; 12] = [
    "regular",
    "symlink",
    "special",
    "dir",
    "nested",
    "chunked",
    "chunks",
    "file_size",
    "chunked_size",
    "xattr",
    "external",
    "external_file_size",
];

/// In the order of [`NAMES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters(pub [u64; NAMES.len()]);

impl Counters {
    fn of(&mut self, name: &str) -> &mut u64 {
        let at = NAMES.iter().position(|known| *known == name).unwrap_or_default();
        &mut self.0[at]
    }

    /// Takes in a row, and how many pieces it has.
    pub fn count(&mut self, row: &Row, pieces: usize) {
        *self.of("xattr") += u64::from(!row.xattrs.is_empty());
        match row.kind {
            FileKind::Directory => *self.of("dir") += 1,
            FileKind::Symlink => *self.of("symlink") += 1,
            FileKind::Regular => {
                *self.of("regular") += 1;
                *self.of("file_size") += row.size;
                if row.is_chunked {
                    *self.of("chunked") += 1;
                    *self.of("chunked_size") += row.size;
                    *self.of("chunks") += pieces as u64;
                }
            }
            _ => *self.of("special") += 1,
        }
    }

    /// A catalog is nested in this one.
    pub fn nest(&mut self) {
        *self.of("nested") += 1;
    }

    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own += other);
    }

    pub fn get(&self, name: &str) -> u64 {
        let mut copy = *self;
        *copy.of(name)
    }
}
