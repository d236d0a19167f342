//! What a token allows, and where: `storage.read:/PATH` and the like.
//!
//! A path is decoded once, component by component. One that leads upwards, or that hides a slash or
//! a NUL behind an escape, makes the whole token bad: who wrote it meant something else than we
//! would read. Repeated slashes are one. Words that are not about storage are passed over.

use crate::error::{TokenError, shown};
use tieline_types::{Allowed, Doing, Name, Scope};

/// What is allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Granted {
    /// From the root of the file system.
    pub scope: Scope,
    /// Below these it may have files brought from tape (`storage.stage`), which is no right to read
    /// them.
    pub stages: Vec<Vec<Name>>,
}

/// Reads a token's `scope`, whose paths begin at `base`.
pub fn granted(text: &str, base: &[Name]) -> Result<Granted, TokenError> {
    let (mut allowed, mut stages) = (Vec::new(), Vec::new());
    for word in text.split(' ').filter(|word| word.starts_with("storage.")) {
        let wrong = || TokenError::Scope(shown(word));
        let (name, path) = word.split_once(':').unwrap_or((word, ""));
        let doing = match name {
            "storage.read" => Some(Doing::Read),
            "storage.create" => Some(Doing::Create),
            "storage.modify" => Some(Doing::Modify),
            "storage.stage" => None,
            // Of a newer profile: it allows nothing here.
            _ => continue,
        };
        let way = way(path).ok_or_else(wrong)?;
        let path: Vec<Name> = base.iter().cloned().chain(way).collect();
        if allowed.len() + stages.len() >= Scope::ALLOWED_MAX || path.len() > Scope::DEPTH_MAX {
            return Err(TokenError::TooMany);
        }
        match doing {
            Some(doing) => allowed.push(Allowed { path, doing }),
            None => stages.push(path),
        }
    }
    if allowed.is_empty() {
        return Err(TokenError::Nothing);
    }
    let scope = Scope::new(allowed).map_err(|_| TokenError::TooMany)?;
    Ok(Granted { scope, stages })
}

/// The names of an absolute path; `None`: it is none.
fn way(path: &str) -> Option<Vec<Name>> {
    let parts = path.strip_prefix('/')?.split('/').filter(|part| !part.is_empty());
    // `Name` refuses slashes, NULs, `.` and `..`.
    parts.map(|part| Name::new(unescaped(part)?).ok()).collect()
}

/// The bytes behind escapes.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        bytes.push((high * 16 + low) as u8);
    }
    Some(bytes)
}
