//! What is right, and everything that can be wrong.

use super::*;
use std::os::unix::fs::PermissionsExt;

fn key() -> String {
    MapSigner::new([7; 32]).verifier().to_hex()
}

fn parse(text: &str) -> Settings {
    toml::from_str(text).unwrap()
}

fn wrongs(settings: &Settings) -> Vec<String> {
    settings.validate().err().map_or_else(Vec::new, |wrongs| wrongs.0)
}

#[test]
fn a_small_site_needs_few_settings() {
    let text = format!(
        "fs = \"extenci\"\nsite = \"uf\"\nstate = \"/var/lib/tieline\"\nmap_key = \"{}\"\n\
         root = [\"mds.uf.example:7640\"]\n[mdt]\nindex = 1\n\
         [[ost]]\nindex = 0\npath = \"/data\"\n",
        key()
    );
    let plan = parse(&text).validate().unwrap();
    assert_eq!(plan.listen, "0.0.0.0:7640");
    let mdt = plan.mdt.unwrap();
    assert_eq!(mdt.engine, Engine::Embedded("/var/lib/tieline/mdt0001.redb".into()));
    assert_eq!(mdt.lease, Duration::from_secs(20));
    assert_eq!(plan.osts[0].limits.reserve, 1 << 30);
    assert_eq!(plan.osts[0].limits.bytes_max, None);
}

#[test]
fn a_site_says_how_much_of_an_ost_is_for_whom() {
    let ost = |lines: &str| {
        let text = format!(
            "fs = \"extenci\"\nsite = \"uf\"\nstate = \"/s\"\nmap_key = \"{}\"\n\
             [[ost]]\nindex = 0\npath = \"/data\"\n{lines}",
            key()
        );
        parse(&text)
    };
    let told = ost("limit = \"10 TiB\"\nrealms = [\"UFL.EDU\"]\nmdts = [1]\n");
    let limits = told.validate().unwrap().osts.remove(0).limits;
    assert_eq!(limits.bytes_max, Some(10 << 40));
    assert!(limits.allow_realm(Some("UFL.EDU")) && limits.allow_mdt(MdtIndex(1)));
    assert!(!limits.allow_realm(Some("PSC.EDU")) && !limits.allow_mdt(MdtIndex(0)));
    let wrong = wrongs(&ost("limit = \"much\"\nrealms = [\"ann@UFL.EDU\"]\n"));
    let keys: Vec<&str> = wrong.iter().filter_map(|wrong| wrong.split(": ").next()).collect();
    assert_eq!(keys, ["ost[0].limit", "ost[0].realms"]);
}

#[test]
fn an_ost_in_a_bucket_needs_one_and_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s3");
    std::fs::write(&file, "access_key_id = a\nsecret_access_key = hidden\n").unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, private).unwrap();
    let ost = |index: u16, lines: &str| format!("[[ost]]\nindex = {index}\n{lines}\n");
    let told = |osts: &[String]| {
        parse(&format!(
            "fs = \"extenci\"\nsite = \"uf\"\nstate = \"/s\"\nmap_key = \"{}\"\n{}",
            key(),
            osts.concat()
        ))
    };
    let key = format!("credentials = \"{}\"\nlimit = \"1 TiB\"", file.display());
    let good = format!("store = \"s3\"\nbucket = \"objects\"\n{key}");
    let plan = told(&[ost(7, &good), ost(8, &good)]).validate().unwrap();
    let Objects::Bucket(bucket) = &plan.osts[0].objects else { panic!("a bucket") };
    assert_eq!((&*bucket.prefix, bucket.given), ("extenci/ost0007", Some(1 << 40)));
    assert_eq!((plan.osts[0].limits.reserve, plan.osts[0].limits.bytes_max), (0, None));
    let wrong = wrongs(&told(&[
        ost(0, "store = \"s3\"\nprefix = \"/a\"\ncredentials = \"/nowhere\""),
        ost(1, "path = \"/data\"\nbucket = \"objects\""),
        ost(2, &format!("{good}\nprefix = \"same\"\nendpoint = \"http://s3/path\"")),
        ost(3, &format!("{good}\nprefix = \"same\"\nendpoint = \"ftp:\"")),
        ost(4, "store = \"tape\""),
    ]));
    let keys: Vec<&str> = wrong.iter().filter_map(|wrong| wrong.split(": ").next()).collect();
    assert_eq!(
        keys,
        [
            "ost[0].bucket",
            "ost[0].prefix",
            "ost[0].credentials",
            "ost[1].bucket",
            "ost[2].endpoint",
            "ost[3].endpoint",
            "ost[4].store"
        ]
    );
    let twice = format!("{good}\nprefix = \"same\"");
    let wrong = wrongs(&told(&[ost(0, &twice), ost(1, &twice)]));
    assert!(wrong[0].contains("there twice"), "{wrong:?}");
}

#[test]
fn everything_wrong_is_told_at_once_with_its_key() {
    let settings = parse(
        "fs = \"a b\"\nsite = \"\"\nstate = \"relative\"\nlisten = \"nowhere\"\nlog = \"xml\"\n\
         map_key = \"12\"\nmap_secret = \"/nonexistent\"\n\
         [mdt]\nindex = 0\nengine = \"oracle\"\nlease = \"soon\"\n\
         [[ost]]\nindex = 4\npath = \"data\"\nreserve = \"much\"\n\
         [[ost]]\nindex = 4\npath = \"/data\"\n",
    );
    let wrongs = wrongs(&settings);
    let keys: Vec<&str> = wrongs.iter().map(|wrong| wrong.split(':').next().unwrap()).collect();
    assert_eq!(
        keys,
        [
            "fs",
            "site",
            "state",
            "listen",
            "log",
            "map_key",
            "map_secret",
            "mdt.engine",
            "mdt.lease",
            "ost[0].path",
            "ost[0].reserve",
            "ost[1].index"
        ]
    );
    assert!(Wrongs(wrongs).to_string().starts_with("12 wrong settings\n  fs: "));
}

#[test]
fn a_database_is_named_in_one_line() {
    let engine = |mdt: &str| {
        let text = format!(
            "fs = \"extenci\"\nsite = \"uf\"\nstate = \"/s\"\nmap_key = \"{}\"\n\
             [mdt]\nindex = 1\n{mdt}",
            key()
        );
        parse(&text)
    };
    let plain = engine("engine = \"postgres=host=/run/postgresql user=t dbname=meta\"\n");
    let Engine::Postgres { server, schema } = plain.validate().unwrap().mdt.unwrap().engine else {
        panic!("another engine");
    };
    assert_eq!(
        (server.to_string().as_str(), schema.as_str()),
        ("/run/postgresql/meta", "extenci_mdt0001")
    );

    let wrong = engine("engine = \"postgres=dbname=meta\"\nstore = \"A B\"\n");
    let wrong = wrongs(&wrong);
    assert!(wrong[0].starts_with("mdt.store: `A B` is no schema"), "{wrong:?}");
    assert!(wrong[1].starts_with("mdt.engine: not a PostgreSQL connection"), "{wrong:?}");
    assert!(wrong[1].ends_with("user=tieline\""), "{wrong:?}");

    let secret = engine("engine = \"postgres=postgres://t:pw@db/meta\"\n");
    let wrong = secret.draft(false).1.concat();
    assert!(wrong.contains("mdt.engine: holds a password") && !wrong.contains("pw@"), "{wrong}");
    assert!(secret.validate().is_ok());
}

#[test]
fn keys_that_cannot_be_read_are_told_with_all_others() {
    let text = "fs = 7\nsite = \"uf\"\nstat = \"/s\"\nlisten = \"nowhere\"\nmap_key = \"k\"\n\
                [mdt]\nlease = \"soon\"\nengin = \"memory\"\n\
                [[ost]]\nindex = \"one\"\n[[ost]]\nindex = 0\npath = \"data\"\nflavour = 1\n";
    let wrongs = Settings::judge(text.parse().unwrap(), true).err().unwrap().0;
    let keys: Vec<&str> = wrongs.iter().map(|wrong| wrong.split(':').next().unwrap()).collect();
    let expected = [
        "stat",
        "fs",
        "state",
        "mdt.engin",
        "mdt.index",
        "ost[0].index",
        "ost[0].path",
        "ost[1].flavour",
        "listen",
        "map_key",
        "mdt.lease",
        "ost[1].path",
    ];
    let sorted = |mut keys: Vec<&'static str>| {
        keys.sort_unstable();
        keys
    };
    let mut found = keys.clone();
    found.sort_unstable();
    assert_eq!(found, sorted(expected.to_vec()), "{wrongs:#?}");
    let told = |key: &str| wrongs.iter().find(|wrong| wrong.starts_with(key)).unwrap().clone();
    assert!(told("stat:").contains("did you mean `state`"));
    assert!(told("mdt.engin:").contains("did you mean `engine`"));
    assert!(told("state:").contains("is missing"));
}

#[test]
fn unknown_keys_are_refused_by_name() {
    let text = "fs = \"x\"\nsite = \"uf\"\nstate = \"/s\"\nmap_key = \"k\"\nfoo = 1\n";
    let error = toml::from_str::<Settings>(text).unwrap_err().to_string();
    assert!(error.contains("foo"), "{error}");
}

#[test]
fn a_server_without_roles_or_with_anothers_secret_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    std::fs::write(&path, "08".repeat(32)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let mut settings =
        parse(&format!("fs = \"x\"\nsite = \"uf\"\nstate = \"/s\"\nmap_key = \"{}\"\n", key()));
    settings.map_secret = Some(path);
    let wrongs = wrongs(&settings);
    assert_eq!(wrongs.len(), 2, "{wrongs:?}");
    assert!(wrongs[0].starts_with("map_secret: does not belong"));
    assert!(wrongs[1].starts_with("mdt: neither"));
}
