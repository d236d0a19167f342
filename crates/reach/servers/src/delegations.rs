//! A door's users, as it shows them to servers.
//!
//! A door registers what shows that a user came to it ([`Delegations::speak`]), and shows it at
//! once to every MDS ([`Servers::show_everywhere`]): what a user sent is good for a few minutes
//! only. From then on requests for him carry the number. A server that does not know it, because it
//! was away, is shown the same again when it says so.
//!
//! The door does not open what its users send: it has no key for that. It is told who came, and
//! what to answer.
//!
//! Servers judge: a door that asks for more than it has is told what holds. What a server told one
//! user lies in the same caches as what it told others: a door holds each of its users to his scope
//! itself, before it answers him ([`SpokenFor::scope`]).
//!
//! Knows no Kerberos.
//!
//! Invariants: a number is never used for two users; what is over is shown no more, and at most
//! [`HELD_MAX`] are held.

use crate::{Credentials, Error, Result, Servers, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_types::{Caller, Door, ErrorKind, Scope, SessionId};
use tieline_wire::identity::{Delegation, Evidence, ProveReply};
use tieline_world::World;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const HELD_MAX: usize = 4096;
/// After the first answer others are waited for so long; they go on by themselves.
const OTHERS: Duration = Duration::from_secs(2);

/// What a door asks for.
#[derive(Clone, Debug)]
pub struct Wish {
    pub evidence: Evidence,
    /// No more than this: a token's scope, say.
    pub scope: Option<Scope>,
    /// For no longer.
    pub life: Option<Duration>,
}

/// A user for whom a door speaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpokenFor {
    pub caller: Caller,
    pub principal: Option<String>,
    /// What may be done for him; `None`: whatever he may.
    pub scope: Option<Scope>,
    pub until: Instant,
    /// For people.
    pub how: String,
    /// What he is to be answered in the door's own protocol, if he wants to know who is there.
    pub answer: Option<Vec<u8>>,
}

struct Held {
    shown: Delegation,
    until: Instant,
}

/// See the module.
pub struct Delegations {
    next: AtomicU64,
    held: Mutex<BTreeMap<u64, Held>>,
}

impl Delegations {
    /// Servers may know numbers of an earlier process in the same session: others are used now.
    pub fn new(world: &World) -> Arc<Self> {
        let next = AtomicU64::new(world.random() >> 1);
        Arc::new(Self { next, held: Mutex::default() })
    }

    /// Registers a user who came, and shows him to all servers that can be reached.
    pub async fn speak(&self, servers: &Arc<Servers>, wish: Wish) -> Result<SpokenFor> {
        let number = self.register(wish)?;
        let told = servers.show_everywhere(number).await;
        let told = told.inspect_err(|_| self.forget(number))?;
        let ProveReply { caller, principal, how, seconds, scope, answer, .. } = told;
        // One that does not know what a door is tells whom it takes the connection for.
        let Some(seconds) = seconds else {
            self.forget(number);
            return Err(Error::local(ErrorKind::NotSupported, "a door's users at an older server"));
        };
        let until = Instant::now() + Duration::from_secs(seconds.into());
        if let Some(held) = lock(&self.held).get_mut(&number) {
            held.until = until;
        }
        let caller = Caller { proof: Some(number), ..caller };
        Ok(SpokenFor { caller, principal, scope, until, how, answer })
    }

    fn register(&self, Wish { evidence, scope, life }: Wish) -> Result<u64> {
        let now = Instant::now();
        let most = Duration::from_secs(Door::SECONDS_MAX.into());
        let until = now + life.unwrap_or(most).min(most);
        let seconds = life.map(|life| u32::try_from(life.as_secs()).unwrap_or(u32::MAX));
        let shown = Delegation { evidence: Some(evidence), scope, seconds };
        let mut held = lock(&self.held);
        if held.len() >= HELD_MAX {
            held.retain(|_, held| held.until > now);
        }
        if held.len() >= HELD_MAX {
            return Err(Error::local(ErrorKind::Overloaded, "a user more at this door"));
        }
        let number = loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if Caller::is_of_proof(number) && !held.contains_key(&number) {
                break number;
            }
        };
        held.insert(number, Held { shown, until });
        Ok(number)
    }

    /// He left: nothing more is shown for him. What servers know of him ends with its time.
    pub fn forget(&self, number: u64) {
        lock(&self.held).remove(&number);
    }
}

#[async_trait::async_trait]
impl Credentials for Delegations {
    async fn token(&self, _: u64, _: SessionId, _: &[String]) -> Option<Vec<u8>> {
        None
    }

    fn delegation(&self, proof: u64) -> Option<Delegation> {
        let held = lock(&self.held);
        let held = held.get(&proof).filter(|held| held.until > Instant::now());
        held.map(|held| held.shown.clone())
    }

    fn is_silent(&self, _: u64) -> bool {
        false
    }
}

impl Servers {
    /// Shows all MDSs whom a number stands for: the first answer counts. One that is away hears of
    /// it later, if it is still good then.
    pub async fn show_everywhere(self: &Arc<Self>, proof: u64) -> Result<ProveReply> {
        let current = self.map.current();
        let (mut asked, mut known) = (JoinSet::new(), BTreeSet::new());
        for mdt in current.map.mdts.iter().map(|entry| entry.mdt) {
            let server = self.mds(mdt)?;
            if known.insert(server.number.0) {
                let servers = self.clone();
                asked.spawn(async move { servers.show(&server, proof).await });
            }
        }
        let mut outcome = Err(Error::local(ErrorKind::Unreachable, "all MDSs"));
        while outcome.is_err()
            && let Some(answer) = asked.join_next().await
        {
            let lost = |_| Err(Error::local(ErrorKind::Internal, "task of the client"));
            let answer = answer.unwrap_or_else(lost);
            // What one says who is there is the better reason.
            let is_away = |error: &Error| error.kind() == ErrorKind::Unreachable;
            if !answer.as_ref().is_err_and(is_away) {
                outcome = answer;
            }
        }
        let rest = async { while asked.join_next().await.is_some() {} };
        if outcome.is_ok() && timeout(OTHERS, rest).await.is_err() {
            asked.detach_all();
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(life: Option<Duration>) -> Wish {
        let principal = "ann@EXTENCI.ORG".to_owned();
        Wish { evidence: Evidence::Word { principal }, scope: None, life }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_over_is_shown_no_more() {
        let delegations = Delegations::new(&World::real());
        let short = delegations.register(wish(Some(Duration::from_secs(60)))).unwrap();
        let usual = delegations.register(wish(None)).unwrap();
        assert_ne!(short, usual);
        assert_eq!(delegations.delegation(short).unwrap().seconds, Some(60));
        assert_eq!(delegations.delegation(usual).unwrap().seconds, None);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(delegations.delegation(short), None);
        assert!(delegations.delegation(usual).is_some());
        delegations.forget(usual);
        assert_eq!(delegations.delegation(usual), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_door_turns_away_who_comes_and_none_who_is_there() {
        let delegations = Delegations::new(&World::real());
        let first = delegations.register(wish(Some(Duration::from_secs(60)))).unwrap();
        for _ in 1..HELD_MAX {
            delegations.register(wish(None)).unwrap();
        }
        let full = delegations.register(wish(None)).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::Overloaded);
        assert!(delegations.delegation(first).is_some());
        tokio::time::advance(Duration::from_secs(60)).await;
        delegations.register(wish(None)).unwrap();
    }
}
