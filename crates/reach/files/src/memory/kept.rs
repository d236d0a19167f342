//! What a door keeps of these files, and what they keep themselves, which is nothing.

use super::*;
use tieline_types::rules::{Rights, SEARCH};

impl CoherentCache for Memory {
    fn listen(&self, listener: Arc<dyn CacheListener>) {
        *self.listener.lock().unwrap() = Some(listener);
    }

    fn settle(&self, belief: &Belief, write: &mut dyn FnMut(Duration)) {
        let state = self.lock();
        let is_current = |&(_, generation)| generation == state.generation;
        let holds = !belief.units.is_empty() && belief.units.iter().all(is_current);
        write(if holds { self.valid } else { Duration::ZERO });
    }

    fn searched_by_all(&self, directory: FileId) -> Belief {
        let state = self.lock();
        let is_open = state
            .node(directory)
            .is_ok_and(|node| Rights::of(&node.attributes).allow_everybody(SEARCH));
        let units = is_open.then_some((directory, state.generation));
        Belief { units: units.into_iter().collect() }
    }

    fn openers(&self, id: FileId, handle: Option<HandleId>) -> Vec<Caller> {
        let state = self.lock();
        let is_meant = |number: &HandleId| handle.is_none_or(|handle| handle == *number);
        let handles = state.handles.iter();
        let of_file = handles.filter(|(number, open)| open.id == id && is_meant(number));
        of_file.map(|(_, open)| open.caller.clone()).collect()
    }
}

/// It keeps nothing.
impl Resume for Memory {
    fn cause(&self, _: u64, _: bool) -> Option<Arc<Cause>> {
        None
    }

    fn open_files(&self) -> Vec<OpenFile> {
        Vec::new()
    }

    fn unsent(&self) -> Unsent {
        Unsent::default()
    }
}
