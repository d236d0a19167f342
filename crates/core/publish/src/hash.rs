//! How the format writes digests, and where the objects that have them lie.
//!
//! A digest is forty hexadecimal digits, and `-rmd160` or `-shake128` where it is no SHA-1. The
//! name of an object is `data/`, two digits, a slash, the rest, and a letter that says what it is.

use md5::{Digest as _, Md5};
use tieline_types::{Algorithm, Digest, Encoding};

/// What an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// All of a file.
    Whole,
    /// A piece of one.
    Piece,
    Catalog,
    History,
    Certificate,
}

impl Kind {
    fn letter(self) -> &'static str {
        match self {
            Self::Whole => "",
            Self::Piece => "P",
            Self::Catalog => "C",
            Self::History => "H",
            Self::Certificate => "X",
        }
    }
}

/// The tag of an algorithm; `None`: the format does not have it.
fn tag(algorithm: Algorithm) -> Option<&'static str> {
    match algorithm {
        Algorithm::Sha1 => Some(""),
        Algorithm::Ripemd160 => Some("-rmd160"),
        Algorithm::Shake128 => Some("-shake128"),
        Algorithm::Blake3 | Algorithm::Sha256 => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As manifests and catalogs have it.
pub fn text(digest: &Digest) -> String {
    hex(digest.as_bytes()) + tag(digest.algorithm()).unwrap_or_default()
}

/// Of packed bytes, as all but a file's may be.
pub fn parse(text: &str) -> Option<Digest> {
    let (digits, tag) = text.split_at_checked(40)?;
    let algorithm = match tag {
        "" => Algorithm::Sha1,
        "-rmd160" => Algorithm::Ripemd160,
        "-shake128" => Algorithm::Shake128,
        _ => return None,
    };
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pair = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    let value = digits.as_bytes().chunks(2).map(pair).collect::<Option<Vec<u8>>>()?;
    Digest::new(algorithm, Encoding::Zlib, &value)
}

/// Where an object lies below its repository.
pub fn key(digest: &Digest, kind: Kind) -> String {
    let text = text(digest);
    let (folder, rest) = text.split_at(2);
    format!("data/{folder}/{rest}{}", kind.letter())
}

/// Of a text that is signed.
pub fn of_text(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    Digest::compute(algorithm, Encoding::Zlib, bytes)
}

/// A path as catalogs know it: its MD5 as two numbers.
pub type PathHash = (i64, i64);

/// Of a path from the repository's root: empty, `/a`, `/a/b`.
pub fn path_hash(path: &[u8]) -> PathHash {
    let md5: [u8; 16] = Md5::digest(path).into();
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&md5[at..at + 8]);
        i64::from_le_bytes(bytes)
    };
    (half(0), half(8))
}

/// The MD5 of the empty path, as manifests have it.
pub fn root_path() -> String {
    hex(&<[u8; 16]>::from(Md5::digest(b"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_have_the_spelling_of_the_format() {
        let sha1 = "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78";
        for word in [sha1.to_owned(), format!("{sha1}-rmd160"), format!("{sha1}-shake128")] {
            assert_eq!(text(&parse(&word).unwrap()), word);
        }
        let digest = parse(&format!("{sha1}-shake128")).unwrap();
        assert_eq!(
            key(&digest, Kind::Catalog),
            "data/e8/ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78-shake128C"
        );
        for wrong in ["", "e8", &sha1.to_uppercase(), &format!("{sha1}C"), &format!("é{sha1}")] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn paths_are_known_by_their_md5() {
        assert_eq!(path_hash(b""), (338_333_539_836_370_388, 9_098_107_892_288_553_193));
        assert_eq!(root_path(), "d41d8cd98f00b204e9800998ecf8427e");
    }

    /// The object of an empty file, as each repository with a marker has it.
    #[test]
    fn what_is_hashed_is_what_is_stored() {
        let stored = [0x78, 0x9c, 0x03, 0, 0, 0, 0, 1];
        let digest = of_text(Algorithm::Sha1, &stored);
        assert_eq!(text(&digest), "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78");
    }
}
