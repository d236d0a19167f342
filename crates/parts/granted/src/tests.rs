//! The table of what OSTs have granted.

use super::*;

const OST: OstIndex = OstIndex(3);
const OTHER: OstIndex = OstIndex(4);

fn rooms(granted: u64) -> Arc<Rooms> {
    let rooms = Arc::new(Rooms::default());
    for ost in [OST, OTHER] {
        answer(&rooms, ost, granted);
    }
    rooms
}

fn answer(rooms: &Rooms, ost: OstIndex, granted: u64) {
    let (_, wanted) = rooms.question(ost, 0).unwrap();
    let reply = GrantRoomReply { granted, unit: 4096, bytes_free: 1 << 40 };
    rooms.answered(ost, Instant::now(), Some(&reply), wanted);
}

fn free(rooms: &Rooms) -> u64 {
    rooms.free(OST)
}

#[tokio::test(start_paused = true)]
async fn all_osts_have_it_or_none_is_drawn() {
    let rooms = rooms(1 << 20);
    answer(&rooms, OTHER, 1 << 20);
    let (mut first, mut second) = (BTreeMap::new(), BTreeMap::new());
    assert!(rooms.draw(&[(OST, 600 << 10), (OTHER, 600 << 10)].into(), &mut first));
    assert!(!rooms.draw(&[(OST, 600 << 10), (OTHER, 600 << 10)].into(), &mut second));
    assert!(second.is_empty());
    assert!(rooms.draw(&[(OST, 600 << 10), (OTHER, 700 << 10)].into(), &mut first), "some more");
    assert_eq!(first, [(OST, 600 << 10), (OTHER, 700 << 10)].into());
    rooms.give_back(&mut first);
    assert_eq!((first.len(), free(&rooms)), (0, 1 << 20));
}

#[tokio::test(start_paused = true)]
async fn puts_spend_what_their_file_has_drawn_and_then_what_is_free() {
    let rooms = rooms(1 << 20);
    let cost = GrantRoom::cost(100_000, 4096);
    let mut drawn = BTreeMap::new();
    assert!(rooms.draw(&[(OST, cost)].into(), &mut drawn));
    let left = free(&rooms);
    let spending = rooms.spend(OST, 100_000, &mut drawn);
    assert_eq!((spending.room(), spending.missing(), free(&rooms)), (Some(cost), 0, left));
    spending.refused(&mut drawn);
    assert_eq!((drawn.get(&OST).copied(), free(&rooms)), (Some(cost), left));
    drop(rooms.spend(OST, 100_000, &mut drawn));
    assert_eq!((drawn.get(&OST).copied(), free(&rooms)), (Some(0), left));
    drop(rooms.spend(OST, 100_000, &mut drawn));
    assert_eq!(free(&rooms), left - cost);
    let rest = rooms.spend(OST, 2 << 20, &mut drawn);
    assert_eq!(rest.room(), Some(left - cost), "as much as there is");
    assert!(rest.missing() > 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_believed_of_another_boot_and_after_a_long_silence() {
    let rooms = rooms(1 << 20);
    let server = ServerNumber(1);
    rooms.welcomed(server, 7, &[OST]);
    rooms.welcomed(server, 7, &[OST]);
    assert_eq!(free(&rooms), 1 << 20);
    let mut drawn = BTreeMap::new();
    assert!(rooms.draw(&[(OST, 4096)].into(), &mut drawn));
    rooms.welcomed(server, 8, &[OST]);
    assert_eq!(free(&rooms), 0);
    let (held, wanted) = rooms.question(OST, 0).unwrap();
    assert_eq!(held, None, "it does not know");
    assert!(wanted >= TARGET_FIRST + 4096, "what is owed comes first: {wanted}");
    let reply = GrantRoomReply { granted: 1 << 20, unit: 4096, bytes_free: 1 };
    rooms.answered(OST, Instant::now(), Some(&reply), wanted);
    assert_eq!(free(&rooms), (1 << 20) - 4096);
    tokio::time::advance(BELIEVED).await;
    assert_eq!(free(&rooms), 0);
    assert_eq!(rooms.question(OST, 0).unwrap().0, None);
}

#[tokio::test(start_paused = true)]
async fn a_full_ost_is_not_asked_all_the_time() {
    let rooms = rooms(0);
    assert!(!rooms.is_low(OST));
    tokio::time::advance(SHORT).await;
    assert!(rooms.is_low(OST));
    rooms.question(OST, 0).unwrap();
    assert!(!rooms.is_low(OST), "it was asked");
    rooms.answered(OST, Instant::now(), None, 1);
    assert!(!rooms.is_low(OST));
}
