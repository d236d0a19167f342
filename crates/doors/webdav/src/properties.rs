//! What is told of a file in PROPFIND, and how it stands in XML.

use crate::asked::{Asked, Property};
use std::fmt::Write as _;
use std::time::Duration;
use tieline_files::{Entry, FsSpace};
use tieline_http::conditions::{ETag, Version, format_date};
use tieline_types::{Attributes, Time};

pub const DAV: &str = "DAV:";
/// The grid's: modes of files.
pub const LCGDM: &str = "LCGDM:";

/// Those that are told if all are asked for.
const USUAL: [&str; 7] = [
    "displayname",
    "resourcetype",
    "getcontentlength",
    "getcontenttype",
    "getlastmodified",
    "creationdate",
    "getetag",
];

/// Of whom something is told.
pub struct Subject<'a> {
    /// In a path's last place, decoded.
    pub name: &'a [u8],
    pub attributes: &'a Attributes,
    /// If it was asked for, and is known.
    pub space: Option<FsSpace>,
}

/// One `response`, with what is there and what is not.
pub fn response(href: &str, subject: &Subject<'_>, asked: &Asked) -> String {
    let (mut found, mut missing) = (String::new(), String::new());
    match asked {
        Asked::All => {
            let told = USUAL.iter().filter_map(|name| dav(name, subject).map(|text| (name, text)));
            for (name, text) in told {
                write_property(&mut found, "D", name, &text);
            }
            write_property(&mut found, "L", "mode", &mode(subject));
        }
        Asked::Names => {
            USUAL.iter().for_each(|name| found += &format!("<D:{name}/>"));
            found += "<L:mode/>";
        }
        Asked::These(properties) => {
            for property in properties {
                match value(property, subject) {
                    Some((prefix, text)) => {
                        write_property(&mut found, prefix, &property.name, &text);
                    }
                    None => missing += &empty(property),
                }
            }
        }
    }
    let mut text = format!("<D:response><D:href>{}</D:href>", escaped(href));
    if !found.is_empty() || missing.is_empty() {
        text += &propstat(&found, "200 OK");
    }
    if !missing.is_empty() {
        text += &propstat(&missing, "404 Not Found");
    }
    text + "</D:response>\n"
}

fn propstat(properties: &str, status: &str) -> String {
    format!(
        "<D:propstat><D:prop>{properties}</D:prop><D:status>HTTP/1.1 {status}</D:status>\
         </D:propstat>"
    )
}

/// The prefix and the text of a property that is known.
fn value(property: &Property, subject: &Subject<'_>) -> Option<(&'static str, String)> {
    match property.namespace.as_str() {
        DAV => dav(&property.name, subject).map(|text| ("D", text)),
        LCGDM if property.name == "mode" => Some(("L", mode(subject))),
        _ => None,
    }
}

/// A property that is not known, as it was asked for.
fn empty(property: &Property) -> String {
    match property.namespace.as_str() {
        "" => format!("<{} xmlns=\"\"/>", property.name),
        DAV => format!("<D:{}/>", property.name),
        namespace => format!("<x:{} xmlns:x=\"{}\"/>", property.name, escaped(namespace)),
    }
}

fn write_property(to: &mut String, prefix: &str, name: &str, text: &str) {
    // Writing to a string does not fail.
    let _ = match text {
        "" => write!(to, "<{prefix}:{name}/>"),
        text => write!(to, "<{prefix}:{name}>{text}</{prefix}:{name}>"),
    };
}

/// The text of a property of WebDAV's own; `None`: it has none.
fn dav(name: &str, subject: &Subject<'_>) -> Option<String> {
    let Subject { attributes, space, .. } = subject;
    let is_file = !attributes.is_directory();
    let bytes = |pick: fn(&FsSpace) -> u64| space.as_ref().map(|space| pick(space).to_string());
    match name {
        "displayname" => Some(escaped(&String::from_utf8_lossy(subject.name))),
        "resourcetype" if is_file => Some(String::new()),
        "resourcetype" => Some("<D:collection/>".to_owned()),
        "getcontentlength" => is_file.then(|| attributes.size.to_string()),
        "getcontenttype" => is_file.then(|| kind_by_name(subject.name).to_owned()),
        "getlastmodified" => Some(format_date(since_1970(attributes.mtime))),
        "creationdate" => Some(iso(attributes.btime)),
        "getetag" => {
            let tag = version(attributes).tag.filter(|_| is_file);
            tag.map(|tag| escaped(&tag.to_string()))
        }
        "quota-available-bytes" => bytes(|space| space.bytes_free),
        "quota-used-bytes" => bytes(|space| space.bytes_total.saturating_sub(space.bytes_free)),
        _ => None,
    }
}

/// As the grid's tools read it: the kind and the permissions in octal digits.
fn mode(subject: &Subject<'_>) -> String {
    let kind: u32 = if subject.attributes.is_directory() { 0o040_000 } else { 0o100_000 };
    format!("{:o}", kind | subject.attributes.mode.bits())
}

/// Which bytes it has now, and since when.
pub fn version(attributes: &Attributes) -> Version {
    Version {
        tag: ETag::strong(attributes.content_version().to_string()),
        modified: Some(since_1970(attributes.mtime)),
    }
}

/// By the name's end, for browsers: all else is bytes.
pub fn kind_of(entry: &Entry) -> &'static str {
    kind_by_name(entry.way.last().map_or(&b""[..], |name| name.as_bytes()))
}

fn kind_by_name(name: &[u8]) -> &'static str {
    let end = name.rsplit(|&byte| byte == b'.').next().unwrap_or_default();
    match end {
        b"txt" | b"log" => "text/plain; charset=utf-8",
        b"json" => "application/json",
        b"pdf" => "application/pdf",
        b"png" => "image/png",
        // No page of a user's is a page of this server's.
        _ => "application/octet-stream",
    }
}

fn since_1970(time: Time) -> Duration {
    Duration::from_millis(time.millis())
}

/// RFC 3339, to the second.
fn iso(time: Time) -> String {
    format!("{time}Z").replace(' ', "T")
}

/// As text in XML and HTML. What XML cannot have is replaced.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\u{0}'..='\u{1f}' if !matches!(character, '\t' | '\n' | '\r') => {
                escaped.push('\u{fffd}')
            }
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_dates() {
        let at = |seconds| iso(Time { seconds, nanos: 7 });
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400 + 3_661), "2000-02-29T01:01:01Z");
    }

    #[test]
    fn what_xml_cannot_have_is_replaced() {
        assert_eq!(escaped("a<b>&\"\u{1}c"), "a&lt;b&gt;&amp;&quot;\u{fffd}c");
    }
}
