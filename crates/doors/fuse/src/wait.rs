//! Calls that wait, and callers that do not wait to the end.
//!
//! A thread that is being killed, or was asked to stop, gets EINTR at once and its call is given
//! up. The kernel interrupts a call once, for any signal: whether its thread must go is seen in
//! /proc, then and later.
//!
//! A wait for a lock is ended by any signal, as POSIX says.
//!
//! FLUSH is special. The kernel waits for it in a program's exit too, and interrupts nothing there
//! if the program crashed: so the caller is looked at from the beginning. And it is not given up:
//! what the program wrote is committed without it. A program that exits by itself waits as for any
//! close; the kernel drops all signals to it.

use crate::pending::Place;
use crate::process;
use crate::reply::{Outcome, Reply, logged};
use rustix::io::Errno;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A request being served.
pub type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// How often a thread that may have to go is looked at again.
const LEAVING_CHECKED: Duration = Duration::from_millis(100);

/// Waits for an answer, or until the thread that asked must go.
pub async fn for_answer(work: Work, reply: Reply, mut place: Place, thread: u32) {
    tokio::select! {
        biased;
        outcome = work => reply.outcome(outcome),
        () = leaving(&mut place, thread) => reply.refuse(Errno::INTR),
    }
}

async fn leaving(place: &mut Place, thread: u32) {
    if (&mut place.interrupted).await.is_err() {
        return std::future::pending().await;
    }
    while !process::is_leaving(thread) {
        tokio::time::sleep(LEAVING_CHECKED).await;
    }
}

/// Waits for a lock. Any signal ends that: the kernel asks again where the program wants it.
pub async fn for_lock(work: Work, reply: Reply, mut place: Place) {
    let interrupted = async {
        if (&mut place.interrupted).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        outcome = work => reply.outcome(outcome),
        // The work is dropped, which gives the place in the queue up.
        () = interrupted => reply.refuse(Errno::INTR),
    }
}

/// Waits for what `close(2)` waits for; goes on without the program if it must go.
pub async fn at_close(mut work: Work, reply: Reply, mut place: Place, thread: u32) {
    tokio::select! {
        biased;
        outcome = &mut work => return reply.outcome(outcome),
        () = leaving_at_close(&mut place, thread) => reply.refuse(Errno::INTR),
    }
    // Nobody hears of an error any more but the log.
    let _ = logged(work.await);
}

async fn leaving_at_close(place: &mut Place, thread: u32) {
    let mut is_interrupted = false;
    loop {
        is_interrupted |= place.interrupted.try_recv().is_ok();
        if process::is_killed(thread) || (is_interrupted && process::is_leaving(thread)) {
            return;
        }
        tokio::time::sleep(LEAVING_CHECKED).await;
    }
}
