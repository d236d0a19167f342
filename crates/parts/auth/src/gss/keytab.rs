//! Whose keys a keytab has, by MIT's format of it (`keytab.txt` of krb5, version 2).
//!
//! Knows nothing of the keys themselves: that they fit is found out by using them.
//!
//! Invariant: what is no such file has no principals, and nothing panics.

use crate::trouble::Trouble;
use std::path::Path;

const VERSION: [u8; 2] = [5, 2];

/// The principals, each once, in the order of the file.
pub fn principals(path: &Path) -> Result<Vec<String>, Trouble> {
    let wrong = |why: String| Trouble::Keytab { path: path.display().to_string(), why };
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    parse(&bytes).ok_or_else(|| wrong("it is no keytab of version 2".to_owned()))
}

/// Whose keys those use who were told none: the first of one of these services (`host`), else the
/// first. A machine's keytab begins with whatever service it was given first.
pub fn usual_principal(path: &Path, services: &[impl AsRef<str>]) -> Option<String> {
    let names = principals(path).ok()?;
    usual(&names, services).cloned()
}

fn usual<'n>(names: &'n [String], services: &[impl AsRef<str>]) -> Option<&'n String> {
    let is_wanted = |name: &&String| {
        let service = name.split_once('/').map(|(service, _)| service);
        services.iter().any(|wanted| service == Some(wanted.as_ref()))
    };
    names.iter().find(is_wanted).or(names.first())
}

fn parse(bytes: &[u8]) -> Option<Vec<String>> {
    let mut rest = bytes.strip_prefix(&VERSION)?;
    let mut found: Vec<String> = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = i32::from_be_bytes(*length);
        let (entry, after) =
            after.split_at_checked(usize::try_from(length.unsigned_abs()).ok()?)?;
        rest = after;
        // A key that was removed leaves a hole.
        if length <= 0 {
            continue;
        }
        let name = principal(entry)?;
        if !found.contains(&name) {
            found.push(name);
        }
    }
    Some(found)
}

fn principal(mut entry: &[u8]) -> Option<String> {
    let count = number(&mut entry)?;
    let realm = word(&mut entry)?;
    let words: Option<Vec<String>> = (0..count).map(|_| word(&mut entry)).collect();
    Some(format!("{}@{realm}", words?.join("/")))
}

fn number(bytes: &mut &[u8]) -> Option<u16> {
    let (number, rest) = bytes.split_first_chunk::<2>()?;
    *bytes = rest;
    Some(u16::from_be_bytes(*number))
}

fn word(bytes: &mut &[u8]) -> Option<String> {
    let length = number(bytes)?;
    let (word, rest) = bytes.split_at_checked(usize::from(length))?;
    *bytes = rest;
    String::from_utf8(word.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_is_wanted_comes_before_the_first() {
        let names = ["nfs/a@R", "hostess/a@R", "host/a@R", "host/b@R"].map(str::to_owned);
        assert_eq!(usual(&names, &["tieline_role", "host"]), Some(&names[2]));
        assert_eq!(usual(&names, &["tieline_role"]), Some(&names[0]));
        assert_eq!(usual(&[], &["host"]), None);
    }

    #[test]
    fn holes_and_broken_files() {
        let entry = [&[0, 2, 0, 1][..], b"R", &[0, 4], b"host", &[0, 1], b"a", &[9; 20]].concat();
        let length = |length: i32| length.to_be_bytes();
        let own = entry.len() as i32;
        let hole = [&length(-3)[..], &[7; 3]].concat();
        let whole = [&VERSION[..], &length(own), &entry, &hole, &length(own), &entry].concat();
        assert_eq!(parse(&whole).unwrap(), ["host/a@R"]);
        assert_eq!(parse(b"# a text"), None);
        assert_eq!(parse(&whole[..whole.len() - 1]), None);
    }
}
