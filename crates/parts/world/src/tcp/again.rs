//! How often what nobody acknowledged is sent again.
//!
//! The kernel doubles its pause each time: after a line was cut for six seconds a connection may
//! sleep for six more, and whoever waits in it learns nothing of the line that is whole. So the
//! pause is bounded: a cut costs a second more than it lasts.
//!
//! Invariant: a kernel that cannot be told so (before 6.15) costs that time and nothing else.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The least that a kernel takes, and longer than the way to any peer and back.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// `TCP_RTO_MAX_MS` of linux/tcp.h.
const RTO_MAX_MS: libc::c_int = 44;

/// Bounds the pauses of a connection.
pub(super) fn bound(socket: &impl AsFd) {
    let pause = PAUSE_MAX.as_millis() as libc::c_int;
    // SAFETY: the kernel reads as many bytes as the number has. That it refuses changes nothing.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            RTO_MAX_MS,
            (&raw const pause).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::BorrowedFd;

    /// What the kernel keeps to; `None` if it does not know of it.
    fn pause(socket: BorrowedFd<'_>) -> Option<Duration> {
        let mut pause: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, which the number has.
        let status = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                RTO_MAX_MS,
                (&raw mut pause).cast(),
                &raw mut length,
            )
        };
        (status == 0).then(|| Duration::from_millis(pause as u64))
    }

    #[tokio::test]
    async fn connections_do_not_sleep_long_over_a_cut() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let before = pause(stream.as_fd());
        assert!(before.is_none_or(|before| before > PAUSE_MAX), "{before:?}");
        stream.set_nonblocking(true).unwrap();
        let kept = stream.try_clone().unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let _connection = super::super::connection(stream, Default::default()).unwrap();
        assert_eq!(pause(kept.as_fd()), before.map(|_| PAUSE_MAX));
    }
}
