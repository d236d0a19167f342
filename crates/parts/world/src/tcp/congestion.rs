//! Congestion control per connection: BBR over distance, what the system says elsewhere.
//!
//! A loss halves what a stream may have under way where loss is taken for congestion (Reno, CUBIC):
//! one lost packet in ten thousand leaves a sixth of a Gbit/s over 50 ms. BBR goes by the rate that
//! arrives. Both ends choose for what they send themselves, so each is as good as its kernel
//! allows.
//!
//! Near peers keep the system's choice: their streams are full without it, and are not paced.
//!
//! Invariant: a kernel without BBR, or one that does not let us have it, costs speed and nothing
//! else.

use rustix::net::sockopt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

const BBR: &str = "bbr";
/// From this round trip on a peer is far: the width of a city and beyond.
const FAR_FROM: Duration = Duration::from_millis(2);

/// How connections of ours send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Congestion {
    /// BBR to far peers, if the kernel has it.
    #[default]
    Auto,
    /// As the system is set up.
    System,
}

/// A word that names no choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`auto` (BBR over distance, where the kernel has it) or `system`")]
pub struct UnknownCongestion;

impl std::str::FromStr for Congestion {
    type Err = UnknownCongestion;

    fn from_str(word: &str) -> Result<Self, UnknownCongestion> {
        match word {
            "auto" => Ok(Self::Auto),
            "system" => Ok(Self::System),
            _ => Err(UnknownCongestion),
        }
    }
}

impl Congestion {
    /// Chooses for a connection that was just made. Says whether it is one to a far peer that
    /// losses slow down.
    pub(super) fn apply(self, socket: &impl std::os::fd::AsFd) -> bool {
        let socket = socket.as_fd();
        if round_trip(socket).is_ok_and(|round_trip| round_trip < FAR_FROM) {
            return false;
        }
        if self == Self::Auto {
            // Refused where the module is missing or kept for root: the system's choice stays.
            let _ = sockopt::set_tcp_congestion(socket, BBR);
        }
        !sockopt::tcp_congestion(socket).is_ok_and(|chosen| chosen.starts_with(BBR))
    }
}

/// What the kernel measured while the connection was made.
fn round_trip(socket: BorrowedFd<'_>) -> io::Result<Duration> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which `info` has.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    match status {
        0 => Ok(Duration::from_micros(info.tcpi_rtt.into())),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_choices() {
        assert_eq!("auto".parse(), Ok(Congestion::Auto));
        assert_eq!("system".parse(), Ok(Congestion::System));
        assert_eq!("bbr".parse::<Congestion>(), Err(UnknownCongestion));
    }

    #[test]
    fn a_near_peer_keeps_the_systems_choice() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let before = sockopt::tcp_congestion(&stream).unwrap();
        assert!(!Congestion::Auto.apply(&stream));
        assert_eq!(sockopt::tcp_congestion(&stream).unwrap(), before);
        let measured = round_trip(std::os::fd::AsFd::as_fd(&stream)).unwrap();
        assert!(measured > Duration::ZERO && measured < FAR_FROM, "{measured:?}");
    }
}
