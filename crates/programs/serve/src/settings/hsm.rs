//! What a site lets its server run for tape: which HSM scripts, and where whole files lie on their
//! way.

use super::Check;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Whole files on their way to tape and back lie there, unless it is said otherwise.
const SPOOL: &str = "tape";

/// The HSM scripts of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HsmSettings {
    /// The directory in which a pool's HSM script must lie to be run here.
    pub scripts: PathBuf,
    /// Where whole files lie on their way to tape and back, by default `tape` in the state
    /// directory: it needs room for the largest, times as many as are under way at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spool: Option<PathBuf>,
}

pub struct HsmPlan {
    /// `None`: none are run.
    pub scripts: Option<PathBuf>,
    pub spool: PathBuf,
}

impl HsmPlan {
    pub(super) fn of(settings: Option<&HsmSettings>, state: &Path, check: &mut Check) -> Self {
        let own = || state.join(SPOOL);
        let Some(HsmSettings { scripts, spool }) = settings else {
            return Self { scripts: None, spool: own() };
        };
        for (key, path) in [("hsm.scripts", Some(scripts)), ("hsm.spool", spool.as_ref())] {
            check.holds(path.is_none_or(|path| path.is_absolute()), key, || {
                let shown = path.map_or_else(String::new, |path| path.display().to_string());
                format!("`{shown}` is not an absolute path")
            });
        }
        Self { scripts: Some(scripts.clone()), spool: spool.clone().unwrap_or_else(own) }
    }
}
