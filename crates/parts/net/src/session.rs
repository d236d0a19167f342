//! The loop that drives a client's state machine.

use crate::{Channel, Dialer, NoticeSink};
use std::sync::Arc;
use std::time::Duration;
use tieline_wire::Hello;
use tieline_world::World;

#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// Requests under way at once; further calls wait their turn.
    pub requests_max: usize,
    /// A ping goes out when nothing else did for this long.
    pub ping_every: Duration,
    /// No frame for this long after a ping: the connection is dead.
    pub silence_max: Duration,
    /// First and longest pause between attempts to connect.
    pub retry_first: Duration,
    pub retry_longest: Duration,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            requests_max: 128,
            ping_every: Duration::from_secs(5),
            silence_max: Duration::from_secs(10),
            retry_first: Duration::from_millis(50),
            retry_longest: Duration::from_secs(2),
        }
    }
}

/// A channel over a world's transport.
pub struct Session {}

/// Makes [`Session`]s.
pub struct SessionDialer {
    pub world: World,
    pub settings: SessionSettings,
}

impl Dialer for SessionDialer {
    fn dial(
        &self,
        _addresses: &[String],
        _hello: Hello,
        _sink: Arc<dyn NoticeSink>,
    ) -> Arc<dyn Channel> {
        todo!("net room")
    }
}
