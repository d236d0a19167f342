//! One served MDT: its start, its sessions, and what its parts share.

use crate::error::Error;
use crate::leases::LeaseTable;
use crate::locks::LockTable;
use crate::made::MadeTable;
use crate::placement::{Placement, wall_time};
use crate::quotas::{Following, Home, Quotas, Table, count};
use crate::room::Room;
use crate::serials::{Counter, Serials, change_superblock};
use crate::sessions::SessionTable;
use crate::settings::Settings;
use crate::view::Counted;
use crate::{Coming, Opened, Parts, StartError};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tieline_auth::capability::Issuer;
use tieline_format::map::FederationMap;
use tieline_format::mdt::{Delegated, FEATURE_TAPE, FEATURE_USAGE, Inode, Shown, Superblock, key};
use tieline_format::{Record, RecordError};
use tieline_kv::Transaction;
use tieline_ledger::Identity;
use tieline_ledger::dump::{Dumps, Source, everything};
use tieline_sessions::{CallerTable, OpenTable, WalkTable, WriterTable};
use tieline_types::background::Change;
use tieline_types::{ClientId, ErrorKind, FileId, FsName, Layout, MdtIndex, SessionId, Time};
use tieline_wire::Failure;
use tieline_wire::data::OstState;
use tieline_wire::ledger::{DumpMdt, DumpMdtReply};
use tieline_world::World;

mod capabilities;
mod delegations;
mod entitled;
mod exposed;
mod identities;
mod junctions;
mod mirrors;
mod quotas;
mod recall;
mod room;
mod service;
mod tended;
mod trees;
mod writers;

/// One served MDT. All methods may be called from many tasks.
pub struct Mdt {
    pub(crate) parts: Parts,
    pub(crate) settings: Settings,
    pub(crate) leases: Arc<LeaseTable>,
    pub(crate) locks: Arc<LockTable>,
    /// Held while locks are taken from somebody silent: whoever comes back meanwhile hears of it.
    pub(crate) taking: tokio::sync::Mutex<()>,
    pub(crate) sessions: SessionTable,
    pub(crate) opens: Arc<OpenTable>,
    pub(crate) callers: CallerTable,
    pub(crate) writers: WriterTable,
    pub(crate) made: MadeTable,
    pub(crate) walks: WalkTable,
    pub(crate) serials: Serials,
    pub(crate) placement: Placement,
    pub(crate) quotas: Arc<Quotas>,
    /// Others' shares of limits, if they are kept here; else how ours are asked for.
    pub(crate) home: Home,
    pub(crate) following: Following,
    dumps: Dumps,
    /// When the store was restored, if nobody has checked it since.
    pub(crate) restored: Mutex<Option<Time>>,
    /// Signs capabilities.
    pub(crate) issuer: Issuer,
    pub(crate) turns: Turns,
    pub(crate) room: Room,
    pub(crate) inodes: InodeCount,
    /// Files below this serial were made before the start.
    pub(crate) first_serial: u64,
    /// Sessions of before the start: what they have open is not known.
    old_sessions: Mutex<BTreeSet<SessionId>>,
    boot: u64,
    pub(crate) ended: OnceLock<(ErrorKind, String)>,
}

/// Files of every kind: those of before the start, as noted or counted, and those made since.
pub(crate) struct InodeCount {
    old: AtomicI64,
    new: AtomicI64,
}

impl InodeCount {
    fn new(noted: u64) -> Self {
        Self { old: AtomicI64::new(noted as i64), new: AtomicI64::new(0) }
    }

    pub fn add(&self, counted: Counted) {
        self.old.fetch_add(counted.old, Ordering::Relaxed);
        self.new.fetch_add(counted.new, Ordering::Relaxed);
    }

    /// The old ones were counted. Some may have gone meanwhile: it is a number for people.
    pub fn recounted(&self, old: i64) {
        self.old.store(old, Ordering::Relaxed);
    }

    pub fn total(&self) -> u64 {
        (self.old.load(Ordering::Relaxed) + self.new.load(Ordering::Relaxed)).max(0) as u64
    }
}

/// Mutations of one file take turns, so that they do not keep running into each other.
pub(crate) struct Turns(Vec<tokio::sync::Mutex<()>>);

impl Turns {
    /// Files share turns, which costs little with so many.
    const SHARDS: u64 = 256;

    fn new() -> Self {
        Self((0..Self::SHARDS).map(|_| tokio::sync::Mutex::default()).collect())
    }

    pub async fn take(&self, file: FileId) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match self.0.get((file.0 % Self::SHARDS) as usize) {
            Some(turn) => Some(turn.lock().await),
            None => None,
        }
    }
}

impl Mdt {
    /// Opens the store, or makes a new MDT with a root directory in an empty one.
    pub async fn start(parts: Parts, settings: Settings) -> Result<Arc<Self>, StartError> {
        let store = parts.store.clone();
        let mut superblock = open_superblock(&parts, &settings).await?;
        let wrong = |error| start_error(store.describe(), error);
        let quotas = load_usage(&parts, &settings, &mut superblock).await.map_err(wrong)?;
        let sessions = SessionTable::load(store.clone()).await.map_err(wrong)?;
        let old_sessions = sessions.ids();
        tracing::info!(
            mdt = settings.mdt.label(),
            boot = superblock.boot,
            sessions = old_sessions.len(),
            store = store.describe(),
            "metadata target started"
        );
        Ok(Arc::new(Self {
            leases: LeaseTable::new(settings.lease, old_sessions.clone(), sessions.exclusive()),
            locks: LockTable::new(settings.lease, old_sessions.clone()),
            taking: tokio::sync::Mutex::default(),
            sessions,
            opens: Arc::default(),
            callers: CallerTable::default(),
            writers: WriterTable::default(),
            made: MadeTable::default(),
            walks: WalkTable::default(),
            serials: Serials::new(store, Counter::File),
            placement: Placement::new(parts.world.clone()),
            quotas: Arc::new(quotas),
            home: Home::default(),
            following: Following::default(),
            dumps: Dumps::default(),
            restored: Mutex::new(superblock.restored),
            issuer: issuer(&parts.world, &settings),
            turns: Turns::new(),
            room: Room::default(),
            inodes: InodeCount::new(superblock.inodes),
            first_serial: superblock.file_serial,
            old_sessions: Mutex::new(old_sessions),
            boot: superblock.boot,
            ended: OnceLock::new(),
            parts,
            settings,
        }))
    }

    /// Opens a session, or resumes the one the client names. It is kept for as long as the client
    /// waits, if it says so.
    pub async fn open_session(
        &self,
        client: ClientId,
        session: Option<SessionId>,
        coming: Coming<'_>,
    ) -> Result<Opened, Failure> {
        let Coming { description, host, wait, .. } = coming;
        let known = session.filter(|&session| !self.leases.is_barred(session));
        let resumed =
            known.and_then(|session| Some((session, self.sessions.resume(session, client)?)));
        let is_resumed = resumed.is_some();
        let (session, grant) = match resumed {
            Some(resumed) => resumed,
            None => {
                let now = wall_time(&self.parts.world);
                let opened = match self.room.check_any() {
                    Ok(()) => self.sessions.open(client, coming, now).await,
                    Err(error) => Err(error),
                };
                opened.map_err(|error| {
                    self.note(&error);
                    error.into_failure(self.settings.mdt)
                })?
            }
        };
        // Whatever it held, the answers and recalls of the old connection may be lost.
        self.leases.open(session);
        self.leases.came_from(session, host);
        self.leases.found(session);
        if is_resumed && self.room.check_any().is_ok() {
            self.sessions.note_wait(session, wait).await.map_err(|error| {
                self.note(&error);
                error.into_failure(self.settings.mdt)
            })?;
        }
        let (boot, lease) = (self.boot, self.settings.lease);
        let lost_locks = self.lost_locks(session).await;
        tracing::info!(session = session.0, is_resumed, "session opened: {description}");
        Ok(Opened { session, grant, is_resumed, boot, lease, lost_locks })
    }

    /// A frame came from the session: its leases are good for as long again.
    pub fn heard(&self, session: SessionId) {
        self.leases.heard(session);
    }

    /// The session's connection is gone. Its leases run on until they expire.
    pub fn disconnected(&self, session: SessionId) {
        tracing::info!(session = session.0, "session lost its connection");
    }

    /// The session is over: leases, answers and orphans are given back.
    pub async fn end_session(&self, session: SessionId) -> Result<(), Failure> {
        let ended = self.end(session).await;
        ended.map_err(|error| {
            self.note(&error);
            error.into_failure(self.settings.mdt)
        })
    }

    /// Notes that a user showed a ticket in a session, and for how long it is good (`None`: for
    /// ever), so that his requests are known after a restart too.
    pub async fn note_shown(
        &self,
        number: (SessionId, u64),
        principal: &str,
        lifetime: Option<Duration>,
    ) -> Result<(), Failure> {
        self.note_in(number, (principal.to_owned(), None), lifetime).await
    }

    /// The same of one for whom a door speaks.
    pub async fn note_delegated(
        &self,
        number: (SessionId, u64),
        delegated: Delegated,
        lifetime: Duration,
    ) -> Result<(), Failure> {
        self.note_in(number, (String::new(), Some(delegated)), Some(lifetime)).await
    }

    async fn note_in(
        &self,
        (session, number): (SessionId, u64),
        (principal, delegated): (String, Option<Delegated>),
        lifetime: Option<Duration>,
    ) -> Result<(), Failure> {
        let at = wall_time(&self.parts.world);
        let until = lifetime.map(|lifetime| {
            let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
            Time { seconds: at.seconds.saturating_add(seconds), ..at }
        });
        let shown = Shown { principal, at, until, delegated };
        let noted = self.sessions.note_shown(session, number, &shown).await;
        noted.map_err(|error| error.into_failure(self.settings.mdt))
    }

    /// Who showed a ticket in a session under a number, and how many seconds it is good from now
    /// on; less than none if it is over.
    pub async fn shown(
        &self,
        session: SessionId,
        number: u64,
    ) -> Result<Option<(Shown, Option<i64>)>, Failure> {
        let found = self.sessions.shown(session, number).await;
        let found = found.map_err(|error| error.into_failure(self.settings.mdt))?;
        let now = wall_time(&self.parts.world).seconds;
        let left = |shown: &Shown| shown.until.map(|until| until.seconds.saturating_sub(now));
        Ok(found.map(|shown| {
            let left = left(&shown);
            (shown, left)
        }))
    }

    pub(crate) async fn end(&self, session: SessionId) -> Result<(), Error> {
        if !self.sessions.forget(session) {
            return Ok(());
        }
        self.issuer.revoke_session(session);
        self.forget_ended(session);
        self.leases.found(session);
        self.old_sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
        for file in self.sessions.orphans_of(session).await? {
            self.carry_out(&Change::Release(file, session)).await?;
        }
        self.sessions.delete(session).await?;
        tracing::info!(session = session.0, "session ended");
        Ok(())
    }

    /// Forgets what is noted of a session that is not known, in memory. Whoever notes something of
    /// one calls this afterwards: it may have ended meanwhile.
    pub(crate) fn forget_ended(&self, session: SessionId) {
        if self.sessions.grant(session).is_ok() {
            return;
        }
        self.leases.close(session);
        self.quotas.end(session);
        self.locks.end(session);
        self.opens.end(session);
        self.callers.end(session);
        self.writers.end(session);
        self.walks.end(session);
    }

    pub(crate) fn old_sessions(&self) -> BTreeSet<SessionId> {
        self.old_sessions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What an OSS said of its OSTs just now; placement and `Usage` use it for a minute.
    pub fn observe(&self, states: Vec<OstState>) {
        self.placement.observe(states);
    }

    /// A part of a dump, for an operator; the frames are the reply's bulk.
    pub async fn dump(&self, message: &DumpMdt) -> Result<(DumpMdtReply, Vec<u8>), Failure> {
        let source = Source {
            store: &*self.parts.store,
            identity: Identity {
                fs: self.parts.map.current().map.fs.clone(),
                mdt: self.settings.mdt,
            },
            log: self.parts.log.as_deref(),
            now: wall_time(&self.parts.world),
            id: self.parts.world.random(),
        };
        self.dumps.part(source, message).await
    }

    /// How often it was started.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    pub fn index(&self) -> MdtIndex {
        self.settings.mdt
    }

    /// For `/health`: why the change log is not written, if so.
    pub fn log_trouble(&self) -> Option<String> {
        self.parts.log.as_ref().and_then(|log| log.trouble())
    }

    /// For `/health`: why this MDT cannot serve, if so.
    pub fn trouble(&self) -> Option<(ErrorKind, String)> {
        self.ended.get().cloned()
    }
}

/// Reads the superblock, or writes the first one; counts the start.
async fn open_superblock(parts: &Parts, settings: &Settings) -> Result<Superblock, StartError> {
    let store = parts.store.describe();
    let failed = |source| StartError::Store { store: store.clone(), source };
    let mut transaction = parts.store.begin().await.map_err(failed)?;
    let values = transaction.read(&[key::superblock()]).await.map_err(failed)?;
    let now = wall_time(&parts.world);
    let mut superblock = match values.into_iter().next().flatten() {
        Some(value) => {
            let damaged = |source| StartError::Record { store: store.clone(), source };
            let superblock = Superblock::from_bytes(&value).map_err(damaged)?;
            let fs = &parts.map.current().map.fs;
            check_superblock(&superblock, &store, fs, settings.mdt)?;
            superblock
        }
        None if !transaction.scan(everything(), 1).await.map_err(failed)?.is_empty() => {
            return Err(StartError::Unfinished { store });
        }
        None => make_mdt(&mut *transaction, parts, settings, now),
    };
    superblock.boot += 1;
    superblock.version_serial = transaction.version().0;
    transaction.put(key::superblock(), superblock.to_bytes());
    let committed = transaction.commit().await.map_err(failed)?;
    committed.durable.await.map_err(failed)?;
    Ok(superblock)
}

/// Who uses how much; counted first, if not every change to the store was.
async fn load_usage(
    parts: &Parts,
    settings: &Settings,
    superblock: &mut Superblock,
) -> Result<Quotas, Error> {
    if superblock.features & FEATURE_USAGE == 0 {
        count::count_anew(&*parts.store).await?;
        change_superblock(&*parts.store, |superblock| superblock.features |= FEATURE_USAGE).await?;
        superblock.features |= FEATURE_USAGE;
    }
    let mut snapshot = parts.store.snapshot().await?;
    let (is_home, now) = (settings.mdt == MdtIndex(0), wall_time(&parts.world));
    let table = Table::load(&mut *snapshot, is_home, superblock.boot, now).await?;
    Ok(Quotas::new(superblock.boot, table))
}

/// Judges a store by its superblock, before anything is written to it.
pub fn check_store(
    superblock: Option<&[u8]>,
    store: &str,
    fs: &FsName,
    mdt: MdtIndex,
) -> Result<(), StartError> {
    let Some(value) = superblock else { return Ok(()) };
    let damaged = |source| StartError::Record { store: store.to_owned(), source };
    check_superblock(&Superblock::from_bytes(value).map_err(damaged)?, store, fs, mdt)
}

fn check_superblock(
    superblock: &Superblock,
    store: &str,
    fs: &FsName,
    mdt: MdtIndex,
) -> Result<(), StartError> {
    let store = store.to_owned();
    let unknown = superblock.features & !(FEATURE_USAGE | FEATURE_TAPE);
    if unknown != 0 {
        return Err(StartError::Features { store, features: unknown });
    }
    if superblock.mdt != mdt || superblock.fs != *fs {
        let found = format!("{} of {}", superblock.mdt.label(), superblock.fs);
        let wanted = format!("{} of {fs}", mdt.label());
        return Err(StartError::OtherMdt { store, found, wanted });
    }
    Ok(())
}

/// A new MDT: a root directory, and counters that start behind it. Files of a site's own tree lie
/// in the pool of the site's name, where there is one.
fn make_mdt(
    transaction: &mut dyn Transaction,
    parts: &Parts,
    settings: &Settings,
    now: Time,
) -> Superblock {
    let root = FileId::root_of(settings.mdt);
    let map = parts.map.current().map.clone();
    let (uid, gid) = settings.root_owner;
    let layout = home_layout(&map, settings.mdt);
    let inode = Inode { uid, gid, layout, ..Inode::root(now) };
    transaction.put(key::inode(root), inode.to_bytes());
    Superblock {
        fs: map.fs,
        mdt: settings.mdt,
        file_serial: FileId::ROOT_SERIAL + 1,
        session_serial: 1,
        features: 0,
        boot: 0,
        version_serial: 0,
        inodes: 1,
        restored: None,
    }
}

fn home_layout(map: &FederationMap, mdt: MdtIndex) -> Option<Layout> {
    // The root MDT's tree is everybody's.
    let home = map.mdt(mdt).filter(|known| known.mdt != MdtIndex(0))?.home.as_str().parse().ok()?;
    map.pool(&home).filter(|pool| !pool.osts.is_empty())?;
    Some(Layout { pool: Some(home), ..Layout::default() })
}

fn issuer(world: &World, settings: &Settings) -> Issuer {
    let dice = world.dice.clone();
    let dice = Box::new(move |bytes: &mut [u8]| dice.fill(bytes));
    Issuer::new(settings.mdt, settings.capability_life, dice)
}

fn start_error(store: String, error: Error) -> StartError {
    match error {
        Error::Store(source) => StartError::Store { store, source },
        Error::Record { source, .. } => StartError::Record { store, source },
        _ => StartError::Record { store, source: RecordError::Short { kind: "session" } },
    }
}

#[cfg(test)]
mod tests;
