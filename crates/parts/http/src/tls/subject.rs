//! Whose a certificate is: its subject in the slash form of the grid's lists of users.
//!
//! Walks through DER by lengths alone. What is not plain (letters outside ASCII, a slash or an
//! equals sign that would make two subjects look alike) is not given as text: lists have no such
//! names, and a forged one shall not match.

/// Attributes by the last arcs of 2.5.4.
const SHORT: [(u8, &str); 7] =
    [(3, "CN"), (4, "SN"), (5, "serialNumber"), (6, "C"), (7, "L"), (8, "ST"), (10, "O")];
const ORGANIZATIONAL_UNIT: u8 = 11;
/// 2.5.4.
const NAMES: [u8; 2] = [0x55, 0x04];
/// 0.9.2342.19200300.100.1.25 and .1.
const DOMAIN_COMPONENT: [u8; 10] = [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x19];
const USER_ID: [u8; 10] = [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 0x01];
/// 1.2.840.113549.1.9.1.
const EMAIL: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x01];

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
const VERSION: u8 = 0xa0;
const STRINGS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];
/// Attributes of one subject.
const PARTS_MAX: usize = 64;

/// `/DC=ch/DC=cern/CN=somebody`, of a certificate in DER. `None` if it cannot be read, or cannot be
/// written without doubt.
pub fn subject(certificate: &[u8]) -> Option<String> {
    let (mut outer, _) = take(certificate, SEQUENCE)?;
    let mut fields = take_from(&mut outer, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        take_from(&mut fields, VERSION)?;
    }
    // Serial number, signature, issuer, validity.
    for tag in [0x02, SEQUENCE, SEQUENCE, SEQUENCE] {
        take_from(&mut fields, tag)?;
    }
    let mut name = take_from(&mut fields, SEQUENCE)?;
    let mut text = String::new();
    for _ in 0..PARTS_MAX {
        if name.is_empty() {
            return (!text.is_empty()).then_some(text);
        }
        let mut set = take_from(&mut name, SET)?;
        while !set.is_empty() {
            let mut pair = take_from(&mut set, SEQUENCE)?;
            let label = label(take_from(&mut pair, OBJECT)?)?;
            let tag = *pair.first().filter(|tag| STRINGS.contains(tag))?;
            let value = std::str::from_utf8(take_from(&mut pair, tag)?).ok()?;
            text = format!("{text}/{label}={}", plain(value)?);
        }
    }
    None
}

/// Services are written `host/NAME` in lists; nothing else with a slash is without doubt.
fn plain(value: &str) -> Option<&str> {
    let is_plain = value.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=');
    let slashes = value.bytes().filter(|byte| *byte == b'/').count();
    (is_plain && !value.is_empty() && slashes <= 1 && !value.starts_with('/')).then_some(value)
}

fn label(object: &[u8]) -> Option<&'static str> {
    if let Some([arc]) = object.strip_prefix(&NAMES) {
        let short = SHORT.iter().find(|(known, _)| known == arc).map(|(_, label)| *label);
        return short.or((*arc == ORGANIZATIONAL_UNIT).then_some("OU"));
    }
    match object {
        _ if object == DOMAIN_COMPONENT => Some("DC"),
        _ if object == USER_ID => Some("UID"),
        _ if object == EMAIL => Some("emailAddress"),
        _ => None,
    }
}

fn take_from<'b>(bytes: &mut &'b [u8], tag: u8) -> Option<&'b [u8]> {
    let (content, rest) = take(bytes, tag)?;
    *bytes = rest;
    Some(content)
}

/// The content of the first value, which must have this tag, and what is behind it.
fn take(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    if first == tag { rest.split_at_checked(length) } else { None }
}
