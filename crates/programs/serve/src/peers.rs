//! Channels to other servers: made on demand, kept while the map names them.
//!
//! An OST of this very process is asked directly, without a connection to ourselves.
//!
//! Invariant: every question has a deadline.

use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tieline_auth::{MapCell, Rule};
use tieline_data::{ChunkService, ExposedAt, ObjectSource, Owners, Rights};
use tieline_meta::LimitsKeeper;
use tieline_net::{CallError, Channel, Dialer, NoticeSink};
use tieline_servers::{Channels, Greeting};
use tieline_tend::{ExposedObjects, ObjectMender, Objects};
use tieline_types::{Caller, ClientId, ErrorKind, FsName, GrantedId, MdtIndex, OstIndex, PoolName};
use tieline_wire::capability::{CapabilityNews, CapabilityNewsReply};
use tieline_wire::data::{
    DeleteChunks, ListObjects, ListObjectsReply, OstState, OstStatus, ReadObject, ReadObjectReply,
    StatObject, StatObjectReply,
};
use tieline_wire::exposed::{
    ArrangeExposed, ArrangeExposedReply, ListExposed, ListExposedReply, StageFile, StageFileReply,
};
use tieline_wire::mirrors::{FetchChunk, FetchChunkReply, VerifyObject, VerifyObjectReply};
use tieline_wire::quotas::{QuotaNews, QuotaNewsReply, QuotaShares, QuotaSharesReply};
use tieline_wire::tape::{DriveTape, DriveTapeReply};
use tieline_wire::{Call, Failure, PeerRole};
use tieline_world::{Bulk, World};
use tokio::task::JoinSet;

/// Shorter than the pause between two rounds of questions.
const ASK_PATIENCE: Duration = Duration::from_secs(4);
/// The collector comes again if it did not work.
const REMOVE_PATIENCE: Duration = Duration::from_secs(30);
/// One piece of a chunk from another OST, on a slow line.
const SOURCE_PATIENCE: Duration = Duration::from_secs(30);
/// Names in an exposed directory; a change may wait for it.
const ARRANGE_PATIENCE: Duration = Duration::from_secs(7);
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);
/// The MDT of the root, which keeps what holds for all.
const ROOT_MDT: MdtIndex = MdtIndex(0);

/// What [`Peers`] is made of.
pub struct Parts {
    pub name: String,
    pub fs: FsName,
    pub rule: Rule,
    pub world: World,
    pub dialer: Arc<dyn Dialer>,
    pub map: MapCell,
    pub role: PeerRole,
    /// OSTs of this process, and what serves them.
    pub own: BTreeSet<OstIndex>,
    pub chunks: Option<Arc<ChunkService>>,
}

/// The other servers, as this one reaches them.
pub struct Peers {
    map: MapCell,
    own: BTreeSet<OstIndex>,
    chunks: Option<Arc<ChunkService>>,
    channels: Channels,
    owners: OnceLock<Arc<dyn Owners>>,
}

impl Peers {
    /// Who files are given to where pools are exposed here.
    pub fn set_owners(&self, owners: Arc<dyn Owners>) {
        // Said once, at the start.
        let _ = self.owners.set(owners);
    }

    pub(crate) fn owners(&self) -> Result<&Arc<dyn Owners>, Failure> {
        let early = || Failure::new(ErrorKind::Overloaded, "the server just starts".to_owned());
        self.owners.get().ok_or_else(early)
    }

    /// Where a pool is exposed, by this server's map.
    pub(crate) fn exposed_at(&self, pool: &PoolName) -> Result<ExposedAt, Failure> {
        let map = self.map.current();
        let exposure = map.map.pool(pool).and_then(|pool| pool.exposure.as_ref());
        let exposure = exposure.ok_or_else(|| {
            let version = map.map.version;
            let detail = format!("pool {pool} is not exposed by the map here (version {version})");
            Failure::new(ErrorKind::WrongServer, detail)
        })?;
        let directory = exposure.directory.clone().into();
        Ok(ExposedAt { directory, owner: format!("{}.{pool}", map.map.fs) })
    }

    pub fn new(parts: Parts) -> Self {
        let Parts { name, fs, rule, world, dialer, map, role, own, chunks } = parts;
        let (client, description) = (Greeting::client(&world), name);
        let (is_visitor, wait) = (false, None);
        let greeting = Greeting { role, client, fs, rule, description, is_visitor, wait };
        let channels = Channels::new(dialer, map.clone(), greeting);
        Self { map, own, chunks, channels, owners: OnceLock::new() }
    }

    /// A channel of its own, whose notices `sink` hears.
    pub fn dial(&self, addresses: &[String], sink: Arc<dyn NoticeSink>) -> Arc<dyn Channel> {
        self.channels.dial(addresses, sink)
    }

    /// The channel to the MDS of an MDT.
    pub fn mds(&self, addresses: &[String]) -> Arc<dyn Channel> {
        self.channels.to(addresses)
    }

    /// How the OSTs of this process are, for its MDT.
    pub async fn ask_own(&self, mdt: Option<MdtIndex>) -> Vec<OstState> {
        match &self.chunks {
            Some(chunks) => chunks.states_for(mdt.as_slice()).await,
            None => Vec::new(),
        }
    }

    /// How the OSTs of other processes are that answered in time.
    pub async fn ask_others(&self) -> Vec<OstState> {
        let mut states = Vec::new();
        let map = self.map.current();
        let others = map.map.osts.iter().filter(|ost| !self.own.contains(&ost.ost));
        let servers: BTreeSet<&[String]> = others.map(|ost| ost.addresses.as_slice()).collect();
        let mut questions = JoinSet::new();
        for addresses in servers {
            let channel = self.channels.to(addresses);
            questions.spawn(async move {
                let patience = Some(ASK_PATIENCE);
                tieline_net::call(&*channel, &Caller::root(), OstStatus {}, Bulk::Empty, patience)
                    .await
            });
        }
        while let Some(answer) = questions.join_next().await {
            match answer {
                Ok(Ok((reply, _))) => states.extend(reply.osts),
                // It shows in the OST's age in `tieline df`, and placement avoids it.
                Ok(Err(error)) => tracing::debug!(%error, "OSS does not say how it is"),
                Err(error) => tracing::debug!(%error, "question after OSTs ended early"),
            }
        }
        states
    }

    /// What an OSS must know of an MDT's capabilities.
    pub async fn capability_news(&self, mdt: MdtIndex) -> Result<CapabilityNewsReply, Failure> {
        self.ask_mdt(mdt, CapabilityNews { mdt }, ASK_PATIENCE).await
    }

    /// Asks whoever serves an MDT.
    async fn ask_mdt<C: Call>(
        &self,
        mdt: MdtIndex,
        message: C,
        patience: Duration,
    ) -> Result<C::Reply, Failure> {
        let map = self.map.current();
        let Some(place) = map.map.mdt(mdt) else {
            let detail = format!("{} is not in the federation map", mdt.label());
            return Err(Failure::new(ErrorKind::NotFound, detail));
        };
        let (channel, caller) = (self.channels.to(&place.addresses), Caller::root());
        let asked = tieline_net::call(&*channel, &caller, message, Bulk::Empty, Some(patience));
        Ok(asked.await.map_err(failure)?.0)
    }

    /// Forgets channels to servers the map does not name any more.
    pub fn prune(&self) {
        self.channels.prune();
    }

    /// Says goodbye to everybody.
    pub async fn close(&self) {
        self.channels.close(CLOSE_PATIENCE).await;
    }

    pub fn is_own(&self, ost: OstIndex) -> bool {
        self.own.contains(&ost)
    }

    /// Has the OSS of an OST drive tape.
    pub async fn drive_tape(
        &self,
        message: DriveTape,
        patience: Duration,
    ) -> Result<DriveTapeReply, Failure> {
        Ok(self.ask_ost(message.ost, message, patience).await?.0)
    }

    /// The service of an OST of this process.
    fn own(&self, ost: OstIndex) -> Option<&Arc<ChunkService>> {
        self.chunks.as_ref().filter(|_| self.own.contains(&ost))
    }

    /// Large requests have much patience; a server that is away shall not use it up.
    async fn check_answers(&self, ost: OstIndex) -> Result<(), Failure> {
        self.ask_ost(ost, OstStatus {}, ASK_PATIENCE).await.map(drop)
    }

    /// Asks whoever serves an OST.
    async fn ask_ost<C: Call>(
        &self,
        ost: OstIndex,
        message: C,
        patience: Duration,
    ) -> Result<(C::Reply, Bytes), Failure> {
        if let Some(own) = self.own(ost) {
            let ourselves = ClientId([0; 16]);
            let (body, bulk) =
                own.call(ourselves, message.into(), Bytes::new(), Rights::All).await?;
            let odd = |error: &dyn std::fmt::Display| {
                Failure::new(ErrorKind::StorageFault, format!("{}: {error}", ost.label()))
            };
            let reply = tieline_wire::decode(&body).map_err(|error| odd(&error))?;
            let bytes = match bulk {
                Bulk::File(_) => {
                    let read = tokio::task::spawn_blocking(move || bulk.to_bytes()).await;
                    read.map_err(|error| odd(&error))?
                }
                here => here.to_bytes(),
            };
            return Ok((reply, bytes.map_err(|error| odd(&error))?));
        }
        let map = self.map.current();
        let Some(place) = map.map.ost(ost) else {
            let detail = format!("{} is not in the federation map", ost.label());
            return Err(Failure::new(ErrorKind::NotFound, detail));
        };
        let channel = self.channels.to(&place.addresses);
        tieline_net::call(&*channel, &Caller::root(), message, Bulk::Empty, Some(patience))
            .await
            .map_err(failure)
    }
}

#[async_trait::async_trait]
impl ObjectMender for Peers {
    async fn verify(
        &self,
        message: VerifyObject,
        patience: Duration,
    ) -> Result<VerifyObjectReply, Failure> {
        self.check_answers(message.ost).await?;
        Ok(self.ask_ost(message.ost, message, patience).await?.0)
    }

    async fn fetch(
        &self,
        message: FetchChunk,
        patience: Duration,
    ) -> Result<FetchChunkReply, Failure> {
        match self.own(message.ost) {
            // It fetches through us.
            Some(own) => own.fetch(message, self).await,
            None => {
                self.check_answers(message.ost).await?;
                Ok(self.ask_ost(message.ost, message, patience).await?.0)
            }
        }
    }
}

#[async_trait::async_trait]
impl LimitsKeeper for Peers {
    async fn shares(
        &self,
        message: QuotaShares,
        patience: Duration,
    ) -> Result<QuotaSharesReply, Failure> {
        self.ask_mdt(ROOT_MDT, message, patience).await
    }

    async fn news(
        &self,
        message: QuotaNews,
        patience: Duration,
    ) -> Result<QuotaNewsReply, Failure> {
        self.ask_mdt(ROOT_MDT, message, patience).await
    }
}

#[async_trait::async_trait]
impl ObjectSource for Peers {
    async fn read(&self, message: ReadObject) -> Result<(ReadObjectReply, Bytes), Failure> {
        self.ask_ost(message.ost, message, SOURCE_PATIENCE).await
    }

    async fn stat(&self, message: StatObject) -> Result<StatObjectReply, Failure> {
        Ok(self.ask_ost(message.ost, message, SOURCE_PATIENCE).await?.0)
    }
}

#[async_trait::async_trait]
impl Objects for Peers {
    async fn remove(&self, ost: OstIndex, chunks: Vec<GrantedId>) -> Result<(), Failure> {
        self.check_answers(ost).await?;
        self.ask_ost(ost, DeleteChunks { ost, chunks }, REMOVE_PATIENCE).await.map(drop)
    }

    async fn list(&self, message: ListObjects) -> Result<ListObjectsReply, Failure> {
        Ok(self.ask_ost(message.ost, message, REMOVE_PATIENCE).await?.0)
    }

    async fn stat(&self, message: StatObject) -> Result<StatObjectReply, Failure> {
        Ok(self.ask_ost(message.ost, message, REMOVE_PATIENCE).await?.0)
    }

    async fn read(&self, message: ReadObject) -> Result<(ReadObjectReply, Bytes), Failure> {
        self.ask_ost(message.ost, message, REMOVE_PATIENCE).await
    }
}

#[async_trait::async_trait]
impl ExposedObjects for Peers {
    async fn stage(
        &self,
        message: StageFile,
        patience: Duration,
    ) -> Result<StageFileReply, Failure> {
        match self.own(message.ost) {
            Some(own) => own.stage(message.clone(), self.exposed_at(&message.pool)?, self).await,
            None => {
                self.check_answers(message.ost).await?;
                Ok(self.ask_ost(message.ost, message, patience).await?.0)
            }
        }
    }

    async fn arrange(&self, message: ArrangeExposed) -> Result<ArrangeExposedReply, Failure> {
        match self.own(message.ost) {
            Some(own) => {
                let at = self.exposed_at(&message.pool)?;
                own.arrange(message, at, &**self.owners()?).await
            }
            None => Ok(self.ask_ost(message.ost, message, ARRANGE_PATIENCE).await?.0),
        }
    }

    async fn list_exposed(&self, message: ListExposed) -> Result<ListExposedReply, Failure> {
        match self.own(message.ost) {
            Some(own) => own.list_exposed(message.clone(), self.exposed_at(&message.pool)?).await,
            None => Ok(self.ask_ost(message.ost, message, ARRANGE_PATIENCE).await?.0),
        }
    }
}

/// What the other server said, or that it said nothing.
pub fn failure(error: CallError) -> Failure {
    match error {
        CallError::Refused(failure) => failure,
        other => Failure::new(other.kind(), other.to_string()),
    }
}
