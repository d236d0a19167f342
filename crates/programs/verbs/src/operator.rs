//! Calls that operators make to one MDT, over a connection of their own.

use crate::known;
use crate::runtime;
use crate::shell;
use anyhow::Context;
use bytes::Bytes;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::BelievedMap;
use tieline_base::contact::Contact;
use tieline_base::location::Location;
use tieline_format::map::FederationMap;
use tieline_machine::users::own_caller;
use tieline_net::Channel;
use tieline_types::{Caller, MdtIndex};
use tieline_wire::Call;
use tieline_world::Bulk;

/// A part of a dump, or a step of a check, is answered well within this.
const PATIENCE: Duration = Duration::from_secs(120);
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// A federation, as an operator reaches its servers.
pub struct Operator {
    contact: Contact,
    caller: Caller,
    pub believed: Arc<BelievedMap>,
    pub map: FederationMap,
}

/// Runs a command against the servers of `location`.
pub fn run<T, F: Future<Output = anyhow::Result<T>>>(
    location: &Location,
    command: impl FnOnce(Operator) -> F,
) -> anyhow::Result<T> {
    let away = known::away(location);
    runtime::reach(location, async {
        let guard = location.proving.guard();
        let (contact, cell, _) = shell::first_map(location, &guard, away.as_deref()).await?;
        let believed = cell.current();
        let map = believed.map.clone();
        command(Operator { contact, caller: own_caller(), believed, map }).await
    })
}

/// A connection to one MDT.
pub struct Line {
    channel: Arc<dyn Channel>,
    caller: Caller,
}

impl Operator {
    /// The map as it is now at these servers.
    pub async fn fetch(&self, addresses: &[String]) -> anyhow::Result<Arc<BelievedMap>> {
        let contact = Contact { addresses: addresses.to_vec(), ..self.contact.clone() };
        let (cell, _) = contact.believe(Some(self.believed.key.clone())).await?;
        Ok(cell.current())
    }

    pub fn dial_at(&self, address: &str) -> Line {
        let contact = Contact { addresses: vec![address.to_owned()], ..self.contact.clone() };
        Line { channel: contact.channel(), caller: self.caller.clone() }
    }

    pub fn dial(&self, mdt: MdtIndex) -> anyhow::Result<Line> {
        let known = self.map.mdt(mdt);
        let known = known.with_context(|| {
            let there: Vec<String> = self.map.mdts.iter().map(|mdt| mdt.mdt.label()).collect();
            let (mdt, there) = (mdt.label(), there.join(", "));
            format!("{mdt} is not in the map: name one of {there}, or see `tieline map show`")
        })?;
        let contact = Contact { addresses: known.addresses.clone(), ..self.contact.clone() };
        Ok(Line { channel: contact.channel(), caller: self.caller.clone() })
    }
}

impl Line {
    pub async fn call<C: Call>(&self, message: C) -> anyhow::Result<(C::Reply, Bytes)> {
        self.call_within(message, PATIENCE).await
    }

    pub async fn call_within<C: Call>(
        &self,
        message: C,
        patience: Duration,
    ) -> anyhow::Result<(C::Reply, Bytes)> {
        let (channel, caller, patience) = (&*self.channel, &self.caller, Some(patience));
        Ok(tieline_net::call(channel, caller, message, Bulk::Empty, patience).await?)
    }

    pub async fn close(self) {
        self.channel.close(CLOSE_PATIENCE).await;
    }
}
