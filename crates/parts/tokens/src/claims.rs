//! What a token claims, and whether it holds here and now.
//!
//! Claims that are not known are passed over; they never allow anything. A claim that stands twice
//! is an error.

use crate::error::{TokenError, shown};
use serde::Deserialize;
use serde_json::{Number, Value};
use std::time::Duration;
use tieline_types::Issuer;

/// By how much an issuer's clock may be ahead of ours: of `nbf` and `iat`. The end is the end.
const SKEW: u64 = 60;
/// OpenID Connect, 2.
const SUBJECT_MAX: usize = 255;
/// The years that a number of seconds may speak of end in 9999.
const SECONDS_MAX: f64 = 253_402_300_799.0;

/// See the module.
pub struct Claims {
    pub sub: String,
    pub scope: String,
    /// In the token's order, which says what he acts as.
    pub groups: Vec<String>,
    audiences: Vec<String>,
    version: Option<String>,
    end: u64,
    issued: u64,
    begin: Option<u64>,
}

#[derive(Deserialize)]
struct Named {
    iss: String,
}

#[derive(Deserialize)]
struct Written {
    sub: String,
    aud: Audience,
    exp: Number,
    iat: Number,
    nbf: Option<Number>,
    scope: Option<String>,
    #[serde(rename = "wlcg.ver")]
    version: Option<Value>,
    #[serde(rename = "wlcg.groups")]
    groups: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

/// Whose it says it is: by that the keys are found which show whether it is so.
pub fn issuer_of(payload: &[u8]) -> Result<String, TokenError> {
    let named: Named = serde_json::from_slice(payload).map_err(unread)?;
    Ok(named.iss)
}

fn unread(error: serde_json::Error) -> TokenError {
    // Without what stood there: it may be long.
    TokenError::Claims(shown(&error.to_string()))
}

impl Claims {
    pub fn parse(payload: &[u8]) -> Result<Self, TokenError> {
        let written: Written = serde_json::from_slice(payload).map_err(unread)?;
        let Written { sub, aud, exp, iat, nbf, scope, version, groups } = written;
        let is_name = (1..=SUBJECT_MAX).contains(&sub.len())
            && sub.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if !is_name {
            let what = format!("`sub` is 1 to {SUBJECT_MAX} printed letters of ASCII");
            return Err(TokenError::Claims(what));
        }
        let audiences = match aud {
            Audience::One(one) => vec![one],
            Audience::Many(many) => many,
        };
        let version = version.map(|version| match version {
            Value::String(text) => text,
            other => other.to_string(),
        });
        Ok(Self {
            sub,
            scope: scope.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            audiences,
            version,
            end: seconds("exp", &exp)?,
            issued: seconds("iat", &iat)?,
            begin: nbf.map(|nbf| seconds("nbf", &nbf)).transpose()?,
        })
    }

    /// How long it holds yet.
    pub fn check(&self, issuer: &Issuer, now: Duration) -> Result<Duration, TokenError> {
        let major = self.version.as_deref().and_then(|version| version.split_once('.'));
        let is_known = major.is_some_and(|(major, minor)| {
            major == "1" && !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit())
        });
        if !is_known {
            let version = self.version.as_deref();
            return Err(TokenError::Profile(version.map_or_else(|| "not there".into(), shown)));
        }
        if !self.audiences.iter().any(|audience| issuer.audiences.contains(audience)) {
            let told = shown(&self.audiences.join(", "));
            return Err(TokenError::Audience { told, wanted: issuer.audiences.join(" or ") });
        }
        let begin = self.begin.unwrap_or(0).max(self.issued);
        let ahead = begin.saturating_sub(now.as_secs());
        if ahead > SKEW {
            return Err(TokenError::Early(ahead));
        }
        let left = Duration::from_secs(self.end).saturating_sub(now);
        if left.is_zero() {
            return Err(TokenError::Over(now.as_secs().saturating_sub(self.end)));
        }
        Ok(left)
    }
}

/// Seconds since 1970. Fractions are left away.
fn seconds(name: &str, number: &Number) -> Result<u64, TokenError> {
    let whole = number.as_u64().or_else(|| {
        let fraction = number.as_f64().filter(|number| (0.0..=SECONDS_MAX).contains(number));
        fraction.map(|number| number as u64)
    });
    let fits = |seconds: &u64| *seconds as f64 <= SECONDS_MAX;
    whole.filter(fits).ok_or_else(|| TokenError::Claims(format!("`{name}` is no time")))
}
