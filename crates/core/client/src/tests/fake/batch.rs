//! What a client did by itself.

use super::channel::done;
use super::*;

impl State {
    /// Items in their order; one that was carried out before changes nothing.
    pub(super) fn batch(&mut self, batch: Batch) -> Answer {
        let mut outcomes = Vec::new();
        for item in batch.items {
            let op = Op::from_number(item.op).unwrap();
            let request = Request::decode_message(item.op, &item.message).unwrap();
            let is_made = matches!(op, Op::Create | Op::MakeDirectory | Op::MakeSymlink);
            self.chosen = is_made.then_some((item.id, item.at));
            let entry = |parent, name| self.nodes.get(&parent)?.names.get(name).copied();
            let is_done = match &request {
                _ if is_made => self.nodes.contains_key(&item.id),
                Request::Link(r) => entry(r.parent, &r.name) == Some(item.id),
                Request::Unlink(r) => entry(r.parent, &r.name) != Some(item.id),
                Request::RemoveDirectory(r) => entry(r.parent, &r.name) != Some(item.id),
                Request::Rename(r) => entry(r.from_parent, &r.from_name) != Some(item.id),
                _ => false,
            };
            let answer = match is_done {
                true => Ok((vec![], Bytes::new())),
                false if self.refused.contains(&op) => {
                    Err(Failure::new(ErrorKind::NoSpace, "fake"))
                }
                false => self.answer(request, Bytes::new()),
            };
            self.chosen = None;
            // A commit says itself when the bytes were written.
            let is_here = answer.is_ok() && op != Op::Commit;
            if let Some(node) = self.nodes.get_mut(&item.id).filter(|_| is_here) {
                node.attributes.ctime = item.at;
            }
            let node = self.nodes.get(&item.id).map(|node| &node.attributes);
            outcomes.push(BatchOutcome {
                version: node.map(|attributes| attributes.version),
                stored: node.map(|attributes| attributes.stored),
                failure: answer.err(),
            });
        }
        let lease = LeaseGrant { as_of: Version(self.version), ..LeaseGrant::default() };
        done::<Batch>(&BatchReply { outcomes, lease })
    }
}
