//! What stands in clear in a token: whom it asks for, and how its ticket and its authenticator are
//! sealed (RFC 4121 section 4.1, RFC 4120 sections 5.2.9, 5.3 and 5.5.1).
//!
//! Nothing here is proven, and nobody is let in by it: the name is for messages about tickets that
//! cannot be opened, and who states other enctypes than those of the keys has a token that nobody
//! can open. What is not read as expected is not there.
//!
//! Invariant: a name is printable and at most [`NAME_MAX`] long, whatever was sent.

use std::borrow::Cow;

const NAME_MAX: usize = 256;

/// Tags of DER that stand on the way; those of fields are these and the field's number.
const SEQUENCE: u8 = 0x30;
const OBJECT: u8 = 0x06;
const STRING: u8 = 0x1b;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const FIELD: u8 = 0xa0;
const INITIAL: u8 = 0x60;
const TICKET: u8 = 0x61;
const REQUEST: u8 = 0x6e;
/// Says that a token is a request, between the mechanism's name and the request.
const TOKEN_REQUEST: [u8; 2] = [1, 0];

/// Enctypes of what an initiator's first token has sealed; 0 for numbers that no byte holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enctypes {
    /// Of the server's key.
    pub ticket: u8,
    /// Of the key in the ticket.
    pub session: u8,
}

/// How the ticket and the authenticator are sealed.
pub fn enctypes(token: &[u8]) -> Option<Enctypes> {
    let request = request(token)?;
    let ticket = enctype(field(ticket(request)?, 3)?)?;
    Some(Enctypes { ticket, session: enctype(field(request, 4)?)? })
}

/// Of sealed data.
fn enctype(sealed: &[u8]) -> Option<u8> {
    let number = within(field(within(sealed, SEQUENCE)?, 0)?, INTEGER)?;
    Some(if let &[enctype] = number { enctype } else { 0 })
}

/// `SERVICE/HOST@REALM` of the ticket in an initiator's first token.
pub fn server(token: &[u8]) -> Option<String> {
    let ticket = ticket(request(token)?)?;
    let realm = text(within(field(ticket, 1)?, STRING)?)?;
    let name = within(field(ticket, 2)?, SEQUENCE)?;
    let mut parts = within(field(name, 1)?, SEQUENCE)?;
    let mut words = Vec::new();
    while !parts.is_empty() {
        words.push(text(take(&mut parts, STRING)?)?);
    }
    let name = format!("{}@{realm}", words.join("/"));
    (name.len() <= NAME_MAX).then_some(name)
}

/// The bytes of a token's authenticator as they are sealed, whatever stands around them.
pub fn authenticator(token: &[u8]) -> Option<&[u8]> {
    let sealed = within(field(request(token)?, 4)?, SEQUENCE)?;
    within(field(sealed, 2)?, OCTETS)
}

/// A request as a token of a mechanism, if it stands alone.
pub fn framed<'a>(token: &'a [u8], mechanism: &[u8]) -> Cow<'a, [u8]> {
    if token.first() != Some(&REQUEST) {
        return Cow::Borrowed(token);
    }
    let name = [&[OBJECT, mechanism.len() as u8][..], mechanism].concat();
    let length = (name.len() + TOKEN_REQUEST.len() + token.len()) as u32;
    let head = [&[INITIAL, 0x84][..], &length.to_be_bytes()].concat();
    Cow::Owned([&head[..], &name, &TOKEN_REQUEST, token].concat())
}

/// The fields of a token's request, which may also stand alone.
fn request(token: &[u8]) -> Option<&[u8]> {
    if token.first() == Some(&REQUEST) {
        return within(within(token, REQUEST)?, SEQUENCE);
    }
    let mut token = within(token, INITIAL)?;
    take(&mut token, OBJECT)?;
    within(within(token.strip_prefix(&TOKEN_REQUEST)?, REQUEST)?, SEQUENCE)
}

/// The fields of a request's ticket.
fn ticket(request: &[u8]) -> Option<&[u8]> {
    within(within(field(request, 3)?, TICKET)?, SEQUENCE)
}

fn text(bytes: &[u8]) -> Option<&str> {
    let is_printable = bytes.iter().all(u8::is_ascii_graphic);
    std::str::from_utf8(bytes).ok().filter(|_| is_printable)
}

/// The field of that number in a sequence.
fn field(mut sequence: &[u8], number: u8) -> Option<&[u8]> {
    loop {
        let tag = *sequence.first()?;
        let value = take(&mut sequence, tag)?;
        if tag == FIELD | number {
            return Some(value);
        }
    }
}

/// The value of what must be first.
fn within(mut bytes: &[u8], tag: u8) -> Option<&[u8]> {
    take(&mut bytes, tag)
}

/// The value of what must be first, which is taken away.
fn take<'a>(bytes: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let digits = rest.split_at_checked(usize::from(first & 0x7f))?;
        // Four digits are more than any token has.
        let is_short = digits.0.len() <= 4;
        length = digits.0.iter().fold(0, |sum, &digit| sum << 8 | usize::from(digit));
        rest = digits.1;
        is_short.then_some(())?;
    }
    let (value, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    (found == tag).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let value = parts.concat();
        let length = u16::try_from(value.len()).unwrap().to_be_bytes();
        [&[tag, 0x82][..], &length, &value].concat()
    }

    fn token(host: &[u8]) -> Vec<u8> {
        let name = der(SEQUENCE, &[&der(STRING, &[b"tieline_mds"]), &der(STRING, &[host])]);
        let kind = der(FIELD, &[&[2, 1, 1]]);
        let name = der(SEQUENCE, &[&kind, &der(FIELD | 1, &[&name])]);
        let realm = der(FIELD | 1, &[&der(STRING, &[b"EXTENCI.ORG"])]);
        let sealed = |enctype| der(SEQUENCE, &[&der(FIELD, &[&[INTEGER, 1, enctype]])]);
        let fields =
            [&kind[..], &realm, &der(FIELD | 2, &[&name]), &der(FIELD | 3, &[&sealed(18)])];
        let ticket = der(FIELD | 3, &[&der(TICKET, &[&der(SEQUENCE, &fields)])]);
        let authenticator = der(FIELD | 4, &[&sealed(23)]);
        let request = der(REQUEST, &[&der(SEQUENCE, &[&kind, &ticket, &authenticator])]);
        der(INITIAL, &[&[OBJECT, 2, 9, 9], &TOKEN_REQUEST, &request])
    }

    #[test]
    fn the_server_of_a_ticket_is_read_and_nothing_else_is_believed() {
        let whole = token(b"mds.uf.example");
        assert_eq!(server(&whole).unwrap(), "tieline_mds/mds.uf.example@EXTENCI.ORG");
        assert_eq!(server(&token(b"two\nlines")), None);
        assert_eq!(server(&token(&[b'x'; NAME_MAX])), None);
        assert_eq!(enctypes(&whole), Some(Enctypes { ticket: 18, session: 23 }));
        assert!((0..whole.len()).all(|length| server(&whole[..length]).is_none()));
        assert!((0..whole.len()).all(|length| enctypes(&whole[..length]).is_none()));
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 0xff;
            let _ = (server(&changed), enctypes(&changed));
        }
    }
}
