//! The signature of the federation map, and how one key follows another.
//!
//! Whoever was given a key believes it, and in turn each key that it handed the federation over to.
//!
//! Invariants: a key believes no handover but one that it signed itself; whoever has followed one
//! believes nothing that the key of before signs.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use tieline_format::map::{FederationMap, Handover, SignedMap};
use tieline_format::{Record, RecordError};

/// Whoever may change the map.
#[derive(Clone)]
pub struct MapSigner(SigningKey);

/// Whoever believes it.
#[derive(Clone, PartialEq, Eq)]
pub struct MapVerifier(VerifyingKey);

#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error(
        "federation map is not signed by this federation's key, nor by one that it was handed over \
         to: `tieline map show` at a server's machine says the key of today (docs/keys.md)"
    )]
    Signature,
    #[error("federation map cannot be read")]
    Record(#[from] RecordError),
    #[error("`{0}` is not a public key: 64 hexadecimal digits are")]
    Key(String),
    #[error("`{0}` is not a public key: it has 64 hexadecimal digits, and is of no key")]
    NoKey(String),
}

impl MapSigner {
    /// From a secret of 32 random bytes.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(SigningKey::from_bytes(&secret))
    }

    pub fn verifier(&self) -> MapVerifier {
        MapVerifier(self.0.verifying_key())
    }

    pub fn sign(&self, map: &FederationMap) -> SignedMap {
        let map = map.to_bytes();
        let signature = self.0.sign(&map).to_bytes();
        SignedMap { map, signature, handovers: None }
    }

    /// The same for a map that follows `before`, whose handovers it carries on.
    pub fn sign_after(&self, map: &FederationMap, before: &SignedMap) -> SignedMap {
        SignedMap { handovers: before.handovers.clone(), ..self.sign(map) }
    }

    /// Says that `next` is the federation's key from now on.
    pub fn hand_over(&self, next: &MapVerifier) -> Handover {
        let (from, to) = (*self.0.verifying_key().as_bytes(), *next.0.as_bytes());
        let signature = self.0.sign(&Handover::signed(&from, &to)).to_bytes();
        Handover { from, to, signature }
    }

    /// The first map of `next`, which follows `before`: this key signs nothing after it.
    pub fn sign_over(
        &self,
        next: &MapSigner,
        map: &FederationMap,
        before: &SignedMap,
    ) -> SignedMap {
        let mut handovers = before.handovers().to_vec();
        handovers.push(self.hand_over(&next.verifier()));
        let too_many = handovers.len().saturating_sub(Handover::MAX);
        handovers.drain(..too_many);
        SignedMap { handovers: Some(handovers), ..next.sign(map) }
    }
}

impl MapVerifier {
    /// From the 64 hexadecimal digits that [`MapVerifier::to_hex`] gives.
    pub fn from_hex(text: &str) -> Result<Self, MapError> {
        let wrong = || MapError::Key(text.to_owned());
        let digits = text.trim().as_bytes();
        let mut key = [0; 32];
        if digits.len() != 64 {
            return Err(wrong());
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        VerifyingKey::from_bytes(&key).map(Self).map_err(|_| MapError::NoKey(text.to_owned()))
    }

    pub fn to_hex(&self) -> String {
        self.0.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The map, if the signature is the federation's.
    pub fn open(&self, signed: &SignedMap) -> Result<FederationMap, MapError> {
        self.open_by(signed).map(|(map, _)| map)
    }

    /// The map, and the key that signed it: this one, or one that it leads to.
    pub fn open_by(&self, signed: &SignedMap) -> Result<(FederationMap, Self), MapError> {
        let key = self.follow(signed);
        let signature = Signature::from_bytes(&signed.signature);
        key.0.verify_strict(&signed.map, &signature).map_err(|_| MapError::Signature)?;
        Ok((FederationMap::from_bytes(&signed.map)?, key))
    }

    /// The last key that handovers lead to from this one.
    fn follow(&self, signed: &SignedMap) -> Self {
        let known = signed.handovers().iter().take(Handover::MAX);
        known.fold(self.clone(), |key, handover| key.next(handover).unwrap_or(key))
    }

    /// The first key from which handovers lead to this one: what a federation is known by.
    pub fn origin(&self, signed: &SignedMap) -> Self {
        self.keys_before(signed).pop().unwrap_or_else(|| self.clone())
    }

    /// The keys from which handovers lead to this one, the newest first.
    pub fn keys_before(&self, signed: &SignedMap) -> Vec<Self> {
        let mut before = Vec::new();
        for handover in signed.handovers().iter().rev().take(Handover::MAX) {
            let Ok(from) = VerifyingKey::from_bytes(&handover.from).map(Self) else { continue };
            if from.next(handover).as_ref() == Some(before.last().unwrap_or(self)) {
                before.push(from);
            }
        }
        before
    }

    /// Where this key handed over to, if this is its handover.
    fn next(&self, handover: &Handover) -> Option<Self> {
        if handover.from != *self.0.as_bytes() {
            return None;
        }
        let signature = Signature::from_bytes(&handover.signature);
        let said = Handover::signed(&handover.from, &handover.to);
        self.0.verify_strict(&said, &signature).ok()?;
        VerifyingKey::from_bytes(&handover.to).ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tieline_types::Version;

    fn map() -> FederationMap {
        FederationMap {
            fs: "extenci".parse().unwrap(),
            version: Version(1),
            mdts: vec![],
            junctions: vec![],
            osts: vec![],
            pools: vec![],
            security: None,
            invitations: None,
            repositories: None,
        }
    }

    #[test]
    fn only_the_federations_signature_opens_a_map() {
        let signer = MapSigner::new([7; 32]);
        let verifier = MapVerifier::from_hex(&signer.verifier().to_hex()).unwrap();
        let signed = signer.sign(&map());
        assert_eq!(verifier.open(&signed).unwrap(), map());

        let forged = MapSigner::new([8; 32]).sign(&map());
        assert!(matches!(verifier.open(&forged), Err(MapError::Signature)));
        let mut changed = signed;
        changed.map.push(0);
        assert!(matches!(verifier.open(&changed), Err(MapError::Signature)));
        assert!(matches!(MapVerifier::from_hex("12"), Err(MapError::Key(_))));
        // No point of the curve has this.
        let none = format!("02{}", "0".repeat(62));
        assert!(matches!(MapVerifier::from_hex(&none), Err(MapError::NoKey(_))));
    }

    fn keys() -> [MapSigner; 4] {
        [7, 8, 9, 10].map(|seed| MapSigner::new([seed; 32]))
    }

    fn version(version: u64) -> FederationMap {
        FederationMap { version: Version(version), ..map() }
    }

    #[test]
    fn a_key_leads_to_those_that_follow_it() {
        let [first, second, third, stranger] = keys();
        let old = first.sign(&map());
        let handed = first.sign_over(&second, &version(2), &old);
        let twice = second.sign_over(&third, &version(3), &handed);
        let later = third.sign_after(&version(4), &twice);
        for key in [&first, &second, &third] {
            let (opened, signer) = key.verifier().open_by(&later).unwrap();
            assert_eq!(opened.version, Version(4));
            assert!(signer == third.verifier());
        }
        assert!(third.verifier().origin(&later) == first.verifier());
        assert!(stranger.verifier().origin(&later) == stranger.verifier());
        assert!(stranger.verifier().open(&later).is_err());
        // What was signed before is what it was, and who has a newer key does not believe it.
        assert!(first.verifier().open(&old).is_ok());
        assert!(second.verifier().open(&old).is_err());
    }

    #[test]
    fn a_handover_counts_only_by_the_key_that_it_is_of() {
        let [first, second, third, stranger] = keys();
        let old = first.sign(&map());
        let forged = stranger.hand_over(&third.verifier());
        let in_its_name = Handover { from: first.hand_over(&second.verifier()).from, ..forged };
        let to_another = Handover {
            to: stranger.hand_over(&third.verifier()).to,
            ..first.hand_over(&second.verifier())
        };
        for handover in [in_its_name, to_another, stranger.hand_over(&third.verifier())] {
            let signed = SignedMap { handovers: Some(vec![handover]), ..third.sign(&version(9)) };
            assert!(matches!(first.verifier().open(&signed), Err(MapError::Signature)));
            assert!(third.verifier().origin(&signed) != first.verifier());
        }
        // The old key signs nothing any more where its handover is known.
        let handed = first.sign_over(&second, &version(2), &old);
        let again = first.sign_after(&version(9), &handed);
        assert!(matches!(first.verifier().open(&again), Err(MapError::Signature)));
    }

    #[test]
    fn a_map_carries_the_last_handovers_and_no_more() {
        let signer = |number: u8| MapSigner::new([number; 32]);
        let mut signed = signer(0).sign(&map());
        for number in 0..70 {
            signed = signer(number).sign_over(&signer(number + 1), &map(), &signed);
        }
        assert_eq!(signed.handovers().len(), Handover::MAX);
        assert!(signer(70 - 64).verifier().open(&signed).is_ok());
        assert!(signer(5).verifier().open(&signed).is_err(), "it was away for too long");
    }
}
