//! What can be in the way in an exposed directory.

use rustix::io::Errno;
use std::path::{Path, PathBuf};
use tieline_types::{ByteSize, ErrorKind, Name, Shown};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} is not there: make it, or mount its disk", .0.display())]
    Absent(PathBuf),
    #[error("{} is no directory", .0.display())]
    NoDirectory(PathBuf),
    #[error(
        "{} does not carry the mark of what was exposed there: is its disk mounted? If the \
         directory was replaced on purpose, say `tieline pool set POOL --no-expose`, then \
         `--expose` again", .0.display()
    )]
    Unmarked(PathBuf),
    #[error("{} belongs to {owner}: choose another directory", .path.display())]
    Foreign { path: PathBuf, owner: String },
    #[error("{} is not empty: choose an empty directory", .0.display())]
    NotEmpty(PathBuf),
    #[error("{} is a place of the system: choose a directory made for this", .0.display())]
    System(PathBuf),
    #[error("{} may be written by others (mode {mode:o}): chmod go-w it", .path.display())]
    Loose { path: PathBuf, mode: u32 },
    #[error("{} has {free} free, and the file needs {needed}", .path.display())]
    NoRoom { path: PathBuf, free: ByteSize, needed: ByteSize },
    #[error("`{}` differs from another name there by case only, for its file system", Shown(.0))]
    Case(Vec<u8>),
    #[error("`{}` is in the way: a directory that is not ours", Shown(.0))]
    InTheWay(Vec<u8>),
    #[error("`{}` is not there", Shown(.0))]
    Missing(Vec<u8>),
    #[error("cannot {what} `{}`", Shown(.path))]
    Failed { what: &'static str, path: Vec<u8>, source: Errno },
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Absent(_) | Self::Missing(_) => ErrorKind::NotFound,
            Self::NoDirectory(_) => ErrorKind::NotDirectory,
            Self::Unmarked(_) | Self::Foreign { .. } | Self::System(_) | Self::Loose { .. } => {
                ErrorKind::NotPermitted
            }
            Self::NotEmpty(_) | Self::InTheWay(_) => ErrorKind::NotEmpty,
            Self::NoRoom { .. } => ErrorKind::NoSpace,
            Self::Case(_) => ErrorKind::Exists,
            Self::Failed { source: Errno::NOSPC | Errno::DQUOT, .. } => ErrorKind::NoSpace,
            Self::Failed { source: Errno::NAMETOOLONG, .. } => ErrorKind::NameTooLong,
            Self::Failed { .. } => ErrorKind::StorageFault,
        }
    }
}

/// Something failed at a path below the directory.
pub fn failed(what: &'static str, path: &[Name]) -> impl FnOnce(Errno) -> Error {
    let path = shown(path);
    move |source| match source {
        Errno::NOENT => Error::Missing(path),
        source => Error::Failed { what, path, source },
    }
}

/// The same of the directory itself.
pub fn failed_at(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> Error {
    let path = path.as_os_str().as_encoded_bytes().to_vec();
    move |source| Error::Failed { what, path, source }
}

pub fn shown(path: &[Name]) -> Vec<u8> {
    path.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/')
}
