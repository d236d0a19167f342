//! The calls of a session: which are under way, and under which number each was sent.
//!
//! Invariants: numbers of a session only grow and name one call each; [`Calls::answered_below`] is
//! never above a number that may be sent again.

use super::CallId;
use crate::Outgoing;
use crate::kept::{self, Held, InUse};
use std::collections::BTreeMap;
use tieline_types::RequestNumber;
use tokio::time::Instant;

pub(super) struct Calls {
    under_way: BTreeMap<CallId, Pending>,
    /// Those that were sent in this session and not answered.
    numbered: BTreeMap<RequestNumber, CallId>,
    number_next: RequestNumber,
    in_use: InUse,
}

pub(super) struct Pending {
    pub(super) outgoing: Outgoing,
    pub(super) deadline: Option<Instant>,
    /// Under which it was sent in this session.
    pub(super) number: Option<RequestNumber>,
    /// When it was last sent.
    pub(super) sent: Option<Instant>,
    /// Its record, if it outlives this process.
    pub(super) held: Option<Held>,
}

impl Calls {
    pub(super) fn new() -> Self {
        Self {
            under_way: BTreeMap::new(),
            numbered: BTreeMap::new(),
            number_next: RequestNumber(1),
            in_use: InUse::default(),
        }
    }

    /// Smaller numbers were used by an earlier process.
    pub(super) fn start_at(&mut self, first: RequestNumber) {
        self.number_next = self.number_next.max(first);
    }

    pub(super) fn in_use(&self) -> &InUse {
        &self.in_use
    }

    /// A call that an earlier process sent.
    pub(super) fn restore(
        &mut self,
        id: CallId,
        outgoing: Outgoing,
        number: RequestNumber,
        held: Held,
    ) {
        let (number, held) = (Some(number), Some(held));
        let pending = Pending { outgoing, deadline: None, number, sent: None, held };
        self.under_way.insert(id, pending);
        self.numbered.extend(number.map(|number| (number, id)));
    }

    pub(super) fn add(&mut self, id: CallId, outgoing: Outgoing, deadline: Option<Instant>) {
        self.under_way
            .insert(id, Pending { outgoing, deadline, number: None, sent: None, held: None });
    }

    /// Whoever waits waits until then, or longer.
    pub(super) fn extend(&mut self, until: Instant) {
        for pending in self.under_way.values_mut() {
            pending.deadline = pending.deadline.map(|deadline| deadline.max(until));
        }
    }

    pub(super) fn remove(&mut self, id: CallId) -> Option<Pending> {
        let pending = self.under_way.remove(&id)?;
        if let Some(number) = pending.number {
            self.numbered.remove(&number);
        }
        Some(pending)
    }

    /// Gives the call a number if it has none yet.
    pub(super) fn number(&mut self, id: CallId) -> Option<RequestNumber> {
        let pending = self.under_way.get_mut(&id)?;
        Some(*pending.number.get_or_insert_with(|| {
            let number = self.number_next;
            self.number_next.0 += 1;
            self.numbered.insert(number, id);
            number
        }))
    }

    pub(super) fn pending(&mut self, id: CallId) -> Option<&mut Pending> {
        self.under_way.get_mut(&id)
    }

    /// Every request below this number was answered, or nobody waits for it.
    pub(super) fn answered_below(&self) -> RequestNumber {
        let unanswered = self.numbered.keys().next().copied();
        let in_use = kept::lock(&self.in_use).first().copied();
        unanswered.into_iter().chain(in_use).min().unwrap_or(self.number_next)
    }

    /// The call that was sent under a number and is not answered.
    pub(super) fn numbered(&self, number: RequestNumber) -> Option<(CallId, &Pending)> {
        let id = *self.numbered.get(&number)?;
        Some((id, self.under_way.get(&id)?))
    }

    /// A new session counts anew. Returns the mutations that the old one may have applied.
    pub(super) fn renumber(&mut self) -> Vec<CallId> {
        self.number_next = RequestNumber(1);
        self.in_use = InUse::default();
        let mut doubtful = Vec::new();
        for (_, id) in std::mem::take(&mut self.numbered) {
            let Some(pending) = self.under_way.get_mut(&id) else { continue };
            (pending.number, pending.held) = (None, None);
            if pending.outgoing.request.op().is_mutation() {
                doubtful.push(id);
            }
        }
        doubtful
    }

    /// What a new connection sends: first again what has a number, in order, then the rest.
    pub(super) fn to_send(&self) -> Vec<CallId> {
        let is_new = |(&id, pending): (&CallId, &Pending)| pending.number.is_none().then_some(id);
        let fresh = self.under_way.iter().filter_map(is_new);
        self.numbered.values().copied().chain(fresh).collect()
    }

    pub(super) fn late(&self, now: Instant) -> Vec<CallId> {
        let is_late = |pending: &Pending| pending.deadline.is_some_and(|deadline| deadline <= now);
        let late = self.under_way.iter().filter(|(_, pending)| is_late(pending));
        late.map(|(&id, _)| id).collect()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.under_way.values().filter_map(|pending| pending.deadline).min()
    }

    pub(super) fn all(&self) -> Vec<CallId> {
        self.under_way.keys().copied().collect()
    }
}
