//! Sessions and servers together: over in-memory streams with paused time, and over TCP.

mod hostile;
mod house;
mod notices;
mod reconnect;
mod requests;
mod secure;
mod tcp;
