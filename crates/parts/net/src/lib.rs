//! Sessions over frames: a state machine without sockets and the loop that drives it.
