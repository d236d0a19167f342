//! Clients write and read while the line of some of them is cut and healed: no acknowledged write
//! is lost, and nothing stale is read once they are back, as the simulation's checker of histories
//! sees it.
//!
//! What a client reads while it is cut off may be old; that is left out, until shortly after the
//! line is whole.
//!
//! And what becomes of locks that are taken from those who are cut off.

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tieline_lab::federation::with_plan;
use tieline_lab::{Federation, Plan, can_emulate_lines};

#[allow(dead_code, reason = "shared with the simulation")]
#[path = "../../../sim/src/history.rs"]
mod history;

use history::{Event, History, What};

/// From the healing of a line to the first contact of whoever was cut off.
const BACK: Duration = Duration::from_secs(6);
const REGISTERS: [(&str, usize); 3] = [("r0", 4), ("r1", 300), ("r2", 4000)];

struct Worker<'a> {
    mount: PathBuf,
    number: usize,
    start: Instant,
    events: &'a Mutex<Vec<Event>>,
    is_over: &'a AtomicBool,
}

impl Worker<'_> {
    fn work(&self) -> Result<()> {
        let mut dice = 0x9e37_79b9_7f4a_7c15 ^ self.number as u64;
        let mut count = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (register, words) = REGISTERS[(dice >> 40) as usize % REGISTERS.len()];
            if (dice >> 50).is_multiple_of(3) {
                count += 1;
                self.write(register, words, self.number as u64 * 1_000_000 + count);
            } else {
                self.read(register)?;
            }
            std::thread::sleep(Duration::from_millis(15));
        }
        Ok(())
    }

    fn note(&self, register: &str, from: Duration, what: What) {
        let (to, register) = (self.start.elapsed(), register.to_owned());
        let event = Event { client: self.number, register, from, to, what };
        self.events.lock().expect("no worker panics with this lock").push(event);
    }

    fn write(&self, register: &str, words: usize, value: u64) {
        let from = self.start.elapsed();
        let written = || -> std::io::Result<()> {
            let mut file = File::options().write(true).open(self.mount.join(register))?;
            file.write_all(format!("{value:015}\n").repeat(words).as_bytes())?;
            file.sync_all()
        };
        let is_known = written().is_ok();
        self.note(register, from, What::Write { value, is_known });
    }

    fn read(&self, register: &str) -> Result<()> {
        let from = self.start.elapsed();
        // What fails in a cut is no read.
        let Ok(text) = std::fs::read_to_string(self.mount.join(register)) else { return Ok(()) };
        let first = text.lines().next().context("an empty register")?;
        ensure!(text.lines().all(|line| line == first), "{register} is torn");
        self.note(register, from, What::Read { value: first.parse()? });
        Ok(())
    }
}

fn near(federation: &Federation) -> Result<PathBuf> {
    let (dir, mount) = (federation.dir(), federation.local("near"));
    std::fs::create_dir_all(&mount)?;
    let words = ["dev", "mount", "--site", "uf", "--dir"].map(OsStr::new);
    federation.tieline(&[&words[..], &[dir.as_os_str(), mount.as_os_str()]].concat())?;
    Ok(mount)
}

fn make_registers(mount: &Path) -> Result<()> {
    for (register, words) in REGISTERS {
        let mut file = File::create(mount.join(register))?;
        file.write_all(format!("{:015}\n", 0).repeat(words).as_bytes())?;
        file.sync_all()?;
    }
    Ok(())
}

/// Has the line cut in both ways for longer than a client needs to see it and than leases, and
/// then in one way for shorter than both; when it is cut off.
///
/// One script for all: a program that is started while workers have files open waits for these to
/// be written, and so would whoever heals the line.
fn cut(federation: &Federation, start: Instant) -> Result<Vec<Range<Duration>>> {
    let dir = federation.dir();
    let steps = "cut@5s heal@19s cut=to-servers@24s heal@28s";
    let words = ["dev", "wan", "script", steps, "--link", "clients", "--dir"].map(OsStr::new);
    let from = start.elapsed();
    federation.tieline(&[&words[..], &[dir.as_os_str()]].concat())?;
    let late = start.elapsed();
    let cut =
        |begin, end| from + Duration::from_secs(begin)..late + Duration::from_secs(end) + BACK;
    Ok(vec![cut(5, 19), cut(24, 28)])
}

/// One program far away and near: what is locked and written far away while the line is cut, and
/// what is left of it when it is whole.
const TAKEN: &str = r"
import errno, fcntl, os, sys, time
far, near = sys.argv[1:3]
EX, NB, UN = fcntl.LOCK_EX, fcntl.LOCK_NB, fcntl.LOCK_UN
def fails(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno == number
    return False
a, c = (os.open(far + name, os.O_RDWR | os.O_CREAT) for name in ('/f', '/g'))
for lock in (fcntl.lockf, fcntl.flock):
    lock(a, EX)
    lock(c, EX)
os.pwrite(a, b'first', 0)
os.fsync(a)
print('ready', flush=True)
# The line is cut.
sys.stdin.readline()
os.pwrite(a, b'stale', 0)
os.pwrite(c, b'mine', 0)
# Who had it open to write before would have each of these writes wait for its commit.
b, d = (os.open(near + name, os.O_RDWR) for name in ('/f', '/g'))
for lock in (fcntl.lockf, fcntl.flock):
    lock(b, EX)
assert os.pread(b, 9, 0) == b'first'
os.pwrite(b, b'newer', 0)
os.fsync(b)
# It is whole again, before long.
until = time.time() + 60
for call in ((os.pwrite, a, b'stale', 0), (os.pread, a, 5, 0)):
    while not fails(errno.EIO, *call):
        assert time.time() < until, 'nobody was told'
        time.sleep(0.2)
assert fails(errno.EIO, os.fsync, a)
fcntl.flock(a, UN)
fcntl.lockf(a, UN)
# It says once more that bytes were lost.
fails(errno.EIO, os.close, a)
os.fsync(b)
assert os.pread(b, 9, 0) == b'newer'
# What nobody wanted is as it was.
assert fails(errno.EAGAIN, fcntl.flock, d, EX | NB) and fails(errno.EAGAIN, fcntl.lockf, d, EX | NB)
os.fsync(c)
assert os.pread(d, 9, 0) == b'mine'
a = os.open(far + '/f', os.O_RDWR)
assert os.pread(a, 9, 0) == b'newer'
assert fails(errno.EAGAIN, fcntl.flock, a, EX | NB)
fcntl.flock(b, UN)
fcntl.flock(a, EX)
os.pwrite(a, b'again', 0)
os.close(a)
fcntl.flock(b, EX)
assert os.pread(b, 9, 0) == b'again'
";

#[test]
fn who_is_cut_off_loses_the_lock_that_another_wants_and_nothing_else() -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    let arguments = ["--netns", "--rtt", "10ms", "--lease", "3s"].map(str::to_owned).to_vec();
    with_plan(&Plan { arguments, ..Plan::default() }, |federation| {
        // The loss is an error, and the cut is warned of.
        federation.expect_log("");
        let near = near(federation)?;
        let mut program = std::process::Command::new("python3")
            .args(["-c", TAKEN])
            .args([federation.mount(), &near])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()?;
        let out = program.stdout.as_mut().context("piped")?;
        std::io::Read::read_exact(out, &mut [0; 6])?;
        let dir = federation.dir();
        let words = ["dev", "wan", "script", "cut@0s heal@15s", "--link", "clients", "--dir"];
        federation.tieline(&[&words.map(OsStr::new)[..], &[dir.as_os_str()]].concat())?;
        std::thread::sleep(Duration::from_secs(1));
        program.stdin.take().context("piped")?.write_all(b"\n")?;
        let output = program.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}");
        Ok(())
    })
}

#[test]
fn nothing_is_lost_and_nothing_stale_is_read_after_a_cut() -> Result<()> {
    if !can_emulate_lines() {
        return Ok(());
    }
    let arguments = ["--netns", "--rtt", "10ms", "--lease", "5s"].map(str::to_owned).to_vec();
    with_plan(&Plan { arguments, ..Plan::default() }, |federation| {
        // Who is cut off for longer than a lease may be told that his write came too late.
        federation.expect_log("");
        make_registers(federation.mount())?;
        let mounts = [federation.mount().to_owned(), federation.mount_again()?, near(federation)?];
        let (start, events, is_over) = (Instant::now(), Mutex::default(), AtomicBool::new(false));
        let worker = |(number, mount): (usize, &PathBuf)| {
            let (events, is_over) = (&events, &is_over);
            Worker { mount: mount.clone(), number: number + 1, start, events, is_over }
        };
        let cuts = cut(federation, start)?;
        std::thread::scope(|scope| {
            let workers: Vec<_> = mounts.iter().enumerate().map(worker).collect();
            let all: Vec<_> =
                workers.into_iter().map(|one| scope.spawn(move || one.work())).collect();
            std::thread::sleep(Duration::from_secs(28 + 4) + BACK);
            is_over.store(true, Ordering::Relaxed);
            for one in all {
                one.join().map_err(|_| anyhow::anyhow!("a worker panicked"))??;
            }
            Ok::<_, anyhow::Error>(())
        })?;
        for one in mounts.iter().enumerate().map(worker) {
            REGISTERS.iter().try_for_each(|(register, _)| one.read(register))?;
        }
        let mut events = std::mem::take(&mut *events.lock().expect("nobody panicked"));
        let total = events.len();
        let is_far = |event: &Event| event.client <= 2;
        let is_read = |event: &Event| matches!(event.what, What::Read { .. });
        events.retain(|event| {
            let was_cut_off = cuts.iter().any(|cut| cut.contains(&event.from));
            !(is_far(event) && is_read(event) && was_cut_off)
        });
        events.sort_by_key(|event| event.to);
        let writes = events.iter().filter(|event| !is_read(event)).count();
        eprintln!("{total} events, {} checked, {writes} of them writes", events.len());
        ensure!(writes > 50 && events.len() > 200, "{writes} writes, {} events", events.len());
        let violations = History { events }.check();
        let shown: Vec<_> = violations.iter().take(5).map(ToString::to_string).collect();
        ensure!(violations.is_empty(), "{} violations:\n{}", violations.len(), shown.join("\n"));
        Ok(())
    })
}
