//! Being told how much room the store has.

use crate::mdt::Mdt;
use crate::room::StoreRoom;

impl Mdt {
    /// How much room the store has, for who was just started: nothing runs yet, and no session is
    /// there to be asked.
    pub fn begin_with_room(&self, room: StoreRoom) {
        *self.room.lock() = room;
    }

    /// How much room the store has from now on.
    pub async fn set_room(&self, room: StoreRoom) {
        let is_short = room != StoreRoom::Enough;
        let was_short = {
            let mut known = self.room.lock();
            std::mem::replace(&mut *known, room) != StoreRoom::Enough
        };
        if is_short && !was_short {
            // What they do from now on comes here, and they hear of it.
            self.ask_promises(self.sessions.ids()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::*;
    use tieline_types::ErrorKind::NoSpace;
    use tieline_wire::meta::{Commit, Place};

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_short_of_room_takes_what_frees() {
        let house = House::new().await;
        let client = house.client().await;
        let file = client.create(ROOT, "f").await;
        client.commit(file, vec![inline(0, b"bytes")]).await;
        let number = client.number();
        client.call_numbered(number, mkdir(ROOT, "d", 0o755)).await.unwrap();
        house.mdt.set_room(StoreRoom::Short("no disk".to_owned())).await;
        assert_eq!(client.kind_of(create(ROOT, "g", 0o644)).await, Some(NoSpace));
        let refused = client.call(mkdir(ROOT, "g", 0o755)).await.unwrap_err();
        assert!(refused.detail.contains("no disk"), "{}", refused.detail);
        // What was done before was done.
        client.call_numbered(number, mkdir(ROOT, "d", 0o755)).await.unwrap();
        assert_eq!(client.list(ROOT).await.len(), 3);
        // A close was answered for this before its client could know.
        let late = || vec![inline(0, b"promised")];
        assert_eq!(client.kind_of(commit(file, late())).await, Some(NoSpace));
        let place = Place { id: file, exclude: vec![], wish: None };
        assert_eq!(client.kind_of(place.clone()).await, Some(NoSpace));
        client.call(Place { wish: Some(vec![]), ..place }).await.unwrap();
        client.call(Commit { is_promised: Some(true), ..commit(file, late()) }).await.unwrap();
        assert_eq!(client.stat(file).await.size, 8);
        client.call(truncate(file, 0)).await.unwrap();
        client.call(rmdir(ROOT, "d")).await.unwrap();
        let other = house.client().await;
        assert_eq!(other.stat(file).await.size, 0);
        house.mdt.set_room(StoreRoom::None("no disk".to_owned())).await;
        assert_eq!(client.kind_of(unlink(ROOT, "f")).await, Some(NoSpace));
        assert!(client.id(ROOT, "f").await.is_some());
        house.mdt.set_room(StoreRoom::Enough).await;
        client.call(unlink(ROOT, "f")).await.unwrap();
        client.create(ROOT, "g").await;
    }
}
