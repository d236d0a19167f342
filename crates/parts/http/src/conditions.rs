//! Tags of versions and the conditions that requests make with them (RFC 9110, 8.8 and 13).
//!
//! Invariant: a header that cannot be read never lets something be overwritten, and never lets
//! something old be kept: `If-Match` fails then, the others are as if they were not there.

use hyper::HeaderMap;
use hyper::header::{
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
};
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

/// Tags in one header.
pub const TAGS_MAX: usize = 1024;

/// An entity tag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ETag {
    pub is_weak: bool,
    /// Without quotes.
    opaque: String,
}

impl ETag {
    /// One that changes with each byte. `None` if it holds what a tag cannot.
    pub fn strong(opaque: impl Into<String>) -> Option<Self> {
        let opaque = opaque.into();
        opaque.chars().all(is_tag_character).then_some(Self { is_weak: false, opaque })
    }

    pub fn parse(text: &str) -> Option<Self> {
        let (tag, rest) = Self::take(text.trim())?;
        rest.is_empty().then_some(tag)
    }

    /// The tag at the front, and what is behind it.
    fn take(text: &str) -> Option<(Self, &str)> {
        let (is_weak, rest) = match text.strip_prefix("W/") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (opaque, rest) = rest.strip_prefix('"')?.split_once('"')?;
        let is_fine = opaque.chars().all(is_tag_character);
        is_fine.then(|| (Self { is_weak, opaque: opaque.to_owned() }, rest))
    }

    pub fn opaque(&self) -> &str {
        &self.opaque
    }

    /// Byte for byte the same.
    pub fn is_same(&self, other: &Self) -> bool {
        !self.is_weak && !other.is_weak && self.opaque == other.opaque
    }

    /// As good as the same.
    pub fn is_like(&self, other: &Self) -> bool {
        self.opaque == other.opaque
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weak = if self.is_weak { "W/" } else { "" };
        write!(f, "{weak}\"{}\"", self.opaque)
    }
}

/// RFC 9110, 8.8.3; other bytes than ASCII come as the character that follows.
fn is_tag_character(character: char) -> bool {
    character == '!' || ('\u{23}'..='\u{7e}').contains(&character) || character >= '\u{80}'
}

/// What stands in `If-Match` and `If-None-Match`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tags {
    /// `*`: whatever is there.
    Any,
    These(Vec<ETag>),
}

impl Tags {
    /// `None` if it cannot be read, or there are too many.
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = text.trim();
        if rest == "*" {
            return Some(Self::Any);
        }
        let mut tags = Vec::new();
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            if rest.is_empty() {
                return (!tags.is_empty()).then_some(Self::These(tags));
            }
            let (tag, behind) = ETag::take(rest)?;
            rest = behind.trim_start();
            if tags.len() == TAGS_MAX || !(rest.is_empty() || rest.starts_with(',')) {
                return None;
            }
            tags.push(tag);
        }
    }

    fn has(&self, present: Option<&Version>, is_match: impl Fn(&ETag, &ETag) -> bool) -> bool {
        match self {
            Self::Any => present.is_some(),
            Self::These(tags) => present
                .and_then(|present| present.tag.as_ref())
                .is_some_and(|present| tags.iter().any(|tag| is_match(tag, present))),
        }
    }
}

/// How what is there now can be told from what was there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Version {
    pub tag: Option<ETag>,
    /// Since 1970-01-01 00:00 UTC.
    pub modified: Option<Duration>,
}

/// What the conditions of a request say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Do what is asked.
    Proceed,
    /// Of something that is read: the asker has it (304).
    NotModified,
    /// It is not what the asker believes (412).
    Failed,
}

/// Judges the conditions in `headers` in the order of RFC 9110, 13.2.2. `present` is what is there,
/// if anything is.
pub fn judge(headers: &HeaderMap, is_read: bool, present: Option<&Version>) -> Verdict {
    if let Some(text) = joined(headers, &IF_MATCH) {
        let is_met = Tags::parse(&text).is_some_and(|tags| tags.has(present, |a, b| a.is_same(b)));
        if !is_met {
            return Verdict::Failed;
        }
    } else if let Some(since) = date(headers, &IF_UNMODIFIED_SINCE)
        && seconds(present).is_some_and(|modified| modified > since)
    {
        return Verdict::Failed;
    }
    if let Some(text) = joined(headers, &IF_NONE_MATCH) {
        let is_there =
            Tags::parse(&text).is_some_and(|tags| tags.has(present, |a, b| a.is_like(b)));
        return match (is_there, is_read) {
            (false, _) => Verdict::Proceed,
            (true, true) => Verdict::NotModified,
            (true, false) => Verdict::Failed,
        };
    }
    if let Some(since) = date(headers, &IF_MODIFIED_SINCE).filter(|_| is_read)
        && seconds(present).is_some_and(|modified| modified <= since)
    {
        return Verdict::NotModified;
    }
    Verdict::Proceed
}

/// Does `If-Range` allow that only a range is sent? Where it is not there, it does.
pub fn is_range_allowed(headers: &HeaderMap, present: &Version) -> bool {
    let Some(value) = headers.get(IF_RANGE) else { return true };
    let Ok(text) = value.to_str() else { return false };
    match ETag::parse(text) {
        Some(tag) => present.tag.as_ref().is_some_and(|present| tag.is_same(present)),
        // A date says a second: what was changed twice in it is not told apart, but then neither
        // can the asker have known better.
        None => parse_date(text).is_some_and(|date| seconds(Some(present)) == Some(date)),
    }
}

/// As dates stand in headers.
pub fn format_date(since_1970: Duration) -> String {
    // What cannot be written (the year 10000) is as late as can be.
    let latest = Duration::from_secs(253_402_300_799);
    httpdate::fmt_http_date(UNIX_EPOCH + since_1970.min(latest))
}

/// Since 1970; `None` if it cannot be read or was before.
pub fn parse_date(text: &str) -> Option<Duration> {
    httpdate::parse_http_date(text.trim()).ok()?.duration_since(UNIX_EPOCH).ok()
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<Duration> {
    parse_date(headers.get(name)?.to_str().ok()?)
}

/// The present version's date as headers can say it.
fn seconds(present: Option<&Version>) -> Option<Duration> {
    Some(Duration::from_secs(present?.modified?.as_secs()))
}

/// All values of a header as one list. What is not text is there, and cannot be read.
pub(crate) fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut values = headers.get_all(name).iter().peekable();
    values.peek()?;
    let texts: Vec<_> = values.map(|value| value.to_str().unwrap_or("\u{0}")).collect();
    Some(texts.join(","))
}

#[cfg(test)]
mod tests;
