//! What is known of an object before its bytes are read: its tail, and where its data ends.
//!
//! An object in a bucket is byte for byte what it is in a directory (`tieline_format::object`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tieline_format::object::{ObjectFooter, ObjectTrailer};
use tieline_types::GrantedId;
use tieline_types::tree::Values;

/// Trailer and footer of a chunk of 4 MiB take about 13 KiB: one request finds both.
pub const TAIL_GUESS: u64 = 16 << 10;
/// Of a chunk of 64 MiB, the largest, with the longest path.
pub const TAIL_MAX: u64 = 256 << 10;
/// Objects that are remembered, and the memory for their checks: of 20 GiB of data.
const HEADS_MAX: usize = 64 << 10;
const BYTES_MAX: usize = 64 << 20;

/// An object, without its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Bytes of data.
    pub length: u64,
    /// Bytes of the object: with its tail.
    pub total: u64,
    pub trailer: ObjectTrailer,
}

/// What the end of an object says.
#[derive(Debug, PartialEq, Eq)]
pub enum Tail {
    Whole(Box<Head>),
    /// So many bytes of the end are needed.
    Longer(u64),
}

/// Reads the end of `chunk`'s object of `total` bytes; else says why it is damaged.
pub fn read_tail(tail: &[u8], total: u64, chunk: GrantedId) -> Result<Tail, String> {
    let footer = tail.last_chunk::<{ ObjectFooter::LENGTH }>();
    let footer = footer.ok_or("no object footer: it is too short")?;
    let footer = ObjectFooter::decode(footer, total).map_err(|error| error.to_string())?;
    let tail_length = u64::from(footer.trailer_length) + ObjectFooter::LENGTH as u64;
    if tail_length > TAIL_MAX {
        return Err(format!("its trailer would have {} bytes", footer.trailer_length));
    }
    let Some(start) = (tail.len() as u64).checked_sub(tail_length) else {
        return Ok(Tail::Longer(tail_length));
    };
    let end = tail.len() - ObjectFooter::LENGTH;
    let trailer = tail.get(start as usize..end).unwrap_or_default();
    let trailer = footer.trailer(trailer).map_err(|error| error.to_string())?;
    if trailer.chunk != chunk {
        return Err(format!("it holds chunk {} instead", trailer.chunk));
    }
    Ok(Tail::Whole(Box::new(Head { length: footer.data_length, total, trailer })))
}

/// Objects that were met lately.
#[derive(Default)]
pub struct Heads {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: BTreeMap<GrantedId, Arc<Head>>,
    /// As they came; some may be forgotten since.
    order: VecDeque<GrantedId>,
    bytes: usize,
    changes: u64,
}

/// How much had been changed or forgotten when somebody began to look.
#[derive(Clone, Copy)]
pub struct Epoch(u64);

impl Heads {
    pub fn get(&self, chunk: GrantedId) -> Option<Arc<Head>> {
        self.lock().known.get(&chunk).cloned()
    }

    /// To be taken before an object is looked for.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.lock().changes)
    }

    /// Remembers what was found after `epoch`, unless something was changed since.
    pub fn insert(&self, epoch: Epoch, head: Arc<Head>) {
        let mut state = self.lock();
        if state.changes != epoch.0 {
            return;
        }
        let chunk = head.trailer.chunk;
        state.bytes += weight(&head);
        match state.known.insert(chunk, head) {
            Some(before) => state.bytes -= weight(&before),
            None => state.order.push_back(chunk),
        }
        while state.order.len() > HEADS_MAX || state.bytes > BYTES_MAX {
            let Some(oldest) = state.order.pop_front() else { break };
            state.remove(oldest);
        }
    }

    /// Of something that is about to be changed, or that nobody should believe any more.
    pub fn forget(&self, chunk: GrantedId) {
        let mut state = self.lock();
        state.changes += 1;
        if state.remove(chunk) {
            state.order.retain(|known| *known != chunk);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, chunk: GrantedId) -> bool {
        let removed = self.known.remove(&chunk);
        self.bytes -= removed.as_deref().map_or(0, weight);
        removed.is_some()
    }
}

fn weight(head: &Head) -> usize {
    let tree = head.trailer.tree.as_ref().map_or(0, Values::weight);
    let checks = size_of_val(head.trailer.checks.as_slice());
    size_of::<Head>() + head.trailer.path.len() + checks + tree
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tieline_blob::conformance::{bytes, chunk, trailer};

    #[test]
    fn a_tail_is_read_from_as_much_as_it_needs() {
        let data = bytes(9000, 1);
        let trailer = trailer(chunk(7), &data);
        let tail = trailer.to_tail(9000);
        let total = 9000 + tail.len() as u64;
        let head = Head { length: 9000, total, trailer };
        assert_eq!(read_tail(&tail, total, chunk(7)), Ok(Tail::Whole(Box::new(head))));
        let short = &tail[tail.len() - 30..];
        assert_eq!(read_tail(short, total, chunk(7)), Ok(Tail::Longer(tail.len() as u64)));
        assert!(read_tail(&tail, total, chunk(8)).unwrap_err().contains("instead"));
        assert!(read_tail(&tail, total + 1, chunk(7)).unwrap_err().contains("long"));
        assert!(read_tail(&tail[..10], 10, chunk(7)).is_err());
    }

    #[test]
    fn what_was_changed_meanwhile_is_not_remembered() {
        let heads = Heads::default();
        let data = bytes(10, 0);
        let head = Head { length: 10, total: 90, trailer: trailer(chunk(1), &data) };
        let epoch = heads.epoch();
        heads.forget(chunk(2));
        heads.insert(epoch, Arc::new(head.clone()));
        assert_eq!(heads.get(chunk(1)), None);
        heads.insert(heads.epoch(), Arc::new(head));
        assert!(heads.get(chunk(1)).is_some());
        heads.forget(chunk(1));
        assert_eq!(heads.lock().bytes, 0);
        assert!(heads.lock().order.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_tail_or_damaged(tail in proptest::collection::vec(any::<u8>(), 0..99)) {
            let _ = read_tail(&tail, tail.len() as u64, chunk(1));
        }
    }
}
