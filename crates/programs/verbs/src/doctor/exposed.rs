//! The directories of pools that a server exposes: are they there, ours, and is there room?

use super::Findings;
use std::path::Path;
use tieline_format::map::FederationMap;
use tieline_serve::room::free_bytes;
use tieline_serve::settings::Plan;
use tieline_types::ByteSize;

/// Less than this, and the server soon keeps all of it free.
const FREE_MIN: u64 = 2 << 30;

pub fn look(plan: &Plan, map: &FederationMap, findings: &mut Findings) {
    for pool in map.exposed_pools() {
        let Some(exposure) = pool.exposed() else { continue };
        if !plan.osts.iter().any(|ost| ost.index == exposure.ost) {
            continue;
        }
        let (check, path) = (format!("exposed {}", pool.name), Path::new(&exposure.directory));
        if let Err(error) = tieline_exposed::look(path, &format!("{}.{}", map.fs, pool.name)) {
            let fix = format!("docs/exposed.md says what {} must be", path.display());
            findings.broken(&check, error.to_string(), fix);
            continue;
        }
        match rustix::fs::statvfs(path).map(|disk| free_bytes(&disk)) {
            Ok(free) if free < FREE_MIN => {
                let what = format!("{} has {} free", path.display(), ByteSize(free));
                findings.doubtful(&check, what, "make room: whole files of the pool lie there");
            }
            _ => findings.well(&check, path.display().to_string()),
        }
    }
}
