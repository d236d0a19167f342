//! Mounts with other ids (`MOUNT_ATTR_IDMAP`), as containers with user namespaces get them. Linux
//! allows them for FUSE from 6.12 on.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use tieline_lab::program;
use tieline_lab::with_federation;

/// Mounts `$1` at `$2` so that ids 0 to 9 there are shown as 100000 to 100009 (util-linux knows
/// that from 2.39 on), and tries it as several of those.
const PROGRAM: &str = r#"
import ctypes, errno, os, stat, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
source, target = sys.argv[1:3]

def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(number))
    return result

def user_namespace():
    (told, tell), (ended, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        assert libc.unshare(0x10000000) == 0
        os.write(tell, b"x")
        os.close(end)
        os.read(ended, 1)
        os._exit(0)
    os.read(told, 1)
    for kind in ("uid_map", "gid_map"):
        with open(f"/proc/{child}/{kind}", "w") as file:
            file.write("0 100000 10")
    namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    os.close(end)
    os.waitpid(child, 0)
    return namespace

class Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "namespace")]

OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
tree = call(OPEN_TREE, -100, source.encode(), 1 | os.O_CLOEXEC)
attributes = Attributes(0x00100000, 0, 0, user_namespace())
try:
    call(MOUNT_SETATTR, tree, b"", 0x1000, ctypes.byref(attributes), ctypes.sizeof(attributes))
except OSError as error:
    print(errno.errorcode[error.errno])
    sys.exit(0)
call(MOVE_MOUNT, tree, b"", -100, target.encode(), 4)

def fails(wanted, work):
    try:
        work()
    except OSError as error:
        assert error.errno == wanted, (errno.errorcode[wanted], error)
        return
    raise AssertionError(f"it did not fail with {errno.errorcode[wanted]}")

def as_user(uid, work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([]); os.setgid(uid); os.setuid(uid)
            work()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, f"{uid} failed"

def write(path, text):
    with open(path, "w") as file:
        file.write(text)

def own():
    os.chdir(target)
    # It may ask for what was there, and change it.
    assert os.stat("kept").st_uid == 100001 and open("kept").read() == "kept"
    write("kept", "changed")
    os.chmod("kept", 0o600)
    # What it makes belongs to it, there and here.
    write("made", "made"); os.mkdir("d"); os.symlink("made", "s"); os.link("made", "again")
    os.mknod("fifo", stat.S_IFIFO | 0o600); os.rename("again", "d/moved")
    for path in ("made", "d", "s", "fifo"):
        assert os.lstat(path).st_uid == 100001, path
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR)
    assert os.fstat(fd).st_uid == 100001
    os.setxattr("made", "user.color", b"blue")
    os.unlink("s"); os.mkdir("e"); os.rmdir("e")
    assert sorted(os.listdir(".")) == ["d", "fifo", "kept", "made", "open", "secret"]
    fails(errno.EACCES, lambda: open("secret"))

def another():
    os.chdir(target)
    # The kernel gave another uid: nothing is made for it. What was there it may see as others may.
    fails(errno.EPERM, lambda: write("open/f", "x"))
    fails(errno.EPERM, lambda: os.mkdir("open/d"))
    fails(errno.EPERM, lambda: os.symlink("x", "open/s"))
    fails(errno.EPERM, lambda: os.mknod("open/p", stat.S_IFIFO | 0o600))
    fails(errno.EPERM, lambda: os.open("open", os.O_TMPFILE | os.O_RDWR))
    fails(errno.EACCES, lambda: open("kept"))
    assert open("made").read() == "made" and os.listdir("open") == []

def unmapped():
    os.chdir(target)
    fails(errno.EOVERFLOW, lambda: write("open/f", "x"))

as_user(100001, own)
as_user(100002, another)
as_user(5, unmapped)
print("mapped")
"#;

/// Promise 99: With `-o idmapped=USER` the mount can be mounted with other ids, and nothing is done
/// for any uid but that user's.
#[test]
fn one_users_mount_is_mounted_with_other_ids() -> Result<()> {
    if !tieline_lab::needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let program = lab.local("idmapped.py");
        fs::write(&program, PROGRAM)?;
        let dir = lab.mount().join("fnal/data");
        fs::create_dir_all(dir.join("open"))?;
        fs::write(dir.join("kept"), "kept")?;
        fs::write(dir.join("secret"), "root's")?;
        for (name, owner, mode) in
            [("", 1, 0o755), ("open", 1, 0o777), ("kept", 1, 0o640), ("secret", 0, 0o600)]
        {
            chown(dir.join(name), Some(owner), Some(owner))?;
            fs::set_permissions(
                dir.join(name),
                std::os::unix::fs::PermissionsExt::from_mode(mode),
            )?;
        }
        fs::create_dir(lab.local("mapped"))?;
        let map = |mount: &std::path::Path| {
            let (program, mapped) = (program.display(), lab.local("mapped"));
            program::shell(
                &lab.local("."),
                &format!(
                    "unshare --mount --propagation private python3 {program} {}/fnal/data {}",
                    mount.display(),
                    mapped.display()
                ),
            )
        };
        let refused = map(lab.mount())?;
        ensure!(refused == "EINVAL\n", "without the option: {refused}");
        let is_offered = kernel_version()? >= (6, 12);
        if !is_offered {
            tieline_lab::skip("id-mapped mounts of FUSE need Linux 6.12");
            return Ok(());
        }
        // What is denied is told in the log.
        let log = lab.with_mount("idmapped=daemon", |mount| {
            let mapped = map(mount)?;
            ensure!(mapped == "mapped\n", "{mapped}");
            // Past the shifted ids it is the user's own too, and nobody else's.
            let run = program::shell(
                mount,
                "cd fnal/data; ! touch open/root 2>&1 | grep -v 'not permitted'; cat made",
            )?;
            ensure!(run == "made", "{run}");
            Ok(())
        })?;
        ensure!(log.contains("this mount is for uid 1 alone"), "{log}");
        let made = fs::metadata(dir.join("made"))?;
        ensure!((made.uid(), made.gid()) == (1, 1), "{made:?}");
        ensure!(fs::read_to_string(dir.join("kept"))? == "changed");
        ensure!(fs::read_dir(dir.join("open"))?.next().is_none());
        Ok(())
    })
}

fn kernel_version() -> Result<(u32, u32)> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut parts = release.split(['.', '-']);
    let mut number = || parts.next().context("a version")?.parse().context("a number");
    Ok((number()?, number()?))
}
