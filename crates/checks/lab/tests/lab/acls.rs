//! POSIX access lists, by the programs people use (setfacl, getfacl, tar, cp) and by other users'
//! processes. What must come out is what a local file system answers to the same script.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use tieline_lab::{Federation, with_federation};

/// Runs in the folder it is started in, and prints what it saw.
const PRELUDE: &str = r#"
import errno, os, random, stat, subprocess, sys
os.umask(0o022)

def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr

def acl(path):
    return run("getfacl", "-n", "-p", path)[1]

def attempt(call):
    try:
        call()
        return "yes"
    except OSError as error:
        return errno.errorcode[error.errno]

def by(uid, gid, groups, work):
    """What `work` gives in another user's process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups); os.setgid(gid); os.setuid(uid)
            os.write(write, repr(work()).encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    told = b""
    while part := os.read(read, 65536):
        told += part
    os.close(read)
    os.waitpid(child, 0)
    return told.decode()

PEOPLE = [(0, 0, []), (1001, 1001, []), (1002, 1002, [2001]), (1003, 2002, [2001, 2003]),
          (1004, 1004, [])]

def rights(path):
    """Who may do what with a file or directory."""
    def work():
        if os.path.isdir(path):
            def add():
                os.mkdir(path + "/probe"); os.rmdir(path + "/probe")
            tries = [lambda: os.listdir(path), lambda: os.stat(path + "/."), add]
        else:
            tries = [lambda: os.close(os.open(path, os.O_RDONLY)),
                     lambda: os.close(os.open(path, os.O_WRONLY)),
                     lambda: os.close(os.open(path, os.O_RDWR))]
        seen = [attempt(one) for one in tries]
        return seen + [os.access(path, wish) for wish in (os.R_OK, os.W_OK, os.X_OK)]
    return [by(*who, work) for who in PEOPLE]
"#;

/// Prints the same on every file system that keeps access lists.
const BASICS: &str = r#"
os.mkdir("d"); open("f", "w").write("text")
print(acl("f"), acl("d"))
print(run("setfacl", "-m", "u:1001:rw,g:2001:r", "f"), acl("f"))
print(oct(os.stat("f").st_mode), rights("f"))
os.chmod("f", 0o604); print(acl("f"), rights("f"))
os.chmod("f", 0o670); print(acl("f"), rights("f"))
os.chown("f", 1002, 2003); print(acl("f"), rights("f"))
print(run("setfacl", "-m", "m::r", "f"), acl("f"), rights("f"))
print(run("setfacl", "-x", "u:1001", "f"), acl("f"))
print(run("setfacl", "-b", "f"), acl("f"), run("ls", "-l", "f")[1][:11])
print(run("setfacl", "-m", "u:1004:---", "f"), acl("f"), rights("f"), run("ls", "-l", "f")[1][:11])
# By others than the owner.
print(by(1001, 1001, [], lambda: run("setfacl", "-m", "u:1001:rwx", "f")[0]))
print(by(1002, 1002, [], lambda: run("setfacl", "-m", "u:1001:rwx", "f")[0]), acl("f"))
# Defaults.
print(run("setfacl", "-d", "-m", "u:1001:rwx,g:2001:rx,o::-", "d"), acl("d"))
os.umask(0o077)
open("d/file", "w").close(); os.mkdir("d/below"); os.mkfifo("d/fifo"); os.symlink("x", "d/link")
os.close(os.open("d/strict", os.O_CREAT | os.O_WRONLY, 0o600))
os.mkdir("d/below/again")
for name in ("d/file", "d/below", "d/fifo", "d/strict", "d/below/again"):
    print(acl(name), oct(os.stat(name).st_mode))
print(rights("d/below"), rights("d/file"))
print(run("setfacl", "-k", "d/below"), acl("d/below"))
open("d/below/plain", "w").close(); print(acl("d/below/plain"))
os.umask(0o022)
print(run("setfacl", "-d", "-m", "u:1:r", "f")[0])
print(run("setfacl", "-d", "-m", "u::rwx,g::rx,o::x", "d"))
# A default of classes alone.
os.mkdir("e"); print(run("setfacl", "-d", "-m", "u::rwx,g::rwx,o::r", "e"), acl("e"))
open("e/f", "w").close(); os.mkdir("e/d"); print(acl("e/f"), acl("e/d"))
# setgid is lost by who is not of the group.
open("s", "w").close(); os.chown("s", 1001, 2003); os.chmod("s", 0o2755)
print(by(1001, 1001, [], lambda: run("setfacl", "-m", "u:1002:rx", "s")[0]))
print(oct(os.stat("s").st_mode))
# Bytes that are no list.
for value in (b"", b"\2\0\0\0", b"\2\0\0\0x", b"\1\0\0\0" + bytes(8), b"\2\0\0\0" + bytes(8),
              bytes.fromhex("02000000" "01000700ffffffff" "04000500ffffffff" "20000500ffffffff"),
              bytes.fromhex("02000000" "01000900ffffffff" "04000500ffffffff" "20000500ffffffff"),
              bytes.fromhex("02000000" "01000700ffffffff" "0200070001000000" "04000500ffffffff"
                            "20000500ffffffff")):
    print(value, attempt(lambda: os.setxattr("f", "system.posix_acl_access", value)), acl("f"))
print(sorted(os.listxattr("d")), sorted(os.listxattr("s")), os.listxattr("e/f"))
print(attempt(lambda: os.getxattr("e/f", "system.posix_acl_access")))
print(attempt(lambda: os.removexattr("e/f", "system.posix_acl_access")))
print(attempt(lambda: os.removexattr("s", "system.posix_acl_access")), acl("s"))
"#;

/// Many lists by chance, and who may do what under them.
const CHANCE: &str = r#"
dice = random.Random(20)
os.mkdir("t"); os.chmod("t", 0o777)
def rwx():
    return "".join(bit if dice.random() < 0.6 else "-" for bit in "rwx")
def lists():
    parts = [f"u::{rwx()}", f"g::{rwx()}", f"o::{rwx()}"]
    parts += [f"u:{uid}:{rwx()}" for uid in (1001, 1002, 1003) if dice.random() < 0.5]
    parts += [f"g:{gid}:{rwx()}" for gid in (1004, 2001, 2002, 2003) if dice.random() < 0.4]
    if dice.random() < 0.7:
        parts.append(f"m::{rwx()}")
    return ",".join(parts)
for turn in range(12):
    path = f"t/{turn}"
    os.mkdir(path) if turn % 2 else open(path, "w").close()
    os.chown(path, dice.choice([0, 1001, 1004]), dice.choice([0, 2001, 1002]))
    print(run("setfacl", "--set", lists(), path), acl(path), rights(path))
    if turn % 2 and dice.random() < 0.8:
        print(run("setfacl", "-d", "--set", lists(), path), acl(path))
        os.umask(dice.choice([0, 0o027, 0o077]))
        open(path + "/f", "w").close(); os.mkdir(path + "/d")
        print(acl(path + "/f"), acl(path + "/d"), rights(path + "/f"))
    os.chmod(path, dice.choice([0o640, 0o750, 0o604, 0o707, 0o2770]))
    print(acl(path), rights(path))
"#;

fn are_there(lab: &Federation) -> bool {
    let is_root = tieline_lab::is_root();
    let has_programs = lab.shell("command -v setfacl getfacl").is_ok();
    if !is_root || !has_programs {
        tieline_lab::skip("needs root, and setfacl and getfacl (package acl)");
    }
    is_root && has_programs
}

fn python(lab: &Federation, folder: &Path, script: &str) -> Result<String> {
    let program = lab.local("acl.py");
    std::fs::write(&program, format!("{PRELUDE}\n{script}"))?;
    lab.shell(&format!("cd '{}' && python3 '{}'", folder.display(), program.display()))
}

/// Runs a script on the mount and beside it, on the file system of the lab's own folder.
fn compare(lab: &Federation, script: &str) -> Result<()> {
    let here = lab.local("reference");
    std::fs::create_dir(&here)?;
    let there = lab.mount().join("compared");
    std::fs::create_dir(&there)?;
    if lab.shell(&format!("cd '{}' && setfacl -m u:1:r .", here.display())).is_err() {
        tieline_lab::skip("the local file system keeps no access lists to compare with");
        return Ok(());
    }
    lab.shell(&format!("setfacl -b '{}'", here.display()))?;
    let (wanted, seen) = (python(lab, &here, script)?, python(lab, &there, script)?);
    for (number, (wanted, seen)) in wanted.lines().zip(seen.lines()).enumerate() {
        ensure!(wanted == seen, "line {number}: local {wanted}\nmounted {seen}");
    }
    ensure!(wanted == seen, "one says more than the other");
    Ok(())
}

#[test]
fn lists_are_as_on_a_local_file_system() -> Result<()> {
    with_federation(|lab| if are_there(lab) { compare(lab, BASICS) } else { Ok(()) })
}

#[test]
fn lists_by_chance_are_as_on_a_local_file_system() -> Result<()> {
    with_federation(|lab| if are_there(lab) { compare(lab, CHANCE) } else { Ok(()) })
}

#[test]
fn lists_reach_another_mount_at_once() -> Result<()> {
    with_federation(|lab| {
        if !are_there(lab) {
            return Ok(());
        }
        let other = lab.mount_again()?;
        let (here, there) = (lab.mount().display(), other.display());
        let script = format!(
            r#"
import sys
here, there = "{here}", "{there}"
os.mkdir(f"{{here}}/d"); open(f"{{here}}/d/f", "w").write("x")
os.chmod(f"{{here}}/d/f", 0o600)
reads = lambda: by(1001, 1001, [], lambda: attempt(lambda: open(f"{{there}}/d/f").close()))
assert reads() == "'EACCES'", reads()
for turn in range(10):
    assert run("setfacl", "-m", "u:1001:r", f"{{here}}/d/f")[0] == 0
    assert reads() == "'yes'", (turn, reads())
    assert acl(f"{{there}}/d/f").replace(there, here) == acl(f"{{here}}/d/f")
    assert run("setfacl", "-b", f"{{here}}/d/f")[0] == 0
    assert reads() == "'EACCES'", (turn, reads())
# What one sets as default, files made by the other get.
assert run("setfacl", "-d", "-m", "u:1001:rw", f"{{here}}/d")[0] == 0
open(f"{{there}}/d/new", "w").close()
assert "user:1001:rw-" in acl(f"{{here}}/d/new"), acl(f"{{here}}/d/new")
"#
        );
        python(lab, lab.mount(), &script)?;
        Ok(())
    })
}

#[test]
fn lists_travel_with_cp_and_tar_and_outlive_restarts() -> Result<()> {
    with_federation(|lab| {
        if !are_there(lab) {
            return Ok(());
        }
        let mount = lab.mount().display().to_string();
        let set = "mkdir a && echo x > a/f && setfacl -m u:1001:rw,g:2001:r a/f && \
                   setfacl -d -m u:1002:rwx a";
        lab.shell(&format!("cd '{mount}' && {set}"))?;
        let list = |name: &str| lab.shell(&format!("cd '{mount}/{name}' && getfacl -nR ."));
        let wanted = list("a")?;
        lab.shell(&format!(
            "cd '{mount}' && cp -a a b && tar --acls -cf '{tar}' a && mkdir c && \
             tar --acls -xf '{tar}' -C c && ls -ld a | grep -q '^d[rwx-]*+'",
            tar = lab.local("a.tar").display(),
        ))?;
        ensure!(list("b")? == wanted, "cp -a lost something: {}", list("b")?);
        ensure!(list("c/a")? == wanted, "tar lost something: {}", list("c/a")?);
        lab.tieline(&["sync", &mount]).context("sync")?;
        lab.kill_and_restart("mds-uf")?;
        ensure!(list("a")? == wanted, "a restart lost something: {}", list("a")?);
        Ok(())
    })
}
