//! Who we are to a store: an access key and its secret, from a file or given once.
//!
//! A file is read again when it changes, so that keys can be replaced while the server runs. It has
//! the two or three lines that tools of S3 write (`aws_access_key_id = …`), with or without a
//! section's head; of several sections the first counts.
//!
//! Invariant: a secret is in no message and no log.

use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// More than any such file has.
const FILE_MAX: u64 = 64 << 10;

/// Where access key and secret are.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Nobody but its owner may read it.
    File(PathBuf),
    /// Kept by the service manager, which lets nobody else read it.
    Entrusted(PathBuf),
    Given(Keys),
}

/// An access key.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Credentials {
    /// For messages.
    pub fn describe(&self) -> String {
        match self {
            Self::File(path) | Self::Entrusted(path) => path.display().to_string(),
            Self::Given(keys) => format!("access key {} of the environment", keys.id),
        }
    }

    /// What they are now; else what is wrong.
    pub fn read(&self) -> Result<Keys, String> {
        let path = match self {
            Self::Given(keys) => return Ok(keys.clone()),
            Self::File(path) | Self::Entrusted(path) => path,
        };
        let shown = path.display();
        let cannot = |error: std::io::Error| format!("cannot read {shown}: {error}");
        let metadata = std::fs::metadata(path).map_err(cannot)?;
        if matches!(self, Self::File(_)) && metadata.mode() & 0o077 != 0 {
            return Err(format!("{shown} can be read by others: chmod 600 it"));
        }
        if metadata.len() > FILE_MAX {
            return Err(format!("{shown} is larger than a file with an access key is"));
        }
        let text = std::fs::read_to_string(path).map_err(cannot)?;
        parse(&text).map_err(|lacks| {
            format!(
                "{shown} has no {lacks}: write `access_key_id = …` and `secret_access_key = …`, \
                 a line each"
            )
        })
    }
}

/// The keys in a file's text, or which of them is missing.
pub fn parse(text: &str) -> Result<Keys, &'static str> {
    let find = |wanted: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once('='));
        let found = fields.find(|(name, _)| {
            let name = name.trim().to_ascii_lowercase();
            name.strip_prefix("aws_").unwrap_or(&name) == wanted
        });
        let value = found.map(|(_, value)| value.trim().trim_matches('"').to_owned());
        value.filter(|value| !value.is_empty())
    };
    Ok(Keys {
        id: find("access_key_id").ok_or("access_key_id")?,
        secret: find("secret_access_key").ok_or("secret_access_key")?,
        token: find("session_token"),
    })
}

/// Gives what is in a file now to whoever signs.
pub(crate) struct Provider {
    credentials: Credentials,
    last: Mutex<Option<(Stamp, Arc<AwsCredential>)>>,
}

/// By what a file is known not to have changed.
type Stamp = (u64, u64, i64, i64);

impl Provider {
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, last: Mutex::default() }
    }

    fn stamp(&self) -> Option<Stamp> {
        let path: &Path = match &self.credentials {
            Credentials::Given(_) => return Some((0, 0, 0, 0)),
            Credentials::File(path) | Credentials::Entrusted(path) => path,
        };
        let file = std::fs::metadata(path).ok()?;
        Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
    }

    fn current(&self) -> Result<Arc<AwsCredential>, String> {
        let stamp = self.stamp();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, credential)) = &*last
            && stamp.is_none_or(|stamp| stamp == *known)
        {
            // A file that is being replaced may be away for a moment: what it held still counts.
            return Ok(credential.clone());
        }
        let Keys { id, secret, token } = self.credentials.read()?;
        let credential = Arc::new(AwsCredential { key_id: id, secret_key: secret, token });
        *last = stamp.map(|stamp| (stamp, credential.clone()));
        Ok(credential)
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.credentials.fmt(f)
    }
}

/// Why nothing can be signed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unread(pub String);

#[async_trait::async_trait]
impl CredentialProvider for Provider {
    type Credential = AwsCredential;

    /// A small file that is nearly always in memory is looked at: no thread is worth it.
    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.current().map_err(|why| object_store::Error::Generic {
            store: "S3",
            source: Box::new(Unread(why)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_of_other_tools_are_read_and_secrets_are_not_shown() {
        let text = "[default]\naws_access_key_id = AKIA1\naws_secret_access_key=s3cr=t/+\n\
                    aws_session_token = \"tok\"\n[other]\naws_access_key_id = AKIA2\n";
        let keys = parse(text).unwrap();
        assert_eq!((&*keys.id, &*keys.secret), ("AKIA1", "s3cr=t/+"));
        assert_eq!(keys.token.as_deref(), Some("tok"));
        assert!(!format!("{:?}", Credentials::Given(keys)).contains("s3cr"));
        assert_eq!(parse("access_key_id = a").err(), Some("secret_access_key"));
        assert_eq!(parse("").err(), Some("access_key_id"));
    }

    #[test]
    fn a_file_is_read_again_when_it_changes_and_only_if_it_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s3");
        let provider = Provider::new(Credentials::File(path.clone()));
        assert!(provider.current().unwrap_err().contains("cannot read"));
        write(&path, "access_key_id = one\nsecret_access_key = 1\n", 0o640);
        assert!(provider.current().unwrap_err().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(provider.current().unwrap().key_id, "one");
        write(&path, "access_key_id = second\nsecret_access_key = 2\n", 0o600);
        assert_eq!(provider.current().unwrap().key_id, "second");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(provider.current().unwrap().key_id, "second");
    }
}
