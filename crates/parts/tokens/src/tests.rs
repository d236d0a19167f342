//! Tokens that others made (`vectors.py`), good ones and bad ones.

use super::*;
use proptest::prelude::*;
use serde_json::Value;
use tieline_types::{ErrorKind, Name};

const NOW: Duration = Duration::from_secs(1_800_000_000);

fn vectors() -> Value {
    serde_json::from_str(include_str!("tests/vectors.json")).unwrap()
}

fn issuers(base: &str, users: &[&str]) -> Vec<Issuer> {
    let set = serde_json::to_vec(&vectors()).unwrap();
    let issuer = Issuer {
        url: "https://iam.example/".to_owned(),
        audiences: vec!["https://door.example:8443".to_owned()],
        keys: keys(&set).unwrap(),
        base: way(base),
        users: users.iter().map(|text| text.parse().unwrap()).collect(),
    };
    issuer.check().unwrap();
    vec![issuer]
}

fn way(path: &str) -> Vec<Name> {
    path.split('/').filter(|name| !name.is_empty()).map(|name| name.parse().unwrap()).collect()
}

fn token(name: &str) -> Vec<u8> {
    vectors()["tokens"][name].as_str().unwrap().as_bytes().to_vec()
}

#[test]
fn keys_for_something_else_are_passed_over() {
    let keys = &issuers("/", &["sub:x=ann"])[0].keys;
    let ids: Vec<_> = keys.iter().filter_map(|key| key.id.as_deref()).collect();
    assert_eq!(ids, ["rsa1", "ec1"]);
    assert_eq!(super::keys(b"{\"keys\": []}"), Err(KeysError::None));
    assert!(matches!(super::keys(b"[]"), Err(KeysError::Form(_))));
    assert_eq!(super::keys(&vec![b' '; JWKS_MAX + 1]), Err(KeysError::Large));
}

#[test]
fn good_tokens_say_who_and_what_and_until_when() {
    let issuers = issuers("/", &["sub:6f1e2c=ann", "group:/cms=prod"]);
    for name in ["es256", "rs256", "no-kid", "audiences", "version-1.3", "clock-ahead"] {
        let token = token(name);
        let judged = judge(&token, &issuers, NOW).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!((&*judged.subject, &*judged.user.principal), ("6f1e2c", "ann"), "{name}");
        assert_eq!(judged.granted.scope.to_string(), "read:/data create:/data/new", "{name}");
        assert_eq!(judged.left, Duration::from_secs(3600), "{name}");
    }
    let left = |name: &str| judge(&token(name), &issuers, NOW).unwrap().left;
    assert_eq!(left("nearly-over"), Duration::from_secs(1));
    assert_eq!(left("fractions"), Duration::from_secs(3600));
    let groups = token("groups");
    assert_eq!(judge(&groups, &issuers, NOW).unwrap().user.principal, "prod");
    let stage = token("stage");
    let granted = judge(&stage, &issuers, NOW).unwrap().granted;
    assert_eq!(granted.scope.to_string(), "read:/data");
    assert_eq!(granted.stages, [way("/tape")]);
}

#[test]
fn paths_begin_where_the_map_says() {
    let issuers = issuers("/vo/cms", &["everybody=guest"]);
    let token = token("es256");
    let judged = judge(&token, &issuers, NOW).unwrap();
    assert_eq!(judged.granted.scope.to_string(), "read:/vo/cms/data create:/vo/cms/data/new");
}

#[test]
fn bad_tokens_are_refused_with_what_to_do() {
    let issuers = issuers("/", &["sub:6f1e2c=ann"]);
    let known = vectors();
    let bad =
        known["tokens"].as_object().unwrap().iter().filter(|(name, _)| name.starts_with("bad-"));
    let mut count = 0;
    for (name, token) in bad {
        let token = token.as_str().unwrap();
        let why = judge(token.as_bytes(), &issuers, NOW).expect_err(name);
        let rights =
            ["nobody", "no-scope", "other-scope", "upwards", "slash", "relative", "no-path"];
        let is_about_rights = rights.contains(&name.trim_start_matches("bad-"));
        let kind = match is_about_rights {
            true => ErrorKind::PermissionDenied,
            false => ErrorKind::Unauthenticated,
        };
        assert_eq!(why.kind(), kind, "{name}: {why}");
        let signature = token.rsplit('.').next().unwrap();
        assert!(signature.is_empty() || !why.to_string().contains(signature), "{name}");
        count += 1;
    }
    assert!(count > 25, "{count}");
    // None is believed because of where it stands.
    assert_eq!(judge(&token("es256"), &[], NOW).unwrap_err().kind(), ErrorKind::Unauthenticated);
    let late = judge(&token("es256"), &issuers, NOW + Duration::from_secs(3600));
    assert_eq!(late, Err(TokenError::Over(0)));
}

#[test]
fn paths_of_scopes_are_read_by_components() {
    let read = |text: &str| scope::granted(text, &[]).map(|granted| granted.scope.to_string());
    assert_eq!(read("storage.read:/").unwrap(), "read:/");
    assert_eq!(read("storage.read://data//a/").unwrap(), "read:/data/a");
    assert_eq!(read("storage.modify:/a%20b storage.new:/x").unwrap(), "modify:/a b");
    let data = scope::granted("storage.read:/data", &[]).unwrap().scope;
    assert!(!data.allows(&way("/data2"), tieline_types::Doing::Read));
    for wrong in [
        "storage.read:/a/../b",
        "storage.read:/..",
        "storage.read:/a%2Fb",
        "storage.read:/a%2fb",
        "storage.read:/%2E%2E/b",
        "storage.read:/a%00",
        "storage.read:/a%4",
        "storage.read:/a%zz",
        "storage.read:/good storage.read:bad",
        "storage.read:",
    ] {
        assert!(matches!(read(wrong), Err(TokenError::Scope(_))), "{wrong}");
    }
    let many: Vec<String> = (0..65).map(|number| format!("storage.read:/{number}")).collect();
    assert_eq!(read(&many.join(" ")), Err(TokenError::TooMany));
    let deep = format!("storage.read:/{}", "d/".repeat(65));
    assert_eq!(read(&deep), Err(TokenError::TooMany));
}

#[test]
fn what_is_too_large_is_not_read() {
    let issuers = issuers("/", &["sub:6f1e2c=ann"]);
    assert_eq!(judge(&vec![b'a'; TOKEN_MAX + 1], &issuers, NOW), Err(TokenError::Large));
    for nonsense in ["", ".", "..", "...", "a.b.c", "e30.e30.AA", "=.=.="] {
        assert!(judge(nonsense.as_bytes(), &issuers, NOW).is_err(), "{nonsense}");
    }
}

proptest! {
    /// Nothing that was changed is believed.
    #[test]
    fn a_changed_token_is_refused(at in 0usize..4000, other in any::<u8>()) {
        let issuers = issuers("/", &["sub:6f1e2c=ann", "everybody=guest"]);
        let good = token("es256");
        let mut changed = good.clone();
        let at = at % changed.len();
        changed[at] = other;
        let judged = judge(&changed, &issuers, NOW);
        prop_assert!(changed == good || judged.is_err());
    }

    #[test]
    fn nonsense_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let issuers = issuers("/", &["everybody=guest"]);
        prop_assert!(judge(&bytes, &issuers, NOW).is_err());
        let _ = keys(&bytes);
        let _ = scope::granted(&String::from_utf8_lossy(&bytes), &[]);
    }
}
