//! Moments after which connections may be dead without a word: the machine slept, or has other
//! addresses.
//!
//! The kernel tells of addresses and ways on a netlink socket. Sleep shows in that the clock on the
//! wall went on while the one that counts intervals stood still. A wall clock that is set by hand
//! looks the same, and costs a ping. SIGUSR2 says so, too: a hook of the system may send it, and
//! tests feign a sleep with it.
//!
//! Invariant: a machine without netlink is still watched for sleep.

use crate::Unsettled;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Links, addresses and ways, of both families (`RTMGRP_LINK` and so on).
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;
/// Changes come in swarms: the last of them shall be there.
const SWARM: Duration = Duration::from_millis(100);
/// How often the clocks are compared.
const NAP: Duration = Duration::from_millis(500);
/// Clocks run apart by less than this, and naps are never so late.
const SLEEP_LEAST: Duration = Duration::from_secs(3);

pub(super) async fn unsettled() -> Unsettled {
    let news = listen().ok();
    let mut said = signal(SignalKind::user_defined2()).ok();
    let mut clocks = Clocks::now();
    loop {
        tokio::select! {
            biased;
            () = hooked(said.as_mut()) => return Unsettled::Slept,
            () = told(news.as_ref()) => {
                tokio::time::sleep(SWARM).await;
                return Unsettled::Moved;
            }
            () = tokio::time::sleep(NAP) => {
                let before = std::mem::replace(&mut clocks, Clocks::now());
                if clocks.slept_since(before) {
                    return Unsettled::Slept;
                }
            }
        }
    }
}

/// Waits for the signal.
async fn hooked(said: Option<&mut Signal>) {
    match said {
        Some(said) => drop(said.recv().await),
        None => std::future::pending().await,
    }
}

fn listen() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    // Its first protocol, 0, is that of addresses and ways.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
    // SAFETY: the registration owns the descriptor, which stays open as long as it.
    Ok(unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?)
}

/// Waits for news of the kernel.
async fn told(news: Option<&AsyncFd<OwnedFd>>) {
    let Some(news) = news else { return std::future::pending().await };
    loop {
        let Ok(mut ready) = news.readable().await else { return std::future::pending().await };
        let mut buffer = [0u8; 4096];
        // What was lost for want of room is news as well.
        match recv(news.get_ref(), &mut buffer, RecvFlags::empty()) {
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            _ => return,
        }
    }
}

#[derive(Clone, Copy)]
struct Clocks {
    wall: SystemTime,
    counting: Instant,
}

impl Clocks {
    fn now() -> Self {
        Self { wall: SystemTime::now(), counting: Instant::now() }
    }

    fn slept_since(self, before: Self) -> bool {
        let counted = self.counting.duration_since(before.counting);
        let passed = self.wall.duration_since(before.wall).unwrap_or_default();
        passed > counted + SLEEP_LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_shows_in_the_clocks() {
        let before = Clocks::now();
        let (wall, counting) = (before.wall + Duration::from_secs(60), before.counting + NAP);
        assert!(Clocks { wall, counting }.slept_since(before));
        // A long nap of a busy machine: both clocks went on.
        let counting = before.counting + Duration::from_secs(60);
        assert!(!Clocks { wall, counting }.slept_since(before));
        let wall = before.wall + NAP;
        assert!(!Clocks { wall, counting: before.counting + NAP }.slept_since(before));
        // Set back by hand: that is no sleep.
        let wall = before.wall - Duration::from_secs(60);
        assert!(!Clocks { wall, counting: before.counting + NAP }.slept_since(before));
    }
}
