//! Who this machine's users are to the file system.
//!
//! Where the servers believe this machine (or nothing is proven at all), a caller is who the
//! machine's ids say, as [`Idmap`] translates them. Else a caller is whoever his ticket shows
//! ([`Tickets`]). Who has none is whom the servers take him for ([`word`](crate::word)),
//! and that depends on whose the connection is: of a machine's users they make strangers
//! and of its root what the map says; over a user's connection all are strangers, root and the
//! user's own processes too. What somebody connected with is nobody's right but his own processes',
//! as long as they find it themselves.
//!
//! A KDC that does not answer makes no stranger of anybody: that is an error, and the next try may
//! do better.
//!
//! Invariants: a caller is found anew when his cache changed, when his ticket is over, and when
//! rules or identities did; at most [`KNOWN_MAX`] are remembered.

use crate::idmap::Idmap;
use crate::judges::{AnyMds, Judges};
use crate::tickets::{Hand, Lack, Purse, Seen, Tickets, is_same_file};
use crate::word::Word;
use crate::{Asking, People, Unknown, lock, programs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::MapCell;
use tieline_identities::machines::trust_of;
use tieline_servers::Servers;
use tieline_types::identity::NOBODY;
use tieline_types::{Caller, ErrorKind, Gid, MdtIndex, Uid};
use tieline_wire::identity::ProveReply;
use tieline_world::World;
use tokio::time::Instant;

const KNOWN_MAX: usize = 4096;
/// How long it is believed what servers take somebody for who shows nothing.
const BELIEVED: Duration = Duration::from_secs(5);
/// How long it is believed whether users must show tickets.
const RULES_BELIEVED: Duration = Duration::from_secs(60);
/// A ticket is shown again so long before servers take it for over.
const MARGIN: Duration = Duration::from_secs(2);
/// A KDC that did not answer is not waited for again so soon: a program that looks at ten files
/// would wait ten times.
const SILENT: Duration = Duration::from_secs(5);

/// See the module.
pub struct Users {
    judges: Arc<dyn Judges>,
    world: World,
    map: MapCell,
    idmap: Arc<Idmap>,
    tickets: Arc<Tickets>,
    is_personal: AtomicBool,
    known: Mutex<BTreeMap<Purse, Known>>,
    silent: Mutex<BTreeMap<Purse, Silent>>,
    /// What servers make of those who show nothing.
    word: Arc<Word>,
}

/// As whom a program is served, and how that was found: what [`People::described`] tells, in JSON.
#[derive(Serialize, Deserialize)]
pub struct Served {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub how: String,
}

/// A user, as his ticket showed.
#[derive(Clone)]
struct Known {
    caller: Caller,
    seen: Seen,
    until: Option<Instant>,
    /// Of the identities that were known before he was asked for.
    identities: u64,
}

/// A cache for which nobody said whether there is a ticket.
struct Silent {
    seen: Seen,
    at: Instant,
    lack: Lack,
}

/// How servers find out who a caller is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// By what this machine says.
    Word,
    /// By tickets; of others, and of root, this machine says who they are.
    Machine,
    /// By tickets only: the connection is a user's.
    User,
}

impl Users {
    /// Of whoever has these servers, and asks those of this MDT first. What `tickets` find is shown
    /// to them from now on.
    pub fn new(
        servers: &Arc<Servers>,
        first: MdtIndex,
        idmap: Arc<Idmap>,
        tickets: Arc<Tickets>,
    ) -> Self {
        servers.set_credentials(tickets.clone());
        let judges = Arc::new(AnyMds { servers: servers.clone(), first });
        let outside = (servers.world().clone(), servers.map.clone());
        Self::judged_by(judges, outside, idmap, tickets)
    }

    fn judged_by(
        judges: Arc<dyn Judges>,
        (world, map): (World, MapCell),
        idmap: Arc<Idmap>,
        tickets: Arc<Tickets>,
    ) -> Self {
        let is_personal = AtomicBool::new(map.current().map.security.is_some());
        let (known, silent) = (Mutex::default(), Mutex::default());
        let word = Word::new(judges.clone(), map.clone());
        Self { judges, world, map, idmap, tickets, is_personal, known, silent, word }
    }

    /// For a process that follows another one: see [`Word::was_believed`].
    pub fn was_believed(&self) {
        self.word.was_believed();
    }

    fn is_secure(&self) -> bool {
        self.map.current().map.security.is_some()
    }

    /// Must users show tickets? Asked again when the federation map changed, and now and then.
    async fn look_at_rules(&self) -> Result<Rule, Unknown> {
        let current = self.map.current();
        let security = current.map.security.as_ref();
        let is_users = |told: &ProveReply| {
            told.principal
                .as_deref()
                .is_some_and(|principal| trust_of(principal, security).is_none())
        };
        let rule = match security {
            None => Rule::Word,
            Some(_) => match self.word.told(&Caller::root(), RULES_BELIEVED).await {
                Ok(told) if told.is_believed => Rule::Word,
                Ok(told) if is_users(&told) => Rule::User,
                Ok(_) => Rule::Machine,
                // Whoever the connection belongs to is a stranger himself.
                Err(unknown) if unknown.kind == ErrorKind::PermissionDenied => Rule::User,
                Err(unknown) => return Err(unknown),
            },
        };
        self.is_personal.store(rule != Rule::Word, Ordering::Relaxed);
        Ok(rule)
    }

    /// Whoever shows nothing.
    async fn taken_for(&self, stated: &Caller, rule: Rule) -> Result<Caller, Unknown> {
        let told = self.told(stated, rule).await?;
        Ok(match rule {
            Rule::User => Caller { proof: Some(Caller::STRANGER), ..told.caller },
            // By the ids alone he would be a user without a ticket.
            Rule::Machine if stated.is_root() && !told.caller.is_root() => {
                Caller { proof: Some(Caller::MACHINE_ROOT), ..told.caller }
            }
            Rule::Machine | Rule::Word => told.caller,
        })
    }

    /// What servers say of him.
    async fn told(&self, stated: &Caller, rule: Rule) -> Result<ProveReply, Unknown> {
        if rule == Rule::User {
            return self.word.told(&Caller::stranger(), BELIEVED).await;
        }
        // Some machines are believed about their users, who have identities, too.
        let stated = self.idmap.caller(stated.clone());
        self.word.told(&stated, BELIEVED).await
    }

    /// Whoever could not show anything. Where that is a denial, it is told what was missing.
    async fn without(&self, stated: &Caller, rule: Rule, lack: Lack) -> Result<Caller, Unknown> {
        if lack.is_silent {
            return Err(Unknown { kind: ErrorKind::Unreachable, why: lack.why });
        }
        self.taken_for(stated, rule).await.map_err(|unknown| match unknown.kind {
            ErrorKind::PermissionDenied => {
                Unknown { why: format!("{}; {}", lack.why, unknown.why), ..unknown }
            }
            _ => unknown,
        })
    }

    async fn by_ticket(
        &self,
        process: u32,
        stated: &Caller,
        rule: Rule,
    ) -> Result<Caller, Unknown> {
        match programs::hand(&self.tickets, process, stated.uid.0).await {
            Ok(hand) => self.by_hand(hand, stated, rule).await,
            Err(lack) => self.without(stated, rule, lack).await,
        }
    }

    /// Whoever has this cache.
    async fn by_hand(&self, hand: Hand, stated: &Caller, rule: Rule) -> Result<Caller, Unknown> {
        let identities = self.idmap.version();
        let known = lock(&self.known).get(&hand.purse).cloned();
        let is_good = |known: &Known| {
            let is_over = known.until.is_some_and(|until| Instant::now() >= until);
            // Whether a cache that is no file changed, only a server that is shown it again says.
            let is_untold = || matches!(known.seen, Seen::At(_)) && self.judges.is_away();
            let is_as_told = known.identities == identities;
            !is_over && is_as_told && (hand.is_as(known.seen) || is_untold())
        };
        match known {
            Some(known) if is_good(&known) => return Ok(known.caller),
            _ => drop(lock(&self.known).remove(&hand.purse)),
        }
        if let Some(cache) = hand.is_gone() {
            let why = format!("KRB5CCNAME names {cache}, which is not there: run `kinit`");
            return self.without(stated, rule, Lack { is_silent: false, why }).await;
        }
        let before = hand.seen;
        if let Some(lack) = self.silence(&hand, before) {
            return self.without(stated, rule, lack).await;
        }
        let number = self.new_number();
        self.tickets.register(number, &hand, stated);
        let told = match self.judges.shown(number).await {
            Ok(told) => told,
            Err(unknown) => {
                let lack = self.tickets.lack(number);
                self.tickets.forget(number);
                let Some(lack) = lack else {
                    let (uid, error) = (stated.uid.0, &unknown.why);
                    tracing::info!(uid, %error, "a user's ticket is refused");
                    return Err(unknown);
                };
                if lack.is_silent {
                    let silent = Silent { seen: before, at: Instant::now(), lack: lack.clone() };
                    remember(&self.silent, hand.purse, silent);
                }
                return self.without(stated, rule, lack).await;
            }
        };
        // The library itself writes new tickets into the cache, beside what was there.
        let after = self.tickets.look(&hand).await;
        let seen = if is_same_file(before, after) { after } else { before };
        let left = told.seconds.map(|left| Duration::from_secs(left.into()).saturating_sub(MARGIN));
        let caller = Caller { proof: Some(number), ..told.caller };
        // Servers allow for clocks that differ; the ticket's own end is what its user sees.
        let ends = [left.map(|left| Instant::now() + left), self.tickets.until(number)];
        let until = ends.into_iter().flatten().min();
        remember(
            &self.known,
            hand.purse,
            Known { caller: caller.clone(), seen, until, identities },
        );
        Ok(caller)
    }

    /// What was missing a moment ago, if it is not worth looking again.
    fn silence(&self, hand: &Hand, now: Seen) -> Option<Lack> {
        let silent = lock(&self.silent);
        let known = silent.get(&hand.purse)?;
        let is_same = known.seen == now || matches!(now, Seen::At(_));
        (is_same && known.at.elapsed() < SILENT).then(|| known.lack.clone())
    }

    fn new_number(&self) -> u64 {
        loop {
            let number = self.world.random();
            if Caller::is_of_proof(number) {
                return number;
            }
        }
    }
}

fn remember<T>(place: &Mutex<BTreeMap<Purse, T>>, purse: Purse, what: T) {
    let mut known = lock(place);
    if known.len() >= KNOWN_MAX {
        known.clear();
    }
    known.insert(purse, what);
}

#[async_trait::async_trait]
impl People for Users {
    async fn caller(&self, asking: Asking) -> Result<Caller, Unknown> {
        let Asking { process, stated } = asking;
        let rule = self.look_at_rules().await?;
        match rule {
            Rule::Word => {
                let caller = self.idmap.caller(stated.clone());
                // Of those whom the map knows, servers believe this machine. Who is nobody may be
                // refused, and must hear so before anything is done for him here.
                let is_nobody = caller.uid == Uid(NOBODY) && self.is_secure();
                if is_nobody { self.taken_for(&stated, rule).await } else { Ok(caller) }
            }
            Rule::Machine if stated.is_root() => self.taken_for(&stated, rule).await,
            Rule::Machine | Rule::User => self.by_ticket(process, &stated, rule).await,
        }
    }

    async fn described(&self, asking: Asking) -> Result<String, Unknown> {
        let stated = asking.stated.clone();
        let caller = self.caller(asking).await?;
        let how = match caller.shown_proof() {
            Some(_) => "the ticket that this program has".to_owned(),
            None => self.told(&stated, self.look_at_rules().await?).await?.how,
        };
        let groups = caller.groups.iter().map(|gid| gid.0).collect();
        let served = Served { uid: caller.uid.0, gid: caller.gid.0, groups, how };
        let unsaid = |error| Unknown { kind: ErrorKind::Internal, why: format!("{error}") };
        serde_json::to_string(&served).map_err(unsaid)
    }

    fn shown(&self, uid: Uid, gid: Gid) -> (Uid, Gid) {
        self.idmap.shown(uid, gid)
    }

    fn stored_uid(&self, uid: Uid) -> Option<Uid> {
        self.idmap.stored_uid(uid)
    }

    fn stored_gid(&self, gid: Gid) -> Option<Gid> {
        self.idmap.stored_gid(gid)
    }

    async fn learn(&self) {
        self.idmap.learn().await;
    }

    fn are_personal(&self) -> bool {
        self.is_personal.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
