//! This machine, as a process of ours meets it. Knows no federation and no server.
//!
//! * [`beneath`]: local files, written and read where others may plant links; [`private`]: files
//!   that are their owner's alone; [`paths`]: what people type, made absolute.
//! * [`process`], [`users`]: who else is here, and as whom something is done; [`becoming`]: as whom
//!   a daemon runs; [`descriptors`]: how many files may be open.
//! * [`table`]: what is mounted; [`namespace`]: networks that are reached from elsewhere only.
//! * [`runtime`]: the threads of servers and mounts; [`memory`]: used again, and given back when
//!   idle.

pub mod becoming;
pub mod beneath;
pub mod descriptors;
pub mod memory;
pub mod namespace;
pub mod paths;
pub mod private;
pub mod process;
pub mod runtime;
pub mod table;
pub mod users;
