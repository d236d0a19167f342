//! What one party has of a server at the same time, over all its connections.
//!
//! A party is a principal, or the host that somebody comes from who proved nothing. What it may
//! have is generous, for a farm may come as one; but it is never all there is.
//!
//! Turns are fair: of each party only so many requests are read and begun at once, and the threads
//! go round what is begun. So whoever asks a thousand things waits for himself. Long bodies cost
//! time before anybody knows what they ask for, so they are read at a pace.
//!
//! Invariant: nothing is kept of a party that is not connected.

use super::ServerSettings;
use crate::Peer;
use crate::frames::Budget;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tieline_types::ClientId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests of a party that are read and begun at once. More than a server has threads: what one of
/// them waits for does not keep another idle.
const TURNS: usize = 16;
/// Room for long bodies that a party gets in a second, and so 64 MiB of them: an eighth of what a
/// thread reads and decodes of them, and more than any store commits.
const BODY_ROOM_PER_SECOND: usize = 512 << 20;

/// See the module.
pub(super) struct Party {
    /// Who that is, for people.
    pub(super) name: Arc<str>,
    pub(super) bodies: Budget,
    pub(super) bulk: Budget,
    /// For long bodies of replies that were not sent yet.
    pub(super) replies: Budget,
    connections: Arc<Semaphore>,
    /// Of these, for clients that have one already.
    further: Arc<Semaphore>,
    clients: Arc<Clients>,
    requests: Arc<Semaphore>,
    turns: Semaphore,
}

/// How many connections each client has.
#[derive(Default)]
struct Clients(Mutex<BTreeMap<ClientId, usize>>);

/// A place among the connections of a party, given back when dropped.
pub(super) struct Connected {
    client: ClientId,
    clients: Arc<Clients>,
    _places: [Option<OwnedSemaphorePermit>; 2],
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// The client has a connection, and does with it.
    Further,
    All,
}

/// All who are connected.
pub(super) struct Parties {
    settings: ServerSettings,
    bodies: Budget,
    bulk: Budget,
    replies: Budget,
    known: Mutex<BTreeMap<Arc<str>, Weak<Party>>>,
}

impl Parties {
    pub(super) fn new(settings: &ServerSettings, bulk: &Budget) -> Self {
        Self {
            settings: settings.clone(),
            bodies: Budget::new(settings.body_bytes_max),
            bulk: bulk.clone(),
            replies: Budget::new(settings.reply_bytes_max),
            known: Mutex::default(),
        }
    }

    pub(super) fn of(&self, peer: &Peer) -> Arc<Party> {
        let name = whose(peer);
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(party) = known.get(&name).and_then(Weak::upgrade) {
            return party;
        }
        if known.len() > self.settings.connections_max {
            known.retain(|_, party| party.strong_count() > 0);
        }
        let party = Arc::new(Party::new(name.clone(), self));
        known.insert(name, Arc::downgrade(&party));
        party
    }
}

impl Party {
    fn new(name: Arc<str>, parties: &Parties) -> Self {
        let settings = &parties.settings;
        Self {
            name,
            bodies: parties
                .bodies
                .share(settings.body_bytes_of_one_max)
                .paced(BODY_ROOM_PER_SECOND),
            bulk: parties.bulk.share(most(settings.bulk_bytes_max)),
            replies: parties.replies.share(settings.reply_bytes_of_one_max),
            connections: Arc::new(Semaphore::new(most(settings.connections_max))),
            further: Arc::new(Semaphore::new(most(settings.connections_max) / 2)),
            clients: Arc::default(),
            requests: Arc::new(Semaphore::new(settings.requests_of_one_max)),
            turns: Semaphore::new(TURNS),
        }
    }

    /// A place among its connections. Half of them are left to clients that have none: of a farm
    /// whose nodes take several each, all have one.
    pub(super) fn connection(&self, client: ClientId) -> Result<Connected, Full> {
        let place = |of: &Arc<Semaphore>| of.clone().try_acquire_owned().ok();
        let mut clients = self.clients.lock();
        let further = match clients.contains_key(&client) {
            true => Some(place(&self.further).ok_or(Full::Further)?),
            false => None,
        };
        let any = Some(place(&self.connections).ok_or(Full::All)?);
        *clients.entry(client).or_default() += 1;
        let clients = self.clients.clone();
        Ok(Connected { client, clients, _places: [any, further] })
    }

    /// A place among its requests, if there is one.
    pub(super) fn request(&self) -> Option<OwnedSemaphorePermit> {
        self.requests.clone().try_acquire_owned().ok()
    }

    /// Begins `work` when it is its turn. What is begun goes on beside what comes after it.
    pub(super) async fn in_turn<W: Future>(&self, work: W) -> W::Output {
        tokio::pin!(work);
        // It is never closed.
        let turn = self.turns.acquire().await;
        let begun =
            std::future::poll_fn(|context| std::task::Poll::Ready(work.as_mut().poll(context)));
        let begun = begun.await;
        drop(turn);
        match begun {
            std::task::Poll::Ready(output) => output,
            std::task::Poll::Pending => work.await,
        }
    }
}

impl Clients {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClientId, usize>> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut clients = self.clients.lock();
        if let Some(count) = clients.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

/// What one may have of what there is for all: enough is left for others.
fn most(of_all: usize) -> usize {
    (of_all - of_all / 4).max(1)
}

fn whose(peer: &Peer) -> Arc<str> {
    match &peer.principal {
        Some(principal) => principal.clone(),
        None => peer.address.rsplit_once(':').map_or(&*peer.address, |(host, _)| host).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::Flavor;

    fn peer(address: &str, principal: Option<&str>) -> Peer {
        let principal = principal.map(Into::into);
        Peer { address: address.to_owned(), principal, flavor: Flavor::Null }
    }

    fn id(node: u16) -> ClientId {
        let [low, high] = node.to_le_bytes();
        let mut id = [7; 16];
        (id[0], id[1]) = (low, high);
        ClientId(id)
    }

    fn node_of(one: &Connected) -> u16 {
        u16::from_le_bytes([one.client.0[0], one.client.0[1]])
    }

    fn parties() -> Parties {
        let settings = ServerSettings { connections_max: 4, ..ServerSettings::default() };
        Parties::new(&settings, &Budget::new(100))
    }

    #[test]
    fn a_principal_is_one_from_wherever_and_a_stranger_is_his_host() {
        let parties = parties();
        let ann = parties.of(&peer("a:1", Some("ann@X")));
        assert!(Arc::ptr_eq(&ann, &parties.of(&peer("b:2", Some("ann@X")))));
        let host = parties.of(&peer("[::1]:1", None));
        assert!(Arc::ptr_eq(&host, &parties.of(&peer("[::1]:2", None))));
        assert!(!Arc::ptr_eq(&host, &parties.of(&peer("[::2]:2", None))));
        assert!(!Arc::ptr_eq(&host, &ann));
    }

    #[test]
    fn nobody_has_all_of_what_there_is() {
        let parties = parties();
        let (one, other) = (parties.of(&peer("a:1", None)), parties.of(&peer("b:1", None)));
        let held: Vec<_> = (0..9).map_while(|client| one.connection(id(client)).ok()).collect();
        assert_eq!(held.len(), 3);
        assert!(other.connection(id(0)).is_ok());
        drop(held);
        assert!(one.connection(id(0)).is_ok());
        assert!(one.clients.lock().is_empty());
    }

    /// Each of whose nodes would have eight connections, as to a far server, and has two while it
    /// connects anew.
    #[test]
    fn a_farm_of_4096_nodes_is_one_party_and_each_node_has_a_connection() {
        let settings = ServerSettings::default();
        let parties = Parties::new(&settings, &Budget::new(settings.bulk_bytes_max));
        let farm = parties.of(&peer("a:1", Some("host/farm@X")));
        let connect = |node| farm.connection(id(node));
        let greedy: Vec<_> =
            (0..4096).flat_map(|node| (0..8).map(move |_| connect(node))).collect();
        let mut held: BTreeMap<u16, usize> = BTreeMap::new();
        greedy.iter().flatten().for_each(|one| *held.entry(node_of(one)).or_default() += 1);
        assert_eq!(held.len(), 4096);
        assert!(greedy.iter().flatten().count() > 8192);
        // And a farm as large beside it, with what is left.
        let other = parties.of(&peer("b:1", Some("host/other@X")));
        assert!((0..4096).all(|node| other.connection(id(node)).is_ok()));
    }

    #[test]
    fn who_is_gone_is_forgotten() {
        let parties = parties();
        for at in 0..100 {
            parties.of(&peer(&format!("host{at}:1"), None));
        }
        assert!(parties.known.lock().unwrap().len() <= 6);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_holds_nobody_up() {
        let party = parties().of(&peer("a:1", None));
        let waiting: Vec<_> = (0..3 * TURNS)
            .map(|_| {
                let party = party.clone();
                tokio::spawn(async move { party.in_turn(std::future::pending::<()>()).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(party.in_turn(async { 7 }).await, 7);
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
