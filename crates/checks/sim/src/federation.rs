//! The hosts of a two-site federation: an MDS and an OSS at `uf` and at `fnal`, and any number of
//! clients.
//!
//! Stores live outside the hosts, so that a crashed host finds after its restart what was durable.
//! What a host only had in memory (sessions' connections, leases, caches) is gone.

use crate::outside;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::{Guard, MapCell, MapSigner, MapVerifier, Rule};
use tieline_blob::{ChunkStore, MemoryChunks};
use tieline_client::Volume;
use tieline_data::{Limits, TargetParts};
use tieline_format::map::{FederationMap, Junction, Mdt, Ost, Pool, SignedMap};
use tieline_kv::MemoryStore;
use tieline_net::session::{SessionDialer, SessionSettings};
use tieline_serve::audit::Audit;
use tieline_serve::maps::MapKeeper;
use tieline_serve::{MdtParts, Parts};
use tieline_telemetry::health::Health;
use tieline_types::{FileId, FsName, MdtIndex, OstIndex, PoolName, SiteName, Uid, Version};
use tieline_wire::Flavor;
use turmoil::Sim;

const PORT: u16 = 7640;
const SITES: [&str; 2] = ["uf", "fnal"];
/// Far more than a run writes.
const OST_BYTES: u64 = 1 << 30;
/// Short, so that runs see leases expire.
const LEASE: Duration = Duration::from_secs(5);
const RULE: Rule = Rule { flavor: Flavor::Null };

/// What survives crashes.
pub struct Federation {
    signer: [u8; 32],
    verifier: MapVerifier,
    signed: SignedMap,
    stores: Vec<Arc<MemoryStore>>,
    osts: Vec<Arc<MemoryChunks>>,
    seed: u64,
}

impl Federation {
    pub fn new(seed: u64) -> Self {
        let signer = [7; 32];
        let key = MapSigner::new(signer);
        Self {
            signer,
            verifier: key.verifier(),
            signed: key.sign(&map()),
            stores: SITES.iter().map(|_| Arc::new(MemoryStore::new())).collect(),
            osts: SITES.iter().map(|_| Arc::new(MemoryChunks::new(OST_BYTES))).collect(),
            seed,
        }
    }

    /// The names of all server hosts.
    pub fn servers() -> Vec<String> {
        SITES.iter().flat_map(|site| [format!("mds-{site}"), format!("oss-{site}")]).collect()
    }

    /// Adds the servers to a simulation. They may be crashed and bounced.
    pub fn add_servers(self: &Arc<Self>, sim: &mut Sim<'_>) {
        for (index, site) in SITES.iter().enumerate() {
            let federation = self.clone();
            sim.host(format!("mds-{site}"), move || federation.clone().serve(Role::Mds, index));
            let federation = self.clone();
            sim.host(format!("oss-{site}"), move || federation.clone().serve(Role::Oss, index));
        }
    }

    /// Every other seed lets clients decide by themselves what they hold alone.
    pub fn has_journals(&self) -> bool {
        !self.seed.is_multiple_of(2)
    }

    /// A client of its own on the host that calls this.
    pub fn client(&self, number: usize) -> Arc<Volume> {
        let host_seed = self.seed ^ (0x00c1_1e47 + number as u64);
        let world = outside::world(host_seed, wrong_by(host_seed));
        let settings = tieline_client::Settings {
            wait: Duration::from_secs(120),
            description: format!("client {number}"),
            journal: self.has_journals(),
            ..tieline_client::Settings::default()
        };
        let parts = tieline_client::Parts {
            dialer: Arc::new(SessionDialer {
                world: world.clone(),
                settings: SessionSettings::default(),
                guard: Guard::open(),
            }),
            world,
            map: self.cell(),
            root: FileId::root_of(MdtIndex(0)),
            rule: RULE,
            near: tieline_bytes::Near::default(),
            spool: None,
        };
        Volume::new(parts, settings)
    }

    /// How many objects the OSTs hold.
    pub async fn objects(&self) -> usize {
        let mut count = 0;
        for ost in &self.osts {
            let listed = ost.list(None, usize::MAX).await;
            count += listed.map_or(0, |listed| listed.chunks.len());
        }
        count
    }

    /// By how many seconds the clock of a site's servers is ahead of the truth.
    pub fn ahead_at(&self, site: usize) -> i64 {
        wrong_by(!self.seed ^ site as u64)
    }

    async fn serve(self: Arc<Self>, role: Role, index: usize) -> turmoil::Result {
        let site = SITES[index];
        // A restarted host throws other dice, or its sessions would have the numbers of before.
        let restarted = turmoil::sim_elapsed().unwrap_or_default().as_millis() as u64;
        let host_seed = self.seed ^ ((index as u64 + 1) << 8) ^ role as u64 ^ (restarted << 16);
        let world = outside::world(host_seed, self.ahead_at(index));
        let signer = (role == Role::Mds && index == 0).then(|| MapSigner::new(self.signer));
        let mdt = (role == Role::Mds).then(|| MdtParts {
            log: None,
            disks: None,
            settings: tieline_meta::Settings {
                mdt: MdtIndex(index as u16),
                lease: LEASE,
                freed_keep: Duration::from_secs(2),
                ..tieline_meta::Settings::default()
            },
            store: self.stores[index].clone(),
        });
        let mut osts = BTreeMap::new();
        if role == Role::Oss {
            let target = TargetParts {
                store: self.osts[index].clone(),
                limits: Limits::default(),
                adopted: None,
            };
            osts.insert(OstIndex(index as u16), target);
        }
        let parts = Parts {
            name: format!("{}-{site}", role.name()),
            fs: fs(),
            rule: RULE,
            dialer: Arc::new(SessionDialer {
                world: world.clone(),
                settings: SessionSettings::default(),
                guard: Guard::open(),
            }),
            map: MapKeeper::new(self.cell(), signer, None),
            mdt,
            osts,
            scripts: None,
            health: Health::default(),
            operator: Uid(0),
            guard: Guard::open(),
            identities: None,
            audit: Arc::new(Audit::new(String::new(), world.clone(), None)?),
            world: world.clone(),
        };
        let listener = world.transport.listen(&format!("0.0.0.0:{PORT}")).await?;
        let _running = tieline_serve::start(parts, listener).await?;
        // A server runs until the scenario crashes it.
        std::future::pending().await
    }

    fn cell(&self) -> MapCell {
        MapCell::new(self.verifier.clone(), self.signed.clone()).expect("the map is signed above")
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Mds = 1,
    Oss = 2,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Mds => "mds",
            Self::Oss => "oss",
        }
    }
}

/// Seconds, up to two hours ahead or behind.
fn wrong_by(seed: u64) -> i64 {
    const MOST: i64 = 7200;
    outside::SimDice::new(seed).below(2 * MOST as u64 + 1) as i64 - MOST
}

fn fs() -> FsName {
    "extenci".parse().expect("a file system's name")
}

fn map() -> FederationMap {
    let site = |index: usize| -> SiteName { SITES[index].parse().expect("a site's name") };
    let address = |role: Role, index: usize| format!("{}-{}:{PORT}", role.name(), SITES[index]);
    let pool = |index: usize| -> PoolName { SITES[index].parse().expect("a pool's name") };
    FederationMap {
        fs: fs(),
        version: Version(1),
        mdts: (0..SITES.len())
            .map(|index| Mdt {
                mdt: MdtIndex(index as u16),
                home: site(index),
                addresses: vec![address(Role::Mds, index)],
            })
            .collect(),
        junctions: vec![Junction {
            parent: FileId::root_of(MdtIndex(0)),
            name: "fnal".parse().expect("a name"),
            mdt: MdtIndex(1),
        }],
        osts: (0..SITES.len())
            .map(|index| Ost {
                ost: OstIndex(index as u16),
                site: site(index),
                addresses: vec![address(Role::Oss, index)],
                is_active: true,
            })
            .collect(),
        pools: (0..SITES.len())
            .map(|index| Pool {
                name: pool(index),
                osts: vec![OstIndex(index as u16)],
                exposure: None,
                hsm: None,
            })
            .collect(),
        security: None,
        invitations: None,
        repositories: None,
    }
}
