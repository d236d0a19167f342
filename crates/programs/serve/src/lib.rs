//! The server: an MDT, OSTs, or both, behind one port.
//!
//! [`settings`] is what the operator says, [`run`] opens what it names and waits for the signal to
//! stop. This file plugs the rooms together from [`Parts`], whether those are real or simulated:
//! the namespace ([`tieline_meta::Mdt`]) and the chunks ([`tieline_data::ChunkService`]) stand
//! behind one [`node::Node`], which the network serves.
//!
//! * [`node`]: greets sessions and hands each request to its room.
//! * [`capabilities`]: what the OSTs here believe of what clients show.
//! * [`identities`]: on whose behalf requests are made, and who may; [`audit`] keeps book of it.
//! * [`connections`]: which session is reached over which connection; recalls and notices leave
//!   through it.
//! * [`descriptors`]: how many of them may be connected, known or not.
//! * [`peers`]: channels to other servers; deletions, copies and questions after OSTs leave through
//!   it.
//! * [`tended`]: the MDT and its background work ([`tieline_tend::Tender`]), plugged together.
//! * [`published`]: repositories over HTTP, for who has no session.
//! * [`exposed`]: exposed pools here: who files are given to, and what MDSs ask.
//! * [`room`]: looks after the disks of the MDT's store.
//! * [`maps`]: the federation map: kept on disk, changed where its key is, followed elsewhere.
//!
//! Invariants: nothing is served before the map and the store are open; a server that is cut off
//! serves what it holds.

pub mod audit;
mod batches;
mod capabilities;
mod connections;
mod descriptors;
mod edits;
mod exposed;
mod identities;
pub mod maps;
mod node;
mod osts;
mod peers;
mod published;
mod reports;
pub mod room;
pub mod run;
pub mod settings;
mod tended;

use crate::audit::Audit;
use crate::capabilities::Capabilities;
use crate::connections::Connections;
use crate::edits::Edits;
use crate::identities::Identities;
use crate::maps::MapKeeper;
use crate::node::Node;
use crate::peers::Peers;
use crate::reports::Reports;
use crate::room::Disks;
use crate::tended::{TapeDrivers, TendedMdt};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::{Guard, Rule};
use tieline_data::{ChunkService, TapeService, TargetParts};
use tieline_hsm::Scripts;
use tieline_kv::Store;
use tieline_ledger::log::Log;
use tieline_meta::Mdt;
use tieline_net::{Dialer, Server};
use tieline_telemetry::health::Health;
use tieline_tend::{Exposures, Mirrors, Tender};
use tieline_types::{FsName, MdtIndex, OstIndex, Uid};
use tieline_wire::Notice;
use tieline_world::{Listener, World};
use tokio::task::JoinHandle;

/// How often OSSs are asked how their OSTs are.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// How often a server looks whether its metadata store ended.
const LOOK_AFTER_STORE: Duration = Duration::from_millis(200);

/// Longest wait for connections to end.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// What a server is made of.
pub struct Parts {
    /// For people: `mds-uf`.
    pub name: String,
    pub fs: FsName,
    pub rule: Rule,
    /// Proves this server, and judges who comes.
    pub guard: Arc<Guard>,
    pub world: World,
    pub dialer: Arc<dyn Dialer>,
    pub map: Arc<MapKeeper>,
    pub mdt: Option<MdtParts>,
    pub osts: BTreeMap<OstIndex, TargetParts>,
    /// Those that its site lets it run for tape.
    pub scripts: Option<Scripts>,
    pub health: Health,
    /// Who may change the federation map, beside root.
    pub operator: Uid,
    /// Where a copy of the table of identities is kept.
    pub identities: Option<PathBuf>,
    pub audit: Arc<Audit>,
}

/// The MDT of a server.
pub struct MdtParts {
    pub settings: tieline_meta::Settings,
    pub store: Arc<dyn Store>,
    /// The store's journal, if it keeps one.
    pub log: Option<Arc<Log>>,
    /// Where the store is, if its disks are this server's to look after.
    pub disks: Option<Disks>,
}

/// A server at work. Dropping it stops it where it stands.
pub struct Running {
    server: Server,
    mdt: Option<Arc<Mdt>>,
    peers: Arc<Peers>,
    tape: Option<Arc<TapeService>>,
    tasks: Vec<JoinHandle<()>>,
    /// Serves as long as this does.
    published: Option<tieline_http::server::Server>,
}

/// Starts a server on a port that is already open.
pub async fn start(
    parts: Parts,
    listener: Box<dyn Listener>,
) -> Result<Running, tieline_meta::StartError> {
    parts.guard.follow(parts.map.cell());
    let connections = Arc::new(Connections::default());
    let own = parts.osts.keys().copied().collect();
    let chunks = (!parts.osts.is_empty()).then(|| {
        // Another number each time.
        ChunkService::new(parts.osts, parts.world.random())
    });
    let tape = chunks.clone().zip(parts.scripts).and_then(|(chunks, scripts)| {
        let spool = scripts.spool().display().to_string();
        let made = TapeService::new(chunks, scripts);
        made.inspect_err(|error| tracing::error!(spool, %error, "nothing goes to tape here")).ok()
    });
    let peers = Arc::new(Peers::new(peers::Parts {
        name: parts.name.clone(),
        fs: parts.fs.clone(),
        rule: parts.rule,
        world: parts.world.clone(),
        dialer: parts.dialer,
        map: parts.map.cell().clone(),
        role: if parts.mdt.is_some() {
            tieline_wire::PeerRole::Mds
        } else {
            tieline_wire::PeerRole::Oss
        },
        own,
        chunks: chunks.clone(),
    }));
    let watched = parts.mdt.as_ref().and_then(|mdt| Some((mdt.disks.clone()?, mdt.store.clone())));
    let mdt_index = parts.mdt.as_ref().map(|mdt| mdt.settings.mdt);
    let (mdt, tender) = match parts.mdt {
        Some(MdtParts { settings, store, log, disks }) => {
            let first = match &disks {
                Some(disks) => room::look(disks, &store).await,
                None => None,
            };
            let (mirrors, exposures) = (Arc::<Mirrors>::default(), Arc::<Exposures>::default());
            let (index, tending) = (settings.mdt, tended::settings(&settings));
            let mdt_parts = tieline_meta::Parts {
                store: store.clone(),
                world: parts.world.clone(),
                map: parts.map.cell().clone(),
                recaller: connections.clone(),
                copies: Arc::new(tended::Copies(mirrors.clone())),
                exposer: Arc::new(tended::Exposed(exposures.clone())),
                limits: peers.clone(),
                log: log.clone(),
            };
            let mdt = Mdt::start(mdt_parts, settings).await?;
            // Before anything runs that would write.
            if let Some(room) = first {
                mdt.begin_with_room(room);
            }
            mdt.tell_hidden().await;
            let tender = Tender::new(tieline_tend::Parts {
                mdt: Arc::new(TendedMdt(mdt.clone())),
                index,
                settings: tending,
                store,
                world: parts.world.clone(),
                map: parts.map.cell().clone(),
                log,
                objects: peers.clone(),
                mender: peers.clone(),
                tape: Arc::new(TapeDrivers { own: tape.clone(), peers: peers.clone() }),
                mirrors,
                exposed: peers.clone(),
                exposures,
            });
            (Some(mdt), Some(Arc::new(tender)))
        }
        None => (None, None),
    };
    let own_mdt = mdt_index.zip(mdt.clone());
    let capabilities = Capabilities::new(parts.map.cell().clone(), peers.clone(), own_mdt);
    let is_root = mdt.as_ref().is_some_and(|mdt| mdt.index() == MdtIndex(0));
    let identities = Arc::new(Identities {
        guard: parts.guard.clone(),
        map: parts.map.cell().clone(),
        server: parts.name.clone(),
        keeper: mdt.clone().filter(|_| is_root),
        mdt: mdt.clone(),
        file: parts.identities,
        peers: peers.clone(),
        clock: parts.world.clock.clone(),
        audit: parts.audit.clone(),
        state: identities::State::default(),
    });
    peers.set_owners(Arc::new(exposed::SiteOwners::new(identities.clone())));
    let audit = parts.audit.clone();
    let node = Arc::new(Node {
        identities: identities.clone(),
        audit: parts.audit,
        name: parts.name,
        fs: parts.fs,
        operator: parts.operator,
        boot: parts.world.random(),
        world: parts.world,
        connections: connections.clone(),
        map: parts.map.clone(),
        mdt: mdt.clone(),
        tender: tender.clone(),
        chunks,
        tape: tape.clone(),
        peers: peers.clone(),
        capabilities: capabilities.clone(),
        guard: parts.guard.clone(),
        mdt_index,
        edits: Edits::default(),
        reports: Reports::default(),
    });
    let mut tasks = vec![
        tokio::spawn(watch_osts(
            peers.clone(),
            (mdt.clone(), node.chunks.clone()),
            parts.health.clone(),
        )),
        tokio::spawn(watch_audit(audit, parts.health.clone())),
        tokio::spawn(identities.follow()),
        tokio::spawn(spread_map(parts.map.clone(), connections, peers.clone())),
    ];
    if let Some(chunks) = node.chunks.clone() {
        tasks.push(tokio::spawn(capabilities.follow()));
        tasks.push(tokio::spawn(async move { chunks.keep_counted().await }));
    }
    if let Some(mdt) = mdt.clone() {
        tasks.push(tokio::spawn(mdt.run_quotas()));
    }
    if let Some(tender) = tender {
        tasks.push(tokio::spawn(async move { tender.run().await }));
    }
    if let Some((watched, mdt)) = watched.zip(mdt.clone()) {
        tasks.push(tokio::spawn(room::watch(watched, mdt, parts.health.clone())));
    }
    if !parts.map.is_signer() {
        tasks.push(tokio::spawn(maps::follow(parts.map, peers.clone())));
    }
    let server = Server::start(listener, node, parts.guard, descriptors::settings());
    parts.health.set_ready(true);
    Ok(Running { server, mdt, peers, tape, tasks, published: None })
}

impl Running {
    /// Waits until the metadata store ends, if ever, and says why. Whoever serves it next knows
    /// what was done, so the requests of that moment are left unanswered, to be sent again.
    pub async fn failed(&self) -> String {
        loop {
            if let Some((_, reason)) = self.mdt.as_ref().and_then(|mdt| mdt.trouble()) {
                return reason;
            }
            tokio::time::sleep(LOOK_AFTER_STORE).await;
        }
    }

    /// With repositories that it serves, too.
    pub fn beside(mut self, published: Option<tieline_http::server::Server>) -> Self {
        self.published = published;
        self
    }

    /// Ends all connections and background work in good order.
    pub async fn stop(mut self) {
        if let Some(published) = self.published.take() {
            published.stop(STOP_PATIENCE).await;
        }
        self.server.stop();
        // What is being answered is dropped at its next wait: nothing of it was promised yet.
        let _ = tokio::time::timeout(STOP_PATIENCE, self.server.ended()).await;
        self.peers.close().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        // Its scripts end with it.
        self.tape.iter().for_each(|tape| tape.stop());
    }
}

/// Asks all OSSs how their OSTs are, and tells the MDT and `/health`.
async fn watch_osts(
    peers: Arc<Peers>,
    (mdt, chunks): (Option<Arc<Mdt>>, Option<Arc<ChunkService>>),
    health: Health,
) {
    loop {
        let mut states = peers.ask_own(mdt.as_ref().map(|mdt| mdt.index())).await;
        for own in &states {
            match &own.trouble {
                Some(trouble) => health.degrade(&own.ost.label(), trouble),
                None => health.recover(&own.ost.label()),
            }
        }
        if let Some(chunks) = &chunks {
            exposed::tell_health(chunks, &health);
        }
        if let Some(mdt) = &mdt {
            states.extend(peers.ask_others().await);
            states.sort_by_key(|state| state.ost);
            mdt.observe(states);
            match mdt.trouble() {
                Some((kind, detail)) => health.degrade("mdt", format!("{kind}: {detail}")),
                None => health.recover("mdt"),
            }
            match mdt.log_trouble() {
                Some(trouble) => health.degrade("log", trouble),
                None => health.recover("log"),
            }
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Tells `/health` whether the record is written. Who administers or is denied may be on none else.
async fn watch_audit(audit: Arc<Audit>, health: Health) {
    loop {
        match audit.trouble() {
            Some(trouble) => health.degrade("audit", trouble),
            None => health.recover("audit"),
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Tells everybody who is connected that there is a newer map.
async fn spread_map(map: Arc<MapKeeper>, connections: Arc<Connections>, peers: Arc<Peers>) {
    let mut newer = map.cell().subscribe();
    while newer.changed().await.is_ok() {
        let version = newer.borrow_and_update().map.version;
        tracing::info!(%version, "federation map changed");
        peers.prune();
        connections.tell_all(&Notice::MapChanged(version));
    }
}
