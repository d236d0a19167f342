//! What the OSTs of this server believe: keys and news of the MDSs that sign capabilities.
//!
//! Every MDS is asked every few seconds, and at once when somebody shows a capability whose key is
//! not known here. So what an MDS takes back is refused here within [`ASK_EVERY`] and a round trip,
//! while it is in reach; out of reach, capabilities run out by themselves.
//!
//! Invariants: at most one question per MDT is under way, and after an answer none for
//! [`ASK_PAUSE`]; a server that holds the MDT itself asks nobody.

use crate::peers::Peers;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_auth::capability::Checker;
use tieline_meta::Mdt;
use tieline_types::MdtIndex;
use tieline_wire::Request;
use tieline_wire::capability::CapabilityNewsReply;
use tokio::sync::Mutex;
use tokio::time::Instant;

pub const ASK_EVERY: Duration = Duration::from_secs(4);
/// Who shows invented keys does not make us ask more often.
const ASK_PAUSE: Duration = Duration::from_millis(500);
/// And waits for so many pauses.
const WAITS_MAX: usize = 8;

/// See the module.
pub struct Capabilities {
    pub checker: Checker,
    map: MapCell,
    peers: Arc<Peers>,
    own: Option<(MdtIndex, Arc<Mdt>)>,
    /// When each MDT was last asked.
    asked: Mutex<BTreeMap<MdtIndex, Arc<Mutex<Option<Instant>>>>>,
}

impl Capabilities {
    pub fn new(map: MapCell, peers: Arc<Peers>, own: Option<(MdtIndex, Arc<Mdt>)>) -> Arc<Self> {
        let (checker, asked) = (Checker::default(), Mutex::default());
        Arc::new(Self { checker, map, peers, own, asked })
    }

    /// Makes sure that what a request shows can be judged, if its MDS is in reach.
    pub async fn prepare(&self, request: &Request) {
        let shown = match request {
            Request::PutChunk(put) => &put.capability,
            Request::ReadObject(read) => &read.capability,
            Request::SyncFile(sync) => &sync.capability,
            Request::VerifyObject(verify) => &verify.capability,
            Request::ChecksumAdopted(sums) => &sums.capability,
            _ => &None,
        };
        let Some(shown) = shown else { return };
        // An MDS that was just restarted has new keys, and may take a moment to tell them.
        for _ in 0..WAITS_MAX {
            let Some(mdt) = self.checker.lacks(shown) else { return };
            if self.map.current().map.mdt(mdt).is_none() {
                return;
            }
            self.ask(mdt, ASK_PAUSE).await;
            if self.checker.lacks(shown).is_some() {
                tokio::time::sleep(ASK_PAUSE).await;
            }
        }
    }

    /// Follows all MDTs of the map. Runs until dropped.
    pub async fn follow(self: Arc<Self>) {
        loop {
            let current = self.map.current();
            if current.map.security.is_some() {
                let mut asking = tokio::task::JoinSet::new();
                for mdt in current.map.mdts.iter().map(|entry| entry.mdt) {
                    let own = self.clone();
                    asking.spawn(async move { own.ask(mdt, ASK_PAUSE).await });
                }
                while asking.join_next().await.is_some() {}
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Asks an MDS, unless it answered within `pause`.
    async fn ask(&self, mdt: MdtIndex, pause: Duration) {
        let last = self.asked.lock().await.entry(mdt).or_default().clone();
        let mut last = last.lock().await;
        if last.is_some_and(|at| at.elapsed() < pause) {
            return;
        }
        let asked = Instant::now();
        match self.news(mdt).await {
            Ok(news) => self.checker.learn(mdt, &news, asked),
            // It shows at once in what is refused here, and is tried again soon.
            Err(why) => tracing::info!(mdt = mdt.label(), why, "no news of capabilities"),
        }
        *last = Some(Instant::now());
    }

    async fn news(&self, mdt: MdtIndex) -> Result<CapabilityNewsReply, String> {
        match &self.own {
            Some((own, holder)) if *own == mdt => Ok(holder.capability_news()),
            _ => self.peers.capability_news(mdt).await.map_err(|failure| failure.to_string()),
        }
    }
}
