//! Servers that do not answer, and programs that do not wait for them.

use super::*;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::thread::JoinHandleExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use tieline_telemetry::metrics::METRICS;

/// Kills a program that waits, and sees it gone at once.
fn killed_while_frozen(call: &'static str, program: &mut Command, on: &Mounted) {
    on.fs.freeze(call);
    let silent = program.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = silent.spawn().unwrap();
    on.fs.wait_until_waiting(1);
    child.kill().unwrap();
    wait_dead(&mut child);
    on.fs.thaw();
}

fn wait_dead(child: &mut Child) {
    let killed = std::time::Instant::now();
    eventually("the program is dead", || child.try_wait().unwrap().is_some());
    // It waits for nothing; this is far more than a busy machine needs, and far less than any
    // deadline.
    assert!(killed.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_reader_of_a_frozen_server_dies_at_once() {
    let on = Mounted::new();
    on.fs.put_elsewhere("run7.root", &vec![1; 5 << 20]);
    killed_while_frozen("read", Command::new("cat").arg(on.path("run7.root")), &on);
}

#[test]
fn a_direct_reader_of_a_frozen_server_dies_at_once() {
    let on = Mounted::new();
    on.fs.put_elsewhere("run7.root", &vec![1; 5 << 20]);
    let from = format!("if={}", on.path("run7.root").display());
    let mut dd = Command::new("dd");
    killed_while_frozen("read", dd.args([&from, "of=/dev/null", "iflag=direct", "bs=1M"]), &on);
}

#[test]
fn every_other_wait_can_be_killed_too() {
    let on = Mounted::new();
    on.fs.put_elsewhere("a", b"x");
    killed_while_frozen("lookup", Command::new("stat").arg(on.path("b")), &on);
    killed_while_frozen("open", Command::new("cat").arg(on.path("a")), &on);
    killed_while_frozen("create", Command::new("touch").arg(on.path("new")), &on);
    let write = format!("echo x > {}", on.path("a").display());
    killed_while_frozen("write", Command::new("sh").args(["-c", &write]), &on);
    // And the mount works on.
    assert_eq!(fs::read_dir(on.root()).unwrap().count(), 1);
}

/// Its exit closes its files, and so waits as close(2) does; what it wrote is committed without it.
fn killed_with_an_open_file(signal: rustix::process::Signal) {
    let on = Mounted::new();
    let mut sleeper = Command::new("sh");
    let path = on.path("a");
    let script = format!("ulimit -c 0; exec 3> {}; echo x >&3; exec sleep 100", path.display());
    let mut child = sleeper.args(["-c", &script]).spawn().unwrap();
    eventually("it wrote", || on.fs.try_bytes("a").is_some_and(|bytes| bytes == b"x\n"));
    // Closes of the shell's copies of the descriptor, before its `exec`, are done by then.
    eventually("it sleeps", || {
        let name = fs::read_to_string(format!("/proc/{}/comm", child.id()));
        name.is_ok_and(|name| name == "sleep\n")
    });
    on.fs.freeze("flush");
    let before = on.fs.flushes.load(Ordering::Relaxed);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
    wait_dead(&mut child);
    on.fs.wait_until_waiting(1);
    on.fs.thaw();
    let flushed = || on.fs.flushes.load(Ordering::Relaxed) > before;
    eventually("what it wrote is committed", flushed);
}

#[test]
fn a_killed_writer_does_not_wait_for_its_last_close() {
    killed_with_an_open_file(rustix::process::Signal::KILL);
}

/// No signal is pending any more by then, so the kernel interrupts nothing. (Shells let what they
/// start in the background ignore SIGQUIT.)
#[test]
fn a_writer_that_crashed_does_not_wait_for_its_last_close() {
    killed_with_an_open_file(rustix::process::Signal::ABORT);
}

/// Files that a program does not pass on are closed in the midst of its execve(2). What /proc says
/// of it then may not be there before the close was answered.
#[test]
fn a_close_at_exec_holds_nobody_else_up() {
    let on = Mounted::with(Memory::new(1), |options| options.threads = 1);
    on.fs.put_elsewhere("a", b"x");
    let path = on.path("a");
    let open = File::options().write(true).open(&path).unwrap();
    on.fs.freeze("flush");
    let starter = std::thread::spawn(|| Command::new("true").status());
    on.fs.wait_until_waiting(1);
    assert_eq!(fs::metadata(&path).unwrap().len(), 1);
    on.fs.thaw();
    assert!(starter.join().unwrap().unwrap().success());
    drop(open);
}

#[test]
fn a_timer_s_signal_does_not_fail_a_call() {
    static HANDLED: AtomicBool = AtomicBool::new(false);
    extern "C" fn handler(_: libc::c_int) {
        HANDLED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler only stores to an atomic; nobody else uses this signal here.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let on = Mounted::new();
    on.fs.put_elsewhere("a", b"x");
    on.fs.freeze("lookup");
    let path = on.path("a");
    let asker = std::thread::spawn(move || fs::metadata(path));
    on.fs.wait_until_waiting(1);
    let before = METRICS.fuse_interrupts.get();
    // SAFETY: the thread waits in its call, so it is alive.
    unsafe { libc::pthread_kill(asker.as_pthread_t(), libc::SIGUSR1) };
    eventually("the kernel interrupts", || METRICS.fuse_interrupts.get() > before);
    on.fs.thaw();
    assert_eq!(asker.join().unwrap().unwrap().len(), 1);
    assert!(HANDLED.load(Ordering::Relaxed));
}

#[test]
fn a_frozen_call_holds_nobody_else_up() {
    let on = Mounted::with(Memory::new(1), |options| options.threads = 1);
    on.fs.put_elsewhere("slow", b"slow");
    on.fs.put_elsewhere("fast", b"fast");
    on.fs.freeze("read");
    let path = on.path("slow");
    let reader = std::thread::spawn(move || fs::read(path));
    on.fs.wait_until_waiting(1);
    assert_eq!(fs::metadata(on.path("fast")).unwrap().len(), 4);
    fs::write(on.path("new"), b"x").unwrap();
    on.fs.thaw();
    assert_eq!(reader.join().unwrap().unwrap(), b"slow");
}

#[test]
fn a_panic_is_one_caller_s_error() {
    let on = Mounted::new();
    let error = fs::metadata(on.path("panic")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    fs::write(on.path("a"), b"x").unwrap();
    assert_eq!(fs::read(on.path("a")).unwrap(), b"x");
}

#[test]
fn programs_see_why_the_file_system_refuses() {
    let on = Mounted::new();
    assert_eq!(File::open(on.path("none")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::create_dir(on.path("d")).unwrap();
    assert_eq!(fs::read(on.path("d")).unwrap_err().kind(), ErrorKind::IsADirectory);
}
