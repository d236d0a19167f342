//! The signature of the federation map.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use tieline_format::map::{FederationMap, SignedMap};
use tieline_format::{Record, RecordError};

/// Whoever may change the map.
pub struct MapSigner(SigningKey);

/// Whoever believes it.
#[derive(Clone, PartialEq, Eq)]
pub struct MapVerifier(VerifyingKey);

#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error("federation map is not signed by this federation's key")]
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
        SignedMap { map, signature }
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
        let signature = Signature::from_bytes(&signed.signature);
        self.0.verify_strict(&signed.map, &signature).map_err(|_| MapError::Signature)?;
        Ok(FederationMap::from_bytes(&signed.map)?)
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
}
