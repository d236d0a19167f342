//! The program as people use it: a federation of two sites, real mounts, processes killed and
//! started again.
//!
//! Each test has a federation of its own in a temporary folder, and looks at what taking it down
//! leaves behind: nothing.

use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SERVERS: [&str; 4] = ["mds-uf", "oss-uf", "mds-fnal", "oss-fnal"];

/// A federation for one test.
struct Federation {
    folder: tempfile::TempDir,
}

impl Federation {
    /// `None`, and a line that says so, where nothing can be mounted.
    fn start(arguments: &[&str]) -> Option<Self> {
        let device = fs::File::options().read(true).write(true).open("/dev/fuse");
        if device.is_err() {
            eprintln!("SKIPPED: /dev/fuse cannot be opened here");
            return None;
        }
        let federation = Self { folder: tempfile::tempdir().unwrap() };
        let mut words = vec!["dev", "up"];
        words.extend(arguments);
        federation.dev_with(&words, &[OsStr::new("--mount"), federation.mount().as_os_str()]);
        Some(federation)
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("federation")
    }

    fn mount(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.mount().join(path)
    }

    /// A `dev` command on this federation.
    fn dev(&self, words: &[&str]) -> String {
        self.dev_with(&[&["dev"], words].concat(), &[])
    }

    fn dev_with(&self, words: &[&str], more: &[&OsStr]) -> String {
        let dir = self.dir();
        let mut all: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        all.extend(more);
        all.extend([OsStr::new("--dir"), dir.as_os_str()]);
        succeed(&all)
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.dev(&["status", "--json"])).unwrap()
    }

    fn process(&self, name: &str) -> Value {
        let status = self.status();
        let all = status["processes"].as_array().unwrap();
        all.iter().find(|process| process["name"] == name).unwrap().clone()
    }

    fn getstripe(&self, path: &str) -> Value {
        let path = self.at(path);
        let said = succeed(&[OsStr::new("getstripe"), OsStr::new("--json"), path.as_os_str()]);
        serde_json::from_str::<Value>(&said).unwrap()[0].take()
    }

    /// Takes it down and looks at what is left.
    fn finish(self) {
        let pids: Vec<u64> = self.status()["processes"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|process| process["pid"].as_u64())
            .collect();
        self.dev(&["down"]);
        for pid in pids {
            let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            assert!(state.is_empty() || state.contains(") Z "), "process {pid} still runs");
        }
        let folder = self.folder.path().to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(&folder), "still mounted: {mounts}");
        let left: Vec<_> = fs::read_dir(self.folder.path()).unwrap().flatten().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

impl Drop for Federation {
    fn drop(&mut self) {
        if self.dir().exists() {
            let dir = self.dir();
            run(&[OsStr::new("dev"), OsStr::new("down"), OsStr::new("--dir"), dir.as_os_str()]);
        }
    }
}

fn run(words: &[&OsStr]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tieline"));
    command.args(words).stdin(Stdio::null()).output().unwrap()
}

fn succeed(words: &[impl AsRef<OsStr>]) -> String {
    let words: Vec<&OsStr> = words.iter().map(AsRef::as_ref).collect();
    let output = run(&words);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {}\n{said}{complained}", output.status);
    said
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 7 + place / 251) as u8).collect()
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn what_one_client_wrote_another_reads() {
    let Some(federation) = Federation::start(&[]) else { return };
    let second = federation.folder.path().join("second");
    federation.dev_with(&["dev", "mount"], &[second.as_os_str()]);
    let bytes = pattern(9 << 20);
    for site in ["", "fnal/"] {
        fs::write(federation.at(&format!("{site}data")), &bytes).unwrap();
        assert!(read(&second.join(format!("{site}data"))) == bytes, "{site}data differs");
        fs::write(second.join(format!("{site}data")), b"short").unwrap();
        assert_eq!(read(&federation.at(&format!("{site}data"))), b"short");
    }
    federation.finish();
}

#[test]
fn bytes_lie_at_the_site_of_their_directory() {
    let Some(federation) = Federation::start(&["--engine", "memory"]) else { return };
    let bytes = pattern(9 << 20);
    for (path, site) in [("f", "uf"), ("fnal/f", "fnal")] {
        fs::write(federation.at(path), &bytes).unwrap();
        let file = federation.getstripe(path);
        let extents = file["extents"].as_array().unwrap();
        // Three chunks, or more where the writer was slow.
        assert!(extents.len() >= 3, "{file:#}");
        for extent in extents {
            let place = &extent["chunk"]["places"][0];
            assert_eq!(place["site"], site);
            // It is really there, as an object of that name.
            let ost = format!("sites/{site}/ost{:04x}", place["ost"].as_u64().unwrap());
            let object = place["object"].as_str().unwrap();
            assert!(holds(&federation.dir().join(ost), object), "no object {object}");
        }
    }
    federation.finish();
}

fn holds(folder: &Path, name: &str) -> bool {
    fs::read_dir(folder).unwrap().flatten().any(|entry| {
        let path = entry.path();
        path.is_dir() && holds(&path, name)
            || path.file_name().is_some_and(|file| file.to_string_lossy().contains(name))
    })
}

#[test]
fn pools_are_made_used_and_destroyed() {
    let Some(federation) = Federation::start(&["--engine", "memory"]) else { return };
    let mount = federation.mount().to_string_lossy().into_owned();
    let pool = |words: &[&str]| succeed(&[&["pool"], words, &["--fs", &mount]].concat());
    pool(&["new", "extenci.fast"]);
    pool(&["add", "extenci.fast", "extenci-OST0003"]);
    let folder = federation.at("d");
    fs::create_dir(&folder).unwrap();
    succeed(&["setstripe", "-p", "fast", "-L", "raid0", folder.to_str().unwrap()]);
    fs::write(folder.join("f"), b"small, but on an OST").unwrap();
    let file = federation.getstripe("d/f");
    assert_eq!(file["layout"]["pool"], "fast");
    assert_eq!(file["extents"][0]["chunk"]["places"][0]["ost"], 3);
    pool(&["remove", "extenci.fast", "OST[3]"]);
    pool(&["destroy", "extenci.fast"]);
    assert_eq!(read(&folder.join("f")), b"small, but on an OST");
    federation.finish();
}

#[test]
fn service_goes_on_after_each_server_was_killed() {
    let Some(federation) = Federation::start(&["--lease", "2 s"]) else { return };
    let bytes = pattern(5 << 20);
    for site in ["", "fnal/"] {
        fs::write(federation.at(&format!("{site}before")), &bytes).unwrap();
    }
    for server in SERVERS {
        let before = federation.process(server)["pid"].clone();
        federation.dev(&["kill", server, "--restart"]);
        let after = federation.process(server);
        assert_ne!(after["pid"], before);
        assert_eq!(after["state"], "ready");
        for site in ["", "fnal/"] {
            let new = federation.at(&format!("{site}after-{server}"));
            fs::write(&new, &bytes).unwrap();
            assert!(read(&new) == bytes, "{} differs", new.display());
            assert!(
                read(&federation.at(&format!("{site}before"))) == bytes,
                "{site}before differs"
            );
        }
    }
    federation.finish();
}

#[test]
fn a_mount_that_was_killed_comes_back_with_what_was_synced() {
    let Some(federation) = Federation::start(&["--lease", "2 s"]) else { return };
    let path = federation.at("f");
    let file = fs::File::create(&path).unwrap();
    std::io::Write::write_all(&mut &file, &pattern(6 << 20)).unwrap();
    file.sync_all().unwrap();
    federation.dev(&["kill", "mount-0", "--restart"]);
    drop(file);
    assert!(read(&path) == pattern(6 << 20));
    federation.finish();
}

#[test]
fn a_site_that_is_cut_off_serves_itself() {
    let Some(federation) = Federation::start(&["--lease", "2 s"]) else { return };
    fs::write(federation.at("fnal/before"), b"written before").unwrap();
    let home = federation.process("mds-fnal")["address"].as_str().unwrap().to_owned();
    let key = federation.status()["key"].as_str().unwrap().to_owned();
    for server in ["mds-uf", "oss-uf"] {
        federation.dev(&["kill", server]);
    }
    // Also after a restart, and for a fresh mount.
    for server in ["mds-fnal", "oss-fnal"] {
        federation.dev(&["restart", server]);
    }
    let here = federation.folder.path().join("here");
    fs::create_dir(&here).unwrap();
    let options = format!("mapkey={key},log={}", here.with_extension("log").display());
    let source = format!("{home}:/extenci/fnal");
    succeed(&["mount", &source, here.to_str().unwrap(), "-o", &options]);
    assert_eq!(read(&here.join("before")), b"written before");
    fs::write(here.join("after"), pattern(2 << 20)).unwrap();
    succeed(&["umount", here.to_str().unwrap()]);
    let said = succeed(&["ls", &format!("tieline://{home}/extenci/fnal")]);
    assert_eq!(said, "after\nbefore\n");
    fs::remove_dir(&here).unwrap();
    fs::remove_file(here.with_extension("log")).unwrap();
    federation.finish();
}

#[test]
fn two_federations_do_not_meet() {
    let Some(one) = Federation::start(&["--engine", "memory"]) else { return };
    let Some(other) = Federation::start(&["--engine", "memory", "--sites", "cern"]) else { return };
    fs::write(one.at("f"), b"one").unwrap();
    assert!(!other.at("f").exists());
    other.finish();
    assert_eq!(read(&one.at("f")), b"one");
    one.finish();
}

#[test]
fn mounting_and_unmounting_by_hand() {
    let Some(federation) = Federation::start(&["--engine", "memory"]) else { return };
    let source = federation.status()["source"].as_str().unwrap().to_owned();
    let key = federation.status()["key"].as_str().unwrap().to_owned();
    let here = federation.folder.path().join("here");
    fs::create_dir(&here).unwrap();
    fs::create_dir(federation.at("d")).unwrap();
    let options = format!("mapkey={key},log={}", here.with_extension("log").display());
    let shown = here.to_str().unwrap();
    // In the background, and only a directory of the file system.
    succeed(&["mount", &format!("{source}/d"), shown, "-o", &options, "-o", "noatime,_netdev"]);
    fs::write(here.join("f"), pattern(3 << 20)).unwrap();
    succeed(&["umount", shown]);
    assert!(read(&federation.at("d/f")) == pattern(3 << 20));
    let refused = run(&["mount", &source, shown, "-o", "sec=krb9"].map(OsStr::new));
    assert_eq!(refused.status.code(), Some(2));
    let wrong_key = format!("mapkey={}", "58".repeat(32));
    let refused = run(&["mount", &source, shown, "-o", &wrong_key].map(OsStr::new));
    assert_eq!(refused.status.code(), Some(1));
    fs::remove_dir(&here).unwrap();
    fs::remove_file(here.with_extension("log")).unwrap();
    federation.finish();
}

#[test]
fn a_second_server_on_the_same_state_is_refused() {
    let Some(federation) = Federation::start(&["--engine", "memory"]) else { return };
    let settings = federation.dir().join("sites/uf/mds.toml");
    let words = ["server", "--settings", settings.to_str().unwrap()].map(OsStr::new);
    let output = run(&words);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let pid = federation.process("mds-uf")["pid"].as_u64().unwrap();
    assert!(said.contains(&format!("pid {pid}")), "{said}");
    federation.finish();
}
