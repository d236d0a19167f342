//! Asking OSTs for room, and giving it back ([`tieline_granted`]); [`cover`]: who needs it.
//!
//! Questions run in the background, one per OST at a time: no write waits for one. Who has not
//! written for a while keeps a little of what it had, so that its next file need not wait, and then
//! nothing.
//!
//! Invariant: only a server that says that it grants room is asked.

use crate::shared::Shared;
use bytes::Bytes;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tieline_format::map::FederationMap;
use tieline_granted::Question;
use tieline_types::{Layout, OstIndex, PoolName, ServerNumber};
use tieline_wire::Welcome;
use tieline_wire::data::GrantRoom;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

mod cover;

pub(crate) use cover::Covered;

/// OSTs of one pool that room is held at.
const OSTS_MAX: usize = 16;
/// How long an OST may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often what is held is looked through.
const LOOK: Duration = Duration::from_secs(5);
const GOODBYE: Duration = Duration::from_secs(1);

impl Shared {
    /// Files of this layout are about to be written: there is to be room for them.
    pub(crate) fn stir(self: &Arc<Self>, layout: Option<&Layout>) {
        if self.settings.journal && self.rooms.stir() {
            self.refill(&self.room_candidates(layout));
        }
    }

    /// Asks those for more that have little left for us.
    pub(crate) fn refill(self: &Arc<Self>, osts: &[OstIndex]) {
        for &ost in osts {
            if self.rooms.is_low(ost) {
                self.ask_room(ost, 0);
            }
        }
    }

    /// A server has welcomed us. Whoever waited for it may be given room there.
    pub(crate) fn met_oss(self: &Arc<Self>, number: ServerNumber, welcome: &Welcome) {
        let osts = self.servers.osts_of(number);
        let mut useful = self.rooms.welcomed(number, welcome.boot, &osts);
        useful.truncate(OSTS_MAX);
        self.refill(&useful);
    }

    /// Asks an OST for room, at least so much; says that it has been asked.
    fn ask_room(self: &Arc<Self>, ost: OstIndex, least: u64) {
        let Ok(server) = self.servers.oss(ost) else { return };
        if !server.keeps_room() {
            // Its welcome will say whether it does.
            server.ways.warm();
            return;
        }
        let Some(question) = self.rooms.question(ost, least) else { return };
        let shared = self.clone();
        tokio::spawn(async move { shared.ask_room_now(ost, question, PATIENCE).await });
    }

    async fn ask_room_now(&self, ost: OstIndex, (held, wanted): Question, patience: Duration) {
        let sent = Instant::now();
        let message = GrantRoom { ost, held, wanted };
        let asked = self.servers.ask_oss(ost, message, Bytes::new(), patience).await;
        if let Err(error) = &asked {
            tracing::debug!(ost = %ost.label(), %error, "no room is granted");
        }
        let reply = asked.ok().map(|(reply, _)| reply);
        self.rooms.answered(ost, sent, reply.as_ref(), wanted);
    }

    /// Asks an OST that has refused a chunk whether it keeps so much more for it, unless it has
    /// just said what it has; says whether that is there now.
    pub(crate) async fn ask_room_for(self: &Arc<Self>, ost: OstIndex, missing: u64) -> bool {
        if !self.rooms.has_said_little(ost) {
            self.ask_room(ost, missing);
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let answered = self.rooms.heard.notified();
            tokio::pin!(answered);
            // The answer may come between.
            answered.as_mut().enable();
            let is_asking = self.rooms.is_asking(ost);
            if !is_asking || timeout_at(until, answered).await.is_err() {
                return self.rooms.free(ost) >= missing;
            }
        }
    }

    /// The OSTs that a file of this layout may be given.
    fn room_candidates(&self, layout: Option<&Layout>) -> Vec<OstIndex> {
        let believed = self.servers.map.current();
        let pools = match layout {
            None => vec![None],
            Some(layout) => {
                let mirrors = 0..usize::from(layout.mirrors.max(1));
                let mut pools: Vec<_> = mirrors.map(|one| layout.pool_of_mirror(one)).collect();
                pools.dedup();
                pools
            }
        };
        let lot = self.servers.lot();
        let mut all = Vec::new();
        for pool in pools {
            let mut osts = active_osts(&believed.map, pool);
            if osts.len() > OSTS_MAX {
                // Each client begins somewhere else.
                let first = lot % osts.len();
                osts.rotate_left(first);
                osts.truncate(OSTS_MAX);
            }
            all.extend(osts);
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Gives everything back, at the end.
    pub(crate) async fn leave_rooms(self: &Arc<Self>) {
        let mut tasks = JoinSet::new();
        for ost in self.rooms.leave() {
            let shared = self.clone();
            tasks.spawn(async move { shared.ask_room_now(ost, (Some(0), 0), GOODBYE).await });
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Gives back what is not used, and says that we are there where something is held; says
    /// whether anything is.
    fn look_after_rooms(self: &Arc<Self>) -> bool {
        let (due, is_held) = self.rooms.due();
        for (ost, kept) in due {
            let shared = self.clone();
            tokio::spawn(async move { shared.ask_room_now(ost, (Some(kept), 0), PATIENCE).await });
        }
        is_held
    }
}

/// Those of a pool, or of all, that take chunks.
fn active_osts(map: &FederationMap, pool: Option<&PoolName>) -> Vec<OstIndex> {
    let is_active = |ost: &OstIndex| map.ost(*ost).is_some_and(|ost| ost.is_active);
    match pool {
        None => map.osts.iter().map(|ost| ost.ost).filter(is_active).collect(),
        Some(name) => {
            let members = map.pool(name).map(|pool| pool.osts.clone()).unwrap_or_default();
            members.into_iter().filter(is_active).collect()
        }
    }
}

/// Runs until the file system is gone.
pub(crate) async fn keep(shared: Weak<Shared>) {
    let Some(rooms) = shared.upgrade().map(|shared| shared.rooms.clone()) else { return };
    loop {
        let stirred = rooms.stirred();
        // Waiting must not keep the file system alive; its end wakes us.
        let Some(strong) = shared.upgrade() else { return };
        let is_held = strong.look_after_rooms();
        drop(strong);
        if is_held {
            tokio::time::sleep(LOOK).await;
        } else {
            stirred.await;
        }
    }
}
