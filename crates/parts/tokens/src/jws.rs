//! A token's three parts, and whether an issuer signed them (RFC 7515, compact form).
//!
//! The algorithm is the key's: a header that names another finds no key. So an RSA key is never
//! taken for a shared secret.

use crate::TOKEN_MAX;
use crate::error::{TokenError, shown};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use tieline_types::{Issuer, IssuerKey, PublicKey};

/// A token, decoded, not yet believed.
pub struct Parts<'a> {
    header: Header,
    pub payload: Vec<u8>,
    signature: Vec<u8>,
    signed: &'a [u8],
}

/// What is looked at of a header. Where keys could be fetched from (`jku`, `x5u`, `jwk`) is not.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<serde_json::Value>,
}

impl<'a> Parts<'a> {
    pub fn split(token: &'a [u8]) -> Result<Self, TokenError> {
        if token.len() > TOKEN_MAX {
            return Err(TokenError::Large);
        }
        let mut parts = token.split(|&byte| byte == b'.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Form("it has no two dots"));
        };
        let signed = token.get(..header.len() + 1 + payload.len()).unwrap_or_default();
        let decode = |part: &[u8]| {
            URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Form("a part is not base64url"))
        };
        let header: Header = serde_json::from_slice(&decode(header)?)
            .map_err(|_| TokenError::Form("its header is no JSON object with an `alg`"))?;
        if header.crit.is_some() {
            return Err(TokenError::Critical);
        }
        if !["RS256", "ES256"].contains(&header.alg.as_str()) {
            return Err(TokenError::Algorithm(shown(&header.alg)));
        }
        Ok(Self { payload: decode(payload)?, signature: decode(signature)?, header, signed })
    }

    pub fn verify(&self, issuer: &Issuer) -> Result<(), TokenError> {
        let is_asked = |key: &&IssuerKey| {
            // Who names a key means that one; a key without a name may be any.
            let names = self.header.kid.as_ref().zip(key.id.as_ref());
            names.is_none_or(|(wanted, known)| wanted == known)
        };
        if issuer.keys.iter().filter(is_asked).any(|key| self.is_by(&key.key)) {
            return Ok(());
        }
        let key = self.header.kid.as_deref().map_or_else(|| "none".to_owned(), shown);
        Err(TokenError::Signature { issuer: issuer.url.clone(), key })
    }

    fn is_by(&self, key: &PublicKey) -> bool {
        match (self.header.alg.as_str(), key) {
            ("RS256", PublicKey::Rsa { modulus, exponent }) => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                let algorithm = &RSA_PKCS1_2048_8192_SHA256;
                key.verify(algorithm, self.signed, &self.signature).is_ok()
            }
            ("ES256", PublicKey::P256(point)) => {
                let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
                key.verify(self.signed, &self.signature).is_ok()
            }
            _ => false,
        }
    }
}
