//! What holders of tokens and their issuers write, by its kind (1 byte): a token, the claims of one
//! whose signature is good, a set of keys.

use std::time::Duration;
use tieline_tokens::{judge, judge_claims, keys};
use tieline_types::{Issuer, IssuerKey, PublicKey, Scope};

const NOW: Duration = Duration::from_secs(1_800_000_000);

pub fn feed(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let issuers = [issuer()];
    match kind % 3 {
        // No invention has a signature by that key.
        0 => assert!(judge(rest, &issuers, NOW).is_err()),
        1 => {
            if let Ok(judged) = judge_claims(rest, &issuers[0], NOW) {
                let scope: &Scope = &judged.granted.scope;
                assert!(scope.check().is_ok() && !scope.allowed().is_empty());
                assert!(scope.allowed().iter().all(|one| one.path.starts_with(&issuers[0].base)));
                assert!(!judged.left.is_zero());
            }
        }
        _ => {
            if let Ok(keys) = keys(rest) {
                assert!((1..=Issuer::KEYS_MAX).contains(&keys.len()));
            }
        }
    }
}

fn issuer() -> Issuer {
    let key = PublicKey::P256([&[4][..], &[7; 64]].concat());
    Issuer {
        url: "https://iam.example/".to_owned(),
        audiences: vec!["https://door.example:8443".to_owned()],
        keys: vec![IssuerKey { id: None, key }],
        base: vec!["cms".parse().unwrap()],
        users: vec!["everybody=guest".parse().unwrap()],
    }
}
