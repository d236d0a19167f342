//! Users who showed a ticket over the connection of their machine.
//!
//! A proof belongs to the session it was shown in, whatever connection carries that, under a number
//! of the client's. It holds as long as the ticket. What was opened with it goes on beyond, for
//! rights were found at open, and so does what was done before and is told late; neither for ever
//! ([`HANDLES_GO_ON`], [`NAMES_GO_ON`]). Who the user is, is found anew when the table of
//! identities changed. The MDT notes what was shown with the session: so a server that is started
//! again knows it, though the user's tickets may be gone by then.
//!
//! What was shown of a user of a door ([`Handed`]) goes on beyond nothing: whoever is spoken for
//! logs in again.
//!
//! Invariants: a token counts once, for one session and one number (channel bindings, and the
//! library's replay cache); at most [`PROOFS_MAX`] are kept, the oldest go first.

use super::{Sessions, Who, lock};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tieline_auth::{Guard, Trouble, proof_binding};
use tieline_format::mdt::{Delegated, Shown};
use tieline_types::{ErrorKind, SessionId, Version};
use tieline_wire::meta::{BatchItem, SetAttributes};
use tieline_wire::{Failure, Op, Request};
use tokio::time::Instant;

/// Of one session, and of all.
const OF_SESSION_MAX: usize = 4096;
const PROOFS_MAX: usize = 100_000;
/// Calls on behalf of files that are open. What a handle's caller may, their rooms look at.
const OF_HANDLES: [Op; 12] = [
    Op::Commit,
    Op::GetAttributes,
    Op::GetExtents,
    Op::Place,
    Op::Promise,
    Op::CopyRange,
    Op::Release,
    Op::Compact,
    Op::Lock,
    Op::CancelLock,
    Op::AssertLocks,
    Op::GetCapability,
];
/// So long after the end of a ticket they are heard: a job may outlive its ticket by a day.
const HANDLES_GO_ON: Duration = Duration::from_secs(24 * 3600);
/// So long after it names are taken that were changed before: they come within a second, or after
/// a cut. All of a batch is refused with one of its items.
const NAMES_GO_ON: Duration = Duration::from_secs(3600);

/// Which rights a call is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Errand {
    /// Those that a ticket gives now.
    New,
    /// To names, as they were when it was done.
    Told,
    /// Those of an open file.
    OfHandle,
}

impl Errand {
    pub fn of(request: &Request) -> Self {
        match request {
            Request::Batch(_) => Self::Told,
            Request::SetAttributes(change) if is_by_handle(change) => Self::OfHandle,
            request if OF_HANDLES.contains(&request.op()) => Self::OfHandle,
            _ => Self::New,
        }
    }

    /// What was done by somebody himself, and is told of now.
    pub fn of_item(item: &BatchItem) -> Self {
        // What was written to an open file is no name.
        let may_be = [Op::Commit, Op::SetAttributes].iter().any(|op| op.number() == item.op);
        let request = may_be.then(|| Request::decode_message(item.op, &item.message).ok());
        match request.flatten().as_ref().map(Self::of) {
            Some(Self::OfHandle) => Self::OfHandle,
            _ => Self::Told,
        }
    }

    /// So long after the end of a ticket it is heard.
    fn beyond(self) -> Duration {
        match self {
            Self::New => Duration::ZERO,
            Self::Told => NAMES_GO_ON,
            Self::OfHandle => HANDLES_GO_ON,
        }
    }
}

/// Size and times are a handle's to set, mode and owners are not.
fn is_by_handle(change: &SetAttributes) -> bool {
    change.is_handle && (change.mode, change.uid, change.gid) == (None, None, None)
}

/// For whom a door speaks.
#[derive(Clone, Debug)]
pub struct Handed {
    pub delegated: Delegated,
    pub number: u64,
    pub until: Instant,
}

/// A user, as proven.
#[derive(Clone)]
pub struct Proof {
    who: Arc<Who>,
    /// A door speaks for him.
    handed: Option<Arc<Handed>>,
    /// By which tables.
    known_by: KnownBy,
    shown: Instant,
    until: Option<Instant>,
}

/// Versions of the table of identities and of the map by which somebody was found to be who he is.
pub type KnownBy = (u64, Version);

#[derive(Default)]
pub struct Proofs(Mutex<Sessions<Proof>>);

impl Proof {
    pub fn new(who: &Who, known_by: KnownBy, lifetime: Option<Duration>) -> Self {
        let shown = Instant::now();
        let until = lifetime.map(|left| shown + left);
        Self { who: Arc::new(who.clone()), handed: None, known_by, shown, until }
    }

    /// Of a user of a door.
    pub fn handed_on(who: &Who, known_by: KnownBy, handed: Handed) -> Self {
        let until = Some(handed.until);
        Self { until, handed: Some(Arc::new(handed)), ..Self::new(who, known_by, None) }
    }

    /// As it was noted, with the seconds that its ticket has left (less than none: it is over). Who
    /// the principal is, is still to be found.
    pub fn noted(number: u64, noted: Shown, left: Option<i64>) -> Self {
        let Shown { principal, delegated, .. } = noted;
        let shown = Instant::now();
        let until = left.map(|left| {
            let apart = Duration::from_secs(left.unsigned_abs());
            let until = if left < 0 { shown.checked_sub(apart) } else { shown.checked_add(apart) };
            until.unwrap_or(shown)
        });
        let handed = delegated.map(|delegated| {
            // All that a door says has an end.
            let until = until.unwrap_or(shown);
            Arc::new(Handed { delegated, number, until })
        });
        let whose = handed.as_ref().map_or(principal, |one| one.delegated.principal.clone());
        let who = Arc::new(Who::nobody_by(Some(whose.into())));
        Self { who, handed, known_by: (u64::MAX, Version(u64::MAX)), shown, until }
    }

    pub fn handed(&self) -> Option<&Handed> {
        self.handed.as_deref()
    }

    pub fn known_by(&self) -> KnownBy {
        self.known_by
    }

    /// The principal that was proven.
    pub fn principal(&self) -> Option<&Arc<str>> {
        self.who.principal.as_ref()
    }

    pub fn who(&self) -> Who {
        Who::clone(&self.who)
    }
}

impl Proofs {
    pub fn has(&self, session: SessionId, number: u64) -> bool {
        lock(&self.0).get(&session).is_some_and(|proofs| proofs.contains_key(&number))
    }

    /// What was proven under a number.
    pub fn find(
        &self,
        session: SessionId,
        number: Option<u64>,
        errand: Errand,
    ) -> Result<Proof, Failure> {
        let again = |detail: &str| Failure::new(ErrorKind::Unauthenticated, detail);
        let sessions = lock(&self.0);
        let found = number.and_then(|number| sessions.get(&session)?.get(&number));
        let proof = found.ok_or_else(|| again("this proof is not known here: show it again"))?;
        if let Some(handed) = proof.handed() {
            if Instant::now() >= handed.until {
                let whose = &handed.delegated.principal;
                return Err(again(&format!("{whose} is spoken for no longer: log in again")));
            }
        } else if proof.until.is_some_and(|until| Instant::now() >= until + errand.beyond()) {
            return Err(again("the ticket behind this proof is over: show a newer one"));
        }
        Ok(proof.clone())
    }

    /// Who proved himself is somebody else by newer tables.
    pub fn renew(&self, session: SessionId, number: u64, who: &Who, known_by: KnownBy) {
        let mut sessions = lock(&self.0);
        let found = sessions.get_mut(&session).and_then(|proofs| proofs.get_mut(&number));
        // Another one may have been shown meanwhile, of another user.
        if let Some(proof) = found.filter(|proof| proof.who.principal == who.principal) {
            proof.who = Arc::new(who.clone());
            proof.known_by = known_by;
        }
    }

    pub fn keep(&self, session: SessionId, number: u64, proof: Proof) {
        let mut sessions = lock(&self.0);
        let all: usize = sessions.values().map(|proofs| proofs.len()).sum();
        if all >= PROOFS_MAX {
            let newest = |proofs: &std::collections::BTreeMap<u64, Proof>| {
                proofs.values().map(|proof| proof.shown).max()
            };
            let oldest = sessions.iter().min_by_key(|(_, proofs)| newest(proofs));
            if let Some(oldest) = oldest.map(|(&session, _)| session) {
                sessions.remove(&oldest);
            }
        }
        let proofs = sessions.entry(session).or_default();
        if proofs.len() >= OF_SESSION_MAX {
            let oldest = proofs.iter().min_by_key(|(_, proof)| proof.shown);
            if let Some(oldest) = oldest.map(|(&number, _)| number) {
                proofs.remove(&oldest);
            }
        }
        proofs.insert(number, proof);
    }
}

/// Judges a token.
pub async fn accept(
    guard: &Guard,
    session: SessionId,
    number: u64,
    token: Vec<u8>,
) -> Result<tieline_auth::Proof, Trouble> {
    let mut mechanism = guard.acceptor()?;
    let binding = proof_binding(session, number);
    let steps = guard.steps();
    let _turn = steps.acquire().await;
    let step = tokio::task::spawn_blocking(move || mechanism.step(Some(&token), &binding)).await;
    let odd = |text: &str| Trouble::Other { text: text.to_owned() };
    let step = step.map_err(|_| odd("the step ended early"))??;
    let proof = step.proof.ok_or_else(|| odd("one token does not suffice"))?;
    guard.check_service(&proof)?;
    Ok(proof)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_format::mdt::DelegatedBy;
    use tieline_types::{Caller, FileId, Mode, Role, SetTime, Time, Uid};
    use tieline_wire::meta::GetAttributes;
    use tieline_wire::quotas::Promise;
    use tieline_wire::ranges::CopyRange;

    const BY: KnownBy = (1, Version(1));

    fn who(uid: u32) -> Who {
        let caller = Caller { uid: Uid(uid), ..Caller::default() };
        Who { caller, roles: vec![Role::FsAdmin], ..Who::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_proof_is_one_sessions_and_ends_with_its_ticket() {
        let (proofs, session) = (Proofs::default(), SessionId(7));
        let find = |session, number, errand| {
            let found = proofs.find(session, Some(number), errand);
            found.map(|proof| proof.who().caller.uid.0).map_err(|failure| failure.kind)
        };
        proofs.keep(session, 1, Proof::new(&who(5001), BY, Some(Duration::from_secs(60))));
        proofs.keep(session, 2, Proof::new(&who(5002), BY, None));
        assert_eq!(find(session, 1, Errand::New), Ok(5001));
        assert_eq!(find(SessionId(8), 1, Errand::New), Err(ErrorKind::Unauthenticated));
        assert_eq!(find(session, 3, Errand::New), Err(ErrorKind::Unauthenticated));
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(find(session, 1, Errand::New), Err(ErrorKind::Unauthenticated));
        assert_eq!(find(session, 1, Errand::OfHandle), Ok(5001), "what is open goes on");
        assert_eq!(find(session, 1, Errand::Told), Ok(5001), "what was done before is told late");
        tokio::time::advance(NAMES_GO_ON).await;
        assert_eq!(find(session, 1, Errand::Told), Err(ErrorKind::Unauthenticated));
        assert_eq!(find(session, 1, Errand::OfHandle), Ok(5001));
        tokio::time::advance(HANDLES_GO_ON).await;
        assert_eq!(
            find(session, 1, Errand::OfHandle),
            Err(ErrorKind::Unauthenticated),
            "not for ever"
        );
        assert_eq!(find(session, 2, Errand::New), Ok(5002));
    }

    /// A job outlives its ticket with what it has open: to read, to write and grow it, to copy into
    /// it, to look how long it is and to cut it.
    #[test]
    fn handles_do_what_they_are_for_without_a_ticket() {
        let id = FileId(7);
        let promise = Promise { id, wanted: 1, needed: 1, payers: None };
        let cut = SetAttributes { size: Some(0), is_handle: true, ..unchanged(id) };
        let copy = CopyRange {
            from: id,
            to: id,
            from_offset: 0,
            to_offset: 0,
            length: 1,
            mtime: SetTime::Now,
            clears_setid: false,
        };
        let look = GetAttributes { id };
        let of_handles: [Request; 4] =
            [promise.into(), cut.clone().into(), copy.into(), look.into()];
        for request in of_handles {
            assert_eq!(Errand::of(&request), Errand::OfHandle, "{request:?}");
        }
        let mode = Some(Mode::new(0o777));
        let others = [
            SetAttributes { is_handle: false, ..cut.clone() },
            SetAttributes { mode, ..cut.clone() },
            SetAttributes { uid: Some(Uid(1)), ..cut.clone() },
        ];
        for other in others {
            assert_eq!(Errand::of(&other.into()), Errand::New);
        }
        let item = |request: Request| {
            let (op, message) = (request.op().number(), request.encode_message());
            BatchItem { caller: Caller::default(), at: Time::default(), id, op, message }
        };
        assert_eq!(Errand::of_item(&item(cut.into())), Errand::OfHandle);
        assert_eq!(Errand::of_item(&item(unchanged(id).into())), Errand::Told);
        assert_eq!(Errand::of_item(&item(GetAttributes { id }.into())), Errand::Told);
    }

    fn unchanged(id: FileId) -> SetAttributes {
        SetAttributes {
            id,
            mode: None,
            uid: None,
            gid: None,
            size: None,
            atime: None,
            mtime: None,
            is_handle: false,
            is_access: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_spoken_for_has_an_end_whatever_is_open() {
        let (proofs, session) = (Proofs::default(), SessionId(7));
        let kind = |number, errand| {
            proofs.find(session, Some(number), errand).err().map(|failure| failure.kind)
        };
        let (principal, by) = ("ann@EXTENCI.ORG".to_owned(), DelegatedBy::Word);
        let delegated = Delegated { principal, by, scope: None };
        let until = Instant::now() + Duration::from_secs(60);
        let handed = Handed { delegated: delegated.clone(), number: 2, until };
        proofs.keep(session, 2, Proof::handed_on(&who(5001), BY, handed));
        let noted = |until| Shown {
            principal: String::new(),
            at: Time::default(),
            until,
            delegated: Some(delegated.clone()),
        };
        let late = Proof::noted(3, noted(Some(Time::default())), Some(60));
        assert_eq!(late.principal().unwrap().as_ref(), "ann@EXTENCI.ORG");
        proofs.keep(session, 3, late);
        proofs.keep(session, 4, Proof::noted(4, noted(None), None));
        for errand in [Errand::New, Errand::Told, Errand::OfHandle] {
            assert_eq!((kind(2, errand), kind(3, errand)), (None, None));
            assert_eq!(kind(4, errand), Some(ErrorKind::Unauthenticated), "it has no end");
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        for errand in [Errand::New, Errand::Told, Errand::OfHandle] {
            assert_eq!(kind(2, errand), Some(ErrorKind::Unauthenticated));
            assert_eq!(kind(3, errand), Some(ErrorKind::Unauthenticated));
        }
    }

    #[tokio::test]
    async fn the_oldest_of_a_session_go_first() {
        let (proofs, session) = (Proofs::default(), SessionId(7));
        for number in 0..=OF_SESSION_MAX as u64 {
            proofs.keep(session, number, Proof::new(&who(1), BY, None));
        }
        assert!(proofs.find(session, Some(0), Errand::New).is_err());
        assert!(proofs.find(session, Some(1), Errand::New).is_ok());
    }
}
