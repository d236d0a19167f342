//! What can go wrong with a script, and whether another try may help.

use std::path::PathBuf;
use std::time::Duration;
use tieline_types::ErrorKind;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "this server runs no HSM scripts, so not {script}: name their directory in its settings, \
         as [hsm] scripts"
    )]
    NoneAllowed { script: String },
    #[error("{} is not there: {source}", .path.display())]
    Missing { path: PathBuf, source: std::io::Error },
    #[error(
        "{script} is not in {}, the directory of HSM scripts in this server's settings",
        .directory.display()
    )]
    Elsewhere { script: String, directory: PathBuf },
    #[error("{} is no program: chmod 755 it", .path.display())]
    NoProgram { path: PathBuf },
    #[error(
        "{} may be written by others, or belongs to neither root nor this server's user: chmod \
         755 and chown it",
        .path.display()
    )]
    Writable { path: PathBuf },
    #[error("{} cannot be started: {source}", .path.display())]
    Start { path: PathBuf, source: std::io::Error },
    #[error("{} ran for more than {} s and was killed", .path.display(), .time.as_secs())]
    Late { path: PathBuf, time: Duration },
    #[error("{} printed more than {limit} bytes and was killed", .path.display())]
    Talks { path: PathBuf, limit: usize },
    #[error("{} ended with {end}{said}", .path.display())]
    Failed { path: PathBuf, code: Option<i32>, end: String, said: String },
    #[error("the script printed no URI such as osm://instance/?bfid=7, but {0}")]
    NoUri(String),
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoneAllowed { .. } | Self::Elsewhere { .. } | Self::Writable { .. } => {
                ErrorKind::NotPermitted
            }
            Self::Missing { .. } | Self::NoProgram { .. } => ErrorKind::NotFound,
            Self::Late { .. } => ErrorKind::Timeout,
            Self::Failed { code: Some(41), .. } => ErrorKind::NoSpace,
            Self::Start { .. } | Self::Talks { .. } | Self::Failed { .. } | Self::NoUri(_) => {
                ErrorKind::StorageFault
            }
        }
    }

    /// Did the script say that trying again is of no use? dCache takes 30 to 39 so.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Failed { code: Some(30..=39), .. })
    }
}

/// What an exit status means to dCache, for people.
pub(crate) fn meaning(code: i32) -> &'static str {
    match code {
        30..=39 => " (not to be tried again)",
        41 => " (no space left on device)",
        42 => " (disk read error)",
        43 => " (disk write error)",
        _ => "",
    }
}
