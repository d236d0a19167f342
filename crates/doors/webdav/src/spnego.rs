//! SPNEGO's wrapping (RFC 4178), in which clients of HTTP send Kerberos: the token within, and an
//! answer around one.
//!
//! Only the first token of a client is read, and only what it guessed at once: nothing is
//! negotiated, for Kerberos is all there is.

/// `1.3.6.1.5.5.2`.
const SPNEGO: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x02];
/// `1.2.840.113554.1.2.2`, whole.
const KERBEROS: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];

const APPLICATION: u8 = 0x60;
const OID: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const OCTETS: u8 = 0x04;
const ENUMERATED: u8 = 0x0a;

/// The token within; what is not wrapped is the token itself.
pub fn unwrapped(bytes: &[u8]) -> &[u8] {
    within(bytes).unwrap_or(bytes)
}

pub fn is_wrapped(bytes: &[u8]) -> bool {
    within(bytes).is_some()
}

fn within(bytes: &[u8]) -> Option<&[u8]> {
    let (inner, _) = take(bytes, APPLICATION)?;
    let (oid, rest) = take(inner, OID)?;
    if oid != SPNEGO {
        return None;
    }
    let (choice, _) = take(rest, context(0))?;
    let (mut fields, _) = take(choice, SEQUENCE)?;
    // What kinds it could be, and flags, stand before it.
    while let Some((&tag, _)) = fields.split_first() {
        let (field, rest) = take(fields, tag)?;
        if tag == context(2) {
            return take(field, OCTETS).map(|(token, _)| token);
        }
        fields = rest;
    }
    None
}

/// An answer that ends it: accepted, by Kerberos.
pub fn wrapped(answer: &[u8]) -> Vec<u8> {
    let state = element(context(0), &element(ENUMERATED, &[0]));
    let kind = element(context(1), KERBEROS);
    let token = element(context(2), &element(OCTETS, answer));
    element(context(1), &element(SEQUENCE, &[state, kind, token].concat()))
}

const fn context(number: u8) -> u8 {
    0xa0 | number
}

/// The content of an element with that tag at the front, and what is behind it.
fn take(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first().filter(|_| found == tag)?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let digits: Vec<u8> = length.into_iter().skip_while(|&digit| digit == 0).collect();
    let mut bytes = vec![tag];
    if content.len() >= 0x80 {
        bytes.push(0x80 | digits.len() as u8);
        bytes.extend(digits);
    } else {
        bytes.push(content.len() as u8);
    }
    [bytes, content.to_vec()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent(token: &[u8]) -> Vec<u8> {
        let kinds = element(context(0), &element(SEQUENCE, KERBEROS));
        let token = element(context(2), &element(OCTETS, token));
        let inner = element(context(0), &element(SEQUENCE, &[kinds, token].concat()));
        element(APPLICATION, &[element(OID, SPNEGO), inner].concat())
    }

    #[test]
    fn the_token_of_a_stock_client_is_found() {
        // The front of what curl sends with MIT's library.
        let token = [&[0x60, 0x82, 0x03, 0x06][..], KERBEROS, &[7; 760]].concat();
        let wrapped = sent(&token);
        assert_eq!(wrapped[..2], [0x60, 0x82]);
        assert_eq!(unwrapped(&wrapped), token);
        assert!(is_wrapped(&wrapped) && !is_wrapped(&token));
        assert_eq!(unwrapped(&token), token, "Kerberos alone");
    }

    #[test]
    fn an_answer_is_read_as_one() {
        let answer = wrapped(&[9; 200]);
        let (fields, _) = take(take(&answer, context(1)).unwrap().0, SEQUENCE).unwrap();
        let (state, rest) = take(fields, context(0)).unwrap();
        assert_eq!(state, [ENUMERATED, 1, 0]);
        let (_, rest) = take(rest, context(1)).unwrap();
        let token = take(take(rest, context(2)).unwrap().0, OCTETS).unwrap().0;
        assert_eq!(token, [9; 200]);
    }

    proptest! {
        #[test]
        fn nonsense_is_handed_on(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = unwrapped(&bytes);
            let sent = sent(&bytes);
            prop_assert_eq!(unwrapped(&sent), &bytes[..]);
            for end in 0..sent.len() {
                let _ = unwrapped(&sent[..end]);
            }
        }
    }
}
