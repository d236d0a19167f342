//! Quotas as users and operators meet them: a write that crosses a limit fails itself, counts are
//! those of the files that are there, `df` in a project's tree shows its quota, and two sites let
//! in no more than one would.

use anyhow::{Result, ensure};
use serde_json::Value;
use tieline_lab::{Federation, program, with_federation};

/// Writes as another user: `write(path, blocks)` says how many blocks of 256 KiB went in and which
/// error came then.
const PRELUDE: &str = r#"
import errno, os, sys
BLOCK = 256 * 1024

def by(uid, gid, work):
    read, end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([]); os.setgid(gid); os.setuid(uid)
            os.write(end, repr(work()).encode())
        except BaseException as error:
            os.write(end, repr(error).encode())
        finally:
            os._exit(0)
    os.close(end)
    told = b""
    while part := os.read(read, 65536):
        told += part
    os.close(read)
    os.waitpid(child, 0)
    return told.decode()

def write(path, blocks, flags=0):
    file = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o644)
    done, failed = 0, None
    try:
        while done < blocks:
            os.write(file, b"x" * BLOCK)
            done += 1
    except OSError as error:
        failed = errno.errorcode[error.errno]
    os.close(file)
    return done, failed

def attempt(call):
    try:
        call()
        return None
    except OSError as error:
        return errno.errorcode[error.errno]
"#;

fn is_root() -> bool {
    let is_root = tieline_lab::is_root();
    if !is_root {
        tieline_lab::skip("becoming other users needs root");
    }
    is_root
}

fn python(lab: &Federation, script: &str) -> Result<String> {
    let program = lab.local("quota.py");
    std::fs::write(&program, format!("{PRELUDE}\n{script}"))?;
    let (mount, program) = (lab.mount().display(), program.display());
    lab.shell(&format!("cd '{mount}' && chmod 1777 . && python3 '{program}'"))
}

fn set(lab: &Federation, words: &[&str]) -> Result<()> {
    let mount = lab.mount().display().to_string();
    let mut all = vec!["setquota"];
    all.extend(words);
    all.push(&mount);
    lab.tieline(&all).map(drop)
}

/// Opens the roots of both sites to everybody.
fn open_both(lab: &Federation) -> Result<()> {
    let mount = lab.mount().display();
    lab.shell(&format!("chmod 1777 '{mount}' '{mount}/fnal'")).map(drop)
}

/// What one payer uses and may use.
fn quota(lab: &Federation, words: &[&str]) -> Result<Value> {
    let mount = lab.mount().display().to_string();
    lab.tieline(&["sync", &mount])?;
    let mut all = vec!["quota"];
    all.extend(words);
    all.push(&mount);
    Ok(lab.json(&all)?[0].clone())
}

/// Nothing is counted that is not there, and the other way round.
fn check_counts(lab: &Federation) -> Result<()> {
    let mount = lab.mount().display().to_string();
    lab.tieline(&["sync", &mount])?;
    let told = lab.try_tieline(&["fsck", &mount])?;
    ensure!(!told.stdout.contains("than noted"), "usage is noted wrongly: {}", told.stdout);
    Ok(())
}

/// Promise 40: A write that would pass a hard limit fails itself with EDQUOT, and what was accepted
/// before it is kept.
#[test]
fn the_write_that_crosses_a_limit_fails() -> Result<()> {
    with_federation(|lab| {
        if !is_root() {
            return Ok(());
        }
        set(lab, &["-u", "1001", "-B", "4M", "-I", "10"])?;
        python(
            lab,
            r#"
told = by(1001, 1001, lambda: write("f", 40))
assert told == "(16, 'EDQUOT')", told
assert os.stat("f").st_size == 16 * BLOCK
# What is there may be written again, what goes makes room, others have their own.
assert by(1001, 1001, lambda: write("f", 16)) == "(16, None)"
assert by(1001, 1001, lambda: write("g", 1)) == "(0, 'EDQUOT')"
assert by(1002, 1002, lambda: write("h", 20)) == "(20, None)"
os.truncate("f", 8 * BLOCK)
assert by(1001, 1001, lambda: write("g", 10)) == "(8, 'EDQUOT')"
assert os.stat("g").st_size == 8 * BLOCK
# Files are counted too: f, g and eight more.
told = by(1001, 1001, lambda: [attempt(lambda: os.mkdir(f"d{n}")) for n in range(9)])
assert told == repr([None] * 8 + ["EDQUOT"]), told
os.remove("g"); os.rmdir("d0")
assert by(1001, 1001, lambda: attempt(lambda: os.mkdir("again"))) == "None"
"#,
        )?;
        let told = quota(lab, &["-u", "1001"])?;
        ensure!(told["bytes"]["used"] == 8 * (256 << 10), "{told}");
        ensure!(told["bytes"]["hard"] == 4 << 20 && told["inodes"]["used"] == 9, "{told}");
        check_counts(lab)
    })
}

/// Promise 40, where a file's new owner, or the project it was put into, pays.
#[test]
fn a_file_that_is_given_away_is_under_the_limits_of_who_pays_then() -> Result<()> {
    with_federation(|lab| {
        if !is_root() {
            return Ok(());
        }
        let other = lab.mount_again()?;
        set(lab, &["-u", "1001", "-B", "2M"])?;
        set(lab, &["-p", "7", "-B", "2M"])?;
        let (here, there) = (lab.mount().display(), other.display());
        let tieline = program::tieline()?.display();
        for (name, gives) in [
            ("here", format!("chown 1001:1001 '{here}/here'")),
            ("there", format!("sync -f '{here}'; chown 1001:1001 '{there}/there'")),
            ("project", format!("sync -f '{here}'; '{tieline}' project set '{there}/project' 7")),
        ] {
            let script = format!(
                r#"
import subprocess
assert by(1002, 1002, lambda: write("{name}", 12)) == "(12, None)"
os.chmod("{name}", 0o666)
subprocess.run("""{gives}""", shell=True, check=True, stdout=subprocess.DEVNULL)
def more():
    file = os.open("{name}", os.O_WRONLY)
    try:
        return attempt(lambda: os.pwrite(file, b"more", os.fstat(file).st_size))
    finally:
        os.close(file)
told = [by(1001, 1001, more) for _ in range(3)]
assert told == ["'EDQUOT'"] * 3, ("{name}", told)
assert os.stat("{name}").st_size == 12 * BLOCK
"#
            );
            python(lab, &script)?;
        }
        check_counts(lab)
    })
}

/// Promise 41: Two clients that write at once together never pass a hard limit.
#[test]
fn two_clients_never_pass_a_limit_together() -> Result<()> {
    with_federation(|lab| {
        if !is_root() {
            return Ok(());
        }
        let other = lab.mount_again()?;
        set(lab, &["-u", "1001", "-B", "6M"])?;
        let script = format!(
            r#"
import threading
told = {{}}
def run(name, path):
    told[name] = by(1001, 1001, lambda: write(path, 40))
pairs = [("one", "a"), ("two", "{}/b")]
threads = [threading.Thread(target=run, args=pair) for pair in pairs]
[one.start() for one in threads]; [one.join() for one in threads]
assert all(text.endswith("'EDQUOT')") for text in told.values()), told
total = sum(os.stat(path).st_size for _, path in pairs)
assert total <= 24 * BLOCK, (total // BLOCK, told)
assert total >= 20 * BLOCK, (total // BLOCK, told)
"#,
            other.display()
        );
        python(lab, &script)?;
        lab.tieline(&["sync", &other.display().to_string()])?;
        let told = quota(lab, &["-u", "1001"])?;
        ensure!(told["bytes"]["used"].as_u64().is_some_and(|used| used <= 6 << 20), "{told}");
        check_counts(lab)
    })
}

/// Promise 42: A soft limit may be passed for its grace, and holds when that is over.
#[test]
fn soft_limits_have_a_grace() -> Result<()> {
    with_federation(|lab| {
        if !is_root() {
            return Ok(());
        }
        set(lab, &["-t", "-g", "-b", "2s"])?;
        set(lab, &["-g", "2001", "-b", "1M", "-B", "8M"])?;
        python(
            lab,
            r#"
import time
assert by(1001, 2001, lambda: write("f", 8)) == "(8, None)"
time.sleep(3.5)
assert by(1001, 2001, lambda: write("g", 1)) == "(0, 'EDQUOT')"
os.truncate("f", 0)
assert by(1001, 2001, lambda: write("g", 2)) == "(2, None)"
"#,
        )?;
        let told = quota(lab, &["-g", "2001"])?;
        ensure!(told["bytes"]["grace"] == 2 && told["bytes"]["grace_left"].is_null(), "{told}");
        Ok(())
    })
}

/// Promise 43: In a project's tree df shows its quota.
#[test]
fn a_project_is_a_tree_with_a_quota() -> Result<()> {
    with_federation(|lab| {
        let mount = lab.mount().display().to_string();
        lab.shell(&format!("cd '{mount}' && mkdir -p tree/old && echo x > tree/old/file"))?;
        lab.tieline(&["project", "set", &format!("{mount}/tree"), "7"])?;
        set(lab, &["-p", "7", "-B", "4M", "-I", "8"])?;
        lab.shell(&format!(
            "cd '{mount}/tree' && mkdir new && \
             dd if=/dev/zero of=new/f bs=1M count=3 status=none && \
             ! dd if=/dev/zero of=new/g bs=1M count=3 status=none && \
             mv new/f ../f && mv ../f new/f && mv new moved && \
             test $(df -k --output=size . | tail -1) = 4096 && \
             test $(df --output=itotal . | tail -1) = 8 && \
             test $(df -k --output=size .. | tail -1) -gt 4096"
        ))?;
        let told = lab.tieline(&["project", "show", &format!("{mount}/tree/moved/f")])?;
        ensure!(told.trim().starts_with('7'), "{told}");
        let told = quota(lab, &["-p", "7"])?;
        ensure!(told["inodes"]["used"] == 6 && told["bytes"]["hard"] == 4 << 20, "{told}");
        let all = lab.json(&["repquota", "-p", &mount])?;
        ensure!(all.as_array().is_some_and(|all| all.len() == 1), "{all}");
        check_counts(lab)
    })
}

/// Promise 44: What is counted is what is there, also when a server process died in between.
#[test]
fn counts_outlive_a_killed_server() -> Result<()> {
    with_federation(|lab| {
        if !is_root() {
            return Ok(());
        }
        set(lab, &["-u", "1001", "-B", "100M"])?;
        let mount = lab.mount().display().to_string();
        let script = r#"
for turn in range(40):
    assert by(1001, 1001, lambda: write(f"f{turn}", turn % 5)).endswith("None)")
    if turn % 3 == 0:
        os.remove(f"f{turn}")
"#;
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| python(lab, script));
            std::thread::sleep(std::time::Duration::from_millis(700));
            let killed = lab.kill_and_restart("mds-uf");
            let written = writing.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
            killed.and(written.map(drop))
        })?;
        let told = quota(lab, &["-u", "1001"])?;
        let bytes = lab.shell(&format!("cat '{mount}'/f[0-9]* | wc -c"))?;
        let files = lab.shell(&format!("ls '{mount}'/f[0-9]* | wc -l"))?;
        ensure!(told["bytes"]["used"].as_u64() == bytes.trim().parse().ok(), "{told} {bytes}");
        ensure!(told["inodes"]["used"].as_u64() == files.trim().parse().ok(), "{told} {files}");
        check_counts(lab)
    })
}

/// Promise 65: Clients at several sites together never pass a hard limit, and a site that is cut
/// off may use what was shared out to it.
#[test]
fn two_sites_never_pass_a_limit_together() -> Result<()> {
    with_federation(|lab| {
        if !is_root() {
            return Ok(());
        }
        open_both(lab)?;
        let other = lab.mount_again()?;
        // What was there before is counted, wherever it is.
        python(lab, "assert by(1001, 1001, lambda: write('fnal/old', 8)) == '(8, None)'")?;
        set(lab, &["-u", "1001", "-B", "16M", "-I", "20"])?;
        let script = format!(
            r#"
import threading, time
told = {{}}
def run(name, path):
    told[name] = by(1001, 1001, lambda: write(path, 80))
pairs = [("uf", "a"), ("fnal", "{0}/fnal/b"), ("again", "fnal/c")]
threads = [threading.Thread(target=run, args=pair) for pair in pairs]
[one.start() for one in threads]; [one.join() for one in threads]
assert all(text.endswith("'EDQUOT')") for text in told.values()), told
def total():
    return sum(os.stat(path).st_size for path in ["fnal/old"] + [path for _, path in pairs])
assert total() <= 64 * BLOCK, (total() // BLOCK, told)
# What is left can be used at either.
rest = []
for path in ("fnal/rest", "rest"):
    time.sleep(1.5)
    rest.append(by(1001, 1001, lambda: write(path, 80)))
pairs += [("", "fnal/rest"), ("", "rest")]
assert total() == 64 * BLOCK, (total() // BLOCK, told, rest)
# What goes at one makes room at the other.
old = os.open("fnal/old", os.O_WRONLY | os.O_TRUNC)
os.fsync(old)
os.close(old)
more, late = 0, time.monotonic() + 30
# Who was refused just now is not asked for at the other site again for a second.
while more < 8 and time.monotonic() < late:
    more += eval(by(1001, 1001, lambda: write("more", 8 - more, os.O_APPEND)))[0]
    time.sleep(0.3)
assert more == 8, more
assert by(1001, 1001, lambda: write("more", 1, os.O_APPEND)) == "(0, 'EDQUOT')"
# Files are counted the same way: 7 are there.
made, late = 0, time.monotonic() + 30
while made < 13 and time.monotonic() < late:
    at = ("", "fnal/")[made % 2]
    told = by(1001, 1001, lambda: attempt(lambda: os.mkdir(f"{{at}}d{{made}}")))
    made += told == "None"
    time.sleep(0.3 if told != "None" else 0)
assert made == 13, made
for at in ("", "fnal/"):
    assert by(1001, 1001, lambda: attempt(lambda: os.mkdir(f"{{at}}over"))) == "'EDQUOT'"
"#,
            other.display()
        );
        python(lab, &script)?;
        lab.tieline(&["sync", &other.display().to_string()])?;
        let told = quota(lab, &["-u", "1001"])?;
        ensure!(told["bytes"]["used"].as_u64().is_some_and(|used| used <= 16 << 20), "{told}");
        ensure!(told["inodes"]["used"] == 20, "{told}");
        ensure!(told["mdts"].as_array().is_some_and(|mdts| mdts.len() == 2), "{told}");
        let fnal = format!("{}/fnal", lab.mount().display());
        let there = lab.json(&["quota", "-u", "1001", &fnal])?;
        ensure!(there[0]["bytes"] == told["bytes"], "{there} {told}");
        let all = lab.json(&["repquota", &fnal])?;
        let listed = all.as_array().and_then(|all| all.iter().find(|one| one["id"] == 1001));
        ensure!(listed.is_some_and(|one| one["bytes"] == told["bytes"]), "{all}");
        check_counts(lab)
    })
}

/// The other half of promise 45.
#[test]
fn a_site_that_is_cut_off_keeps_its_share() -> Result<()> {
    with_federation(|lab| {
        if !is_root() {
            return Ok(());
        }
        open_both(lab)?;
        set(lab, &["-u", "1001", "-B", "64M"])?;
        // The file is open when the root's server goes: names below it need that one.
        let mount = lab.mount().display().to_string();
        let script = r#"
import time
def job():
    file = os.open("fnal/f", os.O_CREAT | os.O_WRONLY, 0o644)
    def put(blocks):
        for done in range(blocks):
            try:
                os.write(file, b"x" * BLOCK)
            except OSError as error:
                return done, errno.errorcode[error.errno]
        return blocks, None
    first = put(32)
    os.fsync(file)
    open(os.environ["READY"], "w").close()
    while os.path.exists(os.environ["READY"]):
        time.sleep(0.05)
    second = put(400)
    os.fsync(file)
    os.close(file)
    return first, second
print(by(1001, 1001, job))
"#;
        let ready = lab.local("ready");
        std::fs::create_dir(&ready)?;
        std::fs::set_permissions(&ready, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
        let (flag, dir) = (ready.join("flag"), lab.dir().display().to_string());
        let script_file = lab.local("cut.py");
        std::fs::write(&script_file, format!("{PRELUDE}\n{script}"))?;
        let job = format!(
            "cd '{mount}' && READY='{}' timeout 120 python3 '{}'",
            flag.display(),
            script_file.display()
        );
        let said = std::thread::scope(|scope| {
            let writing = scope.spawn(|| lab.shell(&job));
            program::until("the first part is written", program::DEADLINE, || flag.exists())?;
            // What is in use there is known, and the slack is what it will be.
            std::thread::sleep(std::time::Duration::from_secs(5));
            lab.tieline(&["dev", "kill", "mds-uf", "--dir", &dir])?;
            std::fs::remove_file(&flag)?;
            let said = writing.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
            lab.tieline(&["dev", "start", "mds-uf", "--dir", &dir])?;
            said
        })?;
        // 8 MiB, and then an eighth of 64 MiB, or two, in blocks of 256 KiB.
        let numbers: Vec<u64> = said
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|part| part.parse().ok())
            .collect();
        ensure!(said.contains("((32, None), (") && said.contains("'EDQUOT'"), "{said}");
        ensure!(numbers.get(1).is_some_and(|more| (8..=128).contains(more)), "{said}");
        let told = quota(lab, &["-u", "1001"])?;
        let blocks = numbers.iter().sum::<u64>();
        ensure!(told["bytes"]["used"] == blocks * (256 << 10), "{told} {said}");
        python(lab, "assert by(1001, 1001, lambda: write('f', 300)).endswith(\"'EDQUOT')\")")?;
        let told = quota(lab, &["-u", "1001"])?;
        ensure!(told["bytes"]["used"] == 64 << 20, "{told}");
        Ok(())
    })
}

/// Promises 40 and 45, for who has no limits of their own.
#[test]
fn default_limits_hold_at_both_sites() -> Result<()> {
    with_federation(|lab| {
        if !is_root() {
            return Ok(());
        }
        open_both(lab)?;
        python(lab, "assert by(1001, 1001, lambda: write('fnal/old', 4)) == '(4, None)'")?;
        set(lab, &["-U", "-B", "4M"])?;
        set(lab, &["-u", "1002", "-B", "0"])?;
        set(lab, &["-u", "1003", "-B", "8M"])?;
        python(
            lab,
            r#"
def crossing(uid, path):
    done, error = eval(by(uid, uid, lambda: write(path, 40)))
    assert error == "EDQUOT", (uid, path, done, error)
    return done
total = 4 + crossing(1001, "f") + crossing(1001, "fnal/g")
assert 12 <= total <= 16, total
assert by(1002, 1002, lambda: write("fnal/free", 20)) == "(20, None)"
assert by(1003, 1003, lambda: write("own", 40)) == "(32, 'EDQUOT')"
total = crossing(1004, "fnal/new")
assert 12 <= total <= 16, total
"#,
        )?;
        let told = quota(lab, &["-U"])?;
        ensure!(told["bytes"]["hard"] == 4 << 20 && told["name"] == "default", "{told}");
        let mount = lab.mount().display().to_string();
        let all = lab.json(&["repquota", &mount])?;
        let of = |id: u64| all.as_array()?.iter().find(|one| one["id"] == id);
        let is_default = |id: u64| of(id).map(|one| one["default"] == true);
        let marks = [1001, 1002, 1003, 1004].map(is_default);
        ensure!(marks == [Some(true), Some(false), Some(false), Some(true)], "{all}");
        ensure!(lab.tieline(&["repquota", &mount])?.contains("(default)"));
        set(lab, &["-D", "-u", "1002"])?;
        python(lab, "assert by(1002, 1002, lambda: write('more', 1)) == \"(0, 'EDQUOT')\"")?;
        set(lab, &["-U", "-B", "0"])?;
        python(lab, "assert by(1001, 1001, lambda: write('fnal/more', 20)) == '(20, None)'")?;
        check_counts(lab)
    })
}

/// Promises 40 and 45, in a pool. The root's files are in pool `uf`, those at fnal in `fnal`.
#[test]
fn limits_in_a_pool_hold_there_and_nowhere_else() -> Result<()> {
    with_federation(|lab| {
        if !is_root() {
            return Ok(());
        }
        open_both(lab)?;
        let mount = lab.mount().display().to_string();
        lab.shell("mkdir -m 1777 far fnal/near")?;
        lab.tieline(&["setstripe", "-p", "fnal", &format!("{mount}/far")])?;
        lab.tieline(&["setstripe", "-p", "uf", &format!("{mount}/fnal/near")])?;
        set(lab, &["-u", "1001", "--pool", "uf", "-B", "4M"])?;
        python(
            lab,
            r#"
assert by(1001, 1001, lambda: write("f", 40)) == "(16, 'EDQUOT')"
assert by(1001, 1001, lambda: write("g", 1)) == "(0, 'EDQUOT')"
assert by(1001, 1001, lambda: write("far/g", 20)) == "(20, None)"
assert by(1001, 1001, lambda: write("fnal/g", 20)) == "(20, None)"
assert by(1002, 1002, lambda: write("h", 20)) == "(20, None)"
"#,
        )?;
        let told = quota(lab, &["-u", "1001", "--pool", "uf"])?;
        ensure!(told["bytes"]["used"] == 4 << 20 && told["bytes"]["hard"] == 4 << 20, "{told}");
        ensure!(quota(lab, &["-u", "1001"])?["bytes"]["used"] == 14 << 20);
        let all = lab.json(&["repquota", "--pool", "uf", &mount])?;
        let of =
            |id: u64| all.as_array()?.iter().find(|one| one["id"] == id && one["pool"] == "uf");
        ensure!(of(1001).is_some_and(|one| one["bytes"] == told["bytes"]), "{all}");
        ensure!(of(1002).is_some_and(|one| one["bytes"]["used"] == 5 << 20), "{all}");
        // A write that is refused is explained.
        let file = format!("{mount}/f");
        let run = lab.try_tieline(&["explain", "--op", "append", &file])?;
        let is_told = run.stdout.contains("user 1001 in pool uf: 4 MiB of 4 MiB used");
        ensure!(!run.status.success() && is_told, "{}", run.stdout);
        let far = lab.tieline(&["explain", "--op", "append", &format!("{mount}/far/g")])?;
        ensure!(far.ends_with("allowed\n"), "{far}");
        // The pool's files at the other site's MDT count in the same limit; what goes makes room.
        python(
            lab,
            r#"
import time
assert by(1001, 1001, lambda: write("fnal/near/i", 1)) == "(0, 'EDQUOT')"
os.truncate("f", 0)
more, late = 0, time.monotonic() + 30
while more < 16 and time.monotonic() < late:
    more += eval(by(1001, 1001, lambda: write("fnal/near/i", 40, os.O_APPEND)))[0]
    time.sleep(0.3)
assert more == 16, more
"#,
        )?;
        check_counts(lab)
    })
}
