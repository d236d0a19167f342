//! Which flavor the connections from here to each server have.

use super::PATIENCE;
use crate::contact::Contact;
use crate::location::Location;
use crate::shell::{self, Shell};
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_net::NoticeSink;
use tieline_types::{Caller, Flavor};
use tieline_wire::federation::GetMap;
use tieline_wire::{Notice, NoticeAnswer, Welcome};
use tieline_world::Bulk;

/// Flavors of connections from here, by server.
pub async fn here(shell: &Shell, location: &Location) -> Vec<(String, String)> {
    let map = shell.files.map();
    let guard = location.proving.guard();
    guard.follow(&shell.map);
    let contact = shell::contact(location, &guard);
    let mdts = map.mdts.iter().map(|mdt| (mdt.mdt.label(), mdt.addresses.clone()));
    let osts = map.osts.iter().map(|ost| (ost.ost.label(), ost.addresses.clone()));
    let mut found: Vec<(String, String)> = vec![];
    for (label, addresses) in mdts.chain(osts) {
        let flavor = flavor_of(&contact, addresses).await;
        found.push((label, flavor));
    }
    found
}

async fn flavor_of(contact: &Contact, addresses: Vec<String>) -> String {
    let heard = Arc::new(Heard::default());
    let channel = contact.listening(addresses, heard.clone());
    let patience = Some(PATIENCE);
    let asked =
        tieline_net::call(&*channel, &Caller::root(), GetMap {}, Bulk::Empty, patience).await;
    channel.close(Duration::from_millis(200)).await;
    let flavor = *heard.0.lock().unwrap_or_else(PoisonError::into_inner);
    match (flavor, asked) {
        (Some(flavor), _) => flavor.name().to_owned(),
        (None, Err(error)) => format!("no connection: {error}"),
        (None, Ok(_)) => "not told".to_owned(),
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
