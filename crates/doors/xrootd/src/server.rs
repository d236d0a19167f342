//! Listens, and counts connections.
//!
//! Invariants: never more connections than the settings say, in all and of one address; they end
//! with the [`Server`].

use crate::budget;
use crate::checksums::Checksums;
use crate::handles::OPEN_ALL_MAX;
use crate::session;
use crate::wire::SessionName;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_files::Paths;
use tieline_http::server::Places;
use tieline_people::visitors::Visitors;
use tieline_types::FsName;
use tieline_world::World;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

/// What the door has to give.
pub struct Offer {
    pub world: World,
    pub fs: FsName,
    pub paths: Paths,
    pub visitors: Arc<dyn Visitors>,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// `HOST:PORT`, port 0 for any free one.
    pub listen: String,
    /// By what clients are told to come, if it is not where they came to already.
    pub address: Option<String>,
    /// Who comes when there are so many waits.
    pub connections: usize,
    /// Who has so many is refused. Compared are addresses without ports.
    pub connections_per_peer: usize,
    /// Of bytes on their way to clients, beside what each connection has of its own.
    pub bytes: usize,
    /// What this place calls itself.
    pub site: String,
}

/// A door that listens. Dropping it closes the port and ends what is under way.
pub struct Server {
    address: String,
    stopping: watch::Sender<bool>,
    stopped: watch::Receiver<bool>,
    task: AbortHandle,
}

/// What all connections share.
pub(crate) struct Shared {
    pub offer: Offer,
    pub settings: Settings,
    pub budget: budget::Shared,
    pub checksums: Arc<Checksums>,
    pub files: Arc<Semaphore>,
    pub stopping: watch::Receiver<bool>,
    sessions: Mutex<BTreeMap<SessionName, Known>>,
}

/// A connection of somebody, by which he may end it from another one.
struct Known {
    principal: Option<String>,
    ends: watch::Sender<bool>,
}

/// The name of a session, which is forgotten with it.
pub(crate) struct Registered {
    shared: Arc<Shared>,
    name: SessionName,
    pub ended: watch::Receiver<bool>,
}

impl Server {
    pub async fn start(offer: Offer, settings: Settings) -> io::Result<Self> {
        let listener = offer.world.transport.listen(&settings.listen).await?;
        let address = listener.address()?;
        let (stopping, heard) = watch::channel(false);
        let (done, stopped) = watch::channel(false);
        let places = Places::new(settings.connections, settings.connections_per_peer);
        let shared = Arc::new(Shared {
            budget: budget::Shared::new(settings.bytes),
            checksums: Checksums::new(),
            files: Arc::new(Semaphore::new(OPEN_ALL_MAX)),
            stopping: heard.clone(),
            sessions: Mutex::default(),
            offer,
            settings,
        });
        let task = tokio::spawn(async move {
            let serve = |connection, place| {
                let shared = shared.clone();
                async move {
                    session::serve(shared, connection).await;
                    drop(place);
                }
            };
            places.accept(listener, "root://", heard, serve).await;
            // Nobody may wait for it.
            let _ = done.send(true);
        });
        Ok(Self { address, stopping, stopped, task: task.abort_handle() })
    }

    /// `HOST:PORT` with the port that was chosen.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Accepts nobody any more, and gives those who are here `patience` for the answers they wait
    /// for. True if all came to their end.
    pub async fn stop(mut self, patience: Duration) -> bool {
        // Its task may have ended already.
        let _ = self.stopping.send(true);
        let stopped = self.stopped.wait_for(|stopped| *stopped);
        matches!(tokio::time::timeout(patience, stopped).await, Ok(Ok(_)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    pub fn register(self: &Arc<Self>) -> Registered {
        let mut name = SessionName::default();
        self.offer.world.dice.fill(&mut name);
        let (ends, ended) = watch::channel(false);
        self.sessions().insert(name, Known { principal: None, ends });
        Registered { shared: self.clone(), name, ended }
    }

    /// Ends another session of the same person. Says whether there is one.
    pub fn end(&self, name: &SessionName, principal: Option<&str>) -> bool {
        let sessions = self.sessions();
        let is_his = |known: &&Known| known.principal.is_some() && known.principal() == principal;
        let found = sessions.get(name).filter(is_his);
        found.map(|known| known.ends.send_replace(true)).is_some()
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<SessionName, Known>> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn principal(&self) -> Option<&str> {
        self.principal.as_deref()
    }
}

impl Registered {
    pub fn name(&self) -> &SessionName {
        &self.name
    }

    /// From now on it is theirs.
    pub fn belongs_to(&self, principal: Option<&str>) {
        if let Some(known) = self.shared.sessions().get_mut(&self.name) {
            known.principal = principal.map(str::to_owned);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.sessions().remove(&self.name);
    }
}
