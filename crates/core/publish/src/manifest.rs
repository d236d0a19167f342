//! `.cvmfspublished`: the one file of a repository that changes in its place.

use crate::hash;
use std::time::Duration;
use tieline_types::{Digest, RepositoryName};

pub const FILE: &str = ".cvmfspublished";

/// Manifests that say nothing have this.
pub const TTL_DEFAULT: Duration = Duration::from_secs(240);
/// Neither is one asked for more often than this, whatever it says, nor more seldom.
const TTL_LEAST: Duration = Duration::from_secs(1);
const TTL_MOST: Duration = Duration::from_secs(24 * 3600);

/// What it says, as far as it matters here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    pub catalog: Digest,
    /// Of the root catalog, unpacked.
    pub catalog_size: Option<u64>,
    /// How long it holds.
    pub ttl: Duration,
    pub revision: u64,
    pub repository: Option<RepositoryName>,
    pub certificate: Option<Digest>,
    pub history: Option<Digest>,
    /// When it was published, in seconds since 1970.
    pub published: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("line `{0}` of it cannot be")]
    Line(String),
    #[error("it has no line `{0}`")]
    Missing(char),
}

impl Manifest {
    /// Of the text whose seal was looked at.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        let (mut catalog, mut catalog_size, mut ttl, mut revision) = (None, None, None, None);
        let (mut repository, mut certificate, mut history) = (None, None, None);
        let (mut root, mut published) = (None, 0);
        for line in text.lines() {
            let wrong = || ManifestError::Line(line.chars().take(80).collect());
            let mut letters = line.chars();
            let Some(key) = letters.next() else { continue };
            let value = letters.as_str();
            let number = || value.parse::<u64>().map_err(|_| wrong());
            let digest = || hash::parse(value).ok_or_else(wrong);
            match key {
                'C' => catalog = Some(digest()?),
                'B' => catalog_size = Some(number()?).filter(|&size| size > 0),
                'R' => root = Some(value),
                'D' => ttl = Some(number()?),
                'S' => revision = Some(number()?),
                'N' => repository = Some(value.parse().map_err(|_| wrong())?),
                'X' => certificate = Some(digest()?),
                'H' => history = Some(digest()?),
                'T' => published = number()?,
                _ => {}
            }
        }
        if root.ok_or(ManifestError::Missing('R'))? != hash::root_path() {
            return Err(ManifestError::Line(format!("R{}", root.unwrap_or_default())));
        }
        let ttl = Duration::from_secs(ttl.ok_or(ManifestError::Missing('D'))?);
        let ttl = if ttl.is_zero() { TTL_DEFAULT } else { ttl.clamp(TTL_LEAST, TTL_MOST) };
        Ok(Self {
            catalog: catalog.ok_or(ManifestError::Missing('C'))?,
            catalog_size,
            ttl,
            revision: revision.ok_or(ManifestError::Missing('S'))?,
            repository,
            certificate,
            history,
            published,
        })
    }

    /// The text to be sealed.
    pub fn text(&self) -> String {
        let line = |key: char, value: Option<String>| {
            value.map_or_else(String::new, |value| format!("{key}{value}\n"))
        };
        [
            line('C', Some(hash::text(&self.catalog))),
            line('B', self.catalog_size.map(|size| size.to_string())),
            line('R', Some(hash::root_path())),
            line('D', Some(self.ttl.as_secs().to_string())),
            line('S', Some(self.revision.to_string())),
            line('G', Some("no".into())),
            line('A', Some("no".into())),
            line('N', self.repository.as_ref().map(|name| name.to_string())),
            line('X', self.certificate.as_ref().map(hash::text)),
            line('H', self.history.as_ref().map(hash::text)),
            line('T', Some(self.published.to_string())),
        ]
        .concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78";

    #[test]
    fn what_is_written_is_read() {
        let digest = hash::parse(HASH);
        let manifest = Manifest {
            catalog: digest.unwrap(),
            catalog_size: Some(4096),
            ttl: Duration::from_secs(3),
            revision: 7,
            repository: "sw.example.org".parse().ok(),
            certificate: digest,
            history: digest,
            published: 1_700_000_000,
        };
        assert_eq!(Manifest::parse(&manifest.text()), Ok(manifest));
    }

    #[test]
    fn lines_may_be_unknown_but_not_wrong_or_missing() {
        let root = hash::root_path();
        let good = format!("Zx\n\nC{HASH}\nR{root}\nD0\nS3\n");
        assert_eq!(Manifest::parse(&good).unwrap().ttl, TTL_DEFAULT);
        let missing = good.replace("S3\n", "");
        assert_eq!(Manifest::parse(&missing), Err(ManifestError::Missing('S')));
        for (from, to) in [("S3", "S-3"), (HASH, "C"), (&root, HASH), ("D0", "Dx")] {
            let wrong = good.replace(from, to);
            assert!(matches!(Manifest::parse(&wrong), Err(ManifestError::Line(_))), "{wrong}");
        }
    }
}
