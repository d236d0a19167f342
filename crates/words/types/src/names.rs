//! Names, checked once where they enter, so that no other room checks them again.

use crate::Shown;
use minicbor::bytes::ByteVec;
use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("name is empty")]
    Empty,
    #[error("name has {length} bytes, {limit} are the most")]
    TooLong { length: usize, limit: usize },
    #[error("name contains `/` or a zero byte, or is `.` or `..`")]
    Forbidden,
    #[error(
        "`{0}` may hold letters, digits, `_`, `-` and `.` only, starting with a letter or digit"
    )]
    Charset(String),
}

/// The name of an entry in a directory: 1 to 255 bytes in any encoding, no `/`, no zero byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    pub const LENGTH_MAX: usize = 255;

    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        match bytes.as_slice() {
            [] => Err(NameError::Empty),
            b"." | b".." => Err(NameError::Forbidden),
            long if long.len() > Self::LENGTH_MAX => {
                Err(NameError::TooLong { length: long.len(), limit: Self::LENGTH_MAX })
            }
            text if text.iter().any(|&byte| byte == b'/' || byte == 0) => Err(NameError::Forbidden),
            _ => Ok(Self(bytes.into_boxed_slice())),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(&self.0).fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name(\"{}\")", Shown(&self.0))
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl<C> Encode<C> for Name {
    fn encode<W: encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        e.bytes(&self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Name {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, decode::Error> {
        let bytes: ByteVec = d.decode_with(ctx)?;
        Self::new(Vec::from(bytes)).map_err(decode::Error::custom)
    }
}

/// The name of an extended attribute: 1 to 255 bytes, no zero byte, with its namespace (`user.…`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrName(Box<[u8]>);

impl XattrName {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, NameError> {
        let bytes = bytes.into();
        match bytes.len() {
            0 => Err(NameError::Empty),
            length if length > Name::LENGTH_MAX => {
                Err(NameError::TooLong { length, limit: Name::LENGTH_MAX })
            }
            _ if bytes.contains(&0) => Err(NameError::Forbidden),
            _ => Ok(Self(bytes.into_boxed_slice())),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for XattrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XattrName(\"{}\")", Shown(&self.0))
    }
}

impl fmt::Display for XattrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown(&self.0).fmt(f)
    }
}

impl<C> Encode<C> for XattrName {
    fn encode<W: encode::Write>(
        &self,
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), encode::Error<W::Error>> {
        e.bytes(&self.0)?.ok()
    }
}

impl<'b, C> Decode<'b, C> for XattrName {
    fn decode(d: &mut Decoder<'b>, ctx: &mut C) -> Result<Self, decode::Error> {
        let bytes: ByteVec = d.decode_with(ctx)?;
        Self::new(Vec::from(bytes)).map_err(decode::Error::custom)
    }
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $limit:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            pub const LENGTH_MAX: usize = $limit;

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                label_check(text, Self::LENGTH_MAX)?;
                Ok(Self(text.into()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl<C> Encode<C> for $name {
            fn encode<W: encode::Write>(
                &self,
                e: &mut Encoder<W>,
                _: &mut C,
            ) -> Result<(), encode::Error<W::Error>> {
                e.str(&self.0)?.ok()
            }
        }

        impl<'b, C> Decode<'b, C> for $name {
            fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
                d.str()?.parse().map_err(decode::Error::custom)
            }
        }
    };
}

label! {
    /// A named group of OSTs. At most 15 characters, as in Lustre.
    PoolName, 15
}
label! {
    /// A site of the federation, such as `uf`.
    SiteName, 31
}
label! {
    /// A file system, such as `extenci`, mounted as `/extenci`.
    FsName, 31
}
label! {
    /// A repository, by its fully qualified name, such as `cms.example.org`.
    RepositoryName, 255
}
label! {
    /// A user or a group of the file system, such as `ann`.
    IdentityName, 64
}

fn label_check(text: &str, limit: usize) -> Result<(), NameError> {
    let mut bytes = text.bytes();
    let first = bytes.next().ok_or(NameError::Empty)?;
    if text.len() > limit {
        return Err(NameError::TooLong { length: text.len(), limit });
    }
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if !first.is_ascii_alphanumeric() || !bytes.all(is_fine) {
        return Err(NameError::Charset(text.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_names_are_bytes_but_never_paths() {
        assert!(Name::new(*b"\xff\xfe").is_ok());
        assert!(Name::new(vec![b'a'; 255]).is_ok());
        assert_eq!(Name::new(vec![b'a'; 256]), Err(NameError::TooLong { length: 256, limit: 255 }));
        for wrong in [&b"."[..], b"..", b"a/b", b"a\0b"] {
            assert_eq!(Name::new(wrong), Err(NameError::Forbidden));
        }
        assert_eq!(Name::new(*b""), Err(NameError::Empty));
    }

    #[test]
    fn pool_names_have_lustres_limit() {
        assert!("fifteen-letters".parse::<PoolName>().is_ok());
        assert!("sixteen-letters!".parse::<PoolName>().is_err());
        assert!("-x".parse::<PoolName>().is_err());
        assert!("a b".parse::<PoolName>().is_err());
    }
}
