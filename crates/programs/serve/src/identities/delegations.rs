//! Doors: who speaks for users that came to them, without being believed for others.
//!
//! The signed map names doors ([`Door`]). Over its own connection one proves each of its users by
//! evidence: what he sent to a service of the door, which is opened here with that service's key; a
//! token of an issuer that the map names ([`super::tokens`]), which brings a scope and an end of
//! its own; his own ticket for this server; or the door's word, of those only for whom the map lets
//! it vouch. The service's key is the MDSs' alone: who has it can make tickets of anybody. So the
//! door is told here who came, and what to answer him. What follows is a *delegation*: the user, by
//! this server's own table, within the narrowest scope and for the shortest time of all who have a
//! say in it, and without his roles.
//!
//! When the map or the table changes, what was shown before is judged anew.
//!
//! Invariants: a door without evidence is nobody and touches nothing; nobody is a server, a
//! machine, a door or root by what a door shows; no delegation is without an end, and none outlives
//! its ticket; nobody who has a role is vouched for.

use super::proofs::{self, Handed, Proof};
use super::witnessed::Seen;
use super::{Identities, Who, nobody};
use crate::audit::Handing;
use std::sync::Arc;
use std::time::Duration;
use tieline_auth::gss::Witnessed;
use tieline_auth::{Guard, Trouble};
use tieline_format::mdt::{Delegated, DelegatedBy};
use tieline_identities::Resolved;
use tieline_meta::Delegation;

use tieline_net::CallContext;
use tieline_types::{Caller, Door, ErrorKind, Gid, IdentityKind, Scope, Vouched};
use tieline_wire::Failure;
use tieline_wire::identity::{self, Evidence, Prove, ProveReply};
use tokio::time::Instant;

/// Longer than any principal.
const PRINCIPAL_MAX: usize = 400;

/// What shows a user, for what and how long at most.
pub(super) struct Shown {
    pub principal: String,
    pub by: DelegatedBy,
    pub scope: Option<Scope>,
    pub lifetime: Option<Duration>,
}

/// A door that asks for itself.
pub fn itself(principal: &Arc<str>) -> Who {
    Who {
        caller: nobody(),
        principal: Some(principal.clone()),
        how: format!("{principal}, a door, which is nobody of itself"),
        delegation: Some(Arc::new(Delegation::of_itself(principal.clone()))),
        ..Who::default()
    }
}

impl Identities {
    /// Proves a user over the connection of a door.
    pub(super) async fn prove_to_door(
        &self,
        context: &CallContext,
        (principal, door): (&Arc<str>, &Door),
        message: Prove,
    ) -> Result<ProveReply, Failure> {
        let Prove { proof: number, token, delegation } = message;
        let identity::Delegation { evidence, scope, seconds } = delegation.unwrap_or_default();
        let is_small = scope.as_ref().is_none_or(|scope| scope.check().is_ok());
        if !Caller::is_of_proof(number) || !is_small {
            let detail = "a proof has another number, and a scope is smaller";
            return Err(Failure::new(ErrorKind::InvalidArgument, detail));
        }
        let (showing, mut answer) = ((context.session, number), None);
        let shown = match (evidence, token) {
            (Some(Evidence::Ticket(ticket)), None) => {
                let mut witnessed = self.witnessed(principal, door, ticket).await?;
                answer = witnessed.answer.take();
                match self.state.witnessed.see(witnessed.mark, showing) {
                    Seen::Never => {}
                    // Its answer was lost, perhaps; its life goes on from when it was shown first.
                    Seen::Here => {
                        let reply = self.told_again(showing, door).await?;
                        return Ok(ProveReply { answer, ..reply });
                    }
                    seen => return Err(self.seen_before(principal, &witnessed, seen)),
                }
                let Witnessed { user, service, lifetime, .. } = witnessed;
                Shown {
                    principal: user,
                    by: DelegatedBy::Ticket { service },
                    scope: None,
                    lifetime,
                }
            }
            (Some(Evidence::Word { principal }), None) => {
                Shown { principal, by: DelegatedBy::Word, scope: None, lifetime: None }
            }
            (Some(Evidence::Token(token)), None) => self.tokened(principal, &token)?,
            (None, Some(token)) => {
                let proven = proofs::accept(&self.guard, context.session, number, token).await;
                let proven = proven.map_err(|trouble| self.refused(principal, &trouble))?;
                let (principal, lifetime) = (proven.peer, proven.lifetime);
                Shown { principal, by: DelegatedBy::Own, scope: None, lifetime }
            }
            _ => {
                let detail = "a user is shown by one kind of evidence";
                return Err(Failure::new(ErrorKind::InvalidArgument, detail));
            }
        };
        let most = Duration::from_secs(seconds.unwrap_or(u32::MAX).min(door.seconds()).into());
        let life = shown.lifetime.unwrap_or(most).min(most);
        if life.is_zero() {
            let why = format!("what {principal} shows of {} is over already", shown.principal);
            return Err(self.deny(ErrorKind::PermissionDenied, Some(principal), why));
        }
        let known_by = self.known_by();
        let scope = narrowest(shown.scope.as_ref(), scope.as_ref()).ok_or_else(too_much)?;
        let delegated = Delegated { principal: shown.principal, by: shown.by, scope };
        let handed = Handed { delegated, number, until: Instant::now() + life };
        let who = self.spoken_for(door, &handed).await?;
        let reply = ProveReply { answer, ..told(&who, life) };
        self.audit.handed(&Handing {
            who: &who,
            door: principal,
            evidence: &evidence_of(&handed.delegated),
            seconds: life.as_secs(),
            session: context.session,
        });
        let delegated = handed.delegated.clone();
        let proof = Proof::handed_on(&who, known_by, handed);
        self.state.proofs.keep(context.session, number, proof);
        if let Some(mdt) = &self.mdt
            && let Err(failure) = mdt.note_delegated(showing, delegated, life).await
        {
            tracing::warn!(%failure, "a delegation is not noted: a restart forgets it");
        }
        Ok(reply)
    }

    /// Who it is for whom a door speaks, and within what, by today's map and table.
    pub(super) async fn spoken_for(&self, door: &Door, handed: &Handed) -> Result<Who, Failure> {
        let Delegated { principal, by, scope } = &handed.delegated;
        let name: Arc<str> = door.principal.as_str().into();
        let denied = |why: String| self.deny(ErrorKind::PermissionDenied, Some(&name), why);
        if !self.is_user(principal) {
            return Err(denied(format!("{principal} is no user: {name} speaks for users only")));
        }
        if let DelegatedBy::Ticket { service } = by
            && !self.may_hear(door, service)
        {
            return Err(denied(format!("{name} hands on no tickets for {service}")));
        }
        if let DelegatedBy::Token { issuer, holder, .. } = by {
            self.still_tokened((issuer, holder), principal).map_err(denied)?;
        }
        let who = match by {
            DelegatedBy::Word => self.vouched(door, principal).await.map_err(denied)?,
            DelegatedBy::Own | DelegatedBy::Ticket { .. } | DelegatedBy::Token { .. } => {
                let current = self.map.current();
                let principal = principal.as_str().into();
                self.user(&principal, current.map.security.as_ref()).await?
            }
        };
        if who.caller.is_root() {
            return Err(denied(format!("{principal} is root: nobody is by a door's showing")));
        }
        let scope = narrowest(door.scope.as_ref(), scope.as_ref()).ok_or_else(too_much)?;
        let (until, proof) = (Some(handed.until), handed.number);
        let how =
            format!("{}, for whom {name} speaks by {}", who.how, evidence_of(&handed.delegated));
        let delegation = Some(Arc::new(Delegation { door: name.clone(), proof, scope, until }));
        // Administrators come themselves.
        Ok(Who { roles: vec![], is_believed: false, is_server: false, how, delegation, ..who })
    }

    fn may_hear(&self, door: &Door, service: &str) -> bool {
        door.hears(service) && !self.guard.is_server(service)
    }

    /// Opens what a user sent to a door.
    async fn witnessed(
        &self,
        principal: &Arc<str>,
        door: &Door,
        token: Vec<u8>,
    ) -> Result<Witnessed, Failure> {
        let (guard, door): (Arc<Guard>, Door) = (self.guard.clone(), door.clone());
        let steps = guard.steps();
        let _turn = steps.acquire().await;
        let opening = move || guard.witness(&token, |service| door.hears(service));
        let ended = Trouble::Other { text: "the step ended early".to_owned() };
        let opened = tokio::task::spawn_blocking(opening).await.unwrap_or(Err(ended));
        opened.map_err(|trouble| self.refused(principal, &trouble))
    }

    fn refused(&self, door: &Arc<str>, trouble: &Trouble) -> Failure {
        let why = format!("a ticket that {door} hands on is refused: {trouble}");
        self.deny(ErrorKind::PermissionDenied, Some(door), why)
    }

    fn seen_before(&self, door: &Arc<str>, witnessed: &Witnessed, seen: Seen) -> Failure {
        if seen == Seen::Full {
            let detail = "more tickets of doors were shown than are remembered: try again later";
            return Failure::new(ErrorKind::Overloaded, detail);
        }
        let user = &witnessed.user;
        let why = format!("a ticket of {user} that {door} hands on was shown here before");
        self.deny(ErrorKind::PermissionDenied, Some(door), why)
    }

    /// What was answered when this was shown first.
    async fn told_again(
        &self,
        (session, number): (tieline_types::SessionId, u64),
        door: &Door,
    ) -> Result<ProveReply, Failure> {
        let (number, errand) = (Some(number), super::Errand::New);
        let who = self.proven(session, number, errand, Some(door)).await?;
        let left = who.delegation.as_ref().and_then(|delegation| delegation.left());
        Ok(told(&who, left.unwrap_or_default()))
    }

    /// Somebody whom a door names by its word, if the map lets it.
    async fn vouched(&self, door: &Door, principal: &str) -> Result<Who, String> {
        if door.vouches_for.is_empty() || principal.len() > PRINCIPAL_MAX {
            return Err(format!(
                "{} vouches for nobody: its users show themselves",
                door.principal
            ));
        }
        let current = self.map.current();
        let realm = current.map.security.as_ref().map(|security| security.realm.clone());
        let realm = realm.unwrap_or_default();
        let mut found = self.table().resolve(principal, &realm);
        if found.is_err() && self.looks_again().await {
            found = self.table().resolve(principal, &realm);
        }
        let Resolved { caller, name, roles, how } =
            found.map_err(|why| format!("{principal} is no identity to {}: {why}", self.server))?;
        let table = self.table();
        let is_in = |group| {
            let group = table.named(IdentityKind::Group, group);
            group.is_some_and(|group| caller.is_member(Gid(group.number)))
        };
        let is_named = door.vouches_for.iter().any(|vouched| match vouched {
            Vouched::Everybody => true,
            Vouched::User(user) => *user == name,
            Vouched::Group(group) => is_in(group),
        });
        if !is_named {
            return Err(format!(
                "{} does not vouch for {name}: the map says for whom",
                door.principal
            ));
        }
        if let Some(role) = roles.first() {
            return Err(format!("{name} is {role}: who has a role is vouched for by nobody"));
        }
        let principal = Some(principal.into());
        Ok(Who { caller, principal, how, ..Who::default() })
    }
}

fn too_much() -> Failure {
    let detail = "what the door and the scope both allow is more than a scope holds";
    Failure::new(ErrorKind::InvalidArgument, detail)
}

/// `None`: it cannot be said.
fn narrowest(door: Option<&Scope>, asked: Option<&Scope>) -> Option<Option<Scope>> {
    Some(match (door, asked) {
        (Some(door), Some(asked)) => Some(door.narrowed(asked).ok()?),
        (one, other) => one.or(other).cloned(),
    })
}

/// For people.
fn evidence_of(delegated: &Delegated) -> String {
    match &delegated.by {
        DelegatedBy::Own => "his ticket for this server".to_owned(),
        DelegatedBy::Ticket { service } => format!("his ticket for {service}"),
        DelegatedBy::Word => "its word".to_owned(),
        DelegatedBy::Token { issuer, subject, .. } => format!("a token of {subject} by {issuer}"),
    }
}

fn told(who: &Who, life: Duration) -> ProveReply {
    let Who { caller, how, principal, delegation, .. } = who;
    ProveReply {
        caller: caller.clone(),
        principal: principal.as_deref().map(str::to_owned),
        how: how.clone(),
        seconds: Some(u32::try_from(life.as_secs()).unwrap_or(u32::MAX)),
        is_believed: false,
        scope: delegation.as_ref().and_then(|delegation| delegation.scope.clone()),
        answer: None,
    }
}
