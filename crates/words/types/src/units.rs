//! Sizes and durations as people write them: `64 MiB`, `30 s`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Text that is neither a size nor a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error(
        "`{0}` is not a size: write a number and B, KiB, MiB, GiB, TiB (k, M, G, T are those too)"
    )]
    Size(String),
    #[error("`{0}` is not a duration: write a number and ms, s, min, h or d")]
    Duration(String),
}

/// A number of bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = UnitError;

    /// `4M`, `4 MiB` and `4194304` are the same, as `lfs` reads them; `4MB` is 4,000,000.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::Size(text.to_owned());
        let (number, unit) = split(text).ok_or_else(wrong)?;
        let factor: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "p" | "pib" => 1 << 50,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(wrong()),
        };
        number.checked_mul(factor).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for ByteSize {
    /// Exact when a unit divides it, else with one decimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut step = 0;
        while step + 1 < UNITS.len() && self.0 >= 1 << (10 * (step + 1)) {
            step += 1;
        }
        let unit = UNITS.get(step).copied().unwrap_or("B");
        let whole = 1u64 << (10 * step);
        let text = if self.0.is_multiple_of(whole) {
            format!("{} {unit}", self.0 / whole)
        } else {
            format!("{:.1} {unit}", self.0 as f64 / whole as f64)
        };
        f.pad(&text)
    }
}

impl TryFrom<String> for ByteSize {
    type Error = UnitError;

    fn try_from(text: String) -> Result<Self, UnitError> {
        text.parse()
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> Self {
        size.to_string()
    }
}

/// A duration in settings and messages.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || UnitError::Duration(text.to_owned());
        let (number, unit) = split(text).ok_or_else(wrong)?;
        let millis: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let millis = number.checked_mul(millis).ok_or_else(wrong)?;
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let (factor, unit) = match millis {
            0 => (1_000, "s"),
            _ if millis.is_multiple_of(86_400_000) => (86_400_000, "d"),
            _ if millis.is_multiple_of(3_600_000) => (3_600_000, "h"),
            _ if millis.is_multiple_of(60_000) => (60_000, "min"),
            _ if millis.is_multiple_of(1_000) => (1_000, "s"),
            _ => (1, "ms"),
        };
        f.pad(&format!("{} {unit}", millis / factor))
    }
}

impl TryFrom<String> for Span {
    type Error = UnitError;

    fn try_from(text: String) -> Result<Self, UnitError> {
        text.parse()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        span.to_string()
    }
}

/// `12 MiB` into 12 and `MiB`; a unit may stand with or without a space.
fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_lfs_reads_them() {
        for (text, bytes) in
            [("4M", 4 << 20), ("4 MiB", 4 << 20), ("64k", 65_536), ("7", 7), ("1GB", 1_000_000_000)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for wrong in ["", "M", "4 parsecs", "-1", "99999999999999999999", "1.5M"] {
            assert!(wrong.parse::<ByteSize>().is_err(), "{wrong}");
        }
        assert_eq!(ByteSize(4 << 20).to_string(), "4 MiB");
        assert_eq!(ByteSize(1536).to_string(), "1.5 KiB");
    }

    #[test]
    fn durations_read_and_print_alike() {
        for text in ["30 s", "15 min", "250 ms", "2 h"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert!("30".parse::<Span>().is_err());
    }
}
