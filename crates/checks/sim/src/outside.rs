//! The simulated outside: clock, dice and transport, all decided by the seed.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tieline_world::{Clock, Connection, Dice, FileRange, Listener, StreamWriter, Transport, World};
use turmoil::net::tcp::OwnedWriteHalf;
use turmoil::net::{TcpListener, TcpStream};

/// A world for one simulated host. Hosts differ in their dice, and in their wall clocks: this one's
/// is ahead by so many seconds.
pub fn world(seed: u64, ahead: i64) -> World {
    World {
        clock: Arc::new(SimClock { ahead }),
        dice: Arc::new(SimDice(Mutex::new(seed))),
        transport: Arc::new(SimTransport),
    }
}

/// Time as the simulation counts it.
pub fn true_time() -> Duration {
    turmoil::since_epoch().unwrap_or_default()
}

struct SimClock {
    ahead: i64,
}

impl Clock for SimClock {
    fn wall(&self) -> Duration {
        let ahead = Duration::from_secs(self.ahead.unsigned_abs());
        let time = true_time();
        if self.ahead < 0 { time.saturating_sub(ahead) } else { time + ahead }
    }

    fn steady(&self) -> Duration {
        true_time()
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014): small, seeded, good enough for ids and choices.
pub struct SimDice(Mutex<u64>);

impl SimDice {
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    pub fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

impl Dice for SimDice {
    fn fill(&self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            piece.copy_from_slice(&random[..piece.len()]);
        }
    }
}

struct SimTransport;

#[async_trait::async_trait]
impl Transport for SimTransport {
    async fn connect(&self, address: &str, patience: Duration) -> io::Result<Connection> {
        let stream = tokio::time::timeout(patience, TcpStream::connect(address))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(connection(stream, address.to_owned()))
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>> {
        let port = address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0);
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Ok(Box::new(SimListener(TcpListener::bind((any, port)).await?)))
    }
}

struct SimListener(TcpListener);

#[async_trait::async_trait]
impl Listener for SimListener {
    fn address(&self) -> io::Result<String> {
        Ok(self.0.local_addr()?.to_string())
    }

    async fn accept(&mut self) -> io::Result<Connection> {
        let (stream, peer) = self.0.accept().await?;
        Ok(connection(stream, peer.to_string()))
    }
}

fn connection(stream: TcpStream, peer: String) -> Connection {
    let (reader, writer) = stream.into_split();
    Connection {
        reader: Box::new(reader),
        writer: Box::new(SimWriter(writer)),
        peer,
        local: String::new(),
        slows_at_losses: false,
    }
}

struct SimWriter(OwnedWriteHalf);

impl tokio::io::AsyncWrite for SimWriter {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        std::pin::Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[async_trait::async_trait]
impl StreamWriter for SimWriter {
    async fn send_file(&mut self, _range: &FileRange) -> io::Result<()> {
        // Simulated OSSs keep their chunks in memory.
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}
