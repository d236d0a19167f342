//! TCP over IPv4 and IPv6: the real transport.
//!
//! A stream is shared by its two directions. The kernel sends files itself (`sendfile(2)`): at once
//! where they are in memory, else in steps that run on the blocking pool, since the call waits for
//! the disk then; the socket stays non-blocking, so no thread ever waits for a slow peer.
//!
//! Which congestion control a connection gets is decided by [`congestion`]; how soon it notices the
//! end of a cut, by [`again`].
//!
//! Invariants: a peer that vanished is noticed within [`USER_TIMEOUT`]; small writes leave at once
//! (`TCP_NODELAY`).

use crate::{Connection, FileRange, Listener, StreamWriter, Transport};
use congestion::Congestion;
use rustix::net::sockopt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::time::Instant;

/// Sent bytes that nobody acknowledged for this long end the connection: longer than any route
/// change, and short beside the quarter of an hour the kernel would try by itself.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// A silent connection is probed after the first pause, then at the second, until the user timeout.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// Connections the kernel accepts ahead of us: a whole farm may come back at once after a reboot.
const BACKLOG: u32 = 1024;
/// One step of `sendfile`: large, since each costs a trip to the blocking pool.
const SEND_STEP: usize = 4 << 20;
/// The least time one of several addresses is given.
const SHARE_MIN: Duration = Duration::from_millis(250);

mod again;
pub mod congestion;

/// TCP over IPv4 and IPv6.
#[derive(Default)]
pub struct TcpTransport {
    pub congestion: Congestion,
}

mod unsettled;

#[async_trait::async_trait]
impl Transport for TcpTransport {
    async fn connect(&self, address: &str, patience: Duration) -> io::Result<Connection> {
        let deadline = Instant::now() + patience;
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("{address} does not answer"));
        let resolved = tokio::time::timeout_at(deadline, lookup_host(address));
        let mut addresses: Vec<SocketAddr> = resolved.await.map_err(|_| late())??.collect();
        alternate_families(&mut addresses);
        let mut failure = None;
        for (tried, peer) in addresses.iter().enumerate() {
            let share = share_of(deadline, addresses.len() - tried);
            match tokio::time::timeout(share, TcpStream::connect(peer)).await {
                Ok(Ok(stream)) => {
                    // What was left unsent is nobody's when we are gone: without an end in good
                    // order it is dropped, and not delivered whenever a line is whole again.
                    sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
                    return connection(stream, self.congestion);
                }
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(late()),
            }
        }
        Err(failure.unwrap_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("{address} has no address"))
        }))
    }

    async fn unsettled(&self) -> crate::Unsettled {
        unsettled::unsettled().await
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        let mut failure = None;
        for local in lookup_host(address).await? {
            match listen_at(local) {
                Ok(listener) => {
                    return Ok(Box::new(Accepting { listener, congestion: self.congestion }));
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("{address} has no address"))
        }))
    }
}

/// The resolver's order, but with the families taking turns: one that leads nowhere costs one share
/// only.
fn alternate_families(addresses: &mut Vec<SocketAddr>) {
    let is_first_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.iter().copied().partition(|address| address.is_ipv6() == is_first_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    addresses.clear();
    loop {
        let pair = [first.next(), second.next()];
        if pair == [None, None] {
            break;
        }
        addresses.extend(pair.into_iter().flatten());
    }
}

/// What one of `left` addresses may use of the time that remains.
fn share_of(deadline: Instant, left: usize) -> Duration {
    let remaining = deadline.saturating_duration_since(Instant::now());
    (remaining / u32::try_from(left).unwrap_or(u32::MAX).max(1)).max(SHARE_MIN).min(remaining)
}

fn listen_at(local: SocketAddr) -> io::Result<TcpListener> {
    let socket = if local.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    // A restarted server takes its port back while connections of before linger.
    socket.set_reuseaddr(true)?;
    socket.bind(local)?;
    socket.listen(BACKLOG)
}

/// A listening socket, and how its connections are to send.
struct Accepting {
    listener: TcpListener,
    congestion: Congestion,
}

#[async_trait::async_trait]
impl Listener for Accepting {
    fn address(&self) -> io::Result<String> {
        Ok(self.listener.local_addr()?.to_string())
    }

    async fn accept(&mut self) -> io::Result<Connection> {
        loop {
            // A peer that left before it was its turn is no failure of the listener.
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if let Ok(connection) = connection(stream, self.congestion) {
                        return Ok(connection);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn connection(stream: TcpStream, congestion: Congestion) -> io::Result<Connection> {
    let peer = stream.peer_addr()?.to_string();
    let local = stream.local_addr()?.to_string();
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT.as_millis() as u32)?;
    again::bound(&stream);
    let slows_at_losses = congestion.apply(&stream);
    let stream = Arc::new(stream);
    let reader = Box::new(TcpReader { stream: stream.clone() });
    let writer = Box::new(TcpWriter { stream });
    Ok(Connection { reader, writer, peer, local, slows_at_losses })
}

struct TcpReader {
    stream: Arc<TcpStream>,
}

impl AsyncRead for TcpReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result.map(drop)),
            }
        }
    }
}

struct TcpWriter {
    stream: Arc<TcpStream>,
}

impl TcpWriter {
    fn poll_try(
        &self,
        context: &mut Context<'_>,
        attempt: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match attempt(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl AsyncWrite for TcpWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_try(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_try(context, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // All that was said is delivered.
        let _ = sockopt::set_socket_linger(&self.stream, None);
        Poll::Ready(shutdown(&self.stream, Shutdown::Write))
    }
}

/// The reading half may live on; the peer shall see the end of what we say.
impl Drop for TcpWriter {
    fn drop(&mut self) {
        // A socket that is not connected any more has nothing to end.
        let _ = shutdown(&self.stream, Shutdown::Write);
    }
}

fn shutdown(stream: &TcpStream, how: Shutdown) -> io::Result<()> {
    let how = match how {
        Shutdown::Read => rustix::net::Shutdown::Read,
        Shutdown::Write => rustix::net::Shutdown::Write,
        Shutdown::Both => rustix::net::Shutdown::Both,
    };
    Ok(rustix::net::shutdown(stream.as_fd(), how)?)
}

#[async_trait::async_trait]
impl StreamWriter for TcpWriter {
    async fn send_file(&mut self, range: &FileRange) -> io::Result<()> {
        let mut offset = range.offset;
        let end = range.offset + u64::from(range.length);
        while offset < end {
            self.stream.writable().await?;
            if is_in_memory(&range.file, offset, end) {
                offset = send_step(&self.stream, &range.file, offset, end)?;
                continue;
            }
            // Begins to read all of it; a file system that cannot reads step by step.
            let length = std::num::NonZeroU64::new(end - offset);
            let _ = rustix::fs::fadvise(&range.file, offset, length, rustix::fs::Advice::WillNeed);
            let (stream, file) = (self.stream.clone(), range.file.clone());
            let step = tokio::task::spawn_blocking(move || send_step(&stream, &file, offset, end));
            offset = step.await.map_err(io::Error::other)??;
        }
        Ok(())
    }
}

/// Is the range likely in the kernel's cache, so that sending it waits for no disk? A trip to the
/// blocking pool costs as much as sending half a megabyte. Files are read in large windows: where a
/// few places are in memory, what is between them nearly always is.
fn is_in_memory(file: &std::fs::File, from: u64, end: u64) -> bool {
    [from, from + (end - from) / 2, end - 1].into_iter().all(|place| {
        let mut byte = [0];
        let mut one = [io::IoSliceMut::new(&mut byte)];
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        matches!(rustix::io::preadv2(file, &mut one, place, flags), Ok(1))
    })
}

/// Sends until the socket is full or the range is over. Returns how far it came.
fn send_step(stream: &TcpStream, file: &std::fs::File, from: u64, end: u64) -> io::Result<u64> {
    let mut offset = from;
    while offset < end {
        let count = usize::try_from(end - offset).unwrap_or(SEND_STEP).min(SEND_STEP);
        // Inside `try_io`, so that "full" clears tokio's readiness and nothing that comes later is
        // missed.
        let sent = stream.try_io(Interest::WRITABLE, || {
            Ok(rustix::fs::sendfile(stream, file, Some(&mut offset), count)?)
        });
        match sent {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("file ends at {offset}, {} bytes early", end - offset),
                ));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(offset)
}

#[cfg(test)]
mod tests;
