//! A verb that is ended before it is done (Ctrl-C, `| head`, a batch system) says goodbye to its
//! servers: what its session was lent would keep others waiting until the leases lapse.
//!
//! Invariants: nobody is kept from ending for longer than [`GOODBYE`]; signals that were ignored
//! when this process began are ignored still; the process ends by the signal that came.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use tieline_client::Volume;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};

const GOODBYE: Duration = Duration::from_millis(400);
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The session of this process.
static OPEN: Mutex<Option<Open>> = Mutex::new(None);

struct Open {
    volume: Arc<Volume>,
    runtime: Handle,
}

fn open() -> MutexGuard<'static, Option<Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hears signals from now on. Within the runtime that the session will be in.
pub fn listen() -> std::io::Result<()> {
    for number in ENDING.into_iter().filter(|&number| !is_ignored(number)) {
        let mut signals = signal(SignalKind::from_raw(number))?;
        tokio::spawn(async move {
            signals.recv().await;
            // A thread of its own, for it waits.
            let ending = std::thread::spawn(move || {
                say_goodbye();
                end_by(number);
            });
            drop(ending);
        });
    }
    Ok(())
}

/// There is a session.
pub fn opened(volume: Arc<Volume>) {
    *open() = Some(Open { volume, runtime: Handle::current() });
}

/// The session is about to be closed in good order. Says whether nobody ends it already.
pub fn closes() -> bool {
    open().take().is_some()
}

/// Longer than whoever ends the process takes.
pub async fn wait_for_end() {
    tokio::time::sleep(GOODBYE * 2).await;
}

/// Ends the session, if there is one. Blocks.
fn say_goodbye() {
    let Some(Open { volume, runtime }) = open().take() else { return };
    let (done, ended) = mpsc::channel();
    runtime.spawn(async move {
        volume.part(GOODBYE).await;
        // Who waited for it may have given up.
        let _ = done.send(());
    });
    let _ = ended.recv_timeout(GOODBYE);
}

/// Ends the process with everything said.
pub fn leave(code: i32) -> ! {
    // Who does not read any more misses nothing.
    let _ = std::io::stdout().flush();
    end(code)
}

/// Ends the process, whatever its threads do. What libraries do at an orderly exit is left out:
/// OpenSSL, which Kerberos uses, frees what a thread that comes to its end just then frees too.
pub fn end(code: i32) -> ! {
    say_goodbye();
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(code) }
}

fn is_ignored(number: libc::c_int) -> bool {
    // SAFETY: nothing is changed, and the structure is filled by the call before it is read.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}

/// As if nobody had heard the signal: shells want to know.
fn end_by(number: libc::c_int) {
    // SAFETY: both take numbers; the default of these signals ends the process.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
}
