//! What will be read next, by what was read: history in, ranges and names out.
//!
//! * [`ahead`]: streams through one handle, and the window ahead of each.
//! * [`past`]: leaps from place to place, through whichever handles, and what was read before.
//! * [`walks`]: directories and small files, by who visits and opens them.
//! * [`bundles`]: what programs opened, as an MDS keeps it.
//! * [`mode`]: how somebody asked for it, in RFIO's words.
//!
//! Pure: who asks it brings what it says. Its only clock is that of its caller's runtime, and what
//! is on its way is told to others by channels; no I/O.

pub mod ahead;
pub mod bundles;
pub mod mode;
pub mod past;
pub mod walks;
