//! The one program: server, mount, dev and the operator's verbs.
fn main() {}
