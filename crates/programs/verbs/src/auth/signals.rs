//! Signals that are meant for a job, and come to who watches over it.
//!
//! They wait until they are asked for ([`Signals::next`]), so that none ends the watcher while the
//! job goes on. The job itself starts with the mask of before.

use std::time::Duration;

/// What a batch system, a shell or a service's manager sends.
const ENDING: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// See the module.
#[derive(Clone, Copy)]
pub struct Signals {
    held: libc::sigset_t,
    before: libc::sigset_t,
}

/// A signal that came.
pub struct Came {
    pub number: libc::c_int,
    /// From the terminal: the job has it already.
    pub is_by_kernel: bool,
}

impl Signals {
    /// Holds them back from now on. Before the process has other threads.
    pub fn hold() -> Self {
        // SAFETY: both sets are filled before they are read, by calls that get their addresses.
        unsafe {
            let (mut held, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&mut held);
            for number in ENDING {
                libc::sigaddset(&mut held, number);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &held, &mut before);
            Self { held, before }
        }
    }

    /// The mask is as before again: for a process that is about to be another program.
    pub fn release(&self) -> std::io::Result<()> {
        // SAFETY: the set is one that the system gave.
        let status =
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
        if status == 0 { Ok(()) } else { Err(std::io::Error::from_raw_os_error(status)) }
    }

    /// Waits for one, so long.
    pub fn next(&self, patience: Duration) -> Option<Came> {
        let seconds = libc::time_t::try_from(patience.as_secs()).unwrap_or(libc::time_t::MAX);
        let span = libc::timespec { tv_sec: seconds, tv_nsec: patience.subsec_nanos().into() };
        // SAFETY: all pointers are to values that live through the call.
        let (number, told) = unsafe {
            let mut told: libc::siginfo_t = std::mem::zeroed();
            (libc::sigtimedwait(&self.held, &mut told, &span), told)
        };
        (number > 0).then_some(Came { number, is_by_kernel: told.si_code > 0 })
    }
}
