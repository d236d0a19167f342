//! `[http]`: repositories for everybody who can reach a port.

use super::Check;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Repositories that a server serves over HTTP.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSettings {
    /// `HOST:PORT` for everybody; port 0 takes a free one. Nothing is encrypted, and nothing needs
    /// to be: what is read is signed.
    #[serde(default = "listen_default")]
    pub listen: String,
    /// Directory with a directory for each repository, named by its FQRN: served as
    /// `http://HOST:PORT/cvmfs/FQRN`.
    pub repositories: PathBuf,
}

fn listen_default() -> String {
    "0.0.0.0:8000".to_owned()
}

/// The same, if it holds.
pub struct HttpPlan {
    pub listen: String,
    pub repositories: PathBuf,
}

impl HttpSettings {
    pub(super) fn validate(&self, check: &mut Check) -> HttpPlan {
        check.address("http.listen", &self.listen);
        check.holds(self.repositories.is_absolute(), "http.repositories", || {
            format!("`{}` is not an absolute path", self.repositories.display())
        });
        HttpPlan { listen: self.listen.clone(), repositories: self.repositories.clone() }
    }
}
