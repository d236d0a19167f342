//! The keys that an issuer publishes: a JWK set (RFC 7517), for whoever pins them.
//!
//! Keys that are for something else (`use` is not `sig`, other kinds, other curves, another `alg`)
//! are passed over, for issuers publish several.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use tieline_types::{Issuer, IssuerKey, PublicKey};

/// Of the text.
pub const JWKS_MAX: usize = 256 << 10;
/// Bytes of a coordinate of P-256.
const COORDINATE: usize = 32;

/// Why a text gives no keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    #[error("a set of keys has at most {JWKS_MAX} bytes")]
    Large,
    #[error("it is no JWK set ({{\"keys\": [...]}}): {0}")]
    Form(String),
    #[error("it has no key for RS256 (RSA) or ES256 (P-256)")]
    None,
    #[error("it has more than {} keys for RS256 and ES256", Issuer::KEYS_MAX)]
    Many,
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// The keys of a set that tokens may be signed with.
pub fn keys(text: &[u8]) -> Result<Vec<IssuerKey>, KeysError> {
    if text.len() > JWKS_MAX {
        return Err(KeysError::Large);
    }
    let set: Set =
        serde_json::from_slice(text).map_err(|error| KeysError::Form(error.to_string()))?;
    let keys: Vec<IssuerKey> = set.keys.into_iter().filter_map(Jwk::key).collect();
    match keys.len() {
        0 => Err(KeysError::None),
        count if count > Issuer::KEYS_MAX => Err(KeysError::Many),
        _ => Ok(keys),
    }
}

impl Jwk {
    fn key(self) -> Option<IssuerKey> {
        let is = |value: &Option<String>, wanted: &str| {
            value.as_deref().is_none_or(|value| value == wanted)
        };
        if !is(&self.purpose, "sig") {
            return None;
        }
        let key = match self.kty.as_str() {
            "RSA" if is(&self.alg, "RS256") => {
                PublicKey::Rsa { modulus: number(&self.n)?, exponent: number(&self.e)? }
            }
            "EC" if is(&self.alg, "ES256") && self.crv.as_deref() == Some("P-256") => {
                let (x, y) = (decoded(&self.x)?, decoded(&self.y)?);
                let is_point = x.len() == COORDINATE && y.len() == COORDINATE;
                is_point.then(|| PublicKey::P256([&[4], &x[..], &y[..]].concat()))?
            }
            _ => return None,
        };
        Some(IssuerKey { id: self.kid, key })
    }
}

fn decoded(text: &Option<String>) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text.as_ref()?).ok()
}

/// Big-endian, without zeros in front, which some write.
fn number(text: &Option<String>) -> Option<Vec<u8>> {
    let bytes = decoded(text)?;
    let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
    bytes.get(zeros..).map(<[u8]>::to_vec)
}
