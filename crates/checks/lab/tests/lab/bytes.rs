//! Bytes as POSIX has them, from one client and from several at once.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tieline_lab::{Federation, program, with_federation};

fn with_two(test: impl FnOnce(&Federation, &Path, &Path) -> Result<()>) -> Result<()> {
    with_federation(|lab| {
        let far: PathBuf = lab.mount_again()?;
        test(lab, lab.mount(), &far)
    })
}

fn python(script: &str, paths: &[&Path]) -> Result<String> {
    let paths = paths.iter().map(|path| path.to_string_lossy().into_owned());
    let arguments: Vec<String> =
        ["-c".to_owned(), script.to_owned()].into_iter().chain(paths).collect();
    program::call("python3", &arguments)
}

fn extents(lab: &Federation, path: &Path) -> Result<Vec<Value>> {
    let found = lab.json(&[Path::new("getstripe"), path])?;
    let extents = found[0]["extents"].as_array().context("a file has extents")?;
    Ok(extents.clone())
}

/// Promise 7: Lines appended through O_APPEND are never lost or torn, by several programs of one
/// mount or of several clients at once.
#[test]
fn lines_appended_everywhere_at_once_are_all_there() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
import os, sys
def append(path, name, bytes):
    log = os.open(path + '/log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in range(60):
        text = '%s %d ' % (name, number)
        os.write(log, (text + '.' * (bytes - len(text) - 1) + '\n').encode())
    os.close(log)
children = []
for index, path in enumerate(sys.argv[1:3] * 3):
    pid = os.fork()
    if pid == 0:
        append(path, 'w%d' % index, 30 + index * 1000)
        os._exit(0)
    children.append(pid)
assert all([os.waitpid(pid, 0)[1] == 0 for pid in children])
for path in sys.argv[1:3]:
    seen = {}
    for line in open(path + '/log'):
        name, number, rest = line.split(' ', 2)
        assert len(line) == 30 + int(name[1:]) * 1000, (name, len(line))
        assert seen.get(name, -1) + 1 == int(number), (name, number, seen.get(name))
        seen[name] = int(number)
    assert seen == {'w%d' % index: 59 for index in range(6)}, seen
";
        python(script, &[here, there]).map(drop)
    })
}

#[test]
fn sqlite_keeps_its_word_in_wal_mode() -> Result<()> {
    with_federation(|lab| {
        let script = r"
import os, sqlite3, sys
path = sys.argv[1] + '/wal.db'
def connect():
    base = sqlite3.connect(path, timeout=60, isolation_level=None)
    base.execute('pragma synchronous=full')
    return base
base = connect()
assert base.execute('pragma journal_mode=wal').fetchone()[0] == 'wal'
base.execute('create table t (who int, number int)')
base.close()
children = []
for who in range(2):
    pid = os.fork()
    if pid == 0:
        base = connect()
        for number in range(60):
            base.execute('begin immediate')
            base.execute('insert into t values (?, ?)', (who, number))
            base.execute('commit')
        os._exit(0)
    children.append(pid)
assert all([os.waitpid(pid, 0)[1] == 0 for pid in children])
base = connect()
assert base.execute('select who, count(*), max(number) from t group by who').fetchall() == \
    [(0, 60, 59), (1, 60, 59)]
assert base.execute('pragma integrity_check').fetchone()[0] == 'ok'
";
        python(script, &[lab.mount()]).map(drop)
    })
}

#[test]
fn sqlite_keeps_its_word_on_two_clients() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
import os, sqlite3, sys
def connect(mount):
    return sqlite3.connect(mount + '/roll.db', timeout=120, isolation_level=None)
base = connect(sys.argv[1])
base.execute('pragma journal_mode=delete')
base.execute('create table t (who int, number int, filler text)')
base.execute('create table sum (n int)')
base.execute('insert into sum values (0)')
base.close()
children = []
for who, mount in enumerate(sys.argv[1:3]):
    pid = os.fork()
    if pid == 0:
        base = connect(mount)
        for number in range(25):
            base.execute('begin immediate')
            base.execute('insert into t values (?, ?, ?)', (who, number, 'x' * 3000))
            base.execute('update sum set n = n + 1')
            base.execute('commit')
        os._exit(0)
    children.append(pid)
assert all([os.waitpid(pid, 0)[1] == 0 for pid in children])
for mount in sys.argv[1:3]:
    base = connect(mount)
    counts = base.execute('select who, count(*), max(number) from t group by who').fetchall()
    assert counts == [(0, 25, 24), (1, 25, 24)], counts
    assert base.execute('select n from sum').fetchone()[0] == 50
    assert base.execute('pragma integrity_check').fetchone()[0] == 'ok'
";
        python(script, &[here, there]).map(drop)
    })
}

/// Promise 13: What was never written reads as zeros and takes no space.
#[test]
fn holes_are_made_as_on_a_local_disk() -> Result<()> {
    with_federation(|lab| {
        let script = r"
import ctypes, os, random, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
KEEP, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2, 8, 16, 32
here, local = os.open(sys.argv[1] + '/f', os.O_RDWR | os.O_CREAT), open(sys.argv[2], 'w+b', 0)
dice = random.Random(7)
def both(work):
    work(here), work(local.fileno())
def allocate(file, mode, offset, length):
    if libc.fallocate(file, mode, offset, length) == 0:
        return
    error = ctypes.get_errno()
    # What the local disk cannot do is done by hand.
    assert file == local.fileno() and error == 95, os.strerror(error)
    size = os.fstat(file).st_size
    end = offset + length if not mode & KEEP else min(offset + length, size)
    if mode & (PUNCH | ZERO) and end > offset:
        os.pwrite(file, bytes(end - offset), offset)
    elif end > size:
        os.truncate(file, end)
for round in range(60):
    offset, length = dice.randrange(3_000_000), dice.randrange(1, 400_000)
    data = dice.randbytes(length)
    mode = dice.choice([0, KEEP, PUNCH | KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP])
    both(lambda file: os.pwrite(file, data, offset))
    offset, length = dice.randrange(3_000_000), dice.randrange(1, 900_000)
    both(lambda file: allocate(file, mode, offset, length))
    assert os.fstat(here).st_size == os.fstat(local.fileno()).st_size, (round, mode)
    if round % 6 == 0:
        os.fsync(here)
        size = os.fstat(here).st_size
        assert os.pread(here, size, 0) == os.pread(local.fileno(), size, 0), (round, mode)
for mode in (COLLAPSE, INSERT):
    assert libc.fallocate(here, mode, 0, 65536) == -1 and ctypes.get_errno() == 95
os.ftruncate(here, 0)
os.pwrite(here, b'x' * 65536, 0)
os.pwrite(here, b'x' * 65536, 1 << 30)
allocate(here, PUNCH | KEEP, 0, 4096)
seek = lambda at, how: os.lseek(here, at, how)
assert seek(0, os.SEEK_HOLE) == 0 and seek(0, os.SEEK_DATA) == 4096
assert seek(4096, os.SEEK_HOLE) == 65536 and seek(65536, os.SEEK_DATA) == 1 << 30
os.fsync(here)
assert os.fstat(here).st_blocks * 512 < 1 << 20
";
        python(script, &[lab.mount(), &lab.local("compare")]).map(drop)
    })
}

#[test]
fn files_are_as_large_as_anybody_wants() -> Result<()> {
    with_federation(|lab| {
        let script = r"
import os, sys
file = os.open(sys.argv[1] + '/large', os.O_RDWR | os.O_CREAT)
tera = 1 << 40
os.ftruncate(file, 16 * tera)
assert os.fstat(file).st_size == 16 * tera
assert os.pread(file, 4, 9 * tera) == bytes(4)
os.pwrite(file, b'here', 16 * tera + 5)
os.pwrite(file, b'there', 3 * tera)
os.fsync(file)
assert os.fstat(file).st_size == 16 * tera + 9
assert os.lseek(file, 0, os.SEEK_DATA) <= 3 * tera < os.lseek(file, 3 * tera, os.SEEK_HOLE)
assert os.lseek(file, 4 * tera, os.SEEK_DATA) > 15 * tera
assert os.pread(file, 100, 16 * tera + 5) == b'here'
os.ftruncate(file, 7 << 60)
os.ftruncate(file, 3 * tera + 2)
assert os.pread(file, 100, 3 * tera) == b'th'
";
        python(script, &[lab.mount()]).map(drop)
    })
}

#[test]
fn a_copy_shares_its_chunks() -> Result<()> {
    with_two(|lab, here, there| {
        let block: Vec<u8> =
            (0..9_000_000u32).map(|index| (index * 7 + index / 999) as u8).collect();
        fs::write(here.join("from"), &block)?;
        let script = r"
import os, sys
source, target = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
size, at = os.fstat(source).st_size, 0
while at < size:
    count = os.copy_file_range(source, target, size - at, at, at + 1000)
    assert count > 0
    at += count
os.fsync(target)
";
        python(script, &[&here.join("from"), &here.join("to")])?;
        let chunks = |name: &str| -> Result<Vec<String>> {
            let extents = extents(lab, &here.join(name))?;
            Ok(extents.iter().map(|extent| extent["chunk"]["id"].to_string()).collect())
        };
        let from = chunks("from")?;
        ensure!(from.len() > 1 && chunks("to")? == from, "{from:?}, {:?}", chunks("to")?);
        let copied = fs::read(there.join("to"))?;
        ensure!(copied[..1000] == [0; 1000] && copied[1000..] == block, "the copy differs");
        // Each goes its own way from here.
        let file = OpenOptions::new().write(true).open(there.join("from"))?;
        file.write_all_at(b"changed", 5_000_000)?;
        drop(file);
        fs::remove_file(there.join("from"))?;
        ensure!(fs::read(here.join("to"))?[1000..] == block, "the copy changed");
        Ok(())
    })
}

/// `tar -S` and others believe that a file without blocks has no bytes.
#[test]
fn blocks_count_what_was_not_sent_yet() -> Result<()> {
    with_two(|_, here, _| {
        let blocks = |file: &File| Ok::<_, io::Error>(file.metadata()?.blocks());
        let mut file = File::create_new(here.join("new"))?;
        file.write_all(&[7; 200_000])?;
        ensure!(blocks(&file)? == 391, "{}", blocks(&file)?);
        file.sync_all()?;
        file.write_all_at(&[8; 100_000], 50_000)?;
        ensure!(blocks(&file)? == 391, "{}", blocks(&file)?);
        file.write_all_at(b"far away", 1 << 30)?;
        ensure!((391..=600).contains(&blocks(&file)?), "{}", blocks(&file)?);
        let script = "cp from to; tar -Scf - to | tar -xOf - | cmp - from";
        fs::write(here.join("from"), vec![9; 100_000])?;
        program::call("sh", &["-ec", &format!("cd {} && {script}", here.display())]).map(drop)
    })
}

#[test]
fn thousands_of_little_synced_writes_stay_fast_and_become_few() -> Result<()> {
    with_two(|lab, here, there| {
        const PAGES: usize = 512;
        let path = here.join("pages");
        let file = File::create_new(&path)?;
        let mut model = vec![0u8; PAGES * 4096];
        let mut dice = 12345u64;
        for round in 0..2000usize {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = (dice >> 33) as usize % PAGES * 4096;
            let page = [(round % 251) as u8 + 1; 4096];
            model[at..at + 4096].copy_from_slice(&page);
            file.write_all_at(&page, at as u64)?;
            file.sync_data()?;
        }
        let size = file.metadata()?.len() as usize;
        let same = |mount: &Path| -> Result<()> {
            ensure!(fs::read(mount.join("pages"))? == model[..size], "differs at {mount:?}");
            Ok(())
        };
        same(there)?;
        let before = fs::metadata(&path)?;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let count = extents(lab, &path)?.len();
            if count <= 16 {
                break;
            }
            ensure!(Instant::now() < deadline, "{count} extents are left");
            std::thread::sleep(Duration::from_millis(250));
        }
        let after = fs::metadata(&path)?;
        ensure!(after.modified()? == before.modified()?, "compaction changed the time");
        same(there)?;
        drop(file);
        same(&lab.mount_again()?)
    })
}

/// Promise 14: Stores through a shared mapping are in the file after msync, and seen by other
/// clients that open it then.
#[test]
fn who_reads_what_is_being_changed_is_never_refused() -> Result<()> {
    with_federation(|lab| {
        let script = r"
import mmap, os, random, sys, time
path = sys.argv[1] + '/changing'
piece = 65536
size = 4 * piece
with open(path, 'wb') as file:
    file.write(bytes(size))
end = time.monotonic() + 6
def change():
    file = os.open(path, os.O_RDWR)
    dice = random.Random(1)
    while time.monotonic() < end:
        at, length = dice.randrange(size // 2), dice.randrange(1, piece)
        what = dice.randrange(3)
        if what == 0:
            os.copy_file_range(file, file, length, at, at + piece)
        elif what == 1:
            os.fsync(file)
        else:
            os.pwrite(file, bytes(length), at)
def read():
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, piece)
    dice = random.Random()
    while time.monotonic() < end:
        os.preadv(file, [memory], dice.randrange(4) * piece)
children = []
for part in [change, read, read]:
    pid = os.fork()
    if pid == 0:
        part()
        os._exit(0)
    children.append(pid)
assert all([os.waitpid(pid, 0)[1] == 0 for pid in children])
";
        python(script, &[lab.mount()]).map(drop)
    })
}

#[test]
fn a_mapping_follows_the_other_client() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
import mmap, os, sys
here, there = (os.open(path + '/map', os.O_RDWR | os.O_CREAT) for path in sys.argv[1:3])
os.ftruncate(here, 1 << 16)
one, other = mmap.mmap(here, 1 << 16), mmap.mmap(there, 1 << 16)
for round in range(20):
    text = b'round %3d' % round
    writer, reader, file = (one, other, there) if round % 2 else (other, one, here)
    writer[5000:5009] = text
    writer.flush()
    assert os.pread(file, 9, 5000) == text, (round, os.pread(file, 9, 5000))
    assert reader[5000:5009] == text, (round, reader[5000:5009])
";
        python(script, &[here, there]).map(drop)
    })
}

/// Whoever has a file open sees what another client has synced, however busily it looks.
#[test]
fn an_open_file_shows_what_was_synced_elsewhere() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
import os, sys, time
here, there = (os.open(path + '/turn', os.O_RDWR | os.O_CREAT) for path in sys.argv[1:3])
os.pwrite(here, b'%8d' % 0, 0)
os.fsync(here)
def play(file, mine):
    for number in range(mine, 100, 2):
        begun = time.time()
        # Nothing at all: the read met the moment at which the new size was made known.
        while int(os.pread(file, 8, 0) or -1) != number:
            assert time.time() - begun < 20, (number, os.pread(file, 8, 0))
        os.pwrite(file, b'%8d' % (number + 1), 0)
        os.fsync(file)
pid = os.fork()
if pid == 0:
    play(there, 1)
    os._exit(0)
play(here, 0)
assert os.waitpid(pid, 0)[1] == 0
";
        python(script, &[here, there]).map(drop)
    })
}
