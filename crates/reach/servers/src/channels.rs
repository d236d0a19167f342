//! Channels for who needs no more than one to each server: servers among themselves.
//!
//! Invariant: at most one channel per list of addresses, kept while the map names them.

use crate::{Deaf, Greeting, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_net::{Channel, Dialer, NoticeSink};
use tokio::task::JoinSet;

/// Made when they are first needed.
pub struct Channels {
    dialer: Arc<dyn Dialer>,
    map: MapCell,
    greeting: Greeting,
    table: Mutex<BTreeMap<Vec<String>, Arc<dyn Channel>>>,
}

impl Channels {
    pub fn new(dialer: Arc<dyn Dialer>, map: MapCell, greeting: Greeting) -> Self {
        Self { dialer, map, greeting, table: Mutex::default() }
    }

    /// The channel to a server.
    pub fn to(&self, addresses: &[String]) -> Arc<dyn Channel> {
        let new = || self.dial(addresses, Arc::new(Deaf));
        lock(&self.table).entry(addresses.to_vec()).or_insert_with(new).clone()
    }

    /// A channel of its own, whose notices `sink` hears.
    pub fn dial(&self, addresses: &[String], sink: Arc<dyn NoticeSink>) -> Arc<dyn Channel> {
        let hello = self.greeting.hello(self.map.current().map.version);
        self.dialer.dial(addresses, hello, sink)
    }

    /// Forgets channels to servers that the map does not name any more.
    pub fn prune(&self) {
        let map = self.map.current();
        let osts = map.map.osts.iter().map(|ost| &ost.addresses);
        let mdts = map.map.mdts.iter().map(|mdt| &mdt.addresses);
        let named: BTreeSet<&Vec<String>> = osts.chain(mdts).collect();
        lock(&self.table).retain(|addresses, _| named.contains(addresses));
    }

    /// Says goodbye to everybody.
    pub async fn close(&self, patience: Duration) {
        let channels = std::mem::take(&mut *lock(&self.table));
        let mut goodbyes = JoinSet::new();
        for channel in channels.into_values() {
            goodbyes.spawn(async move { channel.close(patience).await });
        }
        goodbyes.join_all().await;
    }
}
