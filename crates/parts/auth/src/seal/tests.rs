//! Seals against openers, damage of every kind, and vectors that anybody can compute.

use super::*;

const FLAVORS: [Flavor; 4] = [Flavor::Krb5n, Flavor::Krb5a, Flavor::Krb5i, Flavor::Krb5p];

fn proof() -> Proof {
    let mut secret = [0; SECRET];
    secret.iter_mut().zip(0..).for_each(|(byte, at)| *byte = at);
    Proof { peer: "a".into(), own: "b".into(), secret, lifetime: None }
}

/// What stands in clear before heads.
const CONTEXT: &[u8] = b"context";

fn pair(flavor: Flavor) -> (Sealer, Opener) {
    let transcript = Transcript::new().digest();
    let (sealer, _) = initiator(&proof(), flavor, &transcript);
    let (_, opener) = acceptor(&proof(), flavor, &transcript);
    (sealer, opener)
}

fn sealed(sealer: &mut Sealer, head: &[u8]) -> Vec<u8> {
    let mut bytes = [CONTEXT, head].concat();
    let tag = sealer.head(CONTEXT.len(), &mut bytes);
    bytes.extend(tag);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn what_was_sealed_opens_in_order() {
    for flavor in FLAVORS {
        let (mut sealer, mut opener) = pair(flavor);
        for text in [b"one".as_slice(), b"", b"three"] {
            let mut bytes = sealed(&mut sealer, text);
            assert_eq!(opener.head(0, CONTEXT.len(), &mut bytes).unwrap(), text, "{flavor:?}");
            let mut segment = text.to_vec();
            segment.extend(sealer.segment(&mut segment.clone()));
            if flavor != Flavor::Krb5p {
                opener.segment(&mut segment).unwrap();
                assert!(segment.starts_with(text));
            } else {
                opener.skip(1);
            }
        }
    }
}

#[test]
fn privacy_hides_and_gives_back() {
    let (mut sealer, mut opener) = pair(Flavor::Krb5p);
    let text = vec![7; 1000];
    let mut apart = vec![0; text.len() + TAG];
    sealer.segment_into(&text, &mut apart);
    assert!(!apart.windows(8).any(|part| part == &text[..8]));
    opener.segment(&mut apart).unwrap();
    assert_eq!(apart[..1000], text);
    let mut within = text.clone();
    let tag = sealer.segment(&mut within);
    within.extend(tag);
    opener.segment(&mut within).unwrap();
    assert_eq!(within[..1000], text);
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    for flavor in [Flavor::Krb5a, Flavor::Krb5i, Flavor::Krb5p] {
        let bytes = sealed(&mut pair(flavor).0, b"head");
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(pair(flavor).1.head(0, CONTEXT.len(), &mut changed), Err(Broken));
        }
        let mut short = bytes[..bytes.len() - 1].to_vec();
        assert_eq!(pair(flavor).1.head(0, CONTEXT.len(), &mut short), Err(Broken));
    }
}

#[test]
fn repeated_and_exchanged_messages_do_not_open() {
    let (mut sealer, mut opener) = pair(Flavor::Krb5i);
    let (first, second) = (sealed(&mut sealer, b"1"), sealed(&mut sealer, b"2"));
    assert!(pair(Flavor::Krb5i).1.head(0, CONTEXT.len(), &mut second.clone()).is_err());
    opener.head(0, CONTEXT.len(), &mut first.clone()).unwrap();
    assert!(opener.head(0, CONTEXT.len(), &mut first.clone()).is_err());
}

#[test]
fn another_transcript_flavor_or_direction_is_another_key() {
    let bytes = sealed(&mut pair(Flavor::Krb5i).0, b"head");
    let mut other = Transcript::new();
    other.add(b"hello");
    let (_, mut opener) = acceptor(&proof(), Flavor::Krb5i, &other.digest());
    assert!(opener.head(0, CONTEXT.len(), &mut bytes.clone()).is_err());
    assert!(pair(Flavor::Krb5a).1.head(0, CONTEXT.len(), &mut bytes.clone()).is_err());
    let (_, mut back) = initiator(&proof(), Flavor::Krb5i, &Transcript::new().digest());
    assert!(back.head(0, CONTEXT.len(), &mut bytes.clone()).is_err());
}

#[tokio::test(start_paused = true)]
async fn keys_wear_out_and_both_ends_turn() {
    let (mut sealer, mut opener) = pair(Flavor::Krb5p);
    let mut before = sealed(&mut sealer, b"before");
    opener.head(sealer.epoch(), CONTEXT.len(), &mut before).unwrap();
    tokio::time::advance(KEY_AGE_MAX).await;
    assert_eq!(sealer.epoch(), 1);
    let after = sealed(&mut sealer, b"after");
    assert!(opener.head(3, CONTEXT.len(), &mut after.clone()).is_err());
    assert_eq!(opener.head(1, CONTEXT.len(), &mut after.clone()).unwrap(), b"after");
}

/// Anybody can compute these with HKDF and AES-GCM of another library; docs/security.md says how.
#[test]
fn the_construction_is_the_documented_one() {
    let mut transcript = Transcript::new();
    transcript.add(b"hello");
    transcript.add(b"token");
    let digest = "9e68830fd9b5f264a454e76742513bce2d9da29671f7955656cf73ba1cf239b1";
    assert_eq!(hex(&transcript.digest()), digest);
    let sealed_under = |flavor| {
        let (mut sealer, _) = initiator(&proof(), flavor, &transcript.digest());
        hex(&sealed(&mut sealer, b"head")[CONTEXT.len()..])
    };
    assert_eq!(sealed_under(Flavor::Krb5p), "ba2e0a779dbabe87810e49c508d1084ebd993721");
    assert_eq!(sealed_under(Flavor::Krb5i), "6865616448b8afe50801468bb37a40a5570be8b6");
}
