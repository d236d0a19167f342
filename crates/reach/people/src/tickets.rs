//! Users' tickets: tokens from their caches, and how long they hold.
//!
//! A cache ([`purse`], by its [`names`]) is never opened by this process, which may be root: one
//! does it that has the user's ids and groups ([`reading`]), so that nobody can point at another's
//! cache, and caches in keyrings and homes behind root squash are found.
//!
//! The path of a cache is of its user's choice, and so is what lies there: storage that hangs, or
//! the very mount that asks. Looks and readings take [`turns`], and end for who waits when they
//! take long.
//!
//! Invariants: at most [`KNOWN_MAX`] credentials are remembered, and [`READERS_MAX`] readings are
//! under way at once; one look for a ticket takes [`PATIENCE`] at most, its turn included, and one
//! at a cache, or into it, [`LOOK_PATIENCE`].

use crate::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::{Guard, proof_binding};
use tieline_types::{Caller, SessionId};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use turns::Turns;

pub(crate) mod names;
mod purse;
pub mod reading;
mod turns;

pub use purse::{Hand, Purse, Seen};
pub(crate) use purse::{is_same_file, place_of};
pub use reading::Lack;
use reading::{Found, Reading, Start};

const KNOWN_MAX: usize = 4096;
const READERS_MAX: usize = 8;
/// A program waits in a system call. The library asks a KDC again after a second, and goes to the
/// next one then: who does not answer within ten times that is away.
const PATIENCE: Duration = Duration::from_secs(10);
/// A reading ends by itself then, but for one that cannot be killed. It says why.
const LEEWAY: Duration = Duration::from_secs(1);
/// A look is made at each call, and takes microseconds where nothing hangs; so does a reading,
/// until a KDC is asked.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// Looks and readings of one user at once, and of all: some of them may hang for ever, and the
/// threads that they have are needed for other work, too.
const LOOKS: (usize, usize) = (4, 128);
const READINGS: (usize, usize) = (2, 64);
const HANGS: &str = "the cache of tickets lies where nothing answers: see KRB5CCNAME";

/// Whom a number of a proof stands for, here.
#[derive(Clone, Debug)]
struct Owner {
    hand: Hand,
    gid: u32,
    groups: Vec<u32>,
    last: Last,
}

/// What the last reading brought.
#[derive(Clone, Debug)]
enum Last {
    Nothing,
    Ticket { until: Option<Instant> },
    Lack(Lack),
}

/// See the module.
pub struct Tickets {
    guard: Arc<Guard>,
    start: Start,
    owners: Mutex<BTreeMap<u64, Owner>>,
    /// Users' default caches, as the last readings had them.
    defaults: Mutex<BTreeMap<u32, String>>,
    readers: Semaphore,
    looks: Turns,
    readings: Turns,
}

impl Tickets {
    pub fn new(guard: Arc<Guard>, start: Start) -> Self {
        let (owners, defaults) = (Mutex::default(), Mutex::default());
        let [looks, readings] = [LOOKS, READINGS].map(|(each, all)| Turns::new(each, all));
        let readers = Semaphore::new(READERS_MAX);
        Self { guard, start, owners, defaults, readers, looks, readings }
    }

    /// A user's cache that `find` finds, which hears what his default was and may take as long as
    /// he likes.
    pub async fn find(
        &self,
        uid: u32,
        find: impl FnOnce(Option<String>) -> Result<Hand, Lack> + Send + 'static,
    ) -> Result<Hand, Lack> {
        let default = lock(&self.defaults).get(&uid).cloned();
        let until = Instant::now() + LOOK_PATIENCE;
        let found = self.looks.run(uid, until, move || find(default)).await;
        found.unwrap_or_else(|| Err(Lack::silent(HANGS)))
    }

    /// How a cache looks now.
    pub async fn look(&self, hand: &Hand) -> Seen {
        let (uid, until) = (hand.purse.uid, Instant::now() + LOOK_PATIENCE);
        let hand = hand.clone();
        let seen = self.looks.run(uid, until, move || hand.look().0).await;
        seen.unwrap_or(Seen::File(None))
    }

    /// From now on a number stands for a user and his cache.
    pub fn register(&self, number: u64, hand: &Hand, stated: &Caller) {
        let mut owners = lock(&self.owners);
        if owners.len() >= KNOWN_MAX {
            owners.pop_first();
        }
        let groups = stated.groups.iter().map(|gid| gid.0).collect();
        let owner = Owner { hand: hand.clone(), gid: stated.gid.0, groups, last: Last::Nothing };
        owners.insert(number, owner);
    }

    pub fn forget(&self, number: u64) {
        lock(&self.owners).remove(&number);
    }

    /// Why there was no ticket behind a number when it was asked for one.
    pub fn lack(&self, number: u64) -> Option<Lack> {
        match &lock(&self.owners).get(&number)?.last {
            Last::Lack(lack) => Some(lack.clone()),
            Last::Nothing | Last::Ticket { .. } => None,
        }
    }

    /// When the ticket is over that was shown last under a number.
    pub fn until(&self, number: u64) -> Option<Instant> {
        match &lock(&self.owners).get(&number)?.last {
            Last::Ticket { until } => *until,
            Last::Nothing | Last::Lack(_) => None,
        }
    }

    async fn read(&self, owner: Owner, target: String, binding: [u8; 32]) -> Result<Reading, Lack> {
        let (deadline, until) = (std::time::Instant::now() + PATIENCE, Instant::now() + PATIENCE);
        let busy = || Lack::silent("too many others look for tickets: try again");
        // Who waits for his own turns keeps no reader from others.
        let turns = async {
            let own = self.readings.take(owner.hand.purse.uid).await?;
            Some((own, self.readers.acquire().await.ok()?))
        };
        let turns = timeout_at(until, turns).await.ok().flatten();
        let (own, _reader) = turns.ok_or_else(busy)?;
        let start = self.start;
        let asking = own.hold(move || reading::ask(start, &owner, &target, &binding, deadline));
        let asked = timeout_at(until + LEEWAY, asking).await;
        let asked = asked.map_err(|_| Lack::silent(HANGS))?;
        asked.unwrap_or_else(|| Err(Lack::silent("looking for a ticket ended early")))
    }
}

#[async_trait::async_trait]
impl tieline_servers::Credentials for Tickets {
    async fn token(&self, proof: u64, session: SessionId, addresses: &[String]) -> Option<Vec<u8>> {
        let owner = lock(&self.owners).get(&proof).cloned()?;
        let target = self.guard.principal_of(addresses.first()?);
        let binding = proof_binding(session, proof);
        let Purse { uid, cache, .. } = owner.hand.purse.clone();
        let (last, token) = match self.read(owner, target, binding).await {
            Ok(Reading { cache: default, found: Found::Token { digits, seconds } }) => {
                if let Some(default) = default.filter(|_| cache.is_none()) {
                    let mut defaults = lock(&self.defaults);
                    if defaults.len() >= KNOWN_MAX {
                        defaults.clear();
                    }
                    defaults.insert(uid, default);
                }
                let until = seconds.map(|left| Instant::now() + Duration::from_secs(left));
                (Last::Ticket { until }, reading::bytes_of(&digits))
            }
            Ok(Reading { found: Found::Lack(lack), .. }) | Err(lack) => (Last::Lack(lack), None),
        };
        if let Last::Lack(Lack { why, .. }) = &last {
            tracing::info!(uid, cache, %why, "no ticket of a user");
        }
        if let Some(owner) = lock(&self.owners).get_mut(&proof) {
            owner.last = last;
        }
        token
    }

    fn is_silent(&self, proof: u64) -> bool {
        self.lack(proof).is_some_and(|lack| lack.is_silent)
    }
}
