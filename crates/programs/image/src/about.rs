//! What an image says of itself, in `image.json` beside its files. It is written last: a folder
//! with it is an image, and whole.

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub const FILE: &str = "image.json";
pub const RAW: &str = "disk.raw";
pub const QCOW2: &str = "disk.qcow2";
pub const ROOT: &str = "root.tar";
pub const PACKAGES: &str = "packages.txt";
pub const KERNEL: &str = "vmlinuz";
/// Far more than it ever has.
const LENGTH_MAX: u64 = 1 << 20;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Of this file.
    pub format: u32,
    pub level: String,
    /// Of the program in it.
    pub tieline: String,
    pub suite: String,
    pub kernel: String,
    /// How many there are; `packages.txt` names them with their versions.
    pub packages: usize,
    /// Seconds since 1970, which every file in the root carries.
    pub epoch: u64,
    /// SHA-256 of each file beside this one.
    pub files: BTreeMap<String, String>,
}

impl About {
    pub const FORMAT: u32 = 1;

    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(FILE);
        let text = serde_json::to_vec_pretty(self)?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Of the image in a folder.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        let mut text = String::new();
        let file = File::open(&path).with_context(|| {
            let make = "make one with `tieline image build`";
            format!("there is no image in {}: {make}", folder.display())
        })?;
        file.take(LENGTH_MAX)
            .read_to_string(&mut text)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not in order", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let about: Self = serde_json::from_str(text)?;
        ensure!(about.format == Self::FORMAT, "format {} is of another build", about.format);
        Ok(about)
    }

    /// A file of the image, if it has it.
    pub fn file(&self, folder: &Path, name: &str) -> Option<PathBuf> {
        self.files.contains_key(name).then(|| folder.join(name))
    }
}

/// Whether a folder may be replaced by another image.
pub fn is_image(folder: &Path) -> bool {
    About::read(folder).is_ok()
}

/// SHA-256 of a file, as digits.
pub fn digest(path: &Path) -> anyhow::Result<String> {
    digits::<Sha256>(path).with_context(|| path.display().to_string())
}

/// A file's digest of this kind, as digits.
pub fn digits<D: Digest>(path: &Path) -> io::Result<String> {
    let (mut hash, mut file) = (D::new(), File::open(path)?);
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            break;
        }
        hash.update(piece.get(..read).unwrap_or_default());
    }
    let mut text = String::new();
    for byte in hash.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_image_says_is_read_again_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f"), "abc").unwrap();
        let sum = digest(&folder.path().join("f")).unwrap();
        assert!(sum.starts_with("ba7816bf8f01cfea"), "{sum}");
        let about = About {
            format: About::FORMAT,
            level: "client".to_owned(),
            tieline: "0".to_owned(),
            suite: "bookworm".to_owned(),
            kernel: "6".to_owned(),
            packages: 1,
            epoch: 1,
            files: [("f".to_owned(), sum)].into(),
        };
        assert!(!is_image(folder.path()));
        about.write(folder.path()).unwrap();
        assert_eq!(About::read(folder.path()).unwrap(), about);
        assert!(about.file(folder.path(), RAW).is_none());
        let newer = About { format: 2, ..about };
        newer.write(folder.path()).unwrap();
        let refused = format!("{:#}", About::read(folder.path()).unwrap_err());
        assert!(refused.contains("another build"), "{refused}");
    }
}
