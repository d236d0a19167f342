//! `.cvmfswhitelist`: which certificates may sign manifests, until when, by the master key's word.

use crate::hash;
use tieline_types::{Algorithm, Digest, Encoding, RepositoryName, Time};

pub const FILE: &str = ".cvmfswhitelist";

/// What it says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Whitelist {
    /// `YYYYMMDDHHMMSS` in UTC: compared as text.
    pub expires: String,
    pub repository: RepositoryName,
    /// Of certificates in DER.
    pub fingerprints: Vec<Digest>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WhitelistError {
    #[error("line {0} of it cannot be")]
    Line(usize),
    #[error("it demands what is not offered here: {0}")]
    Unoffered(String),
}

impl Whitelist {
    /// Of the text whose seal was looked at.
    pub fn parse(text: &str) -> Result<Self, WhitelistError> {
        let mut lines = text.lines().enumerate();
        let mut next = |key: &str| {
            let (number, line) = lines.next().unwrap_or((0, ""));
            line.strip_prefix(key).ok_or(WhitelistError::Line(number + 1))
        };
        if !is_stamp(next("")?) {
            return Err(WhitelistError::Line(1));
        }
        let expires = next("E")?.to_owned();
        if !is_stamp(&expires) {
            return Err(WhitelistError::Line(2));
        }
        let repository = next("N")?.parse().map_err(|_| WhitelistError::Line(3))?;
        let mut fingerprints = Vec::new();
        for (number, line) in lines {
            if line.starts_with(['V', 'W']) {
                return Err(WhitelistError::Unoffered(line.chars().take(80).collect()));
            }
            let word = line.split([' ', '\t', '#']).next().unwrap_or_default();
            if !word.is_empty() {
                let fingerprint = hash::parse(&word.replace(':', "").to_lowercase());
                fingerprints.push(fingerprint.ok_or(WhitelistError::Line(number + 1))?);
            }
        }
        Ok(Self { expires, repository, fingerprints })
    }

    /// The text to be sealed.
    pub fn text(&self, issued: Time) -> String {
        let mut text =
            format!("{}\nE{}\nN{}\n", stamp(issued), self.expires, self.repository.as_str());
        for fingerprint in &self.fingerprints {
            text += &colons(fingerprint);
            text.push('\n');
        }
        text
    }

    /// Hours count, and nothing smaller.
    pub fn has_expired(&self, now: Time) -> bool {
        const HOUR: usize = 10;
        self.expires.get(..HOUR) <= stamp(now).get(..HOUR)
    }

    pub fn has(&self, certificate: &[u8]) -> bool {
        self.fingerprints.iter().any(|fingerprint| fingerprint.is_of(certificate))
    }
}

/// `YYYYMMDDHHMMSS`.
pub fn stamp(time: Time) -> String {
    time.to_string().chars().filter(char::is_ascii_digit).collect()
}

fn is_stamp(text: &str) -> bool {
    text.len() == 14 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The fingerprint of a certificate in DER.
pub fn fingerprint(certificate: &[u8]) -> Digest {
    Digest::compute(Algorithm::Sha1, Encoding::Zlib, certificate)
}

/// `AB:CD:…`, as people compare them.
fn colons(fingerprint: &Digest) -> String {
    let text = hash::text(fingerprint).to_uppercase();
    let (digits, tag) = text.split_at(2 * fingerprint.as_bytes().len());
    let pairs = digits.as_bytes().chunks(2).map(String::from_utf8_lossy);
    pairs.collect::<Vec<_>>().join(":") + tag
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "E8:EC:3D:88:B6:2E:BF:52:6E:4E:5A:4F:F6:16:2A:3A:A4:8A:6B:78";

    #[test]
    fn what_is_written_is_read_and_hours_count() {
        let whitelist = Whitelist {
            expires: "20250301123005".into(),
            repository: "sw.example.org".parse().unwrap(),
            fingerprints: vec![fingerprint(b"certificate")],
        };
        let text = whitelist.text(Time { seconds: 0, nanos: 0 });
        assert!(text.starts_with("19700101000000\nE20250301123005\nNsw.example.org\n"), "{text}");
        assert_eq!(Whitelist::parse(&text).as_ref(), Ok(&whitelist));
        assert!(whitelist.has(b"certificate") && !whitelist.has(b"other"));
        let noon = 1_740_830_400;
        let at = |seconds| Time { seconds, nanos: 0 };
        assert!(!whitelist.has_expired(at(noon - 1)) && whitelist.has_expired(at(noon)));
    }

    #[test]
    fn comments_are_left_out_and_unknown_demands_refused() {
        let head = "20250301123005\nE20250401123005\nNsw.example.org\n";
        let text = format!("{head}# key of ann\n{HEX} # hers\n{HEX}-SHAKE128\n\n");
        assert_eq!(Whitelist::parse(&text).unwrap().fingerprints.len(), 2);
        let text = format!("{head}Vpkcs7\n{HEX}\n");
        assert!(matches!(Whitelist::parse(&text), Err(WhitelistError::Unoffered(_))));
        for wrong in ["", "x", &head[..14], &head[..30], &format!("{head}AB:CD\n")] {
            assert!(matches!(Whitelist::parse(wrong), Err(WhitelistError::Line(_))), "{wrong}");
        }
    }
}
