//! What a start would find wrong one by one is told at once.

use super::*;
use crate::settings::Settings;
use std::os::unix::fs::PermissionsExt;
use tieline_auth::MapSigner;
use tieline_format::map::{Mdt, Ost};
use tieline_types::{MdtIndex, Version};

const KEY: [u8; 32] = [7; 32];

fn map() -> FederationMap {
    let addresses = || vec!["a.example:7640".to_owned()];
    let ost = |index, site: &str| Ost {
        ost: OstIndex(index),
        site: site.parse().unwrap(),
        addresses: addresses(),
        is_active: true,
    };
    let mdt = Mdt { mdt: MdtIndex(0), home: "a".parse().unwrap(), addresses: addresses() };
    FederationMap {
        fs: "x".parse().unwrap(),
        version: Version(1),
        mdts: vec![mdt],
        junctions: vec![],
        osts: vec![ost(0, "a"), ost(1, "a"), ost(2, "c")],
        pools: vec![],
        security: None,
        invitations: None,
        repositories: None,
    }
}

/// A site's folder, with the map and directories for OSTs in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["state", "o0", "o1"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let signed = MapSigner::new(KEY).sign(&map()).to_bytes();
        std::fs::write(folder.path().join("state/map"), signed).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// `@` stands for the folder.
    fn found(&self, top: &str, tables: &str) -> Found {
        let key = MapSigner::new(KEY).verifier().to_hex();
        let text = format!("state = \"@/state\"\nmap_key = \"{key}\"\n{top}\n{tables}");
        let text = text.replace('@', &self.0.path().display().to_string());
        let settings: Settings = toml::from_str(&text).unwrap();
        settings.validate().unwrap_or_else(|wrongs| panic!("{wrongs}")).look()
    }
}

/// The same of a file that may have anything in it: all that is wrong.
fn loaded(place: &Place, text: &str) -> Vec<String> {
    let path = place.0.path().join("settings.toml");
    std::fs::write(&path, text.replace('@', &place.path(""))).unwrap();
    match Settings::load(&path) {
        Err(crate::settings::SettingsError::Wrong { source, .. }) => source.0,
        Err(error) => panic!("{error}"),
        Ok(_) => vec![],
    }
}

fn ost(index: u16, path: &str, more: &str) -> String {
    format!("[[ost]]\nindex = {index}\npath = \"@/{path}\"\n{more}\n")
}

/// Does each of these begin a complaint, and is there no other?
fn told(complaints: &[String], wanted: &[(&str, &str)]) {
    assert_eq!(complaints.len(), wanted.len(), "{complaints:#?}");
    for (key, words) in wanted {
        let is_it = |one: &&String| one.starts_with(&format!("{key}: ")) && one.contains(words);
        assert!(complaints.iter().any(|one| is_it(&one)), "no {key}: {words} in {complaints:#?}");
    }
}

const USUAL: &str = "fs = \"x\"\nsite = \"a\"\nadmin = \"127.0.0.1:0\"";

#[test]
fn what_is_in_order_is_not_complained_of() {
    let place = Place::new();
    let osts = [ost(0, "o0", ""), ost(1, "o1", "mdts = [0]\nlimit = \"1 GiB\"")].concat();
    let found = place.found(USUAL, &format!("[mdt]\nindex = 0\n{osts}"));
    assert!(found.wrongs.is_empty() && found.doubts.is_empty(), "{found:?}");
    // A first start has no map.
    std::fs::remove_dir_all(place.path("state")).unwrap();
    let audit = format!("{USUAL}\naudit = \"@/state/audit.jsonl\"");
    let found = place.found(&audit, &ost(9, "o0", ""));
    assert!(found.wrongs.is_empty() && found.doubts.is_empty(), "{found:?}");
}

#[test]
fn settings_that_contradict_the_map_are_told_at_once() {
    let place = Place::new();
    let top = "fs = \"x\"\nsite = \"b\"\nlisten = \"192.0.2.1:17640\"\naudit = \"@/no/a\"";
    let found = place.found(top, &[ost(0, "o0", ""), ost(7, "o1", "")].concat());
    told(
        &found.wrongs,
        &[
            ("site", "no site `b`: write one of \"a\", \"c\""),
            ("ost[1].index", "7 (OST0007) is not in the federation map"),
            ("listen", "cannot listen at 192.0.2.1:17640"),
            ("audit", "/no is no directory"),
        ],
    );
    let found = place.found(&USUAL.replace("\"a\"", "\"b\""), &ost(0, "o0", ""));
    told(&found.wrongs, &[("site", "write \"a\"")]);
    let found = place.found(USUAL, &[ost(2, "o0", ""), ost(0, "o1", "")].concat());
    told(&found.wrongs, &[("ost[0].index", "name one of `a` (0, 1)")]);
    let nowhere = USUAL.replace("\"a\"", "\"nowhere\"");
    let found = place.found(&nowhere, &["[mdt]\nindex = 0\n", &ost(55, "o0", "")].concat());
    let both = [("site", "write one of \"a\", \"c\""), ("ost[0].index", "55 (OST0037)")];
    told(&found.wrongs, &both);
    let found = place.found(&nowhere, "[mdt]\nindex = 0");
    told(&found.wrongs, &both[..1]);
    let found = place.found(USUAL, "[mdt]\nindex = 3");
    told(&found.wrongs, &[("mdt.index", "name one of `a` (0)")]);
    let found = place.found(&USUAL.replace("\"x\"", "\"y\""), &ost(0, "o0", ""));
    told(&found.wrongs, &[("fs", "write \"x\"")]);
}

#[test]
fn what_settings_name_and_is_not_there_is_told_at_once() {
    let place = Place::new();
    std::fs::write(place.path("hosts"), "127.0.0.1 localhost\n").unwrap();
    let mdt = "[mdt]\nindex = 0\nstore = \"@/hosts\"\n";
    let top = format!("{USUAL}\naudit = \"@/o0\"");
    let osts = [ost(0, "none", ""), ost(1, "o1", "")].concat();
    let found = place.found(&top, &format!("{mdt}{osts}"));
    told(
        &found.wrongs,
        &[
            ("mdt.store", "is no store of an MDT"),
            ("audit", "is a directory"),
            ("ost[0].path", "is no directory: make it"),
        ],
    );
    // One that was there is waited for.
    std::fs::write(place.path("state/ost0000.made"), "").unwrap();
    let found = place.found(USUAL, &osts);
    assert!(found.wrongs.is_empty(), "{found:?}");
    told(&found.absent, &[("ost[0].path", "mount its file system")]);
    let found = place.found(USUAL, "[mdt]\nindex = 0\nstore = \"@/no/mdt.redb\"");
    told(&found.wrongs, &[("mdt.store", "/no is no directory")]);
    std::fs::write(place.path("state/map"), MapSigner::new([8; 32]).sign(&map()).to_bytes())
        .unwrap();
    told(&place.found(USUAL, &osts).wrongs, &[("map_key", "state/map")]);
}

#[test]
fn what_is_hardly_meant_is_doubted_and_starts() {
    let place = Place::new();
    let top = format!("{USUAL}\nlisten = \"127.0.0.1:17640\"");
    let mdt = "[mdt]\nindex = 0\nlog_to = \"@/state/log\"\npassword = \"/nope\"\n";
    let osts = ost(0, "o0", "adopt = \"@/o0\"\nmdts = [0, 9]\nlimit = \"0 B\"");
    let found = place.found(&top, &format!("{mdt}{osts}"));
    assert!(found.wrongs.is_empty(), "{found:?}");
    told(
        &found.doubts,
        &[
            ("mdt.password", "only a database"),
            ("ost[0].limit", "nothing fits"),
            ("ost[0].mdts", "9 (MDT0009) is not in the federation map"),
            ("ost[0].adopt", "own directory"),
            ("mdt.log_to", "beside the store"),
            ("listen", "port 17640 is in no address"),
        ],
    );
}

#[test]
fn an_ost_in_another_and_more_reserve_than_disk_are_told_at_once() {
    let place = Place::new();
    std::fs::create_dir(place.path("o0/in")).unwrap();
    std::os::unix::fs::symlink(place.path("o1"), place.path("again")).unwrap();
    let osts = [ost(0, "o0/in", "reserve = \"900 TiB\""), ost(1, "o0", "")].concat();
    let found = place.found(USUAL, &format!("[mdt]\nindex = 0\nreserve = \"800 TiB\"\n{osts}"));
    told(&found.wrongs, &[("ost[0].path", "lies in, the directory of ost[1]")]);
    told(
        &found.doubts,
        &[("mdt.reserve", "800 TiB is more than the disk"), ("ost[0].reserve", "900 TiB is more")],
    );
    // Two names of one directory.
    let found = place.found(USUAL, &[ost(0, "o1", ""), ost(1, "again", "")].concat());
    told(&found.wrongs, &[("ost[1].path", "is, or lies in, the directory of ost[0]")]);
}

#[test]
fn directories_of_another_user_are_told_at_once() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    open(place.0.path(), 0o755);
    let top = format!("{USUAL}\nuser = \"nobody\"\naudit = \"@/audit\"\nlisten = \"0.0.0.0:443\"");
    let osts = [ost(0, "o0", ""), ost(1, "o1", "")].concat();
    let found = place.found(&top, &osts);
    told(
        &found.wrongs,
        &[
            ("user", "port 443 is root's"),
            ("state", "chown -R nobody"),
            ("audit", "cannot be written by `nobody`"),
            ("ost[0].path", "chown -R nobody"),
            ("ost[1].path", "chown -R nobody"),
        ],
    );
}

#[test]
fn words_that_mean_nothing_hide_nothing_of_the_machine() {
    let place = Place::new();
    let key = MapSigner::new(KEY).verifier().to_hex();
    let top = "admin = \"127.0.0.1:0\"\nlisten = \"1.2.3.4:17640\"\naudit = \"@gone/audit\"";
    let mdt = "[mdt]\nindex = 9\nlease = \"20 parsecs\"\nstore = \"@gone/store\"";
    let rest = [ost(1, "o1", ""), ost(55, "none", "")].concat();
    let text = |names: &str| {
        format!("state = \"@state\"\nmap_key = \"{key}\"\n{names}\n{top}\n{mdt}\n{rest}")
    };
    let usual = [
        ("mdt.lease", "20 parsecs"),
        ("listen", "1.2.3.4"),
        ("audit", "no directory"),
        ("mdt.store", "no directory"),
        ("ost[1].path", "no directory"),
    ];
    let of_map = [("mdt.index", "not in the federation map"), ("ost[1].index", "55 (OST0037)")];
    let wrongs = loaded(&place, &text("fs = \"x\"\nsite = \"a\""));
    told(&wrongs, &[&usual[..], &of_map].concat());
    // What a wrong word would have others be is not told.
    let site = [("site", "")];
    told(&loaded(&place, &text("fs = \"x\"\nsite = \"\"")), &[&usual[..], &site].concat());
    let (fs, unknown) = ([("fs", "")], [("sites", "no setting"), ("site", "missing")]);
    told(&loaded(&place, &text("fs = \"/\"\nsite = \"a\"")), &[&usual[..], &fs].concat());
    let wrongs = loaded(&place, &text("fs = \"x\"\nsites = \"a\""));
    told(&wrongs, &[&usual[..], &unknown].concat());
}

#[test]
fn a_server_has_the_secret_of_the_key_of_today() {
    let place = Place::new();
    let (first, second) = (MapSigner::new(KEY), MapSigner::new([8; 32]));
    let over = first.sign_over(&second, &map(), &first.sign(&map()));
    std::fs::write(place.path("state/map"), over.to_bytes()).unwrap();
    let secret = |name: &str, byte: &str| {
        let path = place.path(name);
        std::fs::write(&path, byte.repeat(32)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    };
    secret("first.secret", &format!("{:02x}", KEY[0]));
    let top = format!("{USUAL}\nmap_secret = \"@/first.secret\"");
    let found = || place.found(&top, "[mdt]\nindex = 0");
    let says = |lines: &[String], key: &str, what: &str| {
        lines.iter().any(|line| line.starts_with(key) && line.contains(what))
    };
    assert!(says(&found().wrongs, "map_secret", "docs/keys.md"), "{:?}", found());
    assert!(says(&found().doubts, "map_key", &second.verifier().to_hex()), "{:?}", found());
    secret("state/map.secret", "08");
    assert!(!says(&found().wrongs, "map_secret", ""), "{:?}", found());
}
