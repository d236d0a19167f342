//! Files on tape: what a pool's HSM is, and how a file stands to it.
//!
//! An HSM is reached by a script of the site, by dCache's convention (`put`, `get`, `remove`). A
//! file that was archived is on tape as one whole; one that is released as well has given up its
//! chunks at OSTs, and must be restored before it can be read.

use crate::{AtMost, Digest, ErrorKind, PoolName, Time};
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a pool's files get to tape and back.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hsm {
    /// The site's script: its servers' settings say where it may lie.
    #[n(0)]
    pub script: String,
    /// What the HSM is called: dCache's `hsmInstance`.
    #[n(1)]
    pub instance: String,
    /// How many run at once, at one OSS.
    #[n(2)]
    pub puts: u16,
    #[n(3)]
    pub gets: u16,
    #[n(4)]
    pub removes: u16,
    /// How long one may run before it is killed.
    #[n(5)]
    pub put_seconds: u32,
    #[n(6)]
    pub get_seconds: u32,
    #[n(7)]
    pub remove_seconds: u32,
    /// Before the second try; each further pause is twice as long, up to [`Hsm::PAUSE_MAX`].
    #[n(8)]
    pub pause_seconds: u32,
    /// Tries before a file is given up until somebody asks again; 0: never.
    #[n(9)]
    pub tries: u32,
    /// `KEY=VALUE`s that are handed to the script as `-KEY=VALUE`.
    #[n(10)]
    #[cbor(with = "AtMost::<{ Hsm::OPTIONS_MAX }>")]
    pub options: Vec<String>,
}

/// Why an HSM was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HsmError {
    #[error("script `{0}` is not an absolute path of at most 1,024 characters")]
    Script(String),
    #[error("instance `{0}` is not 1 to 32 letters, digits, `-`, `_` or `.`")]
    Instance(String),
    #[error("{0} at once: from 1 to {limit}", limit = Hsm::AT_ONCE_MAX)]
    AtOnce(u16),
    #[error("{0} s are no time: from 1 s to 7 d")]
    Span(u32),
    #[error("option `{0}` is not KEY=VALUE of at most 1,024 characters, or there are more than 32")]
    Option(String),
}

impl Hsm {
    pub const OPTIONS_MAX: usize = 32;
    pub const AT_ONCE_MAX: u16 = 100;
    /// Seconds: no pause is longer.
    pub const PAUSE_MAX: u32 = 3600;
    const SPAN_MAX: u32 = 7 * 24 * 3600;

    /// With what holds unless it is said otherwise.
    pub fn new(script: String, instance: String) -> Self {
        Self {
            script,
            instance,
            puts: 5,
            gets: 5,
            removes: 1,
            put_seconds: 4 * 3600,
            get_seconds: 4 * 3600,
            remove_seconds: 3600,
            pause_seconds: 60,
            tries: 0,
            options: Vec::new(),
        }
    }

    pub fn validate(&self) -> Result<(), HsmError> {
        let is_control = |text: &str| text.chars().any(char::is_control);
        let script = &self.script;
        if !script.starts_with('/') || script.len() > 1024 || is_control(script) {
            return Err(HsmError::Script(script.clone()));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !(1..=32).contains(&self.instance.len()) || !self.instance.chars().all(is_plain) {
            return Err(HsmError::Instance(self.instance.clone()));
        }
        let counts = [self.puts, self.gets, self.removes];
        if let Some(count) = counts.into_iter().find(|n| !(1..=Self::AT_ONCE_MAX).contains(n)) {
            return Err(HsmError::AtOnce(count));
        }
        let spans = [self.put_seconds, self.get_seconds, self.remove_seconds, self.pause_seconds];
        if let Some(span) = spans.into_iter().find(|n| !(1..=Self::SPAN_MAX).contains(n)) {
            return Err(HsmError::Span(span));
        }
        let is_option = |text: &String| {
            let key = text.split_once('=').map_or("", |(key, _)| key);
            !key.is_empty() && key.chars().all(is_plain) && text.len() <= 1024 && !is_control(text)
        };
        if let Some(wrong) = self.options.iter().find(|option| !is_option(option)) {
            return Err(HsmError::Option(wrong.clone()));
        }
        match self.options.get(Self::OPTIONS_MAX) {
            Some(many) => Err(HsmError::Option(many.clone())),
            None => Ok(()),
        }
    }

    /// Seconds before the next try, after so many that failed.
    pub fn pause(&self, tries: u32) -> u32 {
        let doubled = 1_u32.checked_shl(tries.saturating_sub(1).min(16)).unwrap_or(u32::MAX);
        self.pause_seconds.saturating_mul(doubled).min(Self::PAUSE_MAX.max(self.pause_seconds))
    }
}

/// How a file stands to its copy on tape. The numbers are on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum OnTape {
    /// Tape has exactly these bytes, and so have the OSTs.
    #[n(1)]
    Archived,
    /// Tape has exactly these bytes, and OSTs lack some of them: NEARLINE.
    #[n(2)]
    Released,
    /// It was changed since it was archived; OSTs have all of it.
    #[n(3)]
    Dirty,
    /// It was changed since, and some of what it kept is on tape alone.
    #[n(4)]
    DirtyReleased,
}

impl OnTape {
    /// Must something be fetched before all of it can be read?
    pub fn is_nearline(self) -> bool {
        matches!(self, Self::Released | Self::DirtyReleased)
    }
}

impl fmt::Display for OnTape {
    /// Lustre's words for the states of a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Archived => "exists archived",
            Self::Released => "released exists archived",
            Self::Dirty => "exists dirty",
            Self::DirtyReleased => "released exists dirty",
        })
    }
}

/// What an HSM has of a file.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TapeCopy {
    /// As the script said them: at least one.
    #[n(0)]
    #[cbor(with = "AtMost::<{ TapeCopy::URIS_MAX }>")]
    pub uris: Vec<String>,
    /// Whose HSM has it.
    #[n(1)]
    pub pool: PoolName,
    #[n(2)]
    pub size: u64,
    /// BLAKE3 of all of it.
    #[n(3)]
    pub digest: Digest,
    #[n(4)]
    pub adler32: u32,
    /// When it was archived.
    #[n(5)]
    pub at: Time,
}

impl TapeCopy {
    pub const URIS_MAX: usize = 8;
    /// Bytes of one URI.
    pub const URI_MAX: usize = 4096;
}

/// What is to be done with a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum TapeWish {
    #[n(1)]
    Archive,
    #[n(2)]
    Restore,
}

impl fmt::Display for TapeWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Archive => "archive",
            Self::Restore => "restore",
        })
    }
}

/// How far that is.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct WishState {
    #[n(0)]
    pub wish: TapeWish,
    #[n(1)]
    pub since: Time,
    /// Tries that failed.
    #[n(2)]
    pub tries: u32,
    /// Not before: milliseconds since 1970.
    #[n(3)]
    pub next_ms: u64,
    /// Of the last try.
    #[n(4)]
    pub failure: Option<WishFailure>,
    /// It is given up until somebody asks again.
    #[n(5)]
    pub is_over: bool,
}

impl WishState {
    pub fn new(wish: TapeWish, since: Time) -> Self {
        Self { wish, since, tries: 0, next_ms: 0, failure: None, is_over: false }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct WishFailure {
    #[n(0)]
    pub kind: ErrorKind,
    /// One lower-case clause for people.
    #[n(1)]
    pub detail: String,
    #[n(2)]
    pub at: Time,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_an_hour() {
        let hsm = Hsm::new("/etc/tieline/hsm/osm".to_owned(), "osm".to_owned());
        let pauses: Vec<u32> = [1, 2, 3, 7, 40].map(|tries| hsm.pause(tries)).to_vec();
        assert_eq!(pauses, [60, 120, 240, 3600, 3600]);
    }

    #[test]
    fn wrong_hsms_are_named() {
        let base = || Hsm::new("/etc/tieline/hsm/osm".to_owned(), "osm".to_owned());
        assert!(base().validate().is_ok());
        let wrong = |hsm: Hsm| hsm.validate().unwrap_err();
        assert!(matches!(wrong(Hsm { script: "osm".to_owned(), ..base() }), HsmError::Script(_)));
        let odd = Hsm { instance: "a;b".to_owned(), ..base() };
        assert!(matches!(wrong(odd), HsmError::Instance(_)));
        assert_eq!(wrong(Hsm { gets: 0, ..base() }), HsmError::AtOnce(0));
        assert_eq!(wrong(Hsm { get_seconds: 0, ..base() }), HsmError::Span(0));
        let option = |text: &str| Hsm { options: vec![text.to_owned()], ..base() };
        assert!(option("group=cms").validate().is_ok());
        assert!(matches!(wrong(option("no value")), HsmError::Option(_)));
        assert!(matches!(wrong(option("a=b\nc")), HsmError::Option(_)));
    }
}
