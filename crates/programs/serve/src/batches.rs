//! What is denied in a batch: told and on record item by item, as if each had been asked by itself.
//!
//! An item that fails is told in the reply of a batch that succeeds, and has a caller, a call and a
//! file of its own.

use super::node::is_denial;
use tieline_wire::Failure;
use tieline_wire::meta::{Batch, BatchItem, BatchReply};

/// The reply to a batch, with its denials as `explain` has them; it is told each one's place.
pub fn explained(
    batch: &Batch,
    body: Vec<u8>,
    mut explain: impl FnMut(usize, &BatchItem, Failure) -> Failure,
) -> Vec<u8> {
    let Ok(mut reply) = tieline_wire::decode::<BatchReply>(&body) else { return body };
    let mut is_changed = false;
    for (index, (item, outcome)) in batch.items.iter().zip(&mut reply.outcomes).enumerate() {
        if let Some(denial) = outcome.failure.take_if(|failure| is_denial(failure.kind)) {
            outcome.failure = Some(explain(index, item, denial));
            is_changed = true;
        }
    }
    // Mostly nothing is denied.
    if is_changed { tieline_wire::encode(&reply) } else { body }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::{Caller, ErrorKind, FileId, Time};
    use tieline_wire::Op;
    use tieline_wire::meta::{BatchOutcome, LeaseGrant};

    #[test]
    fn each_item_that_is_denied_is_explained() {
        let item = |id| {
            let (caller, at, message) = (Caller::default(), Time::default(), vec![]);
            BatchItem { caller, at, id: FileId(id), op: Op::SetAttributes.number(), message }
        };
        let failed = |kind| {
            let failure = Some(Failure::new(kind, "no"));
            BatchOutcome { failure, ..BatchOutcome::default() }
        };
        let kinds = [ErrorKind::PermissionDenied, ErrorKind::Exists, ErrorKind::NotPermitted];
        let mut outcomes = vec![BatchOutcome::default()];
        outcomes.extend(kinds.map(failed));
        let reply = BatchReply { outcomes, lease: LeaseGrant::default() };
        let batch = Batch { items: (0..4).map(item).collect() };
        let body = explained(&batch, tieline_wire::encode(&reply), |index, item, failure| {
            let detail = format!("{} ({index} {})", failure.detail, item.id.0);
            Failure { detail, ..failure }
        });
        let reply: BatchReply = tieline_wire::decode(&body).unwrap();
        let told = reply.outcomes.into_iter().map(|outcome| outcome.failure);
        let told: Vec<_> = told.map(|failure| failure.map(|failure| failure.detail)).collect();
        let told: Vec<_> = told.iter().map(Option::as_deref).collect();
        assert_eq!(told, [None, Some("no (1 1)"), Some("no"), Some("no (3 3)")]);
    }
}
