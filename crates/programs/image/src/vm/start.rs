//! `tieline vm start`: starts a machine, and follows what it says on its console.

use super::Start;
use super::qemu::{self, Accel, Image, Words};
use super::running::{self, GIVEN, Running};
use crate::markers::Said;
use crate::{machine, places, tools};
use anyhow::{Context, bail, ensure};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tieline_machine::private;
use tieline_machine::process::ProcessId;

const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Behind a job, until the machine is off.
const OFF_PATIENCE: Duration = Duration::from_secs(300);
const SHOWN_LINES: usize = 20;
const MIB: u64 = 1 << 20;
const MEMORY_MIB_MIN: u64 = 256;
/// A job travels in a table of the firmware.
const JOB_MAX: u64 = 1 << 20;
/// A line of a console that never ends is cut.
const LINE_MAX: usize = 64 << 10;

pub fn run(args: &Start) -> anyhow::Result<()> {
    let begun = Instant::now();
    let folder = args.machines.one(&args.name)?;
    let _held = running::hold(&folder, &args.name)?;
    if let Some(running) = Running::of(&folder) {
        bail!("{} runs already, as pid {}", args.name, running.process.pid);
    }
    tools::check(&qemu::NEEDS)?;
    let memory_mib = args.memory.0 / MIB;
    ensure!(memory_mib >= MEMORY_MIB_MIN, "--memory: at least {MEMORY_MIB_MIN} MiB");
    let image_folder = places::image(args.image.as_deref(), "client")?;
    let image = Image::find(&image_folder)?;
    let accel = qemu::settle(args.accel, &image, &folder)?;
    let console = running::console_log(&folder);
    // What it said before is another start's.
    File::create(&console).with_context(|| format!("cannot write {}", console.display()))?;
    let words = Words {
        name: &args.name,
        image: &image,
        given: given(args, &folder)?,
        memory_mib,
        cpus: args.cpus,
        accel,
        console: &console,
    };
    let mut machine = Started::start(args, &words, &folder)?;
    let mut listener = Listener::new(&console)?;
    let place = machine.wait_mounted(&mut listener, begun + args.within.0)?;
    println!("{}: {place} is mounted, after {:.1} s", args.name, begun.elapsed().as_secs_f64());
    if args.run.is_none() {
        machine.leave();
        return Ok(());
    }
    let code = machine.wait_job(&mut listener, Instant::now() + args.job_within.0)?;
    machine.wait_off(&mut listener)?;
    println!("{}: off, after {:.1} s", args.name, begun.elapsed().as_secs_f64());
    ensure!(code == 0, "the job in {} ended with {code}", args.name);
    Ok(())
}

/// All that the machine is given at this start.
fn given(args: &Start, folder: &Path) -> anyhow::Result<Vec<(&'static str, std::path::PathBuf)>> {
    running::machine(folder)?;
    let given = folder.join(GIVEN);
    let mut all = qemu::given(&given);
    let host = given.join(machine::HOST);
    private::write_whole(&host, qemu::HOST.as_bytes())
        .with_context(|| format!("cannot write {}", host.display()))?;
    all.push((machine::HOST, host));
    if let Some(script) = &args.run {
        let job = given.join(machine::JOB);
        let mut text = Vec::new();
        let file = File::open(script).with_context(|| format!("--run {}", script.display()))?;
        file.take(JOB_MAX + 1).read_to_end(&mut text)?;
        ensure!(text.len() as u64 <= JOB_MAX, "--run {}: at most 1 MiB", script.display());
        ensure!(!text.is_empty(), "--run {}: it is empty", script.display());
        private::write_whole(&job, &text)
            .with_context(|| format!("cannot write {}", job.display()))?;
        all.push((machine::JOB, job));
    }
    Ok(all)
}

/// A machine that was started and is not yet what it was started for: it ends with this.
struct Started {
    name: String,
    child: Child,
    console: std::path::PathBuf,
    stays: bool,
}

impl Started {
    fn start(args: &Start, words: &Words<'_>, folder: &Path) -> anyhow::Result<Self> {
        let errors = folder.join("qemu.log");
        let log =
            File::create(&errors).with_context(|| format!("cannot write {}", errors.display()))?;
        let _ = fs::remove_file(folder.join(qemu::CONTROL));
        let mut command = words.command(folder);
        // In a group of its own: what ends its starter by a key does not end it.
        command.process_group(0).stdout(Stdio::null()).stderr(log);
        if args.run.is_some() {
            tools::with_us(&mut command);
        }
        let child = command.spawn().context("cannot start QEMU")?;
        let (name, console) = (args.name.clone(), words.console.to_owned());
        let mut started = Self { name, child, console, stays: false };
        // At once: whatever becomes of us, `vm stop` finds it.
        if let Some(process) = ProcessId::of(started.child.id()) {
            let accel = if words.accel == Accel::Kvm { "kvm" } else { "tcg" }.to_owned();
            Running { process, image: words.image.folder.clone(), accel }.write(folder)?;
        }
        // Wrong words end it at once.
        std::thread::sleep(LOOK_AGAIN);
        if let Some(status) = started.child.try_wait()? {
            bail!("QEMU ended ({status}): {}", tools::last_lines(&errors, SHOWN_LINES));
        }
        Ok(started)
    }

    /// Where its file system is.
    fn wait_mounted(
        &mut self,
        listener: &mut Listener,
        deadline: Instant,
    ) -> anyhow::Result<String> {
        loop {
            match self.next(listener, deadline, "to have its file system mounted", |_| {})? {
                Said::Mounted(place) => return Ok(place),
                Said::Empty => bail!("{} says that it was given nothing", self.name),
                Said::Failed(why) => bail!("{} cannot mount: {why}", self.name),
                _ => {}
            }
        }
    }

    /// With what its job ended. What the job says is shown.
    fn wait_job(&mut self, listener: &mut Listener, deadline: Instant) -> anyhow::Result<i32> {
        let mut runs = false;
        loop {
            let show = |line: &str| {
                if runs {
                    println!("{line}");
                }
            };
            match self.next(listener, deadline, "to end its job", show)? {
                Said::JobBegins => runs = true,
                Said::JobEnded(code) => return Ok(code),
                Said::Failed(why) => bail!("{} failed: {why}", self.name),
                _ => {}
            }
        }
    }

    /// Until its process is gone; all that it wrote must be at its servers by then.
    fn wait_off(&mut self, listener: &mut Listener) -> anyhow::Result<()> {
        let deadline = Instant::now() + OFF_PATIENCE;
        match self.next(listener, deadline, "to unmount", |_| {})? {
            Said::Unmounted => {}
            Said::Failed(why) => bail!("{}: {why}", self.name),
            other => bail!("{} did not unmount, it said: {}", self.name, other.line()),
        }
        while self.child.try_wait()?.is_none() {
            self.in_time(deadline, "to power off")?;
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// The next that it says. Other lines are `shown`.
    fn next(
        &mut self,
        listener: &mut Listener,
        deadline: Instant,
        what: &str,
        mut shown: impl FnMut(&str),
    ) -> anyhow::Result<Said> {
        loop {
            // Before the lines are read: an end behind its last words is no silence.
            let ended = self.child.try_wait()?;
            while let Some(line) = listener.line()? {
                match Said::of(&line) {
                    Some(said) => return Ok(said),
                    None => shown(&line),
                }
            }
            if let Some(status) = ended {
                let said = self.last();
                bail!("{} ended ({status}) while it was waited for {what}; {said}", self.name);
            }
            self.in_time(deadline, what)?;
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn in_time(&self, deadline: Instant, what: &str) -> anyhow::Result<()> {
        if Instant::now() < deadline {
            return Ok(());
        }
        bail!("{} was waited for {what} too long, and was ended; {}", self.name, self.last())
    }

    fn last(&self) -> String {
        let lines = tools::last_lines(&self.console, SHOWN_LINES);
        format!("the end of {}:\n{lines}", self.console.display())
    }

    /// It goes on without us.
    fn leave(mut self) {
        self.stays = true;
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.stays || matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Some(process) = ProcessId::of(self.child.id()) {
            process.signal(Signal::KILL);
        }
        let _ = self.child.wait();
        let _ = std::io::stdout().flush();
    }
}

/// Reads the console's log as it grows, a line at a time.
struct Listener {
    file: File,
    place: u64,
    pending: Vec<u8>,
}

impl Listener {
    fn new(console: &Path) -> anyhow::Result<Self> {
        let file = File::open(console).with_context(|| console.display().to_string())?;
        Ok(Self { file, place: 0, pending: Vec::new() })
    }

    /// The next whole line, without what terminals would take for orders.
    fn line(&mut self) -> anyhow::Result<Option<String>> {
        let mut is_full = self.pending.len() >= LINE_MAX;
        if !is_full && !self.pending.contains(&b'\n') {
            self.file.seek(SeekFrom::Start(self.place))?;
            let read = Read::take(&self.file, LINE_MAX as u64).read_to_end(&mut self.pending)?;
            self.place += read as u64;
            is_full = self.pending.len() >= LINE_MAX;
        }
        let end = self.pending.iter().position(|&byte| byte == b'\n');
        let Some(end) = end.or_else(|| is_full.then(|| self.pending.len() - 1)) else {
            return Ok(None);
        };
        let bytes: Vec<u8> = self.pending.drain(..=end).collect();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some(text.chars().filter(|letter| !letter.is_control()).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_heard_once_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console.log");
        let mut log = File::create(&path).unwrap();
        let mut listener = Listener::new(&path).unwrap();
        assert_eq!(listener.line().unwrap(), None);
        log.write_all(b"one\r\ntw").unwrap();
        assert_eq!(listener.line().unwrap().as_deref(), Some("one"));
        assert_eq!(listener.line().unwrap(), None);
        log.write_all(b"o\n\x1b[1mthree\n").unwrap();
        assert_eq!(listener.line().unwrap().as_deref(), Some("two"));
        assert_eq!(listener.line().unwrap().as_deref(), Some("[1mthree"));
        log.write_all(&vec![b'x'; LINE_MAX * 3]).unwrap();
        let mut cut = 0;
        while let Some(line) = listener.line().unwrap() {
            cut += line.len();
        }
        assert!(cut > LINE_MAX && listener.pending.len() <= LINE_MAX * 2);
    }
}
