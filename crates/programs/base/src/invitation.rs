//! An invitation as one word that fits into a letter:
//! `FS/SITE@HOST:PORT[,HOST2:PORT]#KEY.SECRET`, key and secret as 64 hexadecimal digits.
//!
//! The key is the federation's public one: so whoever got the word from somebody he trusts believes
//! the right map. The secret is good once, until the time that the federation map holds.

use crate::report::Usage;
use std::fmt;
use std::str::FromStr;
use tieline_types::{FsName, SiteName};

const EXAMPLE: &str = "write it as `tieline site invite` printed it: FS/SITE@HOST:PORT#KEY.SECRET";

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invitation {
    pub fs: FsName,
    pub site: SiteName,
    /// Of the server that holds the federation's secret key.
    pub addresses: Vec<String>,
    /// 64 digits.
    pub key: String,
    pub secret: [u8; 32],
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}#{}.", self.fs, self.site, self.addresses.join(","), self.key)?;
        self.secret.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Invitation {
    type Err = Usage;

    fn from_str(text: &str) -> Result<Self, Usage> {
        let wrong = |why: String| Usage(format!("this is no invitation ({why}): {EXAMPLE}"));
        let cut = |text: &str, mark: char| {
            let cut = text.split_once(mark).map(|(a, b)| (a.to_owned(), b.to_owned()));
            cut.ok_or_else(|| wrong(format!("there is no `{mark}`")))
        };
        let (place, keys) = cut(text.trim(), '#')?;
        let (name, addresses) = cut(&place, '@')?;
        let (fs, site) = cut(&name, '/')?;
        let (key, secret) = cut(&keys, '.')?;
        if !is_digits(&key) {
            return Err(wrong("the key has not 64 hexadecimal digits".into()));
        }
        let secret = secret_parse(&secret);
        Ok(Self {
            fs: fs.parse().map_err(|error| wrong(format!("file system `{fs}`: {error}")))?,
            site: site.parse().map_err(|error| wrong(format!("site `{site}`: {error}")))?,
            addresses: addresses.split(',').map(str::to_owned).collect(),
            key,
            secret: secret.ok_or_else(|| wrong("its end is missing or changed".into()))?,
        })
    }
}

fn is_digits(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn secret_parse(digits: &str) -> Option<[u8; 32]> {
    if !is_digits(digits) {
        return None;
    }
    let mut secret = [0; 32];
    for (place, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_read_as_it_was_written() {
        let invitation = Invitation {
            fs: "extenci".parse().unwrap(),
            site: "fnal".parse().unwrap(),
            addresses: vec!["mds.uf.example:7640".into(), "[2001:db8::1]:7640".into()],
            key: "ab".repeat(32),
            secret: [0x5a; 32],
        };
        let text = invitation.to_string();
        assert!(text.starts_with("extenci/fnal@mds.uf.example:7640,[2001:db8::1]:7640#abab"));
        assert_eq!(text.parse::<Invitation>().unwrap(), invitation);
    }

    #[test]
    fn what_was_cut_short_is_refused() {
        let whole = format!("extenci/fnal@h:1#{}.{}", "ab".repeat(32), "5a".repeat(32));
        assert!(whole.parse::<Invitation>().is_ok());
        for length in 0..whole.len() {
            assert!(whole[..length].parse::<Invitation>().is_err(), "{}", &whole[..length]);
        }
        assert!(whole.replace("5a", "5é").parse::<Invitation>().is_err());
    }
}
