//! `Range` and `Content-Range` of bytes (RFC 9110, 14).
//!
//! In headers the last byte is named; in our own words a range is half open, as everywhere.
//!
//! Invariants: ranges are never empty; of those that overlap a server sends each byte once, and
//! those that do not overlap stay as they were asked, in their order.

use std::fmt;
use std::ops::Range;

/// More in one request are refused: each costs its sender ten bytes, and its server much more.
pub const RANGES_MAX: usize = 1024;

/// One range as it is asked for, before anybody knows the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// `first-last`, both included.
    Between { first: u64, last: u64 },
    /// `first-`.
    From(u64),
    /// `-count`: so many at the end.
    Last(u64),
}

impl Asked {
    /// The bytes that are meant where there are `length`; `None` if there are none.
    pub fn resolve(self, length: u64) -> Option<Range<u64>> {
        let range = match self {
            Self::Between { first, last } => first..last.saturating_add(1).min(length),
            Self::From(first) => first..length,
            Self::Last(count) => length.saturating_sub(count)..length,
        };
        (!range.is_empty()).then_some(range)
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Between { first, last } => write!(f, "{first}-{last}"),
            Self::From(first) => write!(f, "{first}-"),
            Self::Last(count) => write!(f, "-{count}"),
        }
    }
}

/// Why there is nothing asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    #[error("it is not in bytes")]
    Unit,
    #[error("it cannot be read")]
    Syntax,
    #[error("more than {RANGES_MAX} ranges are asked for")]
    Many,
}

/// Ranges that are asked for together: at least one, at most [`RANGES_MAX`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranges(Vec<Asked>);

impl Ranges {
    /// One range, half open; an empty one asks for nothing.
    pub fn one(range: Range<u64>) -> Option<Self> {
        Self::several([range])
    }

    /// Several, half open. `None` if there are none, too many, or empty ones among them.
    pub fn several(ranges: impl IntoIterator<Item = Range<u64>>) -> Option<Self> {
        let asked = |range: Range<u64>| {
            let last = range.end.checked_sub(1).filter(|last| *last >= range.start)?;
            Some(Asked::Between { first: range.start, last })
        };
        Self::of(ranges.into_iter().map(asked).collect::<Option<_>>()?)
    }

    pub fn of(asked: Vec<Asked>) -> Option<Self> {
        (!asked.is_empty() && asked.len() <= RANGES_MAX).then_some(Self(asked))
    }

    /// The value of a `Range` header.
    pub fn parse(value: &str) -> Result<Self, RangeError> {
        let (unit, list) = value.split_once('=').ok_or(RangeError::Syntax)?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return Err(RangeError::Unit);
        }
        let mut asked = Vec::new();
        for part in list.split(',').map(blank_free).filter(|part| !part.is_empty()) {
            if asked.len() == RANGES_MAX {
                return Err(RangeError::Many);
            }
            asked.push(parse_one(part).ok_or(RangeError::Syntax)?);
        }
        Self::of(asked).ok_or(RangeError::Syntax)
    }

    pub fn asked(&self) -> &[Asked] {
        &self.0
    }

    /// What of these there is, in the order that was asked for; where some overlap, in that of the
    /// bytes, with each byte once.
    pub fn resolve(&self, length: u64) -> Vec<Range<u64>> {
        let ranges: Vec<_> = self.0.iter().filter_map(|asked| asked.resolve(length)).collect();
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        let mut sorted = ranges.clone();
        sorted.sort_unstable_by_key(|range| (range.start, range.end));
        for range in sorted {
            match merged.last_mut() {
                Some(last) if range.start < last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        if merged.len() == ranges.len() { ranges } else { merged }
    }
}

/// The value of a `Range` header.
impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes=")?;
        for (number, asked) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{asked}")?;
        }
        Ok(())
    }
}

/// Which bytes an answer has, and how many there are in all, if that is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContentRange {
    /// `None` with a 416.
    pub range: Option<Range<u64>>,
    pub length: Option<u64>,
}

impl ContentRange {
    /// The value of a `Content-Range` header.
    pub fn parse(value: &str) -> Option<Self> {
        let value = blank_free(value);
        let (unit, rest) = value.split_at_checked(5)?;
        let rest = blank_free(rest.strip_prefix([' ', '\t', '='])?);
        let (range, length) = rest.split_once('/')?;
        let length = match blank_free(length) {
            "*" => None,
            digits => Some(number(digits)?),
        };
        let range = match blank_free(range) {
            "*" => None,
            range => {
                let (first, last) = range.split_once('-')?;
                let (first, last) = (number(blank_free(first))?, number(blank_free(last))?);
                Some(first..last.checked_add(1)?)
            }
        };
        let is_fine = match (&range, length) {
            (Some(range), Some(length)) => range.start < range.end && range.end <= length,
            (Some(range), None) => range.start < range.end,
            (None, length) => length.is_some(),
        };
        (unit.eq_ignore_ascii_case("bytes") && is_fine).then_some(Self { range, length })
    }
}

/// The value of a `Content-Range` header.
impl fmt::Display for ContentRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.range {
            Some(range) => write!(f, "bytes {}-{}/", range.start, range.end.saturating_sub(1))?,
            None => f.write_str("bytes */")?,
        }
        match self.length {
            Some(length) => write!(f, "{length}"),
            None => f.write_str("*"),
        }
    }
}

fn parse_one(part: &str) -> Option<Asked> {
    let (first, last) = part.split_once('-')?;
    match (blank_free(first), blank_free(last)) {
        ("", count) => Some(Asked::Last(number(count)?)),
        (first, "") => Some(Asked::From(number(first)?)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Asked::Between { first, last })
        }
    }
}

fn blank_free(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// Digits only. What is larger than any file is as large as can be.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
