//! What time it is at a server: the body of its pongs.
//!
//! Clients stamp what they do by themselves as the file's MDS would have, whatever their own clocks
//! say.

use minicbor::{Decode, Encode};
use tieline_types::Time;

/// A server's clock, as it answered a ping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ServerTime {
    #[n(0)]
    pub now: Time,
}
