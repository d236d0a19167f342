//! The protocol in bytes: what it was at its release, and what outsiders may send instead.
//!
//! * [`samples`]: a value of every message.
//! * [`golden`]: files that hold their bytes. `cargo xtask bless` rewrites them; the diff is the
//!   review.
//! * [`documents`]: the normative page has them all.
//! * [`hostile`]: bytes that nobody sent on purpose; [`mutation`] makes them from samples.

mod bounds;
mod documents;
mod golden;
mod hostile;
mod mutation;
mod samples;
