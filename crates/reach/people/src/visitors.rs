//! Who comes to a door of another protocol, and what may be done for him.
//!
//! A door gets evidence from whoever comes: what he sent to its service, or a token. [`Visitors`]
//! shows it to the MDSs, which say who that is; the door itself is not believed. What comes back is
//! a [`Visitor`]: for as long as somebody has it, servers are shown the evidence again where they
//! need it, and when it is dropped nothing more is shown for him.
//!
//! Knows no protocol of a door and nothing of files.
//!
//! Invariants: nobody is taken for whom no MDS named; evidence that comes with each request is
//! shown to MDSs once, and at most [`KNOWN_MAX`] who were proved by it are remembered.

use crate::judges::table_of;
use crate::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_identities::IdentityTable;
use tieline_servers::{Delegations, Error, Servers, SpokenFor};
use tieline_types::{Caller, Door, ErrorKind, Gid, IdentityKind, Scope, Uid};
use tieline_wire::identity::Evidence;
use tokio::time::Instant;

pub use tieline_servers::Wish;

/// Of those who show the same with each request.
pub const KNOWN_MAX: usize = 2048;
/// Evidence that is larger is nobody's.
pub const EVIDENCE_BYTES_MAX: usize = 64 << 10;

/// How old the names of owners get.
const NAMES_PAUSE: Duration = Duration::from_secs(30);

/// Somebody for whom a door speaks.
pub struct Visitor {
    spoken: SpokenFor,
    scope: Option<Arc<Scope>>,
    /// Where he is forgotten; `None`: of a test.
    held: Option<Arc<Delegations>>,
}

/// What a door asks of those who come to it.
#[async_trait::async_trait]
pub trait Visitors: Send + Sync {
    /// Somebody who showed something that is good once: a ticket.
    async fn meet(&self, wish: Wish) -> Result<Arc<Visitor>, Error>;

    /// Somebody who shows the same with each request: a token. He is the same visitor as before
    /// until his time is over.
    async fn meet_again(&self, wish: Wish) -> Result<Arc<Visitor>, Error>;

    /// The service whose tickets this door may hand on, by the first part of its name (`xrootd`,
    /// `HTTP`), as the map has it now.
    fn service(&self, first: &str) -> Option<String>;

    /// The same: what an administrator has to do if there is none.
    fn advice(&self, first: &str) -> String;

    /// Owner and group, as people call them.
    fn names(&self, uid: Uid, gid: Gid) -> (String, String) {
        (uid.0.to_string(), gid.0.to_string())
    }
}

impl Visitor {
    /// Without servers, for tests of doors.
    pub fn known(caller: Caller, scope: Option<Scope>, life: Duration) -> Self {
        let (principal, how, answer) = (None, "a test".to_owned(), None);
        let until = Instant::now() + life;
        let kept = scope.clone().map(Arc::new);
        let spoken = SpokenFor { caller, principal, scope, until, how, answer };
        Self { spoken, scope: kept, held: None }
    }

    fn new(spoken: SpokenFor, held: Arc<Delegations>) -> Self {
        Self { scope: spoken.scope.clone().map(Arc::new), spoken, held: Some(held) }
    }

    pub fn caller(&self) -> &Caller {
        &self.spoken.caller
    }

    /// What may be done for him; `None`: whatever he may.
    pub fn scope(&self) -> Option<&Arc<Scope>> {
        self.scope.as_ref()
    }

    /// As he proved himself.
    pub fn principal(&self) -> Option<&str> {
        self.spoken.principal.as_deref()
    }

    /// When he has to show himself again.
    pub fn until(&self) -> Instant {
        self.spoken.until
    }

    pub fn is_over(&self) -> bool {
        self.until() <= Instant::now()
    }

    /// What he is to be answered in the door's protocol, if he wants to know who is there.
    pub fn answer(&self) -> Option<&[u8]> {
        self.spoken.answer.as_deref()
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        if let (Some(held), Some(number)) = (&self.held, self.spoken.caller.proof) {
            held.forget(number);
        }
    }
}

/// Those of one door, as MDSs judge them.
pub struct Spoken {
    servers: Arc<Servers>,
    delegations: Arc<Delegations>,
    /// As which the door connects.
    principal: String,
    known: Mutex<BTreeMap<Vec<u8>, Arc<Visitor>>>,
    table: Mutex<IdentityTable>,
}

impl Spoken {
    /// Also has the servers shown the evidence that its visitors bring.
    pub fn new(
        servers: Arc<Servers>,
        delegations: Arc<Delegations>,
        principal: String,
    ) -> Arc<Self> {
        servers.set_credentials(delegations.clone());
        let (known, table) = (Mutex::default(), Mutex::default());
        Arc::new(Self { servers, delegations, principal, known, table })
    }

    /// Itself, as the map has it now.
    fn door(&self) -> Option<Door> {
        let current = self.servers.map.current();
        let doors = current.map.security.as_ref()?.doors.as_ref()?;
        doors.iter().find(|door| door.principal == self.principal).cloned()
    }

    /// Keeps the names of owners as they are now, for as long as it is polled.
    pub async fn keep_names(&self) {
        loop {
            let have = lock(&self.table).version();
            match table_of(&self.servers, Some(have).filter(|&have| have > 0)).await {
                Ok(Some(table)) => *lock(&self.table) = table,
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "owners' names stay as they were"),
            }
            tokio::time::sleep(NAMES_PAUSE).await;
        }
    }

    fn remembered(&self, key: &[u8]) -> Option<Arc<Visitor>> {
        lock(&self.known).get(key).filter(|visitor| !visitor.is_over()).cloned()
    }

    fn remember(&self, key: Vec<u8>, visitor: &Arc<Visitor>) {
        let mut known = lock(&self.known);
        if known.len() >= KNOWN_MAX {
            known.retain(|_, visitor| !visitor.is_over());
        }
        // Whose time ends first is met anew, should he come again.
        if known.len() >= KNOWN_MAX
            && let Some((first, _)) = known.iter().min_by_key(|(_, visitor)| visitor.until())
        {
            let first = first.clone();
            known.remove(&first);
        }
        known.insert(key, visitor.clone());
    }
}

#[async_trait::async_trait]
impl Visitors for Spoken {
    async fn meet(&self, wish: Wish) -> Result<Arc<Visitor>, Error> {
        check(&wish.evidence)?;
        let spoken = self.delegations.speak(&self.servers, wish).await?;
        Ok(Arc::new(Visitor::new(spoken, self.delegations.clone())))
    }

    async fn meet_again(&self, wish: Wish) -> Result<Arc<Visitor>, Error> {
        check(&wish.evidence)?;
        let malformed = |_| Error::local(ErrorKind::InvalidArgument, "evidence");
        let key = minicbor::to_vec((&wish.evidence, &wish.scope)).map_err(malformed)?;
        if let Some(visitor) = self.remembered(&key) {
            return Ok(visitor);
        }
        let visitor = self.meet(wish).await?;
        self.remember(key, &visitor);
        Ok(visitor)
    }

    fn service(&self, first: &str) -> Option<String> {
        let is_it =
            |service: &&String| service.split_once('/').is_some_and(|(begin, _)| begin == first);
        self.door()?.services.iter().find(is_it).cloned()
    }

    fn advice(&self, first: &str) -> String {
        let door = &self.principal;
        let host = door.split(['/', '@']).nth(1).unwrap_or("HOST");
        let realm = door.rsplit_once('@').map_or("REALM", |(_, realm)| realm);
        format!(
            "the federation map names no service {first}/… for {door}: an administrator runs \
             `tieline door add {door} --tickets-for {first}/{host}@{realm}`"
        )
    }

    fn names(&self, uid: Uid, gid: Gid) -> (String, String) {
        let table = lock(&self.table);
        let name = |kind, number| match (number, table.identity(kind, number)) {
            (0, _) => "root".to_owned(),
            (_, Some(identity)) => identity.name.to_string(),
            (number, None) => number.to_string(),
        };
        (name(IdentityKind::User, uid.0), name(IdentityKind::Group, gid.0))
    }
}

fn check(evidence: &Evidence) -> Result<(), Error> {
    let length = match evidence {
        Evidence::Ticket(ticket) => ticket.len(),
        Evidence::Word { principal } => principal.len(),
        Evidence::Token(token) => token.len(),
    };
    if length > EVIDENCE_BYTES_MAX {
        let what = format!("{length} bytes to show who one is, {EVIDENCE_BYTES_MAX} are the most");
        return Err(Error::local(ErrorKind::InvalidArgument, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whose_time_is_over_shows_himself_again() {
        let life = Duration::from_secs(60);
        let visitor = Visitor::known(Caller::default(), None, life);
        assert!(!visitor.is_over());
        tokio::time::advance(life).await;
        assert!(visitor.is_over());
    }

    #[test]
    fn large_evidence_is_nobodys() {
        assert!(check(&Evidence::Ticket(vec![0; EVIDENCE_BYTES_MAX])).is_ok());
        let large = check(&Evidence::Ticket(vec![0; EVIDENCE_BYTES_MAX + 1]));
        assert_eq!(large.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
