//! How a file is to be read, as somebody pinned it: by the attribute `user.tieline.readmode` of the
//! file or of a directory above it, or for the whole mount.
//!
//! The nearest says: the file, its directory, and so on up, as far as directories are known here. A
//! file or directory without attributes costs nothing to ask; the list of one that has some is kept
//! under its lease.

use crate::shared::Shared;
use crate::{Error, Result};
use tieline_foresight::mode::ReadMode;
use tieline_types::{Attributes, Caller, ErrorKind, FileId};

pub(crate) const READ_MODE: &[u8] = b"user.tieline.readmode";
/// Directories above a file that are looked at.
const DEPTH_MAX: usize = 64;

/// Is it a value of the attribute?
pub(crate) fn check_read_mode(value: &[u8]) -> Result<()> {
    parse(value).map(drop)
}

fn parse(value: &[u8]) -> Result<ReadMode> {
    let wrong = |why: String| Error::local(ErrorKind::InvalidArgument, why);
    let word = std::str::from_utf8(value).map_err(|error| wrong(error.to_string()))?;
    // `setfattr` and scripts may leave a byte at the end.
    let word = word.trim_end_matches(['\0', '\n']);
    word.parse().map_err(|error| wrong(format!("user.tieline.readmode is {error}")))
}

impl Shared {
    /// How a file that is being opened is to be read.
    pub(crate) async fn read_mode(&self, caller: &Caller, file: &Attributes) -> ReadMode {
        if file.has_xattrs == Some(true)
            && let Some(mode) = self.own_read_mode(caller, file.id).await
        {
            return mode;
        }
        self.read_mode_above(caller, file.id).await
    }

    /// How it is to be read unless it says so itself.
    pub(crate) async fn read_mode_above(&self, caller: &Caller, file: FileId) -> ReadMode {
        let mut next = self.above(file);
        for _ in 0..DEPTH_MAX {
            let Some((id, has_xattrs)) = next else { break };
            if has_xattrs == Some(true)
                && let Some(mode) = self.own_read_mode(caller, id).await
            {
                return mode;
            }
            next = self.above(id);
        }
        self.settings.read_mode
    }

    /// The directory that something is in, and whether it has attributes.
    fn above(&self, id: FileId) -> Option<(FileId, Option<bool>)> {
        if id == self.root {
            return None;
        }
        let mut tables = self.cache.lock();
        let parent = tables.parent_of(id)?;
        let known = tables.attributes(parent);
        Some((parent, known.and_then(|known| known.attributes.has_xattrs)))
    }

    async fn own_read_mode(&self, caller: &Caller, id: FileId) -> Option<ReadMode> {
        let known = self.cache.lock().xattrs(id).map(|known| known.list);
        let list = match known {
            Some(list) => list,
            None => match self.fetch_xattrs(caller, id).await {
                Ok(list) => list,
                Err(error) => {
                    tracing::debug!(file = %id, %error, "how it is to be read is not known");
                    return None;
                }
            },
        };
        let found = list.into_iter().find(|xattr| xattr.name.as_bytes() == READ_MODE)?;
        parse(&found.value).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_invalid() {
        assert_eq!(parse(b"readbuf:512k\0").unwrap(), ReadMode::ReadBuffer(512 << 10));
        for wrong in [&b""[..], b"fast", b"readbuf:9", b"\xff"] {
            assert_eq!(parse(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}
