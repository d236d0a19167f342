//! The client's state machine: events and time in, actions out.
