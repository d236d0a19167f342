//! Files on tape: an HSM that is a script which keeps files in a directory, is slow when it is told
//! to be, and fails.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tieline_lab::program::{self, DEADLINE};
use tieline_lab::{Federation, with_federation};

/// Three chunks, and bytes that are in none of the others.
const LENGTH: usize = 9_000_000;

/// What stands between the words `TAPE` and the script's end is the library's directory: `hold`
/// there keeps a script waiting, `fail` makes the next one fail.
const SCRIPT: &str = r#"#!/bin/sh
tape=TAPE
echo "$1" >> $tape/log
while [ -e $tape/hold ]; do sleep 0.05; done
if [ -e $tape/fail ]; then rm $tape/fail; echo "the robot is stuck" >&2; exit 3; fi
for word; do case $word in -uri=dir://tape/*) uri=${word##*/} ;; esac; done
case $1 in
put) cp "$3" $tape/files/.new-$2 && mv $tape/files/.new-$2 $tape/files/$2 && echo dir://tape/$2 ;;
get) cp $tape/files/$uri "$3" ;;
remove) rm -f $tape/files/$uri ;;
*) exit 30 ;;
esac
"#;

/// A tape library of pool `uf`, whose files all are that are written at the mount's top.
struct Library(PathBuf);

impl Library {
    fn new(lab: &Federation) -> Result<Self> {
        let tape = lab.local("tape");
        fs::create_dir_all(tape.join("files"))?;
        let scripts = lab.dir().join("sites/uf/hsm");
        fs::create_dir_all(&scripts)?;
        let script = scripts.join("library.sh");
        fs::write(&script, SCRIPT.replace("TAPE", tape.to_str().context("path")?))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let (mount, script) = (shown(lab.mount())?, shown(&script)?);
        let set = ["pool", "set", "uf", "--fs", mount, "--hsm-pause", "1 s", "--hsm", script];
        lab.tieline(&set)?;
        lab.tieline(&["setstripe", "-p", "uf", mount])?;
        Ok(Self(tape))
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        fs::read_dir(self.0.join("files"))?.map(|entry| Ok(entry?.path())).collect()
    }

    /// The next script fails.
    fn fail(&self) -> Result<()> {
        Ok(fs::write(self.0.join("fail"), "")?)
    }

    /// All scripts wait, until they do not.
    fn hold(&self, holds: bool) -> Result<()> {
        let hold = self.0.join("hold");
        let done = if holds { fs::write(hold, "") } else { fs::remove_file(hold) };
        Ok(done?)
    }

    /// How often a script was asked for this.
    fn count(&self, deed: &str) -> usize {
        let log = fs::read_to_string(self.0.join("log")).unwrap_or_default();
        log.lines().filter(|line| *line == deed).count()
    }
}

fn shown(path: &Path) -> Result<&str> {
    path.to_str().context("path")
}

fn bytes(seed: u32) -> Vec<u8> {
    (0..LENGTH as u32).map(|at| (at.wrapping_mul(at | seed) >> 9) as u8).collect()
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}

/// Lustre's words for how a file stands to tape.
fn state(lab: &Federation, path: &Path) -> Result<String> {
    let told = lab.json(&["hsm", "state", shown(path)?])?;
    Ok(told[0]["state"].as_str().unwrap_or("none").to_owned())
}

/// A file of its own on tape and nowhere else.
fn released(lab: &Federation, name: &str, seed: u32) -> Result<(PathBuf, Vec<u8>)> {
    let (path, bytes) = (lab.mount().join(name), bytes(seed));
    write(&path, &bytes)?;
    lab.tieline(&["hsm", "archive", shown(&path)?])?;
    lab.tieline(&["hsm", "release", shown(&path)?])?;
    ensure!(state(lab, &path)? == "released exists archived");
    Ok((path, bytes))
}

/// Promise 147: A released file is read as it was archived: whoever reads it waits until it is
/// back and can be killed meanwhile, and of several who read it at once one has the tape asked.
#[test]
fn a_released_file_comes_back_when_it_is_read() -> Result<()> {
    with_federation(|lab| {
        let library = Library::new(lab)?;
        let (path, bytes) = released(lab, "run7.root", 7)?;
        let stat = fs::metadata(&path)?;
        ensure!((stat.size(), stat.blocks()) == (LENGTH as u64, 1), "{stat:?}");
        let told = lab.tieline(&["getstripe", shown(&path)?])?;
        ensure!(told.contains("NEARLINE"), "{told}");

        // A reader who is killed goes at once; who reads beside him waits on.
        library.hold(true)?;
        let read = |path: &Path| Command::new("md5sum").arg(path).stdout(Stdio::piped()).spawn();
        let mut killed = read(&path)?;
        let readers: Vec<_> = (0..4).map(|_| read(&path)).collect::<Result<_, _>>()?;
        program::until("a script", DEADLINE, || library.count("get") > 0)?;
        std::thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        killed.kill()?;
        killed.wait()?;
        ensure!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
        library.hold(false)?;
        let mut sums = Vec::new();
        for reader in readers {
            sums.push(String::from_utf8(reader.wait_with_output()?.stdout)?);
        }
        sums.dedup();
        ensure!(sums.len() == 1, "{sums:?}");
        ensure!(fs::read(&path)? == bytes);
        ensure!(library.count("get") == 1, "{} scripts", library.count("get"));
        ensure!(state(lab, &path)? == "exists archived");

        // A script that fails is run again, and what it said is told.
        lab.expect_log("the robot is stuck");
        lab.tieline(&["hsm", "release", shown(&path)?])?;
        library.fail()?;
        ensure!(fs::read(&path)? == bytes);
        ensure!(library.count("get") == 3, "{} scripts", library.count("get"));

        // Whoever writes has it brought back first, and makes it another file than tape has.
        lab.tieline(&["hsm", "release", shown(&path)?])?;
        let refused = lab.try_tieline(&["hsm", "release", shown(lab.mount())?])?;
        ensure!(!refused.status.success(), "{refused:?}");
        fs::File::options().append(true).open(&path)?.write_all(b"more")?;
        ensure!(fs::read(&path)? == [&bytes[..], b"more"].concat());
        ensure!(state(lab, &path)? == "exists dirty");
        let dirty = lab.try_tieline(&["hsm", "release", shown(&path)?])?;
        ensure!(dirty.stderr.contains("not archived as it is now"), "{dirty:?}");
        let before = library.files()?;
        lab.tieline(&["hsm", "archive", shown(&path)?])?;
        let is_gone = || library.files().is_ok_and(|files| files.len() == 1 && files != before);
        program::until("the copy of before is removed", DEADLINE, is_gone)
    })
}

/// Promise 149: What comes back from tape and is not what was archived is an error to its readers,
/// and the mount's log names the file and its place on tape.
#[test]
fn what_tape_damaged_is_not_read() -> Result<()> {
    with_federation(|lab| {
        let library = Library::new(lab)?;
        let (path, bytes) = released(lab, "run8.root", 8)?;
        let [file] = &library.files()?[..] else { anyhow::bail!("{:?}", library.files()) };
        let mut damaged = bytes.clone();
        damaged[LENGTH - 1] ^= 1;
        fs::write(file, &damaged)?;
        lab.expect_log("is not what was archived");
        let error = fs::read(&path).err().context("damaged bytes were read")?;
        ensure!(error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
        let log = lab.logs()?;
        let named = format!("dir://tape/{}", file.file_name().context("name")?.to_string_lossy());
        let told = log.lines().filter(|line| line.contains("mount") && line.contains(&named));
        ensure!(told.count() > 0, "the mount's log does not name {named}");
        let told = lab.tieline(&["hsm", "state", shown(&path)?])?;
        ensure!(told.contains("could not restore"), "{told}");
        fs::write(file, &bytes)?;
        lab.tieline(&["hsm", "restore", shown(&path)?])?;
        ensure!(fs::read(&path)? == bytes);
        Ok(())
    })
}

/// Promise 148: Whichever server dies while a file goes to tape or comes back, the file is whole
/// on disk, or on tape and comes back.
#[test]
fn who_dies_on_the_way_to_tape_or_back_loses_nothing() -> Result<()> {
    with_federation(|lab| {
        let library = Library::new(lab)?;
        lab.expect_log("tape");
        let (path, bytes) = (lab.mount().join("run9.root"), bytes(9));
        write(&path, &bytes)?;
        // On the way there, the OSS dies with its script, then the MDS.
        library.hold(true)?;
        lab.tieline(&["hsm", "archive", "--no-wait", shown(&path)?])?;
        program::until("a put", DEADLINE, || library.count("put") > 0)?;
        lab.kill_and_restart("oss-uf")?;
        lab.kill_and_restart("mds-uf")?;
        ensure!(fs::read(&path)? == bytes);
        library.hold(false)?;
        let is = |words: &str| state(lab, &path).is_ok_and(|state| state == words);
        program::until("it is archived", DEADLINE, || is("exists archived"))?;
        lab.tieline(&["hsm", "release", shown(&path)?])?;
        // On the way back, the same, with a reader who waits through it.
        library.hold(true)?;
        let (reader, seen) = (path.clone(), bytes.clone());
        let reader = std::thread::spawn(move || fs::read(reader).map(|read| read == seen));
        program::until("a get", DEADLINE, || library.count("get") > 0)?;
        lab.kill_and_restart("mds-uf")?;
        lab.kill_and_restart("oss-uf")?;
        ensure!(!is("exists archived"));
        library.hold(false)?;
        let read = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        ensure!(read?, "other bytes came back");
        ensure!(is("exists archived"), "{}", state(lab, &path)?);
        Ok(())
    })
}
