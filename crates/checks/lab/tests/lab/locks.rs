//! Advisory locks between clients, as Python's `fcntl` module takes them.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tieline_lab::federation::{Plan, with_plan};
use tieline_lab::{Federation, program, with_federation};

/// What all scripts begin with: two mounts, and a file opened on each.
const HEAD: &str = r"
import fcntl, os, signal, sys, time
here, there = sys.argv[1:3]
EX, SH, NB, UN = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB, fcntl.LOCK_UN
if not os.path.exists(here + '/f'):
    open(here + '/f', 'w').write('x' * 100)
a, b = open(here + '/f', 'r+'), open(there + '/f', 'r+')
def refused(lock, *arguments):
    try:
        lock(*arguments)
    except BlockingIOError:
        return True
    return False
def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
    return pid
def succeeded(pid):
    return os.waitpid(pid, 0)[1] == 0
";

fn python(script: &str, here: &Path, there: &Path) -> Result<String> {
    let script = format!("{HEAD}{script}");
    let (here, there) = (here.to_string_lossy(), there.to_string_lossy());
    program::call("python3", &["-c", &script, &here, &there])
}

fn with_two(test: impl FnOnce(&Federation, &Path, &Path) -> Result<()>) -> Result<()> {
    with_federation(|lab| {
        let far: PathBuf = lab.mount_again()?;
        test(lab, lab.mount(), &far)
    })
}

/// Promise 34: Locks of flock and fcntl hold between all clients.
#[test]
fn locks_hold_between_clients() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
fcntl.flock(a, EX)
assert refused(fcntl.flock, b, EX | NB), 'flock, exclusive'
assert refused(fcntl.flock, b, SH | NB), 'flock, shared'
fcntl.flock(a, SH)
fcntl.flock(b, SH | NB)
assert refused(fcntl.flock, a, EX | NB), 'an upgrade'
fcntl.flock(b, UN)
fcntl.flock(a, EX | NB)
# The two kinds do not see each other.
fcntl.lockf(b, EX | NB, 10, 0)
assert refused(fcntl.lockf, a, EX | NB, 1, 9), 'one byte'
fcntl.lockf(a, EX | NB, 10, 10)
# A part is freed.
fcntl.lockf(b, UN, 5, 0)
fcntl.lockf(a, EX | NB, 5, 0)
assert refused(fcntl.lockf, a, SH | NB, 10, 0)
# Closing any descriptor of the file frees a process's locks on it, and the last one a flock.
open(there + '/f').close()
fcntl.lockf(a, SH | NB, 10, 0)
a.close()
fcntl.flock(b, EX | NB)
fcntl.lockf(b, EX | NB)
";
        python(script, here, there).map(drop)
    })
}

/// The kernel tells late of a last close, and the next open file may have the last one's number.
#[test]
fn a_late_close_frees_no_flock_but_its_own() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
def locked(lock):
    file = open(here + '/f', 'r+')
    end = time.monotonic() + 20
    while refused(fcntl.flock, file, lock | NB):
        assert time.monotonic() < end, 'it is locked by nobody'
        time.sleep(0.01)
    return file
def try_it():
    assert refused(fcntl.flock, open(here + '/f', 'r+'), EX | NB), 'two have it'
for round in range(150):
    locked(SH).close()
    file = locked(EX)
    assert succeeded(child(try_it)), round
    file.close()
signal.alarm(20)
fcntl.flock(b, EX)
";
        python(script, here, there).map(drop)
    })
}

/// Of an open file's own locks no program tells when they end.
#[test]
fn locks_of_an_open_file_end_with_it() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
import struct
OFD_SETLK, OFD_SETLKW = 37, 38
def lock(file, command, start):
    fcntl.fcntl(file, command, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, start, 10, 0))
other = open(here + '/f', 'r+')
lock(a, OFD_SETLK, 0)
assert refused(lock, other, OFD_SETLK, 5) and refused(lock, b, OFD_SETLK, 5)
# It is not the process's.
open(here + '/f').close()
assert refused(lock, b, OFD_SETLK, 5)
copy = os.dup(a.fileno())
a.close()
assert refused(lock, b, OFD_SETLK, 5)
os.close(copy)
lock(b, OFD_SETLKW, 5)
lock(other, OFD_SETLK, 40)
# Nor does it outlive a program that is killed.
def killed():
    mine = open(here + '/f', 'r+')
    lock(mine, OFD_SETLK, 20)
    os.kill(os.getpid(), signal.SIGKILL)
child(killed)
os.wait()
signal.alarm(20)
lock(b, OFD_SETLKW, 20)
assert refused(lock, b, OFD_SETLK, 40)
# Who asks at once hears of none that a close has ended.
OFD_GETLK = 36
def found(file, start):
    asked = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, start, 10, 0)
    return struct.unpack('hhqqi4x', fcntl.fcntl(file, OFD_GETLK, asked))[0] != fcntl.F_UNLCK
for _ in range(100):
    mine = open(here + '/f', 'r+')
    lock(mine, OFD_SETLK, 60)
    assert found(other, 60)
    mine.close()
    assert not found(other, 60)
";
        python(script, here, there).map(drop)
    })
}

#[test]
fn the_holder_is_told_of_on_one_client() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
import struct
def holder(file):
    asked = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
    kind, _, start, length, pid = struct.unpack('hhqqi4x', fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return (kind, start, length, pid)
fcntl.lockf(a, EX, 10, 5)
def look():
    assert holder(a) == (fcntl.F_WRLCK, 5, 10, os.getppid()), holder(a)
    assert holder(b)[:3] == (fcntl.F_WRLCK, 5, 10), holder(b)
assert succeeded(child(look))
fcntl.lockf(a, UN)
assert holder(b)[0] == fcntl.F_UNLCK
";
        python(script, here, there).map(drop)
    })
}

/// Promise 35: A program that waits for a lock gets it when it is free, and then sees what was
/// written before that.
#[test]
fn waiting_takes_turns_and_sees_what_was_written() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
os.truncate(here + '/f', 0)
os.pwrite(a.fileno(), b'%8d' % 0, 0)
def count(path, lock):
    def work():
        file = open(path + '/f', 'r+b', buffering=0)
        for _ in range(40):
            lock(file, EX)
            number = int(os.pread(file.fileno(), 8, 0))
            os.pwrite(file.fileno(), b'%8d' % (number + 1), 0)
            lock(file, UN)
    return work
for lock in (fcntl.flock, fcntl.lockf):
    os.pwrite(a.fileno(), b'%8d' % 0, 0)
    os.fsync(a.fileno())
    children = [child(count(path, lock)) for path in (here, there, here, there)]
    assert all([succeeded(pid) for pid in children])
    fcntl.flock(b, EX)
    assert int(os.pread(b.fileno(), 8, 0)) == 160, os.pread(b.fileno(), 8, 0)
    fcntl.flock(b, UN)
";
        python(script, here, there).map(drop)
    })
}

#[test]
fn an_interrupted_wait_leaves_no_lock() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
class Alarm(Exception):
    pass
def ring(*_):
    raise Alarm()
for lock in (fcntl.flock, fcntl.lockf):
    lock(a, EX)
    def work():
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            lock(b, EX)
            raise RuntimeError('it was granted')
        except Alarm:
            pass
        # It lives on and holds nothing.
        time.sleep(0.7)
    begun = time.time()
    pid = child(work)
    time.sleep(0.6)
    lock(a, UN)
    time.sleep(0.1)
    assert not refused(lock, a, EX | NB), 'somebody holds it'
    lock(a, UN)
    assert succeeded(pid) and time.time() - begun < 10
    # One that is killed goes at once.
    lock(a, EX)
    pid = child(lambda: lock(b, EX))
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    begun = time.time()
    os.waitpid(pid, 0)
    assert time.time() - begun < 5
    lock(a, UN)
    time.sleep(0.1)
    lock(a, EX | NB)
    lock(a, UN)
";
        python(script, here, there).map(drop)
    })
}

#[test]
fn a_ring_of_waiting_is_refused() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
import errno
fcntl.lockf(a, EX, 1, 0)
def work():
    mine = open(there + '/f', 'r+')
    fcntl.lockf(mine, EX, 1, 1)
    fcntl.lockf(mine, EX, 1, 0)
pid = child(work)
time.sleep(0.5)
try:
    fcntl.lockf(a, EX, 1, 1)
    raise RuntimeError('nobody noticed')
except OSError as error:
    assert error.errno == errno.EDEADLK, error
fcntl.lockf(a, UN)
assert succeeded(pid)
";
        python(script, here, there).map(drop)
    })
}

/// What no program holds keeps nobody out, also where it is idle at the server.
#[test]
fn what_was_freed_keeps_nobody_out() -> Result<()> {
    with_two(|_, here, there| {
        let script = r"
import struct
def idle(file, *place):
    fcntl.lockf(file, EX, *place)
    fcntl.lockf(file, UN, *place)
def holder(file, start):
    asked = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, start, 1, 0)
    return struct.unpack('hhqqi4x', fcntl.fcntl(file, fcntl.F_GETLK, asked))[0]
for start in range(10):
    idle(a, 1, start)
fcntl.lockf(b, EX | NB, 1, 0)
fcntl.lockf(b, EX, 1, 1)
assert holder(b, 2) == fcntl.F_UNLCK
assert refused(fcntl.lockf, a, SH | NB, 1, 0)
assert refused(fcntl.lockf, a, SH | NB, 1, 1)
fcntl.lockf(b, UN)
# Of two processes on one client.
other = open(here + '/g', 'w+')
idle(other, 1, 0)
def work():
    mine = open(here + '/g', 'r+')
    assert holder(mine, 0) == fcntl.F_UNLCK
    fcntl.lockf(mine, EX | NB, 1, 0)
    idle(mine, 1, 1)
assert succeeded(child(work))
# Its close freed all for good.
far = open(there + '/g', 'r+')
fcntl.lockf(far, EX | NB)
fcntl.lockf(far, UN)
# One waits while the other holds what may be idle later.
held = open(here + '/h', 'w+')
fcntl.lockf(held, EX, 1, 0)
pid = child(lambda: fcntl.lockf(open(there + '/h', 'r+'), EX, 1, 0))
near = child(lambda: fcntl.lockf(open(here + '/h', 'r+'), EX, 1, 0))
time.sleep(0.5)
fcntl.lockf(held, UN, 1, 0)
assert succeeded(pid) and succeeded(near)
";
        python(script, here, there).map(drop)
    })
}

/// A client that dies holds nobody up for longer than its lease.
#[test]
fn a_killed_client_frees_its_locks() -> Result<()> {
    let plan = Plan { arguments: vec!["--lease".into(), "2s".into()], ..Plan::default() };
    with_plan(&plan, |lab| {
        let far = lab.mount_again()?;
        let status = lab.status()?;
        let processes = status["processes"].as_array().context("processes")?;
        let is_far = |process: &&serde_json::Value| {
            process.to_string().contains(far.to_string_lossy().as_ref())
        };
        let process = processes.iter().rev().find(is_far).or(processes.last());
        let name = process.and_then(|process| process["name"].as_str()).context("its name")?;
        let name = name.to_owned();
        let holder = "fcntl.flock(b, EX)\nprint('held', flush=True)\ntime.sleep(100)\n";
        let script = format!("{HEAD}{holder}");
        let mut holder = std::process::Command::new("python3")
            .args(["-c", &script])
            .args([lab.mount(), &far])
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        let mut said = [0; 4];
        let out = holder.stdout.as_mut().context("piped")?;
        std::io::Read::read_exact(out, &mut said)?;
        lab.expect_log("session");
        lab.kill_client(&name)?;
        let begun = Instant::now();
        let waiter = "fcntl.flock(a, EX)\n";
        let here = lab.mount().to_string_lossy();
        let script = format!("{}{waiter}", HEAD.replace("open(there + '/f', 'r+')", "None"));
        let waited = program::call("python3", &["-c", &script, &here, &here]);
        holder.kill()?;
        holder.wait()?;
        waited?;
        ensure!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        Ok(())
    })
}

/// A metadata server that dies forgets no lock.
#[test]
fn locks_survive_the_death_of_a_server() -> Result<()> {
    with_two(|lab, here, there| {
        let dir = lab.dir();
        let program = program::tieline()?;
        let restart = format!(
            "import subprocess\nsubprocess.check_call(['{}', 'dev', 'kill', 'mds-uf', \
             '--restart', '--dir', '{}'])\n",
            program.display(),
            dir.display()
        );
        let before = r"
fcntl.flock(a, EX)
fcntl.lockf(b, EX, 20, 0)
fcntl.lockf(b, UN, 10, 10)
";
        let after = r"
assert refused(fcntl.flock, b, EX | NB), 'flock'
assert refused(fcntl.lockf, a, SH | NB, 1, 3), 'fcntl'
# What was idle is forgotten.
fcntl.lockf(a, SH | NB, 1, 10)
fcntl.flock(a, UN)
fcntl.flock(b, EX | NB)
";
        python(&format!("{before}{restart}{after}"), here, there).map(drop)
    })
}
