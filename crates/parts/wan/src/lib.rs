//! An emulated long link, for tests and measurements on one machine, with or without netem in its
//! kernel.
//!
//! A [`Link`] joins two TUN devices, usually in two network namespaces: `clients` on one side,
//! `servers` on the other. Real TCP stacks at both ends send real packets; between them every
//! packet waits in a queue for its turn on the line, travels as long as the distance says, may be
//! lost, and may find the line cut.
//!
//! * [`quality`]: what a line is like. * [`packet`]: the packets of a TUN device, also those of 64
//!   KiB that stand for many. * [`lane`]: one direction, without a socket or a clock.
//! * [`nat`]: clients behind one address. * [`tun`]: the devices. * [`relay`]: the loop that moves
//!   packets.
//! * [`order`]: words by which a line is changed while it works; [`script`]: orders with times.
//!   [`control`]: the socket on which they come.
//!
//! Does not know what the packets carry, nor who made the namespaces. It plays the outside, so it
//! has a clock and dice of its own: neither belongs to the world that it plays to.
//!
//! Invariants: the packets of a lane leave in the order in which they came; what waits is bounded;
//! a seed decides which packets are lost.

pub mod control;
pub mod lane;
pub mod nat;
pub mod order;
pub mod packet;
pub mod quality;
pub mod relay;
pub mod script;
pub mod tun;

pub use control::ask;
pub use order::{Change, Order, Versions, Way};
pub use quality::{Distance, Loss, Quality, Queue, Rate};
pub use relay::{Ends, Link, Relay};
pub use script::Script;
pub use tun::Tun;

/// What is wrong with an emulated link.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use the network device {name}")]
    Device { name: String, source: std::io::Error },
    #[error("cannot use the socket {path}")]
    Socket { path: String, source: std::io::Error },
    #[error("nobody answers at {path}: is there an emulated link?")]
    Nobody { path: String, source: std::io::Error },
    #[error("a network device of a line is gone")]
    Gone,
    #[error("the relay cannot wait for packets")]
    Poll(#[source] std::io::Error),
    #[error("{0}")]
    Words(#[from] quality::WordError),
    #[error("the relay answers: {0}")]
    Refused(String),
}
