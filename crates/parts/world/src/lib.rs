//! Clock, dice and transport: the only room that touches the outside.
//!
//! Programs build a [`World`] of real parts ([`real`]); `checks/sim` builds one of simulated parts,
//! so that a seed decides everything that happens. Timers are tokio's, which simulated worlds pause
//! and wind themselves; wall time and randomness come only from here.
//!
//! * [`Clock`]: what time it is for people.
//! * [`Dice`]: random bytes.
//! * [`Transport`]: reliable byte streams between addresses.
//! * [`Bulk`]: bytes to send that need not pass through memory.
//! * [`LocalTransport`], [`SeededDice`], [`TimerClock`]: a world inside one process, for tests
//!   ([`World::local`]).
//!
//! Does not know what the bytes mean.

mod bulk;
mod local;
mod real;
mod tcp;

pub use bulk::{Bulk, FileRange};
pub use local::{LocalTransport, SeededDice, TimerClock};
pub use real::{SystemClock, SystemDice};
pub use tcp::TcpTransport;
pub use tcp::congestion::Congestion;

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Everything outside.
#[derive(Clone)]
pub struct World {
    pub clock: Arc<dyn Clock>,
    pub dice: Arc<dyn Dice>,
    pub transport: Arc<dyn Transport>,
}

impl World {
    /// The machine we run on.
    pub fn real() -> Self {
        Self::real_with(Congestion::default())
    }

    /// The same, with a wish for how its connections send.
    pub fn real_with(congestion: Congestion) -> Self {
        Self {
            clock: Arc::new(SystemClock),
            dice: Arc::new(SystemDice),
            transport: Arc::new(TcpTransport { congestion }),
        }
    }

    /// A world inside this process: streams between names, randomness from `seed`, time that can be
    /// paused.
    pub fn local(seed: u64) -> (Self, Arc<LocalTransport>) {
        let transport = Arc::new(LocalTransport::default());
        let world = Self {
            clock: Arc::new(TimerClock::default()),
            dice: Arc::new(SeededDice::new(seed)),
            transport: transport.clone(),
        };
        (world, transport)
    }

    /// A random number, for ids and jitter.
    pub fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.dice.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// What time it is. Only for people and for records: intervals are measured with tokio's clock.
pub trait Clock: Send + Sync {
    /// Since 1970-01-01 00:00 UTC.
    fn wall(&self) -> Duration;

    /// Since some moment of the past. Never set, and counts on while the machine sleeps, as tokio's
    /// clock does not. For a wall clock that nobody sets and a machine that never sleeps it is the
    /// same.
    fn steady(&self) -> Duration {
        self.wall()
    }
}

/// Randomness.
pub trait Dice: Send + Sync {
    fn fill(&self, bytes: &mut [u8]);
}

/// Reliable, ordered byte streams.
#[async_trait::async_trait]
pub trait Transport: Send + Sync {
    /// Connects to `HOST:PORT`, trying every address the name has, for at most `patience`.
    async fn connect(&self, address: &str, patience: Duration) -> io::Result<Connection>;

    /// Listens at `HOST:PORT`; port 0 for any free one.
    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listener>>;

    /// Waits until connections may be dead without a word. Simulated worlds have no such moments.
    async fn unsettled(&self) -> Unsettled {
        std::future::pending().await
    }
}

/// What happened to the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsettled {
    /// It slept, or stood still: clocks that count intervals may not have counted.
    Slept,
    /// Its addresses or ways changed.
    Moved,
}

#[async_trait::async_trait]
pub trait Listener: Send {
    /// `HOST:PORT` with the port that was chosen.
    fn address(&self) -> io::Result<String>;

    async fn accept(&mut self) -> io::Result<Connection>;
}

/// A stream, in its two directions.
pub struct Connection {
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    pub writer: Box<dyn StreamWriter>,
    /// The other end's address, for messages.
    pub peer: String,
    /// Our own end's.
    pub local: String,
    /// The peer is far, and each lost packet slows down what is sent to it.
    pub slows_at_losses: bool,
}

/// The sending direction of a stream.
#[async_trait::async_trait]
pub trait StreamWriter: AsyncWrite + Send + Unpin {
    /// Sends a range of a file, by the kernel where it can, else through memory.
    async fn send_file(&mut self, range: &FileRange) -> io::Result<()>;
}
