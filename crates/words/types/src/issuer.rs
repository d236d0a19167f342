//! Issuers of tokens: whose word about their users the servers take, and for what.
//!
//! A token (docs/security.md, section 9) says who somebody is to its issuer and what may be done
//! for him. The federation map pins each issuer's keys, says which tokens are meant for us
//! ([`Issuer::audiences`]), whom their subjects and groups are here ([`TokenUser`]), and below
//! which directory their paths begin.
//!
//! Invariant: an issuer without a rule for somebody lets him be nobody.

use crate::AtMost;
use crate::Name;
use minicbor::{Decode, Encode};
use std::fmt;
use std::str::FromStr;

/// One issuer, as the map has it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Issuer {
    /// As its tokens name it, letter by letter: `https://iam.example/`.
    #[n(0)]
    pub url: String,
    /// A token is for us if it names one of these, letter by letter.
    #[n(1)]
    #[cbor(with = "AtMost::<{ Issuer::AUDIENCES_MAX }>")]
    pub audiences: Vec<String>,
    #[n(2)]
    #[cbor(with = "AtMost::<{ Issuer::KEYS_MAX }>")]
    pub keys: Vec<IssuerKey>,
    /// Its tokens' `/` is this directory of the file system.
    #[n(3)]
    #[cbor(with = "AtMost::<{ Issuer::BASE_MAX }>")]
    pub base: Vec<Name>,
    #[n(4)]
    #[cbor(with = "AtMost::<{ Issuer::USERS_MAX }>")]
    pub users: Vec<TokenUser>,
}

/// A key that an issuer signs with.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct IssuerKey {
    /// By which tokens name it.
    #[n(0)]
    pub id: Option<String>,
    #[n(1)]
    pub key: PublicKey,
}

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum PublicKey {
    /// For RS256. Both numbers are big-endian, without zeros in front.
    #[n(1)]
    Rsa {
        #[n(0)]
        #[cbor(with = "minicbor::bytes")]
        modulus: Vec<u8>,
        #[n(1)]
        #[cbor(with = "minicbor::bytes")]
        exponent: Vec<u8>,
    },
    /// For ES256: a point of P-256, uncompressed.
    #[n(2)]
    P256(
        #[n(0)]
        #[cbor(with = "minicbor::bytes")]
        Vec<u8>,
    ),
}

/// Whom the holder of a token is here.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct TokenUser {
    #[n(0)]
    pub holder: TokenHolder,
    /// `ann@EXTENCI.ORG`, or `ann` of the federation's realm: who that is, the table of identities
    /// says, as of one who shows a ticket.
    #[n(1)]
    pub principal: String,
}

/// Of whom a rule speaks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub enum TokenHolder {
    #[n(1)]
    Subject(#[n(0)] String),
    /// Who has this among his groups: `/cms/uscms`.
    #[n(2)]
    Group(#[n(0)] String),
    /// Whoever has a token.
    #[n(3)]
    Everybody,
}

/// An issuer that no map has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IssuerError {
    #[error("`{0}` is no issuer: https://HOST[:PORT][/PATH], at most {most} bytes",
        most = Issuer::TEXT_MAX)]
    Url(String),
    #[error(
        "an issuer has 1 to {} audiences: of every token somebody else could make use, too",
        Issuer::AUDIENCES_MAX
    )]
    Audiences,
    #[error("an issuer has 1 to {} keys, RSA of 2048 to 8192 bits or P-256", Issuer::KEYS_MAX)]
    Keys,
    #[error("an issuer has at most {} rules for its users", Issuer::USERS_MAX)]
    Users,
    #[error("`{0}` is no rule: sub:SUBJECT=USER, group:/GROUP=USER or everybody=USER is")]
    User(String),
    #[error("tokens' paths begin at most {} directories deep", Issuer::BASE_MAX)]
    Base,
}

impl Issuer {
    pub const TEXT_MAX: usize = 512;
    pub const AUDIENCES_MAX: usize = 16;
    pub const KEYS_MAX: usize = 16;
    pub const USERS_MAX: usize = 256;
    pub const BASE_MAX: usize = 32;

    pub fn check(&self) -> Result<(), IssuerError> {
        let host = self.url.strip_prefix("https://").unwrap_or_default();
        let is_url = host.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !is_url || !is_plain(&self.url) || self.url.contains(['?', '#', '@']) {
            return Err(IssuerError::Url(self.url.clone()));
        }
        let has_audiences = (1..=Self::AUDIENCES_MAX).contains(&self.audiences.len());
        if !has_audiences || !self.audiences.iter().all(|audience| is_plain(audience)) {
            return Err(IssuerError::Audiences);
        }
        let has_keys = (1..=Self::KEYS_MAX).contains(&self.keys.len());
        if !has_keys || !self.keys.iter().all(IssuerKey::is_fine) {
            return Err(IssuerError::Keys);
        }
        if self.users.len() > Self::USERS_MAX {
            return Err(IssuerError::Users);
        }
        if let Some(wrong) = self.users.iter().find(|user| !user.is_fine()) {
            return Err(IssuerError::User(wrong.to_string()));
        }
        if self.base.len() > Self::BASE_MAX { Err(IssuerError::Base) } else { Ok(()) }
    }

    /// By which rule the holder of a token is somebody here: by his own before one of his groups,
    /// whose order is the token's.
    pub fn rule(&self, subject: &str, groups: &[String]) -> Option<&TokenUser> {
        let find = |holder: TokenHolder| self.users.iter().find(|user| user.holder == holder);
        let own = find(TokenHolder::Subject(subject.to_owned()));
        own.or_else(|| groups.iter().find_map(|group| find(TokenHolder::Group(group.clone()))))
            .or_else(|| find(TokenHolder::Everybody))
    }
}

impl IssuerKey {
    fn is_fine(&self) -> bool {
        let is_key = match &self.key {
            PublicKey::Rsa { modulus, exponent } => {
                let has_none = |number: &[u8]| number.first().is_none_or(|&first| first == 0);
                (256..=1024).contains(&modulus.len())
                    && !has_none(modulus)
                    && !has_none(exponent)
                    && exponent.len() <= 8
            }
            PublicKey::P256(point) => point.len() == 65 && point.first() == Some(&4),
        };
        is_key && self.id.as_ref().is_none_or(|id| id.len() <= Issuer::TEXT_MAX)
    }
}

impl TokenUser {
    fn is_fine(&self) -> bool {
        let is_holder = match &self.holder {
            TokenHolder::Subject(text) | TokenHolder::Group(text) => is_plain(text),
            TokenHolder::Everybody => true,
        };
        is_holder && is_plain(&self.principal) && !self.principal.contains('=')
    }
}

fn is_plain(text: &str) -> bool {
    let is_printed = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    !text.is_empty() && text.len() <= Issuer::TEXT_MAX && text.bytes().all(is_printed)
}

impl fmt::Display for TokenHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subject(subject) => write!(f, "sub:{subject}"),
            Self::Group(group) => write!(f, "group:{group}"),
            Self::Everybody => f.write_str("everybody"),
        }
    }
}

impl fmt::Display for TokenUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.holder, self.principal)
    }
}

impl FromStr for TokenUser {
    type Err = IssuerError;

    fn from_str(text: &str) -> Result<Self, IssuerError> {
        let wrong = || IssuerError::User(text.to_owned());
        let (holder, principal) = text.rsplit_once('=').ok_or_else(wrong)?;
        let holder = match holder.split_once(':') {
            None if holder == "everybody" => TokenHolder::Everybody,
            Some(("sub", subject)) => TokenHolder::Subject(subject.to_owned()),
            Some(("group", group)) => TokenHolder::Group(group.to_owned()),
            _ => return Err(wrong()),
        };
        let user = Self { holder, principal: principal.to_owned() };
        if user.is_fine() { Ok(user) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuer(users: &[&str]) -> Issuer {
        let key = PublicKey::P256([&[4][..], &[7; 64]].concat());
        Issuer {
            url: "https://iam.example/".to_owned(),
            audiences: vec!["https://door.example".to_owned()],
            keys: vec![IssuerKey { id: Some("one".to_owned()), key }],
            base: vec![],
            users: users.iter().map(|text| text.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn a_subject_comes_before_groups_and_groups_before_everybody() {
        let issuer =
            issuer(&["everybody=guest", "group:/cms/prod=prod", "group:/cms=cms", "sub:a=b=ann"]);
        let whom = |subject: &str, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
            issuer.rule(subject, &groups).map(|user| user.principal.clone())
        };
        assert_eq!(whom("a=b", &["/cms"]).as_deref(), Some("ann"));
        assert_eq!(whom("x", &["/atlas", "/cms", "/cms/prod"]).as_deref(), Some("cms"));
        assert_eq!(whom("x", &["/cms/prod", "/cms"]).as_deref(), Some("prod"));
        assert_eq!(whom("x", &["/cms/prod/more"]).as_deref(), Some("guest"), "groups are whole");
        assert!(super::tests::issuer(&[]).rule("a", &[]).is_none());
    }

    #[test]
    fn rules_are_written_as_they_are_read() {
        for text in ["sub:6f1e=ann", "group:/cms=prod@EXTENCI.ORG", "everybody=guest"] {
            assert_eq!(text.parse::<TokenUser>().unwrap().to_string(), text);
        }
        for wrong in ["", "ann", "=ann", "sub:=ann", "sub:x=", "uid:3=ann", "everybody"] {
            assert!(wrong.parse::<TokenUser>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_no_map_has() {
        let good = issuer(&["sub:x=ann"]);
        assert_eq!(good.check(), Ok(()));
        for url in ["", "http://iam.example", "https://", "https://a b?x", "https://u@h/"] {
            let issuer = Issuer { url: url.to_owned(), ..good.clone() };
            assert!(matches!(issuer.check(), Err(IssuerError::Url(_))), "{url}");
        }
        let nobodys = Issuer { audiences: vec![], ..good.clone() };
        assert_eq!(nobodys.check(), Err(IssuerError::Audiences));
        let rsa = |modulus: usize, exponent: &[u8]| {
            let key = PublicKey::Rsa { modulus: vec![9; modulus], exponent: exponent.to_vec() };
            Issuer { keys: vec![IssuerKey { id: None, key }], ..good.clone() }.check()
        };
        assert_eq!(rsa(256, &[1, 0, 1]), Ok(()));
        assert_eq!(rsa(128, &[1, 0, 1]), Err(IssuerError::Keys), "too short a key");
        assert_eq!(rsa(256, &[]), Err(IssuerError::Keys));
        assert_eq!(Issuer { keys: vec![], ..good.clone() }.check(), Err(IssuerError::Keys));
    }
}
