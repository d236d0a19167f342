//! Calls of real programs, played on the real client over a modelled line in virtual time.
//!
//! * [`trace`]: what programs asked for (`corpus/`), and [`shapes`]: programs of stated shapes.
//! * [`tree`], [`server`]: a tree, and what an MDS and an OSS tell of it.
//! * [`line`]: one queue of bytes, half a round trip long.
//! * [`machine`]: a kernel with a mount, on which programs run.
//! * [`history`]: the same program, after others used the tree, or nobody.
//!
//! The client is the real one: how much it brings ahead, when it waits and what it remembers is not
//! modelled. What is: the kernel (names and pages are kept), the servers' speed, and that nothing
//! is lost on the line.

pub mod history;
pub mod line;
pub mod machine;
pub mod server;
pub mod shapes;
pub mod trace;
pub mod tree;
