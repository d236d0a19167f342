//! On whose behalf a request is made, once connections are proven.
//!
//! * A server of the federation, where it comes as one, asks for itself, and only what servers ask
//!   each other ([`OF_SERVERS`]): its key is nobody's right to files, names, or what administrators
//!   do. Where it comes as a client it is whatever its name is, mostly a stranger.
//! * A machine (`host/NAME`, `tieline_role/NAME`) says which of its users asks, and is believed as
//!   far as the map's rule for it says: by default not at all. Its users prove themselves beside it
//!   ([`Identities::prove`]), and their requests carry the number of their proof. Its root carries
//!   a number of its own once it heard whom it is taken for ([`Caller::MACHINE_ROOT`]): what it
//!   does is judged as that question was.
//! * A user's own principal is who the table of identities says, whatever uid the request says.
//!   While the table is empty, the user database of the server's machine stands in for it. Over a
//!   user's connection, too, others prove themselves: a mount is not only for who made it. Who asks
//!   there and shows nothing is a stranger, if the mount says so ([`Caller::STRANGER`]).
//! * A door that the map names speaks for users that came to it ([`delegations`]): of itself it is
//!   nobody, whatever else is said of its principal.
//! * Everybody else is a stranger: refused with the reason, or nobody in particular, as the map
//!   says.
//!
//! The MDS of the root keeps the table in its MDT; other servers fetch it every few seconds, keep
//! it on disk, and look once more before somebody is a stranger.
//!
//! Invariants: nobody is root by a user's ticket, nor by a server's key; nothing of a request
//! reaches a room before its caller, and those of all items of a batch, are settled; a refusal has
//! an id that is in the log; what is looked up and what was proven is bounded.

use crate::audit::Audit;
use crate::node::is_server;
use crate::peers::{Peers, failure};
use proofs::{KnownBy, Proof, Proofs};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tieline_auth::{Guard, MapCell};
use tieline_format::map::Security;
use tieline_identities::machines::trust_of;
use tieline_identities::{IdentityTable, Pages, Resolved, Step, Unknown};
use tieline_meta::{Delegation, Mdt};
use tieline_net::CallContext;
use tieline_types::identity::NOBODY;
use tieline_types::{
    Caller, Door, ErrorKind, Gid, IdentityKind, MachineTrust, MdtIndex, PoolName, Role, SessionId,
    SiteName, Strangers, Uid,
};
use tieline_wire::identity::{
    EditIdentities, EditIdentitiesReply, ListIdentities, ListIdentitiesReply, Prove, ProveReply,
};
use tieline_wire::{Failure, Op, Request};
use tieline_world::{Bulk, Clock};
use tokio::time::Instant;
use witnessed::Witnesses;

mod delegations;
mod local;
mod proofs;
mod tokens;
mod witnessed;

pub use proofs::Errand;

/// What servers ask each other; whose chunks are whose, the node looks at. Everybody may ask for
/// the map.
const OF_SERVERS: [Op; 15] = [
    Op::ListIdentities,
    Op::CapabilityNews,
    Op::QuotaShares,
    Op::QuotaNews,
    Op::ReadObject,
    Op::DeleteChunks,
    Op::OstStatus,
    Op::StatObject,
    Op::ListObjects,
    Op::FetchChunk,
    Op::DriveTape,
    Op::VerifyObject,
    Op::StageFile,
    Op::ArrangeExposed,
    Op::ListExposed,
];
/// How often a copy of the table is looked after.
const FOLLOW_EVERY: Duration = Duration::from_secs(5);
/// A stranger has the table fetched once more, at most so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const FETCH_PATIENCE: Duration = Duration::from_secs(5);
/// Callers in one batch, each looked up once: more than share a machine for a second.
const DOERS_MAX: usize = 256;

/// See the module.
pub struct Identities {
    pub guard: Arc<Guard>,
    pub map: MapCell,
    /// For people: `mds-uf`.
    pub server: String,
    /// Where the table is kept, if here.
    pub keeper: Option<Arc<Mdt>>,
    /// What notes who showed a ticket, if an MDT is served here.
    pub mdt: Option<Arc<Mdt>>,
    /// Where a copy is kept.
    pub file: Option<PathBuf>,
    pub peers: Arc<Peers>,
    /// Tokens say until when they hold.
    pub clock: Arc<dyn Clock>,
    pub audit: Arc<Audit>,
    pub state: State,
}

/// What is known by now.
#[derive(Default)]
pub struct State {
    table: RwLock<Arc<IdentityTable>>,
    local: local::Users,
    proofs: Proofs,
    witnessed: Witnesses,
    looked: Mutex<Option<Instant>>,
    fetching: tokio::sync::Mutex<()>,
}

/// Who asks.
#[derive(Clone, Debug, Default)]
pub struct Who {
    pub caller: Caller,
    /// `None` under flavor null.
    pub principal: Option<Arc<str>>,
    pub roles: Vec<Role>,
    /// By what mapping or rule, for people.
    pub how: String,
    /// A door speaks for him.
    pub delegation: Option<Arc<Delegation>>,
    /// Whoever it says it is, it is taken for that.
    is_believed: bool,
    /// A server of the federation, for itself: it is nobody to files.
    is_server: bool,
    seconds: Option<u32>,
}

impl Who {
    /// Somebody of whom nothing is known, and who may nothing.
    pub fn nobody_by(principal: Option<Arc<str>>) -> Self {
        Self { caller: nobody(), principal, ..Self::default() }
    }
}

impl Identities {
    /// Who asks, or why he may not.
    pub async fn who(
        &self,
        context: &CallContext,
        stated: Caller,
        (op, errand): (Op, Errand),
    ) -> Result<Who, Failure> {
        let Some(principal) = &context.principal else {
            // Under flavor null there is nothing but the client's word.
            let (how, is_believed) = ("the client's word: flavor null".to_owned(), true);
            let caller = Caller { proof: None, ..stated };
            return Ok(Who { caller, how, is_believed, ..Who::default() });
        };
        if is_server(context.session) {
            return self.server(principal, op);
        }
        // Whatever it was taken for before: the map may have changed.
        let is_root = stated.proof == Some(Caller::MACHINE_ROOT);
        let stated = if is_root { Caller::root() } else { stated };
        let current = self.map.current();
        let security = current.map.security.as_ref();
        if let Some(door) = security.and_then(|security| security.door(principal)) {
            return match stated.shown_proof() {
                None => Ok(delegations::itself(principal)),
                number => self.proven(context.session, number, errand, Some(door)).await,
            };
        }
        match trust_of(principal, security) {
            _ if stated.proof == Some(Caller::STRANGER) => {
                let why = format!(
                    "who asks over the connection of {principal} has shown no ticket of his own"
                );
                self.stranger(principal, why, security)
            }
            _ if stated.proof.is_some() => {
                self.proven(context.session, stated.proof, errand, None).await
            }
            None => self.user(principal, security).await,
            Some(trust) => self.machine(principal, trust, stated, security),
        }
    }

    /// Is root of the machine at the other end root here, whoever of its users asks?
    pub fn may_be_root(&self, principal: Option<&Arc<str>>) -> bool {
        let Some(principal) = principal else { return true };
        let current = self.map.current();
        let trust = trust_of(principal, current.map.security.as_ref());
        trust.is_some_and(|trust| trust.believes_root())
    }

    /// The same for what somebody did by himself and tells of now: who did each item.
    pub async fn settle_batch(
        &self,
        context: &CallContext,
        request: &mut Request,
    ) -> Result<Vec<Arc<Who>>, Failure> {
        let Request::Batch(batch) = request else { return Ok(vec![]) };
        if context.principal.is_none() {
            return Ok(vec![]);
        }
        let mut known: BTreeMap<(Caller, Errand), Arc<Who>> = BTreeMap::new();
        let mut doers = Vec::with_capacity(batch.items.len());
        for item in &mut batch.items {
            let stated = (std::mem::take(&mut item.caller), Errand::of_item(item));
            let who = match known.get(&stated) {
                Some(who) => who.clone(),
                None if known.len() == DOERS_MAX => return Err(too_many_doers()),
                None => {
                    let (caller, errand) = stated.clone();
                    let who = Arc::new(self.who(context, caller, (Op::Batch, errand)).await?);
                    known.entry(stated).or_insert(who).clone()
                }
            };
            item.caller = who.caller.clone();
            doers.push(who);
        }
        Ok(doers)
    }

    /// Who opened its session as a server.
    fn server(&self, principal: &Arc<str>, op: Op) -> Result<Who, Failure> {
        // The map may have changed since the handshake.
        if !OF_SERVERS.contains(&op) || !self.guard.is_server(principal) {
            let why = format!("{principal} is a server, and servers do not ask for {}", op.name());
            return Err(self.deny(ErrorKind::NotPermitted, Some(principal), why));
        }
        let how = format!("{principal}, a server of the federation");
        let principal = Some(principal.clone());
        Ok(Who { caller: nobody(), principal, how, is_server: true, ..Who::default() })
    }

    /// Whoever showed a ticket under this number: by today's table.
    async fn proven(
        &self,
        session: SessionId,
        number: Option<u64>,
        errand: Errand,
        door: Option<&Door>,
    ) -> Result<Who, Failure> {
        let proof = match self.state.proofs.find(session, number, errand) {
            Err(_) if self.remembers(session, number).await => {
                self.state.proofs.find(session, number, errand)?
            }
            found => found?,
        };
        if proof.handed().is_some() != door.is_some() {
            // The map has changed since.
            let detail = "this proof was made for a door, or before there was one: show it again";
            return Err(Failure::new(ErrorKind::Unauthenticated, detail));
        }
        let known_by = self.known_by();
        let (Some(number), Some(principal)) = (number, proof.principal()) else {
            return Ok(proof.who());
        };
        if proof.known_by() == known_by {
            return Ok(proof.who());
        }
        let current = self.map.current();
        let who = match (door, proof.handed()) {
            (Some(door), Some(handed)) => self.spoken_for(door, handed).await?,
            _ => self.user(principal, current.map.security.as_ref()).await?,
        };
        self.state.proofs.renew(session, number, &who, known_by);
        Ok(who)
    }

    /// A proof from before this server was started, or one that gave way to others.
    async fn remembers(&self, session: SessionId, number: Option<u64>) -> bool {
        let (Some(mdt), Some(number)) = (&self.mdt, number) else { return false };
        if self.state.proofs.has(session, number) {
            return false;
        }
        match mdt.shown(session, number).await {
            Ok(Some((shown, left))) => {
                self.state.proofs.keep(session, number, Proof::noted(number, shown, left));
                true
            }
            Ok(None) => false,
            Err(failure) => {
                tracing::warn!(%failure, "who showed a ticket before cannot be read");
                false
            }
        }
    }

    fn known_by(&self) -> KnownBy {
        (self.table().version(), self.map.current().map.version)
    }

    fn machine(
        &self,
        principal: &Arc<str>,
        trust: MachineTrust,
        stated: Caller,
        security: Option<&Security>,
    ) -> Result<Who, Failure> {
        let is_root = stated.is_root();
        let is_believed = if is_root { trust.believes_root() } else { trust.believes_users() };
        let how = format!("the word of {principal}, of which `{}` is believed", trust.name());
        let who = Who { principal: Some(principal.clone()), ..Who::default() };
        if is_believed && stated.uid == Uid(NOBODY) {
            let why = format!("a user of {principal} is no identity: its id map knows nobody such");
            return self.stranger(principal, why, security);
        }
        if is_believed {
            return Ok(Who {
                caller: Caller { proof: None, ..stated },
                how,
                is_believed: trust == MachineTrust::All,
                ..who
            });
        }
        if is_root {
            let how =
                format!("root of {principal} is squashed: `tieline id machine` says of whom not");
            return Ok(Who { caller: nobody(), how, ..who });
        }
        let why = format!(
            "uid {} of {principal} has shown no ticket, and that machine's word is not taken",
            stated.uid
        );
        self.stranger(principal, why, security)
    }

    async fn user(
        &self,
        principal: &Arc<str>,
        security: Option<&Security>,
    ) -> Result<Who, Failure> {
        let realm = security.map(|security| security.realm.clone()).unwrap_or_default();
        let table = self.table();
        let mut found = self.resolve(&table, principal, &realm).await;
        // Not for an empty table, which is asked all the time: a site that is cut off would wait.
        if found.is_err() && self.looks_again().await {
            found = self.resolve(&self.table(), principal, &realm).await;
        }
        match found {
            Ok(Resolved { caller, roles, how, .. }) => {
                Ok(Who { caller, principal: Some(principal.clone()), roles, how, ..Who::default() })
            }
            Err(why) => self.stranger(principal, why, security),
        }
    }

    async fn resolve(
        &self,
        table: &IdentityTable,
        principal: &str,
        realm: &str,
    ) -> Result<Resolved, String> {
        let why = match table.resolve(principal, realm) {
            Ok(found) => return Ok(found),
            Err(why) => why,
        };
        if !table.is_empty() || why != Unknown::NotMapped {
            return Err(format!("{principal} is a stranger to {}: {why}", self.server));
        }
        let name = principal.strip_suffix(realm).and_then(|name| name.strip_suffix('@'));
        let Some(name) = name else {
            return Err(format!(
                "{principal} is a stranger to {}: only principals of {realm} are known",
                self.server
            ));
        };
        let how = format!("the user `{name}` of the machine of {}", self.server);
        let found = self.state.local.find(name).await.zip(name.parse().ok());
        found.map(|(caller, name)| Resolved { caller, name, roles: vec![], how }).ok_or_else(|| {
            format!(
                "{principal} is a stranger to {}: no identity is there (`tieline id add`), and its \
                 machine has no user `{name}`, or it is root",
                self.server
            )
        })
    }

    fn stranger(
        &self,
        principal: &Arc<str>,
        why: String,
        security: Option<&Security>,
    ) -> Result<Who, Failure> {
        match security.map(Security::strangers).unwrap_or_default() {
            Strangers::Deny => Err(self.deny(ErrorKind::PermissionDenied, Some(principal), why)),
            Strangers::Squash => Ok(Who {
                caller: nobody(),
                principal: Some(principal.clone()),
                how: format!("{why}; strangers are squashed here"),
                ..Who::default()
            }),
        }
    }

    /// A refusal that can be found again.
    pub fn deny(&self, kind: ErrorKind, principal: Option<&Arc<str>>, why: String) -> Failure {
        let id = self.audit.denied(principal.map(|name| &**name), kind, &why);
        Failure::new(kind, format!("{why} (denial {id})"))
    }

    /// Does somebody have one of these roles, or all of them?
    pub fn check_role(
        &self,
        who: &Who,
        operator: Uid,
        what: &str,
        suffices: &[Role],
    ) -> Result<(), Failure> {
        let caller = &who.caller;
        // Users of tickets have no uid here, whatever their number is; and none is root.
        let is_word = who.principal.is_none() || who.is_believed;
        let is_operator = caller.is_root() || (is_word && caller.uid == operator);
        let has = |role: &Role| *role == Role::FsAdmin || suffices.contains(role);
        if is_operator || who.roles.iter().any(has) {
            return Ok(());
        }
        let name =
            who.principal.as_deref().map_or_else(|| format!("uid {}", caller.uid), str::to_owned);
        let mut wanted = vec![Role::FsAdmin.to_string()];
        wanted.extend(suffices.iter().map(Role::to_string));
        let why = format!(
            "{name} may not {what}: root, the user that {} runs as, or who has {} may",
            self.server,
            wanted.join(" or ")
        );
        Err(self.deny(ErrorKind::NotPermitted, who.principal.as_ref(), why))
    }

    /// Proves a user over the connection of a mount, or tells whom a caller is taken for.
    pub async fn prove(
        &self,
        context: &CallContext,
        stated: Caller,
        message: Prove,
    ) -> Result<ProveReply, Failure> {
        let is_stranger = stated.proof == Some(Caller::STRANGER);
        let stated = Caller { proof: is_stranger.then_some(Caller::STRANGER), ..stated };
        // Servers have no users, and under flavor null nothing is proven.
        let can_carry = context.principal.is_some() && !is_server(context.session);
        if let Some(principal) = context.principal.as_ref().filter(|_| can_carry) {
            let current = self.map.current();
            let security = current.map.security.as_ref();
            match security.and_then(|security| security.door(principal)) {
                Some(door) if message.token.is_some() || message.delegation.is_some() => {
                    return self.prove_to_door(context, (principal, door), message).await;
                }
                None if message.delegation.is_some() => {
                    let why = format!("{principal} is no door: it speaks for nobody");
                    return Err(self.deny(ErrorKind::PermissionDenied, Some(principal), why));
                }
                _ => {}
            }
        }
        let token = message.token.filter(|_| can_carry && Caller::is_of_proof(message.proof));
        let Some(token) = token else {
            let who = self.who(context, stated, (Op::Prove, Errand::New)).await?;
            let principal = who.principal.as_deref().map(str::to_owned);
            let Who { caller, how, seconds, is_believed, .. } = who;
            let (scope, answer) = (None, None);
            let reply = ProveReply { caller, principal, how, seconds, is_believed, scope, answer };
            return Ok(reply);
        };
        let refused =
            |why: String| self.deny(ErrorKind::PermissionDenied, context.principal.as_ref(), why);
        let proven = proofs::accept(&self.guard, context.session, message.proof, token).await;
        let proven = proven.map_err(|trouble| {
            let whose = context.principal.as_deref().unwrap_or_default();
            refused(format!("a ticket shown over the connection of {whose} is refused: {trouble}"))
        })?;
        let principal: Arc<str> = proven.peer.as_str().into();
        if !self.is_user(&principal) {
            return Err(refused(format!("{principal} is no user")));
        }
        let (current, known_by) = (self.map.current(), self.known_by());
        let who = self.user(&principal, current.map.security.as_ref()).await?;
        let seconds = proven.lifetime.map(|left| u32::try_from(left.as_secs()).unwrap_or(u32::MAX));
        self.audit.proven(&who, context.principal.as_deref(), context.session);
        let proof = Proof::new(&who, known_by, proven.lifetime);
        self.state.proofs.keep(context.session, message.proof, proof);
        if let Some(mdt) = &self.mdt {
            let number = (context.session, message.proof);
            if let Err(failure) = mdt.note_shown(number, &principal, proven.lifetime).await {
                tracing::warn!(%failure, "a ticket is not noted: a restart forgets it");
            }
        }
        let Who { caller, how, .. } = who;
        let (principal, is_believed) = (Some(proven.peer), false);
        let (scope, answer) = (None, None);
        Ok(ProveReply { caller, principal, how, seconds, is_believed, scope, answer })
    }

    /// Servers, machines and doors are none.
    fn is_user(&self, principal: &str) -> bool {
        let current = self.map.current();
        let security = current.map.security.as_ref();
        let is_machine = trust_of(principal, security).is_some();
        let is_door = security.is_some_and(|security| security.door(principal).is_some());
        !is_machine && !is_door && !self.guard.is_server(principal)
    }

    /// What somebody may know of the table.
    pub fn list(&self, who: &Who, message: &ListIdentities) -> ListIdentitiesReply {
        let is_whole = who.is_server || who.caller.is_root() || who.roles.contains(&Role::FsAdmin);
        self.table().page(message.have, message.from, is_whole)
    }

    /// Changes the table, where it is kept.
    pub async fn edit(&self, message: &EditIdentities) -> Result<EditIdentitiesReply, Failure> {
        let Some(keeper) = &self.keeper else {
            let detail = "identities are kept by the MDS of the root: ask there";
            return Err(Failure::new(ErrorKind::WrongServer, detail));
        };
        let table = keeper.edit_identities(&message.edits).await?;
        let version = table.version();
        self.take(table);
        Ok(EditIdentitiesReply { version })
    }

    pub fn table(&self) -> Arc<IdentityTable> {
        self.state.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take(&self, table: IdentityTable) {
        let mut held = self.state.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.version() > held.version() {
            *held = Arc::new(table);
        }
    }

    /// Keeps the table as new as the root's. Runs until dropped.
    pub async fn follow(self: Arc<Self>) {
        if let Some(keeper) = &self.keeper {
            while let Err(failure) = keeper.identities().await.map(|table| self.take(table)) {
                tracing::warn!(%failure, "identities cannot be read");
                tokio::time::sleep(LOOK_EVERY).await;
            }
            return;
        }
        self.read_copy();
        loop {
            if let Err(failure) = self.fetch().await {
                tracing::debug!(%failure, "identities cannot be fetched");
            }
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    }

    /// The table may be newer than our copy. Says whether it was fetched.
    async fn looks_again(&self) -> bool {
        {
            let mut looked = lock(&self.state.looked);
            if self.keeper.is_some() || looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
                return false;
            }
            *looked = Some(Instant::now());
        }
        self.fetch().await.is_ok()
    }

    async fn fetch(&self) -> Result<(), Failure> {
        let _one = self.state.fetching.lock().await;
        let current = self.map.current();
        let Some(holder) = current.map.mdt(MdtIndex(0)) else { return Ok(()) };
        let channel = self.peers.mds(&holder.addresses);
        let mut pages = Pages::newer_than(Some(self.table().version()));
        let table = loop {
            let (root, patience) = (Caller::root(), Some(FETCH_PATIENCE));
            let asking = tieline_net::call(&*channel, &root, pages.wanted(), Bulk::Empty, patience);
            match pages.take(asking.await.map_err(failure)?.0) {
                Step::More(more) => pages = more,
                Step::Same => return Ok(()),
                Step::Whole(table) => break table,
            }
        };
        self.write_copy(&table);
        self.take(table);
        Ok(())
    }

    fn read_copy(&self) {
        let Some(file) = &self.file else { return };
        let Ok(bytes) = std::fs::read(file) else { return };
        match tieline_wire::decode::<ListIdentitiesReply>(&bytes) {
            Ok(page) => {
                let mut table = IdentityTable::default();
                table.adopt(page.version, page.identities, page.mappings);
                self.take(table);
            }
            Err(error) => tracing::warn!(%error, "the copy of the identities cannot be read"),
        }
    }

    fn write_copy(&self, table: &IdentityTable) {
        let Some(file) = &self.file else { return };
        let whole = ListIdentitiesReply {
            version: table.version(),
            identities: table.identities().cloned().collect(),
            mappings: table.mappings().collect(),
            is_end: true,
            is_whole: Some(true),
        };
        if let Err(error) =
            tieline_machine::private::write_whole(file, &tieline_wire::encode(&whole))
        {
            tracing::warn!(%error, "the copy of the identities cannot be written");
        }
    }

    /// The name of an identity, for messages.
    pub fn name_of(&self, uid: Uid) -> String {
        let table = self.table();
        let found = table.identity(IdentityKind::User, uid.0);
        found.map_or_else(|| format!("number {uid}"), |identity| identity.name.to_string())
    }
}

/// Roles that suffice for what is done to a site's targets, or to a pool.
pub fn site_admin(site: &SiteName) -> Role {
    Role::SiteAdmin(site.clone())
}

pub fn pool_admin(pool: &PoolName) -> Role {
    Role::PoolAdmin(pool.clone())
}

fn nobody() -> Caller {
    Caller { uid: Uid(NOBODY), gid: Gid(NOBODY), groups: vec![], proof: None }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Proofs and copies by session, for [`proofs`].
type Sessions<T> = BTreeMap<SessionId, BTreeMap<u64, T>>;
fn too_many_doers() -> Failure {
    let detail = format!("a batch is of more than {DOERS_MAX} callers: send it in parts");
    Failure::new(ErrorKind::InvalidArgument, detail)
}
