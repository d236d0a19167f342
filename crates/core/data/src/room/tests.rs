//! What is promised fits: against a disk too simple to be wrong.

use super::*;
use proptest::prelude::*;
use tieline_types::{Grant, MdtIndex};

const RESERVE: u64 = 1 << 20;

fn client(number: u8) -> ClientId {
    ClientId([number; 16])
}

fn chunk(serial: u64) -> GrantedId {
    GrantedId { mdt: MdtIndex(0), grant: Grant(1), serial }
}

fn wish(number: u8, serial: u64, cost: u64, room: u64) -> Wish {
    Wish { client: client(number), chunk: chunk(serial), cost, room }
}

fn endless() -> Free {
    Free { limit: None, objects: u64::MAX }
}

/// What is granted of a disk of so many bytes free.
fn grant(ledger: &Ledger, free: u64, number: u8, held: Option<u64>, wanted: u64) -> u64 {
    ledger.see(free);
    ledger.grant((client(number), held, wanted), endless).0
}

#[tokio::test(start_paused = true)]
async fn a_client_gets_a_part_of_what_is_left_and_all_together_half() {
    let ledger = Ledger::new(RESERVE);
    let free = RESERVE + (80 << 20);
    assert_eq!(grant(&ledger, free, 1, None, 1 << 30), 10 << 20);
    let mut sum = 10 << 20;
    for number in 2..60 {
        sum += grant(&ledger, free, number, None, 1 << 30);
    }
    assert!(sum <= 40 << 20 && sum > 35 << 20, "{sum}");
    assert_eq!(ledger.promised(), sum);
    assert_eq!(grant(&Ledger::new(RESERVE), u64::MAX, 1, None, 1 << 30), CLIENT_MAX);
    assert_eq!(grant(&Ledger::new(RESERVE), RESERVE, 1, None, 1 << 30), 0, "it is full");
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_or_of_a_silent_client_is_free_again() {
    let ledger = Ledger::new(0);
    assert_eq!(grant(&ledger, 8 << 20, 1, Some(0), 1 << 20), 1 << 20);
    assert_eq!(grant(&ledger, 8 << 20, 1, Some(4096), 0), 0);
    assert_eq!(ledger.promised(), 4096);
    // A process that follows another is told what it has.
    assert_eq!(grant(&ledger, 8 << 20, 1, None, 1 << 19), 4096 + (1 << 19));
    tokio::time::advance(KEPT / 2).await;
    drop(ledger.spend(wish(1, 1, 4096, 4096)));
    tokio::time::advance(KEPT * 2 / 3).await;
    grant(&ledger, 8 << 20, 2, Some(0), 0);
    assert_eq!(ledger.promised(), 4096 + (1 << 19), "its put was heard");
    tokio::time::advance(KEPT).await;
    grant(&ledger, 8 << 20, 2, Some(0), 0);
    assert_eq!(ledger.promised(), 0);
    assert_eq!(grant(&ledger, 8 << 20, 1, Some(1 << 20), 0), 0, "it believed in more");
    assert_eq!(ledger.promised(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_put_without_a_grant_leaves_what_is_promised() {
    let ledger = Ledger::new(0);
    assert_eq!(grant(&ledger, 1 << 20, 1, Some(0), 1 << 17), 1 << 17);
    let fits = (1 << 20) - (1 << 17);
    let put = |number, serial, cost, room| {
        let spent = ledger.spend(wish(number, serial, cost, room));
        let taken = ledger.take(&spent, cost);
        let is_taken = taken.is_some();
        if is_taken {
            spent.stored();
        }
        is_taken
    };
    assert!(!put(2, 1, fits + 1, 0));
    for _ in 0..2 {
        assert!(!put(2, 1, fits + 1, fits), "it says so, and was granted nothing");
    }
    assert!(put(2, 1, fits, 0));
    assert!(!put(1, 2, 1 << 17, 0), "it does not say that it is of its room");
    assert!(put(1, 2, 1 << 17, 1 << 17));
    assert_eq!(ledger.promised(), 0);
    assert!(put(1, 2, 1 << 17, 1 << 17), "the same again costs nothing");
}

#[tokio::test(start_paused = true)]
async fn a_put_that_is_refused_has_spent_nothing() {
    let ledger = Ledger::new(0);
    grant(&ledger, 1 << 20, 1, Some(0), 1 << 17);
    let spent = ledger.spend(wish(1, 1, 5000, 5000));
    assert_eq!(ledger.promised(), (1 << 17) - 5000);
    drop(spent);
    assert_eq!(ledger.promised(), 1 << 17);
    ledger.spend(wish(1, 1, 5000, 5000)).stored();
    assert_eq!(ledger.promised(), (1 << 17) - 5000);
}

#[derive(Clone, Debug)]
enum Step {
    /// Asks for room, knowing what it has or not.
    Grant(u8, bool, u64),
    GiveBack(u8),
    /// With a grant as far as there is one, or without.
    Put(u8, u64, bool),
    Delete(u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let size = 1u64..(3 << 20);
    prop_oneof![
        3 => (0..4u8, any::<bool>(), 0u64..(8 << 20)).prop_map(|(c, k, w)| Step::Grant(c, k, w)),
        1 => (0..4u8).prop_map(Step::GiveBack),
        6 => (0..4u8, size.clone(), any::<bool>()).prop_map(|(c, s, g)| Step::Put(c, s, g)),
        1 => size.prop_map(Step::Delete),
        1 => (0u64..400).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Whatever happens, what is promised fits beside what is used, and a put that is granted is
    /// taken.
    #[test]
    fn what_is_promised_finds_its_room(steps in prop::collection::vec(step(), 1..200)) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(check(steps))?;
    }
}

async fn check(steps: Vec<Step>) -> Result<(), TestCaseError> {
    const DISK: u64 = 32 << 20;
    let (ledger, mut used, mut serial) = (Ledger::new(RESERVE), 0u64, 0);
    let mut held = [(0u64, Instant::now()); 4];
    for step in steps {
        match step {
            Step::Grant(number, knows, wanted) => {
                let own = &mut held[usize::from(number)];
                let known = if own.1.elapsed() < KEPT { own.0 } else { 0 };
                let free = DISK - used;
                let more = grant(&ledger, free, number, knows.then_some(known), wanted);
                *own = (if knows { known + more } else { more }, Instant::now());
            }
            Step::GiveBack(number) => {
                grant(&ledger, DISK - used, number, Some(0), 0);
                held[usize::from(number)].0 = 0;
            }
            Step::Put(number, cost, with) => {
                let own = &mut held[usize::from(number)];
                own.0 = if own.1.elapsed() < KEPT { own.0 } else { 0 };
                let room = if with { own.0.min(cost) } else { 0 };
                serial += 1;
                ledger.see(DISK - used);
                let spent = ledger.spend(wish(number, serial, cost, room));
                let is_taken = ledger.take(&spent, cost).is_some();
                prop_assert!(is_taken || room < cost, "what was granted is taken");
                if is_taken {
                    spent.stored();
                    own.0 -= room;
                    used += cost;
                }
                if room > 0 {
                    own.1 = Instant::now();
                }
            }
            Step::Delete(bytes) => used = used.saturating_sub(bytes),
            Step::Wait(seconds) => tokio::time::advance(Duration::from_secs(seconds)).await,
        }
        let promised = ledger.promised();
        prop_assert!(used + promised + RESERVE <= DISK, "{used} used, {promised} promised");
    }
    Ok(())
}
