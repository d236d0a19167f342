//! What settings of doors hold, and what is said of those that do not.

use super::*;
use std::os::unix::fs::PermissionsExt;

/// A keytab with one key of that principal, as `ktutil` writes it.
fn keytab(dir: &Path, parts: &[&str]) -> PathBuf {
    let mut entry = Vec::new();
    let mut text = |bytes: &[u8]| {
        entry.extend((bytes.len() as u16).to_be_bytes());
        entry.extend(bytes);
    };
    let realm: &[u8] = b"EXTENCI.ORG";
    text(realm);
    parts.iter().for_each(|part| text(part.as_bytes()));
    let mut whole = (parts.len() as u16).to_be_bytes().to_vec();
    whole.extend(entry);
    // Kind of name, time, number, kind of key, key.
    whole.extend([0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 18, 0, 32]);
    whole.extend([7; 32]);
    let mut bytes = vec![5, 2];
    bytes.extend((whole.len() as u32).to_be_bytes());
    bytes.extend(whole);
    let path = dir.join("keytab");
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path
}

fn text(keytab: &Path) -> String {
    format!(
        "fs = 'extenci'\nroot = ['mds:7640']\nmap_key = '{}'\n\
         [kerberos]\nkeytab = '{}'\n[xrootd]\n",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        keytab.display()
    )
}

#[test]
fn a_door_goes_by_its_own_key() {
    let dir = tempfile::tempdir().unwrap();
    let keytab = keytab(dir.path(), &["tieline_door", "xrd.uf.example"]);
    let settings: Settings = toml::from_str(&text(&keytab)).unwrap();
    let plan = settings.validate().unwrap();
    assert_eq!(plan.principal, "tieline_door/xrd.uf.example@EXTENCI.ORG");
    assert_eq!((plan.wait, plan.memory), (Duration::from_secs(60), 256 << 20));
    assert_eq!(plan.proving.keytab, Some(keytab));
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let keytab = keytab(dir.path(), &["tieline_door", "h"]);
    std::fs::set_permissions(&keytab, PermissionsExt::from_mode(0o644)).unwrap();
    let mut settings: Settings = toml::from_str(&text(&keytab)).unwrap();
    settings.root = vec!["mds".to_owned()];
    settings.log = "xml".to_owned();
    settings.memory = "1 KiB".to_owned();
    settings.user = Some("nobody-of-that-name".to_owned());
    settings.cache = Some(CacheText { path: "here".into(), size: None });
    let wrongs = settings.validate().err().unwrap().0;
    for key in ["root", "log", "memory", "user", "kerberos.keytab", "cache.path"] {
        let is_said = wrongs.iter().any(|wrong| wrong.starts_with(&format!("{key}: ")));
        assert!(is_said, "{key}: {wrongs:?}");
    }
}

#[test]
fn unknown_keys_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let keytab = keytab(dir.path(), &["tieline_door", "h"]);
    let wrong = format!("fss = 'x'\n{}", text(&keytab));
    assert!(
        toml::from_str::<Settings>(&wrong).is_err_and(|error| error.to_string().contains("fss"))
    );
}
