//! The OSS's side: is a capability genuine, still good, this client's, and for this?
//!
//! [`Checker::admit`] looks at the capability itself, and remembers signatures that were right;
//! [`Admitted::allows`] says what it is good for.
//!
//! Invariants: without a key from its MDS nothing is admitted; time is the MDS's, counted on by our
//! own clock that nobody sets; what is remembered of signatures is bounded.

use super::{LIFE_MAX, signed_bytes};
use ed25519_dalek::{Signature, VerifyingKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_types::{FileId, GrantedId, MdtIndex, ObjectName, SessionId};
use tieline_wire::capability::{Capability, CapabilityNewsReply, Holder, Scope, SignedCapability};
use tokio::time::Instant;

/// Bytes of capabilities that are remembered: their signatures are not checked again. An ordinary
/// one has 200.
const VERIFIED_BYTES: usize = 16 << 20;
/// The longest that can be meant: one that names many adopted files.
const LENGTH_MAX: usize = 1 << 20;

/// Why a capability does not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("no capability was shown: ask the MDS for one")]
    Missing,
    #[error("the capability cannot be read")]
    Malformed,
    #[error("the capability is signed with key {key:x}, which {} does not name", .mdt.label())]
    UnknownKey { mdt: MdtIndex, key: u64 },
    #[error("the signature of the capability is wrong")]
    Forged,
    #[error("the capability has expired: ask the MDS for another")]
    Expired,
    #[error("the capability is somebody else's")]
    Foreign,
    #[error("the capability was taken back: ask the MDS for another")]
    Revoked,
    #[error("the capability is for another file")]
    OtherFile,
    #[error("the capability does not say that {0}")]
    NotGranted(&'static str),
}

impl Refused {
    /// For the metric.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::UnknownKey { .. } => "unknown_key",
            Self::Forged => "forged",
            Self::Expired => "expired",
            Self::Foreign => "foreign",
            Self::Revoked => "revoked",
            Self::OtherFile => "other_file",
            Self::NotGranted(_) => "not_granted",
        }
    }
}

/// What somebody wants to do.
#[derive(Clone, Copy, Debug)]
pub enum Wish<'a> {
    Put {
        chunk: GrantedId,
        file: FileId,
    },
    Sync {
        file: FileId,
    },
    /// `file` is the one that the object says it is of.
    Read {
        object: &'a ObjectName,
        file: Option<FileId>,
    },
}

/// See the module.
#[derive(Default)]
pub struct Checker {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mdts: BTreeMap<MdtIndex, Known>,
    verified: BTreeMap<Vec<u8>, Arc<Capability>>,
    order: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// What an MDS told.
struct Known {
    keys: BTreeMap<u64, VerifyingKey>,
    files: BTreeMap<FileId, u64>,
    sessions: BTreeMap<SessionId, u64>,
    /// Its clock, and ours when it said so.
    now_ms: u64,
    heard: Instant,
}

/// A capability that is in order.
#[derive(Clone, Debug)]
pub struct Admitted {
    capability: Arc<Capability>,
    /// Of the files that it names: those for which it was taken back.
    revoked: BTreeSet<FileId>,
}

impl Checker {
    /// Takes what an MDS told. `asked` is when it was asked: its clock was at least that far then.
    pub fn learn(&self, mdt: MdtIndex, news: &CapabilityNewsReply, asked: Instant) {
        let key = |key: &tieline_wire::capability::CapabilityKey| {
            Some((key.number, VerifyingKey::from_bytes(&key.public).ok()?))
        };
        let (mut files, mut sessions) = (BTreeMap::new(), BTreeMap::new());
        for revocation in &news.revoked {
            if let Some(file) = revocation.file {
                files.insert(file, revocation.below);
            }
            if let Some(session) = revocation.session {
                sessions.insert(session, revocation.below);
            }
        }
        let keys = news.keys.iter().filter_map(key).collect();
        let known = Known { keys, files, sessions, now_ms: news.now_ms, heard: asked };
        self.lock().mdts.insert(mdt, known);
    }

    /// The MDT whose news must be heard before this capability can be judged, if so.
    pub fn lacks(&self, shown: &[u8]) -> Option<MdtIndex> {
        let capability = if shown.len() <= LENGTH_MAX { read(shown).ok()?.0 } else { return None };
        let state = self.lock();
        let known = state.mdts.get(&capability.mdt);
        let is_known = known.is_some_and(|known| known.keys.contains_key(&capability.key));
        (!is_known).then_some(capability.mdt)
    }

    /// Is the capability in order, and `holder`'s?
    pub fn admit(&self, shown: Option<&[u8]>, holder: Holder) -> Result<Admitted, Refused> {
        let shown = shown.ok_or(Refused::Missing)?;
        let capability = self.verified(shown)?;
        let state = self.lock();
        let unknown = || Refused::UnknownKey { mdt: capability.mdt, key: capability.key };
        let known = state.mdts.get(&capability.mdt).ok_or_else(unknown)?;
        if !known.keys.contains_key(&capability.key) {
            return Err(unknown());
        }
        let passed = u64::try_from(known.heard.elapsed().as_millis()).unwrap_or(u64::MAX);
        let now_ms = known.now_ms.saturating_add(passed);
        let life_max = LIFE_MAX.as_millis() as u64;
        // One that holds for longer than any may was not meant to be one.
        let horizon = now_ms.saturating_add(2 * life_max);
        if now_ms >= capability.expires_ms || capability.expires_ms > horizon {
            return Err(Refused::Expired);
        }
        if capability.holder != holder {
            return Err(Refused::Foreign);
        }
        let is_below = |below: Option<&u64>| below.is_some_and(|&below| capability.serial < below);
        if is_below(known.sessions.get(&capability.session)) {
            return Err(Refused::Revoked);
        }
        // An MDS rules the files of its own MDT: what it signs of others' is worth nothing.
        let file = capability.scope.file();
        if file.is_some_and(|file| file.mdt() != capability.mdt) {
            return Err(Refused::OtherFile);
        }
        if file.is_some_and(|file| is_below(known.files.get(&file))) {
            return Err(Refused::Revoked);
        }
        let mut revoked = BTreeSet::new();
        if let Scope::Files { runs } = &capability.scope {
            let is_named = |file: FileId| {
                file.mdt() == capability.mdt && runs.iter().any(|run| run.holds(file.serial()))
            };
            let taken = known
                .files
                .iter()
                .filter(|(file, below)| capability.serial < **below && is_named(**file));
            revoked.extend(taken.map(|(file, _)| *file));
        }
        Ok(Admitted { capability: capability.clone(), revoked })
    }

    fn verified(&self, shown: &[u8]) -> Result<Arc<Capability>, Refused> {
        if shown.len() > LENGTH_MAX {
            return Err(Refused::Malformed);
        }
        let state = self.lock();
        if let Some(known) = state.verified.get(shown) {
            return Ok(known.clone());
        }
        let (capability, signed) = read(shown)?;
        let unknown = || Refused::UnknownKey { mdt: capability.mdt, key: capability.key };
        let known = state.mdts.get(&capability.mdt).ok_or_else(unknown)?;
        let key = *known.keys.get(&capability.key).ok_or_else(unknown)?;
        drop(state);
        let signature = Signature::from_bytes(&signed.signature);
        let bytes = signed_bytes(&signed.capability);
        key.verify_strict(&bytes, &signature).map_err(|_| Refused::Forged)?;
        let capability = Arc::new(capability);
        let mut state = self.lock();
        if state.verified.insert(shown.to_vec(), capability.clone()).is_none() {
            state.order.push_back(shown.to_vec());
            state.bytes += shown.len();
        }
        while state.bytes > VERIFIED_BYTES
            && let Some(oldest) = state.order.pop_front()
        {
            state.verified.remove(&oldest);
            state.bytes -= oldest.len();
        }
        Ok(capability)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(shown: &[u8]) -> Result<(Capability, SignedCapability), Refused> {
    let signed: SignedCapability = tieline_wire::decode(shown).map_err(|_| Refused::Malformed)?;
    let capability = tieline_wire::decode(&signed.capability).map_err(|_| Refused::Malformed)?;
    Ok((capability, signed))
}

impl Admitted {
    /// The MDT that signed it.
    pub fn mdt(&self) -> MdtIndex {
        self.capability.mdt
    }

    /// Is it good for this?
    pub fn allows(&self, wish: Wish<'_>) -> Result<(), Refused> {
        match wish {
            Wish::Put { chunk, file } => {
                if !self.is_own(chunk) {
                    return Err(Refused::NotGranted("chunks may be put under others' grants"));
                }
                self.writes(file)
            }
            // Who may read it may wait until what he reads is durable.
            Wish::Sync { file } if self.is_for(file) => Ok(()),
            Wish::Sync { file } => self.writes(file),
            Wish::Read { object, file } => self.reads(object, file),
        }
    }

    /// Chunks that the session wrote carry its grant.
    fn is_own(&self, chunk: GrantedId) -> bool {
        chunk.mdt == self.capability.mdt && chunk.grant.0 == self.capability.session.0
    }

    /// Adopted files are of no MDT.
    fn is_of_its_mdt(&self, object: &ObjectName) -> bool {
        match object {
            ObjectName::Chunk(chunk) => chunk.mdt == self.capability.mdt,
            ObjectName::External { .. } => true,
            ObjectName::Key(_) => false,
        }
    }

    fn is_for(&self, wanted: FileId) -> bool {
        match &self.capability.scope {
            Scope::File { file, .. } | Scope::Delegated { file, .. } => *file == wanted,
            Scope::Files { .. } => self.check_named(wanted).is_ok(),
            Scope::Own { .. } => false,
        }
    }

    /// Is the file among several?
    fn check_named(&self, wanted: FileId) -> Result<(), Refused> {
        let Scope::Files { runs } = &self.capability.scope else { return Err(Refused::OtherFile) };
        let is_named = wanted.mdt() == self.capability.mdt
            && runs.iter().any(|run| run.holds(wanted.serial()));
        match (is_named, self.revoked.contains(&wanted)) {
            (true, false) => Ok(()),
            (true, true) => Err(Refused::Revoked),
            (false, _) => Err(Refused::OtherFile),
        }
    }

    fn writes(&self, wanted: FileId) -> Result<(), Refused> {
        let scope = &self.capability.scope;
        match scope {
            Scope::File { file, is_write, .. } | Scope::Delegated { file, is_write, .. } => {
                match *is_write {
                    _ if *file != wanted => Err(Refused::OtherFile),
                    true => Ok(()),
                    false => Err(Refused::NotGranted("the file may be written")),
                }
            }
            Scope::Files { .. } => Err(Refused::NotGranted("the file may be written")),
            Scope::Own { runs } => {
                let is_made = wanted.mdt() == self.capability.mdt
                    && runs.iter().any(|run| run.holds(wanted.serial()));
                if is_made { Ok(()) } else { Err(Refused::OtherFile) }
            }
        }
    }

    fn reads(&self, wanted: &ObjectName, of: Option<FileId>) -> Result<(), Refused> {
        let scope = &self.capability.scope;
        let is_for_another = matches!(scope, Scope::Delegated { .. });
        if !is_for_another && matches!(wanted, ObjectName::Chunk(chunk) if self.is_own(*chunk)) {
            // It wrote these bytes itself.
            return Ok(());
        }
        match scope {
            Scope::File { file, is_read, .. } | Scope::Delegated { file, is_read, .. } => {
                let is_named = || self.is_of_its_mdt(wanted) && scope.objects().contains(wanted);
                match *is_read {
                    false => Err(Refused::NotGranted("the file may be read")),
                    true if of == Some(*file) || is_named() => Ok(()),
                    true => Err(Refused::OtherFile),
                }
            }
            Scope::Files { .. } => match of {
                Some(file) => self.check_named(file),
                None => Err(Refused::OtherFile),
            },
            Scope::Own { .. } => Err(Refused::OtherFile),
        }
    }
}
