//! One port, all roles: greets sessions and hands each request to its room.
//!
//! A client's session with an MDS is the MDT's affair and survives restarts. Everybody else is a
//! *visitor*: other servers, and clients of a server that holds OSTs only. Whatever a visitor may
//! ask can be asked twice, so visitors need no memory: a session a visitor names is always
//! resumed, even after a restart.
//!
//! A session belongs to who proved to be its owner: another principal that names it gets a new one.
//!
//! Invariants: session numbers of visitors have their highest bit set, those of an MDT never have;
//! only another server may delete chunks or have them copied; only an operator, at the server with
//! the key, changes the map; only an operator dumps and checks an MDT.

use crate::audit::{Asked, Audit, Deed};
use crate::batches;
use crate::capabilities::Capabilities;
use crate::connections::Connections;
use crate::edits::Edits;
use crate::exposed;
use crate::identities::{Errand, Identities, Who, pool_admin, site_admin};
use crate::maps::MapKeeper;
use crate::peers::Peers;
use crate::reports::Reports;
use crate::tended;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::Guard;
use tieline_auth::capability::{holder_of, server_holder};
use tieline_data::{ChunkService, Rights, TapeService};
use tieline_format::map::{FederationMap, Pool};
use tieline_meta::{Asker, Coming, Mdt};
use tieline_net::{CallContext, Notifier, Peer, Reply, Response, Service};
use tieline_tend::Tender;
use tieline_types::{
    Caller, ChunkRef, ClientId, Content, ErrorKind, Extent, FsName, Grant, LostLock, MdtIndex,
    ObjectName, OstPlace, Role, SessionId, Shown, Time, Uid,
};
use tieline_wire::capability::{CapabilityNews, RenewCapabilityKey, RenewCapabilityKeyReply};
use tieline_wire::chores::ListChores;
use tieline_wire::data::{OstStatus, OstStatusReply, ReadObject};
use tieline_wire::federation::{
    Drain, DrainReply, EditMap, EditMapReply, GetMap, MapEdit, SiteJoin,
};
use tieline_wire::handshake::{VERSION, VERSION_OLDEST};
use tieline_wire::identity::{EditIdentities, IdentityEdit, ListIdentities, Prove};
use tieline_wire::ledger::{CheckMdt, DumpMdt, Undelete};
use tieline_wire::mirrors::{FetchChunk, ReportPlace, ReportPlaceReply, VerifyObject};
use tieline_wire::quotas::{QuotaNews, QuotaShares};
use tieline_wire::tape::{DriveTape, TapeContent};
use tieline_wire::{Answerer, Failure, Hello, PeerRole, Refusal, Request, Welcome};
use tieline_world::{Bulk, World};

/// Set in the session numbers of visitors.
const VISITOR: u64 = 1 << 63;
/// What the number of a visitor's session says: that it is one, in which role, and whose.
const MARKS: u64 = VISITOR | OWNER | 1;
const OWNER: u64 = 0xffff_ffff << 1;
/// Visitors hold no leases; this only says how often they should be heard.
const VISITOR_LEASE: Duration = Duration::from_secs(20);

/// Changes of identities in one line of the record.
const EDITS_A_LINE: usize = 8;

/// A server as the network sees it.
pub struct Node {
    pub name: String,
    pub fs: FsName,
    pub operator: Uid,
    pub boot: u64,
    pub world: World,
    pub connections: Arc<Connections>,
    pub map: Arc<MapKeeper>,
    pub mdt: Option<Arc<Mdt>>,
    /// Of the MDT's background.
    pub tender: Option<Arc<Tender>>,
    pub chunks: Option<Arc<ChunkService>>,
    pub tape: Option<Arc<TapeService>>,
    pub peers: Arc<Peers>,
    pub identities: Arc<Identities>,
    pub audit: Arc<Audit>,
    pub capabilities: Arc<Capabilities>,
    pub guard: Arc<Guard>,
    pub mdt_index: Option<MdtIndex>,
    pub edits: Edits,
    pub reports: Reports,
}

/// What a welcome says of a session.
struct Greeting {
    session: SessionId,
    grant: Grant,
    is_resumed: bool,
    boot: u64,
    lease: Duration,
    lost_locks: Vec<LostLock>,
}

#[async_trait::async_trait]
impl Service for Node {
    async fn welcome(&self, hello: &Hello, peer: &Peer) -> Result<Welcome, Refusal> {
        let version = self.agree(hello)?;
        let is_visiting = hello.features & Hello::VISITOR != 0;
        let greeting = match (&self.mdt, hello.role) {
            (Some(mdt), PeerRole::Client) if !is_visiting => greet_client(mdt, hello, peer).await?,
            _ => self.greet_visitor(hello, peer),
        };
        self.audit.came(hello, peer, greeting.session);
        let resumed = if greeting.is_resumed { "resumed" } else { "new" };
        tracing::debug!(
            %peer, from = %hello.description, session = %greeting.session, "{resumed} session"
        );
        Ok(Welcome {
            version,
            session: greeting.session,
            is_resumed: greeting.is_resumed,
            grant: greeting.grant,
            boot: greeting.boot,
            lease_ms: u32::try_from(greeting.lease.as_millis()).unwrap_or(u32::MAX),
            flavor: peer.flavor,
            features: Welcome::ROOM | if self.tells_trees(peer) { Welcome::TREES } else { 0 },
            server: self.name.clone(),
            map: self.map.cell().current().map.version,
            holder: holder_of(hello.client, peer.principal.as_deref()),
            lost_locks: Some(greeting.lost_locks).filter(|lost| !lost.is_empty()),
        })
    }

    fn turned_away(&self, address: &str, refusal: &Refusal) {
        self.audit.turned_away(address, refusal);
    }

    fn connected(&self, session: SessionId, notifier: Notifier) {
        self.connections.add(session, notifier);
    }

    async fn call(&self, context: CallContext, request: Request, bulk: Bytes) -> Response {
        let asked = Asked::of(&context, &request);
        asked.scope(self.answer(context, request, bulk)).await
    }

    fn heard(&self, session: SessionId) {
        if let Some(mdt) = self.mdt_of(session) {
            mdt.heard(session);
        }
    }

    fn now(&self) -> Option<Time> {
        self.mdt.as_ref()?;
        let wall = self.world.clock.wall();
        Some(Time { seconds: wall.as_secs() as i64, nanos: wall.subsec_nanos() })
    }

    fn disconnected(&self, session: SessionId) {
        self.connections.remove(session);
        if let Some(mdt) = self.mdt_of(session) {
            mdt.disconnected(session);
        }
    }

    async fn goodbye(&self, session: SessionId) {
        let Some(mdt) = self.mdt_of(session) else { return };
        if let Err(failure) = mdt.end_session(session).await {
            tracing::warn!(%session, %failure, "session could not be ended; it will expire");
        }
    }
}

impl Node {
    async fn answer(
        &self,
        mut context: CallContext,
        mut request: Request,
        bulk: Bytes,
    ) -> Response {
        let stated = std::mem::take(&mut context.envelope.caller);
        // Whatever a machine may say of its users, others may not.
        let who = match request {
            Request::GetMap(_) => {
                let mut reply = self.map.reply();
                reply.now_ms = Some(self.now_ms());
                return Ok(Reply::new::<GetMap>(&reply));
            }
            Request::Prove(message) => {
                let reply = self.identities.prove(&context, stated, message).await?;
                return Ok(Reply::new::<Prove>(&reply));
            }
            // Who joins has nothing but the invitation.
            _ if is_joining(&request) => Who::nobody_by(context.principal.clone()),
            _ => {
                let asks = (request.op(), Errand::of(&request));
                self.identities.who(&context, stated, asks).await?
            }
        };
        context.envelope.caller = who.caller.clone();
        let doers = self.identities.settle_batch(&context, &mut request).await?;
        let asked = (context.session, context.number);
        match request {
            Request::EditMap(message) => self.edits.once(asked, self.edit_map(&who, message)).await,
            Request::DumpMdt(message) => self.dump(&who, message).await,
            Request::CheckMdt(message) => self.check(&who, message).await,
            Request::ListChores(_) => self.chores(&who),
            Request::RenewCapabilityKey(_) => self.renew_capability_key(&who),
            Request::Drain(message) => self.drain(&who, &message),
            Request::EditIdentities(message) => {
                self.edits.once(asked, self.edit_identities(&who, &message)).await
            }
            Request::ListIdentities(message) => {
                Ok(Reply::new::<ListIdentities>(&self.identities.list(&who, &message)))
            }
            Request::Fill(message) => {
                let (body, bulk) = tieline_data::fill(&message)?;
                Ok(Reply { body, bulk })
            }
            request if request.op().answerer() == Answerer::Oss => {
                self.call_chunks(context, request, bulk).await
            }
            Request::CapabilityNews(message) => self.capability_news(context.session, &message),
            Request::QuotaShares(message) => {
                let mdt = self.kept_limits(&context, message.mdt)?;
                Ok(Reply::new::<QuotaShares>(&mdt.quota_shares(&message).await?))
            }
            Request::QuotaNews(message) => {
                let mdt = self.kept_limits(&context, message.mdt)?;
                Ok(Reply::new::<QuotaNews>(&mdt.quota_news(&message).await?))
            }
            request => self.call_mdt(context, (&who, &doers), request).await,
        }
    }

    /// What both ends can speak.
    fn agree(&self, hello: &Hello) -> Result<u16, Refusal> {
        let version = hello.version_newest.min(VERSION);
        if version < VERSION_OLDEST || version < hello.version_oldest {
            let detail = format!("{} speaks {VERSION_OLDEST} to {VERSION}", self.name);
            return Err(refusal(ErrorKind::VersionMismatch, detail));
        }
        if hello.fs != self.fs {
            let detail = format!("{} serves /{}, not /{}", self.name, self.fs, hello.fs);
            return Err(refusal(ErrorKind::NotFound, detail));
        }
        Ok(version)
    }

    /// Trees are told whole, past what the scopes of a door's users hold.
    fn tells_trees(&self, peer: &Peer) -> bool {
        let current = self.map.cell().current();
        let security = current.map.security.as_ref().zip(peer.principal.as_deref());
        let is_door = security.is_some_and(|(security, name)| security.door(name).is_some());
        self.mdt.is_some() && !is_door
    }

    fn greet_visitor(&self, hello: &Hello, peer: &Peer) -> Greeting {
        // Which kind of visitor it is goes into the number, so that calls need no table of
        // sessions.
        let role = if hello.role == PeerRole::Client { 0 } else { 1 };
        let mark = VISITOR | role | owner_mark(peer);
        let fresh = SessionId((self.world.random() & !MARKS) | mark);
        // Somebody else's number is worth nothing, nor is one of another role.
        let offered = hello.session.filter(|session| session.0 & MARKS == mark);
        Greeting {
            session: offered.unwrap_or(fresh),
            grant: Grant(0),
            is_resumed: offered.is_some(),
            boot: self.boot,
            lease: VISITOR_LEASE,
            lost_locks: vec![],
        }
    }

    fn mdt_of(&self, session: SessionId) -> Option<&Arc<Mdt>> {
        self.mdt.as_ref().filter(|_| session.0 & VISITOR == 0)
    }

    async fn edit_map(&self, who: &Who, message: EditMap) -> Response {
        let current = self.map.cell().current();
        let suffices = match &message.edit {
            MapEdit::PoolAdd { pool, .. }
            | MapEdit::PoolRemove { pool, .. }
            | MapEdit::PoolHsm { pool, .. } => vec![pool_admin(pool)],
            // It is written to a machine of that site, whose admin reads there what he likes.
            MapEdit::PoolExpose { pool, .. } => current
                .map
                .pool(pool)
                .and_then(|pool| site_of(&current.map, pool))
                .into_iter()
                .collect(),
            MapEdit::PoolHide(pool) => {
                let known = current.map.pool(pool).and_then(|pool| pool.exposure.as_ref());
                let known = known.and_then(|exposure| current.map.ost(exposure.ost));
                known.map(|ost| site_admin(&ost.site)).into_iter().collect()
            }
            MapEdit::OstActivate(ost) | MapEdit::OstDeactivate(ost) => {
                let known = current.map.ost(*ost);
                known.map(|ost| site_admin(&ost.site)).into_iter().collect()
            }
            _ => vec![],
        };
        let what = format!("change the federation map: {}", message.edit);
        let is_join = matches!(message.edit, MapEdit::SiteJoin(_));
        match &message.edit {
            MapEdit::SiteJoin(join) => self.check_joiner(who, join)?,
            _ => self.identities.check_role(who, self.operator, &what, &suffices)?,
        }
        // Whether it is known who joins, and with which right, is seen when he has.
        let deed = (!is_join).then(|| self.audit.begin(who, vec![what]));
        let edited = self
            .map
            .edit(&message.edit, (self.now_ms(), &self.world.dice), self.mdt.as_deref())
            .await;
        let edited = match deed {
            Some(deed) => deed.ended(edited),
            None => edited.map_err(|failure| self.explained_join(who, is_join, failure)),
        };
        let version = edited?;
        if let MapEdit::SiteJoin(join) = &message.edit {
            let map = self.map.cell().current();
            let site = map.map.osts.iter().find(|ost| ost.addresses == join.addresses);
            let site = site.map_or_else(String::new, |ost| format!("site {} ", ost.site));
            let at = join.addresses.join(", ");
            let what = format!("have {site}join by its invitation, at {at}");
            self.audit.begin(who, vec![what]).ended(Ok(()))?;
        }
        Ok(Reply::new::<EditMap>(&EditMapReply { version }))
    }

    /// Who joins under a name has its keys: else an invitation would make a server of anybody's.
    fn check_joiner(&self, who: &Who, join: &SiteJoin) -> Result<(), Failure> {
        let (Some(proven), Some(named)) = (&who.principal, &join.principal) else { return Ok(()) };
        if **proven == **named {
            return Ok(());
        }
        let named = Shown(named.as_bytes());
        let why = format!("{proven} joins and says to be {named}: join with the keytab of {named}");
        Err(self.identities.deny(ErrorKind::PermissionDenied, who.principal.as_ref(), why))
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.world.clock.wall().as_millis()).unwrap_or(u64::MAX)
    }

    async fn edit_identities(&self, who: &Who, message: &EditIdentities) -> Response {
        let lines: Vec<String> = message.edits.chunks(EDITS_A_LINE).map(edits_line).collect();
        let mut what = lines.first().cloned().unwrap_or_else(|| edits_line(&[]));
        if let Some(more) = message.edits.len().checked_sub(EDITS_A_LINE).filter(|&more| more > 0) {
            what = format!("{what}; and {more} more");
        }
        self.identities.check_role(who, self.operator, &what, &[])?;
        let deed = self.audit.begin(who, lines);
        let reply = deed.ended(self.identities.edit(message).await)?;
        Ok(Reply::new::<EditIdentities>(&reply))
    }

    /// Tells everybody that this server will be away, or that it stays.
    fn drain(&self, who: &Who, message: &Drain) -> Response {
        let what = "drain this server";
        self.identities.check_role(who, self.operator, what, &[])?;
        let deed = self.audit.begin(who, vec![what.to_owned()]);
        let told = self.connections.hold_all(Duration::from_millis(message.for_ms));
        tracing::info!(told, seconds = message.for_ms / 1000, "clients are told to hold");
        let told = u32::try_from(told).unwrap_or(u32::MAX);
        deed.ended(Ok(Reply::new::<Drain>(&DrainReply { told })))
    }

    /// What only operators may ask of the MDT, over any connection.
    fn operated<'a>(
        &'a self,
        who: &'a Who,
        what: &str,
    ) -> Result<(&'a Arc<Mdt>, Deed<'a>), Failure> {
        let mdt = self.mdt.as_ref().ok_or_else(|| self.no_mdt())?;
        let current = self.map.cell().current();
        let home = current.map.mdt(mdt.index()).map(|known| site_admin(&known.home));
        let suffices: Vec<Role> = home.into_iter().collect();
        self.identities.check_role(who, self.operator, what, &suffices)?;
        Ok((mdt, self.audit.begin(who, vec![what.to_owned()])))
    }

    fn no_mdt(&self) -> Failure {
        Failure::new(ErrorKind::WrongServer, format!("{} holds no MDT", self.name))
    }

    async fn dump(&self, who: &Who, message: DumpMdt) -> Response {
        let (mdt, deed) = self.operated(who, "dump the MDT")?;
        let (reply, frames) = deed.ended(mdt.dump(&message).await)?;
        Ok(Reply { bulk: Bulk::Bytes(frames.into()), ..Reply::new::<DumpMdt>(&reply) })
    }

    fn chores(&self, who: &Who) -> Response {
        let (_, deed) = self.operated(who, "list the MDT's background work")?;
        let tender = self.tender.as_ref().ok_or_else(|| self.no_mdt())?;
        Ok(Reply::new::<ListChores>(&deed.ended(Ok(tender.list()))?))
    }

    fn renew_capability_key(&self, who: &Who) -> Response {
        let (mdt, deed) = self.operated(who, "renew the key of the MDT's capabilities")?;
        mdt.renew_capability_key();
        deed.ended(Ok(Reply::new::<RenewCapabilityKey>(&RenewCapabilityKeyReply {})))
    }

    async fn check(&self, who: &Who, message: CheckMdt) -> Response {
        let what = if message.is_repair { "repair the MDT" } else { "check the MDT" };
        let (_, deed) = self.operated(who, what)?;
        let tender = self.tender.as_ref().ok_or_else(|| self.no_mdt())?;
        let reply = deed.ended(tender.check(&message).await)?;
        Ok(Reply::new::<CheckMdt>(&reply))
    }

    async fn call_mdt(
        &self,
        context: CallContext,
        (who, doers): (&Who, &[Arc<Who>]),
        request: Request,
    ) -> Response {
        let Some(mdt) = self.mdt_of(context.session) else {
            let detail = format!("{} answers no namespace calls here", self.name);
            return Err(Failure::new(ErrorKind::WrongServer, detail));
        };
        let act = administered(&request);
        let roles = act.as_ref().map(|act| self.roles_for(mdt, act)).unwrap_or_default();
        let is_raised = who.roles.iter().any(|role| roles.contains(role));
        let asker = Asker {
            session: context.session,
            number: context.number,
            caller: if is_raised { Caller::root() } else { who.caller.clone() },
            delegation: who.delegation.clone(),
            may_be_root: self.identities.may_be_root(context.principal.as_ref()),
            of_items: doers.iter().map(|doer| doer.delegation.clone()).collect(),
            answered_below: context.envelope.answered_below,
        };
        if matches!(request, Request::ReportPlace(_)) && !self.reports.hears(&asker.caller) {
            return Ok(Reply::new::<ReportPlace>(&ReportPlaceReply {}));
        }
        let what = act.and_then(|act| act.what).filter(|_| asker.caller.is_root());
        let deed = what.map(|what| self.audit.begin(who, vec![what]));
        let answer = mdt.call(&asker, &request).await;
        if answer.is_err() && mdt.trouble().is_some() {
            // The store ended, and with it this server. What became of the request is known to
            // whoever opens the store next, and the client asks there again.
            std::future::pending::<()>().await;
        }
        let answer = match deed {
            Some(deed) => deed.ended(answer),
            None => answer,
        };
        let explained = |failure| self.explained(who, with_roles(failure, &roles));
        let mut body = answer.map_err(explained)?;
        if let Request::Batch(batch) = &request {
            body = batches::explained(batch, body, |index, item, failure| {
                let asked = Asked::of_item(&context, item);
                let doer = doers.get(index).map_or(who, |doer| doer);
                asked.scope_now(|| self.explained(doer, failure))
            });
        }
        Ok(Reply { body, ..Reply::default() })
    }

    /// The roles by which somebody may what else only root may.
    fn roles_for(&self, mdt: &Mdt, act: &Act) -> Vec<Role> {
        let current = self.map.cell().current();
        let home = current.map.mdt(mdt.index()).map(|known| site_admin(&known.home));
        let home = home.filter(|_| act.is_of_site);
        [Role::FsAdmin].into_iter().chain(home).collect()
    }

    /// An invitation that is not taken is a denial, though nobody in particular showed it.
    fn explained_join(&self, who: &Who, is_join: bool, failure: Failure) -> Failure {
        if is_join && is_denial(failure.kind) {
            return self.identities.deny(failure.kind, who.principal.as_ref(), failure.detail);
        }
        failure
    }

    /// A denial says to whom, and can be found again.
    fn explained(&self, who: &Who, failure: Failure) -> Failure {
        let principal = who.principal.as_ref().filter(|_| is_denial(failure.kind));
        let Some(principal) = principal else { return failure };
        let name = self.identities.name_of(who.caller.uid);
        let why = format!("{}; {name} by {}", failure.detail, who.how);
        self.identities.deny(failure.kind, Some(principal), why)
    }

    fn capability_news(&self, session: SessionId, message: &CapabilityNews) -> Response {
        if !is_server(session) {
            let detail = "only servers of the federation are told of capabilities".to_owned();
            return Err(Failure::new(ErrorKind::NotPermitted, detail));
        }
        match &self.mdt {
            Some(mdt) if self.mdt_index == Some(message.mdt) => {
                Ok(Reply::new::<CapabilityNews>(&mdt.capability_news()))
            }
            _ => {
                let detail = format!("{} does not hold {}", self.name, message.mdt.label());
                Err(Failure::new(ErrorKind::WrongServer, detail))
            }
        }
    }

    /// The MDT here, for a server that asks on behalf of another one after its shares of limits.
    fn kept_limits(&self, context: &CallContext, of: MdtIndex) -> Result<&Arc<Mdt>, Failure> {
        // Where nothing is proven, its word is all there is.
        let is_its = |server: &Arc<str>| self.guard.mdts_of(server).contains(&of);
        if !is_server(context.session) || !context.principal.as_ref().is_none_or(is_its) {
            let detail = format!("only the server of {} asks after its shares", of.label());
            return Err(Failure::new(ErrorKind::NotPermitted, detail));
        }
        self.mdt.as_ref().ok_or_else(|| self.no_mdt())
    }

    /// Is a request for this server of the federation to make? An MDS cares for the chunks of its
    /// MDTs; all may look at how OSTs are and what lies there.
    fn is_its_affair(&self, server: &str, request: &Request) -> bool {
        let own = self.guard.mdts_of(server);
        match request {
            Request::OstStatus(_) | Request::ListObjects(_) | Request::StatObject(_) => true,
            Request::StageFile(stage) => {
                let is_own = |extent: &Extent| is_own_content(&own, &extent.content);
                own.contains(&stage.file.mdt()) && stage.extents.iter().all(is_own)
            }
            Request::ArrangeExposed(arrange) => {
                let map = self.map.cell().current();
                own.contains(&arrange.mdt) && exposed::is_its(&map.map, arrange)
            }
            Request::ListExposed(list) => {
                let map = self.map.cell().current();
                own.contains(&exposed::owner_of(&map.map, &list.directory))
            }
            Request::DeleteChunks(delete) => delete.chunks.iter().all(|c| own.contains(&c.mdt)),
            Request::DriveTape(drive) => is_of(&own, drive),
            Request::FetchChunk(fetch) => {
                let is_own = |place: &OstPlace| is_own_object(&own, &place.object);
                own.contains(&fetch.chunk.mdt) && fetch.from.iter().all(is_own)
            }
            Request::ReadObject(ReadObject { object, .. })
            | Request::VerifyObject(VerifyObject { object, .. }) => is_own_object(&own, object),
            _ => false,
        }
    }

    async fn call_chunks(&self, context: CallContext, request: Request, bulk: Bytes) -> Response {
        let Some(chunks) = &self.chunks else {
            let detail = format!("{} holds no OST", self.name);
            return Err(Failure::new(ErrorKind::WrongServer, detail));
        };
        let is_server = is_server(context.session);
        // Where nothing is proven, its word is all there is.
        let server = context.principal.as_deref().filter(|_| is_server);
        let is_its = server.map_or(is_server, |server| self.is_its_affair(server, &request));
        let is_care = matches!(
            request,
            Request::DeleteChunks(_) | Request::FetchChunk(_) | Request::DriveTape(_)
        );
        if is_care && !is_its {
            let detail =
                "only the MDS of a chunk deletes it, or has it copied or archived".to_owned();
            let failure = Failure::new(ErrorKind::NotPermitted, detail);
            return Err(self.recorded(&context, failure));
        }
        if exposed::is_exposing(&request) {
            if !is_its {
                return Err(self.recorded(&context, exposed::refused()));
            }
            let answer = self.call_exposed(chunks, request).await;
            return answer.unwrap_or_else(|| Err(exposed::refused()));
        }
        if let Request::FetchChunk(message) = request {
            let fetched = chunks.fetch(message, &*self.peers).await;
            let reply = fetched.map_err(|failure| self.recorded(&context, failure))?;
            return Ok(Reply::new::<FetchChunk>(&reply));
        }
        if let Request::DriveTape(message) = request {
            let driven = tended::drive(self.tape.as_ref(), &self.peers, message).await;
            let reply = driven.map_err(|failure| self.recorded(&context, failure))?;
            return Ok(Reply::new::<DriveTape>(&reply));
        }
        if matches!(request, Request::OstStatus(_)) {
            let own = server.map_or_else(Vec::new, |server| self.guard.mdts_of(server));
            let osts = chunks.states_for(&own).await;
            return Ok(Reply::new::<OstStatus>(&OstStatusReply { osts }));
        }
        let principal = context.principal.as_deref().filter(|_| !is_its);
        let holder = match server {
            Some(server) => Some(server_holder(server)),
            None => holder_of(context.client, principal),
        };
        let client = owned_by(context.client, context.principal.as_deref());
        let answer = match holder.zip(principal) {
            None if is_its => chunks.call(client, request, bulk, Rights::All).await,
            None => chunks.call(client, request, bulk, Rights::Unproven).await,
            Some((holder, principal)) => {
                self.capabilities.prepare(&request).await;
                let checker = &self.capabilities.checker;
                let is_root = context.envelope.caller.is_root() && !is_server;
                let realm = principal.rsplit_once('@').map_or("", |(_, realm)| realm);
                let realm = (!is_server).then_some(realm);
                let rights = Rights::Shown { checker, holder, realm, is_root };
                chunks.call(client, request, bulk, rights).await
            }
        };
        let (body, bulk) = answer.map_err(|failure| self.recorded(&context, failure))?;
        Ok(Reply { body, bulk })
    }

    /// A denial of bytes can be found again, too.
    fn recorded(&self, context: &CallContext, failure: Failure) -> Failure {
        match (is_denial(failure.kind), &context.principal) {
            (true, Some(principal)) => {
                self.identities.deny(failure.kind, Some(principal), failure.detail)
            }
            _ => failure,
        }
    }
}

/// Is an object one of these MDTs', or a file that was there before us?
fn is_own_object(own: &[MdtIndex], object: &ObjectName) -> bool {
    match object {
        ObjectName::Chunk(chunk) => own.contains(&chunk.mdt),
        ObjectName::External { .. } => !own.is_empty(),
        ObjectName::Key(_) => false,
    }
}

/// Is a chunk one of these MDTs'? And so must be where it is said to lie: a server reads its own
/// OSTs for whoever has it do something with a chunk.
fn is_own_chunk(own: &[MdtIndex], chunk: &ChunkRef) -> bool {
    let is_named = chunk.chunk.granted().is_some_and(|id| own.contains(&id.mdt));
    is_named && chunk.at_osts().all(|place| is_own_object(own, &place.object))
}

fn is_own_content(own: &[MdtIndex], content: &Content) -> bool {
    match content {
        Content::Chunk(chunk) => is_own_chunk(own, chunk),
        Content::Hole | Content::Inline(_) => true,
    }
}

/// Is a file on its way to tape or back one of these MDTs', and are its chunks?
fn is_of(own: &[MdtIndex], drive: &DriveTape) -> bool {
    let parts = drive.work.iter().flat_map(|work| &work.parts);
    let is_own = |content: &TapeContent| match content {
        TapeContent::Inline(_) => true,
        TapeContent::Chunk(chunk) | TapeContent::To(chunk, _) => is_own_chunk(own, chunk),
    };
    own.contains(&drive.file.mdt()) && parts.map(|part| &part.content).all(is_own)
}

/// A call to the namespace by which administrators do more than others.
struct Act {
    /// For the record; looking is not on it.
    what: Option<String>,
    /// It concerns this MDT alone, which is its site's.
    is_of_site: bool,
}

fn administered(request: &Request) -> Option<Act> {
    let (what, is_of_site) = match request {
        Request::SetQuota(message) => (Some(message.to_string()), false),
        Request::ReclaimShares(message) => {
            (Some(format!("take back what {} held of limits", message.mdt.label())), false)
        }
        Request::GetQuota(_) | Request::ListQuotas(_) => (None, false),
        Request::SetProject(message) => {
            let (first, count) = (message.ids.first(), message.ids.len());
            let first = first.map_or_else(String::new, |id| format!(", the first {id}"));
            let project = message.project;
            (Some(format!("put {count} files into project {project}{first}")), true)
        }
        Request::Undelete(message) => {
            let Undelete { id, parent, name, .. } = message;
            (Some(format!("undelete file {id} as `{name}` in {parent}")), true)
        }
        Request::ListDeleted(_) => (None, true),
        _ => return None,
    };
    Some(Act { what, is_of_site })
}

/// Rooms know root only; who reads the refusal may have somebody to ask.
fn with_roles(failure: Failure, roles: &[Role]) -> Failure {
    if failure.kind != ErrorKind::NotPermitted || roles.is_empty() {
        return failure;
    }
    let roles: Vec<String> = roles.iter().map(Role::to_string).collect();
    let detail = format!("{}; who has {} may, too", failure.detail, roles.join(" or "));
    Failure { detail, ..failure }
}

/// The role that administers all OSTs of a pool, if they are at one site.
fn site_of(map: &FederationMap, pool: &Pool) -> Option<Role> {
    let sites: Option<BTreeSet<_>> =
        pool.osts.iter().map(|&ost| Some(&map.ost(ost)?.site)).collect();
    let sites = sites.filter(|sites| sites.len() == 1)?;
    sites.into_iter().next().map(site_admin)
}

fn edits_line(edits: &[IdentityEdit]) -> String {
    let edits: Vec<String> = edits.iter().map(ToString::to_string).collect();
    format!("change identities: {}", edits.join("; "))
}

pub fn is_denial(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PermissionDenied | ErrorKind::NotPermitted)
}

/// Did another server open this session? Its role was proven, where anything is.
pub fn is_server(session: SessionId) -> bool {
    session.0 & VISITOR != 0 && session.0 & 1 == 1
}

async fn greet_client(mdt: &Mdt, hello: &Hello, peer: &Peer) -> Result<Greeting, Refusal> {
    let client = owned_by(hello.client, peer.principal.as_deref());
    let wait = hello.wait_ms.map(Duration::from_millis);
    let machine = machine_of(peer);
    let party = peer.principal.as_deref().unwrap_or(&machine);
    let host = format!("{} at {machine}", peer.principal.as_deref().unwrap_or("anybody"));
    let coming = Coming { description: &hello.description, host: &host, party, wait };
    let opened = mdt.open_session(client, hello.session, coming).await;
    let opened = opened.map_err(|failure| refusal(failure.kind, failure.detail))?;
    Ok(Greeting {
        session: opened.session,
        grant: opened.grant,
        is_resumed: opened.is_resumed,
        boot: opened.boot,
        lease: opened.lease,
        lost_locks: opened.lost_locks,
    })
}

/// From which machine somebody comes, whatever he says of himself.
fn machine_of(peer: &Peer) -> String {
    let address = peer.address.parse::<SocketAddr>();
    address.map_or_else(|_| peer.address.clone(), |address| address.ip().to_string())
}

/// The client as sessions know it: who proved to be somebody else is another one, whatever number
/// he found.
fn owned_by(client: ClientId, principal: Option<&str>) -> ClientId {
    holder_of(client, principal).map_or(client, |holder| ClientId(holder.0))
}

/// Some bits of who proved to be there.
fn owner_mark(peer: &Peer) -> u64 {
    let ClientId(owned) = owned_by(ClientId([0; 16]), peer.principal.as_deref());
    let bits = owned.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    u64::from(bits) << 1
}

fn refusal(kind: ErrorKind, detail: String) -> Refusal {
    Refusal { kind, detail, version_oldest: VERSION_OLDEST, version_newest: VERSION }
}

/// A site that joins shows its invitation: who it is matters when it has joined.
fn is_joining(request: &Request) -> bool {
    matches!(request, Request::EditMap(EditMap { edit: MapEdit::SiteJoin(_) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_roles_that_would_do() {
        let refused = |kind| Failure::new(kind, "only root may set quotas, not uid 5002");
        let roles = [Role::FsAdmin, site_admin(&"uf".parse().unwrap())];
        let told = with_roles(refused(ErrorKind::NotPermitted), &roles).detail;
        assert!(told.ends_with("uid 5002; who has fs-admin or site-admin:uf may, too"), "{told}");
        let other = refused(ErrorKind::NotFound);
        assert_eq!(with_roles(other.clone(), &roles), other);
        assert_eq!(with_roles(other.clone(), &[]), other);
    }
}
