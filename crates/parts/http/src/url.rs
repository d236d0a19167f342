//! URLs of http and https, and paths as servers get them.
//!
//! Where others write what RFC 3986 does not allow (a space, UTF-8 in a `Location`), it is encoded;
//! what could mean two things (a bad escape, credentials before the host, control characters) is
//! refused. Fragments are dropped.
//!
//! Invariants: a [`Url`] holds only characters that may stand in a request; writing and parsing it
//! gives the same one; neither `Display` nor `Debug` shows the query, where capabilities travel.

use std::fmt::{self, Write as _};
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Longer ones are refused. Tokens in queries take some KiB.
pub const URL_MAX: usize = 32 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// Why something is no URL, or no path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UrlError {
    #[error("it is longer than {URL_MAX} bytes")]
    Long,
    #[error("it begins neither with http:// nor https://")]
    Scheme,
    #[error("it has credentials before the host")]
    Credentials,
    #[error("its host is not valid")]
    Host,
    #[error("its port is not valid")]
    Port,
    #[error("a percent sign is not followed by two hexadecimal digits")]
    Escape,
    #[error("it has a control character")]
    Control,
    #[error("its path leads upwards")]
    Upwards,
}

/// Where a server is. The host is in lower case, an IPv6 address without brackets.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    pub scheme: Scheme,
    pub host: String,
    pub port: u16,
}

impl Origin {
    /// `HOST:PORT`, to connect to.
    pub fn address(&self) -> String {
        format!("{}:{}", self.bracketed(), self.port)
    }

    /// What stands in `Host`: without the port that goes without saying.
    pub fn authority(&self) -> String {
        if self.port == self.scheme.port() { self.bracketed() } else { self.address() }
    }

    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    fn parse(scheme: Scheme, authority: &str) -> Result<Self, UrlError> {
        if authority.contains('@') {
            return Err(UrlError::Credentials);
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or(UrlError::Host)?;
                let host: Ipv6Addr = host.parse().map_err(|_| UrlError::Host)?;
                let port = if after.is_empty() { Some("") } else { after.strip_prefix(':') };
                (host.to_string(), port.ok_or(UrlError::Port)?)
            }
            None => {
                let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
                if host.is_empty() || host.len() > 253 || !host.bytes().all(is_name) {
                    return Err(UrlError::Host);
                }
                (host.to_ascii_lowercase(), port)
            }
        };
        let port = match port {
            "" => scheme.port(),
            // `parse` takes a plus sign.
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().filter(|port| *port != 0).ok_or(UrlError::Port)?
            }
            _ => return Err(UrlError::Port),
        };
        Ok(Self { scheme, host, port })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.authority())
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// An http or https URL.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Url {
    pub origin: Origin,
    /// Encoded; begins with a slash.
    path: String,
    query: Option<String>,
}

impl Url {
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if text.len() > URL_MAX {
            return Err(UrlError::Long);
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let schemes = [Scheme::Http, Scheme::Https];
        let scheme = schemes.into_iter().find(|one| scheme.eq_ignore_ascii_case(one.name()));
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at_checked(end).unwrap_or((rest, ""));
        Self::assemble(Origin::parse(scheme.ok_or(UrlError::Scheme)?, authority)?, rest)
    }

    /// `rest`: path, query, fragment.
    fn assemble(origin: Origin, rest: &str) -> Result<Self, UrlError> {
        let rest = rest.split('#').next().unwrap_or_default();
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(mended(query)?)),
            None => (rest, None),
        };
        let path = without_dots(&mended(path)?);
        if path.len() + query.as_ref().map_or(0, String::len) > URL_MAX {
            return Err(UrlError::Long);
        }
        Ok(Self { origin, path, query })
    }

    /// What a reference (as in `Location`) found here leads to.
    pub fn join(&self, reference: &str) -> Result<Self, UrlError> {
        if reference.len() > URL_MAX {
            return Err(UrlError::Long);
        }
        let reference = reference.split('#').next().unwrap_or_default();
        let scheme_end = reference.find([':', '/', '?']);
        if scheme_end.is_some_and(|at| reference.get(at..).is_some_and(|at| at.starts_with(':'))) {
            return Self::parse(reference);
        }
        if reference.starts_with("//") {
            return Self::parse(&format!("{}:{reference}", self.origin.scheme.name()));
        }
        let text = match reference.chars().next() {
            None => return Ok(self.clone()),
            Some('/') => reference.to_owned(),
            Some('?') => format!("{}{reference}", self.path),
            Some(_) => {
                let folder = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{folder}/{reference}")
            }
        };
        Self::assemble(self.origin.clone(), &text)
    }

    /// Encoded.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Encoded.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// Below this one, by names that are encoded here.
    pub fn below<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> Self {
        let mut path = self.path.trim_end_matches('/').to_owned();
        for name in names {
            path.push('/');
            path += &encoded(name.as_ref());
        }
        if path.is_empty() {
            path.push('/');
        }
        Self { path, ..self.clone() }
    }

    /// With this query, encoded here, in place of any other.
    pub fn with_query(&self, pairs: &[(&str, &str)]) -> Self {
        let pair =
            |(name, value): &(&str, &str)| [encoded(name.as_bytes()), encoded(value.as_bytes())];
        let pairs: Vec<_> = pairs.iter().map(|one| pair(one).join("=")).collect();
        Self { query: Some(pairs.join("&")), ..self.clone() }
    }

    /// Path and query, as they stand in a request.
    pub fn target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// All of it. Not for messages: the query may be a secret.
    pub fn to_text(&self) -> String {
        format!("{}{}", self.origin, self.target())
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        Self::parse(text)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let query = if self.query.is_some() { "?..." } else { "" };
        write!(f, "{}{}{query}", self.origin, self.path)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A path as a server got it, decoded once: names between slashes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// None is empty, `.` or `..`; none holds a slash or NUL. Any other bytes may be.
    pub names: Vec<Vec<u8>>,
    /// It was written as that of a directory.
    pub ends_in_slash: bool,
}

impl Path {
    /// Decodes what stood in a request. Repeated slashes are one; an encoded slash is a slash.
    pub fn decode(raw: &str) -> Result<Self, UrlError> {
        if raw.len() > URL_MAX {
            return Err(UrlError::Long);
        }
        let bytes = decoded(raw)?;
        if bytes.contains(&0) {
            return Err(UrlError::Control);
        }
        let parts = bytes.split(|byte| *byte == b'/').filter(|part| !matches!(part, [] | [b'.']));
        let names: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
        if names.iter().any(|name| name == b"..") {
            return Err(UrlError::Upwards);
        }
        Ok(Self { names, ends_in_slash: bytes.ends_with(b"/") })
    }

    /// As it may stand in a `Location` or `href`.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        for name in &self.names {
            text.push('/');
            text += &encoded(name);
        }
        if self.ends_in_slash || self.names.is_empty() {
            text.push('/');
        }
        text
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.encode())
    }
}

/// The names and values of a query, decoded. A plus sign is a plus sign: tokens have them.
pub fn query_pairs(query: &str) -> Result<Vec<(String, String)>, UrlError> {
    let text = |part: &str| Ok(String::from_utf8_lossy(&decoded(part)?).into_owned());
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((text(name)?, text(value)?))
        })
        .collect()
}

/// A name as it stands in a path or query: all but unreserved characters are escaped.
pub fn encoded(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for &byte in name {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            escape(&mut text, byte);
        }
    }
    text
}

/// The bytes behind escapes.
pub fn decoded(text: &str) -> Result<Vec<u8>, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
                return Err(UrlError::Escape);
            };
            bytes.push((high * 16 + low) as u8);
        } else {
            bytes.push(byte);
        }
    }
    Ok(bytes)
}

fn escape(text: &mut String, byte: u8) {
    // Writing to a string does not fail.
    let _ = write!(text, "%{byte:02X}");
}

/// A path or query with what may not stand there escaped. Escapes stay as they are.
fn mended(text: &str) -> Result<String, UrlError> {
    decoded(text)?;
    let mut mended = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            0..0x20 | 0x7f => return Err(UrlError::Control),
            b' ' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | b'#' => {
                escape(&mut mended, byte);
            }
            byte if byte.is_ascii() => mended.push(char::from(byte)),
            byte => escape(&mut mended, byte),
        }
    }
    Ok(mended)
}

/// RFC 3986, 5.2.4: without `.` and `..`.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    let is_open = matches!(parts.last(), Some(&("." | "..")));
    for part in parts {
        match part {
            "." => {}
            ".." => drop(kept.pop()),
            part => kept.push(part),
        }
    }
    if is_open {
        kept.push("");
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests;
