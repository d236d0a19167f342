//! The door at its federation: its own key, the newest map, files with caches, and those for whom
//! it speaks.

use crate::settings::Plan;
use anyhow::{Context, bail};
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::{Guard, MapCell};
use tieline_base::contact::Contact;
use tieline_base::dialing::real_world;
use tieline_base::repositories;
use tieline_client::{AccessTimes, Operator, Parts, Settings, Volume};
use tieline_files::{Files, Paths};
use tieline_people::visitors::Spoken;
use tieline_servers::Delegations;
use tieline_types::{FileId, MdtIndex};
use tieline_world::World;

/// One try to fetch the map; tries go on until it is there.
const FETCH_PATIENCE: Duration = Duration::from_secs(10);
const FETCH_PAUSE: Duration = Duration::from_secs(2);

/// What a door has of its federation.
pub struct Federation {
    pub world: World,
    pub volume: Arc<Volume>,
    pub paths: Paths,
    pub visitors: Arc<Spoken>,
}

impl Federation {
    /// Meets the federation, as soon as one of its servers can be reached.
    pub async fn meet(plan: &Plan) -> anyhow::Result<Self> {
        let description = description();
        let guard: Arc<Guard> = plan.proving.guard();
        let (world, dialer, rule) = real_world(&guard);
        let contact = Contact {
            world: world.clone(),
            dialer: dialer.clone(),
            fs: plan.fs.clone(),
            addresses: plan.root.clone(),
            rule,
            description: description.clone(),
            patience: FETCH_PATIENCE,
        };
        let map = first_map(&contact, plan).await?;
        guard.follow(&map);
        check(&map, plan)?;
        let (dialer, published) = repositories::beside(dialer, &map, &world);
        let origin = map.current().origin();
        let scope = (&plan.fs, &origin);
        let sec = plan.proving.sec.as_deref();
        let (mut near, missing) = plan.near.open(&world, &map, scope, sec, true).await?;
        missing.iter().for_each(|why| tracing::warn!("{why}"));
        near.further.push(published);
        let settings = Settings {
            wait: plan.wait,
            read_bytes_max: usize::try_from(plan.memory).unwrap_or(usize::MAX),
            // Clients of a door have no cache of the kernel between them and us.
            spent_bytes_max: usize::try_from(plan.memory / 2).unwrap_or(usize::MAX),
            warms: true,
            access_times: AccessTimes::Never,
            description,
            ..Settings::default()
        };
        let root = FileId::root_of(MdtIndex(0));
        let parts = Parts { world: world.clone(), dialer, map, root, rule, near, spool: None };
        let volume = Volume::new(parts, settings);
        let delegations = Delegations::new(&world);
        let visitors = Spoken::new(volume.servers().clone(), delegations, plan.principal.clone());
        let files: Arc<dyn Files> = volume.clone();
        // Absolute links that were made on a mount at the conventional place.
        let paths = Paths::new(files).leading_in(format!("/{}", plan.fs), "");
        Ok(Self { world, volume, paths, visitors })
    }

    /// Gives back what servers hold for it.
    pub async fn leave(&self, patience: Duration) {
        self.volume.close(patience).await;
    }

    /// What is wrong with the map as it is now: nobody can be spoken for. It may change any time.
    pub fn trouble(&self, principal: &str) -> Option<String> {
        let map = self.volume.map();
        let doors = map.security.as_ref().and_then(|security| security.doors.as_deref());
        let is_door = doors.unwrap_or_default().iter().any(|door| door.principal == principal);
        (!is_door).then(|| {
            format!(
                "the federation map does not name {principal} as a door, so nobody can be \
                 served: an administrator runs `tieline door add {principal} --tickets-for \
                 SERVICE/HOST@REALM`"
            )
        })
    }
}

fn description() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("door on {host} (pid {})", std::process::id())
}

async fn first_map(contact: &Contact, plan: &Plan) -> anyhow::Result<MapCell> {
    loop {
        match contact.believe(Some(plan.verifier.clone())).await {
            Ok((map, _)) => return Ok(map),
            Err(error) if tieline_base::report::kind(&error).is_some() => {
                let error = tieline_base::report::chain(error.as_ref());
                tracing::warn!(%error, "waiting for the federation map");
                tokio::time::sleep(FETCH_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What no waiting mends.
fn check(map: &MapCell, plan: &Plan) -> anyhow::Result<()> {
    let current = map.current();
    if current.map.security.is_none() {
        bail!(
            "/{} proves nobody (its map has no [security]), so a door could speak for nobody: see \
             docs/security.md, section 9",
            plan.fs
        );
    }
    plan.near.check_osts(&current.map).context("cache")
}
