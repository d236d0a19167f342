//! What a line is like, as people write it: `50ms`, `1gbit`, `1e-4`, `6MiB`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tieline_types::ByteSize;

/// Text that says nothing about a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    #[error("`{0}` is not a distance: write a number and us, ms or s, at most 10 s")]
    Distance(String),
    #[error("`{0}` is not a rate: write a number and kbit, mbit or gbit, or `unlimited`")]
    Rate(String),
    #[error("`{0}` is not a loss: write a share of packets such as 1e-4 or 0.01%, at most 1")]
    Loss(String),
    #[error("`{0}` is not a queue: write a size such as 6MiB, or `bdp`")]
    Queue(String),
    #[error(
        "`{0}` is not an order: write rtt SPAN, rate RATE, loss SHARE, queue SIZE, cut, \
        cut to-servers, cut to-clients, heal, nat on, nat off, nat rebind, ip 4, ip 6, ip 46, or \
        show"
    )]
    Order(String),
    #[error("`{0}` is not a step of a script: write ORDER@TIME, such as cut@5s or rtt=100ms@2s")]
    Step(String),
    #[error("no link is called `{0}`")]
    Link(String),
}

/// The time that a packet and its answer travel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Distance(pub Duration);

const DISTANCE_MAX: Duration = Duration::from_secs(10);

impl FromStr for Distance {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let wrong = || WordError::Distance(text.to_owned());
        let (number, unit) = split(text).ok_or_else(wrong)?;
        let second = match unit.as_str() {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "" if number == 0.0 => 1.0,
            _ => return Err(wrong()),
        };
        let span = Duration::try_from_secs_f64(number * second).map_err(|_| wrong())?;
        if span > DISTANCE_MAX { Err(wrong()) } else { Ok(Self(span)) }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_micros() as f64 / 1e3)
    }
}

/// Bits per second, counted over whole packets.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Rate {
    #[default]
    Unlimited,
    /// More than 0.
    Bits(u64),
}

impl Rate {
    /// How long `bytes` take to be sent.
    pub fn time_of(self, bytes: usize) -> Duration {
        match self {
            Self::Unlimited => Duration::ZERO,
            Self::Bits(bits) => Duration::from_secs_f64(bytes as f64 * 8.0 / bits as f64),
        }
    }

    /// How many bytes are sent in `time`.
    pub fn bytes_in(self, time: Duration) -> usize {
        match self {
            Self::Unlimited => 0,
            Self::Bits(bits) => (time.as_secs_f64() * bits as f64 / 8.0) as usize,
        }
    }
}

impl FromStr for Rate {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let wrong = || WordError::Rate(text.to_owned());
        if text.trim() == "unlimited" {
            return Ok(Self::Unlimited);
        }
        let (number, unit) = split(text).ok_or_else(wrong)?;
        let factor = match unit.as_str() {
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(wrong()),
        };
        let bits = number * factor;
        // Slower lines send no packet in any patience; faster ones are none that can be played.
        if (1e3..=1e12).contains(&bits) { Ok(Self::Bits(bits as u64)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Bits(bits) if bits >= 1_000_000_000 => write!(f, "{}gbit", bits as f64 / 1e9),
            Self::Bits(bits) if bits >= 1_000_000 => write!(f, "{}mbit", bits as f64 / 1e6),
            Self::Bits(bits) => write!(f, "{}kbit", bits as f64 / 1e3),
        }
    }
}

/// The share of packets that are lost.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Loss(pub f64);

impl FromStr for Loss {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let wrong = || WordError::Loss(text.to_owned());
        let (number, factor) = match text.trim().strip_suffix('%') {
            Some(number) => (number, 0.01),
            None => (text.trim(), 1.0),
        };
        let share = number.trim().parse::<f64>().map_err(|_| wrong())? * factor;
        if (0.0..=1.0).contains(&share) { Ok(Self(share)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// How much may wait for its turn; what finds no room is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Queue {
    /// What the line carries in one round trip, at least in [`Queue::LEAST_TIME`].
    #[default]
    BandwidthDelay,
    Bytes(usize),
}

impl Queue {
    /// A queue of a few packets would punish each burst of a short line, and each moment in which
    /// a busy machine gives the relay no turn.
    pub const LEAST_TIME: Duration = Duration::from_millis(10);
    /// The largest packet of a device finds room.
    pub const LEAST: usize = 64 << 10;
    /// More is memory and no line.
    pub const MOST: usize = 256 << 20;
}

impl FromStr for Queue {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        if text.trim() == "bdp" {
            return Ok(Self::BandwidthDelay);
        }
        let size = text.parse::<ByteSize>().map_err(|_| WordError::Queue(text.to_owned()))?;
        let bytes = usize::try_from(size.0).unwrap_or(usize::MAX);
        Ok(Self::Bytes(bytes.min(Self::MOST)))
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BandwidthDelay => f.write_str("bdp"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// What a line is like, the same in both directions.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Quality {
    pub rtt: Distance,
    pub rate: Rate,
    pub loss: Loss,
    pub queue: Queue,
}

impl Quality {
    /// How long a packet travels one way.
    pub fn delay(&self) -> Duration {
        self.rtt.0 / 2
    }

    /// How many bytes may wait for their turn.
    pub fn queue_bytes(&self) -> usize {
        match self.queue {
            Queue::Bytes(bytes) => bytes,
            Queue::BandwidthDelay => self
                .rate
                .bytes_in(self.rtt.0.max(Queue::LEAST_TIME))
                .clamp(Queue::LEAST, Queue::MOST),
        }
    }
}

/// `1.5gbit` into 1.5 and `gbit`; a unit may stand with or without a space, in any case.
fn split(text: &str) -> Option<(f64, String)> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let number = number.parse::<f64>().ok().filter(|number| number.is_finite())?;
    Some((number, unit.trim().to_ascii_lowercase()))
}

macro_rules! written_as_text {
    ($($name:ty),*) => { $(
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )* };
}

written_as_text!(Distance, Rate, Loss, Queue);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_and_print_alike() {
        for text in ["50ms", "0.2ms", "1500ms"] {
            assert_eq!(text.parse::<Distance>().unwrap().to_string(), text);
        }
        assert_eq!("200us".parse::<Distance>(), "0.2 ms".parse());
        for text in ["1gbit", "2.5gbit", "100mbit", "56kbit", "unlimited"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("0.01%".parse::<Loss>().unwrap().to_string(), "0.0001");
        assert_eq!("6MiB".parse::<Queue>(), Ok(Queue::Bytes(6 << 20)));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "50", "-1ms", "50 parsecs", "1e9s", "..ms"] {
            assert!(text.parse::<Distance>().is_err(), "{text}");
        }
        for text in ["", "1", "0gbit", "1gb", "nan"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        for text in ["", "2", "-0.1", "nan", "101%"] {
            assert!(text.parse::<Loss>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_queue_holds_a_round_trip() {
        let line = |rtt: &str, rate: &str| Quality {
            rtt: rtt.parse().unwrap(),
            rate: rate.parse().unwrap(),
            ..Quality::default()
        };
        assert_eq!(line("50ms", "1gbit").queue_bytes(), 6_250_000);
        assert_eq!(line("0.2ms", "1gbit").queue_bytes(), 1_250_000);
        assert_eq!(line("0.2ms", "1mbit").queue_bytes(), Queue::LEAST);
    }
}
