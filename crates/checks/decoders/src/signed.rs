//! What is signed of repositories, by its kind (1 byte): seals with manifests and whitelists in
//! them, certificates, digests, extended attributes.

use tieline_publish::keys::{Certificate, MasterKey};
use tieline_publish::manifest::Manifest;
use tieline_publish::whitelist::Whitelist;
use tieline_publish::{hash, seal, xattrs};
use tieline_types::Algorithm;

pub fn feed(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 5 {
        0 => sealed(rest),
        1 => {
            // Nothing is known of the key but that nothing was signed with it.
            if let Some(certificate) = Certificate::parse(rest) {
                assert!(!certificate.verifies("text", b"no signature"));
            }
        }
        2 => {
            if let Ok(all) = xattrs::read(rest) {
                let again = xattrs::write(&all).map(|bytes| xattrs::read(&bytes).unwrap().len());
                assert_eq!(again, Some(all.len()));
            }
        }
        3 => {
            if let Some(key) = MasterKey::from_der(rest) {
                assert_eq!(MasterKey::from_der(&key.to_der()), Some(key));
            }
        }
        _ => {
            let Ok(text) = std::str::from_utf8(rest) else { return };
            if let Some(digest) = hash::parse(text) {
                assert_eq!(hash::text(&digest), text);
            }
            let _ = MasterKey::from_pem(text);
            texts(text);
        }
    }
}

fn sealed(bytes: &[u8]) {
    if let Ok(opened) = seal::open(bytes) {
        texts(opened.text);
    }
    // Sealed anew, whatever it is comes to its reader.
    let text = String::from_utf8_lossy(bytes).into_owned() + "\n";
    let closed = seal::close(&text, Algorithm::Sha1, |hash| Ok::<_, ()>(hash.into()));
    if let Ok(opened) = seal::open(&closed.unwrap()) {
        texts(opened.text);
    }
}

fn texts(text: &str) {
    if let Ok(manifest) = Manifest::parse(text) {
        assert_eq!(Manifest::parse(&manifest.text()), Ok(manifest));
    }
    if let Ok(whitelist) = Whitelist::parse(text) {
        let again = Whitelist::parse(&whitelist.text(tieline_types::Time::default()));
        assert_eq!(again.map(|again| again.expires), Ok(whitelist.expires));
    }
}
