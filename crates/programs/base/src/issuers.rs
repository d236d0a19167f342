//! Issuers of tokens, as people write them: in the text of the map and as `tieline issuer add`
//! takes them.

use serde::{Deserialize, Serialize};
use tieline_types::{Issuer, IssuerKey, Name, PublicKey, TokenUser};

/// An issuer of tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssuerText {
    pub url: String,
    pub audiences: Vec<String>,
    /// `sub:SUBJECT=USER`, `group:/GROUP=USER` or `everybody=USER`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// The directory of the file system that its tokens' `/` is.
    #[serde(default = "root", skip_serializing_if = "is_root")]
    pub base: String,
    pub keys: Vec<IssuerKeyText>,
}

/// A key of an issuer, in hexadecimal digits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssuerKeyText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `rsa:MODULUS:EXPONENT` or `p256:POINT`.
    pub key: String,
}

fn root() -> String {
    "/".to_owned()
}

fn is_root(base: &str) -> bool {
    base == "/"
}

impl IssuerText {
    pub fn of(issuer: &Issuer) -> Self {
        let names: String = issuer.base.iter().map(|name| format!("/{name}")).collect();
        Self {
            url: issuer.url.clone(),
            audiences: issuer.audiences.clone(),
            users: issuer.users.iter().map(TokenUser::to_string).collect(),
            base: if names.is_empty() { root() } else { names },
            keys: issuer.keys.iter().map(IssuerKeyText::of).collect(),
        }
    }

    /// The issuer, or what is wrong with it.
    pub fn record(&self) -> Result<Issuer, String> {
        let keys = self.keys.iter().map(IssuerKeyText::record).collect::<Result<_, _>>()?;
        issuer(self.url.clone(), &self.audiences, &self.users, &self.base, keys)
    }
}

/// An issuer, of what people write and keys that were read.
pub fn issuer(
    url: String,
    audiences: &[String],
    users: &[String],
    base: &str,
    keys: Vec<IssuerKey>,
) -> Result<Issuer, String> {
    let users = users.iter().map(|text| text.parse::<TokenUser>());
    let users = users.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    let path = base.strip_prefix('/').ok_or_else(|| format!("`{base}` begins with no slash"))?;
    let names = path.split('/').filter(|name| !name.is_empty()).map(|name| name.parse::<Name>());
    let base = names.collect::<Result<_, _>>().map_err(|error| format!("`{base}`: {error}"))?;
    let issuer = Issuer { url, audiences: audiences.to_vec(), keys, base, users };
    issuer.check().map_err(|error| error.to_string())?;
    Ok(issuer)
}

impl IssuerKeyText {
    fn of(known: &IssuerKey) -> Self {
        let key = match &known.key {
            PublicKey::Rsa { modulus, exponent } => {
                format!("rsa:{}:{}", digits(modulus), digits(exponent))
            }
            PublicKey::P256(point) => format!("p256:{}", digits(point)),
        };
        Self { id: known.id.clone(), key }
    }

    fn record(&self) -> Result<IssuerKey, String> {
        let wrong = || format!("`{}` is neither rsa:MODULUS:EXPONENT nor p256:POINT", self.key);
        let mut parts = self.key.split(':');
        let (kind, first, second) = (parts.next(), parts.next(), parts.next());
        let bytes = |text: Option<&str>| text.and_then(from_digits).ok_or_else(wrong);
        let key = match kind {
            Some("rsa") => PublicKey::Rsa { modulus: bytes(first)?, exponent: bytes(second)? },
            Some("p256") if second.is_none() => PublicKey::P256(bytes(first)?),
            _ => return Err(wrong()),
        };
        Ok(IssuerKey { id: self.id.clone(), key })
    }
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_digits(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuers_are_written_as_they_are_read() {
        let rsa = PublicKey::Rsa { modulus: vec![0xc1; 256], exponent: vec![1, 0, 1] };
        let point = PublicKey::P256([&[4][..], &[7; 64]].concat());
        let keys = [(Some("one".to_owned()), rsa), (None, point)];
        let keys = keys.into_iter().map(|(id, key)| IssuerKey { id, key }).collect();
        let (audiences, users) = (["https://door".to_owned()], ["sub:x=ann".to_owned()]);
        let url = "https://iam.example/".to_owned();
        let issuer = issuer(url, &audiences, &users, "/cms//data/", keys).unwrap();
        let text = IssuerText::of(&issuer);
        assert_eq!(text.base, "/cms/data");
        assert_eq!(text.record().unwrap(), issuer);
        for wrong in ["rsa:c1", "p256:0", "p256:0g", "dsa:00", "p256:00:00"] {
            assert!(IssuerKeyText { id: None, key: wrong.to_owned() }.record().is_err(), "{wrong}");
        }
    }
}
