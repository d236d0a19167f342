//! What lies in a bucket or comes from its store, by its kind (1 byte): keys, the words of an
//! error, the marker of an OST, files with access keys, ends of objects.

use tieline_blob::{Identity, owner};
use tieline_s3::{Prefix, parse_credentials, read_tail, said};
use tieline_types::{Grant, GrantedId, MdtIndex, OstIndex};

pub fn feed(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    if kind % 5 == 4 {
        let chunk = GrantedId { mdt: MdtIndex(1), grant: Grant(7), serial: 1 };
        let _ = read_tail(rest, rest.len() as u64, chunk);
        return;
    }
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match kind % 5 {
        0 => {
            let prefix = Prefix::new("some/where");
            if let Some(chunk) = prefix.chunk(text) {
                assert_eq!(prefix.object(chunk), text);
            }
        }
        1 => {
            if let Some((code, words)) = said(text) {
                assert!(code.chars().count() <= 200 && words.chars().count() <= 200);
                assert!(!code.chars().chain(words.chars()).any(char::is_control));
            }
        }
        2 => {
            let own = Identity { fs: "extenci".parse().unwrap(), ost: OstIndex(3) };
            if let Ok(uuid) = owner::check(text, &own) {
                assert!(text.contains(&uuid));
            }
        }
        _ => {
            if let Ok(keys) = parse_credentials(text) {
                assert!(!keys.id.is_empty() && !keys.secret.is_empty());
            }
        }
    }
}
