//! The MDS's side: signs capabilities, and remembers what was taken back.
//!
//! Rights are looked at between [`Issuer::serial`] and [`Issuer::issue`]: a change of rights that
//! commits meanwhile takes back everything of a serial that was given before.
//!
//! Invariants: a serial is never used twice; a key that signed anything is told as long as that may
//! hold; when more was taken back than [`REVOKED_MAX`], the keys end instead, and with them all.

use super::{LIFE_MAX, signed_bytes};
use ed25519_dalek::{Signer, SigningKey};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tieline_types::{FileId, MdtIndex, SessionId};
use tieline_wire::capability::{
    Capability, CapabilityGrant, CapabilityKey, CapabilityNewsReply, Holder, Revocation, Scope,
    SignedCapability,
};
use tokio::time::Instant;

/// A key signs for so long.
const KEY_AGE: Duration = Duration::from_secs(3600);
/// OSSs hear of a key before it signs.
const KEY_NOTICE: Duration = Duration::from_secs(30);
/// Clocks of OSSs count from the MDS's, with the time of a question in between.
const SLACK: Duration = Duration::from_secs(15);
/// Taken back one by one.
const REVOKED_MAX: usize = 1024;
/// Files that somebody may have capabilities for.
const ISSUED_MAX: usize = 65_536;

/// Fills with random bytes.
pub type Dice = Box<dyn Fn(&mut [u8]) + Send + Sync>;

/// See the module.
pub struct Issuer {
    mdt: MdtIndex,
    life: Duration,
    dice: Dice,
    state: Mutex<State>,
}

/// A place in the order of grants and of what is taken back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Serial(u64);

struct Key {
    number: u64,
    signing: SigningKey,
    /// It signs from here on.
    from: Instant,
}

#[derive(Default)]
struct State {
    /// Oldest first.
    keys: Vec<Key>,
    serial: u64,
    /// Until when somebody may hold a capability for a file.
    issued: BTreeMap<FileId, Instant>,
    /// Until then there may be more than `issued` says.
    crowded: Option<Instant>,
    revoked: VecDeque<(Instant, Revocation)>,
}

impl Issuer {
    /// `life` is cut to what is allowed.
    pub fn new(mdt: MdtIndex, life: Duration, dice: Dice) -> Self {
        let life = life.min(LIFE_MAX);
        Self { mdt, life, dice, state: Mutex::default() }
    }

    /// To be taken before rights are looked at.
    pub fn serial(&self, file: Option<FileId>) -> Serial {
        let mut state = self.lock();
        state.serial += 1;
        if let Some(file) = file {
            let now = Instant::now();
            let until = now + self.life + SLACK;
            if state.issued.len() >= ISSUED_MAX {
                state.issued.retain(|_, until| *until > now);
            }
            if state.issued.len() >= ISSUED_MAX {
                state.issued.clear();
                state.crowded = Some(until);
            }
            state.issued.insert(file, until);
        }
        Serial(state.serial)
    }

    /// The same for many files whose rights were looked at before: it does only for those that were
    /// surely not changed between then and now.
    pub fn serial_of_many(&self, files: impl IntoIterator<Item = FileId>) -> Serial {
        let mut last = self.serial(None);
        for file in files {
            last = self.serial(Some(file));
        }
        last
    }

    /// Signs what was found to be right. `now_ms` is the wall's clock.
    pub fn issue(
        &self,
        serial: Serial,
        now_ms: u64,
        whose: (SessionId, Holder),
        scope: Scope,
    ) -> CapabilityGrant {
        self.issue_for(self.life, serial, now_ms, whose, scope)
    }

    /// The same, for no longer than that.
    pub fn issue_for(
        &self,
        life: Duration,
        Serial(serial): Serial,
        now_ms: u64,
        (session, holder): (SessionId, Holder),
        scope: Scope,
    ) -> CapabilityGrant {
        let mut state = self.lock();
        let key = self.key(&mut state);
        let life_ms = self.life.min(life).as_millis() as u32;
        let expires_ms = now_ms + u64::from(life_ms);
        let capability = Capability {
            mdt: self.mdt,
            key: key.number,
            serial,
            session,
            holder,
            expires_ms,
            scope,
        };
        let capability = tieline_wire::encode(&capability);
        let signature = key.signing.sign(&signed_bytes(&capability)).to_bytes();
        let signed = tieline_wire::encode(&SignedCapability { capability, signature });
        CapabilityGrant { signed, life_ms }
    }

    /// Rights to a file changed: whoever has a capability for it shall ask again.
    pub fn revoke_file(&self, file: FileId) {
        let mut state = self.lock();
        let now = Instant::now();
        let may_be_held = state.issued.remove(&file).is_some_and(|until| until > now)
            || state.crowded.is_some_and(|until| until > now);
        if may_be_held {
            self.revoke(&mut state, Some(file), None);
        }
    }

    /// A session is over.
    pub fn revoke_session(&self, session: SessionId) {
        let mut state = self.lock();
        if !state.keys.is_empty() {
            self.revoke(&mut state, None, Some(session));
        }
    }

    /// Everything that was signed ends, with its keys: others are made for what comes next.
    pub fn renew(&self) {
        end_all(&mut self.lock());
    }

    fn revoke(&self, state: &mut State, file: Option<FileId>, session: Option<SessionId>) {
        let now = Instant::now();
        while state.revoked.front().is_some_and(|(at, _)| now > *at + self.life + SLACK) {
            state.revoked.pop_front();
        }
        // The last is for all that was given before.
        state.revoked.retain(|(_, known)| file.is_none() || known.file != file);
        if state.revoked.len() >= REVOKED_MAX {
            end_all(state);
            return;
        }
        state.serial += 1;
        state.revoked.push_back((now, Revocation { below: state.serial, file, session }));
    }

    /// What OSSs must know.
    pub fn news(&self, now_ms: u64) -> CapabilityNewsReply {
        let mut state = self.lock();
        self.key(&mut state);
        let told = |key: &Key| CapabilityKey {
            number: key.number,
            public: key.signing.verifying_key().to_bytes(),
        };
        CapabilityNewsReply {
            keys: state.keys.iter().map(told).collect(),
            revoked: state.revoked.iter().map(|(_, revocation)| revocation.clone()).collect(),
            now_ms,
        }
    }

    /// The key that signs now. A new one is made in time; old ones end when nothing of theirs holds
    /// any more.
    fn key<'s>(&self, state: &'s mut State) -> &'s Key {
        let now = Instant::now();
        let newest = state.keys.last().map(|key| key.from);
        match newest {
            None => state.keys.push(self.make(now)),
            Some(from) if now >= from + KEY_AGE => state.keys.push(self.make(now + KEY_NOTICE)),
            Some(_) => {}
        }
        let signs = state.keys.iter().rposition(|key| key.from <= now).unwrap_or(0);
        let since = state.keys.get(signs).map_or(now, |key| key.from);
        let keeps_older = now < since + self.life + SLACK;
        let signs = match keeps_older {
            true => signs,
            false => {
                state.keys.drain(..signs);
                0
            }
        };
        // There is one: it was made above if there was none.
        &state.keys[signs]
    }

    fn make(&self, from: Instant) -> Key {
        let (mut number, mut secret) = ([0; 8], [0; 32]);
        (self.dice)(&mut number);
        (self.dice)(&mut secret);
        let signing = SigningKey::from_bytes(&secret);
        Key { number: u64::from_le_bytes(number), signing, from }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held; a poisoned lock still holds whole values.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end_all(state: &mut State) {
    state.revoked.clear();
    state.issued.clear();
    state.keys.clear();
}
