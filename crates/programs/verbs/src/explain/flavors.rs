//! Which flavor the connections from here to each server have.

use super::PATIENCE;
use crate::shell::{self, Shell};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_base::contact::Contact;
use tieline_base::location::Location;
use tieline_net::NoticeSink;
use tieline_types::{Caller, ErrorKind, Flavor};
use tieline_wire::federation::GetMap;
use tieline_wire::{Notice, NoticeAnswer, Welcome};
use tieline_world::Bulk;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Flavors of connections from here, by server. All are asked at once.
pub async fn here(shell: Arc<Shell>, location: Location) -> Vec<(String, String)> {
    let map = shell.files.map();
    let guard = location.proving.guard();
    guard.follow(&shell.map);
    let contact = shell::contact(&location, &guard);
    let mdts = map.mdts.iter().map(|mdt| (mdt.mdt.label(), mdt.addresses.clone()));
    let osts = map.osts.iter().map(|ost| (ost.ost.label(), ost.addresses.clone()));
    // One server may have several targets.
    let mut targets: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
    for (label, addresses) in mdts.chain(osts) {
        targets.entry(addresses).or_default().push(label);
    }
    let mut asking = JoinSet::new();
    for (addresses, labels) in targets {
        let contact = contact.clone();
        asking.spawn(async move { (labels, flavor_of(&contact, addresses).await) });
    }
    let mut found: Vec<(String, String)> = vec![];
    for (labels, flavor) in asking.join_all().await {
        found.extend(labels.into_iter().map(|label| (label, flavor.clone())));
    }
    found.sort();
    found
}

async fn flavor_of(contact: &Contact, addresses: Vec<String>) -> String {
    let heard = Arc::new(Heard::default());
    let channel = contact.listening(addresses, heard.clone());
    let caller = Caller::root();
    let asking = tieline_net::call(&*channel, &caller, GetMap {}, Bulk::Empty, Some(PATIENCE));
    // A KDC that does not answer is waited for longer than the server is.
    let asked = timeout(PATIENCE, asking).await;
    channel.close(Duration::from_millis(200)).await;
    let flavor = *heard.0.lock().unwrap_or_else(PoisonError::into_inner);
    match (flavor, asked) {
        (Some(flavor), _) => flavor.name().to_owned(),
        (None, Ok(Err(error))) if error.kind() != ErrorKind::Timeout => {
            format!("no connection: {error}")
        }
        (None, Ok(Err(_)) | Err(_)) => {
            format!("no connection: no answer within {} s", PATIENCE.as_secs())
        }
        (None, Ok(Ok(_))) => "not told".to_owned(),
    }
}

/// Hears the flavor in a welcome.
#[derive(Default)]
struct Heard(Mutex<Option<Flavor>>);

#[async_trait::async_trait]
impl NoticeSink for Heard {
    async fn notice(&self, _notice: Notice) -> NoticeAnswer {
        NoticeAnswer::default()
    }

    fn connected(&self, welcome: &Welcome) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(welcome.flavor);
    }

    fn disconnected(&self) {}

    fn renewed(&self, _sent: tokio::time::Instant) {}
}

pub fn json(flavors: &[(String, String)]) -> Value {
    Value::Object(
        flavors
            .iter()
            .map(|(server, flavor)| (server.clone(), Value::from(flavor.as_str())))
            .collect(),
    )
}
