//! What must not be lost: deleted files, lost stores, missing objects; and what must be refused.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tieline_format::object::ObjectTrailer;
use tieline_lab::federation::{Plan, with_plan};
use tieline_lab::{Federation, program, with_federation};
use tieline_types::{FileId, Grant, GrantedId, MdtIndex, Version, checksum};

fn with_log(test: impl FnOnce(&Federation) -> Result<()>) -> Result<()> {
    with_plan(&Plan { arguments: vec!["--log".to_owned()], ..Plan::default() }, test)
}

/// A server's settings, as `dev up` wrote them.
fn settings(lab: &Federation, name: &str) -> Result<PathBuf> {
    let (role, site) = name.split_once('-').context("ROLE-SITE")?;
    let path = lab.dir().join("sites").join(site).join(format!("{role}.toml"));
    ensure!(path.exists(), "{path:?} is not there");
    Ok(path)
}

fn setting(path: &Path, key: &str) -> Result<String> {
    let text = fs::read_to_string(path)?;
    let value: toml::Table = text.parse()?;
    let found = value.get(key).or_else(|| value.get("mdt")?.get(key));
    Ok(found.and_then(|found| found.as_str()).with_context(|| format!("no {key}: {text}"))?.into())
}

fn dev(lab: &Federation, words: &[&str]) -> Result<String> {
    let dir = lab.dir();
    let dir = dir.to_str().context("a plain path")?;
    lab.tieline(&[words, &["--dir", dir]].concat())
}

/// What file `number` holds; [`WRITER`] writes the same.
fn bytes_of(number: usize) -> Vec<u8> {
    // Some lie in the metadata, some in objects.
    let length = if number.is_multiple_of(3) { 40_000 } else { 3000 };
    (0..length).map(|at| (at * 7 + number) as u8).collect()
}

/// Writes and syncs every second file from its argument on, and says the number of each then.
const WRITER: &str = r#"
import os, sys
number = int(sys.argv[1])
while True:
    length = 40000 if number % 3 == 0 else 3000
    with open(str(number), "wb") as file:
        file.write(bytes((at * 7 + number) & 255 for at in range(length)))
        file.flush()
        os.fsync(file.fileno())
    print(number, flush=True)
    number += 2
"#;

/// Promise 31: With a change log, the loss of a metadata server's store loses nothing that was
/// answered.
#[test]
fn a_store_deleted_under_load_is_restored_whole() -> Result<()> {
    with_log(|lab| {
        let folder = lab.mount().join("load");
        fs::create_dir(&folder)?;
        let lists = "getfacl -cn listed listed/f";
        lab.shell(
            "mkdir listed && setfacl -m u:5001:rwx,m::rx,d:g:6001:rx listed && echo > listed/f",
        )?;
        lab.shell("sync listed/f && setfacl -m u:5002:r listed/f && sync listed")?;
        let listed = lab.shell(lists)?;
        ensure!(listed.contains("5001") && listed.contains("default:group:6001:r-x"), "{listed}");
        let settings = settings(lab, "mds-uf")?;
        let store = PathBuf::from(setting(&settings, "state")?).join("mdt0000.redb");
        let log = setting(&settings, "log_to")?;
        let dump = lab.local("dump");
        let mut writers = Writers::start(lab, &folder)?;
        let disaster = (|| {
            std::thread::sleep(Duration::from_millis(800));
            let mount = lab.mount().to_str().context("a plain path")?;
            let script = format!(
                "{} mdt dump --mdt 0 --fs {mount} > {}",
                program::tieline()?.display(),
                dump.display()
            );
            program::shell(Path::new("/"), &script)?;
            std::thread::sleep(Duration::from_millis(800));
            dev(lab, &["dev", "kill", "mds-uf"])?;
            fs::remove_file(&store)?;
            // Not with an empty one in its place, whose log would be the newest.
            for _ in 0..2 {
                let empty = dev(lab, &["dev", "start", "mds-uf"]);
                ensure!(empty.is_err() && !store.exists(), "{empty:?}");
            }
            lab.tieline(&["mdt", "verify", &log])?;
            let settings = settings.to_str().context("a plain path")?;
            let dump = dump.to_str().context("a plain path")?;
            let tieline = program::tieline()?;
            let tieline = tieline.display();
            let restore = "mdt restore --settings";
            let script = format!("cat {dump} | {tieline} {restore} {settings} - {log}");
            program::shell(Path::new("/"), &script)?;
            let again = lab.try_tieline(&["mdt", "restore", "--settings", settings, dump])?;
            ensure!(again.stderr.contains("not empty"), "{again:?}");
            dev(lab, &["dev", "start", "mds-uf"])?;
            // The writers go on by themselves.
            writers.go_on(6).map(drop)
        })();
        writers.stop()?;
        disaster?;
        let again = lab.mount_again()?;
        ensure!(program::shell(&again, lists)? == listed, "access lists changed");
        let far = again.join("load");
        let acknowledged = writers.acknowledged()?;
        for number in &acknowledged {
            let read = fs::read(far.join(number.to_string()));
            let read = read.with_context(|| format!("file {number} of {}", acknowledged.len()))?;
            ensure!(read == bytes_of(*number), "file {number} changed");
        }
        let found = lab.json(&["fsck", lab.mount().to_str().context("a plain path")?])?;
        ensure!(found["findings"] == serde_json::json!([]), "{found:#}");
        Ok(())
    })
}

fn dumps(log: &str) -> Result<BTreeSet<PathBuf>> {
    let files = fs::read_dir(log)?.flatten().map(|entry| entry.path());
    Ok(files.filter(|path| path.extension().is_some_and(|end| end == "dump")).collect())
}

/// Promise 31, again and again: before anything could be dumped after the restore.
#[test]
fn a_store_that_is_lost_again_is_restored_again() -> Result<()> {
    with_log(|lab| {
        let path = settings(lab, "mds-uf")?;
        let settings = path.to_str().context("a plain path")?;
        let store = PathBuf::from(setting(&path, "state")?).join("mdt0000.redb");
        let log = setting(&path, "log_to")?;
        let empty = lab.local("empty");
        fs::create_dir(&empty)?;
        let empty = empty.to_str().context("a plain path")?;
        for round in 0..3 {
            for number in [2 * round, 2 * round + 1] {
                let mut file = File::create(lab.mount().join(number.to_string()))?;
                file.write_all(&bytes_of(number))?;
                file.sync_all()?;
            }
            dev(lab, &["dev", "kill", "mds-uf"])?;
            fs::remove_file(&store)?;
            let _ = fs::remove_file(store.with_extension("redb-wal"));
            // As if none had been finished since.
            dumps(&log)?.iter().try_for_each(fs::remove_file)?;
            // What fails leaves nothing that a server could take for its store.
            let nothing = lab.try_tieline(&["mdt", "restore", "--settings", settings, empty])?;
            ensure!(nothing.stderr.contains("neither a whole dump nor a log"), "{nothing:?}");
            let is_left = [&store, &store.with_extension("redb-wal")].iter().any(|p| p.exists());
            ensure!(!is_left, "a failed restore left a store");
            let restored = lab.json(&["mdt", "restore", "--settings", settings, &log])?;
            ensure!(restored["notes"] == json!([]), "{restored:#}");
            // Refused, it changes nothing that the log would not go on from.
            let full = lab.try_tieline(&["mdt", "restore", "--settings", settings, &log])?;
            ensure!(full.stderr.contains("not empty"), "{full:?}");
            dev(lab, &["dev", "start", "mds-uf"])?;
        }
        let far = lab.mount_again()?;
        for number in 0..6 {
            ensure!(fs::read(far.join(number.to_string()))? == bytes_of(number), "file {number}");
        }
        let found = lab.json(&["fsck", lab.mount().to_str().context("a plain path")?])?;
        ensure!(found["findings"] == json!([]), "{found:#}");
        Ok(())
    })
}

/// Two processes that write [`WRITER`]'s files, and what they were answered.
struct Writers<'l> {
    lab: &'l Federation,
    running: Vec<std::process::Child>,
}

impl<'l> Writers<'l> {
    fn start(lab: &'l Federation, folder: &Path) -> Result<Self> {
        let mut writers = Self { lab, running: vec![] };
        // Processes of their own: what this one starts must not wait for files that it has open
        // on a mount whose server is gone.
        for writer in 0..2 {
            let told = File::create(lab.local(&format!("told{writer}")))?;
            let mut python = Command::new("python3");
            python.args(["-c", WRITER, &writer.to_string()]).current_dir(folder).stdout(told);
            writers.running.push(program::start(&mut python)?);
        }
        Ok(writers)
    }

    fn acknowledged(&self) -> Result<BTreeSet<usize>> {
        let told = |writer: usize| fs::read_to_string(self.lab.local(&format!("told{writer}")));
        let told = [told(0)?, told(1)?].concat();
        // A line that is being written is not told yet.
        let lines = told.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.map(|line| line.parse().context("a number")).collect()
    }

    /// Waits until so many more are acknowledged.
    fn go_on(&self, more: usize) -> Result<BTreeSet<usize>> {
        let before = self.acknowledged()?.len();
        program::until("the writers go on", Duration::from_secs(60), || {
            self.acknowledged().is_ok_and(|now| now.len() >= before + more)
        })?;
        self.acknowledged()
    }

    fn stop(&mut self) -> Result<()> {
        self.running.iter().for_each(program::kill_group);
        for writer in &mut self.running {
            program::wait(writer, Duration::from_secs(30))?;
        }
        Ok(())
    }
}

impl Drop for Writers<'_> {
    fn drop(&mut self) {
        self.running.iter().for_each(program::kill_group);
    }
}

/// Without waiting for the log, what was answered 5 s ago is in the second place: with both the
/// store and the log's last 5 s lost, everything older is there.
#[test]
fn a_log_that_nobody_waits_for_is_five_seconds_behind_at_most() -> Result<()> {
    with_log(|lab| {
        let path = settings(lab, "mds-uf")?;
        dev(lab, &["dev", "kill", "mds-uf"])?;
        let mut table: toml::Table = fs::read_to_string(&path)?.parse()?;
        let mdt = table.get_mut("mdt").and_then(|mdt| mdt.as_table_mut()).context("an MDT")?;
        mdt.insert("log_wait".into(), false.into());
        fs::write(&path, table.to_string())?;
        dev(lab, &["dev", "start", "mds-uf"])?;
        fs::create_dir(lab.mount().join("load"))?;
        let store = PathBuf::from(setting(&path, "state")?).join("mdt0000.redb");
        let log = setting(&path, "log_to")?;
        // Of a client that is gone when what it knows is.
        let client = lab.mount_again()?;
        let mut writers = Writers::start(lab, &client.join("load"))?;
        writers.go_on(10)?;
        let [dump, later, copy] = ["dump", "later", "copy"].map(|name| lab.local(name));
        let [dump, later, copy] = [&dump, &later, &copy].map(|path| path.to_string_lossy());
        let tieline = program::tieline()?.display();
        let mount = lab.mount().display();
        let write = |more: &str, to: &str| {
            let script = format!("{tieline} mdt dump --mdt 0 --fs {mount} {more} > {to}");
            program::shell(Path::new("/"), &script)
        };
        write("", &dump)?;
        // What is refused leaves nothing that looks like a dump.
        ensure!(write("--since 999999999999", &later).is_err());
        ensure!(fs::metadata(&*later)?.len() == 0, "a refused dump has begun");
        let at = lab.json(&["mdt", "verify", &*dump])?[0]["parts"][0]["version"].clone();
        writers.go_on(10)?;
        write(&format!("--since {at}"), &later)?;
        let parts = lab.json(&["mdt", "verify", &*later])?[0]["parts"].clone();
        let last = parts.as_array().and_then(|parts| parts.last()).map(|part| &part["last"]);
        ensure!(last.and_then(|last| last.as_u64()) > at.as_u64(), "{parts:#} after {at}");
        let answered = writers.go_on(10)?;
        // The promise itself is the time.
        std::thread::sleep(Duration::from_secs(5));
        program::shell(Path::new("/"), &format!("cp -r {log} {copy}"))?;
        ensure!(writers.acknowledged()?.len() > answered.len(), "that was no load");
        writers.stop()?;
        lab.unmount(&client)?;
        dev(lab, &["dev", "kill", "mds-uf"])?;
        fs::remove_file(&store)?;
        program::shell(Path::new("/"), &format!("rm -r {log} && mv {copy} {log}"))?;
        let settings = path.to_str().context("a plain path")?;
        let restore = ["mdt", "restore", "--settings", settings, &*dump, &*later, &log];
        let restored = lab.json(&restore)?;
        ensure!(restored["version"].as_u64() > at.as_u64(), "{restored:#}");
        for word in ["session", "lost", "another", "no longer", "stale", "older"] {
            lab.expect_log(word);
        }
        dev(lab, &["dev", "start", "mds-uf"])?;
        let far = lab.mount_again()?.join("load");
        for number in &answered {
            let read = fs::read(far.join(number.to_string()));
            let read = read.with_context(|| format!("file {number} of {}", answered.len()))?;
            ensure!(read == bytes_of(*number), "file {number} changed");
        }
        Ok(())
    })
}

/// Promise 30: A deleted file can be brought back as it was, by its owner and root, for as long as
/// its site keeps it.
#[test]
fn deleted_files_come_back() -> Result<()> {
    with_federation(|lab| {
        let folder = lab.mount().join("data");
        fs::create_dir_all(folder.join("deep"))?;
        fs::write(folder.join("f"), bytes_of(0))?;
        fs::write(folder.join("deep/g"), bytes_of(1))?;
        fs::write(folder.join("new"), "new")?;
        fs::rename(folder.join("new"), folder.join("other"))?;
        fs::remove_dir_all(&folder)?;
        let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let parent = lab.mount().to_string_lossy().into_owned();
        let listed = lab.json(&["undelete", "--list", &parent])?;
        ensure!(listed[0]["name"] == "data" && listed[0]["deleted_by"].is_u64(), "{listed:#}");
        ensure!(listed[0]["remaining_seconds"].as_u64().is_some_and(|left| left <= 3600));
        let back = lab.json(&["undelete", "-r", &at("")])?;
        ensure!(back.as_array().is_some_and(|back| back.len() >= 4), "{back:#}");
        ensure!(back[0]["path"].as_str().is_some_and(|path| path.ends_with("data")), "{back:#}");
        ensure!(fs::read(folder.join("f"))? == bytes_of(0));
        ensure!(fs::read(folder.join("deep/g"))? == bytes_of(1));
        ensure!(fs::read_to_string(folder.join("other"))? == "new");
        fs::remove_file(folder.join("f"))?;
        fs::write(folder.join("f"), "in its place")?;
        let taken = lab.try_tieline(&["undelete", &at("f")])?;
        ensure!(!taken.status.success(), "{taken:?}");
        let listed = lab.json(&["undelete", "--list", &at("")])?;
        let id = listed[0]["id"].as_str().context("an id")?;
        lab.tieline(&["undelete", &at(&format!("f@{id}")), "--to", "f.old"])?;
        ensure!(fs::read(lab.mount_again()?.join("data/f.old"))? == bytes_of(0));
        // A directory whose name another one has by now.
        fs::remove_dir_all(folder.join("deep"))?;
        fs::create_dir(folder.join("deep"))?;
        let other = lab.try_tieline(&["undelete", "-r", &at("deep")])?;
        ensure!(
            other.status.code() == Some(1) && other.stderr.contains("--to NEWNAME"),
            "{other:?}"
        );
        let back = lab.json(&["undelete", "-r", &at("deep"), "--to", "deep.old"])?;
        let path = back[1]["path"].as_str().unwrap_or_default();
        ensure!(path.ends_with("data/deep.old/g"), "{back:#}");
        ensure!(fs::read(folder.join("deep.old/g"))? == bytes_of(1));
        Ok(())
    })
}

fn objects(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(objects(&path));
        } else if path.to_string_lossy().contains("/objects/") {
            found.push(path);
        }
    }
    found
}

/// Has a process a handler of its own for SIGINT?
fn takes_interrupts(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 0b10 != 0)
}

/// Of a grant that no session ever had.
fn orphan_id() -> GrantedId {
    GrantedId { mdt: MdtIndex(0), grant: Grant(0xfff_ffff), serial: 1 }
}

/// Puts a sound object that nobody committed where its OST has another.
fn orphan_beside(other: &Path) -> Result<PathBuf> {
    let chunk = orphan_id();
    let data = [7; 5000];
    let trailer = ObjectTrailer {
        chunk,
        file: FileId::new(chunk.mdt, 0xfff_ffff),
        offset: 0,
        version: Version(1),
        path: b"never/committed".to_vec(),
        checks: checksum::block_checks(&data),
        tree: None,
    };
    let objects = other.ancestors().find(|above| above.ends_with("objects"));
    let folder = objects.context("an OST")?.join("0000/00000f/fff/fff/0000000000000");
    fs::create_dir_all(&folder)?;
    let path = folder.join(chunk.to_string());
    fs::write(&path, [&data[..], &trailer.to_tail(data.len() as u64)].concat())?;
    Ok(path)
}

#[test]
fn fsck_names_missing_wrong_and_orphan_objects() -> Result<()> {
    with_federation(|lab| {
        let mount = lab.mount().to_str().context("a plain path")?.to_owned();
        for name in ["missing", "wrong", "well", "folder"] {
            let mut file = File::create(lab.mount().join(name))?;
            file.write_all(&vec![name.len() as u8; 100_000])?;
            file.sync_all()?;
        }
        let clean = lab.try_tieline(&["fsck", "--read", &mount])?;
        ensure!(clean.status.code() == Some(0), "{clean:?}");
        // Interrupted while it waits for a server, it is given up, and stands in nobody's way.
        lab.signal("oss-uf", Signal::STOP)?;
        let mut check = program::start(Command::new(program::tieline()?).args(["fsck", &mount]))?;
        let interrupted = program::until("it takes interrupts", Duration::from_secs(60), || {
            takes_interrupts(check.id())
        })
        .and_then(|()| program::call("kill", &["-INT", &check.id().to_string()]))
        .and_then(|_| program::wait(&mut check, Duration::from_secs(60)));
        lab.signal("oss-uf", Signal::CONT)?;
        let code = interrupted?.code();
        ensure!(code == Some(32), "{code:?}");
        let clean = lab.try_tieline(&["fsck", &mount])?;
        ensure!(clean.status.code() == Some(0), "{clean:?}");
        let chunk = |name: &str| -> Result<String> {
            let layout = lab.json(&["getstripe", &format!("{mount}/{name}")])?;
            let id = layout[0]["extents"][0]["chunk"]["id"].as_str().map(str::to_owned);
            id.with_context(|| format!("{layout:#}"))
        };
        let all = objects(&lab.dir().join("sites"));
        let object = |id: &str| {
            all.iter().find(|path| path.ends_with(id)).cloned().with_context(|| id.to_owned())
        };
        fs::remove_file(object(&chunk("missing")?)?)?;
        let wrong = object(&chunk("wrong")?)?;
        let mut bytes = fs::read(&wrong)?;
        bytes[50_000] ^= 1;
        fs::write(&wrong, bytes)?;
        // A directory in an object's place, and what was put among objects.
        let folder = object(&chunk("folder")?)?;
        fs::remove_file(&folder)?;
        fs::create_dir(&folder)?;
        // An object that nobody committed, of a session that never was.
        let well = object(&chunk("well")?)?;
        let orphan = orphan_beside(&well)?;
        let notes = well.with_file_name("notes");
        fs::write(&notes, "not yours")?;
        let seen = lab
            .json(&["fsck", "--read", &mount])
            .err()
            .map(|error| format!("{error:#}"))
            .unwrap_or_default();
        let belongs = format!("object {} at", orphan_id());
        let parts = [
            "missing-chunk",
            "wrong-chunk",
            "\"missing\"",
            "\"wrong\"",
            "bytes 49152 to 53248: ",
            "unreadable-chunk",
            "Is a directory",
            "\"folder\"",
            "orphan-object",
            "foreign-object",
            "notes",
        ];
        for part in parts.into_iter().chain([belongs.as_str()]) {
            ensure!(seen.contains(part), "{part}: {seen}");
        }
        ensure!(!seen.contains("\"well\""), "{seen}");
        ensure!(orphan.exists(), "a look changes nothing");
        let run = lab.try_tieline(&["fsck", "--read", "--repair", &mount])?;
        ensure!(run.status.code() == Some(4), "lost bytes stay lost: {run:?}");
        ensure!(!orphan.exists() && well.exists() && folder.is_dir(), "{run:?}");
        ensure!(fs::read_to_string(&notes)? == "not yours", "what is no object is nobody's here");
        fs::remove_file(&notes)?;
        fs::remove_dir(&folder)?;
        for word in ["corrupt", "checksum", "Corrupt", "damaged", "cannot be opened"] {
            lab.expect_log(word);
        }
        fs::remove_file(lab.mount().join("missing"))?;
        fs::remove_file(lab.mount().join("wrong"))?;
        fs::remove_file(lab.mount().join("folder"))?;
        lab.tieline(&["sync", &mount])?;
        ensure!(well.exists());
        let clean = lab.try_tieline(&["fsck", "--read", "--repair", &mount])?;
        ensure!(clean.status.code() == Some(0), "{clean:?}");
        Ok(())
    })
}

#[test]
fn a_second_server_on_a_store_is_refused_and_the_first_goes_on() -> Result<()> {
    with_federation(|lab| {
        let first = settings(lab, "mds-uf")?;
        let store = PathBuf::from(setting(&first, "state")?).join("mdt0000.redb");
        let state = lab.local("state");
        fs::create_dir(&state)?;
        fs::copy(PathBuf::from(setting(&first, "state")?).join("map"), state.join("map"))?;
        let mut table: toml::Table = fs::read_to_string(&first)?.parse()?;
        table.insert("state".into(), state.to_string_lossy().into_owned().into());
        table.insert("listen".into(), "127.0.0.1:0".into());
        table.insert("admin".into(), "127.0.0.1:0".into());
        let mdt = table.get_mut("mdt").and_then(|mdt| mdt.as_table_mut()).context("an MDT")?;
        mdt.insert("store".into(), store.to_string_lossy().into_owned().into());
        let second = lab.local("second.toml");
        fs::write(&second, table.to_string())?;
        let mut server = Command::new(program::tieline()?);
        server.args(["server", "--settings"]).arg(&second);
        let run = program::finish(&mut server, Duration::from_secs(30))?;
        ensure!(run.status.code() == Some(1) && run.status.signal().is_none(), "{run:?}");
        ensure!(run.stderr.contains("in use by another server"), "{run:?}");
        fs::write(lab.mount().join("f"), "still served")?;
        Ok(())
    })
}

/// Runs a future to its end on this thread.
fn finish<T>(future: impl Future<Output = T>) -> T {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(std::sync::Arc::new(Thread(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(value) =
            future.as_mut().poll(&mut std::task::Context::from_waker(&waker))
        {
            return value;
        }
        std::thread::park();
    }
}

#[test]
fn a_store_of_a_newer_build_is_refused_untouched() -> Result<()> {
    with_federation(|lab| {
        let settings = settings(lab, "mds-fnal")?;
        let store = PathBuf::from(setting(&settings, "state")?).join("mdt0001.redb");
        dev(lab, &["dev", "kill", "mds-fnal"])?;
        // The superblock's record gets a version that this build does not know.
        let change = |version: u8| -> Result<()> {
            use tieline_kv::Store;
            let store = tieline_kv::EmbeddedStore::open(&store, tieline_types::ByteSize(1 << 20))?;
            finish(async {
                let mut transaction = store.begin().await?;
                let key = b"n".to_vec();
                let value = transaction.read(std::slice::from_ref(&key)).await?.remove(0);
                let mut value = value.context("a superblock")?;
                value[0] = version;
                transaction.put(key, value);
                Ok(transaction.commit().await?.durable.await?)
            })
        };
        change(9)?;
        let before = fs::read(&store)?;
        let mut server = Command::new(program::tieline()?);
        server.args(["server", "--settings"]).arg(&settings);
        let run = program::finish(&mut server, Duration::from_secs(30))?;
        ensure!(
            run.status.code() == Some(1) && run.stderr.contains("use a newer build"),
            "{run:?}"
        );
        ensure!(fs::read(&store)? == before, "the store was touched");
        change(1)?;
        dev(lab, &["dev", "start", "mds-fnal"])?;
        fs::write(lab.mount().join("fnal/f"), "served again")?;
        Ok(())
    })
}

#[test]
fn what_the_objects_know_comes_back_without_any_dump() -> Result<()> {
    with_federation(|lab| {
        let folder = lab.mount().join("run/7");
        fs::create_dir_all(&folder)?;
        for number in [0, 3, 6] {
            let mut file = File::create(folder.join(format!("f{number}")))?;
            file.write_all(&bytes_of(number))?;
            file.sync_all()?;
        }
        // Where files lie is known also to a daemon that was started again under programs at work.
        let mut open = File::create(folder.join("f9"))?;
        let inside = File::open(&folder)?;
        dev(lab, &["dev", "kill", "mount-0", "--restart"])?;
        open.write_all(&bytes_of(9))?;
        open.sync_all()?;
        let made = format!("/proc/self/fd/{}/f12", inside.as_raw_fd());
        let mut made = File::create(made)?;
        made.write_all(&bytes_of(12))?;
        made.sync_all()?;
        drop((open, inside, made));
        // Every second MiB of one at the other site, whose OSS is lost too.
        let wide = folder.join("wide").to_string_lossy().into_owned();
        lab.tieline(&["setstripe", "-o", "0,2", "-S", "1M", &wide])?;
        let mut wide = File::create(folder.join("wide"))?;
        wide.write_all(&vec![5; 4 << 20])?;
        wide.sync_all()?;
        drop(wide);
        let settings = settings(lab, "mds-uf")?;
        let store = PathBuf::from(setting(&settings, "state")?).join("mdt0000.redb");
        dev(lab, &["dev", "kill", "mds-uf"])?;
        dev(lab, &["dev", "kill", "oss-fnal"])?;
        fs::remove_file(&store)?;
        let settings = settings.to_str().context("a plain path")?;
        let ask = ["mdt", "rebuild", "--from-osts", "--settings", settings, "--without"];
        let unknown = lab.try_tieline(&[&ask[..], &["OST0099"]].concat())?;
        ensure!(unknown.stderr.contains("not in the map"), "{unknown:?}");
        let said = lab.json(&[&ask[..], &["OST0002,OST0003"]].concat())?;
        ensure!(said["files"] == 6 && said["with_gaps"] == json!(["run/7/wide"]), "{said:#}");
        for word in ["session", "lost", "another", "no longer"] {
            lab.expect_log(word);
        }
        dev(lab, &["dev", "start", "mds-uf"])?;
        dev(lab, &["dev", "start", "oss-fnal"])?;
        let far = lab.mount_again()?;
        for number in [0, 3, 6, 9, 12] {
            let read = fs::read(far.join(format!("run/7/f{number}")))?;
            ensure!(read == bytes_of(number), "file {number} changed");
        }
        Ok(())
    })
}

#[test]
fn names_of_one_file_come_back_together() -> Result<()> {
    with_federation(|lab| {
        let at = |path: &str| format!("{}/{path}", lab.mount().display());
        lab.shell("mkdir -p u/d1/e u/d2 && echo text > u/d1/e/f && ln u/d1/e/f u/d1/h")?;
        lab.shell("ln u/d1/e/f u/d2/i && rm -rf u/d1 && sync .")?;
        let listed = lab.json(&["undelete", "--list", "-r", &at("u")])?;
        let names =
            listed.as_array().context("a list")?.iter().filter(|row| row["is_name"] == true);
        ensure!(names.count() == 2, "{listed:#}");
        let links = || lab.shell("stat -c %h u/d1/e/f; cat u/d1/h u/d1/e/f");
        lab.tieline(&["undelete", "-r", &at("u")])?;
        ensure!(links()? == "3\ntext\ntext\n", "of one that is there still: {}", links()?);
        lab.shell("rm -rf u/d2 u/d1 && sync .")?;
        lab.tieline(&["undelete", "-r", &at("u")])?;
        ensure!(links()? == "3\ntext\ntext\n", "of one that was deleted: {}", links()?);
        // The last name was elsewhere: that is said, and then it is as before.
        lab.shell("mkdir v && mv u/d2 v/ && rm -rf u/d1 && sync . && rm -rf v/d2 && sync .")?;
        let half = lab.try_tieline(&["undelete", "-r", &at("u")])?;
        ensure!(half.stderr.contains("one of several names"), "{half:?}");
        lab.tieline(&["undelete", "-r", &at("v")])?;
        lab.tieline(&["undelete", "-r", &at("u")])?;
        ensure!(links()? == "3\ntext\ntext\n", "{}", links()?);
        let checked = lab.try_tieline(&["fsck", lab.mount().to_str().context("path")?])?;
        ensure!(checked.status.code() == Some(0), "{checked:?}");
        Ok(())
    })
}
