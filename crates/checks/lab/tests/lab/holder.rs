//! A mount's daemon dies, again and again, while programs have files open: they go on and see
//! nothing of it.

use anyhow::{Context, Result, ensure};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tieline_lab::{Federation, program, with_federation};

/// What every such test provokes.
const DIED: &str = "daemon died";

/// Runs a Python script, and kills the daemon every `pause` until it ends; it must succeed. Says
/// how often.
fn with_kills(lab: &Federation, script: &str, pause: Duration) -> Result<usize> {
    lab.expect_log(DIED);
    lab.expect_log("another client took it");
    // A busy machine takes a while to end a daemon.
    lab.expect_log("threads of the mount's daemon stay behind");
    lab.expect_log("trying again until it works");
    with_kills_at(lab, lab.mount(), script, pause)
}

/// The same in a mount that `dev` does not know.
fn with_kills_at(lab: &Federation, mount: &Path, script: &str, pause: Duration) -> Result<usize> {
    let errors = File::create(lab.local("errors"))?;
    let mut command = Command::new("python3");
    command.args(["-c", &format!("{HEAD}{script}")]).arg(mount);
    let mut worker = program::start(command.stdout(Stdio::null()).stderr(errors))?;
    let (mut kills, mut last) = (0, None);
    let deadline = Instant::now() + Duration::from_secs(60);
    let status = loop {
        std::thread::sleep(pause);
        if let Some(status) = worker.try_wait()? {
            break status;
        }
        ensure!(Instant::now() < deadline, "the worker hangs after {kills} kills");
        // Only one that serves, and each once.
        let Ok(daemon) = registered(mount) else { continue };
        if last != Some(daemon) && kill_process(daemon, Signal::KILL).is_ok() {
            (kills, last) = (kills + 1, Some(daemon));
        }
    };
    let said = fs::read_to_string(lab.local("errors"))?;
    ensure!(status.success(), "after {kills} kills: {said}");
    Ok(kills)
}

/// One kill, after which the mount must serve again.
fn kill(lab: &Federation) -> Result<()> {
    lab.expect_log(DIED);
    let daemon = lab.daemon("mount-0")?;
    kill_process(daemon, Signal::KILL)?;
    program::until("another daemon serves", Duration::from_secs(20), || {
        lab.daemon("mount-0").is_ok_and(|now| now != daemon)
    })
}

const HEAD: &str = "import os, sys, fcntl, time, random\nm = sys.argv[1]\n";

/// Writes, appends and reads in files that stay open, against a model.
const WRITES: &str = r"
f = os.open(m + '/f', os.O_RDWR | os.O_CREAT)
log = os.open(m + '/log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
size = 3000000
model = bytearray(size)
os.pwrite(f, model, 0)
r = random.Random(7)
end = time.monotonic() + 6
n = 0
while time.monotonic() < end:
    at, length = r.randrange(size - 200000), r.choice([10, 5000, 200000])
    data = bytes([r.randrange(256)]) * length
    assert os.pwrite(f, data, at) == length
    model[at:at + length] = data
    at = r.randrange(size - 200000)
    assert os.pread(f, 100000, at) == model[at:at + 100000], n
    assert os.write(log, b'line %d\n' % n) > 0
    if n % 20 == 0:
        os.fsync(f)
    n += 1
os.fsync(f)
os.close(f)
os.close(log)
with open(m + '/f.model', 'wb') as out:
    out.write(model)
with open(m + '/log.model', 'wb') as out:
    for i in range(n):
        out.write(b'line %d\n' % i)
";

/// Names that are made, moved and removed, each of which must succeed, once.
const NAMES: &str = r"
os.mkdir(m + '/d')
os.mkdir(m + '/e')
end = time.monotonic() + 6
n = 0
while time.monotonic() < end:
    a = '%s/d/%d' % (m, n)
    fd = os.open(a, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    os.write(fd, b'%d' % n * (n % 50))
    os.close(fd)
    if n % 3 == 0:
        os.rename(a, '%s/e/%d' % (m, n))
    elif n % 3 == 1:
        os.unlink(a)
    if n % 10 == 0:
        os.mkdir('%s/d/dir%d' % (m, n))
        os.symlink('to%d' % n, '%s/e/link%d' % (m, n))
        os.rmdir('%s/d/dir%d' % (m, n))
    if n % 7 == 0:
        os.chmod('%s/e' % m, 0o700 + n % 8)
    if n % 21 == 0:
        os.link('%s/e/%d' % (m, n), '%s/d/hard%d' % (m, n))
    n += 1
open(m + '/count', 'w').write(str(n))
";

/// Promise 36: Programs with files open go on when the mount's daemon is killed, and read and
/// write the right bytes.
#[test]
fn open_files_are_written_and_read_while_the_daemon_dies() -> Result<()> {
    with_federation(|lab| {
        let kills = with_kills(lab, WRITES, Duration::from_millis(400))?;
        ensure!(kills >= 4, "only {kills} kills");
        check_writes(&lab.mount_again()?)
    })
}

/// Promise 38: Each operation takes effect once, also one that was under way when the mount's
/// daemon was killed.
#[test]
fn names_are_made_moved_and_removed_once_while_the_daemon_dies() -> Result<()> {
    with_federation(|lab| {
        let kills = with_kills(lab, NAMES, Duration::from_millis(300))?;
        ensure!(kills >= 4, "only {kills} kills");
        let far = lab.mount_again()?;
        let count: usize = fs::read_to_string(far.join("count"))?.parse()?;
        check_names(&far, count)
    })
}

/// Promise 37: What was closed is not lost when the mount's daemon is killed, and whoever opens
/// it elsewhere reads it.
#[test]
fn what_was_closed_is_read_elsewhere_at_once_while_the_daemon_dies() -> Result<()> {
    with_federation(|lab| {
        let far = lab.mount_again()?;
        // Kills the daemon itself, right behind a close.
        let script = format!(
            "{HEAD}{}",
            r"
import json, signal
far, r = sys.argv[2], random.Random(5)
def daemon():
    for name in os.listdir('/run/tieline/mounts'):
        try:
            entry = json.load(open('/run/tieline/mounts/' + name))
        except (OSError, ValueError):
            continue
        if entry['mountpoint'] == m:
            return entry['daemon']['pid']
last = None
for n in range(60):
    # A directory of its own is held alone: what is done there is not at a server at once.
    os.mkdir('%s/d%d' % (m, n))
    names = ['/d%d/f' % n, '/same']
    data = {}
    for name in names:
        data[name] = b'%d ' % n * r.choice([1, 100, 30000])
        new = m + '/new' if n % 2 and name == '/same' else m + name
        with open(new, 'wb') as f:
            f.write(data[name])
        if new != m + name:
            os.rename(new, m + name)
    now = daemon()
    if n % 3 != 2 and now and now != last:
        try:
            os.kill(now, signal.SIGKILL)
            last = now
        except ProcessLookupError:
            pass
    for name in names:
        with open(far + name, 'rb') as f:
            read = f.read()
        assert read == data[name], (n, name, len(read), len(data[name]), read[:10])
"
        );
        lab.expect_log(DIED);
        lab.expect_log("another client took it");
        let mut command = Command::new("python3");
        command.args(["-c", &script]).arg(lab.mount()).arg(&far);
        program::finish(&mut command, Duration::from_secs(60))?.succeed("the worker")?;
        Ok(())
    })
}

fn check_writes(far: &Path) -> Result<()> {
    for name in ["f", "log"] {
        let (is, should) =
            (fs::read(far.join(name))?, fs::read(far.join(format!("{name}.model")))?);
        let at = is.iter().zip(&should).position(|(is, should)| is != should);
        ensure!(is == should, "{name}: {} and {} bytes, {at:?}", is.len(), should.len());
    }
    Ok(())
}

fn check_names(far: &Path, count: usize) -> Result<()> {
    let mut expected = [Vec::new(), Vec::new()];
    for n in 0..count {
        match n % 3 {
            0 => expected[1].push(n.to_string()),
            2 => expected[0].push(n.to_string()),
            _ => {}
        }
        if n % 10 == 0 {
            expected[1].push(format!("link{n}"));
        }
        if n % 21 == 0 {
            expected[0].push(format!("hard{n}"));
        }
    }
    for (folder, mut names) in ["d", "e"].iter().zip(expected) {
        let folder = far.join(folder);
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder)? {
            found.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        found.sort();
        ensure!(found == names, "{folder:?}: {} names, not {}", found.len(), names.len());
        for name in names {
            if let Ok(n) = name.parse::<usize>() {
                let content = n.to_string().repeat(n % 50);
                let read = fs::read_to_string(folder.join(&name)).with_context(|| name.clone())?;
                ensure!(read == content, "{name} has {} bytes", read.len());
            }
        }
    }
    Ok(())
}

/// Promise 39: Open files without a name, locks, and listings that are being read outlive the
/// mount's daemon.
#[test]
fn what_is_held_open_stays() -> Result<()> {
    with_federation(|lab| {
        let far = lab.mount_again()?;
        let script = r"
import os, struct, sys, fcntl
m = sys.argv[1]
gone = os.open(m + '/gone', os.O_RDWR | os.O_CREAT)
os.write(gone, b'still here')
os.unlink(m + '/gone')
lock = os.open(m + '/lock', os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
fcntl.lockf(lock, fcntl.LOCK_EX, 10, 0)
# Nobody holds it: it is idle at the server.
fcntl.lockf(lock, fcntl.LOCK_EX, 10, 20)
fcntl.lockf(lock, fcntl.LOCK_UN, 10, 20)
# The open file's own (F_OFD_SETLK): it ends with that.
own = os.open(m + '/own', os.O_RDWR | os.O_CREAT)
fcntl.fcntl(own, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 10, 0))
os.mkdir(m + '/many')
for i in range(2500):
    os.close(os.open('%s/many/%d' % (m, i), os.O_CREAT | os.O_WRONLY))
listing = os.scandir(m + '/many')
names = [next(listing).name for _ in range(10)]
unnamed = os.open(m, os.O_RDWR | os.O_TMPFILE, 0o600)
os.write(unnamed, b'unnamed')
print('ready', flush=True)
assert sys.stdin.readline() == 'on\n'
names += [one.name for one in listing]
assert sorted(names) == sorted(map(str, range(2500))), len(names)
assert os.pread(gone, 100, 0) == b'still here'
os.pwrite(gone, b'more', 10)
assert os.pread(gone, 100, 0) == b'still heremore'
assert os.pread(unnamed, 100, 0) == b'unnamed'
# With a directory's descriptor it is linkat, which follows.
os.link('/proc/self/fd/%d' % unnamed, m + '/named', src_dir_fd=lock, follow_symlinks=True)
os.close(unnamed)
print('done', flush=True)
sys.stdin.readline()
os.close(own)
print('closed', flush=True)
sys.stdin.readline()
";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(lab.mount()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn()?;
        let mut input = holder.stdin.take().context("piped")?;
        let mut output = std::io::BufReader::new(holder.stdout.take().context("piped")?);
        let mut line = || -> Result<String> {
            let mut line = String::new();
            std::io::BufRead::read_line(&mut output, &mut line)?;
            Ok(line)
        };
        ensure!(line()? == "ready\n");
        kill(lab)?;
        kill(lab)?;
        std::io::Write::write_all(&mut input, b"on\n")?;
        ensure!(line()? == "done\n", "the program failed");
        let refused = r"
import sys, fcntl
f, own = (open(sys.argv[1] + name, 'r+') for name in ('/lock', '/own'))
for take in (lambda: fcntl.lockf(own, fcntl.LOCK_EX | fcntl.LOCK_NB),
             lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB),
             lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 3)):
    try:
        take()
    except BlockingIOError:
        continue
    sys.exit('a lock was lost')
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 20)
";
        let far_path = far.to_string_lossy();
        program::call("python3", &["-c", refused, &far_path])?;
        ensure!(fs::read_to_string(far.join("named"))? == "unnamed");
        std::io::Write::write_all(&mut input, b"close\n")?;
        ensure!(line()? == "closed\n");
        let taken =
            "import sys, fcntl\nfcntl.lockf(open(sys.argv[1] + '/own', 'r+'), fcntl.LOCK_EX)\n";
        program::call("timeout", &["20", "python3", "-c", taken, &far_path])?;
        drop(input);
        holder.wait()?;
        let taken = "import sys, fcntl\nfcntl.flock(open(sys.argv[1] + '/lock'), fcntl.LOCK_EX)\n";
        program::call("python3", &["-c", taken, &far_path])?;
        Ok(())
    })
}

/// The daemon of a mount that `dev` does not know.
fn registered(mount: &Path) -> Result<Pid> {
    for entry in fs::read_dir("/run/tieline/mounts")? {
        let Ok(text) = fs::read(entry?.path()) else { continue };
        let entry: serde_json::Value = serde_json::from_slice(&text)?;
        if entry["mountpoint"].as_str().map(Path::new) == Some(mount) {
            let pid = entry["daemon"]["pid"].as_i64().context("a daemon")?;
            return Pid::from_raw(i32::try_from(pid)?).context("a pid is not 0");
        }
    }
    anyhow::bail!("{mount:?} is not registered")
}

/// Syncs of a directory that others change: the kernel holds it for who syncs until a daemon
/// answers, and keeps threads of the dead one, which had word of the changes, from ending.
const SYNCS: &str = r"
def work(base, tag):
    d = os.open(base, os.O_RDONLY)
    end = time.monotonic() + 15
    i = 0
    while time.monotonic() < end:
        name = '%s/%s%d' % (base, tag, i % 20)
        open(name, 'w').close()
        os.fsync(d)
        os.listdir(base)
        os.stat(name)
        os.rename(name, name + 'r')
        os.unlink(name + 'r')
        i += 1
os.mkdir(m + '/d')
children = []
for base, tag in [(m, 'a'), (m, 'b'), (sys.argv[2], 'c')]:
    child = os.fork()
    if child == 0:
        try:
            work(base + '/d', tag)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
";

#[test]
fn directories_are_synced_and_changed_elsewhere_while_the_daemon_dies() -> Result<()> {
    with_federation(|lab| {
        let other = lab.mount_again()?;
        let other = other.to_str().context("path")?;
        let script = format!("sys.argv.append('{other}')\n{SYNCS}");
        lab.expect_log("threads of the mount's daemon stay behind");
        lab.expect_log("trying again until it works");
        let kills = with_kills(lab, &script, Duration::from_secs(10))?;
        ensure!(kills >= 1, "the daemon was killed {kills} times only");
        Ok(())
    })
}

/// A daemon that stands still is followed by another.
#[test]
fn a_daemon_that_stands_still_is_replaced() -> Result<()> {
    with_federation(|lab| {
        let log = lab.with_mount("watchdog=1s", |mount| {
            let file = mount.join("f");
            fs::write(&file, "before")?;
            kill_process(registered(mount)?, Signal::STOP)?;
            let begun = Instant::now();
            ensure!(fs::read_to_string(&file)? == "before");
            fs::write(mount.join("g"), "after")?;
            ensure!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
            Ok(())
        })?;
        ensure!(log.contains("stands still"), "nothing was replaced");
        Ok(())
    })
}

/// Where the kernel gives no call again, the mount keeps those under way: programs see no more of
/// a death than elsewhere.
#[test]
fn on_an_older_kernel_calls_under_way_go_on_too() -> Result<()> {
    with_federation(|lab| {
        let log = lab.with_mount("fuse=7.39", |mount| {
            for script in [WRITES, NAMES] {
                let kills = with_kills_at(lab, mount, script, Duration::from_millis(300))?;
                ensure!(kills >= 4, "only {kills} kills");
            }
            // One that waits, and its caller, who is killed when another daemon has it.
            let lock = File::create(lab.mount().join("lock"))?;
            rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
            let waits = "import sys, fcntl\nf = open(sys.argv[1] + '/lock')\nprint(flush=True)\n\
                         fcntl.flock(f, fcntl.LOCK_EX)\n";
            let mut waiting = Vec::new();
            for _ in 0..2 {
                let mut command = Command::new("python3");
                let child = command.args(["-c", waits]).arg(mount);
                let mut child = child.stdout(Stdio::piped()).spawn()?;
                let mut said = std::io::BufReader::new(child.stdout.take().context("piped")?);
                std::io::BufRead::read_line(&mut said, &mut String::new())?;
                waiting.push(child);
            }
            let daemon = registered(mount)?;
            kill_process(daemon, Signal::KILL)?;
            program::until("another daemon serves", Duration::from_secs(20), || {
                registered(mount).is_ok_and(|now| now != daemon)
            })?;
            waiting[0].kill()?;
            program::wait(&mut waiting[0], Duration::from_secs(20))?;
            drop(lock);
            let status = program::wait(&mut waiting[1], Duration::from_secs(30))?;
            ensure!(status.success(), "who waited for a lock has it now");
            Ok(())
        })?;
        ensure!(log.contains("serving what was not answered"), "{log}");
        check_writes(lab.mount())?;
        let count: usize = fs::read_to_string(lab.mount().join("count"))?.parse()?;
        check_names(lab.mount(), count)
    })
}

/// The holder may die too, and the daemon be started anew on request.
#[test]
fn the_holder_dies_and_another_one_holds() -> Result<()> {
    with_federation(|lab| {
        let path = lab.mount().join("f");
        fs::write(&path, "before")?;
        let open = File::open(&path)?;
        lab.expect_log("holder died");
        let holder = lab.process("mount-0")?["pid"].as_i64().context("pid")?;
        lab.signal("mount-0", Signal::KILL)?;
        program::until("another holder", Duration::from_secs(20), || {
            lab.process("mount-0").is_ok_and(|now| {
                now["pid"].as_i64().is_some_and(|pid| pid != holder && now["daemon"] != pid)
            })
        })?;
        kill(lab)?;
        ensure!(std::io::read_to_string(&open)? == "before");
        let before = lab.daemon("mount-0")?;
        lab.tieline(&["mount", "--restart", &lab.mount().to_string_lossy()])?;
        ensure!(lab.daemon("mount-0")? != before);
        ensure!(fs::read_to_string(&path)? == "before");
        drop(open);
        // Nothing is left when it is unmounted.
        let pids = ["pid", "daemon"].map(|key| lab.process("mount-0").map(|one| one[key].as_i64()));
        lab.unmount(lab.mount())?;
        for pid in pids {
            let pid = pid?.context("a pid")?;
            program::until("it ends", Duration::from_secs(20), || !program::is_running(pid))?;
        }
        Ok(())
    })
}

/// As systemd stops a unit, and a person a program in a terminal.
#[test]
fn a_mount_that_is_told_to_end_ends() -> Result<()> {
    with_federation(|lab| {
        let address = lab.process("mds-uf")?["address"].as_str().context("address")?.to_owned();
        let (there, source) = (lab.local("there"), format!("{address}:/extenci"));
        fs::create_dir(&there)?;
        let log = File::create(lab.local("there.log"))?;
        for (to_daemon, signal) in
            [(false, Signal::TERM), (true, Signal::TERM), (false, Signal::INT)]
        {
            let mut command = Command::new(program::tieline()?);
            command.args(["mount", "--foreground", "-o", "sec=null", &source]).arg(&there);
            let mut holder =
                program::start(command.stdout(Stdio::null()).stderr(log.try_clone()?))?;
            program::until("it is mounted", Duration::from_secs(30), || {
                registered(&there).is_ok()
            })?;
            fs::write(there.join("f"), format!("{to_daemon} {signal:?}"))?;
            let holders = Pid::from_raw(i32::try_from(holder.id())?).context("a pid is not 0")?;
            let told = if to_daemon { registered(&there)? } else { holders };
            kill_process(told, signal)?;
            let status = program::wait(&mut holder, Duration::from_secs(20))
                .with_context(|| format!("{signal:?}, to the daemon: {to_daemon}"))?;
            ensure!(status.success(), "{status}");
            ensure!(!there.join("f").exists(), "it is still mounted");
            let said = fs::read_to_string(lab.mount().join("f"))?;
            ensure!(said == format!("{to_daemon} {signal:?}"), "{said}");
        }
        Ok(())
    })
}
