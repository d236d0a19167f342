//! How many connections there are, and from whom; and how they come.
//!
//! Invariants: never more than the limits; a place is free again when it is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_world::{Connection, Listener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// After an accept failed, as when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

pub struct Places {
    all: Arc<Semaphore>,
    per_peer: usize,
    /// By address without port.
    peers: Mutex<BTreeMap<String, usize>>,
}

/// A place of nobody yet.
pub struct Free {
    places: Arc<Places>,
    permit: Option<OwnedSemaphorePermit>,
}

/// A connection's place.
pub struct Place {
    places: Arc<Places>,
    peer: String,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Places {
    pub fn new(all: usize, per_peer: usize) -> Arc<Self> {
        let all = Arc::new(Semaphore::new(all));
        Arc::new(Self { all, per_peer, peers: Mutex::default() })
    }

    /// Waits until there are fewer than may be.
    pub async fn take(self: &Arc<Self>) -> Free {
        // The semaphore is never closed.
        let permit = self.all.clone().acquire_owned().await.ok();
        Free { places: self.clone(), permit }
    }

    /// Accepts those who come until it is to stop, each with a task that serves it, then waits for
    /// these, which end with it. `whom`: in a message.
    pub async fn accept<S: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        mut listener: Box<dyn Listener>,
        whom: &str,
        mut stopping: watch::Receiver<bool>,
        serve: impl Fn(Connection, Place) -> S,
    ) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = async {
                let place = self.take().await;
                (place, listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                biased;
                _ = stopping.wait_for(|stops| *stops) => break,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok(connection) => match place.of(&connection.peer) {
                    Some(place) => drop(connections.spawn(serve(connection, place))),
                    None => {
                        let peer = &connection.peer;
                        tracing::debug!(peer, "too many connections of one peer");
                    }
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections for {whom}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Free {
    /// For a connection from `ADDRESS:PORT`; `None` if that address has all it may have.
    pub fn of(self, peer: &str) -> Option<Place> {
        let peer = peer.rsplit_once(':').map_or(peer, |(address, _)| address).to_owned();
        {
            let mut peers = self.places.peers();
            let count = peers.entry(peer.clone()).or_default();
            if *count >= self.places.per_peer {
                return None;
            }
            *count += 1;
        }
        Some(Place { places: self.places, peer, _permit: self.permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut peers = self.places.peers();
        if let Some(count) = peers.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                peers.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_peer_has_so_many_and_no_more() {
        let places = Places::new(10, 2);
        let first = places.take().await.of("[2001:db8::1]:1000").unwrap();
        let _second = places.take().await.of("[2001:db8::1]:1001").unwrap();
        assert!(places.take().await.of("[2001:db8::1]:1002").is_none());
        let _other = places.take().await.of("[2001:db8::2]:1000").unwrap();
        assert_eq!(places.all.available_permits(), 7, "who is refused has no place");
        drop(first);
        let _third = places.take().await.of("[2001:db8::1]:1003").unwrap();
        assert_eq!(places.peers().len(), 2);
    }
}
