//! What a put printed: a URI a line, as `osm://osm/?store=sql&group=cms&bfid=3434.0.994`.
//!
//! Invariant: what is taken for a URI has no control characters, and no more bytes than may be
//! handed to a script again.

use crate::Error;
use tieline_types::TapeCopy;

/// The URIs of a put. Empty lines count for nothing; all others must be URIs.
pub fn uris(output: &[u8]) -> Result<Vec<String>, Error> {
    let shown = || {
        let start: String = String::from_utf8_lossy(output).chars().take(80).collect();
        Error::NoUri(format!("`{}`", start.replace(char::is_control, " ").trim()))
    };
    let text = std::str::from_utf8(output).map_err(|_| shown())?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut uris: Vec<String> = lines.map(str::to_owned).collect();
    uris.dedup();
    let is_some = (1..=TapeCopy::URIS_MAX).contains(&uris.len());
    if is_some && uris.iter().all(|uri| is_uri(uri)) { Ok(uris) } else { Err(shown()) }
}

fn is_uri(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let is_text = !text.chars().any(|c| c.is_control() || c.is_whitespace());
    is_scheme && is_text && text.len() <= TapeCopy::URI_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn uris_are_lines() {
        let one = "osm://osm/?store=sql&group=chimera&bfid=3434.0.994.1188400818542";
        assert_eq!(uris(format!("{one}\n").as_bytes()).unwrap(), [one]);
        assert_eq!(uris(b"\n a://b/1 \n\na://b/2").unwrap(), ["a://b/1", "a://b/2"]);
        for wrong in ["", "\n", "stored", "a://b c", "://x", "9a://x", "a://x\nok"] {
            let error = uris(wrong.as_bytes()).unwrap_err();
            assert!(error.to_string().contains("printed no URI"), "{error}");
        }
        assert!(uris("a://b\n".repeat(9).as_bytes()).is_ok(), "one, nine times");
        assert!(uris(&[0xff; 4]).is_err());
    }

    proptest! {
        #[test]
        fn whatever_is_printed(output in proptest::collection::vec(any::<u8>(), 0..200)) {
            for uri in uris(&output).into_iter().flatten() {
                prop_assert!(is_uri(&uri));
            }
        }
    }
}
