//! `tieline`: server, mount, development federation and the operator's verbs in one program.
//!
//! Composition only: this crate plugs rooms together and talks to people. No file system logic is
//! here.
//!
//! * [`cli`]: what may be typed, and by which names the program may be called.
//! * [`verbs`]: `ls`, `put`, `getstripe`, `df`, `pool` and the like, over [`shell`]: the client
//!   room without a mount; [`parting`]: where they are ended early.

pub mod cli;
pub mod operator;
pub mod parting;
mod runtime;
pub mod shell;
pub mod verbs;
