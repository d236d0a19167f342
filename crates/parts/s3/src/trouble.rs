//! What a store answers instead, in words that say what to do.
//!
//! A store says why in XML of a few lines, of which two fields are read: `Code` and `Message`.

use crate::credentials::Unread;
use object_store::client::HttpError;
use std::error::Error as StdError;
use std::io;
use tieline_blob::Error;

/// Of a store's own words.
const WORDS_MAX: usize = 200;

/// An answer that is not what was asked for.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// There is no such object.
    Absent,
    /// There is one already.
    There,
    Other(Error),
}

/// Whose trouble it is.
#[derive(Clone, Debug)]
pub(crate) struct Whose {
    pub store: String,
    pub bucket: String,
    pub endpoint: String,
    pub credentials: String,
}

impl Whose {
    pub fn missing(&self, reason: impl Into<String>) -> Error {
        Error::Missing { store: self.store.clone(), reason: reason.into() }
    }

    pub fn wrong(&self, reason: impl Into<String>) -> Error {
        Error::WrongStore { store: self.store.clone(), reason: reason.into() }
    }

    pub fn failed(&self, doing: &'static str, why: String) -> Error {
        Error::Failed { store: self.store.clone(), doing, source: io::Error::other(why) }
    }

    pub fn refusal(&self, doing: &'static str, error: &object_store::Error) -> Refusal {
        use object_store::Error as Own;
        let text = error.to_string();
        let said = said(&text);
        let code = said.as_ref().map_or("", |(code, _)| code.as_str());
        let known = self.known(code, &text);
        if let Some(known) = known {
            return Refusal::Other(known);
        }
        match error {
            Own::NotFound { .. } => return Refusal::Absent,
            Own::AlreadyExists { .. } | Own::Precondition { .. } => return Refusal::There,
            _ => {}
        }
        let mut causes = std::iter::successors(error.source(), |cause| (**cause).source());
        if let Some(unread) = causes.find_map(|cause| cause.downcast_ref::<Unread>()) {
            return Refusal::Other(self.missing(unread.0.clone()));
        }
        if let Some(http) = http_cause(error) {
            let (endpoint, why) = (&self.endpoint, chain(http));
            return Refusal::Other(self.missing(format!("{endpoint} does not answer: {why}")));
        }
        let words = said.map_or_else(|| shortened(&text), |(code, words)| join(&code, &words));
        if matches!(error, Own::PermissionDenied { .. } | Own::Unauthenticated { .. }) {
            return Refusal::Other(self.denied(&words));
        }
        Refusal::Other(self.failed(doing, words))
    }

    fn known(&self, code: &str, text: &str) -> Option<Error> {
        let Self { store, bucket, endpoint, .. } = self;
        let words = || said(text).map_or_else(String::new, |(code, words)| join(&code, &words));
        Some(match code {
            "NoSuchBucket" => self.missing(format!(
                "there is no bucket {bucket} at {endpoint}: make it, or correct `bucket`"
            )),
            "RequestTimeTooSkewed" => self.missing(format!(
                "the clock of this machine differs from that of {endpoint}: set it by NTP"
            )),
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "AccessDenied"
            | "ExpiredToken"
            | "InvalidToken"
            | "AuthorizationHeaderMalformed" => self.denied(&words()),
            "QuotaExceeded"
            | "InsufficientStorage"
            | "XMinioStorageFull"
            | "InsufficientCapacity" => Error::Full { store: store.clone() },
            _ if text.contains("507 Insufficient Storage") => Error::Full { store: store.clone() },
            _ if text.contains("redirect without LOCATION") => self.missing(format!(
                "{endpoint} sends us to another region: correct `region` or `endpoint`"
            )),
            _ => return None,
        })
    }

    fn denied(&self, words: &str) -> Error {
        let (bucket, credentials) = (&self.bucket, &self.credentials);
        let said = if words.is_empty() { String::new() } else { format!(" ({words})") };
        self.missing(format!(
            "the store refuses what we ask of bucket {bucket}{said}: look at the access key in \
             {credentials}, what it may do, and `region`"
        ))
    }
}

/// `Code` and `Message` of a store's answer.
pub fn said(text: &str) -> Option<(String, String)> {
    let field = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let (value, _) = rest.split_once(&format!("</{name}>"))?;
        Some(shortened(value))
    };
    let code = field("Code").filter(|code| !code.is_empty())?;
    Some((code, field("Message").unwrap_or_default()))
}

fn join(code: &str, words: &str) -> String {
    if words.is_empty() { code.to_owned() } else { format!("{code}: {words}") }
}

fn shortened(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(WORDS_MAX).collect()
}

/// What our own client met.
fn http_cause(error: &object_store::Error) -> Option<&tieline_http::Error> {
    let causes = std::iter::successors(error.source(), |cause| (**cause).source());
    for cause in causes {
        if let Some(http) = cause.downcast_ref::<HttpError>() {
            return http.source()?.downcast_ref();
        }
    }
    None
}

fn chain(error: &dyn StdError) -> String {
    let causes = std::iter::successors(error.source(), |cause| (**cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stores_words_are_found_and_bounded() {
        let text = "403 <?xml?><Error><Code>AccessDenied</Code><Message>No\n way</Message></Error>";
        assert_eq!(said(text), Some(("AccessDenied".into(), "No way".into())));
        let long = format!("<Code>A</Code><Message>{}</Message>", "x".repeat(1000));
        assert_eq!(said(&long).unwrap().1.len(), WORDS_MAX);
        assert_eq!(said("<Code></Code>"), None);
        assert_eq!(said("<Code>open"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(<Code>|</Code>|<Message>|</Message>|.){0,20}") {
            let _ = said(&text);
        }
    }
}
