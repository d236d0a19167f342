//! Capabilities that this client holds, to be shown to OSSs.
//!
//! Most come with an open, or for many files with what is told in bulk. What a session writes
//! itself needs one for all of it; other files are asked for, one at a time. A capability is
//! renewed in the background when two thirds of its life are over, so that nobody waits for the
//! next. An OSS that refuses one makes us ask the MDS once, which knows better: then it is for the
//! file, and names the object.
//!
//! Invariants: a federation that proves nothing costs nothing; at most [`HELD_MAX`] for one file
//! are held, and for [`RUNS_HELD_MAX`] runs; one question about each is under way, and nobody waits
//! for those about others.

use crate::osts::Metadata;
use crate::{Whose, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tieline_servers::by_key::ByKey;
use tieline_servers::{Error, Result, Servers};
use tieline_types::{Caller, ChunkId, ErrorKind, FileId, GrantedId, MdtIndex, ObjectName};
use tieline_wire::capability::{
    Capability, CapabilityGrant, FileRun, GetCapability, Scope, SignedCapability,
};
use tokio::time::Instant;

const HELD_MAX: usize = 16_384;
/// Runs of files that capabilities for several are for.
const RUNS_HELD_MAX: usize = 65_536;
/// So long it is believed that there is none for what the session writes.
const OWNLESS: Duration = Duration::from_secs(60);
/// Files of a run that is newer than what we hold make us ask this often.
const RUNS_PAUSE: Duration = Duration::from_secs(1);

/// What a capability is to be good for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Use {
    Read,
    Write,
    /// Reading objects that are named.
    Named,
}

#[derive(Clone)]
struct Held {
    signed: Arc<[u8]>,
    expires: Instant,
    renew: Instant,
    asked: Instant,
    scope: Arc<Scope>,
}

#[derive(Default)]
struct State {
    own: BTreeMap<MdtIndex, Held>,
    /// Who acts for others has none for what the session writes: then each file is asked for.
    ownless: BTreeMap<MdtIndex, Instant>,
    files: BTreeMap<(FileId, Use), Held>,
    /// For reading several files, by the first of each run; with its end.
    runs: BTreeMap<FileId, (FileId, Held)>,
}

pub struct Capabilities {
    servers: Arc<Servers>,
    metadata: Weak<dyn Metadata>,
    state: Mutex<State>,
    turns: ByKey<Key>,
}

impl Held {
    fn new(grant: &CapabilityGrant, asked: Instant) -> Option<Self> {
        Some(Self::of(grant, asked)?.0)
    }

    /// With the MDT that gave it.
    fn of(grant: &CapabilityGrant, asked: Instant) -> Option<(Self, MdtIndex)> {
        let signed: SignedCapability = tieline_wire::decode(&grant.signed).ok()?;
        let capability: Capability = tieline_wire::decode(&signed.capability).ok()?;
        let life = Duration::from_millis(grant.life_ms.into());
        let mdt = capability.mdt;
        let held = Self {
            signed: grant.signed.as_slice().into(),
            expires: asked + life.mul_f64(0.95),
            renew: asked + life.mul_f64(0.66),
            asked,
            scope: Arc::new(capability.scope),
        };
        Some((held, mdt))
    }

    fn names(&self, object: &ObjectName) -> bool {
        self.scope.objects().contains(object)
    }

    fn runs(&self) -> &[FileRun] {
        match &*self.scope {
            Scope::Own { runs } => runs,
            _ => &[],
        }
    }
}

impl Capabilities {
    pub(crate) fn new(servers: Arc<Servers>, metadata: Weak<dyn Metadata>) -> Self {
        Self { servers, metadata, state: Mutex::default(), turns: ByKey::default() }
    }

    /// Takes what came with an open, or with what was told in bulk.
    pub fn learn(&self, grant: &CapabilityGrant, asked: Instant) {
        let Some((held, mdt)) = Held::of(grant, asked) else { return };
        if let Scope::Files { runs } = &*held.scope {
            let mut state = lock(&self.state);
            state.make_room();
            for run in runs {
                let id = |serial| FileId::new(mdt, serial);
                let end = id(run.first.saturating_add(run.count.into()));
                state.runs.insert(id(run.first), (end, held.clone()));
            }
            return;
        }
        let Some(file) = held.scope.file() else { return };
        let (is_read, is_write) = held.scope.rights();
        let mut state = lock(&self.state);
        state.make_room();
        for (is_for, used) in [(is_read, Use::Read), (is_write, Use::Write)] {
            if is_for {
                state.files.insert((file, used), held.clone());
            }
        }
    }

    /// One that is good still; and whether it is time for the next.
    fn file(&self, file: FileId, used: Use) -> Option<(Held, bool)> {
        let mut state = lock(&self.state);
        if let Some(held) = state.files.get_mut(&(file, used)).and_then(Held::take) {
            return Some(held);
        }
        if used != Use::Read {
            return None;
        }
        let (_, (end, held)) = state.runs.range_mut(..=file).next_back()?;
        if file < *end { held.take() } else { None }
    }

    fn own(&self, mdt: MdtIndex) -> Option<(Held, bool)> {
        lock(&self.state).own.get_mut(&mdt).and_then(Held::take)
    }

    fn keep(&self, key: Key, held: Held) {
        let mut state = lock(&self.state);
        state.make_room();
        match key {
            Key::Own(mdt) => drop(state.own.insert(mdt, held)),
            Key::File(file, used) => drop(state.files.insert((file, used), held)),
        }
    }

    fn forget(&self, file: FileId, used: Use) {
        lock(&self.state).files.remove(&(file, used));
    }
}

impl Held {
    fn take(&mut self) -> Option<(Self, bool)> {
        let now = Instant::now();
        if now >= self.expires {
            return None;
        }
        let is_due = now >= self.renew;
        if is_due {
            // Who heard this asks; should that fail, the next is asked in a while.
            self.renew = now + (self.expires - now).mul_f64(0.5).max(Duration::from_secs(1));
        }
        Some((self.clone(), is_due))
    }
}

impl State {
    fn make_room(&mut self) {
        if self.files.len() >= HELD_MAX {
            let now = Instant::now();
            self.files.retain(|_, held| held.expires > now);
        }
        if self.files.len() >= HELD_MAX {
            self.files.clear();
        }
        if self.runs.len() >= RUNS_HELD_MAX {
            let now = Instant::now();
            self.runs.retain(|_, (_, held)| held.expires > now);
        }
        if self.runs.len() >= RUNS_HELD_MAX {
            self.runs.clear();
        }
    }
}

/// Which capability.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Own(MdtIndex),
    File(FileId, Use),
}

impl Key {
    fn mdt(self) -> MdtIndex {
        match self {
            Self::Own(mdt) => mdt,
            Self::File(file, _) => file.mdt(),
        }
    }
}

impl Capabilities {
    fn is_capability_needed(&self) -> bool {
        self.servers.map.current().map.security.is_some()
    }

    /// What to show for writing to a file. `is_refused`: what was shown before did not do.
    pub async fn to_write(
        self: &Arc<Self>,
        file: FileId,
        caller: &Caller,
        is_refused: bool,
    ) -> Result<Option<Vec<u8>>> {
        if !self.is_capability_needed() {
            return Ok(None);
        }
        let whose = Whose::own(file, caller);
        if !is_refused && self.servers.mds(file.mdt()).is_ok_and(|mds| mds.grant().is_some()) {
            let known = lock(&self.state).own.get(&file.mdt()).cloned();
            let is_news = known.as_ref().is_none_or(|held| is_newer_run(held, file));
            let own = self.held(Key::Own(file.mdt()), &whose, None, is_news).await?;
            if let Some(own) = own
                && own.runs().iter().any(|run| run.holds(file.serial()))
            {
                return Ok(Some(own.signed.to_vec()));
            }
        }
        let key = Key::File(file, Use::Write);
        let held = self.held(key, &whose, None, is_refused).await?;
        Ok(held.map(|held| held.signed.to_vec()))
    }

    /// What to show for making a file's chunks durable: who may read it may ask for that, too.
    pub async fn to_sync(
        self: &Arc<Self>,
        file: FileId,
        caller: &Caller,
        is_refused: bool,
    ) -> Result<Option<Vec<u8>>> {
        if !self.is_capability_needed() {
            return Ok(None);
        }
        let whose = Whose::own(file, caller);
        let held = self.held(Key::File(file, Use::Read), &whose, None, is_refused).await?;
        Ok(held.map(|held| held.signed.to_vec()))
    }

    /// What to show for reading an object.
    pub(crate) async fn to_read(
        self: &Arc<Self>,
        whose: &Whose,
        (chunk, object): (ChunkId, &ObjectName),
        is_refused: bool,
    ) -> Result<Option<Vec<u8>>> {
        if !self.is_capability_needed() {
            return Ok(None);
        }
        let file = whose.file;
        let named = Key::File(file, Use::Named);
        let held = lock(&self.state).files.get(&(file, Use::Named)).cloned();
        let names = held.is_some_and(|held| held.names(object));
        if is_refused || names {
            let held = self.held(named, whose, Some(object), is_refused).await?;
            return Ok(held.map(|held| held.signed.to_vec()));
        }
        let is_own = |chunk: &GrantedId| {
            let mds = self.servers.mds(chunk.mdt);
            mds.is_ok_and(|mds| mds.grant() == Some(chunk.grant))
        };
        let key = match (object, chunk.granted().filter(is_own)) {
            (ObjectName::Chunk(_), Some(chunk)) => Key::Own(chunk.mdt),
            _ => Key::File(file, Use::Read),
        };
        let held = match (key, self.held(key, whose, None, false).await?) {
            (Key::Own(_), None) => {
                self.held(Key::File(file, Use::Read), whose, None, false).await?
            }
            (_, held) => held,
        };
        let is_external = matches!(object, ObjectName::External { .. });
        match held {
            Some(held) if is_external && !held.names(object) => {
                let held = self.held(named, whose, Some(object), true).await?;
                Ok(held.map(|held| held.signed.to_vec()))
            }
            held => Ok(held.map(|held| held.signed.to_vec())),
        }
    }

    /// The one that is held, or a new one. One capability names few objects: what somebody else
    /// asked for meanwhile may not name ours.
    async fn held(
        self: &Arc<Self>,
        key: Key,
        whose: &Whose,
        object: Option<&ObjectName>,
        is_fresh: bool,
    ) -> Result<Option<Held>> {
        let find = || {
            let found = match key {
                Key::Own(mdt) => self.own(mdt),
                Key::File(file, used) => self.file(file, used),
            };
            found.filter(|(held, _)| object.is_none_or(|object| held.names(object)))
        };
        let begun = Instant::now();
        if let Key::Own(mdt) = key
            && lock(&self.state).ownless.get(&mdt).is_some_and(|until| begun < *until)
        {
            return Ok(None);
        }
        if !is_fresh && let Some((held, is_due)) = find() {
            if is_due {
                let (capabilities, whose) = (self.clone(), whose.clone());
                tokio::spawn(async move { capabilities.renew(key, whose).await });
            }
            return Ok(Some(held));
        }
        let until = begun + self.servers.wait_for(key.mdt());
        let mut turn = self.turns.wait(key, until).await?;
        // Somebody else may have asked while we waited.
        if let Some((held, _)) = find()
            && (!is_fresh || held.asked >= begun)
        {
            return Ok(Some(held));
        }
        let answer = self.ask_capability(key, whose, until).await;
        turn.note(&answer);
        answer
    }

    async fn renew(self: Arc<Self>, key: Key, whose: Whose) {
        let until = Instant::now() + self.servers.wait_for(key.mdt());
        if let Err(error) = self.ask_capability(key, &whose, until).await {
            tracing::info!(file = %whose.file, %error, "a capability is not renewed yet");
        }
    }

    async fn ask_capability(
        &self,
        key: Key,
        whose: &Whose,
        until: Instant,
    ) -> Result<Option<Held>> {
        let asked = Instant::now();
        let mdt = key.mdt();
        let message = match key {
            Key::Own(_) => self.wish(None, (true, true), None),
            Key::File(file, Use::Read) => self.wish(Some(file), (true, false), None),
            Key::File(file, Use::Write) => self.wish(Some(file), (false, true), None),
            Key::File(file, Use::Named) => self.wish(Some(file), (true, false), Some(whose.offset)),
        };
        let patience = until.saturating_duration_since(asked);
        let gone = || Error::local(ErrorKind::Disconnected, "file system is closed");
        let metadata = self.metadata.upgrade().ok_or_else(gone)?;
        let told = metadata.capability(&whose.caller, mdt, message, patience).await;
        let told = told.inspect_err(|_| {
            if let Key::File(file, used) = key {
                self.forget(file, used);
            }
        })?;
        let Some(grant) = told else {
            if let Key::Own(_) = key {
                lock(&self.state).ownless.insert(mdt, asked + OWNLESS);
            }
            return Ok(None);
        };
        let unreadable = || Error::local(ErrorKind::Protocol, "capability of an MDS");
        let held = Held::new(&grant, asked).ok_or_else(unreadable)?;
        self.keep(key, held.clone());
        Ok(Some(held))
    }

    fn wish(
        &self,
        id: Option<FileId>,
        (is_read, is_write): (bool, bool),
        offset: Option<u64>,
    ) -> GetCapability {
        GetCapability { id, is_read, is_write, offset, holder: self.servers.holder() }
    }
}

/// May the file be of a run that was reserved since?
fn is_newer_run(held: &Held, file: FileId) -> bool {
    let end = held.runs().iter().map(|run| run.first + u64::from(run.count)).max();
    file.serial() >= end.unwrap_or(0) && held.asked.elapsed() >= RUNS_PAUSE
}
