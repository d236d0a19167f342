//! Who may ask a server for bytes next.
//!
//! No more is under way than fills the way there and back ([`crate::pace`]): what is sent cannot be
//! overtaken, what waits here can. Readers who wait come before what is fetched ahead of any; among
//! readers the first bytes of each come first ([`FIRST`]), for many files are opened for them, and
//! in the order in which they were asked for; then the one with the fewest bytes under way, then
//! the one who came first.
//!
//! Invariants: a turn is given back when it is dropped; a request larger than all the room is given
//! it when nothing else is under way; who waits is bounded by what may fly at all.

use crate::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tieline_types::{FileId, HandleId};
use tokio::sync::oneshot;

/// So many are the first bytes that a reader asks for. The kernel asks for more behind them.
pub const FIRST: u64 = 1 << 20;

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Reader {
    /// The client itself.
    #[default]
    Own,
    /// Who has had little yet.
    First(HandleId),
    Handle(HandleId),
    /// Whoever reads a file, through whichever handle.
    File(FileId),
}

#[derive(Clone, Default)]
pub struct Turns(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    under_way: u64,
    /// Of those who have something under way.
    readers: BTreeMap<Reader, u64>,
    /// In the order in which they came.
    waiting: Vec<Waiting>,
}

struct Waiting {
    reader: Reader,
    weight: u64,
    /// Somebody waits for these bytes.
    is_wanted: Arc<AtomicBool>,
    turn: oneshot::Sender<Turn>,
}

/// The right to have so many bytes under way.
pub struct Turn {
    turns: Turns,
    reader: Reader,
    weight: u64,
    room: u64,
}

impl Turns {
    /// Waits for the turn of `weight` bytes within `room`; `None` if what was to be fetched ahead
    /// is not worth it any more ([`Turns::forget`]).
    pub async fn wait(
        &self,
        reader: Reader,
        weight: u64,
        is_wanted: &Arc<AtomicBool>,
        room: u64,
    ) -> Option<Turn> {
        let coming = {
            let mut state = lock(&self.0);
            if state.waiting.is_empty() && state.has_room(weight, room) {
                state.take(reader, weight);
                return Some(Turn { turns: self.clone(), reader, weight, room });
            }
            let (turn, coming) = oneshot::channel();
            state.waiting.push(Waiting { reader, weight, is_wanted: is_wanted.clone(), turn });
            coming
        };
        // There is room for one who is wanted before those who are not.
        self.go_on(room);
        coming.await.ok()
    }

    /// Nobody will read what is fetched ahead of this reader and is not under way yet.
    pub fn forget(&self, reader: Reader) {
        let is_wanted = |waiting: &Waiting| waiting.is_wanted.load(Ordering::Relaxed);
        let mut state = lock(&self.0);
        state.waiting.retain(|one| one.reader != reader || is_wanted(one));
    }

    /// Bytes under way.
    pub fn under_way(&self) -> u64 {
        lock(&self.0).under_way
    }

    /// Bytes under way, and those that wait for their turn.
    pub fn queued(&self) -> u64 {
        let state = lock(&self.0);
        state.under_way + state.waiting.iter().map(|one| one.weight).sum::<u64>()
    }

    /// Gives turns while there is room.
    fn go_on(&self, room: u64) {
        loop {
            let given = {
                let mut state = lock(&self.0);
                // Those who wait no more make no turn.
                state.waiting.retain(|one| !one.turn.is_closed());
                let Some(next) = state.next() else { return };
                let weight = state.waiting.get(next).map_or(0, |one| one.weight);
                if !state.has_room(weight, room) {
                    return;
                }
                let Waiting { reader, weight, turn, .. } = state.waiting.remove(next);
                state.take(reader, weight);
                (turn, Turn { turns: self.clone(), reader, weight, room })
            };
            // Out of the lock: a turn that nobody takes is given back here.
            let _ = given.0.send(given.1);
        }
    }
}

impl State {
    fn has_room(&self, weight: u64, room: u64) -> bool {
        self.under_way == 0 || self.under_way + weight <= room
    }

    fn take(&mut self, reader: Reader, weight: u64) {
        self.under_way += weight;
        *self.readers.entry(reader).or_default() += weight;
    }

    fn give_back(&mut self, reader: Reader, weight: u64) {
        self.under_way = self.under_way.saturating_sub(weight);
        if let Some(bytes) = self.readers.get_mut(&reader) {
            *bytes = bytes.saturating_sub(weight);
            if *bytes == 0 {
                self.readers.remove(&reader);
            }
        }
    }

    /// The index of the one whose turn is next.
    fn next(&self) -> Option<usize> {
        let order = |(_, one): &(usize, &Waiting)| {
            let is_first = matches!(one.reader, Reader::Own | Reader::First(_));
            let under_way = self.readers.get(&one.reader).filter(|_| !is_first);
            (!one.is_wanted.load(Ordering::Relaxed), !is_first, under_way)
        };
        self.waiting.iter().enumerate().min_by_key(order).map(|(index, _)| index)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.turns.0).give_back(self.reader, self.weight);
        self.turns.go_on(self.room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = 100;

    fn reader(number: u64) -> Reader {
        Reader::Handle(HandleId(number))
    }

    fn flag(is_wanted: bool) -> Arc<AtomicBool> {
        Arc::new(AtomicBool::new(is_wanted))
    }

    /// Names who comes when, one turn at a time.
    async fn order(asked: &[(&'static str, u64, Arc<AtomicBool>)]) -> Vec<&'static str> {
        let turns = Turns::default();
        let all = turns.wait(reader(99), ROOM, &flag(true), ROOM).await;
        let came = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for (name, number, wanted) in asked.iter().cloned() {
            let (turns, came) = (turns.clone(), came.clone());
            tasks.spawn(async move {
                let turn = turns.wait(reader(number), ROOM, &wanted, ROOM).await;
                if turn.is_some() {
                    lock(&came).push(name);
                }
                tokio::task::yield_now().await;
            });
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        turns.forget(reader(7));
        drop(all);
        while tasks.join_next().await.is_some() {}
        assert_eq!(turns.under_way(), 0);
        lock(&came).to_vec()
    }

    #[tokio::test]
    async fn readers_come_before_what_is_fetched_ahead() {
        let late = flag(false);
        let asked = [
            ("ahead", 1, flag(false)),
            ("ahead, and now wanted", 1, late.clone()),
            ("wanted", 2, flag(true)),
            ("ahead of one who left", 7, flag(false)),
        ];
        late.store(true, Ordering::Relaxed);
        assert_eq!(order(&asked).await, ["ahead, and now wanted", "wanted", "ahead"]);
    }

    #[tokio::test]
    async fn first_bytes_come_before_others_in_the_order_they_were_asked_for() {
        let turns = Turns::default();
        let all = turns.wait(reader(9), ROOM, &flag(true), ROOM).await;
        let came = Arc::new(Mutex::new(Vec::new()));
        let first = |number| Reader::First(HandleId(number));
        // The second of reader 1 was asked for early, and reader 2 has nothing under way.
        let asked = [reader(1), first(1), first(2), first(1), reader(2), first(3)];
        let mut tasks = Vec::new();
        for who in asked {
            let (turns, came, wanted) = (turns.clone(), came.clone(), flag(true));
            tasks.push(tokio::spawn(async move {
                let turn = turns.wait(who, ROOM, &wanted, ROOM).await;
                lock(&came).push(who);
                drop(turn);
            }));
            tokio::task::yield_now().await;
        }
        drop(all);
        for task in tasks {
            task.await.unwrap();
        }
        let wanted = [first(1), first(2), first(1), first(3), reader(1), reader(2)];
        assert_eq!(*lock(&came), wanted);
    }

    #[tokio::test]
    async fn who_has_less_under_way_comes_first() {
        let turns = Turns::default();
        let greedy = turns.wait(reader(1), 60, &flag(true), ROOM).await;
        let small = turns.wait(reader(2), 30, &flag(true), ROOM).await;
        let wait = |number| {
            let (turns, wanted) = (turns.clone(), flag(true));
            tokio::spawn(async move { turns.wait(reader(number), 40, &wanted, ROOM).await })
        };
        let (again, other) = (wait(1), wait(3));
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        drop(small);
        let other = other.await.unwrap();
        assert!(other.is_some() && !again.is_finished());
        drop(greedy);
        assert!(again.await.unwrap().is_some());
    }

    #[tokio::test]
    async fn one_who_goes_away_takes_no_turn() {
        let turns = Turns::default();
        let all = turns.wait(reader(1), ROOM, &flag(true), ROOM).await;
        let (other, wanted) = (turns.clone(), flag(true));
        let gone = tokio::spawn(async move { other.wait(reader(2), 10, &wanted, ROOM).await });
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
        drop(all);
        assert_eq!(turns.under_way(), 0);
        assert!(turns.wait(reader(3), 2 * ROOM, &flag(true), ROOM).await.is_some());
    }
}
