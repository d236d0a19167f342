//! Every kind of local file that verbs, mounts and publishers write or read in a directory where
//! others may plant links: none leads out of what was named.

use super::verbs::{Outside, shown, while_swapped};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use tieline_lab::{Federation, can_mount, needs_root, with_federation};

/// What somebody planted where a verb writes.
#[derive(Clone, Copy)]
enum Plants {
    /// A link to somebody's file.
    File,
    /// One to where no file is yet.
    Absent,
    /// One to somebody's directory.
    Directory,
}

/// A kind of local file. `{in}` is a directory that everybody may write to, `{fs}` the mount.
struct Row {
    what: &'static str,
    plants: Plants,
    /// Below `{in}`: the name that leads elsewhere.
    at: &'static str,
    words: &'static [&'static str],
}

const ROWS: [Row; 10] = [
    Row {
        what: "a file that is fetched",
        plants: Plants::File,
        at: "fetched",
        words: &["get", "{fs}/t/f", "{in}/fetched"],
    },
    Row {
        what: "a tree that is fetched",
        plants: Plants::Directory,
        at: "t",
        words: &["get", "-r", "{fs}/t", "{in}"],
    },
    Row {
        what: "a tree that is exported",
        plants: Plants::Directory,
        at: "exported/d",
        words: &["export", "{fs}/t", "{in}/exported"],
    },
    Row {
        what: "a signed map",
        plants: Plants::Absent,
        at: "map",
        words: &[
            "map",
            "sign",
            "--secret",
            "{own}/extenci.secret",
            "--out",
            "{in}/map",
            "{own}/map",
        ],
    },
    Row {
        what: "a key that everybody may know",
        plants: Plants::File,
        at: "extenci.key",
        words: &["map", "keygen", "extenci", "--dir", "{in}"],
    },
    Row {
        what: "a secret key",
        plants: Plants::File,
        at: "extenci.secret",
        words: &["map", "keygen", "extenci", "--dir", "{in}"],
    },
    Row {
        what: "the list of a frozen tree",
        plants: Plants::File,
        at: "frozen/list.json",
        words: &["repo", "freeze", "sw.example.org", "{own}/tree", "{in}/frozen"],
    },
    Row {
        what: "keys of a repository",
        plants: Plants::Absent,
        at: "keys/sw.example.org.pub",
        words: &[
            "repo",
            "create",
            "--keys",
            "{in}/keys",
            "--storage",
            "{in}/storage",
            "sw.example.org",
        ],
    },
    Row {
        what: "what a repository begins with",
        plants: Plants::Absent,
        at: "begun/.cvmfspublished",
        words: &[
            "repo",
            "create",
            "--keys",
            "{own}/keys",
            "--storage",
            "{in}/begun",
            "sw.example.org",
        ],
    },
    Row {
        what: "an image",
        plants: Plants::Directory,
        at: "image",
        words: &["image", "build", "--output", "{in}/image", "--package", "no/such"],
    },
];

/// What mounts write, by their options.
const OPTIONS: [(&str, Plants, &str); 3] = [
    ("a pid file", Plants::File, "pidfile={in}/pid"),
    ("a node's cache", Plants::Directory, "cache={in}/cache"),
    ("a site's cache", Plants::Directory, "sitecache={in}/site"),
];

struct Scene<'f> {
    lab: &'f Federation,
    outside: Outside,
    /// Everybody may write to it.
    shared: PathBuf,
    own: PathBuf,
}

impl<'f> Scene<'f> {
    fn new(lab: &'f Federation) -> Result<Self> {
        lab.shell("mkdir -p t/d && echo foreign > t/f && echo foreign > t/d/f")?;
        let (shared, own) = (lab.local("shared"), lab.local("own"));
        let folders = ["exported", "frozen", "keys", "storage", "begun"];
        folders.iter().try_for_each(|name| fs::create_dir_all(shared.join(name)))?;
        fs::create_dir_all(own.join("tree"))?;
        fs::write(own.join("tree/f"), "own")?;
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777))?;
        lab.tieline(&["map", "keygen", "extenci", "--dir", &shown(&own)])?;
        let map = lab.tieline(&["map", "show", "--toml", &shown(lab.mount())])?;
        fs::write(own.join("map"), map)?;
        let names: Vec<String> = (0..80).map(|number| format!("f{number}")).collect();
        let names: Vec<&str> =
            ["f", "d"].into_iter().chain(names.iter().map(String::as_str)).collect();
        let outside = Outside::new(lab, &names)?;
        Ok(Self { lab, outside, shared, own })
    }

    fn said(&self, word: &str) -> String {
        let fs = shown(self.lab.mount());
        let (shared, own) = (shown(&self.shared), shown(&self.own));
        word.replace("{in}", &shared).replace("{own}", &own).replace("{fs}", &fs)
    }

    /// Runs a verb where somebody planted a link: whatever it does, nothing happens elsewhere.
    fn tries(&self, plants: Plants, at: &Path, words: &[String]) -> Result<()> {
        let target = match plants {
            Plants::File => self.outside.path.join("f"),
            Plants::Absent => self.outside.path.join("absent"),
            Plants::Directory => self.outside.path.clone(),
        };
        // What another row made there.
        let _ = fs::remove_file(at);
        symlink(target, at)?;
        let before = self.outside.state()?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let run = self.lab.try_tieline(&words)?;
        let after = self.outside.state()?;
        ensure!(after == before, "something happened elsewhere: {run:?}");
        if at.is_symlink() {
            fs::remove_file(at)?;
        }
        Ok(())
    }

    fn mounts(&self, plants: Plants, option: &str) -> Result<()> {
        let (_, at) = option.split_once('=').context("an option with a place")?;
        let mountpoint = self.lab.local("planted");
        fs::create_dir_all(&mountpoint)?;
        let source = self.lab.status()?["source"].as_str().context("a source")?.to_owned();
        let options = format!("hold=off,log={},{}", self.said("{own}/log"), self.said(option));
        let place = shown(&mountpoint);
        let words = ["mount", &source, &place, "-o", &options].map(str::to_owned);
        let before = self.outside.state()?;
        let tried = self.tries(plants, Path::new(&self.said(at)), &words);
        // Bytes are kept behind what is read.
        if self.lab.try_tieline(&["cat", &shown(&mountpoint.join("t/f"))])?.status.success() {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        self.lab.try_tieline(&["umount", &place])?;
        ensure!(self.outside.state()? == before, "something happened elsewhere, behind a read");
        tried
    }
}

/// Promise 196: Whatever links somebody plants where verbs and mounts write files of their own
/// (fetched and exported files, maps, keys, repositories, pid files, caches), nothing is written
/// where they lead.
#[test]
fn no_kind_of_file_is_written_through_a_link() -> Result<()> {
    if !can_mount() {
        return Ok(());
    }
    with_federation(|lab| {
        let scene = Scene::new(lab)?;
        let mut outcomes = Vec::new();
        for Row { what, plants, at, words } in ROWS {
            let words: Vec<String> = words.iter().map(|word| scene.said(word)).collect();
            outcomes.push((what, scene.tries(plants, &scene.shared.join(at), &words)));
        }
        for (what, plants, option) in OPTIONS {
            outcomes.push((what, scene.mounts(plants, option)));
        }
        // Whatever came of one, the others were tried.
        outcomes.retain(|(_, outcome)| outcome.is_err());
        ensure!(outcomes.is_empty(), "{outcomes:#?}");
        Ok(())
    })
}

/// Promise 197: What is frozen or published is the tree that was named, whatever links somebody
/// puts into it meanwhile.
#[test]
fn nothing_is_published_through_links_that_somebody_planted() -> Result<()> {
    with_federation(|lab| {
        let scene = Scene::new(lab)?;
        let tree = scene.own.join("tree");
        fs::create_dir(tree.join("many"))?;
        for number in 0..80 {
            fs::write(tree.join(format!("many/f{number}")), "own")?;
        }
        let repository = "sw.example.org";
        let (keys, storage) = (scene.said("{own}/keys"), scene.said("{own}/storage"));
        let places = ["--keys", &keys, "--storage", &storage];
        lab.tieline(&[&["repo", "create"], &places[..], &[repository]].concat())?;
        let source = shown(&tree);
        let publish = [&["repo", "publish"], &places[..], &[repository, &source]].concat();
        while_swapped(&tree.join("many"), &scene.outside.path, || {
            for round in 0..8 {
                let to = shown(&scene.own.join(format!("frozen-{round}")));
                let words = ["repo", "freeze", "--plain", repository, &source, &to];
                lab.try_tieline(&words)?;
                lab.try_tieline(&publish)?;
            }
            Ok(())
        })?;
        let frozen = "grep -rl secret frozen-* || true";
        let from_frozen = tieline_lab::program::shell(&scene.own, frozen)?;
        // Objects are packed.
        let unpack = "import sys, zlib; \
                      sys.stdout.buffer.write(zlib.decompress(open(sys.argv[1], 'rb').read()))";
        let packed = format!(
            "find storage/data -type f | while read f; do \
             python3 -c \"{unpack}\" $f 2> /dev/null | grep -qx secret && echo $f || true; done"
        );
        let found = from_frozen + &tieline_lab::program::shell(&scene.own, &packed)?;
        ensure!(found.is_empty(), "frozen or published from elsewhere: {found}");
        lab.tieline(&publish)?;
        scene.outside.check()
    })
}

/// Promise 211: `tieline join` gives the server's user, and writes to, only directories that it
/// made or that nobody else had: none that a planted link leads to, that belongs to another user or
/// that everybody may write to.
#[test]
fn no_directory_of_others_becomes_a_servers() -> Result<()> {
    if !can_mount() || !needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let scene = Scene::new(lab)?;
        let (nobody, shared) = (Some(65534), &scene.shared);
        let invitation = lab.tieline(&["site", "invite", "--fs", &scene.said("{fs}"), "psc"])?;
        let letter = scene.own.join("letter");
        fs::write(&letter, invitation)?;
        fs::set_permissions(&letter, fs::Permissions::from_mode(0o600))?;
        symlink(&scene.outside.path, shared.join("link"))?;
        lchown(shared.join("link"), nobody, nobody)?;
        for (name, owner, mode) in [("theirs", nobody, 0o755), ("everybodys", None, 0o777)] {
            fs::create_dir(shared.join(name))?;
            chown(shared.join(name), owner, owner)?;
            fs::set_permissions(shared.join(name), fs::Permissions::from_mode(mode))?;
        }
        let address = format!("127.0.0.1:{}", tieline_lab::program::free_port()?);
        let join = |dir: &str, ost: &str| {
            let (dir, ost) = (scene.said(dir), scene.said(ost));
            let mut words = vec!["join", letter.to_str().context("a plain path")?];
            words.extend(["--address", &address, "--dir", &dir, "--ost", &ost]);
            words.extend(["--reserve", "64 MiB", "--user", "daemon", "--no-start"]);
            lab.try_tieline(&words)
        };
        for name in ["link", "link/new", "theirs", "everybodys"] {
            let planted = format!("{{in}}/{name}");
            for (dir, ost) in [(&*planted, "{own}/lent"), ("{own}/server", &planted)] {
                let run = join(dir, ost)?;
                ensure!(!run.status.success(), "{name} was taken: {run:?}");
                scene.outside.check().with_context(|| format!("{name}: {run:?}"))?;
            }
        }
        let theirs = fs::metadata(shared.join("theirs"))?;
        ensure!(theirs.uid() == 65534, "it was given away");
        // Nobody's invitation was used up.
        let run = join("{own}/server", "{own}/lent")?;
        ensure!(run.status.success(), "{run:?}");
        Ok(())
    })
}

/// Promise 212: The log of a mount goes through no link of somebody else, waits for no pipe that
/// nobody reads, and into no directory that another user made for it.
#[test]
fn no_log_is_written_through_a_link() -> Result<()> {
    if !can_mount() || !needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let scene = Scene::new(lab)?;
        let place = lab.local("logged");
        fs::create_dir(&place)?;
        let source = lab.status()?["source"].as_str().context("a source")?.to_owned();
        let default = format!("mount-{}.log", shown(&place).trim_matches('/').replace('/', "-"));
        let default = Path::new("/var/log/tieline").join(default);
        let named = scene.shared.join("log");
        let option = format!(",log={}", shown(&named));
        fs::create_dir_all("/var/log/tieline")?;
        let mut outcomes = Vec::new();
        for (at, option) in [(&default, ""), (&named, &*option)] {
            for (what, target) in [("file", "f"), ("absent", "absent"), ("pipe", "")] {
                match target {
                    "" => drop(tieline_lab::program::call("mkfifo", &[at])?),
                    target => symlink(scene.outside.path.join(target), at)?,
                }
                lchown(at, Some(65534), Some(65534))?;
                let words = ["mount", &source, &shown(&place), "-o", &format!("hold=off{option}")];
                let run = lab.try_tieline(&words);
                if run.as_ref().is_ok_and(|run| run.status.success()) {
                    lab.try_tieline(&["umount", &shown(&place)])?;
                }
                fs::remove_file(at)?;
                outcomes.push((what, at, run.map(|run| run.status.success())));
                scene.outside.check().with_context(|| format!("{what} at {}", at.display()))?;
            }
        }
        outcomes.retain(|(.., run)| !matches!(run, Ok(false)));
        ensure!(outcomes.is_empty(), "mounted, or waited for: {outcomes:?}");
        Ok(())
    })
}

/// An entry of a spool, as mounts write them, whose bytes are elsewhere.
fn plant_entry(spool: &Path, secret: &Path) -> Result<PathBuf> {
    fs::create_dir(spool)?;
    fs::write(spool.join("lock"), "")?;
    let part = serde_json::json!({ "offset": 0, "length": 6, "claim": "answered" });
    let manifest = serde_json::json!({
        "format": 1, "source": "localhost:/extenci", "mountpoint": "/mnt", "mapkey": "00",
        "file": "0x7", "path": "", "at": 0, "uid": 0, "gid": 0, "why": "", "placed": [part],
    });
    let entry = spool.join("0x7.json");
    fs::write(&entry, serde_json::to_vec(&manifest)?)?;
    symlink(secret, spool.join("0x7.data"))?;
    Ok(entry)
}

/// Promise 210: Bytes that could not be stored are kept in, listed from and put back from
/// directories alone that belong to whoever does that and are nobody else's to look into: nobody
/// chooses what another puts back, or where it is kept.
#[test]
fn no_spool_of_somebody_else_is_believed() -> Result<()> {
    if !needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let scene = Scene::new(lab)?;
        let (theirs, copy) = (scene.shared.join("spool"), shown(&scene.own.join("copy")));
        let entry = plant_entry(&theirs, &scene.outside.path.join("f"))?;
        chown(&theirs, Some(65534), Some(65534))?;
        fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700))?;
        let (spool, named) = (shown(&theirs), shown(&entry));
        for words in [
            &["spool", "list", &spool][..],
            &["spool", "put", &named, "--to", &copy],
            &["spool", "drop", "--yes", &named],
        ] {
            let run = lab.try_tieline(words)?;
            ensure!(run.stderr.contains("uid 65534"), "{words:?}: {run:?}");
            ensure!(!Path::new(&copy).exists() && entry.exists(), "{words:?}: {run:?}");
        }
        // A pipe in the place of one is not waited for.
        fs::remove_file(&entry)?;
        tieline_lab::program::call("mkfifo", &[&entry])?;
        ensure!(!lab.try_tieline(&["spool", "list", &spool])?.status.success());
        scene.outside.check()
    })
}
