//! What POSIX and Linux promise of names and attributes, by programs in Python: they become other
//! users, ask for system calls that Rust's library hides, and say with an assertion what they miss.

use anyhow::{Context, Result, ensure};
use std::os::unix::fs::PermissionsExt;
use tieline_lab::{Federation, with_federation};

/// What every program may use: the mount is its folder.
const PRELUDE: &str = r#"
import ctypes, errno, os, stat, sys, time
libc = ctypes.CDLL(None, use_errno=True)

def fails(wanted, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except OSError as error:
        assert error.errno == wanted, (wanted, error)
        return
    raise AssertionError(f"{call.__name__}{arguments} did not fail")

def rename2(old, new, flags):
    old, new = (name if isinstance(name, bytes) else name.encode() for name in (old, new))
    if libc.renameat2(-100, old, -100, new, flags):
        raise OSError(ctypes.get_errno(), "renameat2")
NOREPLACE, EXCHANGE = 1, 2

def as_user(uid, gid, groups, work):
    """In a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups(groups); os.setgid(gid); os.setuid(uid)
            work()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, "the other user's program failed"

def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)

def write(path, text):
    with open(path, "w") as file:
        file.write(text)
"#;

fn python(lab: &Federation, program: &str) -> Result<()> {
    let path = lab.local("program.py");
    std::fs::write(&path, format!("{PRELUDE}\n{program}"))?;
    lab.shell(&format!("python3 {}", path.display()))?;
    Ok(())
}

fn needs_root() -> bool {
    let is_root = tieline_lab::is_root();
    if !is_root {
        tieline_lab::skip("becoming other users needs root");
    }
    is_root
}

/// Promise 18: rename with RENAME_NOREPLACE never replaces, and RENAME_EXCHANGE swaps two names in
/// one step.
#[test]
fn renames_that_do_not_replace_and_that_exchange() -> Result<()> {
    with_federation(|lab| {
        python(
            lab,
            r#"
write("a", "one"); write("b", "two"); os.mkdir("d"); os.mkdir("d/e"); write("d/f", "three")
fails(errno.EEXIST, rename2, "a", "b", NOREPLACE)
rename2("a", "c", NOREPLACE)
assert not os.path.exists("a") and open("c").read() == "one"
before = {name: os.stat(name).st_ino for name in ("c", "d", "d/f")}
rename2("c", "d/f", EXCHANGE)
assert open("c").read() == "three" and open("d/f").read() == "one"
assert os.stat("c").st_ino == before["d/f"]
fails(errno.ENOENT, rename2, "c", "nothing", EXCHANGE)
fails(errno.EINVAL, rename2, "d", "d/e", EXCHANGE)
fails(errno.EINVAL, rename2, "c", "b", NOREPLACE | EXCHANGE)
# A file and a directory change places: link counts move with the directory.
assert os.stat("d").st_nlink == 3
rename2("c", "d/e", EXCHANGE)
assert os.stat("d").st_nlink == 2 and os.path.isdir("c") and open("d/e").read() == "three"
assert os.listdir("c") == [] and os.stat("c/..").st_ino == os.stat(".").st_ino
"#,
        )
    })
}

/// Promise 19: Times have nanoseconds, from before 1970 to beyond 2106.
#[test]
fn times_have_nanoseconds() -> Result<()> {
    with_federation(|lab| {
        python(
            lab,
            r#"
write("f", "x"); os.symlink("f", "s"); os.mkdir("d"); os.mkfifo("p")
for path in ("f", "s", "d", "p"):
    for at in ((1, 999_999_999), (-1, 1), (2**31 + 5, 123_456_789), (2**32 + 7, 0), (0, 0)):
        ns = (at[0] * 10**9 + at[1], at[0] * 10**9 + at[1] + 1)
        os.utime(path, ns=ns, follow_symlinks=False)
        seen = os.lstat(path)
        assert (seen.st_atime_ns, seen.st_mtime_ns) == ns, (path, ns, seen)
# One of both, and now.
class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanos", ctypes.c_long)]
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2
def utimens(path, atime, mtime):
    if libc.utimensat(-100, path.encode(), (Timespec * 2)(atime, mtime), 0):
        raise OSError(ctypes.get_errno(), path)
os.utime("f", ns=(5, 6))
utimens("f", Timespec(0, OMIT), Timespec(9, 9))
assert (os.stat("f").st_atime_ns, os.stat("f").st_mtime_ns) == (5, 9 * 10**9 + 9)
utimens("f", Timespec(0, NOW), Timespec(0, OMIT))
assert abs(os.stat("f").st_atime - time.time()) < 60 and os.stat("f").st_mtime_ns == 9 * 10**9 + 9
before = os.stat("f").st_ctime_ns
os.chmod("f", 0o600)
assert os.stat("f").st_ctime_ns > before
# A write marks both times at once, whenever its bytes are committed.
def times(path):
    seen = os.stat(path)
    return seen.st_mtime_ns, seen.st_ctime_ns
written = {}
for size in (3, 150_000):
    for round in range(20):
        path = f"w{size}.{round}"
        with open(path, "xb") as file: file.write(bytes(size))
        with open(path, "ab") as file: file.write(bytes(size))
        written[path] = times(path)
        assert written[path][0] == written[path][1], (path, written[path])
    # The mode is set after the bytes were written, and before they are committed.
    path = f"m{size}"
    with open(path, "xb", buffering=0) as file:
        file.write(bytes(size)); time.sleep(0.02); os.fchmod(file.fileno(), 0o640)
    written[path] = times(path)
    assert written[path][0] < written[path][1], (path, written[path])
time.sleep(2)
for path, before in written.items():
    assert times(path) == before, (path, before, times(path))
"#,
        )
    })
}

/// Promise 20: setuid, setgid and sticky mean and end what they do on a local file system.
#[test]
fn setuid_setgid_and_sticky() -> Result<()> {
    if !needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        python(
            lab,
            r#"
os.chmod(".", 0o777)
# Writing, cutting and giving away end setuid and setgid, seen at once.
def writer():
    file = os.open("f", os.O_RDWR)
    os.write(file, b"x")
    assert stat.S_IMODE(os.fstat(file).st_mode) == 0o777, "before close"
    os.close(file)
    assert mode("f") == 0o777
write("f", ""); os.chmod("f", 0o6777)
as_user(1234, 1234, [], writer)
os.chmod("f", 0o6777)
as_user(1234, 1234, [], lambda: os.truncate("f", 0))
assert mode("f") == 0o777
os.chmod("f", 0o6777); os.chown("f", 10, 10)
assert mode("f") == 0o777
# Root writes without ending them.
os.chmod("f", 0o6777); write("f", "root"); assert mode("f") == 0o6777
# A setgid directory hands its group down, and itself to directories.
os.mkdir("shared"); os.chown("shared", 0, 77); os.chmod("shared", 0o2777)
def in_shared():
    write("shared/f", "x"); os.mkdir("shared/d")
    assert os.stat("shared/f").st_gid == 77 and os.stat("shared/d").st_gid == 77
    assert mode("shared/d") & stat.S_ISGID and not mode("shared/f") & stat.S_ISGID
    # Not a member: setgid cannot be set on a file of that group.
    os.chmod("shared/f", 0o2755); assert mode("shared/f") == 0o755
    file = os.open("shared/g", os.O_CREAT | os.O_WRONLY, 0o2775)
    assert not os.fstat(file).st_mode & stat.S_ISGID
as_user(1234, 1234, [], in_shared)
def member():
    file = os.open("shared/h", os.O_CREAT | os.O_WRONLY)
    os.fchmod(file, 0o2755)
    assert mode("shared/h") == 0o2755
as_user(1234, 1234, [77], member)
# In a sticky directory names belong to the file's owner, the directory's and root.
os.mkdir("tmp"); os.chmod("tmp", 0o1777)
as_user(1234, 1234, [], lambda: write("tmp/mine", "x"))
def other():
    fails(errno.EPERM, os.unlink, "tmp/mine")
    fails(errno.EPERM, os.rename, "tmp/mine", "tmp/yours")
    write("tmp/own", "y")
    fails(errno.EPERM, os.rename, "tmp/own", "tmp/mine")
    fails(errno.EPERM, rename2, "tmp/own", "tmp/mine", EXCHANGE)
as_user(4321, 4321, [], other)
as_user(1234, 1234, [], lambda: os.unlink("tmp/mine"))
os.unlink("tmp/own")
"#,
        )
    })
}

/// Promise 21: Supplementary groups count, as they are at the call.
#[test]
fn supplementary_groups_count() -> Result<()> {
    if !needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        python(
            lab,
            r#"
os.chmod(".", 0o755)
write("f", "x"); os.chown("f", 0, 500); os.chmod("f", 0o660)
os.mkdir("d"); os.chown("d", 0, 500); os.chmod("d", 0o770)
write("own", "x"); os.chown("own", 1234, 1234)
def outsider():
    fails(errno.EACCES, open, "f"); fails(errno.EACCES, write, "d/x", "")
    fails(errno.EPERM, os.chown, "own", -1, 500)
as_user(1234, 1234, [501], outsider)
def member():
    assert open("f").read() == "x"; write("d/x", "y"); os.unlink("d/x")
    os.chown("own", -1, 500)
    fails(errno.EPERM, os.chown, "own", -1, 502)
as_user(1234, 1234, [501, 500], member)
# One process that changes its groups, as file servers do.
os.chown("own", 1234, 1234)
for round in range(6):
    is_member = round % 2 == 1
    os.setgroups([500] if is_member else [501]); os.setegid(1234); os.seteuid(1234)
    try:
        if is_member:
            assert open("f").read() == "x"; write("d/x", str(round)); os.chown("own", -1, 500)
            os.chmod("own", 0o2755); assert mode("own") == 0o2755
        else:
            fails(errno.EACCES, open, "f"); fails(errno.EACCES, write, "d/x", "")
            if round:
                os.chmod("own", 0o2755); assert mode("own") == 0o755, "not a member any more"
            fails(errno.EPERM, os.chown, "own", -1, 499)
    finally:
        os.seteuid(0); os.setegid(0); os.setgroups([])
"#,
        )
    })
}

/// Promise 22: A position in a directory stays good while names come and go, on every file
/// descriptor of the mount: what was there all the time is listed once.
#[test]
fn positions_in_a_directory_that_changes() -> Result<()> {
    with_federation(|lab| {
        python(
            lab,
            r#"
class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_ushort),
                ("type", ctypes.c_ubyte), ("name", ctypes.c_char * 256)]
for name, result, arguments in (
    ("opendir", ctypes.c_void_p, [ctypes.c_char_p]), ("telldir", ctypes.c_long, [ctypes.c_void_p]),
    ("readdir", ctypes.POINTER(Dirent), [ctypes.c_void_p]), ("rewinddir", None, [ctypes.c_void_p]),
    ("seekdir", None, [ctypes.c_void_p, ctypes.c_long]),
    ("closedir", ctypes.c_int, [ctypes.c_void_p]),
):
    function = getattr(libc, name)
    function.restype, function.argtypes = result, arguments
def next_name(stream):
    entry = libc.readdir(stream)
    return entry.contents.name.decode() if entry else None
def rest(stream):
    return [name for name in iter(lambda: next_name(stream), None) if name not in (".", "..")]
os.mkdir("d")
COUNT = 9000
names = [f"{index:06}" for index in range(COUNT)]
for name in names:
    os.close(os.open(f"d/{name}", os.O_CREAT | os.O_WRONLY))
stream = libc.opendir(b"d")
places = []
while (name := next_name(stream)) is not None:
    if name not in (".", ".."):
        places.append((name, libc.telldir(stream)))
assert [name for name, _ in places] == names
# While it is open: every seventh goes, and others come everywhere.
kept = [name for index, name in enumerate(names) if index % 7]
kept_set = set(kept)
for name in names[::7]:
    os.unlink(f"d/{name}")
for index in range(0, COUNT, 300):
    write(f"d/{index:06}-new", "")
for index in (COUNT - 2, 8400, 7000, 4200, 701, 700, 14, 7, 0):
    name, place = places[index]
    libc.seekdir(stream, place)
    # Whether what came or went is shown is nobody's promise.
    seen = [name for name in rest(stream) if name in kept_set]
    assert seen == [other for other in kept if other > name], (index, len(seen))
    libc.rewinddir(stream)
    other = libc.opendir(b"d")
    libc.seekdir(other, place)
    assert [name for name in rest(other) if name in kept_set] == seen, index
    libc.closedir(other)
libc.rewinddir(stream)
anew = rest(stream)
assert sorted(anew) == sorted(os.listdir("d")) and len(set(anew)) == len(anew)
libc.closedir(stream)
# Removing while listing finds every name.
stream = libc.opendir(b"d")
while (name := next_name(stream)) is not None:
    if name not in (".", ".."):
        os.unlink(f"d/{name}")
libc.closedir(stream)
os.rmdir("d")
"#,
        )
    })
}

/// Promise 23: Names have up to 255 bytes of any kind.
#[test]
fn names_are_bytes() -> Result<()> {
    with_federation(|lab| {
        let far = lab.mount_again()?;
        python(
            lab,
            r#"
names = [bytes(b for b in range(1, 256) if b != 47)[:255], b"\xff" * 255, b"\n", b"-rf *",
         "日本".encode("euc-jp"), "é".encode("latin-1"), " ", b"\xc3\x28"]
names = [name if isinstance(name, bytes) else name.encode() for name in names]
os.mkdir("names"); os.chdir("names")
for name in names:
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    os.stat(name)
assert set(os.listdir(b".")) == set(names)
for name in (b"x" * 256, b"\xff" * 256):
    fails(errno.ENAMETOOLONG, os.open, name, os.O_CREAT | os.O_WRONLY)
    fails(errno.ENAMETOOLONG, os.mkdir, name)
    fails(errno.ENAMETOOLONG, os.symlink, b"x", name)
    fails(errno.ENAMETOOLONG, os.rename, names[0], name)
    fails(errno.ENAMETOOLONG, os.stat, name)
target = b"t" * 4095
os.symlink(target, b"link"); assert os.readlink(b"link") == target
fails(errno.ENAMETOOLONG, os.symlink, b"t" * 4096, b"other")
deep = b"/".join([b"d" * 255] * 15)
os.makedirs(deep); rest = 4095 - len(os.getcwd().encode()) - 1
os.stat(deep); fails(errno.ENAMETOOLONG, os.stat, b"./" * 2048)
assert os.statvfs(b".").f_namemax == 255
"#,
        )?;
        let listed = std::fs::read_dir(far.join("names"))?.count();
        ensure!(listed == 10, "{listed} names elsewhere");
        Ok(())
    })
}

/// As ext4 was seen to do it, of whatever counts as a write.
#[test]
fn each_kind_of_write_ends_setuid_setgid_and_capabilities() -> Result<()> {
    if !needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        python(
            lab,
            r#"
os.chmod(".", 0o777)
OWNER, GROUP = 1001, 2000
CAPABILITY = b"\x01\x00\x00\x02" + b"\x00\x04\x00\x00" + b"\x00" * 12
PEOPLE = {"root": (0, 0, []), "owner": (OWNER, 1001, []), "member": (1002, 1002, [GROUP]),
          "other": (1003, 1003, [])}
write("source", "y" * 8192); os.chmod("source", 0o644)

def written(flags):
    return lambda file: os.write(os.open(file, os.O_WRONLY | flags), b"y")
def allocated(mode, offset, length):
    def work(file):
        range = (ctypes.c_int64(offset), ctypes.c_int64(length))
        if libc.fallocate(os.open(file, os.O_RDWR), mode, *range):
            raise OSError(ctypes.get_errno(), "fallocate")
    return work
def copied(file):
    os.copy_file_range(os.open("source", os.O_RDONLY), os.open(file, os.O_RDWR), 4096, 0, 0)
KEEP, PUNCH, ZERO = 1, 2, 16
WRITES = {
    "write": written(0), "append": written(os.O_APPEND), "O_TRUNC": written(os.O_TRUNC),
    "truncate": lambda file: os.truncate(file, 3), "copy": copied,
    "fallocate within": allocated(0, 0, 4096), "fallocate beyond": allocated(0, 0, 16384),
    "keep": allocated(KEEP, 0, 4096), "keep beyond": allocated(KEEP, 0, 16384),
    "punch": allocated(PUNCH | KEEP, 0, 4096), "punch beyond": allocated(PUNCH | KEEP, 16384, 1),
    "zero": allocated(ZERO, 0, 4096), "zero beyond": allocated(ZERO | KEEP, 16384, 4096),
}
# Where the group may not execute, setgid ends with who is not in it.
LEFT = {0o6777: {"owner": 0o777, "member": 0o777, "other": 0o777},
        0o6766: {"owner": 0o766, "member": 0o2766, "other": 0o766}}

def fresh(file, mode):
    write(file, "x" * 8192); os.chown(file, OWNER, GROUP); os.chmod(file, mode)
    os.setxattr(file, "security.capability", CAPABILITY)
    os.utime(file, ns=(1, 1))
    return os.stat(file)
def seen(file):
    fails(errno.ENODATA, os.getxattr, file, "security.capability")
    return os.stat(file)
for name, work in WRITES.items():
    for who, (uid, gid, groups) in PEOPLE.items():
        for before in LEFT:
            what, file = (name, who, oct(before)), f"{name} {who} {before}"
            was = fresh(file, before)
            as_user(uid, gid, groups, lambda: work(file))
            now = seen(file)
            left = LEFT[before].get(who, before)
            assert stat.S_IMODE(now.st_mode) == left, (what, oct(now.st_mode))
            assert now.st_mtime_ns > was.st_mtime_ns and now.st_ctime_ns > was.st_ctime_ns, what
for who in ("root", "owner"):
    for before, left in ((0o6777, 0o777), (0o6766, 0o2766 if who == "root" else 0o766)):
        was = fresh("given", before)
        uid, gid, groups = PEOPLE[who]
        as_user(uid, gid, groups, lambda: os.chown("given", OWNER, -1))
        assert mode("given") == left, (who, oct(before), oct(mode("given")))
        seen("given")
# Nobody takes one away by name who may not set it.
fresh("kept", 0o666)
as_user(OWNER, 1001, [], lambda: fails(errno.EPERM, os.removexattr, "kept", "security.capability"))
"#,
        )
    })
}

/// Promise 24: Extended attributes have Linux's limits and errors; a write takes
/// security.capability away.
#[test]
fn extended_attributes_have_limits() -> Result<()> {
    with_federation(|lab| {
        let far = lab.mount_again()?;
        python(
            lab,
            r#"
write("f", "x")
big = bytes(range(256)) * 256
os.setxattr("f", "user.big", big); assert os.getxattr("f", "user.big") == big
fails(errno.E2BIG, os.setxattr, "f", "user.big", big + b"x")
fails(errno.ERANGE, os.setxattr, "f", "user." + "n" * 251, b"")
os.setxattr("f", "user." + "n" * 250, b"longest")
fails(errno.ENODATA, os.getxattr, "f", "user.none")
fails(errno.ENODATA, os.removexattr, "f", "user.none")
fails(errno.ENODATA, os.setxattr, "f", "user.none", b"", os.XATTR_REPLACE)
fails(errno.EEXIST, os.setxattr, "f", "user.big", b"", os.XATTR_CREATE)
fails(errno.EOPNOTSUPP, os.setxattr, "f", "nonsense.x", b"")
small = ctypes.create_string_buffer(10)
assert libc.getxattr(b"f", b"user.big", small, 10) == -1 and ctypes.get_errno() == errno.ERANGE
assert libc.listxattr(b"f", small, 10) == -1 and ctypes.get_errno() == errno.ERANGE
assert libc.getxattr(b"f", b"user.big", None, 0) == 65536
os.setxattr("f", "user.none", b""); assert os.getxattr("f", "user.none") == b""
# Names alone fill a list, too.
write("many", "")
count = 0
try:
    while count < 500:
        os.setxattr("many", f"user.{count:0250}", b""); count += 1
except OSError as error:
    assert error.errno == errno.ENOSPC, error
assert 200 <= count < 500 and len(os.listxattr("many")) == count
# Links and devices have no user attributes, but root's.
os.symlink("f", "s"); os.mkfifo("p")
for path in ("s", "p"):
    fails(errno.EPERM, os.setxattr, path, "user.x", b"", follow_symlinks=False)
    if os.geteuid() == 0:
        os.setxattr(path, "trusted.x", b"1", follow_symlinks=False)
        assert os.getxattr(path, "trusted.x", follow_symlinks=False) == b"1"
if os.geteuid() == 0:
    os.chmod(".", 0o777); os.chmod("f", 0o666)
    os.setxattr("f", "trusted.secret", b"s")
    assert "trusted.secret" in os.listxattr("f")
    def other():
        assert "trusted.secret" not in os.listxattr("f")
        fails(errno.ENODATA, os.getxattr, "f", "trusted.secret")
        fails(errno.EPERM, os.setxattr, "f", "trusted.secret", b"")
        fails(errno.EPERM, os.setxattr, "f", "security.other", b"")
    as_user(1234, 1234, [], other)
    CAPABILITY = b"\x01\x00\x00\x02" + b"\x00\x04\x00\x00" + b"\x00" * 12
    def has():
        return "security.capability" in os.listxattr("prog")
    write("prog", "something"); os.chmod("prog", 0o755)
    for change in (
        lambda: write("prog", "other"), lambda: os.truncate("prog", 1),
        lambda: os.chown("prog", 5, 5), lambda: os.chown("prog", -1, 6),
    ):
        os.setxattr("prog", "security.capability", CAPABILITY); assert has()
        os.chmod("prog", 0o700); os.utime("prog"); assert has()
        change()
        assert not has()
        fails(errno.ENODATA, os.getxattr, "prog", "security.capability")
    os.setxattr("prog", "security.capability", CAPABILITY)
    file = os.open("prog", os.O_WRONLY); os.write(file, b"x")
    fails(errno.ENODATA, os.getxattr, "prog", "security.capability")
    os.close(file)
    # `cp`, then `setcap`; `cp --preserve=xattr`, which sets it before it closes.
    programs = []
    for size in (3, 150_000, 3_000_000):
        for sets_first in (False, True):
            program = f"prog {size} {sets_first}"
            with open(program, "wb", buffering=0) as file:
                file.write(bytes(size))
                if sets_first: os.setxattr(file.fileno(), "security.capability", CAPABILITY)
            if not sets_first: os.setxattr(program, "security.capability", CAPABILITY)
            programs.append(program)
    time.sleep(2)
    for program in programs:
        assert os.getxattr(program, "security.capability") == CAPABILITY, program
"#,
        )?;
        let value = xattr::get(&far.join("f"), "user.none")?;
        ensure!(value == Some(vec![]), "{value:?} elsewhere");
        Ok(())
    })
}

/// As a program would ask from another client.
mod xattr {
    use std::path::Path;

    pub fn get(path: &Path, name: &str) -> std::io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; 100];
        match rustix::fs::getxattr(path, name, &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                Ok(Some(value))
            }
            Err(rustix::io::Errno::NODATA) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Promise 25: A file made with O_TMPFILE has no name until it is linked, and goes with its last
/// close.
#[test]
fn files_without_names() -> Result<()> {
    with_federation(|lab| {
        python(
            lab,
            r#"
os.mkdir("d")
def link(file, new):
    FOLLOW = 0x400
    if libc.linkat(-100, f"/proc/self/fd/{file}".encode(), -100, new.encode(), FOLLOW):
        raise OSError(ctypes.get_errno(), "linkat")
def nameless(flags=0):
    return os.open("d", os.O_TMPFILE | os.O_RDWR | flags, 0o640)
try:
    file = nameless()
except OSError as error:
    # Kernels before 6.1 do not pass it on.
    assert error.errno == errno.EOPNOTSUPP, error
    sys.exit()
os.write(file, b"later named" * 10000)
assert os.fstat(file).st_nlink == 0 and os.listdir("d") == []
link(file, "d/named")
assert os.fstat(file).st_nlink == 1
os.write(file, b"!"); os.close(file)
assert open("d/named").read() == "later named" * 10000 + "!" and mode("d/named") == 0o640
os.unlink("d/named")
# Never named: gone. Nor may one be named that had a name and lost it.
file = nameless(); os.write(file, b"x" * 100000); os.fsync(file); os.close(file)
file = os.open("d/f", os.O_CREAT | os.O_RDWR); os.unlink("d/f")
fails(errno.ENOENT, link, file, "d/again")
os.close(file)
file = nameless(os.O_EXCL)
fails(errno.ENOENT, link, file, "d/again")
os.close(file); os.rmdir("d")
"#,
        )
    })
}

#[test]
fn what_fstab_says_of_programs_and_devices_is_kept() -> Result<()> {
    if !needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let script = lab.mount().join("script");
        std::fs::write(&script, "#!/bin/sh\necho ran\n")?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
        ensure!(std::process::Command::new(&script).output()?.stdout == b"ran\n");
        lab.with_mount("noexec,acl,user_xattr,flock,hard,nofail", |mount| {
            let refused = std::process::Command::new(mount.join("script")).output().err();
            let refused = refused.context("noexec is not kept")?;
            ensure!(refused.kind() == std::io::ErrorKind::PermissionDenied, "{refused}");
            let mounts = std::fs::read_to_string("/proc/mounts")?;
            let shown = mount.to_string_lossy().into_owned();
            let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(shown.as_str()));
            let line = line.context("mounted")?;
            ensure!(["nosuid", "nodev", "noexec"].iter().all(|word| line.contains(word)), "{line}");
            Ok(())
        })?;
        Ok(())
    })
}

/// Promise 26: Reading changes no time of access, unless the mount has relatime: then the first
/// reading after a change does, and one a day.
#[test]
fn times_of_access_with_relatime_and_without() -> Result<()> {
    if !needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        let address = lab.process("mds-uf")?["address"].as_str().context("address")?.to_owned();
        let noting = lab.local("noting");
        std::fs::create_dir(&noting)?;
        let source = format!("{address}:/extenci");
        let shown = noting.display().to_string();
        lab.tieline(&["mount", &source, &shown, "-o", "relatime"])?;
        let outcome = python(
            lab,
            &format!(
                r#"
NOTING = {shown:?}
options = {{line.split()[1]: line.split()[3].split(",") for line in open("/proc/mounts")}}
assert "noatime" in options[os.getcwd()] and "noatime" not in options[NOTING], options
DAY = 86400 * 10**9
write("f", "bytes"); os.mkdir("d"); os.symlink("f", "s")
def age(path):
    old = time.time_ns() - 10**9
    os.utime(path, ns=(old, old), follow_symlinks=False)
    return os.lstat(path).st_atime_ns
def read(path):
    if os.path.islink(path): os.readlink(path)
    elif os.path.isdir(path): os.listdir(path)
    else: open(path).read()
for path in ("f", "d", "s"):
    there = os.path.join(NOTING, path)
    age(path); before = os.lstat(path); read(path)
    assert os.lstat(path).st_atime_ns == before.st_atime_ns, "noatime"
    # Change, then read: noted at once, everywhere, and it is no change.
    changed = os.lstat(there); read(there); seen = os.lstat(there)
    assert seen.st_atime_ns > changed.st_ctime_ns, path
    assert seen.st_ctime_ns == changed.st_ctime_ns and seen.st_mtime_ns == changed.st_mtime_ns
    for _ in range(500):
        if os.lstat(path).st_atime_ns == seen.st_atime_ns: break
        time.sleep(0.01)
    else: raise AssertionError("the other client does not see it")
    read(there); assert os.lstat(there).st_atime_ns == seen.st_atime_ns, "once"
# Written and read by one client: its own cached pages do not hide the reading.
write(os.path.join(NOTING, "g"), "x")
changed = os.stat(os.path.join(NOTING, "g"))
open(os.path.join(NOTING, "g")).read()
assert os.stat(os.path.join(NOTING, "g")).st_atime_ns > changed.st_mtime_ns
# Unless it is opened not to be noted.
there = os.path.join(NOTING, "f")
age("f"); before = os.stat(there)
unnoted = os.open(there, os.O_RDONLY | os.O_NOATIME)
assert os.read(unnoted, 9) == b"bytes"
os.close(unnoted); time.sleep(1)
assert os.stat(there).st_atime_ns == before.st_atime_ns, "O_NOATIME"
"#
            ),
        );
        lab.umount(shown.as_ref())?;
        outcome
    })
}

/// Special files, and a file that stays mapped after its name is gone.
#[test]
fn special_files_and_mappings() -> Result<()> {
    if !needs_root() {
        return Ok(());
    }
    with_federation(|lab| {
        python(
            lab,
            r#"
import mmap, socket
os.mknod("c", stat.S_IFCHR | 0o620, os.makedev(259, 65537))
os.mknod("b", stat.S_IFBLK | 0o600, os.makedev(7, 300))
for path, kind, device in (("c", stat.S_ISCHR, (259, 65537)), ("b", stat.S_ISBLK, (7, 300))):
    seen = os.stat(path)
    assert kind(seen.st_mode) and (os.major(seen.st_rdev), os.minor(seen.st_rdev)) == device, seen
with socket.socket(socket.AF_UNIX) as server:
    server.bind("sock"); server.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("sock")
assert stat.S_ISSOCK(os.stat("sock").st_mode)
os.mkfifo("pipe", 0o640)
if os.fork() == 0:
    write("pipe", "through"); os._exit(0)
assert open("pipe").read() == "through"; os.wait()
as_user(1234, 1234, [], lambda: fails(errno.EACCES, os.mknod, "x", stat.S_IFCHR, os.makedev(1, 3)))
os.chmod(".", 0o777)
as_user(1234, 1234, [], lambda: fails(errno.EPERM, os.mknod, "x", stat.S_IFCHR, os.makedev(1, 3)))
as_user(1234, 1234, [], lambda: os.mkfifo("theirs"))
# A mapping outlives name and descriptor, and is shared between processes.
with open("mapped", "w+b") as file:
    file.truncate(1 << 20)
    view = mmap.mmap(file.fileno(), 0)
os.link("mapped", "kept"); os.unlink("mapped")
child = os.fork()
if child == 0:
    view[4096:4100] = b"left"; os._exit(0)
os.waitpid(child, 0)
assert view[4096:4100] == b"left"
view[0:5] = b"right"; view.flush(); view.close()
data = open("kept", "rb").read()
assert data[:5] == b"right" and data[4096:4100] == b"left" and len(data) == 1 << 20
# O_DIRECT, and fsync of a directory.
file = os.open("direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
block = mmap.mmap(-1, 8192); block[:] = b"d" * 8192
assert os.writev(file, [block]) == 8192 and os.preadv(file, [block], 0) == 8192
os.close(file)
folder = os.open(".", os.O_DIRECTORY); os.fsync(folder); os.fdatasync(folder); os.close(folder)
"#,
        )
    })
}
