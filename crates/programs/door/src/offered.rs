//! What a protocol is given to serve with, and what is asked of it while it serves.

use crate::federation::Federation;
use crate::settings::Plan;
use std::sync::Arc;
use std::time::Duration;
use tieline_files::Paths;
use tieline_people::visitors::Visitors;
use tieline_types::FsName;
use tieline_world::World;

/// What every protocol gets.
#[derive(Clone)]
pub struct Offered {
    pub world: World,
    pub fs: FsName,
    /// From paths to files, for whoever was met.
    pub paths: Paths,
    /// Who comes, as MDSs judge him by what he sent.
    pub visitors: Arc<dyn Visitors>,
}

/// A protocol that listens. Dropped, it ends what is under way.
#[async_trait::async_trait]
pub trait Face: Send + Sync {
    /// For people: `root://`.
    fn protocol(&self) -> &'static str;

    /// `HOST:PORT` with the port that was chosen.
    fn address(&self) -> String;

    /// Takes nobody any more, and gives those who are here `patience` for the answers they wait
    /// for. True if all came to their end.
    async fn stop(self: Box<Self>, patience: Duration) -> bool;
}

/// Begins to listen for all protocols that the settings name.
pub async fn open(plan: &Plan, federation: &Federation) -> anyhow::Result<Vec<Box<dyn Face>>> {
    let offered = Offered {
        world: federation.world.clone(),
        fs: plan.fs.clone(),
        paths: federation.paths.clone(),
        visitors: federation.visitors.clone(),
    };
    let mut faces: Vec<Box<dyn Face>> = Vec::new();
    if let Some(xrootd) = &plan.xrootd {
        faces.push(xrootd.open(offered.clone()).await?);
    }
    if let Some(https) = &plan.https {
        faces.push(https.open(offered.clone()).await?);
    }
    Ok(faces)
}
