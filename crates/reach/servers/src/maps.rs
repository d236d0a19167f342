//! The newest map that a server has.

use crate::server::Server;
use crate::{Error, Result, Servers};
use std::time::Duration;
use tieline_format::Record;
use tieline_format::map::SignedMap;
use tieline_types::{Caller, ErrorKind, MdtIndex};
use tieline_wire::federation::GetMap;
use tieline_world::Bulk;
use tokio::time::Instant;

/// A map comes from any server; one that is slow to give it is not worth waiting for.
const MAP_PATIENCE: Duration = Duration::from_secs(10);

impl Servers {
    /// Fetches the map from an MDT's server.
    pub async fn refresh(&self, mdt: MdtIndex) -> Result<()> {
        let server = self.mds(mdt)?;
        self.look_for_map(&server).await.map(drop)
    }

    /// Fetches the map from `server`; says whether it is newer than ours.
    pub(crate) async fn look_for_map(&self, server: &Server) -> Result<bool> {
        let _one = self.looking.lock().await;
        let before = self.map.current();
        let deadline = Instant::now() + MAP_PATIENCE;
        let asked = self.once(server, &Caller::root(), GetMap {}, Bulk::Empty, deadline).await?;
        let unreadable = |_| Error::local(ErrorKind::Protocol, "federation map of a server");
        let signed = SignedMap::from_bytes(&asked.0.signed).map_err(unreadable)?;
        let untrusted = |error| {
            let what = format!("federation map of {}: {error}", server.addresses.join(", "));
            Error::local(ErrorKind::Unauthenticated, what)
        };
        self.map.offer(signed).map_err(untrusted)?;
        let now = self.map.current();
        let is_newer = now.map.version > before.map.version;
        if let Some(hearer) = self.hearer.upgrade().filter(|_| is_newer) {
            hearer.map_changed(&before.map, &now.map);
        }
        Ok(is_newer)
    }

    /// Looks for a newer map at `server`, else at whoever answers.
    pub(crate) async fn look_around(&self, server: &Server) -> bool {
        if let Ok(is_newer) = self.look_for_map(server).await {
            return is_newer;
        }
        let others: Vec<_> = self.lock().values().cloned().collect();
        for other in others.iter().filter(|other| other.number != server.number) {
            if let Ok(is_newer) = self.look_for_map(other).await {
                return is_newer;
            }
        }
        false
    }
}
