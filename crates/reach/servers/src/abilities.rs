//! What servers can do, as their welcomes say, and which OSTs they hold.

use crate::{Server, Servers};
use std::sync::atomic::Ordering;
use tieline_types::{MdtIndex, OstIndex, ServerNumber};
use tieline_wire::Welcome;

impl Server {
    /// Does it grant room, or place files where there is some?
    pub fn keeps_room(&self) -> bool {
        self.features.load(Ordering::Relaxed) & Welcome::ROOM != 0
    }

    /// Does it refuse every change?
    pub fn is_frozen(&self) -> bool {
        self.features.load(Ordering::Relaxed) & Welcome::FROZEN != 0
    }
}

impl Servers {
    /// What a server can do, as its welcome says.
    pub(crate) fn can(&self, number: ServerNumber, features: u64) {
        if let Some(server) = self.numbered(number) {
            server.features.store(features, Ordering::Relaxed);
        }
    }

    /// What a server holds, as the newest map has it.
    pub fn osts_of(&self, number: ServerNumber) -> Vec<OstIndex> {
        let Some(server) = self.numbered(number) else { return vec![] };
        let believed = self.map.current();
        let its = believed.map.osts.iter().filter(|entry| entry.addresses == server.addresses);
        its.map(|entry| entry.ost).collect()
    }

    /// Does an MDS place files where their writer has room?
    pub fn heeds_wishes(&self, mdt: MdtIndex) -> bool {
        self.mds(mdt).is_ok_and(|server| server.keeps_room())
    }

    /// Where this client begins to count, so that not all begin at the same.
    pub fn lot(&self) -> usize {
        let [first, second, ..] = self.client().0;
        usize::from(u16::from_le_bytes([first, second]))
    }
}
