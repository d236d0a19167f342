//! `tieline`: server, mount, development federation and the operator's verbs in one program.
//!
//! Composition only: this crate plugs rooms together and talks to people. No file system logic is
//! here.
//!
//! * [`cli`]: what may be typed, and by which names the program may be called.
//! * [`server`]: an MDT, OSTs or both behind one port; [`federation`]: the map as text, and its
//!   keys.
//! * [`invitation`]: the word by which a site joins.
//! * [`mount`]: the FUSE mount and its daemon.
//! * [`verbs`]: `ls`, `put`, `getstripe`, `df`, `pool` and the like, over [`shell`]: the client
//!   room without a mount; [`parting`]: where they are ended early.
//! * [`proving`]: how servers, mounts and verbs prove themselves.
//! * [`dev`]: a whole federation on this machine.
//! * [`source`], [`location`], [`contact`]: how a file system is named, found and met for the
//!   first time.

pub mod cli;
pub mod dev;
pub mod mount;
pub mod operator;
pub mod parting;
mod runtime;
pub mod server;
pub mod shell;
pub mod spool;
pub mod verbs;
