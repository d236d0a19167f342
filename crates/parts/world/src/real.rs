//! The machine we run on: its clock, its entropy, its TCP.

use crate::{Clock, Connection, Dice, Listener, Transport};
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> Duration {
        // A clock before 1970 is wrong anyway; zero is as good as any wrong time.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

pub struct SystemDice;

impl Dice for SystemDice {
    fn fill(&self, bytes: &mut [u8]) {
        // Without entropy nothing this program does is safe; the kernel has it once it has booted.
        getrandom::fill(bytes).expect("the kernel gives no random bytes");
    }
}

/// TCP over IPv4 and IPv6.
#[derive(Default)]
pub struct TcpTransport {}

#[async_trait::async_trait]
impl Transport for TcpTransport {
    async fn connect(&self, _address: &str, _patience: Duration) -> io::Result<Connection> {
        todo!("world room")
    }

    async fn listen(&self, _address: &str) -> io::Result<Box<dyn Listener>> {
        todo!("world room")
    }
}
