//! The arithmetic of extents. Whatever covers bytes of a file is a run from an offset on, and
//! whatever is laid over runs cuts them: [`runs`] does that for all.
//!
//! * [`adler`]: checksums of ranges in a row.
//! * [`merged`]: ranges without contents, merged where they touch.
//! * [`known`]: the extents of a file as far as somebody was told of them.
//! * [`stored`]: the extents of a file as records, and what a change does to these.
//! * [`overlay`]: what was written over a file's extents, and what is sealed to become extents.
//! * [`windows`]: which extents are rewritten together, and where.
//!
//! Pure: no I/O, no clock, no locks.

pub mod adler;
pub mod known;
pub mod merged;
pub mod overlay;
pub mod runs;
pub mod stored;
pub mod windows;
