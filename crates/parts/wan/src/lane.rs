//! One direction of a line: packets go in at one time and come out at another, or not at all.
//!
//! A packet first waits until what came before it is sent, at the line's rate; if too much waits,
//! it is dropped. Then it travels. Losses fall on segments, so a packet that stands for many may
//! come out in several parts.
//!
//! Knows no clock: who calls says what time it is. Invariants: packets leave in the order in which
//! they came, also when the distance shrinks; what waits and travels is at most
//! [`IN_FLIGHT_MAX`] bytes.

use crate::packet::Packet;
use crate::quality::Quality;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Memory that a lane may take.
pub const IN_FLIGHT_MAX: usize = 512 << 20;

pub struct Lane {
    quality: Quality,
    is_cut: bool,
    dice: Dice,
    /// Segments that go well until the next is lost.
    well: Option<u64>,
    /// When all that was accepted is sent.
    free_at: Option<Instant>,
    travelling: VecDeque<(Instant, Packet)>,
    bytes: usize,
    counts: Counts,
}

/// What a lane did, in packets and bytes of the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    pub packets: u64,
    pub bytes: u64,
    /// By chance.
    pub lost: u64,
    /// For want of room in the queue.
    pub dropped: u64,
    /// Because the line was cut.
    pub cut: u64,
}

impl Lane {
    pub fn new(quality: Quality, seed: u64) -> Self {
        let mut lane = Self {
            quality,
            is_cut: false,
            dice: Dice(seed),
            well: None,
            free_at: None,
            travelling: VecDeque::new(),
            bytes: 0,
            counts: Counts::default(),
        };
        lane.draw();
        lane
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Makes the line another one. What travels already arrives when it would have.
    pub fn change(&mut self, quality: Quality, now: Instant) {
        let waiting = self.quality.rate.bytes_in(self.waits(now));
        self.free_at = Some(now + quality.rate.time_of(waiting));
        let is_loss_new = self.quality.loss != quality.loss;
        self.quality = quality;
        if is_loss_new {
            self.draw();
        }
    }

    /// Cuts the line, with all that is on it, or makes it whole.
    pub fn cut(&mut self, is_cut: bool) {
        self.is_cut = is_cut;
        if is_cut {
            for (_, packet) in self.travelling.drain(..) {
                self.counts.cut += packet.segments() as u64;
            }
            self.bytes = 0;
            self.free_at = None;
        }
    }

    /// How long what comes now waits until it is sent.
    fn waits(&self, now: Instant) -> Duration {
        self.free_at.map_or(Duration::ZERO, |free| free.saturating_duration_since(now))
    }

    /// Takes a packet that came at `now`.
    pub fn take(&mut self, packet: Packet, now: Instant) {
        let count = packet.segments();
        if self.is_cut {
            self.counts.cut += count as u64;
            return;
        }
        let room = self.room(&packet, count, now);
        self.counts.dropped += (count - room) as u64;
        let mut from = 0;
        for place in 0..room {
            if self.is_lost() {
                self.counts.lost += 1;
                // What is lost was sent all the same.
                self.send(&packet, from, place, now);
                self.occupy(&packet.part(place, place + 1), now);
                from = place + 1;
            }
        }
        if from == 0 && room == count {
            let due = self.occupy(&packet, now);
            self.push(packet, due);
        } else {
            self.send(&packet, from, room, now);
        }
    }

    /// How many of a packet's segments find room in the queue.
    fn room(&self, packet: &Packet, count: usize, now: Instant) -> usize {
        if self.bytes + packet.bytes().len() > IN_FLIGHT_MAX {
            return 0;
        }
        let waiting = self.quality.rate.bytes_in(self.waits(now));
        // Nothing waits: the line itself holds one, however small the queue.
        if waiting == 0 && count == 1 {
            return 1;
        }
        let free = self.quality.queue_bytes().saturating_sub(waiting);
        if packet.wire_bytes(count) <= free || self.quality.rate == crate::Rate::Unlimited {
            return count;
        }
        (0..count).take_while(|place| packet.wire_bytes(place + 1) <= free).count()
    }

    fn send(&mut self, packet: &Packet, from: usize, to: usize, now: Instant) {
        if from < to {
            let part = packet.part(from, to);
            let due = self.occupy(&part, now);
            self.push(part, due);
        }
    }

    /// Has the line send a packet; says when it arrives.
    fn occupy(&mut self, packet: &Packet, now: Instant) -> Instant {
        let count = packet.segments();
        let bytes = packet.wire_bytes(count);
        let sent = now + self.waits(now) + self.quality.rate.time_of(bytes);
        self.free_at = Some(sent);
        self.counts.packets += count as u64;
        self.counts.bytes += bytes as u64;
        sent + self.quality.delay()
    }

    fn push(&mut self, packet: Packet, due: Instant) {
        let last = self.travelling.back().map(|(due, _)| *due);
        self.bytes += packet.bytes().len();
        self.travelling.push_back((last.map_or(due, |last| last.max(due)), packet));
    }

    /// When the next packet arrives.
    pub fn due(&self) -> Option<Instant> {
        self.travelling.front().map(|(due, _)| *due)
    }

    /// A packet that has arrived by `now`.
    pub fn arrived(&mut self, now: Instant) -> Option<Packet> {
        if self.due()? > now {
            return None;
        }
        let (_, packet) = self.travelling.pop_front()?;
        self.bytes -= packet.bytes().len();
        Some(packet)
    }

    fn is_lost(&mut self) -> bool {
        match &mut self.well {
            None => false,
            Some(0) => {
                self.draw();
                true
            }
            Some(well) => {
                *well -= 1;
                false
            }
        }
    }

    /// Draws how many go well until the next loss: one throw per loss and not per packet.
    fn draw(&mut self) {
        let loss = self.quality.loss.0;
        self.well = match loss {
            _ if loss <= 0.0 => None,
            _ if loss >= 1.0 => Some(0),
            _ => Some((self.dice.share().ln() / (1.0 - loss).ln()) as u64),
        };
    }
}

/// Randomness that a seed decides (SplitMix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Above 0, at most 1.
    fn share(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::stream;
    use crate::quality::Queue;

    fn line(rtt: &str, rate: &str, loss: f64) -> Quality {
        Quality {
            rtt: rtt.parse().unwrap(),
            rate: rate.parse().unwrap(),
            loss: crate::Loss(loss),
            queue: Queue::BandwidthDelay,
        }
    }

    #[test]
    fn packets_take_their_time() {
        let now = Instant::now();
        let mut lane = Lane::new(line("50ms", "8mbit", 0.0), 1);
        // 1,040 bytes at a byte per microsecond.
        lane.take(stream(1_000, false), now);
        lane.take(stream(1_000, false), now);
        let first = now + Duration::from_micros(25_000 + 1_040);
        assert_eq!(lane.due(), Some(first));
        assert!(lane.arrived(first - Duration::from_micros(1)).is_none());
        assert!(lane.arrived(first).is_some());
        assert_eq!(lane.due(), Some(first + Duration::from_micros(1_040)));
    }

    #[test]
    fn what_finds_no_room_is_dropped_segment_by_segment() {
        let now = Instant::now();
        let mut quality = line("1ms", "8mbit", 0.0);
        quality.queue = Queue::Bytes(5_000);
        let mut lane = Lane::new(quality, 1);
        lane.take(stream(3_000, false), now);
        lane.take(stream(3_000, false), now);
        assert_eq!(lane.counts().dropped, 2);
        assert_eq!(lane.counts().packets, 4);
    }

    #[test]
    fn a_seed_decides_what_is_lost() {
        let run = |seed| {
            let (mut lane, now) = (Lane::new(line("0ms", "unlimited", 0.01), seed), Instant::now());
            let mut lengths = Vec::new();
            for _ in 0..1_000 {
                lane.take(stream(10_000, false), now);
                while let Some(packet) = lane.arrived(now) {
                    lengths.push(packet.bytes().len());
                }
            }
            (lane.counts().lost, lengths)
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        assert!((60..140).contains(&run(7).0), "{} of 10,000 at 1 %", run(7).0);
    }

    #[test]
    fn a_cut_takes_what_is_on_the_line() {
        let now = Instant::now();
        let mut lane = Lane::new(line("10ms", "unlimited", 0.0), 1);
        lane.take(stream(1_000, false), now);
        lane.cut(true);
        lane.take(stream(2_000, false), now);
        assert_eq!((lane.due(), lane.counts().cut), (None, 3));
        lane.cut(false);
        lane.take(stream(1_000, false), now);
        assert!(lane.due().is_some());
    }

    #[test]
    fn order_is_kept_when_the_way_gets_shorter() {
        let now = Instant::now();
        let mut lane = Lane::new(line("100ms", "unlimited", 0.0), 1);
        lane.take(stream(1_000, false), now);
        lane.change(line("1ms", "unlimited", 0.0), now);
        lane.take(stream(2_000, false), now);
        let late = now + Duration::from_millis(50);
        assert_eq!(lane.arrived(late).map(|packet| packet.segments()), Some(1));
        assert_eq!(lane.arrived(late).map(|packet| packet.segments()), Some(2));
    }
}
