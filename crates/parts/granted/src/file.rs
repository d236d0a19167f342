//! What one file has drawn, and what its puts have with them.

use crate::Rooms;
use std::collections::BTreeMap;
use std::sync::Arc;
use tieline_types::OstIndex;
use tieline_wire::data::GrantRoom;

/// Room that one put has with it. Dropped, nobody knows whether it was used: then it was.
pub struct Spending {
    pub(crate) rooms: Arc<Rooms>,
    pub(crate) ost: OstIndex,
    pub(crate) bytes: u64,
    pub(crate) cost: u64,
}

impl Spending {
    /// As the put says it.
    pub fn room(&self) -> Option<u64> {
        Some(self.bytes).filter(|&bytes| bytes > 0)
    }

    /// What it has too little.
    pub fn missing(&self) -> u64 {
        self.cost - self.bytes
    }

    /// It was refused: all is as before.
    pub(crate) fn refused(mut self, drawn: &mut BTreeMap<OstIndex, u64>) {
        let bytes = std::mem::take(&mut self.bytes);
        self.rooms.with(self.ost, |room| {
            room.spending -= bytes;
            room.drawn += bytes;
            *drawn.entry(self.ost).or_default() += bytes;
        });
    }
}

impl Drop for Spending {
    fn drop(&mut self) {
        let bytes = self.bytes;
        self.rooms.with(self.ost, |room| {
            room.spending -= bytes;
            room.granted = room.granted.saturating_sub(bytes);
        });
    }
}

/// What a file has drawn for bytes that were answered for; free again when it is dropped.
#[derive(Default)]
pub struct FileRoom {
    rooms: Option<Arc<Rooms>>,
    drawn: BTreeMap<OstIndex, u64>,
    /// Where it would lie, if the MDS agrees: it has no place yet.
    pub wish: Vec<OstIndex>,
}

impl FileRoom {
    /// Draws what each OST is to hold for the file, beyond what is drawn; all or nothing.
    pub fn draw(&mut self, rooms: &Arc<Rooms>, need: &BTreeMap<OstIndex, u64>) -> bool {
        self.rooms.get_or_insert_with(|| rooms.clone());
        rooms.draw(need, &mut self.drawn)
    }

    /// The same for a chunk more, at each OST of which some is drawn.
    pub fn draw_more(&mut self, length: u64) -> bool {
        let Some(rooms) = self.rooms.as_ref().filter(|_| !self.drawn.is_empty()) else {
            return true;
        };
        let mut need = self.drawn.clone();
        for (ost, need) in &mut need {
            *need += GrantRoom::cost(length, rooms.unit(*ost));
        }
        rooms.draw(&need, &mut self.drawn)
    }

    /// For a put of so many bytes: what the file has drawn, and else what is free.
    pub fn spend(&mut self, rooms: &Arc<Rooms>, ost: OstIndex, length: u64) -> Spending {
        rooms.spend(ost, length, &mut self.drawn)
    }

    /// What a refused put had with it is the file's again.
    pub fn refused(&mut self, rooms: &Arc<Rooms>, spending: Spending) {
        self.rooms.get_or_insert_with(|| rooms.clone());
        spending.refused(&mut self.drawn);
    }

    /// Nothing of the file waits any more.
    pub fn rest(&mut self) {
        if let Some(rooms) = &self.rooms {
            rooms.give_back(&mut self.drawn);
        }
        self.wish.clear();
    }
}

impl Drop for FileRoom {
    fn drop(&mut self) {
        self.rest();
    }
}
