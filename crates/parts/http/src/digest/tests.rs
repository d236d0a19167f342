//! Digests: values that others computed, and headers as clients write them.

use super::*;
use proptest::prelude::*;

fn digests(bytes: &[u8]) -> Vec<Digest> {
    let mut hashing = Hashing::new(&Algorithm::ALL);
    bytes.chunks(7).for_each(|piece| hashing.update(piece));
    assert_eq!(hashing.length(), bytes.len() as u64);
    hashing.finish()
}

#[test]
fn values_are_those_of_everybody() {
    // Of `123456789`: RFC 3720's check of CRC32C; the others by openssl and zlib.
    let digests = digests(b"123456789");
    let old: Vec<_> = digests.iter().map(Digest::to_digest).collect();
    assert_eq!(
        old,
        [
            "adler32=091e01de",
            "crc32c=e3069283",
            "md5=JfnnlDI7RTiF9RgfG2JNCw==",
            "sha-256=FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
        ]
    );
    let new: Vec<_> = digests.iter().map(Digest::to_repr_digest).collect();
    assert_eq!(new[0], "adler=:CR4B3g==:");
    assert_eq!(new[3], "sha-256=:FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=:");
    assert_eq!(Digest::parse_digest(&old.join(", ")), digests);
    assert_eq!(Digest::parse_repr_digest(&new.join(",")), digests);
}

#[test]
fn wishes_are_in_their_order() {
    use Algorithm::*;
    assert_eq!(parse_want_digest("ADLER32"), [Adler32]);
    assert_eq!(parse_want_digest("md5;q=0.3, adler32;q=1, sha;q=1"), [Adler32, Md5]);
    assert_eq!(parse_want_digest("md5;q=0, crc32c ; q=0.1,x"), [Crc32c]);
    assert_eq!(parse_want_digest("md5;q=nonsense, MD5;q=0.1"), [Md5]);
    assert_eq!(parse_want_repr_digest("sha-256=10, adler=3, md5=0"), [Sha256, Adler32]);
    assert_eq!(parse_want_repr_digest("sha-512=10, adler"), []);
}

#[test]
fn what_cannot_be_read_is_none() {
    let parsed =
        Digest::parse_digest("adler32=1e01de, crc32c=4waSgw==, md5=short, sha=abc, adler32");
    assert_eq!(parsed, [Digest::adler32(0x001e_01de), Digest::crc32c(0xe306_9283)]);
    assert_eq!(Digest::parse_digest("adler32=0091e01de, adler32=+1e01de, adler32="), []);
    assert_eq!(Digest::parse_repr_digest("sha-256=FeKw, adler=:CR4B3g==, md5=::"), []);
    assert_eq!(Digest::parse_repr_digest("adler=:CR4B3g==:;x=1"), [Digest::adler32(0x091e_01de)]);
    assert_eq!(Digest::new(Algorithm::Md5, [0; 15]), None);
}

proptest! {
    #[test]
    fn any_text_is_read_or_not(
        text in "((adler(32)?|md5|crc32c|sha-256|x)?[ =;:,a-f0-9+/q.]{0,20}){0,4}"
    ) {
        for digest in Digest::parse_digest(&text) {
            prop_assert_eq!(Digest::parse_digest(&digest.to_digest()), [digest]);
        }
        for digest in Digest::parse_repr_digest(&text) {
            prop_assert_eq!(Digest::parse_repr_digest(&digest.to_repr_digest()), [digest]);
        }
        prop_assert!(parse_want_digest(&text).len() <= 4);
        prop_assert!(parse_want_repr_digest(&text).len() <= 4);
    }

    #[test]
    fn pieces_make_no_difference(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut hashing = Hashing::new(&Algorithm::ALL);
        hashing.update(&bytes);
        prop_assert_eq!(hashing.finish(), digests(&bytes));
    }
}
